/* kv/page_pool_state.h - inside of page_pool.c, shown for the tests that break a pool by hand. For nobody else. */
#pragma once
#include <stdbool.h>
#include "base/thread.h"
#include "kv/page_pool.h"

struct page_record {
    uint32_t n_holders; /* 0 = free */
    uint32_t n_writers, n_pins, fill;
    bool quarantined;
};

struct page_pool {
    struct thread_owner owner;
    uint32_t n_pages, page_tokens, n_free;
    kv_page *free_ids;           /* [n_pages]; the first n_free entries are free */
    struct page_record *records; /* [n_pages] */
    struct page_counts counts;
};
