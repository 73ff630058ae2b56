/* tensor/block_floats.h - whole blocks of 32 weights as floats, for dtype.c, and what is compiled once an instruction set
 * (grad_loops.h).
 *
 * As dtype_blocks.h: the same operations in the same order, whatever they are compiled for.
 * Thread  any thread.
 */
#pragma once
#include <stdint.h>
#include <string.h>
#include "tensor/dtype_blocks.h"

/* d half, qs[16]: the low nibble of qs[i] is weight i, the high one weight i + 16.  w = d * (q - 8) */
static inline void q4_0_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 18, dst += 32) {
        float d = dtype_half_at(src);

        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((src[2 + i] & 15) - 8);
            dst[i + 16] = d * (float)((src[2 + i] >> 4) - 8);
        }
    }
}

/* d half, m half, qs[16] as Q4_0.  w = d * q + m */
static inline void q4_1_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 20, dst += 32) {
        float d = dtype_half_at(src), m = dtype_half_at(src + 2);

        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)(src[4 + i] & 15) + m;
            dst[i + 16] = d * (float)(src[4 + i] >> 4) + m;
        }
    }
}

/* d half, qh 32 bits: bit i is the fifth bit of weight i, qs[16] as Q4_0.  w = d * (q - 16) */
static inline void q5_0_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 22, dst += 32) {
        float d = dtype_half_at(src);
        const uint8_t *qs = src + 6;
        uint32_t qh;

        memcpy(&qh, src + 2, sizeof(qh));
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((int)((qs[i] & 15) | (qh >> i & 1) << 4) - 16);
            dst[i + 16] = d * (float)((int)((qs[i] >> 4) | (qh >> (i + 16) & 1) << 4) - 16);
        }
    }
}

/* d half, m half, qh and qs as Q5_0.  w = d * q + m */
static inline void q5_1_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 24, dst += 32) {
        float d = dtype_half_at(src), m = dtype_half_at(src + 2);
        const uint8_t *qs = src + 8;
        uint32_t qh;

        memcpy(&qh, src + 4, sizeof(qh));
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((qs[i] & 15) | (qh >> i & 1) << 4) + m;
            dst[i + 16] = d * (float)((qs[i] >> 4) | (qh >> (i + 16) & 1) << 4) + m;
        }
    }
}

/* d half, qs[32] signed bytes.  w = d * q */
static inline void q8_0_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 34, dst += 32) {
        float d = dtype_half_at(src);

        for (int i = 0; i < 32; i++) dst[i] = d * (float)(int8_t)src[2 + i];
    }
}
