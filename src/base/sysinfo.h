/* base/sysinfo.h - what this machine and this process have. Any thread. Units: bytes. */
#pragma once
#include <stdint.h>

/* Memory that this process may use: the machine's, or its control group's limit (systemd's MemoryMax, a container's)
 * where that is lower. */
uint64_t sysinfo_memory(void);
/* Of it, what nobody uses: MemAvailable of /proc/meminfo; 0: not known. */
uint64_t sysinfo_memory_free(void);
/* The least limit of the groups that groups names (the text of /proc/self/cgroup), and of those above them, in the tree
 * at root (/sys/fs/cgroup), version 1 or 2. UINT64_MAX: there is none. */
uint64_t sysinfo_group_memory(const char *groups, const char *root);
/* Raises the soft limit on open files to the hard one; returns how many this process may have open. */
uint64_t sysinfo_open_files(void);
/* Resident memory of this process: anonymous (ours) and file-backed (mapped models); 0 where unknown. */
void sysinfo_resident(uint64_t *anon, uint64_t *file);
