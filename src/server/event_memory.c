/* server/event_memory.c - see the header. */
#include "server/event_memory.h"
#include <event2/event.h>
#include "base/mem.h"

static _Thread_local bool failed; /* libevent gives its allocator no argument to keep it in */

static void *checked(void *p)
{
    if (!p) failed = true;
    return p;
}

static void *event_alloc(size_t n)
{
    return checked(mem_alloc(n, 1));
}
static void *event_realloc(void *p, size_t n)
{
    return checked(mem_realloc(p, n, 1));
}

void event_memory_install(void)
{
    event_set_mem_functions(event_alloc, event_realloc, mem_free);
}
void event_memory_clear(void)
{
    failed = false;
}
bool event_memory_failed(void)
{
    return failed;
}
