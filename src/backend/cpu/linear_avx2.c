/* backend/cpu/linear_avx2.c - linear of block types and floats with AVX2 and FMA: one output per 32-bit lane; a tile is
 * two halves of 8 outputs.
 *
 * Sums          as linear_kernels.h. vpmaddubsw multiplies u8 weights by int8 activations into pairs of 16 bits; as
 *               many are added in 16 bits as cannot overflow (u <= 15: 8 groups, <= 31: 4), then vpmaddwd widens. 8-bit
 *               weights are taken as signed: |w| times q with w's sign, at most 2 * 128 * 127 < 2^15; their dot needs
 *               no offset.
 * Work          up to 4 rows share a half tile, whose opened quants lie in registers and on the stack.
 * Bytes         per weight as in the file; decode is bound by memory, many rows by vpmaddubsw and what widens it.
 * Measured      one thread of an Intel Xeon (2.6 GHz), weights in L2, 16 rows: up to 65 % of vpmaddubsw's bound
 *               (Q4_0); one row up to 22 (Q8_0) bytes of weights per cycle.
 */
#include "backend/cpu/linear_kernels.h"
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear_prefetch.h"
#include "backend/cpu/linear_v256.h"

#define ROWS 4

static void quantise_avx2(const float *x, uint32_t n_in, void *acts)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    struct linear_act *out = acts;

    for (uint32_t b = 0; b < n_in / LINEAR_BLOCK; b++, x += LINEAR_BLOCK, out++) {
        __m256i top = _mm256_setzero_si256(), q[4];
        int32_t bits;
        __m256 scale;
        float amax;

        for (int i = 0; i < 4; i++)
            top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), magnitude));
        bits = max_of(top);
        memcpy(&amax, &bits, sizeof(amax));
        memset(out->unused, 0, sizeof(out->unused));
        if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) {
            memset(out, 0, sizeof(*out));
            if (bits >= 0x7f800000) out->d = NAN;
            continue;
        }
        scale = _mm256_set1_ps(127.0f / amax);
        for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), scale));
        _mm_storeu_si128((__m128i *)out->q, bytes_of(q[0], q[1]));
        _mm_storeu_si128((__m128i *)(out->q + 16), bytes_of(q[2], q[3]));
        out->d = amax / 127.0f;
        out->neg_sum = -sum_of(_mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3])));
        out->sum = (float)-out->neg_sum;
    }
}

/* The exact dot of a block for one row, the offset taken off. */
INLINE __m256i dot_block(const __m256i w[8], const int8_t *q, int32_t neg_sum, int bits, int offset_shift)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int step = bits == 8 ? 1 : bits == 5 ? 4 : 8;
    __m256i s = _mm256_setzero_si256();

    if (offset_shift && bits != 8) s = _mm256_slli_epi32(_mm256_set1_epi32(neg_sum), offset_shift);
    for (int g = 0; g < 8; g += step) {
        __m256i words = _mm256_setzero_si256();

        for (int i = g; i < g + step; i++) {
            int32_t four;
            __m256i a;

            memcpy(&four, q + 4 * i, sizeof(four));
            a = _mm256_set1_epi32(four);
            if (bits == 8) words = _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(a, w[i]));
            else words = _mm256_add_epi16(words, _mm256_maddubs_epi16(w[i], a));
        }
        s = _mm256_add_epi32(s, _mm256_madd_epi16(words, ones));
    }
    return s;
}

/* n_rows, bits, offset_shift, kind are constants where this is inlined; half (0, 1): outputs 0..7 or 8..15. */
INLINE void quant_rows(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t half, int bits,
                       int offset_shift, int kind)
{
    const struct linear_act *a = (const struct linear_act *)t->x + row0 * t->x_stride;
    const uint32_t n_blocks = t->n_in / LINEAR_BLOCK;
    const uint32_t block_bytes = (uint32_t)bits * 64, unit_bytes = kind == SCALES_D ? 32 : 64;
    const uint8_t *lines = t->w + half * 32, *unit = t->w + (uint64_t)n_blocks * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(t->w, unit, (uint64_t)n_blocks * unit_bytes, t->ask_l2);
    const bool first = row0 == 0 && half == 0;      /* later ones find the tile in the cache */
    __m256 acc[ROWS];

    for (int r = 0; r < n_rows; r++) acc[r] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < n_blocks; b++, lines += block_bytes, unit += unit_bytes) {
        const __m256 d = halves_at(unit + half * 16);
        const __m256 m = kind == SCALES_DM ? halves_at(unit + 32 + half * 16) : _mm256_setzero_ps();
        __m256i w[8];

        if (first) prefetch_block(&ahead, lines, block_bytes, unit, unit_bytes);
        open_block(lines, bits, w);
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            const struct linear_act *row = a + (uint64_t)r * t->x_stride + b;
            __m256i dot = dot_block(w, row->q, row->neg_sum, bits, offset_shift);
            __m256 v = _mm256_mul_ps(d, _mm256_cvtepi32_ps(dot));

            if (kind == SCALES_DM) v = _mm256_fmadd_ps(m, _mm256_set1_ps(row->sum), v);
            acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(row->d), v, acc[r]);
        }
    }
    store_rows(t, row0, n_rows, half, acc);
}

/* 8 weights of k, outputs from half * 8. */
INLINE __m256 weights_at(const uint8_t *w, uint64_t k, uint32_t half, enum dtype type)
{
    const uint8_t *at = w + (k * 16 + half * 8) * (type == DTYPE_F32 ? 4 : 2);

    if (type == DTYPE_F32) return _mm256_load_ps((const float *)(const void *)at);
    if (type == DTYPE_F16) return halves_at(at);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const __m128i *)(const void *)at)), 16));
}

INLINE void float_rows(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t half, enum dtype type)
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
    for (int r = 0; r < n_rows; r++) p[0][r] = _mm256_add_ps(p[0][r], p[1][r]);
    store_rows(t, row0, n_rows, half, p[0]);
}

TILE(tile_f32, float_rows, DTYPE_F32)
TILE(tile_f16, float_rows, DTYPE_F16)
TILE(tile_bf16, float_rows, DTYPE_BF16)
TILE(tile_q4_0, quant_rows, 4, 3, SCALES_D)
TILE(tile_q4_1, quant_rows, 4, 0, SCALES_DM)
TILE(tile_q5_0, quant_rows, 5, 4, SCALES_D)
TILE(tile_q5_1, quant_rows, 5, 0, SCALES_DM)
TILE(tile_q8_0, quant_rows, 8, 7, SCALES_D)

static linear_tile_fn *tile_avx2(enum dtype type)
{
    switch (type) {
    case DTYPE_F32: return tile_f32;
    case DTYPE_F16: return tile_f16;
    case DTYPE_BF16: return tile_bf16;
    case DTYPE_Q4_0: return tile_q4_0;
    case DTYPE_Q4_1: return tile_q4_1;
    case DTYPE_Q5_0: return tile_q5_0;
    case DTYPE_Q5_1: return tile_q5_1;
    case DTYPE_Q8_0: return tile_q8_0;
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    DTYPE_HUB_CASES:
    case DTYPE_NONE: break;
    }
    return NULL;
}

const struct cpu_linear_kernels linear_kernels_avx2 = {LINEAR_BLOCK, sizeof(struct linear_act), quantise_avx2,
                                                       tile_avx2, &linear_k_kernels_avx2};
