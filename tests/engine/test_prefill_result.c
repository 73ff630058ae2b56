/* tests/engine/test_prefill_result.c - sums of hidden states: any chunks, rows computed twice, no memory. */
#include "engine/prefill_result.h"
#include <math.h>
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define WIDTH 24u
#define N     40u

static void make_rows(float rows[N][WIDTH], uint64_t seed)
{
    struct random r;

    random_init(&r, seed);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t k = 0; k < WIDTH; k++) rows[i][k] = (float)random_below(&r, 2001) / 1000 - 1;
}

/* The vector of positions from .. to, row by row. */
static void naive(float rows[N][WIDTH], uint32_t from, uint32_t to, float *out)
{
    double sum[WIDTH] = {0}, square = 0;

    for (uint32_t i = from; i < to; i++)
        for (uint32_t k = 0; k < WIDTH; k++) sum[k] += (double)rows[i][k];
    for (uint32_t k = 0; k < WIDTH; k++) square += sum[k] * sum[k];
    for (uint32_t k = 0; k < WIDTH; k++) out[k] = (float)(sum[k] * (1 / sqrt(square)));
}

TEST(random_chunks_with_rows_computed_again_give_the_bytes_of_one_pass)
{
    static float rows[N][WIDTH], want[WIDTH], some[N * WIDTH];
    struct random r;

    random_init(&r, 7);
    for (uint32_t round = 0; round < 500; round++) {
        uint32_t from = (uint32_t)random_below(&r, N), to = from + 1 + (uint32_t)random_below(&r, N - from), pos = 0;
        const struct prefill_wish wish = {.pool_from = from, .pool_to = to, .hidden = WIDTH};
        struct prefill_result p;

        make_rows(rows, round);
        naive(rows, from, to, want);
        CHECK_OK(prefill_result_init(&p, &wish));
        while (pos < N) {
            uint32_t n = 1 + (uint32_t)random_below(&r, N - pos), n_some = 0;

            for (uint32_t i = pos; i < pos + n; i++)
                if (prefill_pools_at(&p, i)) memcpy(some + (size_t)n_some++ * WIDTH, rows[i], sizeof(rows[i]));
            prefill_pool(&p, pos, n, some);
            pos += n;
            if (pos < N && random_below(&r, 4) == 0) pos = (uint32_t)random_below(&r, pos); /* preempted */
        }
        prefill_pool_end(&p);
        CHECK(memcmp(p.embedding, want, sizeof(want)) == 0);
        prefill_result_deinit(&p);
    }
}

TEST(a_sum_without_direction_gives_zeros)
{
    const struct prefill_wish wish = {.pool_to = 2, .hidden = WIDTH};
    float rows[2 * WIDTH];
    struct prefill_result p;

    for (uint32_t k = 0; k < WIDTH; k++) rows[WIDTH + k] = -(rows[k] = (float)k);
    CHECK_OK(prefill_result_init(&p, &wish));
    prefill_pool(&p, 0, 2, rows);
    prefill_pool_end(&p);
    for (uint32_t k = 0; k < WIDTH; k++) CHECK(p.embedding[k] == 0);
    prefill_result_deinit(&p);
}

TEST(what_is_no_number_is_seen)
{
    const float fine[3] = {0, -1e30f, 1}, bad[3] = {0, NAN, 1}, large[3] = {INFINITY, 0, 1};

    CHECK(prefill_is_finite(fine, 3));
    CHECK(!prefill_is_finite(bad, 3));
    CHECK(!prefill_is_finite(large, 3));
}

TEST(without_memory_nothing_is_left)
{
    const int32_t tokens[2] = {1, 2};
    const struct prefill_wish wish = {.pool_to = 2, .hidden = WIDTH, .score_tokens = tokens, .n_scores = 2};
    uint64_t n_alive = mem_n_alive();
    struct prefill_result p;
    rd_status st = RD_E_NOMEM;

    for (uint64_t i = 0; st != RD_OK; i++) {
        mem_fail_after((int64_t)i);
        st = prefill_result_init(&p, &wish);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        prefill_result_deinit(&p);
        CHECK_EQ(mem_n_alive(), n_alive);
    }
}
