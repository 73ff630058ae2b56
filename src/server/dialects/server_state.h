/* server/dialects/server_state.h - the server's shared state and one io thread's.
 *
 * Thread  struct server: read-only once the threads run, except its atomics. struct server_io: its io thread, except
 * the wake list, which engine threads fill under wake_lock, and what the door hands over.
 */
#pragma once
#include <event2/event.h>
#include <stdatomic.h>
#include "base/buf.h"
#include "base/thread.h"
#include "server/http/deadline_clock.h"
#include "server/http/client_memory.h"
#include "server/server.h"

struct http_conn;
struct generation;
struct http_door;
struct offload;
struct offload_job;
struct responses_store;
struct server;

/* What one tenant key did: its own /stats. Any io thread adds, relaxed: sums of independent counters. */
struct tenant_stats {
    atomic_uint_fast64_t n_running, n_done, n_failed, n_cancelled, n_prompt, n_cached, n_generated;
};

enum server_phase { SERVER_LOADING, SERVER_READY, SERVER_DRAINING, SERVER_CANCELLING };

struct server_io {
    struct server *server;
    struct event_base *base;
    struct event *wake, *tick;
    struct thread thread;                        /* unused in io[0]: server_run's caller */
    struct http_conn *conns;                     /* doubly linked */
    atomic_uint n_conns;                         /* the door counts up, this thread down; relaxed */
    uint32_t max_conns;
    struct event *taking;                        /* active: handed is not empty, or room is wanted */
    struct mutex hand_lock;
    int *handed;                                 /* [max_conns] sockets on their way from the door; hand_lock */
    uint32_t n_handed;
    atomic_bool room_wanted;                     /* set by the door, cleared by this thread */
    struct buf frame;                            /* a piece of a stream on its way out */
    struct buf events;                           /* of the generation that is being polled */
    struct http_conn *held_first, *held_last;    /* quick answers that wait: http_pace.h */
    struct event *pace_due;
    uint64_t pace_ns;                            /* when the window began */
    uint32_t n_paced;                            /* answers in it */
    bool pace;                                   /* the engine computes */
    bool cancelled;                              /* owners were told to stop */
    struct deadline_clock clock;                 /* server_io_now */
    struct generation *background;               /* those without a connection */
    struct mutex wake_lock;                      /* guards the list: generations with something to read */
    struct generation *wake_first, *wake_last;
    struct offload_job *jobs_done, *jobs_done_last;  /* wake_lock; offload.h */
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
    struct tenant_stats *tenants;                /* [o.n_tenant_keys] */
    struct client_memory memory;                 /* of clients; atomics */
    struct offload *offload;
    bool loopback;                               /* bound to this machine only: Host is checked */
    int fd;                                      /* listening */
    struct http_door *door;                      /* accepts; lives longer than the connections */
    atomic_bool door_waits;                      /* it has clients for whom there is no room: poke it when there is */
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

/* The counters of a key that http_conn.tenant named; NULL: of none. */
struct tenant_stats *server_tenant(const struct server *s, const char *key);
/* The clock of this thread's deadlines. */
uint64_t server_io_now(struct server_io *io);

/* From the door. server_io_take: the socket is the io thread's now; false: it has max_conns. */
bool server_io_take(struct server_io *io, int fd);
void server_io_ask_room(struct server_io *io);
