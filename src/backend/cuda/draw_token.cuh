/* backend/cuda/draw_token.cuh - the score of a token in a draw, and the better of two.
 *
 * A draw at temperature T takes the token with the largest  logit / T + g,  g a Gumbel number of (seed, position,
 * token): that is softmax(logits / T) exactly, without its sum. With min_p only tokens with logit >= max + T ln(min_p)
 * take part (arXiv:2407.01082). Random bits: Philox 4x32-10 (Salmon et al., SC 2011), counter (token / 4, position),
 * key seed, one word of four per token: nothing depends on the place in the batch. Ties: the lower id.
 * Where the row's largest logit is not needed (draw_is_local) scores are of the logit itself, else of its distance from
 * that, which f32 holds better at low temperatures. Which of them is the draw's own affair, so that a token is the same
 * whether its logit is written (choose_token.cu) or not (linear_choose.cuh).
 */
#pragma once
#include <math_constants.h>
#include "backend/cuda/cuda_kernels.h"

struct best { float value; int32_t id; };

static __device__ __forceinline__ struct best better(struct best a, struct best b)
{
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

static __device__ __forceinline__ uint4 philox(uint4 counter, uint2 key)
{
    for (int i = 0; i < 10; i++) {
        const uint32_t high0 = __umulhi(0xd2511f53u, counter.x), low0 = 0xd2511f53u * counter.x;
        const uint32_t high1 = __umulhi(0xcd9e8d57u, counter.z), low1 = 0xcd9e8d57u * counter.z;

        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9e3779b9u;
        key.y += 0xbb67ae85u;
    }
    return counter;
}

/* Of tokens id .. id + 3, id a multiple of 4. */
static __device__ __forceinline__ uint4 random_words(const struct cuda_draw &d, uint32_t id)
{
    return philox(make_uint4(id / 4, d.position, 0, 0), make_uint2((uint32_t)d.seed, (uint32_t)(d.seed >> 32)));
}

/* -ln(-ln(u)), u = (23 bits + 1/2) / 2^23: exact in f32, never 0 or 1. */
static __device__ __forceinline__ float gumbel(uint32_t bits)
{
    return -logf(-logf(((float)(bits >> 9) + 0.5f) * 0x1p-23f));
}

static __device__ __forceinline__ bool draw_is_local(const struct cuda_draw &d)
{
    return d.min_p <= 0 && d.temperature >= CUDA_LOCAL_TEMPERATURE;
}

/* from: the row's largest logit, 0 for a local draw. */
static __device__ __forceinline__ float draw_score(float logit, float from, float inverse, uint32_t bits)
{
    return fmaf(logit - from, inverse, gumbel(bits));
}
