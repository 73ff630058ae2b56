/* tensor/weight_groups.h - a matrix whose rows are groups of whole numbers, as MLX's files have them: three arrays.
 *
 *     weight  [n_out, n_in * bits / 32] u32    a row is a little-endian stream of bits, weight after weight
 *     scales  [n_out, n_in / group]            of scale_type: F32, F16 or BF16
 *     biases  likewise                         w = scale * q + bias
 *
 * Views of a file's bytes, which may be unaligned. Thread  any.
 */
#pragma once
#include "tensor/dtype.h"

struct weight_groups {
    uint32_t bits, group; /* 2, 3, 4, 5, 6 or 8; 32, 64 or 128, which divides n_in */
    uint64_t n_out, n_in;
    enum dtype scale_type;
    const void *weight, *scales, *biases;
};

/* Row r, n_in floats: fused multiply-add is not used. */
void weight_groups_row(const struct weight_groups *g, uint64_t r, float *out);
/* Rows first .. first + n - 1 of it. */
struct weight_groups weight_groups_rows(const struct weight_groups *g, uint64_t first, uint64_t n);
