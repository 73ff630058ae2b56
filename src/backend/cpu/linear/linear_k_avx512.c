/* backend/cpu/linear/linear_k_avx512.c - linear of K types with AVX-512 and VNNI: one output per 32-bit lane.
 *
 * Sums          as linear_kernels.h, all integer until a unit of 256 k is complete. A block's dot (vpdpbusd, u8
 *               weights) times its scale (vpmulld) adds to the unit's sum. What does not depend on the weights comes at
 *               the unit's end from the activations' sums, two parts per vpdpwssd: mins, or what the offset of signed
 *               quants makes, offset * sum of scale_j * sum_j(q).
 * Work          up to 8 rows share a tile: a block's quants are opened into 8 registers once, then meet four rows at a
 *               time. With one row a tile is a stream of whole cache lines, read once.
 * Bytes         per weight as in the file (Q4_K 0.58): decode is bound by memory, many rows by vpdpbusd.
 */
#include "backend/cpu/linear/linear_kernels.h"
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear/linear_prefetch.h"
#include "backend/cpu/linear/linear_v512.h"

#define ROWS 8

/* 64 activations to bytes; part: the sums of 4 k in 16 lanes. */
INLINE __m512i quantise_64(const float *x, __m512 scale, int8_t *q)
{
    for (int i = 0; i < 4; i++) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), scale));

        _mm_storeu_si128((__m128i *)(q + 16 * i), _mm512_cvtepi32_epi8(v));
    }
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(q));
}

static void quantise_unit(const float *x, struct linear_unit *out)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i top = _mm512_setzero_si512(), v[4], a, b;
    int32_t bits;
    float amax;

    for (int i = 0; i < 16; i++)
        top = _mm512_max_epi32(top, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 16 * i)), magnitude));
    bits = _mm512_reduce_max_epi32(top);
    memcpy(&amax, &bits, sizeof(amax));
    memset(out->unused, 0, sizeof(out->unused));
    if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) {
        memset(out, 0, sizeof(*out));
        if (bits >= 0x7f800000) out->d = NAN;
        return;
    }
    out->d = amax / 127.0f;
    for (int i = 0; i < 4; i++) v[i] = quantise_64(x + 64 * i, _mm512_set1_ps(127.0f / amax), out->q + 64 * i);
    a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    a = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)); /* lane 4 l + i: part 4 i + l */
    a = _mm512_permutexvar_epi32(order, a);
    _mm256_storeu_si256((__m256i *)out->sum16, _mm512_cvtepi32_epi16(a));
    a = _mm512_add_epi32(a, _mm512_srli_epi64(a, 32)); /* even lanes: sums of 32 k */
    _mm_storeu_si128((__m128i *)out->sum32, _mm512_cvtepi64_epi16(a));
}

static void quantise_k_avx512(const float *x, uint32_t n_in, void *acts)
{
    struct linear_unit *out = acts;

    for (uint32_t i = 0; i < n_in / LINEAR_UNIT; i++) quantise_unit(x + i * LINEAR_UNIT, out + i);
}

/* Two parts' bytes of each output, as pairs of 16 bits: parts of 16 k, of SCALES_KM mins of 32 k. */
INLINE __m512i pair_at(const uint8_t *unit, int kind, int j)
{
    const uint8_t *p = kind == SCALES_K    ? unit + 32 + j * 32
                       : kind == SCALES_KM ? unit + 80 + j * 64
                                           : unit + 64 + j * 32;
    const uint8_t *odd = p + (kind == SCALES_KM ? 32 : 16);
    __m512i v = _mm512_or_si512(bytes_at(p), _mm512_slli_epi32(bytes_at(odd), 16));

    if (kind == SCALES_K) return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8);
    if (kind == SCALES_K2) return _mm512_srli_epi16(v, 4);
    return v;
}

/* The scale of block b's half. */
INLINE __m512i scale_at(const uint8_t *unit, int kind, int b, int half)
{
    if (kind == SCALES_KM) return bytes_at(unit + 64 + b * 32);
    if (kind == SCALES_K2) return _mm512_and_si512(bytes_at(unit + 64 + b * 32 + half * 16), _mm512_set1_epi32(15));
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(unit + 32 + b * 32 + half * 16)));
}

/* sum += scale * dot, for groups g0 .. g0 + n_groups - 1 of up to 4 rows, whose activations of the block lie at q. */
INLINE void block_rows(const __m512i w[8], __m512i scale, const int8_t *q, uint64_t q_stride, int n, int g0,
                       int n_groups, __m512i *sum)
{
    __m512i dot[4];

#pragma GCC unroll 4
    for (int r = 0; r < n; r++) dot[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int g = g0; g < g0 + n_groups; g++) {
#pragma GCC unroll 4
        for (int r = 0; r < n; r++) dot[r] = dot_group(dot[r], w[g], q + (uint64_t)r * q_stride + 4 * g);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(scale, dot[r]));
}

/* What the activations' sums add, then the unit's float step. */
INLINE void finish_unit(const uint8_t *unit, const struct linear_unit *a, uint64_t x_stride, int n_rows,
                        int offset_shift, int kind, const __m512i *sum, __m512 *acc)
{
    const int n_pairs = kind == SCALES_KM ? 4 : 8;
    const __m512 d = halves_at(unit);
    __m512i pairs[8];

    for (int j = 0; j < n_pairs; j++) pairs[j] = pair_at(unit, kind, j);
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
        const struct linear_unit *row = a + (uint64_t)r * x_stride;
        const int16_t *sums = kind == SCALES_KM ? row->sum32 : row->sum16;
        __m512i low = _mm512_setzero_si512();
        __m512 t;

        for (int j = 0; j < n_pairs; j++) {
            int32_t two;

            memcpy(&two, sums + 2 * j, sizeof(two));
            low = _mm512_dpwssd_epi32(low, pairs[j], _mm512_set1_epi32(two));
        }
        if (kind == SCALES_K) {
            __m512i s = _mm512_sub_epi32(sum[r], _mm512_slli_epi32(low, (unsigned)offset_shift));

            t = _mm512_mul_ps(d, _mm512_cvtepi32_ps(s));
        } else {
            t = _mm512_mul_ps(d, _mm512_cvtepi32_ps(sum[r]));
            t = _mm512_fnmadd_ps(halves_at(unit + 32), _mm512_cvtepi32_ps(low), t);
        }
        acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(row->d), t, acc[r]);
    }
}

/* n_rows, bits, offset_shift, kind are constants where this is inlined. */
INLINE void k_rows(const struct linear_tile *t, uint32_t row0, int n_rows, int bits, int offset_shift, int kind)
{
    const struct linear_unit *a = (const struct linear_unit *)t->x + row0 * t->x_stride;
    const uint32_t n_units = t->n_in / LINEAR_UNIT, block_bytes = (uint32_t)bits * 64;
    const uint32_t unit_bytes = LINEAR_SCALE_BYTES(kind);
    const uint64_t q_stride = t->x_stride * sizeof(*a);
    const uint8_t *lines = t->w, *unit = t->w + (uint64_t)n_units * 8 * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(lines, unit, (uint64_t)n_units * unit_bytes, t->ask_l2);
    const bool first = row0 == 0, opens = first && !t->again; /* later rows find the tile in the cache */
    __m512 acc[ROWS];

    for (int r = 0; r < n_rows; r++) acc[r] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n_units; i++, a++, unit += unit_bytes) {
        __m512i sum[ROWS];

        for (int r = 0; r < n_rows; r++) sum[r] = _mm512_setzero_si512();
        for (int b = 0; b < 8; b++, lines += block_bytes) {
            const int n_halves = kind == SCALES_KM ? 1 : 2, n_groups = 8 / n_halves;
            __m512i w[8];

            if (opens) prefetch_block(&ahead, lines, block_bytes, b ? NULL : unit, unit_bytes);
            if (first) prefetch_soon(t->soon, 1);
            open_block(lines, bits, w);
            for (int h = 0; h < n_halves; h++) {
                const __m512i scale = scale_at(unit, kind, b, h);
                const int8_t *q = a->q + b * 32;

                block_rows(w, scale, q, q_stride, n_rows < 4 ? n_rows : 4, h * n_groups, n_groups, sum);
                if (n_rows > 4)
                    block_rows(w, scale, q + 4 * q_stride, q_stride, n_rows - 4, h * n_groups, n_groups, sum + 4);
            }
        }
        finish_unit(unit, a, t->x_stride, n_rows, offset_shift, kind, sum, acc);
    }
    store_rows(t, row0, n_rows, acc);
}

#define K_TILE(tag, type, bits, offset_shift, scales) TILE(tile_##tag, k_rows, bits, offset_shift, scales)
LINEAR_K_FORMS(K_TILE)

static linear_tile_fn *tile_k_avx512(enum dtype type)
{
    switch (type) {
        LINEAR_K_FORMS(LINEAR_TILE_CASE)
    default:
        return NULL;
    }
}

const struct cpu_linear_kernels linear_k_kernels_avx512 = {LINEAR_UNIT, sizeof(struct linear_unit), quantise_k_avx512,
                                                           tile_k_avx512, NULL};
