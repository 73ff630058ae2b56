/* base/queue.h - handing objects between threads.
 *
 * struct queue: bounded, many producers, one or more consumers, pointers; mutex and condition (not for the step loop's
 * per-token path). struct wake: a doorbell: many ring it, one waits; ringing a second time before the wait is free.
 * Thread  any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct queue;
rd_status queue_create(size_t capacity, struct queue **out);
/* Must be empty (the objects in it would leak): drain first. NULL is fine. */
void queue_destroy(struct queue *q);
/* RD_E_FULL: nothing pushed. RD_E_CLOSED after queue_close(). */
rd_status queue_push(struct queue *q, void *item);
/* NULL: empty. Never blocks. */
void *queue_try_pop(struct queue *q);
/* Blocks until an item, or NULL when closed and empty. */
void *queue_pop(struct queue *q);
void queue_close(struct queue *q);
size_t queue_length(struct queue *q);

struct wake;
rd_status wake_create(struct wake **out);
void wake_destroy(struct wake *w);
void wake_ring(struct wake *w);
/* Returns at once if rung since the last wait; false when timeout_ns passed (UINT64_MAX: no limit). */
bool wake_wait(struct wake *w, uint64_t timeout_ns);
