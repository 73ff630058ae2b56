/* backend/cpu/linear/linear_float_avx2.c - linear of float weights with AVX2 and FMA: an output is a lane, a tile two halves of 8.
 *
 * Sums          as linear_kernels.h: of the even and of the odd k by themselves. So they are computed one after the other, and
 *               each has all registers: 6 rows by 16 outputs are 12 sums, which two weights and six activations a step feed.
 * Many rows     DEPTH k of a tile are opened to floats, even and odd ones apart, and meet all rows by groups of 4 to 6 from
 *               the L1 cache, while the next DEPTH are asked for; sums of up to MANY_FLOAT rows wait in memory meanwhile. Groups are as equal as can be: fewer
 *               sums than 8 wait for each other.
 * Few rows      up to 4 share a tile, both sums of a half of it in registers: decode is bound by memory.
 * Measured      one thread of a Zen 3 (102 GFLOP/s as fma of registers alone), 252 rows, BF16, beside 69 % as few rows do it:
 *               1280 to 5120 89 %, 5120 to 1280 86 %, 1152 to 4304 87 %, 4304 to 1152 88 %.
 */
#include <assert.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/linear/linear_v256.h"

#define GROUP     6    /* rows of a register tile */
#define LEAST     12u  /* rows: any such number is groups of 4 to 6 */
#define DEPTH     512u /* k: half of them, 16 outputs wide, are half an L1 cache */
#define SUM_WIDTH 32   /* floats of a row: sums of even k, of odd ones */

/* 8 weights of k, outputs from half * 8. */
INLINE __m256 weights_at(const uint8_t *w, uint64_t k, uint32_t half, enum dtype type)
{
    const uint8_t *at = w + (k * 16 + half * 8) * (type == DTYPE_F32 ? 4 : 2);

    if (type == DTYPE_F32) return _mm256_load_ps((const float *)(const void *)at);
    if (type == DTYPE_F16) return halves_at(at);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(const void *)at)), 16));
}

/* ---- few rows ---- */

INLINE void float_half(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t half, enum dtype type,
                       __m256 (*acc)[2])
{
    const float *x = (const float *)t->x + row0 * t->x_stride;
    __m256 p[2][ROWS];
    uint32_t k = 0;

    for (int r = 0; r < n_rows; r++) p[0][r] = p[1][r] = _mm256_setzero_ps();
    for (; k + 1 < t->n_in; k += 2) {
        __m256 w0 = weights_at(t->w, k, half, type), w1 = weights_at(t->w, k + 1, half, type);

#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            const float *row = x + (uint64_t)r * t->x_stride + k;

            p[0][r] = _mm256_fmadd_ps(w0, _mm256_set1_ps(row[0]), p[0][r]);
            p[1][r] = _mm256_fmadd_ps(w1, _mm256_set1_ps(row[1]), p[1][r]);
        }
    }
    if (k < t->n_in)
        for (int r = 0; r < n_rows; r++)
            p[0][r] = _mm256_fmadd_ps(weights_at(t->w, k, half, type), _mm256_set1_ps(x[(uint64_t)r * t->x_stride + k]),
                                      p[0][r]);
    for (int r = 0; r < n_rows; r++) acc[r][half] = _mm256_add_ps(p[0][r], p[1][r]);
}

INLINE void few_rows(const struct linear_tile *t, uint32_t row0, int n_rows, enum dtype type)
{
    __m256 acc[ROWS][2];

    for (uint32_t half = 0; half < 2; half++) float_half(t, row0, n_rows, half, type, acc);
    store_rows(t, row0, n_rows, acc);
}

/* ---- many rows ---- */

/* Every second k from k0 on, n of them. */
INLINE void open_weights(const uint8_t *w, uint32_t k0, uint32_t n, enum dtype type, float *to)
{
    for (uint32_t i = 0; i < n; i++, to += 16) {
        _mm256_store_ps(to, weights_at(w, k0 + 2 * (uint64_t)i, 0, type));
        _mm256_store_ps(to + 8, weights_at(w, k0 + 2 * (uint64_t)i, 1, type));
    }
}

/* sums += w x over n k, every second of x. */
INLINE void group_of(int n_rows, const float *w, const float *x, uint64_t x_stride, uint32_t n, float *sums)
{
    const float *later = x + 3 * x_stride; /* addresses of six rows from two pointers */
    __m256 acc[GROUP][2];

#pragma GCC unroll 6
    for (int r = 0; r < n_rows; r++) {
        acc[r][0] = _mm256_load_ps(sums + r * SUM_WIDTH);
        acc[r][1] = _mm256_load_ps(sums + r * SUM_WIDTH + 8);
    }
    for (; n > 0; n--, w += 16, x += 2, later += 2) {
        const __m256 w0 = _mm256_load_ps(w), w1 = _mm256_load_ps(w + 8);

#pragma GCC unroll 6
        for (int r = 0; r < n_rows; r++) {
            const __m256 v = _mm256_broadcast_ss((r < 3 ? x : later) + (uint64_t)(r % 3) * x_stride);

            acc[r][0] = _mm256_fmadd_ps(w0, v, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(w1, v, acc[r][1]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < n_rows; r++) {
        _mm256_store_ps(sums + r * SUM_WIDTH, acc[r][0]);
        _mm256_store_ps(sums + r * SUM_WIDTH + 8, acc[r][1]);
    }
}

static void group_rows(uint32_t n_rows, const float *w, const float *x, uint64_t x_stride, uint32_t n, float *sums)
{
    switch (n_rows) {
    case 4:
        group_of(4, w, x, x_stride, n, sums);
        break;
    case 5:
        group_of(5, w, x, x_stride, n, sums);
        break;
    default:
        group_of(GROUP, w, x, x_stride, n, sums);
        break;
    }
}

/* w: k0 .. k0 + n - 1 of all rows, opened: even k, then odd ones. Meanwhile n_lines from `next` on are asked for. */
static void all_groups(const struct linear_tile *t, const float *w, uint32_t k0, uint32_t n, float *sums,
                       const uint8_t *next, uint32_t n_lines)
{
    const uint32_t n_even = n - n / 2;
    uint32_t n_groups = u32_ceil_div(t->n_rows, GROUP);

    for (uint32_t row = 0, size; row < t->n_rows; row += size, n_groups--) {
        const float *x = (const float *)t->x + row * t->x_stride + k0;

        size = u32_ceil_div(t->n_rows - row, n_groups);
        for (uint32_t left = n_lines - n_lines / n_groups; n_lines > left; n_lines--, next += 64)
            __builtin_prefetch(next, 0, 2);
        group_rows(size, w, x, t->x_stride, n_even, sums + row * SUM_WIDTH);
        group_rows(size, w + n_even * 16, x + 1, t->x_stride, n / 2, sums + row * SUM_WIDTH + 16);
    }
}

INLINE void many_rows(const struct linear_tile *t, enum dtype type)
{
    const uint32_t k_bytes = type == DTYPE_F32 ? 64 : 32;
    _Alignas(64) float w[DEPTH * 16], sums[LINEAR_MANY_FLOAT * SUM_WIDTH];
    __m256 acc[1][2];

    assert(t->n_rows >= LEAST && t->n_rows <= LINEAR_MANY_FLOAT);
    memset(sums, 0, t->n_rows * SUM_WIDTH * sizeof(*sums));
    for (uint32_t k = 0; k < t->n_in; k += DEPTH) {
        const uint32_t n = u32_min(DEPTH, t->n_in - k), n_even = n - n / 2;
        const uint32_t n_next = u32_min(DEPTH, k + n < t->n_in ? t->n_in - k - n : t->n_in); /* or the next tile's */

        open_weights(t->w, k, n_even, type, w);
        open_weights(t->w, k + 1, n / 2, type, w + n_even * 16);
        all_groups(t, w, k, n, sums, t->w + (uint64_t)(k + n) * k_bytes, n_next * k_bytes / 64);
    }
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const float *p = sums + r * SUM_WIDTH;

        for (uint32_t half = 0; half < 2; half++)
            acc[0][half] = _mm256_add_ps(_mm256_load_ps(p + half * 8), _mm256_load_ps(p + 16 + half * 8));
        store_rows(t, r, 1, acc);
    }
}

#define FLOAT_TILE(tag, type)                                                                                          \
    TILE(few_##tag, ROWS, few_rows, DTYPE_##type)                                                                      \
    static void tile_##tag(const struct linear_tile *t)                                                                \
    {                                                                                                                  \
        if (t->n_rows < LEAST)                                                                                         \
            few_##tag(t);                                                                                              \
        else                                                                                                           \
            many_rows(t, DTYPE_##type);                                                                                \
    }
LINEAR_FLOATS(FLOAT_TILE)

linear_tile_fn *linear_float_tile_avx2(enum dtype type)
{
    switch (type) {
        LINEAR_FLOATS(LINEAR_TILE_CASE)
    default:
        return NULL;
    }
}
