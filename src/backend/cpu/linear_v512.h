/* backend/cpu/linear_v512.h - a block of packed weights opened with AVX-512: quants as bytes, scales as floats.
 * Included by linear_avx512.c and linear_amx.c. Layouts: linear_kernels.h.
 */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include "backend/cpu/linear_kernels.h"

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

struct scales { __m512 d[2], m[2]; };

INLINE __m512 halves_at(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 bytes_at(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE __m512 signed_bytes_at(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE __m512 negated(__m512 v)
{
    return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
}

/* in_unit: which block of the unit. */
INLINE void open_scales(const uint8_t *unit, int kind, uint32_t in_unit, struct scales *s)
{
    __m512 d = halves_at(unit);

    if (kind == SCALES_D) {
        s->d[0] = d;
    } else if (kind == SCALES_DM) {
        s->d[0] = d;
        s->m[0] = halves_at(unit + 32);
    } else if (kind == SCALES_K) {
        for (int h = 0; h < 2; h++) s->d[h] = _mm512_mul_ps(d, signed_bytes_at(unit + 32 + in_unit * 32 + h * 16));
    } else if (kind == SCALES_KM) {
        s->d[0] = _mm512_mul_ps(d, bytes_at(unit + 64 + in_unit * 32));
        s->m[0] = negated(_mm512_mul_ps(halves_at(unit + 32), bytes_at(unit + 64 + in_unit * 32 + 16)));
    } else {
        for (int h = 0; h < 2; h++) {
            __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(unit + 64 + in_unit * 32 + h * 16)));

            s->d[h] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15))));
            s->m[h] = negated(_mm512_mul_ps(halves_at(unit + 32), _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4))));
        }
    }
}
