/* tests/server/alloc_faults.c - a library that is put before libc (LD_PRELOAD): one allocation of one thread of a running
 * server fails, when the test says so. The file named by $ALLOC_FAULTS is mapped by both:
 *     thread    which one (its id; a process's first thread has the process's)
 *     left      allocations of it before the one that fails; negative: none fails
 *     n_failed
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct control {
    _Atomic int64_t thread, left, n_failed;
};

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

static struct control *control;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("ALLOC_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p != MAP_FAILED) control = p;
    if (fd >= 0) close(fd);
}

static int fails(void)
{
    if (!control || atomic_load(&control->left) < 0 || syscall(SYS_gettid) != atomic_load(&control->thread)) return 0;
    if (atomic_fetch_sub(&control->left, 1) != 0) return 0;
    atomic_fetch_add(&control->n_failed, 1);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    return fails() ? NULL : __libc_realloc(p, n);
}
