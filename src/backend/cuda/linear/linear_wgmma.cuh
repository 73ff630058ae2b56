/* backend/cuda/linear/linear_wgmma.cuh - out[r, o] = sum_k x[r, k] * w[o, k], bf16 in, on Hopper's wgmma with TMA.
 *
 * ORDER OF THE SUMS (the promise of GPU.md 5.2; docs/gpu-exactness.md has the measurements). The k axis is cut into
 * segments of job.seg_blocks * 64, a function of the weights' shape alone (linear_segments). Inside a segment one chain
 * of tensor core products of 16 k each, upwards from zero; the segments' sums are added left to right in f32; then the
 * bias. How many rows are in the batch changes neither, so it changes no bit: tiles, stages and orientation are free.
 *
 * A block computes ROWS weight rows (the M side: a warpgroup for each 64) times N tokens (the N side, 8 .. 256, rows
 * past the end read as zero). One extra warp feeds the tiles through TMA into a ring of STAGES buffers of 64 k (128
 * bytes a row, 128-byte swizzle). Two ways over the segments:
 *   SPLIT  the blocks of a cluster take one segment each; their sums meet in shared memory, and block i adds its share
 *          of the outputs over all blocks in order. Each weight is read once. Few rows: bound by memory, tiles of 64 rows
 *          and long rings; up to 256 rows: tiles of 64, 128 or 192 by how they fill the device (linear_hopper.cu).
 *   WALK   many rows: a block goes through all segments and adds to a second set of registers at their ends.
 *   COPY   SPLIT whose outputs go to other devices' memory as well. A kernel of its own: a loop over copies, even of none, cost
 *          the others 2 to 7 % of a step (bench/notes/gpu.md).
 *   CHOOSE one segment, and instead of outputs the best of them (linear_choose.cuh). A kernel of its own, as the same
 *          in all made 0.6B qkv of 256 rows 1.3 us slower.
 * (Two blocks sharing the loads of a token tile by multicast were slower: gate_up of 256 rows 149 us against 104 with one
 * loading for both, 105 against 92 with half each, and 74 mJ against 63. Asking for more weights than the ring holds, into
 * the L2, was slower too: 62 us against 55 with 128 rows. H200.)
 * N = 1: the block has the whole row (linear_one_row.cuh), and its norm where the job says so.
 * The weights of the first stages are asked for before dependency_wait: they do not depend on the kernel before.
 *
 * Outputs leave through shared memory as [token][ROWS], so that stores are whole lines. A tile's rows are pieces that may
 * come of several matrices: for the GLU rows of gate and the same rows of up, multiplied here.
 *
 * H200, share of the read bandwidth at 1 row: 8B gate_up 90 %, down 84 %, qkv 76 %, o 72 %, head 93 %; share of the bound
 * (bytes or arithmetic) at 256 rows: gate_up 87 %; the others are linear_halves.cuh's. Small matrices are bound by the 3 us
 * that a launch takes from wait to end (0.6B: 25 to 59 %).
 */
#pragma once
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/cuda_kernels.h"
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/linear/linear_choose.cuh"
#include "backend/cuda/linear/linear_epilogue.h"
#include "backend/cuda/linear/linear_one_row.cuh"
#include "backend/cuda/wgmma_bf16.cuh"

enum { K_BLOCK = 64, MAX_SEGMENTS = 8 };
enum linear_mode { SPLIT, WALK, CHOOSE, COPY };

struct linear_job {
    uint32_t n_rows, k_blocks, seg_blocks, n_segs;
    uint32_t n_tiles, n_row_tiles, row_group; /* weight tiles, token tiles, and how many of the latter go together */
    uint32_t first_tile[3];                   /* of each output, whole_tile_at; past the last output: ~0u */
    uint32_t first_piece[3]; /* the same for the other kernels; a GLU's pieces are of gate and up in turn */
    uint32_t n_out[3], stride[3];
    enum linear_epilogue epilogue;
    void *out[3];
    const float *bias[3];           /* [n_out] or NULL */
    uint32_t out_bf16;              /* outputs are bf16, not f32 */
    struct one_row row;             /* of a batch of one row */
    struct cuda_tile_choices tiles; /* of CHOOSE */
    struct cuda_copies copies;      /* of COPY: of out[0] */
};

/* Sets first_piece and n_tiles for tiles of `rows`; n_out and epilogue are set. Host; in linear_hopper.cu. */
void linear_pieces(struct linear_job *job, uint32_t n_outs, uint32_t rows);

/* A tile's rows are pieces that may come of several matrices: tiles need not end where a matrix does. */
static __device__ __host__ constexpr uint32_t linear_piece(uint32_t rows)
{
    return rows == 192 ? 32 : rows / 2;
}

/* A place in the ring, and the parity of its turn. */
struct ring_at {
    uint32_t stage, turn;
};
template <int STAGES> static __device__ __forceinline__ void ring_next(struct ring_at &r)
{
    if (++r.stage == STAGES) r.stage = 0, r.turn ^= 1;
}

struct piece_place {
    uint32_t which, row;
}; /* a matrix, and the piece's first row in it */
struct tile_place {
    uint32_t piece, token;
}; /* the tile's first piece and token */

/* A block's threads: its warpgroups and a warp that feeds. A row of sums in shared memory: no bank met twice. */
template <int ROWS> struct linear_block {
    static constexpr uint32_t workers = ROWS * 2, threads = workers + 32, pitch = ROWS + 4;
};
/* Three warpgroups with 128 sums a thread take registers from the warpgroup that feeds. */
template <int ROWS, int N> struct linear_trade {
    static constexpr bool on = ROWS == 192 && N > 192;
    static constexpr uint32_t threads = on ? linear_block<ROWS>::workers + 128 : linear_block<ROWS>::threads;
};

static __device__ __forceinline__ struct piece_place piece_at(const struct linear_job &job, uint32_t rows, uint32_t i)
{
    const uint32_t size = linear_piece(rows), o = (i >= job.first_piece[1]) + (i >= job.first_piece[2]);

    if (job.epilogue >= EPI_SILU_GLU) return {i & 1, i / 2 * size};
    return {o, (i - job.first_piece[o]) * size};
}

/* A tile of `rows` of one matrix (job.first_tile): linear_stream and linear_halves. */
static __device__ __forceinline__ struct piece_place whole_tile_at(const struct linear_job &job, uint32_t rows,
                                                                   uint32_t i)
{
    const uint32_t o = (i >= job.first_tile[1]) + (i >= job.first_tile[2]);

    return {o, (i - job.first_tile[o]) * rows};
}

static __device__ __forceinline__ struct tile_place place_of(const struct linear_job &job, uint32_t rows, uint32_t n)
{
    uint32_t per_group = job.row_group * job.n_tiles, group = blockIdx.x / per_group, in = blockIdx.x % per_group;
    uint32_t width = min(job.row_group, job.n_row_tiles - group * job.row_group);

    return {in / width * (rows / linear_piece(rows)), (group * job.row_group + in % width) * n};
}

static __device__ __forceinline__ float glu_of(enum linear_epilogue e, float gate, float up)
{
    return activate(e == EPI_SILU_GLU ? CUDA_SILU : CUDA_GELU_TANH, gate) * up;
}

static __device__ __forceinline__ void put_value(const struct linear_job &job, uint32_t o, uint64_t at, float v)
{
    if (job.out_bf16)
        ((__nv_bfloat16 *)job.out[o])[at] = __float2bfloat16_rn(v);
    else if (job.epilogue == EPI_ADD)
        ((float *)job.out[o])[at] += v;
    else
        ((float *)job.out[o])[at] = v;
}

/* Four outputs of one token, rows row .. row+3 of matrix o. old: what is there (old_values), for EPI_ADD. */
static __device__ __forceinline__ void put4(const struct linear_job &job, uint32_t o, uint32_t token, uint32_t row,
                                            float4 v, const float4 &old)
{
    uint64_t at = (uint64_t)token * job.stride[o] + row;
    const float *b = job.bias[o];

    if (row + 4 <= job.n_out[o] && (job.stride[o] & 3) == 0) {
        if (b) v.x += b[row], v.y += b[row + 1], v.z += b[row + 2], v.w += b[row + 3];
        if (job.out_bf16) {
            __nv_bfloat162 two[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
            *(uint2 *)((__nv_bfloat16 *)job.out[o] + at) = *(uint2 *)two;
            return;
        }
        float4 *to = (float4 *)((float *)job.out[o] + at);
        if (job.epilogue == EPI_ADD) v.x += old.x, v.y += old.y, v.z += old.z, v.w += old.w;
        *to = v;
        return;
    }
    float one[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (row + i < job.n_out[o]) put_value(job, o, at + i, b ? one[i] + b[row + i] : one[i]);
}

/* put4's of out[0] to its copies. */
static __device__ __forceinline__ void copy4(const struct linear_job &job, uint32_t token, uint32_t row,
                                             const float4 &v, const float4 &old)
{
    struct linear_job there = job;

    for (uint32_t i = 0; i < job.copies.n; i++) {
        there.out[0] = job.copies.to[i];
        put4(there, 0, token, row, v, old);
    }
}

/* What is there at four outputs of a token that put4 writes at once; else anything. */
static __device__ __forceinline__ float4 old_values(const struct linear_job &job, uint32_t o, uint32_t token,
                                                    uint32_t row)
{
    if (row + 4 > job.n_out[o] || (job.stride[o] & 3) != 0) return make_float4(0, 0, 0, 0);
    return *(const float4 *)((const float *)job.out[o] + (uint64_t)token * job.stride[o] + row);
}

/* What EPI_ADD adds to: a thread's four of a batch of one row, asked for before the sums are there. */
template <int ROWS>
static __device__ __forceinline__ float4 one_row_before(const struct linear_job &job, const struct tile_place &p,
                                                        uint32_t n_blocks, uint32_t rank)
{
    const uint32_t share = (ROWS / 4 + n_blocks - 1) / n_blocks, i = rank * share + threadIdx.x;
    const struct piece_place o = piece_at(job, ROWS, p.piece + i * 4 / linear_piece(ROWS));

    if (job.epilogue != EPI_ADD || threadIdx.x >= share || i >= ROWS / 4) return make_float4(0, 0, 0, 0);
    return old_values(job, o.which, 0, o.row + i * 4 % linear_piece(ROWS));
}

/* The blocks of a cluster: one for each segment; this one's number. */
struct seg_blocks {
    uint32_t n, rank;
};

/* v[u] = the four floats at at[u] of the blocks, added in order; u < count. MET: all lie here, [segment][ROWS]. SEGS: a
 * block's segments, whose sums lie APART bytes from each other. */
template <int U, int ROWS, bool MET, int SEGS, uint32_t APART>
static __device__ __forceinline__ float4 segment_at(uint32_t at, uint32_t i)
{
    return MET ? shared_load4(at + i * ROWS * 4) : cluster_load4(at + i % SEGS * APART, i / SEGS);
}
template <int U, int ROWS, bool MET, int SEGS, uint32_t APART>
static __device__ __forceinline__ void sum_segments(float4 (&v)[U], const uint32_t (&at)[U], uint32_t count,
                                                    const struct seg_blocks &blocks)
{
    const uint32_t n = blocks.n * SEGS;
    constexpr uint32_t A = MET ? 1 : U > 2 ? 2 : 4; /* asked for at once, as they are far */

#pragma unroll
    for (uint32_t u = 0; u < U; u++)
        if (u < count) v[u] = segment_at<U, ROWS, MET, SEGS, APART>(at[u], 0);
    for (uint32_t i = 1; i < n; i += A) {
        float4 more[A][U];

#pragma unroll
        for (uint32_t j = 0; j < A; j++)
#pragma unroll
            for (uint32_t u = 0; u < U; u++)
                if (u < count && i + j < n) more[j][u] = segment_at<U, ROWS, MET, SEGS, APART>(at[u], i + j);
#pragma unroll
        for (uint32_t j = 0; j < A; j++)
#pragma unroll
            for (uint32_t u = 0; u < U; u++)
                if (i + j < n) {
                    v[u].x += more[j][u].x, v[u].y += more[j][u].y;
                    v[u].z += more[j][u].z, v[u].w += more[j][u].w;
                }
    }
}

/* The blocks' [N][pitch] sums (of a batch of one row: [segment][ROWS]) -> outputs, by the workers; each block takes its
 * share. before: of a batch of one row, or NULL. U groups of four at once, as the other blocks' memory is far. */
template <int ROWS, int N, bool GLU, bool COPIES, int SEGS>
static __device__ __forceinline__ void linear_write_as(const struct linear_job &job, const struct tile_place &p,
                                                       uint32_t sums, const struct seg_blocks &blocks,
                                                       const float4 *before)
{
    using B = linear_block<ROWS>;
    constexpr uint32_t U = N > 64 ? 4 : N >= 16 ? 2 : 1;
    constexpr uint32_t piece_rows = linear_piece(ROWS), per_token = ROWS / (GLU ? 8 : 4); /* groups of four */
    constexpr uint32_t apart = N * B::pitch * 4;
    const uint32_t count = min((uint32_t)N, job.n_rows - p.token) * per_token;
    const uint32_t share = (count + blocks.n - 1) / blocks.n;
    const uint32_t end = min(count, (blocks.rank + 1) * share);

    for (uint32_t first = blocks.rank * share + threadIdx.x; first < end; first += U * B::workers) {
        const uint32_t n = min((end - first + B::workers - 1) / B::workers, U);
        uint32_t at[U];
        float4 v[U] = {}, old[U] = {};

#pragma unroll
        for (uint32_t u = 0; u < U; u++) {
            const uint32_t i = first + u * B::workers, group = i % per_token * 4;

            at[u] = sums + (i / per_token * B::pitch + group + (GLU ? group / piece_rows * piece_rows : 0)) * 4;
            if (!GLU && job.epilogue == EPI_ADD && u < n) {
                const struct piece_place o = piece_at(job, ROWS, p.piece + group / piece_rows);

                old[u] =
                    before ? *before : old_values(job, o.which, p.token + i / per_token, o.row + group % piece_rows);
            }
        }
        sum_segments<U, ROWS, N == 1, SEGS, apart>(v, at, n, blocks);
        if constexpr (GLU) {
            float4 up[U] = {};

#pragma unroll
            for (uint32_t u = 0; u < U; u++) at[u] += piece_rows * 4;
            sum_segments<U, ROWS, N == 1, SEGS, apart>(up, at, n, blocks);
#pragma unroll
            for (uint32_t u = 0; u < U; u++) {
                v[u].x = glu_of(job.epilogue, v[u].x, up[u].x), v[u].y = glu_of(job.epilogue, v[u].y, up[u].y);
                v[u].z = glu_of(job.epilogue, v[u].z, up[u].z), v[u].w = glu_of(job.epilogue, v[u].w, up[u].w);
            }
        }
#pragma unroll
        for (uint32_t u = 0; u < U; u++) {
            const uint32_t i = first + u * B::workers, group = i % per_token * 4;
            const struct piece_place o = piece_at(job, ROWS, p.piece + group / piece_rows * (1 + GLU));

            if (u < n) put4(job, o.which, p.token + i / per_token, o.row + group % piece_rows, v[u], old[u]);
            if (COPIES && u < n) copy4(job, p.token + i / per_token, o.row + group % piece_rows, v[u], old[u]);
        }
    }
}

template <int ROWS, int N, int MODE, int SEGS = 1>
static __device__ __forceinline__ void linear_write(const struct linear_job &job, const struct tile_place &p,
                                                    uint32_t sums, const struct seg_blocks &blocks,
                                                    const float4 *before)
{
    using B = linear_block<ROWS>;

    if constexpr (MODE == CHOOSE)
        choose_of_tile<ROWS, N, B::pitch, B::workers>(job.tiles, sums, p.piece * linear_piece(ROWS), job.n_out[0],
                                                      p.token, min((uint32_t)N, job.n_rows - p.token));
    else if (job.epilogue >= EPI_SILU_GLU)
        linear_write_as<ROWS, N, true, MODE == COPY, SEGS>(job, p, sums, blocks, before);
    else
        linear_write_as<ROWS, N, false, MODE == COPY, SEGS>(job, p, sums, blocks, before);
}

/* A batch of one row: sums go to the block that writes the outputs, when they are there; it knows by a barrier. So no
 * block waits for another to have read. Where: at [segment][ROWS] of `at`, behind it the barrier. */
struct one_row_meet {
    uint32_t at, bar;
};
/* row_at: of the row's k in shared memory, row_bytes of them; ONE_ROW_PAD behind it. */
template <int ROWS>
static __device__ __forceinline__ struct one_row_meet one_row_meet_of(uint32_t row_at, uint32_t row_bytes, uint32_t n)
{
    const uint32_t at = row_at + row_bytes + ONE_ROW_PAD;
    return {at, at + n * ROWS * 4};
}
template <int ROWS> static __host__ uint32_t one_row_bytes(uint32_t row_bytes, uint32_t n_segs)
{
    return row_bytes + ONE_ROW_PAD + n_segs * ROWS * 4 + 16;
}
template <int ROWS> static __device__ __forceinline__ uint32_t one_row_share(const struct linear_job &job, uint32_t n)
{
    return (ROWS / (job.epilogue >= EPI_SILU_GLU ? 8 : 4) + n - 1) / n;
}

/* By one thread, before cluster_arrive: the bytes that will come. */
template <int ROWS>
static __device__ __forceinline__ void one_row_expect(const struct linear_job &job, const struct one_row_meet &meet,
                                                      const struct seg_blocks &blocks)
{
    const bool glu = job.epilogue >= EPI_SILU_GLU;
    const uint32_t groups = ROWS / (glu ? 8 : 4), share = one_row_share<ROWS>(job, blocks.n);
    const uint32_t from = blocks.rank * share;
    const uint32_t mine = from < groups ? min(groups - from, share) : 0;

    mbar_init(meet.bar, 1);
    mbar_init_fence();
    mbar_expect(meet.bar, mine * (glu ? 32 : 16) * blocks.n);
}

/* By the workers: the first column of their fragments is sent; returns when the sums of all segments are here. */
template <int ROWS>
static __device__ __forceinline__ void one_row_send(const struct linear_job &job, const struct one_row_meet &meet,
                                                    const struct seg_blocks &blocks, float first, float second)
{
    constexpr uint32_t piece_rows = linear_piece(ROWS);
    const bool glu = job.epilogue >= EPI_SILU_GLU;
    const uint32_t lane = threadIdx.x % 32, share = one_row_share<ROWS>(job, blocks.n);

    if (blocks.n > 1) cluster_wait(); /* all blocks have begun */
    if (lane % 4 == 0)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t row = threadIdx.x / 32 * 16 + lane / 4 + 8 * i;
            const uint32_t at = meet.at + (blocks.rank * ROWS + row) * 4;
            const uint32_t to = (glu ? row % piece_rows : row) / 4 / share;

            if (blocks.n == 1)
                shared_store(at, i ? second : first);
            else
                cluster_store(cluster_address(at, to), cluster_address(meet.bar, to), i ? second : first);
        }
    if (blocks.n == 1)
        named_barrier(1, linear_block<ROWS>::workers);
    else
        cluster_mbar_wait(meet.bar, 0);
}

/* Sums of a thread's fragment -> [n][pitch]. */
template <int ROWS, int N> static __device__ __forceinline__ void keep_sums(float *sums, const float (&d)[N / 2])
{
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;

#pragma unroll
    for (int i = 0; i < N / 2; i++)
        sums[(8 * (i / 4) + 2 * (lane % 4) + i % 2) * linear_block<ROWS>::pitch + row + 8 * (i / 2 % 2)] = d[i];
}

template <int ROWS, int N, int STAGES> struct linear_smem {
    static constexpr uint32_t weights = ROWS * K_BLOCK * 2, tokens = N > 1 ? N *K_BLOCK * 2 : 0,
                              stage = weights + tokens;
    static constexpr uint32_t ring = STAGES * stage;
    static constexpr uint32_t sums = (N > 1 ? N : 8) * linear_block<ROWS>::pitch * 4;
    static constexpr uint32_t big = (((ring > sums ? ring : sums) + 15) / 16) * 16;
    static constexpr uint32_t row = (big + 2 * 8 * STAGES + 15) / 16 * 16; /* N = 1: where it lies */
    static constexpr uint32_t bytes = row + 1024; /* room to align; N = 1: one_row_bytes more */
};

/* The warp that feeds: one thread of it. k blocks first .. first + n_blocks - 1. */
template <int ROWS, int N, int STAGES>
static __device__ void linear_feed(const CUtensorMap *const (&w)[3], const CUtensorMap *x, const struct linear_job &job,
                                   const struct tile_place &p, uint32_t ring, uint32_t full, uint32_t empty,
                                   uint32_t first, uint32_t n_blocks)
{
    using S = linear_smem<ROWS, N, STAGES>;
    constexpr uint32_t n_pieces = ROWS / linear_piece(ROWS);
    uint64_t once = policy_evict_first(), often = policy_evict_last();
    uint32_t ahead = min(n_blocks, (uint32_t)STAGES);
    struct piece_place at_piece[n_pieces];

#pragma unroll
    for (uint32_t j = 0; j < n_pieces; j++) at_piece[j] = piece_at(job, ROWS, p.piece + j);
    if (N > 1) tma_prefetch_map(x);
    if (job.n_row_tiles > 1 || (gridDim.x > 264 && N > 64)) once = often; /* other tiles of tokens read them, too */
    for (uint32_t i = N == 1 ? ahead : 0; i < n_blocks + ahead; i++) {
        /* The weights of the first stages, then dependency_wait, then their tokens; after that both together. */
        uint32_t kb = i < ahead ? i : i - ahead, s = kb % STAGES, at = ring + s * S::stage, bar = full + 8 * s;
        int k = (int)(first + kb) * K_BLOCK;

        if (i >= ahead && kb >= ahead) mbar_wait(empty + 8 * s, (kb / STAGES - 1) & 1);
        if (N == 1 || i < ahead || kb >= ahead) {
            mbar_expect(bar, S::stage);
#pragma unroll
            for (uint32_t j = 0; j < n_pieces; j++)
                tma_load_2d(at + j * (S::weights / n_pieces), w[at_piece[j].which], bar, k, (int)at_piece[j].row, once);
        }
        if (N == 1) continue;
        if (i == ahead) dependency_wait();
        if (i >= ahead) tma_load_2d(at + S::weights, x, bar, k, (int)p.token, often);
    }
}

template <int ROWS, int N, int STAGES, int MODE, int BLOCKS_PER_SM>
__global__ void __launch_bounds__(linear_trade<ROWS, N>::threads, BLOCKS_PER_SM)
    linear_wgmma(const __grid_constant__ CUtensorMap w0, const __grid_constant__ CUtensorMap w1,
                 const __grid_constant__ CUtensorMap w2, const __grid_constant__ CUtensorMap x,
                 const __grid_constant__ struct linear_job job)
{
#if __CUDA_ARCH__ >= 900
    using S = linear_smem<ROWS, N, STAGES>;
    using B = linear_block<ROWS>;
    constexpr int TILE = N == 1 ? 8 : N; /* of wgmma */
    extern __shared__ uint8_t raw[];
    uint32_t ring = (smem_u32(raw) + 1023) & ~1023u, full = ring + S::big, empty = full + 8 * STAGES;
    constexpr bool splits = MODE == SPLIT || MODE == COPY;
    uint32_t warp = threadIdx.x / 32, n_blocks = splits ? job.n_segs : 1;
    uint32_t rank = n_blocks > 1 ? cluster_rank() : 0, first = rank * job.seg_blocks;
    uint32_t count = splits ? min(job.seg_blocks, job.k_blocks - first) : job.k_blocks;
    struct tile_place p = place_of(job, ROWS, N);
    const struct seg_blocks blocks = {n_blocks, rank};
    const struct one_row_meet meet = one_row_meet_of<ROWS>(ring + S::row, job.seg_blocks * K_BLOCK * 2, n_blocks);
    float4 before = {};

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, ROWS / 16); /* the workers' warps */
        }
        mbar_init_fence();
        if (N == 1 && n_blocks > 1) one_row_expect<ROWS>(job, meet, blocks);
    }
    __syncthreads();
    if (N == 1 && n_blocks > 1) cluster_arrive();
    dependents_launch();
    if (warp >= ROWS / 16) {
        if (linear_trade<ROWS, N>::on) registers_less<32>();
        if (threadIdx.x == ROWS * 2) {
            const CUtensorMap *w[3] = {&w0, &w1, &w2};
            linear_feed<ROWS, N, STAGES>(w, &x, job, p, ring, full, empty, first, count);
        }
        __syncwarp();
        if (N == 1 && n_blocks > 1)
            cluster_wait();
        else if (n_blocks > 1)
            cluster_sync();
    } else {
        uint32_t group = warp / 4, left = job.seg_blocks;
        bool begin = true; /* of a chain: the sums are overwritten */
        float acc[TILE / 2], total[MODE == WALK ? TILE / 2 : 1];

        if (linear_trade<ROWS, N>::on) registers_more<160>();
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
            for (int k = 0; k < K_BLOCK / 16; k++) {
                if constexpr (linear_trade<ROWS, N>::on) { /* no instruction may need more than 128 registers */
                    wgmma_ss<TILE / 2>((float(&)[TILE / 4]) acc, a + 2 * k, b + 2 * k, !begin || k > 0);
                    wgmma_ss<TILE / 2>((float(&)[TILE / 4]) acc[TILE / 4], a + 2 * k, b + (S::tokens / 32) + 2 * k,
                                       !begin || k > 0);
                } else {
                    wgmma_ss<TILE>(acc, a + 2 * k, b + 2 * k, !begin || k > 0);
                }
            }
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
            keep_sums<ROWS, TILE>(sums, acc);
        named_barrier(1, B::workers);
        if (n_blocks > 1) cluster_sync(); /* the others' sums are there, too */
        linear_write<ROWS, N, MODE>(job, p, ring, blocks, NULL);
    }
    if (N > 1 && n_blocks > 1) cluster_sync(); /* others may still read this block's sums */
#endif
}
