/* tests/tensor/test_quantise.c - floats to quantised rows: Q8_0 bit for bit the gguf package's, Q4_K and Q6_K with at
 * most the reference's error (tests/golden/make_quantise.py). */
#include "tensor/quantise.h"
#include <math.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define N        256u
#define Q8_BYTES 272u

struct golden {
    char *bytes;
    uint32_t n_rows;
};

static bool golden_read(struct golden *g)
{
    size_t n;

    if (file_read_all(test_path("quants/convert.bin"), 1 << 20, &g->bytes, &n, NULL) != RD_OK) return false;
    memcpy(&g->n_rows, g->bytes, 4);
    return n == 4 + g->n_rows * (N * 4 + Q8_BYTES + 16);
}

static void golden_row(const struct golden *g, uint32_t row, float x[N])
{
    memcpy(x, g->bytes + 4 + row * N * 4, N * 4);
}

TEST(q8_0_has_the_bytes_of_the_gguf_package)
{
    struct golden g = {0};
    uint8_t got[Q8_BYTES];
    float x[N];

    CHECK(golden_read(&g));
    for (uint32_t r = 0; r < g.n_rows; r++) {
        golden_row(&g, r, x);
        quantise(DTYPE_Q8_0, x, got, N);
        CHECK(!memcmp(got, g.bytes + 4 + g.n_rows * N * 4 + r * Q8_BYTES, Q8_BYTES));
    }
    mem_free(g.bytes);
}

TEST(k_quants_have_at_most_the_references_error)
{
    static const enum dtype types[2] = {DTYPE_Q4_K, DTYPE_Q6_K};
    struct golden g = {0};
    uint8_t block[210];
    float x[N], back[N];

    CHECK(golden_read(&g));
    for (uint32_t t = 0; t < 2; t++) {
        double sum = 0, want_sum = 0;

        for (uint32_t r = 0; r < g.n_rows; r++) {
            double error = 0, want, square = 0;

            memcpy(&want, g.bytes + 4 + g.n_rows * (N * 4 + Q8_BYTES) + (r * 2 + t) * 8, 8);
            golden_row(&g, r, x);
            quantise(types[t], x, block, N);
            dtype_to_float(types[t], block, back, N);
            for (uint32_t i = 0; i < N; i++) {
                error += pow((double)back[i] - (double)x[i], 2);
                square += pow((double)x[i], 2);
            }
            test_note("%s row %u: error %.4g, the reference's %.4g", dtype_name(types[t]), r, error, want);
            CHECK(error <= want * 1.15 + square * 1e-6);
            if (square > 0) sum += error / square, want_sum += want / square;
        }
        CHECK(sum <= want_sum * 1.02);
    }
    mem_free(g.bytes);
}

TEST(sixteen_bits_are_those_of_the_single_conversions)
{
    struct random r;
    float x[64];
    uint16_t half[64], bf16[64];

    random_init(&r, test_seed());
    for (uint32_t round = 0; round < 40000; round++) {
        for (int i = 0; i < 64; i++) {
            uint32_t bits = (uint32_t)random_u64(&r);

            if (round % 2)
                bits = (bits & 0x807fffff) | (uint32_t)(100 + random_below(&r, 50)) << 23; /* near half's ends */
            if (round % 4 == 3) bits &= 0xfffff000;                                        /* ties */
            memcpy(&x[i], &bits, 4);
        }
        quantise(DTYPE_F16, x, half, 1 + round % 64);
        quantise(DTYPE_BF16, x, bf16, 1 + round % 64);
        for (uint32_t i = 0; i < 1 + round % 64; i++) {
            CHECK_EQ(half[i], float_to_half(x[i]));
            CHECK_EQ(bf16[i], float_to_bf16(x[i]));
        }
    }
}

TEST(sixteen_bits_are_rounded_to_nearest)
{
    const float x[4] = {1.0f + 1.0f / 2048, 1.0f + 3.0f / 2048, -65504, 1e-8f};
    uint16_t half[4], bf16[4];

    quantise(DTYPE_F16, x, half, 4);
    quantise(DTYPE_BF16, x, bf16, 4);
    CHECK(half[0] == 0x3c00 && half[1] == 0x3c02 && half[2] == 0xfbff && half[3] == 0);
    CHECK(bf16[0] == 0x3f80 && bf16[2] == 0xc780);
    CHECK(!quantise_knows(DTYPE_Q5_K) && quantise_knows(DTYPE_Q6_K));
}
