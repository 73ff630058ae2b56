/* model/adapter_params.h - an adapter whose numbers are made here, not read: for training.
 *
 * A new one has A of random numbers (uniform within 1 / sqrt(n_in), as PEFT begins) and B of zeros: it changes nothing yet.
 * Its numbers lie in the backend's memory and may be changed between passes.
 *
 * Thread  one.  Errors  RD_E_INVALID, RD_E_UNSUPPORTED, RD_E_NOMEM; saving: as format/adapter/adapter_write.h.
 */
#pragma once
#include <stdbool.h>
#include "model/adapter.h"

#define ADAPTER_N_TARGETS 7u

struct adapter_shape {
    uint32_t rank;
    double alpha;
    bool by_root;     /* scale alpha / sqrt(rank), else alpha / rank */
    uint32_t targets; /* bit i: q, k, v, o, gate, up, down */
    uint64_t seed;
};
rd_status adapter_create(struct model *m, const struct adapter_shape *s, struct adapter **out, struct rd_error *err);

/* A pair: y += scale * B (A x). */
struct weight;
struct adapter_pair_view {
    uint32_t layer, target, rank, n_in, n_out;
    const struct weight *a_weight, *b_weight; /* as ops are given them */
    float *a, *b;                             /* [rank, n_in]; [rank, n_out]: B's transposed; the backend's memory */
};
/* The i-th that there is. false: i is beyond. */
bool adapter_pair_at(struct adapter *a, uint32_t i, struct adapter_pair_view *out);

/* "q_proj" or "attn_q" to a bit of targets; "all": all of them. 0: unknown. */
uint32_t adapter_target_bit(const char *name, size_t n);

struct adapter_save {
    const struct adapter_shape *shape;
    double dropout;
    const char *base;
    bool gguf;            /* path is a file; else PEFT's directory, which is there */
    bool bf16;            /* written as BF16, which its numbers are */
    const float *numbers; /* in host memory: a, then b, of every pair in order; NULL: those are */
};
rd_status adapter_save(struct model *m, struct adapter *a, const char *path, const struct adapter_save *s,
                       struct rd_error *err);
