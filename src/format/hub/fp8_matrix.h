/* format/hub/fp8_matrix.h - matrices of 8-bit floats as the hub has them: w = scale * e4m3.
 *
 *     NAME.weight             F8_E4M3 [n_out, n_in]
 *     NAME.weight_scale_inv   [ceil(n_out / block), ceil(n_in / block)], blocks of 128 x 128 where nothing else is said
 *     NAME.weight_scale       one number; [n_out] or [n_out, 1]; or of blocks, as weight_scale_inv
 * In spite of its name weight_scale_inv is multiplied, too. Scales are F32, BF16, F16 or F8_E8M0.
 *
 * They become BF16 rows, bf16(scale * v) of the f32 product; or, for a backend that takes it, DTYPE_E4M3_128 with the
 * scale as f32: nothing is rounded then.
 *
 * Thread  any. Source  transformers, integrations/finegrained_fp8.py; compressed-tensors, "float-quantized".
 */
#pragma once
#include <stdbool.h>
#include "format/hub/safetensors.h"
#include "tensor/dtype.h"

struct fp8_matrix {
    uint64_t n_out, n_in;
    uint64_t block_out, block_in; /* weights of one scale, at the matrix's end maybe fewer */
    enum st_type scale_type;
    const uint8_t *weight, *scales;
};

/* Fills *out from the two tensors' shapes (scale NULL: there is none). block_out, block_in: what config.json says of
 * blocks. base: the name without ".weight", for errors. The pointers stay NULL. */
rd_status fp8_check(const char *base, const struct st_tensor *weight, const struct st_tensor *scale, uint32_t block_out,
                    uint32_t block_in, struct fp8_matrix *out, struct rd_error *err);
/* Every scale is a number. */
rd_status fp8_check_scales(const char *base, const struct fp8_matrix *m, struct rd_error *err);
/* It can be DTYPE_E4M3_128: whole blocks of 128, one scale in each. */
bool fp8_has_blocks(const struct fp8_matrix *m);
/* Rows first .. first + n - 1 as BF16 or E4M3_128. false: a weight there is NaN. */
bool fp8_open_rows(const struct fp8_matrix *m, enum dtype t, uint64_t first, uint64_t n, uint8_t *dst);
