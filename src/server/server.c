/* server/server.c - the io threads, loading, signals, draining.
 *
 * io[0] runs on the caller's thread and takes the signals. The door (http_door.h) accepts, answers /health, and hands
 * all others to the io threads, which keep them. Phases go one way: LOADING -> READY -> DRAINING (running requests end, new ones get 503) ->
 * CANCELLING (their owners were told to stop; what is in the output buffers leaves) -> end.
 */
#include "server/server.h"
#include <arpa/inet.h>
#include <event2/thread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net.h"
#include "base/sysinfo.h"
#include "server/dialects/generation.h"
#include "server/http/http_conn.h"
#include "server/http/http_door.h"
#include "server/http/http_pace.h"
#include "server/http/offload.h"
#include "server/dialects/responses_store.h"
#include "server/dialects/prompt_prints.h"
#include "server/dialects/server_state.h"

#define BACKLOG        1024
#define MAX_IO_THREADS 64u
#define TICK_US        (DEADLINE_TICK_NS / 1000)
#define IDLE_NS        250000000ull      /* of a connection that makes room for another, */
#define HALF_HEAD_NS   1000000000ull     /* or since it began its head */
#define TAKE_TURN      64u
#define N_SIGNALS      5
#define DEFAULT_PING_S 5u
#define DEFAULT_SEND_S 30u
#define DEFAULT_DRAIN_S 30u
#define FLUSH_NS       2000000000ull     /* after cancelling: for output buffers to leave */
#define EXIT_AT_ONCE   130

/* server_stop() has no object to act on: it is called from signal handlers. Only counts; the tick of io[0] reads it. */
static atomic_uint stop_requests;

void server_options_default(struct server_options *o)
{
    *o = (struct server_options){.host = "127.0.0.1",
                                 .port = 8000,
                                 .n_io_threads = 1,
                                 .max_body_bytes = LIMIT_BODY_BYTES,
                                 .sse_ping_s = DEFAULT_PING_S,
                                 .send_timeout_s = DEFAULT_SEND_S,
                                 .drain_s = DEFAULT_DRAIN_S};
}

void server_stop(void)
{
    atomic_fetch_add_explicit(&stop_requests, 1, memory_order_relaxed);
}

/* ---- what the door hands over ---- */

bool server_io_take(struct server_io *io, int fd)
{
    bool room;

    mutex_lock(&io->hand_lock);
    room = atomic_load_explicit(&io->n_conns, memory_order_relaxed) < io->max_conns && io->n_handed < io->max_conns;
    if (room) {
        io->handed[io->n_handed++] = fd;
        atomic_fetch_add_explicit(&io->n_conns, 1, memory_order_relaxed);
    }
    mutex_unlock(&io->hand_lock);
    if (room) event_active(io->taking, EV_READ, 0);
    return room;
}

void server_io_ask_room(struct server_io *io)
{
    if (!atomic_exchange(&io->room_wanted, true)) event_active(io->taking, EV_READ, 0);
}

/* Lets the connection go that has been idle the longest: between requests, or silent since it came. Not one that may
 * only just have come: its request may be on the way. Else the one whose head was begun the longest ago. */
static void make_room(struct server_io *io)
{
    uint64_t now = server_io_now(io), idle_ns = now - IDLE_NS, head_ns = now - HALF_HEAD_NS;
    struct http_conn *idle = NULL, *head = NULL;

    for (struct http_conn *c = io->conns; c; c = c->next) {
        if (http_output_bytes(c) > 0) continue;
        if (c->state == CONN_IDLE && c->since_ns < (idle ? idle->since_ns : idle_ns)) idle = c;
        if (c->state == CONN_HEAD && c->since_ns < (head ? head->since_ns : head_ns)) head = c;
    }
    if (idle) http_conn_close(idle);
    else if (head) http_conn_refuse_late(head);
}

static void on_take(evutil_socket_t unused, short what, void *arg)
{
    struct server_io *io = arg;
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
    if (more) event_active(io->taking, EV_READ, 0);
}

/* ---- an io thread ---- */

/* Takes generations from the list one by one: polling one may free any of them. */
static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct server_io *io = arg;
    struct generation *g, *last;
    bool more = true;

    offload_collect(io);
    mutex_lock(&io->wake_lock);
    last = io->wake_last;
    mutex_unlock(&io->wake_lock);
    while (more) { /* those queued again meanwhile wait for the next turn of the loop */
        mutex_lock(&io->wake_lock);
        g = io->wake_first;
        if (g) {
            io->wake_first = g->wake_next;
            if (!io->wake_first) io->wake_last = NULL;
            g->queued = false;
        }
        more = g && g != last && io->wake_first;
        if (g == last && io->wake_first) event_active(io->wake, EV_READ, 0);
        mutex_unlock(&io->wake_lock);
        if (g) generation_poll(g);
    }
}

uint64_t server_io_now(struct server_io *io)
{
    return deadline_now(&io->clock, clock_now_ns(clock_system()));
}

static void tick_connections(struct server_io *io)
{
    bool cancel = server_phase(io->server) == SERVER_CANCELLING && !io->cancelled;

    for (struct http_conn *c = io->conns, *next; c; c = next) {
        next = c->next;
        if (cancel && c->owner) c->owner->stop(c->owner_arg);
        http_conn_tick(c);
    }
    generation_tick_background(io, cancel);
    if (cancel) io->cancelled = true;
}

static uint32_t output_pending(const struct server_io *io)
{
    uint32_t n = 0;

    for (const struct http_conn *c = io->conns; c; c = c->next) n += http_output_bytes(c) > 0;
    return n;
}

static void set_phase(struct server *s, enum server_phase phase)
{
    atomic_store_explicit(&s->phase, phase, memory_order_release);
}

/* A device that failed for good: the requests that run have failed, no other can do better (FAULTS.md, F93). */
static void watch_device(struct server *s)
{
    struct rd_stats stats;

    if (s->device_dead) return;
    rd_get_stats(s->engine, &stats);
    if (!stats.device_dead) return;
    log_error("no request can be computed any more: the server stops, so that a supervisor can start it again");
    s->device_dead = true;
    server_stop();
}

/* io[0]: the phases of the end. */
static void tick_server(struct server *s)
{
    uint64_t now = server_io_now(&s->io[0]);
    bool idle = atomic_load_explicit(&s->n_busy, memory_order_relaxed) == 0;
    unsigned stops = atomic_load_explicit(&stop_requests, memory_order_relaxed);

    if (!atomic_load_explicit(&s->loaded, memory_order_acquire)) {
        if (!stops) return;
        log_info("stopped while loading");                  /* all files are written so that they may be cut anywhere */
        _exit(0);
    }
    switch (server_phase(s)) {
    case SERVER_LOADING:                                    /* loading failed */
        atomic_store(&s->end, true);
        break;
    case SERVER_READY:
        watch_device(s);
        if (!stops) break;
        log_info("stopping: running requests may end within %u s", s->o.drain_s);
        s->drain_deadline_ns = now + (uint64_t)s->o.drain_s * 1000000000u;
        set_phase(s, SERVER_DRAINING);
        break;
    case SERVER_DRAINING:
        if (!idle && now < s->drain_deadline_ns) break;
        s->drain_deadline_ns = now + FLUSH_NS;
        set_phase(s, SERVER_CANCELLING);
        break;
    case SERVER_CANCELLING:
        if ((s->io[0].cancelled && idle && output_pending(&s->io[0]) == 0) || now > s->drain_deadline_ns)
            atomic_store(&s->end, true);
        break;
    }
    if (stops > 1) _exit(EXIT_AT_ONCE);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct server_io *io = arg;

    if (io == io->server->io) tick_server(io->server);
    tick_connections(io);
    if (atomic_load(&io->server->end)) event_base_loopbreak(io->base);
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    struct server *s = arg;

    /* of a terminal that is closed two may come, from the kernel and from the shell */
    if (number != SIGHUP || atomic_load_explicit(&stop_requests, memory_order_relaxed) == 0) server_stop();
    tick_server(s);
}

/* SIGUSR1. */
static void on_statistics(evutil_socket_t number, short what, void *arg)
{
    struct server *s = arg;
    struct rd_stats r = {0};
    uint32_t n_conns = 0;

    for (uint32_t i = 0; i < s->n_io; i++) n_conns += atomic_load_explicit(&s->io[i].n_conns, memory_order_relaxed);
    if (server_phase(s) != SERVER_LOADING && s->engine) rd_get_stats(s->engine, &r);
    log_info("statistics: %u connections, %u being answered; requests: %llu prefill, %llu decode, %llu wait, %llu taken, "
             "%llu cancelled, %llu failed; tokens: %llu computed, %llu cached, %llu generated; pages: %llu of %llu free; "
             "%.0f MiB",
             n_conns, atomic_load_explicit(&s->n_busy, memory_order_relaxed), (unsigned long long)r.n_prefill,
             (unsigned long long)r.n_decode, (unsigned long long)(r.n_queued + r.n_waiting + r.n_preparing),
             (unsigned long long)r.n_submitted, (unsigned long long)r.n_cancelled, (unsigned long long)r.n_failed,
             (unsigned long long)r.prompt_tokens_computed, (unsigned long long)r.prompt_tokens_cached,
             (unsigned long long)r.tokens_generated, (unsigned long long)r.pages_free, (unsigned long long)r.pages_total,
             (double)r.rss_anon_bytes / (1 << 20));
}

static rd_status io_init(struct server *s, struct server_io *io)
{
    struct timeval tick = {0, TICK_US};

    io->server = s;
    io->max_conns = s->max_conns / s->n_io;
    mutex_init(&io->wake_lock);
    mutex_init(&io->hand_lock);
    mem_clear_failed();
    io->base = event_base_new();
    io->handed = mem_zalloc(io->max_conns, sizeof(*io->handed));
    if (!io->base || !io->handed) return RD_E_NOMEM;
    io->wake = event_new(io->base, -1, 0, on_wake, io);
    io->tick = event_new(io->base, -1, EV_PERSIST, on_tick, io);
    if (http_pace_init(io) != RD_OK) return RD_E_NOMEM;
    io->taking = event_new(io->base, -1, 0, on_take, io);
    if (!io->wake || !io->tick || !io->taking || event_add(io->tick, &tick)) return RD_E_NOMEM;
    return mem_has_failed() ? RD_E_NOMEM : RD_OK;
}

static void io_deinit(struct server_io *io)
{
    if (!io->server) return;
    while (io->conns) http_conn_close(io->conns);
    generation_tick_background(io, true);
    offload_collect(io);
    buf_deinit(&io->frame);
    buf_deinit(&io->events);
    for (uint32_t i = 0; i < io->n_handed; i++) net_close(io->handed[i]);
    if (io->taking) event_free(io->taking);
    if (io->wake) event_free(io->wake);
    if (io->tick) event_free(io->tick);
    http_pace_deinit(io);
    if (io->base) event_base_free(io->base);
    mutex_deinit(&io->wake_lock);
    mutex_deinit(&io->hand_lock);
    mem_free(io->handed);
}

static void io_main(void *arg)
{
    struct server_io *io = arg;

    event_base_dispatch(io->base);
}

/* ---- the whole ---- */

static void load_main(void *arg)
{
    struct server *s = arg;

    s->load_status = s->load(s->load_user, &s->engine, &s->load_err);
    if (s->load_status == RD_OK) {
        rd_get_info(s->engine, &s->info);
        set_phase(s, SERVER_READY);
        log_info("ready: %s, %.1f s after the start", s->info.model_id,
                 (double)(clock_now_ns(clock_system()) - s->started_ns) / 1e9);
    }
    atomic_store_explicit(&s->loaded, true, memory_order_release);
    event_active(s->io[0].tick, EV_TIMEOUT, 0);
}

struct tenant_stats *server_tenant(const struct server *s, const char *key)
{
    for (uint32_t i = 0; key && i < s->o.n_tenant_keys; i++)
        if (s->o.tenant_keys[i] == key) return &s->tenants[i];
    return NULL;
}

static bool is_loopback(const char *host)
{
    struct in6_addr v6;

    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

static void *event_alloc(size_t n) { return mem_alloc(n, 1); }
static void *event_realloc(void *p, size_t n) { return mem_realloc(p, n, 1); }

/* What may be open at once, files of our own and the door's left out (F46). */
static uint32_t max_connections(uint32_t *max_guests)
{
    uint64_t files = sysinfo_open_files(), own, most;

    *max_guests = files / 8 < LIMIT_DOOR_GUESTS ? (uint32_t)(files / 8) : LIMIT_DOOR_GUESTS;
    if (*max_guests < 4) *max_guests = 4;
    own = LIMIT_RESERVED_FILES + *max_guests;
    most = files > own ? files - own : 1;
    return most < LIMIT_CONNECTIONS ? (uint32_t)most : LIMIT_CONNECTIONS;
}

/* max_guests: the door's. */
static void take_options(struct server *s, const struct server_options *o, uint32_t *max_guests)
{
    s->o = *o;
    if (!s->o.host) s->o.host = "127.0.0.1";
    if (!s->o.max_body_bytes) s->o.max_body_bytes = LIMIT_BODY_BYTES;
    if (!s->o.drain_s) s->o.drain_s = DEFAULT_DRAIN_S;
    if (s->o.api_key && !*s->o.api_key) s->o.api_key = NULL;
    s->n_io = o->n_io_threads ? o->n_io_threads : 1;
    if (s->n_io > MAX_IO_THREADS) s->n_io = MAX_IO_THREADS;
    if (!s->o.send_timeout_s) s->o.send_timeout_s = DEFAULT_SEND_S;
    s->max_conns = max_connections(max_guests);
    if (s->max_conns < 2 * s->n_io) s->max_conns = 2 * s->n_io;
    s->loopback = is_loopback(s->o.host);
    s->started_ns = clock_now_ns(clock_system());
    client_memory_init(&s->memory, o->client_memory_bytes);
    mem_keep_little();
}

/* A process that was started by nohup ignores SIGHUP, and goes on doing so. */
static bool is_ignored(int number)
{
    struct sigaction now;

    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

/* Those of no use here, whose default is to end the process. SIGUSR1 has a use while the loops run. */
static void ignore_signals(void)
{
    signal(SIGPIPE, SIG_IGN);                               /* a client that left is an error of write (F47) */
    signal(SIGXFSZ, SIG_IGN);                               /* as is a file that may not grow */
    signal(SIGALRM, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
}

/* Everybody who reaches the port may use the machine. */
static void warn_of_openness(const struct server *s)
{
    if (s->loopback || s->o.api_key || s->o.n_tenant_keys) return;
    log_warn("listening on %s without an API key: whoever reaches this machine can use the model and see what it is "
             "asked; set --api-key or RADISH_API_KEY, or listen on 127.0.0.1",
             s->o.host);
}

static rd_status run_loops(struct server *s, uint32_t max_guests, struct rd_error *err)
{
    static const int numbers[N_SIGNALS] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1};
    struct event *signals[N_SIGNALS] = {NULL};
    rd_status st = RD_E_NOMEM;

    for (int i = 0; i < N_SIGNALS; i++) {
        if (numbers[i] == SIGHUP && is_ignored(SIGHUP)) continue;
        signals[i] = evsignal_new(s->io[0].base, numbers[i], numbers[i] == SIGUSR1 ? on_statistics : on_signal, s);
        if (!signals[i] || event_add(signals[i], NULL)) goto done;
    }
    st = thread_start(&s->load_thread, "radish-load", load_main, s);
    for (uint32_t i = 1; i < s->n_io && st == RD_OK; i++)
        st = thread_start(&s->io[i].thread, "radish-io", io_main, &s->io[i]);
    if (st == RD_OK) st = http_door_start(s, s->fd, max_guests, &s->door);
    if (st == RD_OK) event_base_dispatch(s->io[0].base);
done:
    atomic_store(&s->end, true);
    http_door_stop(s->door);
    for (uint32_t i = 1; i < s->n_io; i++) thread_join(&s->io[i].thread);
    thread_join(&s->load_thread);
    for (int i = 0; i < N_SIGNALS; i++)
        if (signals[i]) event_free(signals[i]);
    if (st != RD_OK) return error_set(err, st, "starting the server: %s", rd_status_text(st));
    if (s->device_dead) return error_set(err, RD_E_DEVICE, "the device failed");
    if (s->load_status == RD_OK) return RD_OK;
    return error_set(err, s->load_status, "%s", s->load_err.text);
}

rd_status server_run(const struct server_options *o,
                     rd_status (*load)(void *user, rd_engine **out, struct rd_error *err), void *user,
                     struct rd_error *err)
{
    struct server *s;
    uint32_t max_guests;
    uint16_t port = 0;
    rd_status st;

    event_set_mem_functions(event_alloc, event_realloc, mem_free);
    if (evthread_use_pthreads()) return error_set(err, RD_E_INTERNAL, "libevent without threads");
    ignore_signals();
    atomic_store(&stop_requests, 0);
    s = mem_zalloc(1, sizeof(*s));
    if (!s) return error_set(err, RD_E_NOMEM, "out of memory for the server");
    s->fd = -1;
    s->load = load;
    s->load_user = user;
    take_options(s, o, &max_guests);
    st = net_listen(s->o.host, s->o.port, BACKLOG, &s->fd, &port, err);
    if (st != RD_OK) goto done;
    s->io = mem_zalloc(s->n_io, sizeof(*s->io));
    if (!s->io || responses_store_create(LIMIT_STORED_RESPONSES_BYTES, &s->responses) != RD_OK ||
        prompt_prints_create(&s->prints) != RD_OK || offload_create(&s->offload) != RD_OK ||
        !(s->tenants = mem_zalloc((size_t)s->o.n_tenant_keys + 1, sizeof(*s->tenants))))
        st = error_set(err, RD_E_NOMEM, "out of memory for the server");
    if (st == RD_OK) responses_store_charge_to(s->responses, &s->memory);
    for (uint32_t i = 0; i < s->n_io && st == RD_OK; i++) {
        st = io_init(s, &s->io[i]);
        if (st != RD_OK) error_set(err, st, "starting the server: %s", rd_status_text(st));
    }
    if (st != RD_OK) goto done;
    warn_of_openness(s);
    if (s->o.on_listen) s->o.on_listen(s->o.on_listen_user, s->o.host, port);
    st = run_loops(s, max_guests, err);
done:
    offload_stop(s->offload);
    for (uint32_t i = 0; s->io && i < s->n_io; i++) io_deinit(&s->io[i]);
    http_door_destroy(s->door);
    net_close(s->fd);
    offload_destroy(s->offload);
    responses_store_destroy(s->responses);
    prompt_prints_destroy(s->prints);
    mem_free(s->tenants);
    rd_close(s->engine);
    mem_free(s->io);
    mem_free(s);
    return st;
}
