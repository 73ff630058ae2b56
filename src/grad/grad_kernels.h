/* grad/grad_kernels.h - the inner loops of gradients, per instruction set.
 *
 * Every variant gives the reference's bits: sums over k are fma, one after the other, each output by itself; columns are what is
 * computed side by side. What is not a product is plain code that every variant compiles (grad_loops.h).
 *
 * Thread  any: no state.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "backend/backend.h"

/* c[m, n] (+)= sum over k of a[m, k] * b[k, n]. Rows of b and c are contiguous; a is read at m * a_m + k * a_k. */
struct gemm {
    uint32_t m, n, k;
    const float *a;
    uint64_t a_m, a_k;
    const float *b;
    uint64_t b_k;
    float *c;
    uint64_t c_m;
    bool add; /* to what is in c; else c begins with 0 */
};

/* k rows of a matrix, n columns of each, as floats: [strips of `columns`][panel_k, columns]. n is blocks of the type, and a
 * multiple of 16 or all that there are. */
#define GEMM_PANEL_MAX 768u /* columns */
struct gemm_open {
    enum dtype dtype;
    const uint8_t *from; /* the first block; unaligned is fine */
    uint64_t row_bytes;
    uint32_t k, n, panel_k;
    float *panel;
};

/* Rows of scores become probabilities p and, where dp is what they get back, dp becomes the gradient of the scores. */
struct grad_softcap {
    float scale, cap; /* score = cap * tanh(scale * dot / cap); cap 0: scale * dot */
};

struct grad_kernels {
    const char *name;
    uint32_t columns; /* that gemm computes at a time: b is best where as many lie together */
    void (*gemm)(const struct gemm *g);
    void (*open)(const struct gemm_open *o);
    /* 16 columns of two rows in two bf16 parts each: bf16(x) and bf16 of the rest, a in the low half of a word. */
    void (*split_pair)(const float *a, const float *b, uint32_t *high, uint32_t *low);
    /* dx += of rmsnorm(x) * w, n wide. */
    void (*norm_back)(const float *x, const float *w, const float *dy, float *dx, uint32_t n, float eps);
    /* d gate, d up of act(gate) * up; they may be gate and up themselves. */
    void (*glu_back)(enum activation act, const float *gate, const float *up, const float *dout, float *dgate,
                     float *dup, uint32_t n);
    /* x[lo .. hi) dots to probabilities, all else 0; t: what the cap multiplies the gradient by, or NULL where cap is 0. */
    void (*softmax)(float *x, float *t, uint32_t n, uint32_t lo, uint32_t hi, struct grad_softcap cap);
    /* dp = p * (dp - sum p dp) * scale (* t) */
    void (*softmax_back)(const float *p, const float *t, float *dp, uint32_t n, float scale);
    /* -log softmax(x)[target]; x becomes weight * (softmax(x) - [target]). */
    double (*cross_entropy)(float *x, uint32_t n, uint32_t target, float weight);
};

extern const struct grad_kernels grad_kernels_ref, grad_kernels_avx2, grad_kernels_avx512, grad_kernels_neon;
