/* backend/cpu/linear/linear_v512.h - a block of packed weights opened to bytes with AVX-512, and what else its kernels share.
 * Included by linear_avx512.c, linear_amx.c, linear_k_avx512.c and linear_k_amx.c. Layouts: linear_kernels.h.
 */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include "backend/cpu/linear/linear_kernels.h"
#include "base/checked.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i line_at(const uint8_t *lines, int i)
{
    return _mm512_load_si512((const void *)(lines + i * 64));
}

/* Moves a bit field at bit `from` of every byte to bit `to`; what comes over from the neighbour byte is masked by the
 * caller. */
INLINE __m512i move_bits(__m512i v, int from, int to)
{
    if (to > from) return _mm512_slli_epi16(v, (unsigned)(to - from));
    if (to < from) return _mm512_srli_epi16(v, (unsigned)(from - to));
    return v;
}

/* low | (high & mask) */
INLINE __m512i or_masked(__m512i low, __m512i high, __m512i mask)
{
    return _mm512_ternarylogic_epi32(low, high, mask, 0xf8);
}

/* Opens a block's quants: w[g] has group g. */
INLINE void open_block(const uint8_t *lines, int bits, __m512i w[8])
{
    const __m512i m15 = _mm512_set1_epi8(15), m3 = _mm512_set1_epi8(3);

    if (bits == 8) {
        for (int g = 0; g < 8; g++) w[g] = line_at(lines, g);
        return;
    }
    if (bits <= 3) {
        for (int g = 0; g < 8; g++) w[g] = _mm512_and_si512(move_bits(line_at(lines, g / 4), g % 4 * 2, 0), m3);
    } else {
        for (int g = 0; g < 8; g++) w[g] = _mm512_and_si512(move_bits(line_at(lines, g % 4), g / 4 * 4, 0), m15);
    }
    if (bits == 3) {
        for (int g = 0; g < 8; g++) w[g] = or_masked(w[g], move_bits(line_at(lines, 2), g, 2), _mm512_set1_epi8(4));
    } else if (bits == 5) {
        for (int g = 0; g < 8; g++) w[g] = or_masked(w[g], move_bits(line_at(lines, 4), g, 4), _mm512_set1_epi8(16));
    } else if (bits == 6) {
        for (int g = 0; g < 8; g++)
            w[g] = or_masked(w[g], move_bits(line_at(lines, 4 + g / 4), g % 4 * 2, 4), _mm512_set1_epi8(48));
    }
}

INLINE __m512 halves_at(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* 16 unsigned bytes. */
INLINE __m512i bytes_at(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m512i dot_group(__m512i s, __m512i w, const int8_t *four_q)
{
    int32_t four;

    memcpy(&four, four_q, sizeof(four));
    return _mm512_dpbusd_epi32(s, w, _mm512_set1_epi32(four));
}

INLINE void store_rows(const struct linear_tile *t, uint32_t row0, int n_rows, const __m512 *acc)
{
    __mmask16 mask = (__mmask16)((1u << t->n_out) - 1);
    __m512 bias = t->bias ? _mm512_maskz_loadu_ps(mask, t->bias) : _mm512_setzero_ps();

    for (int r = 0; r < n_rows; r++) {
        __m512 v = t->bias ? _mm512_add_ps(acc[r], bias) : acc[r];

        _mm512_mask_storeu_ps(t->out + (row0 + (uint32_t)r) * t->out_stride, mask, v);
    }
}

/* One function per type: all rows, in groups of at most eight that are as equal as can be. rows_fn is inlined: n_rows is a
 * constant there. */
#define TILE(name, rows_fn, ...)                                                                                       \
    static void name(const struct linear_tile *t)                                                                      \
    {                                                                                                                  \
        uint32_t n_groups = u32_ceil_div(t->n_rows, 8);                                                                \
                                                                                                                       \
        for (uint32_t row = 0, n; row < t->n_rows; row += n, n_groups--) {                                             \
            n = u32_ceil_div(t->n_rows - row, n_groups);                                                               \
            switch (n) {                                                                                               \
                TILE_ROWS(1, rows_fn, __VA_ARGS__)                                                                     \
                TILE_ROWS(2, rows_fn, __VA_ARGS__)                                                                     \
                TILE_ROWS(3, rows_fn, __VA_ARGS__)                                                                     \
                TILE_ROWS(4, rows_fn, __VA_ARGS__)                                                                     \
                TILE_ROWS(5, rows_fn, __VA_ARGS__)                                                                     \
                TILE_ROWS(6, rows_fn, __VA_ARGS__)                                                                     \
                TILE_ROWS(7, rows_fn, __VA_ARGS__)                                                                     \
                TILE_ROWS(8, rows_fn, __VA_ARGS__)                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }
#define TILE_ROWS(n_here, rows_fn, ...)                                                                                \
    case n_here:                                                                                                       \
        rows_fn(t, row, n_here, __VA_ARGS__);                                                                          \
        break;
