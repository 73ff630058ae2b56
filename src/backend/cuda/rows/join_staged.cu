/* backend/cuda/rows/join_staged.cu - ranks' columns to all ranks through host memory, where devices do not reach each other's.
 *
 *     rank 0, block b   a piece of its share of rank 0's columns --> its stage;  flag b of all;  waits for their flags b
 *     rank 1, block b   likewise;  then every block b reads the others' pieces from their stages into its rank's out
 *
 * A rank's columns, row behind row, are dealt to the blocks piece by piece; block b has a place of its own in the stage, for two
 * pieces in turns: who writes the third has seen the flags of the second, which are raised when the first was read. So neither
 * the shapes nor the grids of joins that follow each other matter. Flags count a block's rounds, as in join_ranks.cu; bytes that
 * go over the bus: each rank's columns out once, the others' in once. Small ones as letters (join_letters.cu).
 */
#include "backend/cuda/rows/join_waits.cuh"

#define THREADS     512u
#define LEAST_PIECE 4096u

/* Read past the caches: somebody else has written it since. */
static __device__ __forceinline__ uint4 read_fresh(const uint4 *p)
{
    return __ldcv(p);
}
static __device__ __forceinline__ uint32_t read_fresh(const uint32_t *p)
{
    return __ldcv(p);
}
static __device__ __forceinline__ uint16_t read_fresh(const uint16_t *p)
{
    return __ldcv(p);
}

/* Some items of this rank's columns to the stage, and to where they belong in its own out, if they are not there already. */
template <typename V>
static __device__ __forceinline__ void show_piece(const struct cuda_join_args &a, uint64_t item0, uint32_t n_items,
                                                  V *stage)
{
    const uint32_t per = sizeof(V) / a.value_bytes, n = a.n / per;
    const uint64_t n_all = (uint64_t)n * a.n_rows;
    const V *own = (const V *)a.own;
    V *out = (V *)a.outs[a.rank];

#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n_items; i += THREADS) {
        const uint64_t item = item0 + i;

        if (item >= n_all) break;
        const uint64_t row = item / n, from = row * (a.own_stride / per) + item % n,
                       to = row * (a.width / per) + a.first / per + item % n;
        const V v = own[from];

        stage[i] = v;
        if (out + to != own + from) out[to] = v;
    }
}

/* Rank p's items from its stage. */
template <typename V>
static __device__ __forceinline__ void take_piece(const struct cuda_join_args &a, uint32_t p, uint64_t item0,
                                                  uint32_t n_items, const V *stage)
{
    const uint32_t per = sizeof(V) / a.value_bytes, first = (p ? a.ends[p - 1] : 0) / per, n = a.ends[p] / per - first;
    const uint64_t n_all = (uint64_t)n * a.n_rows;
    V *out = (V *)a.outs[a.rank];

#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n_items; i += THREADS) {
        const uint64_t item = item0 + i;

        if (item >= n_all) break;
        out[item / n * (a.width / per) + first + item % n] = read_fresh(stage + i);
    }
}

/* piece: bytes, the same for all ranks, as is the grid. */
template <typename V>
static __global__ void __launch_bounds__(THREADS)
    join_staged(const __grid_constant__ struct cuda_join_args a, uint32_t piece)
{
    const uint64_t most = (uint64_t)a.n_rows * a.most * a.value_bytes;
    const uint32_t p = threadIdx.x, n_items = piece / sizeof(V);
    uint32_t round;

    dependents_launch();
    dependency_wait();
    round = a.counts->rounds[blockIdx.x];
    for (uint64_t at = (uint64_t)blockIdx.x * piece; at < most; at += (uint64_t)gridDim.x * piece) {
        round++;
        show_piece(a, at / sizeof(V), n_items, (V *)a.stages[a.rank]->bytes[blockIdx.x][round & 1]);
        __syncthreads();
        if (p < a.n_ranks && p != a.rank) {
            __threadfence_system(); /* the block's stores before the flag */
            release_flag(a.joints[p]->flags + a.rank * CUDA_JOIN_BLOCKS + blockIdx.x, round);
            wait_for(a, p, round);
        }
        __syncthreads();
        for (uint32_t r = 0; r < a.n_ranks; r++)
            if (r != a.rank)
                take_piece(a, r, at / sizeof(V), n_items, (const V *)a.stages[r]->bytes[blockIdx.x][round & 1]);
    }
    __syncthreads(); /* all have read rounds */
    if (p == 0) a.counts->rounds[blockIdx.x] = round;
}

int cuda_join_staged_load(void)
{
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, join_staged<uint4>);

    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, join_staged<uint32_t>);
    return (int)(e == cudaSuccess ? cudaFuncGetAttributes(&a, join_staged<uint16_t>) : e);
}

int cuda_join_staged(const struct cuda_launch *l, const struct cuda_join_args *a)
{
    const uint64_t most = (uint64_t)a->n_rows * a->most * a->value_bytes;
    const uint32_t blocks = a->most_blocks < CUDA_STAGED_BLOCKS ? a->most_blocks : CUDA_STAGED_BLOCKS;
    const uint64_t share = ((most + blocks - 1) / blocks + 15) / 16 * 16;
    const uint32_t piece = share < LEAST_PIECE         ? LEAST_PIECE
                           : share > CUDA_STAGED_BYTES ? CUDA_STAGED_BYTES
                                                       : (uint32_t)share;
    const uint32_t n = ceil_div(most, piece);
    const dim3 grid(n < 1 ? 1 : n < blocks ? n : blocks), block(THREADS);

    if (fits_letters(a)) return cuda_join_letters(l, a);
    if (is_whole_for_all(a)) return (int)launch_chained(l, join_staged<uint4>, grid, block, 0, *a, piece);
    if (a->value_bytes == 4) return (int)launch_chained(l, join_staged<uint32_t>, grid, block, 0, *a, piece);
    return (int)launch_chained(l, join_staged<uint16_t>, grid, block, 0, *a, piece);
}
