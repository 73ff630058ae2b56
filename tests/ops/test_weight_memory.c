/* tests/ops/test_weight_memory.c - packed weights share mappings, are zeros, and go away with the last one. */
#include <string.h>
#include "backend/cpu/weight_memory.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

TEST(small_weights_share_a_mapping_and_are_zeros_at_multiples_of_64)
{
    struct weight_memory m = {NULL};
    uint64_t alive = mem_n_alive();
    void *p[64];

    for (uint32_t i = 0; i < 64; i++) {
        uint64_t n = 1000 * (i + 1);
        uint8_t all = 0;

        CHECK_OK(weight_memory_take(&m, n, &p[i]));
        CHECK_EQ((uintptr_t)p[i] % 64, 0);
        for (uint64_t k = 0; k < n; k++) all |= ((uint8_t *)p[i])[k];
        CHECK_EQ(all, 0);
        memset(p[i], 0xff, n);
        if (i) CHECK_EQ((uint8_t *)p[i] - (uint8_t *)p[i - 1], (1000 * i + 63) / 64 * 64);
    }
    CHECK_EQ(mem_n_alive(), alive + 2); /* one mapping, one entry of the list */
    for (uint32_t i = 0; i < 64; i++) weight_memory_release(&m, p[i * 37 % 64]);
    CHECK_EQ(mem_n_alive(), alive);
    weight_memory_deinit(&m);
}

TEST(a_weight_beyond_a_chunk_has_one_of_its_own_at_a_huge_page)
{
    struct weight_memory m = {NULL};
    uint64_t alive = mem_n_alive();
    void *small, *big, *after;

    CHECK_OK(weight_memory_take(&m, 100, &small));
    CHECK_OK(weight_memory_take(&m, (uint64_t)80 << 20, &big));
    CHECK_EQ((uintptr_t)big % MEM_HUGE_PAGE, 0);
    CHECK_OK(weight_memory_take(&m, 100, &after));
    memset(big, 1, 80u << 20);
    weight_memory_release(&m, small);
    weight_memory_release(&m, NULL);
    weight_memory_release(&m, big);
    CHECK_EQ(*(uint8_t *)after, 0);
    weight_memory_release(&m, after);
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(without_memory_nothing_is_taken)
{
    struct weight_memory m = {NULL};
    uint64_t alive = mem_n_alive();
    void *p = NULL;

    for (int64_t i = 0;; i++) {
        rd_status st;

        mem_fail_after(i);
        st = weight_memory_take(&m, 5000, &p);
        mem_fail_after(-1);
        if (st == RD_OK) break;
        CHECK_EQ(st, RD_E_NOMEM);
        CHECK_EQ(mem_n_alive(), alive);
    }
    weight_memory_release(&m, p);
    CHECK_EQ(weight_memory_take(&m, UINT64_MAX, &p), RD_E_NOMEM);
    CHECK_EQ(weight_memory_take(&m, UINT64_MAX - 64, &p), RD_E_NOMEM);
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(any_order_of_taking_and_releasing_leaves_nothing_behind)
{
    struct weight_memory m = {NULL};
    uint64_t alive = mem_n_alive();
    struct random r;
    void *p[40] = {NULL};

    random_init(&r, 5);
    for (uint32_t step = 0; step < 2000; step++) {
        uint32_t i = (uint32_t)(random_u64(&r) % 40);

        if (p[i]) {
            CHECK_EQ(*(uint32_t *)p[i], i);
            weight_memory_release(&m, p[i]);
            p[i] = NULL;
        } else {
            CHECK_OK(weight_memory_take(&m, random_u64(&r) % (3u << 20), &p[i]));
            CHECK_EQ(*(uint32_t *)p[i], 0);
            *(uint32_t *)p[i] = i;
        }
    }
    for (uint32_t i = 0; i < 40; i++) weight_memory_release(&m, p[i]);
    CHECK_EQ(mem_n_alive(), alive);
}
