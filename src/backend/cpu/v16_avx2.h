/* backend/cpu/v16_avx2.h - sixteen floats as two 256-bit registers; the vocabulary of rows_v16.h and attn_v16.h (also
 * in v16_avx512.h). Included by *_avx2.c only.
 */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include "backend/cpu/v16_bytes_x86.h"

#define V16_TILE_VECTORS 1 /* of a register tile's row, attn_v16.h */
#define V16_PAIRS        2 /* of sums that two rows keep in registers, rows_v16.h: 2 or 4 */

typedef struct {
    __m256 a, b;
} v16; /* lanes 0 .. 7, 8 .. 15 */

static inline v16 v16_set(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline v16 v16_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void v16_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.a), _mm256_storeu_ps(p + 8, v.b);
}

/* The first n (0 .. 15) of p, the rest 0; the rest of p is not touched. */
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    float t[16] = {0};

    memcpy(t, p, n * sizeof(*t));
    return v16_load(t);
}

static inline void v16_store_n(float *p, v16 v, uint32_t n)
{
    float t[16];

    v16_store(t, v);
    memcpy(p, t, n * sizeof(*t));
}

#define V16_BINARY(name, op)                                                                                           \
    static inline v16 name(v16 x, v16 y)                                                                               \
    {                                                                                                                  \
        return (v16){op(x.a, y.a), op(x.b, y.b)};                                                                      \
    }
V16_BINARY(v16_add, _mm256_add_ps)
V16_BINARY(v16_sub, _mm256_sub_ps)
V16_BINARY(v16_mul, _mm256_mul_ps)
V16_BINARY(v16_div, _mm256_div_ps)
V16_BINARY(v16_max, _mm256_max_ps) /* y when either is NaN */
V16_BINARY(v16_min, _mm256_min_ps)
V16_BINARY(v16_and, _mm256_and_ps)
V16_BINARY(v16_or, _mm256_or_ps)
V16_BINARY(v16_xor, _mm256_xor_ps)
#undef V16_BINARY

static inline v16 v16_fma(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
static inline v16 v16_fmsub(v16 x, v16 y, v16 z)
{
    return (v16){_mm256_fmsub_ps(x.a, y.a, z.a), _mm256_fmsub_ps(x.b, y.b, z.b)};
}

/* a < b ? x : y */
static inline v16 v16_if_less(v16 a, v16 b, v16 x, v16 y)
{
    return (v16){_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}

/* v where lo <= lane < hi (both at most 16), other elsewhere */
static inline v16 v16_keep(v16 v, uint32_t lo, uint32_t hi, v16 other)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), eight = _mm256_set1_epi32(8);
    __m256i from = _mm256_set1_epi32((int)lo - 1), to = _mm256_set1_epi32((int)hi),
            upper = _mm256_add_epi32(lane, eight);
    __m256i in_a = _mm256_and_si256(_mm256_cmpgt_epi32(lane, from), _mm256_cmpgt_epi32(to, lane));
    __m256i in_b = _mm256_and_si256(_mm256_cmpgt_epi32(upper, from), _mm256_cmpgt_epi32(to, upper));

    return (v16){_mm256_blendv_ps(other.a, v.a, _mm256_castsi256_ps(in_a)),
                 _mm256_blendv_ps(other.b, v.b, _mm256_castsi256_ps(in_b))};
}

static inline void v8_exp_scale(__m256 t, uint32_t magic_bits, __m256 *first, __m256 *second)
{
    __m256i k = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32((int)magic_bits)),
            half = _mm256_srai_epi32(k, 1);
    __m256i bias = _mm256_set1_epi32(127);

    *first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    *second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), bias), 23));
}

/* The two powers of two whose product is 2^n, n = bits(t) - bits of EXP_MAGIC; see cpu_exp. */
static inline void v16_exp_scale(v16 t, uint32_t magic_bits, v16 *first, v16 *second)
{
    v8_exp_scale(t.a, magic_bits, &first->a, &second->a);
    v8_exp_scale(t.b, magic_bits, &first->b, &second->b);
}

static inline float v16_tree(v16 v)
{
    __m256 s8 = _mm256_add_ps(v.a, v.b);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));

    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline float v16_highest(v16 v)
{
    __m256 s8 = _mm256_max_ps(v.a, v.b);
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));

    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

/* Lane i, of the first 8: the highest of x[i]. */
static inline v16 v16_highest_of(const v16 x[8])
{
    float highest[16] = {0};

    for (int i = 0; i < 8; i++) highest[i] = v16_highest(x[i]);
    return v16_load(highest);
}

static inline __m256 v8_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

static inline __m256 v8_load_half(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline v16 v16_load_half(const uint16_t *p)
{
    return (v16){v8_load_half(p), v8_load_half(p + 8)};
}
static inline v16 v16_load_bf16(const uint16_t *p)
{
    return (v16){v8_load_bf16(p), v8_load_bf16(p + 8)};
}

static inline void v16_store_half(uint16_t *p, v16 v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline __m256i v8_round_bf16(__m256 v)
{
    __m256i bits = _mm256_castps_si256(v), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));

    return _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
}

static inline void v16_store_bf16(uint16_t *p, v16 v)
{
    __m256i packed = _mm256_packus_epi32(v8_round_bf16(v.a), v8_round_bf16(v.b)); /* a0-3 b0-3 a4-7 b4-7 */

    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(packed, 0xd8));
}

/* rounded to nearest even, within -128 .. 127 */
static inline b16 v16_to_int8(v16 v)
{
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)); /* a0-3 b0-3 a4-7 b4-7 */

    words = _mm256_permute4x64_epi64(words, 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
static inline v16 v16_from_int8(b16 q)
{
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8)))};
}

/* The highest of the bits of |x| of both: NaN is above infinity. */
static inline uint32_t v16_highest_bits(v16 a, v16 b)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256i x = _mm256_max_epi32(_mm256_castps_si256(_mm256_and_ps(a.a, magnitude)),
                                 _mm256_castps_si256(_mm256_and_ps(a.b, magnitude)));
    __m256i y = _mm256_max_epi32(_mm256_castps_si256(_mm256_and_ps(b.a, magnitude)),
                                 _mm256_castps_si256(_mm256_and_ps(b.b, magnitude)));
    __m128i top;

    x = _mm256_max_epi32(x, y);
    top = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
    top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(top);
}

static inline __m256 v8_mul_power(__m256 p, __m256 t, __m256 x, __m256 least)
{
    __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));

    return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_NLT_UQ), _mm256_mul_ps(p, power));
}

/* x < least ? 0 : p * 2^n, where t is the float whose low bits are the exponent field of 2^n */
static inline v16 v16_mul_power(v16 p, v16 t, v16 x, v16 least)
{
    return (v16){v8_mul_power(p.a, t.a, x.a, least.a), v8_mul_power(p.b, t.b, x.b, least.b)};
}

/* rows [8, dim] to columns [dim] of 8 floats, stride 64: two rows share a register, one per 128 bits. */
static inline void v8_transpose(const float *rows, uint32_t dim, float *columns)
{
    for (uint32_t i = 0; i < dim; i += 4, columns += 4 * 64) {
        __m256 r[4], a, b, c, d;

#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) {
            const float *row = rows + (uint64_t)j * dim + i;

            r[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row)),
                                        _mm_loadu_ps(row + (uint64_t)4 * dim), 1);
        }
        a = _mm256_unpacklo_ps(r[0], r[1]), b = _mm256_unpackhi_ps(r[0], r[1]);
        c = _mm256_unpacklo_ps(r[2], r[3]), d = _mm256_unpackhi_ps(r[2], r[3]);
        _mm256_storeu_ps(columns, _mm256_shuffle_ps(a, c, 0x44));
        _mm256_storeu_ps(columns + 64, _mm256_shuffle_ps(a, c, 0xee));
        _mm256_storeu_ps(columns + 128, _mm256_shuffle_ps(b, d, 0x44));
        _mm256_storeu_ps(columns + 192, _mm256_shuffle_ps(b, d, 0xee));
    }
}

/* rows [16, dim] to columns [dim] of 16 floats, stride 64 */
static inline void v16_transpose(const float *rows, uint32_t dim, float *columns)
{
    v8_transpose(rows, dim, columns);
    v8_transpose(rows + (uint64_t)8 * dim, dim, columns + 8);
}
