/* backend/cuda/attention/attention_wide_rows.cuh - the outputs of wgmma's fragments as bf16, 16 bytes at once: fewer stores, and
 * whole sectors of those that go over a link.
 */
#pragma once
#include "backend/cuda/attention/attention_products.cuh"

#if __CUDA_ARCH__ >= 900
/* A warpgroup's 64 packed rows, of which my_row is the warp's first, to out16 and its copies. o [HD / 2] as wgmma leaves them,
 * divided. They go through q_tile, the warpgroup's queries, which none of it reads any more when all have come here. A loop, as
 * straight code that runs once waits for each of its lines (5,000 cycles, H200). */
template <int HD>
static __device__ __forceinline__ void write_wide(const struct cuda_attention_args &a, const struct cuda_run &run,
                                                  uint32_t kv_head, uint32_t my_row, const float (&o)[HD / 2],
                                                  uint32_t q_tile)
{
    constexpr uint32_t chunks = HD / 8, step = 32 / chunks; /* of 16 bytes in a row; rows at a time */
    const uint32_t lane = threadIdx.x % 32, group = a.n_heads / a.n_kv_heads, first = threadIdx.x / 32 % 4 * 16;
    const uint32_t chunk = lane % chunks;

    named_barrier(1 + threadIdx.x / 128, 128);
#pragma unroll
    for (uint32_t d = 0; d < chunks; d++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const __nv_bfloat162 two = __floats2bfloat162_rn(o[4 * d + 2 * i], o[4 * d + 2 * i + 1]);

            asm volatile(
                "st.shared.b32 [%0], %1;" ::"r"(half_tile_at<64>(q_tile, first + lane / 4 + 8 * i, d) + lane % 4 * 4),
                "r"(*(const uint32_t *)&two)
                : "memory");
        }
    __syncwarp();
#pragma unroll 2
    for (uint32_t r = lane / chunks; r < 16; r += step) {
        const uint32_t packed = my_row + r;
        const float4 v = shared_load4(half_tile_at<64>(q_tile, first + r, chunk));
        const uint64_t at = (uint64_t)(run.row0 + packed / group) * a.out_stride +
                            (uint64_t)(kv_head * group + packed % group) * HD + chunk * 8;

        if (packed >= run.n_rows * group) break;
        *(float4 *)(a.out16 + at) = v;
#pragma unroll 1
        for (uint32_t p = 0; p < a.copies.n; p++) *(float4 *)((uint16_t *)a.copies.to[p] + at) = v;
    }
}
#endif
