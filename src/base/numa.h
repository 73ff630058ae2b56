/* base/numa.h - machines whose cores have memory that is near (nodes, "NUMA"), and threads that keep to some of them.
 *
 * Memory that a thread touches first, and that has no other policy, comes from where the thread runs: who keeps to a node before it
 * allocates has its memory there. What others touched (a file's pages in the cache) stays where it is.
 *
 * Thread  any thread. Linux; elsewhere there are no nodes.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMA_NODES = 64, NUMA_CORES = 1024 };

struct numa_nodes {
    uint32_t n; /* those with cores that this process may use */
    uint32_t ids[NUMA_NODES];
    uint64_t cores[NUMA_NODES][NUMA_CORES / 64]; /* bits: those cores */
};

/* What a thread kept to. */
struct numa_place {
    bool is_known;
    uint64_t cores[NUMA_CORES / 64];
    int policy;
    uint64_t nodes[NUMA_CORES / 64];
};

/* As the system says in `root`, a folder (NULL: /sys/devices/system/node). n 0: it says nothing, or what is no list. */
void numa_read(const char *root, struct numa_nodes *out);
/* The calling thread, and those that it starts from now on, run on the cores of n nodes, from `first` on, and take memory there: of
 * one node, or of several by turns. before: for numa_put_back, or NULL. false: the system refused the cores, nothing has changed. (Where it
 * refuses the memory alone, as in containers, that is near all the same: above.) */
bool numa_keep_to(const struct numa_nodes *nodes, uint32_t first, uint32_t n, struct numa_place *before);
void numa_put_back(const struct numa_place *before);
