/* backend/cpu/linear/linear_avx2.c - linear of block types with AVX2 (floats: linear_float_avx2.c): one output per 32-bit lane; a tile is
 * two halves of 8 outputs.
 *
 * Sums          as linear_kernels.h. vpmaddubsw multiplies u8 weights by int8 activations into pairs of 16 bits; as
 *               many are added in 16 bits as cannot overflow (u <= 15: 8 groups, <= 31: 4), then vpmaddwd widens. 8-bit
 *               weights are taken as signed: |w| times q with w's sign, at most 2 * 128 * 127 < 2^15, or, from 12 rows
 *               on, both as words whose pairs vpmaddwd adds up; their dot needs no offset.
 * Work          up to 4 rows share a tile, a group of which is opened where it is multiplied: 8 sums of 16 bits stay in
 *               registers, 4 rows by both halves, and each activation loaded meets both. From 12 rows on 5-bit blocks
 *               and those of 8 bits are opened once, into the L1 cache, for up to MANY.
 * Bytes         per weight as in the file; decode is bound by memory, many rows by vpmaddubsw and what widens it.
 * Measured      one thread of a Zen 4 (3.7 GHz), weights in L2, G products a second of 16 and 64 rows: Q4_0 and Q4_1
 *               115, 117, Q5_0 109, 110, Q8_0 58, 60 (as few rows do it 46, 57), Q4_K 126, 138, Q6_K 90, 100 (vpmaddubsw and vpmaddwd in turns, as
 *               one alone widens: 96); one row, from memory, 21 to 29 GB of weights a second of 27.
 */
#include "backend/cpu/linear/linear_kernels.h"
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear/linear_prefetch.h"
#include "backend/cpu/linear/linear_v256.h"

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

/* dot += groups g0 .. g1 - 1 of a block, of both halves and n rows. */
INLINE void add_groups(const uint8_t *lines, int bits, bool opened, int g0, int g1, const struct linear_act *a,
                       uint64_t x_stride, int n, __m256i dot[2][ROWS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i words[2][ROWS];

#pragma GCC unroll 8
    for (int g = g0; g < g1; g++) {
        const __m256i w0 = group_at(lines, opened ? OPENED : bits, g);
        const __m256i w1 = group_at(lines + 32, opened ? OPENED : bits, g);

#pragma GCC unroll 4
        for (int r = 0; r < n; r++) {
            const __m256i x = four_at(a[(uint64_t)r * x_stride].q + 4 * g);
            __m256i p0, p1;

            if (bits == 8) {
                p0 = _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(x, w0));
                p1 = _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(x, w1));
            } else {
                p0 = _mm256_maddubs_epi16(w0, x);
                p1 = _mm256_maddubs_epi16(w1, x);
            }
            add_words(&words[0][r], p0, g == g0);
            add_words(&words[1][r], p1, g == g0);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++) {
        add_widened(&dot[0][r], words[0][r], ones);
        add_widened(&dot[1][r], words[1][r], ones);
    }
}

/* acc += a block's dots by its scales and those of the rows. n_rows, kind are constants where this is inlined. */
INLINE void add_scaled(__m256i dot[2][ROWS], const uint8_t *unit, const struct linear_act *a, uint64_t x_stride,
                       int n_rows, int kind, __m256 (*acc)[2])
{
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __m256 d = halves_at(unit + half * 16);
        const __m256 m = kind == SCALES_DM ? halves_at(unit + 32 + half * 16) : _mm256_setzero_ps();

#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++) {
            const struct linear_act *row = a + (uint64_t)r * x_stride;
            __m256 v = _mm256_mul_ps(d, _mm256_cvtepi32_ps(dot[half][r]));

            if (kind == SCALES_DM) v = _mm256_fmadd_ps(m, _mm256_set1_ps(row->sum), v);
            acc[r][half] = _mm256_fmadd_ps(_mm256_set1_ps(row->d), v, acc[r][half]);
        }
    }
}

/* A block of up to 4 rows. lines: as packed, or opened. n_rows, bits, opened, offset_shift, kind are constants where
 * this is inlined. */
INLINE void block_rows(const uint8_t *lines, const uint8_t *unit, const struct linear_act *a, uint64_t x_stride,
                       int n_rows, int bits, bool opened, int offset_shift, int kind, __m256 (*acc)[2])
{
    const int step = bits == 8 ? 1 : bits == 5 ? 4 : 8; /* groups whose sum fits 16 bits */
    __m256i dot[2][ROWS];

#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++) {
        const int32_t neg_sum = a[(uint64_t)r * x_stride].neg_sum;

        dot[0][r] = offset_shift && bits != 8 ? _mm256_slli_epi32(_mm256_set1_epi32(neg_sum), offset_shift)
                                              : _mm256_setzero_si256();
        dot[1][r] = dot[0][r];
    }
#pragma GCC unroll 8
    for (int g = 0; g < 8; g += step) add_groups(lines, bits, opened, g, g + step, a, x_stride, n_rows, dot);
    add_scaled(dot, unit, a, x_stride, n_rows, kind, acc);
}

/* ---- many rows of 8-bit blocks: words of 16 bits on both sides, whose pairs vpmaddwd adds up, and no sign to move ---- */

/* Of 16-bit lanes the low bytes, the high ones, signed. */
INLINE __m256i low_words(__m256i bytes)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
}
INLINE __m256i high_words(__m256i bytes)
{
    return _mm256_srai_epi16(bytes, 8);
}

/* A block's quants as words: [8 groups][k 0 and 2 | 1 and 3][2 halves] vectors. */
INLINE void open_words(const uint8_t *lines, uint8_t *out)
{
    __m256i *to = (__m256i *)(void *)out;

#pragma GCC unroll 8
    for (int g = 0; g < 8; g++, to += 4)
        for (int half = 0; half < 2; half++) {
            const __m256i w = group_at(lines + half * 32, 8, g);

            _mm256_store_si256(to + half, low_words(w));
            _mm256_store_si256(to + 2 + half, high_words(w));
        }
}

/* block_rows of ROWS rows and a block that open_words opened; its sums need no offset. */
INLINE void word_block_rows(const uint8_t *words, const uint8_t *unit, const struct linear_act *a, uint64_t x_stride,
                            __m256 (*acc)[2])
{
    _Alignas(32) int32_t x[ROWS][2][8]; /* [row][low | high words][group] */
    __m256i dot[2][ROWS];

#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
        const __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)a[(uint64_t)r * x_stride].q);

        _mm256_store_si256((__m256i *)(void *)x[r][0], low_words(q));
        _mm256_store_si256((__m256i *)(void *)x[r][1], high_words(q));
        dot[0][r] = dot[1][r] = _mm256_setzero_si256();
    }
    __asm__("" : "+m"(x)); /* they are read from there: a broadcast from memory costs no shuffle */
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const __m256i w0 = _mm256_load_si256((const __m256i *)(const void *)(words + i * 64));
        const __m256i w1 = _mm256_load_si256((const __m256i *)(const void *)(words + i * 64 + 32));

#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const __m256i pair = _mm256_set1_epi32(x[r][i % 2][i / 2]);

            add_widened(&dot[0][r], w0, pair);
            add_widened(&dot[1][r], w1, pair);
        }
    }
    add_scaled(dot, unit, a, x_stride, ROWS, SCALES_D, acc);
}

/* n_rows: 1, 2, 4, or a multiple of 4 up to MANY, which meet blocks opened before. */
INLINE void quant_rows(const struct linear_tile *t, uint32_t row0, int n_rows, int bits, int offset_shift, int kind)
{
    const struct linear_act *a = (const struct linear_act *)t->x + row0 * t->x_stride;
    const uint32_t n_blocks = t->n_in / LINEAR_BLOCK;
    const uint32_t block_bytes = (uint32_t)bits * 64, unit_bytes = LINEAR_SCALE_BYTES(kind);
    const uint8_t *lines = t->w, *unit = t->w + (uint64_t)n_blocks * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(t->w, unit, (uint64_t)n_blocks * unit_bytes, t->ask_l2);
    const bool first = row0 == 0, asks = soon_is_asked(t, row0); /* later rows find the tile in the cache */
    __m256 acc[MANY][2];

    for (int r = 0; r < n_rows; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    for (uint32_t b = 0; b < n_blocks; b++, a++, lines += block_bytes, unit += unit_bytes) {
        if (first) prefetch_block(&ahead, lines, block_bytes, unit, unit_bytes);
        if (asks) prefetch_soon(t->soon, 1);
        if (n_rows > ROWS) {
            _Alignas(64) uint8_t opened[16 * 64];

            if (bits == 8)
                open_words(lines, opened);
            else
                open_block(lines, bits, opened);
            for (int r = 0; r < n_rows; r += ROWS) {
                const struct linear_act *row = a + (uint64_t)r * t->x_stride;

                if (r > 0) prefetch_soon(t->soon, 1);
                if (bits == 8)
                    word_block_rows(opened, unit, row, t->x_stride, acc + r);
                else
                    block_rows(opened, unit, row, t->x_stride, ROWS, bits, true, offset_shift, kind, acc + r);
            }
        } else {
            block_rows(lines, unit, a, t->x_stride, n_rows, bits, false, offset_shift, kind, acc);
        }
    }
    store_rows(t, row0, n_rows, acc);
}

#define QUANT_TILE(tag, type, bits, offset_shift, scales)                                                              \
    TILE(tile_##tag, (bits == 5 || bits == 8 ? MANY : ROWS), quant_rows, bits, offset_shift, scales)
LINEAR_BLOCK_FORMS(QUANT_TILE)

static linear_tile_fn *tile_avx2(enum dtype type)
{
    switch (type) {
        LINEAR_BLOCK_FORMS(LINEAR_TILE_CASE)
    default:
        return linear_float_tile_avx2(type);
    }
}

const struct cpu_linear_kernels linear_kernels_avx2 = {LINEAR_BLOCK, sizeof(struct linear_act), quantise_avx2,
                                                       tile_avx2, &linear_k_kernels_avx2};
