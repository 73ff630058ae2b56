/* model/share.h - which part of a model a rank has.
 *
 *     wq, wk, wv   the rows of its heads          gate, up   rows, an equal number of them
 *     wo           rows: of hidden                down       rows: of hidden
 *     pages        its KV heads                   output     rows: of the vocabulary
 *     norms, embedding, positions: whole
 *
 * Heads go in groups that share keys and values. Where there are as many groups as ranks, or more, a rank has whole groups;
 * where there are fewer, ranks share a group's heads, and each has its keys and values. Numbers that do not go into equal parts
 * give parts that differ by one group, one head, or some rows; a rank may have no head at all. So every shape can be cut.
 * Thread  any.
 */
#pragma once
#include <stdint.h>
#include "backend/ranks.h"

struct model_config;

struct cut {
    uint32_t first, n;
};

struct model_share {
    uint32_t rank, n_ranks;
    struct cut heads, kv_heads, ffn, hidden, vocab; /* this rank's */
    /* [n_ranks] where each rank's part of a row ends: op.join's. In floats: */
    uint32_t q_ends[RANKS_MAX], ffn_ends[RANKS_MAX], hidden_ends[RANKS_MAX], vocab_ends[RANKS_MAX];
};

/* rank < n_ranks <= RANKS_MAX. */
struct model_share model_share_of(const struct model_config *c, uint32_t rank, uint32_t n_ranks);
/* Which of the ranks has a KV head, the first if several have. */
uint32_t model_share_owner(const struct model_config *c, uint32_t n_ranks, uint32_t kv_head);
