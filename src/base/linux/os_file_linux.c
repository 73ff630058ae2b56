/* base/linux/os_file_linux.c - see os_file.h. */
#include "base/os_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int os_sync_data(int fd)
{
    return fdatasync(fd);
}

int os_sync(int fd)
{
    return fsync(fd);
}

int os_take_room(int fd, off_t n)
{
    return fallocate(fd, 0, 0, n);
}

int os_give_back(int fd, off_t at, off_t n)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, n);
}

int os_open_beneath(int dir, const char *path, int flags)
{
#ifdef SYS_openat2
    /* As in linux/openat2.h, which not every system has. */
    const struct {
        uint64_t flags, mode, resolve;
    } how = {(uint64_t)flags, 0, 0x08 | 0x02}; /* RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS */

    return (int)syscall(SYS_openat2, dir, path, &how, sizeof(how));
#else
    errno = ENOSYS;
    return -1;
#endif
}

void os_populate(const void *p, size_t n)
{
#ifdef MADV_POPULATE_READ
    (void)madvise((void *)(uintptr_t)p, n, MADV_POPULATE_READ);
#else
    (void)p, (void)n;
#endif
}

struct timespec os_changed(const struct stat *s)
{
    return s->st_mtim;
}

struct timespec os_status_changed(const struct stat *s)
{
    return s->st_ctim;
}
