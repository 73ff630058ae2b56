/* server/dialects/ollama.h - Ollama's native API: its requests as bodies of this server's own, its view of the model.
 *
 * What Ollama sets when nothing is said is set here too (temperature 0.8, top_k 40, top_p 0.9, repeat_penalty 1.1 over
 * 64 tokens), so that a program that changes its address alone gets text of the same kind. docs/ollama.md.
 *
 * Thread  any thread.
 * Errors  -1 with *e filled; its JSON under /api/ is {"error": "text"}.
 * Source  github.com/ollama/ollama, docs/api.md.
 */
#pragma once
#include <jansson.h>
#include "server/params/params.h"

/* What is to be done with a body of /api/chat or /api/generate. */
struct ollama_task {
    json_t *body;       /* for gen_params_parse(); NULL: nothing to generate, the model is only loaded */
    bool chat;          /* of chat completions, else of completions */
    const char *suffix; /* of generate: a view into the client's body, or NULL */
    size_t n_suffix;
};
int ollama_chat_task(const json_t *body, const struct rd_info *info, struct ollama_task *task, struct api_error *e);
int ollama_generate_task(const json_t *body, const struct rd_info *info, struct ollama_task *task, struct api_error *e);
/* After gen_params_parse() failed: field names become those of the client. */
void ollama_error(struct api_error *e);
/* NAME, NAME:latest, or nothing, under model or name; else 404. The body's own may be removed then. */
int ollama_check_model(const json_t *body, const struct rd_info *info, struct api_error *e);

/* {"name":..,"model":..,...: an element of /api/tags, without its closing brace. */
void ollama_put_model(const struct rd_info *m, struct buf *out);
