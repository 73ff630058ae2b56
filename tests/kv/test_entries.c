/* tests/kv/test_entries.c - what is told of what is stored: tokens, pages, hits, ages, depths; and of what went. */
#include "base/histogram.h"
#include "kv_world.h"
#include "test.h"

#define SECOND 1000000000ull
enum { PAGE = 16, PAGES = 64 };

static void fill(kv_key *keys, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) keys[i] = seed * 4096 + i;
}

/* A request, a second after the one before: admitted, counted as the engine does, computed and stored. */
static void ask(struct world *w, const kv_key *keys, uint32_t n)
{
    struct kv_seq seq;

    w->now += SECOND;
    CHECK_OK(kv_seq_init(&seq, &w->cache, keys, n, n));
    CHECK_OK(kv_seq_admit(&seq, w->root[0], w->now));
    radix_count_hit(w->cache.tree, seq.node, seq.n_hit);
    while (seq.n_computed < n) {
        uint32_t need = kv_seq_pages_needed(&seq, n - seq.n_computed);

        if (need > page_pool_n_free(w->pool)) radix_evict(w->cache.tree, need - page_pool_n_free(w->pool));
        CHECK_OK(world_compute(w, &seq, n - seq.n_computed));
    }
    kv_seq_finish(&seq, true, w->now);
    kv_seq_deinit(&seq);
    CHECK(world_ok(w));
}

static struct radix_node *node_at(struct world *w, const kv_key *keys, uint32_t n)
{
    return radix_match(w->cache.tree, w->root[0], keys, n, w->now).node;
}

TEST(a_part_that_several_prompts_begin_with_has_their_hits)
{
    kv_key a[40], b[40];
    struct radix_node *common, *own;
    struct world w;

    CHECK(world_init(&w, PAGES, PAGE, false));
    w.now = 0;
    fill(a, 40, 1);
    fill(b, 40, 1);
    for (uint32_t i = 24; i < 40; i++) b[i] += 7;
    ask(&w, a, 40); /* new: no hit */
    ask(&w, b, 40); /* 24 of a */
    ask(&w, b, 40);
    ask(&w, a, 20); /* ends in the common part, which is split there */
    common = node_at(&w, a, 10);
    own = node_at(&w, a, 40);
    CHECK_EQ(radix_node_hits(common), 3);
    CHECK_EQ(radix_node_hits(node_at(&w, a, 24)), 2);
    CHECK_EQ(radix_node_hits(node_at(&w, b, 40)), 1);
    CHECK_EQ(radix_node_hits(own), 0);
    CHECK_EQ(radix_node_created(common), SECOND);
    CHECK_EQ(radix_node_created(own), SECOND); /* split, but there since the first */
    CHECK_EQ(radix_node_created(node_at(&w, b, 40)), 2 * SECOND);
    radix_clear(w.cache.tree, NULL);
    CHECK(world_deinit(&w));
}

static bool add_pages(void *arg, const struct radix_node *node, uint32_t depth)
{
    uint32_t *n = arg;

    if (depth > 0) *n += radix_node_own_pages(node);
    return true;
}

TEST(every_page_is_one_entrys)
{
    struct world w;
    kv_key keys[100];

    CHECK(world_init(&w, PAGES, PAGE, false));
    w.now = 0;
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t n = 5 + world_below(&w, 95), n_pages = 0;
        struct page_counts c;

        fill(keys, n, 1 + world_below(&w, 3));
        for (uint32_t i = world_below(&w, n); i < n; i++) keys[i] += world_below(&w, 2) * 1000000;
        ask(&w, keys, n);
        radix_walk(w.cache.tree, add_pages, &n_pages);
        c = page_pool_counts(w.pool);
        CHECK_EQ(n_pages, c.n_total - c.n_free);
    }
    radix_clear(w.cache.tree, NULL);
    CHECK(world_deinit(&w));
}

TEST(entries_are_counted_by_depth)
{
    static kv_key keys[900];
    struct radix_counts n;
    struct world w;

    CHECK(world_init(&w, PAGES, PAGE, false));
    w.now = 0;
    fill(keys, 900, 1);
    ask(&w, keys, 900);
    n = radix_counts(w.cache.tree);
    CHECK_EQ(n.depth_nodes[1], 1);
    CHECK_EQ(n.depth_keys[1], 900);
    keys[256]++;
    ask(&w, keys, 300); /* splits at 256 */
    n = radix_counts(w.cache.tree);
    CHECK_EQ(n.depth_nodes[0], 1);
    CHECK_EQ(n.depth_keys[0], 256);
    CHECK_EQ(n.depth_nodes[1], 2);
    CHECK_EQ(n.depth_keys[1], 900 - 256 + 44);
    radix_evict(w.cache.tree, 1000);
    n = radix_counts(w.cache.tree);
    for (uint32_t i = 0; i < RADIX_N_DEPTHS; i++) CHECK_EQ(n.depth_nodes[i] + n.depth_keys[i], 0);
    CHECK_EQ(radix_depth_of(256), 0);
    CHECK_EQ(radix_depth_of(257), 1);
    CHECK_EQ(radix_depth_of(65537), RADIX_N_DEPTHS - 1);
    CHECK_EQ(radix_depth_of(UINT32_MAX), RADIX_N_DEPTHS - 1);
    CHECK(world_deinit(&w));
}

TEST(what_goes_is_counted_by_why_and_by_age)
{
    static const struct histogram_bounds bounds = {3, {SECOND, 5 * SECOND, 50 * SECOND}};
    struct histogram age = {.bounds = &bounds};
    struct clock *clock = clock_fake_create(0, 0);
    kv_key keys[3][32];
    uint64_t counts[4], sum;
    struct radix_counts n;
    struct world w;

    CHECK(world_init(&w, PAGES, PAGE, false));
    w.now = 0;
    radix_measure_evictions(w.cache.tree, &age, clock);
    for (uint32_t i = 0; i < 3; i++) {
        fill(keys[i], 32, 1 + i);
        ask(&w, keys[i], 32);
    }
    clock_fake_advance(clock, 11 * SECOND);
    CHECK_EQ(radix_evict(w.cache.tree, 3), 3); /* two pages used at 1 s, one at 2 s */
    histogram_read(&age, counts, &sum);
    CHECK_EQ(counts[2], 3);
    CHECK_EQ(sum, 29 * SECOND);
    CHECK_EQ(radix_expire(w.cache.tree, 3 * SECOND, w.now, 10), 1); /* what was left of the second */
    CHECK_EQ(radix_clear(w.cache.tree, NULL), 2);
    n = radix_counts(w.cache.tree);
    CHECK_EQ(n.pages_gone[GHOST_EVICTED], 3);
    CHECK_EQ(n.keys_gone[GHOST_EVICTED], 48);
    CHECK_EQ(n.n_pages_evicted, 3);
    CHECK_EQ(n.pages_gone[GHOST_EXPIRED], 1);
    CHECK_EQ(n.keys_gone[GHOST_EXPIRED], 16);
    CHECK_EQ(n.pages_gone[GHOST_CLEARED], 2);
    CHECK_EQ(n.keys_gone[GHOST_CLEARED], 32);
    histogram_read(&age, counts, &sum);
    CHECK_EQ(sum, 29 * SECOND); /* by eviction alone */
    clock_fake_destroy(clock);
    CHECK(world_deinit(&w));
}
