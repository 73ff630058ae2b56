/* base/linux/cgroup.h - what control groups leave this process (systemd's units, containers), version 1 or 2. Any thread.
 * Source  Documentation/admin-guide/cgroup-v2.rst */
#pragma once
#include <stdint.h>

/* The least limit of memory of the groups that groups names (the text of /proc/self/cgroup), and of those above them, in the
 * tree at root (/sys/fs/cgroup). UINT64_MAX: there is none. */
uint64_t cgroup_memory(const char *groups, const char *root);
/* The smallest quota of this process in cores, rounded up; 0: none. */
uint32_t cgroup_cores(void);
