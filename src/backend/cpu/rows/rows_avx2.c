/* backend/cpu/rows/rows_avx2.c - the row kernels for AVX2; written in rows_v16.h, but for two_dots4.
 *
 * Four rows of y and two x by lanes 0 .. 7 of each 16, then by 8 .. 15: 8 sums in registers for 6 loads, where two rows of y by all 16
 * lanes take 8. The sums of four are added up side by side. A core of a Zen 3, F16 in the L2 cache: 43 GMAC/s, 27 before.
 */
#include "backend/cpu/v16_avx2.h"
#define TWO_DOTS4(name) name##_halves_two_dots4
#include "backend/cpu/rows/rows_v16.h"

/* v16_tree of four: a[i] has lanes 0 .. 7 of the i-th, b[i] 8 .. 15. */
ALWAYS_INLINE __m128 four_trees(const __m256 *a, const __m256 *b)
{
    __m256 s8[4], s4[2], s2;
    __m128 even, odd, sums;

    for (int i = 0; i < 4; i++) s8[i] = _mm256_add_ps(a[i], b[i]);
    for (int i = 0; i < 2; i++)
        s4[i] = _mm256_add_ps(_mm256_permute2f128_ps(s8[2 * i], s8[2 * i + 1], 0x20),
                              _mm256_permute2f128_ps(s8[2 * i], s8[2 * i + 1], 0x31));
    s2 = _mm256_add_ps(_mm256_shuffle_ps(s4[0], s4[1], 0x44), _mm256_shuffle_ps(s4[0], s4[1], 0xee));
    even = _mm_shuffle_ps(_mm256_castps256_ps128(s2), _mm256_extractf128_ps(s2, 1), 0x88); /* of sums 0, 2, 1, 3 */
    odd = _mm_shuffle_ps(_mm256_castps256_ps128(s2), _mm256_extractf128_ps(s2, 1), 0xdd);
    sums = _mm_add_ps(even, odd);
    return _mm_shuffle_ps(sums, sums, 0xd8);
}

/* n: a multiple of 16. asks: for the next four rows, too. */
#define HALVES(name, type, LOAD8)                                                                                      \
    ALWAYS_INLINE void name##_half(const float *x, const float *z, const type *y, uint64_t stride, uint32_t n,         \
                                   const bool asks, __m256 s[4], __m256 t[4])                                          \
    {                                                                                                                  \
        const type *y1 = y + stride, *y2 = y1 + stride, *y3 = y2 + stride;                                             \
        __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;                \
                                                                                                                       \
        for (uint32_t i = 0; i < n; i += 16) {                                                                         \
            const __m256 v = _mm256_loadu_ps(x + i), w = _mm256_loadu_ps(z + i);                                       \
            const __m256 a0 = LOAD8(y + i), a1 = LOAD8(y1 + i), a2 = LOAD8(y2 + i), a3 = LOAD8(y3 + i);                \
                                                                                                                       \
            if (asks) {                                                                                                \
                __builtin_prefetch(y + 4 * stride + i, 0, 2), __builtin_prefetch(y1 + 4 * stride + i, 0, 2);           \
                __builtin_prefetch(y2 + 4 * stride + i, 0, 2), __builtin_prefetch(y3 + 4 * stride + i, 0, 2);          \
            }                                                                                                          \
            s0 = _mm256_fmadd_ps(v, a0, s0), t0 = _mm256_fmadd_ps(w, a0, t0);                                          \
            s1 = _mm256_fmadd_ps(v, a1, s1), t1 = _mm256_fmadd_ps(w, a1, t1);                                          \
            s2 = _mm256_fmadd_ps(v, a2, s2), t2 = _mm256_fmadd_ps(w, a2, t2);                                          \
            s3 = _mm256_fmadd_ps(v, a3, s3), t3 = _mm256_fmadd_ps(w, a3, t3);                                          \
        }                                                                                                              \
        s[0] = s0, s[1] = s1, s[2] = s2, s[3] = s3;                                                                    \
        t[0] = t0, t[1] = t1, t[2] = t2, t[3] = t3;                                                                    \
    }                                                                                                                  \
    static void name##_halves_two_dots4(const float *const *x, const void *y, uint32_t stride, uint32_t n, float *out) \
    {                                                                                                                  \
        __m256 s[2][4], t[2][4];                                                                                       \
                                                                                                                       \
        if (n % 16) {                                                                                                  \
            name##_two_dots4(x, y, stride, n, out);                                                                    \
            return;                                                                                                    \
        }                                                                                                              \
        name##_half(x[0], x[1], y, stride, n, true, s[0], t[0]);                                                       \
        name##_half(x[0] + 8, x[1] + 8, (const type *)y + 8, stride, n, false, s[1], t[1]);                            \
        _mm_storeu_ps(out, four_trees(s[0], s[1]));                                                                    \
        _mm_storeu_ps(out + 4, four_trees(t[0], t[1]));                                                                \
    }

HALVES(v16_f32, float, _mm256_loadu_ps)
HALVES(v16_f16, uint16_t, v8_load_half)
HALVES(v16_bf16, uint16_t, v8_load_bf16)

const struct cpu_row_kernels cpu_rows_avx2 = ROW_KERNELS_V16;
