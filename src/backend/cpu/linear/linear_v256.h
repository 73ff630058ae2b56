/* backend/cpu/linear/linear_v256.h - a block of packed weights opened to bytes with AVX2, and what else its kernels share.
 * Included by linear_avx2.c and linear_k_avx2.c. Layouts: linear_kernels.h.
 */
#pragma once
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "backend/cpu/linear/linear_kernels.h"
#include "base/checked.h"

#define INLINE static inline __attribute__((always_inline))
#define ROWS   4
#define MANY   128 /* rows that meet weights opened before */
#define OPENED 0   /* bits of those */

INLINE int32_t sum_of(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

INLINE int32_t max_of(__m256i v)
{
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

/* 16 int32 in -128 .. 127 to bytes, in order. */
INLINE __m128i bytes_of(__m256i a, __m256i b)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);

    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
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

/* Group g of a block, opened, for 8 outputs; 8 bits become signed. */
INLINE __m256i group_at(const uint8_t *lines, int bits, int g)
{
    const __m256i m15 = _mm256_set1_epi8(15), m3 = _mm256_set1_epi8(3);
    __m256i w;

    if (bits == OPENED) return line_at(lines, g);
    if (bits == 8) return _mm256_xor_si256(line_at(lines, g), _mm256_set1_epi8(-128));
    if (bits <= 3)
        w = _mm256_and_si256(move_bits(line_at(lines, g / 4), g % 4 * 2, 0), m3);
    else
        w = _mm256_and_si256(move_bits(line_at(lines, g % 4), g / 4 * 4, 0), m15);
    if (bits == 3) return or_masked(w, move_bits(line_at(lines, 2), g, 2), _mm256_set1_epi8(4));
    if (bits == 5) return or_masked(w, move_bits(line_at(lines, 4), g, 4), _mm256_set1_epi8(16));
    if (bits == 6) return or_masked(w, move_bits(line_at(lines, 4 + g / 4), g % 4 * 2, 4), _mm256_set1_epi8(48));
    return w;
}

/* Opens a block's quants: [8 groups] lines. */
INLINE void open_block(const uint8_t *lines, int bits, uint8_t *out)
{
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++)
        for (int half = 0; half < 2; half++)
            _mm256_store_si256((__m256i *)(void *)(out + g * 64 + half * 32), group_at(lines + half * 32, bits, g));
}

/* Tells the compiler nothing but that v is wanted now: gcc adds products up as a tree otherwise, for which it has too
 * few registers (many rows of Q4_K: 91, with this 125 G products a second of one Zen 4 core). */
INLINE void keep_order(__m256i *v)
{
    __asm__("" : "+x"(*v));
}

/* *words += product, in 16 bits; is_first: = product. */
INLINE void add_words(__m256i *words, __m256i product, bool is_first)
{
    *words = is_first ? product : _mm256_add_epi16(*words, product);
    keep_order(words);
}

/* *sum += words * by, of neighbours together, in 32 bits. */
INLINE void add_widened(__m256i *sum, __m256i words, __m256i by)
{
    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, by));
    keep_order(sum);
}

/* 4 activations, 8 times. */
INLINE __m256i four_at(const int8_t *q)
{
    int32_t four;

    memcpy(&four, q, sizeof(four));
    return _mm256_set1_epi32(four);
}

INLINE __m256 halves_at(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Writes a tile's outputs; the last tile may have fewer. */
INLINE void store_rows(const struct linear_tile *t, uint32_t row0, int n_rows, __m256 (*acc)[2])
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

    for (int half = 0; half < 2; half++) {
        int n_out = (int)t->n_out - half * 8;
        __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(n_out), lanes);

        if (n_out <= 0) return;
        for (int r = 0; r < n_rows; r++) {
            __m256 v = acc[r][half];

            if (t->bias) v = _mm256_add_ps(v, _mm256_maskload_ps(t->bias + half * 8, mask));
            _mm256_maskstore_ps(t->out + (row0 + (uint32_t)r) * t->out_stride + half * 8, mask, v);
        }
    }
}

/* Rows go by fours, then two, then one: the first of them wait for weights from memory, so that what comes after the product is
 * asked for by the others, if there are any. */
INLINE bool soon_is_asked(const struct linear_tile *t, uint32_t row0)
{
    return row0 > 0 || t->n_rows <= ROWS;
}

/* One function per type: rows by up to `most`, a multiple of four, then what is left. */
#define TILE(name, most, rows_fn, ...)                                                                                 \
    static void name(const struct linear_tile *t)                                                                      \
    {                                                                                                                  \
        uint32_t row = 0;                                                                                              \
                                                                                                                       \
        while (most > ROWS && t->n_rows - row >= 3 * ROWS) { /* fewer are not worth it */                              \
            uint32_t n = u32_min(most, (t->n_rows - row) / ROWS * ROWS);                                               \
                                                                                                                       \
            rows_fn(t, row, (int)n, __VA_ARGS__);                                                                      \
            row += n;                                                                                                  \
        }                                                                                                              \
        for (; t->n_rows - row >= ROWS; row += ROWS) rows_fn(t, row, ROWS, __VA_ARGS__);                               \
        if (t->n_rows - row >= 2) {                                                                                    \
            rows_fn(t, row, 2, __VA_ARGS__);                                                                           \
            row += 2;                                                                                                  \
        }                                                                                                              \
        if (t->n_rows - row >= 1) rows_fn(t, row, 1, __VA_ARGS__);                                                     \
    }
