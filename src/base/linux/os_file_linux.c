/* base/linux/os_file_linux.c - see os_file.h. */
#include "base/os_file.h"
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
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

/* Of an ELF file of this machine's word size: the last byte of its segments. */
static off_t end_of_segments(int fd)
{
    ElfW(Ehdr) head;
    off_t end = 0;

    if (pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head)) return 0;
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_phentsize != sizeof(ElfW(Phdr))) return 0;
    if (head.e_phoff > INT32_MAX) return 0;
    for (unsigned i = 0; i < head.e_phnum; i++) {
        ElfW(Phdr) part;

        if (pread(fd, &part, sizeof(part), (off_t)(head.e_phoff + i * sizeof(part))) != (ssize_t)sizeof(part)) return 0;
        if (part.p_type != PT_LOAD) continue;
        if (part.p_offset > INT64_MAX / 2 || part.p_filesz > INT64_MAX / 2) return INT64_MAX;
        if ((off_t)(part.p_offset + part.p_filesz) > end) end = (off_t)(part.p_offset + part.p_filesz);
    }
    return end;
}

off_t os_object_end(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const off_t end = fd >= 0 ? end_of_segments(fd) : 0;

    if (fd >= 0) close(fd);
    return end;
}
