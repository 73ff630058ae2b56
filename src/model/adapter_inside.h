/* model/adapter_inside.h - what blocks.c computes with. Internal to src/model/. */
#pragma once
#include <stdatomic.h>
#include "backend/backend.h"
#include "backend/ranks.h"
#include "model/adapter.h"

/* The matrices of a layer that an adapter may have. */
enum adapter_target { ADAPT_Q, ADAPT_K, ADAPT_V, ADAPT_O, ADAPT_GATE, ADAPT_UP, ADAPT_DOWN, ADAPT_N };

/* "attn_q" */
const char *adapter_target_name(enum adapter_target t);
struct model_config;
void adapter_target_sizes(const struct model_config *c, enum adapter_target t, uint32_t *n_out, uint32_t *n_in);
/* Where row o of wq or wk, as the adapter has it, stands in the model: halves of a head, or RoPE's pairs side by side. */
uint32_t adapter_place(uint32_t o, uint32_t head_dim, bool from_pairs, bool to_pairs);

struct adapter_pair {
    struct weight a, b; /* a.data NULL: the matrix is as it is */
    float scale;
};

/* What a rank has of an adapter, on its backend: every A, and of every B the columns of the rank's part of the matrix. */
struct adapter_part {
    const struct backend_ops *ops;
    struct backend *be;
    struct adapter_pair *pairs; /* [n_layers, ADAPT_N] */
    void *block;         /* what the pairs' weights refer to, in huge pages; NULL: the backend has its own copies */
    struct weight table; /* of the pairs, for recorded steps; data NULL: the backend has none */
};

struct adapter {
    struct adapter_info info;
    uint32_t n_layers, n_parts;
    struct adapter_part parts[RANKS_MAX]; /* [n_parts] by rank */
    atomic_int refs;
};

struct adapter_mix {
    struct hash128 id;
    atomic_int refs;
    uint32_t n;
    struct adapter_use uses[ADAPTER_MIX_MAX]; /* in the order of their digests */
};

/* The rows of a pass that have a mix, each mix's together. Zeroed: none has. Of a recorded step: every row's own. */
struct adapted_rows {
    uint32_t n;
    struct adapted_group *groups;      /* [n], the workspace's */
    const struct low_rank_row *by_row; /* [n_rows]; NULL: groups says it, else n is how many rows have any */
    uint32_t n_rows, most_ranks;       /* with by_row */
};
struct adapted_group {
    const struct adapter_mix *mix;
    uint32_t n_rows;
    const uint32_t *rows;
};

struct model_batch;
struct workspace;
/* of[n_rows]: which row of the batch each row of the pass is; NULL: the same. */
struct adapted_rows adapted_rows_of(const struct workspace *ws, const struct model_batch *b, const uint32_t *of,
                                    uint32_t n_rows);

/* A mix as a recorded step of the model has it; x NULL: no uses. The adapters' ranks (of their matrices) together. */
uint32_t adapter_mix_row(const struct model *m, const struct adapter_mix *x, struct low_rank_row *out);

/* What linear gave: out[i] is target first + i of the layer, each contiguous. */
struct adapt_args {
    uint32_t layer;
    enum adapter_target first;
    uint32_t n_outs;
    struct span x, outs[3];
    uint32_t n_in, n_out[3];
};
/* What adapters add to what linear gives: terms, or by tables. */
struct adaptation {
    struct low_rank_args terms;
    struct low_rank_rows_args by_row; /* n_rows 0: no tables */
};
/* Before linear, which may be told of it; what it has is the workspace's until the next one is prepared. */
struct adaptation adapt_prepare(struct model *m, const struct adapted_rows *rows, const struct adapt_args *a);
/* After linear. */
rd_status adapt(struct model *m, const struct adaptation *a);
