/* engine/ram_link.h - between the engine and the tier in host memory: pages that leave a device go there, and come back.
 *
 *     evicted page --copy beside the steps--> slot of the tier (store/ram_tier.h)       the page is free when it is there
 *     a request comes: the tier has more of its prompt than the tree
 *         --> takes pages, waits in the queue --copy beside the steps--> attached to the tree as ready, admitted
 *
 * NAMES. A page is known by a chain of digests, of its tokens and of the page before it, seeded by the namespace; keyed,
 * so that none can make up two texts with one name. The engine names every page when it is full (ram_link_name), so
 * that eviction needs no look at the tree. Full pages alone are kept; up to page_tokens - 1 tokens behind them, and the
 * hidden state at an end, are computed again, or come from disk where there is a disk cache: it is asked next.
 *
 * LEAVING. radix_evict tells of pages; they stay taken, as loans, until their copies are done. Pages are evicted ahead
 * of need (ram_link_make_room), so that a step rarely waits for that; where it needs them at once, engine_evict waits.
 * What came back stays in the tier as the first to go: evicted again soon, it needs no copy.
 *
 * On a CPU the tier makes no sense, but works: copies are done when they begin (tests).
 *
 * A link serves one engine in its life.
 *
 * Thread  create, destroy: the owner. Everything else: engine thread.
 * Errors  nothing here fails a request: without memory or room it computes. After a failed copy the page is gone.
 */
#pragma once
#include "base/hash.h"
#include "engine/executor.h"
#include "kv/kv_seq.h"
#include "kv/kv_space.h"

struct engine;
struct request;
struct ram_link;
struct ram_load;

/* What a request knows of the tier; zeros at first. Engine thread. */
struct request_ram {
    struct ram_load *load;               /* it waits in the queue for this one */
    uint32_t n_tries;
    uint32_t from, to;                   /* prompt tokens that loads brought */
    uint32_t n_named;                    /* pages of its block table that were named, or had a name */
    struct hash128 seed, last;           /* of its namespace; of page n_named - 1 */
    bool has_seed;
};

struct ram_link_counts {
    uint64_t n_pages, n_slots;           /* in the tier now, of how many */
    uint64_t n_saved, n_dropped;         /* pages copied there; dropped for room */
    uint64_t n_loads, n_pages_loaded, load_ns;  /* load_ns: from a load's begin until it was seen to be done, summed */
    uint64_t n_loading, n_leaving;       /* pages on their way now */
    uint64_t n_failed;                   /* copies that failed */
};

/* A tier of n_bytes for the pages of one engine; max_pages: of the longest sequence. RD_E_NOMEM. */
rd_status ram_link_create(uint64_t n_bytes, uint64_t page_bytes, uint32_t page_tokens, uint32_t max_pages, bool thread,
                          struct ram_link **out);
void ram_link_destroy(struct ram_link *l);
/* The engine begins; RD_E_NOMEM. It ends, or never began: waits for copies, gives all pages back. NULL: none. */
rd_status ram_link_begin(struct engine *e);
void ram_link_let_go(struct engine *e);

/* Everything below: without a tier they do nothing. */

/* Evicts as radix_evict; what it returns is free. With or without a tier. */
uint32_t engine_evict(struct engine *e, uint32_t n_pages);
/* Pages for the next steps leave while this one runs. */
void ram_link_make_room(struct engine *e);
/* True: r waits for a load now, in the queue. root: its namespace in the tree. */
bool ram_link_wait(struct engine *e, struct request *r, struct radix_node *root, uint64_t now);
/* Pages that have left are free, loads that are done are attached; where nothing runs, waits for both. */
void ram_link_collect(struct engine *e, uint64_t now);
/* r ends while it is queued. */
void ram_link_leave(struct engine *e, struct request *r);
/* r's pages that are full get names: after a commit, and before its sequence ends. */
void ram_link_name(struct engine *e, struct request *r);
/* The page begins anew. */
void ram_link_unname(struct ram_link *l, kv_page page);
/* Empties the tier, also of what is on its way. */
void ram_link_clear(struct engine *e);
/* Of keys[0..n) in a namespace, how many tokens behind the first n_there come from the tier. */
uint32_t ram_link_n_more(struct engine *e, const struct kv_space *space, const kv_key *keys, uint32_t n,
                         uint32_t n_there);
/* Pages that requests in the queue will still take beside those of their loads; pages on their way. */
uint64_t ram_link_promised(const struct ram_link *l);
uint32_t ram_link_n_moving(const struct ram_link *l);
struct ram_link_counts ram_link_get_counts(const struct ram_link *l);
