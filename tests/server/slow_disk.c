/* tests/server/slow_disk.c - a library that is put before libc (LD_PRELOAD): as long as the file $SLOW_DISK is there, each read of a
 * file at an offset waits.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static void wait_long(void)
{
    const char *name = getenv("SLOW_DISK");

    for (int i = 0; i < 600 && name && access(name, F_OK) == 0; i++) usleep(50000);
}

ssize_t pread(int fd, void *out, size_t n, off_t at)
{
    ssize_t (*own)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");

    wait_long();
    return own(fd, out, n, at);
}

ssize_t pread64(int fd, void *out, size_t n, off64_t at)
{
    ssize_t (*own)(int, void *, size_t, off64_t) =
        (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");

    wait_long();
    return own(fd, out, n, at);
}
