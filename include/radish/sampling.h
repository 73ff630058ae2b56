/* radish/sampling.h - how the next token is chosen: one list, and the struct made of it.
 *
 * A parameter that is a number is one row of RD_SAMPLING_NUMBERS. The struct, its defaults, the checks of the library, the
 * sampler, the server's fields and their documentation are made from that row; a new one is the row, what the sampler
 * does with it, and where the command line shall have it a flag.
 *
 * Thread  a plain struct: whoever has it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(kind, field, name, alias, default, least, most, text): kind REAL (float) or WHOLE (int32_t); name, alias: what
 * requests call it, NULL: nothing else. Sources: typical_p arXiv:2202.00666, min_p arXiv:2407.01082, top_n_sigma
 * arXiv:2411.07641, mirostat arXiv:2007.14966; xtc, dry, dynatemp as llama-server has them. */
#define RD_SAMPLING_NUMBERS(X)                                                                                         \
    X(REAL, temperature, "temperature", NULL, 1, 0, 100, "0: greedy")                                                  \
    X(REAL, top_p, "top_p", NULL, 1, 0, 1, "1: off")                                                                   \
    X(WHOLE, top_k, "top_k", NULL, 0, -1, 2147483647, "0 or -1: off")                                                  \
    X(REAL, min_p, "min_p", NULL, 0, 0, 1, "0: off")                                                                   \
    X(REAL, repetition_penalty, "repetition_penalty", "repeat_penalty", 1, 0.01, 100, "1: off")                        \
    X(REAL, presence_penalty, "presence_penalty", NULL, 0, -2, 2, "0: off")                                            \
    X(REAL, frequency_penalty, "frequency_penalty", NULL, 0, -2, 2, "0: off")                                          \
    X(WHOLE, repeat_last_n, "repeat_last_n", NULL, -1, -1, 2147483647,                                                 \
      "the three penalties see this many of the last tokens; 0: none; -1: all")                                        \
    X(REAL, typical_p, "typical_p", "typ_p", 1, 0, 1, "1: off")                                                        \
    X(REAL, top_n_sigma, "top_n_sigma", NULL, -1, -1, 100, "0 or below: off")                                          \
    X(REAL, xtc_probability, "xtc_probability", NULL, 0, 0, 1,                                                         \
      "0: off; how often all tokens above xtc_threshold but the least likely one are left out")                        \
    X(REAL, xtc_threshold, "xtc_threshold", NULL, 0.1, 0, 1, "above 0.5: off")                                         \
    X(REAL, dynatemp_range, "dynatemp_range", NULL, 0, 0, 100,                                                         \
      "0: off; else the temperature goes from temperature - range to + range with the entropy")                        \
    X(REAL, dynatemp_exponent, "dynatemp_exponent", NULL, 1, 0, 100, "of the entropy, of dynatemp_range")              \
    X(REAL, dry_multiplier, "dry_multiplier", NULL, 0, 0, 100,                                                         \
      "0: off; a token that lengthens a repetition loses multiplier * base ^ (length - allowed_length)")               \
    X(REAL, dry_base, "dry_base", NULL, 1.75, 0, 100, "below 1: off")                                                  \
    X(WHOLE, dry_allowed_length, "dry_allowed_length", NULL, 2, 0, 2147483647,                                         \
      "repetitions up to this many tokens are free")                                                                   \
    X(WHOLE, dry_last_n, "dry_penalty_last_n", NULL, -1, -1, 2147483647,                                               \
      "repetitions are looked for in this many of the last tokens; 0: off; -1: all")                                   \
    X(WHOLE, mirostat, "mirostat", NULL, 0, 0, 2, "0: off; 2: in place of all cuts")                                   \
    X(REAL, mirostat_tau, "mirostat_tau", NULL, 5, 0, 100, "surprise wanted, in bits")                                 \
    X(REAL, mirostat_eta, "mirostat_eta", NULL, 0.1, 0, 1, "rate of learning")

#define RD_SAMPLING_REAL                                                          float
#define RD_SAMPLING_WHOLE                                                         int32_t
#define RD_SAMPLING_MEMBER(kind, field, name, alias, fallback, least, most, text) RD_SAMPLING_##kind field;

struct rd_bias {
    int32_t token;
    float bias;
};
struct rd_text_bias {
    const char *text;
    float bias;
}; /* for every token of the text */

struct rd_sampling {
    size_t size; /* of this struct; rd_sampling_default sets it, and a request with another size was
                                     * built for another version, or never filled: RD_E_INVALID */
    RD_SAMPLING_NUMBERS(RD_SAMPLING_MEMBER)
    bool has_seed; /* false: a random seed */
    uint64_t seed;
    const char *samplers;            /* the order of the stages: names ("top_k;temperature") or letters ("kt"); NULL:
                                     * penalties, dry, temperature, top_n_sigma, top_k, typ_p, top_p, min_p, xtc
                                     * (edtskypmx). What is left out does nothing. */
    const char *const *dry_breakers; /* no repetition reaches over them; NULL: "\n", ":", "\"", "*" */
    uint32_t n_dry_breakers;
    uint32_t n_bias;
    const struct rd_bias *bias;
    const struct rd_text_bias *text_bias;
    uint32_t n_text_bias;
    uint32_t n_allowed;
    const int32_t *allowed;       /* only these tokens are drawn; NULL: all */
    const char *const *bad_words; /* the last token of each, written as its tokens, never follows those before it */
    uint32_t n_bad_words;
    /* New members go here, with a default that changes nothing: rd_sampling_default sets them. */
};

#ifdef __cplusplus
}
#endif
