/* backend/cuda/linear/linear_one_row.cuh - the token of a batch of one row, in shared memory for wgmma; its norm, too.
 *
 * A tile of 8 tokens needs 8 rows of 16 bytes for 8 k. With one token the other rows may be anything: no output depends
 * on them. So the row lies contiguous: what follows it in k takes the place of the other tokens (no swizzle, 16 bytes from
 * one 8 k to the next), and the ring of weights carries no tokens.
 *
 * Norm: the order of sums of residual_norm_vectors (row_ops.cu) for widths of up to 4,096: thread t there has the
 * floats 4 t .. 4 t + 3; here a thread plays the threads t, t + 128, .. Every block computes the norm of the whole row by
 * itself: a launch less, and x is read from the L2.
 */
#pragma once
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/linear/linear_epilogue.h"

enum { ONE_ROW_WIDTH = 4096, ONE_ROW_PAD = 128, ONE_ROW_VECTORS = ONE_ROW_WIDTH / 512 };

/* The row: x16 [n_in], or what the norm makes. */
struct one_row {
    const uint16_t *x16;
    struct linear_norm norm;
    uint32_t n_in;
};

/* rows 0 of tiles of 8 tokens x 8 k, 16 bytes each, one after the other. */
static __device__ __forceinline__ uint64_t wgmma_desc_one_row(uint32_t at)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)1 << 32;
}

/* k first .. first + n - 1 of the row -> bf16 at `to`; zeros past n_in. By 128 threads, all of them; done
 * with dependency_wait, and ready for wgmma, when it returns. Norm: linear_norm_fits, so no block of k has an end. */
static __device__ __forceinline__ void one_row_load(const struct one_row &row, uint32_t to, uint32_t first, uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, end = min(first + n, row.n_in);
    float4 x[ONE_ROW_VECTORS], w[ONE_ROW_VECTORS];
    const uint32_t sums = to + n * 2; /* 32 floats in ONE_ROW_PAD, which may hold anything */
    float total, scale;

    if (!row.norm.x) {
        dependency_wait();
        for (uint32_t k = first + threadIdx.x * 8; k < first + n; k += 128 * 8) {
            const uint4 v = k < end ? *(const uint4 *)(row.x16 + k) : make_uint4(0, 0, 0, 0);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + (k - first) * 2), "r"(v.x), "r"(v.y),
                         "r"(v.z), "r"(v.w)
                         : "memory");
        }
    } else {
#pragma unroll
        for (int i = 0; i < ONE_ROW_VECTORS; i++) { /* weights do not depend on the kernels before */
            const uint32_t k = (threadIdx.x + 128 * i) * 4;
            w[i] = k < row.n_in ? *(const float4 *)(row.norm.weight + k) : make_float4(0, 0, 0, 0);
        }
        dependency_wait();
#pragma unroll
        for (int i = 0; i < ONE_ROW_VECTORS; i++) {
            const uint32_t k = (threadIdx.x + 128 * i) * 4;
            x[i] = k < row.n_in ? *(const float4 *)(row.norm.x + k) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < ONE_ROW_VECTORS; i++) {
            if (128u * 4 * i >= row.n_in) break;
            total = warp_sum(squares(x[i], 0.0f));
            if (lane) continue;
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(sums + (warp + 4 * i) * 4), "f"(total) : "memory");
        }
        named_barrier(1, 128);
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(total) : "r"(sums + lane * 4) : "memory");
        total = warp_sum(lane < row.n_in / 128 ? total : 0.0f);
        scale = 1.0f / sqrtf(total / (float)row.n_in + row.norm.eps);
#pragma unroll
        for (int i = 0; i < ONE_ROW_VECTORS; i++) {
            const uint32_t k = (threadIdx.x + 128 * i) * 4;
            const float4 v = scaled(x[i], scale, w[i]);

            if (k < first || k >= end) continue;
            asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to + (k - first) * 2),
                         "r"(float_bf16(v.x) | (uint32_t)float_bf16(v.y) << 16),
                         "r"(float_bf16(v.z) | (uint32_t)float_bf16(v.w) << 16)
                         : "memory");
        }
    }
    shared_written_fence();
    named_barrier(1, 128);
}
