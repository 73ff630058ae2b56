/* backend/cuda/linear/low_rank_tile.cuh - up to CUDA_LOW_RANK_TILE rows that have the same pair: t of them in a cluster of
 * BLOCKS blocks, and what a thread adds to four columns. Which sums are added in which order is part of a row's bits: low_rank.cu says it. */
#pragma once
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/linear/low_rank_values.cuh"

#define THREADS 256u /* of the blocks that make t */
#define ROWS    CUDA_LOW_RANK_TILE
#define LINE    128u
#if __CUDA_ARCH__ >= 900
#define BLOCKS_HERE 1u /* whose sums a block makes */
#else
#define BLOCKS_HERE BLOCKS
#endif

/* The rows of a block, of n_in columns, and where they are added to. */
struct tile {
    const float *x;
    float *out;
    uint64_t x_stride, out_stride;
    uint32_t n_in, n_out, n_rows;
    const uint32_t *rows; /* [n_rows], shared memory */
};

/* Shared memory: the sums of a block, by turns, as others of the cluster read them. */
struct part_room {
    float p[2][BLOCKS_HERE][HALVES][ROWS][PASS];
};

/* Ranks [j0, j0 + n) of a pair, n at most PASS. */
struct pass {
    struct cuda_low_rank_pair pair;
    uint32_t j0, n;
};

static __device__ __forceinline__ float stored_value(int type, const void *p, uint64_t i)
{
    if (type == CUDA_STORED_F32) return ((const float *)p)[i];
    return type == CUDA_STORED_F16 ? half_float(((const uint16_t *)p)[i]) : bf16_float(((const uint16_t *)p)[i]);
}

/* ---- t ---- */

/* A warp's columns, a lane's first, and the first rank. */
struct down_place {
    uint32_t first, to, j;
};
static __device__ __forceinline__ struct down_place down_place_of(uint32_t n_in, uint32_t block)
{
    const uint32_t width = down_width(n_in);
    const uint32_t warp = threadIdx.x / 32, from = (block * HALVES + warp / 4) * width;

    return {from + 8 * (threadIdx.x % 32), min(from + width, n_in), warp % 4 * 4};
}

template <uint32_t BYTES>
static __device__ __forceinline__ void load_four(const struct pass &p, const struct tile &m, uint32_t j, uint32_t i,
                                                 struct stored<BYTES, 8> (&a)[4])
{
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        a[k] = stored_at<BYTES, 8>(p.pair.a, (uint64_t)(p.j0 + min(j + k, p.n - 1)) * m.n_in + i);
}

/* sums[4 * r + k] += eight columns from i on of rank k times row r, four columns at a time: few registers. */
template <uint32_t BYTES>
static __device__ __forceinline__ void multiply(int type, const struct tile &m, uint32_t i,
                                                const struct stored<BYTES, 8> (&a)[4], float (&sums)[4 * ROWS])
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        float v[4][4];

#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            struct stored<BYTES, 4> four;

#pragma unroll
            for (uint32_t w = 0; w < BYTES; w++) four.w[w] = a[k].w[h * BYTES + w];
            floats_of<BYTES, 4>(type, four, v[k]);
        }
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++)
            if (r < m.n_rows) {
                const float4 x = *(const float4 *)(m.x + m.rows[r] * m.x_stride + i + 4 * h);

#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
                    float *sum = &sums[4 * r + k];

                    *sum = fmaf(v[k][0], x.x, *sum);
                    *sum = fmaf(v[k][1], x.y, *sum);
                    *sum = fmaf(v[k][2], x.z, *sum);
                    *sum = fmaf(v[k][3], x.w, *sum);
                }
            }
    }
}

/* What a warp has summed to its place. */
static __device__ __forceinline__ void put_sums(float (&sums)[4 * ROWS], uint32_t j, float (*p)[PASS])
{
    const uint32_t lane = threadIdx.x % 32, value = lane / (8 / ROWS);

    sum_lanes<4 * ROWS>(sums);
    if (lane % (8 / ROWS) == 0) p[value / 4][j + value % 4] = sums[0];
}

/* early: the first values of A, which are there. */
template <uint32_t BYTES>
static __device__ __forceinline__ void down(const struct pass &p, const struct tile &m, const struct down_place &at,
                                            const struct stored<BYTES, 8> (&early)[4], float (*to)[ROWS][PASS])
{
    float sums[4 * ROWS] = {};

    if (at.first < at.to) multiply<BYTES>(p.pair.a_type, m, at.first, early, sums);
#pragma unroll 1
    for (uint32_t i = at.first + 256; i < at.to; i += 256) {
        struct stored<BYTES, 8> a[4];

        load_four<BYTES>(p, m, at.j, i, a);
        multiply<BYTES>(p.pair.a_type, m, i, a, sums);
    }
    put_sums(sums, at.j, to[threadIdx.x / 128]);
}

/* The same for any types and widths. */
static __device__ __forceinline__ void down_plain(const struct pass &p, const struct tile &m, uint32_t block,
                                                  float (*to)[ROWS][PASS])
{
    const struct down_place at = down_place_of(m.n_in, block);
    float sums[4 * ROWS] = {};

    if (at.j >= p.n) return;
#pragma unroll 1
    for (uint32_t i = at.first; i < at.to; i += 256)
#pragma unroll 1
        for (uint32_t e = i; e < min(i + 8, m.n_in); e++)
#pragma unroll
            for (uint32_t r = 0; r < ROWS; r++)
                if (r < m.n_rows) {
                    const float x = m.x[m.rows[r] * m.x_stride + e];

#pragma unroll
                    for (uint32_t k = 0; k < 4; k++)
                        sums[4 * r + k] = fmaf(stored_value(p.pair.a_type, p.pair.a,
                                                            (uint64_t)(p.j0 + min(at.j + k, p.n - 1)) * m.n_in + e),
                                               x, sums[4 * r + k]);
                }
    put_sums(sums, at.j, to[threadIdx.x / 128]);
}

/* What a block, or where there are no clusters one block for all, has to sum of a pass: of values of BYTES, or plain. */
template <uint32_t BYTES>
static __device__ __forceinline__ void make_parts(const struct pass &p, const struct tile &m, bool is_plain,
                                                  float (*to)[HALVES][ROWS][PASS])
{
    for (uint32_t b = 0; b < BLOCKS_HERE; b++) {
        const uint32_t block = BLOCKS_HERE == 1 ? blockIdx.x : b;
        const struct down_place at = down_place_of(m.n_in, block);
        struct stored<BYTES, 8> early[4];

        if (!is_plain && at.j < p.n && at.first < at.to) load_four<BYTES>(p, m, at.j, at.first, early);
        if (is_plain)
            down_plain(p, m, block, to[b]);
        else if (at.j < p.n)
            down<BYTES>(p, m, at, early, to[b]);
    }
}

static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Four of a block's sums, both halves together. */
static __device__ __forceinline__ float4 sums_of(const struct part_room &s, uint32_t turn, uint32_t block, uint32_t r,
                                                 uint32_t j)
{
#if __CUDA_ARCH__ >= 900
    return plus(cluster_load4(smem_u32(&s.p[turn][0][0][r][j]), block),
                cluster_load4(smem_u32(&s.p[turn][0][1][r][j]), block));
#else
    return plus(*(const float4 *)&s.p[turn][block][0][r][j], *(const float4 *)&s.p[turn][block][1][r][j]);
#endif
}

/* t of a pass, by every block: put(r, j, t of four ranks from j on). Neighbouring threads have a block's each. */
template <typename PUT>
static __device__ __forceinline__ void gather(const struct part_room &s, uint32_t turn, uint32_t n_rows, float scale,
                                              PUT put)
{
    const uint32_t block = threadIdx.x % BLOCKS, j = threadIdx.x / BLOCKS % (PASS / 4) * 4,
                   r = threadIdx.x / (BLOCKS * PASS / 4);
    float4 v = make_float4(0, 0, 0, 0);

    static_assert(THREADS >= BLOCKS * PASS / 4 * ROWS, "a thread's is one of them");
    if (r < n_rows) v = sums_of(s, turn, block, r, j);
#pragma unroll
    for (uint32_t d = 1; d < BLOCKS; d *= 2)
        v = plus(v, make_float4(__shfl_xor_sync(FULL_WARP, v.x, d), __shfl_xor_sync(FULL_WARP, v.y, d),
                                __shfl_xor_sync(FULL_WARP, v.z, d), __shfl_xor_sync(FULL_WARP, v.w, d)));
    if (r < n_rows && block == 0)
        put(r, j,
            make_float4(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale), __fmul_rn(v.w, scale)));
}

/* ---- out ---- */

/* N ranks of B, four columns of a thread. */
template <uint32_t BYTES, uint32_t N>
static __device__ __forceinline__ void load_b(const struct pass &p, const struct tile &m, uint32_t j, uint32_t column,
                                              struct stored<BYTES, 4> (&b)[N])
{
#pragma unroll
    for (uint32_t k = 0; k < N; k++)
        b[k] = stored_at<BYTES, 4>(p.pair.b, (uint64_t)(p.j0 + min(j + k, p.n - 1)) * m.n_out + column);
}

static __device__ __forceinline__ void load_out(const struct tile &m, uint32_t column, float (&sums)[ROWS][4])
{
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        if (r < m.n_rows)
            floats_of<4, 4>(CUDA_STORED_F32, stored_at<4, 4>(m.out, m.rows[r] * m.out_stride + column), sums[r]);
}

static __device__ __forceinline__ void store_out(const struct tile &m, uint32_t column, const float (&sums)[ROWS][4])
{
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        if (r < m.n_rows)
            *(float4 *)(m.out + m.rows[r] * m.out_stride + column) =
                make_float4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
}

/* sums += ranks j .. j + N - 1, as far as there are. */
template <uint32_t BYTES, uint32_t N>
static __device__ __forceinline__ void add_ranks(const struct pass &p, const struct tile &m, uint32_t j,
                                                 const struct stored<BYTES, 4> (&b)[N], const float (*t)[PASS],
                                                 float (&sums)[ROWS][4])
{
#pragma unroll
    for (uint32_t k = 0; k < N; k++)
        if (j + k < p.n) {
            float v[4];

            floats_of<BYTES, 4>(p.pair.b_type, b[k], v);
#pragma unroll
            for (uint32_t r = 0; r < ROWS; r++)
                if (r < m.n_rows)
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) sums[r][e] = fmaf(t[r][j + k], v[e], sums[r][e]);
        }
}

/* ---- a block ---- */

/* Asks L2 for columns [from, to) of n rows of a matrix. */
static __device__ __forceinline__ void ask(const void *p, uint32_t bytes, uint32_t n, uint32_t stride, uint32_t from,
                                           uint32_t to)
{
    const uint32_t lines = from < to ? ((to - from) * bytes + LINE - 1) / LINE : 0;

    for (uint32_t i = threadIdx.x; i < n * lines; i += THREADS) {
        const char *at = (const char *)p + ((uint64_t)(i / lines) * stride + from) * bytes + i % lines * LINE;

        asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
    }
}

/* Asks for what comes later: B, this block's share, and A where more of it is read than is loaded at first. */
static __device__ __forceinline__ void ask_for(const struct cuda_low_rank_pair &pair, const struct tile &m)
{
    const uint32_t width = (m.n_out + gridDim.x - 1) / gridDim.x, from = min(blockIdx.x * width, m.n_out);
    const uint32_t in = HALVES * down_width(m.n_in);

    if (m.n_in > 256 * HALVES * BLOCKS)
        ask(pair.a, pair.a_type == CUDA_STORED_F32 ? 4 : 2, pair.rank, m.n_in, blockIdx.x * in,
            min((blockIdx.x + 1) * in, m.n_in));
    ask(pair.b, pair.b_type == CUDA_STORED_F32 ? 4 : 2, pair.rank, m.n_out, from, min(from + width, m.n_out));
}

/* All blocks of the cluster together: what was written to shared memory before is seen after. */
static __device__ __forceinline__ void meet(void)
{
#if __CUDA_ARCH__ >= 900
    cluster_sync();
#else
    __syncthreads();
#endif
}

static __device__ __forceinline__ bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}
static __device__ __forceinline__ bool is_whole(const struct tile &m, const struct cuda_low_rank_pair &pair)
{
    return (pair.a_type == CUDA_STORED_F32) == (pair.b_type == CUDA_STORED_F32) && m.n_in % 8 == 0 &&
           m.x_stride % 4 == 0 && m.n_out % 4 == 0 && m.out_stride % 4 == 0 && is_aligned(m.x) && is_aligned(m.out);
}
