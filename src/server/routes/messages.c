/* server/routes/messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API. */
#include "base/mem.h"
#include "server/dialects/foreign.h"
#include "server/dialects/prompt_only.h"
#include "server/dialects/request_body.h"
#include "server/dialects/shapes.h"
#include "server/params/params_retention.h"
#include "server/routes/routes.h"

/* The body as parameters. */
static int read_body(struct http_conn *c, bool count, struct gen_params *p, bool *caches, struct api_error *e)
{
    json_t *body = NULL, *chat = NULL;
    int rc = count ? request_reserve_texts(c, e) : 0;

    if (rc == 0) rc = request_body(c, route_of(c)->params, NULL, &body, e);
    if (rc == 0) rc = anthropic_to_chat(body, count, &chat, e);
    if (rc == 0 && gen_params_parse(chat, served_of(c), true, p, e)) {
        anthropic_error(e);
        rc = -1;
    }
    if (rc == 0) *caches = params_cache_marks(body, p);
    if (rc == 0) rc = params_diagnostics(body, p, e);
    json_decref(chat);
    json_decref(body);
    return rc;
}

void route_messages(struct http_conn *c)
{
    struct messages_state *s = mem_zalloc(1, sizeof(*s));
    struct gen_params p = {0};
    struct api_error e;

    if (!s) {
        api_error_set(&e, 503, NULL, "out of memory");
    } else if (read_body(c, false, &p, &s->caches, &e) == 0) {
        generation_start(c, &messages_shape, &p, s);
        return;
    }
    gen_params_deinit(&p);
    messages_state_destroy(s);
    http_reply_error(c, &e);
}

void route_count_tokens(struct http_conn *c)
{
    struct gen_params p = {0};
    struct api_error e;
    bool caches;

    if (read_body(c, true, &p, &caches, &e))
        http_reply_error(c, &e);
    else
        prompt_only_reply_count(c, &p, NULL);
    gen_params_deinit(&p);
}
