/* tests/engine/test_page_codec.c - f16 pages as 8-bit integers: how near they come back, and what does not fit. */
#include "engine/tiers/page_codec.h"
#include <math.h>
#include <stdlib.h>
#include "base/random.h"
#include "tensor/dtype.h"
#include "test.h"

static const struct kv_layout layout = {3, 2, 64, 16, DTYPE_F16, DTYPE_F16};

static bool is_key(uint64_t i)
{
    return i / (16 * 64) % 4 < 2;
}

TEST(values_come_back_within_half_a_step_and_large_channels_of_keys_cost_the_others_nothing)
{
    uint64_t n = kv_page_bytes(&layout) / 2, packed = page_codec_bytes(&layout);
    uint16_t *page = malloc(n * 2), *back = malloc(n * 2);
    uint8_t *bytes = malloc(packed), *again = malloc(packed);
    struct random r;

    random_init(&r, test_seed());
    for (uint64_t i = 0; i < n; i++) {
        float x = (float)random_unit(&r) * 2 - 1;

        page[i] = float_to_half(is_key(i) && i % 64 == 7 ? 150 + x : x); /* a bias */
    }
    CHECK(page_codec_fits(&layout));
    CHECK(packed * 100 < n * 2 * 55);
    page_codec_pack(&layout, page, bytes);
    page_codec_unpack(&layout, bytes, back);
    for (uint64_t i = 0; i < n; i++) {
        float error = fabsf(half_to_float(page[i]) - half_to_float(back[i]));

        CHECK(error <= (is_key(i) && i % 64 == 7 ? 0.7f : 0.0045f));
    }
    page_codec_pack(&layout, back, again);
    page_codec_unpack(&layout, again, page);
    for (uint64_t i = 0; i < n; i++) CHECK(fabsf(half_to_float(page[i]) - half_to_float(back[i])) <= 0.2f);
    free(page);
    free(back);
    free(bytes);
    free(again);
}

TEST(zeros_stay_zeros_and_what_is_no_number_stays_none)
{
    uint64_t n = kv_page_bytes(&layout) / 2;
    uint16_t *page = calloc(n, 2), *back = malloc(n * 2);
    uint8_t *bytes = malloc(page_codec_bytes(&layout));

    page[3] = 0x7c00;               /* infinity, in a channel of keys */
    page[2 * 16 * 64 + 5] = 0x7e01; /* NaN, in a block of values */
    page_codec_pack(&layout, page, bytes);
    page_codec_unpack(&layout, bytes, back);
    CHECK(isnan(half_to_float(back[3])));
    CHECK(isnan(half_to_float(back[2 * 16 * 64 + 5])));
    CHECK_EQ(back[4], 0);
    CHECK_EQ(back[n - 1], 0);
    free(page);
    free(back);
    free(bytes);
}

TEST(other_types_and_odd_heads_do_not_fit)
{
    struct kv_layout l = layout;

    l.dtype_v = DTYPE_Q8_0;
    CHECK(!page_codec_fits(&l));
    l = layout;
    l.head_dim = 80;
    CHECK(!page_codec_fits(&l));
}
