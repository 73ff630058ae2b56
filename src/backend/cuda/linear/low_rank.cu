/* backend/cuda/linear/low_rank.cu - adapters: t = x A^T of all terms' rows, then out += (scale * t) B.
 *
 *     t     a warp has one row and up to CUDA_LOW_RANK_PART rows of A: float i of x belongs to lane i / 4 % 32, its sum i % 4; the four
 *           sums pairwise, then the lanes' in a tree (shuffles)
 *     out   a thread has one column of up to UP_ROWS rows: one fma after the other, over the ranks of its terms in order
 *
 * What is added in which order follows from the shapes alone: a row has its bits whoever shares the launch.
 * In recorded steps (low_rank_rows) each row finds its terms in tables, and the grids know rows and shapes alone: blocks without
 * any work end at once. The sums are the same code.
 * Bound: latency with few rows; A and B are read once for 1 and UP_ROWS rows, else they come from L2.
 */
#include "backend/cuda/launch_chained.cuh"

#define DOWN_WARPS 4u /* of a block */
#define UP_COLUMNS 128u
#define UP_ROWS    4u
#define FULL_WARP  0xffffffffu

static __device__ __forceinline__ float stored_value(int type, const void *p, uint64_t i)
{
    if (type == CUDA_STORED_F32) return ((const float *)p)[i];
    return type == CUDA_STORED_F16 ? half_float(((const uint16_t *)p)[i]) : bf16_float(((const uint16_t *)p)[i]);
}

/* Four from i on, i a multiple of 4; those from n on are 0. */
static __device__ __forceinline__ float4 stored_four(int type, const void *p, uint64_t at, uint32_t i, uint32_t n)
{
    float4 v = {0, 0, 0, 0};

    if (i < n) v.x = stored_value(type, p, at + i);
    if (i + 1 < n) v.y = stored_value(type, p, at + i + 1);
    if (i + 2 < n) v.z = stored_value(type, p, at + i + 2);
    if (i + 3 < n) v.w = stored_value(type, p, at + i + 3);
    return v;
}

static __device__ __forceinline__ float4 stored_four_whole(int type, const void *p, uint64_t i)
{
    uint2 v;

    if (type == CUDA_STORED_F32) return *(const float4 *)((const float *)p + i);
    v = *(const uint2 *)((const uint16_t *)p + i);
    if (type == CUDA_STORED_F16)
        return make_float4(half_float((uint16_t)v.x), half_float((uint16_t)(v.x >> 16)), half_float((uint16_t)v.y),
                           half_float((uint16_t)(v.y >> 16)));
    return make_float4(bf16_float((uint16_t)v.x), bf16_float((uint16_t)(v.x >> 16)), bf16_float((uint16_t)v.y),
                       bf16_float((uint16_t)(v.y >> 16)));
}

static __device__ __forceinline__ void add_four(float4 *sum, float4 a, float4 b)
{
    sum->x = fmaf(a.x, b.x, sum->x);
    sum->y = fmaf(a.y, b.y, sum->y);
    sum->z = fmaf(a.z, b.z, sum->z);
    sum->w = fmaf(a.w, b.w, sum->w);
}

/* A warp: t[j] = scale * (row j0 + j of A times x), j < CUDA_LOW_RANK_PART as far as there are ranks. whole: rows of x and A
 * begin at multiples of four. */
static __device__ __forceinline__ void down_piece(const float *x, uint32_t n_in, bool whole, const void *matrix,
                                                  int type, uint32_t rank, uint32_t j0, float scale, float *t)
{
    const uint32_t lane = threadIdx.x % 32, n = min(CUDA_LOW_RANK_PART, rank - j0);
    float4 sums[CUDA_LOW_RANK_PART] = {};

#pragma unroll 4
    for (uint32_t i = 4 * lane; i < n_in; i += 128) {
        const float4 v = whole ? *(const float4 *)(x + i) : stored_four(CUDA_STORED_F32, x, 0, i, n_in);

#pragma unroll
        for (uint32_t j = 0; j < CUDA_LOW_RANK_PART; j++) {
            const uint64_t at = (uint64_t)(j0 + min(j, n - 1)) * n_in;

            add_four(&sums[j], v,
                     whole ? stored_four_whole(type, matrix, at + i) : stored_four(type, matrix, at, i, n_in));
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < CUDA_LOW_RANK_PART; j++) {
        float sum = (sums[j].x + sums[j].y) + (sums[j].z + sums[j].w);

#pragma unroll
        for (uint32_t d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, d);
        if (lane == 0 && j < n) t[j] = __fmul_rn(sum, scale);
    }
}

/* blockIdx.y: the term; x: DOWN_WARPS pieces of it, each a row and CUDA_LOW_RANK_PART ranks. */
static __global__ void __launch_bounds__(DOWN_WARPS * 32) low_rank_down(struct cuda_low_rank_args a)
{
    const struct cuda_low_rank_term m = a.terms[blockIdx.y];
    const uint32_t parts = (m.rank + CUDA_LOW_RANK_PART - 1) / CUDA_LOW_RANK_PART;
    const uint32_t piece = blockIdx.x * DOWN_WARPS + threadIdx.x / 32, row = piece / parts;
    const uint32_t j0 = piece % parts * CUDA_LOW_RANK_PART;

    if (row >= m.n_rows) return;
    down_piece(a.x + (uint64_t)a.rows[m.first_row + row] * a.x_stride, m.n_in, m.n_in % 4 == 0 && a.x_stride % 4 == 0,
               m.a, m.a_type, m.rank, j0, m.scale, a.t + m.t + (uint64_t)row * m.rank + j0);
}

/* blockIdx.z: the chain of terms of the same rows and output; y: UP_ROWS of its rows; x: UP_COLUMNS of its columns. */
static __global__ void __launch_bounds__(UP_COLUMNS) low_rank_up(struct cuda_low_rank_args a)
{
    const struct cuda_low_rank_term *m = a.terms + a.chains[blockIdx.z], *end = a.terms + a.chains[blockIdx.z + 1];
    const uint32_t column = blockIdx.x * UP_COLUMNS + threadIdx.x, row0 = blockIdx.y * UP_ROWS;
    const uint32_t n = row0 < m->n_rows ? min(UP_ROWS, m->n_rows - row0) : 0, n_out = m->n_out;
    float *out[UP_ROWS], sums[UP_ROWS];

    if (n == 0 || column >= n_out) return;
#pragma unroll
    for (uint32_t r = 0; r < UP_ROWS; r++) {
        out[r] = m->out + (uint64_t)a.rows[m->first_row + row0 + min(r, n - 1)] * m->out_stride + column;
        sums[r] = *out[r];
    }
    for (; m < end; m++) {
        const uint32_t rank = m->rank;
        const float *t = a.t + m->t + (uint64_t)row0 * rank;
        const int type = m->b_type;
        const void *b = m->b;

#pragma unroll 4
        for (uint32_t j = 0; j < rank; j++) {
            const float v = stored_value(type, b, (uint64_t)j * n_out + column);

#pragma unroll
            for (uint32_t r = 0; r < UP_ROWS; r++) sums[r] = fmaf(t[min(r, n - 1) * rank + j], v, sums[r]);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < UP_ROWS; r++)
        if (r < n) *out[r] = sums[r];
}

/* Where a row's values for one output begin. */
static __device__ __forceinline__ float *row_t(const struct cuda_low_rank_rows_args &a, uint32_t row, uint32_t out)
{
    return a.t + ((uint64_t)row * a.n_outs + out) * a.most_ranks;
}

/* blockIdx.x: the row; z: the output; y: DOWN_WARPS pieces of its terms, and every gridDim.y-th after those. */
static __global__ void __launch_bounds__(DOWN_WARPS * 32) low_rank_rows_down(struct cuda_low_rank_rows_args a)
{
    const struct cuda_low_rank_row *row = a.rows + blockIdx.x;
    const uint32_t n_uses = row->n_uses, step = gridDim.y * DOWN_WARPS;
    const float *x = a.x + (uint64_t)blockIdx.x * a.n_in;
    float *t = row_t(a, blockIdx.x, blockIdx.z);
    uint32_t piece = blockIdx.y * DOWN_WARPS + threadIdx.x / 32;

    for (uint32_t k = 0; k < n_uses; k++) {
        const struct cuda_low_rank_use use = row->uses[k];
        const struct cuda_low_rank_pair m = use.table[a.first + blockIdx.z];
        const uint32_t parts = (m.rank + CUDA_LOW_RANK_PART - 1) / CUDA_LOW_RANK_PART;

        if (!m.a) continue;
        for (; piece < parts; piece += step) {
            const uint32_t j0 = piece * CUDA_LOW_RANK_PART;

            down_piece(x, a.n_in, a.n_in % 4 == 0, m.a, m.a_type, m.rank, j0, __fmul_rn(m.scale, use.scale), t + j0);
        }
        piece -= parts;
        t += m.rank;
    }
}

/* blockIdx.y: the row; z: the output; x: UP_COLUMNS of its columns. */
static __global__ void __launch_bounds__(UP_COLUMNS) low_rank_rows_up(struct cuda_low_rank_rows_args a)
{
    const struct cuda_low_rank_row *row = a.rows + blockIdx.y;
    const uint32_t n_uses = row->n_uses, n_out = a.n_out[blockIdx.z], column = blockIdx.x * UP_COLUMNS + threadIdx.x;
    const float *t = row_t(a, blockIdx.y, blockIdx.z);
    float *out = a.outs[blockIdx.z] + (uint64_t)blockIdx.y * n_out + column, sum;

    if (n_uses == 0 || column >= n_out) return;
    sum = *out;
    for (uint32_t k = 0; k < n_uses; k++) {
        const struct cuda_low_rank_pair m = row->uses[k].table[a.first + blockIdx.z];

        if (!m.a) continue;
#pragma unroll 8
        for (uint32_t j = 0; j < m.rank; j++)
            sum = fmaf(t[j], stored_value(m.b_type, m.b, (uint64_t)j * n_out + column), sum);
        t += m.rank;
    }
    *out = sum;
}

int cuda_low_rank_rows(const struct cuda_launch *l, const struct cuda_low_rank_rows_args *a)
{
    const uint32_t widest = max(a->n_out[0], max(a->n_out[1], a->n_out[2]));
    const dim3 down(a->n_rows, max(a->most_ranks / (CUDA_LOW_RANK_PART * DOWN_WARPS), 1u), a->n_outs);
    const dim3 up((widest + UP_COLUMNS - 1) / UP_COLUMNS, a->n_rows, a->n_outs);

    low_rank_rows_down<<<down, DOWN_WARPS * 32, 0, stream_of(l)>>>(*a);
    low_rank_rows_up<<<up, UP_COLUMNS, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}

int cuda_low_rank(const struct cuda_launch *l, const struct cuda_low_rank_args *a)
{
    const uint32_t pieces = (a->most_pieces + DOWN_WARPS - 1) / DOWN_WARPS;
    const dim3 down(pieces, a->n_terms);
    const dim3 up((a->widest + UP_COLUMNS - 1) / UP_COLUMNS, (a->most_rows + UP_ROWS - 1) / UP_ROWS, a->n_chains);

    low_rank_down<<<down, DOWN_WARPS * 32, 0, stream_of(l)>>>(*a);
    low_rank_up<<<up, UP_COLUMNS, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}
