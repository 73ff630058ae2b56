/* backend/cpu/rows/row_kernels.h - what one row of floats needs, per instruction set. Elementwise but for sums; n
 * is any length, nothing needs alignment, in and out may be equal where out is written elementwise.
 *
 * Bound: memory (L1/L2); a few operations per float. Scalar definitions: cpu_math.h, rows_ref.c.
 */
#pragma once
#include <stdint.h>
#include "backend/backend.h"

/* With rows y of one type, whose values are the same numbers as floats. stride: values from one row to the next. */
struct cpu_stored_kernels {
    float (*dot)(const float *x, const void *y, uint32_t n); /* partial i % 16 by fmaf, then tree16 */
    void (*dots4)(const float *x, const void *y, uint32_t stride, uint32_t n, float *out); /* of 4 rows of y */
    /* x = fmaf(s[j], y[j], x), for n_y rows of y one after the other */
    void (*add_rows)(float *x, const void *y, uint32_t stride, const float *s, uint32_t n_y, uint32_t n);
    /* Both for two x, for which y is read and widened once: out[4 k + j] of x k and row j; s[k] [n_y] of x k. */
    void (*two_dots4)(const float *const *x, const void *y, uint32_t stride, uint32_t n, float *out);
    void (*two_add_rows)(float *const *x, const void *y, uint32_t stride, const float *const *s, uint32_t n_y,
                         uint32_t n);
};

struct cpu_row_kernels {
    struct cpu_stored_kernels f32, f16, bf16;
    float (*sum_squares)(const float *x, uint32_t n); /* partial i % 16 by fmaf, then tree16 */
    /* d = x - mean, mean: partial i % 16 by +, then tree16, over n; out = fmaf(d * s, w, b), s: 1 / sqrt of d's mean square + eps */
    void (*layer_norm)(const float *x, const float *w, const float *b, float eps, float *out, uint32_t n);
    void (*add)(float *x, const float *delta, uint32_t n); /* x += delta */
    /* out = (x * s) * w, w [n] or NULL (1) */
    void (*scale)(const float *x, float s, const float *w, float *out, uint32_t n);
    void (*add_scaled)(float *x, const float *delta, float s, const float *w,
                       uint32_t n); /* x = fmaf(delta * s, w, x) */
    void (*glu)(enum activation act, const float *gate, const float *up, float *out, uint32_t n);
    void (*softcap)(float *x, float cap, uint32_t n); /* x = cap * tanh(x / cap) */
    float (*best)(const float *x, uint32_t n);        /* the largest; +inf where one is NaN or +inf */
    /* Turns the first n_rot values: pair i (layout) by the angle with cosine c[i] and sine s[i], i < n_rot / 2:
     * a' = fmaf(a, c, -(b * s)), b' = fmaf(a, s, b * c) */
    void (*rope)(enum rope_layout layout, float *x, const float *c, const float *s, uint32_t n_rot);
    /* n floats (whole blocks) to the KV type, round to nearest even; kv_quant.h */
    void (*store_kv)(enum dtype dtype, const float *x, void *dst, uint32_t n);
};

extern const struct cpu_row_kernels cpu_rows_ref, cpu_rows_avx2, cpu_rows_avx512, cpu_rows_neon;
