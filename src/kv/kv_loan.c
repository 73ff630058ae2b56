/* kv/kv_loan.c - pages that are filled outside of any step. */
#include "kv/kv_seq.h"

void kv_loan_begin(struct kv_cache *cache, struct kv_loan *loan, const kv_page *pages, uint32_t n)
{
    *loan = (struct kv_loan){.next = cache->loans, .pages = pages, .n = n};
    if (loan->next) loan->next->prev = loan;
    cache->loans = loan;
    for (uint32_t i = 0; i < n; i++) page_pool_add_writer(cache->pool, pages[i]);
}

void kv_loan_end(struct kv_cache *cache, struct kv_loan *loan)
{
    *(loan->prev ? &loan->prev->next : &cache->loans) = loan->next;
    if (loan->next) loan->next->prev = loan->prev;
    for (uint32_t i = 0; i < loan->n; i++) {
        page_pool_drop_writer(cache->pool, loan->pages[i]);
        page_pool_release(cache->pool, loan->pages[i]);
    }
}
