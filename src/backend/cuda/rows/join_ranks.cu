/* backend/cuda/rows/join_ranks.cu - ranks' columns to all ranks, over peer memory, inside of a recorded step.
 *
 * Large ones, straight to where they belong:
 *     rank 0, block b   its share of rank 0's columns --> out of ranks 0, 1, ..;  flag b at each;  waits for their flags b
 *     rank 1, block b   its share of rank 1's columns --> likewise
 * Block b of a rank waits for blocks b of the others alone, so that blocks need not be on the device at the same time; after
 * the kernel all of out is there. A flag is the number of the block's rounds, which only grows: nothing is reset between
 * steps, and a fast rank is one round ahead at most. Stores are plain, of 16 bytes where everything is aligned, and released
 * to the system once a block (PTX ISA, memory consistency model, scopes).
 *
 * Small ones as letters (join_letters.cu).
 *
 * A rank that waits looks at the host's words now and then: somebody may have left.
 */
#include "backend/cuda/rows/join_waits.cuh"

#define THREADS     512u
#define BLOCK_BYTES 32768u /* of a rank's columns: less is not worth a second block */

/* This rank's columns to every out; where they lie in its own already, to the others'. Some at once, so that loads and stores
 * are under way together. */
template <typename V> static __device__ __forceinline__ void push(const struct cuda_join_args &a)
{
    enum { AT_ONCE = 4 };
    const uint32_t per = sizeof(V) / a.value_bytes, n = a.n / per, step = gridDim.x * THREADS;
    const uint64_t n_all = (uint64_t)n * a.n_rows, width = a.width / per, own_stride = a.own_stride / per;
    const V *own = (const V *)a.own;

    for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < n_all; i += AT_ONCE * step) {
        uint64_t from[AT_ONCE], to[AT_ONCE];
        V v[AT_ONCE];

#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint64_t item = i + k * step;
            const uint32_t row = (uint32_t)(item / n), at = (uint32_t)(item % n);

            from[k] = row * own_stride + at;
            to[k] = row * width + a.first / per + at;
            if (item < n_all) v[k] = own[from[k]];
        }
        for (uint32_t p = 0; p < a.n_ranks; p++) {
            V *out = (V *)a.outs[p];

#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++)
                if (i + k * step < n_all && out + to[k] != own + from[k]) out[to[k]] = v[k];
        }
    }
}

template <typename V>
static __global__ void __launch_bounds__(THREADS) join_ranks(const __grid_constant__ struct cuda_join_args a)
{
    uint32_t round;

    dependents_launch();
    dependency_wait();
    round = a.counts->rounds[blockIdx.x] + 1;
    push<V>(a);
    __syncthreads();
    meet(a, round);
}

/* The columns were written by kernels before this one, which have ended. */
static __global__ void __launch_bounds__(32) join_flags(const __grid_constant__ struct cuda_join_args a)
{
    uint32_t round;

    dependents_launch();
    dependency_wait();
    round = a.counts->rounds[0] + 1;
    __syncwarp(); /* all have read it */
    meet(a, round);
}

int cuda_join_load(void)
{
    cudaFuncAttributes a;
    int e = (int)cudaFuncGetAttributes(&a, join_ranks<uint4>);

    if (!e) e = (int)cudaFuncGetAttributes(&a, join_flags);

    if (!e) e = (int)cudaFuncGetAttributes(&a, join_ranks<uint32_t>);
    if (!e) e = (int)cudaFuncGetAttributes(&a, join_ranks<uint16_t>);
    if (!e) e = cuda_join_letters_load();
    if (!e) e = cuda_join_staged_load();
    if (!e) e = cuda_join_norm_load();
    return e ? e : cuda_join_gathered_load();
}

int cuda_join(const struct cuda_launch *l, const struct cuda_join_args *a)
{
    const uint32_t n = ceil_div((uint64_t)a->n_rows * a->most * a->value_bytes, BLOCK_BYTES);
    const dim3 grid(n < 1 ? 1 : n < a->most_blocks ? n : a->most_blocks), block(THREADS);

    if (fits_letters(a)) return cuda_join_letters(l, a);
    if (is_whole(a, sizeof(uint4))) return (int)launch_chained(l, join_ranks<uint4>, grid, block, 0, *a);
    if (a->value_bytes == 4) return (int)launch_chained(l, join_ranks<uint32_t>, grid, block, 0, *a);
    return (int)launch_chained(l, join_ranks<uint16_t>, grid, block, 0, *a);
}

int cuda_join_flags(const struct cuda_launch *l, const struct cuda_join_args *a)
{
    return (int)launch_chained(l, join_flags, dim3(1), dim3(32), 0, *a);
}
