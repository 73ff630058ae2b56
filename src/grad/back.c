/* grad/back.c - the gradient of each op of the tape, from its outputs' places to its inputs': whose arrays are read and written. What
 * is computed is the device's (device.h). */
#include <assert.h>
#include "grad/tape.h"

static void *take(struct backend *be, uint64_t n, uint32_t element_bytes)
{
    return be->dev->take(be->device, n * element_bytes);
}
static void give(struct backend *be, void *p)
{
    be->dev->give(be->device, p);
}

static const void *kept_of(const struct step *s, int which)
{
    return s->kept[which] ? s->kept[which]->x : NULL;
}

static rd_status norm_step_back(struct backend *be, const struct step *s)
{
    const struct residual_norm_args *a = &s->u.norm;
    const uint64_t n = (uint64_t)a->n_rows * a->width;
    const bool has_delta = !span_is_none(a->delta);
    struct grad_norm g = {.a = a, .x = kept_of(s, 0), .delta = kept_of(s, 1)};
    float *dy = a->norm ? tape_take(be, a->out) : NULL;
    rd_status st = RD_OK;

    if (dy || tape_find(be, a->x)) {
        g.dy = dy;
        g.dx = tape_adjoint(be, a->x, n);
        if (has_delta) g.ddelta = take(be, n, be->dev->out_bytes);
        st = g.dx && (g.ddelta || !has_delta) ? be->dev->norm_back(be->device, &g) : RD_E_NOMEM;
        if (st != RD_OK)
            give(be, g.ddelta);
        else if (has_delta && !tape_put(be, a->delta, n, g.ddelta))
            st = RD_E_NOMEM;
    }
    give(be, dy);
    return st;
}

static rd_status linear_step_back(struct backend *be, const struct linear_args *a)
{
    struct grad_linear g = {.n_rows = a->n_rows};
    void *dys[3];
    rd_status st = RD_OK;
    bool is_new;

    assert(a->n_outs <= 3);
    for (uint32_t i = 0; i < a->n_outs; i++) {
        void *dy = tape_take(be, a->outs[i].out);

        if (!dy) continue;
        assert(a->outs[i].out_stride == a->outs[i].w->n_out && a->x_stride == a->outs[i].w->n_in);
        g.of[g.n].w = a->outs[i].w;
        g.of[g.n].dy = dys[g.n] = dy;
        g.n++;
    }
    if (g.n > 0) {
        g.dx = tape_adjoint_raw(be, a->x, (uint64_t)a->n_rows * a->x_stride, &is_new);
        g.add = !is_new;
        st = g.dx ? be->dev->linear_back(be->device, &g) : RD_E_NOMEM;
    }
    for (uint32_t i = 0; i < g.n; i++) give(be, dys[i]);
    return st;
}

static rd_status low_rank_step_back(struct backend *be, const struct step *s, bool is_first)
{
    const struct low_rank_args *a = &s->u.low_rank;
    const float *ts = kept_of(s, 1);
    struct grad_low_rank terms[GRAD_TERMS];
    struct grad_mask masks[GRAD_TERMS];
    rd_status st = RD_OK;
    uint32_t n = 0;

    for (uint32_t i = 0; i < a->n_terms && st == RD_OK; i++) {
        const struct low_rank_term *t = &a->terms[i];
        const struct record_pair *pair = tape_pair(be, t);
        struct grad_low_rank g = {
            .term = t, .mask = &masks[n], .x = kept_of(s, 0), .t = ts, .dy = tape_find(be, t->out)};

        if (ts) ts += (uint64_t)t->n_rows * t->a->n_out;
        if (g.dy) {
            if (pair) g.da = pair->da, g.db = pair->db;
            if (!is_first) g.dx = tape_adjoint_raw(be, a->x, (uint64_t)t->n_rows * a->x_stride, &g.dx_is_new);
            if (!g.dx && !is_first) return RD_E_NOMEM;
            masks[n] = tape_mask(be, t);
            terms[n++] = g;
        }
        if (n == GRAD_TERMS || (n > 0 && i + 1 == a->n_terms)) {
            st = be->dev->low_rank_back(be->device, terms, n);
            n = 0;
        }
    }
    return st;
}

/* What the device made of a gradient of q, k or v stands where linear wrote that. */
static rd_status put_out(struct backend *be, struct span at, uint64_t n, float *from, void *out)
{
    if (out != from) give(be, from);
    return !out || tape_put(be, at, n, out) ? RD_OK : RD_E_NOMEM;
}

static rd_status qkv_step_back(struct backend *be, const struct step *s)
{
    const struct qkv_args *a = &s->u.qkv;
    const uint64_t n_q = (uint64_t)a->n_rows * a->n_heads * a->head_dim,
                   n_kv = (uint64_t)a->n_rows * a->n_kv_heads * a->head_dim;
    const uint32_t bytes = be->dev->out_bytes;
    struct grad_qkv g = {.a = a, .q = kept_of(s, 0), .k = kept_of(s, 1), .dk = be->dk, .dv = be->dv};
    rd_status st = RD_OK, more;

    be->dk = be->dv = NULL;
    g.dq = tape_take(be, a->q);
    g.out_q = g.dq, g.out_k = g.dk, g.out_v = g.dv;
    if (bytes != sizeof(float)) {
        if (g.dq && !(g.out_q = take(be, n_q, bytes))) st = RD_E_NOMEM;
        if (g.dk && !(g.out_k = take(be, n_kv, bytes))) st = RD_E_NOMEM;
        if (g.dv && !(g.out_v = take(be, n_kv, bytes))) st = RD_E_NOMEM;
    }
    if (st == RD_OK) st = be->dev->qkv_back(be->device, &g);
    more = put_out(be, a->q, n_q, g.dq, g.out_q);
    if (st == RD_OK) st = more;
    more = put_out(be, a->k, n_kv, g.dk, g.out_k);
    if (st == RD_OK) st = more;
    more = put_out(be, a->v, n_kv, g.dv, g.out_v);
    return st == RD_OK ? more : st;
}

static rd_status glu_step_back(struct backend *be, const struct step *s)
{
    const struct glu_step *g = &s->u.glu;
    const uint64_t n = (uint64_t)g->n_rows * g->width;
    float *dy = tape_take(be, g->out);
    struct grad_glu a = {.act = g->act, .n = n, .gate = kept_of(s, 0), .up = kept_of(s, 1), .dy = dy};
    rd_status st;

    if (!dy) return RD_OK;
    a.dgate = take(be, n, be->dev->out_bytes);
    a.dup = take(be, n, be->dev->out_bytes);
    st = a.dgate && a.dup ? be->dev->glu_back(be->device, &a) : RD_E_NOMEM;
    give(be, dy);
    if (st == RD_OK && !tape_put(be, g->gate, n, a.dgate)) {
        give(be, a.dup);
        return RD_E_NOMEM;
    }
    if (st == RD_OK) return tape_put(be, g->up, n, a.dup) ? RD_OK : RD_E_NOMEM;
    give(be, a.dgate);
    give(be, a.dup);
    return st;
}

static rd_status gather_step_back(struct backend *be, const struct gather_step *g)
{
    float *dy = tape_take(be, g->out), *dx;
    rd_status st;

    if (!dy) return RD_OK;
    dx = tape_adjoint(be, g->x, (uint64_t)be->n_rows * g->width);
    st = dx ? be->dev->gather_back(be->device, g->n, g->width, g->rows, dy, dx) : RD_E_NOMEM;
    give(be, dy);
    return st;
}

static rd_status attention_step_back(struct backend *be, const struct step *s)
{
    const struct attention_args *a = &s->u.attention;
    const uint64_t n_q = (uint64_t)a->n_rows * a->q_stride, n_kv = (uint64_t)be->n_rows * a->n_kv_heads * a->head_dim;
    float *dout = tape_take(be, a->out);
    struct grad_attention g = {.a = a, .q = kept_of(s, 0), .dout = dout, .row_of = be->row_of, .n_rows = be->n_rows};
    rd_status st = RD_E_NOMEM;

    if (!dout) return RD_OK;
    assert(!be->dk && !be->dv && !tape_find(be, a->q));
    be->dk = g.dk = take(be, n_kv, sizeof(float));
    be->dv = g.dv = take(be, n_kv, sizeof(float));
    g.dq = take(be, n_q, sizeof(float));
    if (tape_put(be, a->q, n_q, g.dq) && g.dk && g.dv) st = be->dev->attention_back(be->device, &g);
    give(be, dout);
    return st;
}

rd_status step_back(struct backend *be, uint32_t i)
{
    const struct step *s = &be->steps[i];

    switch (s->kind) {
    case STEP_NORM:
        return norm_step_back(be, s);
    case STEP_LINEAR:
        return linear_step_back(be, &s->u.linear);
    case STEP_LOW_RANK:
        return low_rank_step_back(be, s, i == be->first_low_rank);
    case STEP_QKV:
        return qkv_step_back(be, s);
    case STEP_ATTENTION:
        return attention_step_back(be, s);
    case STEP_GLU:
        return glu_step_back(be, s);
    case STEP_GATHER:
        return gather_step_back(be, &s->u.gather);
    case STEP_EMBED:
        break;
    }
    return RD_OK;
}
