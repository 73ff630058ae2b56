/* backend/cuda/linear/linear_dispatch.cu - cuda_linear and cuda_linear_glu: which kernel computes a product.
 *
 * The choice depends on shapes, formats, alignment and device, never on n_rows: rows must not change with their batch.
 *   sm_90, bf16 weights, aligned   linear_hopper (wgmma)
 *   sm_90, quantised, aligned      linear_int4, linear_int8, linear_fp8 (wgmma); outs of unlike forms one after the other
 *   any other device, aligned       linear_mma (mma.sync)
 *   anything else                  linear_plain
 */
#include "backend/cuda/cuda_device.cuh"
#include "backend/cuda/linear/linear_hopper.h"
#include "backend/cuda/linear/linear_paths.h"

bool cuda_linear_takes(const struct cuda_launch *l, const struct cuda_matrix *m)
{
    return l->compute == 90 ? linear_knows_form(m) : linear_mma_takes(l, m);
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
    h.norm = {a->norm.x, a->norm.weight, a->norm.eps};
    h.copies = a->copies;
    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct cuda_linear_out *o = &a->outs[i];

        h.outs[i].w = o->w->values;
        h.outs[i].bias = o->bias;
        h.outs[i].out = o->out;
        h.outs[i].n_out = o->w->n_out;
        h.outs[i].n_whole = o->w->n_whole;
        h.outs[i].w_stride = o->w->row_stride;
        h.outs[i].stride = o->out_stride;
    }
    return h;
}

/* Whether the tuned kernels take all outs as they lie. */
static bool linear_takes_all(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    if (l->compute != 90) return false;
    const struct linear_hopper h = hopper_args(l, a);
    bool takes = linear_hopper_fits(&h);

    for (uint32_t i = 0; i < a->n_outs; i++)
        takes &= cuda_linear_takes(l, a->outs[i].w) &&
                 (a->outs[i].w->format == CUDA_BF16 || a->outs[i].w->row_stride % cuda_row_align(a->outs[i].w) == 0);
    return takes;
}

static bool same_form(const struct cuda_matrix *a, const struct cuda_matrix *b)
{
    return a->format == b->format &&
           (a->format == CUDA_BF16 || (a->group == b->group && a->has_offset == b->has_offset));
}

/* Outs of one form. out: what a GLU or EPI_ADD writes to, else NULL. */
static int linear_one_form(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e,
                           void *out)
{
    const struct cuda_matrix *m = a->outs[0].w;

    if (l->compute != 90) return (int)cudaErrorNotSupported;
    struct linear_hopper h = hopper_args(l, a);
    h.epilogue = e;
    h.tiles = a->tiles;
    h.out_bf16 = e >= EPI_SILU_GLU;
    if (out) h.outs[0].out = out;
    if (!linear_hopper_fits(&h)) return (int)cudaErrorNotSupported;
    if (m->format == CUDA_BF16) return (int)linear_hopper_launch(&h, stream_of(l));
    if (m->row_stride % cuda_row_align(m)) return (int)cudaErrorNotSupported;
    if (m->format == CUDA_E4M3) return linear_fp8_launch(l, a, e, out, &h.norm);
    return m->format == CUDA_INT4 ? linear_int4_launch(l, a, e, out, &h.norm)
                                  : linear_int8_launch(l, a, e, out, &h.norm);
}

/* f32 to their own outs. */
static int linear_stored(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    int st = linear_one_form(l, a, EPI_STORE, NULL);

    if (st == (int)cudaErrorNotSupported && l->compute != 90) st = linear_mma_launch(l, a);
    return st == (int)cudaErrorNotSupported ? linear_plain_launch(l, a) : st;
}

/* Whether the product computes the norm of its input; if not it is computed here, and *norm becomes none. All outs must
 * be of one form then, as each product would compute it again. */
static int input_norm(const struct cuda_launch *l, uint32_t n_rows, uint32_t n_in, const uint16_t *x16, bool one_form,
                      struct cuda_input_norm *norm)
{
    const struct linear_norm n = {norm->x, norm->weight, norm->eps};
    struct cuda_norm_args a = {n_rows,    n_in, (float *)norm->x, NULL, NULL, norm->weight,
                               norm->eps, NULL, (uint16_t *)x16};

    if (!norm->x || (l->compute == 90 && one_form && linear_norm_fits(&n, n_rows, n_in))) return 0;
    norm->x = NULL;
    return cuda_residual_norm(l, &a);
}

/* out is added to add_to, by the product or by the norm's kernel. */
static int linear_added(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    struct cuda_norm_args n = {a->n_rows, a->outs[0].w->n_out, a->add_to, a->outs[0].out, NULL, NULL, 0, NULL, NULL};
    int st = linear_one_form(l, a, EPI_ADD, a->add_to);

    if (st != (int)cudaErrorNotSupported) return st;
    st = linear_stored(l, a);
    return st ? st : cuda_residual_norm(l, &n);
}

int cuda_linear(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    struct cuda_input_norm norm = a->norm;
    bool one_form = linear_takes_all(l, a);
    int st;

    for (uint32_t i = 1; i < a->n_outs; i++) one_form &= same_form(a->outs[0].w, a->outs[i].w);
    st = input_norm(l, a->n_rows, a->outs[0].w->n_in, a->x16, one_form, &norm);
    if (st) return st;
    for (uint32_t from = 0, n; from < a->n_outs; from += n) {
        struct cuda_linear_args part = {a->n_rows, a->x16, a->x_stride, 0, {}, norm, a->add_to, NULL, a->copies};

        for (n = 0; from + n < a->n_outs && same_form(a->outs[from].w, a->outs[from + n].w); n++)
            part.outs[part.n_outs++] = a->outs[from + n];
        if (a->add_to) return linear_added(l, &part);
        st = linear_stored(l, &part);
        if (st) return st;
    }
    return 0;
}

int cuda_linear_choose(const struct cuda_launch *l, const struct cuda_linear_args *a, const struct cuda_draw *draws,
                       struct cuda_choice *choices)
{
    struct cuda_tile_choices tiles = {draws, (struct tile_best *)l->scratch, 0};
    struct cuda_linear_args product = *a;
    const uint64_t n_tiles = ceil_div(a->outs[0].w->n_out, 64);
    int st;

    if (a->norm.x || a->add_to || a->n_rows * n_tiles * sizeof(*tiles.best) > l->scratch_bytes)
        return (int)cudaErrorNotSupported;
    product.tiles = &tiles;
    st = linear_one_form(l, &product, EPI_CHOOSE, NULL);
    return st ? st : choose_of_tiles(l, a->n_rows, &tiles, choices);
}

/* The two, to where the way in several launches has them. */
static struct cuda_linear_args glu_products(const struct cuda_linear_glu_args *a)
{
    const uint32_t n_out = a->gate->n_out;
    struct cuda_linear_args both = {a->n_rows, a->x16, a->x_stride, 2, {}, a->norm, NULL, NULL, a->copies};

    both.outs[0] = (struct cuda_linear_out){a->gate, NULL, a->scratch_gate, a->out_stride ? a->out_stride : n_out};
    both.outs[1] = (struct cuda_linear_out){a->up, NULL, a->scratch_up, n_out};
    return both;
}

int cuda_linear_glu(const struct cuda_launch *l, const struct cuda_linear_glu_args *a)
{
    const uint32_t n_out = a->gate->n_out;
    struct cuda_linear_args both = glu_products(a);
    int st;

    st = input_norm(l, a->n_rows, a->gate->n_in, a->x16, same_form(a->gate, a->up) && linear_takes_all(l, &both),
                    &both.norm);
    if (st) return st;
    if (same_form(a->gate, a->up)) {
        st = linear_one_form(l, &both, a->act == CUDA_SILU ? EPI_SILU_GLU : EPI_GELU_GLU, a->out16);
        if (st != (int)cudaErrorNotSupported) return st;
    }
    st = cuda_linear(l, &both);
    if (st) return st;
    return cuda_glu(l, a->act, (uint64_t)a->n_rows * n_out, a->scratch_gate, a->scratch_up, NULL, a->out16);
}

/* ---- copies: of bf16 weights, on Hopper ---- */

static bool writes_copies(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e,
                          void *out)
{
    struct linear_hopper h;

    if (l->compute != 90 || (a->norm.x && a->n_rows == 1) || a->add_to) return false;
    for (uint32_t i = 0; i < a->n_outs; i++)
        if (a->outs[i].w->format != CUDA_BF16) return false;
    h = hopper_args(l, a);
    h.epilogue = e;
    h.out_bf16 = e >= EPI_SILU_GLU;
    if (out) h.outs[0].out = out;
    return linear_hopper_fits(&h) && linear_hopper_copies(&h);
}

bool cuda_linear_copies(const struct cuda_launch *l, const struct cuda_linear_args *a)
{
    return a->n_outs == 1 && writes_copies(l, a, EPI_STORE, NULL);
}

bool cuda_linear_glu_copies(const struct cuda_launch *l, const struct cuda_linear_glu_args *a)
{
    const struct cuda_linear_args both = glu_products(a);

    return writes_copies(l, &both, EPI_SILU_GLU, a->out16);
}
