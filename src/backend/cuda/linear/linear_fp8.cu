/* backend/cuda/linear/linear_fp8.cu - products with e4m3 weights on sm_90: linear_quant.cuh for blocks of 128 with one scale. */
#include "backend/cuda/linear/linear_quant_launch.cuh"

int linear_fp8_launch(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e, void *out,
                      const struct linear_norm *norm)
{
    if (a->outs[0].w->group != 128) return (int)cudaErrorNotSupported;
    return (int)quant_launch<8, 128, E4M3>(l, a, e, out, norm);
}
