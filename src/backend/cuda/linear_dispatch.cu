/* backend/cuda/linear_dispatch.cu - cuda_linear and cuda_linear_glu: which kernel computes a product.
 *
 * The choice depends on shapes, formats, alignment and device, never on n_rows: rows must not change with their batch.
 *   sm_90, bf16 weights, aligned   linear_hopper (wgmma)
 *   anything else                  linear_plain
 */
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/linear_hopper.h"
#include "backend/cuda/linear_paths.h"

static bool all_bf16(const struct cuda_linear_args *a)
{
    for (uint32_t i = 0; i < a->n_outs; i++)
        if (a->outs[i].w->format != CUDA_BF16) return false;
    return true;
}

bool cuda_linear_takes(const struct cuda_launch *l, const struct cuda_matrix *m)
{
    return l->compute == 90 && m->format == CUDA_BF16;
}

static struct linear_hopper hopper_args(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    struct linear_hopper h = {};

    h.x = a->x16;
    h.n_rows = a->n_rows;
    h.n_in = a->outs[0].w->n_in;
    h.x_stride = a->x_stride;
    h.n_outs = a->n_outs;
    h.chained = l->pdl;
    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct cuda_linear_out *o = &a->outs[i];

        h.outs[i].w = o->w->values;
        h.outs[i].bias = o->bias;
        h.outs[i].out = o->out;
        h.outs[i].n_out = o->w->n_out;
        h.outs[i].w_stride = o->w->row_stride;
        h.outs[i].stride = o->out_stride;
    }
    return h;
}

int cuda_linear(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    if (l->compute == 90 && all_bf16(a)) {
        const struct linear_hopper h = hopper_args(l, a);

        if (linear_hopper_fits(&h)) return (int)linear_hopper_launch(&h, stream_of(l));
    }
    return linear_plain_launch(l, a);
}

int cuda_linear_glu(const struct cuda_launch *l, const struct cuda_linear_glu_args *a)
{
    const uint32_t n_out = a->gate->n_out;
    struct cuda_linear_args both = {a->n_rows, a->x16, a->x_stride, 2, {}};
    int st;

    both.outs[0] = (struct cuda_linear_out){a->gate, NULL, a->scratch_gate, n_out};
    both.outs[1] = (struct cuda_linear_out){a->up, NULL, a->scratch_up, n_out};
    if (l->compute == 90 && all_bf16(&both)) {
        struct linear_hopper h = hopper_args(l, &both);

        h.epilogue = a->act == CUDA_SILU ? EPI_SILU_GLU : EPI_GELU_GLU;
        h.out_bf16 = true;
        h.outs[0].out = a->out16;
        if (linear_hopper_fits(&h)) return (int)linear_hopper_launch(&h, stream_of(l));
    }
    st = cuda_linear(l, &both);
    if (st) return st;
    return cuda_glu(l, a->act, (uint64_t)a->n_rows * n_out, a->scratch_gate, a->scratch_up, NULL, a->out16);
}
