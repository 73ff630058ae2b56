/* backend/cuda/linear_quant.cuh - linear_wgmma.cuh with quantised weights, which become bf16 in registers.
 *
 * Order of the sums as there: segments of whole blocks of 128 k, one chain of 16 k steps in each, segments left to
 * right. A weight is bf16(scale * q + offset) with an f32 fma (4 bit: of 128 + q and offset - 128 * scale, whose
 * rounding is below 2^-14 of a scale), then rounded to nearest even: the A operand of wgmma, from registers; tokens
 * are the B operand, from shared memory. Layouts of values and scales: struct cuda_matrix in cuda_kernels.h.
 *
 * A stage of the ring holds 128 k: values of the rows (4 bit: 64 bytes a row, 64-byte swizzle; 8 bit: 128 bytes,
 * 128-byte swizzle, so that a warp's 16-byte reads of 8 rows meet no bank twice), N tokens in two tiles of 64 k,
 * scales. A thread reads 16 bytes of two rows (a quad the same ones) and takes the pairs that are its own in the
 * fragment. Bound at few rows: issue of the 6.7 instructions a weight. H200, share of the read bandwidth at 1 row, 8B
 * gate_up and head: 8 bit 61 and 72 %, 4 bit 37 and 43 %; 2,048 rows: 360 to 450 TFLOP/s.
 */
#pragma once
#include "backend/cuda/linear_wgmma.cuh"

/* k in a stage; steps of 16 k that are converted at once; tiles for linear_segments: twice the bf16 kernel's, as it takes
 * about 12 warps on an SM to hide how long a conversion takes. */
enum { QUANT_BLOCK = 128, QUANT_HALF = 4, QUANT_TILES = 380 };

template <int BITS, int GROUP, bool OFFSET, int ROWS, int N, int STAGES> struct quant_smem {
    static constexpr uint32_t value_row = QUANT_BLOCK * BITS / 8, values = ROWS * value_row;
    static constexpr uint32_t halves = QUANT_BLOCK / GROUP * (OFFSET ? 2 : 1), box = halves < 8 ? 8 : halves;
    static constexpr uint32_t scales = ROWS * box * 2, tokens = N * QUANT_BLOCK * 2;
    static constexpr uint32_t stage = values + tokens + scales;
    static constexpr uint32_t ring = STAGES * stage, sums = N * linear_block<ROWS>::pitch * 4;
    static constexpr uint32_t big = (((ring > sums ? ring : sums) + 15) / 16) * 16;
    static constexpr uint32_t bytes = big + 2 * 8 * STAGES + 1024;      /* barriers; room to align */
};

static __device__ __forceinline__ uint4 shared_load16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
static __device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

/* scale and what is added, for 4-bit values that come as 128 + q. */
template <int BITS, bool OFFSET> static __device__ __forceinline__ float2 scale_at(uint32_t at)
{
    float2 s;

    if (OFFSET) {
        uint32_t v;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
        s = __half22float2(*(__half2 *)&v);
    } else {
        uint16_t v;
        asm volatile("ld.shared.b16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
        s = make_float2(half_float(v), 0.0f);
    }
    if (BITS == 4) s.y = fmaf(-128.0f, s.x, s.y);
    return s;
}

/* Weights k = 2 c, 2 c + 1 of 8 in a word (shift = 4 c). */
static __device__ __forceinline__ uint32_t pair_int4(uint32_t word, uint32_t shift, float2 s)
{
    const uint32_t v = (word >> shift & 0x000F000Fu) | 0x43004300u;     /* bf16 128 + q, two of them */

    return bf16_pair(fmaf(s.x, __uint_as_float(v << 16), s.y), fmaf(s.x, __uint_as_float(v & 0xFFFF0000u), s.y));
}
/* Bytes 2 c, 2 c + 1 of 8: select picks them from the word that holds them, see pick_int8. */
static __device__ __forceinline__ uint32_t pair_int8(uint32_t word, uint32_t select, float2 s)
{
    const uint32_t v = word ^ 0x80808080u, magic = 0x4B000000u;          /* f32 2^23 + 128 + q */
    const float low = __uint_as_float(__byte_perm(v, magic, select)) - 8388736.0f;
    const float high = __uint_as_float(__byte_perm(v, magic, select + 1)) - 8388736.0f;

    return bf16_pair(fmaf(s.x, low, s.y), fmaf(s.x, high, s.y));
}

/* Steps 4 half .. 4 half + 3 of a stage as A operands. values, scales: of this thread's row lane / 4 in the warp's
 * 16. */
template <int BITS, int GROUP, bool OFFSET>
static __device__ __forceinline__ void convert_half(uint32_t (&a)[QUANT_HALF][4], uint32_t values, uint32_t scales,
                                                    uint32_t row, int half)
{
    using S = quant_smem<BITS, GROUP, OFFSET, 64, 8, 1>;
    const uint32_t c = threadIdx.x % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t at = values + r * 8 * S::value_row, scale_row = scales + r * 8 * S::box * 2;
        uint4 v;
        float2 s;
#pragma unroll
        for (int i = 0; i < QUANT_HALF; i++) {
            const int step = half * QUANT_HALF + i;

            if (i == 0 || GROUP == 16 || i % 2 == 0)
                s = scale_at<BITS, OFFSET>(scale_row + step * 16 / GROUP * (OFFSET ? 4 : 2));
            if (BITS == 4) {
                if (i % 2 == 0) v = shared_load16(at + ((step / 2 ^ (row / 2 & 3)) << 4));
                a[i][r] = pair_int4(i % 2 ? v.z : v.x, 4 * c, s);
                a[i][2 + r] = pair_int4(i % 2 ? v.w : v.y, 4 * c, s);
            } else {
                const uint32_t select = 0x7440u + c % 2 * 2;             /* bytes: magic's top, 0, 0, the value's */
                v = shared_load16(at + ((step ^ (row & 7)) << 4));
                a[i][r] = pair_int8(c < 2 ? v.x : v.y, select, s);
                a[i][2 + r] = pair_int8(c < 2 ? v.z : v.w, select, s);
            }
        }
    }
}

struct quant_maps { CUtensorMap values[3], scales[3], x; };

template <int BITS, int GROUP, bool OFFSET, int ROWS, int N, int STAGES>
static __device__ void quant_feed(const struct quant_maps &maps, const struct tile_place &p, uint32_t ring,
                                  uint32_t full, uint32_t empty, uint32_t first, uint32_t n_blocks)
{
    using S = quant_smem<BITS, GROUP, OFFSET, ROWS, N, STAGES>;
    uint64_t once = policy_evict_first(), often = policy_evict_last();
    uint32_t ahead = min(n_blocks, (uint32_t)STAGES);

    if (gridDim.x > 264 && N > 64) once = often;
    for (uint32_t i = 0; i < n_blocks + ahead; i++) {       /* order as in linear_feed */
        uint32_t kb = i < ahead ? i : i - ahead, s = kb % STAGES, at = ring + s * S::stage, bar = full + 8 * s;
        int block = (int)(first + kb);

        if (i >= ahead && kb >= ahead) mbar_wait(empty + 8 * s, (kb / STAGES - 1) & 1);
        if (i < ahead || kb >= ahead) {
            mbar_expect(bar, S::stage);
            for (int h = 0; h < 2; h++) {
                tma_load_2d(at + h * S::values / 2, &maps.values[p.which[h]], bar, block * (int)S::value_row,
                            (int)p.row[h], once);
                tma_load_2d(at + S::values + S::tokens + h * S::scales / 2, &maps.scales[p.which[h]], bar,
                            S::halves < 8 ? block / 2 * 8 : block * (int)S::halves, (int)p.row[h], often);
            }
        }
        if (i == ahead) dependency_wait();
        if (i >= ahead)
            for (int h = 0; h < 2; h++)
                tma_load_2d(at + S::values + h * S::tokens / 2, &maps.x, bar, block * QUANT_BLOCK + h * 64,
                            (int)p.token, often);
    }
}

template <int BITS, int GROUP, bool OFFSET, int ROWS, int N, int STAGES, int MODE, int BLOCKS_PER_SM>
__global__ void __launch_bounds__(linear_block<ROWS>::threads, BLOCKS_PER_SM)
    linear_quant(const __grid_constant__ struct quant_maps maps, const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    using S = quant_smem<BITS, GROUP, OFFSET, ROWS, N, STAGES>;
    using B = linear_block<ROWS>;
    extern __shared__ uint8_t raw[];
    uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, full = ring + S::big, empty = full + 8 * STAGES;
    uint32_t warp = threadIdx.x / 32, n_blocks = MODE == SPLIT ? job.n_segs : 1;
    uint32_t rank = MODE == SPLIT ? cluster_rank() : 0, first = rank * job.seg_blocks;
    uint32_t count = MODE == SPLIT ? min(job.seg_blocks, job.k_blocks - first) : job.k_blocks;
    struct tile_place p = place_of(job, ROWS, N);

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, ROWS / 16);
        }
        mbar_init_fence();
    }
    __syncthreads();
    dependents_launch();
    if (warp == ROWS / 16) {
        if (threadIdx.x % 32 == 0)
            quant_feed<BITS, GROUP, OFFSET, ROWS, N, STAGES>(maps, p, ring, full, empty, first, count);
        __syncwarp();
    } else {
        uint32_t lane = threadIdx.x % 32, row = warp * 16 + lane / 4, left = job.seg_blocks;
        bool begin = true;
        float acc[N / 2], total[MODE == WALK ? N / 2 : 1];

        dependency_wait();
        for (uint32_t kb = 0; kb < count; kb++) {
            uint32_t s = kb % STAGES, at = ring + s * S::stage;
            uint32_t scales = at + S::values + S::tokens + row * S::box * 2
                              + (S::halves < 8 ? (first + kb) % 2 * 8 : 0);     /* a box holds two blocks' scales */
            uint64_t b = wgmma_desc(at + S::values);
            uint32_t a[2][QUANT_HALF][4];

            mbar_wait(full + 8 * s, (kb / STAGES) & 1);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                convert_half<BITS, GROUP, OFFSET>(a[half], at + row * S::value_row, scales, row, half);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < QUANT_HALF; k++)
                    wgmma_rs<N>(acc, a[half][k], b + half * (S::tokens / 2 / 16) + 2 * k, !begin || half > 0 || k > 0);
                wgmma_commit();
                wgmma_wait<1>();
                if (half == 0 && kb > 0 && lane == 0) mbar_arrive(empty + 8 * ((kb - 1) % STAGES));
            }
            begin = false;
            if constexpr (MODE == WALK) {
                if (--left == 0 || kb + 1 == count) {
                    wgmma_wait<0>();
#pragma unroll
                    for (int i = 0; i < N / 2; i++) total[i] = kb < job.seg_blocks ? acc[i] : total[i] + acc[i];
                    begin = true;
                    left = job.seg_blocks;
                }
            }
        }
        wgmma_wait<0>();
        named_barrier(1, B::workers);                           /* all warpgroups are done with the ring */
        float *sums = (float *)(raw + (ring - smem_u32(raw)));
        if constexpr (MODE == WALK) keep_sums<ROWS, N>(sums, total);
        else keep_sums<ROWS, N>(sums, acc);
        named_barrier(1, B::workers);
    }
    if (MODE == SPLIT) cluster_sync();
    if (warp < ROWS / 16) linear_write<ROWS>(job, p, N, ring, n_blocks, rank);
    if (MODE == SPLIT) cluster_sync();                          /* others may still read this block's sums */
#endif
}
