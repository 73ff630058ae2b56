/* backend/cuda/linear/linear_plain.cu - matrix products, one warp per output and up to 8 rows: right for every shape.
 *
 * out[r, o] = sum over k of x16[r, k] * bf16(w[o, k]), f32. Order of sums: lane j takes k = j, j + 32, .. as one fma
 * chain, then the tree of warp_sum. Weights are read once per 8 rows. Bound: memory for few rows; nothing is tuned.
 */
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/linear/linear_paths.h"

#define ROWS 8u

struct plain_job {
    uint32_t n_rows, x_stride, n_out, out_stride;
    const uint16_t *x16;
    struct cuda_matrix w;
    const float *bias;
    float *out;
};

static __global__ void linear_plain(struct plain_job j)
{
    const uint32_t o = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t row0 = blockIdx.y * ROWS, n = min(ROWS, j.n_rows - row0);
    float sums[ROWS] = {0};

    if (o >= j.n_out) return;
    for (uint32_t k = lane; k < j.w.n_in; k += 32) {
        const float w = bf16_float(float_bf16(matrix_weight(j.w, o, k)));

        for (uint32_t r = 0; r < ROWS; r++)
            if (r < n) sums[r] = fmaf(bf16_float(j.x16[(uint64_t)(row0 + r) * j.x_stride + k]), w, sums[r]);
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        const float sum = warp_sum(sums[r]);

        if (lane == 0 && r < n) j.out[(uint64_t)(row0 + r) * j.out_stride + o] = j.bias ? sum + j.bias[o] : sum;
    }
}

int linear_plain_launch(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct cuda_linear_out *out = &a->outs[i];
        const struct plain_job job = {a->n_rows, a->x_stride, out->w->n_out, out->out_stride,
                                      a->x16,    *out->w,     out->bias,     out->out};
        const dim3 grid(ceil_div(out->w->n_out, 8), ceil_div(a->n_rows, ROWS));

        linear_plain<<<grid, 256, 0, stream_of(l)>>>(job);
    }
    return (int)cudaGetLastError();
}
