/* model/share.c - cutting numbers in parts. */
#include "model/share.h"
#include <assert.h>
#include "base/checked.h"
#include "model/model.h"

#define MOST_UNIT 64u /* rows that stay together: kernels take whole tiles of them */

/* n in parts of whole units, as long as every rank gets some. */
static struct cut part_of(uint32_t n, uint32_t rank, uint32_t n_ranks)
{
    uint32_t unit = MOST_UNIT, n_units, first, end;

    while (unit > 1 && n / unit < n_ranks) unit /= 2;
    n_units = u32_ceil_div(n, unit);
    first = u32_min(n, (uint32_t)((uint64_t)n_units * rank / n_ranks) * unit);
    end = u32_min(n, (uint32_t)((uint64_t)n_units * (rank + 1) / n_ranks) * unit);
    return (struct cut){first, end - first};
}

/* Heads: groups, or heads of one group. */
static void cut_heads(const struct model_config *c, uint32_t rank, uint32_t n_ranks, struct cut *heads, struct cut *kv)
{
    const uint32_t n_groups = c->n_kv_heads, per_group = c->n_heads / n_groups;
    uint32_t group, first_rank, n_sharing, at;

    if (n_ranks <= n_groups) {
        kv->first = n_groups * rank / n_ranks;
        kv->n = n_groups * (rank + 1) / n_ranks - kv->first;
        *heads = (struct cut){kv->first * per_group, kv->n * per_group};
        return;
    }
    group = n_groups * rank / n_ranks;
    first_rank = u32_ceil_div(group * n_ranks, n_groups);
    n_sharing = u32_ceil_div((group + 1) * n_ranks, n_groups) - first_rank;
    at = rank - first_rank;
    heads->first = group * per_group + per_group * at / n_sharing;
    heads->n = group * per_group + per_group * (at + 1) / n_sharing - heads->first;
    *kv = (struct cut){group, heads->n > 0};
}

struct model_share model_share_of(const struct model_config *c, uint32_t rank, uint32_t n_ranks)
{
    struct model_share s = {.rank = rank, .n_ranks = n_ranks};

    assert(rank < n_ranks && n_ranks <= RANKS_MAX);
    for (uint32_t r = 0; r < n_ranks; r++) {
        struct cut heads, kv, ffn = part_of(c->ffn, r, n_ranks), hidden = part_of(c->hidden, r, n_ranks);
        const struct cut vocab = part_of(c->n_vocab, r, n_ranks);

        cut_heads(c, r, n_ranks, &heads, &kv);
        s.q_ends[r] = (heads.first + heads.n) * c->head_dim;
        s.ffn_ends[r] = ffn.first + ffn.n;
        s.hidden_ends[r] = hidden.first + hidden.n;
        s.vocab_ends[r] = vocab.first + vocab.n;
        if (r != rank) continue;
        s.heads = heads;
        s.kv_heads = kv;
        s.ffn = ffn;
        s.hidden = hidden;
        s.vocab = vocab;
    }
    return s;
}

uint32_t model_share_owner(const struct model_config *c, uint32_t n_ranks, uint32_t kv_head)
{
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        struct cut heads, kv;

        cut_heads(c, rank, n_ranks, &heads, &kv);
        if (kv_head >= kv.first && kv_head < kv.first + kv.n) return rank;
    }
    assert(!"a KV head of no rank");
    return 0;
}
