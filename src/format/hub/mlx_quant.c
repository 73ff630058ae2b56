/* format/hub/mlx_quant.c - MLX's groups to blocks of 32. */
#include "format/hub/mlx_quant.h"
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "tensor/quantise.h"

rd_status mlx_check(const char *base, const struct st_tensor *weight, const struct st_tensor *scales,
                    const struct st_tensor *biases, uint32_t bits, uint32_t group, struct mlx_matrix *out,
                    struct rd_error *err)
{
    uint64_t n_in = 0, n_words = 0;

    if (!scales || !biases)
        return error_set(err, RD_E_FORMAT, "%s: a quantised matrix without %s", base,
                         scales ? "\"biases\"" : "\"scales\"");
    if ((bits < 2 || bits > 6) && bits != 8)
        return error_set(err, RD_E_UNSUPPORTED, "%s: quantised to %u bits; known are 2, 3, 4, 5, 6 and 8", base, bits);
    if (group != 32 && group != 64 && group != 128)
        return error_set(err, RD_E_UNSUPPORTED, "%s: groups of %u weights; known are 32, 64 and 128", base, group);
    if (weight->type != ST_U32 || weight->n_dims != 2)
        return error_set(err, RD_E_FORMAT, "%s.weight: type %s with %u dims, expected U32 with 2", base,
                         st_type_name(weight->type), weight->n_dims);
    if ((scales->type != ST_F16 && scales->type != ST_BF16 && scales->type != ST_F32) || biases->type != scales->type)
        return error_set(err, RD_E_FORMAT, "%s: scales of type %s, biases %s; expected F16, BF16 or F32 for both", base,
                         st_type_name(scales->type), st_type_name(biases->type));
    if (scales->n_dims != 2 || biases->n_dims != 2 || scales->dims[0] != weight->dims[0] ||
        biases->dims[0] != weight->dims[0] || biases->dims[1] != scales->dims[1])
        return error_set(err, RD_E_FORMAT, "%s: %llu rows; scales [%llu,%llu] and biases [%llu,%llu] do not fit", base,
                         (unsigned long long)weight->dims[0], (unsigned long long)scales->dims[0],
                         (unsigned long long)scales->dims[1], (unsigned long long)biases->dims[0],
                         (unsigned long long)biases->dims[1]);
    if (!checked_mul(scales->dims[1], (uint64_t)group, &n_in) || !checked_mul(n_in, (uint64_t)bits, &n_words) ||
        n_words / 32 != weight->dims[1])
        return error_set(err, RD_E_FORMAT, "%s: rows of %llu words; %llu groups of %u weights of %u bits make %llu",
                         base, (unsigned long long)weight->dims[1], (unsigned long long)scales->dims[1], group, bits,
                         (unsigned long long)(n_words / 32));
    *out = (struct mlx_matrix){
        .bits = bits, .group = group, .n_out = weight->dims[0], .n_in = n_in, .scale_type = scales->type};
    return RD_OK;
}

struct weight_groups mlx_groups(const struct mlx_matrix *m)
{
    const enum dtype t = m->scale_type == ST_F32 ? DTYPE_F32 : m->scale_type == ST_F16 ? DTYPE_F16 : DTYPE_BF16;

    return (struct weight_groups){m->bits, m->group, m->n_out, m->n_in, t, m->weight, m->scales, m->biases};
}

static uint32_t scale_bytes(const struct mlx_matrix *m)
{
    return m->scale_type == ST_F32 ? 4 : 2;
}

static float scale_at(const struct mlx_matrix *m, const uint8_t *scales, uint64_t i)
{
    uint16_t half;
    float f;

    memcpy(&half, scales + i * scale_bytes(m), 2);
    switch (m->scale_type) {
    case ST_F16:
        return half_to_float(half);
    case ST_BF16:
        return bf16_to_float(half);
    default:
        memcpy(&f, scales + 4 * i, sizeof(f));
        return f;
    }
}

/* n bf16 numbers are 0 or within 2^-17 .. 2^16, where f16 has them all: the usual case, many at a time. */
static bool is_usual(const uint8_t *scales, uint64_t n)
{
    const uint16_t least = 110 << 7, most = 143 << 7;
    uint32_t unusual = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint16_t mag;

        memcpy(&mag, scales + 2 * i, 2);
        mag &= 0x7fff;
        unusual |= (uint32_t)(mag != 0) & ((uint32_t)(mag < least) | (uint32_t)(mag >= most));
    }
    return unusual == 0;
}

/* Every one is a number of f16. */
static bool fits_half(const struct mlx_matrix *m, const uint8_t *scales)
{
    uint64_t n = m->n_out * (m->n_in / m->group);

    if (m->scale_type == ST_BF16 && is_usual(scales, n)) return true;
    for (uint64_t i = 0; i < n; i++) {
        float f = scale_at(m, scales, i), back = half_to_float(float_to_half(f));

        if (memcmp(&f, &back, sizeof(f)) != 0) return false;
    }
    return true;
}

enum dtype mlx_dtype(const struct mlx_matrix *m)
{
    if (m->bits > 5) return DTYPE_F16;
    if (m->scale_type != ST_F16 && (!fits_half(m, m->scales) || !fits_half(m, m->biases))) return DTYPE_F16;
    return m->bits == 5 ? DTYPE_Q5_1 : DTYPE_Q4_1;
}

enum dtype mlx_hub_dtype(const struct mlx_matrix *m)
{
    if (m->bits < 6 || (m->scale_type != ST_F16 && (!fits_half(m, m->scales) || !fits_half(m, m->biases))))
        return DTYPE_NONE;
    return m->group == 32 ? DTYPE_U8_32 : DTYPE_U8_64;
}

/* 32 weights' numbers; row_end: where the row's bytes end. */
static void read_32(const uint8_t *row, const uint8_t *row_end, uint64_t first, uint32_t bits, uint8_t q[32])
{
    const uint8_t *from = row + first * bits / 8;

    if (bits == 8) {
        memcpy(q, from, 32);
        return;
    }
    for (uint32_t i = 0; bits == 4 && i < 16; i++) {
        q[2 * i] = from[i] & 15;
        q[2 * i + 1] = from[i] >> 4;
    }
    for (uint32_t i = 0; bits != 4 && i < 32; i++) {
        uint64_t at = (first + i) * bits;
        const uint8_t *p = row + at / 8;
        uint32_t v = *p;

        if (p + 1 < row_end) v |= (uint32_t)p[1] << 8;
        q[i] = (uint8_t)(v >> (at % 8) & ((1u << bits) - 1));
    }
}

static void put_q4(const uint8_t q[32], uint8_t *qs)
{
    for (int i = 0; i < 16; i++) qs[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

static void put_block(enum dtype t, float d, float m, const uint8_t q[32], uint8_t *dst)
{
    uint16_t halves[2] = {float_to_half(d), float_to_half(m)};
    uint32_t high = 0;

    if (t == DTYPE_F16) {
        float w[32];

        for (int i = 0; i < 32; i++) w[i] = d * (float)q[i] + m;
        quantise(DTYPE_F16, w, dst, 32);
        return;
    }
    memcpy(dst, halves, 4);
    if (t == DTYPE_U8_32 || t == DTYPE_U8_64) {
        memcpy(dst + 4, q, 32);
        return;
    }
    if (t == DTYPE_Q4_1) {
        put_q4(q, dst + 4);
        return;
    }
    for (uint32_t i = 0; i < 32; i++) high |= (uint32_t)(q[i] >> 4 & 1) << i;
    memcpy(dst + 4, &high, 4);
    put_q4(q, dst + 8);
}

void mlx_open_rows(const struct mlx_matrix *m, enum dtype t, uint64_t first, uint64_t n, uint8_t *dst)
{
    uint64_t row_bytes = m->n_in * m->bits / 8, n_groups = m->n_in / m->group;
    uint32_t block = t == DTYPE_F16 ? 64 : dtype_block_bytes(t);
    uint8_t q[32];

    assert(t == DTYPE_F16 || t == DTYPE_Q4_1 || t == DTYPE_Q5_1 || t == DTYPE_U8_32 || t == DTYPE_U8_64);
    for (uint64_t r = first; r < first + n; r++) {
        const uint8_t *row = m->weight + r * row_bytes;

        for (uint64_t k = 0; k < m->n_in; k += 32) {
            uint64_t g = r * n_groups + k / m->group;
            float scale = scale_at(m, m->scales, g), bias = scale_at(m, m->biases, g);

            read_32(row, row + row_bytes, k, m->bits, q);
            if (t == DTYPE_U8_64 && k % 64) { /* a block's second half */
                memcpy(dst - 32, q, 32);
                continue;
            }
            put_block(t, scale, bias, q, dst);
            dst += block;
        }
    }
}
