/* engine/tier.h - what the engine's core carries for the tiers: pages that left the device are kept in host memory
 * (tiers/ram_link.h) and on disk (tiers/store_link.h), and come back when a prompt goes on there.
 *
 * A tier is a listener (listener.h) that also answers questions: does this request wait for you, which pages are yours
 * now, which will be. What a request knows of each, and what each counts, lies here, so that the core names no tier.
 * Thread  engine thread.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/hash.h"

struct load_job;
struct shared_lookup;
struct ram_load;
struct store_space;

/* What a request knows of host memory; zeros at first. */
struct request_ram {
    struct ram_load *load; /* it waits in the queue for this one */
    uint32_t n_tries;
    uint32_t from, to;         /* prompt tokens that loads brought */
    uint32_t n_named;          /* pages of its block table that were named, or had a name */
    struct hash128 seed, last; /* of its namespace; of page n_named - 1 */
    bool has_seed;
};

/* What a request knows of the disk; zeros at first. */
struct request_store {
    struct load_job *job; /* it waits in the queue for this load */
    uint64_t deadline_ns;
    uint32_t n_tries;                             /* loads that it waited for */
    uint32_t from, to;                            /* prompt tokens that loads brought */
    struct store_space *space;                    /* held; NULL: not looked up yet */
    uint32_t n_saved;                             /* pages that are stored, or were handed over */
    struct store_space *end_space, *packed_space; /* of ends, of packed pages; as space */
    uint32_t end_at;                              /* the end after this many tokens was handed over */
    struct hash128 last;                          /* digest of page n_saved - 1 */

    /* of the shared store (tiers/store_shared.h) */
    struct shared_lookup *lookup;    /* it waits in the queue for this answer */
    bool was_asked, was_refreshed;   /* once a request */
    uint32_t n_shared;               /* pages from its first on that are here, on disk, or there, as the answer said */
    uint32_t shared_from, shared_to; /* prompt tokens that loads brought from there */
    struct hash128 shared_last;      /* as last, in that store's chain */
};

struct ram_link_counts {
    uint64_t n_pages, n_slots;                 /* in the tier now, of how many */
    uint64_t n_saved, n_dropped;               /* pages copied there; dropped for room */
    uint64_t n_loads, n_pages_loaded, load_ns; /* load_ns: from a load's begin until it was seen to be done, summed */
    uint64_t n_loading, n_leaving;             /* pages on their way now */
    uint64_t n_failed;                         /* copies that failed */
};

/* What a request knows of the events that are told of it (events/kv_events.h); zeros at first. */
struct request_events {
    uint32_t n_named; /* its pages that were named */
    uint8_t last[32]; /* the hash of page n_named - 1 */
};

struct kv_events_counts {
    uint64_t is_on, n_stored, n_removed, n_batches, n_dropped, n_cleared, n_replays;
};
