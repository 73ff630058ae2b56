/* server/routes/page.h - the files of page/, which cmake/embed.cmake puts into the program, and the answers made of them: a
 * page is served without any file, and asks nothing of any other server.
 *
 * Thread  io thread that owns the connection.
 */
#pragma once
#include <stddef.h>
#include "server/http/http_conn.h"

extern const char page_page_css[], page_monitor_html[], page_monitor_css[], page_monitor_js[];
extern const char page_page_js[], page_chat_html[], page_chat_css[], page_chat_js[], page_dialogs_js[],
    page_markdown_js[];

struct page {
    const char *html;      /* @NONCE@, @CSS@, @JS@ and @ENDPOINTS@ stand for what follows */
    const char *styles[4]; /* NULL ends them, as the next */
    const char *scripts[6];
};

/* One answer: style and script are within it, and a policy allows those two alone, by a number that each answer draws; where
 * the browser knows trusted types, no text becomes HTML.
 * What the page shows it asks for with a key: it itself says nothing of this server. */
void page_reply(struct http_conn *c, const struct page *p);
