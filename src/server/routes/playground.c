/* server/routes/playground.c - GET /chat: the chat page, for a person with a browser (docs/playground.md). */
#include "server/routes/page.h"
#include "server/routes/routes.h"

static const struct page chat_page = {
    page_chat_html, {page_page_css, page_chat_css}, {page_page_js, page_markdown_js, page_dialogs_js, page_chat_js}};

void route_playground(struct http_conn *c)
{
    page_reply(c, &chat_page);
}
