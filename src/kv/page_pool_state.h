/* kv/page_pool_state.h - inside of page_pool.c and page_windows.c, shown for the tests that break a pool by hand. For nobody else. */
#pragma once
#include <stdbool.h>
#include "base/thread.h"
#include "kv/page_pool.h"

struct page_record {
    uint32_t n_holders; /* 0 = free */
    uint32_t n_writers, n_pins, fill;
    bool quarantined;
};

/* Of a page that has a window: who uses it, else its neighbours on the list of those kept. */
struct window_record {
    uint32_t n_users;
    bool is_likely;
    kv_page prev, next; /* KV_NO_PAGE: none */
};

/* Pages whose windows are kept, the least recently used first. */
struct kept_list {
    kv_page head, tail;
};

/* All NULL where the pool has none. */
struct windows {
    uint32_t *of;                  /* [n_pages]: the page's, or KV_NO_PAGE */
    uint32_t *free_ids;            /* [n_total]; the first n_free entries are free */
    struct window_record *records; /* [n_pages] */
    struct kept_list kept[2];      /* unlikely ones, likely ones */
    struct window_counts counts;
};

struct page_pool {
    struct thread_owner owner;
    uint32_t n_pages, page_tokens, n_free;
    kv_page *free_ids;           /* [n_pages]; the first n_free entries are free */
    struct page_record *records; /* [n_pages] */
    struct page_counts counts;
    struct windows windows;
    void (*on_free)(void *arg, kv_page id); /* NULL: no one is told */
    void *on_free_arg;
};

/* page_windows.c. The page is free: so is its window, which nobody uses. */
void page_windows_release(struct page_pool *pool, kv_page id);
void page_windows_destroy(struct page_pool *pool);
/* Every window is free or a held page's, once; the lists hold those that nobody uses. */
rd_status page_windows_check(const struct page_pool *pool, struct rd_error *err);
