/* engine/tiers/ram_link_state.h - inside of the link: shared by ram_link.c (names, leaving) and ram_load.c (coming back). */
#pragma once
#include "base/sip_hash.h"
#include "engine/engine_state.h"
#include "engine/tiers/ram_link.h"
#include "store/ram_tier.h"

#define RAM_LEAVE_BATCHES 16u
#define RAM_LEAVE_PAGES   64u /* in one batch */
#define RAM_MAX_LOADS     8u
#define RAM_MAX_TRIES     4u

struct page_name {
    struct hash128 digest;
    bool is_valid;
};

/* Pages on their way to the tier. */
struct ram_leaving {
    struct kv_loan loan;
    uint32_t n;
    uint64_t ticket;
    bool has_failed; /* it did not even begin */
    kv_page pages[RAM_LEAVE_PAGES];
    uint32_t slots[RAM_LEAVE_PAGES];
};

/* Pages [first, first + n) of a chain on their way back. */
struct ram_load {
    struct radix_node *root, *hold; /* hold: locked path of the first n_held tokens */
    struct kv_loan loan;
    uint32_t n_held, first, n, n_requests;
    uint64_t ticket, begun_ns;
    rd_status begun;
    uint32_t *tokens;        /* [(first + n) * page_tokens] */
    struct hash128 *digests; /* [first + n] */
    kv_page *pages;          /* [first + n], those before first unused */
    uint32_t *slots;         /* [n], held */
    void **bytes;            /* [n] */
};

struct ram_link {
    struct ram_tier *tier;
    uint32_t page_tokens, max_pages;
    struct sip_key key;
    struct executor *executor;
    struct page_pool *pool;
    struct kv_cache *cache;
    struct store_link *store; /* tells which pages are lossy; or NULL */
    struct page_name *names;  /* [n_pages] */
    uint32_t *tokens;         /* [n_pages, page_tokens] of named pages */
    struct hash128 *digests;  /* [max_pages] of the prompt being looked up */

    struct ram_leaving leaving[RAM_LEAVE_BATCHES]; /* a ring: n_leaving batches from first_leaving on; the one after */
    uint32_t first_leaving, n_leaving;             /* them is being filled */

    struct ram_load *loads[RAM_MAX_LOADS]; /* in the order in which they began */
    uint32_t n_loads;
    uint64_t n_promised;
    struct ram_link_counts counts;
};

/* The digests of pages [0, n) of keys, from the namespace's seed on. */
void ram_link_chain(const struct ram_link *l, struct hash128 seed, const kv_key *keys, uint32_t n,
                    struct hash128 *digests);
struct hash128 ram_link_seed(struct engine *e, const struct kv_space *space);
struct hash128 ram_link_seed_of(struct engine *e, struct request *r);
/* A page that came from the tier. */
void ram_link_set_name(struct ram_link *l, kv_page page, struct hash128 digest, const uint32_t *tokens);
/* Waits until what is leaving has left. */
void ram_link_finish_leaving(struct engine *e);
/* ram_load.c */
/* True: r waits for a load now, in the queue. root: its namespace in the tree. */
bool ram_load_wait(struct engine *e, struct request *r, struct radix_node *root, uint64_t now);
/* r ends while it is queued. */
void ram_load_leave(struct engine *e, struct request *r);
/* Attaches loads that are done; wait: all of them. */
void ram_load_collect(struct engine *e, uint64_t now, bool wait);
