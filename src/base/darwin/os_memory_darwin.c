/* base/darwin/os_memory_darwin.c - see os_memory.h. */
#include "base/os_memory.h"
#include <mach/mach.h>
#include <malloc/malloc.h>
#include <unistd.h>

size_t os_heap_bytes(const void *p)
{
    return malloc_size(p);
}

void os_heap_keep_little(size_t own_mapping, int n_arenas)
{
    (void)own_mapping, (void)n_arenas;
}

void os_heap_give_back(void)
{
    (void)malloc_zone_pressure_relief(NULL, 0);
}

/* Its pages are 16 KiB; there are no others to ask for. */
void os_advise_huge(void *p, size_t n)
{
    (void)p, (void)n;
}

void os_huge_pages(char *out, size_t cap)
{
    if (cap) out[0] = 0;
}

uint64_t os_memory_limit(void)
{
    return UINT64_MAX;
}

/* Free pages, and those whose contents are elsewhere, too. */
uint64_t os_memory_free(void)
{
    struct vm_statistics64 s;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    const mach_port_t host = mach_host_self();
    const kern_return_t rc = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&s, &n);

    mach_port_deallocate(mach_task_self(), host);
    if (rc != KERN_SUCCESS) return 0;
    return ((uint64_t)s.free_count + s.inactive_count + s.purgeable_count) * (uint64_t)sysconf(_SC_PAGESIZE);
}

void os_memory_resident(uint64_t *anon, uint64_t *file)
{
    struct task_vm_info info;
    mach_msg_type_number_t n = TASK_VM_INFO_COUNT;

    *anon = *file = 0;
    if (task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&info, &n) != KERN_SUCCESS) return;
    *anon = info.internal;
    *file = info.external;
}
