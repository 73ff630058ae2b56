/* kv/kv_seq.c - the life of a sequence: admit, reserve, commit, push, finish. Pending nodes and waiting:
 * kv_seq_pending.c. */
#include "kv/kv_seq.h"
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "kv/kv_seq_path.h"

static uint32_t page_tokens_of(const struct kv_seq *seq)
{
    return page_pool_page_tokens(seq->cache->pool);
}

rd_status kv_seq_init(struct kv_seq *seq, struct kv_cache *cache, const kv_key *keys, uint32_t n, uint32_t max_keys)
{
    uint32_t n_cap = u32_max(n, max_keys);
    /* one more than the keys need: a copy on write takes its page before it lets go of the old one */
    uint32_t n_pages_cap = u32_ceil_div(n_cap, page_pool_page_tokens(cache->pool)) + 1;

    assert(n >= 1);
    *seq = (struct kv_seq){.cache = cache, .state = KV_SEQ_DONE, .n_keys = n, .n_prompt = n, .n_keys_cap = n_cap};
    seq->keys = mem_alloc(n_cap, sizeof(*seq->keys));
    seq->pages = mem_alloc(n_pages_cap, sizeof(*seq->pages));
    seq->end_state = cache->state_bytes ? mem_alloc(cache->state_bytes, 1) : NULL;
    seq->windows = cache->window ? mem_zalloc(n_pages_cap, sizeof(*seq->windows)) : NULL;
    if (!seq->keys || !seq->pages || (cache->state_bytes && !seq->end_state) || (cache->window && !seq->windows))
        goto fail;
    seq->n_pages_cap = n_pages_cap;
    memcpy(seq->keys, keys, (size_t)n * sizeof(*keys));
    return RD_OK;

fail:
    kv_seq_deinit(seq);
    return RD_E_NOMEM;
}

void kv_seq_deinit(struct kv_seq *seq)
{
    assert(!seq->live);
    mem_free(seq->keys);
    mem_free(seq->pages);
    mem_free(seq->windows);
    mem_free(seq->end_state);
    *seq = (struct kv_seq){.state = KV_SEQ_DONE};
}

/* ---- the list of live sequences: admission order decides who inherits pending nodes ---- */

static void live_append(struct kv_seq *seq)
{
    struct kv_cache *cache = seq->cache;

    seq->prev = cache->live_tail;
    seq->next = NULL;
    *(seq->prev ? &seq->prev->next : &cache->live) = seq;
    cache->live_tail = seq;
    seq->live = true;
}

static void live_remove(struct kv_seq *seq)
{
    struct kv_cache *cache = seq->cache;

    *(seq->prev ? &seq->prev->next : &cache->live) = seq->next;
    *(seq->next ? &seq->next->prev : &cache->live_tail) = seq->prev;
    seq->prev = seq->next = NULL;
    seq->live = false;
}

/* ---- admission ---- */

static void reset(struct kv_seq *seq, struct radix_node *root)
{
    seq->cached = root != NULL;
    seq->root = root;
    seq->node = NULL;
    seq->n_computed = seq->n_reserved = seq->n_hit = seq->n_hit_in_flight = seq->wait_until = 0;
    seq->n_path = seq->n_ready_at_admit = seq->n_pages = seq->first_own_page = seq->end_state_at = 0;
    seq->match_kind = RADIX_MISS;
    seq->n_match = seq->window_from = seq->n_again = seq->n_relied = 0;
}

rd_status kv_seq_admit(struct kv_seq *seq, struct radix_node *root, uint64_t now)
{
    struct radix *tree = seq->cache->tree;
    struct radix_node *node;
    struct radix_match m;
    uint32_t n_take;

    assert(!seq->live);
    if (!root) {
        reset(seq, NULL);
        live_append(seq);
        kv_seq_run_from(seq, 0);
        return RD_OK;
    }
    m = radix_match(tree, root, seq->keys, seq->n_keys, now);
    node = m.node;
    if (m.n_match < seq->n_keys) {
        rd_status st = radix_attach(tree, &m, seq->keys, seq->n_keys, &node);
        if (st != RD_OK) return st;
        node->owner = seq;
    } else if (m.n_in_node < node->n_keys && radix_split(tree, node, m.n_in_node, &node) != RD_OK) {
        node = m.node; /* no memory: what lies beyond the prompt is locked too, which costs room but nothing else */
    }
    radix_lock(tree, node); /* before the caller evicts for it: our own prefix may be the oldest leaf */

    reset(seq, root);
    n_take = u32_min(m.n_match, seq->n_keys - 1); /* KV alone gives no logits: leave one token to compute */
    seq->node = node;
    seq->n_path = seq->n_keys;
    seq->match_kind = m.kind;
    seq->n_match = m.n_match;
    seq->n_hit = n_take;
    seq->n_ready_at_admit = m.n_ready;
    live_append(seq);
    if (m.n_ready >= n_take) {
        kv_seq_run_from(seq, n_take);
        return RD_OK;
    }
    seq->state = KV_SEQ_WAITING;
    seq->wait_until = n_take;
    seq->cache->n_joined_in_flight++;
    return RD_OK;
}

/* ---- places for rows ---- */

/* The end lies inside a page in which another sequence has appended already. */
static bool needs_copy(const struct kv_seq *seq)
{
    uint32_t P = page_tokens_of(seq), row = seq->n_computed % P;
    return row != 0 && page_pool_fill(seq->cache->pool, seq->pages[seq->n_computed / P]) != row;
}

uint32_t kv_seq_pages_needed(const struct kv_seq *seq, uint32_t n_rows)
{
    if (n_rows == 0) return 0;
    return u32_ceil_div(seq->n_computed + n_rows, page_tokens_of(seq)) - seq->n_pages + needs_copy(seq);
}

/* Makes page k, the partial page at the end, this sequence's own: by copying its rows to page copy, or by
 * appending. */
static void own_partial_page(struct kv_seq *seq, kv_page copy)
{
    struct page_pool *pool = seq->cache->pool;
    uint32_t k = seq->n_computed / page_tokens_of(seq), row = seq->n_computed % page_tokens_of(seq);
    bool own = k >= seq->first_own_page;
    kv_page old = seq->pages[k];

    if (copy == KV_NO_PAGE) {
        if (own) return;
        page_pool_retain(pool, old);
        page_pool_add_writer(pool, old);
    } else {
        if (seq->cache->copy_rows) seq->cache->copy_rows(seq->cache->copy_arg, copy, old, row);
        seq->cache->n_rows_copied += row;
        page_pool_add_writer(pool, copy);
        if (seq->cache->window) page_pool_leave_window(pool, old);
        seq->pages[k] = copy;
        kv_window_note(seq, k);
        if (own) {
            page_pool_drop_writer(pool, old);
            page_pool_release(pool, old);
        }
    }
    if (!own) {
        assert(k + 1 == seq->first_own_page);
        seq->first_own_page = k;
    }
}

void kv_isolate(struct kv_cache *cache, const struct radix_node *root, const kv_page *pages, uint32_t n)
{
    uint64_t who = root ? radix_root_id(root) : 0;

    for (uint32_t i = 0; cache->tenants && i < n; i++) {
        uint32_t window = page_pool_window(cache->pool, pages[i]);
        uint64_t *page = &cache->tenants[pages[i]];
        uint64_t *other = window == KV_NO_PAGE ? page : &cache->tenants[page_pool_counts(cache->pool).n_total + window];

        if (who == 0 || *page != who || *other != who) cache->zero_page(cache->copy_arg, pages[i]);
        *page = *other = who;
    }
}

/* Pages with windows; RD_E_NO_PAGES: none. */
static rd_status take_pages(struct kv_seq *seq, uint32_t n, kv_page *pages)
{
    struct kv_cache *cache = seq->cache;
    rd_status st = page_pool_take(cache->pool, n, pages);

    if (st == RD_OK && cache->window) {
        st = page_pool_open_windows(cache->pool, n, pages);
        for (uint32_t i = 0; st != RD_OK && i < n; i++) page_pool_release(cache->pool, pages[i]);
    }
    if (st == RD_OK) kv_isolate(cache, seq->root, pages, n);
    return st;
}

rd_status kv_seq_reserve(struct kv_seq *seq, uint32_t n_rows)
{
    struct page_pool *pool = seq->cache->pool;
    uint32_t P = page_tokens_of(seq), first = seq->n_computed / P, end = seq->n_computed + n_rows;
    uint32_t n_new = kv_seq_pages_needed(seq, n_rows), n_pages = seq->n_pages;
    kv_page copy = KV_NO_PAGE;
    rd_status st;

    assert(seq->state == KV_SEQ_RUNNABLE && seq->n_reserved == seq->n_computed && end <= seq->n_keys_cap);
    if (n_rows == 0) return RD_OK;
    st = take_pages(seq, n_new, seq->pages + n_pages);
    if (st != RD_OK) return st;
    if (needs_copy(seq)) copy = seq->pages[n_pages + --n_new];
    for (uint32_t i = 0; i < n_new; i++) {
        page_pool_add_writer(pool, seq->pages[n_pages + i]);
        kv_window_note(seq, n_pages + i);
    }
    seq->n_pages += n_new;
    if (seq->n_computed % P != 0) own_partial_page(seq, copy);
    /* Raised now, not at commit: two sequences that reserve in one step never get the same rows. */
    for (uint32_t k = first; k < seq->n_pages; k++) page_pool_set_fill(pool, seq->pages[k], u32_min(P, end - k * P));
    seq->n_reserved = end;
    return RD_OK;
}

uint32_t kv_seq_pages_ahead(const struct kv_seq *seq)
{
    return seq->n_reserved / page_tokens_of(seq) >= seq->n_pages;
}

rd_status kv_seq_reserve_ahead(struct kv_seq *seq)
{
    struct page_pool *pool = seq->cache->pool;
    uint32_t P = page_tokens_of(seq), k = seq->n_reserved / P;

    assert(seq->state == KV_SEQ_RUNNABLE && seq->n_reserved > seq->n_computed && seq->n_reserved < seq->n_keys_cap);
    if (k >= seq->n_pages) {
        rd_status st = take_pages(seq, 1, seq->pages + k);

        if (st != RD_OK) return st;
        page_pool_add_writer(pool, seq->pages[k]);
        kv_window_note(seq, k);
        seq->n_pages++;
    }
    page_pool_set_fill(pool, seq->pages[k], seq->n_reserved % P + 1);
    seq->n_reserved++;
    seq->is_ahead = true;
    return RD_OK;
}

static void drop_own_page(struct kv_seq *seq, kv_page id)
{
    page_pool_drop_writer(seq->cache->pool, id);
    page_pool_release(seq->cache->pool, id);
}

void kv_seq_unreserve(struct kv_seq *seq)
{
    struct page_pool *pool = seq->cache->pool;
    uint32_t P = page_tokens_of(seq), n_keep = u32_ceil_div(seq->n_computed, P), row = seq->n_computed % P;

    if (seq->n_reserved == seq->n_computed) return;
    while (seq->n_pages > n_keep) {
        kv_page id = seq->pages[--seq->n_pages];

        if (seq->cache->window) page_pool_leave_window(pool, id);
        drop_own_page(seq, id);
    }
    if (row != 0) { /* nobody appended after us: the rows behind ours would have needed ours computed */
        kv_page last = seq->pages[n_keep - 1];
        if (page_pool_fill(pool, last) == u32_min(P, seq->n_reserved - (n_keep - 1) * P))
            page_pool_set_fill(pool, last, row);
    }
    seq->n_reserved = seq->n_computed;
    seq->is_ahead = false;
}

void kv_seq_commit_rows(struct kv_seq *seq, uint32_t n_rows)
{
    if (seq->state == KV_SEQ_POISONED) return;
    assert(seq->state == KV_SEQ_RUNNABLE && n_rows <= seq->n_reserved - seq->n_computed);
    assert(seq->n_computed + n_rows <= seq->n_keys);
    seq->n_computed += n_rows;
    if (seq->n_computed == seq->n_reserved) seq->is_ahead = false;
    if (kv_chain_publish(seq)) kv_cache_wake(seq->cache);
    kv_window_move_on(seq, seq->n_computed - n_rows);
}

void kv_seq_commit(struct kv_seq *seq)
{
    kv_seq_commit_rows(seq, seq->n_reserved - seq->n_computed);
}

void kv_seq_push(struct kv_seq *seq, kv_key token)
{
    assert(seq->n_keys < seq->n_keys_cap);
    seq->keys[seq->n_keys++] = token;
}

void kv_seq_truncate(struct kv_seq *seq, uint32_t n)
{
    assert(n >= seq->n_path && n <= seq->n_keys && seq->n_reserved == seq->n_computed && !seq->cache->window);
    seq->n_keys = n;
    if (seq->n_computed <= n) return;
    seq->n_computed = n;
    kv_seq_unreserve(seq);
}

/* ---- the state behind the last key ---- */

/* The node at whose end the computed keys end, where it is ready. */
static struct radix_node *node_at_end(const struct kv_seq *seq)
{
    struct radix_node *node = seq->node;

    return node && radix_node_is_ready(node) && radix_node_end(node) == seq->n_keys && seq->n_path == seq->n_keys
               ? node
               : NULL;
}

void kv_seq_keep_state(struct kv_seq *seq, const void *state)
{
    struct radix_node *node = node_at_end(seq);

    if (!seq->cached || seq->state != KV_SEQ_RUNNABLE || !seq->end_state) return;
    memcpy(seq->end_state, state, seq->cache->state_bytes);
    seq->end_state_at = seq->n_computed;
    if (node && seq->n_computed == seq->n_keys) radix_set_state(seq->cache->tree, node, state, seq->cache->state_bytes);
}

const void *kv_seq_take_whole(struct kv_seq *seq)
{
    struct radix_node *node = node_at_end(seq);

    if (!node || !radix_node_state(node) || seq->state != KV_SEQ_RUNNABLE || seq->n_computed + 1 < seq->n_keys ||
        seq->n_reserved != seq->n_computed || seq->first_own_page != seq->n_pages)
        return NULL;
    if (seq->cache->window &&
        page_pool_window(seq->cache->pool, kv_path_page(seq, (seq->n_keys - 1) / page_tokens_of(seq), seq->n_keys)) ==
            KV_NO_PAGE)
        return NULL;
    kv_window_leave(seq);
    seq->n_hit = seq->n_keys;
    kv_seq_run_from(seq, seq->n_keys);
    return radix_node_state(node);
}

/* ---- the end ---- */

/* A failed insert is counted by the tree and fails nobody. */
static void store_tail(struct kv_seq *seq, uint64_t now)
{
    struct radix *tree = seq->cache->tree;
    struct radix_node *node;

    if (radix_insert_ready(tree, seq->root, seq->keys, seq->n_computed, seq->pages, now, &node) != RD_OK) return;
    if (seq->end_state_at == seq->n_computed && radix_node_is_ready(node) && radix_node_end(node) == seq->n_computed)
        radix_set_state(tree, node, seq->end_state, seq->cache->state_bytes);
}

void kv_seq_finish(struct kv_seq *seq, bool store, uint64_t now)
{
    struct radix *tree = seq->cache->tree;

    if (!seq->live) return;
    if (seq->state != KV_SEQ_POISONED) kv_seq_unreserve(seq);
    if (seq->node) kv_chain_hand_over(seq);
    if (store && seq->cached && seq->state == KV_SEQ_RUNNABLE && seq->n_computed > 0) store_tail(seq, now);
    kv_window_leave(seq);
    if (seq->node) radix_unlock(tree, seq->node);
    for (uint32_t k = seq->first_own_page; k < seq->n_pages; k++) drop_own_page(seq, seq->pages[k]);
    live_remove(seq);
    seq->state = KV_SEQ_DONE;
    seq->is_ahead = false;
    seq->node = NULL;
    seq->n_computed = seq->n_reserved = seq->n_pages = seq->first_own_page = seq->n_path = seq->window_from = 0;
}

/* ---- paths held without a sequence ---- */

struct radix_node *kv_hold(struct kv_cache *cache, struct radix_node *root, const kv_key *keys, uint32_t n,
                           uint64_t now, uint32_t *n_held)
{
    struct radix_match m = radix_match(cache->tree, root, keys, n, now);
    struct radix_node *node = m.node, *upper;

    *n_held = m.n_ready;
    while (node->parent && node->start >= m.n_ready) node = node->parent;
    if (m.n_ready < radix_node_end(node)) { /* hold no more than asked for, and of a pending node what is computed */
        if (radix_split(cache->tree, node, m.n_ready - node->start, &upper) == RD_OK) {
            node = upper;
        } else if (!radix_node_is_ready(node)) {
            *n_held = node->start;
            node = node->parent;
        }
    }
    radix_lock(cache->tree, node);
    return node;
}

void kv_unhold(struct kv_cache *cache, struct radix_node *node)
{
    radix_unlock(cache->tree, node);
}
