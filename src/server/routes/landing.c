/* server/routes/landing.c - GET /: what this is and where things are, for a person with a browser: the rows that have a
 * title; for programs the words by which those of Ollama's know that a server is there. */
#include <string.h>
#include "server/routes/routes.h"

static const char head[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>radish</title>"
    "<style>body{font:16px/1.5 sans-serif;max-width:44em;margin:3em auto;padding:0 1em}code{background:#eee;padding:0 "
    ".3em}</style>"
    "<h1>radish</h1><p>A language model served from a radix tree over a paged KV cache. Point an OpenAI client at "
    "<code>/v1</code> of this address.</p><ul>";

static void put_name(const struct route *r, struct buf *out)
{
    bool link = r->method == HTTP_GET;

    if (link) buf_printf(out, "<a href=\"%s\">", r->path);
    buf_printf(out, "<code>%s %s</code>", r->method_name, r->path);
    if (link) buf_puts(out, "</a>");
}

/* A line of all rows with the title of row i, whose first it is. */
static void put_line(const struct route *rows, size_t n, size_t i, struct buf *out)
{
    const char *title = rows[i].title;

    for (size_t k = 0; k < i; k++)
        if (strcmp(rows[k].title, title) == 0) return;
    buf_puts(out, "<li>");
    for (size_t k = i; k < n; k++) {
        if (strcmp(rows[k].title, title) != 0) continue;
        if (k > i) buf_puts(out, ", ");
        put_name(&rows[k], out);
    }
    buf_printf(out, ": %s</li>", title);
}

void route_landing(struct http_conn *c)
{
    const char *accept = http_header(&c->head, "accept");
    struct buf body = {0};
    const struct route *rows;
    size_t n;

    if (!accept || !strstr(accept, "text/html")) {
        buf_puts(&body, "Ollama is running");
        http_reply(c, 200, "text/plain; charset=utf-8", "", &body);
        buf_deinit(&body);
        return;
    }
    buf_append(&body, head, sizeof(head) - 1);
    rows = route_table(&n);
    for (size_t i = 0; i < n; i++)
        if (*rows[i].title) put_line(rows, n, i, &body);
    buf_puts(&body, "</ul></html>\n");
    if (body.failed)
        http_reply_json(c, &body); /* which says so */
    else
        http_reply(c, 200, "text/html; charset=utf-8",
                   "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n", &body);
    buf_deinit(&body);
}
