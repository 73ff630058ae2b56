/* backend/cuda/attention/attend_pack.cuh - queries, keys and values of encoders to where attend_hopper.cuh reads them: turned,
 * rounded to bf16, values with their keys in a row.
 *
 * A block of the grid takes the rows of one block of 64, and one head. Rows outside row0 .. row0 + n_rows - 1 keep what is
 * there. Bound: memory.
 */
#pragma once
#include "backend/cuda/attention/attend_hopper.cuh"
#include "backend/cuda/encode_kernels.h"

enum { PACK_THREADS = 256 };

/* The group that a block of rows is of: the last whose first block is at most that. */
static __device__ __forceinline__ uint32_t group_of_block(const struct cuda_attend_args &a, uint32_t block)
{
    uint32_t low = 0, high = a.n_groups - 1;

    while (low < high) {
        const uint32_t mid = high - (high - low) / 2;

        if (a.group_blocks[mid] <= block)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* Dims d .. d + 3 of a head of a row, turned where there are angles; dims beyond the head's: zeros. */
static __device__ __forceinline__ float4 turned(const struct cuda_attend_fill_args &f, const float *x, uint64_t row,
                                                uint32_t d)
{
    const uint32_t half = f.attend.head_dim / 2, pair = d < half ? d : d - half;

    if (d >= f.attend.head_dim) return make_float4(0, 0, 0, 0);
    if (!f.cosines) return *(const float4 *)(x + d);
    const float4 c = *(const float4 *)(f.cosines + row * half + pair),
                 s = *(const float4 *)(f.sines + row * half + pair);
    const float4 u = *(const float4 *)(x + pair), v = *(const float4 *)(x + half + pair);

    if (d < half)
        return make_float4(fmaf(u.x, c.x, -__fmul_rn(v.x, s.x)), fmaf(u.y, c.y, -__fmul_rn(v.y, s.y)),
                           fmaf(u.z, c.z, -__fmul_rn(v.z, s.z)), fmaf(u.w, c.w, -__fmul_rn(v.w, s.w)));
    return make_float4(fmaf(u.x, s.x, __fmul_rn(v.x, c.x)), fmaf(u.y, s.y, __fmul_rn(v.y, c.y)),
                       fmaf(u.z, s.z, __fmul_rn(v.z, c.z)), fmaf(u.w, s.w, __fmul_rn(v.w, c.w)));
}

template <int D>
static __global__ void __launch_bounds__(PACK_THREADS)
    attend_pack(const __grid_constant__ struct cuda_attend_fill_args f)
{
    const struct cuda_attend_args &a = f.attend;
    constexpr uint32_t quads = D / 4, pitch = D + 2, part = part_bytes<D>();
    __shared__ uint32_t values[BLOCK_KEYS * pitch / 2]; /* [key][pitch] bf16 */
    const uint32_t block = f.first_block + blockIdx.x, group = group_of_block(a, block);
    const uint32_t first = group_begin(a, group) + (block - a.group_blocks[group]) * BLOCK_KEYS;
    const uint32_t end = a.group_ends[group], from = max(first, a.row0) - first;
    const uint32_t to = min(min(end, a.row0 + a.n_rows), first + BLOCK_KEYS) - first; /* rows from .. to - 1 */
    const uint32_t zeros = first + to == end ? BLOCK_KEYS : to;                       /* and values of no row */
    const uint64_t column = (uint64_t)(a.head0 + blockIdx.y) * a.head_dim;
    uint8_t *const out = packed_block<D>(a, blockIdx.y, block);

    dependency_wait();
    dependents_launch();
    if (a.row0 + a.n_rows <= first || min(end, first + BLOCK_KEYS) <= a.row0) return;
    for (uint32_t i = threadIdx.x; i < (to - from) * quads; i += PACK_THREADS) {
        const uint32_t r = from + i / quads, d = i % quads * 4;
        const uint64_t row = first + r - a.row0, at = row * a.stride + column;
        const float4 q = turned(f, a.q + at, row, d), k = turned(f, a.k + at, row, d);
        const float4 v = d < a.head_dim ? *(const float4 *)(a.v + at + d) : make_float4(0, 0, 0, 0);

        *(uint2 *)(out + row_place<D>(r, d)) = make_uint2(two_halves(q.x, q.y), two_halves(q.z, q.w));
        *(uint2 *)(out + part + row_place<D>(r, d)) = make_uint2(two_halves(k.x, k.y), two_halves(k.z, k.w));
        values[(r * pitch + d) / 2] = two_halves(v.x, v.y);
        values[(r * pitch + d) / 2 + 1] = two_halves(v.z, v.w);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < D * 8; i += PACK_THREADS) { /* eight keys of a dim */
        const uint32_t d = i / 8, c = i % 8;
        uint8_t *const there = out + 2 * part + value_place(d, c);
        const uint16_t *const column_of = (const uint16_t *)values + d;
        uint32_t v[8];

#pragma unroll
        for (uint32_t j = 0; j < 8; j++)
            v[j] = 8 * c + j < to && 8 * c + j >= from ? column_of[(8 * c + j) * pitch] : 0;
        if (8 * c >= from && 8 * c + 8 <= zeros) {
            *(uint4 *)there = make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
            continue;
        }
#pragma unroll
        for (uint32_t j = 0; j < 8; j++)
            if (8 * c + j >= from && 8 * c + j < zeros) ((uint16_t *)there)[j] = (uint16_t)v[j];
    }
}
