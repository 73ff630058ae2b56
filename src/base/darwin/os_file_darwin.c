/* base/darwin/os_file_darwin.c - see os_file.h. fsync() leaves bytes in the disk's cache: F_FULLFSYNC does not (fcntl(2)). */
#include "base/os_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define PUNCH_BYTES 4096 /* both ends of a hole are multiples of the file system's block */

/* File systems of other machines, and folders on some, know fsync() only. */
int os_sync(int fd)
{
    return fcntl(fd, F_FULLFSYNC) == 0 ? 0 : fsync(fd);
}

int os_sync_data(int fd)
{
    return os_sync(fd);
}

/* In one piece if there is one; then, unlike Linux's call, the file has to be told how long it is. */
int os_take_room(int fd, off_t n)
{
    fstore_t room = {.fst_flags = F_ALLOCATECONTIG | F_ALLOCATEALL, .fst_posmode = F_PEOFPOSMODE, .fst_length = n};
    struct stat s;

    if (fstat(fd, &s) != 0) return -1;
    if (s.st_size >= n) return 0;
    room.fst_length = n - s.st_size; /* from its end on */
    if (fcntl(fd, F_PREALLOCATE, &room) == 0) return ftruncate(fd, n);
    room.fst_flags = F_ALLOCATEALL;
    if (fcntl(fd, F_PREALLOCATE, &room) == 0) return ftruncate(fd, n);
    if (errno == ENOTSUP || errno == EINVAL) errno = EOPNOTSUPP;
    return -1;
}

int os_give_back(int fd, off_t at, off_t n)
{
    const off_t first = (at + PUNCH_BYTES - 1) / PUNCH_BYTES * PUNCH_BYTES, end = (at + n) / PUNCH_BYTES * PUNCH_BYTES;
    struct fpunchhole hole = {.fp_offset = first, .fp_length = end - first};

    return end > first ? fcntl(fd, F_PUNCHHOLE, &hole) : 0;
}

int os_open_beneath(int dir, const char *path, int flags)
{
    (void)dir, (void)path, (void)flags;
    errno = ENOSYS;
    return -1;
}

void os_populate(const void *p, size_t n)
{
    (void)madvise((void *)(uintptr_t)p, n, MADV_WILLNEED);
}

struct timespec os_changed(const struct stat *s)
{
    return s->st_mtimespec;
}

struct timespec os_status_changed(const struct stat *s)
{
    return s->st_ctimespec;
}

/* dyld compares segments with the file, and their signature. */
off_t os_object_end(const char *path)
{
    (void)path;
    return 0;
}
