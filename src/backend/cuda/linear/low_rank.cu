/* backend/cuda/linear/low_rank.cu - adapters: out += (scale * (x A^T)) B, one launch for all outputs of one x.
 *
 * A cluster of BLOCKS blocks has up to CUDA_LOW_RANK_TILE rows of the same pairs and one output: A and B are read once for them.
 * Each block has a share of A's columns, in two halves, and one of the output's.
 *
 *     t     a warp has four ranks, all rows and one of the 2 * BLOCKS parts of the columns: a lane eight of every 256, one fma chain
 *           for each rank and row; the lanes' in a tree (shuffles), the parts' in a tree (the cluster's shared memory), then
 *           times scale
 *     out   a thread has four columns of all rows: one fma after the other, over the ranks of the pairs in order
 *
 * What is added in which order follows from the shapes alone: a row has its bits whoever shares the launch, and the same in
 * recorded steps (low_rank_rows), whose grid knows rows and shapes alone: clusters without rows end at once.
 * Where there are no clusters (before sm_90) one block does all parts. Many rows of one adapter have kernels of their own, to the
 * same bits (low_rank_many.cu).
 * With few rows all of it is latency. So nothing is loaded and used one by one: A's values are in registers, and B's asked for, before
 * dependency_wait, and B and out come while the cluster meets. Pairs of other types in one launch, or widths that are not whole
 * vectors, have a kernel that does all (together they need more registers than there are), to the same bits. Measured: docs/lora.md, "Cost"; bench/gpu/bench_gpu_low_rank.cu.
 */
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear/low_rank_many.h"
#include "backend/cuda/linear/low_rank_values.cuh"

#define THREADS   256u
#define BLOCKS_SM 2u /* at least */
#define ROWS      CUDA_LOW_RANK_TILE
#define LINE      128u
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

struct tile_room {
    float p[2][BLOCKS_HERE][HALVES][ROWS][PASS]; /* by turns: others of the cluster read it */
    float t[ROWS][PASS];
    uint32_t rows[ROWS];
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

/* sums[4 * r + k] += eight columns from i on of rank k times row r. */
template <uint32_t BYTES>
static __device__ __forceinline__ void multiply(int type, const struct tile &m, uint32_t i,
                                                const struct stored<BYTES, 8> (&a)[4], float (&sums)[4 * ROWS])
{
    float v[4][8];

#pragma unroll
    for (uint32_t k = 0; k < 4; k++) floats_of<BYTES, 8>(type, a[k], v[k]);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        if (r < m.n_rows) {
            float x[8];

            floats_of<4, 8>(CUDA_STORED_F32, stored_at<4, 8>(m.x, m.rows[r] * m.x_stride + i), x);
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
#pragma unroll
                for (uint32_t e = 0; e < 8; e++) sums[4 * r + k] = fmaf(v[k][e], x[e], sums[4 * r + k]);
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
#pragma unroll(BYTES == 2 ? 2 : 1)
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

static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Four of a block's sums, both halves together. */
static __device__ __forceinline__ float4 sums_of(const struct tile_room &s, uint32_t turn, uint32_t block, uint32_t r,
                                                 uint32_t j)
{
#if __CUDA_ARCH__ >= 900
    return plus(cluster_load4(smem_u32(&s.p[turn][0][0][r][j]), block),
                cluster_load4(smem_u32(&s.p[turn][0][1][r][j]), block));
#else
    return plus(*(const float4 *)&s.p[turn][block][0][r][j], *(const float4 *)&s.p[turn][block][1][r][j]);
#endif
}

/* t of n ranks and all rows: neighbouring threads have a block's each. */
static __device__ __forceinline__ void gather(struct tile_room &s, uint32_t turn, uint32_t n_rows, float scale)
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
        *(float4 *)&s.t[r][j] =
            make_float4(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale), __fmul_rn(v.w, scale));
}

/* ---- out ---- */

/* A block's columns of out. */
static __device__ __forceinline__ uint32_t up_width(uint32_t n_out)
{
    return (n_out + 4 * gridDim.x - 1) / (4 * gridDim.x) * 4;
}

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

/* Columns from `column` on, those of the whole block's turn. */
template <uint32_t BYTES>
static __device__ __forceinline__ void up(const struct pass &p, const struct tile &m, uint32_t column, uint32_t to,
                                          const float (*t)[PASS])
{
#pragma unroll 1
    for (; column < to; column += 4 * THREADS) {
        struct stored<BYTES, 4> b[4];
        float sums[ROWS][4];

        load_out(m, column, sums);
#pragma unroll 1
        for (uint32_t j = 0; j < p.n; j += 4) {
            load_b<BYTES, 4>(p, m, j, column, b);
            add_ranks<BYTES, 4>(p, m, j, b, t, sums);
        }
        store_out(m, column, sums);
    }
}

static __device__ __forceinline__ void up_plain(const struct pass &p, const struct tile &m, const float (*t)[PASS])
{
    const uint32_t width = up_width(m.n_out), from = blockIdx.x * width, to = min(from + width, m.n_out);

#pragma unroll 1
    for (uint32_t column = from + threadIdx.x; column < to; column += THREADS)
        for (uint32_t r = 0; r < m.n_rows; r++) {
            float *out = m.out + m.rows[r] * m.out_stride + column, sum = *out;

            for (uint32_t j = 0; j < p.n; j++)
                sum =
                    fmaf(t[r][j], stored_value(p.pair.b_type, p.pair.b, (uint64_t)(p.j0 + j) * m.n_out + column), sum);
            *out = sum;
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

/* One pair. is_first: what others wrote may be read only behind dependency_wait. */
template <uint32_t BYTES>
static __device__ __forceinline__ void add_pair(const struct tile &m, struct tile_room &s,
                                                const struct cuda_low_rank_pair &pair, bool is_first, uint32_t *turn)
{
    const uint32_t width = up_width(m.n_out), from = blockIdx.x * width, to = min(from + width, m.n_out);
    const uint32_t column = from + 4 * threadIdx.x;

#pragma unroll 1
    for (uint32_t j0 = 0; j0 < pair.rank; j0 += PASS, *turn ^= 1) {
        const struct pass p = {pair, j0, min(PASS, pair.rank - j0)};

        for (uint32_t b = 0; b < BLOCKS_HERE; b++) {
            const struct down_place at = down_place_of(m.n_in, BLOCKS_HERE == 1 ? blockIdx.x : b);
            struct stored<BYTES, 8> early[4];

            if (at.j < p.n && at.first < at.to) load_four<BYTES>(p, m, at.j, at.first, early);
            if (is_first && j0 == 0 && b == 0) dependency_wait();
            if (at.j < p.n) down<BYTES>(p, m, at, early, s.p[*turn][b]);
        }
        if (BYTES == 2) {
            struct stored<BYTES, 4> b[PASS];
            float sums[ROWS][4];

            if (column < to) {
                load_b<BYTES, PASS>(p, m, 0, column, b);
                load_out(m, column, sums);
            }
            meet();
            gather(s, *turn, m.n_rows, pair.scale);
            __syncthreads();
#pragma unroll 1
            for (uint32_t i = column; i < to; i += 4 * THREADS) {
                if (i > column) {
                    load_b<BYTES, PASS>(p, m, 0, i, b);
                    load_out(m, i, sums);
                }
                add_ranks<BYTES, PASS>(p, m, 0, b, s.t, sums);
                store_out(m, i, sums);
            }
        } else {
            meet();
            gather(s, *turn, m.n_rows, pair.scale);
            __syncthreads();
            up<BYTES>(p, m, column, to, s.t);
        }
    }
}

static __device__ __forceinline__ void add_pair_plain(const struct tile &m, struct tile_room &s,
                                                      const struct cuda_low_rank_pair &pair, uint32_t *turn)
{
#pragma unroll 1
    for (uint32_t j0 = 0; j0 < pair.rank; j0 += PASS, *turn ^= 1) {
        const struct pass p = {pair, j0, min(PASS, pair.rank - j0)};

        for (uint32_t b = 0; b < BLOCKS_HERE; b++) down_plain(p, m, BLOCKS_HERE == 1 ? blockIdx.x : b, s.p[*turn][b]);
        meet();
        gather(s, *turn, m.n_rows, pair.scale);
        __syncthreads();
        up_plain(p, m, s.t);
    }
}

/* The n pairs that pair_at gives, one after the other; KINDS: what they may be of. */
template <uint32_t KINDS, typename PAIR_AT>
static __device__ __forceinline__ void add_tile(struct tile m, const uint32_t *rows, struct tile_room &s,
                                                uint32_t n_pairs, PAIR_AT pair_at)
{
    const uint32_t width = up_width(m.n_out), from = blockIdx.x * width, in = HALVES * down_width(m.n_in);
    uint32_t turn = 0;

    if (threadIdx.x < m.n_rows) s.rows[threadIdx.x] = rows[threadIdx.x];
    m.rows = s.rows;
    __syncthreads();
#pragma unroll 1
    for (uint32_t k = 0; k < n_pairs; k++) {
        const struct cuda_low_rank_pair pair = pair_at(k);
        const bool is_first = k == 0, is_plain = KINDS == CUDA_LOW_RANK_ANY && !is_whole(m, pair);

        if (pair.a)
            ask(pair.b, pair.b_type == CUDA_STORED_F32 ? 4 : 2, pair.rank, m.n_out, from, min(from + width, m.n_out));
        if (pair.a && m.n_in > 256 * HALVES * BLOCKS) /* more than is loaded early */
            ask(pair.a, pair.a_type == CUDA_STORED_F32 ? 4 : 2, pair.rank, m.n_in, blockIdx.x * in,
                min((blockIdx.x + 1) * in, m.n_in));
        if (is_first && (!pair.a || is_plain)) dependency_wait();
        if (!pair.a) continue;
        if (is_plain)
            add_pair_plain(m, s, pair, &turn);
        else if (KINDS == CUDA_LOW_RANK_FLOATS || (KINDS == CUDA_LOW_RANK_ANY && pair.a_type == CUDA_STORED_F32))
            add_pair<4>(m, s, pair, is_first, &turn);
        else
            add_pair<2>(m, s, pair, is_first, &turn);
    }
    meet(); /* others may still read what this block has */
}

/* blockIdx.x: the block of a cluster; y: the chain of terms of the same rows and output; z: ROWS of its rows. */
template <uint32_t KINDS>
static __global__ void __launch_bounds__(THREADS, BLOCKS_SM) low_rank(struct cuda_low_rank_args a)
{
    __shared__ struct tile_room room;

    dependency_wait(); /* terms, chains and rows were sent right before */
    dependents_launch();

    const struct cuda_low_rank_term *m = a.terms + a.chains[blockIdx.y];
    const uint32_t row0 = blockIdx.z * ROWS, n_rows = m->n_rows;

    if (row0 >= n_rows) return;
    struct tile t;

    t.x = a.x, t.x_stride = a.x_stride, t.n_in = m->n_in;
    t.out = m->out, t.out_stride = m->out_stride, t.n_out = m->n_out;
    t.n_rows = min(ROWS, n_rows - row0);
    add_tile<KINDS>(t, a.rows + m->first_row + row0, room, a.chains[blockIdx.y + 1] - a.chains[blockIdx.y],
                    [=](uint32_t k) { return m[k].pair; });
}

/* blockIdx.x: the block of a cluster; y: the output; z: the tile of rows. */
template <uint32_t KINDS>
static __global__ void __launch_bounds__(THREADS, BLOCKS_SM) low_rank_rows(struct cuda_low_rank_rows_args a)
{
    __shared__ struct tile_room room;

    if (a.is_new) dependency_wait(); /* the tiles were sent right before */
    dependents_launch();

    const struct cuda_low_rank_tile *m = a.tiles + blockIdx.z;
    const uint32_t out = blockIdx.y, n_rows = m->n_rows;

    if (n_rows == 0) {
        if (blockIdx.z == 0) dependency_wait(); /* what comes after this kernel comes after those before it, too */
        return;
    }
    struct tile t;

    t.x = a.x, t.x_stride = t.n_in = a.n_in;
    t.out = out == 0 ? a.outs[0] : out == 1 ? a.outs[1] : a.outs[2];
    t.out_stride = t.n_out = out == 0 ? a.n_out[0] : out == 1 ? a.n_out[1] : a.n_out[2];
    t.n_rows = n_rows;
    add_tile<KINDS>(t, m->rows, room, m->n_uses, [=](uint32_t k) {
        struct cuda_low_rank_pair pair = m->uses[k].table[a.first + out];

        pair.scale = __fmul_rn(pair.scale, m->uses[k].scale);
        return pair;
    });
}

template <typename ARGS>
static int launch(const struct cuda_launch *l, void (*halves)(const ARGS), void (*floats)(const ARGS),
                  void (*any)(const ARGS), uint32_t kinds, uint32_t y, uint32_t z, const ARGS &a)
{
    const uint32_t n = l->compute == 90 ? BLOCKS : 1;

    return (int)launch_cluster(l,
                               kinds == CUDA_LOW_RANK_HALVES   ? halves
                               : kinds == CUDA_LOW_RANK_FLOATS ? floats
                                                               : any,
                               dim3(n, y, z), THREADS, 0, dim3(n), a);
}

int cuda_low_rank_rows(const struct cuda_launch *l, const struct cuda_low_rank_rows_args *a)
{
    uint32_t kinds = a->kinds;

    for (uint32_t i = 0; i < a->n_outs; i++)
        if (!are_vectors(a->x, a->n_in, a->n_in, a->outs[i], a->n_out[i], a->n_out[i])) kinds = CUDA_LOW_RANK_ANY;
    return launch(l, low_rank_rows<CUDA_LOW_RANK_HALVES>, low_rank_rows<CUDA_LOW_RANK_FLOATS>,
                  low_rank_rows<CUDA_LOW_RANK_ANY>, kinds, a->n_outs, a->n_rows, *a);
}

int cuda_low_rank(const struct cuda_launch *l, const struct cuda_low_rank_args *a,
                  const struct cuda_low_rank_term *host)
{
    const int many = low_rank_many_launch(l, a, host);
    uint32_t kinds = a->kinds;

    if (many != (int)cudaErrorNotSupported) return many;

    for (uint32_t i = 0; i < a->n_terms; i++)
        if (!are_vectors(a->x, host[i].n_in, a->x_stride, host[i].out, host[i].n_out, host[i].out_stride))
            kinds = CUDA_LOW_RANK_ANY;
    return launch(l, low_rank<CUDA_LOW_RANK_HALVES>, low_rank<CUDA_LOW_RANK_FLOATS>, low_rank<CUDA_LOW_RANK_ANY>, kinds,
                  a->n_chains, ceil_div(a->most_rows, ROWS), *a);
}
