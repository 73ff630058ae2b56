/* base/darwin/numa_darwin.c - see numa.h: all memory is as near. */
#include "base/numa.h"

void numa_read(const char *root, struct numa_nodes *out)
{
    (void)root;
    out->n = 0;
}

bool numa_keep_to(const struct numa_nodes *nodes, uint32_t first, uint32_t n, struct numa_place *before)
{
    (void)nodes, (void)first, (void)n;
    if (before) before->is_known = false;
    return false;
}

void numa_put_back(const struct numa_place *before)
{
    (void)before;
}
