/* server/http/http_state.h - what the HTTP layer is made of: the server, its io threads, their connections; and the
 * service that it was given, which alone knows what is at which path.
 *
 *     client      HTTP layer                                                    service (routes/routes.c)
 *     head   ->   parse, Host, Origin                                      ->   on_head: what is at this path?
 *                 key, method, length, type (http_guard.h)
 *     body   ->   read within the target's limit, charged                  ->   on_request: answer, or own the connection
 *            <-   http_reply, http_stream_... (http_conn.h)                <-
 *     gone   ->                                                            ->   the owner's gone()
 *
 * Nothing in http/ includes a file of params/, dialects/ or routes/.
 *
 * Thread  struct http_server: read-only once the threads run, except its atomics. struct http_io: its io thread, except
 * the wake list, which any thread fills under wake_lock, and what the door hands over. struct http_conn: its io thread.
 */
#pragma once
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdatomic.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/thread.h"
#include "server/http/client_memory.h"
#include "server/http/deadline_clock.h"
#include "server/http/errors.h"
#include "server/http/http_parse.h"

struct http_conn;
struct http_door;
struct keys;
struct offload;
struct offload_job;

/* ---- the service ---- */

/* What is at the path of a request. */
struct http_target {
    const void *route;      /* the service's own; NULL: nothing is */
    const char *allow;      /* then: the methods for 405, "GET, HEAD, OPTIONS"; NULL: 404 */
    const char *allow_line; /* the same as a header line */
    uint64_t max_body;      /* bytes; 0: the server's limit */
    bool is_public;         /* no API key needed */
    bool while_loading;     /* answered before the server is ready, too */
    bool is_quick;          /* answered at once from what is there: may wait its turn (http_pace.h) */
    bool at_door;           /* any thread may answer it, and it is asked over and over: http_door.h */
};

struct http_service {
    /* A head is complete. path may be changed in place, into what is meant. */
    void (*on_head)(enum http_method method, char *path, struct http_target *target);
    /* A request is complete, and c->target.route is set: answers, or leaves an owner on the connection. On the io
     * thread, or on a worker with its copy (offload.h), or at the door. */
    void (*on_request)(struct http_conn *c);
    /* Appends what a client of this path reads as an error; returns the status for it. */
    int (*put_error)(const struct http_conn *c, const struct api_error *e, struct buf *out);
    /* The machine computes for others: quick answers wait. Only while HTTP_READY. */
    bool (*is_busy)(void *arg);
};

/* ---- the server ---- */

enum http_phase { HTTP_LOADING, HTTP_READY, HTTP_DRAINING, HTTP_CANCELLING };

struct http_options { /* of server.h, whose words they are */
    const char *const *allow_hosts;
    uint32_t n_allow_hosts;
    const char *const *allow_origins;
    uint32_t n_allow_origins;
    bool log_prompts;
    uint64_t max_body_bytes;
    uint32_t send_timeout_s;
};

struct http_io;
struct http_server {
    struct http_options o;
    struct keys *keys; /* who may ask */
    const struct http_service *service;
    void *service_arg;
    struct client_memory memory; /* of clients; atomics */
    struct offload *offload;
    atomic_ullong unread_left; /* bytes that closed connections had not read, since the heap was given back; relaxed */
    bool loopback;             /* bound to this machine only: Host is checked */
    uint64_t stall_ns;         /* that a loop may stand still: http_door.h; 0: for ever */
    atomic_uint stuck_s;       /* for how long one of them has, beyond that; the door writes, relaxed */
    int door_wake;             /* pokes the door: net_wake() */
    atomic_bool door_waits;    /* it has clients for whom there is no room: poke it when there is */
    atomic_int phase;          /* enum http_phase; release by the load thread and io[0], acquire by io threads */
    atomic_bool leaving;       /* requests go elsewhere from now on: /v1/drain, --drain-wait; relaxed flag */
    atomic_uint n_busy;        /* connections being answered; relaxed, io[0] polls it while draining */
    atomic_bool end;           /* leave the loops; relaxed flag, polled each tick */
    uint32_t n_io, max_conns;  /* connections of all io threads together */
    struct http_io *io;        /* [n_io] */
};

static inline enum http_phase http_phase(const struct http_server *s)
{
    return (enum http_phase)atomic_load_explicit(&s->phase, memory_order_acquire);
}

/* It is ready, and asks those who spread requests to send it none; what comes is answered. */
static inline bool http_is_leaving(const struct http_server *s)
{
    return atomic_load_explicit(&s->leaving, memory_order_relaxed);
}

/* ---- an io thread ---- */

/* Something to do on an io thread: http_io_wake(). First member of what it is part of. */
struct http_task {
    struct http_task *next;              /* io->wake_lock */
    bool queued;                         /* io->wake_lock */
    void (*run)(struct http_task *task); /* may free it, and others that wait */
};

/* Who answers later. After gone() the owner must not touch the connection. */
struct conn_owner {
    void (*gone)(void *arg);
    void (*drained)(void *arg); /* the output fell below 64 KiB; NULL: it does not matter */
    void (*tick)(void *arg, uint64_t now_ns);
    void (*stop)(void *arg); /* the server ends: answer or cut the stream now */
};

/* Goes on without a connection: http_io_enter_background(). Only the owner's tick and stop are called. */
struct http_background {
    struct http_background *prev, *next;
    bool listed;
    const struct conn_owner *owner;
    void *owner_arg;
    atomic_uint *n_users; /* as of the connection that it goes on from */
};

/* The count of what uses something, from one to another; NULL: nothing is counted. The one who waits for 0 (acquire) sees
 * all that was done before. */
static inline void http_use(atomic_uint *n_users)
{
    if (n_users) atomic_fetch_add_explicit(n_users, 1, memory_order_relaxed);
}
static inline void http_unuse(atomic_uint *n_users)
{
    if (n_users) atomic_fetch_sub_explicit(n_users, 1, memory_order_release);
}

struct http_io {
    struct http_server *server;
    struct event_base *base;
    /* net_wake(), any thread: handed is not empty, room is wanted, or a task waits. Not libevent's own wake-up, which is not sent
     * again after one that failed. */
    int bell;
    struct event *rung; /* of the bell */
    struct event *tick;
    atomic_ullong n_ticks;               /* this thread writes, the door looks; relaxed */
    void (*on_tick)(struct http_io *io); /* of the server as a whole; NULL: another thread's task */
    struct thread thread;                /* unused in io[0]: server_run's caller */
    struct http_conn *conns;             /* doubly linked */
    atomic_uint n_conns;                 /* the door counts up, this thread down; relaxed */
    uint32_t max_conns;
    struct mutex hand_lock;
    int *handed; /* [max_conns] sockets on their way from the door; hand_lock */
    uint32_t n_handed;
    atomic_bool room_wanted;                  /* set by the door, cleared by this thread */
    struct buf frame;                         /* a piece of a stream on its way out */
    struct buf scratch;                       /* of whoever runs on this thread, until it returns */
    struct http_conn *held_first, *held_last; /* quick answers that wait: http_pace.h */
    struct event *pace_due;
    uint64_t pace_ns;                   /* when the window began */
    uint32_t n_paced;                   /* answers in it */
    bool pace;                          /* the service is busy */
    bool cancelled;                     /* owners were told to stop */
    struct deadline_clock clock;        /* http_io_now */
    struct http_background *background; /* those without a connection */
    struct mutex wake_lock;             /* guards the list of tasks */
    struct http_task *wake_first, *wake_last;
};

/* The clock of this thread's deadlines. */
static inline uint64_t http_io_now(struct http_io *io)
{
    return deadline_now(&io->clock, clock_now_ns(clock_system()));
}

/* ---- a connection ---- */

enum conn_state { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_BUSY, CONN_FLUSH, CONN_LINGER };

struct http_conn {
    struct http_conn *prev, *next;
    struct http_io *io;
    struct bufferevent *bev; /* NULL at the door: its answers go to reply */
    struct buf *reply;
    enum conn_state state;
    uint64_t since_ns;    /* when the state (HEAD: its first byte) began */
    uint64_t input_ns;    /* when bytes last came */
    uint64_t n_in;        /* body bytes read in this state */
    uint64_t n_dropped;   /* bytes read after the last request */
    uint64_t body_due_ns; /* BODY: when it has fallen too far behind; each byte moves it on */
    size_t n_scanned;     /* bytes of the head that were looked at */
    bool processing, closing, linger,
        eof;      /* closing: no request after this one; linger: the client may still be sending */
    bool broken;  /* bytes were lost, no more go out: it ends when the output is empty */
    bool reading; /* libevent reads for us */
    bool streaming, chunked_out;
    char *head_bytes; /* what head points into */
    struct http_head head;
    struct http_chunks chunks;
    struct buf body;
    struct client_charge memory; /* the body, its JSON while it is read, what is unread */
    struct offload_job *job;     /* this is a worker's copy: offload.h */
    /* then: http_reply() is this, for the io thread to carry out */
    void (*keep_reply)(struct http_conn *copy, int status, const char *type, const char *extra, struct buf *body);
    struct buf ignored;   /* fields of the body that say nothing: for the response's head */
    char request_id[132]; /* told; ours, or the client's own */
    char reason[160];     /* why it was refused, for the log; "": it was not */
    uint64_t max_body;
    struct http_target target;
    const void *served;      /* the service's: what answers this request; NULL: nothing was chosen */
    atomic_uint *n_users;    /* the service's: counts this request until it is answered; NULL: nothing does */
    bool early;              /* the stream was begun before the service knew what is in it */
    const char *tenant;      /* whose key was sent (keys.h), or NULL */
    bool is_logged;          /* its service has written this request's line already */
    bool is_admin;           /* may what concerns all tenants */
    uint64_t sender;         /* the machine that it comes from (keys.h); 0: this one's, by a Unix socket */
    const char *cors_origin; /* to echo; NULL: no CORS headers */
    int status;              /* sent */
    uint64_t request_ns;     /* when the head was complete */
    struct http_conn *held_prev, *held_next; /* http_pace.h */
    const struct conn_owner *owner;
    void *owner_arg;
    uint64_t n_appended, n_sent_seen, progress_ns; /* output: for stuck readers */
};

/* The request is complete. */
static inline void http_serve(struct http_conn *c)
{
    c->io->server->service->on_request(c);
}
