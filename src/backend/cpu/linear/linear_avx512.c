/* backend/cpu/linear/linear_avx512.c - linear of block types and floats with AVX-512 and VNNI: one output per 32-bit lane, 16
 * outputs per register.
 *
 * Sums          as linear_kernels.h; vpdpbusd adds 4 k of 16 outputs, u8 weights times a row's 4 int8, broadcast. The
 *               offset of symmetric types starts the integer sum: -offset * sum(q).
 * Work          up to 8 rows share a tile: a block's quants are opened into 8 registers once, then meet four rows at a
 *               time. With one row a tile is a stream of whole cache lines, read once.
 * Bytes         per weight as in the file (Q4_K 0.58, Q8_0 1.06): decode is bound by memory, many rows by vpdpbusd (2
 *               per cycle).
 * Measured      one thread of an Intel Xeon with AMX-INT8 (2.6 GHz), weights in L2: 16 rows 63-71 % of vpdpbusd's bound
 *               for types with scales per 32, 54 % per 16 (Q6_K); one row 9 (Q2_K) to 63 (Q8_0) bytes of weights per
 *               cycle. tests/ops/test_linear.c prints GB/s and GOP/s per type in Release builds.
 */
#include "backend/cpu/linear/linear_kernels.h"
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear/linear_prefetch.h"
#include "backend/cpu/linear/linear_v512.h"

#define ROWS             8
#define PAIR_BYTES(type) ((type) == DTYPE_F32 ? 128 : 64) /* two k of a tile of floats */

static void quantise_avx512(const float *x, uint32_t n_in, void *acts)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    struct linear_act *out = acts;

    for (uint32_t b = 0; b < n_in / LINEAR_BLOCK; b++, x += LINEAR_BLOCK, out++) {
        __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16), scale;
        __m512i top = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                                       _mm512_and_si512(_mm512_castps_si512(x1), magnitude));
        int32_t bits = _mm512_reduce_max_epi32(top);
        __m512i q0, q1;
        float amax;

        memcpy(&amax, &bits, sizeof(amax));
        memset(out->unused, 0, sizeof(out->unused));
        if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) {
            memset(out, 0, sizeof(*out));
            if (bits >= 0x7f800000) out->d = NAN;
            continue;
        }
        scale = _mm512_set1_ps(127.0f / amax);
        q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, scale));
        q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, scale));
        _mm_storeu_si128((__m128i *)out->q, _mm512_cvtepi32_epi8(q0));
        _mm_storeu_si128((__m128i *)(out->q + 16), _mm512_cvtepi32_epi8(q1));
        out->d = amax / 127.0f;
        out->neg_sum = -_mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
        out->sum = (float)-out->neg_sum;
    }
}

INLINE __m512i dot_start(int32_t neg_sum, int offset_shift)
{
    if (!offset_shift) return _mm512_setzero_si512();
    return _mm512_slli_epi32(_mm512_set1_epi32(neg_sum), (unsigned)offset_shift);
}

/* One block of n rows (at most 4): the rows' chains of vpdpbusd are interleaved: one alone is bound by latency. */
INLINE void block_rows(const __m512i w[8], __m512 d, __m512 m, const struct linear_act *a, uint64_t x_stride, int n,
                       int offset_shift, int kind, __m512 *acc)
{
    __m512i dot[4];

#pragma GCC unroll 4
    for (int r = 0; r < n; r++) dot[r] = dot_start(a[r * x_stride].neg_sum, offset_shift);
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
#pragma GCC unroll 4
        for (int r = 0; r < n; r++) dot[r] = dot_group(dot[r], w[g], a[r * x_stride].q + 4 * g);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) {
        const struct linear_act *row = a + r * x_stride;
        __m512 t = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot[r]));

        if (kind == SCALES_DM) t = _mm512_fmadd_ps(m, _mm512_set1_ps(row->sum), t);
        acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(row->d), t, acc[r]);
    }
}

/* n_rows, bits, offset_shift, kind are constants where this is inlined. */
INLINE void quant_rows(const struct linear_tile *t, uint32_t row0, int n_rows, int bits, int offset_shift, int kind)
{
    const struct linear_act *a = (const struct linear_act *)t->x + row0 * t->x_stride;
    const uint32_t n_blocks = t->n_in / LINEAR_BLOCK;
    const uint32_t block_bytes = (uint32_t)bits * 64, unit_bytes = LINEAR_SCALE_BYTES(kind);
    const uint8_t *lines = t->w, *unit = t->w + (uint64_t)n_blocks * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(lines, unit, (uint64_t)n_blocks * unit_bytes, t->ask_l2);
    const bool first = row0 == 0, opens = first && !t->again; /* later rows find the tile in the cache */
    __m512 acc[ROWS];

    for (int r = 0; r < n_rows; r++) acc[r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < n_blocks; b++, lines += block_bytes, unit += unit_bytes) {
        __m512 d = halves_at(unit), m = kind == SCALES_DM ? halves_at(unit + 32) : _mm512_setzero_ps();
        __m512i w[8];

        if (opens) prefetch_block(&ahead, lines, block_bytes, unit, unit_bytes);
        if (first) prefetch_soon(t->soon, 1);
        open_block(lines, bits, w);
        block_rows(w, d, m, a + b, t->x_stride, n_rows < 4 ? n_rows : 4, offset_shift, kind, acc);
        if (n_rows > 4)
            block_rows(w, d, m, a + 4 * t->x_stride + b, t->x_stride, n_rows - 4, offset_shift, kind, acc + 4);
    }
    store_rows(t, row0, n_rows, acc);
}

INLINE __m512 weights_at(const uint8_t *w, uint64_t k, enum dtype type)
{
    if (type == DTYPE_F32) return _mm512_load_ps((const void *)(w + k * 64));
    if (type == DTYPE_F16) return halves_at(w + k * 32);
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)(const void *)(w + k * 32))), 16));
}

/* n_rows up to ROWS. Weights are asked for far ahead, so that memory is not idle while they are multiplied; one row is a plain
 * stream, which a core's own prefetchers do better. */
INLINE void float_rows(const struct linear_tile *t, uint32_t row0, int n_rows, enum dtype type)
{
    const float *x = (const float *)t->x + row0 * t->x_stride;
    const uint8_t *ahead = t->w + PREFETCH_FAR_BYTES;
    __m512 p[2][ROWS];
    uint32_t k = 0;

    for (int r = 0; r < n_rows; r++) p[0][r] = p[1][r] = _mm512_setzero_ps();
    for (; k + 1 < t->n_in; k += 2, ahead += PAIR_BYTES(type)) {
        __m512 w0 = weights_at(t->w, k, type), w1 = weights_at(t->w, k + 1, type);

        if (n_rows > 1) prefetch_lines_far(ahead, PAIR_BYTES(type));
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            const float *row = x + (uint64_t)r * t->x_stride + k;

            p[0][r] = _mm512_fmadd_ps(w0, _mm512_set1_ps(row[0]), p[0][r]);
            p[1][r] = _mm512_fmadd_ps(w1, _mm512_set1_ps(row[1]), p[1][r]);
        }
    }
    if (k < t->n_in)
        for (int r = 0; r < n_rows; r++)
            p[0][r] =
                _mm512_fmadd_ps(weights_at(t->w, k, type), _mm512_set1_ps(x[(uint64_t)r * t->x_stride + k]), p[0][r]);
    for (int r = 0; r < n_rows; r++) p[0][r] = _mm512_add_ps(p[0][r], p[1][r]);
    store_rows(t, row0, n_rows, p[0]);
}

#define FLOAT_TILE(tag, type)                             TILE(tile_##tag, float_rows, DTYPE_##type)
#define QUANT_TILE(tag, type, bits, offset_shift, scales) TILE(tile_##tag, quant_rows, bits, offset_shift, scales)
LINEAR_FLOATS(FLOAT_TILE)
LINEAR_BLOCK_FORMS(QUANT_TILE)

static linear_tile_fn *tile_avx512(enum dtype type)
{
    switch (type) {
        LINEAR_FLOATS(LINEAR_TILE_CASE)
        LINEAR_BLOCK_FORMS(LINEAR_TILE_CASE)
    default:
        return NULL;
    }
}

const struct cpu_linear_kernels linear_kernels_avx512 = {LINEAR_BLOCK, sizeof(struct linear_act), quantise_avx512,
                                                         tile_avx512, &linear_k_kernels_avx512};
