/* base/darwin/os_socket_darwin.c - see os_socket.h. A descriptor is made first and told afterwards: a fork of another thread
 * in between inherits it, which the child closes (os_close_from). */
#include "base/os_socket.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <sys/event.h>
#include <sys/ucred.h>
#include <sys/un.h>
#include <unistd.h>

#define WAKE 1 /* the event's name in its queue */

static void set_option(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof(value));
}

/* fd, or -1 and it is closed. */
static int prepared(int fd, bool waits)
{
    int flags = waits ? 0 : fcntl(fd, F_GETFL), why;

    if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && (waits || (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0)))
        return fd;
    why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int prepared_socket(int fd, bool waits)
{
    if (fd < 0) return -1;
    set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
    return prepared(fd, waits);
}

int os_socket(int family, int type, int protocol, bool waits)
{
    return prepared_socket(socket(family, type, protocol), waits);
}

static int prepared_both(int fds[2], bool waits)
{
    if (prepared(fds[0], waits) < 0) {
        close(fds[1]);
        return -1;
    }
    if (prepared(fds[1], waits) >= 0) return 0;
    close(fds[0]);
    return -1;
}

int os_socket_pair(int fds[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return -1;
    for (int i = 0; i < 2; i++) set_option(fds[i], SOL_SOCKET, SO_NOSIGPIPE, 1);
    return prepared_both(fds, true);
}

int os_pipe(int fds[2], bool waits)
{
    return pipe(fds) == 0 ? prepared_both(fds, waits) : -1;
}

int os_accept(int listener)
{
    return prepared_socket(accept(listener, NULL, NULL), false);
}

ssize_t os_send(int fd, const void *p, size_t n, bool waits)
{
    return send(fd, p, n, waits ? 0 : MSG_DONTWAIT);
}

ssize_t os_send_to(int fd, const void *p, size_t n, const struct sockaddr *to, socklen_t n_to)
{
    return sendto(fd, p, n, MSG_DONTWAIT, to, n_to);
}

/* ---- a queue with one event of ours: it can be polled like a file ---- */

int os_wake_open(void)
{
    const struct kevent event = {.ident = WAKE, .filter = EVFILT_USER, .flags = EV_ADD | EV_CLEAR};
    int fd = kqueue(), why;

    if (fd < 0) return -1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && kevent(fd, &event, 1, NULL, 0, NULL) == 0) return fd;
    why = errno;
    close(fd);
    errno = why;
    return -1;
}

void os_wake(int fd)
{
    const struct kevent event = {.ident = WAKE, .filter = EVFILT_USER, .fflags = NOTE_TRIGGER};

    (void)kevent(fd, &event, 1, NULL, 0, NULL);
}

void os_wake_clear(int fd)
{
    const struct timespec at_once = {0, 0};
    struct kevent event;

    (void)kevent(fd, NULL, 0, &event, 1, &at_once); /* EV_CLEAR: taken is cleared */
}

int os_peer_user(int fd, uid_t *user)
{
    struct xucred who;
    socklen_t n = sizeof(who);

    if (getsockopt(fd, SOL_LOCAL, LOCAL_PEERCRED, &who, &n)) return -1;
    *user = who.cr_uid;
    return 0;
}

/* The end of a stream is POLLHUP here, which has to be asked for when nothing else is. */
short os_poll_gone(void)
{
    return POLLHUP;
}

void os_tune(int fd, const struct os_patience *p)
{
    set_option(fd, IPPROTO_TCP, TCP_RXT_CONNDROPTIME, (p->unacked_ms + 999) / 1000);
    set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, p->most_unsent);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPALIVE, p->silent_s);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, p->interval_s);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, p->probes);
}
