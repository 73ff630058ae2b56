/* bench/gpu/repeat_map.c - a library that is put before libc (LD_PRELOAD): of a large file that is mapped, the GiB behind its first
 * 32 MiB stands for all that follows. So a model of 140 GB of which make_random_models.py has written a little (thin) is read at the
 * speed of memory, without a disk of that size, or as much memory.
 *
 *     cc -shared -fPIC -D_GNU_SOURCE -o repeat_map.so bench/gpu/repeat_map.c -ldl
 *     LD_PRELOAD=./repeat_map.so radish bench llama3-70b.gguf --tp 2 ..
 */
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/types.h>

#define HEAD  (32ul << 20) /* a header of 6 MB, and more */
#define AGAIN (1ul << 30)
#define LARGE (2ul << 30) /* files below this are mapped as they are */

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    static void *(*real)(void *, size_t, int, int, int, off_t);
    char *whole;

    if (!real) real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    whole = real(at, n, prot, flags, fd, offset);
    if (fd < 0 || n < LARGE || offset != 0 || (prot & PROT_WRITE) || whole == MAP_FAILED) return whole;
    for (size_t i = HEAD + AGAIN; i < n; i += AGAIN)
        if (real(whole + i, n - i < AGAIN ? n - i : AGAIN, prot, flags | MAP_FIXED, fd, (off_t)HEAD) == MAP_FAILED)
            return MAP_FAILED;
    return whole;
}

void *mmap64(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return mmap(at, n, prot, flags, fd, offset);
}
