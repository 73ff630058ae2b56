/* backend/cuda/linear/linear_stream.cuh - the product of linear_wgmma.cuh for many rows: blocks that stay, on Hopper.
 *
 * Order of the sums as there. A block goes through tiles of 128 x N until none is left: a thread feeds the ring through
 * TMA and is already at the next tile while two warpgroups, 64 x N each, write this one's outputs, which leave by TMA.
 * Registers go from the feeding warpgroup to the others (setmaxnreg).
 *   GLU     128 tokens times N / 2 rows of gate and the same of up: both of an output are in one thread. They are
 *           multiplied as soon as the sums are there, and written while the next tile's first products run
 *   else    128 weight rows times N tokens
 *           (N = 192: where the rounds over the device come out better; outputs leave in boxes of 32, not 64)
 *   PAIR    two blocks (a cluster) take neighbouring tiles of 128 and share the side of N: each loads half of it for
 *           both (multicast). A place of the ring is free once the workers of both are done with it
 *   WALK    several segments: a thread keeps the first 64 of its sums in registers and the others in shared memory,
 *           where outputs leave from later: room for N = 224 in both
 * Tiles are taken so that those in work at one time share operands in the L2: row_group token tiles, then weights.
 *
 * H200, 8,192 rows of the 8B, TFLOP/s for 30 ms: gate_up 807, down 769, qkv 732, o 737; under long load 686, 661,
 * 618, 627.
 * The bound is the card's power in the long run, before that shared memory, which gives the products 128 bytes a cycle
 * and takes what arrives: a tile of 128 x 256 needs 100 % of it, of 128 x 192 108 %.
 */
#pragma once
#include "backend/cuda/cuda_kernels.h"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear/linear_wgmma.cuh"

/* Bytes of outputs of a warpgroup that leave together; sums of the segments before that a thread has in registers. */
enum { STREAM_THREADS = 384, STREAM_PIECE = 8192, KEPT = 64 };

struct stream_maps {
    CUtensorMap a[3], b[2], out[3];  /* the sides of 128 and of N; the latter's halves */
    CUtensorMap copies[CUDA_COPIES]; /* where out[0] goes as well: other devices' memory */
    uint32_t n_copies;
};

/* A box leaves, to every place. */
static __device__ __forceinline__ void stream_store(const struct stream_maps &maps, uint32_t which, uint32_t x,
                                                    uint32_t y, uint32_t from, bool add)
{
    tma_store_2d(&maps.out[which], (int)x, (int)y, from, add);
    for (uint32_t i = 0; i < maps.n_copies; i++) tma_store_2d(&maps.copies[i], (int)x, (int)y, from, false);
}

/* The ring; what leaves, or is kept until it does; barriers; room to align. */
template <int N, bool GLU> struct stream_smem {
    static constexpr uint32_t a = 128 * K_BLOCK * 2, b = N * K_BLOCK * 2, stage = a + b;
    static constexpr uint32_t kept = GLU || N <= 128 ? 0 : (N / 2 - KEPT) * 4 * 128; /* of a warpgroup */
    static constexpr uint32_t leaving = GLU ? 64 * N : kept > 2 * STREAM_PIECE ? kept : 2 * STREAM_PIECE;
    static constexpr uint32_t room = (SMEM_BLOCK_MAX - 1024 - 128 - 2 * leaving) / stage;
    static constexpr uint32_t stages = room < 6 ? room : 6, ring = stages * stage;
    static constexpr uint32_t bytes = ring + 2 * leaving + 2 * 8 * stages + 1024;
};

struct stream_place {
    uint32_t which, a, b;
}; /* weight matrix; first row of each side */

template <int N, bool GLU, bool PAIR>
static __device__ __forceinline__ struct stream_place stream_place_of(const struct linear_job &job, uint32_t unit,
                                                                      uint32_t rank)
{
    const uint32_t per_group = job.row_group * job.n_tiles, group = unit / per_group, in = unit % per_group;
    const uint32_t width = min(job.row_group, job.n_row_tiles - group * job.row_group);
    const uint32_t tokens = group * job.row_group + in % width, weights = in / width;

    if (GLU) return {0, (tokens * (1 + PAIR) + rank) * 128, weights * (N / 2)};
    const struct piece_place p = whole_tile_at(job, 128, weights * (1 + PAIR) + rank);
    return {p.which, p.row, tokens * N};
}

/* A unit is a tile, or a pair's two. */
template <bool PAIR> static __device__ __forceinline__ uint32_t first_unit(void)
{
    return blockIdx.x / (1 + PAIR);
}
template <bool PAIR> static __device__ __forceinline__ uint32_t unit_step(void)
{
    return gridDim.x / (1 + PAIR);
}

/* A k block of one side comes to a place of the ring: of the weights, or of the tokens. */
template <int N, bool GLU, bool PAIR, bool WEIGHTS>
static __device__ __forceinline__ void stream_load(const struct stream_maps &maps, const struct stream_place &p,
                                                   uint32_t at, uint32_t bar, int k, uint32_t rank, uint64_t policy)
{
    using S = stream_smem<N, GLU>;

    if (GLU != WEIGHTS) {
        tma_load_2d(at, &maps.a[p.which], bar, k, (int)p.a, policy);
    } else if (PAIR) {
        tma_load_2d_pair(at + S::a + rank * (S::b / 2), &maps.b[rank], bar, k, (int)(GLU ? p.b : p.b + rank * (N / 2)),
                         policy);
    } else {
        tma_load_2d(at + S::a, &maps.b[0], bar, k, (int)p.b, policy);
        tma_load_2d(at + S::a + S::b / 2, &maps.b[1], bar, k, (int)(GLU ? p.b : p.b + N / 2), policy);
    }
}

/* The feeding thread: all tiles of this block. The weights of the first places, which do not depend on the kernel before, are
 * asked for before dependency_wait. */
template <int N, bool GLU, bool PAIR>
static __device__ void stream_feed(const struct stream_maps &maps, const struct linear_job &job, uint32_t ring,
                                   uint32_t full, uint32_t empty, uint32_t n_units, uint32_t rank)
{
    using S = stream_smem<N, GLU>;
    const uint64_t often = policy_evict_last();
    const uint32_t ahead = min(job.k_blocks, S::stages);
    struct ring_at r = {0, 1}; /* the first turn's places are free */
    struct stream_place p = stream_place_of<N, GLU, PAIR>(job, first_unit<PAIR>(), rank);

    tma_prefetch_map(&maps.a[p.which]);
    tma_prefetch_map(&maps.b[PAIR ? rank : 0]);
    for (uint32_t kb = 0; kb < ahead; kb++) {
        mbar_expect(full + 8 * kb, S::stage);
        stream_load<N, GLU, PAIR, true>(maps, p, ring + kb * S::stage, full + 8 * kb, (int)kb * K_BLOCK, rank, often);
    }
    dependency_wait();
    for (uint32_t kb = 0; kb < ahead; kb++, ring_next<S::stages>(r))
        stream_load<N, GLU, PAIR, false>(maps, p, ring + kb * S::stage, full + 8 * kb, (int)kb * K_BLOCK, rank, often);
    for (uint32_t unit = first_unit<PAIR>(), kb = ahead; unit < n_units; unit += unit_step<PAIR>(), kb = 0) {
        p = stream_place_of<N, GLU, PAIR>(job, unit, rank);
        for (; kb < job.k_blocks; kb++, ring_next<S::stages>(r)) {
            const uint32_t at = ring + r.stage * S::stage, bar = full + 8 * r.stage;
            const int k = (int)kb * K_BLOCK;

            mbar_wait(empty + 8 * r.stage, r.turn);
            mbar_expect(bar, S::stage);
            stream_load<N, GLU, PAIR, true>(maps, p, at, bar, k, rank, often);
            stream_load<N, GLU, PAIR, false>(maps, p, at, bar, k, rank, often);
        }
    }
}

/* Before the warpgroup writes to a buffer, and after: the second sends it. */
template <int OTHERS> static __device__ __forceinline__ void leaving_begin(uint32_t group)
{
    if (threadIdx.x % 128 == 0) bulk_wait_read<OTHERS>();
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
static __device__ __forceinline__ void stream_write(const struct stream_maps &maps, const struct linear_job &job,
                                                    const struct stream_place &p, const float (&d)[N / 2],
                                                    uint32_t buffer, uint32_t group)
{
    constexpr int buffers = stream_smem<N, false>::leaving / STREAM_PIECE;
    const uint32_t lane = threadIdx.x % 32, o = threadIdx.x / 32 % 4 * 16 + lane / 4, row = p.a + group * 64;
    const float *const bias = job.bias[p.which];
    float more[2] = {0, 0};

#pragma unroll
    for (int h = 0; h < 2; h++)
        if (bias && row + o + 8 * h < job.n_out[p.which]) more[h] = bias[row + o + 8 * h];
#pragma unroll
    for (int piece = 0; piece < N / 32; piece++) {
        const uint32_t to = buffer + piece % buffers * STREAM_PIECE;

        if (piece == 0)
            leaving_begin<0>(group); /* the tile before may have ended in this buffer, too */
        else
            leaving_begin<buffers - 1>(group);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const uint32_t token = 8 * (i / 4) + lane % 4 * 2 + i % 2, at = o + 8 * (i / 2 % 2);
            const uint32_t there = to + at / 32 * 4096 + token * 128 + ((at % 32 / 4 ^ (token & 7)) << 4) + at % 4 * 4;
            const float v = d[piece * 16 + i];

            shared_store(there, bias ? v + more[i / 2 % 2] : v);
        }
        if (leaving_ready(group)) {
            for (int h = 0; h < 2; h++)
                stream_store(maps, p.which, row + h * 32, p.b + piece * 32, to + h * 4096, job.epilogue == EPI_ADD);
            bulk_commit();
        }
    }
}

/* act(gate) * up of a thread's sums, in pairs of neighbours. */
template <int N, int ACT>
static __device__ __forceinline__ void stream_glu(const float (&d)[N / 2], uint32_t (&v)[N / 8])
{
#pragma unroll
    for (int i = 0; i < N / 4; i += 2) {
        const __nv_bfloat162 two =
            __floats2bfloat162_rn(activate(ACT, d[i]) * d[N / 4 + i], activate(ACT, d[i + 1]) * d[N / 4 + i + 1]);
        v[i / 2] = *(const uint32_t *)&two;
    }
}

/* Outputs of a GLU in a box that leaves: 16 tokens of as many, swizzled over the bytes of one (88: not, rows of an odd number of
 * 16 bytes meet no bank twice). */
static __device__ __host__ constexpr uint32_t glu_box(uint32_t n)
{
    return n == 176 ? 88 : n % 128 ? 32 : 64;
}

/* They leave: 16 tokens of a warp times N / 2, through a buffer of its own. */
template <int N>
static __device__ __forceinline__ void stream_write_glu(const struct stream_maps &maps, const struct stream_place &p,
                                                        const uint32_t (&v)[N / 8], uint32_t buffer, uint32_t group)
{
    constexpr uint32_t wide = glu_box(N), chunks = wide / 8, box = 16 * wide * 2;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, token = lane % 16;
    const uint32_t to = buffer + warp * 16 * N, turn = wide == 88 ? 0 : token * chunks / 8 % chunks;

    if (lane == 0) bulk_wait_read<0>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < N / 16; j += 2) {
        const uint32_t chunk = j + lane / 16;

        if constexpr (N / 16 % 2 == 1)
            if (j + 1 == N / 16) {
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to + j * 16 + token * wide * 2),
                    "r"(v[2 * j]), "r"(v[2 * j + 1])
                    : "memory");
                break;
            }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + chunk / chunks * box + token * wide * 2 + ((chunk % chunks ^ turn) << 4)),
                     "r"(v[2 * j]), "r"(v[2 * j + 1]), "r"(v[(2 * j + 2) % (N / 8)]), "r"(v[(2 * j + 3) % (N / 8)])
                     : "memory");
    }
    shared_written_fence();
    __syncwarp();
    if (lane == 0) {
        for (uint32_t h = 0; h < N / 2 / wide; h++)
            stream_store(maps, 0, p.b + h * wide, p.a + group * 64 + warp * 16, to + h * box, false);
        bulk_commit();
    }
}

/* What a warpgroup's threads know. empty: of the block of the pair that this thread tells. */
struct stream_worker {
    uint32_t ring, full, empty, group, buffer;
    struct ring_at r;
};

/* One k block's products. */
template <int N, bool GLU>
static __device__ __forceinline__ void stream_products(const struct stream_worker &w, float (&acc)[N / 2], bool add)
{
    using S = stream_smem<N, GLU>;
    const uint32_t at = w.ring + w.r.stage * S::stage;
    const uint64_t a = wgmma_desc(at + w.group * (S::a / 2)), b = wgmma_desc(at + S::a);

    mbar_wait(w.full + 8 * w.r.stage, w.r.turn);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K_BLOCK / 16; k++) wgmma_ss<N>(acc, a + 2 * k, b + 2 * k, add || k > 0);
    wgmma_commit();
}

/* A place is done with: a lane for each block of the pair says so. */
template <bool PAIR>
static __device__ __forceinline__ void stream_release(const struct stream_worker &w, uint32_t stage)
{
    if (PAIR && threadIdx.x % 32 < 2) mbar_arrive_there(w.empty + 8 * stage);
    if (!PAIR && threadIdx.x % 32 == 0) mbar_arrive(w.empty + 8 * stage);
}

/* Adds a segment's sums to those before it: 64 of a thread in `kept`, the rest where outputs will leave from. */
template <int N>
static __device__ __forceinline__ void stream_keep(const struct stream_worker &w, const float (&acc)[N / 2],
                                                   float (&kept)[KEPT], bool first)
{
    const uint32_t at = w.buffer + threadIdx.x % 128 * 16;

    if (N > 128 && first) leaving_begin<0>(w.group);
#pragma unroll
    for (int i = 0; i < KEPT; i++) kept[i] = first ? acc[i] : kept[i] + acc[i];
#pragma unroll
    for (int i = KEPT; i < N / 2; i += 4) {
        const uint32_t there = at + (i - KEPT) * 512;
        float4 v = make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);

        if (!first) {
            const float4 old = shared_load4(there);
            v = make_float4(old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w);
        }
        shared_store4(there, v);
    }
}

/* acc: the last segment's sums, then all segments'. */
template <int N>
static __device__ __forceinline__ void stream_total(const struct stream_worker &w, float (&acc)[N / 2],
                                                    const float (&kept)[KEPT])
{
    const uint32_t at = w.buffer + threadIdx.x % 128 * 16;

#pragma unroll
    for (int i = 0; i < KEPT; i++) acc[i] = kept[i] + acc[i];
#pragma unroll
    for (int i = KEPT; i < N / 2; i += 4) {
        const float4 old = shared_load4(at + (i - KEPT) * 512);

        acc[i] = old.x + acc[i], acc[i + 1] = old.y + acc[i + 1];
        acc[i + 2] = old.z + acc[i + 2], acc[i + 3] = old.w + acc[i + 3];
    }
}

/* A warpgroup's sums of one tile. meanwhile(): called while the first products run. */
template <int N, bool GLU, bool PAIR, bool WALK, typename F>
static __device__ __forceinline__ void stream_sums(const struct linear_job &job, struct stream_worker &w,
                                                   float (&acc)[N / 2], F meanwhile)
{
    uint32_t left = job.seg_blocks, last = 0;
    float kept[KEPT];
    bool add = false;

    for (uint32_t kb = 0; kb < job.k_blocks; kb++) {
        stream_products<N, GLU>(w, acc, add);
        add = true;
        if (kb == 0) meanwhile();
        wgmma_wait<1>();
        if (kb > 0) stream_release<PAIR>(w, last);
        last = w.r.stage;
        ring_next<stream_smem<N, GLU>::stages>(w.r);
        if (WALK && --left == 0 && kb + 1 < job.k_blocks) {
            wgmma_wait<0>();
            stream_keep<N>(w, acc, kept, kb < job.seg_blocks);
            add = false;
            left = job.seg_blocks;
        }
    }
    wgmma_wait<0>();
    stream_release<PAIR>(w, last);
    if (WALK && job.n_segs > 1) stream_total<N>(w, acc, kept);
}

template <int N, bool GLU, bool PAIR, bool WALK>
static __device__ __forceinline__ void stream_work(const struct stream_maps &maps, const struct linear_job &job,
                                                   struct stream_worker &w, uint32_t n_units, uint32_t rank)
{
    float acc[N / 2];

    if constexpr (GLU) {
        struct stream_place before = {0, 0, ~0u};
        uint32_t v[N / 8];

        for (uint32_t unit = first_unit<PAIR>(); unit < n_units; unit += unit_step<PAIR>()) {
            stream_sums<N, GLU, PAIR, WALK>(job, w, acc, [&] {
                if (before.b != ~0u) stream_write_glu<N>(maps, before, v, w.buffer, w.group);
            });
            if (job.epilogue == EPI_SILU_GLU)
                stream_glu<N, CUDA_SILU>(acc, v);
            else
                stream_glu<N, CUDA_GELU_TANH>(acc, v);
            before = stream_place_of<N, GLU, PAIR>(job, unit, rank);
        }
        if (before.b != ~0u) stream_write_glu<N>(maps, before, v, w.buffer, w.group);
    } else {
        for (uint32_t unit = first_unit<PAIR>(); unit < n_units; unit += unit_step<PAIR>()) {
            stream_sums<N, GLU, PAIR, WALK>(job, w, acc, [] {});
            stream_write<N>(maps, job, stream_place_of<N, GLU, PAIR>(job, unit, rank), acc, w.buffer, w.group);
        }
    }
}

#if __CUDA_ARCH__ >= 900
/* A block of a pair, as linear_stream's: barriers, one thread that feeds(ring, full, empty, rank), two warpgroups that work(worker,
 * rank). S: its shared memory's parts. linear_stream itself has it apart: within a call ptxas orders it otherwise, unmeasured. */
template <typename S, typename Feed, typename Work>
static __device__ __forceinline__ void stream_pair_block(Feed feed, Work work)
{
    extern __shared__ uint8_t raw[];
    const uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, full = ring + S::ring + 2 * S::leaving;
    const uint32_t empty = full + 8 * S::stages, rank = cluster_rank();

    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < S::stages; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8 * 2); /* the workers' warps of both */
        }
        mbar_init_fence();
    }
    cluster_sync();
    dependents_launch();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0) feed(ring, full, empty, rank);
        __syncwarp();
    } else {
        const uint32_t group = threadIdx.x / 128 - 1;
        struct stream_worker w = {
            ring, full, cluster_address(empty, threadIdx.x % 2), group, ring + S::ring + group * S::leaving, {0, 0}};

        registers_more<232>();
        dependency_wait();
        work(w, rank);
        if (threadIdx.x % 32 == 0) bulk_wait_all();
        __syncwarp();
    }
    cluster_sync(); /* the other may still write here, or tell of places */
}
#endif

template <int N, bool GLU, bool PAIR, bool WALK>
__global__ void __launch_bounds__(STREAM_THREADS, 1)
    linear_stream(const __grid_constant__ struct stream_maps maps, const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    using S = stream_smem<N, GLU>;
    extern __shared__ uint8_t raw[];
    const uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, full = ring + S::ring + 2 * S::leaving;
    const uint32_t empty = full + 8 * S::stages, n_units = job.n_tiles * job.n_row_tiles;
    const uint32_t rank = PAIR ? cluster_rank() : 0;

    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < S::stages; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8 * (1 + PAIR)); /* the workers' warps */
        }
        mbar_init_fence();
    }
    if (PAIR)
        cluster_sync();
    else
        __syncthreads();
    dependents_launch();
    if (threadIdx.x < 128) {
        registers_less<40>();
        if (threadIdx.x == 0) stream_feed<N, GLU, PAIR>(maps, job, ring, full, empty, n_units, rank);
        __syncwarp();
    } else {
        const uint32_t group = threadIdx.x / 128 - 1;
        struct stream_worker w = {ring,
                                  full,
                                  PAIR ? cluster_address(empty, threadIdx.x % 2) : empty,
                                  group,
                                  ring + S::ring + group * S::leaving,
                                  {0, 0}};

        registers_more<232>();
        dependency_wait();
        stream_work<N, GLU, PAIR, WALK>(maps, job, w, n_units, rank);
        if (threadIdx.x % 32 == 0) bulk_wait_all();
        __syncwarp();
    }
    if (PAIR) cluster_sync(); /* the other may still write here, or tell of places */
#endif
}
