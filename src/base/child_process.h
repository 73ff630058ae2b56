/* base/child_process.h - a program in a process of its own, which does not outlive this one.
 *
 * It gets a process group, an environment of those names alone that child_process.c lists, no open files but its three, no
 * core dumps, and SIGKILL when the thread that started it ends, however it ends (on a Mac: when this process does), so that
 * thread must live as long as the child (base/os_process.h: os_guard). The command is words, with quotes and backslashes as a shell has them; no shell runs.
 *
 * Thread  the one that starts it. It must reap it, too.
 * Errors  RD_E_INVALID: no word, or a quote without its end. RD_E_NOT_FOUND: no such program. RD_E_IO, RD_E_NOMEM.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include "base/os_process.h"
#include "radish/status.h"

struct child_process {
    pid_t pid; /* also its group's; 0: none */
    int end;   /* readable once it has ended; -1: the kernel has none */
    int in;    /* a socket: what it reads. These three do not block */
    int out, err;
    struct os_guard guard;
};

/* Whether there is such a program, without starting it: path is the file's, cut at cap. */
rd_status child_process_find(const char *command, char *path, size_t cap, struct rd_error *err);
/* extra: "NAME=value" for its environment, NULL at the end; or NULL. */
rd_status child_process_start(const char *command, const char *const *extra, struct child_process *out,
                              struct rd_error *err);
/* Its whole group. */
void child_process_kill(struct child_process *c);
/* false: it runs still. *how: "exit 3", "signal 9 (Killed)". */
bool child_process_reap(struct child_process *c, char how[64]);
/* Kills, waits, closes. NULL or none is fine. */
void child_process_end(struct child_process *c);
