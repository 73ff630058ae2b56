/* backend/cuda/linear_dispatch.cu - cuda_linear and cuda_linear_glu: which kernel computes a product.
 *
 * The choice depends on shapes, formats, alignment and device, never on n_rows: rows must not change with their batch.
 *   sm_90, bf16 weights, aligned   linear_hopper (wgmma)
 *   sm_90, quantised, aligned      linear_int4, linear_int8 (wgmma); outs of unlike forms one after the other
 *   anything else                  linear_plain
 */
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/linear_hopper.h"
#include "backend/cuda/linear_paths.h"

bool cuda_linear_takes(const struct cuda_launch *l, const struct cuda_matrix *m)
{
    if (l->compute != 90) return false;
    if (m->format == CUDA_BF16) return true;
    if (m->format == CUDA_INT4) return m->group == 32 || (m->group == 16 && m->has_offset);
    return m->group == 32 || (m->group == 16 && !m->has_offset);
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

static bool same_form(const struct cuda_matrix *a, const struct cuda_matrix *b)
{
    return a->format == b->format &&
           (a->format == CUDA_BF16 || (a->group == b->group && a->has_offset == b->has_offset));
}

/* Outs of one form. epilogue: EPI_STORE, or a GLU to glu_out16. */
static int linear_one_form(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e,
                           uint16_t *glu_out16)
{
    const struct cuda_matrix *m = a->outs[0].w;

    if (l->compute != 90) return (int)cudaErrorNotSupported;
    struct linear_hopper h = hopper_args(l, a);
    h.epilogue = e;
    h.out_bf16 = glu_out16 != NULL;
    if (glu_out16) h.outs[0].out = glu_out16;
    if (!linear_hopper_fits(&h)) return (int)cudaErrorNotSupported;
    if (m->format == CUDA_BF16) return (int)linear_hopper_launch(&h, stream_of(l));
    if (m->row_stride % CUDA_QUANT_ROW_ALIGN) return (int)cudaErrorNotSupported;
    return m->format == CUDA_INT4 ? linear_int4_launch(l, a, e, glu_out16) : linear_int8_launch(l, a, e, glu_out16);
}

int cuda_linear(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    for (uint32_t from = 0, n; from < a->n_outs; from += n) {
        struct cuda_linear_args part = {a->n_rows, a->x16, a->x_stride, 0, {}};
        int st;

        for (n = 0; from + n < a->n_outs && same_form(a->outs[from].w, a->outs[from + n].w); n++)
            part.outs[part.n_outs++] = a->outs[from + n];
        st = linear_one_form(l, &part, EPI_STORE, NULL);
        if (st == (int)cudaErrorNotSupported) st = linear_plain_launch(l, &part);
        if (st) return st;
    }
    return 0;
}

int cuda_linear_glu(const struct cuda_launch *l, const struct cuda_linear_glu_args *a)
{
    const uint32_t n_out = a->gate->n_out;
    struct cuda_linear_args both = {a->n_rows, a->x16, a->x_stride, 2, {}};
    int st;

    both.outs[0] = (struct cuda_linear_out){a->gate, NULL, a->scratch_gate, n_out};
    both.outs[1] = (struct cuda_linear_out){a->up, NULL, a->scratch_up, n_out};
    if (same_form(a->gate, a->up)) {
        st = linear_one_form(l, &both, a->act == CUDA_SILU ? EPI_SILU_GLU : EPI_GELU_GLU, a->out16);
        if (st != (int)cudaErrorNotSupported) return st;
    }
    st = cuda_linear(l, &both);
    if (st) return st;
    return cuda_glu(l, a->act, (uint64_t)a->n_rows * n_out, a->scratch_gate, a->scratch_up, NULL, a->out16);
}
