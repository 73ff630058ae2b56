/* backend/cuda/rows/join_gathered.cu - before and after an all-gather of ranks' columns by somebody else (NCCL).
 *
 *     pack     rows of a rank's columns --> one behind the other, a part
 *     unpack   all ranks' parts         --> the rows of out, or added to x
 *
 * A gather copies: nothing is summed by it, and what is added to x is added here, as join_letters.cu does.
 * Memory-bound: each of them reads and writes its bytes once, in 16 at once where everything is aligned.
 */
#include "backend/cuda/rows/join_waits.cuh"

#define THREADS     256u
#define MOST_BLOCKS 264u

template <typename V>
static __global__ void __launch_bounds__(THREADS)
    pack_rows(const __grid_constant__ struct cuda_join_args a, uint32_t row0, uint32_t n_rows, V *to)
{
    const uint32_t per = sizeof(V) / a.value_bytes, n = a.n / per;
    const V *own = (const V *)a.own + row0 * (a.own_stride / per);

    dependents_launch();
    dependency_wait();
    for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < (uint64_t)n * n_rows; i += gridDim.x * THREADS)
        to[i] = own[i / n * (a.own_stride / per) + i % n];
}

template <typename V>
static __global__ void __launch_bounds__(THREADS)
    unpack_rows(const __grid_constant__ struct cuda_join_args a, uint32_t row0, uint32_t n_rows, const uint8_t *from,
                uint64_t part_bytes)
{
    const uint32_t per = sizeof(V) / a.value_bytes;

    for (uint32_t p = 0; p < a.n_ranks; p++) {
        const uint32_t first = (p ? a.ends[p - 1] : 0) / per, n = a.ends[p] / per - first;
        const V *part = (const V *)(from + p * part_bytes);

        for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < (uint64_t)n * n_rows; i += gridDim.x * THREADS)
            deliver(a, (row0 + i / n) * (a.width / per) + first + i % n, part[i]);
    }
}

int cuda_join_gathered_load(void)
{
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, pack_rows<uint4>);

    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, pack_rows<uint32_t>);
    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, pack_rows<uint16_t>);
    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, unpack_rows<uint4>);
    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, unpack_rows<uint32_t>);
    return (int)(e == cudaSuccess ? cudaFuncGetAttributes(&a, unpack_rows<uint16_t>) : e);
}

static dim3 blocks_for(uint64_t n_bytes, uint32_t item)
{
    const uint64_t n = (n_bytes / item + THREADS - 1) / THREADS;

    return dim3((uint32_t)(n < 1 ? 1 : n < MOST_BLOCKS ? n : MOST_BLOCKS));
}

int cuda_join_pack(const struct cuda_launch *l, const struct cuda_join_args *a, uint32_t row0, uint32_t n_rows,
                   void *to)
{
    const uint64_t bytes = (uint64_t)n_rows * a->n * a->value_bytes;
    const dim3 block(THREADS);

    if (a->n == 0) return 0;
    if (is_whole_for_all(a))
        return (int)launch_chained(l, pack_rows<uint4>, blocks_for(bytes, 16), block, 0, *a, row0, n_rows, (uint4 *)to);
    if (a->value_bytes == 4)
        return (int)launch_chained(l, pack_rows<uint32_t>, blocks_for(bytes, 4), block, 0, *a, row0, n_rows,
                                   (uint32_t *)to);
    return (int)launch_chained(l, pack_rows<uint16_t>, blocks_for(bytes, 2), block, 0, *a, row0, n_rows,
                               (uint16_t *)to);
}

/* Not chained: what is before it is not ours, and does not say when it may begin. */
int cuda_join_unpack(const struct cuda_launch *l, const struct cuda_join_args *a, uint32_t row0, uint32_t n_rows,
                     const void *from, uint64_t part_bytes)
{
    const uint64_t bytes = (uint64_t)n_rows * a->most * a->value_bytes;
    const uint8_t *parts = (const uint8_t *)from;

    if (is_whole_for_all(a))
        unpack_rows<uint4><<<blocks_for(bytes, 16), THREADS, 0, stream_of(l)>>>(*a, row0, n_rows, parts, part_bytes);
    else if (a->value_bytes == 4)
        unpack_rows<uint32_t><<<blocks_for(bytes, 4), THREADS, 0, stream_of(l)>>>(*a, row0, n_rows, parts, part_bytes);
    else
        unpack_rows<uint16_t><<<blocks_for(bytes, 2), THREADS, 0, stream_of(l)>>>(*a, row0, n_rows, parts, part_bytes);
    return (int)cudaGetLastError();
}
