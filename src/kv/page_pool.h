/* kv/page_pool.h - hands out fixed-size KV pages, counts their holders, and knows what state each page is in.
 *
 * One page stores the keys and values of `page_tokens` consecutive tokens, in every layer:
 *     page: [n_layers, 2 (K, V), n_kv_heads, page_tokens, head_dim], contiguous      (backend/kv_storage.h)
 * The pool deals in ids and touches neither tensors nor a device, so it is tested without them.
 *
 * A page is in exactly one state; the counts add up after every call (the accounting equation of docs/engine.md):
 *     free         no holder
 *     quarantined  marked bad after a device error; becomes free with its last release
 *     pending      a live sequence writes or has written it itself (n_writers > 0)
 *     locked       held by a locked node of the tree (n_pins > 0), no writer
 *     ready        held by unlocked nodes only: evictable
 *
 * fill(page) = rows handed out for writing so far: a sequence whose end is row r may append in place iff fill == r.
 *
 * WINDOWS. Layers that see only the last tokens need their part of a page only while it is in somebody's window. Where a
 * pool has windows, a page may have one of them: a place in a second, smaller memory, where those layers' keys and values
 * of its tokens are. A window is free, used (by so many running sequences and loans), or kept: nobody uses it, but a match
 * that ends behind it would. Kept ones give way to those who need one, the least likely and least recently used first; the
 * page stays, for the layers that see everything. (docs/engine.md, "Windows")
 *
 *     page      0   1   2   3   4         layers that see all:    5 pages of memory
 *     window    -   -   1   0   2         the others:             3 windows of memory
 *
 * Units   pages, rows. A caller turns tokens into pages with ceil(n_tokens / page_tokens).
 * Owns    the ids and the counts; not the memory behind a page.
 * Thread  engine thread only (checked in debug builds).
 * Errors  RD_E_NO_PAGES: nothing was taken; evict, then retry.  RD_E_NOMEM: create alone allocates.
 * Source  PagedAttention, arXiv:2309.06180, section 4.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"

typedef uint32_t kv_page; /* 0 .. n_pages-1: an id, never a pointer or an offset */
#define KV_NO_PAGE UINT32_MAX
struct page_pool;

struct page_counts {
    uint32_t n_total, n_free, n_ready, n_locked, n_pending, n_quarantined;
};

/* n_dropped: since creation, kept ones that gave way. */
struct window_counts {
    uint32_t n_total, n_free, n_kept, n_used;
    uint64_t n_dropped;
};

/* On success *out is the caller's, freed by page_pool_destroy(). n_pages >= 1; page_tokens a power of two. */
rd_status page_pool_create(uint32_t n_pages, uint32_t page_tokens, struct page_pool **out);
/* Another thread becomes the owner with its first call. */
void page_pool_hand_over(struct page_pool *pool);
/* Accepts NULL and half-built pools. A page that is still held is a leak, and asserts. */
void page_pool_destroy(struct page_pool *pool);

/* Takes n pages with one holder each, or none at all. fill starts at 0. ids: the caller's array of n. */
rd_status page_pool_take(struct page_pool *pool, uint32_t n, kv_page *ids);
/* One more holder (a second sequence, or the radix tree); one less. After the last release the
 * page is free and its contents are undefined. */
void page_pool_retain(struct page_pool *pool, kv_page id);
void page_pool_release(struct page_pool *pool, kv_page id);
/* fn is told of every page that becomes free; it does nothing with the pool. NULL: no one is. */
void page_pool_on_free(struct page_pool *pool, void (*fn)(void *arg, kv_page id), void *arg);
/* Tells fn of a page that stays, but whose last rows nothing leads to any more. */
void page_pool_note_cut(struct page_pool *pool, kv_page id);
/* A live sequence that owns (part of) the page begins and ends; a locked node that holds it begins and ends. */
void page_pool_add_writer(struct page_pool *pool, kv_page id);
void page_pool_drop_writer(struct page_pool *pool, kv_page id);
void page_pool_pin(struct page_pool *pool, kv_page id);
void page_pool_unpin(struct page_pool *pool, kv_page id);
/* The page's bytes are not to be trusted any more; its holders release it as usual. */
void page_pool_quarantine(struct page_pool *pool, kv_page id);

/* Once, before any page is taken: n_windows of them, 1 .. n_pages. RD_E_NOMEM: nothing changed. */
rd_status page_pool_make_windows(struct page_pool *pool, uint32_t n_windows);
/* Each of these pages, which have none, gets a window that the caller uses. RD_E_NO_PAGES: too few are free or kept; then
 * none got one. */
rd_status page_pool_open_windows(struct page_pool *pool, uint32_t n, const kv_page *ids);
/* One more use of the page's window, which is there; one less. */
void page_pool_use_window(struct page_pool *pool, kv_page id);
void page_pool_leave_window(struct page_pool *pool, kv_page id);
/* The window, which only the caller uses, is free: it does not hold what it should. */
void page_pool_close_window(struct page_pool *pool, kv_page id);
/* A match is likely to end behind the page's window, which is used now: once it is not, it is kept longer than others. */
void page_pool_favour_window(struct page_pool *pool, kv_page id);
uint32_t page_pool_window_users(const struct page_pool *pool, kv_page id);
/* The window of one page, which only the caller uses, becomes another's, which has none; the caller uses it there. */
void page_pool_pass_window(struct page_pool *pool, kv_page from, kv_page to);
/* The page's; KV_NO_PAGE: it has none. */
uint32_t page_pool_window(const struct page_pool *pool, kv_page id);
/* [n_pages], of each page as above; stays where it is. NULL: the pool has no windows. */
const uint32_t *page_pool_windows(const struct page_pool *pool);
struct window_counts page_pool_window_counts(const struct page_pool *pool);

uint32_t page_pool_fill(const struct page_pool *pool, kv_page id);
void page_pool_set_fill(struct page_pool *pool, kv_page id, uint32_t n_rows);
uint32_t page_pool_holders(const struct page_pool *pool, kv_page id);
uint32_t page_pool_writers(const struct page_pool *pool, kv_page id);
uint32_t page_pool_pins(const struct page_pool *pool, kv_page id);

uint32_t page_pool_page_tokens(const struct page_pool *pool);
uint32_t page_pool_n_free(const struct page_pool *pool);
struct page_counts page_pool_counts(const struct page_pool *pool);
/* Recounts everything the slow way and compares with the counters; false and a reason in err otherwise. */
rd_status page_pool_check(const struct page_pool *pool, struct rd_error *err);
