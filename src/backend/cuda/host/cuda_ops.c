/* backend/cuda/host/cuda_ops.c - the ops: host arrays to the device, then one launch function each, or one for two ops. */
#include <assert.h>
#include <string.h>
#include "backend/cuda/encode_kernels.h"
#include "backend/cuda/host/cuda_backend.h"
#include "backend/cuda/host/cuda_sharing.h"
#include "base/checked.h"

#define SHARED_HEADS 4u /* of a rank, about */

static const struct cuda_matrix *matrix_of(const struct weight *w)
{
    assert(w->role != WEIGHT_VECTOR);
    return &((const struct cuda_weight *)w->data)->m;
}

static const float *vector_of(const struct weight *w)
{
    return w ? w->data : NULL;
}

/* ---- metadata ---- */

static struct cuda_sent *find_sent(struct backend *be, const void *host, uint64_t n_bytes)
{
    for (uint32_t i = 0; i < be->n_sent; i++)
        if (be->sent[i].host == host && be->sent[i].n_bytes == n_bytes) return &be->sent[i];
    return NULL;
}

/* n_bytes of the pinned buffer, to be filled; sent by meta_send. RD_E_NOMEM: a batch beyond what the buffer holds. */
static rd_status meta_place(struct backend *be, uint64_t n_bytes, uint64_t *at)
{
    uint64_t end;

    assert(!cuda_is_loading(be));
    if (be->n_sent == CUDA_MAX_SENT || be->n_meta + n_bytes > CUDA_META_BYTES) {
        rd_status st = cuda_wait_all(be, "sync");

        if (st != RD_OK) return st;
        be->n_sent = 0; /* what ran has read what it needed */
        be->n_meta = 0;
    }
    if (n_bytes > CUDA_META_BYTES) return RD_E_NOMEM;
    *at = be->n_meta;
    end = *at + n_bytes;
    be->n_meta = (end + 255) / 256 * 256;
    return RD_OK;
}

static rd_status meta_send(struct backend *be, uint64_t at, uint64_t n_bytes)
{
    return cuda_check(be,
                      (int)cudaMemcpyAsync(be->meta_device + at, be->meta_host + at, (size_t)n_bytes,
                                           cudaMemcpyHostToDevice, (cudaStream_t)be->l.stream),
                      "metadata");
}

rd_status cuda_send(struct backend *be, const void *host, uint64_t n_bytes, const void **device)
{
    struct cuda_sent *known = find_sent(be, host, n_bytes);
    uint64_t at;
    rd_status st;

    if (be->is_dead) return RD_E_DEVICE;
    if (known) {
        *device = known->device;
        return RD_OK;
    }
    st = meta_place(be, n_bytes, &at);
    if (st != RD_OK) return st;
    memcpy(be->meta_host + at, host, (size_t)n_bytes);
    *device = be->meta_device + at;
    be->sent[be->n_sent++] = (struct cuda_sent){.host = host, .n_bytes = n_bytes, .device = *device};
    return meta_send(be, at, n_bytes);
}

/* Padding has a page, too. */
static uint32_t run_pages(const struct seq_run *run, uint32_t page_tokens)
{
    return u32_ceil_div(u32_max(run->pos0 + u32_max(run->n_rows, 1), run->both_to), page_tokens);
}

/* A run as the kernels have it: seeing in both directions only where a row of it does. */
static struct cuda_run run_of(const struct seq_run *r, uint32_t table)
{
    const uint32_t from = u32_max(r->both_from, r->pos0), to = u32_min(r->both_to, r->pos0 + r->n_rows);
    struct cuda_run run = {.row0 = r->row0, .n_rows = r->n_rows, .pos0 = r->pos0, .table = table};

    if (from < to) run.both_from = r->both_from, run.both_to = r->both_to;
    return run;
}

void cuda_put_table(uint32_t *to, const struct seq_run *run, uint32_t n, const struct kv_storage *kv)
{
    uint32_t first = 0;

    if (kv->window && run->pos0 >= kv->window) first = (run->pos0 - kv->window + 1) / kv->layout.page_tokens;
    for (uint32_t i = 0; i < first; i++) to[i] = kv->n_pages; /* masked, but read: numbers, of nobody */
    memcpy(to + first, run->block_table + first, (n - first) * sizeof(*to));
}

struct cuda_shared cuda_share_runs(struct backend *be, const struct cuda_run *runs, uint32_t n_runs, uint32_t end,
                                   const uint32_t *tables, const struct kv_storage *kv, void *memory)
{
    const struct cuda_shared none = {.head = NULL};
    const struct kv_layout *layout = &kv->layout;
    uint64_t saved;

    if (kv->window && kv->window < end) return none; /* attention of these layers shares nothing then */
    if (n_runs < 2 || be->l.compute != 90 || (layout->head_dim != 64 && layout->head_dim != 128)) return none;
    saved = cuda_sharing_make(runs, n_runs, tables, layout->page_tokens, memory);
    /* of ranks, which may have different numbers of heads, all say the same */
    if (saved * (be->joins ? SHARED_HEADS : layout->n_kv_heads) < CUDA_SHARING_LEAST) return none;
    return cuda_sharing_view(be->meta_device + ((char *)memory - be->meta_host), n_runs);
}

/* Runs, what they share, and their block tables, one after the other. */
static rd_status send_runs(struct backend *be, const struct seq_run *runs, uint32_t n_runs, const struct kv_storage *kv,
                           struct cuda_sent *out)
{
    struct cuda_sent *known = find_sent(be, runs, n_runs);
    uint64_t n_pages = 0, runs_bytes = n_runs * sizeof(struct cuda_run), at, n_bytes;
    uint32_t page_tokens = kv->layout.page_tokens;
    struct cuda_run *to;
    uint32_t *tables;
    rd_status st;

    if (be->is_dead) return RD_E_DEVICE;
    if (known && known->tables) {
        *out = *known;
        return RD_OK;
    }
    *out = (struct cuda_sent){.host = runs, .n_bytes = n_runs};
    for (uint32_t i = 0; i < n_runs; i++) {
        n_pages += run_pages(&runs[i], page_tokens);
        out->longest = u32_max(out->longest, runs[i].n_rows);
        const struct cuda_run run = run_of(&runs[i], 0);

        out->end = u32_max(out->end, u32_max(run.pos0 + run.n_rows, run.both_to));
        out->sees_both_ways |= run.both_to > 0;
    }
    n_bytes = runs_bytes + cuda_sharing_bytes(n_runs) + n_pages * sizeof(*tables);
    st = meta_place(be, n_bytes, &at);
    if (st != RD_OK) return st;
    to = (struct cuda_run *)(be->meta_host + at);
    tables = (uint32_t *)((char *)(to + n_runs) + cuda_sharing_bytes(n_runs));
    n_pages = 0;
    for (uint32_t i = 0; i < n_runs; i++) {
        uint32_t n = run_pages(&runs[i], page_tokens);

        to[i] = run_of(&runs[i], (uint32_t)n_pages);
        cuda_put_table(tables + n_pages, &runs[i], n, kv);
        n_pages += n;
    }
    out->device = be->meta_device + at;
    out->tables = (const uint32_t *)(be->meta_device + ((char *)tables - be->meta_host));
    if (!out->sees_both_ways) out->shared = cuda_share_runs(be, to, n_runs, out->end, tables, kv, to + n_runs);
    be->sent[be->n_sent++] = *out;
    return meta_send(be, at, n_bytes);
}

struct cuda_kv cuda_layer_kv(const struct kv_storage *kv, uint32_t layer)
{
    return (struct cuda_kv){
        .base = kv->base,
        .page_bytes = kv->page_bytes,
        .k_offset = kv_head_offset(kv, layer, 0, 0),
        .v_offset = kv_head_offset(kv, layer, 1, 0),
        .k_row_bytes = (uint32_t)kv->row_bytes[0],
        .v_row_bytes = (uint32_t)kv->row_bytes[1],
        .page_tokens = kv->layout.page_tokens,
        .dtype_k = (int)kv->layout.dtype_k,
        .dtype_v = (int)kv->layout.dtype_v,
    };
}

/* ---- launches of what may be held back ---- */

static struct cuda_norm_args norm_args_of(const struct residual_norm_args *a)
{
    return (struct cuda_norm_args){a->n_rows,
                                   a->width,
                                   cuda_at(a->x),
                                   cuda_at(a->delta),
                                   vector_of(a->delta_norm),
                                   vector_of(a->norm),
                                   a->eps,
                                   a->for_linear ? NULL : cuda_at(a->out),
                                   a->norm ? cuda_shadow(a->out) : NULL};
}

static rd_status launch_norm(struct backend *be, const struct residual_norm_args *a)
{
    const struct cuda_norm_args n = norm_args_of(a);

    return cuda_check(be, cuda_residual_norm(&be->l, &n), "residual_norm");
}

/* norm as an argument of a product: x += delta is no part of that. */
static struct cuda_input_norm input_norm(const struct residual_norm_args *a)
{
    return a ? (struct cuda_input_norm){cuda_at(a->x), vector_of(a->norm), a->eps}
             : (struct cuda_input_norm){NULL, NULL, 0};
}

static struct cuda_linear_args linear_args_of(const struct linear_args *a, const struct residual_norm_args *norm,
                                              float *add_to)
{
    struct cuda_linear_args args = {
        a->n_rows, cuda_shadow(a->x), a->x_stride, a->n_outs, {{0}}, input_norm(norm), add_to, NULL, NULL};

    assert(args.x16);
    for (uint32_t i = 0; i < a->n_outs; i++)
        args.outs[i] = (struct cuda_linear_out){matrix_of(a->outs[i].w), vector_of(a->outs[i].bias),
                                                cuda_at(a->outs[i].out), a->outs[i].out_stride};
    return args;
}

/* Where all ranks can, their outputs go straight to where the join that follows has them. */
static rd_status begin_join(struct backend *be, const struct linear_args *a, struct cuda_linear_args *args,
                            struct cuda_copies *copies)
{
    struct cuda_linear_args there = *args;
    bool begun = false;
    rd_status st = RD_OK;

    there.outs[0].out = cuda_join_place(be, a->then, &there.outs[0].out_stride);
    there.copies = copies;
    if (there.outs[0].out) st = cuda_join_begin(be, a->then, cuda_linear_copies(&be->l, &there), copies, &begun);
    if (begun) *args = there;
    return st;
}

/* norm: x is its output; or NULL. add_to: what the product is added to, instead of written; or NULL. */
static rd_status launch_linear(struct backend *be, const struct linear_args *a, const struct residual_norm_args *norm,
                               float *add_to)
{
    struct cuda_linear_args args = linear_args_of(a, norm, add_to);
    struct cuda_copies copies;
    rd_status st = begin_join(be, a, &args, &copies);
    int error;

    if (st != RD_OK) return st;
    error = a->many ? cuda_linear_many(&be->l, &args, -1, NULL) : (int)cudaErrorNotSupported;
    if (error == (int)cudaErrorNotSupported) error = cuda_linear(&be->l, &args);
    return cuda_check(be, error, "linear");
}

static rd_status launch_qkv(struct backend *be, const struct qkv_args *a);

rd_status cuda_let_go(struct backend *be)
{
    const struct cuda_held held = be->held;
    const rd_status st = cuda_here(be);

    be->held.op = CUDA_HELD_NONE;
    if (st != RD_OK) return st;
    switch (held.op) {
    case CUDA_HELD_NORM:
        return launch_norm(be, &held.norm);
    case CUDA_HELD_LINEAR:
        return launch_linear(be, &held.linear, NULL, NULL);
    case CUDA_HELD_QKV:
        return launch_qkv(be, &held.qkv);
    case CUDA_HELD_JOIN:
        return cuda_launch_join(be, &held.join, NULL);
    case CUDA_HELD_ADAPTED:
        return cuda_check(be, cuda_low_rank_rows(&be->l, &held.adapted), "low_rank_rows");
    case CUDA_HELD_NONE:
        break;
    }
    return RD_OK;
}

/* The norm that is held back, if x is its output of these rows: in *norm, and not held any more. Else what is held is
 * launched. */
static rd_status take_norm(struct backend *be, struct span x, uint32_t n_rows, uint32_t x_stride,
                           struct residual_norm_args *norm, bool *taken)
{
    const struct residual_norm_args *held = &be->held.norm;

    *taken =
        be->held.op == CUDA_HELD_NORM && span_equal(held->out, x) && held->n_rows == n_rows && held->width == x_stride;
    if (!*taken) return cuda_let_go(be);
    *norm = *held;
    be->held.op = CUDA_HELD_NONE;
    return be->is_dead ? RD_E_DEVICE : RD_OK;
}

/* ---- ops ---- */

rd_status cuda_op_embed(struct backend *be, const struct weight *w, uint32_t n_rows, const int32_t *tokens, float scale,
                        struct span out)
{
    const void *ids = NULL;
    rd_status st = cuda_let_go(be);

    if (st == RD_OK) st = cuda_send(be, tokens, n_rows * sizeof(*tokens), &ids);
    assert(w->role == WEIGHT_EMBED);
    if (st != RD_OK) return st;
    return cuda_check(be, cuda_embed(&be->l, matrix_of(w), n_rows, ids, scale, cuda_at(out)), "embed");
}

/* One output, its rows one behind the other. */
static bool is_dense(const struct linear_args *a)
{
    return a->n_outs == 1 && a->outs[0].out_stride == a->outs[0].w->n_out;
}

/* Whether the product, or the join, that is held back is the delta that a adds. */
static bool adds_held(const struct backend *be, const struct residual_norm_args *a)
{
    const struct linear_out *out = &be->held.linear.outs[0];
    const struct join_args *join = &be->held.join;

    if (be->held.op == CUDA_HELD_JOIN)
        return span_equal(a->delta, join->out) && !a->delta_norm && a->n_rows == join->n_rows &&
               a->width == join->ends[join->n_ranks - 1];
    return be->held.op == CUDA_HELD_LINEAR && is_dense(&be->held.linear) && span_equal(a->delta, out->out) &&
           !a->delta_norm && a->n_rows == be->held.linear.n_rows && a->width == out->w->n_out;
}

rd_status cuda_op_residual_norm(struct backend *be, const struct residual_norm_args *a)
{
    struct residual_norm_args n = *a;
    rd_status st;

    assert(!a->norm || a->norm->n_in == a->width);
    assert(!a->delta_norm || a->delta_norm->n_in == a->width);
    if (adds_held(be, a) && be->held.op == CUDA_HELD_JOIN && cuda_join_has_begun(be)) {
        const struct cuda_norm_args args = norm_args_of(a);

        be->held.op = CUDA_HELD_NONE;
        return be->is_dead ? RD_E_DEVICE : cuda_join_norm(be, &be->held.join, &args);
    }
    if (adds_held(be, a)) {
        const bool is_join = be->held.op == CUDA_HELD_JOIN;

        be->held.op = CUDA_HELD_NONE;
        n.delta = span_none();
        st = be->is_dead ? RD_E_DEVICE
             : is_join   ? cuda_launch_join(be, &be->held.join, cuda_at(a->x))
                         : launch_linear(be, &be->held.linear, NULL, cuda_at(a->x));
    } else {
        st = cuda_let_go(be);
    }
    if (st != RD_OK || (span_is_none(n.delta) && !n.norm)) return st;
    if (!n.once || !span_is_none(n.delta) || n.n_rows > CUDA_HELD_ROWS) return launch_norm(be, &n);
    be->held.norm = n;
    be->held.op = CUDA_HELD_NORM;
    return RD_OK;
}

/* Whether a product of many rows may be held: cuda_linear_many takes it, with its bias. */
static bool adds_many(const struct backend *be, const struct linear_args *a)
{
    return a->many && be->l.compute == 90 && matrix_of(a->outs[0].w)->format == CUDA_BF16;
}

static rd_status begin_t(struct backend *be, const struct low_rank_rows_args *a);

rd_status cuda_op_linear(struct backend *be, const struct linear_args *a)
{
    struct residual_norm_args norm;
    bool has_norm;
    rd_status st = take_norm(be, a->x, a->n_rows, a->x_stride, &norm, &has_norm);

    assert(!a->by_row || !has_norm); /* x is read, too */
    if (st == RD_OK && a->by_row) st = begin_t(be, a->by_row);
    if (st != RD_OK) return st;
    if (!a->once || has_norm || (!adds_many(be, a) && (a->n_rows > CUDA_HELD_ROWS || a->outs[0].bias || !is_dense(a))))
        return launch_linear(be, a, has_norm ? &norm : NULL, NULL);
    be->held.linear = *a;
    be->held.op = CUDA_HELD_LINEAR;
    return RD_OK;
}

rd_status cuda_gelu_of_held(struct backend *be, const struct gelu_args *a)
{
    const struct linear_args held = be->held.linear;
    struct cuda_linear_args args;
    int error;

    if (be->held.op != CUDA_HELD_LINEAR || !held.many || !is_dense(&held) || !a->for_linear ||
        !span_equal(held.outs[0].out, a->x) || (uint64_t)held.n_rows * held.outs[0].w->n_out != a->n)
        return RD_E_UNSUPPORTED;
    args = linear_args_of(&held, NULL, NULL);
    error = cuda_here(be) == RD_OK ? cuda_linear_many(&be->l, &args, cuda_gelu_form(a->kind), cuda_shadow(a->x))
                                   : (int)cudaErrorNotSupported;
    if (error == (int)cudaErrorNotSupported) return RD_E_UNSUPPORTED;
    be->held.op = CUDA_HELD_NONE;
    return cuda_check(be, error, "linear and gelu");
}

/* Whether the product that is held back makes q, k and v of a. */
static bool fills_held(const struct backend *be, const struct attend_args *a)
{
    const struct linear_args *held = &be->held.linear;
    const uint64_t hidden = (uint64_t)a->n_heads * a->head_dim;

    if (be->held.op != CUDA_HELD_LINEAR || !held->many || held->n_rows != a->n_rows) return false;
    for (uint32_t i = 0; i < held->n_outs; i++)
        if (held->outs[i].out_stride != a->stride) return false;
    if (held->n_outs == 3)
        return span_equal(held->outs[0].out, a->q) && span_equal(held->outs[1].out, a->k) &&
               span_equal(held->outs[2].out, a->v);
    return span_equal(held->outs[0].out, a->q) && span_equal(a->k, span_add(a->q, hidden)) &&
           span_equal(a->v, span_add(a->q, 2 * hidden));
}

rd_status cuda_heads_of_held(struct backend *be, const struct attend_args *a, const struct cuda_attend_fill_args *fill)
{
    struct cuda_linear_args args;
    int error;

    if (!fills_held(be, a)) return RD_E_UNSUPPORTED;
    args = linear_args_of(&be->held.linear, NULL, NULL);
    error = cuda_linear_heads(&be->l, &args, fill);
    if (error == (int)cudaErrorNotSupported) return RD_E_UNSUPPORTED;
    be->held.op = CUDA_HELD_NONE;
    return cuda_check(be, error, "linear and attend_fill");
}

rd_status cuda_op_linear_glu(struct backend *be, const struct linear_glu_args *a)
{
    struct residual_norm_args norm;
    struct cuda_copies copies;
    bool has_norm, begun = false;
    rd_status st = take_norm(be, a->x, a->n_rows, a->x_stride, &norm, &has_norm);
    struct cuda_linear_glu_args there;
    struct cuda_linear_glu_args args = {
        .n_rows = a->n_rows,
        .x16 = cuda_shadow(a->x),
        .x_stride = a->x_stride,
        .gate = matrix_of(a->gate),
        .up = matrix_of(a->up),
        .act = a->act == ACT_SILU ? CUDA_SILU : CUDA_GELU_TANH,
        .out16 = cuda_shadow(a->out),
        .scratch_gate = cuda_at(a->gate_out),
        .scratch_up = cuda_at(a->up_out),
        .norm = input_norm(has_norm ? &norm : NULL),
    };

    assert(args.x16 && args.out16);
    if (st != RD_OK) return st;
    there = args;
    there.out16 = cuda_join_place(be, a->then, &there.out_stride);
    there.copies = &copies;
    if (there.out16) st = cuda_join_begin(be, a->then, cuda_linear_glu_copies(&be->l, &there), &copies, &begun);
    if (begun) args = there;
    return st != RD_OK ? st : cuda_check(be, cuda_linear_glu(&be->l, &args), "linear_glu");
}

static rd_status qkv_args_of(struct backend *be, const struct qkv_args *a, struct cuda_qkv_args *out)
{
    const void *positions = NULL, *pages = NULL, *slots = NULL, *axes = NULL, *axis_of = NULL;
    uint64_t n_bytes = a->n_rows * sizeof(uint32_t);
    rd_status st = cuda_send(be, a->positions, n_bytes, &positions);

    if (st == RD_OK) st = cuda_send(be, a->row_page, n_bytes, &pages);
    if (st == RD_OK) st = cuda_send(be, a->row_slot, n_bytes, &slots);
    if (st == RD_OK && a->axes) st = cuda_send(be, a->axes, 3 * n_bytes, &axes);
    if (st == RD_OK && a->axes) st = cuda_send(be, a->axis_of, a->n_rot / 2, &axis_of);
    if (st != RD_OK) return st;
    *out = (struct cuda_qkv_args){
        .n_rows = a->n_rows,
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .q = cuda_at(a->q),
        .q_stride = a->q_stride,
        .k = cuda_at(a->k),
        .k_stride = a->k_stride,
        .v = cuda_at(a->v),
        .v_stride = a->v_stride,
        .q_norm = vector_of(a->q_norm),
        .k_norm = vector_of(a->k_norm),
        .k_bias = vector_of(a->k_bias),
        .norm_eps = a->norm_eps,
        .positions = positions,
        .axes = axes,
        .axis_of = axis_of,
        .inv_freq = vector_of(a->inv_freq),
        .n_rot = a->n_rot,
        .mscale = a->rope_mscale,
        .half_split = a->layout == ROPE_HALF_SPLIT,
        .row_page = pages,
        .row_slot = slots,
        .kv = cuda_layer_kv(a->kv, a->layer),
    };
    return RD_OK;
}

static rd_status launch_qkv(struct backend *be, const struct qkv_args *a)
{
    struct cuda_qkv_args args;
    rd_status st = qkv_args_of(be, a, &args);

    return st != RD_OK ? st : cuda_check(be, cuda_qkv_rope_write(&be->l, &args), "qkv_rope_write");
}

rd_status cuda_op_qkv_rope_write(struct backend *be, const struct qkv_args *a)
{
    rd_status st = cuda_let_go(be);

    if (st != RD_OK || !a->once || a->n_rows > CUDA_HELD_ROWS) return st != RD_OK ? st : launch_qkv(be, a);
    be->held.qkv = *a;
    be->held.op = CUDA_HELD_QKV;
    return RD_OK;
}

rd_status cuda_op_attention(struct backend *be, const struct attention_args *a)
{
    struct cuda_sent runs;
    struct cuda_attention_args args, there;
    struct cuda_qkv_args first;
    bool begun = false;
    const struct qkv_args *qkv = &be->held.qkv;
    const bool has_first = be->held.op == CUDA_HELD_QKV && span_equal(qkv->q, a->q) && qkv->n_rows == a->n_rows &&
                           qkv->layer == a->layer && qkv->kv == a->kv && a->n_runs > 0;
    rd_status st = has_first ? RD_OK : cuda_let_go(be);

    be->held.op = CUDA_HELD_NONE;
    if (st != RD_OK || a->n_runs == 0) return st;
    st = send_runs(be, a->runs, a->n_runs, a->kv, &runs);
    if (st == RD_OK && has_first) st = qkv_args_of(be, qkv, &first);
    if (st != RD_OK) return st;
    args = (struct cuda_attention_args){
        .n_rows = a->n_rows,
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim,
        .q = cuda_at(a->q),
        .q_stride = a->q_stride,
        .out = a->for_linear ? NULL : cuda_at(a->out),
        .out16 = cuda_shadow(a->out),
        .out_stride = a->out_stride,
        .scale = a->scale,
        .softcap = a->softcap,
        .window = a->window,
        .n_runs = a->n_runs,
        .longest_run = runs.longest,
        .end = runs.end,
        .sees_both_ways = runs.sees_both_ways,
        .runs = runs.device,
        .tables = runs.tables,
        .shared = runs.shared,
        .kv = cuda_layer_kv(a->kv, a->layer),
    };
    there = args;
    there.out16 = cuda_join_place(be, a->then, &there.out_stride);
    if (there.out16)
        st = cuda_join_begin(be, a->then, cuda_attention_copies(&be->l, &there, has_first ? &first : NULL),
                             &there.copies, &begun);
    if (st != RD_OK) return st;
    if (begun) args = there;
    return cuda_check(be, cuda_attention(&be->l, &args, has_first ? &first : NULL), "attention");
}

/* Where gate and up are what the adapters held back add to. RD_E_UNSUPPORTED: not so, or no kernel does both. */
static rd_status glu_of_held(struct backend *be, enum activation act, uint32_t n_rows, uint32_t width, struct span gate,
                             struct span up, struct span out)
{
    const struct cuda_low_rank_rows_args *held = &be->held.adapted;
    int error;

    if (be->held.op != CUDA_HELD_ADAPTED || held->n_rows != n_rows || held->n_out[0] != width ||
        held->outs[0] != cuda_at(gate) || held->outs[1] != cuda_at(up))
        return RD_E_UNSUPPORTED;
    if (cuda_here(be) != RD_OK) return RD_E_DEVICE;
    error =
        cuda_low_rank_glu(&be->l, held, act == ACT_SILU ? CUDA_SILU : CUDA_GELU_TANH, cuda_at(out), cuda_shadow(out));
    if (error == (int)cudaErrorNotSupported) return RD_E_UNSUPPORTED;
    be->held.op = CUDA_HELD_NONE;
    return cuda_check(be, error, "adapters and glu");
}

rd_status cuda_op_glu(struct backend *be, enum activation act, uint32_t n_rows, uint32_t width, struct span gate,
                      struct span up, struct span out)
{
    rd_status st = glu_of_held(be, act, n_rows, width, gate, up, out);

    if (st != RD_E_UNSUPPORTED) return st;
    st = cuda_let_go(be);
    if (st != RD_OK) return st;
    return cuda_check(be,
                      cuda_glu(&be->l, act == ACT_SILU ? CUDA_SILU : CUDA_GELU_TANH, (uint64_t)n_rows * width,
                               cuda_at(gate), cuda_at(up), cuda_at(out), cuda_shadow(out)),
                      "glu");
}

static int stored_type(const struct weight *w)
{
    return w->dtype == DTYPE_F32 ? CUDA_STORED_F32 : w->dtype == DTYPE_F16 ? CUDA_STORED_F16 : CUDA_STORED_BF16;
}

struct cuda_low_rank_pair cuda_pair_of(const struct weight *a, const struct weight *b, float scale)
{
    return (struct cuda_low_rank_pair){a->data, b->data, stored_type(a), stored_type(b), scale, a->n_out};
}

static bool goes_on(const struct low_rank_term *m)
{
    return m->rows == m[-1].rows && m->n_rows == m[-1].n_rows && span_equal(m->out, m[-1].out);
}

/* Fills terms and chains, and the numbers of args; rows: NULL, or where the terms' rows go. The number of those. */
static uint32_t fill_low_rank(const struct low_rank_args *a, struct cuda_low_rank_args *args,
                              struct cuda_low_rank_term *terms, uint32_t *chains, uint32_t *rows)
{
    uint32_t n_rows = 0;

    args->n_chains = args->most_rows = args->kinds = 0;
    for (uint32_t i = 0; i < a->n_terms; i++) {
        const struct low_rank_term *m = &a->terms[i];
        const bool is_first = i == 0 || m->rows != m[-1].rows || m->n_rows != m[-1].n_rows;

        assert(m->a->role == WEIGHT_LOW_RANK && m->b->role == WEIGHT_LOW_RANK && m->n_rows > 0);
        if (is_first) n_rows += m->n_rows;
        if (is_first && rows) memcpy(rows + n_rows - m->n_rows, m->rows, m->n_rows * sizeof(*rows));
        if (chains && (i == 0 || !goes_on(m))) chains[args->n_chains++] = i;
        if (terms)
            terms[i] = (struct cuda_low_rank_term){.pair = cuda_pair_of(m->a, m->b, m->scale),
                                                   .out = cuda_at(m->out),
                                                   .n_in = m->a->n_in,
                                                   .n_out = m->b->n_in,
                                                   .first_row = n_rows - m->n_rows,
                                                   .n_rows = m->n_rows,
                                                   .out_stride = m->out_stride};
        args->most_rows = u32_max(args->most_rows, m->n_rows);
        if (terms) args->kinds |= cuda_low_rank_kinds(&terms[i].pair);
    }
    if (chains) chains[args->n_chains] = a->n_terms;
    return n_rows;
}

rd_status cuda_op_low_rank(struct backend *be, const struct low_rank_args *a)
{
    struct cuda_low_rank_args args = {.x = cuda_at(a->x), .x_stride = a->x_stride, .n_terms = a->n_terms};
    const uint64_t terms_bytes = a->n_terms * sizeof(struct cuda_low_rank_term),
                   chains_bytes = (a->n_terms + 1) * sizeof(uint32_t);
    uint64_t at, n_bytes;
    rd_status st = cuda_let_go(be);

    if (st != RD_OK || a->n_terms == 0) return st;
    n_bytes = terms_bytes + chains_bytes + fill_low_rank(a, &args, NULL, NULL, NULL) * sizeof(uint32_t);
    st = meta_place(be, n_bytes, &at);
    if (st != RD_OK) return st;
    (void)fill_low_rank(a, &args, (struct cuda_low_rank_term *)(void *)(be->meta_host + at),
                        (uint32_t *)(void *)(be->meta_host + at + terms_bytes),
                        (uint32_t *)(void *)(be->meta_host + at + terms_bytes + chains_bytes));
    args.terms = (const struct cuda_low_rank_term *)(const void *)(be->meta_device + at);
    args.chains = (const uint32_t *)(const void *)(be->meta_device + at + terms_bytes);
    args.rows = args.chains + a->n_terms + 1;
    st = meta_send(be, at, n_bytes);
    return st != RD_OK
               ? st
               : cuda_check(
                     be, cuda_low_rank(&be->l, &args, (const struct cuda_low_rank_term *)(void *)(be->meta_host + at)),
                     "low_rank");
}

uint32_t cuda_adapted_kinds(const struct low_rank_row *rows, uint32_t n)
{
    uint32_t kinds = 0;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < rows[i].n_uses; k++) kinds |= rows[i].uses[k].table->format;
    return kinds;
}

static bool has_uses(const struct low_rank_row *a, const struct low_rank_row *b)
{
    if (a->n_uses != b->n_uses) return false;
    for (uint32_t k = 0; k < a->n_uses; k++)
        if (a->uses[k].table != b->uses[k].table || a->uses[k].scale != b->uses[k].scale) return false;
    return true;
}

void cuda_adapted_tiles(const struct low_rank_row *rows, uint32_t n, struct cuda_low_rank_tile *out)
{
    uint32_t n_tiles = 0;

    static_assert(LOW_RANK_USES == CUDA_LOW_RANK_USES, "one row's uses");
    for (uint32_t i = 0, k; i < n; i++) {
        for (k = 0; k < n_tiles; k++)
            if (out[k].n_rows < CUDA_LOW_RANK_TILE && has_uses(&rows[out[k].rows[0]], &rows[i])) break;
        if (k == n_tiles) {
            out[n_tiles++] = (struct cuda_low_rank_tile){.n_uses = rows[i].n_uses};
            for (uint32_t u = 0; u < rows[i].n_uses; u++)
                out[k].uses[u] = (struct cuda_low_rank_use){rows[i].uses[u].table->data, rows[i].uses[u].scale, 0};
        }
        out[k].rows[out[k].n_rows++] = i;
    }
    for (; n_tiles < n; n_tiles++) out[n_tiles].n_rows = 0;
}

/* A step's are there already, but where there was no room, or nothing is recorded. */
static rd_status send_adapted(struct backend *be, const struct low_rank_row *rows, uint32_t n, const void **device)
{
    const uint64_t n_bytes = n * sizeof(struct cuda_low_rank_tile);
    const struct cuda_sent *known = find_sent(be, rows, n);
    uint64_t at;
    rd_status st;

    if (known) {
        *device = known->device;
        return RD_OK;
    }
    st = meta_place(be, n_bytes, &at);
    if (st != RD_OK) return st;
    cuda_adapted_tiles(rows, n, (struct cuda_low_rank_tile *)(void *)(be->meta_host + at));
    *device = be->meta_device + at;
    be->sent[be->n_sent++] = (struct cuda_sent){.host = rows, .n_bytes = n, .device = *device};
    return meta_send(be, at, n_bytes);
}

static rd_status rows_args_of(struct backend *be, const struct low_rank_rows_args *a,
                              struct cuda_low_rank_rows_args *out)
{
    const void *tiles = NULL;
    const rd_status st = send_adapted(be, a->rows, a->n_rows, &tiles);

    *out = (struct cuda_low_rank_rows_args){.n_rows = a->n_rows,
                                            .first = a->first,
                                            .n_outs = a->n_outs,
                                            .n_in = a->n_in,
                                            .kinds = cuda_adapted_kinds(a->rows, a->n_rows),
                                            .tiles = tiles,
                                            .x = cuda_at(a->x),
                                            .most_ranks = a->most_ranks,
                                            .t = cuda_at(a->t)};
    for (uint32_t i = 0; i < a->n_outs; i++) {
        out->outs[i] = cuda_at(a->outs[i]);
        out->n_out[i] = a->n_out[i];
    }
    return st;
}

/* In a recorded step, from here to low_rank_rows: t, beside the product that comes now. */
static rd_status begin_t(struct backend *be, const struct low_rank_rows_args *a)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaStream_t stream = (cudaStream_t)be->l.stream, branch = (cudaStream_t)be->branch.stream;
    struct cuda_launch l = be->l;
    struct cuda_low_rank_rows_args args;
    cudaError_t error = cudaStreamIsCapturing(stream, &status);
    rd_status st;

    be->branch.has_t = false;
    if (error != cudaSuccess || status != cudaStreamCaptureStatusActive)
        return cuda_check(be, (int)error, "low_rank_t");
    st = rows_args_of(be, a, &args);
    if (st != RD_OK) return st;
    l.stream = be->branch.stream;
    l.pdl = false;
    error = cudaEventRecord(be->branch.fork, stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(branch, be->branch.fork, 0);
    if (error == cudaSuccess) error = (cudaError_t)cuda_low_rank_t(&l, &args);
    if (error == cudaSuccess) error = cudaEventRecord(be->branch.join, branch);
    be->branch.has_t = error == cudaSuccess;
    return cuda_check(be, (int)error, "low_rank_t");
}

rd_status cuda_op_low_rank_rows(struct backend *be, const struct low_rank_rows_args *a)
{
    const bool has_t = be->branch.has_t;
    struct cuda_low_rank_rows_args args;
    rd_status st = cuda_let_go(be);
    int error;

    be->branch.has_t = false;
    if (st == RD_OK) st = rows_args_of(be, a, &args);
    if (st != RD_OK) return st;
    error = has_t ? (int)cudaStreamWaitEvent((cudaStream_t)be->l.stream, be->branch.join, 0)
                  : cuda_low_rank_t(&be->l, &args);
    if (error || a->n_outs != 2)
        return cuda_check(be, error ? error : cuda_low_rank_rows(&be->l, &args), "low_rank_rows");
    be->held.adapted = args;
    be->held.op = CUDA_HELD_ADAPTED;
    return RD_OK;
}

rd_status cuda_op_gather(struct backend *be, uint32_t n, uint32_t width, struct span x, const uint32_t *rows,
                         struct span out)
{
    const void *ids = NULL;
    rd_status st = cuda_let_go(be);

    if (st == RD_OK) st = cuda_send(be, rows, n * sizeof(*rows), &ids);
    if (st != RD_OK) return st;
    return cuda_check(be, cuda_gather(&be->l, n, width, cuda_at(x), ids, cuda_at(out)), "gather");
}

rd_status cuda_op_softcap(struct backend *be, struct span x, uint64_t n, float cap)
{
    rd_status st = cuda_let_go(be);

    if (st != RD_OK) return st;
    return cuda_check(be, cuda_softcap(&be->l, cuda_at(x), n, cap), "softcap");
}

rd_status cuda_op_choose(struct backend *be, uint32_t n_rows, uint32_t n_vocab, struct span logits,
                         const struct row_draw *draws, struct span choices)
{
    const void *sent = NULL;
    rd_status st = cuda_let_go(be);

    if (st == RD_OK) st = cuda_send(be, draws, n_rows * sizeof(*draws), &sent);
    assert(draws);
    _Static_assert(sizeof(struct row_choice) == sizeof(struct cuda_choice), "the same in both headers");
    _Static_assert(sizeof(struct row_draw) == sizeof(struct cuda_draw), "the same in both headers");
    if (st != RD_OK) return st;
    return cuda_check(be, cuda_choose(&be->l, n_rows, n_vocab, cuda_at(logits), n_vocab, sent, cuda_at(choices)),
                      "choose");
}

rd_status cuda_op_linear_choose(struct backend *be, const struct linear_args *a, const struct row_draw *draws,
                                struct span choices)
{
    struct cuda_linear_args args = linear_args_of(a, NULL, NULL);
    const void *sent = NULL;
    rd_status st = cuda_let_go(be);
    int error;

    if (st == RD_OK) st = cuda_send(be, draws, a->n_rows * sizeof(*draws), &sent);
    assert(draws && a->n_outs == 1);
    if (st != RD_OK) return st;
    error = cuda_linear_choose(&be->l, &args, sent, cuda_at(choices));
    return error == (int)cudaErrorNotSupported ? RD_E_UNSUPPORTED : cuda_check(be, error, "linear_choose");
}

rd_status cuda_op_kv_copy_rows(struct backend *be, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n_rows)
{
    struct cuda_copy_rows_args a = {kv->base,
                                    kv->page_bytes,
                                    kv->layout.n_layers,
                                    kv->layout.n_kv_heads,
                                    kv->layout.page_tokens,
                                    (uint32_t)kv->row_bytes[0],
                                    (uint32_t)kv->row_bytes[1],
                                    to,
                                    from,
                                    n_rows};

    rd_status st = cuda_let_go(be);

    assert(to < kv->n_pages && from < kv->n_pages && to != from && n_rows <= kv->layout.page_tokens);
    if (st != RD_OK) return st;
    return cuda_check(be, cuda_copy_rows(&be->l, &a), "kv_copy_rows");
}
