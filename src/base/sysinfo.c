/* base/sysinfo.c - sysconf, the control group's limit, /proc/self/status. */
#include "base/sysinfo.h"
#include <sys/resource.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "base/checked.h"

#define SMALL_FILE 8192u

/* Files of the kernel have no size: read until the end, at most cap - 1 bytes, terminated. */
static size_t read_kernel_file(const char *path, char *text, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t got;

    text[0] = 0;
    if (fd < 0) return 0;
    while (n + 1 < cap && (got = read(fd, text + n, cap - 1 - n)) > 0) n += (size_t)got;
    close(fd);
    text[n] = 0;
    return n;
}

uint64_t sysinfo_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t total = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 30, limit;
    char text[SMALL_FILE];
    size_t n = read_kernel_file("/sys/fs/cgroup/memory.max", text, sizeof(text));

    while (n > 0 && text[n - 1] == '\n') n--;
    if (parse_u64(text, n, &limit) && limit < total) total = limit;         /* "max": no limit */
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
    char text[SMALL_FILE];

    read_kernel_file("/proc/self/status", text, sizeof(text));
    *anon = status_kib(text, "RssAnon");
    *file = status_kib(text, "RssFile");
}

uint64_t sysinfo_open_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit)) return 1024;      /* what every system gives */
    if (limit.rlim_cur < limit.rlim_max) {
        struct rlimit raised = {limit.rlim_max, limit.rlim_max};

        if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
    }
    return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}
