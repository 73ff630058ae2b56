/* server/dialects/responses_follow.c - looks at the log (responses_store.h) every few milliseconds: whoever writes it belongs to
 * another io thread, and need not know its readers. */
#include "server/dialects/responses_follow.h"
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "server/dialects/responses_store.h"
#include "server/dialects/server_state.h"

#define LOOK_US      20000
#define PIECE_BYTES  (64u << 10)
#define OUTPUT_PAUSE (256u << 10) /* bytes waiting for a slow reader */
#define SECOND_NS    1000000000ull

struct follower {
    struct http_conn *conn;
    struct event *look;
    char id[64];
    size_t at;       /* in the log */
    uint64_t n_skip; /* events still to pass over */
    bool newline;    /* passing over: the last byte was one; two end an event */
    uint64_t sent_ns;
};

static void follower_destroy(struct follower *f)
{
    if (!f) return;
    if (f->look) event_free(f->look);
    mem_free(f);
}

static void follower_end(struct follower *f)
{
    struct http_conn *conn = f->conn;

    follower_destroy(f);
    http_stream_end(conn);
}

/* How many of these bytes are not wanted. */
static size_t pass_over(struct follower *f, const struct buf *b)
{
    size_t i = 0;

    for (; i < b->n && f->n_skip > 0; i++) {
        bool newline = b->data[i] == '\n';

        if (newline && f->newline) f->n_skip--;
        f->newline = newline && !f->newline;
    }
    return i;
}

static void send_new(struct follower *f)
{
    struct responses_store *store = server_of(f->conn)->responses;
    struct buf piece = {0};
    bool ended = false;
    size_t n_skip, before;

    do {
        if (http_output_bytes(f->conn) > OUTPUT_PAUSE) break;
        before = f->at;
        buf_clear(&piece);
        ended =
            responses_store_log(store, f->id, &f->at, PIECE_BYTES, &piece, &ended) != RD_OK || piece.failed || ended;
        n_skip = pass_over(f, &piece);
        if (piece.n > n_skip && !piece.failed) {
            http_stream_write(f->conn, piece.data + n_skip, piece.n - n_skip);
            f->sent_ns = clock_now_ns(clock_system());
        }
    } while (!ended && f->at > before);
    buf_deinit(&piece);
    if (ended) follower_end(f);
}

static void on_look(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    send_new(arg);
}

static void on_gone(void *arg)
{
    follower_destroy(arg);
}

static void on_tick(void *arg, uint64_t now)
{
    struct follower *f = arg;
    uint64_t ping_ns = server_of(f->conn)->sse_ping_s * SECOND_NS;

    if (!ping_ns || now < f->sent_ns || now - f->sent_ns < ping_ns || http_output_bytes(f->conn) > 0) return;
    http_stream_write(f->conn, ": ping\n\n", 8);
    f->sent_ns = now;
}

static void on_stop(void *arg)
{
    follower_end(arg);
}

static const struct conn_owner follower_owner = {on_gone, NULL, on_tick, on_stop};

rd_status responses_follow(struct http_conn *c, const char *id, uint64_t n_skip)
{
    struct timeval period = {0, LOOK_US};
    struct follower *f = mem_zalloc(1, sizeof(*f));
    struct buf none = {0};
    rd_status st = RD_E_NOMEM;
    bool ended;

    if (!f) return st;
    snprintf(f->id, sizeof(f->id), "%s", id);
    st = responses_store_log(server_of(c)->responses, f->id, &f->at, 0, &none, &ended);
    if (st != RD_OK) goto fail;
    st = RD_E_NOMEM;
    f->look = event_new(c->io->base, -1, EV_PERSIST, on_look, f);
    if (!f->look || event_add(f->look, &period)) goto fail;
    f->conn = c;
    f->n_skip = n_skip;
    f->sent_ns = clock_now_ns(clock_system());
    c->owner = &follower_owner;
    c->owner_arg = f;
    http_stream_start(c, "text/event-stream");
    return RD_OK;

fail:
    follower_destroy(f);
    return st;
}
