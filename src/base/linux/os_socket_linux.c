/* base/linux/os_socket_linux.c - see os_socket.h. */
#include "base/os_socket.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

int os_socket(int family, int type, int protocol, bool waits)
{
    return socket(family, type | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), protocol);
}

int os_socket_pair(int fds[2])
{
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);
}

int os_pipe(int fds[2], bool waits)
{
    return pipe2(fds, O_CLOEXEC | (waits ? 0 : O_NONBLOCK));
}

int os_accept(int listener)
{
    return accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

ssize_t os_send(int fd, const void *p, size_t n, bool waits)
{
    return send(fd, p, n, MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT));
}

ssize_t os_send_to(int fd, const void *p, size_t n, const struct sockaddr *to, socklen_t n_to)
{
    return sendto(fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL, to, n_to);
}

int os_wake_open(void)
{
    return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
}

void os_wake(int fd)
{
    static const uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof(one)); /* fails only where it has been written 2^64 - 2 times unread */

    (void)n;
}

void os_wake_clear(int fd)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof(count));

    (void)n;
}

int os_peer_user(int fd, uid_t *user)
{
    struct ucred who;
    socklen_t n = sizeof(who);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n)) return -1;
    *user = who.uid;
    return 0;
}

short os_poll_gone(void)
{
    return POLLRDHUP;
}

static void set_option(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof(value));
}

void os_tune(int fd, const struct os_patience *p)
{
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, p->unacked_ms);
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, p->most_unsent);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, p->silent_s);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, p->interval_s);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, p->probes);
}
