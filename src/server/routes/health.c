/* server/routes/health.c - GET /health: 503 while loading and while shutting down, else 200.
 * Runs at the door (http_door.h), and on io threads for clients that ask other things on the same connection. */
#include "server/routes/routes.h"

void route_health(struct http_conn *c)
{
    enum http_phase phase = http_phase(c->io->server);
    struct buf body = {0};
    struct api_error e;

    if (phase != HTTP_READY) {
        api_error_set(&e, 503, NULL, phase == HTTP_LOADING ? "Loading model" : "The server is shutting down");
        http_reply_error(c, &e);
        return;
    }
    buf_puts(&body, "{\"status\":\"ok\"}");
    http_reply_json(c, &body);
    buf_deinit(&body);
}
