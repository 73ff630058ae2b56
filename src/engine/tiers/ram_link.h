/* engine/tiers/ram_link.h - between the engine and the tier in host memory: pages that leave a device go there, and come back.
 *
 *     evicted page --copy beside the steps--> slot of the tier (store/ram_tier.h)       the page is free when it is there
 *     a request comes: the tier has more of its prompt than the tree
 *         --> takes pages, waits in the queue --copy beside the steps--> attached to the tree as ready, admitted
 *
 * NAMES. A page is known by a chain of digests, of its tokens and of the page before it, seeded by the namespace; keyed,
 * so that none can make up two texts with one name. A page is named when it is full (committed), so
 * that eviction needs no look at the tree. Full pages alone are kept; up to page_tokens - 1 tokens behind them, and the
 * hidden state at an end, are computed again, or come from disk where there is a disk cache: it is asked next.
 *
 * LEAVING. radix_evict tells of pages; they stay taken, as loans, until their copies are done. Pages are evicted ahead
 * of need (before_step), so that a step rarely waits for that; where it needs them at once, engine_evict waits.
 * What came back stays in the tier as the first to go: evicted again soon, it needs no copy.
 *
 * WINDOWS. A page goes with its window, where it has one, and its copy says so. Those that the row behind a load's end sees
 * come back, where the tier has them; the others are not wanted. A slot has room for both.
 *
 * On a CPU the tier makes no sense, but works: copies are done when they begin (tests).
 *
 * A link serves one engine in its life.
 *
 * Thread  create, destroy: the owner. Everything else: engine thread.
 * Errors  nothing here fails a request: without memory or room it computes. After a failed copy the page is gone.
 */
#pragma once
#include "kv/kv_space.h"
#include "kv/radix.h"
#include "radish/status.h"

struct engine;
struct ram_link;

/* A tier of n_bytes for the pages of one engine; max_pages: of the longest sequence. RD_E_NOMEM. */
rd_status ram_link_create(uint64_t n_bytes, uint64_t page_bytes, uint32_t page_tokens, uint32_t max_pages, bool thread,
                          struct ram_link **out);
void ram_link_destroy(struct ram_link *l);

/* Without a tier these do nothing. */
/* Empties the tier, also of what is on its way. */
void ram_link_clear(struct engine *e);
/* Of keys[0..n) in a namespace, how many tokens behind the first n_there come from the tier. */
uint32_t ram_link_n_more(struct engine *e, const struct kv_space *space, const kv_key *keys, uint32_t n,
                         uint32_t n_there);
/* Pages of keys[0..n) behind the first n_keep tokens are dropped from the tier, where no copy of them is under way. */
void ram_link_drop(struct engine *e, const struct kv_space *space, const kv_key *keys, uint32_t n, uint32_t n_keep);
