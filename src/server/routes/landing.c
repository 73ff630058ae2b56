/* server/routes/landing.c - GET /: the monitor page for a person with a browser, with the rows that have a title; for
 * programs the words by which those of Ollama's know that a server is there.
 *
 * The page is one answer: its style and its script are within it, and a policy allows those two alone, by a number that
 * each answer draws. What it shows it asks for with a key (GET /v1/monitor): the page itself says nothing of this server.
 */
#include <stdio.h>
#include <string.h>
#include "base/random.h"
#include "server/routes/page.h"
#include "server/routes/routes.h"

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

static void put_endpoints(struct buf *out)
{
    const struct route *rows;
    size_t n;

    rows = route_table(&n);
    for (size_t i = 0; i < n; i++)
        if (*rows[i].title) put_line(rows, n, i, out);
}

/* page/monitor.html, with what stands for its @NAMES@. */
static void put_page(const char *nonce, struct buf *out)
{
    const char *at = page_monitor_html, *mark;

    while ((mark = strchr(at, '@'))) {
        buf_append(out, at, (size_t)(mark - at));
        at = mark + strcspn(mark + 1, "@") + 2;
        switch (mark[1]) {
        case 'N':
            buf_puts(out, nonce);
            break;
        case 'C':
            buf_append(out, page_monitor_css, page_monitor_css_n);
            break;
        case 'J':
            buf_append(out, page_monitor_js, page_monitor_js_n);
            break;
        default:
            put_endpoints(out);
            break;
        }
    }
    buf_puts(out, at);
}

void route_landing(struct http_conn *c)
{
    const char *accept = http_header(&c->head, "accept");
    struct buf body = {0};
    uint64_t random[2];
    char nonce[33], policy[320];

    if (!accept || !strstr(accept, "text/html")) {
        buf_puts(&body, "Ollama is running");
        http_reply(c, 200, "text/plain; charset=utf-8", "", &body);
        buf_deinit(&body);
        return;
    }
    random_os(random, sizeof(random));
    snprintf(nonce, sizeof(nonce), "%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    snprintf(
        policy, sizeof(policy),
        "Content-Security-Policy: default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nCache-Control: no-store\r\n",
        nonce, nonce);
    put_page(nonce, &body);
    if (body.failed)
        http_reply_json(c, &body); /* which says so */
    else
        http_reply(c, 200, "text/html; charset=utf-8", policy, &body);
    buf_deinit(&body);
}
