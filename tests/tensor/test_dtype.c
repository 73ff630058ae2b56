/* tests/tensor/test_dtype.c - conversions bit for bit against the `gguf` package, halves against all 65,536 of them. */
#include "tensor/dtype.h"
#include <math.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define N_TYPES 13

static uint32_t bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static float from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

TEST(every_type_dequantises_bit_equal_to_the_gguf_package)
{
    struct rd_error err;
    char *data = NULL;
    size_t n = 0, pos = 0;
    int n_types = 0;

    CHECK_OK(file_read_all(test_path("tests/golden/quants/quants.bin"), 1 << 20, &data, &n, &err));
    while (pos < n) {
        uint32_t head[3];
        float *got;

        memcpy(head, data + pos, sizeof(head));
        pos += sizeof(head);
        enum dtype t = dtype_from_gguf(head[0]);
        uint64_t row;
        CHECK(t != DTYPE_NONE);
        CHECK(dtype_row_bytes(t, head[2], &row));
        CHECK_EQ(row, head[1]);
        CHECK(pos + head[1] + 4 * (size_t)head[2] <= n);
        got = mem_alloc(head[2], sizeof(*got));
        CHECK(got);
        dtype_to_float(t, data + pos, got, head[2]);
        for (uint32_t i = 0; i < head[2]; i++) {
            uint32_t want;

            memcpy(&want, data + pos + head[1] + 4 * (size_t)i, sizeof(want));
            if (bits(got[i]) != want) {
                test_fail(__FILE__, __LINE__, "%s weight %u: %a, wanted %a", dtype_name(t), i, (double)got[i],
                          (double)from_bits(want));
                mem_free(got);
                mem_free(data);
                return;
            }
        }
        mem_free(got);
        pos += head[1] + 4 * (size_t)head[2];
        n_types++;
    }
    CHECK_EQ(n_types, N_TYPES);
    mem_free(data);
}

TEST(blocks_convert_one_by_one_and_unaligned_as_in_a_row)
{
    static const enum dtype types[] = {DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1,
                                       DTYPE_Q8_0, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K};
    struct random r;
    uint8_t raw[5 * 256 + 1];
    float row[5 * 256], one[256];

    random_init(&r, test_seed());
    for (size_t i = 0; i < sizeof(raw); i++) raw[i] = (uint8_t)random_u64(&r);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        uint32_t weights = dtype_block_weights(types[t]), bytes = dtype_block_bytes(types[t]);

        dtype_to_float(types[t], raw + 1, row, (uint64_t)5 * weights);
        for (uint32_t b = 0; b < 5; b++) {
            dtype_to_float(types[t], raw + 1 + b * bytes, one, weights);
            CHECK(!memcmp(one, row + (size_t)b * weights, weights * sizeof(float)));
        }
    }
}

/* The value of a half by its definition, in double. */
static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31;
    double mantissa = h & 0x3ff, v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);

    return h >> 15 ? -v : v;
}

TEST(every_half_becomes_its_value_and_comes_back)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = half_to_float((uint16_t)h);

        if ((h >> 10 & 31) == 31) {
            CHECK((h & 0x3ff) ? isnan(f) : isinf(f));
            CHECK_EQ(signbit(f) != 0, h >> 15);
            CHECK_EQ(float_to_half(f), (h & 0x3ff) ? (h | 0x200) : h);
            continue;
        }
        CHECK((double)f == half_value((uint16_t)h));
        CHECK_EQ(signbit(f) != 0, h >> 15);
        CHECK_EQ(float_to_half(f), h);
    }
}

TEST(floats_round_to_the_nearest_half_ties_to_even)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float mid = (float)((half_value((uint16_t)h) + half_value((uint16_t)(h + 1))) / 2); /* exact in fp32 */
        uint32_t even = h & 1 ? h + 1 : h;

        CHECK_EQ(float_to_half(mid), even);
        CHECK_EQ(float_to_half(-mid), even | 0x8000);
        CHECK_EQ(float_to_half(nextafterf(mid, 0)), h);
        CHECK_EQ(float_to_half(nextafterf(mid, INFINITY)), h + 1);
    }
    CHECK_EQ(float_to_half(65519.996f), 0x7bff);
    CHECK_EQ(float_to_half(65520.0f), 0x7c00);
    CHECK_EQ(float_to_half(-INFINITY), 0xfc00);
    CHECK_EQ(float_to_half(0x1p-25f), 0);
    CHECK_EQ(float_to_half(-0x1p-149f), 0x8000);
    CHECK(isnan(half_to_float(float_to_half(NAN))));
}

TEST(bf16_rounds_to_nearest_even_and_keeps_nan)
{
    struct random r;

    random_init(&r, test_seed());
    for (int i = 0; i < 100000; i++) {
        float f = from_bits((uint32_t)random_u64(&r)), below, above;
        uint16_t b = float_to_bf16(f);

        if (isnan(f)) {
            CHECK(isnan(bf16_to_float(b)));
            continue;
        }
        below = bf16_to_float((uint16_t)(bits(f) >> 16));
        above = bf16_to_float((uint16_t)((bits(f) >> 16) + 1)); /* away from zero; may be infinite */
        CHECK_EQ(bits(bf16_to_float(b)) == bits(below) || bits(bf16_to_float(b)) == bits(above), true);
        if (isfinite(above)) CHECK(fabs((double)bf16_to_float(b) - f) <= fabs((double)above - below) / 2);
    }
    CHECK_EQ(float_to_bf16(from_bits(0x3f808000)), 0x3f80);
    CHECK_EQ(float_to_bf16(from_bits(0x3f818000)), 0x3f82);
    CHECK_EQ(float_to_bf16(from_bits(0x7f7fffff)), 0x7f80);
    CHECK(isnan(bf16_to_float(float_to_bf16(from_bits(0x7f800001)))));
}

TEST(rows_that_are_ragged_or_overflow_are_refused)
{
    uint64_t bytes = 7;

    CHECK(dtype_row_bytes(DTYPE_Q4_K, 512, &bytes));
    CHECK_EQ(bytes, 288);
    CHECK(dtype_row_bytes(DTYPE_Q4_0, 0, &bytes));
    CHECK_EQ(bytes, 0);
    CHECK(!dtype_row_bytes(DTYPE_Q4_0, 33, &bytes));
    CHECK(!dtype_row_bytes(DTYPE_Q6_K, 255, &bytes));
    CHECK(!dtype_row_bytes(DTYPE_F32, UINT64_MAX / 4 + 1, &bytes));
    CHECK(dtype_row_bytes(DTYPE_F32, UINT64_MAX / 4, &bytes));
    CHECK(!dtype_row_bytes(DTYPE_NONE, 32, &bytes));
}

TEST(type_numbers_have_names_and_unknown_ones_do_not)
{
    CHECK_EQ(dtype_from_gguf(12), DTYPE_Q4_K);
    CHECK_EQ(dtype_from_gguf(9), DTYPE_NONE);
    CHECK_EQ(dtype_from_gguf(4), DTYPE_NONE);
    CHECK_EQ(dtype_from_gguf(31), DTYPE_NONE);
    CHECK_EQ(dtype_from_gguf(UINT32_MAX), DTYPE_NONE);
    CHECK_EQ(dtype_from_gguf(0x80000000u), DTYPE_NONE);
    CHECK_STR(dtype_name(DTYPE_BF16), "BF16");
    CHECK_STR(dtype_name(DTYPE_NONE), "none");
    CHECK_STR(dtype_gguf_name(16), "IQ2_XXS");
    CHECK_STR(dtype_gguf_name(39), "MXFP4");
    CHECK(!dtype_gguf_name(42));
    CHECK(!dtype_gguf_name(UINT32_MAX));
    CHECK_EQ(dtype_block_bytes(DTYPE_Q6_K), 210);
    CHECK_EQ(dtype_block_weights(DTYPE_NONE), 0);
#define NAME_AGREES(name, gguf, text, n, bytes) CHECK_STR(dtype_name(name), dtype_gguf_name(gguf));
    DTYPE_LIST(NAME_AGREES)
#undef NAME_AGREES
}
