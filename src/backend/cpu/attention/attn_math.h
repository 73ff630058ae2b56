/* backend/cpu/attention/attn_math.h - 2^x for x <= 0, the softmax of attention: the scalar definition that all variants share.
 *
 * n = nearest integer to x, f = x - n (exact), 2^f = 1 + f Q(f), Q of degree 4 (minimax on -0.5 .. 0.5, relative error
 * 9.2e-8), times 2^n. Below -126 the result is 0. 2^0 is exactly 1. At most 2.1 ulp. NaN gives NaN.
 */
#pragma once
#include "backend/cpu/cpu_math.h"

#define EXP2_MIN   -126.0f
#define EXP2_MAGIC 12583039.0f /* 1.5 * 2^23 + 127: the low bits hold the exponent field of 2^n */
#define EXP2_Q0    0x1.62e42ap-1f
#define EXP2_Q1    0x1.ebf9bcp-3f
#define EXP2_Q2    0x1.c6b752p-5f
#define EXP2_Q3    0x1.3cea88p-7f
#define EXP2_Q4    0x1.5bba14p-10f

static inline float cpu_exp2(float x)
{
    float t = x + EXP2_MAGIC, f = x - (t - EXP2_MAGIC), p;

    if (x < EXP2_MIN) return 0;
    p = fmaf(EXP2_Q4, f, EXP2_Q3);
    p = fmaf(p, f, EXP2_Q2);
    p = fmaf(p, f, EXP2_Q1);
    p = fmaf(p, f, EXP2_Q0);
    p = fmaf(p, f, 1.0f);
    return p * cpu_bits_float(cpu_float_bits(t) << 23);
}

/* What queries are multiplied by, so that 2^(s - m) is e^(score - max); with a softcap, the argument of tanh. */
static inline float attn_query_scale(float scale, float softcap)
{
    return softcap > 0 ? scale / softcap : scale * EXP_LOG2E;
}
