/* backend/cuda/cuda_device.cuh - small device functions that the .cu files share. */
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include "backend/cuda/cuda_kernels.h"

static inline cudaStream_t stream_of(const struct cuda_launch *l)
{
    return (cudaStream_t)l->stream;
}
static inline uint32_t ceil_div(uint64_t a, uint64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

static __device__ __forceinline__ float bf16_float(uint16_t b)
{
    return __uint_as_float((uint32_t)b << 16);
}
static __device__ __forceinline__ uint16_t float_bf16(float f)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
static __device__ __forceinline__ float half_float(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

/* Sum over a warp, the same tree in every lane. */
static __device__ __forceinline__ float warp_sum(float v)
{
    for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

/* Sum over the block in one fixed tree (warps, then the warps' sums); every thread gets it. Blocks of up to 1,024. */
static __device__ __forceinline__ float block_sum(float v)
{
    __shared__ float sums[32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;

    v = warp_sum(v);
    __syncthreads(); /* the sums of an earlier call have been read */
    if (lane == 0) sums[warp] = v;
    __syncthreads();
    return warp_sum(lane < n_warps ? sums[lane] : 0.0f);
}

/* in_eights: the weight that has, in the other order, the place of weight k. */
static __device__ __forceinline__ uint32_t weight_in_order(uint32_t k, bool in_eights)
{
    const uint32_t kk = k % 32;

    return in_eights ? k - kk + 16 * (kk % 8 / 4) + 8 * (kk % 4 / 2) + 2 * (kk / 8) + kk % 2 : k;
}

/* Where weight k (weight_in_order) of a quantised row lies, as struct cuda_matrix has it: INT4 in nibbles, INT8 in bytes. */
static __device__ __forceinline__ uint32_t int4_place(uint32_t k)
{
    const uint32_t step = k / 16 % 8, kk = k % 16, c = kk % 8 / 2, n = 2 * (step % 2) + kk / 8 + 4 * (kk % 2);

    return k / 128 * 128 + 8 * (4 * c + step / 2) + n;
}
static __device__ __forceinline__ uint32_t int8_place(uint32_t k)
{
    const uint32_t step = k / 16 % 8, kk = k % 16;

    return k / 128 * 128 + 64 * (step / 4) + 16 * (kk % 8 / 2) + 4 * (step % 4) + 2 * (kk / 8) + kk % 2;
}

/* Four values of a norm, and their squares added to a sum. */
static __device__ __forceinline__ float4 scaled(float4 v, float scale, float4 w)
{
    return make_float4(__fmul_rn(__fmul_rn(v.x, scale), w.x), __fmul_rn(__fmul_rn(v.y, scale), w.y),
                       __fmul_rn(__fmul_rn(v.z, scale), w.z), __fmul_rn(__fmul_rn(v.w, scale), w.w));
}

static __device__ __forceinline__ float squares(float4 v, float sum)
{
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
}

/* e4m3 * 2^-120: exponent and mantissa moved to where f32 has them, subnormal numbers too. */
static __device__ __forceinline__ float e4m3_small(uint8_t v)
{
    return __uint_as_float((uint32_t)(v & 0x80) << 24 | (uint32_t)(v & 0x7F) << 20);
}

static __device__ __forceinline__ float e4m3_float(uint8_t v)
{
    return (v & 0x7F) == 0x7F ? __uint_as_float(0x7ff00000u) : __fmul_rn(e4m3_small(v), 0x1p120f);
}

/* A group's scale of two bf16; the sum is exact. */
static __device__ __forceinline__ float two_bf16(const struct cuda_matrix &m, uint64_t group)
{
    const uint32_t s = ((const uint32_t *)m.scales)[group];

    return __uint_as_float(s << 16) + __uint_as_float(s & 0xFFFF0000u);
}

/* Weight k of row o, in f32 before the rounding to bf16. */
static __device__ __forceinline__ float matrix_weight(const struct cuda_matrix &m, uint64_t o, uint32_t k)
{
    const uint64_t row = o * m.row_stride, at = row + k;
    float q, scale, offset = 0;

    if (m.format == CUDA_BF16) return bf16_float(((const uint16_t *)m.values)[at]);
    if (m.format != CUDA_INT4) {
        const uint8_t v = ((const uint8_t *)m.values)[row + int8_place(weight_in_order(k, m.in_eights))];

        if (m.format == CUDA_E4M3) return __fmul_rn(two_bf16(m, at / m.group), e4m3_small(v));
        q = m.has_offset ? (float)v : (float)(int8_t)v;
    } else {
        const uint32_t place = int4_place(weight_in_order(k, m.in_eights));

        q = (float)(((const uint8_t *)m.values)[(row + place) / 2] >> (place % 2 * 4) & 15);
        if (!m.has_offset) q -= 8;
    }
    if (m.format == CUDA_INT4 && !m.has_offset) {
        scale = two_bf16(m, at / m.group);
    } else if (m.has_offset) {
        const __half2 s = ((const __half2 *)m.scales)[at / m.group];

        scale = __low2float(s);
        offset = __high2float(s);
    } else {
        scale = __half2float(((const __half *)m.scales)[at / m.group]);
    }
    return __fadd_rn(__fmul_rn(scale, q), offset);
}

/* The gate of a GLU; some ulps of f32 from the true value, which becomes bf16. gelu: tanh form, arXiv:1606.08415. */
static __device__ __forceinline__ float activate(int act, float x)
{
    if (act == CUDA_SILU) return __fdividef(x, 1.0f + __expf(-x)); /* large sums: x * 0 */
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * fmaf(0.044715f * x * x, x, x)));
}
