/* server/http/http_door.c - one loop around poll(), over a table of at most LIMIT_DOOR_GUESTS sockets. */
#include "server/http/http_door.h"
#include <poll.h>
#include <string.h>
#include "base/checked.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/net.h"
#include "base/os_socket.h"
#include "server/http/http_conn.h"
#include "server/http/http_io.h"
#include "server/http/http_pace.h"

#define PEEK_BYTES   4096u
#define ANSWER_BYTES 4096u /* kept for answers, so that they need no memory */
#define ACCEPT_TURN  64u
#define NO_FILES_NS  20000000ull /* until the next try when no descriptor is left */
#define MS_NS        1000000ull

enum guest_state { GUEST_NONE, GUEST_SILENT, GUEST_KEPT, GUEST_WAITS };

struct guest {
    int fd;
    enum guest_state state;
    bool held;         /* has asked /health; the answer waits for the next window (http_pace.h) */
    uint64_t since_ns; /* when the state began, or the last request was answered */
};

/* Of an io thread's loop: how far it was when it was last seen to have turned. */
struct seen_loop {
    uint64_t n_ticks, at_ns;
};

struct http_door {
    struct http_server *server;
    struct http_io io; /* no thread of libevent: what a connection's functions want to know */
    struct thread thread;
    const int *fds; /* [n_fds] */
    uint32_t n_fds;
    struct seen_loop *loops; /* [server->n_io] */
    int wake;
    uint64_t closed_until_ns;  /* no accepting before */
    uint32_t max_guests, turn; /* turn: who is served first */
    struct guest guests[LIMIT_DOOR_GUESTS];
    struct http_conn conn; /* of the request that is answered */
    struct buf answer;
    char bytes[PEEK_BYTES + 1];
};

static void dismiss(struct guest *g)
{
    net_close(g->fd);
    *g = (struct guest){.fd = -1};
}

/* ---- to the io threads ---- */

/* false: all are full. Then they are asked to make room, and poke us. */
static bool give_away(struct http_door *d, struct guest *g)
{
    struct http_server *s = d->server;
    struct http_io *to = NULL;
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < s->n_io; i++) {
        uint32_t n = atomic_load_explicit(&s->io[i].n_conns, memory_order_relaxed);

        if (n < s->io[i].max_conns && n < least) {
            least = n;
            to = &s->io[i];
        }
    }
    if (to && http_io_take(to, g->fd)) {
        *g = (struct guest){.fd = -1};
        return true;
    }
    atomic_store(&s->door_waits, true);
    for (uint32_t i = 0; i < s->n_io; i++) http_io_ask_room(&s->io[i]);
    return false;
}

static void move_on(struct http_door *d, struct guest *g, uint64_t now)
{
    if (give_away(d, g) || g->state == GUEST_WAITS) return;
    g->state = GUEST_WAITS;
    g->since_ns = now;
}

/* ---- answers ---- */

static void begin_answer(struct http_door *d)
{
    memset(&d->conn, 0, sizeof(d->conn));
    d->conn.io = &d->io;
    d->conn.reply = &d->answer;
    buf_clear(&d->answer);
}

/* The socket is empty except for what it has just said, so there is room for so little. false: it is not to be kept. */
static bool send_answer(struct http_door *d, struct guest *g)
{
    bool sent = !d->conn.broken && net_send_small(g->fd, d->answer.data, d->answer.n);

    if (d->answer.failed || d->answer.cap > 2 * ANSWER_BYTES) buf_deinit(&d->answer);
    return sent && d->conn.head.keep_alive;
}

/* No place came free in time. */
static void turn_away(struct http_door *d, struct guest *g)
{
    struct api_error e;

    begin_answer(d);
    api_error_set(&e, 503, NULL, "the server has as many connections as it can: try again");
    http_reply_error(&d->conn, &e);
    send_answer(d, g);
    net_finish(g->fd);
    dismiss(g);
}

/* The peeked bytes are one whole request for a route that this thread answers: it is in d->conn. */
static bool is_ours(struct http_door *d, size_t n)
{
    struct http_head *head = &d->conn.head;
    struct http_target *target = &d->conn.target;
    const char *unused;

    begin_answer(d);
    if (n < 6 || (memcmp(d->bytes, "GET /", 5) != 0 && memcmp(d->bytes, "HEAD /", 6) != 0)) return false;
    if (http_find_head_end(d->bytes, n, 0) != (int64_t)n) return false;
    if (http_parse_head(d->bytes, n, head, &unused) || head->chunked || head->length > 0) return false;
    d->server->service->on_head(head->method, head->path, target);
    return target->route && target->at_door;
}

static void serve(struct http_door *d, struct guest *g, uint64_t now)
{
    bool closed;
    size_t n = net_peek(g->fd, d->bytes, PEEK_BYTES, &closed);

    g->held = false;
    if (closed) {
        dismiss(g);
    } else if (n == 0) {
        return;
    } else if (!is_ours(d, n)) {
        move_on(d, g, now);
    } else if (!http_pace_take(&d->io)) {
        g->held = true;
    } else if (!net_discard(g->fd, n)) {
        dismiss(g);
    } else {
        http_answer(&d->conn);
        if (send_answer(d, g)) {
            g->state = GUEST_KEPT;
            g->since_ns = now;
            return;
        }
        net_finish(g->fd);
        dismiss(g);
    }
}

/* ---- places ---- */

static struct guest *oldest(struct http_door *d, enum guest_state state)
{
    struct guest *found = NULL;

    for (uint32_t i = 0; i < d->max_guests; i++)
        if (d->guests[i].state == state && (!found || d->guests[i].since_ns < found->since_ns)) found = &d->guests[i];
    return found;
}

/* NULL: nobody can be asked to leave yet. */
static struct guest *find_place(struct http_door *d, uint64_t now)
{
    struct guest *g = oldest(d, GUEST_NONE);

    if (g) return g;
    g = oldest(d, GUEST_WAITS);
    if (g) {
        turn_away(d, g);
        return g;
    }
    g = oldest(d, GUEST_SILENT);
    if (g && (give_away(d, g) || now - g->since_ns > DOOR_YOUNG_NS)) {
        if (g->state != GUEST_NONE) dismiss(g);
        return g;
    }
    g = oldest(d, GUEST_KEPT);
    if (!g || g->held || now - g->since_ns < DOOR_SILENT_NS) return NULL;
    if (!give_away(d, g)) dismiss(g);
    return g;
}

static void let_in(struct http_door *d, int listener, uint64_t now)
{
    for (uint32_t i = 0; i < ACCEPT_TURN; i++) {
        struct guest *g = find_place(d, now);
        bool no_files;
        int fd;

        if (!g) {
            d->closed_until_ns = now + DOOR_YOUNG_NS;
            return;
        }
        fd = net_accept(listener, &no_files);
        if (fd < 0) {
            if (no_files) d->closed_until_ns = now + NO_FILES_NS;
            return;
        }
        *g = (struct guest){.fd = fd, .state = GUEST_SILENT, .since_ns = now};
        serve(d, g, now);
    }
}

static void look_at_deadlines(struct http_door *d, uint64_t now)
{
    bool waits = false;

    for (uint32_t i = 0; i < d->max_guests; i++) {
        struct guest *g = &d->guests[i];
        uint64_t age = now > g->since_ns ? now - g->since_ns : 0;

        switch (g->state) {
        case GUEST_NONE:
            break;
        case GUEST_SILENT:
            if (age > DOOR_SILENT_NS && !give_away(d, g)) dismiss(g);
            break;
        case GUEST_KEPT:
            if (age > DOOR_KEPT_NS) dismiss(g);
            break;
        case GUEST_WAITS:
            if (!give_away(d, g) && age > DOOR_WAIT_NS) turn_away(d, g);
            break;
        }
        waits = waits || g->state == GUEST_WAITS;
    }
    atomic_store(&d->server->door_waits, waits);
}

/* ---- the io threads' loops ---- */

static void look_at_loops(struct http_door *d, uint64_t now)
{
    uint64_t longest = 0;

    for (uint32_t i = 0; i < d->server->n_io; i++) {
        struct seen_loop *seen = &d->loops[i];
        uint64_t n = atomic_load_explicit(&d->server->io[i].n_ticks, memory_order_relaxed);

        if (n != seen->n_ticks || !seen->at_ns) *seen = (struct seen_loop){n, now};
        longest = u64_max(longest, now - seen->at_ns);
    }
    if (longest < d->server->stall_ns || !d->server->stall_ns) longest = 0;
    atomic_store_explicit(&d->server->stuck_s, (unsigned)(longest / (1000 * MS_NS)), memory_order_relaxed);
}

/* ---- the loop ---- */

/* p[0]: the wake-up, p[1 + i]: listening socket i, guests_of(d, p)[i]: guest i. Returns the milliseconds to wait at most. */
static struct pollfd *guests_of(const struct http_door *d, struct pollfd *p)
{
    return p + 1 + d->n_fds;
}

static int prepare(struct http_door *d, struct pollfd *p, uint64_t now)
{
    struct pollfd *of = guests_of(d, p);
    uint64_t wait = DEADLINE_TICK_NS;

    p[0] = (struct pollfd){.fd = d->wake, .events = POLLIN};
    for (uint32_t i = 0; i < d->n_fds; i++)
        p[1 + i] = (struct pollfd){.fd = now < d->closed_until_ns ? -1 : d->fds[i], .events = POLLIN};
    if (now < d->closed_until_ns) wait = u64_min(wait, d->closed_until_ns - now);
    for (uint32_t i = 0; i < d->max_guests; i++) {
        const struct guest *g = &d->guests[i];

        of[i] = (struct pollfd){.fd = g->fd, .events = g->state == GUEST_WAITS ? os_poll_gone() : POLLIN};
        if (!g->held) continue;
        of[i].fd = -1;
        wait = u64_min(wait, PACE_MS * MS_NS);
    }
    return (int)((wait + MS_NS - 1) / MS_NS);
}

static void door_main(void *arg)
{
    struct http_door *d = arg;
    struct pollfd p[1 + LIMIT_LISTENERS + LIMIT_DOOR_GUESTS], *of = guests_of(d, p);
    uint64_t now = http_io_now(&d->io);

    while (!atomic_load(&d->server->end)) {
        int timeout = prepare(d, p, now), n = poll(p, 1 + d->n_fds + d->max_guests, timeout);

        now = http_io_now(&d->io);
        if (n > 0 && p[0].revents) net_wake_clear(d->wake);
        d->turn = (d->turn + 1) % d->max_guests;
        for (uint32_t k = 0; k < d->max_guests; k++) {
            uint32_t i = (d->turn + k) % d->max_guests;
            struct guest *g = &d->guests[i];

            if (g->held || (n > 0 && of[i].fd >= 0 && of[i].revents && g->state != GUEST_WAITS))
                serve(d, g, now);
            else if (n > 0 && of[i].fd >= 0 && of[i].revents)
                dismiss(g);
        }
        for (uint32_t i = 0; i < d->n_fds && n > 0; i++)
            if (p[1 + i].fd >= 0 && p[1 + i].revents) let_in(d, d->fds[i], now);
        look_at_deadlines(d, now);
        look_at_loops(d, now);
    }
}

rd_status http_door_start(struct http_server *s, const int *fds, uint32_t n_fds, uint32_t max_guests,
                          struct http_door **out)
{
    static const char room[ANSWER_BYTES];
    struct http_door *d = mem_zalloc(1, sizeof(*d));
    rd_status st = RD_E_NOMEM;

    if (!d) return st;
    d->server = d->io.server = s;
    d->fds = fds;
    d->n_fds = n_fds < LIMIT_LISTENERS ? n_fds : LIMIT_LISTENERS;
    d->max_guests = max_guests < LIMIT_DOOR_GUESTS ? max_guests : LIMIT_DOOR_GUESTS;
    for (uint32_t i = 0; i < LIMIT_DOOR_GUESTS; i++) d->guests[i].fd = -1;
    buf_append(&d->answer, room, sizeof(room));
    d->wake = -1;
    d->loops = mem_zalloc(s->n_io, sizeof(*d->loops));
    if (d->answer.failed || !d->loops) goto fail;
    st = net_wake_open(&d->wake);
    s->door_wake = d->wake;
    if (st == RD_OK) st = thread_start(&d->thread, "radish-door", door_main, d);
    if (st != RD_OK) goto fail;
    *out = d;
    return RD_OK;

fail:
    http_door_destroy(d);
    return st;
}

void http_door_stop(struct http_door *door)
{
    if (!door) return;
    if (door->thread.started) net_wake(door->wake);
    thread_join(&door->thread);
    for (uint32_t i = 0; i < LIMIT_DOOR_GUESTS; i++) dismiss(&door->guests[i]);
}

void http_door_destroy(struct http_door *door)
{
    if (!door) return;
    http_door_stop(door);
    net_close(door->wake);
    buf_deinit(&door->answer);
    mem_free(door->loops);
    mem_free(door);
}
