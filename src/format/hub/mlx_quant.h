/* format/hub/mlx_quant.h - matrices as MLX quantises them: w = scale * q + bias, per group of a row.
 *
 *     weight  u32 [n_out, n_in * bits / 32]    a row is a little-endian stream of bits, weight after weight
 *     scales  [n_out, n_in / group]            f16, bf16 or f32
 *     biases  [n_out, n_in / group]            likewise
 *
 * They become blocks that the kernels have: Q4_1 (2, 3, 4 bits) and Q5_1 (5 bits), of which a group takes several with
 * the same scale. That is exact where every scale and bias is a number of f16, which is looked up; other matrices, and
 * 6 and 8 bits, become F16 rows, each weight rounded once. For a backend that takes it 6 and 8 bits become U8_32 or U8_64,
 * which is exact where Q4_1 would be.
 *
 * Thread  any. Source  MLX, mlx.core.quantize ("affine") and its documentation.
 */
#pragma once
#include <stdbool.h>
#include "format/hub/safetensors.h"
#include "tensor/weight_groups.h"

struct mlx_matrix {
    uint32_t bits, group;
    uint64_t n_out, n_in;
    enum st_type scale_type; /* of scales and biases */
    const uint8_t *weight, *scales, *biases;
};

/* Fills *out from the three tensors' shapes and the config's bits and group, which must agree. base: the name without
 * ".weight", for errors. The pointers stay NULL. */
rd_status mlx_check(const char *base, const struct st_tensor *weight, const struct st_tensor *scales,
                    const struct st_tensor *biases, uint32_t bits, uint32_t group, struct mlx_matrix *out,
                    struct rd_error *err);
/* The same, for who computes with it as it is. */
struct weight_groups mlx_groups(const struct mlx_matrix *m);
/* What it becomes; reads the scales. */
enum dtype mlx_dtype(const struct mlx_matrix *m);
/* Of DTYPE_HUB_LIST, or DTYPE_NONE; reads the scales. */
enum dtype mlx_hub_dtype(const struct mlx_matrix *m);
/* Rows first .. first + n - 1 as one of the two. */
void mlx_open_rows(const struct mlx_matrix *m, enum dtype t, uint64_t first, uint64_t n, uint8_t *dst);
