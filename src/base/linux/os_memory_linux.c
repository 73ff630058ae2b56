/* base/linux/os_memory_linux.c - see os_memory.h. proc(5). */
#include "base/os_memory.h"
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "base/checked.h"
#include "base/linux/cgroup.h"
#include "base/linux/kernel_file.h"

#define SMALL_FILE 8192u

size_t os_heap_bytes(const void *p)
{
    return malloc_usable_size((void *)(uintptr_t)p);
}

void os_heap_keep_little(size_t own_mapping, int n_arenas)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, (int)own_mapping);
    mallopt(M_TRIM_THRESHOLD, (int)(16 * own_mapping));
    mallopt(M_ARENA_MAX, n_arenas); /* each thread that comes and goes with a model would leave parts of its own */
#else
    (void)own_mapping, (void)n_arenas;
#endif
}

void os_heap_give_back(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

void os_advise_huge(void *p, size_t n)
{
#ifdef MADV_HUGEPAGE
    madvise(p, n, MADV_HUGEPAGE);
#else
    (void)p, (void)n;
#endif
}

/* "always [madvise] never" -> "madvise" */
void os_huge_pages(char *out, size_t cap)
{
    char line[256], *open, *close;

    out[0] = 0;
    if (!kernel_file_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line))) return;
    open = strchr(line, '[');
    close = open ? strchr(open, ']') : NULL;
    if (close) *close = 0;
    snprintf(out, cap, "%s", close ? open + 1 : line);
}

uint64_t os_memory_limit(void)
{
    char groups[SMALL_FILE];

    kernel_file_read("/proc/self/cgroup", groups, sizeof(groups));
    return cgroup_memory(groups, "/sys/fs/cgroup");
}

/* The number behind "KEY:   123 kB". */
static uint64_t status_kib(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    uint64_t kib = 0;
    size_t n = 0;

    if (!at) return 0;
    at += strlen(key);
    at += strspn(at, ": \t");
    while (at[n] >= '0' && at[n] <= '9') n++;
    return parse_u64(at, n, &kib) ? kib * 1024 : 0;
}

uint64_t os_memory_free(void)
{
    char text[SMALL_FILE];

    kernel_file_read("/proc/meminfo", text, sizeof(text));
    return status_kib(text, "MemAvailable");
}

void os_memory_resident(uint64_t *anon, uint64_t *file)
{
    char text[SMALL_FILE];

    kernel_file_read("/proc/self/status", text, sizeof(text));
    *anon = status_kib(text, "RssAnon");
    *file = status_kib(text, "RssFile");
}
