/* kv/kv_loan.c - pages that are filled, or read for the last time, outside of any step. */
#include "base/checked.h"
#include "kv/kv_seq.h"

void kv_loan_begin(struct kv_cache *cache, struct kv_loan *loan, const kv_page *pages, uint32_t n)
{
    *loan = (struct kv_loan){.next = cache->loans, .pages = pages, .n = n, .first_window = n};
    if (loan->next) loan->next->prev = loan;
    cache->loans = loan;
    for (uint32_t i = 0; i < n; i++) page_pool_add_writer(cache->pool, pages[i]);
}

void kv_loan_begin_leaving(struct kv_cache *cache, struct kv_loan *loan, const kv_page *pages, uint32_t n)
{
    kv_loan_begin(cache, loan, pages, n);
    loan->leaves = true;
    for (uint32_t i = 0; i < n; i++)
        if (page_pool_window(cache->pool, pages[i]) != KV_NO_PAGE) page_pool_use_window(cache->pool, pages[i]);
}

rd_status kv_loan_open_windows(struct kv_cache *cache, struct kv_loan *loan, uint32_t first)
{
    rd_status st = cache->window && first < loan->n
                       ? page_pool_open_windows(cache->pool, loan->n - first, loan->pages + first)
                       : RD_OK;

    if (st == RD_OK && cache->window) loan->first_window = u32_min(first, loan->n);
    return st;
}

void kv_loan_close_windows(struct kv_cache *cache, struct kv_loan *loan, uint32_t end)
{
    for (; loan->first_window < u32_min(end, loan->n); loan->first_window++)
        page_pool_close_window(cache->pool, loan->pages[loan->first_window]);
}

void kv_loan_end(struct kv_cache *cache, struct kv_loan *loan)
{
    *(loan->prev ? &loan->prev->next : &cache->loans) = loan->next;
    if (loan->next) loan->next->prev = loan->prev;
    for (uint32_t i = 0; i < loan->n; i++) {
        if (i >= loan->first_window) page_pool_favour_window(cache->pool, loan->pages[i]);
        if (i >= loan->first_window || (loan->leaves && page_pool_window(cache->pool, loan->pages[i]) != KV_NO_PAGE))
            page_pool_leave_window(cache->pool, loan->pages[i]);
        page_pool_drop_writer(cache->pool, loan->pages[i]);
        page_pool_release(cache->pool, loan->pages[i]);
    }
}
