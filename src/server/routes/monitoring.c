/* server/routes/monitoring.c - GET /v1/monitor: history, running and recent requests; GET /v1/monitor/events: the same from now
 * on, an event each second; DELETE /v1/monitor/requests/{id}: cancels one.
 *
 * They show, and stop, requests of all keys: a key of --api-key-file is refused.
 *
 * A reader of events that does not read gets none: the next is written when the one before has left. So it costs one
 * event, which counts as what clients have not read (client_memory.h), until --send-timeout cuts it.
 */
#include "server/monitor/monitor.h"
#include <stdlib.h>
#include <string.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/http/http_guard.h"
#include "server/http/http_io.h"
#include "server/routes/routes.h"

#define SECONDS_DEFAULT 600u
#define MINUTES_DEFAULT 1440u

/* name=N in the query; 0: *e says what is wrong with it. */
static bool query_number(const struct http_conn *c, const char *name, uint32_t *n, struct api_error *e)
{
    const char *rest = c->head.query, *text;
    size_t n_text;

    while ((text = http_query_next(&rest, name, &n_text))) {
        uint64_t v;

        if (!parse_u64(text, n_text, &v) || v > UINT32_MAX) {
            api_error_set(e, 400, name, "%s: wanted a number from 0 on", name);
            return false;
        }
        *n = (uint32_t)v;
    }
    return true;
}

void route_monitor(struct http_conn *c)
{
    uint32_t n_seconds = SECONDS_DEFAULT, n_minutes = MINUTES_DEFAULT;
    struct buf body = {0};
    struct api_error e;

    if (http_refuse_tenant(c, "the monitor")) return;
    if (!query_number(c, "seconds", &n_seconds, &e) || !query_number(c, "minutes", &n_minutes, &e)) {
        http_reply_error(c, &e);
        return;
    }
    monitor_put(server_of(c)->monitor, served_of(c)->engine, n_seconds, n_minutes, &body);
    http_reply_json(c, &body);
    buf_deinit(&body);
}

void route_monitor_cancel(struct http_conn *c)
{
    const char *id = route_rest(c);
    struct buf body = {0};
    struct api_error e;
    uint64_t n;

    if (http_refuse_tenant(c, "the monitor")) return;
    if (!parse_u64(id, strlen(id), &n) || rd_cancel_request(served_of(c)->engine, n) != RD_OK) {
        api_error_set(&e, 404, "id", "no such request, or it has ended");
        http_reply_error(c, &e);
        return;
    }
    log_info("request %llu was cancelled by %s", (unsigned long long)n, http_request_id(c));
    buf_printf(&body, "{\"object\":\"request.cancelled\",\"id\":%llu}", (unsigned long long)n);
    http_reply_json(c, &body);
    buf_deinit(&body);
}

/* ---- events ---- */

struct reader {
    struct http_conn *conn;
    struct monitor *monitor;
    uint64_t n_seen;
};

static void reader_free(struct reader *r)
{
    monitor_leave(r->monitor);
    mem_free(r);
}

static void on_gone(void *arg)
{
    reader_free(arg);
}

static void on_stop(void *arg)
{
    struct reader *r = arg;
    struct http_conn *conn = r->conn;

    reader_free(r);
    http_stream_end(conn);
}

static void on_tick(void *arg, uint64_t now_ns)
{
    struct reader *r = arg;
    struct buf event = {0};

    (void)now_ns;
    if (http_phase(r->conn->io->server) !=
        HTTP_READY) { /* a page that is left open must not keep the server from ending */
        on_stop(r);
        return;
    }
    if (http_output_bytes(r->conn) == 0 && monitor_event(r->monitor, &r->n_seen, &event) && !event.failed)
        http_stream_write(r->conn, event.data, event.n);
    buf_deinit(&event);
}

static const struct conn_owner reader_owner = {on_gone, NULL, on_tick, on_stop};

void route_monitor_events(struct http_conn *c)
{
    struct reader *r;
    struct buf none = {0};
    struct api_error e;

    if (http_refuse_tenant(c, "the monitor")) return;
    if (c->head.method == HTTP_HEAD) {
        http_reply(c, 200, "text/event-stream", "", &none);
        return;
    }
    r = mem_zalloc(1, sizeof(*r));
    if (!r || client_memory_tight(&c->io->server->memory)) {
        api_error_from_status(&e, r ? RD_E_FULL : RD_E_NOMEM, NULL);
        mem_free(r);
        http_reply_error(c, &e);
        return;
    }
    *r = (struct reader){c, server_of(c)->monitor, 0};
    monitor_join(r->monitor);
    c->owner = &reader_owner;
    c->owner_arg = r;
    http_stream_start(c, "text/event-stream");
    http_stream_write(c, ": the next second is the first\n\n", strlen(": the next second is the first\n\n"));
}
