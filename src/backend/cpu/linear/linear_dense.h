/* backend/cpu/linear/linear_dense.h - products of an encoder, and of training's way back (grad/matrix_unit.h), on a matrix unit: floats
 * as sums of bf16, AMX-BF16.
 *
 * A weight is w0 + w1 (bf16 each; of a BF16 tensor w1 is nothing), an activation x0 + x1: bf16(x), bf16(x - x0), which is x to
 * 2^-17 of it. Of the products x1 w1 is left out: 2^-17 of the whole. The dots of block types and of float weights in text models
 * are others (linear_kernels.h): these weights are WEIGHT_DENSE, and met by nothing else.
 *
 * WEIGHTS      panels of 32 outputs; per 32 k, per part: two tiles of [16 pairs of k][16 outputs][2]
 * ACTIVATIONS  groups of 16 rows; per 32 k, x0 then x1: [16 rows][32 k]. Rows and k that are not there are zeros.
 * THE SUM      of one output, per 32 k in order: of x0 w0, then x1 w0, then (where there is one) x0 w1:
 *                  t[j] = sum over i of fma(x[2 i + j], w[2 i + j], t[j]), j = 0, 1;  acc = acc + (t[0] + t[1])
 *              with subnormal numbers as zeros, which is what TDPBF16PS computes (Intel SDM volume 2). out = acc + bias.
 *              A row's sum does not know how many rows there are.
 * Thread       any; panels write only their own outputs.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define DENSE_OUTS  32u
#define DENSE_K     32u
#define DENSE_ROWS  16u
#define DENSE_TILE  1024u /* bytes: 16 x 32 bf16 */
#define DENSE_BLOCK 2048u /* of 16 rows and 32 k, or of a part of 32 outputs and 32 k */

struct dense_panel {
    const uint8_t *w;           /* the panel, 64-byte aligned */
    const uint8_t *x;           /* the groups, 64-byte aligned, one after the other */
    uint32_t n_blocks, n_parts; /* of 32 k; of a weight */
    uint32_t n_rows, n_out;     /* n_out: 1 .. 32 */
    float *out;                 /* [n_rows, out_stride] */
    uint64_t out_stride;
    const float *bias; /* [n_out] or NULL */
    bool add;          /* to what is in out, which is the first of the two; without bias */
};

struct cpu_dense_kernels {
    /* Up to 16 rows of n_in floats to a group. */
    void (*split16)(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t n_in, uint8_t *group);
    void (*panel)(const struct dense_panel *p);
};
/* ref: the same bits, on any processor, for tests. */
extern const struct cpu_dense_kernels dense_kernels_ref, dense_kernels_amx;
