/* tests/server/disk_faults.c - a library that is put before libc (LD_PRELOAD): reads and writes of regular files at a place
 * (pread, pwrite) and their syncs fail with EIO, one in DISK_FAULTS of them, by a fixed sequence. Of files named *.pages alone.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_uint_fast64_t calls;

static int fails(int fd)
{
    static int one_in;
    char link[64], path[4096];
    ssize_t n;
    uint64_t x;

    if (!one_in) one_in = getenv("DISK_FAULTS") ? atoi(getenv("DISK_FAULTS")) : -1;
    if (one_in < 1) return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 1);
    if (n < 6 || memcmp(path + n - 6, ".pages", 6) != 0) return 0;
    x = atomic_fetch_add(&calls, 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 31;
    if ((x * 0xbf58476d1ce4e5b9u >> 33) % (unsigned)one_in != 0) return 0;
    errno = EIO;
    return 1;
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");

    return fails(fd) ? -1 : real(fd, p, n, at);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    ssize_t (*real)(int, const void *, size_t, off_t) =
        (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");

    return fails(fd) ? -1 : real(fd, p, n, at);
}

int fdatasync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

    return fails(fd) ? -1 : real(fd);
}
