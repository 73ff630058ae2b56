/* engine/request_pointers.c - see the header. */
#include "engine/request_pointers.h"
#include "base/mem.h"

void request_pointers_deinit(struct request_pointers *p)
{
    mem_free(p->states);
    mem_free(p->points);
    *p = (struct request_pointers){.states = NULL};
}
