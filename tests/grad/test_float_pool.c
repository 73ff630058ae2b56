/* tests/grad/test_float_pool.c - blocks come back, the idle ones leave, and no memory is an answer. */
#include "base/mem.h"
#include "grad/float_pool.h"
#include "test.h"

TEST(what_is_given_back_is_taken_again)
{
    struct float_pool pool = {0};
    float *a = float_pool_take(&pool, 100000), *b = float_pool_take(&pool, 100000);

    CHECK(a && b && a != b);
    CHECK_EQ((uintptr_t)a % 64, 0);
    float_pool_give(&pool, a);
    CHECK(float_pool_take(&pool, 99000) == a);
    float_pool_give(&pool, a);
    a = float_pool_take(&pool, 20000); /* not a block of five times that */
    CHECK(a != NULL);
    float_pool_give(&pool, NULL);
    float_pool_give(&pool, a);
    float_pool_give(&pool, b);
    float_pool_deinit(&pool);
    CHECK(pool.idle == NULL);
}

TEST(the_smallest_that_holds_it_is_taken)
{
    struct float_pool pool = {0};
    float *large = float_pool_take(&pool, 1000), *small = float_pool_take(&pool, 500);

    CHECK(large && small);
    float_pool_give(&pool, small);
    float_pool_give(&pool, large);
    CHECK(float_pool_take(&pool, 400) == small);
    CHECK(float_pool_take(&pool, 400) == large);
    float_pool_give(&pool, small);
    float_pool_give(&pool, large);
    float_pool_deinit(&pool);
}

TEST(what_no_pass_used_leaves)
{
    struct float_pool pool = {0};
    float *often = float_pool_take(&pool, 1000), *once = float_pool_take(&pool, 100000);

    CHECK(often && once);
    float_pool_give(&pool, once);
    float_pool_give(&pool, often);
    for (int i = 0; i < 20; i++) {
        float_pool_trim(&pool);
        CHECK(float_pool_take(&pool, 1000) == often);
        float_pool_give(&pool, often);
    }
    mem_fail_from(0); /* nothing is there for it but what left */
    CHECK(float_pool_take(&pool, 100000) == NULL);
    mem_fail_from(-1);
    float_pool_deinit(&pool);
}

TEST(idle_blocks_make_room_where_memory_is_out)
{
    struct float_pool pool = {0};
    float *a = float_pool_take(&pool, 1000), *b;

    float_pool_give(&pool, a);
    mem_fail_after(0); /* the first attempt */
    b = float_pool_take(&pool, 100000);
    mem_fail_after(-1);
    CHECK(b != NULL);
    CHECK(pool.idle == NULL);
    float_pool_give(&pool, b);
    float_pool_deinit(&pool);
    CHECK(float_pool_take(&pool, UINT64_MAX / 2) == NULL);
}
