/* backend/cuda/linear/linear_epilogue.h - what becomes of a matrix product's outputs, and of its input row before: what the
 * kernels (linear_wgmma.cuh, linear_quant.cuh) and those who launch them have in common.
 */
#pragma once
#include <stdint.h>

enum linear_epilogue { EPI_STORE, EPI_ADD, EPI_CHOOSE, EPI_SILU_GLU, EPI_GELU_GLU };

/* EPI_CHOOSE, instead of outputs: of each row and tile of outputs the best token (linear_choose.cuh). The launch sets
 * n_tiles, at most ceil(n_out / 64). */
struct cuda_draw;
struct tile_best {
    float score;
    int32_t id;
    float logit;
    uint32_t is_broken;
};
struct cuda_tile_choices {
    const struct cuda_draw *draws; /* [n_rows] or NULL */
    struct tile_best *best;        /* [n_rows, n_tiles] */
    uint32_t n_tiles;
};

/* What one row is before it is multiplied: rmsnorm(x) * weight, bf16. */
struct linear_norm {
    const float *x, *weight;
    float eps;
};
