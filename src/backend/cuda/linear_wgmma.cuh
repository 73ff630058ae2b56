/* backend/cuda/linear_wgmma.cuh - out[r, o] = sum_k x[r, k] * w[o, k], bf16 in, on Hopper's wgmma with TMA.
 *
 * ORDER OF THE SUMS (the promise of GPU.md 5.2; docs/gpu-exactness.md has the measurements). The k axis is cut into
 * segments of job.seg_blocks * 64, a function of the weights' shape alone (linear_segments). Inside a segment one chain
 * of tensor core products of 16 k each, upwards from zero; the segments' sums are added left to right in f32; then the
 * bias. How many rows are in the batch changes neither, so it changes no bit: tiles, stages and orientation are free.
 *
 * A block computes ROWS weight rows (the M side: a warpgroup for each 64) times N tokens (the N side, 8 .. 256, rows
 * past the end read as zero). One extra warp feeds the tiles through TMA into a ring of STAGES buffers of 64 k (128
 * bytes a row, 128-byte swizzle). Two ways over the segments:
 *   SPLIT  the blocks of a cluster take one segment each; their sums meet in shared memory, and block i adds its
 *          share of
 *          the outputs over all blocks in order. Few rows: each weight is read once, bound by memory; tiles of 64 rows,
 *          so that the device is evenly filled. Many rows and one segment: bound by arithmetic.
 *   WALK   many rows: a block goes through all segments and adds to a second set of registers at their ends.
 * (Two blocks sharing the loads of a token tile by multicast were slower: 500 TFLOP/s against 600, H200.)
 * N = 1: the block has the whole row (linear_one_row.cuh), and its norm where the job says so.
 * The weights of the first stages are asked for before dependency_wait: they do not depend on the kernel before.
 *
 * Outputs leave through shared memory as [token][ROWS], so that stores are whole lines. A tile's two halves may come
 * of two matrices: for the GLU they are rows of gate and the same rows of up, multiplied here (EPI_GLU).
 *
 * H200, share of the read bandwidth at 1 row: 8B gate_up 90 %, down 82 %, qkv 72 %, o 65 %, head 94 %; 8,192 rows:
 * 475 to 600 TFLOP/s. Small matrices are bound by the 3 us that a launch takes from wait to end (0.6B: 25 to 44 %).
 */
#pragma once
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/linear_hopper.h"
#include "backend/cuda/linear_one_row.cuh"
#include "backend/cuda/wgmma_bf16.cuh"

enum { K_BLOCK = 64, MAX_SEGMENTS = 8 };
enum linear_mode { SPLIT, WALK };

struct linear_job {
    uint32_t n_rows, k_blocks, seg_blocks, n_segs;
    uint32_t n_tiles, n_row_tiles, row_group; /* weight tiles, token tiles, and how many of the latter go together */
    uint32_t first_tile[3];              /* of each output; past the last output: ~0u */
    uint32_t n_out[3], stride[3];
    enum linear_epilogue epilogue;
    void *out[3];
    const float *bias[3];                /* [n_out] or NULL */
    uint32_t out_bf16;                   /* outputs are bf16, not f32 */
    struct one_row row;                  /* of a batch of one row */
};

/* Sets first_tile and n_tiles for tiles of `rows`; n_out and epilogue are set. Host; in linear_hopper.cu. */
void linear_tiles(struct linear_job *job, uint32_t n_outs, uint32_t rows);

/* A place in the ring, and the parity of its turn. */
struct ring_at { uint32_t stage, turn; };
template <int STAGES> static __device__ __forceinline__ void ring_next(struct ring_at &r)
{
    if (++r.stage == STAGES) r.stage = 0, r.turn ^= 1;
}

struct tile_place { uint32_t which[2], row[2], token; };   /* matrix and first row of each half; first token */

/* A block's threads: its warpgroups and a warp that feeds. A row of sums in shared memory: no bank met twice. */
template <int ROWS> struct linear_block {
    static constexpr uint32_t workers = ROWS * 2, threads = workers + 32, pitch = ROWS + 4;
};

/* Weight tile `tile` of `rows` rows and token tile `token_tile` of n. */
static __device__ __forceinline__ struct tile_place tile_place_of(const struct linear_job &job, uint32_t tile,
                                                                  uint32_t token_tile, uint32_t rows, uint32_t n)
{
    const uint32_t o = (tile >= job.first_tile[1]) + (tile >= job.first_tile[2]);
    struct tile_place p;

    p.token = token_tile * n;
    if (job.epilogue >= EPI_SILU_GLU) {
        p.which[0] = 0, p.which[1] = 1;
        p.row[0] = p.row[1] = tile * (rows / 2);
    } else {
        p.which[0] = p.which[1] = o;
        p.row[0] = (tile - job.first_tile[o]) * rows;
        p.row[1] = p.row[0] + rows / 2;
    }
    return p;
}

static __device__ __forceinline__ struct tile_place place_of(const struct linear_job &job, uint32_t rows, uint32_t n)
{
    uint32_t per_group = job.row_group * job.n_tiles, group = blockIdx.x / per_group, in = blockIdx.x % per_group;
    uint32_t width = min(job.row_group, job.n_row_tiles - group * job.row_group);

    return tile_place_of(job, in / width, group * job.row_group + in % width, rows, n);
}

static __device__ __forceinline__ float glu_of(enum linear_epilogue e, float gate, float up)
{
    return activate(e == EPI_SILU_GLU ? CUDA_SILU : CUDA_GELU_TANH, gate) * up;
}

static __device__ __forceinline__ void put_value(const struct linear_job &job, uint32_t o, uint64_t at, float v)
{
    if (job.out_bf16) ((__nv_bfloat16 *)job.out[o])[at] = __float2bfloat16_rn(v);
    else if (job.epilogue == EPI_ADD) ((float *)job.out[o])[at] += v;
    else ((float *)job.out[o])[at] = v;
}

/* Four outputs of one token, rows row .. row+3 of matrix o. old: what is there, for EPI_ADD, or NULL. */
static __device__ __forceinline__ void put4(const struct linear_job &job, uint32_t o, uint32_t token, uint32_t row,
                                            float4 v, const float4 *before)
{
    uint64_t at = (uint64_t)token * job.stride[o] + row;
    const float *b = job.bias[o];

    if (row + 4 <= job.n_out[o] && (job.stride[o] & 3) == 0) {
        if (b) v.x += b[row], v.y += b[row + 1], v.z += b[row + 2], v.w += b[row + 3];
        if (job.out_bf16) {
            __nv_bfloat162 two[2] = { __floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w) };
            *(uint2 *)((__nv_bfloat16 *)job.out[o] + at) = *(uint2 *)two;
            return;
        }
        float4 *to = (float4 *)((float *)job.out[o] + at);
        if (job.epilogue == EPI_ADD) {
            float4 old = before ? *before : *to;
            v.x += old.x, v.y += old.y, v.z += old.z, v.w += old.w;
        }
        *to = v;
        return;
    }
    float one[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (row + i < job.n_out[o]) put_value(job, o, at + i, b ? one[i] + b[row + i] : one[i]);
}

/* The four floats at `at` of all n blocks of the cluster, added in order. */
static __device__ __forceinline__ float4 sum_segments(uint32_t at, uint32_t n)
{
    float4 sum = cluster_load4(at, 0);

    for (uint32_t i = 1; i < n; i++) {
        float4 v = cluster_load4(at, i);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    return sum;
}

/* What EPI_ADD adds to: a thread's four of a batch of one row, asked for before the sums are there. */
template <int ROWS>
static __device__ __forceinline__ float4 one_row_before(const struct linear_job &job, const struct tile_place &p,
                                                        uint32_t n_blocks, uint32_t rank)
{
    const uint32_t share = (ROWS / 4 + n_blocks - 1) / n_blocks, i = rank * share + threadIdx.x, row = p.row[0] + i * 4;

    if (job.epilogue != EPI_ADD || threadIdx.x >= share || i >= ROWS / 4 || row + 4 > job.n_out[p.which[0]]
        || (job.stride[p.which[0]] & 3) != 0)
        return make_float4(0, 0, 0, 0);
    return *(const float4 *)((const float *)job.out[p.which[0]] + row);
}

/* The block's [n][pitch] sums -> outputs, by the workers; of a cluster's blocks each takes its share. before: of a batch
 * of one row, or NULL. */
template <int ROWS>
static __device__ void linear_write(const struct linear_job &job, const struct tile_place &p, uint32_t n, uint32_t sums,
                                    uint32_t n_blocks, uint32_t rank, const float4 *before)
{
    using B = linear_block<ROWS>;
    uint32_t glu = job.epilogue >= EPI_SILU_GLU, per_token = ROWS / (glu ? 8 : 4);     /* groups of four */
    uint32_t n_tokens = min(n, job.n_rows - p.token), count = n_tokens * per_token;
    uint32_t share = (count + n_blocks - 1) / n_blocks, end = min(count, (rank + 1) * share);

    for (uint32_t i = rank * share + threadIdx.x; i < end; i += B::workers) {
        uint32_t token = i / per_token, row = i % per_token * 4, half = row >= ROWS / 2;
        uint32_t at = sums + (token * B::pitch + row) * 4;
        float4 v = sum_segments(at, n_blocks);

        if (glu) {
            float4 up = sum_segments(at + ROWS / 2 * 4, n_blocks);
            v.x = glu_of(job.epilogue, v.x, up.x), v.y = glu_of(job.epilogue, v.y, up.y);
            v.z = glu_of(job.epilogue, v.z, up.z), v.w = glu_of(job.epilogue, v.w, up.w);
        }
        put4(job, p.which[half], p.token + token, p.row[half] + row % (ROWS / 2), v, before);
    }
}

/* Sums of a thread's fragment -> [n][pitch]. */
template <int ROWS, int N>
static __device__ __forceinline__ void keep_sums(float *sums, const float (&d)[N / 2])
{
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;

#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sums[(8 * (i / 4) + 2 * (lane % 4) + i % 2) * linear_block<ROWS>::pitch + row + 8 * (i / 2 % 2)] = d[i];
}

template <int ROWS, int N, int STAGES> struct linear_smem {
    static constexpr uint32_t weights = ROWS * K_BLOCK * 2, tokens = N > 1 ? N * K_BLOCK * 2 : 0, stage = weights + tokens;
    static constexpr uint32_t ring = STAGES * stage;
    static constexpr uint32_t sums = (N > 1 ? N : 8) * linear_block<ROWS>::pitch * 4;
    static constexpr uint32_t big = (((ring > sums ? ring : sums) + 15) / 16) * 16;
    static constexpr uint32_t row = (big + 2 * 8 * STAGES + 15) / 16 * 16;  /* N = 1: where it lies */
    static constexpr uint32_t bytes = row + 1024;               /* room to align; N = 1: the row and ONE_ROW_PAD more */
};

/* The warp that feeds: one thread of it. k blocks first .. first + n_blocks - 1. */
template <int ROWS, int N, int STAGES>
static __device__ void linear_feed(const CUtensorMap *const (&w)[3], const CUtensorMap *x, const struct tile_place &p,
                                   uint32_t ring, uint32_t full, uint32_t empty, uint32_t first, uint32_t n_blocks)
{
    using S = linear_smem<ROWS, N, STAGES>;
    uint64_t once = policy_evict_first(), often = policy_evict_last();
    const CUtensorMap *map[2] = { w[p.which[0]], w[p.which[1]] };
    uint32_t ahead = min(n_blocks, (uint32_t)STAGES);

    if (N > 1) tma_prefetch_map(x);
    if (gridDim.x > 264 && N > 64) once = often;                /* many tiles of tokens read the weights again */
    for (uint32_t i = N == 1 ? ahead : 0; i < n_blocks + ahead; i++) {
        /* The weights of the first stages, then dependency_wait, then their tokens; after that both together. */
        uint32_t kb = i < ahead ? i : i - ahead, s = kb % STAGES, at = ring + s * S::stage, bar = full + 8 * s;
        int k = (int)(first + kb) * K_BLOCK;

        if (i >= ahead && kb >= ahead) mbar_wait(empty + 8 * s, (kb / STAGES - 1) & 1);
        if (N == 1 || i < ahead || kb >= ahead) {
            mbar_expect(bar, S::stage);
            tma_load_2d(at, map[0], bar, k, (int)p.row[0], once);
            tma_load_2d(at + S::weights / 2, map[1], bar, k, (int)p.row[1], once);
        }
        if (N == 1) continue;
        if (i == ahead) dependency_wait();
        if (i >= ahead) tma_load_2d(at + S::weights, x, bar, k, (int)p.token, often);
    }
}

template <int ROWS, int N, int STAGES, int MODE, int BLOCKS_PER_SM>
__global__ void __launch_bounds__(linear_block<ROWS>::threads, BLOCKS_PER_SM)
    linear_wgmma(const __grid_constant__ CUtensorMap w0, const __grid_constant__ CUtensorMap w1,
                 const __grid_constant__ CUtensorMap w2, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    using S = linear_smem<ROWS, N, STAGES>;
    using B = linear_block<ROWS>;
    constexpr int TILE = N == 1 ? 8 : N;                        /* of wgmma */
    extern __shared__ uint8_t raw[];
    uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, full = ring + S::big, empty = full + 8 * STAGES;
    uint32_t warp = threadIdx.x / 32, n_blocks = MODE == SPLIT ? job.n_segs : 1;
    uint32_t rank = MODE == SPLIT ? cluster_rank() : 0, first = rank * job.seg_blocks;
    uint32_t count = MODE == SPLIT ? min(job.seg_blocks, job.k_blocks - first) : job.k_blocks;
    struct tile_place p = place_of(job, ROWS, N);
    float4 before = {};

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, ROWS / 16);                /* the workers' warps */
        }
        mbar_init_fence();
    }
    __syncthreads();
    dependents_launch();
    if (warp == ROWS / 16) {
        if (threadIdx.x % 32 == 0) {
            const CUtensorMap *w[3] = { &w0, &w1, &w2 };
            linear_feed<ROWS, N, STAGES>(w, &x, p, ring, full, empty, first, count);
        }
        __syncwarp();
    } else {
        uint32_t group = warp / 4, left = job.seg_blocks;
        bool begin = true;                                      /* of a chain: the sums are overwritten */
        float acc[TILE / 2], total[MODE == WALK ? TILE / 2 : 1];

        if constexpr (N == 1) {
            one_row_load(job.row, ring + S::row, first * K_BLOCK, count * K_BLOCK);
            before = one_row_before<ROWS>(job, p, n_blocks, rank);
        } else {
            dependency_wait();
        }
        for (uint32_t kb = 0; kb < count; kb++) {
            uint32_t s = kb % STAGES, at = ring + s * S::stage;
            uint64_t a = wgmma_desc(at + group * (64 * K_BLOCK * 2));
            uint64_t b = N == 1 ? wgmma_desc_one_row(ring + S::row + kb * K_BLOCK * 2) : wgmma_desc(at + S::weights);

            mbar_wait(full + 8 * s, (kb / STAGES) & 1);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < K_BLOCK / 16; k++) wgmma_ss<TILE>(acc, a + 2 * k, b + 2 * k, !begin || k > 0);
            wgmma_commit();
            begin = false;
            wgmma_wait<1>();
            if (kb > 0 && threadIdx.x % 32 == 0) mbar_arrive(empty + 8 * ((kb - 1) % STAGES));
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
        named_barrier(1, B::workers);                           /* all warpgroups are done with the ring */
        float *sums = (float *)(raw + (ring - smem_u32(raw)));
        if constexpr (MODE == WALK) keep_sums<ROWS, TILE>(sums, total);
        else keep_sums<ROWS, TILE>(sums, acc);
        named_barrier(1, B::workers);
    }
    if (MODE == SPLIT) cluster_sync();                          /* the others' sums are there, too */
    if (warp < ROWS / 16) linear_write<ROWS>(job, p, N, ring, n_blocks, rank, N == 1 ? &before : NULL);
    if (MODE == SPLIT) cluster_sync();                          /* others may still read this block's sums */
#endif
}
