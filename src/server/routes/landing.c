/* server/routes/landing.c - GET /: the monitor page for a person with a browser, with the rows that have a title; for
 * programs the words by which those of Ollama's know that a server is there.
 */
#include <string.h>
#include "server/routes/page.h"
#include "server/routes/routes.h"

static const struct page monitor_page = {page_monitor_html, {page_page_css, page_monitor_css}, {page_monitor_js}};

void route_landing(struct http_conn *c)
{
    const char *accept = http_header(&c->head, "accept");
    struct buf body = {0};

    if (accept && strstr(accept, "text/html")) {
        page_reply(c, &monitor_page);
        return;
    }
    buf_puts(&body, "Ollama is running");
    http_reply(c, 200, "text/plain; charset=utf-8", "", &body);
    buf_deinit(&body);
}
