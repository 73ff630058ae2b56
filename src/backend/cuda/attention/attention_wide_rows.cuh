/* backend/cuda/attention/attention_wide_rows.cuh - the outputs of wgmma's fragments as bf16, 16 bytes at once: fewer stores, and
 * whole sectors of those that go over a link.
 */
#pragma once
#include "backend/cuda/attention/attention_mma.cuh"

#if __CUDA_ARCH__ >= 900
/* Four words of each lane of a quad, word k for lane k: then a lane has its word of lanes 0 .. 3. */
static __device__ __forceinline__ uint4 quad_transpose(const uint32_t (&x)[4])
{
    const uint32_t q = threadIdx.x % 4;
    uint32_t v[4];

#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
        const uint32_t k = q ^ r; /* whose word this lane gives, and whose it gets */
        const uint32_t got = __shfl_xor_sync(~0u, k == 0 ? x[0] : k == 1 ? x[1] : k == 2 ? x[2] : x[3], r);

#pragma unroll
        for (uint32_t i = 0; i < 4; i++) v[i] = i == k ? got : r == 0 ? 0 : v[i];
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* A warp's 16 packed rows to out16 and its copies, 16 bytes at once. o [HD / 2] as wgmma leaves them, divided. */
template <int HD>
static __device__ __forceinline__ void write_wide(const struct cuda_attention_args &a, const struct cuda_run &run,
                                                  uint32_t kv_head, uint32_t my_row, const float (&o)[HD / 2])
{
    const uint32_t lane = threadIdx.x % 32, group = a.n_heads / a.n_kv_heads;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t packed = my_row + lane / 4 + 8 * i;
        const uint64_t at = (uint64_t)(run.row0 + packed / group) * a.out_stride +
                            (uint64_t)(kv_head * group + packed % group) * HD + lane % 4 * 8;

#pragma unroll
        for (int d = 0; d < HD / 8; d += 4) {
            uint32_t x[4];

#pragma unroll
            for (int k = 0; k < 4; k++) {
                const __nv_bfloat162 two = __floats2bfloat162_rn(o[4 * (d + k) + 2 * i], o[4 * (d + k) + 2 * i + 1]);

                x[k] = *(const uint32_t *)&two;
            }
            const uint4 v = quad_transpose(x);

            if (packed >= run.n_rows * group) continue;
            *(uint4 *)(a.out16 + at + d * 8) = v;
            for (uint32_t p = 0; p < a.copies.n; p++) *(uint4 *)((uint16_t *)a.copies.to[p] + at + d * 8) = v;
        }
    }
}
#endif
