/* engine/prefill_result.h - what a request wants of its prompt beside new tokens: one vector for it, and the log
 * probabilities of given tokens as the next one.
 *
 * The vector is the mean of the model's last hidden states (behind the output norm) over prompt positions
 * [pool_from, pool_to), divided by its length. Rows are added in the order of their positions, in double precision, and
 * each once: chunks, batches, preemption and (where only the last row is wanted) cached prefixes give the same bytes.
 *
 * Thread  init, deinit: the request's creator and last holder; the rest engine thread only. The consumer reads
 *         embedding and scores once the request has ended.
 * Errors  RD_E_NOMEM; RD_E_MODEL_OUTPUT for values that are no numbers.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"

struct sampler_scratch;

struct prefill_wish {
    uint32_t pool_from, pool_to; /* pool_to 0: no vector. Such a request generates nothing. */
    uint32_t hidden;             /* width of hidden states; executor.n_state */
    const int32_t *score_tokens; /* borrowed; each < n_vocab */
    uint32_t n_scores;
};

struct prefill_result {
    uint32_t pool_from, pool_to, hidden, n_pooled, n_scores;
    double *sum;           /* [hidden] */
    float *embedding;      /* [hidden]; zeros if the sum is zero */
    int32_t *score_tokens; /* [n_scores] */
    float *scores;         /* [n_scores] */
};

rd_status prefill_result_init(struct prefill_result *p, const struct prefill_wish *wish);
void prefill_result_deinit(struct prefill_result *p);

static inline bool prefill_pools(const struct prefill_result *p)
{
    return p->pool_to > 0;
}
/* Is the hidden state at this position wanted? */
static inline bool prefill_pools_at(const struct prefill_result *p, uint32_t pos)
{
    return pos >= p->pool_from && pos < p->pool_to;
}
/* rows: [n, hidden], the wanted ones among positions pos0 .. pos0 + n_rows - 1. Those counted before are skipped. */
void prefill_pool(struct prefill_result *p, uint32_t pos0, uint32_t n_rows, const float *rows);
/* The whole prompt is computed. */
void prefill_pool_end(struct prefill_result *p);
/* All n values are numbers. */
bool prefill_is_finite(const float *x, uint64_t n);
/* logits: [n_vocab] after the prompt. */
rd_status prefill_score(struct prefill_result *p, struct sampler_scratch *scratch, const float *logits,
                        uint32_t n_vocab);
