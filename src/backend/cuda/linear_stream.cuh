/* backend/cuda/linear_stream.cuh - the product of linear_wgmma.cuh for many rows: blocks that stay, on Hopper.
 *
 * Order of the sums as there. A block goes through tiles of 128 weight rows times N tokens until none is left: one
 * thread feeds the ring through TMA and is already at the next tile while two warpgroups write this one's outputs, which
 * leave by TMA from small buffers of their own. Registers go from the feeding warpgroup to the others (setmaxnreg): room
 * for two sets of sums of 64 x 192.
 *   GLU     a warpgroup computes 64 rows of gate and the same 64 of up for half of the tokens
 *   else    a warpgroup computes 64 rows for all tokens
 *   WALK    several segments: a second set of sums, added to at their ends
 * Tiles are taken so that those in work at one time share operands in the L2: row_group token tiles, then weights.
 * (Pairs of blocks sharing the loads of a token tile by multicast, half each, were slower: gate_up 511 TFLOP/s against 637,
 * down 412 against 629, and more energy, H200.)
 *
 * H200, 8,192 rows, 8B: qkv 717, o 696, gate_up 640, down 646 TFLOP/s; 1,024 rows: 690, 682, 609, 640.
 */
#pragma once
#include "backend/cuda/linear_wgmma.cuh"

enum { STREAM_THREADS = 384, STREAM_PIECE = 8192 };      /* bytes of outputs that leave together */

struct stream_maps { CUtensorMap w[3], x, out[3]; };

template <int N> struct stream_smem {
    static constexpr uint32_t weights = 128 * K_BLOCK * 2, tokens = N * K_BLOCK * 2, stage = weights + tokens;
    static constexpr uint32_t stages = N > 128 ? 4 : 6, ring = stages * stage, leaving = 4 * STREAM_PIECE;
    static constexpr uint32_t bytes = ring + leaving + 2 * 8 * stages + 1024;       /* barriers; room to align */
};

struct stream_place { uint32_t which[2], row[2], token; };  /* matrix and first row of each half; first token */

/* Tiles of 128 rows; of a GLU 64 of gate and the same 64 of up. */
template <int N>
static __device__ __forceinline__ struct stream_place stream_place_of(const struct linear_job &job, uint32_t unit)
{
    const uint32_t per_group = job.row_group * job.n_tiles, group = unit / per_group, in = unit % per_group;
    const uint32_t width = min(job.row_group, job.n_row_tiles - group * job.row_group);

    const uint32_t tile = in / width, o = (tile >= job.first_tile[1]) + (tile >= job.first_tile[2]);
    const uint32_t token = (group * job.row_group + in % width) * N, row = (tile - job.first_tile[o]) * 128;

    if (job.epilogue >= EPI_SILU_GLU) return { { 0, 1 }, { tile * 64, tile * 64 }, token };
    return { { o, o }, { row, row + 64 }, token };
}

/* The feeding thread: all tiles of this block. */
template <int N>
static __device__ void stream_feed(const struct stream_maps &maps, const struct linear_job &job, uint32_t ring,
                                   uint32_t full, uint32_t empty, uint32_t n_units)
{
    using S = stream_smem<N>;
    const uint64_t often = policy_evict_last();
    struct ring_at r = { 0, 1 };                                /* the first turn's places are free */

    dependency_wait();
    for (uint32_t unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        const struct stream_place p = stream_place_of<N>(job, unit);

        for (uint32_t kb = 0; kb < job.k_blocks; kb++) {
            const uint32_t at = ring + r.stage * S::stage, bar = full + 8 * r.stage;
            const int k = (int)kb * K_BLOCK;

            mbar_wait(empty + 8 * r.stage, r.turn);
            mbar_expect(bar, S::stage);
            tma_load_2d(at, &maps.w[p.which[0]], bar, k, (int)p.row[0], often);
            tma_load_2d(at + S::weights / 2, &maps.w[p.which[1]], bar, k, (int)p.row[1], often);
            tma_load_2d(at + S::weights, &maps.x, bar, k, (int)p.token, often);
            ring_next<S::stages>(r);
        }
    }
}

/* Before the warpgroup writes to a buffer, and after: the second sends it. */
static __device__ __forceinline__ void leaving_begin(uint32_t group)
{
    if (threadIdx.x % 128 == 0) bulk_wait_read<1>();
    named_barrier(1 + group, 128);
}
static __device__ __forceinline__ bool leaving_ready(uint32_t group)
{
    shared_written_fence();
    named_barrier(1 + group, 128);
    return threadIdx.x % 128 == 0;
}

/* f32 outputs of a warpgroup's 64 rows: pieces of 32 tokens, boxes of 32 rows. */
template <int N>
static __device__ void stream_write(const struct stream_maps &maps, const struct linear_job &job,
                                    const struct stream_place &p, const float (&d)[N / 2], uint32_t buffer, uint32_t group)
{
    const uint32_t lane = threadIdx.x % 32, o = threadIdx.x / 32 % 4 * 16 + lane / 4, which = p.which[0];
    const uint32_t row = p.row[0] + group * 64;
    float bias[2] = { 0, 0 };

#pragma unroll
    for (int h = 0; h < 2; h++)
        if (job.bias[which] && row + o + 8 * h < job.n_out[which]) bias[h] = job.bias[which][row + o + 8 * h];
#pragma unroll
    for (int piece = 0; piece < N / 32; piece++) {
        const uint32_t to = buffer + piece % 2 * STREAM_PIECE;

        leaving_begin(group);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const uint32_t token = 8 * (i / 4) + lane % 4 * 2 + i % 2, at = o + 8 * (i / 2 % 2);
            const uint32_t there = to + at / 32 * 4096 + token * 128 + ((at % 32 / 4 ^ (token & 7)) << 4) + at % 4 * 4;
            const float v = d[piece * 16 + i];

            asm volatile("st.shared.f32 [%0], %1;" ::"r"(there), "f"(job.bias[which] ? v + bias[i / 2 % 2] : v)
                         : "memory");
        }
        if (leaving_ready(group)) {
            for (int h = 0; h < 2; h++)
                tma_store_2d(&maps.out[which], (int)row + h * 32, (int)p.token + piece * 32, to + h * 4096,
                             job.epilogue == EPI_ADD);
            bulk_commit();
        }
    }
}

/* act(gate) * up of 64 rows and N tokens, bf16: pieces of 32 tokens. */
template <int N>
static __device__ void stream_write_glu(const struct stream_maps &maps, const struct linear_job &job,
                                        const struct stream_place &p, const float (&gate)[N / 2], const float (&up)[N / 2],
                                        uint32_t buffer, uint32_t group)
{
    const uint32_t lane = threadIdx.x % 32, chunk = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2;

#pragma unroll
    for (int piece = 0; piece < N / 32; piece++) {
        const uint32_t to = buffer + piece % 2 * STREAM_PIECE;

        leaving_begin(group);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const uint32_t token = 8 * (j + lane / 16) + lane % 8;
            uint32_t v[4];

#pragma unroll
            for (int m = 0; m < 4; m++) {
                const int i = piece * 16 + 4 * (j + m / 2) + 2 * (m % 2);
                const __nv_bfloat162 two = __floats2bfloat162_rn(glu_of(job.epilogue, gate[i], up[i]),
                                                                 glu_of(job.epilogue, gate[i + 1], up[i + 1]));
                v[m] = *(const uint32_t *)&two;
            }
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             to + token * 128 + ((chunk ^ (token & 7)) << 4)),
                         "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                         : "memory");
        }
        if (leaving_ready(group)) {
            tma_store_2d(&maps.out[0], (int)p.row[0], (int)(p.token + group * N) + piece * 32, to, false);
            bulk_commit();
        }
    }
}

/* One k block's products: of gate and up with the warpgroup's half of the tokens, or of its rows with all. */
template <int N, bool GLU>
static __device__ __forceinline__ void stream_products(float (&acc)[GLU + 1][N / 2 / (GLU + 1)], uint32_t at,
                                                       uint32_t group, bool add)
{
    using S = stream_smem<N>;
    const uint64_t a = wgmma_desc(at + (GLU ? 0 : group * (S::weights / 2)));
    const uint64_t b = wgmma_desc(at + S::weights + (GLU ? group * (S::tokens / 2) : 0));

    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K_BLOCK / 16; k++) {
        wgmma_ss<N / (GLU + 1)>(acc[0], a + 2 * k, b + 2 * k, add || k > 0);
        if constexpr (GLU) wgmma_ss<N / 2>(acc[1], a + (S::weights / 2 >> 4) + 2 * k, b + 2 * k, add || k > 0);
    }
    wgmma_commit();
}

/* A warpgroup's sums of one tile: in acc if WALK is false (one segment), else in total. */
template <int N, bool GLU, bool WALK>
static __device__ __forceinline__ void stream_sums(const struct linear_job &job, uint32_t ring, uint32_t full,
                                                   uint32_t empty, uint32_t group, struct ring_at &r,
                                                   float (&acc)[GLU + 1][N / 2 / (GLU + 1)],
                                                   float (&total)[GLU + 1][WALK ? N / 2 / (GLU + 1) : 1])
{
    uint32_t left = job.seg_blocks, last = 0;
    bool begin = true;

    for (uint32_t kb = 0; kb < job.k_blocks; kb++) {
        mbar_wait(full + 8 * r.stage, r.turn);
        stream_products<N, GLU>(acc, ring + r.stage * stream_smem<N>::stage, group, !begin);
        begin = false;
        wgmma_wait<1>();
        if (kb > 0 && threadIdx.x % 32 == 0) mbar_arrive(empty + 8 * last);
        last = r.stage;
        ring_next<stream_smem<N>::stages>(r);
        if constexpr (WALK) {
            if (--left == 0 || kb + 1 == job.k_blocks) {
                wgmma_wait<0>();
#pragma unroll
                for (int h = 0; h <= GLU; h++)
#pragma unroll
                    for (int i = 0; i < N / 2 / (GLU + 1); i++)
                        total[h][i] = kb < job.seg_blocks ? acc[h][i] : total[h][i] + acc[h][i];
                begin = true;
                left = job.seg_blocks;
            }
        }
    }
    wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) mbar_arrive(empty + 8 * last);
}

template <int N, bool GLU, bool WALK>
__global__ void __launch_bounds__(STREAM_THREADS, 1)
    linear_stream(const __grid_constant__ struct stream_maps maps, const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    using S = stream_smem<N>;
    extern __shared__ uint8_t raw[];
    const uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, leaving = ring + S::ring, full = leaving + S::leaving;
    const uint32_t empty = full + 8 * S::stages, n_units = job.n_tiles * job.n_row_tiles;

    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < S::stages; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8);                        /* the workers' warps */
        }
        mbar_init_fence();
    }
    __syncthreads();
    dependents_launch();
    if (threadIdx.x < 128) {
        registers_less<24>();
        if (threadIdx.x == 0) stream_feed<N>(maps, job, ring, full, empty, n_units);
    } else {
        const uint32_t group = threadIdx.x / 128 - 1, buffer = leaving + group * 2 * STREAM_PIECE;
        struct ring_at r = { 0, 0 };
        float acc[GLU + 1][N / 2 / (GLU + 1)], total[GLU + 1][WALK ? N / 2 / (GLU + 1) : 1];

        registers_more<240>();
        dependency_wait();
        for (uint32_t unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
            const struct stream_place p = stream_place_of<N>(job, unit);

            stream_sums<N, GLU, WALK>(job, ring, full, empty, group, r, acc, total);
            if constexpr (!GLU) stream_write<N>(maps, job, p, total[0], buffer, group);
            else if constexpr (WALK) stream_write_glu<N / 2>(maps, job, p, total[0], total[1], buffer, group);
            else stream_write_glu<N / 2>(maps, job, p, acc[0], acc[1], buffer, group);
        }
        if (threadIdx.x % 128 == 0) bulk_wait_all();
    }
#endif
}
