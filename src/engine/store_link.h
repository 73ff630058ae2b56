/* engine/store_link.h - between the engine and the page store: pages are saved as they fill, and loaded while a request
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
#include <stdatomic.h>
#include "base/clock.h"
#include "engine/executor.h"
#include "kv/kv_seq.h"
#include "kv/kv_space.h"
#include "store/page_store.h"

struct engine;
struct request;
struct wake;
struct store_link;
struct load_job;

struct store_link_options {
    struct page_store *store;            /* becomes the link's, also when create fails */
    const struct clock *clock;
    uint32_t page_tokens, max_pages;     /* max_pages: of the longest sequence */
    uint64_t page_bytes;
    uint64_t staging_bytes;              /* copies that wait for the disk; at least four pages */
    uint32_t lossy_from;                 /* pages that begin at this token or later are packed; 0: none */
    uint64_t packed_bytes;
    const void *codec;                   /* borrowed */
    void (*pack)(const void *codec, const void *page, void *out);      /* saver thread */
    void (*unpack)(const void *codec, const void *in, void *page);     /* loader thread */
    bool threads;                        /* false: nothing happens but in store_link_work (tests) */
};

/* What a request knows of the store; zeros at first. Engine thread. */
struct request_store {
    struct load_job *job;                /* it waits in the queue for this load */
    uint64_t deadline_ns;
    uint32_t n_tries;                    /* loads that it waited for */
    uint32_t from, to;                   /* prompt tokens that loads brought */
    struct store_space *space;           /* NULL: not looked up yet */
    uint32_t n_saved;                    /* pages that are stored, or were handed over */
    struct store_space *end_space, *packed_space;   /* of ends, of packed pages; as space */
    uint32_t end_at;                     /* the end after this many tokens was handed over */
    struct hash128 last;                 /* digest of page n_saved - 1 */
};

struct store_link_counts {
    uint64_t n_loads, n_loads_late, n_pages_loaded, n_declined;     /* declined: computing was quicker */
    uint64_t n_staged, n_unsaved;        /* pages copied; given up for want of staging room */
    uint64_t n_loading;                  /* pages on loan now */
};

rd_status store_link_create(const struct store_link_options *o, struct store_link **out);
/* Writes what is staged (for at most 5 s), closes the store. The engine is gone, or has let go. NULL is fine. */
/* The staging area is pinned for the executor's copies, or not any more. */
void store_link_pin(struct store_link *l, const struct executor *x, bool on);
void store_link_destroy(struct store_link *l);
/* Without threads: saves and loads everything that is queued. */
void store_link_work(struct store_link *l);
struct page_store *store_link_store(struct store_link *l);
/* Empties the store and waits for that, for at most 10 s. Not from the engine thread. */
void store_link_clear(struct store_link *l);

/* Takes a text of a namespace out of the store, as page_store_prune does, after what waits to be written; waits
 * for that, for at most 10 s. Returns the entries dropped by then. Not from the engine thread. */
uint64_t store_link_prune(struct engine *e, const struct kv_space *kv_space, const kv_key *keys, uint32_t n);

/* True: r waits for a load now, in the queue. root: its namespace in the tree. */
bool store_link_wait(struct engine *e, struct request *r, struct radix_node *root, uint64_t now);
/* Attaches what was loaded; lets go of requests that have waited too long. */
void store_link_collect(struct engine *e, uint64_t now);
/* Up to which of the n keys the store has them, whoever has the first `from`: those, or more in whole pages. name: of a
 * namespace of another engine, with pages of page_bytes; NULL: this one's. Nothing is loaded. */
uint32_t store_link_n_stored(struct engine *e, const char *name, uint64_t page_bytes, const struct kv_space *kv_space,
                             const kv_key *keys, uint32_t n, uint32_t from);
/* What is stored of r's namespace (its parameters alone are looked at) may be wrong: nothing is loaded or saved any more
 * until all of it was dropped; where it cannot be, this process does not look at it again. Engine thread; no load is under
 * way, no request is live. */
void store_link_condemn(struct engine *e, struct request *r);
/* The same for all namespaces. */
void store_link_condemn_all(struct engine *e);
/* The engine begins: bell is rung when a load is done. state_bytes: of a hidden state that can be kept, or 0. */
rd_status store_link_begin(struct store_link *l, struct wake *bell, uint32_t n_pages, uint32_t state_bytes);
/* It ends, or never began. */
void store_link_end(struct store_link *l);
/* Here and in the next three, NULL: none. Rows of this page are computed from its first one on: it is exact again. */
void store_link_note_computed(struct store_link *l, kv_page page);
void store_link_note_copied(struct store_link *l, kv_page to, kv_page from);
/* Tokens of the first n of a block table that are in pages which were packed. */
uint32_t store_link_n_lossy(const struct store_link *l, const kv_page *pages, uint32_t n);
/* What is computed again from position n on may differ from what is stored, and rightly so. */
bool store_link_is_lossy_at(const struct store_link *l, uint32_t n);
/* Here and in the next, NULL: none. Pages that requests in the queue will still take beside their loans. */
uint64_t store_link_promised(const struct store_link *l);
/* Pages on loan: they are given back, by the doorbell. */
uint32_t store_link_n_pages(const struct store_link *l);
/* After a commit, before any request is ended: the batch's new pages. */
void store_link_save_step(struct engine *e);
/* r ends or is preempted, its sequence still live: the rest of its pages, if they are kept. */
void store_link_save_rest(struct engine *e, struct request *r);
/* The last computed row of r has this hidden state, and a prompt or an answer ends there (store_end.h). */
void store_link_save_end(struct engine *e, struct request *r, const void *state);
/* r ends while it is queued. */
void store_link_leave(struct engine *e, struct request *r);
/* The engine ends: waits for loads, gives all pages back. */
void store_link_let_go(struct engine *e);
struct store_link_counts store_link_get_counts(const struct store_link *l);   /* engine thread */
