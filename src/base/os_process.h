/* base/os_process.h - processes: to find, tell and watch one, and that a child does not outlive this one.
 * linux/os_process_linux.c, darwin/os_process_darwin.c. Any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

char **os_environment(void);
/* The file of this program. false: not known, or longer than cap. */
bool os_program_path(char *out, size_t cap);
/* A number that no other process of this name had: ticks or microseconds. 0: there is no such process. */
uint64_t os_process_began(pid_t pid);
uint64_t os_process_resident(pid_t pid); /* bytes; 0: not known */
/* A descriptor that is readable once the process has ended, reaped or not. -1: this system gives none. */
int os_process_open(pid_t pid);
/* process: of os_process_open; where it names the process for good, as on Linux, no other one that got its number is told. */
int os_process_signal(int process, pid_t pid, int number);

/* ---- between fork and exec: what a signal handler may call ---- */

void os_close_from(int first);
void os_exec(char **words, char **environment); /* as execvp(); returns if it could not */

/* When this process ends, however it does, the system or a process of ours ends the child's group.
 * Linux: the kernel, when the thread that forked ends. Darwin: a process that waits for the end of a pipe. */
struct os_guard {
    pid_t pid; /* 0: none is needed */
    int fd;
};
#define OS_GUARD_NONE ((struct os_guard){0, -1})
int os_guard_open(struct os_guard *g);        /* before fork */
void os_guard_join(const struct os_guard *g); /* the child, whose group has its own number */
void os_guard_close(struct os_guard *g);      /* the child has been reaped, or was never there */
