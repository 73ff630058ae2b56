/* tests/tensor/test_weight_groups.c - rows of whole numbers in every width, read bit by bit. */
#include "tensor/weight_groups.h"
#include "base/random.h"
#include "test.h"

TEST(rows_are_scale_times_number_plus_bias)
{
    enum { OUT = 3, IN = 128 };
    static const uint32_t bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    uint8_t weight[OUT * IN];
    uint16_t scales[OUT * IN / 32], biases[OUT * IN / 32];
    struct random r;
    float row[IN];

    random_init(&r, test_seed());
    for (size_t i = 0; i < sizeof(weight); i++) weight[i] = (uint8_t)random_below(&r, 256);
    for (size_t i = 0; i < OUT * IN / 32; i++) {
        scales[i] = float_to_bf16((float)random_unit(&r));
        biases[i] = float_to_bf16((float)random_unit(&r) - 1);
    }
    for (size_t k = 0; k < 18; k++) {
        const struct weight_groups g = {bits[k / 3], groups[k % 3], OUT, IN, DTYPE_BF16, weight, scales, biases};

        for (uint32_t o = 0; o < OUT; o++) {
            weight_groups_row(&g, o, row);
            for (uint32_t i = 0; i < IN; i++) {
                const uint32_t at = o * IN / g.group + i / g.group;
                uint32_t q = 0;

                for (uint32_t b = 0; b < g.bits; b++) {
                    const uint32_t bit = (o * IN + i) * g.bits + b;

                    q |= (uint32_t)(weight[bit / 8] >> bit % 8 & 1) << b;
                }
                CHECK(row[i] == bf16_to_float(scales[at]) * (float)q + bf16_to_float(biases[at]));
            }
        }
    }
}
