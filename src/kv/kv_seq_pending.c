/* kv/kv_seq_pending.c - what is computed by one sequence and wanted by others: paths, publishing, waking, handing
 * over, poison.
 *
 * The pending nodes that a sequence owns are one chain that ends at seq->node, because positions are computed in
 * order:
 *
 *     root --[ready]--[a: pending, owner A]--[b: owner A]        A->node = b
 *                            |
 *                            +--[c: owner B]                     B->node = c, B waits for the end of a
 *
 * If A leaves now, a goes to B (the oldest sequence whose path needs it), b to the oldest one that needs b, if any.
 * The owner of a pending node is always older than all others that wait in it or below it; so whoever inherits a
 * node inherits all of A's nodes further down its own path, and its chain stays one piece.
 */
#include "base/checked.h"
#include "kv/kv_seq_path.h"

/* ---- paths ---- */

uint32_t kv_path_ready(const struct kv_seq *seq)
{
    uint32_t n = seq->n_path;

    for (const struct radix_node *node = seq->node; node; node = node->parent)
        if (!radix_node_is_ready(node)) n = u32_min(n, radix_node_computed_end(node));
    return n;
}

kv_page kv_path_page(const struct kv_seq *seq, uint32_t k, uint32_t end)
{
    uint32_t P = page_pool_page_tokens(seq->cache->pool);

    for (const struct radix_node *node = seq->node; node && node->parent; node = node->parent) {
        uint32_t node_end = u32_min(end, radix_node_computed_end(node));
        if (node->start < node_end && node->start / P <= k && k <= (node_end - 1) / P)
            return node->pages[k - node->start / P];
    }
    return KV_NO_PAGE;
}

bool kv_path_contains(const struct kv_seq *seq, const struct radix_node *node)
{
    const struct radix_node *at = seq->node;

    while (at && at->start > node->start) at = at->parent;
    /* a node without keys does not exist below a root, so equal starts mean the same depth */
    return at == node;
}

/* ---- running and waking ---- */

uint32_t kv_whole_reach(const struct kv_whole *wholes, uint32_t n_wholes, uint32_t n)
{
    for (uint32_t i = 0; i < n_wholes && wholes[i].begin < n; i++)
        if (n < wholes[i].sure) return wholes[i].begin;
    return n;
}

/* As far as its windows are there, and no whole is cut; fills the block table as far. */
static uint32_t reach(struct kv_seq *seq, uint32_t n)
{
    uint32_t whole, there;

    for (;;) {
        whole = kv_whole_reach(seq->wholes, seq->n_wholes, n);
        if (whole > 0)
            radix_path_pages(seq->cache->tree, seq->node, whole, seq->pages); /* the last page depends on it */
        there = kv_window_reach(seq->cache, seq->pages, whole);
        seq->cache->n_cut_short += there < whole;
        seq->cache->n_cut_tokens += whole - there;
        if (there == whole) return there;
        n = there;
    }
}

void kv_seq_run_from(struct kv_seq *seq, uint32_t n)
{
    uint32_t n_wanted = n;

    n = reach(seq, n);
    seq->n_again = n < n_wanted ? n_wanted : 0;
    seq->n_pages = seq->first_own_page = u32_ceil_div(n, page_pool_page_tokens(seq->cache->pool));
    seq->n_computed = seq->n_reserved = n;
    seq->n_hit = u32_min(seq->n_hit, n);
    seq->n_hit_in_flight = seq->n_hit - u32_min(seq->n_hit, seq->n_ready_at_admit);
    seq->n_relied = seq->n_hit;
    seq->wait_until = 0;
    seq->state = KV_SEQ_RUNNABLE;
    kv_window_enter(seq);
}

void kv_cache_wake(struct kv_cache *cache)
{
    for (struct kv_seq *seq = cache->live; seq; seq = seq->next)
        if (seq->state == KV_SEQ_WAITING && kv_path_ready(seq) >= seq->wait_until)
            kv_seq_run_from(seq, seq->wait_until);
}

/* ---- the chain ---- */

struct radix_node *kv_chain_top(const struct kv_seq *seq)
{
    struct radix_node *top = NULL;

    for (struct radix_node *node = seq->node; node && node->owner == seq; node = node->parent) top = node;
    return top;
}

/* A node's partial last page gave way to the owner's copy of it: those that only read it follow. */
static void follow_replaced_page(const struct kv_seq *owner, kv_page replaced, uint32_t k)
{
    for (struct kv_seq *seq = owner->cache->live; seq; seq = seq->next)
        if (seq != owner && seq->state == KV_SEQ_RUNNABLE && k < seq->first_own_page && seq->pages[k] == replaced) {
            seq->pages[k] = kv_path_page(seq, k, seq->n_computed);
            if (!seq->cache->window || k < seq->window_from) continue;
            page_pool_use_window(seq->cache->pool, seq->pages[k]);
            page_pool_leave_window(seq->cache->pool, replaced);
            kv_window_note(seq, k);
        }
}

/* Bottom-up is as good as top-down: nothing is looked at in between. */
bool kv_chain_publish(struct kv_seq *seq)
{
    uint32_t P = page_pool_page_tokens(seq->cache->pool);
    bool any = false;

    for (struct radix_node *node = seq->node; node && node->owner == seq; node = node->parent) {
        uint32_t end = u32_min(seq->n_computed, radix_node_end(node)), old_end = radix_node_computed_end(node);
        if (end <= old_end) continue;
        kv_page last = node->n_pages > 0 ? node->pages[node->n_pages - 1] : KV_NO_PAGE; /* its window may be used */
        if (last != KV_NO_PAGE) page_pool_retain(seq->cache->pool, last);
        kv_page replaced = radix_node_publish(seq->cache->tree, node, end - node->start, seq->pages);
        if (replaced != KV_NO_PAGE) follow_replaced_page(seq, replaced, (old_end - 1) / P);
        if (last != KV_NO_PAGE) page_pool_release(seq->cache->pool, last);
        any = true;
    }
    return any;
}

/* seq's path ends at position n, in or at the end of its ancestor (or own) node `at`. */
static void end_path(struct kv_seq *seq, struct radix_node *at, uint32_t n)
{
    radix_unlock_until(seq->cache->tree, seq->node, at);
    seq->node = at;
    seq->n_path = u32_min(seq->n_path, n);
    if (seq->state == KV_SEQ_WAITING) seq->wait_until = u32_min(seq->wait_until, seq->n_path);
}

void kv_chain_cut(struct kv_cache *cache, struct radix_node *node, uint32_t keep)
{
    uint32_t end = node->start + keep;

    for (struct kv_seq *seq = cache->live; seq; seq = seq->next)
        if (kv_path_contains(seq, node)) end_path(seq, keep == 0 ? node->parent : node, end);
    radix_prune(cache->tree, node, keep);
}

/* The oldest sequence that waits and whose path goes on beyond what is computed of node. */
static struct kv_seq *first_in_need(const struct kv_seq *leaver, const struct radix_node *node)
{
    for (struct kv_seq *seq = leaver->cache->live; seq; seq = seq->next)
        if (seq != leaver && seq->state == KV_SEQ_WAITING && seq->n_path > radix_node_computed_end(node) &&
            kv_path_contains(seq, node))
            return seq;
    return NULL;
}

/* heir becomes the owner of all that leaver owned on its path, and goes on at the computed end of top. */
static void inherit(struct kv_seq *heir, const struct kv_seq *leaver, const struct radix_node *top)
{
    struct kv_cache *cache = heir->cache;
    struct radix_node *node = heir->node, *upper;
    uint32_t top_start = top->start; /* a split may move it */

    heir->wait_until = radix_node_computed_end(top);
    while (node->start >= heir->n_path) node = node->parent; /* others' splits may have left it below its path's end */
    end_path(heir, node, heir->n_path);
    if (node->owner == leaver && heir->n_path < radix_node_end(node)) { /* its prompt ends inside */
        if (radix_split(cache->tree, node, heir->n_path - node->start, &upper) == RD_OK)
            end_path(heir, upper, heir->n_path);
        else
            kv_chain_cut(cache, node, heir->n_path - node->start);
    }
    for (node = heir->node; node && node->start >= top_start; node = node->parent)
        if (node->owner == leaver) node->owner = heir;
    cache->n_owner_handed_over++;
}

void kv_chain_hand_over(struct kv_seq *seq)
{
    struct radix_node *top = kv_chain_top(seq);

    if (!top) return;
    for (; top; top = kv_chain_top(seq)) {
        struct kv_seq *heir = first_in_need(seq, top);
        if (heir)
            inherit(heir, seq, top);
        else
            kv_chain_cut(seq->cache, top, top->n_computed);
    }
    kv_cache_wake(seq->cache);
}

/* ---- poison ---- */

/* What seq has read, or waits to read, of its path goes beyond position n. */
static bool relies_beyond(const struct kv_seq *seq, uint32_t n)
{
    return (seq->state == KV_SEQ_WAITING ? seq->wait_until : seq->n_relied) > n;
}

static void spoil(struct kv_seq *seq)
{
    kv_window_leave(seq);
    seq->state = KV_SEQ_POISONED;
}

void kv_seq_poison(struct kv_seq *seq)
{
    struct kv_cache *cache = seq->cache;
    struct radix_node *top = kv_chain_top(seq);

    if (!seq->live || seq->state == KV_SEQ_POISONED) return;
    kv_window_leave(seq); /* before pages of its chain go that others computed */
    if (top) {
        for (struct kv_seq *other = cache->live; other; other = other->next)
            if (other != seq && kv_path_contains(other, top) && relies_beyond(other, top->start)) spoil(other);
        kv_chain_cut(cache, top, 0);
    }
    /* a ready node's rows are from earlier steps, and its rows behind them are handed out to no one else */
    for (uint32_t k = seq->first_own_page; k < seq->n_pages; k++)
        if (kv_path_page(seq, k, UINT32_MAX) != seq->pages[k]) page_pool_quarantine(cache->pool, seq->pages[k]);
    seq->state = KV_SEQ_POISONED;
    for (struct kv_seq *other = cache->live; other; other = other->next)
        if (other->state == KV_SEQ_POISONED && other->node) {
            radix_unlock(cache->tree, other->node);
            other->node = NULL;
        }
}
