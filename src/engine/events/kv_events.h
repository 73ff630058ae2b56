/* engine/events/kv_events.h - tells others what is cached: a block is stored, a block is gone.
 *
 * A block is a page: page_tokens tokens and all that lead to them. It is stored when its last token was computed, or when a
 * request found it in a tier; it is gone when the last page with it is free. So an index that follows the events holds what
 * the tree and running requests hold, in whole pages.
 *
 *     engine thread: a page fills, a page is freed  --queue, bounded-->  events thread: batches, sockets
 *
 * The engine never waits: an event that finds the queue full is dropped and counted, and so are all behind it until the thread has told
 * AllBlocksCleared; what is cached then is told again as requests use it.
 *
 * Thread  create, destroy: the owner. get_counts: any. The rest: engine thread.
 * Errors  create: event_socket.h's.
 */
#pragma once
#include "engine/events/block_hash.h"
#include "engine/events/event_socket.h"
#include "engine/tier.h"

struct kv_events;

struct kv_events_options {
    struct event_socket_options socket;
    bool maps, numbers; /* event_batch.h */
    enum block_hash_kind hash;
    uint32_t page_tokens, n_pages;
};

rd_status kv_events_create(const struct kv_events_options *o, struct kv_events **out, struct rd_error *err);
/* Sends what waits. NULL is fine. The engine is gone. */
void kv_events_destroy(struct kv_events *k);
void kv_events_get_counts(struct kv_events *k, struct kv_events_counts *out);
