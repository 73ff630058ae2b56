/* server/server_state.h - the server's shared state and one io thread's.
 *
 * Thread  struct server: read-only once the threads run, but for its atomics. struct server_io: its io thread, but for
 * the wake list, which engine threads fill under wake_lock.
 */
#pragma once
#include <event2/event.h>
#include <event2/listener.h>
#include <stdatomic.h>
#include "base/buf.h"
#include "base/thread.h"
#include "server/deadline_clock.h"
#include "server/server.h"

struct http_conn;
struct generation;
struct responses_store;
struct server;

enum server_phase { SERVER_LOADING, SERVER_READY, SERVER_DRAINING, SERVER_CANCELLING };

struct server_io {
    struct server *server;
    struct event_base *base;
    struct event *wake, *tick;
    struct evconnlistener *listener;
    struct thread thread;                        /* unused in io[0]: server_run's caller */
    struct http_conn *conns;                     /* doubly linked */
    uint32_t n_conns, max_conns;
    struct buf frame;                            /* a piece of a stream on its way out */
    struct buf events;                           /* of the generation that is being polled */
    struct http_conn *held_first, *held_last;    /* quick answers that wait: http_pace.h */
    struct event *pace_due;
    uint64_t pace_ns;                            /* when the window began */
    uint32_t n_paced;                            /* answers in it */
    bool pace;                                   /* the engine computes */
    bool accept_paused, cancelled;               /* cancelled: owners were told to stop */
    struct deadline_clock clock;                 /* server_io_now */
    struct generation *background;               /* those without a connection */
    struct mutex wake_lock;                      /* guards the list: generations with something to read */
    struct generation *wake_first, *wake_last;
};

struct server {
    struct server_options o;
    rd_status (*load)(void *user, rd_engine **out, struct rd_error *err);
    void *load_user;
    struct thread load_thread;
    rd_status load_status;                       /* written by the load thread before it stores phase or failed */
    struct rd_error load_err;
    rd_engine *engine;                           /* likewise; NULL until READY */
    struct rd_info info;
    struct responses_store *responses;           /* of /v1/responses */
    struct prompt_prints *prints;
    bool loopback;                               /* bound to this machine only: Host is checked */
    int fd;                                      /* listening */
    uint64_t started_ns, drain_deadline_ns;
    bool device_dead;                    /* io[0]: the reason for stopping */
    atomic_int phase; /* enum server_phase; release by the load thread and io[0], acquire by io threads */
    atomic_bool loaded;                          /* the load thread is through (release); io[0] reads (acquire) */
    atomic_uint n_busy; /* connections being answered; relaxed, io[0] polls it while draining */
    atomic_bool end;                             /* leave the loops; relaxed flag, polled each tick */
    uint32_t n_io, max_conns;                    /* connections of all io threads together */
    struct server_io *io;
};

static inline enum server_phase server_phase(const struct server *s)
{
    return (enum server_phase)atomic_load_explicit(&s->phase, memory_order_acquire);
}

/* The clock of this thread's deadlines. */
uint64_t server_io_now(struct server_io *io);
