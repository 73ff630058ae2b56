/* server/routes/health.c - GET /health, /health/ready: 200 when requests are answered; 503 while loading, while draining, when a
 * backend that is another program is down, and when the engine, or a loop of the server's, does not get on, with the reason.
 * 200 says beside that how the shared store is, where there is one.
 * GET /health/live: 503 for the last alone: only a new start helps.
 * Runs at the door (http_door.h), and on io threads for clients that ask other things on the same connection. */
#include <stdio.h>
#include <string.h>
#include "server/monitor/progress.h"
#include "server/routes/routes.h"

/* The error of this API, and the state as one word: {"status":"loading","error":{..}}. */
static void refuse(struct http_conn *c, const char *status, const struct api_error *e)
{
    struct buf body = {0}, error = {0};
    int code;

    snprintf(c->reason, sizeof(c->reason), "%.159s", e->message);
    code = c->io->server->service->put_error(c, e, &error);
    buf_printf(&body, "{\"status\":\"%s\",", status);
    if (error.n > 1) buf_append(&body, error.data + 1, error.n - 1);
    http_reply(c, code, "application/json", "Retry-After: 1\r\n", &body);
    buf_deinit(&body);
    buf_deinit(&error);
}

static const char *trouble_word(unsigned trouble)
{
#define WORD(id, word) word,
    static const char *const words[] = {RD_STORE_TROUBLES(WORD)};
#undef WORD

    return words[trouble < RD_N_STORE_TROUBLES ? trouble : RD_STORE_DOWN];
}

/* A store that is not well is no reason to send nobody here: requests are answered without it. */
static void reply_ok(struct http_conn *c)
{
    const unsigned shared = atomic_load_explicit(&server_of(c)->progress->shared, memory_order_relaxed);
    struct buf body = {0};

    buf_puts(&body, "{\"status\":\"ok\"");
    if (shared)
        buf_printf(&body, ",\"shared_store\":{\"reads\":\"%s\",\"writes\":\"%s\"}", trouble_word((shared - 1) / 16),
                   trouble_word((shared - 1) % 16));
    buf_puts(&body, "}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}

/* What stands still: answered. */
static bool refuse_stuck(struct http_conn *c)
{
    unsigned stalled_s = progress_stalled_s(server_of(c)->progress);
    unsigned stuck_s = atomic_load_explicit(&c->io->server->stuck_s, memory_order_relaxed);
    struct api_error e;

    if (stuck_s)
        api_error_set(&e, 503, NULL, "a thread of the server has been stuck for %u s", stuck_s);
    else if (stalled_s)
        api_error_set(&e, 503, NULL, "the engine has not got on for %u s", stalled_s);
    else
        return false;
    refuse(c, "unhealthy", &e);
    return true;
}

void route_health_live(struct http_conn *c)
{
    if (!refuse_stuck(c)) reply_ok(c);
}

void route_health(struct http_conn *c)
{
    const struct http_server *http = c->io->server;
    enum http_phase phase = http_phase(http);
    struct api_error e;

    if (phase == HTTP_LOADING) {
        api_error_set(&e, 503, NULL, "Loading model");
        refuse(c, "loading", &e);
    } else if (phase != HTTP_READY) {
        api_error_set(&e, 503, NULL, "The server is shutting down");
        refuse(c, "draining", &e);
    } else if (http_is_leaving(http)) {
        api_error_set(&e, 503, NULL, "The server is being taken out of service");
        refuse(c, "draining", &e);
    } else if (atomic_load_explicit(&server_of(c)->progress->is_down, memory_order_relaxed)) {
        api_error_set(&e, 503, NULL, "the backend's process is being started again");
        refuse(c, "unhealthy", &e);
    } else if (!refuse_stuck(c)) {
        reply_ok(c);
    }
}
