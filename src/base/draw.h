/* base/draw.h - how a token is drawn from a row of logits: one generator and one arithmetic for the host and a device.
 *
 * A draw at temperature T takes the token with the largest  logit / T + g,  g a Gumbel number of (seed, position, token):
 * that is softmax(logits / T) exactly, without its sum. With min_p only tokens with logit >= max + T ln(min_p) take part
 * (arXiv:2407.01082). Ties: the lower id. -inf: never.
 *
 * Same bits everywhere: random words are Philox's, counter (token / 4, position), key seed, one word of four for each
 * token: nothing depends on a place in a batch. Floats are added, multiplied, divided and fused in the order written
 * here, which C and CUDA round alike; ln is the polynomial below, no library's. No product here feeds a sum that a
 * compiler could fuse by itself.
 *
 * Scores are of a logit's distance from the row's largest, which f32 holds better at low temperatures, or, where
 * draw_is_local, of the logit itself: then nothing of the row has to be known before.
 * Thread  any.
 */
#pragma once
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "base/philox.h"

/* From this temperature on a draw without min_p needs no other logit of its row for a token's score. */
#define DRAW_LOCAL_TEMPERATURE 0.015625f

/* Words of tokens id .. id + 3; id a multiple of 4. */
DEVICE_INLINE struct philox_words draw_words(uint64_t seed, uint32_t position, uint32_t id)
{
    return philox_4x32(id / 4, position, 0, 0, seed);
}

/* ln x of a normal number, to 3e-7; ln 1 is 0. x = 2^e m, m in [2/3, 4/3): ln m = f + f^2 q(f), f = m - 1 (exact). */
DEVICE_INLINE float draw_log(float x)
{
    uint32_t bits;
    float m, f, q;
    int32_t e;

    memcpy(&bits, &x, sizeof(bits));
    e = (int32_t)(bits - 0x3f2aaaabu) >> 23;
    bits -= (uint32_t)e << 23;
    memcpy(&m, &bits, sizeof(m));
    f = m - 1.0f;
    q = fmaf(-0x1.38a7fcp-3f, f, 0x1.5bf788p-3f);
    q = fmaf(q, f, -0x1.50b592p-3f);
    q = fmaf(q, f, 0x1.95e044p-3f);
    q = fmaf(q, f, -0x1.001090p-2f);
    q = fmaf(q, f, 0x1.555e40p-2f);
    q = fmaf(q, f, -0x1.ffffe6p-2f);
    q = fmaf(q * f, f, f);
    return fmaf((float)e, 0x1.62e430p-1f, q);
}

/* -ln(-ln(u)), u = (23 bits + 1/2) / 2^23: exact in f32, never 0 or 1. -2.82 .. 16.64. */
DEVICE_INLINE float draw_gumbel(uint32_t word)
{
    return -draw_log(-draw_log(((float)(word >> 9) + 0.5f) * 0x1p-23f));
}

DEVICE_INLINE bool draw_is_local(float temperature, float min_p)
{
    return min_p <= 0 && temperature >= DRAW_LOCAL_TEMPERATURE;
}

DEVICE_INLINE float draw_inverse(float temperature)
{
    return 1.0f / (temperature > 0x1p-100f ? temperature : 0x1p-100f);
}

/* The least logit that takes part; most: the row's largest. */
DEVICE_INLINE float draw_least(float temperature, float min_p, float most)
{
    return min_p > 0 ? fmaf(temperature, draw_log(min_p > 0x1p-126f ? min_p : 0x1p-126f), most) : -INFINITY;
}

/* from: the row's largest logit, 0 for a local draw. */
DEVICE_INLINE float draw_score(float logit, float from, float inverse, uint32_t word)
{
    return fmaf(logit - from, inverse, draw_gumbel(word));
}
