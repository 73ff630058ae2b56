/* tests/model/model_rig.h - a model on the CPU backend with one sequence's KV pages, without the engine.
 *
 * The block table is a fixed shuffle, so that a page id is never its index. Helpers return a status and print what
 * failed.
 */
#pragma once
#include "backend/backend.h"
#include "format/model_file.h"
#include "model/model.h"

struct model_rig {
    struct model_file *g;
    struct backend *be;
    struct model *m;
    struct kv_storage kv;
    uint32_t n_ctx, max_rows, n_pages;
    kv_page *table; /* [n_pages] */
    struct model_batch batch;
};

/* isa NULL: the best. n_threads 0: all cores. */
rd_status rig_open(struct model_rig *r, const char *path, enum dtype kv_dtype, uint32_t n_ctx, uint32_t max_rows,
                   const char *isa, uint32_t n_threads);
void rig_close(struct model_rig *r);
/* The batch that rig_step runs, for who wants more of it. False: there is no room. */
bool rig_fill(struct model_rig *r, const int32_t *tokens, uint32_t pos0, uint32_t n, uint32_t n_logits);
/* Runs tokens at positions pos0 .. pos0 + n - 1; logits of the n_logits latest rows, [n_logits, n_vocab]. */
rd_status rig_step(struct model_rig *r, const int32_t *tokens, uint32_t pos0, uint32_t n, uint32_t n_logits,
                   float *logits);
