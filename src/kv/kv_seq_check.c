/* kv/kv_seq_check.c - every invariant that needs the sequences, recounted the slow way (docs/engine.md, "Invariants"). */
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "kv/kv_seq_path.h"

struct check {
    const struct kv_cache *cache;
    struct rd_error *err;
    rd_status st;
    uint32_t *holders, *writers, *pins; /* [n_pages each]; pages by node, sequence, and locked node */
    uint32_t *users;                    /* [n_pages], of their windows: by runnable sequence and loan */
};

static bool fail(struct check *c, const struct kv_seq *seq, const char *what)
{
    uint32_t place = 0;
    for (const struct kv_seq *at = c->cache->live; at && at != seq; at = at->next) place++;
    c->st =
        error_set(c->err, RD_E_INTERNAL,
                  "live sequence %u (state %d, %u keys, computed %u, reserved %u, path %u, waits for %u): %s", place,
                  (int)seq->state, seq->n_keys, seq->n_computed, seq->n_reserved, seq->n_path, seq->wait_until, what);
    return false;
}

static bool is_live(const struct kv_cache *cache, const struct kv_seq *seq)
{
    const struct kv_seq *at = cache->live;
    while (at && at != seq) at = at->next;
    return at != NULL;
}

/* A runnable sequence has the windows that its next row sees. */
static bool check_windows(struct check *c, const struct kv_seq *seq)
{
    if (!c->cache->window || seq->state != KV_SEQ_RUNNABLE) return true;
    if (seq->window_from != kv_window_first(c->cache, seq->n_computed)) return fail(c, seq, "uses other windows");
    for (uint32_t k = seq->window_from; k < seq->n_pages; k++) {
        if (page_pool_window(c->cache->pool, seq->pages[k]) == KV_NO_PAGE) return fail(c, seq, "a window is gone");
        if (page_pool_window(c->cache->pool, seq->pages[k]) != seq->windows[k])
            return fail(c, seq, "its table of windows is another");
        c->users[seq->pages[k]]++;
    }
    return true;
}

/* Counts the node's pages; a pending node's owner lives, has it in its chain, and waits for no one who waits for
 * it. */
static bool check_node(void *arg, const struct radix_node *node, uint32_t depth)
{
    struct check *c = arg;
    const struct radix_node *at;

    for (uint32_t i = 0; i < node->n_pages; i++) {
        c->holders[node->pages[i]]++;
        if (node->locks > 0) c->pins[node->pages[i]]++;
    }
    if (depth == 0 || radix_node_is_ready(node)) return true;
    if (!is_live(c->cache, node->owner)) {
        c->st = error_set(c->err, RD_E_INTERNAL, "pending node at %u: its owner is gone", node->start);
        return false;
    }
    for (at = node->owner->node; at && at->owner == node->owner && at != node; at = at->parent) continue;
    return at == node ? true : fail(c, node->owner, "owns a pending node that is not in its chain");
}

static bool check_path(struct check *c, const struct kv_seq *seq)
{
    const struct radix_node *top = kv_chain_top(seq);
    uint32_t ready = kv_path_ready(seq);

    if (!seq->node) return seq->cached && seq->state != KV_SEQ_POISONED ? fail(c, seq, "has no path") : true;
    if (seq->n_path > seq->n_keys || seq->n_path > radix_node_end(seq->node)) return fail(c, seq, "path too long");
    for (const struct radix_node *node = seq->node; node; node = node->parent) {
        if (node->locks == 0) return fail(c, seq, "path is not locked");
        if (!node->parent && node != seq->root) return fail(c, seq, "path leads to another root");
        for (uint32_t i = 0; i < node->n_keys && node->start + i < seq->n_path; i++)
            if (node->keys[i] != seq->keys[node->start + i]) return fail(c, seq, "keys differ from its path");
    }
    if (top && !(seq->state == KV_SEQ_RUNNABLE && seq->n_computed < seq->n_again) &&
        top->start + top->n_computed != (seq->state == KV_SEQ_WAITING ? seq->wait_until : seq->n_computed))
        return fail(c, seq, "does not compute its pending nodes next in order");
    if (top && seq->node->owner == seq && seq->n_path != radix_node_end(seq->node))
        return fail(c, seq, "owns more than its path");
    if (seq->state == KV_SEQ_WAITING && (ready >= seq->wait_until || seq->wait_until > seq->n_path))
        return fail(c, seq, "waits for what is there, or for what nobody computes");
    if (seq->state == KV_SEQ_WAITING && seq->wait_until >= seq->n_keys) return fail(c, seq, "waits for its last key");
    if (seq->state == KV_SEQ_RUNNABLE && ready < seq->n_relied) return fail(c, seq, "its hit is not computed");
    return true;
}

static bool check_table(struct check *c, const struct kv_seq *seq)
{
    const struct page_pool *pool = c->cache->pool;
    uint32_t P = page_pool_page_tokens(pool);

    if (seq->state == KV_SEQ_RUNNABLE && seq->n_reserved != seq->n_computed + seq->is_ahead)
        return fail(c, seq, "rows left reserved");
    if (seq->n_computed > seq->n_keys || seq->first_own_page > seq->n_pages || seq->n_pages > seq->n_pages_cap)
        return fail(c, seq, "counts out of range");
    for (uint32_t k = seq->first_own_page; k < seq->n_pages; k++) {
        c->holders[seq->pages[k]]++;
        c->writers[seq->pages[k]]++;
    }
    if (seq->state == KV_SEQ_POISONED) return true;
    if (seq->n_pages != u32_ceil_div(seq->n_computed + seq->is_ahead, P))
        return fail(c, seq, "block table has the wrong length");
    for (uint32_t k = 0; k < seq->n_pages; k++) {
        if (k < seq->first_own_page && kv_path_page(seq, k, seq->n_computed) != seq->pages[k])
            return fail(c, seq, "block table differs from the path");
        if (page_pool_holders(pool, seq->pages[k]) == 0) return fail(c, seq, "a free page in the block table");
        if (page_pool_fill(pool, seq->pages[k]) < u32_min(P, seq->n_computed - k * P))
            return fail(c, seq, "fill below its computed rows");
    }
    return true;
}

static bool check_pages(struct check *c)
{
    const struct page_pool *pool = c->cache->pool;

    for (kv_page id = 0; id < page_pool_counts(pool).n_total; id++)
        if (page_pool_holders(pool, id) != c->holders[id] || page_pool_writers(pool, id) != c->writers[id] ||
            page_pool_pins(pool, id) != c->pins[id] || page_pool_window_users(pool, id) != c->users[id]) {
            c->st =
                error_set(c->err, RD_E_INTERNAL,
                          "page %u: holders %u, writers %u, pins %u, window's users %u; counted %u, %u, %u, %u", id,
                          page_pool_holders(pool, id), page_pool_writers(pool, id), page_pool_pins(pool, id),
                          page_pool_window_users(pool, id), c->holders[id], c->writers[id], c->pins[id], c->users[id]);
            return false;
        }
    return true;
}

/* Something waits: then something runs (F71). */
static bool check_progress(struct check *c)
{
    const struct kv_seq *waiting = NULL;

    for (const struct kv_seq *seq = c->cache->live; seq; seq = seq->next) {
        if (seq->state == KV_SEQ_RUNNABLE) return true;
        if (seq->state == KV_SEQ_WAITING) waiting = seq;
    }
    return waiting ? fail(c, waiting, "waits while nothing runs") : true;
}

static bool check_sequences(struct check *c)
{
    const struct kv_seq *prev = NULL;

    for (const struct kv_seq *seq = c->cache->live; seq; prev = seq, seq = seq->next) {
        if (seq->prev != prev || !seq->live || seq->state == KV_SEQ_DONE) return fail(c, seq, "links are broken");
        if (!check_path(c, seq) || !check_table(c, seq) || !check_windows(c, seq)) return false;
    }
    return prev == c->cache->live_tail ? true : fail(c, c->cache->live_tail, "is not the last");
}

rd_status kv_check(const struct kv_cache *cache, struct rd_error *err)
{
    uint32_t n_pages = page_pool_counts(cache->pool).n_total;
    struct check c = {.cache = cache, .err = err};

    c.st = radix_check(cache->tree, err);
    if (c.st == RD_OK) c.st = page_pool_check(cache->pool, err);
    if (c.st != RD_OK) return c.st;
    c.holders = mem_zalloc((size_t)n_pages * 4, sizeof(*c.holders));
    if (!c.holders) return error_set(err, RD_E_NOMEM, "no memory to check");
    c.writers = c.holders + n_pages;
    c.pins = c.writers + n_pages;
    c.users = c.pins + n_pages;
    radix_walk(cache->tree, check_node, &c);
    for (const struct kv_loan *loan = cache->loans; loan; loan = loan->next)
        for (uint32_t i = 0; i < loan->n; i++) {
            c.holders[loan->pages[i]]++;
            c.writers[loan->pages[i]]++;
            c.users[loan->pages[i]] += i >= loan->first_window ||
                                       (loan->leaves && page_pool_window(cache->pool, loan->pages[i]) != KV_NO_PAGE);
        }
    if (c.st == RD_OK && check_sequences(&c) && check_pages(&c)) check_progress(&c);
    mem_free(c.holders);
    return c.st;
}
