/* base/sysinfo.c - sysconf, the control group's limit, /proc/self/status. */
#include "base/sysinfo.h"
#include <string.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/file.h"
#include "base/mem.h"

#define SMALL_FILE 65536u

uint64_t sysinfo_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t total = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 30, limit;
    char *text = NULL;
    size_t n = 0;

    if (file_read_all("/sys/fs/cgroup/memory.max", SMALL_FILE, &text, &n, NULL) == RD_OK) {
        while (n > 0 && text[n - 1] == '\n') n--;
        if (parse_u64(text, n, &limit) && limit < total) total = limit;     /* "max": no limit */
        mem_free(text);
    }
    return total;
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

void sysinfo_resident(uint64_t *anon, uint64_t *file)
{
    char *text = NULL;
    size_t n = 0;

    *anon = *file = 0;
    if (file_read_all("/proc/self/status", SMALL_FILE, &text, &n, NULL) != RD_OK) return;
    *anon = status_kib(text, "RssAnon");
    *file = status_kib(text, "RssFile");
    mem_free(text);
}
