/* grad/record.h - a backend that computes what another does, writes down what it was asked for, and goes back through it.
 *
 *     model --ops--> recording backend --the same ops--> CPU, or CUDA          the bits are those of serving
 *                          |
 *                          v  tape:  [norm][linear][low_rank][qkv][attention] ...   per op: its arguments, and those inputs
 *                                      <------------- record_backward -------------   that its gradient reads
 *
 * What is trained are the pairs A, B of low-rank adapters (low_rank's terms) that record_pair names; all else is frozen, of any
 * type. Gradients go through a frozen product as W^T dy, W opened piece by piece. How, and what is rounded on the way, is the
 * device's (device.h): on a CPU all of it is f32, with the rows of the file, but for AMX (matrix_unit.h).
 *
 * Rounding is taken for the identity (straight through): activations that a quantised product rounds to 8 bits, keys and
 * values that are stored as F16 or BF16. Keys and values are read from the pages, as attention read them.
 *
 * A pass is of whole sequences (positions from 0), all rows with the same adapters. Its tape is cut into segments, one a
 * layer, where all that lives is the residual stream and the last block's output. Of the first n_recomputed segments only
 * those two are kept; going back, their ops run again: the same bits, less memory.
 *
 *     record_create     -> the backend, record_ops its table
 *     record_pair       every pair, once
 *     record_begin      model_forward (no logits, hidden rows wanted)      record_backward
 *
 * Owns    copies of weights whose bytes do not stay. Weights that do (mapped files) must stay until the backend is destroyed.
 * Thread  one.  Errors  RD_E_NOMEM; RD_E_UNSUPPORTED: quantised keys, rows of different adapters.
 * Source  reverse mode over a tape; recomputing: arXiv:1604.06174.
 */
#pragma once
#include "grad/device.h"

/* The table of a recording backend over one with this table. */
void record_ops(const struct backend_ops *inner, struct backend_ops *out);
/* Takes inner, also where it fails. ops stays. RD_E_UNSUPPORTED: that backend does not train. */
rd_status record_create(const struct backend_options *o, const struct backend_ops *ops, struct backend *inner,
                        struct backend **out, struct rd_error *err);

/* da [rank, n_in], db [rank, n_out] (b as low_rank has it), the device's memory: added to. id tells the pairs' dropout apart. */
struct record_pair {
    const struct weight *a, *b;
    float *da, *db;
    uint32_t id;
};
rd_status record_pair(struct backend *be, const struct record_pair *p);

struct record_pass {
    float dropout; /* of what A reads: 0 .. 1 */
    uint64_t seed; /* the mask of an element follows from seed, pass, pair, row and column */
    uint32_t pass; /* number of it */
    uint32_t n_recomputed;
};
/* What follows, until record_pause, is written down. */
rd_status record_begin(struct backend *be, const struct record_pass *p);
/* The pass has ended; what is asked now is not written down (the head). */
void record_pause(struct backend *be);
/* Gradients of the rows that the pass gave, [n_rows, width], of the device, which is given them back; adds to the pairs'. The
 * tape is empty afterwards. */
rd_status record_backward(struct backend *be, float *d_rows, uint32_t n_rows, uint32_t width);
void record_end(struct backend *be);
/* Bytes that the tape holds now, and at most since record_begin. */
uint64_t record_bytes(const struct backend *be, uint64_t *most);

const struct grad_device_ops *record_device(struct backend *be, struct grad_device **out);
