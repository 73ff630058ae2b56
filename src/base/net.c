/* base/net.c - listening sockets, the options of accepted ones, and those of a simple client. */
#include "base/net.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/error.h"
#include "base/os_socket.h"

/* An unacknowledged or silent peer is given up after about a minute. */
#define NET_USER_TIMEOUT_MS 30000
#define NET_UNSENT_BYTES    (128 << 10) /* kept by the system of what a slow reader has not let it send yet */
#define NET_TRIES           1000 /* of a call that was interrupted, or told to come again though bytes are there */
#define NET_FINISH_BYTES    (64 << 10)
#define NET_KEEP_IDLE_S     30
#define NET_KEEP_INTERVAL_S 10
#define NET_KEEP_PROBES     3

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un un;
};

static bool parse_address(const char *host, uint16_t port, union address *a, socklen_t *n)
{
    memset(a, 0, sizeof(*a));
    if (strcmp(host, "localhost") == 0) host = "127.0.0.1";
    if (inet_pton(AF_INET, host, &a->v4.sin_addr) == 1) {
        a->v4.sin_family = AF_INET;
        a->v4.sin_port = htons(port);
        *n = sizeof(a->v4);
        return true;
    }
    if (inet_pton(AF_INET6, host, &a->v6.sin6_addr) == 1) {
        a->v6.sin6_family = AF_INET6;
        a->v6.sin6_port = htons(port);
        *n = sizeof(a->v6);
        return true;
    }
    return false;
}

rd_status net_listen(const char *host, uint16_t port, int backlog, int *fd, uint16_t *bound_port, struct rd_error *err)
{
    char quoted[128];
    const char *what = "socket";
    union address a;
    socklen_t n;
    int s = -1, on = 1;

    error_quote(quoted, sizeof(quoted), host, strlen(host));
    if (!parse_address(host, port, &a, &n))
        return error_set(err, RD_E_INVALID, "address %s: wanted a numeric IPv4 or IPv6 address or localhost", quoted);

    s = os_socket(a.any.sa_family, SOCK_STREAM, 0, false);
    if (s < 0) goto fail;
    what = "option";
    if (setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on))) goto fail;
    what = "bind";
    if (bind(s, &a.any, n)) goto fail;
    what = "listen";
    if (listen(s, backlog)) goto fail;
    what = "bound port";
    if (getsockname(s, &a.any, &n)) goto fail;

    *bound_port = ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    *fd = s;
    return RD_OK;

fail:
    if (errno == EADDRINUSE)
        error_set(err, RD_E_IO, "port %u of %s is in use by another program: --port takes another one, 0 any",
                  (unsigned)port, quoted);
    else if (errno == EADDRNOTAVAIL)
        error_set(err, RD_E_IO, "listening on %s port %u: this machine has no such address; 0.0.0.0 is all it has",
                  quoted, (unsigned)port);
    else if (errno == EACCES)
        error_set(err, RD_E_IO, "listening on %s port %u: this user may not; ports from 1024 on are for all", quoted,
                  (unsigned)port);
    else
        error_set(err, RD_E_IO, "listening on %s port %u: %s: %s", quoted, (unsigned)port, what, strerror(errno));
    net_close(s);
    return RD_E_IO;
}

/* ---- UNIX sockets ---- */

/* Of two that replace one file the second would take it from the first: one at a time. -1: the folder cannot be locked, and
 * what is done in it will tell why. */
static int lock_folder(const char *path)
{
    char folder[sizeof(((struct sockaddr_un *)0)->sun_path)];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    int fd;

    memcpy(folder, path, n);
    memcpy(folder + n, slash ? "/" : ".", 2);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* A socket's file, to which nobody listens. */
static bool is_left_over(const union address *a, socklen_t n)
{
    struct stat s;
    int fd;
    bool refused;

    if (lstat(a->un.sun_path, &s) || !S_ISSOCK(s.st_mode)) return false;
    fd = os_socket(AF_UNIX, SOCK_STREAM, 0, false);
    if (fd < 0) return false;
    refused = connect(fd, &a->any, n) && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

/* false: the path is empty, or too long for a socket. */
static bool unix_address(const char *path, union address *a, socklen_t *n)
{
    size_t length = strlen(path);

    memset(a, 0, sizeof(*a));
    a->un.sun_family = AF_UNIX;
    if (length == 0 || length >= sizeof(a->un.sun_path) - 2) return false;
    memcpy(a->un.sun_path, path, length);
    *n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    return true;
}

rd_status net_listen_unix(const char *path, unsigned mode, int backlog, int *fd, struct rd_error *err)
{
    char quoted[160];
    union address a;
    socklen_t n;
    const char *what = "socket";
    int s, folder;

    error_quote(quoted, sizeof(quoted), path, strlen(path));
    if (!unix_address(path, &a, &n))
        return error_set(err, RD_E_INVALID, "socket %s: wanted a path of 1 to %zu bytes", quoted,
                         sizeof(a.un.sun_path) - 3);
    folder = lock_folder(path);
    s = os_socket(AF_UNIX, SOCK_STREAM, 0, false);
    if (s < 0) goto fail;
    if (is_left_over(&a, n)) unlink(path);
    what = "mode";
    if (fchmod(s, mode)) goto fail; /* the file begins with no more than this, whatever the umask, */
    what = "bind";
    if (bind(s, &a.any, n)) goto fail;
    what = "mode";
    if (chmod(path, mode)) goto fail_bound; /* and gets what the umask took from it */
    what = "listen";
    if (listen(s, backlog)) goto fail_bound;
    net_close(folder);
    *fd = s;
    return RD_OK;

fail_bound:
    error_set(err, RD_E_IO, "listening on socket %s: %s: %s", quoted, what, strerror(errno));
    unlink(path);
    net_close(s);
    net_close(folder);
    return RD_E_IO;
fail:
    if (errno == EADDRINUSE)
        error_set(err, RD_E_IO, "listening on socket %s: it is in use, or another file has that name", quoted);
    else if (errno == ENOENT || errno == ENOTDIR)
        error_set(err, RD_E_IO, "listening on socket %s: its folder is not there", quoted);
    else
        error_set(err, RD_E_IO, "listening on socket %s: %s: %s", quoted, what, strerror(errno));
    net_close(s);
    net_close(folder);
    return RD_E_IO;
}

void net_remove_unix(const char *path)
{
    union address a;
    socklen_t n;
    int folder;

    if (!unix_address(path, &a, &n)) return;
    folder = lock_folder(path);
    if (is_left_over(&a, n)) unlink(path);
    net_close(folder);
}

rd_status net_adopt(int fd, char *host, size_t size, uint16_t *port, bool *local, struct rd_error *err)
{
    union address a;
    socklen_t n = sizeof(a), n_value = sizeof(int);
    char text[INET6_ADDRSTRLEN] = "";
    int type = 0, listens = 0, flags = fcntl(fd, F_GETFL);

    memset(&a, 0, sizeof(a));
    if (flags < 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n_value) || type != SOCK_STREAM ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n_value) || !listens || getsockname(fd, &a.any, &n))
        return error_set(err, RD_E_INVALID,
                         "descriptor %d was passed to listen on, but is not a stream socket that listens", fd);
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK))
        return error_set(err, RD_E_IO, "descriptor %d: %s", fd, strerror(errno));
    *port = 0;
    *local = true;
    if (a.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a.v4.sin_addr, text, sizeof(text));
        snprintf(host, size, "%s", text);
        *port = ntohs(a.v4.sin_port);
        *local = ntohl(a.v4.sin_addr.s_addr) >> 24 == 127;
    } else if (a.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &a.v6.sin6_addr, text, sizeof(text));
        snprintf(host, size, "%s", text);
        *port = ntohs(a.v6.sin6_port);
        *local = IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr);
    } else if (a.any.sa_family == AF_UNIX) {
        snprintf(host, size, "unix:%.*s", (int)sizeof(a.un.sun_path), a.un.sun_path);
    } else {
        return error_set(err, RD_E_INVALID, "descriptor %d was passed to listen on: neither IP nor a UNIX socket", fd);
    }
    return RD_OK;
}

/* ---- a simple client ---- */

rd_status net_connect(const char *host, uint16_t port, uint32_t timeout_ms, int *fd, struct rd_error *err)
{
    struct timeval limit = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    char quoted[128];
    union address a;
    socklen_t n;
    int s;

    error_quote(quoted, sizeof(quoted), host, strlen(host));
    if (strncmp(host, "unix:", 5) == 0 ? !unix_address(host + 5, &a, &n) : !parse_address(host, port, &a, &n))
        return error_set(err, RD_E_INVALID, "address %s: wanted a numeric IPv4 or IPv6 address or localhost", quoted);
    s = os_socket(a.any.sa_family, SOCK_STREAM, 0, true);
    if (s < 0 || setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) ||
        setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) || connect(s, &a.any, n)) {
        int why = errno;

        if (s >= 0) close(s);
        if (why == ECONNREFUSED) return error_set(err, RD_E_IO, "nothing listens on %s port %u", quoted, port);
        return error_set(err, RD_E_IO, "%s port %u: %s", quoted, port, strerror(why));
    }
    *fd = s;
    return RD_OK;
}

rd_status net_send_all(int fd, const void *p, size_t n)
{
    const char *at = p;

    while (n > 0) {
        ssize_t sent = os_send(fd, at, n, true);

        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return RD_E_IO;
        at += sent;
        n -= (size_t)sent;
    }
    return RD_OK;
}

rd_status net_receive(int fd, void *p, size_t n, size_t *got)
{
    ssize_t came;

    do came = recv(fd, p, n, 0);
    while (came < 0 && errno == EINTR);
    if (came < 0) return RD_E_IO;
    *got = (size_t)came;
    return RD_OK;
}

void net_close(int fd)
{
    if (fd >= 0) close(fd);
}

int net_accept(int listener, bool *no_files)
{
    int fd;

    do fd = os_accept(listener);
    while (fd < 0 && errno == EINTR);
    *no_files = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
    return fd;
}

size_t net_peek(int fd, void *p, size_t n, bool *closed)
{
    ssize_t got;

    do got = recv(fd, p, n, MSG_PEEK | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    *closed = got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
    return got > 0 ? (size_t)got : 0;
}

bool net_discard(int fd, size_t n)
{
    char part[1024];

    for (int tries = 0; n > 0 && tries < NET_TRIES; tries++) {
        ssize_t got = recv(fd, part, n < sizeof(part) ? n : sizeof(part), MSG_DONTWAIT);

        if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
        if (got > 0) n -= (size_t)got;
    }
    return n == 0;
}

bool net_send_small(int fd, const void *p, size_t n)
{
    const char *at = p;

    for (int tries = 0; n > 0 && tries < NET_TRIES; tries++) {
        ssize_t sent = os_send(fd, at, n, false);

        if (sent < 0 && errno != EINTR && errno != EAGAIN) return false;
        if (sent <= 0) continue;
        at += sent;
        n -= (size_t)sent;
    }
    return n == 0;
}

void net_finish(int fd)
{
    char part[4096];

    shutdown(fd, SHUT_WR);
    for (size_t n = 0; n < NET_FINISH_BYTES;) {
        ssize_t got = recv(fd, part, sizeof(part), MSG_DONTWAIT);

        if (got <= 0) return;
        n += (size_t)got;
    }
}

rd_status net_wake_open(int *fd)
{
    int made = os_wake_open();

    if (made < 0) return RD_E_IO;
    *fd = made;
    return RD_OK;
}

void net_wake(int fd)
{
    os_wake(fd);
}

void net_wake_clear(int fd)
{
    os_wake_clear(fd);
}

size_t net_send_some(int fd, const void *p, size_t n)
{
    ssize_t sent;

    do sent = os_send(fd, p, n, false);
    while (sent < 0 && errno == EINTR);
    return sent > 0 ? (size_t)sent : 0;
}

void net_tune(int fd)
{
    static const struct os_patience patience = {NET_KEEP_IDLE_S, NET_KEEP_INTERVAL_S, NET_KEEP_PROBES,
                                                NET_USER_TIMEOUT_MS, NET_UNSENT_BYTES};
    const int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* refused by a UNIX socket, harmlessly */
    os_tune(fd, &patience);
}
