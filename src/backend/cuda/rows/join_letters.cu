/* backend/cuda/rows/join_letters.cu - few columns of ranks to all ranks, as letters.
 *
 * Every 4 bytes go in a store of 8 that has the number of the round beside them, into the others' boxes. Whoever reads them sees
 * by that number that they are there: one way over the link, and no release (2 us less; the low-latency protocol of NCCL works
 * so). A box has two rounds' room: a rank that writes the second one next has read the first of the other. Boxes are where
 * struct cuda_joint is: in the receiver's device, or in host memory.
 */
#include "backend/cuda/rows/join_waits.cuh"

#define LETTER_THREADS 256u
#define BOX_ITEMS      (CUDA_JOIN_LETTERS / 16) /* of 16 bytes, 32 with their numbers */

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
    turn = a.counts->turns[blockIdx.x] + 1;
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
    if (threadIdx.x == 0) a.counts->turns[blockIdx.x] = turn;
}

int cuda_join_letters_load(void)
{
    cudaFuncAttributes a;

    return (int)cudaFuncGetAttributes(&a, join_letters);
}

bool cuda_join_is_small(const struct cuda_join_args *a)
{
    return fits_letters(a);
}

bool cuda_join_adds(const struct cuda_join_args *a)
{
    return a->value_bytes == sizeof(float) && fits_letters(a);
}

int cuda_join_letters(const struct cuda_launch *l, const struct cuda_join_args *a)
{
    if (!is_whole(a, sizeof(uint4))) return (int)cudaErrorMisalignedAddress; /* buffers and strides are aligned then */
    return (int)launch_chained(l, join_letters, dim3(CUDA_LETTER_BLOCKS), dim3(LETTER_THREADS), 0, *a);
}
