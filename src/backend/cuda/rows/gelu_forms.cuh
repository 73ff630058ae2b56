/* backend/cuda/rows/gelu_forms.cuh - GELU as encoders have it: a kernel of its own and a product's epilogue give the same bits. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "backend/cuda/cuda_kernels.h"

/* x * sigmoid(z); large -z: x * 0. */
static __device__ __forceinline__ float times_sigmoid(float x, float z)
{
    return __fdividef(x, 1.0f + __expf(-z));
}

/* By erf; x sigmoid(1.702 x); the tanh form, which is x sigmoid(2 u) with its u. */
template <int FORM> static __device__ __forceinline__ float gelu_of(float x)
{
    if (FORM == CUDA_GELU_ERF) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    if (FORM == CUDA_GELU_QUICK) return times_sigmoid(x, __fmul_rn(1.702f, x));
    return times_sigmoid(x, __fmul_rn(1.5957691216f, fmaf(__fmul_rn(0.044715f, __fmul_rn(x, x)), x, x)));
}

/* GELU that products read, rounded to bf16, is that of numbers in f16: so they wait in half the registers. Of what f16 holds
 * rounding to it is an eighth of that to bf16; beyond +-65,504 it is that. */
static __device__ __forceinline__ uint32_t gelu_kept(float x, float y)
{
    const __half2 two = __floats2half2_rn(x, y);

    return *(const uint32_t *)&two;
}

template <int FORM> static __device__ __forceinline__ uint32_t gelu_of_kept(uint32_t kept)
{
    const __half2 most = __float2half2_rn(65504.0f);
    const float2 x = __half22float2(__hmin2_nan(__hmax2_nan(*(const __half2 *)&kept, __hneg2(most)), most));
    const __nv_bfloat162 two = __floats2bfloat162_rn(gelu_of<FORM>(x.x), gelu_of<FORM>(x.y));

    return *(const uint32_t *)&two;
}
