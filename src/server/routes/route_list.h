/* server/routes/route_list.h - the endpoints, a row each:
 *
 *     ROUTE(method, path, name, dialect, parameters, most, size, who, title)
 *
 *     path         as struct route has it
 *     name         the handler is route_NAME() in a file of this folder
 *     dialect      how it says what went wrong: dialect.h
 *     parameters   the rows of the table of parameters that its body has (params.h); 0: none
 *     most         bytes of a body; 0: the server's limit
 *     size         what leaves the io thread: weigh_SIZE() (routes.h); light: nothing
 *     who          WITH_KEY; NO_MODEL: likewise, and while no model is loaded or one is swapped: it must not use the engine
 *                  nor the server's info (model_gate.h); FOR_ALL: without a key, and while the model is loaded; AT_DOOR: likewise, by any thread
 *     title        for a person at GET /, where rows of one title are one line; "": not shown
 *
 * routes.c includes it once for each thing that it makes of the rows. Of rows that fit a path the first is meant.
 */
/* clang-format off */
ROUTE(GET,    "/",                                landing,           openai,    0,                   0,    light, FOR_ALL, "")
ROUTE(GET,    "/chat",                            playground,        openai,    0,                   0,    light, FOR_ALL, "a page to talk with the model")
ROUTE(POST,   "/v1/chat/completions",             chat_completions,  openai,    FOR_CHAT,            0,    body,  WITH_KEY, "text, streamed or not")
ROUTE(POST,   "/v1/completions",                  completions,       openai,    FOR_TEXT,            0,    body,  WITH_KEY, "text, streamed or not")
ROUTE(POST,   "/v1/responses",                    responses,         openai,    FOR_RESPONSES,       0,    conversation, WITH_KEY, "text, streamed or not")
ROUTE(POST,   "/v1/messages",                     messages,          anthropic, FOR_MESSAGES,        0,    body,  WITH_KEY, "text, streamed or not")
ROUTE(GET,    "/v1/models",                       models,            openai,    0,                   0,    light, NO_MODEL, "the model")
ROUTE(GET,    "/v1/models/",                      model,             openai,    0,                   0,    light, NO_MODEL, "")
ROUTE(GET,    "/health",                          health,            openai,    0,                   0,    light, AT_DOOR, "200 when it is ready")
ROUTE(GET,    "/v1/health",                       health,            openai,    0,                   0,    light, AT_DOOR, "")
ROUTE(GET,    "/stats",                           stats,             openai,    0,                   0,    light, WITH_KEY, "requests, tokens, cache, memory, speed")
ROUTE(GET,    "/metrics",                         metrics,           openai,    0,                   0,    light, WITH_KEY, "the same for Prometheus, and histograms")
ROUTE(GET,    "/v1/monitor",                      monitor,           openai,    0,                   0,    wait,  WITH_KEY, "the last hour and day, requests one by one")
ROUTE(GET,    "/v1/monitor/events",               monitor_events,    openai,    0,                   0,    light, NO_MODEL, "the last hour and day, requests one by one")
ROUTE(DELETE, "/v1/monitor/requests/",            monitor_cancel,    openai,    0,                   TEXT, wait,  WITH_KEY, "the last hour and day, requests one by one")
ROUTE(GET,    "/v1/cache",                        cache_list,        openai,    0,                   0,    wait,  WITH_KEY, "what is stored, why a prompt missed")
ROUTE(POST,   "/v1/cache/explain",                cache_explain,     openai,    0,                   TEXT, body,  WITH_KEY, "what is stored, why a prompt missed")
ROUTE(DELETE, "/v1/cache",                        cache_clear,       openai,    0,                   TEXT, light, WITH_KEY, "what is stored, why a prompt missed")
ROUTE(GET,    "/v1/cache/names",                  cache_names,       openai,    0,                   0,    light, WITH_KEY, "named caches: list, save, drop")
ROUTE(POST,   "/v1/cache/names",                  cache_names,       openai,    FOR_CACHE_NAMES,     TEXT, light, WITH_KEY, "named caches: list, save, drop")
ROUTE(POST,   "/v1/cache/names/save",             cache_name_save,   openai,    FOR_CACHE_NAME,      TEXT, wait,  WITH_KEY, "named caches: list, save, drop")
ROUTE(POST,   "/v1/cache/names/drop",             cache_name_drop,   openai,    FOR_CACHE_NAME,      TEXT, wait,  WITH_KEY, "named caches: list, save, drop")
ROUTE(GET,    "/v1/settings",                     settings,          openai,    0,                   0,    light, NO_MODEL, "settings of the next load; models of a hub")
ROUTE(POST,   "/v1/settings",                     settings_set,      openai,    0,                   TEXT, light, NO_MODEL, "settings of the next load; models of a hub")
ROUTE(GET,    "/v1/hub/models",                   hub_search,        openai,    0,                   0,    wait,  NO_MODEL, "settings of the next load; models of a hub")
ROUTE(GET,    "/v1/hub/models/",                  hub_look,          openai,    0,                   0,    wait,  NO_MODEL, "")
ROUTE(GET,    "/v1/downloads",                    downloads,         openai,    0,                   0,    light, NO_MODEL, "settings of the next load; models of a hub")
ROUTE(POST,   "/v1/downloads",                    download_start,    openai,    0,                   TEXT, light, NO_MODEL, "settings of the next load; models of a hub")
ROUTE(DELETE, "/v1/downloads/",                   download_cancel,   openai,    0,                   TEXT, light, NO_MODEL, "")
ROUTE(GET,    "/props",                           props,             openai,    0,                   0,    light, WITH_KEY, "context and defaults, as llama-server tells them")
ROUTE(POST,   "/tokenize",                        tokenize,          openai,    FOR_TOKENIZE,        TEXT, tokenize, WITH_KEY, "text and tokens")
ROUTE(POST,   "/detokenize",                      detokenize,        openai,    FOR_DETOKENIZE,      TEXT, detokenize, WITH_KEY, "text and tokens")
ROUTE(POST,   "/apply-template",                  apply_template,    openai,    FOR_TEMPLATE,        TEXT, body,  WITH_KEY, "text and tokens")
ROUTE(POST,   "/v1/chat/completions/input_tokens", chat_count,       openai,    FOR_CHAT,            TEXT, body,  WITH_KEY, "how many tokens a request has")
ROUTE(POST,   "/v1/responses/input_tokens",       responses_count,   openai,    FOR_RESPONSES,       TEXT, conversation, WITH_KEY, "how many tokens a request has")
ROUTE(POST,   "/v1/messages/count_tokens",        count_tokens,      anthropic, FOR_COUNT,           TEXT, body,  WITH_KEY, "how many tokens a request has")
ROUTE(GET,    "/v1/responses/",                   response,          openai,    0,                   0,    stored, NO_MODEL, "")
ROUTE(DELETE, "/v1/responses/",                   response_delete,   openai,    0,                   TEXT, light, NO_MODEL, "")
ROUTE(POST,   "/v1/responses/",                   response_cancel,   openai,    0,                   TEXT, stored, NO_MODEL, "")
ROUTE(POST,   "/v1/embeddings",                   embeddings,        openai,    FOR_EMBEDDINGS,      0,    body,  WITH_KEY, "texts as vectors, in order, under labels")
ROUTE(POST,   "/embeddings",                      embeddings,        openai,    FOR_EMBEDDINGS,      0,    body,  WITH_KEY, "")
ROUTE(POST,   "/v1/rerank",                       rerank,            openai,    FOR_RERANK,          0,    body,  WITH_KEY, "texts as vectors, in order, under labels")
ROUTE(POST,   "/v2/rerank",                       rerank_v2,         openai,    FOR_RERANK,          0,    body,  WITH_KEY, "texts as vectors, in order, under labels")
ROUTE(POST,   "/rerank",                          rerank,            openai,    FOR_RERANK,          0,    body,  WITH_KEY, "")
ROUTE(POST,   "/classify",                        classify,          openai,    FOR_CLASSIFY,        TEXT, body,  WITH_KEY, "texts as vectors, in order, under labels")
ROUTE(POST,   "/v1/classify",                     classify,          openai,    FOR_CLASSIFY,        TEXT, body,  WITH_KEY, "")
ROUTE(POST,   "/infill",                          infill,            openai,    0,                   0,    body,  WITH_KEY, "text between two others")
/* base URLs without /v1, which llama-server takes too */
ROUTE(GET,    "/models",                          models,            openai,    0,                   0,    light, NO_MODEL, "")
ROUTE(GET,    "/models/",                         model,             openai,    0,                   0,    light, NO_MODEL, "")
ROUTE(POST,   "/chat/completions",                chat_completions,  openai,    FOR_CHAT,            0,    body,  WITH_KEY, "")
ROUTE(POST,   "/chat/completions/input_tokens",   chat_count,        openai,    FOR_CHAT,            TEXT, body,  WITH_KEY, "")
ROUTE(POST,   "/completions",                     completions,       openai,    FOR_TEXT,            0,    body,  WITH_KEY, "")
ROUTE(POST,   "/responses",                       responses,         openai,    FOR_RESPONSES,       0,    conversation, WITH_KEY, "")
ROUTE(POST,   "/responses/input_tokens",          responses_count,   openai,    FOR_RESPONSES,       TEXT, conversation, WITH_KEY, "")
ROUTE(GET,    "/responses/",                      response,          openai,    0,                   0,    stored, NO_MODEL, "")
ROUTE(DELETE, "/responses/",                      response_delete,   openai,    0,                   TEXT, light, NO_MODEL, "")
ROUTE(POST,   "/responses/",                      response_cancel,   openai,    0,                   TEXT, stored, NO_MODEL, "")
ROUTE(POST,   "/api/chat",                        ollama_chat,       ollama,    FOR_OLLAMA_CHAT,     0,    body,  WITH_KEY, "Ollama's native API")
ROUTE(POST,   "/api/generate",                    ollama_generate,   ollama,    FOR_OLLAMA_GENERATE, 0,    body,  WITH_KEY, "Ollama's native API")
ROUTE(POST,   "/api/embed",                       ollama_embed,      ollama,    FOR_OLLAMA_EMBED,    0,    body,  WITH_KEY, "Ollama's native API")
ROUTE(POST,   "/api/embeddings",                  ollama_embeddings, ollama,    0,                   0,    body,  WITH_KEY, "")
ROUTE(GET,    "/api/tags",                        ollama_tags,       ollama,    0,                   0,    light, WITH_KEY, "Ollama's native API")
ROUTE(GET,    "/api/ps",                          ollama_ps,         ollama,    0,                   0,    light, WITH_KEY, "Ollama's native API")
ROUTE(POST,   "/api/show",                        ollama_show,       ollama,    FOR_OLLAMA_SHOW,     TEXT, body,  WITH_KEY, "Ollama's native API")
ROUTE(GET,    "/api/version",                     ollama_version,    ollama,    0,                   0,    light, FOR_ALL, "Ollama's native API")
ROUTE(POST,   "/api/pull",                        ollama_pull,       ollama,    0,                   TEXT, body,  WITH_KEY, "")
ROUTE(POST,   "/api/push",                        ollama_refuse,     ollama,    0,                   TEXT, light, WITH_KEY, "")
ROUTE(POST,   "/api/create",                      ollama_refuse,     ollama,    0,                   TEXT, light, WITH_KEY, "")
ROUTE(POST,   "/api/copy",                        ollama_refuse,     ollama,    0,                   TEXT, light, WITH_KEY, "")
ROUTE(DELETE, "/api/delete",                      ollama_refuse,     ollama,    0,                   TEXT, light, WITH_KEY, "")
