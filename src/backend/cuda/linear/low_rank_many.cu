/* backend/cuda/linear/low_rank_many.cu - adapters of many rows that have the same: prompts, and the passes of training.
 *
 * To the bits of low_rank.cu, which with four rows a cluster reads A and B once for four rows and waits more than it computes.
 *
 *     down   a block has one of the 2 * BLOCKS parts of A's columns, which its warps share in the L1 cache; a warp eight rows, and four
 *            ranks at a time, a lane eight of every 256 columns. Lanes are added as there; the parts' sums go to scratch
 *     t      a thread a row and a rank: parts are added as there, times scale
 *     up     a thread has four columns and their B of PASS ranks in registers, and goes through UP_ROWS rows
 *
 * Bound: memory; x is read, out is read and written once (8B, 4,096 rows: 67 MB of x, 134 to 403 of out). */
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear/low_rank_many.h"
#include "backend/cuda/linear/low_rank_values.cuh"

#define THREADS   256u
#define WARPS     (THREADS / 32)
#define PARTS     (HALVES * BLOCKS)
#define SOME      8u /* rows of a warp */
#define DOWN_ROWS (SOME * WARPS)
#define UP_ROWS   32u

struct many_job {
    struct cuda_low_rank_args a;
    float *t, *parts;     /* [n_terms][n_rows, rank], [n_terms][PARTS][n_rows, rank] */
    uint64_t term_floats; /* of t, of a term, at most */
};

/* sums[4 * r + k] of SOME rows and four ranks over one part of the columns, this lane's. */
template <uint32_t BYTES>
static __device__ __forceinline__ void part_sums(const struct cuda_low_rank_pair &pair, uint32_t j, uint32_t n_in,
                                                 const float *const (&x)[SOME], uint32_t from, uint32_t to,
                                                 float (&sums)[4 * SOME])
{
#pragma unroll 1
    for (uint32_t i = from + 8 * (threadIdx.x % 32); i < to; i += 256) {
        struct stored<BYTES, 8> a[4];
        float v[4][8];

#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            a[k] = stored_at<BYTES, 8>(pair.a, (uint64_t)min(j + k, pair.rank - 1) * n_in + i);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) floats_of<BYTES, 8>(pair.a_type, a[k], v[k]);
#pragma unroll
        for (uint32_t r = 0; r < SOME; r++) {
            float y[8];

            floats_of<4, 8>(CUDA_STORED_F32, stored_at<4, 8>(x[r], i), y);
#pragma unroll
            for (uint32_t k = 0; k < 4; k++)
#pragma unroll
                for (uint32_t e = 0; e < 8; e++) sums[4 * r + k] = fmaf(v[k][e], y[e], sums[4 * r + k]);
        }
    }
}

/* blockIdx.x: the part of each term; y: DOWN_ROWS of its rows. */
template <uint32_t BYTES> static __global__ void __launch_bounds__(THREADS, 2) down_many(struct many_job job)
{
    const uint32_t term = blockIdx.x % job.a.n_terms, part = blockIdx.x / job.a.n_terms;
    const uint32_t lane = threadIdx.x % 32, row0 = blockIdx.y * DOWN_ROWS + threadIdx.x / 32 * SOME;

    dependency_wait();
    const struct cuda_low_rank_term m = job.a.terms[term];
    const uint32_t n_rows = min(SOME, m.n_rows - min(row0, m.n_rows)), width = down_width(m.n_in);
    const uint32_t from = part * width, to = min(from + width, m.n_in);
    const float *x[SOME];

    if (n_rows == 0) return;
    float *const sum = job.parts + (term * PARTS + part) * job.term_floats + (uint64_t)(row0 + lane / 4) * m.pair.rank;
#pragma unroll
    for (uint32_t r = 0; r < SOME; r++)
        x[r] = job.a.x + (uint64_t)job.a.rows[m.first_row + row0 + min(r, n_rows - 1)] * job.a.x_stride;
#pragma unroll 1
    for (uint32_t j = 0; j < m.pair.rank; j += 4) {
        float sums[4 * SOME] = {};

        static_assert(4 * SOME == 32, "a lane has one of the sums");
        part_sums<BYTES>(m.pair, j, m.n_in, x, from, to, sums);
        sum_lanes<4 * SOME>(sums);
        if (lane / 4 < n_rows && j + lane % 4 < m.pair.rank) sum[j + lane % 4] = sums[0];
    }
}

/* blockIdx.x: THREADS of a term's numbers; y: the term. */
static __global__ void __launch_bounds__(THREADS) add_many(struct many_job job)
{
    dependency_wait();
    const struct cuda_low_rank_term m = job.a.terms[blockIdx.y];
    const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const float *parts = job.parts + blockIdx.y * PARTS * job.term_floats + i;
    float v[PARTS];

    if (i >= (uint64_t)m.n_rows * m.pair.rank) return;
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++) v[p] = parts[p * job.term_floats];
#pragma unroll
    for (uint32_t d = 1; d < PARTS; d *= 2)
#pragma unroll
        for (uint32_t p = 0; p < PARTS; p += 2 * d) v[p] += v[p + d];
    job.t[blockIdx.y * job.term_floats + i] = __fmul_rn(v[0], m.pair.scale);
}

/* A row's four columns: ranks j0 .. j0 + n - 1 of B are in b. */
template <uint32_t BYTES>
static __device__ __forceinline__ void add_row(float *out, int type, const struct stored<BYTES, 4> (&b)[PASS],
                                               const float (&t)[PASS], uint32_t n)
{
    float sums[4], v[4];

    floats_of<4, 4>(CUDA_STORED_F32, stored_at<4, 4>(out, 0), sums);
#pragma unroll
    for (uint32_t k = 0; k < PASS; k++)
        if (k < n) {
            floats_of<BYTES, 4>(type, b[k], v);
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) sums[e] = fmaf(t[k], v[e], sums[e]);
        }
    *(float4 *)out = make_float4(sums[0], sums[1], sums[2], sums[3]);
}

/* blockIdx.x: 4 * THREADS columns; y: UP_ROWS rows; z: the term. */
template <uint32_t BYTES> static __global__ void __launch_bounds__(THREADS, 2) up_many(struct many_job job)
{
    __shared__ float t[UP_ROWS][PASS];

    dependency_wait();
    const struct cuda_low_rank_term m = job.a.terms[blockIdx.z];
    const uint32_t row0 = blockIdx.y * UP_ROWS, n_rows = min(UP_ROWS, m.n_rows - min(row0, m.n_rows));
    const uint32_t column = (blockIdx.x * THREADS + threadIdx.x) * 4;

    if (n_rows == 0 || blockIdx.x * THREADS * 4 >= m.n_out) return;
#pragma unroll 1
    for (uint32_t j0 = 0; j0 < m.pair.rank; j0 += PASS) {
        const uint32_t n = min(PASS, m.pair.rank - j0);
        struct stored<BYTES, 4> b[PASS];

        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n_rows * PASS; i += THREADS)
            t[i / PASS][i % PASS] = job.t[blockIdx.z * job.term_floats + (uint64_t)(row0 + i / PASS) * m.pair.rank +
                                          min(j0 + i % PASS, m.pair.rank - 1)];
        __syncthreads();
        if (column >= m.n_out) continue;
#pragma unroll
        for (uint32_t k = 0; k < PASS; k++)
            b[k] = stored_at<BYTES, 4>(m.pair.b, (uint64_t)min(j0 + k, m.pair.rank - 1) * m.n_out + column);
#pragma unroll 4
        for (uint32_t r = 0; r < n_rows; r++)
            add_row<BYTES>(m.out + (uint64_t)job.a.rows[m.first_row + row0 + r] * m.out_stride + column, m.pair.b_type,
                           b, t[r], n);
    }
}

template <uint32_t BYTES>
static cudaError_t launch_many(const struct cuda_launch *l, const struct many_job &job, uint32_t most_out)
{
    const uint32_t n = job.a.n_terms, rows = job.a.most_rows;
    cudaError_t e = launch_chained(l, down_many<BYTES>, dim3(n * PARTS, ceil_div(rows, DOWN_ROWS)), THREADS, 0, job);

    if (e == cudaSuccess) e = launch_chained(l, add_many, dim3(ceil_div(job.term_floats, THREADS), n), THREADS, 0, job);
    if (e != cudaSuccess) return e;
    return launch_chained(l, up_many<BYTES>, dim3(ceil_div(most_out, 4 * THREADS), ceil_div(rows, UP_ROWS), n), THREADS,
                          0, job);
}

int low_rank_many_launch(const struct cuda_launch *l, const struct cuda_low_rank_args *a,
                         const struct cuda_low_rank_term *host)
{
    struct many_job job = {*a, (float *)l->scratch, NULL, 0};
    uint32_t most_out = 0;

    if (a->n_chains != a->n_terms || a->most_rows < LOW_RANK_MANY || a->kinds == CUDA_LOW_RANK_ANY)
        return (int)cudaErrorNotSupported;
    for (uint32_t i = 0; i < a->n_terms; i++) {
        const uint64_t floats = (uint64_t)host[i].n_rows * host[i].pair.rank;

        if (!are_vectors(a->x, host[i].n_in, a->x_stride, host[i].out, host[i].n_out, host[i].out_stride))
            return (int)cudaErrorNotSupported;
        if (host[i].n_out > most_out) most_out = host[i].n_out;
        if (floats > job.term_floats) job.term_floats = floats;
    }
    job.parts = job.t + a->n_terms * job.term_floats;
    if (job.term_floats * a->n_terms * (1 + PARTS) * sizeof(float) > l->scratch_bytes)
        return (int)cudaErrorNotSupported;
    return (int)(a->kinds == CUDA_LOW_RANK_FLOATS ? launch_many<4>(l, job, most_out)
                                                  : launch_many<2>(l, job, most_out));
}
