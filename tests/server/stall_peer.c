/* tests/server/stall_peer.c - a library that is put before libc (LD_PRELOAD): calls on connections to the port that PEER_PORT
 * says are written down with their thread's name, each pair once, in the file that PEER_LOG names; and while the file that
 * PEER_HOLD names exists they do not return.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void note(const char *call)
{
    static _Thread_local char seen[256];
    char line[64], name[17] = "";
    const char *path = getenv("PEER_LOG");
    int out, n;

    if (strstr(seen, call) || !path || prctl(PR_GET_NAME, name) != 0) return;
    strncat(seen, call, sizeof(seen) - strlen(seen) - 1);
    n = snprintf(line, sizeof(line), "%s %s\n", name, call);
    out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (out < 0 || write(out, line, (size_t)n) != n) abort();
    close(out);
}

static void meet(const struct sockaddr *address, const char *call)
{
    const char *port = getenv("PEER_PORT"), *hold = getenv("PEER_HOLD");
    const struct timespec pause = {0, 5000000};

    if (!port || address->sa_family != AF_INET ||
        ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port) != atoi(port))
        return;
    note(call);
    while (hold && access(hold, F_OK) == 0) nanosleep(&pause, NULL);
}

static void meet_fd(int fd, const char *call)
{
    struct sockaddr_storage address;
    socklen_t n = sizeof(address);

    if (getpeername(fd, (struct sockaddr *)&address, &n) == 0) meet((const struct sockaddr *)&address, call);
}

int connect(int fd, const struct sockaddr *address, socklen_t n)
{
    int (*real)(int, const struct sockaddr *, socklen_t) =
        (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");

    meet(address, "connect");
    return real(fd, address, n);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    ssize_t (*real)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");

    meet_fd(fd, "write");
    return real(fd, bytes, n);
}

ssize_t read(int fd, void *bytes, size_t n)
{
    ssize_t (*real)(int, void *, size_t) = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");

    meet_fd(fd, "read");
    return real(fd, bytes, n);
}

int poll(struct pollfd *fds, nfds_t n, int timeout)
{
    int (*real)(struct pollfd *, nfds_t, int) = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");

    if (n == 1) meet_fd(fds[0].fd, "poll");
    return real(fds, n, timeout);
}
