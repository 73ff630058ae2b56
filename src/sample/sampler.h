/* sample/sampler.h - one row of logits to one token, and its log probabilities.
 *
 * Always first: logit_bias, allowed tokens, bad words. Then the stages, in the order below or in that of `stages`:
 *     penalties (repetition, presence, frequency), dry, temperature (or dynamic temperature), top_n_sigma, top_k,
 *     typical_p, top_p, min_p, xtc;  and one draw.
 * Temperature 0 is greedy: the best after the penalties; nothing is cut. A stage that is left out of `stages` does
 * nothing. Mirostat 2 takes the place of all stages but penalties, dry and temperature. Log probabilities are of the
 * raw model distribution (log softmax of the logits before all of this), as OpenAI and vLLM do; under a grammar's mask, of
 * that distribution over what the mask lets through.
 *
 * Exact: the outcome is a pure function of (logits bytes, parameters, token history, seed, position). Where temperature
 * and min_p are all there is, the draw is base/draw.h's, which a device makes with the same bits; else, which is always
 * drawn here, the random number is random_at(seed, position), for XTC under another key. A draw by base/draw.h that
 * falls on a banned token is made again without those. Ties: the lower id wins. NaN or +inf logits:
 * RD_E_MODEL_OUTPUT. Allocates nothing: struct sampler is made once per request. Thread  engine thread only, one
 * sampler per sequence.
 * Errors: create RD_E_NOMEM, RD_E_INVALID (names the parameter).
 * Source: typical_p arXiv:2202.00666, min_p arXiv:2407.01082, top-n-sigma arXiv:2411.07641, mirostat arXiv:2007.14966;
 * XTC, DRY and dynamic temperature as llama-server has them.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "radish/sampling.h"
#include "radish/status.h"

/* n sequences of tokens, one behind the other; ends[i]: where sequence i ends. */
struct sampler_words {
    const int32_t *tokens;
    const uint32_t *ends;
    uint32_t n;
};

enum sampler_stage {
    SAMPLER_PENALTIES,
    SAMPLER_DRY,
    SAMPLER_TEMPERATURE,
    SAMPLER_TOP_N_SIGMA,
    SAMPLER_TOP_K,
    SAMPLER_TYPICAL_P,
    SAMPLER_TOP_P,
    SAMPLER_MIN_P,
    SAMPLER_XTC,
    SAMPLER_N_STAGES
};
#define SAMPLER_MAX_STAGES 16u

/* The numbers of radish/sampling.h, and its lists as token ids. */
struct sampler_params {
    RD_SAMPLING_NUMBERS(RD_SAMPLING_MEMBER)
    const uint64_t *dry_breakers;         /* a bit per token, or NULL; copied */
    struct sampler_words dry_break_words; /* copied */
    uint8_t stages[SAMPLER_MAX_STAGES];   /* enum sampler_stage; with has_stages */
    uint32_t n_stages;
    bool has_stages; /* false: the order of the enum */
    uint64_t seed;
    const struct rd_bias *bias; /* in logits; <= -100 never, as OpenAI; copied */
    uint32_t n_bias;
    const int32_t *allowed; /* NULL: all; copied */
    uint32_t n_allowed;
    struct sampler_words bad_words; /* the last token of each never follows those before it; copied */
    uint32_t n_top_logprobs;        /* 0 .. LIMIT_TOP_LOGPROBS */
    bool want_logprob;
};

struct token_logprob {
    int32_t token;
    float logprob;
};
struct sampler_result {
    int32_t token;
    float logprob; /* when want_logprob */
    uint32_t rank; /* the same; 1: no other token is more likely */
    uint32_t n_top;
    struct token_logprob top[20]; /* descending, LIMIT_TOP_LOGPROBS */
};

struct sampler;
void sampler_params_default(struct sampler_params *p); /* temperature 1, all else off */
rd_status sampler_params_check(const struct sampler_params *p, uint32_t n_vocab, struct rd_error *err);
/* shared scratch of one engine: [n_vocab] arrays used by every sampler on the engine thread. */
struct sampler_scratch;
rd_status sampler_scratch_create(uint32_t n_vocab, struct sampler_scratch **out);
/* The next row that is sampled may be `logits`, whose best of each block (vocab_scan.h) are known: +inf where a logit is
 * NaN or +inf. Borrowed until the next call; NULL: nothing is known. */
void sampler_scratch_know(struct sampler_scratch *s, const float *logits, const float *best);
void sampler_scratch_destroy(struct sampler_scratch *s);
/* max_tokens: the most tokens that accept() will see (prompt and output), so that counting never allocates. */
rd_status sampler_create(const struct sampler_params *p, uint32_t n_vocab, uint32_t max_tokens, struct sampler **out);
void sampler_destroy(struct sampler *s);
/* The history for penalties, and mirostat's state; prompt tokens once at the start, each output token when it is
 * sampled. Nothing else changes a sampler. */
void sampler_accept(struct sampler *s, int32_t token, bool is_prompt);
/* RD_E_MODEL_OUTPUT: NaN or +inf among them, or nothing but -inf. */
rd_status sampler_check_logits(const float *logits, uint32_t n_vocab);
/* What may be drawn now, beside what the parameters say for all positions. */
struct sampler_bounds {
    const int32_t *banned; /* never: end tokens that must not come yet */
    uint32_t n_banned;
    const uint32_t *mask; /* a bit per token (a grammar's), or NULL: all */
    const int32_t *also;  /* with a mask: these too, unless banned (end tokens) */
    uint32_t n_also;
};
bool sampler_may_draw(const struct sampler_bounds *b, int32_t token);
/* logits: [n_vocab], read only. bounds: NULL: none. position: of the new
 * token. Under a mask the log probabilities are of the distribution
 * over what it lets through. RD_E_INVALID: what was asked for (biases, allowed
 * tokens, bad words, mask, banned tokens) leaves nothing to draw. */
rd_status sampler_sample(struct sampler *s, struct sampler_scratch *scratch, const float *logits,
                         const struct sampler_bounds *bounds, uint64_t position, struct sampler_result *out);
/* The same without a draw: the token is given. Its log probability where one is wanted. */
rd_status sampler_take(struct sampler *s, struct sampler_scratch *scratch, const float *logits,
                       const struct sampler_bounds *bounds, int32_t token, struct sampler_result *out);
/* Whether the outcome is a token of the row as it is, unless that token is banned: the lowest id among the largest
 * (*temperature 0), or the draw of base/draw.h. */
bool sampler_is_plain(const struct sampler *s, float *temperature, float *min_p, uint64_t *seed);
/* Log probability of a given token and the top n of a row (prompt logprobs). */
rd_status sampler_logprobs(struct sampler_scratch *scratch, const float *logits, uint32_t n_vocab, int32_t token,
                           uint32_t n_top, struct sampler_result *out);
/* Log probabilities of n given tokens of a row: out[i] is that of tokens[i]. */
rd_status sampler_score(struct sampler_scratch *scratch, const float *logits, uint32_t n_vocab, const int32_t *tokens,
                        uint32_t n, float *out);
