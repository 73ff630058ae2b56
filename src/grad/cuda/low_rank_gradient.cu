/* grad/cuda/low_rank_gradient.cu - gradients of a low-rank pair: products of which one side is as narrow as the rank.
 *
 *     down    out = scale * x p^T      x [n_rows, k] is read once: bound by memory. A block has 16 rows; each of 8 warps a part of k,
 *                                      added in their order
 *     outer   dp += t^T x              x [n_rows, n] is read once. A block has 64 columns and SPLIT_ROWS rows; parts of rows go to
 *                                      scratch, and are added in their order
 *
 * Both on tensor cores (bf16, sums f32); shapes that do not lie in whole vectors have plain kernels. */
#include "backend/cuda/cuda_device.cuh"
#include "grad/cuda/grad_cuda.h"
#include "grad/cuda/mma_steps.cuh"

#define WARPS      8u
#define DOWN_ROWS  16u
#define RANKS      64u /* of a block, at most */
#define SPLIT_ROWS 512u
#define COLUMNS    64u
#define CHUNK      64u /* rows in shared memory */

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* ---- the pair in bf16 ---- */

static __global__ void pair16(uint32_t rank, uint32_t n_in, uint32_t n_out, uint32_t stride, const float *a,
                              const float *b, uint16_t *a16, uint16_t *a_turned, uint16_t *b16)
{
    const uint64_t n_a = (uint64_t)rank * n_in, n_b = (uint64_t)rank * n_out,
                   n_t = a_turned ? (uint64_t)n_in * stride : 0;
    const uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = first; i < n_a; i += step) a16[i] = float_bf16(a[i]);
    for (uint64_t i = first; i < n_b; i += step) b16[i] = float_bf16(b[i]);
    for (uint64_t i = first; i < n_t; i += step) {
        const uint32_t c = (uint32_t)(i / stride), j = (uint32_t)(i % stride);

        a_turned[i] = j < rank ? float_bf16(a[(uint64_t)j * n_in + c]) : 0;
    }
}

int grad_cuda_pair(const struct cuda_launch *l, uint32_t rank, uint32_t n_in, uint32_t n_out, uint32_t stride,
                   const float *a, const float *b, uint16_t *a16, uint16_t *a_turned, uint16_t *b16)
{
    const uint32_t widest = n_in > n_out ? n_in : n_out;
    const uint32_t all = ceil_div((uint64_t)widest * (a_turned ? stride : rank), 1024),
                   blocks = all < 1024 ? all : 1024;

    pair16<<<blocks, 256, 0, stream_of(l)>>>(rank, n_in, n_out, stride, a, b, a16, a_turned, b16);
    return (int)cudaGetLastError();
}

/* ---- down ---- */

struct down_job {
    uint32_t n_rows, k, rank, stride;
    const uint16_t *x, *p;
    float scale;
    uint16_t *out;
};

/* NT tiles of 8 ranks, from blockIdx.y * RANKS on. A lane has 8 k of each 32, in one order for x and p. */
template <int NT> static __global__ void __launch_bounds__(32 * WARPS) down(struct down_job j)
{
    __shared__ float sums[WARPS][DOWN_ROWS][8 * NT + 1];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const uint32_t r0 = blockIdx.x * DOWN_ROWS, first_rank = blockIdx.y * RANKS;
    const uint32_t n_blocks = (j.k + 31) / 32, share = (n_blocks + WARPS - 1) / WARPS;
    const uint32_t from = warp * share, to = min(from + share, n_blocks);
    const uint16_t *low = j.x + (uint64_t)min(r0 + g, j.n_rows - 1) * j.k + 8 * c;
    const uint16_t *high = j.x + (uint64_t)min(r0 + g + 8, j.n_rows - 1) * j.k + 8 * c;
    const uint16_t *p[NT];
    float acc[NT][4] = {};

#pragma unroll
    for (int t = 0; t < NT; t++) p[t] = j.p + (uint64_t)min(first_rank + 8 * t + g, j.rank - 1) * j.k + 8 * c;
#pragma unroll 2
    for (uint32_t b = from; b < to; b++) {
        const uint4 l = *(const uint4 *)(low + 32 * b), h = *(const uint4 *)(high + 32 * b);
        const uint32_t a0[4] = {l.x, h.x, l.y, h.y}, a1[4] = {l.z, h.z, l.w, h.w};

#pragma unroll
        for (int t = 0; t < NT; t++) {
            const uint4 v = *(const uint4 *)(p[t] + 32 * b);

            mma_bf16(acc[t], a0, v.x, v.y);
            mma_bf16(acc[t], a1, v.z, v.w);
        }
    }
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[warp][g + i / 2 * 8][8 * t + 2 * c + i % 2] = acc[t][i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < DOWN_ROWS * RANKS; i += 32 * WARPS) {
        const uint32_t r = i / RANKS, rank = i % RANKS;
        float sum = 0;

        if (r0 + r >= j.n_rows || first_rank + rank >= j.stride) continue;
        if (first_rank + rank < j.rank)
            for (uint32_t w = 0; w < WARPS; w++) sum += sums[w][r][rank];
        j.out[(uint64_t)(r0 + r) * j.stride + first_rank + rank] = float_bf16(sum * j.scale);
    }
}

/* A thread a number. */
static __global__ void down_plain(struct down_job j)
{
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t row = (uint32_t)(i / j.stride), rank = (uint32_t)(i % j.stride);
    float sum = 0;

    if (row >= j.n_rows) return;
    for (uint32_t k = 0; rank < j.rank && k < j.k; k++)
        sum = fmaf(bf16_float(j.x[(uint64_t)row * j.k + k]), bf16_float(j.p[(uint64_t)rank * j.k + k]), sum);
    j.out[i] = float_bf16(sum * j.scale);
}

int grad_cuda_down(const struct cuda_launch *l, uint32_t n_rows, uint32_t k, uint32_t rank, const uint16_t *x,
                   const uint16_t *p, float scale, uint32_t stride, uint16_t *out)
{
    const struct down_job j = {n_rows, k, rank, stride, x, p, scale, out};
    const dim3 grid(ceil_div(n_rows, DOWN_ROWS), stride / RANKS);

    if (k % 32 || !is_aligned(x) || !is_aligned(p))
        down_plain<<<ceil_div((uint64_t)n_rows * stride, 128), 128, 0, stream_of(l)>>>(j);
    else if (rank <= 16)
        down<2><<<grid, 32 * WARPS, 0, stream_of(l)>>>(j);
    else if (rank <= 32)
        down<4><<<grid, 32 * WARPS, 0, stream_of(l)>>>(j);
    else
        down<8><<<grid, 32 * WARPS, 0, stream_of(l)>>>(j);
    return (int)cudaGetLastError();
}

/* ---- outer ---- */

struct outer_job {
    uint32_t n_rows, rank, n, stride;
    const uint16_t *t, *x;
    float *parts; /* [splits, rank, n] */
};

/* Rows of a chunk to shared memory, 8 numbers at a time; rows past the end are zeros. */
static __device__ __forceinline__ void bring(uint16_t *to, uint32_t pitch, const uint16_t *from, uint64_t stride,
                                             uint32_t width, uint32_t n_columns, uint32_t row, uint32_t end)
{
    for (uint32_t i = threadIdx.x; i < CHUNK * width / 8; i += 128) {
        const uint32_t r = i / (width / 8), c = i % (width / 8) * 8;
        const bool there = row + r < end && c < n_columns;

        copy16_async(to + r * pitch + c, there ? from + (row + r) * stride + c : from, there);
    }
}

/* MT tiles of 16 ranks, from blockIdx.z * RANKS on. */
template <int MT> static __global__ void __launch_bounds__(128) outer(struct outer_job j)
{
    constexpr uint32_t T_PITCH = 16 * MT + 8, X_PITCH = COLUMNS + 8;
    __shared__ __align__(16) uint16_t t[2][CHUNK * T_PITCH], x[2][CHUNK * X_PITCH];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const uint32_t c0 = blockIdx.x * COLUMNS, first_rank = blockIdx.z * RANKS;
    const uint32_t row0 = blockIdx.y * SPLIT_ROWS, end = min(row0 + SPLIT_ROWS, j.n_rows);
    const uint16_t *xs = j.x + c0, *ts = j.t + first_rank;
    float acc[MT][2][4] = {};

    bring(t[0], T_PITCH, ts, j.stride, 16 * MT, 16 * MT, row0, end);
    bring(x[0], X_PITCH, xs, j.n, COLUMNS, j.n - c0, row0, end);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (uint32_t row = row0, turn = 0; row < end; row += CHUNK, turn ^= 1) {
        if (row + CHUNK < end) {
            bring(t[turn ^ 1], T_PITCH, ts, j.stride, 16 * MT, 16 * MT, row + CHUNK, end);
            bring(x[turn ^ 1], X_PITCH, xs, j.n, COLUMNS, j.n - c0, row + CHUNK, end);
        }
        asm volatile("cp.async.commit_group;\ncp.async.wait_group 1;" ::: "memory");
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < CHUNK; k += 16) {
            uint32_t b[4];

            load_b_turned(b, x[turn], X_PITCH, 16 * warp, k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint32_t a[4];

                load_a_turned(a, t[turn], T_PITCH, 16 * m, k);
                mma_bf16(acc[m][0], a, b[0], b[1]);
                mma_bf16(acc[m][1], a, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    float *parts = j.parts + (uint64_t)blockIdx.y * j.rank * j.n;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t rank = first_rank + 16 * m + g + i / 2 * 8, col = c0 + 16 * warp + 8 * h + 2 * c + i % 2;

                if (rank < j.rank && col < j.n) parts[(uint64_t)rank * j.n + col] = acc[m][h][i];
            }
}

/* A thread a number of one part. */
static __global__ void outer_plain(struct outer_job j)
{
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t rank = (uint32_t)(i / j.n), col = (uint32_t)(i % j.n);
    const uint32_t row0 = blockIdx.y * SPLIT_ROWS, end = min(row0 + SPLIT_ROWS, j.n_rows);
    float sum = 0;

    if (rank >= j.rank) return;
    for (uint32_t r = row0; r < end; r++)
        sum = fmaf(bf16_float(j.t[(uint64_t)r * j.stride + rank]), bf16_float(j.x[(uint64_t)r * j.n + col]), sum);
    j.parts[(uint64_t)blockIdx.y * j.rank * j.n + i] = sum;
}

static __global__ void add_parts(uint64_t n, uint32_t n_parts, const float *parts, float *to)
{
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;

    if (i >= n) return;
    for (uint32_t p = 0; p < n_parts; p++) sum += parts[p * n + i];
    to[i] += sum;
}

uint64_t grad_cuda_outer_floats(uint32_t n_rows, uint32_t rank, uint32_t n)
{
    return (uint64_t)ceil_div(n_rows, SPLIT_ROWS) * rank * n;
}

int grad_cuda_outer(const struct cuda_launch *l, uint32_t n_rows, uint32_t rank, uint32_t n, const uint16_t *t,
                    uint32_t stride, const uint16_t *x, float *scratch, float *dp)
{
    const struct outer_job j = {n_rows, rank, n, stride, t, x, scratch};
    const uint32_t splits = ceil_div(n_rows, SPLIT_ROWS);
    const uint64_t n_all = (uint64_t)rank * n;
    const dim3 grid(ceil_div(n, COLUMNS), splits, ceil_div(rank, RANKS));

    if (n % 8 || !is_aligned(x) || !is_aligned(t))
        outer_plain<<<dim3(ceil_div(n_all, 128), splits), 128, 0, stream_of(l)>>>(j);
    else if (rank <= 16)
        outer<1><<<grid, 128, 0, stream_of(l)>>>(j);
    else if (rank <= 32)
        outer<2><<<grid, 128, 0, stream_of(l)>>>(j);
    else
        outer<4><<<grid, 128, 0, stream_of(l)>>>(j);
    add_parts<<<ceil_div(n_all, 256), 256, 0, stream_of(l)>>>(n_all, splits, scratch, dp);
    return (int)cudaGetLastError();
}
