/* backend/cuda/rows/rope_shared.cuh - norm and RoPE of a head of any width, by one warp, the head in shared memory.
 *
 * Norm: a lane's values in one chain, then the tree of warp_sum. RoPE: cos and sin of the f32 product position * inv_freq.
 * Both end with a barrier of the warp. Heads of 64 and more that are rotated whole: rope_head.cuh, in registers.
 */
#pragma once
#include "backend/cuda/cuda_device.cuh"

static __device__ void norm_head(float *x, const float *norm, uint32_t n, float eps)
{
    const uint32_t lane = threadIdx.x % 32;
    float sum = 0, scale;

    for (uint32_t i = lane; i < n; i += 32) sum = fmaf(x[i], x[i], sum);
    scale = 1.0f / sqrtf(warp_sum(sum) / (float)n + eps);
    for (uint32_t i = lane; i < n; i += 32) x[i] = __fmul_rn(__fmul_rn(x[i], scale), norm[i]);
    __syncwarp();
}

/* What pair i of a row turns by. */
static __device__ __forceinline__ uint32_t pair_position(const struct cuda_qkv_args &a, uint32_t row, uint32_t i)
{
    return a.axes ? a.axes[(uint64_t)a.axis_of[i] * a.n_rows + row] : a.positions[row];
}

static __device__ void rotate_head(const struct cuda_qkv_args &a, float *x, uint32_t row)
{
    const uint32_t half = a.n_rot / 2;

    for (uint32_t i = threadIdx.x % 32; i < half; i += 32) {
        const uint32_t first = a.half_split ? i : 2 * i, second = a.half_split ? i + half : 2 * i + 1;
        const float u = x[first], v = x[second];
        float sine, cosine;

        sincosf(__fmul_rn((float)pair_position(a, row, i), a.inv_freq[i]), &sine, &cosine);
        sine *= a.mscale;
        cosine *= a.mscale;
        x[first] = fmaf(u, cosine, -__fmul_rn(v, sine));
        x[second] = fmaf(u, sine, __fmul_rn(v, cosine));
    }
    __syncwarp();
}
