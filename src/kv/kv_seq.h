/* kv/kv_seq.h - one running line of tokens and its KV: path lock, block table, the pending nodes it owns, its own
 * tail.
 *
 * The life of a sequence (docs/engine.md, "Requests"); everything happens between steps, on the engine thread:
 *
 *     admit    match, lock, insert the unmatched rest as ONE pending node owned by this sequence.
 *              -> WAITING for a position that another sequence computes, or RUNNABLE at n_computed.
 *     reserve  rows [n_computed, n_computed + n) get places: append in place | new page | copy on write.
 *     commit   the step succeeded: n_computed rises, owned pending nodes publish, waiters that are passed turn
 *              RUNNABLE.
 *     push     a sampled token joins the keys (its KV is computed by the next step).
 *     finish   the computed tail becomes ONE node, locks and pages are dropped. Also for cancel, stop, preempt: owned
 *              pending nodes are cut at n_computed, the first waiter that still needs the rest becomes its owner.
 *     poison   a device error in a step that wrote for this sequence: its pages are quarantined, owned pending
 *              nodes are unlinked, sequences that waited for them become POISONED too (their caller ends them with
 *              the error).
 *
 * Uncached sequences (cache_prompt: false, or no memory for a node) match nothing, insert nothing, and use the same
 * calls.
 *
 * Where some layers see the last `window` tokens alone, a page has a window (page_pool.h) as long as somebody needs it or
 * nobody else does: pages that reserve takes have one; of those behind a running sequence the windows are kept while there
 * is room; and a match is followed as far as the windows are there that its next row sees.
 *
 * Thread  engine thread only.
 * Errors  admit: RD_E_NOMEM (nothing changed; the caller may admit it uncached). reserve: RD_E_NO_PAGES (nothing
 *         taken).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kv/radix.h"

enum kv_seq_state {
    KV_SEQ_WAITING,  /* for position wait_until, computed by another sequence */
    KV_SEQ_RUNNABLE, /* prefill or decode at n_computed */
    KV_SEQ_POISONED, /* what it relied on is gone after a device error */
    KV_SEQ_DONE      /* not admitted: new, finished, or poisoned and finished; admit or deinit may follow */
};

/* Copies rows 0 .. n_rows-1 of page `from` into page `to`, all layers (kv_storage or the simulator). */
typedef void (*kv_copy_rows_fn)(void *arg, kv_page to, kv_page from, uint32_t n_rows);

/* Every byte of a page becomes 0. */
typedef void (*kv_zero_page_fn)(void *arg, kv_page id);

/* What all sequences of one engine share: the tree, the copy function, and the list of those that wait. */
struct kv_cache {
    struct radix *tree;
    struct page_pool *pool;
    kv_copy_rows_fn copy_rows;
    void *copy_arg;
    kv_zero_page_fn zero_page; /* with tenants alone; by copy_arg */
    uint64_t *tenants;         /* [n_pages + n_windows], borrowed: whose a page, a window, was last; NULL: they
                                             are taken as they are */
    uint32_t state_bytes;      /* of a row's last hidden state; 0: none are kept */
    uint32_t window;           /* tokens that layers with a window see; 0: there are none, nor does the pool
                                             have windows */
    struct kv_seq *live;       /* doubly linked list of admitted sequences, oldest first */
    struct kv_seq *live_tail;
    struct kv_loan *loans;
    uint64_t n_rows_copied, n_owner_handed_over, n_joined_in_flight; /* since creation; these, too: */
    uint64_t n_cut_short, n_cut_tokens; /* matches that ended where windows were gone; tokens between there and where
                                             they are */
};

/* Pages taken from the pool, with one holder each, that are filled outside of any step, to attach them with
 * radix_insert_ready; or that are copied elsewhere before they are free: pending until the loan ends. */
struct kv_loan {
    struct kv_loan *prev, *next;
    const kv_page *pages;
    uint32_t n, first_window; /* pages from this one on have windows, which the loan uses */
    bool leaves;              /* kv_loan_begin_leaving */
};

/* Keys of a sequence that are matched as far as `sure`, or not at all: a match that ends behind begin and before sure is
 * followed to begin only. (An image whose rows see each other, and one whose first keys alone do not tell which it is.) */
struct kv_whole {
    uint32_t begin, sure;
};

struct kv_seq {
    struct kv_cache *cache;
    enum kv_seq_state state;
    bool cached;  /* matches and stores */
    kv_key *keys; /* [n_keys of n_keys_cap]: prompt, then sampled tokens; allocated by init */
    uint32_t n_keys, n_keys_cap, n_prompt;
    uint32_t n_computed;       /* rows of this sequence that are in pages and may be read */
    uint32_t n_reserved;       /* rows with a place: the running step writes n_computed .. n_reserved-1 */
    uint32_t n_hit;            /* prompt tokens taken from the tree at admission, in-flight ones included */
    uint32_t n_hit_in_flight;  /* of those, computed by another sequence while this one waited */
    uint32_t wait_until;       /* WAITING: runnable when positions < wait_until are computed */
    uint32_t n_path;           /* keys of this sequence that lie on its path in the tree; after a split it
                                             may end above node, which stays locked all the same */
    uint32_t n_ready_at_admit; /* of the hit, computed when it was admitted */
    uint32_t n_match;          /* keys that the tree had at admission, pending ones included */
    enum radix_match_kind match_kind;
    kv_page *pages; /* block table [n_pages of n_pages_cap], allocated by init for max_keys */
    uint32_t n_pages, n_pages_cap;
    uint32_t first_own_page;        /* pages[first_own_page ..) are held (and written) by this sequence itself */
    uint32_t window_from;           /* runnable, with windows: those of pages[window_from ..) are used by it */
    uint32_t *windows;              /* [n_pages_cap]: which they are, at the places of their pages; what lies before
                                       window_from means nothing, but is one of the pool's. NULL: no windows */
    uint32_t n_again;               /* what lies before and was not taken from the tree is there, except for its
                                       windows: see kv_window.c */
    uint32_t n_relied;              /* positions that it has, or had once, in pages that others computed */
    struct radix_node *root, *node; /* namespace; deepest node of the path: locked by this sequence; NULL: none */
    bool live;                      /* in cache->live */
    bool is_ahead;                  /* the last reserved row is of a step under way: kv_seq_reserve_ahead */
    struct kv_seq *prev, *next;     /* cache->live */
    void *end_state;                /* [state_bytes] of row end_state_at - 1; see kv_seq_keep_state */
    uint32_t end_state_at;          /* 0: none */
    const struct kv_whole *wholes;  /* [n_wholes] rising, apart; borrowed, set before admit; NULL: none */
    uint32_t n_wholes;
    void *user; /* the engine's request */
};

/* Allocates keys and block table for at most max_keys tokens: nothing is allocated after this (but node memory).
 * keys are copied, n >= 1. On failure nothing to deinit. */
rd_status kv_seq_init(struct kv_seq *seq, struct kv_cache *cache, const kv_key *keys, uint32_t n, uint32_t max_keys);
/* Frees the arrays; the sequence must not be live (never admitted, or finished). */
void kv_seq_deinit(struct kv_seq *seq);

/* root NULL: uncached. At most n_keys-1 tokens are taken from the tree (KV alone gives no logits;
 * kv_seq_take_whole then may find the state). The matched path
 * is locked before the call returns, so evicting for this sequence afterwards is safe. Can be called again after
 * finish (preemption): the keys then include what was sampled. */
rd_status kv_seq_admit(struct kv_seq *seq, struct radix_node *root, uint64_t now);

/* Pages that reserve(n) would take from the pool now (0 when it appends in place). */
uint32_t kv_seq_pages_needed(const struct kv_seq *seq, uint32_t n_rows);
/* RD_E_NO_PAGES: evict (radix_evict) or preempt, then retry. RUNNABLE only. Rows behind the last key are drafts: their
 * tokens become keys one by one (kv_seq_push) or are given back. n_computed + n_rows <= n_keys_cap. */
rd_status kv_seq_reserve(struct kv_seq *seq, uint32_t n_rows);
/* One more row behind the reserved ones (at least one), for the step after this one; its key is not known yet. Commit
 * this step's rows with kv_seq_commit_rows: the row ahead stays reserved. RD_E_NO_PAGES: no page for it. */
rd_status kv_seq_reserve_ahead(struct kv_seq *seq);
/* 1: kv_seq_reserve_ahead takes a page. */
uint32_t kv_seq_pages_ahead(const struct kv_seq *seq);
/* All reserved rows are computed. Does nothing for a sequence that was poisoned through another one in the same
 * step. */
void kv_seq_commit(struct kv_seq *seq);
/* The first n reserved rows only, n <= reserved rows and keys; more may follow, the rest goes back by
 * kv_seq_unreserve. */
void kv_seq_commit_rows(struct kv_seq *seq, uint32_t n_rows);
/* After a commit: the last hidden state of the last computed row. It is copied, and kept with the node that ends there:
 * the prompt's now, the tail's at the end. */
void kv_seq_keep_state(struct kv_seq *seq, const void *state);
/* When every key of a sequence that has computed nothing yet is stored, and the state at its end: takes the last key
 * from the tree too and gives the state, which stays where it is until a key is pushed. NULL: one must be computed. */
const void *kv_seq_take_whole(struct kv_seq *seq);
/* Gives reserved rows back that were not committed (the step was not run, or the rows were drafts that were wrong). */
void kv_seq_unreserve(struct kv_seq *seq);
/* Takes back keys from n on, and what was computed for them; not those that were there at admission. Not with windows:
 * what the row at n sees may be gone. */
void kv_seq_truncate(struct kv_seq *seq, uint32_t n);
/* Appends one sampled token to the keys; n_keys < n_keys_cap. */
void kv_seq_push(struct kv_seq *seq, kv_key token);

/* Ends or suspends the sequence: see above. store: insert the computed tail (false for uncached and for output that
 * must not be kept). Keys stay, so that a preempted sequence can be admitted again. Idempotent. */
void kv_seq_finish(struct kv_seq *seq, bool store, uint64_t now);
/* After a failed step that wrote rows for this sequence. Its own pages are quarantined, except those that a ready
 * node of the tree holds too: their ready rows are from earlier steps, and rows beyond them are never handed out
 * again. Idempotent. */
void kv_seq_poison(struct kv_seq *seq);

/* Pages were just taken for a namespace (NULL: nobody's): where the cache has tenants, those that another one had are made
 * zeros first. */
void kv_isolate(struct kv_cache *cache, const struct radix_node *root, const kv_page *pages, uint32_t n);

/* Holds / releases a path of the tree without a sequence (low-level handles): the deepest stored node of keys[0..n).
 * *n_held tells how many keys it covers (computed ones only; the root when there are none). A held node is never
 * evicted, and stays what it is whatever happens to the sequences around it; its windows are kept as others are. */
struct radix_node *kv_hold(struct kv_cache *cache, struct radix_node *root, const kv_key *keys, uint32_t n,
                           uint64_t now, uint32_t *n_held);
void kv_unhold(struct kv_cache *cache, struct radix_node *node);

/* pages stay the caller's array, unchanged until the end, which releases them. */
void kv_loan_begin(struct kv_cache *cache, struct kv_loan *loan, const kv_page *pages, uint32_t n);
/* Pages from this one on get windows until the end, where the cache has some. RD_E_NO_PAGES: none got one. */
rd_status kv_loan_open_windows(struct kv_cache *cache, struct kv_loan *loan, uint32_t first);
/* Those of pages before `end` were not filled: they have none. */
void kv_loan_close_windows(struct kv_cache *cache, struct kv_loan *loan, uint32_t end);
/* The first page whose window the row at position n sees, where the cache has windows. */
uint32_t kv_window_first(const struct kv_cache *cache, uint32_t n);
/* Pages that nobody else holds and that are read outside of any step: the loan uses the windows that they have. */
void kv_loan_begin_leaving(struct kv_cache *cache, struct kv_loan *loan, const kv_page *pages, uint32_t n);
void kv_loan_end(struct kv_cache *cache, struct kv_loan *loan);

/* Up to where a sequence with these wholes would take what a match found computed: all of it, or where a whole is not cut and
 * its windows are. pages: room for the block table of m->n_ready positions. */
uint32_t kv_match_reach(const struct kv_cache *cache, const struct radix_match *m, const struct kv_whole *wholes,
                        uint32_t n_wholes, kv_page *pages);

/* n, or where the whole begins that it ends in. */
uint32_t kv_whole_reach(const struct kv_whole *wholes, uint32_t n_wholes, uint32_t n);

/* radix_check, page_pool_check and the invariants that need sequences: every pending node has a live owner that
 * will compute it next in order; every waiter waits for a pending node on its own path; no reserved rows between
 * steps; block tables match the path. */
rd_status kv_check(const struct kv_cache *cache, struct rd_error *err);
