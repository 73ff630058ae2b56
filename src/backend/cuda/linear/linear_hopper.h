/* backend/cuda/linear/linear_hopper.h - launches the wgmma matrix product (linear_wgmma.cuh): bf16 x bf16 -> f32 or bf16.
 *
 * out[r, o] = sum_k x[r, k] * w[o, k] (+ bias[o]), r < n_rows, for up to 3 matrices that share x; a row's bits do not
 * depend on n_rows. Needs sm_90, n_in a multiple of 8, and x, w 16-byte aligned with x_stride, w_stride multiples of 8.
 * GLU epilogues take two matrices of one shape (gate, up) and write act(gate) * up to outs[0].
 * Asynchronous on `stream`. Thread  any, one per stream.  Errors  what CUDA says, 0 = success.
 */
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include "backend/cuda/linear/linear_epilogue.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_copies;

struct linear_hopper {
    const void *x;           /* bf16 [n_rows, x_stride] */
    struct linear_norm norm; /* x given: instead of x above, if linear_norm_fits */
    uint32_t n_rows, n_in, x_stride, n_outs;
    struct {
        const void *w;     /* bf16 [n_out, w_stride] */
        const float *bias; /* [n_out] or NULL */
        void *out;         /* [n_rows, stride], f32 or bf16 */
        uint32_t n_out, w_stride, stride;
        uint32_t n_whole; /* as cuda_matrix's */
    } outs[3];
    enum linear_epilogue epilogue;   /* EPI_ADD: out (f32) += ... */
    struct cuda_tile_choices *tiles; /* of EPI_CHOOSE: one output, no bias, 1 .. 256 rows; else not supported */
    bool out_bf16;
    const struct cuda_copies *copies; /* of outs[0], the only one but for a GLU's; NULL, or linear_hopper_copies */
    uint32_t n_segs;                  /* 0: as linear_segments says. Else other sums: to measure what the order costs */
    bool chained; /* programmatic dependent launch: may start while the kernel before on the stream still runs */
};

bool linear_norm_fits(const struct linear_norm *norm, uint32_t n_rows, uint32_t n_in);
/* Whether shapes and addresses fit: the same for all n_rows. The caller knows that the device is sm_90. */
bool linear_hopper_fits(const struct linear_hopper *a);
cudaError_t linear_hopper_launch(const struct linear_hopper *a, cudaStream_t stream);
/* Whether it may have copies: of 2 to 64 rows, and of more than 256 in blocks that stay. */
bool linear_hopper_copies(const struct linear_hopper *a);

/* How many k segments a product has whose matrices have n_out rows in all: part of its result, see linear_wgmma.cuh.
 * *seg_blocks: blocks of 64 k in a segment (the last may have fewer). */
uint32_t linear_segments(uint32_t n_out, uint32_t n_in, uint32_t *seg_blocks);

#ifdef __cplusplus
}
#endif
