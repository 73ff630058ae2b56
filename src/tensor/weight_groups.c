/* tensor/weight_groups.c - rows of whole numbers to floats. */
#include "tensor/weight_groups.h"
#include <string.h>

static float number_at(const struct weight_groups *g, const void *numbers, uint64_t i)
{
    const uint32_t bytes = dtype_block_bytes(g->scale_type);
    float f;

    dtype_to_float(g->scale_type, (const uint8_t *)numbers + i * bytes, &f, 1);
    return f;
}

void weight_groups_row(const struct weight_groups *g, uint64_t r, float *out)
{
    const uint64_t row_bytes = g->n_in * g->bits / 8, n_groups = g->n_in / g->group;
    const uint8_t *row = (const uint8_t *)g->weight + r * row_bytes;

    for (uint64_t k = 0; k < n_groups; k++) {
        const float scale = number_at(g, g->scales, r * n_groups + k), bias = number_at(g, g->biases, r * n_groups + k);

        for (uint64_t i = k * g->group; i < (k + 1) * g->group; i++) {
            const uint64_t at = i * g->bits;
            uint32_t v = row[at / 8];

            if (at % 8 + g->bits > 8) v |= (uint32_t)row[at / 8 + 1] << 8;
            out[i] = scale * (float)(v >> at % 8 & ((1u << g->bits) - 1)) + bias;
        }
    }
}

struct weight_groups weight_groups_rows(const struct weight_groups *g, uint64_t first, uint64_t n)
{
    const uint64_t n_numbers = g->n_in / g->group * dtype_block_bytes(g->scale_type);
    struct weight_groups rows = *g;

    rows.n_out = n;
    rows.weight = (const uint8_t *)g->weight + first * (g->n_in * g->bits / 8);
    rows.scales = (const uint8_t *)g->scales + first * n_numbers;
    rows.biases = (const uint8_t *)g->biases + first * n_numbers;
    return rows;
}
