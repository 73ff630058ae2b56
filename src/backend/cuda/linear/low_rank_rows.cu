/* backend/cuda/linear/low_rank_rows.cu - adapters in recorded steps: which row has which is read on the device.
 *
 * With few rows all of it is latency, which is hidden in the product that makes out. Two kernels:
 *
 *     t     by clusters as in low_rank.cu, into memory, in a branch of the graph beside the product; B is asked for, too
 *     out   behind both: B is in registers when the product ends, then out is read, added to and written. Of gate and up in one with
 *           the activation
 *
 * For that all of them are on the SMs together: products leave SMEM_BESIDE of the shared memory, and a block here is small.
 * The grids know rows and shapes alone: blocks without rows end at once. The bits are low_rank.cu's. Measured: docs/lora.md,
 * "Cost"; bench/gpu/bench_gpu_low_rank.cu.
 */
#include "backend/cuda/cuda_kernels.h"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear/low_rank_tile.cuh"

#define UP_THREADS 128u
#define COLUMNS    (4 * UP_THREADS)

/* The pair of the k-th use for output out. */
static __device__ __forceinline__ struct cuda_low_rank_pair
pair_at(const struct cuda_low_rank_rows_args &a, const struct cuda_low_rank_tile *m, uint32_t out, uint32_t k)
{
    struct cuda_low_rank_pair pair = m->uses[k].table[a.first + out];

    pair.scale = __fmul_rn(pair.scale, m->uses[k].scale);
    return pair;
}

static __device__ __forceinline__ struct tile tile_at(const struct cuda_low_rank_rows_args &a, uint32_t n_rows,
                                                      uint32_t out)
{
    struct tile t;

    t.x = a.x, t.x_stride = t.n_in = a.n_in;
    t.out = out == 0 ? a.outs[0] : out == 1 ? a.outs[1] : a.outs[2];
    t.out_stride = t.n_out = out == 0 ? a.n_out[0] : out == 1 ? a.n_out[1] : a.n_out[2];
    t.n_rows = n_rows;
    return t;
}

/* Where t of a row and an output is, of all its uses' ranks. */
static __device__ __forceinline__ float *t_of(const struct cuda_low_rank_rows_args &a, uint32_t row, uint32_t out)
{
    return a.t + ((uint64_t)row * a.n_outs + out) * a.most_ranks;
}

/* ---- t ---- */

/* blockIdx.x: the block of a cluster; y: the output; z: the tile of rows. */
template <uint32_t KINDS>
static __global__ void __launch_bounds__(THREADS, 3) low_rank_t(struct cuda_low_rank_rows_args a)
{
    __shared__ struct part_room room;
    __shared__ uint32_t rows[ROWS];

    dependency_wait();
    dependents_launch();

    const struct cuda_low_rank_tile *tile = a.tiles + blockIdx.z;
    struct tile m = tile_at(a, tile->n_rows, blockIdx.y);
    const uint32_t out = blockIdx.y, n_uses = tile->n_uses;
    uint32_t turn = 0, first = 0;

    if (m.n_rows == 0 || n_uses == 0) return;
    if (threadIdx.x < m.n_rows) rows[threadIdx.x] = tile->rows[threadIdx.x];
    m.rows = rows;
    __syncthreads();
#pragma unroll 1
    for (uint32_t k = 0; k < n_uses; k++) {
        const struct cuda_low_rank_pair pair = pair_at(a, tile, out, k);
        const bool is_plain = KINDS == CUDA_LOW_RANK_ANY && pair.a && !is_whole(m, pair);

        if (!pair.a) continue;
        ask_for(pair, m);
#pragma unroll 1
        for (uint32_t j0 = 0; j0 < pair.rank; j0 += PASS, turn ^= 1) {
            const struct pass p = {pair, j0, min(PASS, pair.rank - j0)};

            if (KINDS == CUDA_LOW_RANK_FLOATS || (KINDS == CUDA_LOW_RANK_ANY && pair.a_type == CUDA_STORED_F32))
                make_parts<4>(p, m, is_plain, room.p[turn]);
            else
                make_parts<2>(p, m, is_plain, room.p[turn]);
            meet();
            if (blockIdx.x == 0)
                gather(room, turn, m.n_rows, pair.scale, [&](uint32_t r, uint32_t j, float4 v) {
                    float *to = t_of(a, m.rows[r], out) + first + j0 + j;

                    if (j < p.n) to[0] = v.x;
                    if (j + 1 < p.n) to[1] = v.y;
                    if (j + 2 < p.n) to[2] = v.z;
                    if (j + 3 < p.n) to[3] = v.w;
                });
        }
        first += pair.rank;
    }
    meet(); /* others may still read what this block has */
}

/* ---- out ---- */

/* sums += a pass, four columns. t: this thread's number of it. waits: what others wrote may be read only behind dependency_wait; sums
 * is out then. */
template <uint32_t BYTES>
static __device__ __forceinline__ void add_pass(const struct pass &p, const struct tile &m, uint32_t column, bool waits,
                                                const float *t, float (*staged)[PASS], float (&sums)[ROWS][4])
{
    const uint32_t r = threadIdx.x / PASS, j = threadIdx.x % PASS;
    struct stored<BYTES, 4> b[PASS];

    if (column < m.n_out) load_b<BYTES, PASS>(p, m, 0, column, b);
    if (waits) dependency_wait();
    if (waits && column < m.n_out) load_out(m, column, sums);
    __syncthreads(); /* the pass before has been added */
    if (r < m.n_rows && j < p.n) staged[r][j] = *t;
    __syncthreads();
    if (column < m.n_out) add_ranks<BYTES, PASS>(p, m, 0, b, staged, sums);
}

/* All pairs of a thread's columns, which may be any. */
static __device__ __forceinline__ void add_plain(const struct cuda_low_rank_rows_args &a,
                                                 const struct cuda_low_rank_tile *tile, const struct tile &m,
                                                 uint32_t column)
{
    for (uint32_t i = 0; i < 4 * m.n_rows; i++) {
        const uint32_t r = i / 4, c = column + i % 4;
        const float *t = t_of(a, m.rows[r], blockIdx.y);
        float *out = m.out + m.rows[r] * m.out_stride + c, sum;

        if (c >= m.n_out) continue;
        sum = *out;
        for (uint32_t k = 0; k < tile->n_uses; k++) {
            const struct cuda_low_rank_pair pair = pair_at(a, tile, blockIdx.y, k);

            if (!pair.a) continue;
            for (uint32_t j = 0; j < pair.rank; j++)
                sum = fmaf(*t++, stored_value(pair.b_type, pair.b, (uint64_t)j * m.n_out + c), sum);
        }
        *out = sum;
    }
}

/* All pairs of four columns a thread, vectors all. */
template <uint32_t BYTES>
static __device__ __forceinline__ void add_vectors(const struct cuda_low_rank_rows_args &a,
                                                   const struct cuda_low_rank_tile *tile, const struct tile &m,
                                                   uint32_t column)
{
    __shared__ float staged[ROWS][PASS];
    const uint32_t row = min(threadIdx.x / PASS, m.n_rows - 1), j = threadIdx.x % PASS;
    const float *t = t_of(a, m.rows[row], blockIdx.y) + j;
    float sums[ROWS][4];
    bool waits = true;

#pragma unroll 1
    for (uint32_t k = 0; k < tile->n_uses; k++) {
        const struct cuda_low_rank_pair pair = pair_at(a, tile, blockIdx.y, k);

#pragma unroll 1
        for (uint32_t j0 = 0; pair.a && j0 < pair.rank; j0 += PASS, waits = false)
            add_pass<BYTES>({pair, j0, min(PASS, pair.rank - j0)}, m, column, waits, t + j0, staged, sums);
        if (pair.a) t += pair.rank;
    }
    if (waits) dependency_wait();
    if (!waits && column < m.n_out) store_out(m, column, sums);
}

/* blockIdx.x: COLUMNS of the output; y: the output; z: the tile of rows. */
template <uint32_t KINDS>
static __global__ void __launch_bounds__(UP_THREADS, 4) low_rank_up(struct cuda_low_rank_rows_args a)
{
    __shared__ uint32_t rows[ROWS];

    dependents_launch();

    const struct cuda_low_rank_tile *tile = a.tiles + blockIdx.z;
    const uint32_t column = blockIdx.x * COLUMNS + 4 * threadIdx.x;
    struct tile m = tile_at(a, tile->n_rows, blockIdx.y);

    if (m.n_rows == 0 || blockIdx.x * COLUMNS >= m.n_out) return;
    if (threadIdx.x < m.n_rows) rows[threadIdx.x] = tile->rows[threadIdx.x];
    m.rows = rows;
    __syncthreads();
    if (KINDS == CUDA_LOW_RANK_ANY) {
        dependency_wait();
        add_plain(a, tile, m, column);
    } else {
        add_vectors<KINDS == CUDA_LOW_RANK_FLOATS ? 4 : 2>(a, tile, m, column);
    }
}

/* ---- gate and up ---- */

/* Two columns of a pass of B. */
template <uint32_t BYTES>
static __device__ __forceinline__ void load_two(const struct pass &p, uint32_t n_out, uint32_t column,
                                                uint32_t (&b)[PASS][BYTES / 2])
{
#pragma unroll
    for (uint32_t k = 0; k < PASS; k++) {
        const uint64_t at = (uint64_t)(p.j0 + min(k, p.n - 1)) * n_out + column;

        if (BYTES == 4) {
            const uint2 v = *(const uint2 *)((const float *)p.pair.b + at);

            b[k][0] = v.x, b[k][BYTES / 2 - 1] = v.y;
        } else {
            b[k][0] = *(const uint32_t *)((const uint16_t *)p.pair.b + at);
        }
    }
}

template <uint32_t BYTES> static __device__ __forceinline__ float2 two_of(int type, const uint32_t (&b)[BYTES / 2])
{
    if (BYTES == 4) return make_float2(__uint_as_float(b[0]), __uint_as_float(b[BYTES / 2 - 1]));
    return type == CUDA_STORED_F16 ? make_float2(half_float((uint16_t)b[0]), half_float((uint16_t)(b[0] >> 16)))
                                   : make_float2(bf16_float((uint16_t)b[0]), bf16_float((uint16_t)(b[0] >> 16)));
}

/* sums += a pass, of two columns. */
template <uint32_t BYTES>
static __device__ __forceinline__ void add_two(const struct pass &p, const struct tile &m,
                                               const uint32_t (&b)[PASS][BYTES / 2], const float (*t)[PASS],
                                               float2 (&sums)[ROWS])
{
#pragma unroll
    for (uint32_t k = 0; k < PASS; k++)
        if (k < p.n) {
            const float2 v = two_of<BYTES>(p.pair.b_type, b[k]);

#pragma unroll
            for (uint32_t r = 0; r < ROWS; r++)
                if (r < m.n_rows) sums[r] = make_float2(fmaf(t[r][k], v.x, sums[r].x), fmaf(t[r][k], v.y, sums[r].y));
        }
}

static __device__ __forceinline__ struct pass pass_at(const struct cuda_low_rank_pair &pair, uint32_t j0)
{
    return {pair, j0, pair.a && j0 < pair.rank ? min(PASS, pair.rank - j0) : 0};
}

static __device__ __forceinline__ void load_sums(const float *out, const struct tile &m, uint32_t column,
                                                 float2 (&sums)[ROWS])
{
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        if (r < m.n_rows && column < m.n_out) sums[r] = *(const float2 *)(out + (uint64_t)m.rows[r] * m.n_out + column);
}

/* All pairs of two columns of gate and up, as far as there are: of both at once, so that what is read of B is there when the
 * product ends. */
template <uint32_t BYTES>
static __device__ __forceinline__ void add_both(const struct cuda_low_rank_rows_args &a,
                                                const struct cuda_low_rank_tile *tile, const struct tile &m,
                                                uint32_t column, float2 (&gate)[ROWS], float2 (&up)[ROWS])
{
    __shared__ float staged[2][ROWS][PASS];
    const uint32_t o = threadIdx.x / (ROWS * PASS), r = threadIdx.x / PASS % ROWS, j = threadIdx.x % PASS;
    uint32_t first[2] = {};
    bool waits = true;

    static_assert(UP_THREADS == 2 * ROWS * PASS, "a thread has one number of t in a pass");
#pragma unroll 1
    for (uint32_t k = 0; k < tile->n_uses; k++) {
        const struct cuda_low_rank_pair pairs[2] = {pair_at(a, tile, 0, k), pair_at(a, tile, 1, k)};
        const uint32_t ranks[2] = {pairs[0].a ? pairs[0].rank : 0, pairs[1].a ? pairs[1].rank : 0};

#pragma unroll 1
        for (uint32_t j0 = 0; j0 < max(ranks[0], ranks[1]); j0 += PASS) {
            const struct pass of_gate = pass_at(pairs[0], j0), of_up = pass_at(pairs[1], j0);
            uint32_t b[2][PASS][BYTES / 2];

            if (column < m.n_out && of_gate.n > 0) load_two<BYTES>(of_gate, m.n_out, column, b[0]);
            if (column < m.n_out && of_up.n > 0) load_two<BYTES>(of_up, m.n_out, column, b[1]);
            if (waits) {
                dependency_wait();
                load_sums(a.outs[0], m, column, gate);
                load_sums(a.outs[1], m, column, up);
                waits = false;
            }
            __syncthreads(); /* the pass before has been added */
            if (r < m.n_rows && j < (o == 0 ? of_gate.n : of_up.n))
                staged[o][r][j] = t_of(a, m.rows[r], o)[(o == 0 ? first[0] : first[1]) + j0 + j];
            __syncthreads();
            add_two<BYTES>(of_gate, m, b[0], staged[0], gate);
            add_two<BYTES>(of_up, m, b[1], staged[1], up);
        }
        first[0] += ranks[0], first[1] += ranks[1];
    }
    if (!waits) return;
    dependency_wait();
    load_sums(a.outs[0], m, column, gate);
    load_sums(a.outs[1], m, column, up);
}

/* blockIdx.x: 2 * UP_THREADS columns; y: the tile of rows. */
template <uint32_t BYTES>
static __global__ void __launch_bounds__(UP_THREADS, 4)
    low_rank_glu(struct cuda_low_rank_rows_args a, int act, float *out, uint16_t *out16)
{
    __shared__ uint32_t rows[ROWS];

    dependents_launch();

    const struct cuda_low_rank_tile *tile = a.tiles + blockIdx.y;
    const uint32_t column = (blockIdx.x * UP_THREADS + threadIdx.x) * 2;
    struct tile m = tile_at(a, tile->n_rows, 0);
    float2 gate[ROWS], up[ROWS];

    if (m.n_rows == 0) return;
    if (threadIdx.x < m.n_rows) rows[threadIdx.x] = tile->rows[threadIdx.x];
    m.rows = rows;
    __syncthreads();
    add_both<BYTES>(a, tile, m, column, gate, up);
    if (column >= m.n_out) return;
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        if (r < m.n_rows) {
            const uint64_t at = (uint64_t)m.rows[r] * m.n_out + column;
            const float2 v =
                make_float2(__fmul_rn(activate(act, gate[r].x), up[r].x), __fmul_rn(activate(act, gate[r].y), up[r].y));

            *(float2 *)(out + at) = v;
            if (out16) *(uint32_t *)(out16 + at) = float_bf16(v.x) | (uint32_t)float_bf16(v.y) << 16;
        }
}

/* ---- launches ---- */

typedef void rows_kernel(const struct cuda_low_rank_rows_args);

/* What pairs are of, where all are vectors. */
static uint32_t kinds_of(const struct cuda_low_rank_rows_args *a)
{
    for (uint32_t i = 0; i < a->n_outs; i++)
        if (!are_vectors(a->x, a->n_in, a->n_in, a->outs[i], a->n_out[i], a->n_out[i])) return CUDA_LOW_RANK_ANY;
    return a->kinds;
}

/* One of three, for pairs of halves, of floats, or any. */
static rows_kernel *kernel_for(const struct cuda_low_rank_rows_args *a, rows_kernel *const (&of)[3])
{
    const uint32_t kinds = kinds_of(a);

    return of[kinds == CUDA_LOW_RANK_HALVES ? 0 : kinds == CUDA_LOW_RANK_FLOATS ? 1 : 2];
}

int cuda_low_rank_t(const struct cuda_launch *l, const struct cuda_low_rank_rows_args *a)
{
    const uint32_t n = l->compute == 90 ? BLOCKS : 1;

    return (int)launch_cluster(l,
                               kernel_for(a, {low_rank_t<CUDA_LOW_RANK_HALVES>, low_rank_t<CUDA_LOW_RANK_FLOATS>,
                                              low_rank_t<CUDA_LOW_RANK_ANY>}),
                               dim3(n, a->n_outs, a->n_rows), THREADS, 0, dim3(n), *a);
}

int cuda_low_rank_rows(const struct cuda_launch *l, const struct cuda_low_rank_rows_args *a)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < a->n_outs; i++) most = most > a->n_out[i] ? most : a->n_out[i];
    return (int)launch_chained(l,
                               kernel_for(a, {low_rank_up<CUDA_LOW_RANK_HALVES>, low_rank_up<CUDA_LOW_RANK_FLOATS>,
                                              low_rank_up<CUDA_LOW_RANK_ANY>}),
                               dim3(ceil_div(most, COLUMNS), a->n_outs, a->n_rows), UP_THREADS, 0, *a);
}

int cuda_low_rank_glu(const struct cuda_launch *l, const struct cuda_low_rank_rows_args *a, int act, float *out,
                      uint16_t *out16)
{
    const dim3 grid(ceil_div(a->n_out[0], 2 * UP_THREADS), a->n_rows);
    const uint32_t kinds = kinds_of(a);

    if (a->n_outs != 2 || a->n_out[0] != a->n_out[1] || kinds == CUDA_LOW_RANK_ANY || !out)
        return (int)cudaErrorNotSupported;
    return (int)(kinds == CUDA_LOW_RANK_HALVES
                     ? launch_chained(l, low_rank_glu<2>, grid, UP_THREADS, 0, *a, act, out, out16)
                     : launch_chained(l, low_rank_glu<4>, grid, UP_THREADS, 0, *a, act, out, out16));
}
