/* tests/base/test_mem.c - the heap facade: counts, overflow, failure hook. */
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

TEST(zalloc_gives_zeroes_and_counts_the_block)
{
    uint64_t alive = mem_n_alive(), allocs = mem_n_allocs();
    unsigned char *p = mem_zalloc(1000, 3);

    CHECK(p);
    CHECK_EQ(mem_n_alive(), alive + 1);
    CHECK_EQ(mem_n_allocs(), allocs + 1);
    for (int i = 0; i < 3000; i++) CHECK_EQ(p[i], 0);
    mem_free(p);
    CHECK_EQ(mem_n_alive(), alive);
    mem_free(NULL);
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(nothing_is_still_a_block_that_can_be_freed)
{
    void *p[] = {mem_zalloc(0, 8), mem_alloc(8, 0), mem_realloc(NULL, 0, 1), mem_memdup("", 0)};

    for (int i = 0; i < 4; i++) {
        CHECK(p[i]);
        mem_free(p[i]);
    }
    void *a = mem_alloc_aligned(0), *m = mem_map(0);
    CHECK(a && m);
    mem_free_aligned(a);
    mem_unmap(m, 0);
}

TEST(a_product_that_overflows_is_refused)
{
    uint64_t alive = mem_n_alive();
    volatile size_t huge = SIZE_MAX;

    CHECK(!mem_zalloc(huge, 2));
    CHECK(!mem_alloc(huge / 2 + 1, 2));
    CHECK(!mem_realloc(NULL, huge / 8, 9));
    CHECK(!mem_memdup("x", huge));
    CHECK(!mem_alloc_aligned(huge));
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(realloc_keeps_the_bytes_and_the_count)
{
    uint64_t alive = mem_n_alive();
    char *p = mem_strdup("radish");

    CHECK(p);
    p = mem_realloc(p, 1, 100000);
    CHECK(p);
    CHECK_STR(p, "radish");
    CHECK_EQ(mem_n_alive(), alive + 1);
    mem_fail_after(0);
    CHECK(!mem_realloc(p, 1, 200000));
    CHECK_STR(p, "radish"); /* the old block is untouched */
    mem_free(p);
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(fail_after_fails_exactly_the_named_allocation)
{
    void *p[4];

    mem_fail_after(2);
    for (int i = 0; i < 4; i++) p[i] = mem_alloc(1, 8);
    CHECK(p[0] && p[1] && !p[2] && p[3]);
    for (int i = 0; i < 4; i++) mem_free(p[i]);
    mem_fail_after(0);
    mem_fail_after(-1);
    p[0] = mem_map(10);
    CHECK(p[0]);
    mem_unmap(p[0], 10);
}

TEST(fail_from_fails_all_later_ones)
{
    void *p;

    mem_fail_from(1);
    p = mem_alloc(1, 1);
    CHECK(p);
    CHECK(!mem_zalloc(1, 1));
    CHECK(!mem_alloc_aligned(1));
    CHECK(!mem_map(1));
    CHECK(!mem_strdup(""));
    mem_fail_from(-1);
    mem_free(p);
    p = mem_alloc(1, 1);
    CHECK(p);
    mem_free(p);
}

TEST(aligned_blocks_are_zeroed_and_aligned_to_64)
{
    for (size_t n = 1; n < 5000; n = n * 3 + 1) {
        unsigned char *p = mem_alloc_aligned(n);
        CHECK(p);
        CHECK_EQ((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < n; i++) CHECK_EQ(p[i], 0);
        memset(p, 255, n);
        mem_free_aligned(p);
    }
}

TEST(a_map_is_zero_and_touched_lazily)
{
    size_t n = (size_t)8 << 30; /* more than many machines have: only touched pages count */
    unsigned char *p = mem_map(n);

    CHECK(p);
    CHECK_EQ(p[0] + p[n / 2] + p[n - 1], 0);
    p[n - 1] = 7;
    mem_unmap(p, n);
    mem_unmap(NULL, 0);
}

TEST(grow_keeps_items_and_leaves_all_unchanged_on_failure)
{
    void *items = NULL;
    size_t cap = 0;
    struct random r;

    random_init(&r, test_seed());
    for (size_t n = 1; n < 3000; n++) {
        if (random_below(&r, 3) == 0) {
            void *before = items;
            size_t before_cap = cap;
            mem_fail_after(0);
            bool ok = mem_grow(&items, &cap, n, sizeof(uint32_t));
            mem_fail_after(-1);
            if (!ok) CHECK(items == before && cap == before_cap && cap < n);
        }
        CHECK(mem_grow(&items, &cap, n, sizeof(uint32_t)));
        CHECK(cap >= n);
        ((uint32_t *)items)[n - 1] = (uint32_t)n;
    }
    for (size_t n = 1; n < 3000; n++) CHECK_EQ(((uint32_t *)items)[n - 1], n);
    CHECK(!mem_grow(&items, &cap, SIZE_MAX / 2, 4));
    CHECK(!mem_grow(&items, &cap, SIZE_MAX, 1));
    mem_free(items);
}

TEST(bytes_are_counted_given_back_and_the_peak_stays_until_it_is_reset)
{
    struct mem_usage before = mem_usage(), now;
    const size_t map_bytes = (5u << 20) + 1;
    char *a, *b, *c, *m;

    mem_reset_peak();
    a = mem_alloc(100000, 1);
    b = mem_zalloc(10, 1000);
    c = mem_alloc_aligned(70000);
    m = mem_map(map_bytes);
    CHECK(a && b && c && m);
    now = mem_usage();
    CHECK(now.n_bytes >= before.n_bytes + 180000 + map_bytes &&
          now.n_bytes < before.n_bytes + 200000 + map_bytes + 4096);
    CHECK_EQ(now.peak_bytes, now.n_bytes);
    a = mem_realloc(a, 300000, 1);
    CHECK(a && mem_usage().n_bytes >= now.n_bytes + 200000 && mem_usage().n_bytes < now.n_bytes + 210000);
    a = mem_realloc(a, 10, 1);
    CHECK(a && mem_usage().n_bytes < now.n_bytes - 90000);
    CHECK(mem_usage().peak_bytes >= now.n_bytes + 200000);
    mem_free(a);
    mem_free(b);
    mem_free_aligned(c);
    mem_unmap(m, map_bytes);
    CHECK_EQ(mem_usage().n_bytes, before.n_bytes);
    CHECK(mem_usage().peak_bytes > before.n_bytes + map_bytes);
    mem_reset_peak();
    CHECK_EQ(mem_usage().peak_bytes, before.n_bytes);
}

TEST(beyond_the_limit_every_allocation_fails_and_changes_nothing)
{
    struct mem_usage before = mem_usage();
    char *p = mem_alloc(1000, 1);

    CHECK(p);
    memset(p, 7, 1000);
    CHECK(!mem_set_limit(mem_usage().n_bytes - 1));
    CHECK_EQ(mem_usage().limit_bytes, 0);
    CHECK(mem_set_limit(mem_usage().n_bytes + 100000));
    CHECK_EQ(mem_usage().limit_bytes, mem_usage().n_bytes + 100000);
    mem_clear_failed();
    CHECK(!mem_alloc(200000, 1) && mem_has_failed());
    CHECK(!mem_zalloc(2, 100000));
    CHECK(!mem_alloc_aligned(200000));
    mem_clear_failed();
    CHECK(!mem_map(200000) && mem_has_failed());
    mem_clear_failed();
    CHECK(!mem_realloc(p, 200000, 1) && mem_has_failed());
    for (int i = 0; i < 1000; i++) CHECK_EQ(p[i], 7);
    CHECK(mem_usage().peak_bytes <= mem_usage().limit_bytes || before.peak_bytes > mem_usage().limit_bytes);
    p = mem_realloc(p, 50000, 1);
    CHECK(p);
    CHECK(mem_set_limit(0));
    mem_free(p);
    p = mem_alloc(200000, 1);
    CHECK(p);
    mem_free(p);
    CHECK_EQ(mem_usage().n_bytes, before.n_bytes);
}
