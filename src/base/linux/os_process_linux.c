/* base/linux/os_process_linux.c - see os_process.h. proc(5), pidfd_open(2), prctl(2). */
#include "base/os_process.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/linux/kernel_file.h"

extern char **environ;

char **os_environment(void)
{
    return environ;
}

bool os_program_path(char *out, size_t cap)
{
    ssize_t n = cap ? readlink("/proc/self/exe", out, cap - 1) : -1;

    if (n <= 0) return false;
    out[n] = 0;
    return true;
}

/* The text of /proc/PID/name. */
static bool process_text(pid_t pid, const char *name, char *text, size_t cap)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    return pid > 0 && kernel_file_read(path, text, cap) > 0;
}

/* In ticks after the machine's start. */
uint64_t os_process_began(pid_t pid)
{
    char text[4096], *at;
    unsigned long long start = 0;

    if (!process_text(pid, "stat", text, sizeof(text))) return 0;
    at = strrchr(text, ')'); /* a program's name may hold anything */
    if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                      &start) != 1)
        start = 0;
    return start;
}

uint64_t os_process_resident(pid_t pid)
{
    char text[256];
    unsigned long long n_pages = 0;

    if (!process_text(pid, "statm", text, sizeof(text)) || sscanf(text, "%*u %llu", &n_pages) != 1) return 0;
    return n_pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

int os_process_open(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    if (fd >= 0) (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

int os_process_signal(int process, pid_t pid, int number)
{
    if (process >= 0) return (int)syscall(SYS_pidfd_send_signal, process, number, NULL, 0);
    return kill(pid, number); /* before Linux 5.3 */
}

void os_close_from(int first)
{
    syscall(SYS_close_range, (unsigned)first, ~0u, 0u);
}

void os_exec(char **words, char **environment)
{
    execvpe(words[0], words, environment);
}

int os_guard_open(struct os_guard *g)
{
    *g = OS_GUARD_NONE;
    return 0;
}

void os_guard_join(const struct os_guard *g)
{
    (void)g;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

void os_guard_close(struct os_guard *g)
{
    *g = OS_GUARD_NONE;
}
