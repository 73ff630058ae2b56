/* backend/cuda/linear/linear_choose.cuh - the head's product without its outputs: of each tile the best token of every row.
 *
 * Sums in shared memory as linear_write reads them. 1 to 16 threads go through a row's outputs in the tile, four at a
 * time. Scores, ties and what is no number: as choose_token.cu, whose tile_tokens takes the best of all tiles. For
 * greedy rows and local draws (draw_token.cuh): others need the row's largest logit first.
 * Saved: writing and reading n_rows x n_vocab floats (256 rows of Qwen3: 2 x 156 MB), and most of choose's time.
 */
#pragma once
#include "backend/cuda/linear/draw_token.cuh"
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/linear/linear_epilogue.h"

static __device__ __forceinline__ struct tile_best better_tile(const struct tile_best &a, const struct tile_best &b)
{
    struct tile_best best = b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;

    best.is_broken = a.is_broken | b.is_broken;
    return best;
}

static __device__ __forceinline__ struct tile_best no_tile_best(void)
{
    return {-CUDART_INF_F, INT32_MAX, -CUDART_INF_F, 0};
}

/* The better of this lane's and that of lane ^ mask, by whole warps. */
static __device__ __forceinline__ struct tile_best better_across(const struct tile_best &b, uint32_t mask)
{
    const struct tile_best other = {
        __shfl_xor_sync(0xffffffffu, b.score, mask), __shfl_xor_sync(0xffffffffu, b.id, mask),
        __shfl_xor_sync(0xffffffffu, b.logit, mask), __shfl_xor_sync(0xffffffffu, b.is_broken, mask)};

    return better_tile(b, other);
}

/* Of four neighbouring tokens, and those 4 parts further on .. each: none waits for another. */
struct four_best {
    struct tile_best of[4];
};

/* Logits of tokens id .. id + 3, those below n_out, enter; ids only rise, so that the first of equals stays. */
template <bool DRAWN>
static __device__ __forceinline__ void choose_of_four(struct four_best *best, const struct cuda_draw &d, float inverse,
                                                      uint32_t id, const float4 &v, uint32_t n_out)
{
    const float logits[4] = {v.x, v.y, v.z, v.w};
    const struct philox_words words = DRAWN ? draw_words(d.seed, d.position, id) : philox_words{};

#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        struct tile_best &b = best->of[k];
        const bool is_one = id + k < n_out;
        const float score = DRAWN ? draw_score(logits[k], 0, inverse, words.w[k]) : logits[k];

        b.is_broken |= is_one && !(logits[k] < CUDART_INF_F);
        if (is_one && score > b.score) b.score = score, b.id = (int32_t)(id + k), b.logit = logits[k];
    }
}

/* A thread's part of a row's outputs in the tile. */
template <int ROWS, uint32_t PARTS, bool DRAWN>
static __device__ __forceinline__ struct tile_best choose_of_part(const struct cuda_draw &d, uint32_t sums,
                                                                  uint32_t part, uint32_t first_id, uint32_t n_out)
{
    const float inverse = DRAWN ? draw_inverse(d.temperature) : 0.0f;
    struct four_best best;

#pragma unroll
    for (int k = 0; k < 4; k++) best.of[k] = no_tile_best();
#pragma unroll(DRAWN ? 1 : 4)
    for (uint32_t i = part * 4; i < ROWS; i += PARTS * 4)
        choose_of_four<DRAWN>(&best, d, inverse, first_id + i, shared_load4(sums + i * 4), n_out);
    return better_tile(better_tile(best.of[0], best.of[1]), better_tile(best.of[2], best.of[3]));
}

/* sums: [N][PITCH] floats, or [ROWS] of a batch of one row. token0: the tile's first. By WORKERS threads. */
template <int ROWS, int N, uint32_t PITCH, uint32_t WORKERS>
static __device__ __forceinline__ void choose_of_tile(const struct cuda_tile_choices &c, uint32_t sums,
                                                      uint32_t first_id, uint32_t n_out, uint32_t token0,
                                                      uint32_t n_tokens)
{
    constexpr uint32_t most = N == 1 ? ROWS / 4 : WORKERS / N;
    constexpr uint32_t parts = most >= 16 ? 16 : most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;

    for (uint32_t u = threadIdx.x; u / 32 * 32 < n_tokens * parts; u += WORKERS) {
        const uint32_t token = min(u / parts, n_tokens - 1), row = token0 + token;
        struct cuda_draw d = {};
        struct tile_best best;

        const uint32_t at = sums + token * PITCH * 4;

        if (c.draws) d = c.draws[row];
        if (d.temperature > 0)
            best = choose_of_part<ROWS, parts, true>(d, at, u % parts, first_id, n_out);
        else
            best = choose_of_part<ROWS, parts, false>(d, at, u % parts, first_id, n_out);
        __syncwarp();
#pragma unroll
        for (uint32_t mask = parts / 2; mask > 0; mask /= 2) best = better_across(best, mask);
        if (u % parts == 0 && u < n_tokens * parts) c.best[(uint64_t)row * c.n_tiles + first_id / ROWS] = best;
    }
}
