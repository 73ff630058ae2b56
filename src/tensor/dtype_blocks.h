/* tensor/dtype_blocks.h - inside of tensor/: one function per quantised type that turns whole blocks into floats.
 *
 * Every function reads n_blocks blocks from src (unaligned is fine) and writes n_blocks * weights-per-block floats.
 * Each weight is computed by the same operations in the same order as in the `gguf` Python package, in fp32 and without
 * fused multiply-add, so that results are equal bit for bit (tests/golden/quants/).
 * Thread  any thread.
 */
#pragma once
#include <stdint.h>
#include <string.h>
#include "tensor/dtype.h"

static inline float dtype_half_at(const uint8_t *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return half_to_float(h);
}

void q2_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks);
void q3_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks);
void q4_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks);
void q5_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks);
void q6_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks);
