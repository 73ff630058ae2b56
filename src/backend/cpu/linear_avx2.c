/* backend/cpu/linear_avx2.c - linear with AVX2 and FMA: one output per 32-bit lane; a tile is two halves of 8 outputs.
 *
 * Sums          as linear_kernels.h. vpmaddubsw multiplies u8 weights by int8 activations into pairs of 16 bits; as
 *               many are added in 16 bits as cannot overflow (u <= 15: 8 groups, <= 31: 4, <= 63: 2), then vpmaddwd
 *               widens. 8-bit weights are taken as signed: |w| times q with w's sign, at most 2 * 128 * 127 < 2^15;
 *               their dot needs no offset.
 * Work          up to 4 rows share a half tile, whose opened quants lie in registers and on the stack.
 * Bytes         per weight as in the file; decode is bound by memory, many rows by vpmaddubsw and what widens it.
 * Measured      one thread of an Intel Xeon (2.6 GHz), weights in L2, 16 rows: 39-65 % of vpmaddubsw's bound (Q6_K,
 *               Q4_0); one row 6 (Q2_K) to 22 (Q8_0) bytes of weights per cycle.
 */
#include "backend/cpu/linear_kernels.h"
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear_prefetch.h"

#define ROWS 4
#define INLINE static inline __attribute__((always_inline))

static int32_t sum_of(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

static int32_t max_of(__m256i v)
{
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

/* 16 int32 in -128 .. 127 to bytes, in order. */
static __m128i bytes_of(__m256i a, __m256i b)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);

    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

static void quantise_avx2(const float *x, uint32_t n_in, struct linear_act *out)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);

    for (uint32_t b = 0; b < n_in / LINEAR_BLOCK; b++, x += LINEAR_BLOCK, out++) {
        __m256i top = _mm256_setzero_si256(), q[4];
        int32_t bits, half0, half1;
        __m256 scale;
        float amax;

        for (int i = 0; i < 4; i++)
            top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), magnitude));
        bits = max_of(top);
        memcpy(&amax, &bits, sizeof(amax));
        if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) {
            memset(out, 0, sizeof(*out));
            if (bits >= 0x7f800000) out->d = NAN;
            continue;
        }
        scale = _mm256_set1_ps(127.0f / amax);
        for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), scale));
        _mm_storeu_si128((__m128i *)out->q, bytes_of(q[0], q[1]));
        _mm_storeu_si128((__m128i *)(out->q + 16), bytes_of(q[2], q[3]));
        half0 = sum_of(_mm256_add_epi32(q[0], q[1]));
        half1 = sum_of(_mm256_add_epi32(q[2], q[3]));
        out->d = amax / 127.0f;
        out->sum = (float)(half0 + half1);
        out->neg_sum = -(half0 + half1);
        out->neg_half[0] = -half0;
        out->neg_half[1] = -half1;
        out->half[0] = (float)half0;
        out->half[1] = (float)half1;
        out->unused = 0;
    }
}

INLINE __m256i line_at(const uint8_t *lines, int i)
{
    return _mm256_load_si256((const __m256i *)(const void *)(lines + i * 64));
}

/* Moves a bit field at bit `from` of every byte to bit `to`; what comes over from the neighbour byte is masked by the
 * caller. */
INLINE __m256i move_bits(__m256i v, int from, int to)
{
    if (to > from) return _mm256_slli_epi16(v, to - from);
    if (to < from) return _mm256_srli_epi16(v, from - to);
    return v;
}

/* low | (high & mask) */
INLINE __m256i or_masked(__m256i low, __m256i high, __m256i mask)
{
    return _mm256_or_si256(low, _mm256_and_si256(high, mask));
}

/* Opens a block's quants for 8 outputs: w[g] has group g. 8 bits become signed. */
INLINE void open_block(const uint8_t *lines, int bits, __m256i w[8])
{
    const __m256i m15 = _mm256_set1_epi8(15), m3 = _mm256_set1_epi8(3);

    if (bits == 8) {
        for (int g = 0; g < 8; g++) w[g] = _mm256_xor_si256(line_at(lines, g), _mm256_set1_epi8(-128));
        return;
    }
    if (bits <= 3) {
        for (int g = 0; g < 8; g++) w[g] = _mm256_and_si256(move_bits(line_at(lines, g / 4), g % 4 * 2, 0), m3);
    } else {
        for (int g = 0; g < 8; g++) w[g] = _mm256_and_si256(move_bits(line_at(lines, g % 4), g / 4 * 4, 0), m15);
    }
    if (bits == 3) {
        for (int g = 0; g < 8; g++) w[g] = or_masked(w[g], move_bits(line_at(lines, 2), g, 2), _mm256_set1_epi8(4));
    } else if (bits == 5) {
        for (int g = 0; g < 8; g++) w[g] = or_masked(w[g], move_bits(line_at(lines, 4), g, 4), _mm256_set1_epi8(16));
    } else if (bits == 6) {
        for (int g = 0; g < 8; g++)
            w[g] = or_masked(w[g], move_bits(line_at(lines, 4 + g / 4), g % 4 * 2, 4), _mm256_set1_epi8(48));
    }
}

struct scales { __m256 d[2], m[2]; };

INLINE __m256 halves_at(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256 bytes_at(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

INLINE __m256 signed_bytes_at(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

INLINE __m256 negated(__m256 v)
{
    return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}

/* in_unit: which block of the unit. */
INLINE void open_scales(const uint8_t *unit, int kind, uint32_t half, uint32_t in_unit, struct scales *s)
{
    const uint8_t *bytes = unit + half * 8 + in_unit * 32;
    __m256 d = halves_at(unit + half * 16);

    if (kind == SCALES_D) {
        s->d[0] = d;
    } else if (kind == SCALES_DM) {
        s->d[0] = d;
        s->m[0] = halves_at(unit + 32 + half * 16);
    } else if (kind == SCALES_K) {
        for (int h = 0; h < 2; h++) s->d[h] = _mm256_mul_ps(d, signed_bytes_at(bytes + 32 + h * 16));
    } else if (kind == SCALES_KM) {
        s->d[0] = _mm256_mul_ps(d, bytes_at(bytes + 64));
        s->m[0] = negated(_mm256_mul_ps(halves_at(unit + 32 + half * 16), bytes_at(bytes + 64 + 16)));
    } else {
        for (int h = 0; h < 2; h++) {
            __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + 64 + h * 16)));

            s->d[h] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15))));
            s->m[h] = negated(
                _mm256_mul_ps(halves_at(unit + 32 + half * 16), _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 4))));
        }
    }
}

/* The exact dot of groups g0 .. g1-1 (4 or 8 of them) for one row, the offset taken off. */
INLINE __m256i dot_groups(const __m256i w[8], const int8_t *q, int32_t neg_sum, int bits, int offset_shift, int g0,
                          int g1)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int step = bits == 8 ? 1 : bits == 6 ? 2 : bits == 5 ? 4 : 8;
    __m256i s = _mm256_setzero_si256();

    if (offset_shift && bits != 8) s = _mm256_slli_epi32(_mm256_set1_epi32(neg_sum), offset_shift);
    for (int g = g0; g < g1; g += step) {
        __m256i words = _mm256_setzero_si256();

        for (int i = g; i < g + step && i < g1; i++) {
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

INLINE __m256 block_term(const __m256i w[8], const struct scales *s, const struct linear_act *a, int bits,
                         int offset_shift, int kind)
{
    __m256 t;

    if (kind == SCALES_K || kind == SCALES_K2) {
        __m256i s0 = dot_groups(w, a->q, a->neg_half[0], bits, offset_shift, 0, 4);
        __m256i s1 = dot_groups(w, a->q, a->neg_half[1], bits, offset_shift, 4, 8);

        t = _mm256_mul_ps(s->d[0], _mm256_cvtepi32_ps(s0));
        t = _mm256_fmadd_ps(s->d[1], _mm256_cvtepi32_ps(s1), t);
    } else {
        t = _mm256_mul_ps(s->d[0], _mm256_cvtepi32_ps(dot_groups(w, a->q, a->neg_sum, bits, offset_shift, 0, 8)));
    }
    if (kind == SCALES_K2) {
        t = _mm256_fmadd_ps(s->m[0], _mm256_set1_ps(a->half[0]), t);
        t = _mm256_fmadd_ps(s->m[1], _mm256_set1_ps(a->half[1]), t);
    } else if (kind == SCALES_DM || kind == SCALES_KM) {
        t = _mm256_fmadd_ps(s->m[0], _mm256_set1_ps(a->sum), t);
    }
    return t;
}

/* Writes the half tile's outputs; the last tile may have fewer. */
INLINE void store_rows(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t half, const __m256 acc[ROWS])
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int n_out = (int)t->n_out - (int)half * 8;
    __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n_out), lanes);

    if (n_out <= 0) return;
    for (int r = 0; r < n_rows; r++) {
        __m256 v = acc[r];

        if (t->bias) v = _mm256_add_ps(v, _mm256_maskload_ps(t->bias + half * 8, mask));
        _mm256_maskstore_ps(t->out + (row0 + (uint32_t)r) * t->out_stride + half * 8, mask, v);
    }
}

/* n_rows, bits, offset_shift, kind are constants where this is inlined; half (0, 1): outputs 0..7 or 8..15. */
INLINE void quant_rows(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t half, int bits,
                       int offset_shift, int kind)
{
    const struct linear_act *a = (const struct linear_act *)t->x + row0 * t->x_stride;
    const uint32_t n_blocks = t->n_in / LINEAR_BLOCK;
    const uint32_t block_bytes = (uint32_t)bits * 64;
    const uint32_t unit_blocks = kind == SCALES_D || kind == SCALES_DM ? 1 : 8;
    const uint32_t unit_bytes = kind == SCALES_D ? 32 : kind == SCALES_DM ? 64 : kind == SCALES_K ? 288 : 320;
    const uint8_t *lines = t->w + half * 32, *scales = t->w + (uint64_t)n_blocks * block_bytes;
    const uint64_t scale_bytes = (uint64_t)n_blocks / unit_blocks * unit_bytes;
    const struct stream_ahead ahead = stream_ahead_of(t->w, scales, scale_bytes);
    const bool first = row0 == 0 && half == 0;      /* later ones find the tile in the cache */
    __m256 acc[ROWS];

    for (int r = 0; r < n_rows; r++) acc[r] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < n_blocks; b++, lines += block_bytes) {
        const uint8_t *unit = scales + b / unit_blocks * unit_bytes;
        __m256i w[8];
        struct scales s;

        if (first) prefetch_block(&ahead, lines, block_bytes, b % unit_blocks ? NULL : unit, unit_bytes);
        open_block(lines, bits, w);
        open_scales(unit, kind, half, b % unit_blocks, &s);
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            const struct linear_act *row = a + (uint64_t)r * t->x_stride + b;

            acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(row->d), block_term(w, &s, row, bits, offset_shift, kind), acc[r]);
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

/* One function per type: both halves, rows by four, then what is left. */
#define TILE(name, rows_fn, ...)                                                                             \
    static void name(const struct linear_tile *t)                                                            \
    {                                                                                                        \
        for (uint32_t half = 0; half < 2; half++) {                                                          \
            uint32_t row = 0;                                                                                \
                                                                                                             \
            for (; row + 4 <= t->n_rows; row += 4) rows_fn(t, row, 4, half, __VA_ARGS__);                    \
            if (t->n_rows - row >= 2) { rows_fn(t, row, 2, half, __VA_ARGS__); row += 2; }                   \
            if (t->n_rows - row >= 1) rows_fn(t, row, 1, half, __VA_ARGS__);                                 \
        }                                                                                                    \
    }

TILE(tile_f32, float_rows, DTYPE_F32)
TILE(tile_f16, float_rows, DTYPE_F16)
TILE(tile_bf16, float_rows, DTYPE_BF16)
TILE(tile_q4_0, quant_rows, 4, 3, SCALES_D)
TILE(tile_q4_1, quant_rows, 4, 0, SCALES_DM)
TILE(tile_q5_0, quant_rows, 5, 4, SCALES_D)
TILE(tile_q5_1, quant_rows, 5, 0, SCALES_DM)
TILE(tile_q8_0, quant_rows, 8, 7, SCALES_D)
TILE(tile_q2_k, quant_rows, 2, 0, SCALES_K2)
TILE(tile_q3_k, quant_rows, 3, 2, SCALES_K)
TILE(tile_q4_k, quant_rows, 4, 0, SCALES_KM)
TILE(tile_q5_k, quant_rows, 5, 0, SCALES_KM)
TILE(tile_q6_k, quant_rows, 6, 5, SCALES_K)

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
    case DTYPE_Q2_K: return tile_q2_k;
    case DTYPE_Q3_K: return tile_q3_k;
    case DTYPE_Q4_K: return tile_q4_k;
    case DTYPE_Q5_K: return tile_q5_k;
    case DTYPE_Q6_K: return tile_q6_k;
    case DTYPE_NONE: break;
    }
    return NULL;
}

const struct cpu_linear_kernels linear_kernels_avx2 = {quantise_avx2, tile_avx2};
