/* cli/server_view.h - what a running server is doing: from its entry (run_dir.h), the system, and the server itself.
 *
 * Thread  main thread. A server that does not answer within two seconds is SILENT; one that wants a key that was not given,
 * or a wrong one, tells its state and not what it does.
 */
#pragma once
#include "cli/run_dir.h"

enum server_state { SERVER_READY, SERVER_LOADING, SERVER_DRAINING, SERVER_UNHEALTHY, SERVER_SILENT };

struct server_view {
    enum server_state state;
    bool has_requests; /* the two below are known */
    bool is_locked;    /* a key is wanted for them */
    uint64_t n_running, n_waiting;
    uint64_t rss_bytes;            /* resident memory; 0: unknown */
    char loaded[RUN_MODELS_BYTES]; /* of its models those that are loaded, a line each */
};

const char *server_state_name(enum server_state state);
/* key: NULL or a bearer token. */
void server_view_read(const struct run_entry *e, const char *key, struct server_view *out);
