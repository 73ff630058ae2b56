/* backend/cuda/linear/linear_paths.h - the ways to compute cuda_linear; linear_dispatch.cu chooses by shapes and device only,
 * so that a row's bits do not depend on its batch. */
#pragma once
#include "backend/cuda/cuda_kernels.h"
#include "backend/cuda/linear/linear_hopper.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The best of all tiles of each row, after a product with EPI_CHOOSE (choose_token.cu). */
int choose_of_tiles(const struct cuda_launch *l, uint32_t n_rows, const struct cuda_tile_choices *c,
                    struct cuda_choice *choices);

/* Right for every shape, format and device; slow. */
int linear_plain_launch(const struct cuda_launch *l, const struct cuda_linear_args *a);

/* A form (format, group, has_offset) that has tensor core kernels, on sm_90 and in linear_mma.cu alike. */
static inline bool linear_knows_form(const struct cuda_matrix *m)
{
    switch (m->format) {
    case CUDA_BF16:
        return true;
    case CUDA_INT4:
        return m->group == 32 || (m->group == 16 && m->has_offset);
    case CUDA_E4M3:
        return m->group == 128;
    default:
        return m->group == 32 || m->group == (m->has_offset ? 64u : 16u);
    }
}

/* Any tensor core of sm_80 or newer (linear_mma.cu); not for weights in sm_90's order. */
bool linear_mma_takes(const struct cuda_launch *l, const struct cuda_matrix *m);
/* cudaErrorNotSupported: not of that form, or x16 lies oddly. */
int linear_mma_launch(const struct cuda_launch *l, const struct cuda_linear_args *a);

/* sm_90, all outs of one quantised form (format, group, has_offset), x16 and x_stride as linear_hopper wants them. out:
 * of a GLU [n_rows, n_out], of EPI_ADD, else NULL. norm: as in linear_hopper. cudaErrorNotSupported: no kernel for that form. */
int linear_int4_launch(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e, void *out,
                       const struct linear_norm *norm);
int linear_fp8_launch(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e, void *out,
                      const struct linear_norm *norm);
int linear_int8_launch(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e, void *out,
                       const struct linear_norm *norm);

#ifdef __cplusplus
}
#endif
