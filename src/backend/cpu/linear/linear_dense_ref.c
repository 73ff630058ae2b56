/* backend/cpu/linear/linear_dense_ref.c - linear_dense.h in plain C: what the matrix unit computes, number by number. */
#include <math.h>
#include <string.h>
#include "backend/cpu/linear/linear_dense.h"
#include "tensor/dtype.h"

static float flushed(float v)
{
    return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v;
}

static float number_at(const uint8_t *tile, uint32_t i)
{
    uint16_t v;

    memcpy(&v, tile + 2 * (size_t)i, sizeof(v));
    return flushed(bf16_to_float(v));
}

static void split16_ref(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t n_in, uint8_t *group)
{
    const uint32_t n_blocks = (n_in + DENSE_K - 1) / DENSE_K;

    memset(group, 0, (size_t)n_blocks * DENSE_BLOCK);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t k = 0; k < n_in; k++) {
            const float v = x[r * x_stride + k];
            const uint16_t high = float_to_bf16(v), low = float_to_bf16(v - bf16_to_float(high));
            uint8_t *at = group + (size_t)(k / DENSE_K) * DENSE_BLOCK + (r * DENSE_K + k % DENSE_K) * sizeof(high);

            memcpy(at, &high, sizeof(high));
            memcpy(at + DENSE_TILE, &low, sizeof(low));
        }
}

/* x: row of a tile; w: column of another. */
static float add_dot(float acc, const uint8_t *x, uint32_t row, const uint8_t *w, uint32_t column)
{
    float t[2] = {0, 0};

    for (uint32_t i = 0; i < DENSE_K; i++)
        t[i % 2] =
            flushed(fmaf(number_at(x, row * DENSE_K + i), number_at(w, i / 2 * 32 + column * 2 + i % 2), t[i % 2]));
    return flushed(acc + flushed(t[0] + t[1]));
}

static void panel_ref(const struct dense_panel *p)
{
    for (uint32_t r = 0; r < p->n_rows; r++)
        for (uint32_t o = 0; o < p->n_out; o++) {
            const uint8_t *x = p->x + (size_t)(r / DENSE_ROWS) * p->n_blocks * DENSE_BLOCK;
            const uint8_t *w = p->w + o / 16 * DENSE_TILE;
            float acc = 0;

            for (uint32_t b = 0; b < p->n_blocks; b++, x += DENSE_BLOCK, w += p->n_parts * DENSE_BLOCK) {
                acc = add_dot(acc, x, r % DENSE_ROWS, w, o % 16);
                acc = add_dot(acc, x + DENSE_TILE, r % DENSE_ROWS, w, o % 16);
                if (p->n_parts > 1) acc = add_dot(acc, x, r % DENSE_ROWS, w + DENSE_BLOCK, o % 16);
            }
            if (p->add) acc = p->out[r * p->out_stride + o] + acc;
            p->out[r * p->out_stride + o] = p->bias ? acc + p->bias[o] : acc;
        }
}

const struct cpu_dense_kernels dense_kernels_ref = {split16_ref, panel_ref};
