/* server/event_memory.h - libevent's memory, and whether any of it could not be had.
 *
 * libevent 2.1 does not report every failed allocation: a bufferevent whose output callback could not be stored is
 * returned as if it were whole, and never writes; a base whose lock could not be made runs without one. So its
 * allocations are ours (base/mem.h, with its test hook), and a failed one leaves a mark on its thread:
 *
 *     event_memory_clear();
 *     bev = bufferevent_socket_new(...);
 *     if (!bev || event_memory_failed()) ...               the object may be half made: free it
 *
 * Thread  any thread; the mark is the calling thread's own.
 */
#pragma once
#include <stdbool.h>

/* Before anything else of libevent. */
void event_memory_install(void);
void event_memory_clear(void);
/* An allocation of this thread has failed since the mark was cleared. */
bool event_memory_failed(void);
