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
 * Small ones as letters: every 4 bytes in a store of 8 that has the number of the round beside them, into the others' boxes.
 * Whoever reads them sees by that number that they are there: one way over the link, and no release (2 us less; the low-latency
 * protocol of NCCL works so). A box has two rounds' room: a rank that writes the second one next has read the first of the
 * other.
 *
 * A rank that waits looks at the host's words now and then: somebody may have left.
 */
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/rows/join_ranks.h"

#define THREADS        512u
#define LETTER_THREADS 256u
#define BLOCK_BYTES    32768u /* of a rank's columns: less is not worth a second block */
#define SPINS_A_LOOK   1024u
#define BOX_ITEMS      (CUDA_JOIN_LETTERS / 16) /* of 16 bytes, 32 with their numbers */

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

/* Whether rank p, for which this thread has waited since *began (0: it begins), is waited for in vain. */
static __device__ bool is_vain(const struct cuda_join_args &a, uint32_t p, uint64_t *began)
{
    volatile uint32_t *words = a.words;

    if (words[0]) return true;
    if (!*began) *began = now_ns();
    if (now_ns() - *began < a.patience_ns) return false;
    if (!words[1]) words[1] = p + 1;
    words[0] = 1;
    __threadfence_system();
    return true;
}

/* Until rank p's flag is at round, or it is in vain. */
static __device__ void wait_for(const struct cuda_join_args &a, uint32_t p, uint32_t round)
{
    const uint32_t *flag = a.joints[a.rank]->flags + p * CUDA_JOIN_BLOCKS + blockIdx.x;
    uint64_t began = 0;

    for (uint32_t spins = 1; (int32_t)(acquire_flag(flag) - round) < 0; spins++)
        if (spins % SPINS_A_LOOK == 0 && is_vain(a, p, &began)) return;
}

template <typename V>
static __global__ void __launch_bounds__(THREADS) join_ranks(const __grid_constant__ struct cuda_join_args a)
{
    const uint32_t p = threadIdx.x;
    uint32_t round;

    dependents_launch();
    dependency_wait();
    round = a.joints[a.rank]->rounds[blockIdx.x] + 1;
    push<V>(a);
    __syncthreads();
    if (p < a.n_ranks && p != a.rank) {
        __threadfence_system(); /* the block's stores before the flag */
        release_flag(a.joints[p]->flags + a.rank * CUDA_JOIN_BLOCKS + blockIdx.x, round);
        wait_for(a, p, round);
    }
    if (p == 0) a.joints[a.rank]->rounds[blockIdx.x] = round;
}

/* ---- letters ---- */

/* Where in rank `to`'s box rank `from` puts item i of this turn. */
static __device__ __forceinline__ uint64_t *letter(const struct cuda_join_args &a, uint32_t to, uint32_t from,
                                                   uint32_t turn, uint32_t i)
{
    return a.joints[to]->boxes + (((uint64_t)(turn & 1) * CUDA_JOIN_RANKS + from) * BOX_ITEMS + i) * 4;
}

static __device__ __forceinline__ void write_letter(uint64_t *to, uint32_t x, uint32_t y, uint32_t turn)
{
    const uint64_t number = (uint64_t)turn << 32;

    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(number | x), "l"(number | y) : "memory");
}

/* out = v, or x += v. */
static __device__ __forceinline__ void deliver(const struct cuda_join_args &a, uint64_t at, uint4 v)
{
    float4 *x = (float4 *)a.add_to + at;

    if (!a.add_to) {
        ((uint4 *)a.outs[a.rank])[at] = v;
        return;
    }
    const float4 old = *x;

    *x = make_float4(__fadd_rn(old.x, __uint_as_float(v.x)), __fadd_rn(old.y, __uint_as_float(v.y)),
                     __fadd_rn(old.z, __uint_as_float(v.z)), __fadd_rn(old.w, __uint_as_float(v.w)));
}

/* Waits until both are there. */
static __device__ __forceinline__ bool read_letter(const struct cuda_join_args &a, uint32_t p, const uint64_t *from,
                                                   uint32_t turn, uint32_t *x, uint32_t *y)
{
    uint64_t v, w, began = 0;

    for (uint32_t spins = 1;; spins++) {
        asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(v), "=l"(w) : "l"(from) : "memory");
        if (v >> 32 == turn && w >> 32 == turn) break;
        if (spins % SPINS_A_LOOK == 0 && is_vain(a, p, &began)) return false;
    }
    *x = (uint32_t)v;
    *y = (uint32_t)w;
    return true;
}

static __device__ void send_letters(const struct cuda_join_args &a, uint32_t turn)
{
    const uint32_t per = 16 / a.value_bytes, n = a.n / per;
    const uint4 *out = (const uint4 *)a.outs[a.rank];

    for (uint32_t i = blockIdx.x * LETTER_THREADS + threadIdx.x; i < n * a.n_rows; i += gridDim.x * LETTER_THREADS) {
        const uint32_t row = i / n;
        const uint4 *from = (const uint4 *)a.own + row * (a.own_stride / per) + i % n, v = *from;
        const uint64_t to = row * (a.width / per) + a.first / per + i % n;

        for (uint32_t p = 0; p < a.n_ranks; p++) {
            if (p == a.rank) continue;
            write_letter(letter(a, p, a.rank, turn, i), v.x, v.y, turn);
            write_letter(letter(a, p, a.rank, turn, i) + 2, v.z, v.w, turn);
        }
        if (out + to != from) deliver(a, to, v);
    }
}

static __global__ void __launch_bounds__(LETTER_THREADS) join_letters(const __grid_constant__ struct cuda_join_args a)
{
    const uint32_t per = 16 / a.value_bytes;
    uint32_t turn;

    dependents_launch();
    dependency_wait();
    turn = a.joints[a.rank]->turns[blockIdx.x] + 1;
    send_letters(a, turn);
    for (uint32_t p = 0, first = 0; p < a.n_ranks; first = a.ends[p++]) {
        const uint32_t n = (a.ends[p] - first) / per;

        for (uint32_t i = blockIdx.x * LETTER_THREADS + threadIdx.x; p != a.rank && i < n * a.n_rows;
             i += gridDim.x * LETTER_THREADS) {
            const uint64_t *from = letter(a, a.rank, p, turn, i);
            uint4 v;

            if (!read_letter(a, p, from, turn, &v.x, &v.y) || !read_letter(a, p, from + 2, turn, &v.z, &v.w)) break;
            deliver(a, i / n * (a.width / per) + first / per + i % n, v);
        }
    }
    __syncthreads(); /* all have read turns */
    if (threadIdx.x == 0) a.joints[a.rank]->turns[blockIdx.x] = turn;
}

int cuda_join_load(void)
{
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, join_ranks<uint4>);

    if (e == cudaSuccess) e = cudaFuncGetAttributes(&a, join_letters);
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

/* Of what is the same for all ranks. */
static bool fits_letters(const struct cuda_join_args *a)
{
    uint32_t odd = 0;

    for (uint32_t p = 0; p < a->n_ranks; p++) odd |= a->ends[p] % (16 / a->value_bytes);
    return odd == 0 && (uint64_t)a->n_rows * a->most * a->value_bytes <= CUDA_JOIN_LETTERS;
}

bool cuda_join_adds(const struct cuda_join_args *a)
{
    return a->value_bytes == sizeof(float) && fits_letters(a);
}

int cuda_join(const struct cuda_launch *l, const struct cuda_join_args *a)
{
    const uint32_t n = ceil_div((uint64_t)a->n_rows * a->most * a->value_bytes, BLOCK_BYTES);
    const dim3 grid(n < 1 ? 1 : n < a->most_blocks ? n : a->most_blocks), block(THREADS);
    const bool whole = is_whole(a, sizeof(uint4));

    if (fits_letters(a))
        return whole ? (int)launch_chained(l, join_letters, dim3(CUDA_LETTER_BLOCKS), dim3(LETTER_THREADS), 0, *a)
                     : (int)cudaErrorMisalignedAddress; /* buffers and strides are multiples of 16 bytes then */
    if (whole) return (int)launch_chained(l, join_ranks<uint4>, grid, block, 0, *a);
    if (a->value_bytes == 4) return (int)launch_chained(l, join_ranks<uint32_t>, grid, block, 0, *a);
    return (int)launch_chained(l, join_ranks<uint16_t>, grid, block, 0, *a);
}
