/* server/routes/page.c - a page as one answer; the endpoints by their titles. */
#include "server/routes/page.h"
#include <stdio.h>
#include <string.h>
#include "base/random.h"
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

static void put_all(const char *const *texts, struct buf *out)
{
    for (; *texts; texts++) buf_puts(out, *texts);
}

/* The html, with what stands for its @NAMES@. */
static void put_page(const struct page *p, const char *nonce, struct buf *out)
{
    const char *at = p->html, *mark;

    while ((mark = strchr(at, '@'))) {
        buf_append(out, at, (size_t)(mark - at));
        at = mark + strcspn(mark + 1, "@") + 2;
        switch (mark[1]) {
        case 'N':
            buf_puts(out, nonce);
            break;
        case 'C':
            put_all(p->styles, out);
            break;
        case 'J':
            put_all(p->scripts, out);
            break;
        default:
            put_endpoints(out);
            break;
        }
    }
    buf_puts(out, at);
}

void page_reply(struct http_conn *c, const struct page *p)
{
    struct buf body = {0};
    uint64_t random[2];
    char nonce[33], head[640];

    random_os(random, sizeof(random));
    snprintf(nonce, sizeof(nonce), "%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    snprintf(head, sizeof(head),
             "Content-Security-Policy: default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; "
             "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
             "require-trusted-types-for 'script'; trusted-types 'none'\r\n"
             "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n",
             nonce, nonce);
    put_page(p, nonce, &body);
    if (body.failed)
        http_reply_json(c, &body); /* which says so */
    else
        http_reply(c, 200, "text/html; charset=utf-8", head, &body);
    buf_deinit(&body);
}
