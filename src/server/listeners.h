/* server/listeners.h - the sockets on which a server listens: its own, on addresses and on paths, and those that were
 * passed to it.
 *
 *     host, port        "127.0.0.1", "::1", "localhost"
 *     listen[i]         "ADDRESS:PORT", "[V6]:PORT", "unix:PATH"
 *     passed_fds[i]     open already (base/supervisor.h)
 *
 * host NULL: only the others.
 *
 * Thread  server_run's.
 * Errors  RD_E_INVALID, RD_E_IO: the text names the address. Nothing is open then.
 */
#pragma once
#include "base/limits.h"
#include "server/server.h"

struct listener {
    char host[128]; /* a numeric address, or "unix:PATH" */
    uint16_t port;  /* 0: of a path */
    bool is_made;   /* a path of ours: its file goes with us */
};

struct listeners {
    int fds[LIMIT_LISTENERS];
    struct listener at[LIMIT_LISTENERS];
    uint32_t n;
    bool all_local; /* none is reached from another machine */
};

rd_status listeners_open(const struct server_options *o, int backlog, struct listeners *out, struct rd_error *err);
/* Closes them, and removes the files of paths. Zeroed ones are fine. */
void listeners_close(struct listeners *l);
