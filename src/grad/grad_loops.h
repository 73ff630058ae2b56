/* grad/grad_loops.h - the body of grad_ref.c, grad_avx2.c, grad_avx512.c, grad_neon.c: each defines v16, what is asked of it
 * below, and GEMM_ROWS and GEMM_VECTORS, the rows and vectors of a register tile, before.
 *
 * A register tile of c is held over all k: one load of b serves GEMM_ROWS rows. Bound: arithmetic, where b's columns of a tile
 * lie together and fit the L1 cache (compute.c).
 */
#pragma once
#include <math.h>
#include <string.h>
#include "backend/cpu/cpu_math.h"
#include "backend/cpu/vector_code.h"
#include "grad/grad_kernels.h"
#include "tensor/block_floats.h"

/* The last vector of a row may have n columns only. */
ALWAYS_INLINE v16 get(const float *p, bool full, uint32_t n)
{
    return full ? v16_load(p) : v16_load_n(p, n);
}
ALWAYS_INLINE void put(float *p, v16 v, bool full, uint32_t n)
{
    if (full)
        v16_store(p, v);
    else
        v16_store_n(p, v, n);
}

/* rows x (vectors * 16) of c; where not full, one vector of n columns. */
ALWAYS_INLINE void gemm_tile(const struct gemm *g, uint32_t m, uint32_t at, const uint32_t rows, const uint32_t vectors,
                             const bool full, uint32_t n)
{
    const float *a = g->a + m * g->a_m, *b = g->b + at;
    float *to = g->c + m * g->c_m + at;
    v16 c[GEMM_ROWS][GEMM_VECTORS];

    for (uint32_t r = 0; r < rows; r++) /* of the next tile, while this one computes */
        for (uint32_t v = 0; v < vectors; v++) __builtin_prefetch(to + (rows + r) * g->c_m + 16 * v, 1, 3);
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (uint32_t v = 0; v < vectors; v++) c[r][v] = g->add ? get(to + r * g->c_m + 16 * v, full, n) : v16_set(0);
    for (uint32_t k = 0; k < g->k; k++, a += g->a_k, b += g->b_k) {
        v16 y[GEMM_VECTORS];

#pragma GCC unroll 2
        for (uint32_t v = 0; v < vectors; v++) y[v] = get(b + 16 * v, full, n);
#pragma GCC unroll 12
        for (uint32_t r = 0; r < rows; r++) {
            const v16 x = v16_set(a[r * g->a_m]);

#pragma GCC unroll 2
            for (uint32_t v = 0; v < vectors; v++) c[r][v] = v16_fma(x, y[v], c[r][v]);
        }
    }
#pragma GCC unroll 12
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (uint32_t v = 0; v < vectors; v++) put(to + r * g->c_m + 16 * v, c[r][v], full, n);
}

/* All rows of some columns. */
ALWAYS_INLINE void gemm_strip(const struct gemm *g, uint32_t at, const uint32_t vectors, const bool full, uint32_t n)
{
    uint32_t m = 0;

    for (; m + GEMM_ROWS <= g->m; m += GEMM_ROWS) gemm_tile(g, m, at, GEMM_ROWS, vectors, full, n);
    for (; GEMM_ROWS > 4 && m + 4 <= g->m; m += 4) gemm_tile(g, m, at, 4, vectors, full, n);
    for (; m < g->m; m++) gemm_tile(g, m, at, 1, vectors, full, n);
}

static void gemm(const struct gemm *g)
{
    uint32_t n = 0;

    for (; n + 16 * GEMM_VECTORS <= g->n; n += 16 * GEMM_VECTORS) gemm_strip(g, n, GEMM_VECTORS, true, 16);
    for (; GEMM_VECTORS > 1 && n + 16 <= g->n; n += 16) gemm_strip(g, n, 1, true, 16);
    if (n < g->n) gemm_strip(g, n, 1, false, g->n - n);
}

#define GEMM_COLUMNS (16 * GEMM_VECTORS)

/* Columns at .. at + 15 of the panel's row that begins at `to`. */
ALWAYS_INLINE float *columns_at(const struct gemm_open *o, float *to, uint32_t at)
{
    return to + (uint64_t)(at / GEMM_COLUMNS) * o->panel_k * GEMM_COLUMNS + at % GEMM_COLUMNS;
}

/* Columns at of the panel's row that begins at `to`: n floats. */
ALWAYS_INLINE void put_columns(const struct gemm_open *o, float *to, uint32_t at, const void *from, const uint32_t n)
{
    for (uint32_t c = 0; c < n; c += 16)
        memcpy(columns_at(o, to, at + c), (const uint8_t *)from + c * sizeof(*to), 16 * sizeof(*to));
}

/* A block of 32 weights as q4_0_to_float and the others have it, low and high: its halves. */
typedef void open_block_fn(const uint8_t *src, float *low, float *high);

#ifdef V16_PAIRS
static inline void open_q4_0(const uint8_t *src, float *low, float *high)
{
    const v16 d = v16_set(half_at(src));
    const b16 q = b16_load(src + 2);

    v16_store(low, v16_mul(d, v16_from_int8(b16_low_nibbles(q))));
    v16_store(high, v16_mul(d, v16_from_int8(b16_high_nibbles(q))));
}
static inline void open_q4_1(const uint8_t *src, float *low, float *high)
{
    const v16 d = v16_set(half_at(src)), m = v16_set(half_at(src + 2)), eight = v16_set(8);
    const b16 q = b16_load(src + 4);

    v16_store(low, v16_add(v16_mul(d, v16_add(v16_from_int8(b16_low_nibbles(q)), eight)), m));
    v16_store(high, v16_add(v16_mul(d, v16_add(v16_from_int8(b16_high_nibbles(q)), eight)), m));
}
static inline void open_q8_0(const uint8_t *src, float *low, float *high)
{
    const v16 d = v16_set(half_at(src));

    v16_store(low, v16_mul(d, v16_from_int8(b16_load(src + 2))));
    v16_store(high, v16_mul(d, v16_from_int8(b16_load(src + 18))));
}
#else
#define OPEN_BLOCK(name)                                                                                               \
    static void open_##name(const uint8_t *src, float *low, float *high)                                               \
    {                                                                                                                  \
        float block[32];                                                                                               \
                                                                                                                       \
        name##_to_float(src, block, 1);                                                                                \
        memcpy(low, block, 16 * sizeof(*low));                                                                         \
        memcpy(high, block + 16, 16 * sizeof(*high));                                                                  \
    }
OPEN_BLOCK(q4_0)
OPEN_BLOCK(q4_1)
OPEN_BLOCK(q8_0)
#endif

ALWAYS_INLINE void open_blocks(const struct gemm_open *o, const uint32_t bytes, open_block_fn *open)
{
    const uint8_t *row = o->from;

    for (uint32_t k = 0; k < o->k; k++, row += o->row_bytes) {
        float *to = o->panel + (uint64_t)k * GEMM_COLUMNS;

        for (uint32_t c = 0; c < o->n; c += 32)
            open(row + c / 32 * bytes, columns_at(o, to, c), columns_at(o, to, c + 16));
    }
}

static void gemm_open(const struct gemm_open *o)
{
    float row[GEMM_PANEL_MAX] = {0};

    switch (o->dtype) {
    case DTYPE_Q4_0:
        open_blocks(o, 18, open_q4_0);
        return;
    case DTYPE_Q4_1:
        open_blocks(o, 20, open_q4_1);
        return;
    case DTYPE_Q8_0:
        open_blocks(o, 34, open_q8_0);
        return;
    default:
        for (uint32_t k = 0; k < o->k; k++) {
            const uint8_t *from = o->from + k * o->row_bytes;
            const bool is_there = o->dtype == DTYPE_F32 && o->n % 16 == 0;

            if (!is_there) dtype_to_float(o->dtype, from, row, o->n);
            put_columns(o, o->panel + (uint64_t)k * GEMM_COLUMNS, 0, is_there ? from : (const void *)row, o->n);
        }
    }
}

/* To nearest even, in the upper half. Of a NaN whose low bits are set alone an infinity, or of one near the end 0: weights are
 * numbers. */
ALWAYS_INLINE uint32_t bf16_bits(float x)
{
    const uint32_t u = cpu_float_bits(x);

    return (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
}

static void split_pair(const float *a, const float *b, uint32_t *high, uint32_t *low)
{
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t x = bf16_bits(a[i]), y = bf16_bits(b[i]);

        high[i] = x >> 16 | y;
        low[i] = bf16_bits(a[i] - cpu_bits_float(x)) >> 16 | bf16_bits(b[i] - cpu_bits_float(y));
    }
}

/* d act(x) / dx, and act(x). silu' = s (1 + x (1 - s)), s the sigmoid. gelu(x) = x/2 (1 + tanh u), u = C x (1 + c x^2). */
static inline float act_back(enum activation act, float x, float *value)
{
    if (act == ACT_SILU) {
        float s = 1.0f / (1.0f + cpu_exp(0.0f - x));

        *value = x * s;
        return s * fmaf(x, 1.0f - s, 1.0f);
    } else {
        float t = cpu_tanh((x * GELU_C) * fmaf(x * GELU_CUBE, x, 1.0f));
        float du = GELU_C * fmaf(3.0f * GELU_CUBE * x, x, 1.0f);

        *value = (0.5f * x) * (1.0f + t);
        return fmaf((0.5f * x) * fmaf(-t, t, 1.0f), du, 0.5f * (1.0f + t));
    }
}

ALWAYS_INLINE void glu_back_of(const enum activation act, const float *gate, const float *up, const float *dout,
                               float *dgate, float *dup, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float value, slope = act_back(act, gate[i], &value), u = up[i], d = dout[i];

        dgate[i] = d * u * slope;
        dup[i] = d * value;
    }
}

static void glu_back(enum activation act, const float *gate, const float *up, const float *dout, float *dgate,
                     float *dup, uint32_t n)
{
    if (act == ACT_SILU)
        glu_back_of(ACT_SILU, gate, up, dout, dgate, dup, n);
    else
        glu_back_of(act, gate, up, dout, dgate, dup, n);
}

/* The sum of n floats in double: LANES sums side by side, added up in order. */
#define LANES 16u
ALWAYS_INLINE double sum_of(const float *x, uint32_t n)
{
    double lanes[LANES] = {0}, sum = 0;
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) lanes[k] += (double)x[i + k];
    for (uint32_t k = 0; i + k < n; k++) lanes[k] += (double)x[i + k];
    for (uint32_t k = 0; k < LANES; k++) sum += lanes[k];
    return sum;
}

/* s (g - x s^2 mean(g x)), g = dy w, s = 1 / sqrt(mean(x^2) + eps). */
static void norm_back(const float *x, const float *w, const float *dy, float *dx, uint32_t n, float eps)
{
    double squares[LANES] = {0}, dots[LANES] = {0}, square = 0, dot = 0, s;
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) {
            squares[k] += (double)x[i + k] * (double)x[i + k];
            dots[k] += (double)(dy[i + k] * w[i + k]) * (double)x[i + k];
        }
    for (uint32_t k = 0; i + k < n; k++) {
        squares[k] += (double)x[i + k] * (double)x[i + k];
        dots[k] += (double)(dy[i + k] * w[i + k]) * (double)x[i + k];
    }
    for (uint32_t k = 0; k < LANES; k++) {
        square += squares[k];
        dot += dots[k];
    }
    s = 1.0 / sqrt(square / n + (double)eps);
    dot = dot / n * s * s;
    for (i = 0; i < n; i++) dx[i] += (float)(s * ((double)(dy[i] * w[i]) - (double)x[i] * dot));
}

ALWAYS_INLINE float most_of(const float *x, uint32_t n)
{
    float lanes[LANES], most = -INFINITY;
    uint32_t i = 0;

    for (uint32_t k = 0; k < LANES; k++) lanes[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    for (uint32_t k = 0; k < LANES; k++) most = lanes[k] > most ? lanes[k] : most;
    return most;
}

static void softmax(float *x, float *t, uint32_t n, uint32_t lo, uint32_t hi, struct grad_softcap cap)
{
    float most;
    double sum;

    for (uint32_t i = lo; i < hi; i++) x[i] *= cap.scale;
    for (uint32_t i = lo; cap.cap > 0 && i < hi; i++) {
        float y = cpu_tanh(x[i] / cap.cap);

        t[i] = fmaf(-y, y, 1.0f);
        x[i] = cap.cap * y;
    }
    most = most_of(x + lo, hi - lo);
    for (uint32_t i = lo; i < hi; i++) x[i] = cpu_exp(x[i] - most);
    sum = sum_of(x + lo, hi - lo);
    for (uint32_t i = lo; i < hi; i++) x[i] = (float)((double)x[i] / sum);
    for (uint32_t i = 0; i < lo; i++) x[i] = 0;
    for (uint32_t i = hi; i < n; i++) x[i] = 0;
}

static void softmax_back(const float *p, const float *t, float *dp, uint32_t n, float scale)
{
    double lanes[LANES] = {0}, sum = 0;
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) lanes[k] += (double)(p[i + k] * dp[i + k]);
    for (uint32_t k = 0; i + k < n; k++) lanes[k] += (double)(p[i + k] * dp[i + k]);
    for (uint32_t k = 0; k < LANES; k++) sum += lanes[k];
    for (i = 0; i < n; i++) dp[i] = p[i] * (dp[i] - (float)sum) * scale;
    for (i = 0; t && i < n; i++)
        if (p[i] != 0) dp[i] *= t[i];
}

static double cross_entropy(float *x, uint32_t n, uint32_t target, float weight)
{
    const float at = x[target], most = most_of(x, n);
    double sum, loss;

    for (uint32_t i = 0; i < n; i++) x[i] = cpu_exp(x[i] - most);
    sum = sum_of(x, n);
    loss = log(sum) - (double)(at - most);
    for (uint32_t i = 0; i < n; i++) x[i] = (float)((double)x[i] / sum) * weight;
    x[target] -= weight;
    return loss;
}

#define GRAD_KERNELS(name)                                                                                             \
    {                                                                                                                  \
        name, GEMM_COLUMNS, gemm, gemm_open, split_pair, norm_back, glu_back, softmax, softmax_back, cross_entropy     \
    }
