/* tests/base/test_arena.c - many small allocations against a naive list of them. */
#include "base/arena.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

TEST(allocations_are_zeroed_aligned_and_do_not_overlap)
{
    enum { N = 3000 };
    static struct {
        unsigned char *p;
        size_t n;
    } items[N];
    struct arena a;
    struct random r;
    uint64_t alive = mem_n_alive();

    random_init(&r, test_seed());
    arena_init(&a, 0);
    for (int i = 0; i < N; i++) {
        items[i].n = random_below(&r, 20) ? random_below(&r, 200) : random_below(&r, 100000);
        items[i].p = arena_alloc(&a, items[i].n, 1);
        CHECK(items[i].p);
        CHECK_EQ((uintptr_t)items[i].p % 16, 0);
        for (size_t k = 0; k < items[i].n; k++) CHECK_EQ(items[i].p[k], 0);
        memset(items[i].p, i & 255, items[i].n);
    }
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < items[i].n; k++) CHECK_EQ(items[i].p[k], i & 255);
    CHECK(mem_n_alive() - alive < 700); /* blocks are shared by the small ones */
    arena_deinit(&a);
    CHECK_EQ(mem_n_alive(), alive);
    CHECK(arena_alloc(&a, 1, 1)); /* it can be used again */
    arena_deinit(&a);
}

TEST(a_zeroed_arena_works_and_an_unused_one_can_be_freed)
{
    struct arena a = {0};

    arena_deinit(&a);
    CHECK_STR(arena_memdup(&a, "radish!", 6), "radish");
    CHECK_STR(arena_memdup(&a, NULL, 0), "");
    CHECK(arena_alloc(&a, 0, 8));
    arena_deinit(&a);
}

TEST(the_limit_is_told_apart_from_the_machine)
{
    struct arena a;

    arena_init(&a, 64);
    CHECK(arena_alloc(&a, 1, 48));
    CHECK(!arena_alloc(&a, 1, 17));
    CHECK(a.out_of_limit);
    CHECK(arena_alloc(&a, 1, 16)); /* what still fits still works */
    CHECK(!a.out_of_limit);
    CHECK_EQ(a.n_bytes, 64);
    arena_deinit(&a);
    mem_fail_after(0);
    CHECK(!arena_alloc(&a, 1, 16));
    CHECK(!a.out_of_limit);
    CHECK_EQ(a.n_bytes, 0);
    CHECK(arena_alloc(&a, 1, 16));
    arena_deinit(&a);
}

TEST(sizes_that_overflow_are_refused)
{
    struct arena a = {0};

    CHECK(!arena_alloc(&a, SIZE_MAX, 2));
    CHECK(!arena_alloc(&a, SIZE_MAX, 1));
    CHECK(!arena_alloc(&a, SIZE_MAX - 40, 1));
    CHECK(!arena_memdup(&a, "", SIZE_MAX));
    CHECK_EQ(a.n_bytes, 0);
    arena_deinit(&a);
}
