/* bench/kernels/peak_avx512.c - the most that AVX-512 multiplies: fma of floats, vpdpbusd of bytes (VNNI). Sixteen
 * independent sums.
 */
#include <immintrin.h>
#include "bench_kernels.h"

static volatile float float_sink;
static volatile int int_sink;

static double fma_rounds(uint64_t n)
{
    __m512 s[16], a = _mm512_set1_ps(1.000001f), b = _mm512_set1_ps(1e-9f), all;

    for (int i = 0; i < 16; i++) s[i] = _mm512_set1_ps((float)i);
    for (uint64_t k = 0; k < n; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) s[i] = _mm512_fmadd_ps(s[i], a, b);
    }
    all = s[0];
    for (int i = 1; i < 16; i++) all = _mm512_add_ps(all, s[i]);
    float_sink = _mm512_reduce_add_ps(all);
    return (double)n * 16 * 16 * 2;
}

static double int8_rounds(uint64_t n)
{
    __m512i s[16], a = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1), all;

    for (int i = 0; i < 16; i++) s[i] = _mm512_set1_epi32(i);
    for (uint64_t k = 0; k < n; k++) {
        __asm__ volatile("" : "+v"(x));
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) s[i] = _mm512_dpbusd_epi32(s[i], a, x);
    }
    all = s[0];
    for (int i = 1; i < 16; i++) all = _mm512_add_epi32(all, s[i]);
    int_sink = _mm512_reduce_add_epi32(all);
    return (double)n * 16 * 64 * 2;
}

const struct peak peaks_avx512[2] = {{"AVX-512 fma", UNIT_AVX512_FMA, CPU_ISA_AVX512, fma_rounds},
                                     {"AVX-512 VNNI", UNIT_AVX512_INT8, CPU_ISA_AVX512, int8_rounds}};
