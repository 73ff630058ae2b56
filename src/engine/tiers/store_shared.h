/* engine/tiers/store_shared.h - the link's way to a store that other machines share (store/shared_store.h).
 *
 *     a request's prompt goes on behind what the tree and the disk have: it is looked up there (once a request), by the
 *     shared loader's thread, while the request waits in the queue and others run
 *       -> so many pages more: they are loaded with those on disk (store_load.c), by the same thread, where by what
 *          both took lately that is quicker than computing them; where it takes longer than that (and than a second)
 *          the request goes on, and what came by then is used
 *     a page that the saver has written to disk is offered to it
 *     a request's prompt is on disk from longer ago (before there was a store, or the store has lost it): what is there lives
 *          longer, the other pages are read from disk and offered, by the saver, when both threads have nothing else to do.
 *          What was offered or asked for within SHARED_FRESH_NS is not asked for again
 *
 * Engine thread, if nothing else is said. Nothing here fails a request.
 */
#pragma once
#include "engine/tiers/store_link_state.h"

/* o->shared becomes the link's, also where this fails. */
rd_status store_shared_begin(struct store_link *l);
/* Ends its thread and closes the store. */
void store_shared_end(struct store_link *l);
void store_shared_wake(struct store_link *l); /* the link closes; under its lock */
/* Without threads: does what is queued. */
void store_shared_work(struct store_link *l);

/* True: r waits now. n_here: pages from its first on that the tree or the disk has; n_full: whole pages of its prompt. */
bool store_shared_ask(struct engine *e, struct request *r, uint32_t n_here, uint32_t n_full, uint64_t compute_page_ns,
                      uint64_t now);
/* The first n pages of r's prompt are on disk; l->digests are theirs. */
void store_shared_refresh(struct engine *e, struct request *r, uint32_t n, uint64_t now);
/* The page was offered just now. */
void store_shared_note(struct store_link *l, struct hash128 disk_digest, uint64_t now);
/* Answers that came; requests that waited too long. */
void store_shared_collect(struct engine *e, uint64_t now);
void store_shared_leave(struct engine *e, struct request *r);
void store_shared_finish(struct engine *e);
/* For its loader. */
void store_shared_submit(struct store_link *l, struct load_job *job);

/* Digests of pages [first, n) in its chain behind digests[first - 1] (of page 0: the space's seed). */
struct hash128 store_shared_seed(const struct store_link *l, const struct store_space *space);
struct hash128 store_shared_next(const struct store_link *l, struct hash128 before, const kv_key *keys);

/* Saver thread. */
void store_shared_offer(struct store_link *l, const struct save_job *job, const void *bytes);
/* Pages [first, n) of tokens are read from disk and offered, as far as there is room. spaces: theirs, and of those that are
 * packed. */
void store_shared_offer_stored(struct store_link *l, struct store_space *const *spaces, const uint32_t *tokens,
                               uint32_t first, uint32_t n);
void store_shared_remove(struct store_link *l, struct store_space *space, const uint32_t *tokens, uint32_t n);
/* Any thread. */
void store_shared_clear(struct store_link *l);
void store_shared_gather(const struct engine *e, struct engine_stats *s);
