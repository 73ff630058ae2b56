/* backend/cuda/rows/join_ranks.cu - ranks' columns to all ranks, over peer memory, inside of a recorded step.
 *
 *     rank 0, block b   its share of rank 0's columns --> out of ranks 0, 1, ..;  flag b at each;  waits for their flags b
 *     rank 1, block b   its share of rank 1's columns --> likewise
 *
 * Block b of a rank waits for blocks b of the others alone, so that blocks need not be on the device at the same time; after
 * the kernel all of out is there. A flag is the number of the block's rounds, which only grows: nothing is reset between
 * steps, and a fast rank is one round ahead at most. Stores are plain, of 16 bytes where everything is aligned, and released
 * to the system once a block (PTX ISA, memory consistency model, scopes).
 * A rank that waits looks at the host's words now and then: somebody may have left.
 */
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"

#define THREADS      512u
#define BLOCK_BYTES  16384u /* of a rank's columns: less is not worth a second block */
#define SPINS_A_LOOK 1024u

static __device__ __forceinline__ void release_flag(uint32_t *flag, uint32_t round)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(round) : "memory");
}

static __device__ __forceinline__ uint32_t acquire_flag(const uint32_t *flag)
{
    uint32_t v;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
    return v;
}

static __device__ __forceinline__ uint64_t now_ns(void)
{
    uint64_t ns;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

/* This rank's columns to every out; where they lie in its own already, to the others'. */
template <typename V> static __device__ __forceinline__ void push(const struct cuda_join_args &a)
{
    const uint32_t per = sizeof(V) / a.value_bytes, n = a.n / per;
    const uint64_t n_all = (uint64_t)n * a.n_rows, width = a.width / per, own_stride = a.own_stride / per;
    const V *own = (const V *)a.own;

    for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < n_all; i += gridDim.x * THREADS) {
        const uint64_t row = i / n, at = row * width + a.first / per + i % n;
        const V v = own[row * own_stride + i % n];

        for (uint32_t p = 0; p < a.n_ranks; p++) {
            V *to = (V *)a.outs[p] + at;

            if (p != a.rank || to != own + row * own_stride + i % n) *to = v;
        }
    }
}

/* Until rank p's flag is at round, or it is in vain. */
static __device__ void wait_for(const struct cuda_join_args &a, uint32_t p, uint32_t round)
{
    const uint32_t *flag = a.flags[a.rank] + p * CUDA_JOIN_BLOCKS + blockIdx.x;
    volatile uint32_t *words = a.words;
    uint64_t began = 0;

    for (uint32_t spins = 1; (int32_t)(acquire_flag(flag) - round) < 0; spins++) {
        if (spins % SPINS_A_LOOK) continue;
        if (words[0]) return;
        if (!began) began = now_ns();
        if (now_ns() - began < a.patience_ns) continue;
        if (!words[1]) words[1] = p + 1;
        words[0] = 1;
        __threadfence_system();
        return;
    }
}

template <typename V>
static __global__ void __launch_bounds__(THREADS) join_ranks(const __grid_constant__ struct cuda_join_args a)
{
    const uint32_t p = threadIdx.x;
    uint32_t round;

    dependents_launch();
    dependency_wait();
    round = a.rounds[blockIdx.x] + 1;
    push<V>(a);
    __syncthreads();
    if (p < a.n_ranks && p != a.rank) {
        __threadfence_system(); /* the block's stores before the flag */
        release_flag(a.flags[p] + a.rank * CUDA_JOIN_BLOCKS + blockIdx.x, round);
        wait_for(a, p, round);
    }
    if (p == 0) a.rounds[blockIdx.x] = round;
}

int cuda_join_load(void)
{
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, join_ranks<uint4>);

    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, join_ranks<uint32_t>);
    return (int)(e == cudaSuccess ? cudaFuncGetAttributes(&a, join_ranks<uint16_t>) : e);
}

static bool is_whole(const struct cuda_join_args *a, uint32_t n_bytes)
{
    const uint32_t per = n_bytes / a->value_bytes;
    uintptr_t odd = (uintptr_t)a->own % n_bytes | a->own_stride % per | a->width % per | a->first % per | a->n % per;

    for (uint32_t p = 0; p < a->n_ranks; p++) odd |= (uintptr_t)a->outs[p] % n_bytes;
    return odd == 0;
}

int cuda_join(const struct cuda_launch *l, const struct cuda_join_args *a)
{
    /* of what is the same for all ranks */
    const uint32_t n = ceil_div((uint64_t)a->n_rows * a->most * a->value_bytes, BLOCK_BYTES);
    const dim3 grid(n < 1 ? 1 : n < CUDA_JOIN_BLOCKS ? n : CUDA_JOIN_BLOCKS), block(THREADS);

    if (is_whole(a, sizeof(uint4))) return (int)launch_chained(l, join_ranks<uint4>, grid, block, 0, *a);
    if (a->value_bytes == 4) return (int)launch_chained(l, join_ranks<uint32_t>, grid, block, 0, *a);
    return (int)launch_chained(l, join_ranks<uint16_t>, grid, block, 0, *a);
}
