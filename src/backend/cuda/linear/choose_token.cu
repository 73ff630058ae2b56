/* backend/cuda/linear/choose_token.cu - a token of each row of logits: the best, or a draw (draw_token.cuh).
 *
 * Two launches, grid (pieces of 4,096 logits, rows), 256 threads of 16 logits: row_pieces finds the largest of every
 * piece; row_tokens knows the row's largest from them, draws within its piece, and the piece that ends last takes the
 * best of all. Bound: memory, logits once or twice (from L2).
 * Where the head's product chose within its tiles (linear_choose.cuh), tile_tokens takes the best of those.
 */
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear/linear_choose.cuh"
#include "backend/cuda/linear/linear_paths.h"

#define PIECE   4096u
#define THREADS 256u

struct piece_best {
    struct best plain, drawn;
    uint32_t is_broken, unused[3];
};

struct choose_job {
    uint32_t n_vocab, n_pieces;
    const float *logits;
    uint64_t stride;
    const struct cuda_draw *draws; /* NULL: the best of every row */
    struct piece_best *pieces;     /* [rows, n_pieces] */
    uint32_t *counters;            /* [rows] */
    struct cuda_choice *choices;
};

/* The best of the block, in thread 0. */
static __device__ struct best block_best(struct best b)
{
    __shared__ struct best warps[THREADS / 32];

    for (int d = 16; d; d /= 2)
        b = better(b, {__shfl_xor_sync(0xffffffffu, b.value, d), __shfl_xor_sync(0xffffffffu, b.id, d)});
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = b;
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t i = 1; i < THREADS / 32; i++) b = better(b, warps[i]);
    __syncthreads();
    return b;
}

static __global__ void row_pieces(struct choose_job j)
{
    const float *row = j.logits + blockIdx.y * j.stride;
    const uint32_t begin = blockIdx.x * PIECE, end = min(begin + PIECE, j.n_vocab);
    struct best b = {-CUDART_INF_F, INT32_MAX};
    bool is_broken = false;

    dependency_wait();
    dependents_launch();
    for (uint32_t i = begin + threadIdx.x; i < end; i += THREADS) {
        const float value = row[i];

        is_broken |= !(value < CUDART_INF_F);
        b = better(b, {value, (int32_t)i});
    }
    is_broken = __syncthreads_or(is_broken);
    b = block_best(b);
    if (threadIdx.x) return;
    j.pieces[blockIdx.y * j.n_pieces + blockIdx.x].plain = b;
    j.pieces[blockIdx.y * j.n_pieces + blockIdx.x].is_broken = is_broken;
}

static __device__ struct best draw(const struct choose_job &j, const struct cuda_draw &d, float most)
{
    const float *row = j.logits + blockIdx.y * j.stride;
    const uint32_t end = min((blockIdx.x + 1) * PIECE, j.n_vocab);
    const float inverse = draw_inverse(d.temperature), from = draw_is_local(d.temperature, d.min_p) ? 0 : most;
    const float least = draw_least(d.temperature, d.min_p, most);
    struct best b = {-CUDART_INF_F, INT32_MAX};

    for (uint32_t i = blockIdx.x * PIECE + threadIdx.x * 4; i < end; i += THREADS * 4) {
        const struct philox_words words = draw_words(d.seed, d.position, i);

        for (uint32_t k = 0; k < 4 && i + k < end; k++)
            if (row[i + k] >= least && row[i + k] > -CUDART_INF_F)
                b = better(b, {draw_score(row[i + k], from, inverse, words.w[k]), (int32_t)(i + k)});
    }
    return block_best(b);
}

static __global__ void row_tokens(struct choose_job j)
{
    struct piece_best *pieces = j.pieces + blockIdx.y * j.n_pieces;
    struct best plain = {-CUDART_INF_F, INT32_MAX}, drawn = plain;
    struct cuda_draw d = {};
    __shared__ struct best row_best;

    dependency_wait();
    dependents_launch();
    if (j.draws) d = j.draws[blockIdx.y];
    if (d.temperature <= 0 && blockIdx.x > 0) return;
    for (uint32_t i = threadIdx.x; i < j.n_pieces; i += THREADS) plain = better(plain, pieces[i].plain);
    plain = block_best(plain);
    if (threadIdx.x == 0) row_best = plain;
    __syncthreads();
    if (d.temperature > 0) {
        drawn = draw(j, d, row_best.value);
        if (threadIdx.x) return;
        pieces[blockIdx.x].drawn = drawn;
        __threadfence();
        if (atomicAdd(&j.counters[blockIdx.y], 1) + 1 < j.n_pieces) return;
        j.counters[blockIdx.y] = 0;
        __threadfence();
        for (uint32_t i = 0; i < j.n_pieces; i++) {
            const volatile struct piece_best *p = &pieces[i];

            drawn = better(drawn, {p->drawn.value, p->drawn.id});
        }
    }
    if (threadIdx.x) return;

    const int32_t id = d.temperature > 0 ? drawn.id : row_best.id;
    const bool is_known = id != INT32_MAX;
    uint32_t is_broken = 0;

    for (uint32_t i = 0; i < j.n_pieces; i++) is_broken |= pieces[i].is_broken;
    j.choices[blockIdx.y] = {is_known ? id : 0, is_broken ? CUDART_NAN_F
                                                : !is_known || d.temperature <= 0
                                                    ? row_best.value
                                                    : j.logits[blockIdx.y * j.stride + id]};
}

int cuda_choose(const struct cuda_launch *l, uint32_t n_rows, uint32_t n_vocab, const float *logits, uint64_t stride,
                const struct cuda_draw *draws, struct cuda_choice *choices)
{
    struct choose_job j = {n_vocab, ceil_div(n_vocab, PIECE),        logits,      stride,
                           draws,   (struct piece_best *)l->scratch, l->counters, choices};
    const dim3 grid(j.n_pieces, n_rows);
    cudaError_t error;

    if (n_rows > CUDA_N_COUNTERS || (uint64_t)n_rows * j.n_pieces * sizeof(*j.pieces) > l->scratch_bytes)
        return (int)cudaErrorInvalidValue;
    error = launch_chained(l, row_pieces, grid, THREADS, 0, j);
    return (int)(error == cudaSuccess ? launch_chained(l, row_tokens, grid, THREADS, 0, j) : error);
}

/* A block per row. */
static __global__ void tile_tokens(struct cuda_tile_choices c, struct cuda_choice *choices)
{
    const struct tile_best *const tiles = c.best + (uint64_t)blockIdx.x * c.n_tiles;
    __shared__ struct tile_best warps[THREADS / 32];
    struct tile_best b = no_tile_best();

    dependency_wait();
    dependents_launch();
#pragma unroll 10
    for (uint32_t i = threadIdx.x; i < c.n_tiles; i += THREADS) b = better_tile(b, tiles[i]);
    for (uint32_t mask = 16; mask; mask /= 2) b = better_across(b, mask);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = b;
    __syncthreads();
    if (threadIdx.x) return;
    for (uint32_t i = 1; i < THREADS / 32; i++) b = better_tile(b, warps[i]);
    choices[blockIdx.x] = {b.id != INT32_MAX ? b.id : 0, b.is_broken ? CUDART_NAN_F : b.logit};
}

int choose_of_tiles(const struct cuda_launch *l, uint32_t n_rows, const struct cuda_tile_choices *c,
                    struct cuda_choice *choices)
{
    return (int)launch_chained(l, tile_tokens, dim3(n_rows), THREADS, 0, *c, choices);
}
