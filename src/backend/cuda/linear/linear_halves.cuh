/* backend/cuda/linear/linear_halves.cuh - the product of linear_wgmma.cuh for two k segments and 2 to 256 rows, on Hopper.
 *
 * Order of the sums as there. A cluster is two blocks with the same weights and all tokens, a segment each. When both have
 * their sums each keeps one half of the tile's N side: the other half's go to the other block, to the thread of the same
 * number, which has the same outputs in its registers, adds, and writes from there. What leaves passes the block's own
 * shared memory and is copied by the bulk engine in chunks of a warp, each counted on a barrier that only that warp of the
 * other block waits for: nobody waits for a whole block. From the last product to the end 8B qkv of 256 rows takes 5,800
 * of 34,500 cycles; with stores to the other block's memory, which pass at 15 bytes a cycle, 6,400; linear_wgmma.cuh's
 * blocks, which read each other's sums after a barrier of all, 11,900 of 46,200.
 *
 * ALONE: of one segment a cluster is one block, and the whole tile is its own.
 *
 * A block computes 64 x N for each of its M / 64 warpgroups; one more warp feeds them. Not SWAP: weights on wgmma's M side,
 * tokens on the N side. SWAP: the other way round, which allows tiles of 96 weights (8B qkv: 130 blocks). A tile holds all
 * tokens; boxes of tokens end with the last one, what lies behind it in the ring is anything, and is never written.
 *
 * Bytes: each weight once, the tokens once a block (from the L2). H200, share of the bound (bytes or arithmetic) at 64 and
 * 256 rows: 8B qkv 78 and 72 %, o 71 and 70 %, down 85 and 79 %.
 */
#pragma once
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear/linear_wgmma.cuh"

enum halves_mode { PAIR_OF_BLOCKS, PAIR_COPIES, ALONE };

template <int M, int N, bool SWAP> struct halves {
    static constexpr uint32_t workers = M * 2, threads = workers + 32;
    static constexpr uint32_t weights = SWAP ? N : M, tokens = SWAP ? M : N;
    static constexpr uint32_t m = M * K_BLOCK * 2, n = N * K_BLOCK * 2, stage = m + n;
    static constexpr uint32_t fours = N / 16; /* of sums, in a thread's half of the tile */
    static constexpr uint32_t chunks = fours % 4 == 0   ? 4
                                       : fours % 3 == 0 ? 3
                                                        : (fours + 1) / 2,
                              chunk = fours / chunks;
    static constexpr uint32_t met = fours * 16 * workers; /* what comes from the other block */
    static constexpr uint32_t barriers = 8 * (2 * 24 + chunks * workers / 32);
    static constexpr uint32_t beside = tokens <= 64 ? SMEM_BESIDE : 0;
    static constexpr uint32_t room = (SMEM_BLOCK_MAX - beside - 1024 - met - barriers) / stage,
                              stages = room < 24 ? room : 24;
    static constexpr uint32_t full = stages * stage + met, empty = full + 8 * stages, here = empty + 8 * stages;
    static constexpr uint32_t bytes = here + 8 * chunks * workers / 32 + 1024; /* room to align */
    static_assert(stages * stage >= met, "what leaves lies in the ring");
};

struct halves_maps {
    CUtensorMap w[3], x;
};

/* Rows of a box of tokens: whole groups of 8, as they are swizzled. */
static __device__ __host__ inline uint32_t halves_box(uint32_t n_rows)
{
    return (n_rows + 7) / 8 * 8;
}

/* The feeding thread: k blocks first .. first + n_blocks - 1. */
template <int M, int N, bool SWAP>
static __device__ void halves_feed(const struct halves_maps &maps, const struct linear_job &job,
                                   const struct piece_place &p, uint32_t ring, uint32_t first, uint32_t n_blocks)
{
    using H = halves<M, N, SWAP>;
    const uint64_t often = policy_evict_last(), once = policy_evict_first();
    const uint32_t ahead = min(n_blocks, H::stages), bytes = (H::weights + halves_box(job.n_rows)) * K_BLOCK * 2;

    tma_prefetch_map(&maps.x);
    for (uint32_t i = 0; i < n_blocks + ahead; i++) {
        /* The weights of the first stages, then dependency_wait, then their tokens; after that both together. */
        const uint32_t kb = i < ahead ? i : i - ahead, s = kb % H::stages, at = ring + s * H::stage;
        const uint32_t bar = ring + H::full + 8 * s;
        const int k = (int)(first + kb) * K_BLOCK;

        if (i >= ahead && kb >= ahead) mbar_wait(ring + H::empty + 8 * s, (kb / H::stages - 1) & 1);
        if (i < ahead || kb >= ahead) {
            mbar_expect(bar, bytes);
            tma_load_2d(at + (SWAP ? H::m : 0), &maps.w[p.which], bar, k, (int)p.row, once);
        }
        if (i == ahead) dependency_wait();
        if (i >= ahead) tma_load_2d(at + (SWAP ? 0 : H::m), &maps.x, bar, k, 0, often);
    }
}

/* ---- outputs ---- */

/* How a thread writes: f32 as they are, f32 to which one number each is added (a bias, or what was there), or anything. */
enum halves_kind { PLAIN, ADDED, ANY };

/* Where a thread's outputs lie, from its first on. A thread has fours of sums: SWAP: of two neighbouring weight rows, for a
 * token and the eighth after it; else of two tokens, for a weight row and the eighth after it: [2, 2]. The fours are 8
 * columns apart: weight rows, or tokens. */
struct halves_out {
    char *at;
    const float *bias;            /* of the first weight row, or NULL */
    uint64_t step;                /* bytes from a token to the next */
    uint32_t n_tokens, n_weights; /* that there are from the first on */
};

template <bool SWAP>
static __device__ __forceinline__ struct halves_out halves_out_of(const struct linear_job &job,
                                                                  const struct piece_place &p)
{
    const uint32_t lane = threadIdx.x % 32, m = threadIdx.x / 32 * 16 + lane / 4, n = lane % 4 * 2;
    const uint32_t row = p.row + (SWAP ? n : m), token = SWAP ? m : n, n_out = job.n_out[p.which];
    const uint32_t size = job.out_bf16 ? 2 : 4;
    const uint64_t step = (uint64_t)job.stride[p.which] * size;

    return {(char *)job.out[p.which] + token * step + (uint64_t)row * size,
            job.bias[p.which] ? job.bias[p.which] + row : NULL, step, job.n_rows > token ? job.n_rows - token : 0,
            n_out > row ? n_out - row : 0};
}

/* The i-th of the four of columns c .. : its token and weight row from the thread's first on. */
template <bool SWAP> static __device__ __forceinline__ uint32_t halves_token(uint32_t c, int i)
{
    return SWAP ? i / 2 * 8 : c + i % 2;
}
template <bool SWAP> static __device__ __forceinline__ uint32_t halves_weight(uint32_t c, int i)
{
    return SWAP ? c + i % 2 : i / 2 * 8;
}
template <bool SWAP> static __device__ __forceinline__ bool halves_exists(const struct halves_out &o, uint32_t c, int i)
{
    return halves_token<SWAP>(c, i) < o.n_tokens && halves_weight<SWAP>(c, i) < o.n_weights;
}
template <bool SWAP, typename T>
static __device__ __forceinline__ T *halves_at(const struct halves_out &o, uint32_t c, int i)
{
    return (T *)(o.at + halves_token<SWAP>(c, i) * o.step) + halves_weight<SWAP>(c, i);
}

/* Two outputs are written at once: i and i + 1 of a four. */
template <bool SWAP>
static __device__ __forceinline__ void halves_put2(const struct halves_out &o, uint32_t c, int i, float x, float y)
{
    if (SWAP) {
        if (halves_exists<SWAP>(o, c, i)) *(float2 *)halves_at<SWAP, float>(o, c, i) = make_float2(x, y);
    } else {
        if (halves_exists<SWAP>(o, c, i)) *halves_at<SWAP, float>(o, c, i) = x;
        if (halves_exists<SWAP>(o, c, i + 1)) *halves_at<SWAP, float>(o, c, i + 1) = y;
    }
}

/* The same to the copies of out[0], which nothing is added to. */
template <bool SWAP>
static __device__ __forceinline__ void halves_copy2(const struct linear_job &job, const struct halves_out &o,
                                                    uint32_t c, int i, float x, float y)
{
    struct halves_out there = o;

    for (uint32_t k = 0; k < job.copies.n; k++) {
        there.at = o.at + ((char *)job.copies.to[k] - (char *)job.out[0]);
        halves_put2<SWAP>(there, c, i, x, y);
    }
}

/* What ADDED adds. */
template <bool SWAP>
static __device__ __forceinline__ float2 halves_more2(const struct halves_out &o, uint32_t c, int i, bool bias)
{
    float2 v = {0, 0};

    if (bias) {
        if (halves_weight<SWAP>(c, i) < o.n_weights) v.x = o.bias[halves_weight<SWAP>(c, i)];
        if (halves_weight<SWAP>(c, i + 1) < o.n_weights) v.y = o.bias[halves_weight<SWAP>(c, i + 1)];
    } else if (SWAP) {
        if (halves_exists<SWAP>(o, c, i)) v = *(const float2 *)halves_at<SWAP, float>(o, c, i);
    } else {
        if (halves_exists<SWAP>(o, c, i)) v.x = *halves_at<SWAP, float>(o, c, i);
        if (halves_exists<SWAP>(o, c, i + 1)) v.y = *halves_at<SWAP, float>(o, c, i + 1);
    }
    return v;
}

/* ANY. */
template <bool SWAP>
static __device__ __forceinline__ void halves_put_any(const struct linear_job &job, const struct halves_out &o,
                                                      uint32_t c, int i, float v)
{
    if (!halves_exists<SWAP>(o, c, i)) return;
    if (o.bias) v += o.bias[halves_weight<SWAP>(c, i)];
    if (job.out_bf16)
        *halves_at<SWAP, __nv_bfloat16>(o, c, i) = __float2bfloat16_rn(v);
    else if (job.epilogue == EPI_ADD)
        *halves_at<SWAP, float>(o, c, i) += v;
    else
        *halves_at<SWAP, float>(o, c, i) = v;
}

/* A tile's outputs: by twos, if they are f32, one number at most is added, and pairs of weight rows are aligned. */
template <bool SWAP>
static __device__ __forceinline__ enum halves_kind halves_kind_of(const struct linear_job &job, uint32_t o)
{
    const bool pairs = !SWAP || (job.n_out[o] % 2 == 0 && job.stride[o] % 2 == 0 && (uint64_t)job.out[o] % 8 == 0);
    const uint32_t n_more = (job.bias[o] != NULL) + (job.epilogue == EPI_ADD);

    if (job.out_bf16 || !pairs || n_more > 1) return ANY;
    return n_more ? ADDED : PLAIN;
}

/* ---- the sums meet ---- */

/* What a thread knows of them: where its part of what leaves is, of what comes, and its warp's barriers. */
struct halves_place {
    uint32_t leaves, comes, bar;
};

/* A chunk of a thread's fours, d[FROM ..], leaves. at: its place here and there, with bar. */
template <int FROM, int COUNT, int N>
static __device__ __forceinline__ void halves_send(const float (&d)[N], const struct halves_place &here,
                                                   const struct halves_place &there, uint32_t chunk)
{
    const uint32_t at = here.leaves + chunk * COUNT * 512;

#pragma unroll
    for (int i = 0; i < COUNT; i++)
        shared_store4(at + i * 512,
                      make_float4(d[FROM + 4 * i], d[FROM + 4 * i + 1], d[FROM + 4 * i + 2], d[FROM + 4 * i + 3]));
    shared_written_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) bulk_to_block(there.comes + chunk * COUNT * 512, at, COUNT * 512, there.bar + chunk * 8);
}

/* All of them, the first LEFT of them left. */
template <int LEFT, int FROM, int COUNT, int N>
static __device__ __forceinline__ void halves_send_all(const float (&d)[N], const struct halves_place &here,
                                                       const struct halves_place &there, uint32_t chunk = 0)
{
    halves_send<FROM, COUNT>(d, here, there, chunk);
    if constexpr (LEFT > 1) halves_send_all<LEFT - 1, FROM + 4 * COUNT, COUNT>(d, here, there, chunk + 1);
}

/* Half HALF of the tile is this block's. */
template <int M, int N, bool SWAP, bool COPIES, int HALF, enum halves_kind KIND>
static __device__ __forceinline__ void halves_meet(const struct linear_job &job, const float (&d)[N / 2],
                                                   const struct halves_place &here, const struct halves_out &o)
{
    using H = halves<M, N, SWAP>;
    constexpr int mine = HALF * (N / 4), theirs = N / 4 - mine, COUNT = H::chunk;
    const struct halves_place there = {0, cluster_address(here.comes, 1 - HALF), cluster_address(here.bar, 1 - HALF)};
    const bool bias = o.bias != NULL;
    float2 more[2][COUNT][2];

    halves_send_all<H::chunks, theirs, COUNT>(d, here, there);
    if (KIND == ADDED)
#pragma unroll
        for (int j = 0; j < COUNT; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) more[0][j][i] = halves_more2<SWAP>(o, HALF * (N / 2) + 8 * j, 2 * i, bias);
#pragma unroll
    for (int chunk = 0; chunk < (int)H::chunks; chunk++) {
        if (KIND == ADDED && chunk + 1 < (int)H::chunks) /* of the next, before waiting */
#pragma unroll
            for (int j = 0; j < COUNT; j++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    more[(chunk + 1) % 2][j][i] =
                        halves_more2<SWAP>(o, HALF * (N / 2) + 8 * ((chunk + 1) * COUNT + j), 2 * i, bias);
        mbar_wait(here.bar + 8 * chunk, 0);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const int four = chunk * COUNT + j, from = mine + 4 * four, c = HALF * (N / 2) + 8 * four;
            const float4 other = shared_load4(here.comes + four * 512);
            float v[4] = {d[from] + other.x, d[from + 1] + other.y, d[from + 2] + other.z, d[from + 3] + other.w};

#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const float2 add = KIND == ADDED ? more[chunk % 2][j][i / 2] : make_float2(0, 0);

                if (KIND == ANY) {
                    halves_put_any<SWAP>(job, o, c, i, v[i]);
                    halves_put_any<SWAP>(job, o, c, i + 1, v[i + 1]);
                } else if (KIND == ADDED) {
                    halves_put2<SWAP>(o, c, i, v[i] + add.x, v[i + 1] + add.y);
                } else {
                    halves_put2<SWAP>(o, c, i, v[i], v[i + 1]);
                }
                if (COPIES) halves_copy2<SWAP>(job, o, c, i, v[i], v[i + 1]);
            }
        }
    }
}

template <int M, int N, bool SWAP, bool COPIES, int HALF>
static __device__ __forceinline__ void halves_finish(const struct linear_job &job, const float (&d)[N / 2],
                                                     const struct halves_place &here, const struct halves_out &o,
                                                     enum halves_kind kind)
{
    if (COPIES || kind == PLAIN)
        halves_meet<M, N, SWAP, COPIES, HALF, PLAIN>(job, d, here, o);
    else if (kind == ADDED)
        halves_meet<M, N, SWAP, false, HALF, ADDED>(job, d, here, o);
    else
        halves_meet<M, N, SWAP, false, HALF, ANY>(job, d, here, o);
}

/* ALONE: nothing meets. */
template <int N, bool SWAP, enum halves_kind KIND>
static __device__ __forceinline__ void halves_put_all(const struct linear_job &job, const float (&d)[N / 2],
                                                      const struct halves_out &o)
{
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) {
        const uint32_t c = i / 4 * 8;
        const float2 add = KIND == ADDED ? halves_more2<SWAP>(o, c, i % 4, o.bias != NULL) : make_float2(0, 0);

        if (KIND == ANY) {
            halves_put_any<SWAP>(job, o, c, i % 4, d[i]);
            halves_put_any<SWAP>(job, o, c, i % 4 + 1, d[i + 1]);
        } else if (KIND == ADDED) {
            halves_put2<SWAP>(o, c, i % 4, d[i] + add.x, d[i + 1] + add.y);
        } else {
            halves_put2<SWAP>(o, c, i % 4, d[i], d[i + 1]);
        }
    }
}

template <int N, bool SWAP>
static __device__ __forceinline__ void halves_finish_alone(const struct linear_job &job, const float (&d)[N / 2],
                                                           const struct halves_out &o, enum halves_kind kind)
{
    if (kind == PLAIN)
        halves_put_all<N, SWAP, PLAIN>(job, d, o);
    else if (kind == ADDED)
        halves_put_all<N, SWAP, ADDED>(job, d, o);
    else
        halves_put_all<N, SWAP, ANY>(job, d, o);
}

template <int M, int N, bool SWAP, enum halves_mode MODE>
__global__ void __launch_bounds__(halves<M, N, SWAP>::threads, 1)
    linear_halves(const __grid_constant__ struct halves_maps maps, const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    using H = halves<M, N, SWAP>;
    extern __shared__ uint8_t raw[];
    const uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr bool COPIES = MODE == PAIR_COPIES;
    const uint32_t rank = MODE == ALONE ? 0 : cluster_rank(), first = rank * job.seg_blocks;
    const uint32_t count = min(job.seg_blocks, job.k_blocks - first), at_warp = warp * H::fours * 512 + lane * 16;
    const struct halves_place here = {ring + at_warp, ring + H::stages * H::stage + at_warp,
                                      ring + H::here + 8 * H::chunks * warp};
    const struct piece_place p = whole_tile_at(job, H::weights, blockIdx.x);

    if (threadIdx.x == 0)
        for (uint32_t s = 0; s < H::stages; s++) {
            mbar_init(ring + H::full + 8 * s, 1);
            mbar_init(ring + H::empty + 8 * s, H::workers / 32);
        }
    if (warp < H::workers / 32 && lane < H::chunks) mbar_init(here.bar + 8 * lane, 1);
    mbar_init_fence();
    if (warp < H::workers / 32 && lane < H::chunks) mbar_expect(here.bar + 8 * lane, H::chunk * 512);
    __syncthreads();
    if (MODE != ALONE) cluster_arrive_relaxed();
    dependents_launch();
    if (warp >= H::workers / 32) {
        if (lane == 0) halves_feed<M, N, SWAP>(maps, job, p, ring, first, count);
        __syncwarp();
        if (MODE != ALONE) cluster_wait();
        return;
    }
    const struct halves_out o = halves_out_of<SWAP>(job, p);
    const enum halves_kind kind = halves_kind_of<SWAP>(job, p.which);
    const uint32_t group = warp / 4;
    float acc[N / 2];

    dependency_wait();
    for (uint32_t kb = 0; kb < count; kb++) {
        const uint32_t s = kb % H::stages, at = ring + s * H::stage;
        const uint64_t a = wgmma_desc(at + group * (64 * K_BLOCK * 2)), b = wgmma_desc(at + H::m);

        mbar_wait(ring + H::full + 8 * s, (kb / H::stages) & 1);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < K_BLOCK / 16; k++) wgmma_ss<N>(acc, a + 2 * k, b + 2 * k, kb > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (kb > 0 && lane == 0) mbar_arrive(ring + H::empty + 8 * ((kb - 1) % H::stages));
    }
    wgmma_wait<0>();
    if constexpr (MODE == ALONE) {
        halves_finish_alone<N, SWAP>(job, acc, o, kind);
        return;
    }
    cluster_wait();               /* the other block has begun */
    named_barrier(1, H::workers); /* all warpgroups are done with the ring */
    if (rank == 0)
        halves_finish<M, N, SWAP, COPIES, 0>(job, acc, here, o, kind);
    else
        halves_finish<M, N, SWAP, COPIES, 1>(job, acc, here, o, kind);
    cluster_arrive_relaxed();
    cluster_wait(); /* what left has been read */
#endif
}
