/* backend/cuda/linear/linear_quant.cuh - linear_wgmma.cuh with quantised weights, which become bf16 in registers.
 *
 * Order of the sums as there: segments of whole blocks of 128 k, one chain of 16 k steps in each, segments left to
 * right. A weight is bf16(scale * q + offset) with an f32 fma (4 bit: of 128 + q and offset - 128 * scale, whose
 * rounding is below 2^-14 of a scale; without offset exact), rounded to nearest even: the A operand of wgmma, from
 * registers; tokens are the B operand, from shared memory. Layouts of values and scales: struct cuda_matrix.
 *
 * A stage of the ring holds 128 k: values of the rows (4 bit: 64 bytes a row, 64-byte swizzle; 8 bit: 128 bytes,
 * 128-byte swizzle, so that a warp's 16-byte reads of 8 rows meet no bank twice), N tokens in two tiles of 64 k,
 * scales; or, where a box of them would be of 16 bytes a row and the copy engine bounds, those of four stages come with
 * the first in one of 64 (64-byte swizzle), to slots behind the ring. A thread reads the weights of its fragments and no
 * others. Bound at few rows: memory, then issue.
 */
#pragma once
#include "backend/cuda/linear/linear_wgmma.cuh"

/* k in a stage; steps of 16 k that are converted at once; tiles wanted by quant_segments: many, as it takes
 * about 12 warps on an SM to hide how long a conversion takes. */
enum { QUANT_BLOCK = 128, QUANT_HALF = 4, QUANT_TILES = 380 };

/* What a group has beside its values: a half; a half2 (scale, offset); or values that are e4m3. 4 bit: the first two. */
enum { SCALED, WITH_OFFSET, E4M3 };

/* Blocks of 128 k whose scales come in one box. */
static constexpr __host__ __device__ uint32_t quant_together(int bits, int kind, int n)
{
    return bits == 4 && kind == SCALED && n == 64 ? 4 : 1;
}

template <int BITS, int GROUP, int KIND, int ROWS, int N, int STAGES, int SEGS = 1> struct quant_smem {
    static constexpr uint32_t value_row = QUANT_BLOCK * BITS / 8, values = ROWS * value_row;
    static constexpr uint32_t halves = QUANT_BLOCK / GROUP * (KIND || BITS == 4 ? 2 : 1);
    static constexpr uint32_t box = halves < 8 ? 8 : halves,
                              blocks = box / halves; /* a box of scales may be of several */
    static constexpr uint32_t together = quant_together(BITS, KIND, N), pitch = box * together * 2; /* of a row */
    static_assert(together == 1 || (blocks == 1 && pitch == 64),
                  "a block's scales are a 16-byte chunk of a swizzled row");
    static constexpr uint32_t scales = ROWS * pitch, tokens = N > 1 ? N *QUANT_BLOCK * 2 : 0;
    static constexpr uint32_t stage = values + tokens + (together == 1 ? scales : 0);
    /* A slot is free when the last stage of its box is, which the wait for the stage of the next box's first says. */
    static constexpr uint32_t slots = together == 1 ? 1 : (STAGES + 2 * together - 2) / together;
    static constexpr uint32_t stages = STAGES * stage, ring = stages + (together == 1 ? 0 : slots * scales);
    static constexpr uint32_t sums = SEGS * (N > 1 ? N : 8) * linear_block<ROWS>::pitch * 4;
    static constexpr uint32_t big = (((ring > sums ? ring : sums) + 15) / 16) * 16;
    static constexpr uint32_t row = (big + 2 * 8 * STAGES + 15) / 16 * 16; /* N = 1: where it lies */
    static constexpr uint32_t bytes = row + 1024; /* room to align; N = 1: one_row_bytes more */
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
/* Bits 0 .. 3 and 16 .. 19 of v, with `magic` over them: one instruction, as magic is in a register. */
static __device__ __forceinline__ uint32_t two_nibbles(uint32_t v, uint32_t magic)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, 0x000F000F, %2, 0xEA;" : "=r"(r) : "r"(v), "r"(magic));
    return r;
}
static __device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

/* The scales of four steps of 16 k of a row: N words of two 16-bit numbers at `at`. */
template <int N> static __device__ __forceinline__ void load_scales(uint32_t (&to)[N], uint32_t at)
{
    if constexpr (N == 1)
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(to[0]) : "r"(at) : "memory");
    else if constexpr (N == 2)
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(at) : "memory");
    else
        *(uint4 *)to = shared_load16(at);
}

/* Pairs of weights of one group as bf16. 4 bit without offset: the scale is high + low, both bf16, so that low * q is
 * exact in bf16 and one fma rounds scale * q. Else f32, 4-bit values as 128 + q. magic: 0x43004300, bf16 128 twice. */
template <int BITS, int KIND> struct group_scale {
    float scale, add;
    __device__ __forceinline__ group_scale(uint32_t word, bool second)
    {
        const float2 two = __half22float2(*(const __half2 *)&word);

        scale = KIND == WITH_OFFSET || !second ? two.x : two.y;
        add = KIND == WITH_OFFSET ? two.y : 0.0f;
        if (BITS == 4) add = fmaf(-128.0f, scale, add);
    }
    __device__ __forceinline__ uint32_t pair(uint32_t v, uint32_t magic) const /* 4 bit: bits 0 .. 3 and 16 .. 19 */
    {
        v = two_nibbles(v, magic);
        return bf16_pair(fmaf(scale, __uint_as_float(v << 16), add),
                         fmaf(scale, __uint_as_float(v & 0xFFFF0000u), add));
    }
    __device__ __forceinline__ uint32_t bytes(uint32_t v, int h) const /* 8 bit: bytes 2 h, 2 h + 1 */
    {
        const uint32_t exponent = 0x4B000000u; /* f32 2^23 + q, signed: + 128 + q */
        const float base = KIND == WITH_OFFSET ? 8388608.0f : 8388736.0f;
        const float low = __uint_as_float(__byte_perm(v, exponent, 0x7440u + 2 * h)) - base;
        const float high = __uint_as_float(__byte_perm(v, exponent, 0x7441u + 2 * h)) - base;

        return bf16_pair(fmaf(scale, low, add), fmaf(scale, high, add));
    }
};
template <> struct group_scale<4, SCALED> {
    __nv_bfloat162 high, low;
    __device__ __forceinline__ group_scale(uint32_t word, bool)
        : high(__low2bfloat162(*(const __nv_bfloat162 *)&word)), low(__high2bfloat162(*(const __nv_bfloat162 *)&word))
    {
    }
    __device__ __forceinline__ uint32_t pair(uint32_t v, uint32_t magic) const
    {
        const uint32_t bias = 0x43084308u; /* 128 + 8 */
        __nv_bfloat162 q;

        v = two_nibbles(v, magic);
        q = __hsub2_rn(*(const __nv_bfloat162 *)&v, *(const __nv_bfloat162 *)&bias);
        q = __hfma2(high, q, __hmul2_rn(low, q));
        return *(const uint32_t *)&q;
    }
};

/* Bytes become bf16 * 2^-120 by a shift of four bits, subnormal numbers too; the scale (high + low) has the 2^120. */
template <> struct group_scale<8, E4M3> {
    __nv_bfloat162 high, low;
    __device__ __forceinline__ group_scale(uint32_t word, bool)
        : high(__low2bfloat162(*(const __nv_bfloat162 *)&word)), low(__high2bfloat162(*(const __nv_bfloat162 *)&word))
    {
    }
    __device__ __forceinline__ uint32_t bytes(uint32_t v, int h) const /* bytes 2 h, 2 h + 1 */
    {
        __nv_bfloat162 q;

        v = __byte_perm(v, 0, h ? 0x3424 : 0x1404);
        v = (v >> 4 & 0x07F007F0u) | (v & 0x80008000u);
        q = *(const __nv_bfloat162 *)&v;
        q = __hfma2(high, q, __hmul2_rn(low, q));
        return *(const uint32_t *)&q;
    }
};

/* Signed bytes as 128 + q; the others stay. */
template <int KIND> static __device__ __forceinline__ uint32_t unsigned_bytes(uint32_t v)
{
    return KIND == SCALED ? v ^ 0x80808080u : v;
}

/* Steps 4 half .. 4 half + 3 of a stage as A operands. values, scales: of this thread's row lane / 4 in the warp's
 * 16, PITCH bytes a row of scales; v: its words of two rows, in 4 bit those of both halves, read with the first. */
template <int BITS, int GROUP, int KIND, uint32_t PITCH>
static __device__ __forceinline__ void convert_half(uint32_t (&a)[QUANT_HALF][4], uint32_t (&v)[2][4], uint32_t values,
                                                    uint32_t scales, uint32_t row, int half)
{
    using S = quant_smem<BITS, GROUP, KIND, 64, 8, 1>;
    constexpr int per_group = GROUP / 16 < QUANT_HALF ? GROUP / 16 : QUANT_HALF, n_groups = QUANT_HALF / per_group;
    constexpr bool two = KIND || BITS == 4; /* numbers a group */
    constexpr int words = two ? n_groups : n_groups / 2;
    const uint32_t c = threadIdx.x % 4;
    uint32_t magic;

    asm("mov.b32 %0, 0x43004300;" : "=r"(magic)); /* the compiler does not know: stays in a register */

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t at = values + r * 8 * S::value_row;
        uint32_t s[words];

        load_scales<words>(s, scales + r * 8 * PITCH + (GROUP <= 64 ? half * words * 4 : 0));
        if (BITS == 8 || half == 0) {
            const uint32_t chunk = BITS == 4 ? c ^ (row / 2 & 3) : (half * 4 + c) ^ (row & 7);

            *(uint4 *)v[r] = shared_load16(at + (chunk << 4));
#pragma unroll
            for (int i = 0; i < 4 && BITS == 8; i++) v[r][i] = unsigned_bytes<KIND>(v[r][i]);
        }
#pragma unroll
        for (int g = 0; g < n_groups; g++) {
            const group_scale<BITS, KIND> scale(s[two ? g : g / 2], g % 2);

#pragma unroll
            for (int i = g * per_group; i < (g + 1) * per_group; i++) {
                if constexpr (BITS == 4) {
                    a[i][r] = scale.pair(v[r][half * 2 + i / 2] >> (8 * (i % 2)), magic);
                    a[i][2 + r] = scale.pair(v[r][half * 2 + i / 2] >> (8 * (i % 2) + 4), magic);
                } else {
                    a[i][r] = scale.bytes(v[r][i], 0);
                    a[i][2 + r] = scale.bytes(v[r][i], 1);
                }
            }
        }
    }
}

/* The box with block kb's scales; at: the block's stage. */
template <typename S> static __device__ __forceinline__ uint32_t scales_box(uint32_t ring, uint32_t at, uint32_t kb)
{
    if constexpr (S::together == 1) return at + S::values + S::tokens;
    return ring + S::stages + kb / S::together % S::slots * S::scales;
}

/* Where they begin in a row of it. block: kb, counted from the matrix's first. */
template <typename S>
static __device__ __forceinline__ uint32_t scales_in_row(uint32_t block, uint32_t kb, uint32_t row)
{
    if constexpr (S::together == 1) return block % S::blocks * S::halves * 2;
    return (kb % S::together ^ (row / 2 & 3)) << 4;
}

struct quant_maps {
    CUtensorMap values[3], scales[3], x;
};

template <int BITS, int GROUP, int KIND, int ROWS, int N, int STAGES>
static __device__ void quant_feed(const struct quant_maps &maps, const struct linear_job &job,
                                  const struct tile_place &p, uint32_t ring, uint32_t full, uint32_t empty,
                                  uint32_t first, uint32_t n_blocks)
{
    using S = quant_smem<BITS, GROUP, KIND, ROWS, N, STAGES>;
    uint64_t once = policy_evict_first(), often = policy_evict_last();
    uint32_t ahead = min(n_blocks, (uint32_t)STAGES);

    const struct piece_place at_piece[2] = {piece_at(job, ROWS, p.piece), piece_at(job, ROWS, p.piece + 1)};

    tma_prefetch_map(&maps.scales[at_piece[0].which]);
    if (N > 1) tma_prefetch_map(&maps.x);
    if (gridDim.x > 264 && N > 64) once = often;
    for (uint32_t i = N == 1 ? ahead : 0; i < n_blocks + ahead; i++) { /* order as in linear_feed */
        uint32_t kb = i < ahead ? i : i - ahead, s = kb % STAGES, at = ring + s * S::stage, bar = full + 8 * s;
        int block = (int)(first + kb);

        if (i >= ahead && kb >= ahead) mbar_wait(empty + 8 * s, (kb / STAGES - 1) & 1);
        if (N == 1 || i < ahead || kb >= ahead) {
            const bool has_scales = kb % S::together == 0;
            const uint32_t box = scales_box<S>(ring, at, kb);

            mbar_expect(bar, S::values + S::tokens + (has_scales ? S::scales : 0));
#pragma unroll
            for (int h = 0; h < 2; h++) {
                tma_load_2d(at + h * S::values / 2, &maps.values[at_piece[h].which], bar, block * (int)S::value_row,
                            (int)at_piece[h].row, once);
                if (has_scales)
                    tma_load_2d(box + h * S::scales / 2, &maps.scales[at_piece[h].which], bar,
                                block / (int)S::blocks * (int)S::box, (int)at_piece[h].row, often);
            }
        }
        if (N == 1) continue;
        if (i == ahead) dependency_wait();
        if (i >= ahead)
            for (int h = 0; h < 2; h++)
                tma_load_2d(at + S::values + h * S::tokens / 2, &maps.x, bar, block * QUANT_BLOCK + h * 64,
                            (int)p.token, often);
    }
}

/* SEGS: 2: a block computes two segments, one after the other, and keeps the sums of each; of an even number of them alone. */
template <int BITS, int GROUP, int KIND, int ROWS, int N, int STAGES, int MODE, int BLOCKS_PER_SM, int SEGS>
__global__ void __launch_bounds__(linear_block<ROWS>::threads, BLOCKS_PER_SM)
    linear_quant(const __grid_constant__ struct quant_maps maps, const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    using S = quant_smem<BITS, GROUP, KIND, ROWS, N, STAGES, SEGS>;
    using B = linear_block<ROWS>;
    constexpr int TILE = N == 1 ? 8 : N;                                              /* of wgmma */
    constexpr uint64_t step = N == 1 ? QUANT_BLOCK * 2 / 2 / 16 : S::tokens / 2 / 16; /* half a block's tokens */
    extern __shared__ uint8_t raw[];
    uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, full = ring + S::big, empty = full + 8 * STAGES;
    uint32_t warp = threadIdx.x / 32, n_blocks = MODE == SPLIT ? job.n_segs / SEGS : 1;
    uint32_t rank = MODE == SPLIT ? cluster_rank() : 0, first = rank * SEGS * job.seg_blocks;
    uint32_t count = MODE == SPLIT ? min(SEGS * job.seg_blocks, job.k_blocks - first) : job.k_blocks;
    struct tile_place p = place_of(job, ROWS, N);
    const struct seg_blocks blocks = {n_blocks, rank};
    const struct one_row_meet meet = one_row_meet_of<ROWS>(ring + S::row, job.seg_blocks * QUANT_BLOCK * 2, n_blocks);
    float4 before = {};

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, ROWS / 16);
        }
        mbar_init_fence();
        if (N == 1 && n_blocks > 1) one_row_expect<ROWS>(job, meet, blocks);
    }
    __syncthreads();
    if (N == 1 && n_blocks > 1) cluster_arrive();
    dependents_launch();
    if (warp == ROWS / 16) {
        if (threadIdx.x % 32 == 0)
            quant_feed<BITS, GROUP, KIND, ROWS, N, STAGES>(maps, job, p, ring, full, empty, first, count);
        __syncwarp();
        if (N == 1 && n_blocks > 1) cluster_wait();
    } else {
        uint32_t lane = threadIdx.x % 32, row = warp * 16 + lane / 4, left = job.seg_blocks;
        bool begin = true;
        float acc[TILE / 2], total[MODE == WALK || SEGS == 2 ? TILE / 2 : 1];

        if constexpr (N == 1) {
            one_row_load(job.row, ring + S::row, first * QUANT_BLOCK, count * QUANT_BLOCK);
            before = one_row_before<ROWS>(job, p, n_blocks, rank);
        } else {
            dependency_wait();
        }
        struct ring_at r = {0, 0};
        uint32_t last = 0;

        for (uint32_t kb = 0; kb < count; kb++) {
            uint32_t at = ring + r.stage * S::stage;
            uint32_t scales = scales_box<S>(ring, at, kb) + row * S::pitch + scales_in_row<S>(first + kb, kb, row);
            uint64_t b = N == 1 ? wgmma_desc_one_row(ring + S::row + kb * QUANT_BLOCK * 2) : wgmma_desc(at + S::values);
            uint32_t a[2][QUANT_HALF][4], v[2][4];

            mbar_wait(full + 8 * r.stage, r.turn);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                convert_half<BITS, GROUP, KIND, S::pitch>(a[half], v, at + row * S::value_row, scales, row, half);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < QUANT_HALF; k++)
                    wgmma_rs<TILE>(acc, a[half][k], b + half * step + 2 * k, !begin || half > 0 || k > 0);
                wgmma_commit();
                wgmma_wait<1>();
                if (half == 0 && kb > 0 && lane == 0) mbar_arrive(empty + 8 * last);
            }
            last = r.stage;
            ring_next<STAGES>(r);
            begin = false;
            if constexpr (SEGS == 2) {
                if (--left == 0) { /* the first segment's end; the second has no more blocks than it */
                    wgmma_wait<0>();
#pragma unroll
                    for (int i = 0; i < TILE / 2; i++) total[i] = acc[i];
                    begin = true;
                }
            }
            if constexpr (MODE == WALK) {
                if (--left == 0 || kb + 1 == count) {
                    wgmma_wait<0>();
#pragma unroll
                    for (int i = 0; i < TILE / 2; i++) total[i] = kb < job.seg_blocks ? acc[i] : total[i] + acc[i];
                    begin = true;
                    left = job.seg_blocks;
                }
            }
        }
        wgmma_wait<0>();
        if constexpr (N == 1) {
            one_row_send<ROWS>(job, meet, blocks, acc[0], acc[2]);
            linear_write<ROWS, N, MODE>(job, p, meet.at, blocks, &before);
            return;
        }
        named_barrier(1, B::workers); /* all warpgroups are done with the ring */
        float *sums = (float *)(raw + (ring - smem_u32(raw)));
        if constexpr (MODE == WALK)
            keep_sums<ROWS, TILE>(sums, total);
        else
            keep_sums<ROWS, TILE>(sums + (SEGS - 1) * N * B::pitch, acc);
        if constexpr (SEGS == 2) keep_sums<ROWS, TILE>(sums, total);
        named_barrier(1, B::workers);
    }
    if (N == 1) return;
    if (MODE == SPLIT) cluster_sync();
    if (warp < ROWS / 16) linear_write<ROWS, N, MODE, SEGS>(job, p, ring, blocks, NULL);
    if (MODE == SPLIT) cluster_sync(); /* others may still read this block's sums */
#endif
}
