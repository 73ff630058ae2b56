/* vision/encoder_layers.c - what a block of rows goes through: the ops of a layer, and the way to a device and back. */
#include "vision/encoder.h"
#include <assert.h>
#include <math.h>
#include "base/checked.h"
#include "vision/encoder_inside.h"

#define SHARE_ROWS 64u  /* that a thread copies at a time */
#define GET_ROWS   768u /* that the host copies while the next come */

void vision_share(const struct vision_encoder *e, uint32_t n, void (*fn)(void *arg, uint32_t from, uint32_t to),
                  void *arg)
{
    if (e->copiers && n > SHARE_ROWS)
        copiers_share(e->copiers, n, SHARE_ROWS, fn, arg);
    else
        fn(arg, 0, n);
}

static float *half_of(const struct vision_encoder *e, uint32_t half)
{
    return e->stage + (half % 2) * e->stage_floats;
}

float *vision_room(struct vision_encoder *e, struct span to, uint64_t at)
{
    if (!e->stage) return (float *)(uintptr_t)to.at;
    if (at == 0) e->stage_half ^= 1;
    return half_of(e, e->stage_half) + at;
}

rd_status vision_put(struct vision_encoder *e, struct span to, uint64_t at, uint64_t n)
{
    rd_status st = RD_OK;

    if (!e->stage) return RD_OK;
    assert(at + n <= e->stage_floats);
    if (at == 0) st = e->ops->memory.sync(e->be); /* the other half is free again */
    return st == RD_OK ? e->ops->memory.write(e->be, to, half_of(e, e->stage_half) + at, n * sizeof(float)) : st;
}

rd_status vision_get(struct vision_encoder *e, struct span from, uint64_t n, const float **out)
{
    rd_status st;

    *out = e->stage ? half_of(e, e->stage_half ^= 1) : (const float *)(uintptr_t)from.at;
    if (!e->stage) return RD_OK;
    assert(n <= e->stage_floats);
    st = e->ops->memory.read(e->be, half_of(e, e->stage_half), from, n * sizeof(float));
    return st == RD_OK ? e->ops->memory.sync(e->be) : st;
}

rd_status vision_get_rows(struct vision_encoder *e, struct span from, uint32_t n, uint32_t width,
                          void (*fn)(void *arg, const float *values, uint32_t first, uint32_t some), void *arg)
{
    const uint32_t most = e->stage ? u32_min((uint32_t)(e->stage_floats / width), GET_ROWS) : n;
    rd_status st = RD_OK;

    if (!e->stage) {
        fn(arg, (const float *)(uintptr_t)from.at, 0, n);
        return RD_OK;
    }
    for (uint32_t next = 0, row = 0, some = 0; st == RD_OK && row < n; row += some) {
        const float *const values = half_of(e, e->stage_half);

        some = next - row;
        if (some > 0) st = e->ops->memory.sync(e->be);
        if (st == RD_OK && next < n) {
            const uint32_t more = u32_min(most, n - next);

            e->stage_half ^= 1;
            st = e->ops->memory.read(e->be, half_of(e, e->stage_half), span_add(from, (uint64_t)next * width),
                                     (uint64_t)more * width * sizeof(float));
            next += more;
        }
        if (st == RD_OK && some > 0) fn(arg, values, row, some);
    }
    return st;
}

static rd_status linear(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                        struct span x, struct span out, bool once)
{
    const struct linear_args a = {.n_rows = n,
                                  .x = x,
                                  .x_stride = w->n_in,
                                  .n_outs = 1,
                                  .outs = {{w, b && b->data ? b : NULL, out, w->n_out}},
                                  .once = once,
                                  .many = true};

    return e->ops->op.linear(e->be, &a);
}

rd_status vision_linear(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                        struct span x, struct span out)
{
    return linear(e, w, b, n, x, out, false);
}

rd_status vision_linear_once(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                             struct span x, struct span out)
{
    return linear(e, w, b, n, x, out, true);
}

rd_status vision_gelu(const struct vision_encoder *e, enum gelu kind, uint32_t n, uint32_t width, struct span x)
{
    const struct gelu_args a = {kind, (uint64_t)n * width, x, true};

    return e->ops->op.gelu(e->be, &a);
}

rd_status vision_norm(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                      struct span x, struct span out, bool for_linear)
{
    const struct layer_norm_args ln = {n, w->n_in, x, w, b, e->eps, out, for_linear};
    const struct residual_norm_args rms = {.n_rows = n, .width = w->n_in, .x = x, .norm = w, .eps = e->eps, .out = out};

    return b->data ? e->ops->op.layer_norm(e->be, &ln) : e->ops->op.residual_norm(e->be, &rms);
}

uint32_t vision_most_heads(const struct vision_encoder *e)
{
    return e->ops->traits.shares_memory ? u32_min(ATTEND_HEADS, e->n_heads) : e->n_heads;
}

uint32_t vision_some_heads(const struct vision_run *r)
{
    return u32_min(vision_most_heads(r->e), r->e->n_heads - r->head);
}

static struct attend_args attend_args_of(const struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const bool windows = e->window && !e->full[r->layer];

    return (struct attend_args){.row0 = row,
                                .n_rows = n,
                                .n_heads = e->n_heads,
                                .head_dim = e->head_dim,
                                .q = r->qkv,
                                .k = span_add(r->qkv, e->hidden),
                                .v = span_add(r->qkv, 2 * (uint64_t)e->hidden),
                                .stride = 3 * e->hidden,
                                .head0 = r->head,
                                .n_some = vision_some_heads(r),
                                .out = span_add(r->attn, (uint64_t)row * e->hidden),
                                .scale = 1.0f / sqrtf((float)e->head_dim),
                                .n_groups = windows ? r->n_windows : r->n_frames,
                                .group_ends = windows ? r->windows : r->frames,
                                .group_blocks = windows ? r->window_blocks : r->frame_blocks,
                                .packed = r->pack,
                                .for_linear = true};
}

/* q and k of the rows turned, and where the backend does that, put to where attend reads them. */
static rd_status fill_or_turn(struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const uint32_t h = e->hidden, stride = 3 * h, half = e->head_dim / 2;
    const struct span qkv = span_add(r->qkv, (uint64_t)row * stride);
    const bool turns = e->family->turns;
    const struct turn_args turn = {.n_rows = n,
                                   .n_heads = e->n_heads,
                                   .head_dim = e->head_dim,
                                   .q = qkv,
                                   .k = span_add(qkv, h),
                                   .stride = stride,
                                   .cosines = turns ? span_add(r->cosines, (uint64_t)row * half) : span_none(),
                                   .sines = turns ? span_add(r->sines, (uint64_t)row * half) : span_none()};
    struct attend_args fill = attend_args_of(r, row, n);
    rd_status st = RD_E_UNSUPPORTED;

    fill.q = qkv;
    fill.k = span_add(qkv, h);
    fill.v = span_add(qkv, 2 * (uint64_t)h);
    if (e->ops->op.attend_fill) st = e->ops->op.attend_fill(e->be, &fill, turns ? &turn : NULL);
    r->filled = st == RD_OK;
    if (st != RD_E_UNSUPPORTED) return st;
    return turns ? e->ops->op.turn(e->be, &turn) : RD_OK;
}

rd_status vision_qkv(struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct vit_layer *w = &e->layers[r->layer];
    const uint32_t h = e->hidden, stride = 3 * h;
    const struct span qkv = span_add(r->qkv, (uint64_t)row * stride);
    struct linear_args a = {
        .n_rows = n, .x = r->norm, .x_stride = h, .n_outs = w->qkv.data ? 1 : 3, .once = true, .many = true};
    const struct weight *ws[3] = {w->qkv.data ? &w->qkv : &w->q, &w->k, &w->v};
    const struct weight *bs[3] = {w->qkv.data ? &w->qkv_b : &w->q_b, &w->k_b, &w->v_b};
    rd_status st = vision_norm(e, &w->ln1, &w->ln1_b, n, span_add(r->x, (uint64_t)row * h), r->norm, true);

    for (uint32_t i = 0; i < a.n_outs; i++)
        a.outs[i] = (struct linear_out){ws[i], bs[i]->data ? bs[i] : NULL, span_add(qkv, (uint64_t)i * h), stride};
    if (st == RD_OK) st = e->ops->op.linear(e->be, &a);
    return st == RD_OK ? fill_or_turn(r, row, n) : st;
}

rd_status vision_add_delta(const struct vision_run *r, struct span x, uint32_t n)
{
    const struct residual_norm_args a = {
        .n_rows = n, .width = r->e->hidden, .x = x, .delta = r->delta, .eps = r->e->eps};

    return r->e->ops->op.residual_norm(r->e->be, &a);
}

static rd_status do_mlp(struct vision_run *r, struct span x, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct vit_layer *w = &e->layers[r->layer];
    rd_status st = vision_norm(e, &w->ln2, &w->ln2_b, n, x, r->norm, true);

    if (st == RD_OK && e->family->gated) {
        st = vision_linear(e, &w->up, &w->up_b, n, r->norm, r->up);
        if (st == RD_OK) st = vision_linear(e, &w->gate, &w->gate_b, n, r->norm, r->gate);
        if (st == RD_OK) st = e->ops->op.glu(e->be, ACT_SILU, n, e->ffn, r->gate, r->up, r->up);
    } else if (st == RD_OK) {
        st = vision_linear_once(e, &w->up, &w->up_b, n, r->norm, r->up);
        if (st == RD_OK) st = vision_gelu(e, e->family->act, n, e->ffn, r->up);
    }
    if (st == RD_OK) st = vision_linear_once(e, &w->down, &w->down_b, n, r->up, r->delta);
    return st == RD_OK ? vision_add_delta(r, x, n) : st;
}

rd_status vision_attend(struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct attend_args a = attend_args_of(r, row, n);

    return r->packed ? r->e->ops->op.attend(r->e->be, &a) : r->e->ops->op.attend_pack(r->e->be, &a);
}

rd_status vision_mix(struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct vit_layer *w = &e->layers[r->layer];
    const struct span x = span_add(r->x, (uint64_t)row * e->hidden);
    rd_status st = vision_linear_once(e, &w->out, &w->out_b, n, span_add(r->attn, (uint64_t)row * e->hidden), r->delta);

    if (st == RD_OK) st = vision_add_delta(r, x, n);
    return st == RD_OK ? do_mlp(r, x, n) : st;
}
