/* store/ram_tier.h - pages of a device that were evicted, in host memory: found by digest, least recently used first out.
 *
 * Slots of one page each, in chunks of memory that are taken and pinned as they are needed: by a thread of the tier, a
 * chunk ahead of use (pinning takes milliseconds, which no step must wait for), or at once where it has no thread.
 * A slot that is copied to or from is held: it is neither dropped nor given to others meanwhile.
 *
 * The tier knows digests and bytes. What a digest stands for is its user's: engine/tiers/ram_link.h.
 *
 * Thread  create, destroy: the owner. grow: the tier's own thread. Everything else: one thread (the engine's).
 * Errors  create: RD_E_NOMEM. take: RAM_NO_SLOT.
 */
#pragma once
#include <stdbool.h>
#include "base/hash.h"
#include "radish/status.h"

#define RAM_NO_SLOT UINT32_MAX
struct ram_tier;

struct ram_tier_options {
    uint64_t n_bytes, page_bytes; /* at least one page */
    uint32_t page_tokens;
    bool thread;
};

/* n_slots: that can be; n_pages: that are there. */
struct ram_tier_counts {
    uint64_t n_slots, n_pages, n_put, n_dropped;
};

rd_status ram_tier_create(const struct ram_tier_options *o, struct ram_tier **out);
/* Nothing is held any more. NULL is fine. */
void ram_tier_destroy(struct ram_tier *t);
/* Chunks are pinned from now on by this (any thread; arg stays until ram_tier_unpin), those that are there too. */
void ram_tier_pin(struct ram_tier *t, void (*pin)(void *arg, void *p, uint64_t n_bytes, bool on), void *arg);
void ram_tier_unpin(struct ram_tier *t);

/* The page with this digest and these tokens [page_tokens]; RAM_NO_SLOT: it is not here. */
uint32_t ram_tier_find(const struct ram_tier *t, struct hash128 digest, const uint32_t *tokens);
/* A slot for a page that is not here, held, and found from now on: a new one, else that of the page used least recently,
 * which is dropped. RAM_NO_SLOT: all are held, there is no memory, or not yet. */
uint32_t ram_tier_take(struct ram_tier *t, struct hash128 digest, const uint32_t *tokens);
void *ram_tier_bytes(const struct ram_tier *t, uint32_t slot);
void ram_tier_hold(struct ram_tier *t, uint32_t slot);
void ram_tier_release(struct ram_tier *t, uint32_t slot);
bool ram_tier_is_held(const struct ram_tier *t, uint32_t slot);
/* Counts as used now; or, as the device has it as well, as used longest ago. */
void ram_tier_touch(struct ram_tier *t, uint32_t slot);
void ram_tier_retire(struct ram_tier *t, uint32_t slot);
/* The page is found no more; its slot is free. Not held. */
void ram_tier_drop(struct ram_tier *t, uint32_t slot);
/* All that are not held. */
void ram_tier_clear(struct ram_tier *t);
struct ram_tier_counts ram_tier_get_counts(const struct ram_tier *t);
