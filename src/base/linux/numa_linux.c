/* base/linux/numa_linux.c - see numa.h: node folders of sysfs, sched_setaffinity(2), set_mempolicy(2). */
#include <assert.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/linux/kernel_file.h"
#include "base/numa.h"

static_assert(NUMA_CORES <= CPU_SETSIZE, "a set holds them");

/* The numbers of a file's list, those that `set` has too where there is one, as bits; false: no list, or none of them. */
static bool read_list(const char *root, const char *name, const cpu_set_t *set, uint64_t bits[NUMA_CORES / 64])
{
    char path[512], line[1024];
    const char *at = line;
    uint64_t first, last;
    bool any = false;

    memset(bits, 0, NUMA_CORES / 8);
    snprintf(path, sizeof(path), "%s/%s", root, name);
    if (!kernel_file_line(path, line, sizeof(line))) return false;
    while (*at) {
        if (!kernel_list_next(&at, &first, &last)) return false;
        for (; first <= last && first < NUMA_CORES; first++) {
            if (set && !CPU_ISSET(first, set)) continue;
            bits[first / 64] |= UINT64_C(1) << first % 64;
            any = true;
        }
    }
    return any;
}

void numa_read(const char *root, struct numa_nodes *out)
{
    uint64_t online[NUMA_CORES / 64];
    cpu_set_t mine;

    out->n = 0;
    if (!root) root = "/sys/devices/system/node";
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof(mine), &mine) != 0 || !read_list(root, "online", NULL, online)) return;
    for (uint32_t id = 0; id < NUMA_CORES && out->n < NUMA_NODES; id++) {
        char name[64];

        if (!(online[id / 64] >> id % 64 & 1)) continue;
        snprintf(name, sizeof(name), "node%u/cpulist", id);
        if (!read_list(root, name, &mine, out->cores[out->n])) continue; /* memory alone, or not for us */
        out->ids[out->n++] = id;
    }
}

static bool set_cores(const uint64_t cores[NUMA_CORES / 64])
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (uint32_t i = 0; i < NUMA_CORES; i++)
        if (cores[i / 64] >> i % 64 & 1) CPU_SET(i, &set);
    return sched_setaffinity(0, sizeof(set), &set) == 0; /* 0: this thread */
}

static bool get_place(struct numa_place *out)
{
    cpu_set_t set;

    memset(out, 0, sizeof(*out));
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return false;
    for (uint32_t i = 0; i < NUMA_CORES; i++)
        if (CPU_ISSET(i, &set)) out->cores[i / 64] |= UINT64_C(1) << i % 64;
    if (syscall(SYS_get_mempolicy, &out->policy, out->nodes, (unsigned long)NUMA_CORES, NULL, 0ul) != 0)
        out->policy = MPOL_DEFAULT;
    return out->is_known = true;
}

static void set_policy(int policy, const uint64_t nodes[NUMA_CORES / 64])
{
    (void)syscall(SYS_set_mempolicy, policy, policy == MPOL_DEFAULT ? NULL : nodes, (unsigned long)NUMA_CORES);
}

bool numa_keep_to(const struct numa_nodes *nodes, uint32_t first, uint32_t n, struct numa_place *before)
{
    uint64_t cores[NUMA_CORES / 64] = {0}, ids[NUMA_CORES / 64] = {0};
    struct numa_place place;

    if (!get_place(&place)) return false;
    for (uint32_t i = first; i < first + n && i < nodes->n; i++) {
        for (uint32_t k = 0; k < NUMA_CORES / 64; k++) cores[k] |= nodes->cores[i][k];
        ids[nodes->ids[i] / 64] |= UINT64_C(1) << nodes->ids[i] % 64;
    }
    if (!set_cores(cores)) return false;
    set_policy(n == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE, ids);
    if (before) *before = place;
    return true;
}

void numa_put_back(const struct numa_place *before)
{
    if (!before->is_known) return;
    (void)set_cores(before->cores);
    set_policy(before->policy, before->nodes);
}
