/* server/routes/routes.h - the table of endpoints. One file per endpoint in routes/; a new one is a file and a row in
 * routes.c. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "server/http/http_conn.h"

struct route {
    enum http_method method;             /* HTTP_GET also serves HEAD */
    const char *path;                    /* a path that ends in '/' (but "/" itself) also takes one further segment */
    void (*handle)(struct http_conn *c); /* answers, or leaves an owner on the connection */
    uint64_t max_body;                   /* bytes; 0: the server's limit */
    bool is_public;                      /* no API key needed */
    bool while_loading;                  /* answered without an engine */
};

/* Before route_find: the path as clients mean it whose base URL ends in "/", or has a "/v1" more than their library
 * wants. In place. */
void route_tidy(char *path);
/* NULL: none; *allow is then the method list for 405, or NULL for 404. */
const struct route *route_find(enum http_method method, const char *path, const char **allow);
/* A GET that is public and answered at once from what any thread may read: http_door.h. */
bool route_at_door(const struct route *route);
/* The rest of the path after the route's own. */
const char *route_rest(const struct http_conn *c);

void route_landing(struct http_conn *c);
void route_health(struct http_conn *c);
void route_models(struct http_conn *c);
void route_model(struct http_conn *c);
void route_chat_completions(struct http_conn *c);
void route_chat_count(struct http_conn *c);
void route_completions(struct http_conn *c);
void route_messages(struct http_conn *c);
void route_count_tokens(struct http_conn *c);
void route_responses(struct http_conn *c);
void route_responses_count(struct http_conn *c);
/* A body of /v1/responses, with what went before it, as one of chat completions: the caller's. -1: *e says why not. */
int responses_chat(struct http_conn *c, const json_t *body, json_t **chat, struct api_error *e);
void route_response(struct http_conn *c);
void route_response_delete(struct http_conn *c);
void route_response_cancel(struct http_conn *c);
void route_embeddings(struct http_conn *c);
void route_rerank(struct http_conn *c);
void route_classify(struct http_conn *c);
void route_infill(struct http_conn *c);
void route_props(struct http_conn *c);
void route_ollama_chat(struct http_conn *c);
void route_ollama_generate(struct http_conn *c);
void route_ollama_embed(struct http_conn *c);
void route_ollama_embeddings(struct http_conn *c);
void route_ollama_tags(struct http_conn *c);
void route_ollama_ps(struct http_conn *c);
void route_ollama_show(struct http_conn *c);
void route_ollama_version(struct http_conn *c);
void route_ollama_pull(struct http_conn *c);
void route_ollama_refuse(struct http_conn *c);
void route_tokenize(struct http_conn *c);
void route_detokenize(struct http_conn *c);
void route_apply_template(struct http_conn *c);
void route_cache_explain(struct http_conn *c);
void route_cache_list(struct http_conn *c);
void route_cache_clear(struct http_conn *c);
void route_stats(struct http_conn *c);
