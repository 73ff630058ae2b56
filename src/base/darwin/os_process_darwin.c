/* base/darwin/os_process_darwin.c - see os_process.h. libproc's calls, kqueue(2). */
#include "base/os_process.h"
#include <crt_externs.h>
#include <errno.h>
#include <fcntl.h>
#include <libproc.h>
#include <mach-o/dyld.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/event.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/os_socket.h"

#define ENDED 1 /* an event of ours in the queue of a process that has ended already */

char **os_environment(void)
{
    return *_NSGetEnviron(); /* a library has no environ */
}

bool os_program_path(char *out, size_t cap)
{
    uint32_t n = (uint32_t)cap;
    char whole[PROC_PIDPATHINFO_MAXSIZE];

    if (_NSGetExecutablePath(out, &n) != 0) return false;
    if (!realpath(out, whole) || strlen(whole) >= cap) return false;
    memcpy(out, whole, strlen(whole) + 1);
    return true;
}

/* In microseconds of the wall clock. */
uint64_t os_process_began(pid_t pid)
{
    struct proc_bsdinfo info;

    if (pid <= 0 || proc_pidinfo(pid, PROC_PIDTBSDINFO, 0, &info, (int)sizeof(info)) != (int)sizeof(info)) return 0;
    return info.pbi_start_tvsec * 1000000 + info.pbi_start_tvusec;
}

uint64_t os_process_resident(pid_t pid)
{
    struct proc_taskinfo info;

    if (pid <= 0 || proc_pidinfo(pid, PROC_PIDTASKINFO, 0, &info, (int)sizeof(info)) != (int)sizeof(info)) return 0;
    return info.pti_resident_size;
}

/* A queue with the end of the process in it. One that has ended, but is not reaped, is not found: then it ends now. */
int os_process_open(pid_t pid)
{
    const struct kevent end = {.ident = (uintptr_t)pid, .filter = EVFILT_PROC, .flags = EV_ADD, .fflags = NOTE_EXIT};
    const struct kevent ended[2] = {{.ident = ENDED, .filter = EVFILT_USER, .flags = EV_ADD},
                                    {.ident = ENDED, .filter = EVFILT_USER, .fflags = NOTE_TRIGGER}};
    int fd = kqueue();

    if (fd < 0) return -1;
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (kevent(fd, &end, 1, NULL, 0, NULL) == 0) return fd;
    if (errno == ESRCH && kevent(fd, ended, 2, NULL, 0, NULL) == 0) return fd;
    close(fd);
    return -1;
}

/* Nothing here holds a process's number: whoever calls has just looked when it began. */
int os_process_signal(int process, pid_t pid, int number)
{
    (void)process;
    return kill(pid, number);
}

void os_close_from(int first)
{
    for (int fd = first, end = getdtablesize(); fd < end; fd++) close(fd);
}

void os_exec(char **words, char **environment)
{
    *_NSGetEnviron() = environment;
    execvp(words[0], words);
}

/* ---- the guard: it reads the number of a group, then waits for the pipe's end, which comes when we do ---- */

static void guard_main(int fd)
{
    pid_t group = 0, said;
    ssize_t n;

    for (int s = 1; s < NSIG; s++) signal(s, SIG_DFL);
    setpgid(0, 0);
    dup2(fd, 0);
    os_close_from(1); /* the write ends of other guards, above all */
    for (;;) {
        n = read(0, &said, sizeof(said));
        if (n < 0 && errno == EINTR) continue;
        if (n != (ssize_t)sizeof(said)) break;
        if (said == 0) _exit(0); /* reaped: the number may be another's */
        group = said;
    }
    if (group > 0) kill(-group, SIGKILL);
    _exit(0);
}

int os_guard_open(struct os_guard *g)
{
    int fds[2];

    *g = OS_GUARD_NONE;
    if (os_pipe(fds, true) != 0) return -1;
    g->pid = fork();
    if (g->pid == 0) guard_main(fds[0]);
    close(fds[0]);
    g->fd = fds[1];
    if (g->pid > 0) return 0;
    close(g->fd);
    *g = OS_GUARD_NONE;
    return -1;
}

void os_guard_join(const struct os_guard *g)
{
    const pid_t own = getpid();

    (void)!write(g->fd, &own, sizeof(own));
}

void os_guard_close(struct os_guard *g)
{
    const pid_t none = 0;

    if (g->pid <= 0) return;
    (void)!write(g->fd, &none, sizeof(none));
    close(g->fd);
    while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR) {}
    *g = OS_GUARD_NONE;
}
