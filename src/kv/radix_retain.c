/* kv/radix_retain.c - what is kept longest: classes of nodes, a list for each by last use, and who goes first. */
#include <assert.h>
#include "base/checked.h"
#include "kv/radix_node.h"

#define LRU_WALK    16u     /* steps from either end when a parent is put back by its last use */
#define CANDIDATES  8u      /* of the oldest plain leaves, for the one that costs least to compute again */
#define DEEP_TOKENS 16384.0 /* about here attention costs as much as the weights do, for models of a billion weights */
#define SECOND_NS   1000000000ull

/* See enum radix_class; share in eighths of the pool. */
static const struct {
    uint64_t period_ns, share;
} classes[RADIX_N_CLASSES] = {
    [RADIX_SHORT] = {300 * SECOND_NS, 1}, [RADIX_SHARED] = {300 * SECOND_NS, 1}, [RADIX_HELD] = {300 * SECOND_NS, 2},
    [RADIX_LONG] = {3600 * SECOND_NS, 1}, [RADIX_DAY] = {86400 * SECOND_NS, 1},
};

uint64_t radix_class_period_ns(enum radix_class class)
{
    return classes[class].period_ns;
}
enum radix_class radix_node_class(const struct radix_node *node)
{
    return (enum radix_class)node->class;
}

enum radix_class radix_class_of(const struct radix_node *node)
{
    enum radix_class class = node->held ? RADIX_HELD : node->shared ? RADIX_SHARED : RADIX_PLAIN;

    return node->mark > class ? (enum radix_class)node->mark : class;
}

uint32_t radix_depth_of(uint32_t end)
{
    uint32_t depth = 0;

    for (uint64_t top = 256; end > top && depth < RADIX_N_DEPTHS - 1; top *= 4) depth++;
    return depth;
}

void radix_count_keys(struct radix *tree, const struct radix_node *node, int64_t n)
{
    tree->counts.n_keys += (uint64_t)n;
    tree->counts.class_keys[node->class] += (uint64_t)n;
    tree->counts.depth_keys[radix_depth_of(radix_node_end(node))] += (uint64_t)n;
}

void radix_count_node(struct radix *tree, const struct radix_node *node, int sign)
{
    tree->counts.n_nodes += (uint64_t)(int64_t)sign;
    tree->counts.class_nodes[node->class] += (uint64_t)(int64_t)sign;
    tree->counts.depth_nodes[radix_depth_of(radix_node_end(node))] += (uint64_t)(int64_t)sign;
    radix_count_keys(tree, node, sign * (int64_t)node->n_keys);
}

/* ---- the lists ---- */

/* after NULL: at the head. */
static void insert_after(struct radix *tree, struct radix_node *after, struct radix_node *node)
{
    struct radix_lru *lru = &tree->lru[node->class];
    struct radix_node *next = after ? after->lru_next : lru->head;

    node->on_lru = true;
    node->lru_prev = after;
    node->lru_next = next;
    *(after ? &after->lru_next : &lru->head) = node;
    *(next ? &next->lru_prev : &lru->tail) = node;
}

void radix_lru_append(struct radix *tree, struct radix_node *node)
{
    if (node->on_lru || !radix_node_is_evictable(node)) return;
    insert_after(tree, tree->lru[node->class].tail, node);
}

void radix_lru_remove(struct radix *tree, struct radix_node *node)
{
    struct radix_lru *lru = &tree->lru[node->class];

    if (!node->on_lru) return;
    *(node->lru_prev ? &node->lru_prev->lru_next : &lru->head) = node->lru_next;
    *(node->lru_next ? &node->lru_next->lru_prev : &lru->tail) = node->lru_prev;
    node->lru_prev = node->lru_next = NULL;
    node->on_lru = false;
}

/* The last use of a parent is never older than that of the child that just went. A busy shared prefix belongs near the
 * recent end, a private chain near the old one, so both ends are tried for a few steps; in between it stays LRU_WALK
 * places from the recent end: kept rather too long than too short, and in O(1). A list is thus sorted except for such
 * parents. */
void radix_lru_insert_by_use(struct radix *tree, struct radix_node *node)
{
    struct radix_node *tail = tree->lru[node->class].tail, *head = tree->lru[node->class].head;

    if (node->on_lru || !radix_node_is_evictable(node)) return;
    for (uint32_t i = 0; i < LRU_WALK && tail && tail->last_use > node->last_use; i++) tail = tail->lru_prev;
    if (tail && tail->last_use > node->last_use) {
        for (uint32_t i = 0; i < LRU_WALK && head && head->last_use <= node->last_use; i++) head = head->lru_next;
        if (head && head->last_use > node->last_use) tail = head->lru_prev;
    }
    insert_after(tree, tail, node);
}

/* ---- classes ---- */

/* After mark, shared or held changed. */
static void update_class(struct radix *tree, struct radix_node *node)
{
    enum radix_class class = radix_class_of(node);
    bool was_on = node->on_lru;

    if (class == node->class) return;
    radix_lru_remove(tree, node);
    radix_count_node(tree, node, -1);
    node->class = (uint8_t) class;
    radix_count_node(tree, node, 1);
    if (was_on) radix_lru_insert_by_use(tree, node);
}

void radix_retain_continued(struct radix *tree, struct radix_node *parent)
{
    for (struct radix_node *node = parent; node->parent && node->held; node = node->parent) {
        node->held = false;
        update_class(tree, node);
    }
    if (radix_node_end(parent) < tree->page_tokens || parent->n_forks == UINT8_MAX) return; /* worth no page */
    if (++parent->n_forks != RADIX_SHARED_FORKS) return;
    for (struct radix_node *node = parent; node->parent && !node->shared; node = node->parent) {
        node->shared = true;
        update_class(tree, node);
    }
}

void radix_retain_split(struct radix *tree, struct radix_node *upper, const struct radix_node *node)
{
    upper->mark = node->mark;
    upper->shared = node->shared;
    upper->held = node->held;
    upper->n_forks = 1;
    update_class(tree, upper);
}

struct radix_node *radix_node_at(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n)
{
    struct radix_match m = radix_match(tree, root, keys, n, tree->now);
    struct radix_node *node = m.node, *upper;

    while (node->parent && node->start >= m.n_ready) node = node->parent;
    if (!node->parent) return NULL;
    if (m.n_ready < radix_node_end(node)) {
        if (!radix_node_is_ready(node) || radix_split(tree, node, m.n_ready - node->start, &upper) != RD_OK)
            upper = node->parent;
        node = upper;
    }
    return node->parent ? node : NULL;
}

void radix_retain(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n, enum radix_class class)
{
    struct radix_node *node;

    thread_owner_check(&tree->owner);
    assert(class == RADIX_SHORT || class == RADIX_LONG || class == RADIX_DAY);
    for (node = radix_node_at(tree, root, keys, n); node && node->parent && node->mark < class; node = node->parent) {
        node->mark = (uint8_t) class;
        update_class(tree, node);
    }
}

void radix_hold_next(struct radix *tree, struct radix_node *root, const kv_key *keys, uint32_t n)
{
    struct radix_node *node;

    thread_owner_check(&tree->owner);
    node = radix_node_at(tree, root, keys, n);
    if (!node || node->n_children > 0) return;  /* another text goes on there already */
    for (; node->parent; node = node->parent) { /* another chat may have taken back the hold further up */
        node->held = true;
        update_class(tree, node);
    }
}

/* ---- who goes first ---- */

/* Is there more in the class than its share? Nodes count a page beside their keys: those of few keys fill theirs badly. */
static bool is_over(const struct radix *tree, enum radix_class class)
{
    uint64_t n_top = (uint64_t)page_pool_counts(tree->pool).n_total * tree->page_tokens * classes[class].share / 8;

    return tree->counts.class_keys[class] + tree->counts.class_nodes[class] * tree->page_tokens > n_top;
}

/* When node's turn comes: its last use, later while its class is worth something. */
static uint64_t due(const struct radix *tree, const struct radix_node *node)
{
    uint64_t period = classes[node->class].period_ns;

    if (tree->now - node->last_use >= period || is_over(tree, (enum radix_class)node->class)) return node->last_use;
    return node->last_use + period;
}

/* Of the oldest few of the list that head begins: the largest age for what its last tokens cost. */
static struct radix_node *cheapest(const struct radix *tree, struct radix_node *head)
{
    struct radix_node *best = NULL;
    double best_score = 0;
    uint32_t i = 0;

    for (struct radix_node *node = head; node && i < CANDIDATES; node = node->lru_next, i++) {
        double age = (double)(tree->now - node->last_use) + 1, cost = 1 + radix_node_end(node) / DEEP_TOKENS;

        if (best && age / cost <= best_score) continue;
        best = node;
        best_score = age / cost;
    }
    return best;
}

static struct radix_node *victim(const struct radix *tree)
{
    struct radix_node *best = NULL;
    uint64_t best_due = 0;

    for (enum radix_class c = 0; c < RADIX_N_CLASSES; c++) {
        struct radix_node *head = tree->lru[c].head;
        uint64_t head_due = head ? due(tree, head) : 0;

        if (!head || (best && head_due >= best_due)) continue;
        best = head;
        best_due = head_due;
    }
    return best && best->class == RADIX_PLAIN ? cheapest(tree, best) : best;
}

static void note_age(struct radix *tree, uint64_t now, uint64_t last_use, uint32_t n_pages)
{
    for (; tree->evicted_age && n_pages > 0; n_pages--)
        histogram_add(tree->evicted_age, now > last_use ? now - last_use : 0);
}

uint32_t radix_evict(struct radix *tree, uint32_t n_pages)
{
    uint64_t now = tree->evicted_age ? clock_now_ns(tree->clock) : 0;
    struct radix_node *leaf;
    uint32_t n_freed = 0;

    thread_owner_check(&tree->owner);
    tree->is_evicting = true;
    while (n_freed < n_pages && (leaf = victim(tree))) {
        uint64_t last_use = leaf->last_use;
        uint32_t n = radix_leaf_take_page(tree, leaf);

        note_age(tree, now, last_use, n);
        n_freed += n;
    }
    tree->is_evicting = false;
    tree->counts.n_pages_evicted += n_freed;
    return n_freed;
}

void radix_on_evict(struct radix *tree, bool (*keep)(void *arg, kv_page id), void *arg)
{
    tree->keep = keep;
    tree->keep_arg = arg;
}

void radix_measure_evictions(struct radix *tree, struct histogram *age, const struct clock *clock)
{
    tree->evicted_age = age;
    tree->clock = clock;
}

uint32_t radix_expire(struct radix *tree, uint64_t before, uint64_t now, uint32_t max_nodes)
{
    uint32_t n_freed = 0;

    thread_owner_check(&tree->owner);
    for (enum radix_class c = 0; c < RADIX_N_CLASSES; c++) {
        struct radix_lru *lru = &tree->lru[c];
        uint64_t limit = u64_min(before, now - u64_min(now, classes[c].period_ns));

        for (; max_nodes > 0 && lru->head && lru->head->last_use < limit; max_nodes--)
            n_freed += radix_leaf_remove(tree, lru->head, GHOST_EXPIRED);
    }
    return n_freed;
}
