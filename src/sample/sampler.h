/* sample/sampler.h - one row of logits to one token, and its log probabilities.
 *
 * Order: logit_bias -> repetition, presence, frequency penalties -> (greedy when temperature == 0) temperature -> top_k
 * -> top_p -> min_p -> draw. Log probabilities are of the raw model distribution (log softmax of the logits before
 * bias, penalties and temperature), as OpenAI and vLLM do.
 *
 * Exact: the outcome is a pure function of (logits bytes, parameters, token history, seed, position): the random number
 * is random_at(seed, position). Ties: the lower id wins. NaN or +inf logits: RD_E_MODEL_OUTPUT. Allocates nothing:
 * struct sampler is made once per request and holds its scratch. Thread  engine thread only, one sampler per sequence.
 * Errors: create RD_E_NOMEM, RD_E_INVALID (names the parameter).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"

struct sampler_bias { int32_t token; float bias; };     /* bias in logits; <= -100 never, as OpenAI */

struct sampler_params {
    float temperature;          /* >= 0; 0 = greedy */
    int32_t top_k;              /* <= 0: all */
    float top_p, min_p;         /* 1 and 0: off */
    float repetition_penalty; /* 1: off; divides positive, multiplies negative logits of tokens in prompt and output */
    float presence_penalty, frequency_penalty;          /* 0: off; over the output tokens */
    uint64_t seed;
    const struct sampler_bias *bias;                    /* copied */
    uint32_t n_bias;
    uint32_t n_top_logprobs;    /* 0 .. LIMIT_TOP_LOGPROBS */
    bool want_logprob;
};

struct token_logprob { int32_t token; float logprob; };
struct sampler_result {
    int32_t token;
    float logprob;                                       /* when want_logprob */
    uint32_t n_top;
    struct token_logprob top[20];                        /* descending, LIMIT_TOP_LOGPROBS */
};

struct sampler;
void sampler_params_default(struct sampler_params *p);   /* temperature 1, all else off */
rd_status sampler_params_check(const struct sampler_params *p, uint32_t n_vocab, struct rd_error *err);
/* shared scratch of one engine: [n_vocab] arrays used by every sampler on the engine thread. */
struct sampler_scratch;
rd_status sampler_scratch_create(uint32_t n_vocab, struct sampler_scratch **out);
void sampler_scratch_destroy(struct sampler_scratch *s);
/* max_tokens: the most tokens that accept() will see (prompt and output), so that counting never allocates. */
rd_status sampler_create(const struct sampler_params *p, uint32_t n_vocab, uint32_t max_tokens, struct sampler **out);
void sampler_destroy(struct sampler *s);
/* The history for penalties; prompt tokens once at the start, each output token when it is sampled. */
void sampler_accept(struct sampler *s, int32_t token, bool is_prompt);
/* RD_E_MODEL_OUTPUT: NaN or +inf among them, or nothing but -inf. */
rd_status sampler_check_logits(const float *logits, uint32_t n_vocab);
/* logits: [n_vocab], read only. banned: tokens never to be drawn now (ignore_eos: the end tokens), may be NULL.
 * position: of the new token. */
rd_status sampler_sample(struct sampler *s, struct sampler_scratch *scratch, const float *logits, const int32_t *banned,
                         uint32_t n_banned, uint64_t position, struct sampler_result *out);
/* Log probability of a given token and the top n of a row (prompt logprobs). */
rd_status sampler_logprobs(struct sampler_scratch *scratch, const float *logits, uint32_t n_vocab, int32_t token,
                           uint32_t n_top, struct sampler_result *out);
