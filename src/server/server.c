/* server/server.c - the whole: HTTP layer and service, loading, signals, draining.
 *
 * io[0] runs on the caller's thread and takes the signals. The door (http_door.h) accepts, answers /health, and hands
 * all others to the io threads, which keep them. Phases go one way: LOADING -> READY -> DRAINING (running requests end, new ones get 503) ->
 * CANCELLING (their owners were told to stop; what is in the output buffers leaves) -> end.
 */
#include "server/server.h"
#include <event2/thread.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/net.h"
#include "base/supervisor.h"
#include "base/sysinfo.h"
#include "server/dialects/prompt_prints.h"
#include "server/dialects/responses_store.h"
#include "server/dialects/server_state.h"
#include "server/http/http_door.h"
#include "server/http/http_io.h"
#include "server/http/keys.h"
#include "server/http/offload.h"
#include "server/listeners.h"
#include "server/monitor/monitor.h"
#include "server/monitor/progress.h"
#include "server/routes/model_gate.h"
#include "server/routes/routes.h"

#define BACKLOG             1024
#define MAX_IO_THREADS      64u
#define N_ENDING            3
#define LEAST_GUESTS        4u
#define DEFAULT_PING_S      5u
#define DEFAULT_SEND_S      30u
#define DEFAULT_DRAIN_S     30u
#define DEFAULT_SWAP_WAIT_S 120u
#define FLUSH_NS            2000000000ull /* after cancelling: for output buffers to leave */
#define EXIT_AT_ONCE        130
#define EXIT_STUCK          70 /* as for a device that failed: start again */
#define DEFAULT_STALL_S     120u
#define STUCK_S             12u /* at the end, once all were cancelled: without a sign of life */
#define STUCK_LOOK_NS       20000000ull
#define DEAD_CLOSE_S                                                                                                   \
    20u /* until an engine whose device has failed is closed: a kernel may never end, and lets nothing go */
#define GIVE_BACK_BYTES (1u << 20) /* left unread by connections that were closed: worth a look at the heap */

/* What only runs and ends a server. The threads see its service's part (server_state.h) and the HTTP layer's in that. */
struct run {
    struct server server; /* first */
    struct server_options o;
    server_load_fn load;
    void *load_user;
    struct thread load_thread;
    rd_status load_status; /* written by the load thread before it stores loaded */
    struct rd_error load_err;
    atomic_bool loaded; /* the load thread is through (release); io[0] reads (acquire) */
    struct listeners listeners;
    struct http_door *door; /* accepts; lives longer than the connections */
    uint64_t started_ns, drain_deadline_ns;
    uint64_t leave_ns;                 /* until then it only asks for no more requests; 0: not asked to stop yet */
    uint64_t n_loads_seen;             /* io[0]: when the monitor last looked */
    bool device_dead;                  /* io[0]: the reason for stopping */
    struct sigaction before[N_ENDING]; /* has_signals: what they did before server_run */
    bool has_signals, had_terminal;
    int wake;                        /* stop_wake */
    struct progress progress;        /* io[0] looks */
    uint64_t watchdog_ns, petted_ns; /* how often a service manager wants to be told that we get on; 0: never */
};

/* server_stop() has no object to act on: it is called from signal handlers. Only counts; the tick of io[0] reads it. */
static atomic_uint stop_requests;
static atomic_int stop_wake; /* of the loop of io[0]; relaxed: set before the signals are ours */

void server_options_default(struct server_options *o)
{
    *o = (struct server_options){.host = "127.0.0.1",
                                 .port = 8000,
                                 .n_io_threads = 1,
                                 .max_body_bytes = LIMIT_BODY_BYTES,
                                 .sse_ping_s = DEFAULT_PING_S,
                                 .send_timeout_s = DEFAULT_SEND_S,
                                 .socket_mode = 0600,
                                 .stall_s = DEFAULT_STALL_S,
                                 .drain_s = DEFAULT_DRAIN_S};
}

void server_stop(void)
{
    atomic_fetch_add_explicit(&stop_requests, 1, memory_order_relaxed);
}

static void set_phase(struct run *s, enum http_phase phase)
{
    atomic_store_explicit(&s->server.http.phase, phase, memory_order_release);
}

/* To a service manager: a line for a person. */
static void tell_status(const char *state, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell_status(const char *state, const char *format, ...)
{
    char line[256];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    for (char *at = line; *at; at++)
        if ((unsigned char)*at < ' ') *at = '?'; /* of a model's name: it would begin another message */
    supervisor_notify("%sSTATUS=%s", state, line);
}

/* A device that failed for good: the requests that run have failed, no other can do better (FAULTS.md, F93). */
static void watch_device(struct run *s)
{
    rd_engine *engine = s->device_dead ? NULL : model_gate_hold(s->server.gate, &s->server);
    struct rd_stats stats = {.size = sizeof(stats)};

    if (!engine) return;
    rd_get_stats(engine, &stats);
    model_gate_release(s->server.gate);
    if (!stats.device_dead) return;
    if (model_gate_n_models(s->server.gate) > 1 && s->server.only.info.on_host)
        return; /* the file of one of several: the gate closes it */
    log_error("no request can be computed any more: the server stops, so that a supervisor can start it again");
    s->device_dead = true;
    server_stop();
}

/* What a crash report tells. */
static void note_state(const struct run *s, const struct rd_stats *r)
{
    const struct {
        const char *name;
        uint64_t value;
    } notes[] = {{"requests being answered", atomic_load_explicit(&s->server.http.n_busy, memory_order_relaxed)},
                 {"preparing", r->n_preparing},
                 {"queued", r->n_queued},
                 {"waiting", r->n_waiting},
                 {"in prefill", r->n_prefill},
                 {"in decode", r->n_decode},
                 {"taken", r->n_submitted},
                 {"cancelled", r->n_cancelled},
                 {"failed", r->n_failed},
                 {"steps", r->n_steps},
                 {"pages", r->pages_total},
                 {"free", r->pages_free},
                 {"ready", r->pages_ready},
                 {"locked", r->pages_locked},
                 {"pending", r->pages_pending},
                 {"quarantined", r->pages_quarantined},
                 {"tree nodes", r->tree_nodes},
                 {"accounting errors", r->accounting_errors},
                 {"resident anonymous bytes", r->rss_anon_bytes}};

    for (unsigned i = 0; i < sizeof(notes) / sizeof(*notes); i++) crash_note(i, notes[i].name, notes[i].value);
}

/* Whether the engine gets on; its watchdog hears of us only then. */
static void watch_progress(struct run *s, uint64_t now)
{
    rd_engine *engine = model_gate_hold(s->server.gate, &s->server);
    unsigned before = progress_stalled_s(&s->progress), after;
    struct rd_stats stats = {.size = sizeof(stats)};

    if (engine) {
        rd_get_stats(engine, &stats);
        model_gate_release(s->server.gate);
        progress_look(&s->progress, &stats, now);
        note_state(s, &stats);
    } else {
        progress_forget(&s->progress);
    }
    after = progress_stalled_s(&s->progress);
    if (after && !before) {
        log_event(LOG_ERROR, "stalled", LOG_FIELDS(LOG_F_NUMBER("seconds", after)),
                  "the engine has not got on for %u s: /health says so", after);
        tell_status("", "stuck: the engine has not got on for %u s", after);
    }
    if (before && !after) {
        log_event(LOG_WARN, "recovered", NULL, 0, "the engine gets on again");
        tell_status("", "serving %s", s->server.only.info.model_id);
    }
    if (!s->watchdog_ns || after || now - s->petted_ns < s->watchdog_ns / 3) return;
    s->petted_ns = now;
    supervisor_notify("WATCHDOG=1");
}

/* For the monitor: from the engine that is there now; another one's numbers begin anew. */
static void sample(struct run *s)
{
    uint64_t now_ns = clock_now_ns(clock_system()), n_loads = model_gate_loads(s->server.gate);
    rd_engine *engine = model_gate_hold(s->server.gate, &s->server);

    if (n_loads != s->n_loads_seen || !engine)
        monitor_tick(s->server.monitor, NULL, now_ns, clock_wall_s(clock_system()));
    s->n_loads_seen = n_loads;
    if (!engine) return;
    monitor_tick(s->server.monitor, engine, now_ns, clock_wall_s(clock_system()));
    model_gate_release(s->server.gate);
}

static void on_alarm(int number)
{
    static const char text[] = "radish serve: the engine is stuck: stopped without it\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

    (void)number, (void)n;
    _exit(EXIT_STUCK);
}

/* All were cancelled: everybody ends within a step, and nothing must wait for one who does not. */
static void set_alarm(void)
{
    signal(SIGALRM, on_alarm);
    alarm(STUCK_S);
}

/* It is to stop: whoever spreads requests is told, and has --drain-wait to send them elsewhere. False: not yet over. */
static bool leave(struct run *s, uint64_t now)
{
    if (!s->leave_ns && s->o.drain_wait_s > 0) {
        atomic_store_explicit(&s->server.http.leaving, true, memory_order_relaxed);
        log_event(LOG_INFO, "leaving", LOG_FIELDS(LOG_F_NUMBER("seconds", s->o.drain_wait_s)),
                  "to be stopped: /health says so for %u s, and what comes is answered", s->o.drain_wait_s);
        tell_status("", "leaving: requests are taken for %u s more", s->o.drain_wait_s);
        s->leave_ns = now + (uint64_t)s->o.drain_wait_s * 1000000000u;
    }
    return now >= s->leave_ns;
}

/* io[0]: the phases of the end. */
static void tick_server(struct run *s)
{
    uint64_t now = http_io_now(&s->server.http.io[0]);
    bool idle = atomic_load_explicit(&s->server.http.n_busy, memory_order_relaxed) == 0;
    unsigned stops = atomic_load_explicit(&stop_requests, memory_order_relaxed);

    if (!atomic_load_explicit(&s->loaded, memory_order_acquire)) {
        if (!stops) return;
        log_event(LOG_INFO, "stop", NULL, 0,
                  "stopped while loading"); /* all files are written so that they may be cut anywhere */
        _exit(0);
    }
    if (http_phase(&s->server.http) != HTTP_LOADING) watch_progress(s, now);
    switch (http_phase(&s->server.http)) {
    case HTTP_LOADING: /* loading failed */
        atomic_store(&s->server.http.end, true);
        break;
    case HTTP_READY:
        watch_device(s);
        sample(s);
        if (!stops) break;
        if (!leave(s, now)) break;
        log_event(LOG_INFO, "stop", LOG_FIELDS(LOG_F_NUMBER("drain_seconds", s->o.drain_s)),
                  "stopping: running requests may end within %u s", s->o.drain_s);
        tell_status("STOPPING=1\n", "draining: running requests may end within %u s", s->o.drain_s);
        s->drain_deadline_ns = now + (uint64_t)s->o.drain_s * 1000000000u;
        set_phase(s, HTTP_DRAINING);
        break;
    case HTTP_DRAINING:
        if (!idle && now < s->drain_deadline_ns) break;
        s->drain_deadline_ns = now + FLUSH_NS;
        set_alarm();
        set_phase(s, HTTP_CANCELLING);
        break;
    case HTTP_CANCELLING:
        if ((s->server.http.io[0].cancelled && idle && http_io_output_pending(&s->server.http.io[0]) == 0) ||
            now > s->drain_deadline_ns)
            atomic_store(&s->server.http.end, true);
        break;
    }
    if (stops > 1) _exit(EXIT_AT_ONCE);
}

/* A thousand streams that nobody read leave the heap full of holes when they are closed. */
static void give_back_unread(struct http_server *http)
{
    if (atomic_load_explicit(&http->unread_left, memory_order_relaxed) < GIVE_BACK_BYTES) return;
    atomic_store_explicit(&http->unread_left, 0, memory_order_relaxed);
    offload_give_back(http->offload);
}

static void on_tick(struct http_io *io)
{
    give_back_unread(io->server);
    tick_server((struct run *)server_of_io(io));
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    net_wake_clear(fd);
    tick_server(arg);
}

/* The process has one that it can open: by its own name for it, which goes with it. */
static bool has_terminal(void)
{
    int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);

    if (fd >= 0) close(fd);
    return fd >= 0;
}

static void reload_keys(struct run *s)
{
    struct rd_error err = {RD_OK, ""};
    uint32_t n = 0;

    if (!keys_has_file(s->server.http.keys)) {
        log_info("SIGHUP: there is no key file to be read again (--api-key-file)");
        return;
    }
    supervisor_notify("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(clock_now_ns(clock_system()) / 1000));
    if (keys_reload(s->server.http.keys, &n, &err) == RD_OK)
        log_event(LOG_INFO, "keys", LOG_FIELDS(LOG_F_NUMBER("keys", n)), "keys: %u of the file, read again", n);
    else
        log_event(LOG_ERROR, "keys", LOG_FIELDS(LOG_F_TEXT("error", err.text)), "the keys stay as they were: %s",
                  err.text);
    if (http_phase(&s->server.http) == HTTP_READY) tell_status("READY=1\n", "serving %s", s->server.only.info.model_id);
}

/* The terminal that it was started from is closed (two may come then, from the kernel and from the shell); else someone
 * asks for the keys to be read again. */
static void on_hangup(evutil_socket_t number, short what, void *arg)
{
    struct run *s = arg;

    (void)number, (void)what;
    if (!s->had_terminal || has_terminal()) {
        reload_keys(s);
        return;
    }
    if (atomic_load_explicit(&stop_requests, memory_order_relaxed) == 0) server_stop();
    tick_server(s);
}

/* SIGUSR1. */
static void on_statistics(evutil_socket_t number, short what, void *arg)
{
    struct run *s = arg;
    struct rd_stats r = {0};
    rd_engine *engine;
    uint32_t n_conns = 0, n_busy = atomic_load_explicit(&s->server.http.n_busy, memory_order_relaxed);

    for (uint32_t i = 0; i < s->server.http.n_io; i++)
        n_conns += atomic_load_explicit(&s->server.http.io[i].n_conns, memory_order_relaxed);
    if (http_phase(&s->server.http) != HTTP_LOADING && (engine = model_gate_hold(s->server.gate, &s->server))) {
        rd_get_stats(engine, &r);
        model_gate_release(s->server.gate);
    }
    log_event(
        LOG_INFO, "statistics",
        LOG_FIELDS(LOG_F_NUMBER("connections", n_conns), LOG_F_NUMBER("answering", n_busy),
                   LOG_F_NUMBER("prefill", r.n_prefill), LOG_F_NUMBER("decode", r.n_decode),
                   LOG_F_NUMBER("waiting", r.n_queued + r.n_waiting + r.n_preparing),
                   LOG_F_NUMBER("submitted", r.n_submitted), LOG_F_NUMBER("cancelled", r.n_cancelled),
                   LOG_F_NUMBER("failed", r.n_failed), LOG_F_NUMBER("computed_tokens", r.prompt_tokens_computed),
                   LOG_F_NUMBER("cached_tokens", r.prompt_tokens_cached),
                   LOG_F_NUMBER("generated_tokens", r.tokens_generated), LOG_F_NUMBER("pages_free", r.pages_free),
                   LOG_F_NUMBER("pages", r.pages_total), LOG_F_NUMBER("rss_bytes", r.rss_anon_bytes)),
        "statistics: %u connections, %u being answered; requests: %llu prefill, %llu decode, %llu wait, %llu taken, "
        "%llu cancelled, %llu failed; tokens: %llu computed, %llu cached, %llu generated; pages: %llu of %llu free; "
        "%.0f MiB",
        n_conns, n_busy, (unsigned long long)r.n_prefill, (unsigned long long)r.n_decode,
        (unsigned long long)(r.n_queued + r.n_waiting + r.n_preparing), (unsigned long long)r.n_submitted,
        (unsigned long long)r.n_cancelled, (unsigned long long)r.n_failed, (unsigned long long)r.prompt_tokens_computed,
        (unsigned long long)r.prompt_tokens_cached, (unsigned long long)r.tokens_generated,
        (unsigned long long)r.pages_free, (unsigned long long)r.pages_total, (double)r.rss_anon_bytes / (1 << 20));
}

/* ---- the whole ---- */

static rd_status always(void *user, uint32_t model, struct rd_error *err)
{
    (void)user, (void)model, (void)err;
    return RD_OK;
}

static uint32_t one(void *user)
{
    (void)user;
    return 1;
}

static const char *unnamed(void *user, uint32_t model)
{
    (void)user, (void)model;
    return "";
}

static void load_main(void *arg)
{
    struct run *s = arg;
    double seconds;

    s->load_status = s->load(s->load_user, 0, NULL, &s->server.only.engine, &s->load_err);
    if (s->load_status == RD_OK) {
        rd_get_info(s->server.only.engine, &s->server.only.info);
        if (s->server.gate) model_gate_open(s->server.gate);
        set_phase(s, HTTP_READY);
        seconds = (double)(clock_now_ns(clock_system()) - s->started_ns) / 1e9;
        log_event(LOG_INFO, "ready",
                  LOG_FIELDS(LOG_F_TEXT("model", s->server.only.info.model_id), LOG_F_REAL("seconds", seconds),
                             LOG_F_TEXT("version", rd_version())),
                  "ready: %s, %.1f s after the start", s->server.only.info.model_id, seconds);
        tell_status("READY=1\n", "serving %s", s->server.only.info.model_id);
    }
    atomic_store_explicit(&s->loaded, true, memory_order_release);
    event_active(s->server.http.io[0].tick, EV_TIMEOUT, 0);
    if (s->server.gate && s->load_status == RD_OK) model_gate_run(s->server.gate);
}

/* Several models, or one that may rest, or be loaded again with other settings. */
static rd_status make_gate(struct run *s)
{
    struct model_gate_options o = {.models =
                                       s->o.models.count ? s->o.models : (struct server_models){NULL, one, unnamed},
                                   .idle_unload_s = s->o.idle_unload_s,
                                   .has_adapters = s->o.has_adapters,
                                   .wait_s = s->o.swap_wait_s ? s->o.swap_wait_s : DEFAULT_SWAP_WAIT_S,
                                   .max_loaded = s->o.max_loaded ? s->o.max_loaded : 1,
                                   .memory_bytes = s->o.models_bytes,
                                   .tell_s = s->o.sse_ping_s,
                                   .size = s->o.size,
                                   .check = s->o.check ? s->o.check : always,
                                   .load = s->load,
                                   .user = s->load_user};

    if (!s->o.models.count && !o.idle_unload_s && !s->server.settings) return RD_OK;
    return model_gate_create(&s->server, &o, &s->server.gate);
}

static void *event_alloc(size_t n)
{
    return mem_alloc(n, 1);
}
static void *event_realloc(void *p, size_t n)
{
    return mem_realloc(p, n, 1);
}

/* A server that can accept nobody must not say that it is ready. */
static rd_status check_files(const struct run *s, struct rd_error *err)
{
    uint64_t files = sysinfo_open_files(), least = LIMIT_RESERVED_FILES + LEAST_GUESTS + 2 * s->server.http.n_io;

    if (files >= least) return RD_OK;
    return error_set(err, RD_E_INVALID, "%llu files may be open at once (ulimit -n); wanted at least %llu",
                     (unsigned long long)files, (unsigned long long)least);
}

/* What may be open at once, files of our own and the door's left out (F46). */
static uint32_t max_connections(uint32_t *max_guests)
{
    uint64_t files = sysinfo_open_files(), own, most;

    *max_guests = files / 8 < LIMIT_DOOR_GUESTS ? (uint32_t)(files / 8) : LIMIT_DOOR_GUESTS;
    if (*max_guests < LEAST_GUESTS) *max_guests = LEAST_GUESTS;
    own = LIMIT_RESERVED_FILES + *max_guests;
    most = files > own ? files - own : 1;
    return most < LIMIT_CONNECTIONS ? (uint32_t)most : LIMIT_CONNECTIONS;
}

/* max_guests: the door's. */
static void take_options(struct run *s, const struct server_options *o, uint32_t *max_guests)
{
    s->o = *o;
    if (!s->o.max_body_bytes) s->o.max_body_bytes = LIMIT_BODY_BYTES;
    if (!s->o.drain_s) s->o.drain_s = DEFAULT_DRAIN_S;
    if (s->o.api_key && !*s->o.api_key) s->o.api_key = NULL;
    s->server.http.n_io = o->n_io_threads ? o->n_io_threads : 1;
    if (s->server.http.n_io > MAX_IO_THREADS) s->server.http.n_io = MAX_IO_THREADS;
    if (!s->o.send_timeout_s) s->o.send_timeout_s = DEFAULT_SEND_S;
    s->server.http.max_conns = max_connections(max_guests);
    if (s->server.http.max_conns < 2 * s->server.http.n_io) s->server.http.max_conns = 2 * s->server.http.n_io;
    s->server.http.stall_ns = (uint64_t)s->o.stall_s * 1000000000u;
    s->progress.stall_ns = s->server.http.stall_ns;
    s->progress.send_ns = (uint64_t)s->o.send_timeout_s * 1000000000u;
    s->server.progress = &s->progress;
    s->watchdog_ns = supervisor_watchdog_ns();
    s->server.http.service = &route_service;
    s->server.http.service_arg = &s->server;
    s->server.http.o = (struct http_options){.log_prompts = s->o.log_prompts,
                                             .allow_origins = s->o.allow_origins,
                                             .n_allow_origins = s->o.n_allow_origins,
                                             .allow_hosts = s->o.allow_hosts,
                                             .n_allow_hosts = s->o.n_allow_hosts,
                                             .max_body_bytes = s->o.max_body_bytes,
                                             .send_timeout_s = s->o.send_timeout_s};
    s->server.settings = s->o.settings.set ? &s->o.settings : NULL;
    s->server.downloads = s->o.downloads.start ? &s->o.downloads : NULL;
    s->server.lora_dir = s->o.lora_dir;
    s->server.sse_ping_s = s->o.sse_ping_s;
    s->server.pooling = s->o.pooling;
    s->server.rank_by_embedding = s->o.rank_by_embedding;
    s->server.rank_by_answer = s->o.rank_by_answer;
    s->started_ns = clock_now_ns(clock_system());
    client_memory_init(&s->server.http.memory, o->client_memory_bytes);
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
    signal(SIGPIPE, SIG_IGN); /* a client that left is an error of write (F47) */
    signal(SIGXFSZ, SIG_IGN); /* as is a file that may not grow */
    signal(SIGALRM, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
}

/* Everybody who reaches the port may use the machine. */
static void warn_of_openness(const struct run *s)
{
    if (s->server.http.loopback || keys_are_needed(s->server.http.keys)) return;
    log_warn(
        "listening beyond this machine without an API key: whoever reaches it can use the model and see what it is "
        "asked; set --api-key or RADISH_API_KEY, or listen on 127.0.0.1");
}

/* Those that end it, each on its own: a thread of ours that is stuck, the loop's included, must not keep the second one from
 * its effect. */
static const int ending[N_ENDING] = {SIGTERM, SIGINT, SIGQUIT};

static void on_ending(int number)
{
    (void)number;
    if (atomic_fetch_add_explicit(&stop_requests, 1, memory_order_relaxed) > 0) _exit(EXIT_AT_ONCE);
    net_wake(atomic_load_explicit(&stop_wake, memory_order_relaxed));
}

static void take_signals(struct run *s)
{
    struct sigaction leave = {.sa_handler = on_ending, .sa_flags = SA_RESTART};

    atomic_store_explicit(&stop_wake, s->wake, memory_order_relaxed);
    for (int i = 0; i < N_ENDING; i++) sigaction(ending[i], &leave, &s->before[i]);
    s->has_signals = true;
}

static void give_back_signals(struct run *s)
{
    for (int i = 0; i < N_ENDING && s->has_signals; i++) sigaction(ending[i], &s->before[i], NULL);
}

/* Everybody was cancelled, and the alarm is set. What comes next waits for the engine without end, and may take long for a
 * reason, caches that are written to disk: once it has no work, or shows a sign of life. Of a device that has failed nothing is
 * written any more: the alarm goes on. */
static void wait_for_engine(struct run *s)
{
    uint64_t n_signs = 0;

    for (bool first = true;; first = false) {
        rd_engine *engine = model_gate_hold(s->server.gate, &s->server);
        struct rd_stats now = {.size = sizeof(now)};

        if (!engine) break;
        rd_get_stats(engine, &now);
        model_gate_release(s->server.gate);
        if (now.n_queued + now.n_waiting + now.n_prefill + now.n_decode == 0) break;
        if (!first && now.n_turns + now.n_beats != n_signs) break;
        n_signs = now.n_turns + now.n_beats;
        clock_sleep_ns(STUCK_LOOK_NS);
    }
    alarm(s->device_dead ? DEAD_CLOSE_S : 0);
    if (!s->device_dead) signal(SIGALRM, SIG_IGN);
}

static rd_status run_loops(struct run *s, uint32_t max_guests, struct rd_error *err)
{
    struct event_base *base = s->server.http.io[0].base;
    struct event *hup = NULL, *usr1 = evsignal_new(base, SIGUSR1, on_statistics, s), *stop = NULL;
    rd_status st = RD_E_NOMEM;

    if (!is_ignored(SIGHUP)) hup = evsignal_new(base, SIGHUP, on_hangup, s);
    if (!usr1 || event_add(usr1, NULL) || (!is_ignored(SIGHUP) && (!hup || event_add(hup, NULL)))) goto done;
    if (net_wake_open(&s->wake) != RD_OK || !(stop = event_new(base, s->wake, EV_READ | EV_PERSIST, on_stop, s)) ||
        event_add(stop, NULL))
        goto done;
    take_signals(s);
    st = thread_start(&s->load_thread, "radish-load", load_main, s);
    for (uint32_t i = 1; i < s->server.http.n_io && st == RD_OK; i++)
        st = thread_start(&s->server.http.io[i].thread, "radish-io", http_io_main, &s->server.http.io[i]);
    if (st == RD_OK) st = http_door_start(&s->server.http, s->listeners.fds, s->listeners.n, max_guests, &s->door);
    if (st == RD_OK) event_base_dispatch(s->server.http.io[0].base);
done:
    atomic_store(&s->server.http.end, true);
    if (usr1) event_free(usr1);
    if (hup) event_free(hup);
    if (stop) event_free(stop);
    http_door_stop(s->door);
    for (uint32_t i = 1; i < s->server.http.n_io; i++) thread_join(&s->server.http.io[i].thread);
    if (model_gate_is_swapping(s->server.gate)) {
        log_event(LOG_INFO, "stop", NULL, 0,
                  "stopped while a model was loaded"); /* all files are written so that they may be cut anywhere */
        _exit(0);
    }
    wait_for_engine(s);
    model_gate_stop(s->server.gate);
    thread_join(&s->load_thread);
    if (st != RD_OK) return error_set(err, st, "starting the server: %s", rd_status_text(st));
    if (s->device_dead) return error_set(err, RD_E_DEVICE, "the device failed");
    if (s->load_status == RD_OK) return RD_OK;
    return error_set(err, s->load_status, "%s", s->load_err.text);
}

rd_status server_run(const struct server_options *o, server_load_fn load, void *user, struct rd_error *err)
{
    struct run *s;
    uint32_t max_guests;
    rd_status st;

    event_set_mem_functions(event_alloc, event_realloc, mem_free);
    if (evthread_use_pthreads()) return error_set(err, RD_E_INTERNAL, "libevent without threads");
    ignore_signals();
    atomic_store(&stop_requests, 0);
    s = mem_zalloc(1, sizeof(*s));
    if (!s) return error_set(err, RD_E_NOMEM, "out of memory for the server");
    s->wake = -1;
    s->had_terminal = has_terminal();
    s->load = load;
    s->load_user = user;
    take_options(s, o, &max_guests);
    st = check_files(s, err);
    if (st != RD_OK) goto done;
    st = keys_create(&(struct keys_options){s->o.api_key, s->o.admin_key, s->o.key_file, NULL}, &s->server.http.keys,
                     err);
    if (st != RD_OK) goto done;
    st = listeners_open(&s->o, BACKLOG, &s->listeners, err);
    if (st != RD_OK) goto done;
    s->server.http.loopback = s->listeners.all_local;
    s->server.http.io = mem_zalloc(s->server.http.n_io, sizeof(*s->server.http.io));
    if (!s->server.http.io || responses_store_create(LIMIT_STORED_RESPONSES_BYTES, &s->server.responses) != RD_OK ||
        prompt_prints_create(&s->server.prints) != RD_OK || monitor_create(&s->server.monitor) != RD_OK ||
        (keys_has_file(s->server.http.keys) &&
         !(s->server.tenants = mem_zalloc(LIMIT_TENANTS, sizeof(*s->server.tenants)))))
        st = error_set(err, RD_E_NOMEM, "out of memory for the server");
    else if ((st = offload_create(&s->server.http.offload)) != RD_OK)
        error_set(err, st, "threads of the server: %s", rd_status_text(st));
    if (st == RD_OK) responses_store_charge_to(s->server.responses, &s->server.http.memory);
    for (uint32_t i = 0; i < s->server.http.n_io && st == RD_OK; i++) {
        st = http_io_init(&s->server.http, &s->server.http.io[i]);
        if (st != RD_OK) error_set(err, st, "starting the server: %s", rd_status_text(st));
    }
    if (st == RD_OK && (st = make_gate(s)) != RD_OK) error_set(err, st, "out of memory for the server");
    if (st != RD_OK) goto done;
    s->server.http.io[0].on_tick = on_tick;
    warn_of_openness(s);
    for (uint32_t i = 0; i < s->listeners.n && s->o.on_listen; i++)
        s->o.on_listen(s->o.on_listen_user, s->listeners.at[i].host, s->listeners.at[i].port);
    st = run_loops(s, max_guests, err);
done:
    offload_stop(s->server.http.offload);
    for (uint32_t i = 0; s->server.http.io && i < s->server.http.n_io; i++) http_io_deinit(&s->server.http.io[i]);
    http_door_destroy(s->door);
    listeners_close(&s->listeners);
    offload_destroy(s->server.http.offload);
    responses_store_destroy(s->server.responses);
    prompt_prints_destroy(s->server.prints);
    monitor_destroy(s->server.monitor);
    mem_free(s->server.tenants);
    keys_destroy(s->server.http.keys);
    model_gate_destroy(s->server.gate);
    rd_close(s->server.only.engine);
    give_back_signals(s);
    net_close(s->wake);
    mem_free(s->server.http.io);
    mem_free(s);
    return st;
}

void server_list_parameters(struct buf *out)
{
    route_list_parameters(out);
}
