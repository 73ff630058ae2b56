/* sample/sampler_parts.h - what the files of the sampler share: its state and the scratch.
 * Thread  engine thread only. Errors  see sampler.h; what returns nothing cannot fail.
 */
#pragma once
#include "sample/sampler.h"
#include "sample/vocab_scan.h"

#define DRAW_N_LEADS 24u /* a draw looks at 23 bits */

struct seen_token {
    int32_t token;
    uint32_t n, n_out;
}; /* token -1: an empty place; n: in prompt and output */

struct sampler {
    struct sampler_params p; /* what it points to is the sampler's */
    uint32_t n_vocab;
    bool greedy, simple, edits; /* simple: temperature, top_k, top_p, min_p; edits: the row is not the model's */
    struct seen_token *seen;    /* [n_places] open addressing; NULL when no penalty is on */
    uint32_t n_places;          /* a power of two */
    int32_t *history;           /* [cap_history] prompt and output, or NULL when it is not looked at */
    uint32_t n_history, n_prompt, cap_history;
    uint32_t *z;          /* [cap_history] for DRY, or NULL */
    uint64_t *break_ends; /* a bit per token: some of dry_break_words ends with it; or NULL */
    double mu, surprise;  /* mirostat: its bound in bits; of the token drawn last */
    int32_t drawn;
};

struct sampler_scratch {
    uint32_t n_vocab;
    const struct vocab_kernels *kernels;
    const float *known_row, *known_best; /* sampler_scratch_know */
    float *best, *spare;                 /* [VOCAB_N_BLOCKS(n_vocab)] of the row scanned last; see vocab_scan.h */
    double *sums;                        /* as long */
    float *logits;                       /* [n_vocab] adjusted */
    struct candidate *heap;              /* [n_vocab] */
    int32_t *order;                      /* [n_vocab] */
    double *weights;                     /* [n_vocab] */
    uint32_t *marks;                     /* [n_vocab] all 0 between uses */
    float most_gumbel[DRAW_N_LEADS];     /* of words that begin with this many ones and then a zero */
};

/* sampler_history.c: what was written so far. */
rd_status sampler_history_create(struct sampler *s, uint32_t max_tokens);
void sampler_remember(struct sampler *s, int32_t token, bool is_prompt);
void sampler_penalties(const struct sampler *s, float *logits);
void sampler_dry(const struct sampler *s, struct sampler_scratch *x);
void sampler_ban_words(const struct sampler *s, float *logits);

/* sampler_chain.c: the stages from `stage` on over x->logits, the row scanned last (not all -inf), then the draw at
 * `unit` (0 .. 1). */
int32_t sampler_chain(const struct sampler *s, struct sampler_scratch *x, uint32_t stage, double unit, double xtc_unit);
int32_t sampler_mirostat(struct sampler *s, struct sampler_scratch *x, double unit);
