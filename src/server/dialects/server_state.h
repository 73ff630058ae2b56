/* server/dialects/server_state.h - what the service behind the HTTP layer has: the engine, and what is kept between
 * requests.
 *
 * Thread  read-only once the threads run, except its atomics and what its parts say.
 */
#pragma once
#include <stdatomic.h>
#include "radish/radish.h"
#include "server/dialects/server_seams.h"
#include "server/http/http_state.h"
#include "server/http/keys.h"
#include "server/params/served_model.h"

struct model_gate;
struct responses_store;
struct monitor;
struct progress;
struct prompt_prints;

/* What one tenant key did: its own /stats. Any io thread adds, relaxed: sums of independent counters. */
struct tenant_stats {
    atomic_uint_fast64_t n_running, n_done, n_failed, n_cancelled, n_prompt, n_cached, n_generated;
};

static inline uint64_t tenant_count(const atomic_uint_fast64_t *n)
{
    return atomic_load_explicit(n, memory_order_relaxed);
}

struct server {
    struct http_server http;  /* its service_arg is this */
    struct served_model only; /* without a gate: written by the load thread before the phase */
    struct model_gate *gate;  /* several models, or one that rests: served_of tells which; NULL: there is one */
    struct responses_store *responses; /* of /v1/responses */
    struct prompt_prints *prints;
    struct monitor *monitor;                  /* what GET /v1/monitor tells */
    const struct progress *progress;          /* whether the engine gets on */
    const struct server_settings *settings;   /* of server.h; NULL: nothing can be changed */
    const struct server_downloads *downloads; /* likewise; NULL: there are none */
    struct tenant_stats *tenants;             /* [LIMIT_TENANTS] by keys_tenant_index, NULL where there can be none */
    const char *lora_dir;                     /* of server.h, or NULL */
    uint32_t sse_ping_s;                      /* of server.h, as are the next */
    enum rd_pooling pooling;
    bool rank_by_embedding, rank_by_answer;
};

/* The server that an io thread, or a connection, is of. */
static inline struct server *server_of_io(const struct http_io *io)
{
    return io->server->service_arg;
}
static inline struct server *server_of(const struct http_conn *c)
{
    return server_of_io(c->io);
}

/* What answers the request of a connection. */
static inline const struct served_model *served_of(const struct http_conn *c)
{
    return c->served ? c->served : &server_of(c)->only;
}

/* The counters of a key that http_conn.tenant named; NULL: of none. */
static inline struct tenant_stats *server_tenant(const struct server *s, const char *key)
{
    uint32_t i = keys_tenant_index(s->http.keys, key);

    return s->tenants && i != UINT32_MAX ? &s->tenants[i] : NULL;
}
