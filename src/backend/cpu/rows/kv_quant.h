/* backend/cpu/rows/kv_quant.h - how a row of keys or values becomes blocks of Q8_0 and Q4_0: the scalar definitions that all
 * variants share. Blocks of 32, laid out as in tensor/dtype.c.
 *
 *   Q8_0  d = half(max |x| / 127),                     q = round(x / d)
 *   Q4_0  d = half(m / -8), m the x of largest |x| (the positive one of a tie),  q = round(x / d) + 8 within 0 .. 15
 * Rounding is to nearest even, and x / d is x * (1 / d) with the half that is stored; d = 0 gives zeros. A block that
 * holds NaN or infinity, or whose d is beyond the halves, becomes NaN as a whole: broken keys stay visible.
 * F8_E4M3: each number by itself, float_to_e4m3.
 *
 * Keys are balanced and turned before they are quantised, queries before they meet them:
 *   - where the keys have a bias, k[i] / s[i] and q[i] s[i], with s[i] a power of two by the larger bias of the two
 *     dimensions that RoPE turns together: biases of a hundred would else take the precision of all the rest;
 *   - then both by a Hadamard matrix H of the largest power of two n that divides head_dim, which spreads what is left
 *     of large dimensions over all: q . k = (H q) . (H k) / n. Sums and differences in the order of the butterflies
 *     1, 2, 4 ..; the factor 1 / n is shared in powers of two.
 * Source: SmoothQuant, arXiv:2211.10438; QuaRot, arXiv:2404.00456.
 */
#pragma once
#include <stdbool.h>
#include <math.h>
#include "backend/backend.h"
#include "backend/cpu/cpu_math.h"
#include "tensor/dtype.h"

#define KV_QUANT_BLOCK   32u
#define KV_BIAS_EXPONENT 131u /* of 16: what keys reach without a bias, about, is not balanced */

/* From the block's lowest and highest value; bits: the highest of the bits of |x|. Writes d, returns what to multiply
 * by, or 0 when all q are the zero. */
static inline float kv_quant_scale(enum dtype t, float lowest, float highest, uint32_t bits, uint8_t *block)
{
    float d = t == DTYPE_Q8_0 ? cpu_bits_float(bits) / 127.0f : (highest >= -lowest ? highest : lowest) / -8.0f;
    uint16_t half = bits >= 0x7f800000u ? 0x7e00 : float_to_half(d);

    if ((half & 0x7fff) >= 0x7c00) half = 0x7e00;
    memcpy(block, &half, sizeof(half));
    d = half_to_float(half);
    return half == 0x7e00 || d == 0 ? 0 : 1.0f / d;
}

static inline bool kv_type_turns(enum dtype t)
{
    return t == DTYPE_Q8_0 || t == DTYPE_Q4_0 || t == DTYPE_F8_E4M3;
}

static inline void kv_store_e4m3(const float *x, uint8_t *dst, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) dst[i] = float_to_e4m3(x[i]);
}

/* scales [head_dim]: what a query is multiplied by, or a key (1 / s). */
static inline void kv_balance(const float *bias, uint32_t head_dim, enum rope_layout layout, uint32_t n_rot, bool key,
                              float *scales)
{
    for (uint32_t i = 0; i < head_dim; i++) {
        uint32_t other = i, exponent;
        int log2_s;

        if (i < n_rot) other = layout == ROPE_INTERLEAVED ? i ^ 1 : i < n_rot / 2 ? i + n_rot / 2 : i - n_rot / 2;
        exponent = cpu_float_bits(fmaxf(fabsf(bias[i]), fabsf(bias[other]))) >> 23;
        log2_s = exponent < KV_BIAS_EXPONENT || exponent == 255 ? 0 : (int)exponent - (KV_BIAS_EXPONENT - 1);
        scales[i] = cpu_bits_float((uint32_t)(127 + (key ? -log2_s : log2_s)) << 23);
    }
}

/* x [head_dim] = H x * factor, in place; factor: kv_key_factor for keys, kv_query_factor for queries. */
static inline uint32_t kv_turn_size(uint32_t head_dim)
{
    return head_dim & (0 - head_dim);
}
static inline float kv_key_factor(uint32_t head_dim)
{
    return ldexpf(1, -((__builtin_ctz(kv_turn_size(head_dim)) + 1) / 2));
}
static inline float kv_query_factor(uint32_t head_dim)
{
    return ldexpf(1, -(__builtin_ctz(kv_turn_size(head_dim)) / 2));
}
static inline void kv_turn(float *x, uint32_t head_dim, float factor)
{
    uint32_t n = kv_turn_size(head_dim);

    for (uint32_t i = 0; i < head_dim; i++) x[i] *= factor;
    for (uint32_t half = 1; half < n; half *= 2) {
        for (uint32_t i = 0; i < head_dim; i += 2 * half) {
            for (uint32_t j = i; j < i + half; j++) {
                float a = x[j], b = x[j + half];

                x[j] = a + b;
                x[j + half] = a - b;
            }
        }
    }
}
