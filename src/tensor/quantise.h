/* tensor/quantise.h - floats to the types that model files are written in.
 *
 *     F32, F16, BF16   rounded to nearest even
 *     Q8_0             bit for bit as the `gguf` package: d = max|x| / 127, quants x / d rounded half away from zero
 *     Q4_K, Q6_K       our own search for the scales (and minima) of each group that make the weighted squared error
 *                      small, then the block's 6-bit or 8-bit scales; not the reference's bits, but its error or less
 *                      (tests/tensor/test_quantise.c)
 *
 * Thread  any. Source  block layouts: tensor/dtype.h.
 */
#pragma once
#include "tensor/dtype.h"

/* The type is one of the above. */
bool quantise_knows(enum dtype t);
/* n: a multiple of the type's block. */
void quantise(enum dtype t, const float *src, void *dst, uint64_t n);
