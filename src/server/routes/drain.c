/* server/routes/drain.c - POST, DELETE and GET /v1/drain: the server is to be taken out of service, or not after all.
 *
 * From POST on /health and /health/ready say 503 "draining", so that whoever spreads requests sends no more of them here; what
 * comes all the same is answered, on connections that are closed after it. {draining, requests}: when requests is 0 nobody
 * waits for an answer, and the server can be ended without anybody noticing. DELETE: it is in service again.
 */
#include "server/routes/routes.h"

static void tell(struct http_conn *c)
{
    const struct http_server *http = c->io->server;
    unsigned n_busy = atomic_load_explicit(&http->n_busy, memory_order_relaxed);
    bool is = http_is_leaving(http) || http_phase(http) != HTTP_READY;
    struct buf body = {0};

    buf_printf(&body, "{\"object\":\"drain\",\"draining\":%s,\"requests\":%u}", is ? "true" : "false",
               n_busy > 0 ? n_busy - 1 : 0); /* but for this one */
    http_reply_json(c, &body);
    buf_deinit(&body);
}

static void set(struct http_conn *c, bool leaving)
{
    if (!route_for_owner(c, "draining is")) return;
    atomic_store_explicit(&c->io->server->leaving, leaving, memory_order_relaxed);
    tell(c);
}

void route_drain(struct http_conn *c)
{
    tell(c);
}

void route_drain_begin(struct http_conn *c)
{
    set(c, true);
}

void route_drain_end(struct http_conn *c)
{
    set(c, false);
}
