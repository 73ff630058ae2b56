/* server/http/http_io.c - what the door hands over, tasks, ticks. */
#include "server/http/http_io.h"
#include <string.h>
#include "base/mem.h"
#include "base/net.h"
#include "server/http/http_conn.h"
#include "server/http/http_pace.h"

#define TICK_US      (DEADLINE_TICK_NS / 1000)
#define IDLE_NS      250000000ull  /* of a connection that makes room for another, */
#define HALF_HEAD_NS 1000000000ull /* or since it began its head */
#define TAKE_TURN    64u

/* ---- what the door hands over ---- */

bool http_io_take(struct http_io *io, int fd)
{
    bool room;

    mutex_lock(&io->hand_lock);
    room = atomic_load_explicit(&io->n_conns, memory_order_relaxed) < io->max_conns && io->n_handed < io->max_conns;
    if (room) {
        io->handed[io->n_handed++] = fd;
        atomic_fetch_add_explicit(&io->n_conns, 1, memory_order_relaxed);
    }
    mutex_unlock(&io->hand_lock);
    if (room) net_wake(io->bell);
    return room;
}

void http_io_ask_room(struct http_io *io)
{
    if (!atomic_exchange(&io->room_wanted, true)) net_wake(io->bell);
}

/* Lets the connection go that has been idle the longest: between requests, or silent since it came. Not one that may
 * only just have come: its request may be on the way. Else the one whose head was begun the longest ago. */
static void make_room(struct http_io *io)
{
    uint64_t now = http_io_now(io), idle_ns = now - IDLE_NS, head_ns = now - HALF_HEAD_NS;
    struct http_conn *idle = NULL, *head = NULL;

    for (struct http_conn *c = io->conns; c; c = c->next) {
        if (http_output_bytes(c) > 0) continue;
        if (c->state == CONN_IDLE && c->since_ns < (idle ? idle->since_ns : idle_ns)) idle = c;
        if (c->state == CONN_HEAD && c->since_ns < (head ? head->since_ns : head_ns)) head = c;
    }
    if (idle)
        http_conn_close(idle);
    else if (head)
        http_conn_refuse_late(head);
}

static void take_handed(struct http_io *io)
{
    int fds[TAKE_TURN];
    uint32_t n;
    bool more;

    mutex_lock(&io->hand_lock);
    n = io->n_handed < TAKE_TURN ? io->n_handed : TAKE_TURN;
    memcpy(fds, io->handed, n * sizeof(*fds));
    io->n_handed -= n;
    memmove(io->handed, io->handed + n, io->n_handed * sizeof(*fds));
    more = io->n_handed > 0;
    mutex_unlock(&io->hand_lock);
    for (uint32_t i = 0; i < n; i++) http_conn_open(io, fds[i]);
    if (atomic_exchange(&io->room_wanted, false) &&
        atomic_load_explicit(&io->n_conns, memory_order_relaxed) >= io->max_conns)
        make_room(io);
    if (more) event_active(io->rung, EV_READ, 0);
}

/* ---- tasks ---- */

void http_io_wake(struct http_io *io, struct http_task *task)
{
    bool first = false;

    mutex_lock(&io->wake_lock);
    if (!task->queued) {
        task->queued = true;
        task->next = NULL;
        first = io->wake_first == NULL;
        if (first)
            io->wake_first = task;
        else
            io->wake_last->next = task;
        io->wake_last = task;
    }
    mutex_unlock(&io->wake_lock);
    if (first) net_wake(io->bell);
}

void http_io_forget(struct http_io *io, struct http_task *task)
{
    struct http_task *last = NULL;

    mutex_lock(&io->wake_lock);
    for (struct http_task **at = &io->wake_first; task->queued && *at; at = &(*at)->next) {
        if (*at == task) {
            *at = task->next;
            if (io->wake_last == task) io->wake_last = last;
            task->queued = false;
            break;
        }
        last = *at;
    }
    mutex_unlock(&io->wake_lock);
}

/* NULL: none waits. */
static struct http_task *next_task(struct http_io *io)
{
    struct http_task *task;

    mutex_lock(&io->wake_lock);
    task = io->wake_first;
    if (task) {
        io->wake_first = task->next;
        if (!io->wake_first) io->wake_last = NULL;
        task->queued = false;
    }
    mutex_unlock(&io->wake_lock);
    return task;
}

/* Takes tasks from the list one by one: running one may free any of them. */
static void run_tasks(struct http_io *io)
{
    struct http_task *task, *last;
    bool more = true;

    mutex_lock(&io->wake_lock);
    last = io->wake_last;
    mutex_unlock(&io->wake_lock);
    while (more) { /* those queued again meanwhile wait for the next turn of the loop */
        mutex_lock(&io->wake_lock);
        task = io->wake_first;
        if (task) {
            io->wake_first = task->next;
            if (!io->wake_first) io->wake_last = NULL;
            task->queued = false;
        }
        more = task && task != last && io->wake_first;
        if (task == last && io->wake_first) event_active(io->rung, EV_READ, 0);
        mutex_unlock(&io->wake_lock);
        if (task) task->run(task);
    }
}

static void on_bell(evutil_socket_t fd, short what, void *arg)
{
    struct http_io *io = arg;

    (void)what;
    net_wake_clear(fd);
    take_handed(io);
    run_tasks(io);
}

/* ---- without a connection ---- */

void http_io_enter_background(struct http_io *io, struct http_background *b)
{
    b->listed = true;
    b->prev = NULL;
    b->next = io->background;
    if (b->next) b->next->prev = b;
    io->background = b;
    http_use(b->n_users);
    atomic_fetch_add_explicit(&io->server->n_busy, 1, memory_order_relaxed);
}

void http_io_leave_background(struct http_io *io, struct http_background *b)
{
    if (!b->listed) return;
    b->listed = false;
    if (b->prev)
        b->prev->next = b->next;
    else
        io->background = b->next;
    if (b->next) b->next->prev = b->prev;
    http_unuse(b->n_users);
    atomic_fetch_sub_explicit(&io->server->n_busy, 1, memory_order_relaxed);
}

static void tick_background(struct http_io *io, bool stop)
{
    for (struct http_background *b = io->background, *next; b; b = next) {
        next = b->next;
        if (stop)
            b->owner->stop(b->owner_arg);
        else
            b->owner->tick(b->owner_arg, clock_now_ns(clock_system()));
    }
}

/* ---- ticks ---- */

static void tick_connections(struct http_io *io)
{
    bool cancel = http_phase(io->server) == HTTP_CANCELLING && !io->cancelled;

    for (struct http_conn *c = io->conns, *next; c; c = next) {
        next = c->next;
        if (cancel && c->owner) c->owner->stop(c->owner_arg);
        http_conn_tick(c);
    }
    tick_background(io, cancel);
    if (cancel) io->cancelled = true;
}

uint32_t http_io_output_pending(const struct http_io *io)
{
    uint32_t n = 0;

    for (const struct http_conn *c = io->conns; c; c = c->next) n += http_output_bytes(c) > 0;
    return n;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct http_io *io = arg;

    (void)fd, (void)what;
    atomic_fetch_add_explicit(&io->n_ticks, 1, memory_order_relaxed);
    if (io->on_tick) io->on_tick(io);
    tick_connections(io);
    take_handed(io); /* for whom the bell was not to be rung */
    run_tasks(io);
    if (atomic_load(&io->server->end)) event_base_loopbreak(io->base);
}

/* ---- life ---- */

rd_status http_io_init(struct http_server *s, struct http_io *io)
{
    struct timeval tick = {0, TICK_US};

    io->server = s;
    io->bell = -1;
    io->max_conns = s->max_conns / s->n_io;
    mutex_init(&io->wake_lock);
    mutex_init(&io->hand_lock);
    mem_clear_failed();
    io->base = event_base_new();
    io->handed = mem_zalloc(io->max_conns, sizeof(*io->handed));
    if (!io->base || !io->handed) return RD_E_NOMEM;
    io->tick = event_new(io->base, -1, EV_PERSIST, on_tick, io);
    if (http_pace_init(io) != RD_OK) return RD_E_NOMEM;
    if (net_wake_open(&io->bell) != RD_OK) return RD_E_NOMEM;
    io->rung = event_new(io->base, io->bell, EV_READ | EV_PERSIST, on_bell, io);
    if (!io->tick || !io->rung || event_add(io->tick, &tick) || event_add(io->rung, NULL)) return RD_E_NOMEM;
    return mem_has_failed() ? RD_E_NOMEM : RD_OK;
}

void http_io_deinit(struct http_io *io)
{
    struct http_task *task;

    if (!io->server) return;
    while (io->conns) http_conn_close(io->conns);
    tick_background(io, true);
    while ((task = next_task(io))) task->run(task);
    buf_deinit(&io->frame);
    buf_deinit(&io->scratch);
    for (uint32_t i = 0; i < io->n_handed; i++) net_close(io->handed[i]);
    if (io->rung) event_free(io->rung);
    net_close(io->bell);
    if (io->tick) event_free(io->tick);
    http_pace_deinit(io);
    if (io->base) event_base_free(io->base);
    mutex_deinit(&io->wake_lock);
    mutex_deinit(&io->hand_lock);
    mem_free(io->handed);
}

void http_io_main(void *arg)
{
    struct http_io *io = arg;

    event_base_dispatch(io->base);
}
