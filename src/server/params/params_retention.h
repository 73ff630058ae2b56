/* server/params/params_retention.h - what a request says about how long its prompt is worth keeping (docs/cache.md).
 *
 * Anthropic's cache_control marks, also on OpenAI's content parts and tools, and OpenAI's prompt_cache_retention,
 * prompt_cache_options.ttl and prompt_cache_key.
 * Thread any thread. Errors -1 with *e filled. Source: docs.anthropic.com/en/docs/build-with-claude/prompt-caching,
 * platform.openai.com/docs/guides/prompt-caching.
 */
#pragma once
#include "server/params/params.h"

/* Of rows of the table. */
int param_cache_key(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_cache_retention(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_compare_id(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);
int param_cache_ttl(const char *name, const json_t *v, struct gen_params *p, struct api_error *e);

/* diagnostics of a body of Messages. */
int params_diagnostics(const json_t *body, struct gen_params *p, struct api_error *e);
