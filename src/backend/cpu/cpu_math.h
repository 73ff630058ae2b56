/* backend/cpu/cpu_math.h - the arithmetic that every instruction-set variant shares: constants, and the scalar
 * definitions.
 *
 * A variant is right when it does these very operations, in this order, with fma exactly where fmaf stands.
 *
 *   tree16(p)  p[i] + p[i+8], then + p[i+4], + p[i+2], + p[i+1]: how 16 interleaved partial sums become one
 *   exp        x clamped to [-104, 89] (0 and infinity lie inside); n = nearest integer to x / ln 2, r = x - n ln 2
 *              in two fma steps, e^r = 1 + r + r^2 Q(r), Q of degree 4 (interpolated at Chebyshev nodes, relative
 *              error 1.1e-8), times 2^n in two factors, so that results below 2^-126 round once more but do not
 *              vanish. At most 1.5 ulp above 2^-126.
 *   tanh       below 0.625: a + a z P(z), z = a^2, P of degree 5; above: 1 - 2 / (e^2a + 1). At most 3 ulp.
 * NaN gives NaN. Tested against double precision in tests/ops/test_rows.c.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXP_MIN        -104.0f
#define EXP_MAX        89.0f
#define EXP_MAGIC      12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, held in the low bits */
#define EXP_MAGIC_BITS 0x4b400000u
#define EXP_LOG2E      0x1.715476p+0f
#define EXP_LN2_HI     0x1.62e4p-1f
#define EXP_LN2_LO     0x1.7f7d1cp-20f
#define EXP_Q0         0x1.000000p-1f
#define EXP_Q1         0x1.5554dcp-3f
#define EXP_Q2         0x1.55551ap-5f
#define EXP_Q3         0x1.120b6ep-7f
#define EXP_Q4         0x1.6d110ap-10f

#define TANH_SMALL 0.625f
#define TANH_P0    -0x1.555556p-2f
#define TANH_P1    0x1.1110e4p-3f
#define TANH_P2    -0x1.ba0718p-5f
#define TANH_P3    0x1.648e8ep-6f
#define TANH_P4    -0x1.10bbf4p-7f
#define TANH_P5    0x1.2977d6p-9f

#define GELU_C    0.79788456080286535588f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

static inline uint32_t cpu_float_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float cpu_bits_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

/* As the vector instructions: the second operand when either is NaN. */
static inline float cpu_max(float a, float b)
{
    return a > b ? a : b;
}
static inline float cpu_min(float a, float b)
{
    return a < b ? a : b;
}

static inline float cpu_tree16(const float p[16])
{
    float s[8];

    for (int i = 0; i < 8; i++) s[i] = p[i] + p[i + 8];
    for (int i = 0; i < 4; i++) s[i] = s[i] + s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

static inline float cpu_exp(float x)
{
    float t, n, r, q, y;
    uint32_t k, half;

    x = cpu_min(EXP_MAX, cpu_max(EXP_MIN, x));
    t = fmaf(x, EXP_LOG2E, EXP_MAGIC);
    n = t - EXP_MAGIC;
    r = fmaf(n, -EXP_LN2_HI, x);
    r = fmaf(n, -EXP_LN2_LO, r);
    q = fmaf(EXP_Q4, r, EXP_Q3);
    q = fmaf(q, r, EXP_Q2);
    q = fmaf(q, r, EXP_Q1);
    q = fmaf(q, r, EXP_Q0);
    y = fmaf(q, r * r, r) + 1.0f;
    k = cpu_float_bits(t) - EXP_MAGIC_BITS; /* n, two's complement */
    half = (uint32_t)((int32_t)k >> 1);
    return (y * cpu_bits_float((half + 127) << 23)) * cpu_bits_float((k - half + 127) << 23);
}

static inline float cpu_tanh(float x)
{
    uint32_t sign = cpu_float_bits(x) & 0x80000000u;
    float a = cpu_bits_float(cpu_float_bits(x) ^ sign), y;

    if (a < TANH_SMALL) {
        float z = a * a, p = fmaf(TANH_P5, z, TANH_P4);

        p = fmaf(p, z, TANH_P3);
        p = fmaf(p, z, TANH_P2);
        p = fmaf(p, z, TANH_P1);
        p = fmaf(p, z, TANH_P0);
        y = fmaf(p * z, a, a);
    } else {
        y = 1.0f - 2.0f / (cpu_exp(a + a) + 1.0f);
    }
    return cpu_bits_float(cpu_float_bits(y) | sign);
}

static inline float cpu_silu(float x)
{
    return x / (1.0f + cpu_exp(0.0f - x));
}

static inline float cpu_gelu(float x)
{
    float u = (x * GELU_C) * fmaf(x * GELU_CUBE, x, 1.0f);

    return (0.5f * x) * (1.0f + cpu_tanh(u));
}
