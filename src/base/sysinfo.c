/* base/sysinfo.c - the machine's memory by sysconf(3), less by what the system leaves this process. */
#include "base/sysinfo.h"
#include <sys/resource.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/os_memory.h"

#define DARWIN_FILES 10240u /* a Mac says that there is no limit, and takes no more than this */

uint64_t sysinfo_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t total = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 30;

    return u64_min(total, os_memory_limit());
}

uint64_t sysinfo_memory_free(void)
{
    return u64_min(os_memory_free(), sysinfo_memory());
}

void sysinfo_resident(uint64_t *anon, uint64_t *file)
{
    os_memory_resident(anon, file);
}

static bool raise_to(struct rlimit *limit, rlim_t n)
{
    struct rlimit raised = {n, limit->rlim_max};

    if (n <= limit->rlim_cur || setrlimit(RLIMIT_NOFILE, &raised) != 0) return false;
    *limit = raised;
    return true;
}

uint64_t sysinfo_open_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit)) return 1024; /* what every system gives */
    if (!raise_to(&limit, limit.rlim_max)) raise_to(&limit, DARWIN_FILES);
    return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}
