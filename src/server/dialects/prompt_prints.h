/* server/dialects/prompt_prints.h - why a request found less in the cache than an earlier one should have left there: OpenAI's
 * prompt_cache_diagnostics and Anthropic's diagnostics.cache_miss_reason.
 *
 * Of every answered chat a print is kept under its id: digests of its parts, no text. A later request names that id
 * (prompt_cache_options.comparison_response_id, diagnostics.previous_message_id); where it found less stored than the
 * earlier prompt had tokens, the first part that differs is the reason. A table of single places: a newer print takes the
 * place of an older one. Prints are found by who left them alone (the API key).
 *
 * Beside a print is what the cache did for that request, for POST /v1/cache/explain {"response_id"}.
 *
 * Thread  any thread.  Errors  create: RD_E_NOMEM.
 * Source  developers.openai.com/api/docs/guides/prompt-caching/diagnostics,
 *         platform.claude.com/docs/en/build-with-claude/cache-diagnostics.
 */
#pragma once
#include "base/buf.h"
#include "server/params/params.h"

struct prompt_prints;
/* What the cache did for a request: the fields of rd_usage. */
struct cache_record {
    uint32_t n_prompt, n_cached, n_joined, n_ram, n_disk, n_lossy, miss;
};
struct prompt_print {
    uint64_t system, tools, settings, salt, messages; /* digests; messages: of all behind the first system messages */
    uint32_t n_messages, n_tokens;
};

rd_status prompt_prints_create(struct prompt_prints **out);
void prompt_prints_destroy(struct prompt_prints *t);

/* The answer to a chat or a completion of p has this id. tenant: its API key, or NULL. */
void prompt_prints_keep(struct prompt_prints *t, const char *tenant, const char *id, const struct gen_params *p,
                        const struct rd_usage *u);
/* false: there is none of this id. */
bool prompt_prints_find(struct prompt_prints *t, const char *tenant, const char *id, struct cache_record *out);

/* What a chat of p asked to be told, with a comma before; nothing when it did not ask. slack: tokens that are computed
 * again anyhow. OpenAI's and Anthropic's form. */
void prompt_prints_put_openai(struct prompt_prints *t, const char *tenant, const struct gen_params *p,
                              const struct rd_usage *u, uint32_t slack, struct buf *out);
void prompt_prints_put_anthropic(struct prompt_prints *t, const char *tenant, const struct gen_params *p,
                                 const struct rd_usage *u, uint32_t slack, struct buf *out);
