/* backend/cuda/linear/low_rank_values.cuh - what the kernels of adapters have in common: how numbers are read, and how A's columns are
 * cut and summed, which is part of a row's bits (low_rank.cu). */
#pragma once
#include "backend/cuda/cuda_device.cuh"

#define BLOCKS    8u  /* of a cluster */
#define HALVES    2u  /* of a block's columns of A */
#define PASS      16u /* ranks at a time: four for each warp of a half */
#define FULL_WARP 0xffffffffu

/* ---- values as they are stored: in registers, then as floats ---- */

template <uint32_t BYTES, uint32_t N> struct stored {
    uint32_t w[N * BYTES / 4];
};

template <uint32_t BYTES, uint32_t N>
static __device__ __forceinline__ struct stored<BYTES, N> stored_at(const void *p, uint64_t i) {
    struct stored<BYTES, N> v;

    if (BYTES == 4) {
#pragma unroll
        for (uint32_t e = 0; e < N; e += 4) {
            const uint4 f = *(const uint4 *)((const float *)p + i + e);

            v.w[e] = f.x, v.w[e + 1] = f.y, v.w[e + 2] = f.z, v.w[e + 3] = f.w;
        }
    } else if (N == 8) {
        const uint4 f = *(const uint4 *)((const uint16_t *)p + i);

        v.w[0] = f.x, v.w[1] = f.y, v.w[2 % (N / 2)] = f.z, v.w[3 % (N / 2)] = f.w;
    } else {
        const uint2 f = *(const uint2 *)((const uint16_t *)p + i);

        v.w[0] = f.x, v.w[1] = f.y;
    }
    return v;
}

/* type: one of BYTES. */
template <uint32_t BYTES, uint32_t N>
static __device__ __forceinline__ void floats_of(int type, const struct stored<BYTES, N> &v, float (&out)[N])
{
#pragma unroll
    for (uint32_t e = 0; e < N; e++) {
        const uint16_t half = (uint16_t)(v.w[e * BYTES / 4] >> 16 * (e % 2));

        out[e] = BYTES == 4 ? __uint_as_float(v.w[e]) : type == CUDA_STORED_F16 ? half_float(half) : bf16_float(half);
    }
}

/* The lanes' sums of N values, N a power of two; lane l then has those of value l / (32 / N) in v[0]. */
template <uint32_t N> static __device__ __forceinline__ void sum_lanes(float (&v)[N])
{
    const uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t d = 16, n = N / 2; d > 0; d /= 2, n /= 2) {
        if (n == 0) {
            v[0] += __shfl_xor_sync(FULL_WARP, v[0], d);
            continue;
        }
#pragma unroll
        for (uint32_t i = 0; i < N / 2; i++)
            if (i < n) {
                const float mine = lane & d ? v[i + n] : v[i], theirs = lane & d ? v[i] : v[i + n];

                v[i] = mine + __shfl_xor_sync(FULL_WARP, theirs, d);
            }
    }
}

/* Columns of one of the 2 * BLOCKS parts. */
static __device__ __forceinline__ uint32_t down_width(uint32_t n_in)
{
    return (n_in + 8 * HALVES * BLOCKS - 1) / (8 * HALVES * BLOCKS) * 8;
}
/* Vectors of x and out, and of pairs of these widths. */
static bool are_vectors(const float *x, uint32_t n_in, uint32_t x_stride, const float *out, uint32_t n_out,
                        uint32_t out_stride)
{
    return n_in % 8 == 0 && x_stride % 4 == 0 && n_out % 4 == 0 && out_stride % 4 == 0 && (uintptr_t)x % 16 == 0 &&
           (uintptr_t)out % 16 == 0;
}
