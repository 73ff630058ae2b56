/* cli/cli_flags.h - the flag tables that several commands share.
 *
 * engine_args and schedule_args write into a struct rd_options, sample_args into a struct sample_flags; a command puts
 * the struct into its own and names its offset in the group. A row without fallback leaves the choice to the library.
 */
#pragma once
#include "cli/args.h"
#include "radish/radish.h"

/* --config of a command that reads serve's file (settings_of). -> const char * */
extern const struct arg config_args[];
/* --ctx, apart because `perplexity` has its own. -> struct rd_options */
extern const struct arg context_args[];
/* What a model needs to run: threads, KV cache, instruction set, texts. -> struct rd_options */
extern const struct arg engine_args[];
/* How many requests run together and how a step is cut. -> struct rd_options */
extern const struct arg schedule_args[];

struct sample_flags {
    uint32_t max_tokens, min_tokens;
    struct rd_sampling sampling; /* except for the lists, which are below */
    struct arg_texts dry_breakers, bad_words;
    bool ignore_eos;
    struct arg_texts stop;
};
extern const struct arg sample_args[];
/* Copies the flags into a request; the stop strings stay views of f. */
void sample_flags_apply(const struct sample_flags *f, struct rd_request_options *q);
