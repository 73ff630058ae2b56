/* server/routes/routes.c - method, path, handler, body limit, who may call. */
#include "server/routes/routes.h"
#include <string.h>

#define TEXT_BODY_BYTES (4u << 20)       /* endpoints that work on the io thread itself */

static const struct route routes[] = {
    /* method     path                     handler                 max_body         public  while loading */
    {HTTP_GET,  "/",                     route_landing,          0,               true,   true},
    {HTTP_GET,  "/health",               route_health,           0,               true,   true},
    {HTTP_GET,  "/v1/health",            route_health,           0,               true,   true},
    {HTTP_GET,  "/v1/models",            route_models,           0,               false,  false},
    {HTTP_GET,  "/v1/models/",           route_model,            0,               false,  false},
    {HTTP_POST, "/v1/chat/completions",  route_chat_completions, 0,               false,  false},
    {HTTP_POST, "/v1/chat/completions/input_tokens", route_chat_count, TEXT_BODY_BYTES, false, false},
    {HTTP_POST, "/v1/completions",       route_completions,      0,               false,  false},
    {HTTP_POST, "/v1/messages",          route_messages,         0,               false,  false},
    {HTTP_POST, "/v1/messages/count_tokens", route_count_tokens, TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/v1/responses",         route_responses,        0,               false,  false},
    {HTTP_POST, "/v1/responses/input_tokens", route_responses_count, TEXT_BODY_BYTES, false, false},
    {HTTP_GET,  "/v1/responses/",        route_response,         0,               false,  false},
    {HTTP_DELETE, "/v1/responses/",      route_response_delete,  TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/v1/responses/",        route_response_cancel,  TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/v1/embeddings",        route_embeddings,       0,               false,  false},
    {HTTP_POST, "/embeddings",           route_embeddings,       0,               false,  false},
    {HTTP_POST, "/tokenize",             route_tokenize,         TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/detokenize",           route_detokenize,       TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/apply-template",       route_apply_template,   TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/v1/cache/explain",     route_cache_explain,    TEXT_BODY_BYTES, false,  false},
    {HTTP_GET,  "/v1/cache",             route_cache_list,       0,               false,  false},
    {HTTP_DELETE, "/v1/cache",           route_cache_clear,      TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/v1/rerank",            route_rerank,           0,               false,  false},
    {HTTP_POST, "/v2/rerank",            route_rerank,           0,               false,  false},
    {HTTP_POST, "/rerank",               route_rerank,           0,               false,  false},
    {HTTP_POST, "/v1/classify",          route_classify,         TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/classify",             route_classify,         TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/infill",               route_infill,           0,               false,  false},
    /* base URLs without /v1, which llama-server takes too */
    {HTTP_GET,  "/models",               route_models,           0,               false,  false},
    {HTTP_GET,  "/models/",              route_model,            0,               false,  false},
    {HTTP_POST, "/chat/completions",     route_chat_completions, 0,               false,  false},
    {HTTP_POST, "/chat/completions/input_tokens", route_chat_count, TEXT_BODY_BYTES, false, false},
    {HTTP_POST, "/completions",          route_completions,      0,               false,  false},
    {HTTP_POST, "/responses",            route_responses,        0,               false,  false},
    {HTTP_POST, "/responses/input_tokens", route_responses_count, TEXT_BODY_BYTES, false,  false},
    {HTTP_GET,  "/responses/",           route_response,         0,               false,  false},
    {HTTP_DELETE, "/responses/",         route_response_delete,  TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/responses/",           route_response_cancel,  TEXT_BODY_BYTES, false,  false},
    {HTTP_GET,  "/props",                route_props,            0,               false,  false},
    {HTTP_POST, "/api/chat",             route_ollama_chat,      0,               false,  false},
    {HTTP_POST, "/api/generate",         route_ollama_generate,  0,               false,  false},
    {HTTP_POST, "/api/embed",            route_ollama_embed,     0,               false,  false},
    {HTTP_POST, "/api/embeddings",       route_ollama_embeddings, 0,              false,  false},
    {HTTP_GET,  "/api/tags",             route_ollama_tags,      0,               false,  false},
    {HTTP_GET,  "/api/ps",               route_ollama_ps,        0,               false,  false},
    {HTTP_POST, "/api/show",             route_ollama_show,      TEXT_BODY_BYTES, false,  false},
    {HTTP_GET,  "/api/version",          route_ollama_version,   0,               true,   true},
    {HTTP_POST, "/api/pull",             route_ollama_pull,      TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/api/push",             route_ollama_refuse,    TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/api/create",           route_ollama_refuse,    TEXT_BODY_BYTES, false,  false},
    {HTTP_POST, "/api/copy",             route_ollama_refuse,    TEXT_BODY_BYTES, false,  false},
    {HTTP_DELETE, "/api/delete",         route_ollama_refuse,    TEXT_BODY_BYTES, false,  false},
    {HTTP_GET,  "/stats",                route_stats,            0,               false,  false},
};

void route_tidy(char *path)
{
    size_t n = strlen(path);

    while (strncmp(path, "/v1/v1/", 7) == 0) {
        memmove(path, path + 3, n - 2);
        n -= 3;
    }
    while (n > 1 && path[n - 1] == '/') path[--n] = 0;
}

static bool path_matches(const struct route *r, const char *path)
{
    size_t n = strlen(r->path);

    if (n > 1 && r->path[n - 1] == '/') return strncmp(path, r->path, n) == 0 && path[n] != 0;
    return strcmp(path, r->path) == 0;
}

const struct route *route_find(enum http_method method, const char *path, const char **allow)
{
    *allow = NULL;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        const struct route *r = &routes[i];

        if (!path_matches(r, path)) continue;
        if (r->method == method || (r->method == HTTP_GET && method == HTTP_HEAD)) return r;
        if (*allow) *allow = "GET, HEAD, POST, DELETE, OPTIONS";        /* paths with several methods have them all */
        else *allow = r->method == HTTP_GET ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
    }
    return NULL;
}

bool route_at_door(const struct route *route)
{
    return route->handle == route_health;
}

const char *route_rest(const struct http_conn *c)
{
    return c->head.path + strlen(c->route->path);
}
