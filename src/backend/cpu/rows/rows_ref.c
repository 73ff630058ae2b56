/* backend/cpu/rows/rows_ref.c - row operations, one value after the other: what every variant must reproduce to the bit.
 */
#include "backend/cpu/rows/kv_quant.h"
#include "backend/cpu/rows/row_kernels.h"
#include <assert.h>
#include "backend/cpu/cpu_math.h"

static float sum_squares(const float *x, uint32_t n)
{
    float p[16] = {0};

    for (uint32_t i = 0; i < n; i++) p[i % 16] = fmaf(x[i], x[i], p[i % 16]);
    return cpu_tree16(p);
}

static void layer_norm(const float *x, const float *w, const float *b, float eps, float *out, uint32_t n)
{
    float p[16] = {0}, mean, s;

    for (uint32_t i = 0; i < n; i++) p[i % 16] += x[i];
    mean = cpu_tree16(p) / (float)n;
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] - mean;
    s = 1.0f / sqrtf(sum_squares(out, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) out[i] = fmaf(out[i] * s, w[i], b[i]);
}

/* The functions of struct cpu_stored_kernels, for a type whose value i of y is VALUE. */
#define STORED_KERNELS(name, type, VALUE)                                                                              \
    static float name##_dot(const float *x, const void *stored, uint32_t n)                                            \
    {                                                                                                                  \
        const type *y = stored;                                                                                        \
        float p[16] = {0};                                                                                             \
                                                                                                                       \
        for (uint32_t i = 0; i < n; i++) p[i % 16] = fmaf(x[i], VALUE, p[i % 16]);                                     \
        return cpu_tree16(p);                                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    static void name##_dots4(const float *x, const void *y, uint32_t stride, uint32_t n, float *out)                   \
    {                                                                                                                  \
        for (uint32_t k = 0; k < 4; k++) out[k] = name##_dot(x, (const type *)y + (uint64_t)k * stride, n);            \
    }                                                                                                                  \
                                                                                                                       \
    static void name##_add_rows(float *x, const void *stored, uint32_t stride, const float *s, uint32_t n_y,           \
                                uint32_t n)                                                                            \
    {                                                                                                                  \
        const type *y = stored;                                                                                        \
                                                                                                                       \
        for (uint32_t j = 0; j < n_y; j++, y += stride)                                                                \
            for (uint32_t i = 0; i < n; i++) x[i] = fmaf(s[j], VALUE, x[i]);                                           \
    }                                                                                                                  \
                                                                                                                       \
    static void name##_two_dots4(const float *const *x, const void *y, uint32_t stride, uint32_t n, float *out)        \
    {                                                                                                                  \
        for (uint32_t k = 0; k < 2; k++) name##_dots4(x[k], y, stride, n, out + 4 * k);                                \
    }                                                                                                                  \
                                                                                                                       \
    static void name##_two_add_rows(float *const *x, const void *y, uint32_t stride, const float *const *s,            \
                                    uint32_t n_y, uint32_t n)                                                          \
    {                                                                                                                  \
        for (uint32_t k = 0; k < 2; k++) name##_add_rows(x[k], y, stride, s[k], n_y, n);                               \
    }

STORED_KERNELS(f32, float, y[i])
STORED_KERNELS(f16, uint16_t, half_to_float(y[i]))
STORED_KERNELS(bf16, uint16_t, bf16_to_float(y[i]))

static void add(float *x, const float *delta, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] += delta[i];
}

static void scale(const float *x, float s, const float *w, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) out[i] = w ? (x[i] * s) * w[i] : x[i] * s;
}

static void add_scaled(float *x, const float *delta, float s, const float *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = fmaf(delta[i] * s, w[i], x[i]);
}

static void glu(enum activation act, const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) out[i] = (act == ACT_SILU ? cpu_silu(gate[i]) : cpu_gelu(gate[i])) * up[i];
}

static void softcap(float *x, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = cap * cpu_tanh(x[i] / cap);
}

static float best_of(const float *x, uint32_t n)
{
    float best = -INFINITY;

    for (uint32_t i = 0; i < n; i++) {
        if (!(x[i] < INFINITY)) return INFINITY;
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

static void rope(enum rope_layout layout, float *x, const float *c, const float *s, uint32_t n_rot)
{
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        float *a = layout == ROPE_INTERLEAVED ? x + 2 * i : x + i;
        float *b = layout == ROPE_INTERLEAVED ? a + 1 : a + n_rot / 2;
        float a0 = *a, b0 = *b;

        *a = fmaf(a0, c[i], -(b0 * s[i]));
        *b = fmaf(a0, s[i], b0 * c[i]);
    }
}

static void store_block(enum dtype t, const float *x, uint8_t *block)
{
    float lowest = x[0], highest = x[0], scale;
    uint32_t bits = 0;
    int q[KV_QUANT_BLOCK];

    for (uint32_t i = 0; i < KV_QUANT_BLOCK; i++) {
        uint32_t b = cpu_float_bits(x[i]) & 0x7fffffff;

        bits = b > bits ? b : bits;
        lowest = cpu_min(lowest, x[i]);
        highest = cpu_max(highest, x[i]);
    }
    scale = kv_quant_scale(t, lowest, highest, bits, block);
    for (uint32_t i = 0; i < KV_QUANT_BLOCK; i++) /* a scale of 0 also stands for what cannot be converted */
        q[i] = scale == 0 ? 0 : (int)fmaxf(-128, fminf(127, nearbyintf(x[i] * scale)));
    for (uint32_t i = 0; i < KV_QUANT_BLOCK; i++) {
        if (t == DTYPE_Q8_0) {
            block[2 + i] = (uint8_t)q[i];
        } else {
            q[i] = q[i] < -8 ? 0 : q[i] > 7 ? 15 : q[i] + 8;
            if (i < 16)
                block[2 + i] = (uint8_t)q[i];
            else
                block[2 + i - 16] |= (uint8_t)(q[i] << 4);
        }
    }
}

static void store_kv(enum dtype dtype, const float *x, void *dst, uint32_t n)
{
    switch (dtype) {
    case DTYPE_F16:
        for (uint32_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = float_to_half(x[i]);
        break;
    case DTYPE_BF16:
        for (uint32_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = float_to_bf16(x[i]);
        break;
    case DTYPE_F32:
        memcpy(dst, x, (size_t)n * sizeof(*x));
        break;
    case DTYPE_F8_E4M3:
        kv_store_e4m3(x, dst, n);
        break;
    case DTYPE_Q8_0:
    case DTYPE_Q4_0:
        for (uint32_t i = 0; i < n; i += KV_QUANT_BLOCK)
            store_block(dtype, x + i, (uint8_t *)dst + kv_type_row_bytes(dtype, i));
        break;
    default:
        assert(!"KV type");
    }
}

const struct cpu_row_kernels cpu_rows_ref = {{f32_dot, f32_dots4, f32_add_rows, f32_two_dots4, f32_two_add_rows},
                                             {f16_dot, f16_dots4, f16_add_rows, f16_two_dots4, f16_two_add_rows},
                                             {bf16_dot, bf16_dots4, bf16_add_rows, bf16_two_dots4, bf16_two_add_rows},
                                             sum_squares,
                                             layer_norm,
                                             add,
                                             scale,
                                             add_scaled,
                                             glu,
                                             softcap,
                                             best_of,
                                             rope,
                                             store_kv};
