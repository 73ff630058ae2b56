/* server/http/http_pace.c - see the header. */
#include "server/http/http_pace.h"
#include "base/clock.h"

static void unlink_held(struct http_conn *c)
{
    struct http_io *io = c->io;

    *(c->held_prev ? &c->held_prev->held_next : &io->held_first) = c->held_next;
    *(c->held_next ? &c->held_next->held_prev : &io->held_last) = c->held_prev;
    c->held_prev = c->held_next = NULL;
    c->owner = NULL;
}

static void answer(void *arg)
{
    struct http_conn *c = arg;

    unlink_held(c);
    http_serve(c);
}

static void on_gone(void *arg)
{
    unlink_held(arg);
}
static void on_tick(void *arg, uint64_t now_ns)
{
    (void)arg, (void)now_ns;
}

static const struct conn_owner held = {on_gone, NULL, on_tick, answer};

/* Begins a window when the last one is over. */
static void look_at_clock(struct http_io *io)
{
    uint64_t now = clock_now_ns(clock_system());

    if (now - io->pace_ns < PACE_MS * 1000000ull) return;
    io->pace_ns = now;
    io->n_paced = 0;
    io->pace = http_phase(io->server) == HTTP_READY && io->server->service->is_busy(io->server->service_arg);
}

static void on_due(evutil_socket_t fd, short what, void *arg)
{
    const struct timeval window = {0, PACE_MS * 1000};
    struct http_io *io = arg;

    (void)fd, (void)what;
    look_at_clock(io);
    while (io->held_first && (!io->pace || io->n_paced < PACE_ANSWERS)) {
        io->n_paced++;
        answer(io->held_first);
    }
    if (!io->held_first || event_add(io->pace_due, &window) == 0) return;
    while (io->held_first) answer(io->held_first); /* nobody would call us again */
}

bool http_pace_take(struct http_io *io)
{
    look_at_clock(io);
    if (io->pace && io->n_paced >= PACE_ANSWERS) return false;
    io->n_paced++;
    return true;
}

bool http_pace_hold(struct http_conn *c)
{
    const struct timeval window = {0, PACE_MS * 1000};
    struct http_io *io = c->io;

    look_at_clock(io);
    if (!io->pace || (io->n_paced < PACE_ANSWERS && !io->held_first)) {
        io->n_paced++;
        return false;
    }
    if (!io->held_first && event_add(io->pace_due, &window) != 0) return false;
    c->held_prev = io->held_last;
    *(io->held_last ? &io->held_last->held_next : &io->held_first) = c;
    io->held_last = c;
    c->owner = &held;
    c->owner_arg = c;
    return true;
}

rd_status http_pace_init(struct http_io *io)
{
    io->pace_due = evtimer_new(io->base, on_due, io);
    return io->pace_due ? RD_OK : RD_E_NOMEM;
}

void http_pace_deinit(struct http_io *io)
{
    if (io->pace_due) event_free(io->pace_due);
    io->pace_due = NULL;
}
