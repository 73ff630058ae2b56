/* server/dialects/llama_server.h - requests of llama-server's own API that generate: /completion and /infill.
 *
 * Their fields are rows of the table (FOR_LLAMA_SERVER); what is here is read after them. Both are answered in the
 * shape of llama_server_shape.c.
 * Thread  any thread. Errors  -1 with *e filled.
 * Source  llama.cpp, tools/server/README.md; as of 2026.
 */
#pragma once
#include <jansson.h>
#include "server/params/params.h"

struct http_conn;

/* The defaults, for gen_params_init: as many tokens as there is room for. */
void llama_server_init(struct gen_params *p);
/* For gen_params_finish: with what a stream tells in any case. */
int llama_server_finish(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e);

/* The body's "prompt" of /completion, whose row has checked it, to p->prompts, which are none yet:
 *
 *     "text"    [1, 2]    [1, "text", 2]    {"prompt_string": one of the first three}
 *
 * or a list of these; a list that has a number is one prompt. The texts of a list with both are tokenised here, the
 * first of all as the beginning of a text. Names of special tokens in texts are those tokens. */
int llama_server_prompts(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e);

/* The prompt of a body of /infill, likewise. What is too long for the context is cut: the front of the prefix, the end of
 * the suffix. */
int llama_server_gap(const json_t *body, const struct served_model *m, struct gen_params *p, struct api_error *e);

/* One of these two. */
typedef int llama_server_prompt_fn(const json_t *body, const struct served_model *m, struct gen_params *p,
                                   struct api_error *e);
/* Answers a body of the endpoint (FOR_COMPLETION, FOR_INFILL), which it takes; NULL: it is answered. */
void llama_server_run(struct http_conn *c, unsigned endpoint, json_t *body, llama_server_prompt_fn *prompts);
