/* base/linux/cgroup.c - see cgroup.h. */
#include "base/linux/cgroup.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/linux/kernel_file.h"

#define PATH_BYTES 8192u

/* The number in a file; UINT64_MAX: "max", or there is none. */
static uint64_t read_limit(const char *path)
{
    char text[64];
    size_t n = kernel_file_read(path, text, sizeof(text));
    uint64_t limit;

    while (n > 0 && text[n - 1] == '\n') n--;
    return parse_u64(text, n, &limit) ? limit : UINT64_MAX;
}

/* Of a group and of all above it: tree/PATH/file, tree/PAT/file ... tree/file. */
static uint64_t least_limit(const char *tree, const char *group, size_t n, const char *file)
{
    char path[PATH_BYTES];
    uint64_t least = UINT64_MAX;

    if (n >= PATH_BYTES / 2) return least;
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

uint64_t cgroup_memory(const char *groups, const char *root)
{
    uint64_t least = UINT64_MAX;
    char tree[PATH_BYTES / 4];

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

/* Cores of a quota, rounded up; 0: none ("max" or -1), or not understood. */
static uint32_t quota_cores(const char *quota, size_t quota_len, const char *period)
{
    uint64_t q, p;

    if (!parse_u64(quota, quota_len, &q) || !parse_u64(period, strlen(period), &p) || p == 0 || q == 0) return 0;
    return (uint32_t)u64_min(q / p + (q % p != 0), UINT32_MAX);
}

/* cgroup v2 (our group and each one above it), then v1; the smallest quota, 0: none. */
uint32_t cgroup_cores(void)
{
    char group[512], path[600], line[64], period[64];
    uint32_t least = 0, n;

    if (kernel_file_line("/proc/self/cgroup", group, sizeof(group)) && strncmp(group, "0::/", 4) == 0) {
        for (char *end = group + strlen(group);; end = strrchr(group + 3, '/')) {
            *end = 0;
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", group + 3);
            if (kernel_file_line(path, line, sizeof(line))) {
                char *blank = strchr(line, ' ');
                n = blank ? quota_cores(line, (size_t)(blank - line), blank + 1) : 0;
                if (n && (!least || n < least)) least = n;
            }
            if (!group[3]) break;
        }
    }
    if (kernel_file_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof(line)) &&
        kernel_file_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof(period))) {
        n = quota_cores(line, strlen(line), period);
        if (n && (!least || n < least)) least = n;
    }
    return least;
}
