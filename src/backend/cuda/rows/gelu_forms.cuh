/* backend/cuda/rows/gelu_forms.cuh - GELU as encoders have it: a kernel of its own and a product's epilogue give the same bits. */
#pragma once
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
