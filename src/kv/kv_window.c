/* kv/kv_window.c - the windows of a sequence: what its next row sees must be there, what lies behind that may go.
 *
 * The row at position n sees positions n - window + 1 .. n - 1 in the layers that have a window, so a sequence that runs
 * uses the windows of the pages that cover those, and of its pages from there on:
 *
 *     pages      0   1   2   3   4   5          P = 4, window = 6, n_computed = 21: the next row sees 16 .. 20
 *     windows    -   -   k   k   u   u          u: used, window_from = 4; k: kept, until others need them
 *
 * A match that ends where they are gone is followed only to the last position before that has them. What the tree has
 * behind it is computed once more, into pages of the sequence's own, and every full page of those gives way to the tree's,
 * which gets its window: so the same is not computed a third time. In layers that see everything both have equal bytes.
 */
#include "base/checked.h"
#include "kv/kv_seq_path.h"

uint32_t kv_window_first(const struct kv_cache *cache, uint32_t n)
{
    return n >= cache->window ? (n - cache->window + 1) / page_pool_page_tokens(cache->pool) : 0;
}

uint32_t kv_window_reach(const struct kv_cache *cache, const kv_page *pages, uint32_t n)
{
    uint32_t P = page_pool_page_tokens(cache->pool), k = u32_ceil_div(n, P);

    while (cache->window && k > kv_window_first(cache, n)) {
        k--;
        if (page_pool_window(cache->pool, pages[k]) == KV_NO_PAGE) n = k * P;
    }
    return n;
}

/* Texts go on where one ended, where a prompt did, and where they went on before: position n of seq is such a place. */
static void favour(struct kv_seq *seq, uint32_t n)
{
    const struct kv_cache *cache = seq->cache;
    uint32_t end = u32_ceil_div(n, page_pool_page_tokens(cache->pool));

    for (uint32_t k = u32_max(seq->window_from, kv_window_first(cache, n)); k < end; k++)
        page_pool_favour_window(cache->pool, seq->pages[k]);
}

void kv_window_enter(struct kv_seq *seq)
{
    const struct kv_cache *cache = seq->cache;

    if (!cache->window) return;
    seq->window_from = kv_window_first(cache, seq->n_computed);
    for (uint32_t k = seq->window_from; k < seq->n_pages; k++) {
        page_pool_use_window(cache->pool, seq->pages[k]);
        kv_window_note(seq, k);
    }
    favour(seq, seq->n_computed);
}

void kv_window_leave(struct kv_seq *seq)
{
    const struct kv_cache *cache = seq->cache;

    if (!cache->window || seq->state != KV_SEQ_RUNNABLE) return;
    favour(seq, seq->n_computed);
    for (; seq->window_from < seq->n_pages; seq->window_from++)
        page_pool_leave_window(cache->pool, seq->pages[seq->window_from]);
}

/* The tree's page in place of seq's own full page k, which holds the same. */
static void merge_page(struct kv_seq *seq, uint32_t k, kv_page page)
{
    struct page_pool *pool = seq->cache->pool;
    kv_page own = seq->pages[k];

    if (page_pool_window(pool, page) == KV_NO_PAGE) {
        page_pool_pass_window(pool, own, page);
    } else {
        page_pool_use_window(pool, page);
        page_pool_leave_window(pool, own);
    }
    seq->pages[k] = page;
    kv_window_note(seq, k);
    page_pool_drop_writer(pool, own);
    page_pool_release(pool, own);
}

static void merge(struct kv_seq *seq)
{
    uint32_t P = page_pool_page_tokens(seq->cache->pool), n;

    if (!seq->node || seq->first_own_page * P >= seq->n_again) return;
    n = u32_min(u32_min(seq->n_again, seq->n_computed), kv_path_ready(seq));
    for (; (seq->first_own_page + 1) * P <= n && seq->first_own_page >= seq->window_from; seq->first_own_page++) {
        merge_page(seq, seq->first_own_page, kv_path_page(seq, seq->first_own_page, n));
        seq->n_relied = (seq->first_own_page + 1) * P;
    }
}

void kv_window_move_on(struct kv_seq *seq, uint32_t n_before)
{
    const struct kv_cache *cache = seq->cache;
    uint32_t first;

    if (!cache->window) return;
    merge(seq);
    if (n_before < seq->n_again && seq->n_computed >= seq->n_again) favour(seq, seq->n_again);
    if (seq->n_computed == seq->n_prompt) favour(seq, seq->n_prompt);
    for (first = kv_window_first(cache, seq->n_computed); seq->window_from < first; seq->window_from++)
        page_pool_leave_window(cache->pool, seq->pages[seq->window_from]);
}

uint32_t kv_match_reach(const struct kv_cache *cache, const struct radix_match *m, const struct kv_whole *wholes,
                        uint32_t n_wholes, kv_page *pages)
{
    uint32_t n = m->n_ready, whole;

    for (;; n = kv_window_reach(cache, pages, whole)) {
        const struct radix_node *node = m->node;

        whole = kv_whole_reach(wholes, n_wholes, n);
        if (!cache->window || whole == 0) return whole;
        while (node->parent && node->start >= whole) node = node->parent;
        radix_path_pages(cache->tree, node, whole, pages); /* the last page depends on where it ends */
        if (kv_window_reach(cache, pages, whole) == whole) return whole;
    }
}
