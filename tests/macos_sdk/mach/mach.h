#pragma once
#include <sys/types.h>
typedef int kern_return_t;
typedef unsigned int natural_t, mach_msg_type_number_t, mach_port_t;
typedef int integer_t;
typedef uint64_t mach_vm_size_t;
typedef mach_port_t *thread_act_array_t;
typedef integer_t *host_info64_t, *task_info_t;
#define KERN_SUCCESS 0
extern mach_port_t mach_task_self_;
#define mach_task_self() mach_task_self_
struct vm_statistics64 {
    natural_t free_count, active_count, inactive_count, wire_count;
    uint64_t zero_fill_count, reactivations, pageins, pageouts, faults, cow_faults, lookups, hits, purges;
    natural_t purgeable_count, speculative_count;
    uint64_t decompressions, compressions, swapins, swapouts;
    natural_t compressor_page_count, throttled_count, external_page_count, internal_page_count;
    uint64_t total_uncompressed_pages_in_compressor;
};
struct task_vm_info {
    mach_vm_size_t virtual_size;
    integer_t region_count, page_size;
    mach_vm_size_t resident_size, resident_size_peak, device, device_peak, internal, internal_peak, external,
        external_peak, reusable, reusable_peak; /* and more of later systems */
};
#define HOST_VM_INFO64       4
#define HOST_VM_INFO64_COUNT ((mach_msg_type_number_t)(sizeof(struct vm_statistics64) / sizeof(integer_t)))
#define TASK_VM_INFO         22
#define TASK_VM_INFO_COUNT   ((mach_msg_type_number_t)(sizeof(struct task_vm_info) / sizeof(natural_t)))
mach_port_t mach_host_self(void);
kern_return_t mach_port_deallocate(mach_port_t, mach_port_t);
kern_return_t host_statistics64(mach_port_t, int, host_info64_t, mach_msg_type_number_t *);
kern_return_t task_info(mach_port_t, natural_t, task_info_t, mach_msg_type_number_t *);
kern_return_t task_threads(mach_port_t, thread_act_array_t *, mach_msg_type_number_t *);
