/* tests/base/test_histogram.c - each value is counted once, at its bound or below. */
#include "base/histogram.h"
#include "base/random.h"
#include "base/thread.h"
#include "test.h"

static const struct histogram_bounds tens = {3, {10, 100, 1000}};

TEST(a_value_is_counted_up_to_its_bound)
{
    const uint64_t values[] = {0, 10, 11, 100, 101, 1000, 1001, UINT32_MAX};
    const uint64_t at[] = {0, 0, 1, 1, 2, 2, 3, 3};
    struct histogram h = {.bounds = &tens};
    uint64_t counts[4], sum, before[4] = {0}, total = 0;

    for (uint32_t i = 0; i < 8; i++) {
        histogram_add(&h, values[i]);
        total += values[i];
        histogram_read(&h, counts, &sum);
        for (uint32_t k = 0; k < 4; k++) CHECK_EQ(counts[k], before[k] + (k == at[i]));
        CHECK_EQ(sum, total);
        memcpy(before, counts, sizeof(before));
    }
}

TEST(random_values_are_counted_as_a_naive_search_does)
{
    struct histogram h = {.bounds = &tens};
    uint64_t counts[4], want[4] = {0}, sum, total = 0;
    struct random r;

    random_init(&r, test_seed());
    for (uint32_t i = 0; i < 10000; i++) {
        uint64_t value = random_below(&r, 1200);

        histogram_add(&h, value);
        want[value <= 10 ? 0 : value <= 100 ? 1 : value <= 1000 ? 2 : 3]++;
        total += value;
    }
    histogram_read(&h, counts, &sum);
    for (uint32_t k = 0; k < 4; k++) CHECK_EQ(counts[k], want[k]);
    CHECK_EQ(sum, total);
}

#define N_ADDED 200000u

static void add_many(void *arg)
{
    for (uint32_t i = 0; i < N_ADDED; i++) histogram_add(arg, i % 1200);
}

TEST(counts_only_grow_for_whoever_reads_meanwhile)
{
    struct histogram h = {.bounds = &tens};
    uint64_t counts[4], sum, seen = 0, n = 0;
    struct thread t;

    CHECK_OK(thread_start(&t, "adds", add_many, &h));
    while (n < N_ADDED) {
        histogram_read(&h, counts, &sum);
        n = counts[0] + counts[1] + counts[2] + counts[3];
        CHECK(n >= seen);
        seen = n;
    }
    thread_join(&t);
}
