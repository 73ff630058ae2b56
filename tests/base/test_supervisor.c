/* tests/base/test_supervisor.c - played by a service manager that is this test. */
#include "base/supervisor.h"
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test.h"

/* A datagram socket in the abstract namespace, named to the process. */
static int open_manager(const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memcpy(a.sun_path, name, strlen(name));
    a.sun_path[0] = 0;
    if (bind(fd, (const struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))))
        abort();
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

TEST(news_arrive_as_one_datagram_each)
{
    char name[64], got[2048];
    ssize_t n;
    int fd;

    snprintf(name, sizeof(name), "@radish-test-%d", (int)getpid());
    fd = open_manager(name);
    supervisor_notify("READY=1\nSTATUS=%s", "serving");
    supervisor_notify("WATCHDOG=1");
    n = recv(fd, got, sizeof(got), 0);
    CHECK_EQ(n, (ssize_t)strlen("READY=1\nSTATUS=serving"));
    CHECK(memcmp(got, "READY=1\nSTATUS=serving", (size_t)n) == 0);
    n = recv(fd, got, sizeof(got), 0);
    CHECK_EQ(n, (ssize_t)strlen("WATCHDOG=1"));
    supervisor_notify("STATUS=%01000d", 1); /* cut, not overrun */
    n = recv(fd, got, sizeof(got), 0);
    CHECK(n > 100 && n < 1000);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

TEST(a_manager_that_is_not_there_or_does_not_read_is_not_waited_for)
{
    char name[64];
    int fd;

    unsetenv("NOTIFY_SOCKET");
    supervisor_notify("READY=1");
    setenv("NOTIFY_SOCKET", "/nowhere/at/all", 1);
    supervisor_notify("READY=1");
    setenv("NOTIFY_SOCKET", "relative", 1);
    supervisor_notify("READY=1");
    snprintf(name, sizeof(name), "@radish-full-%d", (int)getpid());
    fd = open_manager(name);
    for (int i = 0; i < 20000; i++) supervisor_notify("WATCHDOG=1"); /* its queue is full long before */
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

TEST(the_watchdog_is_this_process_s_or_nobody_s)
{
    char pid[32];

    unsetenv("WATCHDOG_PID");
    unsetenv("WATCHDOG_USEC");
    CHECK_EQ(supervisor_watchdog_ns(), 0);
    setenv("WATCHDOG_USEC", "30000000", 1);
    CHECK_EQ(supervisor_watchdog_ns(), 30000000000ull);
    setenv("WATCHDOG_PID", "1", 1);
    CHECK_EQ(supervisor_watchdog_ns(), 0);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    CHECK_EQ(supervisor_watchdog_ns(), 30000000000ull);
    setenv("WATCHDOG_USEC", "-5", 1);
    CHECK_EQ(supervisor_watchdog_ns(), 0);
    setenv("WATCHDOG_USEC", "99999999999999999999", 1);
    CHECK_EQ(supervisor_watchdog_ns(), 0);
    setenv("WATCHDOG_USEC", "18446744073709551615", 1);
    CHECK_EQ(supervisor_watchdog_ns(), 0);
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

/* In a child, whose descriptors from 3 on are what a manager passes. */
static int in_child(const char *n_fds, bool own_pid)
{
    int status = 0, fds[LIMIT_LISTENERS];
    pid_t child = fork();

    if (child == 0) {
        char pid[32];
        uint32_t n;

        snprintf(pid, sizeof(pid), "%d", (int)getpid() + !own_pid);
        setenv("LISTEN_PID", pid, 1);
        setenv("LISTEN_FDS", n_fds, 1);
        dup2(0, 3);
        dup2(0, 4);
        n = supervisor_listeners(fds);
        if (n == 2 && (fds[0] != 3 || fds[1] != 4 || !(fcntl(4, F_GETFD) & FD_CLOEXEC))) _exit(101);
        if (getenv("LISTEN_PID") || getenv("LISTEN_FDS")) _exit(102);
        if (supervisor_listeners(fds) != 0) _exit(103);
        _exit((int)n);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(sockets_are_taken_once_and_by_whom_they_are_for)
{
    CHECK_EQ(in_child("2", true), 2);
    CHECK_EQ(in_child("2", false), 0);
    CHECK_EQ(in_child("0", true), 0);
    CHECK_EQ(in_child("-1", true), 0);
    CHECK_EQ(in_child("x", true), 0);
    CHECK_EQ(in_child("4000000000", true), (int)LIMIT_LISTENERS);
}
