/* engine/tiers/store_link.h - between the engine and the page store: pages are saved as they fill, and loaded while a request
 * waits.
 *
 *     engine thread                                saver thread                   loader thread
 *     a step filled a page  --copy of it, queue--> page_store_put, flush
 *     a request comes: the store has more of its
 *     prompt than the tree --> takes pages, waits ------------------------------> page_store_read, into the pages
 *     attaches them to the tree as ready, admits <--------------- doorbell ------'
 *
 * SAVING. After a step's commit its newly full pages are copied into a bounded staging area, if the store does not have
 * them: a memory copy per page_tokens rows, under a percent of computing them, and nothing has to stay locked while a
 * slow disk is written. Where staging is full the page is offered again after the next step, and at the request's end;
 * then it is given up and counted. Bytes of computed rows never change, so what is copied is final.
 *
 * LOADING. A request at the head of the queue whose prompt goes on in the store behind what the tree has holds that path,
 * takes pages (evicting, but only where the whole request fits) and waits in the queue; others pass it. The pages are
 * the loan of kv_seq.h until they are attached: what was verified, from the first page on without a gap. One load serves
 * all requests that want its beginning. It is not begun where computing would be quicker, by what loads and prefills
 * took lately; a request waits for at most LOAD_PATIENCE times what computing was expected to take, then computes, and
 * late pages are attached for others. Whole pages are stored, and where prompts and answers end the partial page and the
 * hidden state (store_end.h): elsewhere at most page_tokens - 1 matched tokens are computed again.
 *
 * LOSSY TIERS. With lossy_from, pages of later positions are stored packed (page_codec.h), in a namespace of their own;
 * those before, and ends, as they are. Which pages of the cache were unpacked is known (store_link_n_lossy), for telling.
 *
 * A link serves one engine in its life.
 *
 * Thread  create, destroy: the owner. Everything that takes the engine: engine thread. get_counts, clear: any.
 * Errors  nothing here fails a request; without memory, room or disk it computes.
 */
#pragma once
#include "engine/tiers/store_link_options.h"
#include "kv/kv_space.h"
#include "kv/radix.h"
#include "store/page_store.h"

struct engine;
struct store_link;

rd_status store_link_create(const struct store_link_options *o, struct store_link **out);
/* Writes what is staged (for at most 5 s), closes the store. The engine is gone, or has let go. NULL is fine. */
void store_link_destroy(struct store_link *l);
/* Without threads: saves and loads everything that is queued. */
void store_link_work(struct store_link *l);
struct page_store *store_link_store(struct store_link *l);
/* Empties the store and waits for that, for at most 10 s. Not from the engine thread. */
void store_link_clear(struct store_link *l);

/* Takes a text of a namespace out of the store, as page_store_prune does, after what waits to be written; waits
 * for that, for at most 10 s. Returns the entries dropped by then. Not from the engine thread. */
uint64_t store_link_prune(struct engine *e, const struct kv_space *kv_space, const kv_key *keys, uint32_t n);

/* The saver lets go of these texts of a namespace, as page_store_release does, after what waits to be written. Copied; does
 * not wait. Without memory they stay until the store wants their room. Engine thread. */
void store_link_release(struct engine *e, const struct kv_space *kv_space, const struct store_text *texts, uint32_t n);
/* Whole pages of a path that the tree holds and the store does not have (*n_missing more) are copied to be written; returns how
 * many found no room among those that wait (again, after store_link_sync). pages: their block table. Engine thread. */
uint32_t store_link_save_path(struct engine *e, const struct kv_space *kv_space, const kv_key *keys,
                              const kv_page *pages, uint32_t n, uint64_t *n_missing);
/* Writes what waits, and syncs it: not even a power cut takes it back. Waits for that, for at most 10 s (RD_E_AGAIN).
 * RD_E_UNSUPPORTED: there is no store. Not from the engine thread. */
rd_status store_link_sync(struct engine *e);
/* Counts as a use of what the store has of them: how many tokens, from the first on. Engine thread. */
uint32_t store_link_touch(struct engine *e, const struct kv_space *kv_space, const kv_key *keys, uint32_t n);

/* Up to which of the n keys the store has them, whoever has the first `from`: those, or more in whole pages. name: of a
 * namespace of another engine, with pages of page_bytes; NULL: this one's. Nothing is loaded. */
uint32_t store_link_n_stored(struct engine *e, const char *name, uint64_t page_bytes, const struct kv_space *kv_space,
                             const kv_key *keys, uint32_t n, uint32_t from);
/* Tokens of the first n of a block table that are in pages which were packed. NULL: none. */
uint32_t store_link_n_lossy(const struct store_link *l, const kv_page *pages, uint32_t n);
