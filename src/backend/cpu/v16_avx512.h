/* backend/cpu/v16_avx512.h - sixteen floats as one 512-bit register; the vocabulary of rows_v16.h and attn_v16.h
 * (also in v16_avx2.h). Included by *_avx512.c only.
 */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include "backend/cpu/v16_bytes_x86.h"

#define V16_TILE_VECTORS 4 /* of a register tile's row, attn_v16.h */
#define V16_PAIRS        4 /* of sums that two rows keep in registers, rows_v16.h: 2 or 4 */

typedef __m512 v16;

static inline v16 v16_set(float x)
{
    return _mm512_set1_ps(x);
}
static inline v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void v16_store(float *p, v16 v)
{
    _mm512_storeu_ps(p, v);
}
static inline __mmask16 v16_first(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}
/* The first n (0 .. 15) of p, the rest 0; the rest of p is not touched. */
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(v16_first(n), p);
}
static inline void v16_store_n(float *p, v16 v, uint32_t n)
{
    _mm512_mask_storeu_ps(p, v16_first(n), v);
}
static inline v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
static inline v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
static inline v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
static inline v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
static inline v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline v16 v16_fmsub(v16 a, v16 b, v16 c)
{
    return _mm512_fmsub_ps(a, b, c);
}
static inline v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
} /* b when either is NaN */
static inline v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
static inline v16 v16_and(v16 a, v16 b)
{
    return _mm512_and_ps(a, b);
}
static inline v16 v16_or(v16 a, v16 b)
{
    return _mm512_or_ps(a, b);
}
static inline v16 v16_xor(v16 a, v16 b)
{
    return _mm512_xor_ps(a, b);
}

/* a < b ? x : y */
static inline v16 v16_if_less(v16 a, v16 b, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

/* v where lo <= lane < hi (both at most 16), other elsewhere */
static inline v16 v16_keep(v16 v, uint32_t lo, uint32_t hi, v16 other)
{
    return _mm512_mask_blend_ps((__mmask16)(((1u << hi) - 1) & ~((1u << lo) - 1)), other, v);
}

/* The two powers of two whose product is 2^n, n = bits(t) - bits of EXP_MAGIC; see cpu_exp. */
static inline void v16_exp_scale(v16 t, uint32_t magic_bits, v16 *first, v16 *second)
{
    __m512i k = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32((int)magic_bits)),
            half = _mm512_srai_epi32(k, 1);
    __m512i bias = _mm512_set1_epi32(127);

    *first = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
    *second = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(k, half), bias), 23));
}

static inline float v16_tree(v16 v)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));

    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline float v16_highest(v16 v)
{
    return _mm512_reduce_max_ps(v);
}

static inline v16 v16_highest_of_4(v16 a, v16 b, v16 c, v16 d)
{
    v16 ab = v16_max(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    v16 cd = v16_max(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));

    return v16_max(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee)); /* a b c d, per 128 bits */
}

/* Lane i, of the first 8: the highest of x[i]. */
static inline v16 v16_highest_of(const v16 x[8])
{
    v16 a = v16_highest_of_4(x[0], x[1], x[2], x[3]), b = v16_highest_of_4(x[4], x[5], x[6], x[7]);
    v16 half = v16_max(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));

    half = v16_max(half, _mm512_shuffle_f32x4(half, half, 0xb1)); /* a a b b */
    return _mm512_shuffle_f32x4(half, half, 0x08);
}

static inline v16 v16_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline v16 v16_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

static inline void v16_store_half(uint16_t *p, v16 v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void v16_store_bf16(uint16_t *p, v16 v)
{
    __m512i bits = _mm512_castps_si512(v), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i nan = _mm512_or_si512(high, _mm512_set1_epi32(0x40));

    rounded = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, nan);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(rounded));
}

/* rounded to nearest even, within -128 .. 127 */
static inline b16 v16_to_int8(v16 v)
{
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v));
}
static inline v16 v16_from_int8(b16 q)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

/* The highest of the bits of |x| of both: NaN is above infinity. */
static inline uint32_t v16_highest_bits(v16 a, v16 b)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i x = _mm512_and_si512(_mm512_castps_si512(a), magnitude),
            y = _mm512_and_si512(_mm512_castps_si512(b), magnitude);

    return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(x, y));
}

/* x < least ? 0 : p * 2^n, where t is the float whose low bits are the exponent field of 2^n */
static inline v16 v16_mul_power(v16 p, v16 t, v16 x, v16 least)
{
    __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));

    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ), p, power);
}

/* rows [16, dim] to columns [dim] of 16 floats, stride 64: four rows share a register, one per 128 bits. */
static inline void v16_transpose(const float *rows, uint32_t dim, float *columns)
{
    for (uint32_t i = 0; i < dim; i += 4, columns += 4 * 64) {
        __m512 r[4], a, b, c, d;

#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) {
            const float *row = rows + (uint64_t)j * dim + i;

            r[j] = _mm512_castps128_ps512(_mm_loadu_ps(row));
            r[j] = _mm512_mask_broadcast_f32x4(r[j], 0x00f0, _mm_loadu_ps(row + (uint64_t)4 * dim));
            r[j] = _mm512_mask_broadcast_f32x4(r[j], 0x0f00, _mm_loadu_ps(row + (uint64_t)8 * dim));
            r[j] = _mm512_mask_broadcast_f32x4(r[j], 0xf000, _mm_loadu_ps(row + (uint64_t)12 * dim));
        }
        a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
        c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
        _mm512_storeu_ps(columns, _mm512_shuffle_ps(a, c, 0x44));
        _mm512_storeu_ps(columns + 64, _mm512_shuffle_ps(a, c, 0xee));
        _mm512_storeu_ps(columns + 128, _mm512_shuffle_ps(b, d, 0x44));
        _mm512_storeu_ps(columns + 192, _mm512_shuffle_ps(b, d, 0xee));
    }
}
