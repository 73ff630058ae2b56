/* kv/radix.c - the tree as its callers see it: namespaces, match, lock, insert. Shape and links: radix_node.c. */
#include "kv/radix.h"
#include <assert.h>
#include <string.h>
#include "base/mem.h"
#include "kv/radix_node.h"

rd_status radix_create(struct page_pool *pool, struct radix **out)
{
    struct radix *tree = mem_zalloc(1, sizeof(*tree));

    if (!tree) return RD_E_NOMEM;
    tree->pool = pool;
    tree->page_tokens = page_pool_page_tokens(pool);
    *out = tree;
    return RD_OK;
}

void radix_set_constant_hash(struct radix *tree)
{
    tree->constant_hash = true;
}

/* Held paths (kv_hold) may still be locked: the pins go with the pages. */
static void free_below(struct radix *tree, struct radix_node *root)
{
    struct radix_node *node = root;

    while (root->first_child) {
        while (node->first_child) node = node->first_child;
        struct radix_node *parent = node->parent;
        for (uint32_t i = 0; i < node->n_pages; i++) {
            if (node->locks > 0) page_pool_unpin(tree->pool, node->pages[i]);
            page_pool_release(tree->pool, node->pages[i]);
        }
        parent->first_child = node->next_sibling;
        radix_node_free(tree, node);
        node = parent;
    }
}

void radix_hand_over(struct radix *tree)
{
    thread_owner_release(&tree->owner);
    page_pool_hand_over(tree->pool);
}

void radix_destroy(struct radix *tree)
{
    if (!tree) return;
    for (uint32_t i = 0; i < RADIX_N_BUCKETS; i++)
        while (tree->roots[i]) {
            struct radix_root *r = tree->roots[i];
            tree->roots[i] = r->next;
            free_below(tree, &r->node);
            mem_free(r->node.table);
            mem_free(r);
        }
    mem_free(tree);
}

/* FNV-1a, 64 bit: an index only, names are compared in full. */
static uint64_t hash_name(const struct radix *tree, const unsigned char *name, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    if (tree->constant_hash) return 0;
    for (size_t i = 0; i < n; i++) h = (h ^ name[i]) * 0x100000001b3u;
    return h;
}

rd_status radix_namespace(struct radix *tree, const void *name, size_t n_bytes, struct radix_node **root)
{
    uint64_t hash = hash_name(tree, name, n_bytes);
    struct radix_root **bucket = &tree->roots[hash % RADIX_N_BUCKETS], *r;

    thread_owner_check(&tree->owner);
    for (r = *bucket; r; r = r->next)
        if (r->hash == hash && r->n_name == n_bytes && (n_bytes == 0 || memcmp(r + 1, name, n_bytes) == 0)) {
            *root = &r->node;
            return RD_OK;
        }
    r = mem_zalloc(1, sizeof(*r) + n_bytes);
    if (!r) return RD_E_NOMEM;
    if (n_bytes > 0) memcpy(r + 1, name, n_bytes);
    r->hash = hash;
    r->id = ++tree->n_roots_made;
    r->node.ghost_sum = hash;
    r->n_name = n_bytes;
    r->node.n_bytes = sizeof(*r) + n_bytes;
    r->next = *bucket;
    *bucket = r;
    tree->counts.node_bytes += r->node.n_bytes;
    tree->counts.n_namespaces++;
    *root = &r->node;
    return RD_OK;
}

uint64_t radix_root_id(const struct radix_node *root)
{
    return ((const struct radix_root *)(const void *)root)->id; /* the node is the root's first member */
}

void radix_drop_empty(struct radix *tree, const struct radix_node *keep)
{
    thread_owner_check(&tree->owner);
    for (uint32_t i = 0; i < RADIX_N_BUCKETS; i++)
        for (struct radix_root **at = &tree->roots[i], *r; (r = *at);) {
            if (r->node.first_child || r->node.locks > 0 || &r->node == keep) {
                at = &r->next;
                continue;
            }
            *at = r->next;
            tree->counts.node_bytes -= r->node.n_bytes + (uint64_t)r->node.table_cap * sizeof(*r->node.table);
            tree->counts.n_namespaces--;
            mem_free(r->node.table);
            mem_free(r);
        }
}

enum ghost_cause radix_cause(const struct radix *tree, const struct radix_node *root, const kv_key *keys,
                             uint32_t n_match)
{
    return ghosts_find(&tree->ghosts, ghosts_sum(keys, n_match + 1, 0) + root->ghost_sum);
}

/* Length of the common prefix of a and b, at most n: blocks by memcmp, then one by one in the block that differs. */
static uint32_t common_prefix(const kv_key *a, const kv_key *b, uint32_t n)
{
    const uint32_t block = 128;
    uint32_t i = 0;

    while (n - i >= block && memcmp(a + i, b + i, block * sizeof(kv_key)) == 0) i += block;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static enum radix_match_kind match_kind(const struct radix_match *m, uint32_t n)
{
    bool at_end = m->n_in_node == m->node->n_keys;

    if (m->n_match == 0) return RADIX_MISS;
    if (m->n_match == n) return at_end ? RADIX_EXACT : RADIX_SUPERSEQUENCE;
    return at_end && m->node->n_children == 0 ? RADIX_PREFIX : RADIX_LCP;
}

/* A node that was just used goes to the recent end, so that the list stays ordered by last_use. */
static void touch(struct radix *tree, struct radix_node *node)
{
    node->last_use = tree->now;
    if (!node->on_lru || node == tree->lru[node->class].tail) return;
    radix_lru_remove(tree, node);
    radix_lru_append(tree, node);
}

struct radix_match radix_match(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n,
                               uint64_t now)
{
    struct radix_match m = {.node = root};
    bool all_computed = true;

    thread_owner_check(&tree->owner);
    if (now > tree->now) tree->now = now;
    root->last_use = tree->now;
    while (m.n_match < n && m.n_in_node == m.node->n_keys) {
        struct radix_node *child = radix_child_find(tree, m.node, keys[m.n_match]);
        uint32_t n_max = n - m.n_match;

        if (!child) break;
        m.node = child;
        m.n_in_node = common_prefix(child->keys, keys + m.n_match, n_max < child->n_keys ? n_max : child->n_keys);
        m.n_match += m.n_in_node;
        if (all_computed) m.n_ready += m.n_in_node < child->n_computed ? m.n_in_node : child->n_computed;
        all_computed = all_computed && radix_node_is_ready(child);
        touch(tree, child);
    }
    m.kind = match_kind(&m, n);
    return m;
}

void radix_lock(struct radix *tree, struct radix_node *node)
{
    thread_owner_check(&tree->owner);
    for (; node; node = node->parent) {
        if (node->locks++ > 0) continue;
        radix_lru_remove(tree, node);
        for (uint32_t i = 0; i < node->n_pages; i++) page_pool_pin(tree->pool, node->pages[i]);
    }
}

void radix_unlock_until(struct radix *tree, struct radix_node *node, struct radix_node *stop)
{
    for (; node != stop; node = node->parent) {
        assert(node->locks > 0);
        if (!stop) node->last_use = tree->now; /* in use until now; all of the path, so that no child is younger */
        if (--node->locks > 0) continue;
        for (uint32_t i = 0; i < node->n_pages; i++) page_pool_unpin(tree->pool, node->pages[i]);
        radix_lru_append(tree, node);
    }
}

void radix_unlock(struct radix *tree, struct radix_node *node)
{
    thread_owner_check(&tree->owner);
    radix_unlock_until(tree, node, NULL);
}

rd_status radix_insert_ready(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n,
                             const kv_page *pages, uint64_t now, struct radix_node **node)
{
    struct radix_match m = radix_match(tree, root, keys, n, now);
    rd_status st;

    *node = m.node;
    if (m.n_match == n) return RD_OK;
    if (m.n_ready < m.n_match) { /* nothing ready may stand below a position that is not computed */
        tree->counts.n_insert_failed++;
        return RD_OK;
    }
    st = radix_attach(tree, &m, keys, n, node);
    if (st != RD_OK) {
        tree->counts.n_insert_failed++;
        return st;
    }
    radix_node_publish(tree, *node, (*node)->n_keys, pages);
    radix_lru_append(tree, *node);
    return RD_OK;
}

void radix_path_pages(const struct radix *tree, const struct radix_node *node, uint32_t n, kv_page *pages)
{
    uint32_t P = tree->page_tokens, left = (n + P - 1) / P; /* pages [0, left) are still open */

    for (; left > 0; node = node->parent) {
        uint32_t computed_end = radix_node_computed_end(node), end = n < computed_end ? n : computed_end;
        uint32_t first = node->start / P;

        if (end <= node->start) continue;
        assert((end - 1) / P + 1 >= left);
        for (; left > first; left--) pages[left - 1] = node->pages[left - 1 - first];
    }
}

uint64_t radix_node_last_use(const struct radix_node *node)
{
    return node->last_use;
}
uint64_t radix_node_created(const struct radix_node *node)
{
    return node->created;
}
uint32_t radix_node_hits(const struct radix_node *node)
{
    return node->n_hits;
}

uint32_t radix_node_own_pages(const struct radix_node *node)
{
    const struct radix_node *parent = node->parent;
    bool shares =
        node->n_pages > 0 && parent && parent->n_pages > 0 && node->pages[0] == parent->pages[parent->n_pages - 1];

    return node->n_pages - shares;
}

void radix_count_hit(struct radix *tree, struct radix_node *node, uint32_t n)
{
    thread_owner_check(&tree->owner);
    while (node->parent && node->start >= n) node = node->parent;
    for (; node->parent; node = node->parent) node->n_hits += node->n_hits < UINT32_MAX;
}

uint32_t radix_following(const struct radix_match *m, kv_key *keys, uint32_t n_max)
{
    const struct radix_node *node = m->node, *best = NULL;
    uint32_t from = m->n_in_node, n;

    if (from == node->n_keys) {
        for (const struct radix_node *child = node->first_child; child; child = child->next_sibling)
            if (!best || child->last_use > best->last_use) best = child;
        if (!best) return 0;
        node = best;
        from = 0;
    }
    n = node->n_keys - from < n_max ? node->n_keys - from : n_max;
    memcpy(keys, node->keys + from, n * sizeof(*keys));
    return n;
}
