/* backend/cpu/rows/rows_v16.h - the row kernels in terms of v16, compiled once per instruction set by rows_avx2.c,
 * rows_avx512.c and rows_neon.c, which include v16_X.h before and build their table from these functions. Same
 * operations, same order as rows_ref.c.
 */
#pragma once
#include <assert.h>
#include <math.h>
#include <string.h>
#include "backend/cpu/cpu_math.h"
#include "backend/cpu/rows/kv_quant.h"
#include "backend/cpu/math_v16.h"
#include "backend/cpu/rows/row_kernels.h"
#include "backend/cpu/vector_code.h"

static float v16_sum_squares(const float *x, uint32_t n)
{
    v16 sum = v16_set(0);
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);

        sum = v16_fma(v, v, sum);
    }
    if (i < n) { /* zeros change no sum of squares */
        v16 v = v16_load_n(x + i, n - i);

        sum = v16_fma(v, v, sum);
    }
    return v16_tree(sum);
}

static void v16_layer_norm(const float *x, const float *w, const float *b, float eps, float *out, uint32_t n)
{
    const uint32_t whole = n / 16 * 16;
    v16 sum = v16_set(0), mean, s;

    for (uint32_t i = 0; i < whole; i += 16) sum = v16_add(sum, v16_load(x + i));
    if (whole < n) sum = v16_add(sum, v16_load_n(x + whole, n - whole)); /* nor zeros this one: no part is -0 */
    mean = v16_set(v16_tree(sum) / (float)n);
    for (uint32_t i = 0; i < whole; i += 16) v16_store(out + i, v16_sub(v16_load(x + i), mean));
    if (whole < n) v16_store_n(out + whole, v16_sub(v16_load_n(x + whole, n - whole), mean), n - whole);
    s = v16_set(1.0f / sqrtf(v16_sum_squares(out, n) / (float)n + eps));
    for (uint32_t i = 0; i < whole; i += 16)
        v16_store(out + i, v16_fma(v16_mul(v16_load(out + i), s), v16_load(w + i), v16_load(b + i)));
    for (uint32_t i = whole; i < n; i += 16) {
        const v16 d = v16_mul(v16_load_n(out + i, n - i), s);

        v16_store_n(out + i, v16_fma(d, v16_load_n(w + i, n - i), v16_load_n(b + i, n - i)), n - i);
    }
}

/* n < 16 values; the others are 0. */
static v16 load_half_n(const uint16_t *p, uint32_t n)
{
    uint16_t all[16] = {0};

    memcpy(all, p, n * sizeof(*p));
    return v16_load_half(all);
}

static v16 load_bf16_n(const uint16_t *p, uint32_t n)
{
    uint16_t all[16] = {0};

    memcpy(all, p, n * sizeof(*p));
    return v16_load_bf16(all);
}

/* The functions of struct cpu_stored_kernels for one type. dots4: four sums at once, for one alone waits for itself.
 * add_rows: four columns of 16 stay in registers for all rows; of two rows as many as V16_PAIRS. A sum of nothing is +0, and
 * stays what it is by +0. */
#define STORED_KERNELS(name, type, LOAD, LOAD_N)                                                                       \
    static float name##_dot(const float *x, const void *stored, uint32_t n)                                            \
    {                                                                                                                  \
        const type *y = stored;                                                                                        \
        v16 sum = v16_set(0);                                                                                          \
        uint32_t i = 0;                                                                                                \
                                                                                                                       \
        for (; i + 16 <= n; i += 16) sum = v16_fma(v16_load(x + i), LOAD(y + i), sum);                                 \
        if (i < n) sum = v16_keep(v16_fma(v16_load_n(x + i, n - i), LOAD_N(y + i, n - i), sum), 0, n - i, sum);        \
        return v16_tree(sum);                                                                                          \
    }                                                                                                                  \
                                                                                                                       \
    static void name##_dots4(const float *x, const void *stored, uint32_t stride, uint32_t n, float *out)              \
    {                                                                                                                  \
        const type *y = stored, *y1 = y + stride, *y2 = y1 + stride, *y3 = y2 + stride;                                \
        v16 s0 = v16_set(0), s1 = s0, s2 = s0, s3 = s0;                                                                \
        uint32_t i = 0;                                                                                                \
                                                                                                                       \
        for (; i + 16 <= n; i += 16) {                                                                                 \
            v16 v = v16_load(x + i);                                                                                   \
                                                                                                                       \
            s0 = v16_fma(v, LOAD(y + i), s0);                                                                          \
            s1 = v16_fma(v, LOAD(y1 + i), s1);                                                                         \
            s2 = v16_fma(v, LOAD(y2 + i), s2);                                                                         \
            s3 = v16_fma(v, LOAD(y3 + i), s3);                                                                         \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            v16 v = v16_load_n(x + i, n - i);                                                                          \
                                                                                                                       \
            s0 = v16_keep(v16_fma(v, LOAD_N(y + i, n - i), s0), 0, n - i, s0);                                         \
            s1 = v16_keep(v16_fma(v, LOAD_N(y1 + i, n - i), s1), 0, n - i, s1);                                        \
            s2 = v16_keep(v16_fma(v, LOAD_N(y2 + i, n - i), s2), 0, n - i, s2);                                        \
            s3 = v16_keep(v16_fma(v, LOAD_N(y3 + i, n - i), s3), 0, n - i, s3);                                        \
        }                                                                                                              \
        out[0] = v16_tree(s0);                                                                                         \
        out[1] = v16_tree(s1);                                                                                         \
        out[2] = v16_tree(s2);                                                                                         \
        out[3] = v16_tree(s3);                                                                                         \
    }                                                                                                                  \
                                                                                                                       \
    static void name##_add_rows(float *x, const void *stored, uint32_t stride, const float *s, uint32_t n_y,           \
                                uint32_t n)                                                                            \
    {                                                                                                                  \
        const type *y = stored;                                                                                        \
        uint32_t i = 0;                                                                                                \
                                                                                                                       \
        for (; i + 64 <= n; i += 64) {                                                                                 \
            v16 a = v16_load(x + i), b = v16_load(x + i + 16), c = v16_load(x + i + 32), d = v16_load(x + i + 48);     \
                                                                                                                       \
            for (uint32_t j = 0; j < n_y; j++) {                                                                       \
                const type *row = y + (uint64_t)j * stride + i;                                                        \
                const v16 t = v16_set(s[j]);                                                                           \
                                                                                                                       \
                a = v16_fma(t, LOAD(row), a);                                                                          \
                b = v16_fma(t, LOAD(row + 16), b);                                                                     \
                c = v16_fma(t, LOAD(row + 32), c);                                                                     \
                d = v16_fma(t, LOAD(row + 48), d);                                                                     \
            }                                                                                                          \
            v16_store(x + i, a);                                                                                       \
            v16_store(x + i + 16, b);                                                                                  \
            v16_store(x + i + 32, c);                                                                                  \
            v16_store(x + i + 48, d);                                                                                  \
        }                                                                                                              \
        for (; i + 16 <= n; i += 16) {                                                                                 \
            v16 a = v16_load(x + i);                                                                                   \
                                                                                                                       \
            for (uint32_t j = 0; j < n_y; j++) a = v16_fma(v16_set(s[j]), LOAD(y + (uint64_t)j * stride + i), a);      \
            v16_store(x + i, a);                                                                                       \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            v16 a = v16_load_n(x + i, n - i);                                                                          \
                                                                                                                       \
            for (uint32_t j = 0; j < n_y; j++)                                                                         \
                a = v16_fma(v16_set(s[j]), LOAD_N(y + (uint64_t)j * stride + i, n - i), a);                            \
            v16_store_n(x + i, a, n - i);                                                                              \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    ALWAYS_INLINE void name##_two_dots(const float *const *xs, const type *y, uint32_t stride, uint32_t n,             \
                                       const uint32_t n_y, float *out)                                                 \
    {                                                                                                                  \
        const float *x = xs[0], *z = xs[1];                                                                            \
        v16 s[4], t[4];                                                                                                \
        uint32_t i = 0;                                                                                                \
                                                                                                                       \
        for (uint32_t j = 0; j < n_y; j++) s[j] = t[j] = v16_set(0);                                                   \
        for (; i + 16 <= n; i += 16) {                                                                                 \
            const v16 v = v16_load(x + i), w = v16_load(z + i);                                                        \
                                                                                                                       \
            UNROLL(4)                                                                                                  \
            for (uint32_t j = 0; j < n_y; j++) {                                                                       \
                const v16 a = LOAD(y + j * stride + i);                                                                \
                                                                                                                       \
                __builtin_prefetch(y + (4 + j) * stride + i, 0, 2);                                                    \
                s[j] = v16_fma(v, a, s[j]);                                                                            \
                t[j] = v16_fma(w, a, t[j]);                                                                            \
            }                                                                                                          \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            const v16 v = v16_load_n(x + i, n - i), w = v16_load_n(z + i, n - i);                                      \
                                                                                                                       \
            for (uint32_t j = 0; j < n_y; j++) {                                                                       \
                const v16 a = LOAD_N(y + j * stride + i, n - i);                                                       \
                                                                                                                       \
                s[j] = v16_keep(v16_fma(v, a, s[j]), 0, n - i, s[j]);                                                  \
                t[j] = v16_keep(v16_fma(w, a, t[j]), 0, n - i, t[j]);                                                  \
            }                                                                                                          \
        }                                                                                                              \
        for (uint32_t j = 0; j < n_y; j++) {                                                                           \
            out[j] = v16_tree(s[j]);                                                                                   \
            out[4 + j] = v16_tree(t[j]);                                                                               \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    static void name##_two_dots4(const float *const *xs, const void *stored, uint32_t stride, uint32_t n, float *out)  \
    {                                                                                                                  \
        for (uint32_t j = 0; j < 4; j += V16_PAIRS)                                                                    \
            name##_two_dots(xs, (const type *)stored + j * stride, stride, n, V16_PAIRS, out + j);                     \
    }                                                                                                                  \
    static void name##_two_add_rows(float *const *xs, const void *stored, uint32_t stride, const float *const *ss,     \
                                    uint32_t n_y, uint32_t n)                                                          \
    {                                                                                                                  \
        const type *y = stored;                                                                                        \
        const float *s = ss[0], *t = ss[1];                                                                            \
        float *x = xs[0], *z = xs[1];                                                                                  \
        uint32_t i = 0;                                                                                                \
                                                                                                                       \
        for (; i + 16 * V16_PAIRS <= n; i += 16 * V16_PAIRS) {                                                         \
            v16 a[V16_PAIRS], b[V16_PAIRS];                                                                            \
                                                                                                                       \
            UNROLL(4)                                                                                                  \
            for (uint32_t k = 0; k < V16_PAIRS; k++) {                                                                 \
                a[k] = v16_load(x + i + 16 * k);                                                                       \
                b[k] = v16_load(z + i + 16 * k);                                                                       \
            }                                                                                                          \
            for (uint32_t j = 0; j < n_y; j++) {                                                                       \
                const type *row = y + (uint64_t)j * stride + i;                                                        \
                const v16 p = v16_set(s[j]), q = v16_set(t[j]);                                                        \
                                                                                                                       \
                for (uint32_t k = 0; k < 16 * V16_PAIRS; k += 64 / sizeof(type))                                       \
                    __builtin_prefetch(row + 128 + k, 0, 2);                                                           \
                UNROLL(4)                                                                                              \
                for (uint32_t k = 0; k < V16_PAIRS; k++) {                                                             \
                    const v16 v = LOAD(row + 16 * k);                                                                  \
                                                                                                                       \
                    a[k] = v16_fma(p, v, a[k]);                                                                        \
                    b[k] = v16_fma(q, v, b[k]);                                                                        \
                }                                                                                                      \
            }                                                                                                          \
            UNROLL(4)                                                                                                  \
            for (uint32_t k = 0; k < V16_PAIRS; k++) {                                                                 \
                v16_store(x + i + 16 * k, a[k]);                                                                       \
                v16_store(z + i + 16 * k, b[k]);                                                                       \
            }                                                                                                          \
        }                                                                                                              \
        if (i == n) return;                                                                                            \
        name##_add_rows(x + i, y + i, stride, s, n_y, n - i);                                                          \
        name##_add_rows(z + i, y + i, stride, t, n_y, n - i);                                                          \
    }

STORED_KERNELS(v16_f32, float, v16_load, v16_load_n)
STORED_KERNELS(v16_f16, uint16_t, v16_load_half, load_half_n)
STORED_KERNELS(v16_bf16, uint16_t, v16_load_bf16, load_bf16_n)

static void v16_add_row(float *x, const float *delta, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) v16_store(x + i, v16_add(v16_load(x + i), v16_load(delta + i)));
    if (i < n) v16_store_n(x + i, v16_add(v16_load_n(x + i, n - i), v16_load_n(delta + i, n - i)), n - i);
}

static void v16_scale_row(const float *x, float s, const float *w, float *out, uint32_t n)
{
    const v16 factor = v16_set(s);
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        v16 v = v16_mul(v16_load(x + i), factor);

        v16_store(out + i, w ? v16_mul(v, v16_load(w + i)) : v);
    }
    if (i < n) {
        v16 v = v16_mul(v16_load_n(x + i, n - i), factor);

        v16_store_n(out + i, w ? v16_mul(v, v16_load_n(w + i, n - i)) : v, n - i);
    }
}

static void v16_add_scaled_row(float *x, const float *delta, float s, const float *w, uint32_t n)
{
    const v16 factor = v16_set(s);
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16)
        v16_store(x + i, v16_fma(v16_mul(v16_load(delta + i), factor), v16_load(w + i), v16_load(x + i)));
    if (i < n) {
        v16 v = v16_mul(v16_load_n(delta + i, n - i), factor);

        v16_store_n(x + i, v16_fma(v, v16_load_n(w + i, n - i), v16_load_n(x + i, n - i)), n - i);
    }
}

static inline v16 v16_act(enum activation act, v16 x)
{
    v16 u;

    if (act == ACT_SILU) return v16_div(x, v16_add(v16_set(1), v16_exp(v16_sub(v16_set(0), x))));
    u = v16_mul(v16_mul(x, v16_set(GELU_C)), v16_fma(v16_mul(x, v16_set(GELU_CUBE)), x, v16_set(1)));
    return v16_mul(v16_mul(v16_set(0.5f), x), v16_add(v16_set(1), v16_tanh(u)));
}

static void v16_glu_row(enum activation act, const float *gate, const float *up, float *out, uint32_t n)
{
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) v16_store(out + i, v16_mul(v16_act(act, v16_load(gate + i)), v16_load(up + i)));
    if (i < n)
        v16_store_n(out + i, v16_mul(v16_act(act, v16_load_n(gate + i, n - i)), v16_load_n(up + i, n - i)), n - i);
}

static void v16_softcap_row(float *x, float cap, uint32_t n)
{
    const v16 c = v16_set(cap);
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) v16_store(x + i, v16_mul(c, v16_tanh(v16_div(v16_load(x + i), c))));
    if (i < n) v16_store_n(x + i, v16_mul(c, v16_tanh(v16_div(v16_load_n(x + i, n - i), c))), n - i);
}

static float v16_best(const float *x, uint32_t n)
{
    const v16 most = v16_set(INFINITY);
    v16 best = v16_set(-INFINITY);
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);

        best = v16_max(v16_if_less(v, most, v, most), best); /* NaN is not less */
    }
    if (i < n) {
        v16 v = v16_keep(v16_load_n(x + i, n - i), 0, n - i, v16_set(-INFINITY));

        best = v16_max(v16_if_less(v, most, v, most), best);
    }
    return v16_highest(best);
}

static inline void rotate(float *a, float *b, float c, float s)
{
    float a0 = *a, b0 = *b;

    *a = fmaf(a0, c, -(b0 * s));
    *b = fmaf(a0, s, b0 * c);
}

static void v16_rope_row(enum rope_layout layout, float *x, const float *c, const float *s, uint32_t n_rot)
{
    uint32_t half = n_rot / 2, i = 0;

    if (layout == ROPE_INTERLEAVED) {
        for (; i < half; i++) rotate(x + 2 * i, x + 2 * i + 1, c[i], s[i]);
        return;
    }
    for (; i + 16 <= half; i += 16) {
        v16 a = v16_load(x + i), b = v16_load(x + half + i), cosine = v16_load(c + i), sine = v16_load(s + i);

        v16_store(x + i, v16_fmsub(a, cosine, v16_mul(b, sine)));
        v16_store(x + half + i, v16_fma(a, sine, v16_mul(b, cosine)));
    }
    for (; i < half; i++) rotate(x + i, x + half + i, c[i], s[i]);
}

static inline void v16_store_block(enum dtype t, const float *x, uint8_t *block)
{
    const v16 a = v16_load(x), b = v16_load(x + 16), zero = v16_set(0);
    float lowest = -v16_highest(v16_max(v16_sub(zero, a), v16_sub(zero, b))), highest = v16_highest(v16_max(a, b));
    float scale = kv_quant_scale(t, lowest, highest, v16_highest_bits(a, b), block);
    b16 low = b16_zero(), high = b16_zero();

    if (scale != 0) {
        low = v16_to_int8(v16_mul(a, v16_set(scale)));
        high = v16_to_int8(v16_mul(b, v16_set(scale)));
    }
    if (t == DTYPE_Q8_0) {
        b16_store(block + 2, low);
        b16_store(block + 18, high);
    } else {
        b16_store(block + 2, b16_join_nibbles(low, high));
    }
}

static void v16_store_kv_row(enum dtype dtype, const float *x, void *dst, uint32_t n)
{
    uint16_t *p = dst;
    uint32_t i = 0;

    switch (dtype) {
    case DTYPE_F16:
        for (; i + 16 <= n; i += 16) v16_store_half(p + i, v16_load(x + i));
        for (; i < n; i++) p[i] = float_to_half(x[i]);
        break;
    case DTYPE_BF16:
        for (; i + 16 <= n; i += 16) v16_store_bf16(p + i, v16_load(x + i));
        for (; i < n; i++) p[i] = float_to_bf16(x[i]);
        break;
    case DTYPE_F32:
        memcpy(dst, x, (size_t)n * sizeof(*x));
        break;
    case DTYPE_F8_E4M3:
        kv_store_e4m3(x, dst, n);
        break;
    case DTYPE_Q8_0:
    case DTYPE_Q4_0:
        for (; i < n; i += KV_QUANT_BLOCK) v16_store_block(dtype, x + i, (uint8_t *)dst + kv_type_row_bytes(dtype, i));
        break;
    default:
        assert(!"KV type");
    }
}

#ifndef TWO_DOTS4 /* an instruction set may have its own */
#define TWO_DOTS4(name) name##_two_dots4
#endif
#define STORED_V16(name)                                                                                               \
    {                                                                                                                  \
        name##_dot, name##_dots4, name##_add_rows, TWO_DOTS4(name), name##_two_add_rows                                \
    }
#define ROW_KERNELS_V16                                                                                                \
    {                                                                                                                  \
        STORED_V16(v16_f32), STORED_V16(v16_f16), STORED_V16(v16_bf16), v16_sum_squares, v16_layer_norm, v16_add_row,  \
            v16_scale_row, v16_add_scaled_row, v16_glu_row, v16_softcap_row, v16_best, v16_rope_row, v16_store_kv_row  \
    }
