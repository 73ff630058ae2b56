/* backend/cpu/linear_k_avx2.c - linear of K types with AVX2: one output per 32-bit lane; a tile is two halves of 8
 * outputs.
 *
 * Sums          as linear_kernels.h, all integer until a unit of 256 k is complete. vpmaddubsw multiplies u8 weights by
 *               int8 activations into pairs of 16 bits; as many are added in 16 bits as cannot overflow (u <= 15: 8
 *               groups, <= 31: 4, <= 63: 2); vpmaddwd then multiplies by the scale and widens at once. What does not
 *               depend on the weights comes at the unit's end from the activations' sums, two parts per vpmaddwd: mins,
 *               or what the offset of signed quants makes, offset * sum of scale_j * sum_j(q).
 * Work          up to 4 rows share a half tile, whose opened quants lie in registers and on the stack.
 * Bytes         per weight as in the file; decode is bound by memory, many rows by vpmaddubsw and what adds it up.
 */
#include "backend/cpu/linear_kernels.h"
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear_prefetch.h"
#include "backend/cpu/linear_v256.h"

#define ROWS 4

static void quantise_unit(const float *x, struct linear_unit *out)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    int32_t bits;
    __m256 scale;
    float amax;

    for (int i = 0; i < 32; i++)
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), magnitude));
    bits = max_of(top);
    memcpy(&amax, &bits, sizeof(amax));
    memset(out, 0, sizeof(*out));
    if (bits >= 0x7f800000) out->d = NAN;
    if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) return;
    out->d = amax / 127.0f;
    scale = _mm256_set1_ps(127.0f / amax);
    for (int i = 0; i < 16; i++, x += 16) {
        __m256i q0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
        __m256i q1 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), scale));

        _mm_storeu_si128((__m128i *)(out->q + 16 * i), bytes_of(q0, q1));
        out->sum16[i] = (int16_t)sum_of(_mm256_add_epi32(q0, q1));
    }
    for (int i = 0; i < 8; i++) out->sum32[i] = (int16_t)(out->sum16[2 * i] + out->sum16[2 * i + 1]);
}

static void quantise_k_avx2(const float *x, uint32_t n_in, void *acts)
{
    struct linear_unit *out = acts;

    for (uint32_t i = 0; i < n_in / LINEAR_UNIT; i++) quantise_unit(x + i * LINEAR_UNIT, out + i);
}

/* 8 unsigned bytes. */
INLINE __m256i bytes_at(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

/* Two parts' bytes of 8 outputs, as pairs of 16 bits: parts of 16 k, of SCALES_KM mins of 32 k. */
INLINE __m256i pair_at(const uint8_t *unit, int kind, uint32_t half, int j)
{
    const uint8_t *p =
        unit + half * 8 + (kind == SCALES_K ? 32 + j * 32 : kind == SCALES_KM ? 80 + j * 64 : 64 + j * 32);
    const uint8_t *odd = p + (kind == SCALES_KM ? 32 : 16);
    __m256i v = _mm256_or_si256(bytes_at(p), _mm256_slli_epi32(bytes_at(odd), 16));

    if (kind == SCALES_K) return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
    if (kind == SCALES_K2) return _mm256_srli_epi16(v, 4);
    return v;
}

/* The scale of a block's half, twice in 16 bits. */
INLINE __m256i scale_at(const uint8_t *unit, int kind, uint32_t half, int b, int k_half)
{
    const uint8_t *p = unit + half * 8 + b * 32;

    if (kind == SCALES_KM) {
        __m256i v = bytes_at(p + 64);

        return _mm256_or_si256(v, _mm256_slli_epi32(v, 16));
    }
    if (kind == SCALES_K2) {
        __m256i v = _mm256_and_si256(bytes_at(p + 64 + k_half * 16), _mm256_set1_epi32(15));

        return _mm256_or_si256(v, _mm256_slli_epi32(v, 16));
    } else {
        __m256i v = bytes_at(p + 32 + k_half * 16);

        return _mm256_srai_epi16(_mm256_slli_epi16(_mm256_or_si256(v, _mm256_slli_epi32(v, 16)), 8), 8);
    }
}

/* sum + scale * dot, for groups g0 .. g1 - 1 (4 or 8 of them). */
INLINE __m256i add_dot(__m256i sum, const __m256i w[8], __m256i scale, const int8_t *q, int bits, int g0, int g1)
{
    const int step = bits == 6 ? 2 : bits == 5 ? 4 : 8;

    for (int g = g0; g < g1; g += step) {
        __m256i words = _mm256_setzero_si256();

        for (int i = g; i < g + step && i < g1; i++) {
            int32_t four;

            memcpy(&four, q + 4 * i, sizeof(four));
            words = _mm256_add_epi16(words, _mm256_maddubs_epi16(w[i], _mm256_set1_epi32(four)));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, scale));
    }
    return sum;
}

/* What the activations' sums add, then the unit's float step. */
INLINE void finish_unit(const uint8_t *unit, const struct linear_unit *a, uint64_t x_stride, int n_rows, uint32_t half,
                        int offset_shift, int kind, const __m256i *sum, __m256 *acc)
{
    const int n_pairs = kind == SCALES_KM ? 4 : 8;
    const __m256 d = halves_at(unit + half * 16);
    __m256i pairs[8];

    for (int j = 0; j < n_pairs; j++) pairs[j] = pair_at(unit, kind, half, j);
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        const struct linear_unit *row = a + (uint64_t)r * x_stride;
        const int16_t *sums = kind == SCALES_KM ? row->sum32 : row->sum16;
        __m256i low = _mm256_setzero_si256();
        __m256 t;

        for (int j = 0; j < n_pairs; j++) {
            int32_t two;

            memcpy(&two, sums + 2 * j, sizeof(two));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(pairs[j], _mm256_set1_epi32(two)));
        }
        if (kind == SCALES_K) {
            t = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_sub_epi32(sum[r], _mm256_slli_epi32(low, offset_shift))));
        } else {
            t = _mm256_mul_ps(d, _mm256_cvtepi32_ps(sum[r]));
            t = _mm256_fnmadd_ps(halves_at(unit + 32 + half * 16), _mm256_cvtepi32_ps(low), t);
        }
        acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(row->d), t, acc[r]);
    }
}

/* n_rows, bits, offset_shift, kind are constants where this is inlined; half (0, 1): outputs 0..7 or 8..15. */
INLINE void k_rows(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t half, int bits, int offset_shift,
                   int kind)
{
    const struct linear_unit *a = (const struct linear_unit *)t->x + row0 * t->x_stride;
    const uint32_t n_units = t->n_in / LINEAR_UNIT, block_bytes = (uint32_t)bits * 64;
    const uint32_t unit_bytes = kind == SCALES_K ? 288 : 320;
    const uint8_t *lines = t->w + half * 32, *unit = t->w + (uint64_t)n_units * 8 * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(t->w, unit, (uint64_t)n_units * unit_bytes, t->ask_l2);
    const bool first = row0 == 0 && half == 0;      /* later ones find the tile in the cache */
    __m256 acc[ROWS];

    for (int r = 0; r < n_rows; r++) acc[r] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n_units; i++, a++, unit += unit_bytes) {
        __m256i sum[ROWS];

        for (int r = 0; r < n_rows; r++) sum[r] = _mm256_setzero_si256();
        for (int b = 0; b < 8; b++, lines += block_bytes) {
            __m256i w[8], scale = scale_at(unit, kind, half, b, 0), scale1 = scale_at(unit, kind, half, b, 1);

            if (first) prefetch_block(&ahead, lines, block_bytes, b ? NULL : unit, unit_bytes);
            open_block(lines, bits, w);
#pragma GCC unroll 4
            for (int r = 0; r < n_rows; r++) {
                const int8_t *q = a[(uint64_t)r * t->x_stride].q + b * 32;

                if (kind == SCALES_KM) {
                    sum[r] = add_dot(sum[r], w, scale, q, bits, 0, 8);
                } else {
                    sum[r] = add_dot(sum[r], w, scale, q, bits, 0, 4);
                    sum[r] = add_dot(sum[r], w, scale1, q, bits, 4, 8);
                }
            }
        }
        finish_unit(unit, a, t->x_stride, n_rows, half, offset_shift, kind, sum, acc);
    }
    store_rows(t, row0, n_rows, half, acc);
}

TILE(tile_q2_k, k_rows, 2, 0, SCALES_K2)
TILE(tile_q3_k, k_rows, 3, 2, SCALES_K)
TILE(tile_q4_k, k_rows, 4, 0, SCALES_KM)
TILE(tile_q5_k, k_rows, 5, 0, SCALES_KM)
TILE(tile_q6_k, k_rows, 6, 5, SCALES_K)

static linear_tile_fn *tile_k_avx2(enum dtype type)
{
    switch (type) {
    case DTYPE_Q2_K: return tile_q2_k;
    case DTYPE_Q3_K: return tile_q3_k;
    case DTYPE_Q4_K: return tile_q4_k;
    case DTYPE_Q5_K: return tile_q5_k;
    case DTYPE_Q6_K: return tile_q6_k;
    default: return NULL;
    }
}

const struct cpu_linear_kernels linear_k_kernels_avx2 = {LINEAR_UNIT, sizeof(struct linear_unit), quantise_k_avx2,
                                                         tile_k_avx2, NULL};
