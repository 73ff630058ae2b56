/* base/os_socket.h - sockets and descriptors as this tree wants them: closed by exec, and no write of theirs raises SIGPIPE.
 * linux/os_socket_linux.c, darwin/os_socket_darwin.c. A descriptor or 0, or -1 and errno. Any thread.
 */
#pragma once
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

int os_socket(int family, int type, int protocol, bool waits);
/* Two ends of a UNIX stream; of a pipe, the read end first. */
int os_socket_pair(int fds[2]);
int os_pipe(int fds[2], bool waits);
/* The connection does not block. */
int os_accept(int listener);
ssize_t os_send(int fd, const void *p, size_t n, bool waits);
ssize_t os_send_to(int fd, const void *p, size_t n, const struct sockaddr *to, socklen_t n_to); /* does not wait */
/* A descriptor that is readable from os_wake (also in a signal handler) until os_wake_clear. */
int os_wake_open(void);
void os_wake(int fd);
void os_wake_clear(int fd);
/* The user at the other end of a UNIX socket. */
int os_peer_user(int fd, uid_t *user);
/* What poll() is asked, to be told that the peer sends no more, and not that there are bytes. */
short os_poll_gone(void);

struct os_patience {
    int silent_s;    /* then the peer is asked whether it lives, */
    int interval_s;  /* so often, */
    int probes;      /* at most so many times */
    int unacked_ms;  /* bytes that it does not acknowledge for so long end the connection */
    int most_unsent; /* bytes that the system keeps for a slow reader */
};
/* Options only make a connection better: one that the system refuses (a UNIX socket) is left out. */
void os_tune(int fd, const struct os_patience *p);
