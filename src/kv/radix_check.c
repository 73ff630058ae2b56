/* kv/radix_check.c - reading the tree: facts about a node, walking, counts, and every invariant the tree alone can
 * check. */
#include "base/error.h"
#include "kv/radix_node.h"

uint32_t radix_node_start(const struct radix_node *node)
{
    return node->start;
}
uint32_t radix_node_n_keys(const struct radix_node *node)
{
    return node->n_keys;
}
uint32_t radix_node_n_computed(const struct radix_node *node)
{
    return node->n_computed;
}
uint32_t radix_node_locks(const struct radix_node *node)
{
    return node->locks;
}
const kv_key *radix_node_keys(const struct radix_node *node)
{
    return node->keys;
}
struct radix_node *radix_node_parent(const struct radix_node *node)
{
    return node->parent;
}
struct radix_counts radix_counts(const struct radix *tree)
{
    return tree->counts;
}

bool radix_walk_below(const struct radix_node *root,
                      bool (*fn)(void *arg, const struct radix_node *node, uint32_t depth), void *arg)
{
    const struct radix_node *node = root;
    uint32_t depth = 0;

    while (node) {
        if (!fn(arg, node, depth)) return false;
        if (node->first_child) {
            node = node->first_child;
            depth++;
            continue;
        }
        for (; node != root && !node->next_sibling; node = node->parent) depth--;
        node = node == root ? NULL : node->next_sibling;
    }
    return true;
}

void radix_walk(const struct radix *tree, bool (*fn)(void *arg, const struct radix_node *node, uint32_t depth),
                void *arg)
{
    for (uint32_t i = 0; i < RADIX_N_BUCKETS; i++)
        for (const struct radix_root *r = tree->roots[i]; r; r = r->next)
            if (!radix_walk_below(&r->node, fn, arg)) return;
}

struct check {
    const struct radix *tree;
    struct rd_error *err;
    rd_status st;
    uint64_t n_nodes, n_keys, n_bytes, n_roots, class_lru[RADIX_N_CLASSES], class_nodes[RADIX_N_CLASSES],
        class_keys[RADIX_N_CLASSES], depth_nodes[RADIX_N_DEPTHS], depth_keys[RADIX_N_DEPTHS];
};

static bool fail(struct check *c, const struct radix_node *node, const char *what)
{
    c->st = error_set(c->err, RD_E_INTERNAL, "node at %u, %u keys, %u computed, %u locks: %s", node->start,
                      node->n_keys, node->n_computed, node->locks, what);
    return false;
}

/* Children: first keys differ and are found, the sibling list and the table agree, locks add up. */
static bool check_children(struct check *c, const struct radix_node *node)
{
    const struct radix_node *prev = NULL;
    uint64_t n_locks = 0, n_hits = 0;
    uint32_t n = 0;

    for (const struct radix_node *child = node->first_child; child; child = child->next_sibling, n++) {
        if (child->parent != node || child->prev_sibling != prev) return fail(c, child, "links are broken");
        if (child->start != radix_node_end(node)) return fail(c, child, "does not start where its parent ends");
        if (radix_child_find(c->tree, node, child->keys[0]) != child) return fail(c, child, "first key finds another");
        if (child->last_use > node->last_use) return fail(c, child, "used later than its parent");
        if (node->parent && child->created < node->created) return fail(c, child, "created before its parent");
        if (!radix_node_is_ready(node) && child->n_computed > 0) return fail(c, child, "computed below a pending node");
        if (node->parent && child->claim != 0 && node->claim != RADIX_COMMON && node->claim != child->claim)
            return fail(c, child, "claimed, but not its parent");
        n_locks += child->locks;
        n_hits += child->n_hits;
        prev = child;
    }
    if (n != node->n_children) return fail(c, node, "wrong number of children");
    if (n_locks > node->locks) return fail(c, node, "fewer locks than its children");
    if (node->parent && n_hits > node->n_hits && node->n_hits < UINT32_MAX)
        return fail(c, node, "fewer hits than its children");
    return true;
}

/* Pages cover exactly the computed positions, and fill covers every computed row. */
static bool check_pages(struct check *c, const struct radix_node *node)
{
    uint32_t P = c->tree->page_tokens, end = radix_node_computed_end(node), first = node->start / P;
    uint32_t n_pages = node->n_computed == 0 ? 0 : (end - 1) / P - first + 1;

    if (node->n_pages != n_pages) return fail(c, node, "pages do not cover its computed positions");
    for (uint32_t i = 0; i < n_pages; i++) {
        uint32_t page_start = (first + i) * P, rows = end - page_start < P ? end - page_start : P;
        if (page_pool_holders(c->tree->pool, node->pages[i]) == 0) return fail(c, node, "holds a free page");
        if (node->locks > 0 && page_pool_pins(c->tree->pool, node->pages[i]) == 0)
            return fail(c, node, "locked, but a page is not pinned");
        if (page_pool_fill(c->tree->pool, node->pages[i]) < rows) return fail(c, node, "fill below its computed rows");
    }
    return true;
}

static bool check_node(void *arg, const struct radix_node *node, uint32_t depth)
{
    struct check *c = arg;
    bool evictable = depth > 0 && node->locks == 0 && node->n_children == 0 && radix_node_is_ready(node);

    c->n_bytes += node->n_bytes + node->state_bytes + (uint64_t)node->table_cap * sizeof(*node->table);
    if (depth == 0) {
        c->n_roots++;
        if (node->n_keys || node->n_pages || node->on_lru || node->parent) return fail(c, node, "not a root");
        return check_children(c, node);
    }
    c->n_nodes++;
    c->n_keys += node->n_keys;
    c->class_lru[node->class] += node->on_lru;
    c->class_nodes[node->class]++;
    c->class_keys[node->class] += node->n_keys;
    c->depth_nodes[radix_depth_of(radix_node_end(node))]++;
    c->depth_keys[radix_depth_of(radix_node_end(node))] += node->n_keys;
    if (node->created > node->last_use) return fail(c, node, "used before it was created");
    if (node->class != radix_class_of(node)) return fail(c, node, "of a wrong class");
    if (node->n_keys == 0 || node->n_computed > node->n_keys) return fail(c, node, "wrong number of keys");
    if ((node->owner == NULL) != radix_node_is_ready(node)) return fail(c, node, "pending and owner do not agree");
    if (!radix_node_is_ready(node) && node->locks == 0) return fail(c, node, "pending but not locked");
    if (node->on_lru != evictable) return fail(c, node, "on the LRU list, or not, wrongly");
    return check_pages(c, node) && check_children(c, node);
}

/* The list of a class: links, and as many nodes as say that they are on it. */
static rd_status check_lru(const struct check *c, enum radix_class class)
{
    const struct radix_lru *lru = &c->tree->lru[class];
    const struct radix_node *prev = NULL;
    uint64_t n = 0;

    for (const struct radix_node *node = lru->head; node; prev = node, node = node->lru_next, n++)
        if (node->lru_prev != prev || !node->on_lru || node->class != class)
            return error_set(c->err, RD_E_INTERNAL, "LRU links are broken");
    if (prev == lru->tail && n == c->class_lru[class]) return RD_OK;
    return error_set(c->err, RD_E_INTERNAL, "LRU list %d has %llu nodes, %llu say they are on it", (int)class,
                     (unsigned long long)n, (unsigned long long)c->class_lru[class]);
}

rd_status radix_check(const struct radix *tree, struct rd_error *err)
{
    struct check c = {.tree = tree, .err = err};

    radix_walk(tree, check_node, &c);
    for (enum radix_class i = 0; c.st == RD_OK && i < RADIX_N_CLASSES; i++) {
        c.st = check_lru(&c, i);
        if (c.st == RD_OK &&
            (c.class_keys[i] != tree->counts.class_keys[i] || c.class_nodes[i] != tree->counts.class_nodes[i]))
            return error_set(err, RD_E_INTERNAL, "class %d has %llu keys, %llu counted", (int)i,
                             (unsigned long long)c.class_keys[i], (unsigned long long)tree->counts.class_keys[i]);
    }
    if (c.st != RD_OK) return c.st;
    for (uint32_t i = 0; i < RADIX_N_DEPTHS; i++)
        if (c.depth_keys[i] != tree->counts.depth_keys[i] || c.depth_nodes[i] != tree->counts.depth_nodes[i])
            return error_set(err, RD_E_INTERNAL, "depth %u has %llu keys, %llu counted", i,
                             (unsigned long long)c.depth_keys[i], (unsigned long long)tree->counts.depth_keys[i]);
    if (c.n_nodes != tree->counts.n_nodes || c.n_keys != tree->counts.n_keys || c.n_bytes != tree->counts.node_bytes ||
        c.n_roots != tree->counts.n_namespaces)
        return error_set(err, RD_E_INTERNAL, "tree has %llu nodes, %llu keys, %llu bytes; counters say otherwise",
                         (unsigned long long)c.n_nodes, (unsigned long long)c.n_keys, (unsigned long long)c.n_bytes);
    return RD_OK;
}
