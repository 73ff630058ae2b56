/* vision/encoder.h - a model's eyes: pixels of an image to rows of its text model, in pieces that are small.
 *
 *     file --vision_encoder_open--> encoder --begin(image)--> run --step, step, ... RD_OK--> rows [n_rows, n_floats]
 *
 * The file is a `mmproj` file as llama.cpp writes it, or the part of a directory that sees (model_file_vision), which has
 * the same keys and names. A family is one file: siglip.c (Gemma 3), qwen_vit.c (Qwen2-VL, Qwen2.5-VL, Qwen3-VL).
 *
 * Rows are the same bits for any number of threads, any budget of the steps, any other runs in between: ops compute each
 * row by itself. A row of n_floats: `hidden` for the embedding, then n_deep times `hidden` that are added to the outputs of
 * the text model's first n_deep layers (model_batch.embeds takes both as they are). Rows of Gemma 3 are not multiplied by
 * its embedding's scale: model_batch.embeds are never scaled.
 *
 * The backend is one that computes vision ops (backend.h, op.attend): the CPU's, CUDA's. Where the text model's has none the
 * executor opens the encoder on a CPU backend of its own. A step waits for what it gave a device, so that steps of the text model
 * and of the encoder take turns there, too.
 *
 * Memory  a run takes vision_run_bytes() while it lives, all of it at begin, on a device half as much again there (what the KV
 *         cache leaves free: an eighth or so); the image's values are read during its first
 *         steps only, but the run holds the image until end. Bounded by traits.max_rows.
 * Thread  open, close: the loading thread. begin, step, rows, end: the engine thread, between forward passes, on the same
 *         thread pool. Several runs may be open; each step is of one of them.
 * Errors  open: RD_E_FORMAT, RD_E_UNSUPPORTED naming key or tensor; begin: RD_E_NOMEM, RD_E_INVALID (grid or values are not
 *         such as this encoder reads; err is not needed: our own processor made them); step: RD_E_AGAIN while there is more.
 * Source  SigLIP, arXiv:2303.15343; Gemma 3, arXiv:2503.19786; Qwen2-VL, arXiv:2409.12191; Qwen2.5-VL, arXiv:2502.13923;
 *         Qwen3-VL, arXiv:2511.21631 (DeepStack, arXiv:2406.04334).
 */
#pragma once
#include "backend/backend.h"
#include "format/model_file.h"
#include "vision/vision.h"

struct vision_encoder;
struct vision_run;

/* Work of a step, where its caller does not say: some tens of ms on two cores. */
#define VISION_STEP_FLOPS 8000000000ull
#define VISION_PHASES     7u

/* Whether rows of this file's encoder are for a text model of this architecture and width; RD_E_FORMAT, RD_E_UNSUPPORTED say
 * what both are. Cheap: keys only. Any thread. */
rd_status vision_file_fits(const struct model_file *g, const char *text_arch, uint32_t text_hidden,
                           struct rd_error *err);

/* text_hidden: of the text model, which the rows must fit. g, ops and be stay until close. */
rd_status vision_encoder_open(const struct model_file *g, const struct backend_ops *ops, struct backend *be,
                              uint32_t text_hidden, struct vision_encoder **out, struct rd_error *err);
void vision_encoder_close(struct vision_encoder *e); /* NULL is fine; no run is open */
const struct vision_traits *vision_encoder_traits(const struct vision_encoder *e);
/* Whether rows have other bits than on another machine's backend of this name: pages that are stored must say whose they are. */
bool vision_encoder_is_local(const struct vision_encoder *e);
uint64_t vision_encoder_bytes(const struct vision_encoder *e); /* of its weights */

/* Bytes that a run of this image takes. */
uint64_t vision_run_bytes(const struct vision_encoder *e, const struct vision_image *image);
/* image: held until end; its values are there. */
rd_status vision_run_begin(struct vision_encoder *e, struct vision_image *image, struct vision_run **out);
/* About n_flops floating-point operations of work (0: VISION_STEP_FLOPS), at least one block of rows. RD_E_AGAIN: there is
 * more; RD_OK: rows are there, and step must not be called again. *n_done: what was done, which may be a good deal less (a rest
 * for a few rows alone is left to the next step) or more (the least block); also where a step fails. NULL: nobody asks. */
rd_status vision_run_step(struct vision_run *run, uint64_t n_flops, uint64_t *n_done);
/* What the next step begins with, below VISION_PHASES: operations of one phase take about equally long. */
uint32_t vision_run_phase(const struct vision_run *run);
/* How much is done, 0 .. 1. */
double vision_run_done(const struct vision_run *run);
/* [image->n_rows, traits.n_floats], until end; after RD_OK of step. */
const float *vision_run_rows(const struct vision_run *run);
/* At any time: a hang-up in the middle ends it. NULL is fine. */
void vision_run_end(struct vision_run *run);
