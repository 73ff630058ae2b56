/* tests/sample/test_vocab_scan.c - passes over a row against the plainest loops, and every instruction set against the
 * others, bit by bit. */
#include "sample/vocab_scan.h"
#include <math.h>
#include <stdlib.h>
#include "base/random.h"
#include "test.h"

#define MOST 5000u

#if defined(__x86_64__)
static const struct vocab_kernels *const all_kernels[] = {&vocab_kernels_base, &vocab_kernels_avx2,
                                                          &vocab_kernels_avx512};

/* The base first, then what this machine has. */
static uint32_t n_kernels(void)
{
    const struct vocab_kernels *best = vocab_kernels_best();

    return best == &vocab_kernels_avx512 ? 3 : best == &vocab_kernels_avx2 ? 2 : 1;
}
#else
static const struct vocab_kernels *const all_kernels[] = {&vocab_kernels_base};

static uint32_t n_kernels(void)
{
    return 1;
}
#endif

static void make_row(struct random *r, float *row, uint32_t n)
{
    uint64_t kind = random_below(r, 5);
    float spread = (float)(1 + random_unit(r) * 30);

    for (uint32_t i = 0; i < n; i++) {
        row[i] = ((float)random_unit(r) - 0.5f) * spread;
        if (kind == 1) row[i] = roundf(row[i]); /* many equal */
        if (kind == 2 && random_below(r, 3)) row[i] = -INFINITY;
        if (kind == 3 && random_below(r, 40)) row[i] = -INFINITY;
        if (kind == 4) row[i] = 3;
    }
    row[random_below(r, n)] = spread;
}

TEST(sums_and_weights_are_those_of_exp_and_equal_under_every_instruction_set)
{
    static float row[MOST], best[64], best2[64];
    static double sums[64], sums2[64], weights[VOCAB_BLOCK], weights2[VOCAB_BLOCK];
    double worst = 0;
    struct random r;

    random_init(&r, test_seed());
    for (int round = 0; round < 400; round++) {
        uint32_t n = 1 + (uint32_t)random_below(&r, MOST), n_blocks = VOCAB_N_BLOCKS(n);
        double factor = 1 / (double)(float)(0.05 + random_unit(&r) * 3), max = -INFINITY;

        make_row(&r, row, n);
        for (uint32_t i = 0; i < n; i++) max = fmax(max, (double)row[i]);
        CHECK(vocab_kernels_base.best(row, n, best));
        vocab_kernels_base.sums(row, n, max, factor, sums);
        for (uint32_t b = 0; b < n_blocks; b++) {
            uint32_t n_here = n - b * VOCAB_BLOCK < VOCAB_BLOCK ? n - b * VOCAB_BLOCK : VOCAB_BLOCK;
            double sum = 0, most = -INFINITY;

            vocab_kernels_base.weights(row + b * VOCAB_BLOCK, n_here, max, factor, weights);
            for (uint32_t i = 0; i < n_here; i++) {
                double power = ((double)row[b * VOCAB_BLOCK + i] - max) * factor;
                double want = power > VOCAB_LEAST_POWER ? exp(power) : 0;

                if (want > 0)
                    worst = fmax(worst, fabs(weights[i] / want - 1));
                else
                    CHECK(weights[i] == 0);
                sum += want;
                most = fmax(most, (double)row[b * VOCAB_BLOCK + i]);
            }
            CHECK(fabs(sums[b] - sum) <= 1e-13 * sum); /* no nearer than its weights are */
            CHECK((double)best[b] == most);
            for (uint32_t k = 1; k < n_kernels(); k++) {
                all_kernels[k]->weights(row + b * VOCAB_BLOCK, n_here, max, factor, weights2);
                CHECK(memcmp(weights, weights2, sizeof(weights)) == 0);
            }
        }
        for (uint32_t k = 1; k < n_kernels(); k++) {
            CHECK(all_kernels[k]->best(row, n, best2));
            all_kernels[k]->sums(row, n, max, factor, sums2);
            CHECK(memcmp(best, best2, n_blocks * sizeof(*best)) == 0);
            CHECK(memcmp(sums, sums2, n_blocks * sizeof(*sums)) == 0);
        }
    }
    test_note("largest relative error of a weight: %.2g", worst);
    CHECK(worst < 2e-14);
}

TEST(one_bad_number_anywhere_is_seen)
{
    static const float bad[] = {NAN, INFINITY, -NAN};
    static float row[700], best[8];

    for (uint32_t n = 1; n < 700; n += 23) {
        for (uint32_t at = 0; at < n; at++) {
            for (uint32_t k = 0; k < n_kernels(); k++) {
                for (uint32_t i = 0; i < n; i++) row[i] = (float)i;
                CHECK(all_kernels[k]->best(row, n, best));
                row[at] = bad[(at + n) % 3];
                CHECK(!all_kernels[k]->best(row, n, best));
            }
        }
    }
}

static int in_order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

TEST(candidates_come_in_their_order_whatever_was_guessed)
{
    enum { N = 40000 };
    float *row = malloc(N * sizeof(*row)), *best = malloc(N / VOCAB_BLOCK * 4 + 8),
          *spare = malloc(N / VOCAB_BLOCK * 4 + 8);
    struct candidate *heap = malloc(N * sizeof(*heap)), *sorted = malloc(N * sizeof(*sorted)), c;
    struct random r;

    random_init(&r, test_seed());
    for (int round = 0; round < 60; round++) {
        uint32_t n = 1 + (uint32_t)random_below(&r, random_below(&r, 3) ? N : 600), n_sorted = 0, n_taken = 0;
        uint32_t n_first = (uint32_t)random_below(&r, random_below(&r, 2) ? 20 : 2000);
        struct vocab_supply s;

        make_row(&r, row, n);
        for (uint32_t i = 0; i < n; i++)
            if (row[i] > -INFINITY) sorted[n_sorted++] = (struct candidate){row[i], (int32_t)i};
        qsort(sorted, n_sorted, sizeof(*sorted), in_order);
        CHECK(vocab_kernels_best()->best(row, n, best));
        vocab_supply_init(&s, row, n, best, spare, heap, n_first);
        while (vocab_supply_next(&s, &c)) {
            CHECK_EQ(c.id, sorted[n_taken].id);
            CHECK(c.logit == sorted[n_taken].logit);
            if (++n_taken > n_sorted) break;
        }
        CHECK_EQ(n_taken, n_sorted);
    }
    free(row);
    free(best);
    free(spare);
    free(heap);
    free(sorted);
}
