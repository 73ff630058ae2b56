/* base/sysinfo.h - what this machine and this process have. Any thread. Units: bytes. */
#pragma once
#include <stdint.h>

/* Memory that this process may use: the machine's, or its control group's limit (systemd's MemoryMax, a container's)
 * where that is lower. */
uint64_t sysinfo_memory(void);
/* Of it, what nobody uses; 0: not known. */
uint64_t sysinfo_memory_free(void);
/* Raises the soft limit on open files to the hard one; returns how many this process may have open. */
uint64_t sysinfo_open_files(void);
/* Resident memory of this process: anonymous (ours) and file-backed (mapped models); 0 where unknown. */
void sysinfo_resident(uint64_t *anon, uint64_t *file);
