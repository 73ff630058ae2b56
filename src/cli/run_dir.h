/* cli/run_dir.h - which servers of this user run: a folder with an entry each, for `radish ps` and `radish stop`.
 *
 *     $RADISH_RUN_DIR, else $XDG_RUNTIME_DIR/radish, else /tmp/radish-UID      mode 0700, the user's own
 *         PID-START.json      {"pid", "start", "address", "models", "started", "version"}; flock held while it runs
 *
 * An entry is alive while its lock is held: the kernel gives that back however a server ends. START is when the process
 * began, as the system counts (os_process_began): a signal goes to the process that made the entry, never to another one that got its
 * number. Entries of dead servers are removed by whoever reads. A folder or an entry that belongs to another user, is a
 * link, or may be written by others is refused: what it says is acted on.
 *
 * Thread  main thread.
 * Errors  RD_E_INVALID (refused), RD_E_IO, RD_E_NOMEM; err names the folder.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/limits.h"
#include "radish/status.h"

enum { RUN_ADDRESS_BYTES = 256, RUN_VERSION_BYTES = 32, RUN_MODELS_BYTES = 4096 };

struct run_entry {
    pid_t pid;
    uint64_t start;                  /* when it began: os_process_began() */
    int64_t started_s;               /* wall time */
    char address[RUN_ADDRESS_BYTES]; /* "http://127.0.0.1:8000" */
    char version[RUN_VERSION_BYTES];
    char models[RUN_MODELS_BYTES]; /* names, a line each; cut when there are too many */
    char name[64];                 /* of the entry in the folder */
    bool is_here;                  /* its process is one of those that this one sees: not in another container */
};

/* The calling process as an entry: pid, start and started_s are filled in. *fd keeps it alive; run_dir_leave ends it. */
rd_status run_dir_enter(struct run_entry *e, int *fd, struct rd_error *err);
void run_dir_leave(const struct run_entry *e, int fd);

/* Those that run, oldest first. *list is the caller's (mem_free). No folder: none. */
rd_status run_dir_list(struct run_entry **list, size_t *n, struct rd_error *err);
bool run_entry_is_alive(const struct run_entry *e);
/* RD_E_NOT_FOUND: it has ended. */
rd_status run_entry_signal(const struct run_entry *e, int signal_number, struct rd_error *err);
/* The folder, for messages. */
const char *run_dir_path(char path[LIMIT_PATH_BYTES]);
