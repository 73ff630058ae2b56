/* backend/cpu/math_v16.h - exp and tanh of sixteen floats: cpu_exp and cpu_tanh of cpu_math.h, operation for operation.
 */
#pragma once
#include "backend/cpu/cpu_math.h"

static inline v16 v16_exp(v16 x)
{
    v16 t, n, r, q, y, first, second;

    x = v16_min(v16_set(EXP_MAX), v16_max(v16_set(EXP_MIN), x));
    t = v16_fma(x, v16_set(EXP_LOG2E), v16_set(EXP_MAGIC));
    n = v16_sub(t, v16_set(EXP_MAGIC));
    r = v16_fma(n, v16_set(-EXP_LN2_HI), x);
    r = v16_fma(n, v16_set(-EXP_LN2_LO), r);
    q = v16_fma(v16_set(EXP_Q4), r, v16_set(EXP_Q3));
    q = v16_fma(q, r, v16_set(EXP_Q2));
    q = v16_fma(q, r, v16_set(EXP_Q1));
    q = v16_fma(q, r, v16_set(EXP_Q0));
    y = v16_add(v16_fma(q, v16_mul(r, r), r), v16_set(1.0f));
    v16_exp_scale(t, EXP_MAGIC_BITS, &first, &second);
    return v16_mul(v16_mul(y, first), second);
}

static inline v16 v16_tanh(v16 x)
{
    v16 sign = v16_and(x, v16_set(-0.0f)), a = v16_xor(x, sign), z = v16_mul(a, a), p, small, large;

    p = v16_fma(v16_set(TANH_P5), z, v16_set(TANH_P4));
    p = v16_fma(p, z, v16_set(TANH_P3));
    p = v16_fma(p, z, v16_set(TANH_P2));
    p = v16_fma(p, z, v16_set(TANH_P1));
    p = v16_fma(p, z, v16_set(TANH_P0));
    small = v16_fma(v16_mul(p, z), a, a);
    large = v16_sub(v16_set(1.0f), v16_div(v16_set(2.0f), v16_add(v16_exp(v16_add(a, a)), v16_set(1.0f))));
    return v16_or(v16_if_less(a, v16_set(TANH_SMALL), small, large), sign);
}
