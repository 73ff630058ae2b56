/* server/server.h - the HTTP server: OpenAI-compatible endpoints over radish/radish.h, on libevent.
 *
 * Sees include/radish/, base/ and hub/ only. routes.c is the table of endpoints; routes/NAME.c one file per endpoint.
 * Thread  server_run belongs to the calling thread and starts n_io_threads io threads; each connection belongs to one
 * of them. Errors  RD_E_IO when the address cannot be bound: the text says which port and what to do.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "radish/radish.h"
#include "server/dialects/server_seams.h"

struct server_options {
    const char *host;          /* numeric address or "localhost"; default 127.0.0.1. NULL: the next two only */
    uint16_t port;             /* 0: any free port (printed) */
    const char *const *listen; /* [n_listen] further: "ADDRESS:PORT", "[V6]:PORT", "unix:PATH" */
    uint32_t n_listen;
    const int *passed_fds; /* [n_passed_fds] that listen already: base/supervisor.h; closed at the end */
    uint32_t n_passed_fds;
    uint32_t socket_mode;  /* permissions of the paths' files; default 0600 */
    uint32_t stall_s;      /* without progress after which the server is unhealthy; 0: never; default 120 */
    uint32_t n_io_threads; /* 0 = 1 */
    const char *api_key;   /* NULL: none asked for */
    const char *admin_key; /* NULL: api_key's holder may all */
    const char *key_file;  /* further keys (http/keys.h), read again on SIGHUP; requests under one of them share
                                          * the cache with their like alone, and take turns with those of others */
    const char *const
        *allow_origins; /* [n_allow_origins] of pages that may call: "https://name", "*"; outlive server_run.
                                          * None: this machine's, and with a key all */
    uint32_t n_allow_origins;
    const char *const *allow_hosts; /* [n_allow_hosts] names in Host headers that a server without a key takes beside
                                          * those of this machine and of private networks; "*": all; outlive server_run */
    uint32_t n_allow_hosts;
    bool log_prompts;             /* bodies of requests go to the log */
    uint64_t max_body_bytes;      /* 0 = LIMIT_BODY_BYTES */
    uint64_t client_memory_bytes; /* for all that clients make the server hold: client_memory.h; 0: as there */
    uint32_t sse_ping_s;          /* streams that send nothing for so long send a comment; 0: never; default 5 */
    uint32_t send_timeout_s;      /* a client that takes nothing of what waits for it so long is cut; 0 = 30 */
    uint32_t drain_wait_s; /* after SIGTERM /health says no for so long while requests are still taken; 0: not at all */
    uint32_t drain_s;      /* after SIGTERM running requests may end within this; then they are cancelled; 0 = 30 */
    enum rd_pooling pooling;                /* of embeddings; NONE: as the model's file says */
    bool rank_by_embedding, rank_by_answer; /* /v1/rerank; neither: as the model is made for */
    struct server_models models;            /* count NULL: one model, which names itself */
    uint32_t idle_unload_s;                 /* a model unused for that long is closed until it is asked for; 0: never */
    uint32_t swap_wait_s;                   /* that a request waits for its model; 0 = 120 */
    uint32_t max_loaded;                    /* models at once; 0 = 1 */
    uint64_t models_bytes;                  /* what they may take together; 0: no limit */
    uint64_t (*size)(void *user, uint32_t model); /* about what one takes, but for keys and values; may be NULL */
    /* Whether load could succeed, without its cost; asked before another model is closed for it. NULL: it could. */
    rd_status (*check)(void *user, uint32_t model, struct rd_error *err);
    bool has_adapters;    /* load() gives a model with adapters */
    const char *lora_dir; /* adapters below it may be loaded by request; outlives server_run; NULL: none may */
    struct server_settings settings;   /* set NULL: nothing can be changed */
    struct server_downloads downloads; /* start NULL: there are none */
    /* called for each socket once all listen (the real port; "unix:PATH", 0); may be NULL */
    void (*on_listen)(void *user, const char *host, uint16_t port);
    void *on_listen_user;
};

void server_options_default(struct server_options *o);
/* The listening socket is opened first, and /health answers 503 "Loading model" while load(user, 0, &engine, err) runs on
 * another thread; with several models it is called again, there, when a request names another (model_gate.h). Then requests are served until SIGTERM, SIGINT, SIGQUIT, server_stop(), or
 * SIGHUP of a terminal that is closed; any other SIGHUP reads the key file again.
 * The engine that load gave is closed at the end. While load runs, and at the second such signal, the process ends at
 * once: exit status 0 and 130. SIGUSR1 logs a line of statistics; SIGUSR2, SIGALRM, SIGPIPE and SIGXFSZ are ignored. */
rd_status server_run(const struct server_options *o, server_load_fn load, void *user, struct rd_error *err);
/* The parameters of every endpoint as JSON, {"endpoints":[..],"parameters":[..]}: the table that checks requests. */
void server_list_parameters(struct buf *out);
/* Any thread, signal-safe: ends server_run (drain, then out). */
void server_stop(void);
