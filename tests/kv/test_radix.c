/* tests/kv/test_radix.c - the tree without sequences: match, insert, split, lock, evict. */
#include "base/clock.h"
#include "base/mem.h"
#include "kv_world.h"
#include "test.h"

/* Stores keys[0..n) as a finished sequence would, through kv_seq. */
static bool store(struct world *w, struct radix_node *root, const kv_key *keys, uint32_t n)
{
    struct kv_seq seq;

    if (kv_seq_init(&seq, &w->cache, keys, n, n) != RD_OK) return false;
    if (kv_seq_admit(&seq, root, ++w->now) != RD_OK) return false;
    while (seq.n_computed < n) {
        if (world_compute(w, &seq, n - seq.n_computed) == RD_OK) continue;
        if (radix_evict(w->cache.tree, kv_seq_pages_needed(&seq, n - seq.n_computed)) == 0) return false;
    }
    kv_seq_finish(&seq, true, ++w->now);
    kv_seq_deinit(&seq);
    return world_ok(w) && world_tree_reads(w);
}

static struct radix_match match(struct world *w, const kv_key *keys, uint32_t n)
{
    return radix_match(w->cache.tree, w->root[0], keys, n, ++w->now);
}

#define KEYS(...) ((const kv_key[]){__VA_ARGS__})

TEST(match_kinds_are_told_apart)
{
    struct world w;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_EQ(match(&w, KEYS(1, 2), 2).kind, RADIX_MISS);
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 6), 6));
    CHECK_EQ(match(&w, KEYS(1, 2, 3, 4, 5, 6), 6).kind, RADIX_EXACT);
    CHECK_EQ(match(&w, KEYS(1, 2, 3, 4, 5, 6, 7), 7).kind, RADIX_PREFIX);
    CHECK_EQ(match(&w, KEYS(1, 2, 3), 3).kind, RADIX_SUPERSEQUENCE);
    CHECK_EQ(match(&w, KEYS(1, 2, 9), 3).kind, RADIX_LCP);
    CHECK_EQ(match(&w, KEYS(9, 2), 2).kind, RADIX_MISS);
    CHECK_EQ(match(&w, KEYS(1, 2, 9), 3).n_match, 2);
    CHECK_EQ(match(&w, KEYS(1, 2, 9), 3).n_in_node, 2);
    CHECK_EQ(match(&w, KEYS(1, 2, 9), 3).n_ready, 2);
    CHECK_EQ(radix_match(w.cache.tree, w.root[1], KEYS(1, 2), 2, 1).n_match, 0); /* another namespace */
    CHECK(world_deinit(&w));
}

TEST(namespaces_are_compared_in_full)
{
    struct world w;
    struct radix_node *a, *b, *c;

    CHECK(world_init(&w, 4, 4, true)); /* all names collide */
    CHECK_OK(radix_namespace(w.cache.tree, "model\0x", 7, &a));
    CHECK_OK(radix_namespace(w.cache.tree, "model\0y", 7, &b));
    CHECK_OK(radix_namespace(w.cache.tree, "model\0x", 7, &c));
    CHECK(a != b && a == c);
    CHECK_EQ(radix_counts(w.cache.tree).n_namespaces, 4);
    uint64_t n_alive = mem_n_alive();
    mem_fail_after(0);
    CHECK_EQ(radix_namespace(w.cache.tree, "new", 3, &c), RD_E_NOMEM);
    mem_fail_after(-1);
    CHECK_EQ(mem_n_alive(), n_alive);
    CHECK(world_deinit(&w));
}

TEST(a_split_cuts_inside_a_page_and_both_parts_hold_it)
{
    struct world w;
    struct radix_match m;

    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 6), 6));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 9, 9), 7)); /* leaves at position 5, row 1 of page 1 */
    CHECK_EQ(radix_counts(w.cache.tree).n_splits, 1);
    CHECK_EQ(radix_counts(w.cache.tree).n_nodes, 3);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 8);
    CHECK_EQ(w.cache.n_rows_copied, 1); /* copy on write: the one row before */
    m = match(&w, KEYS(1, 2, 3, 4, 5, 6), 6);
    CHECK_EQ(m.node->start, 5);
    CHECK_EQ(m.node->parent->n_keys, 5);
    CHECK_EQ(m.node->pages[0], m.node->parent->pages[1]);
    CHECK_EQ(page_pool_holders(w.pool, m.node->pages[0]), 2);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 3);
    CHECK(world_deinit(&w));
}

TEST(the_usual_continuation_copies_nothing)
{
    struct world w;

    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 6), 6));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 6, 7, 8, 9), 9)); /* row 2 of page 1: appended in place */
    CHECK_EQ(w.cache.n_rows_copied, 0);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 3);
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 6, 5), 7)); /* somebody has appended: one small copy */
    CHECK_EQ(w.cache.n_rows_copied, 2);
    CHECK(world_deinit(&w));
}

TEST(inserting_what_is_stored_keeps_the_stored_pages)
{
    struct world w;
    struct radix_node *node;
    kv_page mine[2];

    CHECK(world_init(&w, 8, 4, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 6), 6));
    CHECK_OK(page_pool_take(w.pool, 2, mine));
    page_pool_set_fill(w.pool, mine[0], 4);
    page_pool_set_fill(w.pool, mine[1], 2);
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], KEYS(1, 2, 3, 4, 5, 6), 6, mine, ++w.now, &node));
    CHECK_EQ(radix_node_end(node), 6);
    CHECK_EQ(page_pool_holders(w.pool, mine[0]), 1); /* ours are not taken */
    page_pool_release(w.pool, mine[0]);
    page_pool_release(w.pool, mine[1]);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 2);
    CHECK(world_deinit(&w));
}

TEST(a_lock_is_counted_on_every_ancestor_and_keeps_all_of_them)
{
    struct world w;
    struct radix_node *leaf;

    CHECK(world_init(&w, 16, 2, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4), 4));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 5, 6), 4));
    leaf = match(&w, KEYS(1, 2, 5, 6), 4).node;
    radix_lock(w.cache.tree, leaf);
    CHECK_EQ(radix_node_locks(leaf), 1);
    CHECK_EQ(radix_node_locks(radix_node_parent(leaf)), 1);
    CHECK_EQ(radix_node_locks(w.root[0]), 1);
    CHECK_EQ(page_pool_counts(w.pool).n_locked, 2);
    CHECK_EQ(radix_evict(w.cache.tree, 100), 1); /* only the sibling */
    CHECK_EQ(match(&w, KEYS(1, 2, 5, 6), 4).n_match, 4);
    CHECK(world_ok(&w));
    radix_unlock(w.cache.tree, leaf);
    CHECK_EQ(radix_evict(w.cache.tree, 100), 2); /* the leaf, then upwards */
    CHECK_EQ(radix_counts(w.cache.tree).n_nodes, 0);
    CHECK(world_deinit(&w));
}

TEST(a_long_leaf_gives_its_last_pages_first)
{
    struct world w;
    kv_key keys[18];

    for (uint32_t i = 0; i < 18; i++) keys[i] = i;
    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, w.root[0], keys, 18)); /* pages 0..4, the last with 2 rows */
    CHECK_EQ(radix_evict(w.cache.tree, 1), 1);
    CHECK_EQ(match(&w, keys, 18).n_match, 16);
    CHECK(world_ok(&w));
    CHECK_EQ(radix_evict(w.cache.tree, 2), 2);
    CHECK_EQ(match(&w, keys, 18).n_match, 8);
    CHECK(world_ok(&w) && world_tree_reads(&w));
    CHECK_EQ(radix_evict(w.cache.tree, 9), 2);
    CHECK_EQ(match(&w, keys, 18).n_match, 0);
    CHECK_EQ(radix_counts(w.cache.tree).n_pages_evicted, 5);
    CHECK(world_deinit(&w));
}

TEST(the_least_recently_used_leaf_goes_first)
{
    struct world w;

    CHECK(world_init(&w, 16, 1, false));
    CHECK(store(&w, w.root[0], KEYS(1), 1));
    CHECK(store(&w, w.root[0], KEYS(2), 1));
    CHECK(store(&w, w.root[0], KEYS(3), 1));
    match(&w, KEYS(1), 1); /* a match is a use */
    CHECK_EQ(radix_evict(w.cache.tree, 1), 1);
    CHECK_EQ(match(&w, KEYS(2), 1).n_match, 0);
    CHECK_EQ(radix_evict(w.cache.tree, 1), 1);
    CHECK_EQ(match(&w, KEYS(3), 1).n_match, 0);
    CHECK_EQ(match(&w, KEYS(1), 1).n_match, 1);
    CHECK(world_deinit(&w));
}

/* More leaves than eviction weighs against each other: what was matched is behind all that were not. */
TEST(a_match_moves_a_leaf_to_the_recent_end)
{
    enum { N = 40 };
    struct world w;

    CHECK(world_init(&w, 64, 1, false));
    for (kv_key k = 0; k < N; k++) CHECK(store(&w, w.root[0], KEYS(100 + k), 1));
    for (kv_key k = 0; k < N / 2; k++) match(&w, KEYS(100 + k), 1);
    match(&w, KEYS(100 + N / 2 - 1), 1); /* the last: stays there */
    CHECK(world_ok(&w));
    CHECK_EQ(radix_evict(w.cache.tree, N / 2), N / 2);
    for (kv_key k = 0; k < N; k++) CHECK_EQ(match(&w, KEYS(100 + k), 1).n_match, k < N / 2);
    CHECK(world_deinit(&w));
}

TEST(dropping_the_last_lock_counts_as_a_use)
{
    struct world w;
    struct radix_node *leaf;

    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2), 2));
    CHECK(store(&w, w.root[0], KEYS(3, 4), 2));
    leaf = match(&w, KEYS(1, 2), 2).node;
    radix_lock(w.cache.tree, leaf);
    match(&w, KEYS(3, 4), 2);
    CHECK(radix_node_last_use(leaf) < w.now);
    radix_unlock(w.cache.tree, leaf);
    CHECK_EQ(radix_node_last_use(leaf), w.now);
    CHECK(world_ok(&w) && world_deinit(&w));
}

/* Keys are compared in blocks: what lies before, behind or in another block never counts. P is 1, so that a node has as
 * many pages as keys, which lie before them. */
TEST(long_matches_end_at_the_first_key_that_differs)
{
    enum { N = 384 };
    struct world w;
    kv_key keys[2 * N], prompt[2 * N];
    struct radix_node *node;
    kv_page pages[2 * N];

    CHECK(world_init(&w, 2 * N, 1, false));
    for (uint32_t i = 0; i < 2 * N; i++) keys[i] = 10 * i + 5;
    CHECK_OK(page_pool_take(w.pool, 2 * N, pages));
    for (uint32_t i = 0; i < 2 * N; i++) page_pool_set_fill(w.pool, pages[i], 1);
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], keys, N, pages, ++w.now, &node));
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], keys, 2 * N, pages, ++w.now, &node));
    for (uint32_t n = 1; n <= 2 * N; n++) { /* the prompt ends before its array does */
        struct radix_match m = match(&w, keys, n);
        CHECK_EQ(m.n_match, n);
        CHECK_EQ(m.n_ready, n);
        CHECK_EQ(m.n_in_node, n <= N ? n : n - N);
    }
    for (uint32_t at = 0; at < 2 * N; at++) /* by one, either way */
        for (int by = -1; by <= 1; by += 2) {
            memcpy(prompt, keys, sizeof(keys));
            prompt[at] += (kv_key)by;
            CHECK_EQ(match(&w, prompt, 2 * N).n_match, at);
        }
    /* the second block is what lies 128 places before the node's keys: their pages */
    memcpy(prompt, keys, sizeof(keys));
    memcpy(prompt + N + 128, node->pages + N - 128, 128 * sizeof(*prompt));
    CHECK_EQ(match(&w, prompt, 2 * N).n_match, N + 128);
    for (uint32_t i = 0; i < 2 * N; i++) page_pool_release(w.pool, pages[i]);
    CHECK_EQ(radix_clear(w.cache.tree, NULL), 2 * N);
    /* ... and 128 places before the prompt's: the keys above it */
    for (uint32_t i = 0; i < 128; i++) keys[i] = keys[256 + i] = 7 * i + 1, keys[128 + i] = prompt[128 + i] = 9 * i + 2;
    memcpy(prompt, keys, 128 * sizeof(*keys));
    for (uint32_t i = 0; i < 128; i++) prompt[256 + i] = 5 * i + 4;
    CHECK_OK(page_pool_take(w.pool, 384, pages));
    for (uint32_t i = 0; i < 384; i++) page_pool_set_fill(w.pool, pages[i], 1);
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], keys, 128, pages, ++w.now, &node));
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], keys, 384, pages, ++w.now, &node));
    CHECK_EQ(radix_node_start(node), 128);
    CHECK_EQ(match(&w, prompt, 384).n_match, 256);
    for (uint32_t i = 0; i < 384; i++) page_pool_release(w.pool, pages[i]);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(nothing_ready_is_put_below_what_somebody_still_computes)
{
    struct world w;
    struct radix_node *node;
    struct kv_seq a;
    kv_page pages[4];

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(kv_seq_init(&a, &w.cache, KEYS(1, 2, 3, 4, 5, 6), 6, 8));
    CHECK_OK(kv_seq_admit(&a, w.root[0], ++w.now));
    CHECK_OK(world_compute(&w, &a, 3));
    CHECK_OK(page_pool_take(w.pool, 2, pages));
    for (uint32_t i = 0; i < 2; i++) page_pool_set_fill(w.pool, pages[i], 4);
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], KEYS(1, 2, 3, 4, 5, 6, 7), 7, pages, ++w.now, &node));
    CHECK_EQ(radix_counts(w.cache.tree).n_insert_failed, 1);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 6);
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], KEYS(1, 2, 3, 9), 4, pages, ++w.now, &node));
    CHECK_EQ(radix_counts(w.cache.tree).n_insert_failed, 1); /* behind the computed part there is room */
    CHECK_EQ(match(&w, KEYS(1, 2, 3, 9), 4).n_ready, 4);
    for (uint32_t i = 0; i < 2; i++) page_pool_release(w.pool, pages[i]);
    CHECK(world_ok(&w));
    kv_seq_finish(&a, true, ++w.now);
    kv_seq_deinit(&a);
    CHECK(world_ok(&w) && world_deinit(&w));
}

static bool depth_is_true(void *arg, const struct radix_node *node, uint32_t depth)
{
    uint32_t *n_wrong = arg;

    for (; node->parent; node = node->parent) depth--;
    *n_wrong += depth != 0;
    return true;
}

TEST(a_walk_tells_the_depth_of_every_node)
{
    struct world w;
    uint32_t n_wrong = 0;

    CHECK(world_init(&w, 64, 1, false));
    for (kv_key a = 0; a < 3; a++)
        for (kv_key b = 0; b < 3; b++)
            for (kv_key c = 0; c < 2; c++) CHECK(store(&w, w.root[a == 2], KEYS(a, b, c), 3));
    radix_walk(w.cache.tree, depth_is_true, &n_wrong);
    CHECK_EQ(n_wrong, 0);
    CHECK(world_deinit(&w));
}

TEST(a_parent_that_becomes_a_leaf_takes_its_place_by_its_own_use)
{
    struct world w;

    CHECK(world_init(&w, 32, 1, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2), 2));
    match(&w, KEYS(1), 1);
    CHECK(store(&w, w.root[0], KEYS(1, 3), 2)); /* [1] splits off */
    for (kv_key k = 50; k < 60; k++) CHECK(store(&w, w.root[0], KEYS(k), 1));
    match(&w, KEYS(1, 9), 2);                    /* the prefix is used last, its children are not */
    CHECK_EQ(radix_evict(w.cache.tree, 2), 2);   /* [2] and [3] */
    CHECK_EQ(radix_evict(w.cache.tree, 10), 10); /* all others before [1] */
    CHECK_EQ(match(&w, KEYS(1), 1).n_match, 1);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

/* Places of the list that are looked through from either end (radix_retain.c). */
#define WALK 16u

/* [1] becomes a leaf again, used after n_old others and before n_new: how many of those stand behind it then. */
static uint32_t place_of_a_parent(uint32_t n_old, uint32_t n_new)
{
    struct world w;
    struct radix_node *parent;
    uint32_t n_behind = 0;

    if (!world_init(&w, 128, 1, false)) return UINT32_MAX;
    (void)(store(&w, w.root[0], KEYS(1, 2), 2) && store(&w, w.root[0], KEYS(1, 3), 2));
    for (kv_key k = 0; k < n_old; k++) (void)store(&w, w.root[0], KEYS(1000 + k), 1);
    parent = match(&w, KEYS(1), 1).node;
    for (kv_key k = 0; k < n_new; k++) (void)store(&w, w.root[0], KEYS(2000 + k), 1);
    if (radix_evict(w.cache.tree, 2) != 2) return UINT32_MAX; /* [2] and [3], the oldest */
    for (struct radix_node *node = parent->lru_next; node; node = node->lru_next) n_behind++;
    if (!parent->on_lru || !world_ok(&w) || !world_deinit(&w)) return UINT32_MAX;
    return n_behind;
}

TEST(a_parent_that_becomes_a_leaf_is_put_near_the_end_that_it_belongs_to)
{
    for (uint32_t n = 0; n <= WALK; n++) {
        CHECK_EQ(place_of_a_parent(n, 3 * WALK), 3 * WALK); /* a private chain: among the old ones */
        CHECK_EQ(place_of_a_parent(3 * WALK, n), n);        /* a busy prefix: among the recent ones */
    }
    CHECK_EQ(place_of_a_parent(WALK + 1, WALK + 1), WALK); /* in between it is kept a little too long */
    CHECK_EQ(place_of_a_parent(3 * WALK, 3 * WALK), WALK);
}

TEST(a_part_is_cleared_with_what_goes_on_from_it)
{
    struct world w;

    CHECK(world_init(&w, 32, 2, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 6), 6));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 7, 8), 6));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 9, 9), 4));
    CHECK_EQ(radix_clear_path(w.cache.tree, w.root[0], KEYS(1, 2, 4), 3), 0); /* nothing begins so */
    CHECK_EQ(radix_clear_path(w.cache.tree, w.root[1], KEYS(1, 2), 2), 0);
    CHECK_EQ(radix_clear_path(w.cache.tree, w.root[0], KEYS(1, 2, 3), 3), 3); /* ends inside a node */
    CHECK_EQ(match(&w, KEYS(1, 2, 3, 4, 5, 6), 6).n_match, 2);
    CHECK_EQ(match(&w, KEYS(1, 2, 9, 9), 4).n_match, 4);
    CHECK(world_ok(&w));
    struct radix_node *leaf = match(&w, KEYS(1, 2, 9, 9), 4).node;
    radix_lock(w.cache.tree, leaf);
    CHECK_EQ(radix_clear_path(w.cache.tree, w.root[0], KEYS(1, 2), 2), 0); /* what is in use stays */
    CHECK_EQ(match(&w, KEYS(1, 2, 9, 9), 4).n_match, 4);
    radix_unlock(w.cache.tree, leaf);
    CHECK(radix_clear_path(w.cache.tree, w.root[0], KEYS(1, 2), 2) > 0);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 0);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(nothing_is_cleared_for_no_keys_or_behind_what_is_still_computed)
{
    struct world w;
    struct kv_seq seq;

    CHECK(world_init(&w, 32, 2, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4), 4));
    CHECK_EQ(radix_clear_path(w.cache.tree, w.root[0], KEYS(1), 0), 0);
    CHECK_EQ(match(&w, KEYS(1, 2, 3, 4), 4).n_match, 4);
    CHECK_OK(kv_seq_init(&seq, &w.cache, KEYS(7, 8, 9, 10), 4, 4));
    CHECK_OK(kv_seq_admit(&seq, w.root[0], ++w.now));
    CHECK_OK(world_compute(&w, &seq, 2));
    CHECK_EQ(radix_clear_path(w.cache.tree, w.root[0], KEYS(7, 8), 2), 0);
    CHECK_EQ(match(&w, KEYS(7, 8, 9, 10), 4).n_match, 4);
    CHECK_EQ(radix_counts(w.cache.tree).n_splits, 0);
    kv_seq_finish(&seq, true, ++w.now);
    kv_seq_deinit(&seq);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

struct kept {
    struct page_pool *pool;
    kv_page pages[4];
    uint32_t n_told, n;
};

/* Keeps every second page. */
static bool keep_some(void *arg, kv_page id)
{
    struct kept *k = arg;

    if (k->n_told++ % 2) return false;
    page_pool_retain(k->pool, id);
    k->pages[k->n++] = id;
    return true;
}

TEST(pages_that_are_kept_when_they_are_evicted_count_as_freed)
{
    struct world w;
    struct kept k = {0};
    struct radix_node *node;
    kv_page pages[3];

    CHECK(world_init(&w, 8, 4, false));
    k.pool = w.pool;
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4, 5, 6, 7, 8, 9), 9));
    radix_on_evict(w.cache.tree, keep_some, &k);
    CHECK_EQ(radix_evict(w.cache.tree, 2), 2);
    CHECK_EQ(k.n_told, 2);
    CHECK_EQ(k.n, 1);
    CHECK_EQ(page_pool_n_free(w.pool), 6); /* one of the two */
    page_pool_release(w.pool, k.pages[0]);
    CHECK_EQ(page_pool_n_free(w.pool), 7);
    CHECK_EQ(radix_clear(w.cache.tree, NULL), 1);
    CHECK_EQ(k.n_told, 2); /* what is dropped by a wish is not told */

    /* a page that another text holds as well is not freed, so nobody is asked */
    CHECK(store(&w, w.root[0], KEYS(1, 2, 3, 4), 4));
    radix_path_pages(w.cache.tree, match(&w, KEYS(1, 2, 3, 4), 4).node, 4, pages);
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[1], KEYS(1, 2, 3, 4), 4, pages, ++w.now, &node));
    CHECK_EQ(radix_evict(w.cache.tree, 2), 1);
    CHECK_EQ(k.n_told, 3);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 0);
    for (uint32_t i = 1; i < k.n; i++) page_pool_release(w.pool, k.pages[i]);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(expiry_drops_only_what_was_not_used_since)
{
    struct world w;
    uint64_t t;

    CHECK(world_init(&w, 16, 1, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2), 2));
    CHECK(store(&w, w.root[0], KEYS(3, 4), 2));
    t = ++w.now;
    CHECK(store(&w, w.root[0], KEYS(5, 6), 2));
    CHECK_EQ(radix_expire(w.cache.tree, t, t, 1), 2); /* at most one node */
    CHECK_EQ(radix_expire(w.cache.tree, t, t, 100), 2);
    CHECK_EQ(radix_expire(w.cache.tree, t, t, 100), 0);
    CHECK_EQ(match(&w, KEYS(5, 6), 2).n_match, 2);
    CHECK(world_deinit(&w));
}

TEST(clear_drops_one_namespace_or_all_but_never_what_is_locked)
{
    struct world w;
    struct radix_node *leaf;

    CHECK(world_init(&w, 16, 1, false));
    CHECK(store(&w, w.root[0], KEYS(1, 2), 2));
    CHECK(store(&w, w.root[0], KEYS(1, 3), 2));
    CHECK(store(&w, w.root[1], KEYS(1, 2), 2));
    leaf = match(&w, KEYS(1, 3), 2).node;
    radix_lock(w.cache.tree, leaf);
    CHECK_EQ(radix_clear(w.cache.tree, w.root[0]), 1);
    CHECK_EQ(radix_match(w.cache.tree, w.root[1], KEYS(1, 2), 2, w.now).n_match, 2);
    radix_unlock(w.cache.tree, leaf);
    CHECK_EQ(radix_clear(w.cache.tree, NULL), 4);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 0);
    CHECK(world_deinit(&w));
}

/* With keys below a few nodes: the i-th allocation of an insert fails, and nothing has changed. */
TEST(an_insert_without_memory_changes_nothing)
{
    struct world w;
    struct radix_node *node;
    kv_page pages[4];
    rd_status st = RD_E_NOMEM;
    int i;

    CHECK(world_init(&w, 16, 4, false));
    for (kv_key k = 10; k < 14; k++) CHECK(store(&w, w.root[0], KEYS(1, k), 2)); /* the next child needs a table */
    CHECK_OK(page_pool_take(w.pool, 1, pages));
    page_pool_set_fill(w.pool, pages[0], 4);
    for (kv_key last = 14; last < 16; last++) {
        const kv_key *keys = last == 14 ? KEYS(1, 14, 2, 3) : KEYS(1, 14, 2, 4); /* then one that splits */
        for (i = 0, st = RD_E_NOMEM; st != RD_OK && i < 20; i++) {
            struct radix_counts before = radix_counts(w.cache.tree), after;
            uint64_t n_alive = mem_n_alive();
            mem_fail_after(i);
            st = radix_insert_ready(w.cache.tree, w.root[0], keys, 4, pages, ++w.now, &node);
            mem_fail_after(-1);
            after = radix_counts(w.cache.tree);
            CHECK(st == RD_OK || (st == RD_E_NOMEM && mem_n_alive() == n_alive));
            CHECK(st == RD_OK || (after.n_nodes == before.n_nodes && after.node_bytes == before.node_bytes &&
                                  after.n_insert_failed == before.n_insert_failed + 1));
            CHECK_OK(radix_check(w.cache.tree, NULL));
        }
        CHECK(i > 2);
    }
    page_pool_release(w.pool, pages[0]);
    CHECK(world_deinit(&w));
}

/* No eviction: the longest common prefix with anything ever inserted is what matches. */
static void run_against_list(bool constant_hash)
{
    enum { N = 600, LEN = 12 };
    static kv_key stored[N][LEN];
    uint32_t n_stored[N], P = 4;
    struct world w;

    CHECK(world_init(&w, 8192, P, constant_hash));
    for (uint32_t i = 0; i < N; i++) {
        uint32_t n_best = 0, spread = world_below(&w, 4) ? 3 : 400;
        n_stored[i] = 1 + world_below(&w, LEN);
        for (uint32_t k = 0; k < n_stored[i]; k++) stored[i][k] = world_below(&w, spread);
        for (uint32_t j = 0; j < i; j++) {
            uint32_t n = 0, n_max = n_stored[i] < n_stored[j] ? n_stored[i] : n_stored[j];
            while (n < n_max && stored[i][n] == stored[j][n]) n++;
            if (n > n_best) n_best = n;
        }
        struct radix_match m = match(&w, stored[i], n_stored[i]);
        CHECK_EQ(m.n_match, n_best);
        CHECK_EQ(m.n_ready, n_best);
        CHECK_EQ(m.node->start + m.n_in_node, n_best);
        CHECK(store(&w, w.root[0], stored[i], n_stored[i]));
    }
    CHECK(world_deinit(&w));
}
TEST(matches_agree_with_a_list_of_all_that_was_inserted)
{
    run_against_list(false);
}
TEST(matches_agree_when_every_key_hashes_alike)
{
    run_against_list(true);
}

static bool count_node(void *arg, const struct radix_node *node, uint32_t depth)
{
    uint64_t *sums = arg;
    sums[0]++;
    if (depth > sums[1]) sums[1] = depth;
    return true;
}

/* F74. The run is cut from behind in large pieces, then each piece in single keys, deepest first: cheap to build. */
TEST(a_hundred_thousand_nodes_deep_is_no_recursion_and_no_memory_bomb)
{
    enum { N = 100000, P = 16, PIECE = 250 };
    struct page_pool *pool = NULL;
    struct radix *tree = NULL;
    struct radix_node *root, *node;
    kv_key *keys = mem_alloc(N + 1, sizeof(*keys));
    kv_page *pages = mem_alloc(N / P + 1, sizeof(*pages));
    uint64_t sums[2] = {0, 0}, t;

    CHECK(keys && pages);
    CHECK_OK(page_pool_create(N / P + 1, P, &pool));
    CHECK_OK(radix_create(pool, &tree));
    CHECK_OK(radix_namespace(tree, "", 0, &root));
    CHECK_OK(page_pool_take(pool, N / P + 1, pages));
    for (uint32_t i = 0; i <= N / P; i++) page_pool_set_fill(pool, pages[i], P);
    for (uint32_t i = 0; i <= N; i++) keys[i] = i & 7;
    CHECK_OK(radix_insert_ready(tree, root, keys, N, pages, 1, &node));
    for (uint32_t piece = N - PIECE;; piece -= PIECE) {
        for (uint32_t i = PIECE; i-- > 0;) {
            uint32_t at = piece + (i == PIECE - 1 ? 0 : i + 1); /* first the piece's beginning, then from its end */
            kv_key was = keys[at];
            if (at == 0) continue;
            keys[at] = 1000;
            CHECK_OK(radix_insert_ready(tree, root, keys, at + 1, pages, 1, &node));
            keys[at] = was;
        }
        if (piece == 0) break;
    }
    CHECK_EQ(radix_counts(tree).n_nodes, 2 * N - 1);
    CHECK(radix_counts(tree).node_bytes < (uint64_t)2 * N * 256);
    CHECK_OK(radix_check(tree, NULL));
    radix_walk(tree, count_node, sums);
    CHECK_EQ(sums[0], 2 * N);
    CHECK_EQ(sums[1], N);
    t = clock_now_ns(clock_system());
    CHECK_EQ(radix_match(tree, root, keys, N, 2).n_match, N);
    test_note("match through %d one-token nodes: %.1f ms", N, (double)(clock_now_ns(clock_system()) - t) / 1e6);
    node = radix_match(tree, root, keys, N, 2).node;
    radix_lock(tree, node);
    CHECK_EQ(radix_node_locks(root), 1);
    radix_unlock(tree, node);
    for (uint32_t i = 0; i <= N / P; i++) page_pool_release(pool, pages[i]);
    CHECK_EQ(radix_evict(tree, 1000), 1000);
    CHECK_OK(radix_check(tree, NULL));
    CHECK_EQ(radix_clear(tree, root), N / P - 1000);
    CHECK_EQ(radix_counts(tree).n_nodes, 0);
    radix_destroy(tree);
    page_pool_destroy(pool);
    mem_free(keys);
    mem_free(pages);
}

TEST(a_hundred_thousand_children_are_found_by_hash)
{
    enum { N = 100000 };
    struct page_pool *pool = NULL;
    struct radix *tree = NULL;
    struct radix_node *root, *node;
    kv_page page;
    uint64_t t;

    CHECK_OK(page_pool_create(4, 16, &pool));
    CHECK_OK(radix_create(pool, &tree));
    CHECK_OK(radix_namespace(tree, "", 0, &root));
    CHECK_OK(page_pool_take(pool, 1, &page));
    page_pool_set_fill(pool, page, 16);
    for (kv_key i = 0; i < N; i++) CHECK_OK(radix_insert_ready(tree, root, KEYS(7, i * 64), 2, &page, i, &node));
    CHECK_EQ(radix_counts(tree).n_nodes, N + 1);
    CHECK_OK(radix_check(tree, NULL));
    t = clock_now_ns(clock_system());
    for (kv_key i = 0; i < N; i++) CHECK_EQ(radix_match(tree, root, KEYS(7, i * 64), 2, N).n_match, 2);
    test_note("match among %d children: %.0f ns", N, (double)(clock_now_ns(clock_system()) - t) / N);
    CHECK_EQ(radix_match(tree, root, KEYS(7, 63), 2, N).n_match, 1);
    CHECK_EQ(radix_expire(tree, UINT64_MAX, UINT64_MAX, N / 2),
             0); /* half of them go, in any order; the page is still ours */
    CHECK_EQ(radix_counts(tree).n_nodes, N / 2 + 1);
    CHECK_OK(radix_check(tree, NULL));
    page_pool_release(pool, page);
    radix_destroy(tree);
    CHECK_EQ(page_pool_n_free(pool), 4);
    page_pool_destroy(pool);
}
