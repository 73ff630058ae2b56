/* server/routes/landing.c - GET /: what this is and where things are, for a person with a browser; for programs the
 * words by which those of Ollama's know that a server is there. */
#include <string.h>
#include "server/routes/routes.h"

static const char page[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>radish</title>"
    "<style>body{font:16px/1.5 sans-serif;max-width:44em;margin:3em auto;padding:0 1em}code{background:#eee;padding:0 "
    ".3em}</style>"
    "<h1>radish</h1><p>A language model served from a radix tree over a paged KV cache. Point an OpenAI client at "
    "<code>/v1</code> of this address.</p><ul>"
    "<li><code>POST /v1/chat/completions</code>, <code>POST /v1/completions</code>, <code>POST "
    "/v1/responses</code>, <code>POST /v1/messages</code>: text, streamed or not</li>"
    "<li><a href=\"/v1/models\"><code>GET /v1/models</code></a>: the model</li>"
    "<li><a href=\"/health\"><code>GET /health</code></a>: 200 when it is ready</li>"
    "<li><a href=\"/stats\"><code>GET /stats</code></a>: requests, tokens, cache, memory, speed</li>"
    "<li><a href=\"/v1/cache\"><code>GET /v1/cache</code></a>, <code>POST /v1/cache/explain</code>, <code>DELETE "
    "/v1/cache</code>: what is stored, why a prompt missed</li>"
    "<li><a href=\"/props\"><code>GET /props</code></a>: context and defaults, as llama-server tells them</li>"
    "<li><code>POST /tokenize</code>, <code>POST /detokenize</code>, <code>POST "
    "/apply-template</code></li>"
    "<li><code>POST /v1/chat/completions/input_tokens</code>, <code>POST /v1/responses/input_tokens</code>, <code>POST "
    "/v1/messages/count_tokens</code>: how many tokens a request has</li>"
    "<li><code>POST /v1/embeddings</code>, <code>POST /v1/rerank</code>, <code>POST /v2/rerank</code>, <code>POST "
    "/classify</code>, <code>POST /infill</code></li>"
    "<li>Ollama's native API under <code>/api</code></li></ul></html>\n";

void route_landing(struct http_conn *c)
{
    const char *accept = http_header(&c->head, "accept");
    struct buf body = {0};

    if (!accept || !strstr(accept, "text/html")) {
        buf_puts(&body, "Ollama is running");
        http_reply(c, 200, "text/plain; charset=utf-8", "", &body);
        buf_deinit(&body);
        return;
    }
    buf_append(&body, page, sizeof(page) - 1);
    http_reply(c, 200, "text/html; charset=utf-8",
               "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n", &body);
    buf_deinit(&body);
}
