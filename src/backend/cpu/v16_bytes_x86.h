/* backend/cpu/v16_bytes_x86.h - sixteen bytes, the quants of half a block; the part of v16_avx2.h and v16_avx512.h that
 * is the same in both.
 */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m128i b16;

static inline b16 b16_load(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
static inline void b16_store(uint8_t *p, b16 b)
{
    _mm_storeu_si128((__m128i *)(void *)p, b);
}
static inline b16 b16_zero(void)
{
    return _mm_setzero_si128();
}

/* The low or high four bits of every byte, less 8. */
static inline b16 b16_low_nibbles(b16 q)
{
    return _mm_sub_epi8(_mm_and_si128(q, _mm_set1_epi8(15)), _mm_set1_epi8(8));
}
static inline b16 b16_high_nibbles(b16 q)
{
    return b16_low_nibbles(_mm_srli_epi16(q, 4));
}

static inline b16 b16_nibble(b16 q)
{
    q = _mm_adds_epi8(q, _mm_set1_epi8(8));
    return _mm_min_epi8(_mm_max_epi8(q, _mm_setzero_si128()), _mm_set1_epi8(15));
}
/* The reverse: both plus 8, within 0 .. 15. */
static inline b16 b16_join_nibbles(b16 low, b16 high)
{
    return _mm_or_si128(b16_nibble(low), _mm_slli_epi16(b16_nibble(high), 4));
}

static inline float half_at(const uint8_t *p)
{
    uint16_t half;

    memcpy(&half, p, sizeof(half));
    return _cvtsh_ss(half);
}
