/* tests/torture/torture_server.h - `radish serve` within this process: server_run on a thread of its own, a tiny model with a
 * disk cache in a temporary folder, and what must be true of it between two requests.
 *
 * Thread  the test's, which is exempt from faults.
 */
#pragma once
#include "base/thread.h"
#include "radish/radish.h"
#include "server/server.h"

struct torture_server {
    char dir[64], template_file[96], model[96];
    struct thread thread;
    struct mutex lock;
    struct cond changed;
    rd_engine *engine; /* NULL: not loaded */
    uint16_t port;
    rd_status status; /* server_run's, once ended */
    struct rd_error err;
    bool ended;
};

/* A folder with the template; no server yet. */
bool torture_init(struct torture_server *s);
void torture_deinit(struct torture_server *s);
/* What the engine is opened with. */
void torture_options(const struct torture_server *s, struct rd_options *o);
/* Runs server_run; true: it is ready; false: it ended (status, err), or was not ready within 20 s. */
bool torture_start(struct torture_server *s);
/* Ended by itself after it was ready (a part of the server that starts later failed): then there is nothing to stop. */
bool torture_has_ended(struct torture_server *s);
/* SIGTERM; true: it ended within 20 s. */
bool torture_stop(struct torture_server *s);
/* Nothing runs, waits or is locked, and every count adds up; else says what in why, after 8 s. */
bool torture_is_settled(struct torture_server *s, const char **why);
/* Open descriptors of this process. */
unsigned torture_n_files(void);
