/* engine/events/event_batch.h - KV events as vLLM writes them: msgpack, a batch of events in a message.
 *
 *     batch            [time, [event, ..], 0]
 *     BlockStored      ["BlockStored", [hash], hash before or nil, [tokens], block size, nil, medium, nil, [[extra] or nil]]
 *     BlockRemoved     ["BlockRemoved", [hash], medium]
 *     AllBlocksCleared ["AllBlocksCleared"]
 *
 * As maps an event is {"type": name, "block_hashes": .., ..}: vLLM's of late 2026, and what its router
 * (vllm-router 0.1.17) wants; the batch is a list all the same. A hash is 32 bytes, or a number.
 *
 * Thread  any thread.  Errors  buf's.
 */
#pragma once
#include "base/buf.h"
#include "engine/events/block_hash.h"

enum kv_event_kind { KV_EVENT_STORED, KV_EVENT_REMOVED, KV_EVENT_CLEARED };

struct kv_event {
    enum kv_event_kind kind;
    bool has_parent;
    char extra[33]; /* "": none */
    struct block_hash hash, parent;
    uint32_t tokens[]; /* [page_tokens]; STORED */
};

struct event_form {
    bool maps, numbers;
    uint32_t page_tokens;
};

/* The batch up to its events, of which n follow; behind the last its end. */
void event_batch_begin(struct buf *out, double time_s, uint32_t n);
void event_batch_put(struct buf *out, const struct event_form *f, const struct kv_event *e);
void event_batch_end(struct buf *out);
