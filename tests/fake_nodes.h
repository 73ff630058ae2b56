/* tests/fake_nodes.h - a folder that looks like /sys/devices/system/node (base/numa.h). */
#pragma once
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct fake_nodes {
    char path[32];
};

static inline bool fake_nodes_put(const struct fake_nodes *f, const char *name, const char *text)
{
    char path[160];
    FILE *out;

    snprintf(path, sizeof(path), "%s/%s", f->path, name);
    out = fopen(path, "w");
    return out && fputs(text, out) >= 0 && fclose(out) == 0;
}

/* online: the nodes' list, but for its line's end. */
static inline bool fake_nodes_make(struct fake_nodes *f, const char *online)
{
    char line[64];

    snprintf(f->path, sizeof(f->path), "/tmp/radish-nodes-XXXXXX");
    snprintf(line, sizeof(line), "%s\n", online);
    return mkdtemp(f->path) && fake_nodes_put(f, "online", line);
}

static inline bool fake_nodes_add(const struct fake_nodes *f, uint32_t id, const char *cores)
{
    char name[96], line[64];

    snprintf(name, sizeof(name), "%s/node%u", f->path, id);
    if (mkdir(name, 0700) != 0) return false;
    snprintf(name, sizeof(name), "node%u/cpulist", id);
    snprintf(line, sizeof(line), "%s\n", cores);
    return fake_nodes_put(f, name, line);
}

static inline bool fake_nodes_remove(const struct fake_nodes *f)
{
    char command[64];

    snprintf(command, sizeof(command), "rm -r '%s'", f->path);
    return system(command) == 0;
}

/* The first two cores that this process may use; false: it has one. */
static inline bool two_cores(int cores[2])
{
    cpu_set_t set;
    int n = 0;

    if (sched_getaffinity(0, sizeof(set), &set) != 0) return false;
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &set)) cores[n++] = i;
    return n == 2;
}
