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
 * What is added in which order follows from the shapes alone: a row has its bits whoever shares the launch. Recorded steps have
 * kernels of their own (low_rank_rows.cu), and many rows of one adapter (low_rank_many.cu), to the same bits.
 * Where there are no clusters (before sm_90) one block does all parts. Pairs of other types in one launch, or widths that are not
 * whole vectors, have a kernel that does all (together they need more registers than there are), to the same bits.
 */
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear/low_rank_many.h"
#include "backend/cuda/linear/low_rank_tile.cuh"

struct tile_room {
    struct part_room parts;
    float t[ROWS][PASS];
    uint32_t rows[ROWS];
};

/* ---- out ---- */

/* A block's columns of out. */
static __device__ __forceinline__ uint32_t up_width(uint32_t n_out)
{
    return (n_out + 4 * gridDim.x - 1) / (4 * gridDim.x) * 4;
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

static __device__ __forceinline__ void gather_here(struct tile_room &s, uint32_t turn, uint32_t n_rows, float scale)
{
    gather(s.parts, turn, n_rows, scale, [&](uint32_t r, uint32_t j, float4 v) { *(float4 *)&s.t[r][j] = v; });
}

/* One pair, of vectors. */
template <uint32_t BYTES>
static __device__ __forceinline__ void add_pair(const struct tile &m, struct tile_room &s,
                                                const struct cuda_low_rank_pair &pair, uint32_t *turn)
{
    const uint32_t width = up_width(m.n_out), from = blockIdx.x * width, to = min(from + width, m.n_out);
    const uint32_t column = from + 4 * threadIdx.x;

#pragma unroll 1
    for (uint32_t j0 = 0; j0 < pair.rank; j0 += PASS, *turn ^= 1) {
        const struct pass p = {pair, j0, min(PASS, pair.rank - j0)};

        make_parts<BYTES>(p, m, false, s.parts.p[*turn]);
        if (BYTES == 2) {
            struct stored<BYTES, 4> b[PASS];
            float sums[ROWS][4];

            if (column < to) {
                load_b<BYTES, PASS>(p, m, 0, column, b);
                load_out(m, column, sums);
            }
            meet();
            gather_here(s, *turn, m.n_rows, pair.scale);
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
            gather_here(s, *turn, m.n_rows, pair.scale);
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

        make_parts<4>(p, m, true, s.parts.p[*turn]);
        meet();
        gather_here(s, *turn, m.n_rows, pair.scale);
        __syncthreads();
        up_plain(p, m, s.t);
        __syncthreads(); /* a pair of vectors has these columns in other threads */
    }
}

/* The n pairs that pair_at gives, one after the other; KINDS: what they may be of. */
template <uint32_t KINDS, typename PAIR_AT>
static __device__ __forceinline__ void add_tile(struct tile m, const uint32_t *rows, struct tile_room &s,
                                                uint32_t n_pairs, PAIR_AT pair_at)
{
    uint32_t turn = 0;

    if (threadIdx.x < m.n_rows) s.rows[threadIdx.x] = rows[threadIdx.x];
    m.rows = s.rows;
    __syncthreads();
#pragma unroll 1
    for (uint32_t k = 0; k < n_pairs; k++) {
        const struct cuda_low_rank_pair pair = pair_at(k);
        const bool is_plain = KINDS == CUDA_LOW_RANK_ANY && !is_whole(m, pair);

        ask_for(pair, m);
        if (is_plain)
            add_pair_plain(m, s, pair, &turn);
        else if (KINDS == CUDA_LOW_RANK_FLOATS || (KINDS == CUDA_LOW_RANK_ANY && pair.a_type == CUDA_STORED_F32))
            add_pair<4>(m, s, pair, &turn);
        else
            add_pair<2>(m, s, pair, &turn);
    }
    meet(); /* others may still read what this block has */
}

/* blockIdx.x: the block of a cluster; y: the chain of terms of the same rows and output; z: ROWS of its rows. */
template <uint32_t KINDS> static __global__ void __launch_bounds__(THREADS, 2) low_rank(struct cuda_low_rank_args a)
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

int cuda_low_rank(const struct cuda_launch *l, const struct cuda_low_rank_args *a,
                  const struct cuda_low_rank_term *host)
{
    const int many = low_rank_many_launch(l, a, host);
    const uint32_t n = l->compute == 90 ? BLOCKS : 1;
    uint32_t kinds = a->kinds;

    if (many != (int)cudaErrorNotSupported) return many;

    for (uint32_t i = 0; i < a->n_terms; i++)
        if (!are_vectors(a->x, host[i].n_in, a->x_stride, host[i].out, host[i].n_out, host[i].out_stride))
            kinds = CUDA_LOW_RANK_ANY;
    return (int)launch_cluster(l,
                               kinds == CUDA_LOW_RANK_HALVES   ? low_rank<CUDA_LOW_RANK_HALVES>
                               : kinds == CUDA_LOW_RANK_FLOATS ? low_rank<CUDA_LOW_RANK_FLOATS>
                                                               : low_rank<CUDA_LOW_RANK_ANY>,
                               dim3(n, a->n_chains, ceil_div(a->most_rows, ROWS)), THREADS, 0, dim3(n), *a);
}
