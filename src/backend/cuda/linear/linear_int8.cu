/* backend/cuda/linear/linear_int8.cu - products with 8-bit weights on sm_90: linear_quant.cuh for forms in files. */
#include "backend/cuda/linear/linear_quant_launch.cuh"

int linear_int8_launch(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e, void *out,
                       const struct linear_norm *norm)
{
    const struct cuda_matrix *m = a->outs[0].w;

    if (m->group == 32 && m->has_offset) return (int)quant_launch<8, 32, WITH_OFFSET>(l, a, e, out, norm);
    if (m->group == 64 && m->has_offset) return (int)quant_launch<8, 64, WITH_OFFSET>(l, a, e, out, norm);
    if (m->group == 32) return (int)quant_launch<8, 32, SCALED>(l, a, e, out, norm);
    if (m->group == 16 && !m->has_offset) return (int)quant_launch<8, 16, SCALED>(l, a, e, out, norm);
    return (int)cudaErrorNotSupported;
}
