/* bench/kernels/peak_avx2.c - the most that AVX2 multiplies: fma of floats; bytes by maddubs, madd and add, which is
 * what a dot product of int8 takes there. Ten or twelve independent sums hide the latency. Also starts the other units.
 */
#include <immintrin.h>
#include "bench_kernels.h"

static volatile float float_sink;
static volatile int int_sink;

static double fma_rounds(uint64_t n)
{
    __m256 s[12], a = _mm256_set1_ps(1.000001f), b = _mm256_set1_ps(1e-9f), all;

    for (int i = 0; i < 12; i++) s[i] = _mm256_set1_ps((float)i);
    for (uint64_t k = 0; k < n; k++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) s[i] = _mm256_fmadd_ps(s[i], a, b);
    }
    all = s[0];
    for (int i = 1; i < 12; i++) all = _mm256_add_ps(all, s[i]);
    float_sink = _mm256_cvtss_f32(all);
    return (double)n * 12 * 8 * 2;
}

static double int8_rounds(uint64_t n)
{
    __m256i s[10], a = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1), x = _mm256_set1_epi8(1), all;

    for (int i = 0; i < 10; i++) s[i] = _mm256_set1_epi32(i);
    for (uint64_t k = 0; k < n; k++) {
        __asm__ volatile("" : "+x"(x)); /* not the same product as in the last round, as far as gcc sees */
#pragma GCC unroll 10
        for (int i = 0; i < 10; i++) {
            __m256i p = _mm256_maddubs_epi16(a, x);
            __asm__ volatile("" : "+x"(p)); /* nor the same for every sum */
            s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(p, ones));
        }
    }
    all = s[0];
    for (int i = 1; i < 10; i++) all = _mm256_add_epi32(all, s[i]);
    int_sink = _mm256_extract_epi32(all, 0);
    return (double)n * 10 * 32 * 2;
}

const struct peak peaks_avx2[2] = {{"AVX2 fma", UNIT_AVX2_FMA, CPU_ISA_AVX2, fma_rounds},
                                   {"AVX2 maddubs + madd", UNIT_AVX2_INT8, CPU_ISA_AVX2, int8_rounds}};

void bench_peaks(struct bench *b)
{
    for (int i = 0; i < 2; i++) bench_peak(b, &peaks_avx2[i]);
    for (int i = 0; i < 2; i++) bench_peak(b, &peaks_avx512[i]);
    for (int i = 0; i < 2; i++) bench_peak(b, &peaks_amx[i]);
}
