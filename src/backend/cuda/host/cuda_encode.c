/* backend/cuda/host/cuda_encode.c - the ops that encoders of images need: host arrays to the device, then a launch. */
#include <assert.h>
#include "backend/cuda/encode_kernels.h"
#include "backend/cuda/host/cuda_backend.h"
#include "base/checked.h"

rd_status cuda_op_layer_norm(struct backend *be, const struct layer_norm_args *a)
{
    const struct cuda_layer_norm_args args = {a->n_rows,
                                              a->width,
                                              cuda_at(a->x),
                                              a->w->data,
                                              a->b->data,
                                              a->eps,
                                              a->for_linear ? NULL : cuda_at(a->out),
                                              cuda_shadow(a->out)};
    const rd_status st = cuda_let_go(be);

    assert(a->w->n_in == a->width && a->b->n_in == a->width);
    return st != RD_OK ? st : cuda_check(be, cuda_layer_norm(&be->l, &args), "layer_norm");
}

int cuda_gelu_form(enum gelu kind)
{
    return kind == GELU_ERF ? CUDA_GELU_ERF : kind == GELU_QUICK ? CUDA_GELU_QUICK : CUDA_GELU_TANH_FORM;
}

rd_status cuda_op_gelu(struct backend *be, const struct gelu_args *a)
{
    rd_status st = cuda_gelu_of_held(be, a);

    if (st != RD_E_UNSUPPORTED) return st;
    st = cuda_let_go(be);
    if (st != RD_OK) return st;
    return cuda_check(be, cuda_gelu(&be->l, cuda_gelu_form(a->kind), a->n, cuda_at(a->x), cuda_shadow(a->x)), "gelu");
}

rd_status cuda_op_turn(struct backend *be, const struct turn_args *a)
{
    const struct cuda_turn_args args = {a->n_rows,     a->n_heads, a->head_dim,         cuda_at(a->q),
                                        cuda_at(a->k), a->stride,  cuda_at(a->cosines), cuda_at(a->sines)};
    const rd_status st = cuda_let_go(be);

    assert(a->head_dim % 2 == 0);
    return st != RD_OK ? st : cuda_check(be, cuda_turn(&be->l, &args), "turn");
}

rd_status cuda_op_mean_rows(struct backend *be, const struct mean_args *a)
{
    const void *rows = NULL;
    rd_status st = cuda_let_go(be);

    if (st == RD_OK) st = cuda_send(be, a->rows, (uint64_t)a->n_out * a->n_each * sizeof(*a->rows), &rows);
    if (st != RD_OK) return st;
    const struct cuda_mean_args args = {a->n_out, a->n_each,       a->width,           cuda_at(a->x),
                                        rows,     cuda_at(a->out), cuda_shadow(a->out)};

    return cuda_check(be, cuda_mean(&be->l, &args), "mean_rows");
}

/* Groups that rows row0 .. are in, the largest of all, and the groups themselves on the device. */
static rd_status attend_args_of(struct backend *be, const struct attend_args *a, struct cuda_attend_args *out)
{
    const void *ends = NULL, *blocks = NULL;
    uint32_t first = 0, last, most = 0;
    rd_status st = cuda_send(be, a->group_ends, (uint64_t)a->n_groups * sizeof(*a->group_ends), &ends);

    if (st == RD_OK)
        st = cuda_send(be, a->group_blocks, ((uint64_t)a->n_groups + 1) * sizeof(*a->group_blocks), &blocks);
    if (st != RD_OK) return st;
    while (a->group_ends[first] <= a->row0) first++;
    last = first;
    while (last + 1 < a->n_groups && a->group_ends[last] < a->row0 + a->n_rows) last++;
    for (uint32_t g = 0; g < a->n_groups; g++) most = u32_max(most, a->group_ends[g] - (g ? a->group_ends[g - 1] : 0));
    *out = (struct cuda_attend_args){.row0 = a->row0,
                                     .n_rows = a->n_rows,
                                     .n_heads = a->n_heads,
                                     .head_dim = a->head_dim,
                                     .q = cuda_at(a->q),
                                     .k = cuda_at(a->k),
                                     .v = cuda_at(a->v),
                                     .stride = a->stride,
                                     .head0 = a->head0,
                                     .n_some = a->n_some,
                                     .out = a->for_linear ? NULL : cuda_at(a->out),
                                     .out16 = cuda_shadow(a->out),
                                     .scale = a->scale,
                                     .n_groups = a->n_groups,
                                     .first_group = first,
                                     .last_group = last,
                                     .most_rows = most,
                                     .n_blocks = a->group_blocks[a->n_groups],
                                     .group_ends = ends,
                                     .group_blocks = blocks,
                                     .packed = cuda_at(a->packed)};
    return RD_OK;
}

static uint32_t group_begin(const struct attend_args *a, uint32_t group)
{
    return group ? a->group_ends[group - 1] : 0;
}

/* Of a row of that group, counted over all groups. */
static uint32_t block_of(const struct attend_args *a, uint32_t group, uint32_t row)
{
    return a->group_blocks[group] + (row - group_begin(a, group)) / ATTEND_BLOCK;
}

rd_status cuda_op_attend_pack(struct backend *be, const struct attend_args *a)
{
    struct cuda_attend_args args;
    rd_status st = cuda_let_go(be);

    if (st == RD_OK) st = attend_args_of(be, a, &args);
    return st != RD_OK ? st : cuda_check(be, cuda_attend_pack(&be->l, &args), "attend_pack");
}

/* Whether the rows are whole blocks of 64: their first, the groups' that begin among them, and unless all end there, their last. */
static bool are_whole_blocks(const struct attend_args *a)
{
    const uint32_t end = a->row0 + a->n_rows;

    if (a->row0 % ATTEND_BLOCK || (end % ATTEND_BLOCK && end != a->group_ends[a->n_groups - 1])) return false;
    for (uint32_t g = 0; g + 1 < a->n_groups; g++)
        if (a->group_ends[g] % ATTEND_BLOCK) return false;
    return true;
}

rd_status cuda_op_attend_fill(struct backend *be, const struct attend_args *a, const struct turn_args *turn)
{
    struct cuda_attend_fill_args args = {.whole_blocks = are_whole_blocks(a)};
    rd_status st = cuda_here(be);
    uint32_t last;
    int error;

    if (st == RD_OK) st = attend_args_of(be, a, &args.attend);
    if (st != RD_OK) return st;
    args.cosines = turn ? cuda_at(turn->cosines) : NULL;
    args.sines = turn ? cuda_at(turn->sines) : NULL;
    args.first_block = block_of(a, args.attend.first_group, u32_max(a->row0, group_begin(a, args.attend.first_group)));
    last = block_of(a, args.attend.last_group, u32_min(a->row0 + a->n_rows, a->group_ends[args.attend.last_group]) - 1);
    args.n_some_blocks = last + 1 - args.first_block;
    st = cuda_heads_of_held(be, a, &args);
    if (st != RD_E_UNSUPPORTED) return st;
    st = cuda_let_go(be);
    if (st != RD_OK) return st;
    error = cuda_attend_fill(&be->l, &args);
    return error == (int)cudaErrorNotSupported ? RD_E_UNSUPPORTED : cuda_check(be, error, "attend_fill");
}

rd_status cuda_op_attend(struct backend *be, const struct attend_args *a)
{
    struct cuda_attend_args args;
    rd_status st = cuda_let_go(be);

    if (st == RD_OK) st = attend_args_of(be, a, &args);
    assert(a->group_ends[a->n_groups - 1] >= a->row0 + a->n_rows);
    return st != RD_OK ? st : cuda_check(be, cuda_attend(&be->l, &args), "attend");
}
