/* cli/cli_flags.h - the flag tables that several commands share.
 *
 * engine_args and schedule_args write into a struct rd_options, sample_args into a struct sample_flags; a command puts
 * the struct into its own and names its offset in the group. A row without fallback leaves the choice to the library.
 */
#pragma once
#include "cli/args.h"
#include "radish/radish.h"

/* --ctx, apart because `perplexity` has its own. -> struct rd_options */
extern const struct arg context_args[];
/* What a model needs to run: threads, KV cache, instruction set, texts. -> struct rd_options */
extern const struct arg engine_args[];
/* How many requests run together and how a step is cut. -> struct rd_options */
extern const struct arg schedule_args[];

struct sample_flags {
    uint32_t max_tokens, top_k;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    double typical_p, top_n_sigma, xtc_probability, xtc_threshold, dynatemp_range, dynatemp_exponent;
    double dry_multiplier, dry_base, mirostat_tau, mirostat_eta;
    uint32_t repeat_last_n, dry_allowed_length, dry_last_n, mirostat, min_tokens;
    bool has_repeat_last_n, has_dry_last_n;
    const char *samplers;
    struct arg_texts dry_breakers, bad_words;
    uint64_t seed;
    bool has_seed, ignore_eos;
    struct arg_texts stop;
};
extern const struct arg sample_args[];
/* Copies the flags into a request; the stop strings stay views of f. */
void sample_flags_apply(const struct sample_flags *f, struct rd_request_options *q);
