/* tests/server/io_faults.c - a library that is put before libc (LD_PRELOAD): every read and write of a socket may be short,
 * interrupted (EINTR) or told to come again (EAGAIN), by a fixed sequence. F47.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_uint_fast64_t calls;

static uint64_t next(void)
{
    uint64_t x = atomic_fetch_add(&calls, 1) * 0x9e3779b97f4a7c15u;

    x ^= x >> 31;
    return x * 0xbf58476d1ce4e5b9u >> 33;
}

static int is_socket(int fd)
{
    struct stat s;

    return fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode);
}

/* -1 with errno, or how much of n may go now. */
static ssize_t share(size_t n)
{
    uint64_t r = next() % 8;

    if (r == 0) errno = EINTR;
    if (r == 1) errno = EAGAIN;
    if (r < 2) return -1;
    return r < 5 && n > 1 ? (ssize_t)(1 + next() % (n - 1)) : (ssize_t)n;
}

ssize_t send(int fd, const void *p, size_t n, int flags)
{
    ssize_t (*real)(int, const void *, size_t, int) =
        (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    ssize_t part = share(n);

    return part < 0 ? -1 : real(fd, p, (size_t)part, flags);
}

ssize_t recv(int fd, void *p, size_t n, int flags)
{
    ssize_t (*real)(int, void *, size_t, int) = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    ssize_t part = share(n);

    return part < 0 ? -1 : real(fd, p, (size_t)part, flags);
}

static ssize_t vector(const char *name, int fd, const struct iovec *v, int n)
{
    ssize_t (*real)(int, const struct iovec *, int) =
        (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, name);
    struct iovec first = v[0];
    ssize_t part;

    if (!is_socket(fd) || first.iov_len == 0) return real(fd, v, n);
    part = share(first.iov_len);
    if (part < 0) return -1;
    if ((size_t)part == first.iov_len) return real(fd, v, n);
    first.iov_len = (size_t)part;
    return real(fd, &first, 1);
}

ssize_t readv(int fd, const struct iovec *v, int n)
{
    return vector("readv", fd, v, n);
}
ssize_t writev(int fd, const struct iovec *v, int n)
{
    return vector("writev", fd, v, n);
}

int accept4(int fd, struct sockaddr *a, socklen_t *n, int flags)
{
    int (*real)(int, struct sockaddr *, socklen_t *, int) =
        (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");

    if (next() % 4 == 0) {
        errno = next() % 2 ? EINTR : EAGAIN;
        return -1;
    }
    return real(fd, a, n, flags);
}
