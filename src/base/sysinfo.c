/* base/sysinfo.c - sysconf, the control group's limit, /proc/self/status. */
#include "base/sysinfo.h"
#include <sys/resource.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
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

/* The number in a file; UINT64_MAX: "max", or there is none. */
static uint64_t read_limit(const char *path)
{
    char text[64];
    size_t n = read_kernel_file(path, text, sizeof(text));
    uint64_t limit;

    while (n > 0 && text[n - 1] == '\n') n--;
    return parse_u64(text, n, &limit) ? limit : UINT64_MAX;
}

/* Of a group and of all above it: tree/PATH/file, tree/PAT/file ... tree/file. */
static uint64_t least_limit(const char *tree, const char *group, size_t n, const char *file)
{
    char path[SMALL_FILE];
    uint64_t least = UINT64_MAX;

    if (n >= SMALL_FILE / 2) return least;
    for (;;) {
        snprintf(path, sizeof(path), "%s%.*s/%s", tree, (int)n, group, file);
        least = u64_min(least, read_limit(path));
        if (n == 0) return least;
        while (n > 0 && group[--n] != '/') {}
    }
}

/* Whether the word is one of those between the commas of list[0 .. n). */
static bool has_word(const char *list, size_t n, const char *word)
{
    size_t n_word = strlen(word);

    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && list[end] != ','; end++) {}
        if (end - i == n_word && memcmp(list + i, word, n_word) == 0) return true;
    }
    return false;
}

uint64_t sysinfo_group_memory(const char *groups, const char *root)
{
    uint64_t least = UINT64_MAX;
    char tree[SMALL_FILE / 4];

    /* "4:memory:/a/b"; version 2: "0::/a/b" */
    for (const char *line = groups, *end; *line; line = end + (*end == '\n')) {
        const char *controllers, *group;
        bool is_v2;

        end = line + strcspn(line, "\n");
        controllers = memchr(line, ':', (size_t)(end - line));
        group = controllers ? memchr(controllers + 1, ':', (size_t)(end - controllers - 1)) : NULL;
        if (!group || group[1] != '/') continue;
        is_v2 = group == ++controllers;
        if (!is_v2 && !has_word(controllers, (size_t)(group - controllers), "memory")) continue;
        snprintf(tree, sizeof(tree), "%s%s", root, is_v2 ? "" : "/memory");
        least = u64_min(least, least_limit(tree, group + 1, (size_t)(end - group - 1),
                                           is_v2 ? "memory.max" : "memory.limit_in_bytes"));
    }
    return least;
}

uint64_t sysinfo_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t total = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 30;
    char groups[SMALL_FILE];

    read_kernel_file("/proc/self/cgroup", groups, sizeof(groups));
    return u64_min(total, sysinfo_group_memory(groups, "/sys/fs/cgroup"));
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

uint64_t sysinfo_memory_free(void)
{
    char text[SMALL_FILE];

    read_kernel_file("/proc/meminfo", text, sizeof(text));
    return u64_min(status_kib(text, "MemAvailable"), sysinfo_memory());
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

    if (getrlimit(RLIMIT_NOFILE, &limit)) return 1024; /* what every system gives */
    if (limit.rlim_cur < limit.rlim_max) {
        struct rlimit raised = {limit.rlim_max, limit.rlim_max};

        if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
    }
    return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}
