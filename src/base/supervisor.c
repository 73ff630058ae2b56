/* base/supervisor.c - environment variables and one datagram at a time. */
#include "base/supervisor.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/os_socket.h"

#define FIRST_LISTENER 3
#define NOTICE_BYTES   512u

static uint64_t number_in(const char *variable)
{
    const char *text = getenv(variable);
    uint64_t n;

    return text && parse_u64(text, strlen(text), &n) ? n : 0;
}

uint32_t supervisor_listeners(int fds[LIMIT_LISTENERS])
{
    uint64_t n = number_in("LISTEN_PID") == (uint64_t)getpid() ? number_in("LISTEN_FDS") : 0;

    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (n > LIMIT_LISTENERS) n = LIMIT_LISTENERS;
    for (uint32_t i = 0; i < n; i++) {
        fds[i] = FIRST_LISTENER + (int)i;
        (void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    }
    return (uint32_t)n;
}

void supervisor_notify(const char *format, ...)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *name = getenv("NOTIFY_SOCKET");
    size_t n = name ? strlen(name) : 0;
    char text[NOTICE_BYTES];
    va_list args;
    ssize_t sent;
    int fd, length;

    if (n < 2 || n >= sizeof(to.sun_path) || (*name != '/' && *name != '@')) return;
    va_start(args, format);
    length = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (length <= 0) return;
    if ((size_t)length >= sizeof(text)) length = sizeof(text) - 1;
    memcpy(to.sun_path, name, n);
    if (*name == '@') to.sun_path[0] = 0;
    fd = os_socket(AF_UNIX, SOCK_DGRAM, 0, true);
    if (fd < 0) return;
    sent = os_send_to(fd, text, (size_t)length, (const struct sockaddr *)&to,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    (void)sent;
    close(fd);
}

uint64_t supervisor_watchdog_ns(void)
{
    uint64_t ns;

    if (getenv("WATCHDOG_PID") && number_in("WATCHDOG_PID") != (uint64_t)getpid()) return 0;
    return checked_mul(number_in("WATCHDOG_USEC"), (uint64_t)1000, &ns) ? ns : 0;
}
