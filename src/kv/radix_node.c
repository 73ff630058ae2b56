/* kv/radix_node.c - nodes and their links: children, publishing pages, splitting, pruning. */
#include "kv/radix_node.h"
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"

#define INLINE_CHILDREN 4u /* this many siblings are walked; more get a table */

/* ---- struct and buffer ---- */

static uint32_t pages_spanned(uint32_t start, uint32_t n, uint32_t page_tokens)
{
    return n == 0 ? 0 : (start + n - 1) / page_tokens - start / page_tokens + 1;
}

/* Makes node's buffer ready for n_pages and n_keys; both pointers point into it. */
static void lay_out(struct radix_node *node, uint32_t *run, uint32_t n_pages, uint32_t n_keys)
{
    node->run = run;
    node->pages = run;
    node->keys = run + n_pages;
    node->n_bytes = sizeof(*node) + ((size_t)n_pages + n_keys) * sizeof(*run);
}

struct radix_node *radix_node_alloc(struct radix *tree, uint32_t start, const kv_key *keys, uint32_t n_keys)
{
    uint32_t n_pages = pages_spanned(start, n_keys, tree->page_tokens);
    struct radix_node *node = mem_zalloc(1, sizeof(*node));
    uint32_t *run = mem_alloc((size_t)n_pages + n_keys, sizeof(*run));

    if (!node || !run) goto fail;
    lay_out(node, run, n_pages, n_keys);
    node->start = start;
    node->n_keys = n_keys;
    node->last_use = node->created = tree->now;
    memcpy(node->keys, keys, (size_t)n_keys * sizeof(kv_key));
    tree->counts.node_bytes += node->n_bytes;
    radix_count_node(tree, node, 1);
    return node;

fail:
    mem_free(node);
    mem_free(run);
    return NULL;
}

/* Drops the keys before `offset` and the pages before skip_pages, gives the memory back, and lets the counters
 * follow. */
static void shrink_front(struct radix *tree, struct radix_node *node, uint32_t offset, uint32_t skip_pages)
{
    uint32_t n_span = pages_spanned(node->start + offset, node->n_keys - offset, tree->page_tokens);
    const kv_key *keys = node->keys + offset;
    uint32_t *run;

    node->n_keys -= offset;
    node->start += offset;
    memmove(node->run, node->pages + skip_pages, (size_t)n_span * sizeof(kv_page));
    memmove(node->run + n_span, keys, (size_t)node->n_keys * sizeof(kv_key));
    run = mem_realloc(node->run, (size_t)n_span + node->n_keys, sizeof(*run));
    tree->counts.node_bytes -= node->n_bytes;
    /* a shrink that fails leaves the buffer larger than n_bytes says, nothing worse */
    lay_out(node, run ? run : node->run, n_span, node->n_keys);
    tree->counts.node_bytes += node->n_bytes;
    radix_count_keys(tree, node, -(int64_t)offset);
}

static void drop_state(struct radix *tree, struct radix_node *node)
{
    tree->counts.node_bytes -= node->state_bytes;
    mem_free(node->state);
    node->state = NULL;
    node->state_bytes = 0;
}

void radix_set_state(struct radix *tree, struct radix_node *node, const void *state, uint32_t n_bytes)
{
    thread_owner_check(&tree->owner);
    assert(radix_node_is_ready(node) && node->parent);
    if (node->state) return; /* equal keys have equal states */
    node->state = mem_memdup(state, n_bytes);
    if (!node->state) return;
    node->state_bytes = n_bytes;
    tree->counts.node_bytes += n_bytes;
}

const void *radix_node_state(const struct radix_node *node)
{
    return node->state;
}

void radix_node_free(struct radix *tree, struct radix_node *node)
{
    drop_state(tree, node);
    tree->counts.node_bytes -= node->n_bytes + (size_t)node->table_cap * sizeof(*node->table);
    radix_count_node(tree, node, -1);
    mem_free(node->table);
    mem_free(node->run);
    mem_free(node);
}

/* ---- children: siblings in a list, and an open-addressing table with linear probing once there are many ---- */

static uint32_t slot_of(const struct radix *tree, uint32_t cap, kv_key first)
{
    if (tree->constant_hash) return 0;
    return (uint32_t)((first * 0x9E3779B97F4A7C15u) >> 32) & (cap - 1);
}

static void table_put(const struct radix *tree, struct radix_node **table, uint32_t cap, struct radix_node *child)
{
    uint32_t i = slot_of(tree, cap, child->keys[0]);
    while (table[i]) i = (i + 1) & (cap - 1);
    table[i] = child;
}

static uint32_t table_find(const struct radix *tree, const struct radix_node *parent, kv_key first)
{
    uint32_t i = slot_of(tree, parent->table_cap, first);
    while (parent->table[i] && parent->table[i]->keys[0] != first) i = (i + 1) & (parent->table_cap - 1);
    return i;
}

/* Backward shift: no tombstones, so probes stay short. */
static void table_remove(const struct radix *tree, struct radix_node *parent, kv_key first)
{
    uint32_t mask = parent->table_cap - 1, hole = table_find(tree, parent, first);

    assert(parent->table[hole]);
    for (uint32_t i = (hole + 1) & mask; parent->table[i]; i = (i + 1) & mask) {
        uint32_t home = slot_of(tree, parent->table_cap, parent->table[i]->keys[0]);
        if (((i - home) & mask) < ((i - hole) & mask)) continue; /* it would land before its home */
        parent->table[hole] = parent->table[i];
        hole = i;
    }
    parent->table[hole] = NULL;
}

struct radix_node *radix_child_find(const struct radix *tree, const struct radix_node *parent, kv_key first)
{
    if (parent->table_cap > 0) return parent->table[table_find(tree, parent, first)];
    for (struct radix_node *child = parent->first_child; child; child = child->next_sibling)
        if (child->keys[0] == first) return child;
    return NULL;
}

rd_status radix_child_reserve(struct radix *tree, struct radix_node *parent)
{
    uint32_t want = parent->n_children + 1, cap = parent->table_cap ? parent->table_cap : 8;
    struct radix_node **table;

    if (want <= INLINE_CHILDREN || (parent->table_cap > 0 && want <= parent->table_cap / 2)) return RD_OK;
    while (want > cap / 2) cap *= 2;
    table = mem_zalloc(cap, sizeof(struct radix_node *));
    if (!table) return RD_E_NOMEM;
    for (struct radix_node *child = parent->first_child; child; child = child->next_sibling)
        table_put(tree, table, cap, child);
    tree->counts.node_bytes += (size_t)(cap - parent->table_cap) * sizeof(*table);
    mem_free(parent->table);
    parent->table = table;
    parent->table_cap = cap;
    return RD_OK;
}

void radix_child_link(struct radix *tree, struct radix_node *parent, struct radix_node *child)
{
    radix_lru_remove(tree, parent);
    child->parent = parent;
    child->ghost_sum = parent->ghost_sum + ghosts_sum(parent->keys, parent->n_keys, parent->start);
    child->prev_sibling = NULL;
    child->next_sibling = parent->first_child;
    if (child->next_sibling) child->next_sibling->prev_sibling = child;
    parent->first_child = child;
    parent->n_children++;
    if (parent->table_cap > 0) table_put(tree, parent->table, parent->table_cap, child);
    radix_retain_continued(tree, parent);
}

/* ---- leaving the parent ---- */

void radix_child_unlink(struct radix *tree, struct radix_node *child)
{
    struct radix_node *parent = child->parent;

    if (parent->table_cap > 0) table_remove(tree, parent, child->keys[0]);
    *(child->prev_sibling ? &child->prev_sibling->next_sibling : &parent->first_child) = child->next_sibling;
    if (child->next_sibling) child->next_sibling->prev_sibling = child->prev_sibling;
    parent->n_children--;
    child->parent = child->prev_sibling = child->next_sibling = NULL;
    radix_lru_insert_by_use(tree, parent);
}

/* ---- pages ---- */

static void hold_page(struct radix *tree, const struct radix_node *node, kv_page id)
{
    page_pool_retain(tree->pool, id);
    if (node->locks > 0) page_pool_pin(tree->pool, id);
}

/* Returns 1 when the page became free, or will soon. */
static uint32_t drop_page(struct radix *tree, const struct radix_node *node, kv_page id)
{
    bool is_kept =
        tree->is_evicting && tree->keep && page_pool_holders(tree->pool, id) == 1 && tree->keep(tree->keep_arg, id);

    if (node->locks > 0) page_pool_unpin(tree->pool, id);
    page_pool_note_cut(tree->pool, id); /* also where others hold it: its earlier rows are all they have */
    page_pool_release(tree->pool, id);
    return is_kept || page_pool_holders(tree->pool, id) == 0;
}

/* Lets go of the last pages until only those are left that n computed positions touch. */
static uint32_t drop_pages_beyond(struct radix *tree, struct radix_node *node, uint32_t n)
{
    uint32_t keep = pages_spanned(node->start, n, tree->page_tokens), n_freed = 0;
    while (node->n_pages > keep) n_freed += drop_page(tree, node, node->pages[--node->n_pages]);
    return n_freed;
}

kv_page radix_node_publish(struct radix *tree, struct radix_node *node, uint32_t n, const kv_page *table)
{
    const kv_page *from = table + node->start / tree->page_tokens;
    uint32_t n_pages = pages_spanned(node->start, n, tree->page_tokens);
    kv_page replaced = KV_NO_PAGE;

    assert(n >= node->n_computed && n <= node->n_keys);
    if (n == node->n_computed) return KV_NO_PAGE;
    if (node->n_pages > 0 && node->pages[node->n_pages - 1] != from[node->n_pages - 1]) {
        replaced = node->pages[--node->n_pages];
        hold_page(tree, node, from[node->n_pages]); /* before the other goes: it may be that page's last holder */
        drop_page(tree, node, replaced);
        node->pages[node->n_pages] = from[node->n_pages];
        node->n_pages++;
    }
    for (; node->n_pages < n_pages; node->n_pages++) {
        hold_page(tree, node, from[node->n_pages]);
        node->pages[node->n_pages] = from[node->n_pages];
    }
    node->n_computed = n;
    if (radix_node_is_ready(node)) node->owner = NULL;
    return replaced;
}

/* ---- shape ---- */

/* Puts upper where node hangs, and node below upper. No memory is needed: the first key, and so the slot, is the
 * same. */
static void hang_between(struct radix *tree, struct radix_node *upper, struct radix_node *node)
{
    struct radix_node *parent = node->parent;

    if (parent->table_cap > 0) parent->table[table_find(tree, parent, node->keys[0])] = upper;
    upper->parent = parent;
    upper->prev_sibling = node->prev_sibling;
    upper->next_sibling = node->next_sibling;
    *(node->prev_sibling ? &node->prev_sibling->next_sibling : &parent->first_child) = upper;
    if (node->next_sibling) node->next_sibling->prev_sibling = upper;
    node->parent = upper;
    node->prev_sibling = node->next_sibling = NULL;
    upper->first_child = node;
    upper->n_children = 1;
}

rd_status radix_split(struct radix *tree, struct radix_node *node, uint32_t offset, struct radix_node **out)
{
    uint32_t P = tree->page_tokens, cut = node->start + offset;
    struct radix_node *upper;

    assert(node->parent && offset > 0 && offset < node->n_keys);
    upper = radix_node_alloc(tree, node->start, node->keys, offset);
    if (!upper) return RD_E_NOMEM;

    upper->locks = node->locks;
    upper->last_use = node->last_use;
    upper->created = node->created;
    upper->n_hits = node->n_hits;
    radix_retain_split(tree, upper, node);
    upper->claim = node->claim;
    upper->ghost_sum = node->ghost_sum;
    node->ghost_sum += ghosts_sum(upper->keys, offset, upper->start);
    upper->n_computed = u32_min(node->n_computed, offset);
    upper->n_pages = pages_spanned(node->start, upper->n_computed, P);
    upper->owner = radix_node_is_ready(upper) ? NULL : node->owner;
    memcpy(upper->pages, node->pages, (size_t)upper->n_pages * sizeof(kv_page));
    hang_between(tree, upper, node);

    node->n_computed -= upper->n_computed;
    if (node->n_computed > 0 && cut % P != 0) hold_page(tree, node, node->pages[cut / P - node->start / P]);
    shrink_front(tree, node, offset, cut / P - node->start / P);
    node->n_pages = pages_spanned(cut, node->n_computed, P);
    tree->counts.n_splits++;
    *out = upper;
    return RD_OK;
}

rd_status radix_attach(struct radix *tree, const struct radix_match *m, const kv_key *keys, uint32_t n,
                       struct radix_node **out)
{
    struct radix_node *parent = m->node, *node = radix_node_alloc(tree, m->n_match, keys + m->n_match, n - m->n_match);
    rd_status st = RD_E_NOMEM;

    if (!node) goto fail;
    st = m->n_in_node < parent->n_keys ? radix_split(tree, parent, m->n_in_node, &parent)
                                       : radix_child_reserve(tree, parent);
    if (st != RD_OK) goto fail;
    radix_child_link(tree, parent, node);
    *out = node;
    return RD_OK;

fail:
    if (node) radix_node_free(tree, node);
    return st;
}

static struct radix_node *first_leaf(struct radix_node *node)
{
    while (node->first_child) node = node->first_child;
    return node;
}

void radix_prune(struct radix *tree, struct radix_node *node, uint32_t keep)
{
    assert(keep >= node->n_computed || keep == 0);
    while (node->first_child) {
        struct radix_node *leaf = first_leaf(node);
        assert(leaf->locks == 0 && leaf->n_pages == 0 && !leaf->on_lru);
        radix_child_unlink(tree, leaf);
        radix_node_free(tree, leaf);
    }
    if (keep == 0) {
        assert(node->locks == 0 && !node->on_lru);
        drop_pages_beyond(tree, node, 0);
        radix_child_unlink(tree, node);
        radix_node_free(tree, node);
        return;
    }
    assert(keep <= node->n_keys);
    radix_count_node(tree, node, -1);
    node->n_keys = keep;
    radix_count_node(tree, node, 1);
    if (!radix_node_is_ready(node)) return;
    node->owner = NULL;
    radix_lru_append(tree, node);
}

/* ---- taking leaves ---- */

/* The leaf's keys from number keep on go. */
static void leave_ghost(struct radix *tree, const struct radix_node *leaf, uint32_t keep, enum ghost_cause cause)
{
    tree->counts.keys_gone[cause] += leaf->n_keys - keep;
    ghosts_note(&tree->ghosts, leaf->ghost_sum + ghosts_sum(leaf->keys, keep + 1, leaf->start), cause);
}

uint32_t radix_leaf_remove(struct radix *tree, struct radix_node *leaf, enum ghost_cause cause)
{
    uint32_t n_freed;

    assert(radix_node_is_evictable(leaf));
    leave_ghost(tree, leaf, 0, cause);
    radix_lru_remove(tree, leaf);
    n_freed = drop_pages_beyond(tree, leaf, 0);
    tree->counts.pages_gone[cause] += n_freed;
    radix_child_unlink(tree, leaf);
    radix_node_free(tree, leaf);
    return n_freed;
}

/* Takes the leaf's last page; the keys that it covered go with it. */
uint32_t radix_leaf_take_page(struct radix *tree, struct radix_node *leaf)
{
    uint32_t boundary = (radix_node_end(leaf) - 1) / tree->page_tokens * tree->page_tokens, n, n_freed;

    if (boundary <= leaf->start) return radix_leaf_remove(tree, leaf, GHOST_EVICTED);
    n = boundary - leaf->start;
    leave_ghost(tree, leaf, n, GHOST_EVICTED);
    drop_state(tree, leaf);
    radix_count_node(tree, leaf, -1);
    leaf->n_keys = leaf->n_computed = n;
    radix_count_node(tree, leaf, 1);
    n_freed = drop_pages_beyond(tree, leaf, n);
    tree->counts.pages_gone[GHOST_EVICTED] += n_freed;
    return n_freed;
}

/* Post-order below one root: an inner node is a leaf by the time it is reached if all below it went. */
uint32_t radix_clear_below(struct radix *tree, struct radix_node *root, uint64_t claim)
{
    struct radix_node *node = first_leaf(root);
    uint32_t n_freed = 0;

    while (node != root) {
        struct radix_node *next = node->next_sibling ? first_leaf(node->next_sibling) : node->parent;
        if (radix_node_is_evictable(node) && (claim == 0 || node->claim == claim))
            n_freed += radix_leaf_remove(tree, node, GHOST_CLEARED);
        node = next;
    }
    return n_freed;
}

uint32_t radix_clear(struct radix *tree, struct radix_node *root)
{
    uint32_t n_freed = 0;

    thread_owner_check(&tree->owner);
    if (root) return radix_clear_below(tree, root, 0);
    for (uint32_t i = 0; i < RADIX_N_BUCKETS; i++)
        for (struct radix_root *r = tree->roots[i]; r; r = r->next) n_freed += radix_clear_below(tree, &r->node, 0);
    return n_freed;
}

/* A key that is no token's, another one each time: linked anew under it, the node is found by nobody. */
static void hide(struct radix *tree, struct radix_node *node)
{
    struct radix_node *parent = node->parent;

    radix_child_unlink(tree, node);
    node->keys[0] = UINT32_MAX - tree->n_hidden++;
    radix_child_link(tree, parent, node);
}

void radix_condemn(struct radix *tree, struct radix_node *node, uint32_t n)
{
    struct radix_node *upper;

    thread_owner_check(&tree->owner);
    while (node->start > n) node = node->parent;
    if (n > node->start) (void)radix_split(tree, node, n - node->start, &upper); /* no memory: all of the node goes */
    (void)radix_clear_below(tree, node, 0);
    if (radix_node_is_evictable(node))
        (void)radix_leaf_remove(tree, node, GHOST_CLEARED);
    else
        hide(tree, node);
}

static bool is_hidden(const struct radix *tree, const struct radix_node *node)
{
    return node->parent && node->keys[0] >= UINT32_MAX - tree->n_hidden;
}

struct find_page {
    const struct radix *tree;
    kv_page page;
    struct radix_node *found;
    uint32_t at, hidden_depth;
};

static bool look_for_page(void *arg, const struct radix_node *node, uint32_t depth)
{
    struct find_page *f = arg;

    if (depth > f->hidden_depth) return true; /* below what nobody finds any more */
    f->hidden_depth = is_hidden(f->tree, node) ? depth : UINT32_MAX;
    for (uint32_t i = 0; f->hidden_depth == UINT32_MAX && i < node->n_pages; i++) {
        if (node->pages[i] != f->page) continue;
        f->found = (struct radix_node *)(uintptr_t)node;
        f->at = u32_max(node->start, (node->start / f->tree->page_tokens + i) * f->tree->page_tokens);
        return false;
    }
    return true;
}

uint32_t radix_condemn_page(struct radix *tree, kv_page page)
{
    uint32_t n = 0;

    for (;; n++) {
        struct find_page f = {.tree = tree, .page = page, .hidden_depth = UINT32_MAX};

        radix_walk(tree, look_for_page, &f);
        if (!f.found) return n;
        radix_condemn(tree, f.found, f.at);
    }
}

uint32_t radix_clear_path(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n)
{
    struct radix_match m = radix_match(tree, root, keys, n, tree->now);
    struct radix_node *node = m.node, *upper;
    uint32_t n_freed;

    if (m.n_match < n || !node->parent || !radix_node_is_ready(node)) return 0;
    if (m.n_in_node < node->n_keys && radix_split(tree, node, m.n_in_node, &upper) == RD_OK) {
        n_freed = radix_clear_below(tree, upper, 0);
        node = upper;
    } else {
        n_freed = radix_clear_below(tree, node, 0);
    }
    return n_freed + (radix_node_is_evictable(node) ? radix_leaf_remove(tree, node, GHOST_CLEARED) : 0);
}
