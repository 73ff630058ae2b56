/* engine/prefill_result.c - sums of hidden states, scores of next tokens. */
#include "engine/prefill_result.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "sample/sampler.h"

rd_status prefill_result_init(struct prefill_result *p, const struct prefill_wish *wish)
{
    memset(p, 0, sizeof(*p));
    if (wish->pool_to) {
        assert(wish->pool_from < wish->pool_to && wish->hidden > 0);
        p->pool_from = wish->pool_from;
        p->pool_to = wish->pool_to;
        p->hidden = wish->hidden;
        p->sum = mem_zalloc(wish->hidden, sizeof(*p->sum));
        p->embedding = mem_zalloc(wish->hidden, sizeof(*p->embedding));
        if (!p->sum || !p->embedding) return RD_E_NOMEM;
    }
    if (wish->n_scores) {
        p->n_scores = wish->n_scores;
        p->score_tokens = (int32_t *)(void *)mem_memdup(wish->score_tokens, wish->n_scores * sizeof(int32_t));
        p->scores = mem_zalloc(wish->n_scores, sizeof(*p->scores));
        if (!p->score_tokens || !p->scores) return RD_E_NOMEM;
    }
    return RD_OK;
}

void prefill_result_deinit(struct prefill_result *p)
{
    mem_free(p->sum);
    mem_free(p->embedding);
    mem_free(p->score_tokens);
    mem_free(p->scores);
    memset(p, 0, sizeof(*p));
}

void prefill_pool(struct prefill_result *p, uint32_t pos0, uint32_t n_rows, const float *rows)
{
    for (uint32_t pos = pos0; pos < pos0 + n_rows; pos++) {
        if (!prefill_pools_at(p, pos)) continue;
        if (pos == p->pool_from + p->n_pooled) { /* computed anew after a preemption: the same values */
            for (uint32_t k = 0; k < p->hidden; k++) p->sum[k] += (double)rows[k];
            p->n_pooled++;
        }
        rows += p->hidden;
    }
}

void prefill_pool_end(struct prefill_result *p)
{
    double square = 0, scale;

    assert(p->n_pooled == p->pool_to - p->pool_from);
    for (uint32_t k = 0; k < p->hidden; k++) square += p->sum[k] * p->sum[k];
    scale = square > 0 ? 1 / sqrt(square) : 0; /* the length takes the mean's divisor with it */
    for (uint32_t k = 0; k < p->hidden; k++) p->embedding[k] = (float)(p->sum[k] * scale);
}

bool prefill_is_finite(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

rd_status prefill_score(struct prefill_result *p, struct sampler_scratch *scratch, const float *logits,
                        uint32_t n_vocab)
{
    if (p->n_scores == 0) return RD_OK;
    return sampler_score(scratch, logits, n_vocab, p->score_tokens, p->n_scores, p->scores);
}
