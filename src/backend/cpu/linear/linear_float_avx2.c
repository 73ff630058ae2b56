/* backend/cpu/linear/linear_float_avx2.c - linear of float weights with AVX2 and FMA: an output is a lane, a tile two halves of 8.
 *
 * Sums          as linear_kernels.h: of the even and of the odd k by themselves.
 * Weights       are asked for far ahead, to the L2 cache, with every step: while rows are multiplied a core's own prefetchers
 *               fall behind, and memory stands still. One row is a plain stream, which they do better.
 * One, two rows all sums are in registers: weights are read once.
 * More rows     DEPTH k of a tile meet all rows by groups of 3 to 6, first the even k, then the odd ones, from the L1 cache, so
 *               that a group has all registers: 6 rows by 16 outputs are 12 sums, which two weights and six activations a step
 *               feed. Sums of up to MANY_FLOAT rows wait in memory meanwhile. Groups are as equal as can be: fewer sums than 8
 *               wait for each other. Many groups have weights that were opened to floats before.
 * Measured      bench/notes/cpu.md, "Float weights".
 */
#include <assert.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/linear/linear_prefetch.h"
#include "backend/cpu/linear/linear_v256.h"

#define FEW         3u   /* rows: the sums of fewer, of even and of odd k, are in registers together */
#define OPEN_GROUPS 8u   /* so many groups have weights that are opened once */
#define GROUP       6    /* rows of a register tile */
#define DEPTH       512u /* k: half of them, 16 outputs wide, are half an L1 cache */
#define SUM_WIDTH   32   /* floats of a row: sums of even k, of odd ones */

#define K_BYTES(type) ((type) == DTYPE_F32 ? 64u : 32u)

/* 8 weights of k, outputs from half * 8. */
INLINE __m256 weights_at(const uint8_t *w, uint64_t k, uint32_t half, enum dtype type)
{
    const uint8_t *at = w + (k * 16 + half * 8) * (type == DTYPE_F32 ? 4 : 2);

    if (type == DTYPE_F32) return _mm256_load_ps((const float *)(const void *)at);
    if (type == DTYPE_F16) return halves_at(at);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(const void *)at)), 16));
}

/* ---- one row, two rows ---- */

/* Both halves, both sums: weights are read once, as they come from memory. */
INLINE void few_rows(const struct linear_tile *t, int n_rows, enum dtype type)
{
    const float *x = t->x;
    const uint8_t *ahead = t->w + PREFETCH_FAR_BYTES;
    __m256 p[FEW - 1][2], odd[FEW - 1][2];
    uint32_t k = 0;

    for (int r = 0; r < n_rows; r++) p[r][0] = p[r][1] = odd[r][0] = odd[r][1] = _mm256_setzero_ps();
    for (; k + 1 < t->n_in; k += 2, ahead += 2 * K_BYTES(type)) {
        const __m256 w0 = weights_at(t->w, k, 0, type), w1 = weights_at(t->w, k, 1, type);
        const __m256 odd0 = weights_at(t->w, k + 1, 0, type), odd1 = weights_at(t->w, k + 1, 1, type);

        if (n_rows > 1) prefetch_lines_far(ahead, 2 * K_BYTES(type));
#pragma GCC unroll 2
        for (int r = 0; r < n_rows; r++) {
            const float *row = x + (uint64_t)r * t->x_stride + k;
            const __m256 v = _mm256_broadcast_ss(row), odd_v = _mm256_broadcast_ss(row + 1);

            p[r][0] = _mm256_fmadd_ps(w0, v, p[r][0]);
            p[r][1] = _mm256_fmadd_ps(w1, v, p[r][1]);
            odd[r][0] = _mm256_fmadd_ps(odd0, odd_v, odd[r][0]);
            odd[r][1] = _mm256_fmadd_ps(odd1, odd_v, odd[r][1]);
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (uint32_t half = 0; half < 2; half++) {
            if (k < t->n_in)
                p[r][half] = _mm256_fmadd_ps(weights_at(t->w, k, half, type),
                                             _mm256_broadcast_ss(x + (uint64_t)r * t->x_stride + k), p[r][half]);
            p[r][half] = _mm256_add_ps(p[r][half], odd[r][half]);
        }
    store_rows(t, 0, n_rows, p);
}

/* ---- more rows ---- */

/* What is asked for meanwhile: after each k it is `step` bytes farther on. */
struct weights_ahead {
    const uint8_t *at;
    uint32_t step;
};

/* Every second k from k0 on, n of them. */
INLINE void open_weights(const uint8_t *w, uint32_t k0, uint32_t n, enum dtype type, float *to)
{
    for (uint32_t i = 0; i < n; i++, to += 16) {
        _mm256_store_ps(to, weights_at(w, k0 + 2 * (uint64_t)i, 0, type));
        _mm256_store_ps(to + 8, weights_at(w, k0 + 2 * (uint64_t)i, 1, type));
    }
}

/* sums += w x over n k, which are w_step bytes from each other, every second of x. */
INLINE void group_of(int n_rows, enum dtype type, const uint8_t *w, uint32_t w_step, const float *x, uint64_t x_stride,
                     uint32_t n, float *sums, struct weights_ahead *ahead)
{
    const float *later = x + 3 * x_stride; /* addresses of six rows from two pointers */
    const uint8_t *at = ahead->at;
    __m256 acc[GROUP][2];

#pragma GCC unroll 6
    for (int r = 0; r < n_rows; r++) {
        acc[r][0] = _mm256_load_ps(sums + r * SUM_WIDTH);
        acc[r][1] = _mm256_load_ps(sums + r * SUM_WIDTH + 8);
    }
    for (; n > 0; n--, w += w_step, x += 2, later += 2, at += ahead->step) {
        const __m256 w0 = weights_at(w, 0, 0, type), w1 = weights_at(w, 0, 1, type);

        __builtin_prefetch(at, 0, 2);
#pragma GCC unroll 6
        for (int r = 0; r < n_rows; r++) {
            const __m256 v = _mm256_broadcast_ss((r < 3 ? x : later) + (uint64_t)(r % 3) * x_stride);

            acc[r][0] = _mm256_fmadd_ps(w0, v, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(w1, v, acc[r][1]);
        }
    }
    ahead->at = at;
#pragma GCC unroll 6
    for (int r = 0; r < n_rows; r++) {
        _mm256_store_ps(sums + r * SUM_WIDTH, acc[r][0]);
        _mm256_store_ps(sums + r * SUM_WIDTH + 8, acc[r][1]);
    }
}

INLINE void group_rows(uint32_t n_rows, enum dtype type, const uint8_t *w, uint32_t w_step, const float *x,
                       uint64_t x_stride, uint32_t n, float *sums, struct weights_ahead *ahead)
{
    switch (n_rows) {
    case 3:
        group_of(3, type, w, w_step, x, x_stride, n, sums, ahead);
        break;
    case 4:
        group_of(4, type, w, w_step, x, x_stride, n, sums, ahead);
        break;
    case 5:
        group_of(5, type, w, w_step, x, x_stride, n, sums, ahead);
        break;
    default:
        group_of(GROUP, type, w, w_step, x, x_stride, n, sums, ahead);
        break;
    }
}

/* The block of k0 .. k0 + n - 1 meets all rows; even k at w, then odd ones at w_odd. */
INLINE void all_groups(const struct linear_tile *t, enum dtype type, const uint8_t *w, const uint8_t *w_odd,
                       uint32_t w_step, uint32_t k0, uint32_t n, float *sums, struct weights_ahead *ahead)
{
    uint32_t n_groups = u32_ceil_div(t->n_rows, GROUP);

    for (uint32_t row = 0, size; row < t->n_rows; row += size, n_groups--, sums += size * SUM_WIDTH) {
        const float *x = (const float *)t->x + row * t->x_stride + k0;

        size = u32_ceil_div(t->n_rows - row, n_groups);
        group_rows(size, type, w, w_step, x, t->x_stride, n - n / 2, sums, ahead);
        group_rows(size, type, w_odd, w_step, x + 1, t->x_stride, n / 2, sums + 16, ahead);
    }
}

/* A function of its own: whatever the type, weights that were opened are floats. */
static void all_opened(const struct linear_tile *t, const float *w, uint32_t k0, uint32_t n, float *sums,
                       struct weights_ahead *ahead)
{
    const uint8_t *even = (const uint8_t *)w, *odd = (const uint8_t *)(w + (n - n / 2) * 16);

    all_groups(t, DTYPE_F32, even, odd, 64, k0, n, sums, ahead);
}

/* Sums of even and of odd k are one. */
static void store_sums(const struct linear_tile *t, const float *sums)
{
    __m256 acc[1][2];

    for (uint32_t r = 0; r < t->n_rows; r++, sums += SUM_WIDTH) {
        for (uint32_t half = 0; half < 2; half++)
            acc[0][half] = _mm256_add_ps(_mm256_load_ps(sums + half * 8), _mm256_load_ps(sums + 16 + half * 8));
        store_rows(t, r, 1, acc);
    }
}

/* Blocks of k: each is gone through twice by each group, from the L1 cache but for the first time, while the next is asked for. */
INLINE void more_rows(const struct linear_tile *t, enum dtype type)
{
    const uint32_t k_bytes = K_BYTES(type), n_groups = u32_ceil_div(t->n_rows, GROUP);
    _Alignas(64) float opened[DEPTH * 16], sums[LINEAR_MANY_FLOAT * SUM_WIDTH];

    assert(t->n_rows >= FEW && t->n_rows <= LINEAR_MANY_FLOAT);
    memset(sums, 0, t->n_rows * SUM_WIDTH * sizeof(*sums));
    for (uint32_t k = 0; k < t->n_in; k += DEPTH) {
        const uint32_t n = u32_min(DEPTH, t->n_in - k), n_even = n - n / 2;
        const uint8_t *w = t->w + (uint64_t)k * k_bytes;
        struct weights_ahead ahead = {w + (uint64_t)n * k_bytes, u32_ceil_div(k_bytes, n_groups)};

        if (n_groups < OPEN_GROUPS) {
            all_groups(t, type, w, w + k_bytes, 2 * k_bytes, k, n, sums, &ahead);
            continue;
        }
        open_weights(t->w, k, n_even, type, opened);
        open_weights(t->w, k + 1, n / 2, type, opened + n_even * 16);
        all_opened(t, opened, k, n, sums, &ahead);
    }
    store_sums(t, sums);
}

INLINE void float_tile(const struct linear_tile *t, enum dtype type)
{
    if (t->n_rows == 1)
        few_rows(t, 1, type);
    else if (t->n_rows < FEW)
        few_rows(t, 2, type);
    else
        more_rows(t, type);
}

#define FLOAT_TILE(tag, type)                                                                                          \
    static void tile_##tag(const struct linear_tile *t)                                                                \
    {                                                                                                                  \
        float_tile(t, DTYPE_##type);                                                                                   \
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
