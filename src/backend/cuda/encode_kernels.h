/* backend/cuda/encode_kernels.h - launch functions that encoders of images have beside those of cuda_kernels.h, whose conventions
 * are theirs. cudaErrorNotSupported: not of this device, form or shape, whatever the rows; nothing was launched.
 */
#pragma once
#include "backend/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows a->row0 .. a->row0 + n_rows - 1 of queries, keys and values to a->packed, which cuda_attend reads then; those of other
 * calls stay. q, k, v, cosines and sines ([, head_dim / 2]) are of row row0. cosines NULL: queries and keys are not turned.
 * first_block, n_some_blocks: the blocks of 64 rows of a group, counted over all groups, that they are in. whole_blocks: each is
 * 64 rows in a row from row0 on, but for the last one of all. */
struct cuda_attend_fill_args {
    struct cuda_attend_args attend;
    const float *cosines, *sines;
    uint32_t first_block, n_some_blocks;
    bool whole_blocks;
};
int cuda_attend_fill(const struct cuda_launch *l, const struct cuda_attend_fill_args *a);

/* cuda_linear of one bf16 matrix or up to three, the sum over k in one chain instead of segments: where rows are many in every
 * call. Then (gelu_form >= 0, of one matrix) gelu16 = gelu(out), in place of out. */
int cuda_linear_many(const struct cuda_launch *l, const struct cuda_linear_args *a, int gelu_form, uint16_t *gelu16);

/* cuda_linear_many of a, whose outputs are q, k and v of f, and cuda_attend_fill, in one; a's outputs are left as they were. */
int cuda_linear_heads(const struct cuda_launch *l, const struct cuda_linear_args *a,
                      const struct cuda_attend_fill_args *f);

#ifdef __cplusplus
}
#endif
