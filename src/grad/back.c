/* grad/back.c - the gradient of each op of the tape, from its outputs' places to its inputs'. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/limits.h"
#include "grad/tape.h"

#define ROWS_PER_TILE 4u
#define PIECE         4096u

/* dx += of rmsnorm(x) * w, n wide: s (g - x s^2 mean(g x)), g = dy w, s = 1 / sqrt(mean(x^2) + eps). */
static void norm_back(const float *x, const float *w, const float *dy, float *dx, uint32_t n, float eps)
{
    double squares = 0, dot = 0, s;

    for (uint32_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < n; i++) dot += (double)(dy[i] * w[i]) * (double)x[i];
    s = 1.0 / sqrt(squares / n + (double)eps);
    dot = dot / n * s * s;
    for (uint32_t i = 0; i < n; i++) dx[i] += (float)(s * ((double)(dy[i] * w[i]) - (double)x[i] * dot));
}

struct rows_job {
    const struct step *s;
    float *dx, *dy, *ddelta;
    uint32_t n_rows;
    const struct grad_kernels *kernels;
};

static void norm_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct rows_job *j = arg;
    const struct residual_norm_args *a = &j->s->u.norm;
    uint32_t end = u32_min((tile + 1) * ROWS_PER_TILE, a->n_rows);

    (void)thread;
    for (uint32_t r = tile * ROWS_PER_TILE; r < end; r++) {
        uint64_t at = (uint64_t)r * a->width;

        if (j->dy) norm_back(j->s->kept[0]->x + at, a->norm->data, j->dy + at, j->dx + at, a->width, a->eps);
        if (!j->ddelta) continue;
        if (a->delta_norm)
            norm_back(j->s->kept[1]->x + at, a->delta_norm->data, j->dx + at, j->ddelta + at, a->width, a->eps);
        else
            memcpy(j->ddelta + at, j->dx + at, a->width * sizeof(float));
    }
}

static rd_status norm_step_back(struct backend *be, const struct step *s)
{
    const struct residual_norm_args *a = &s->u.norm;
    uint64_t n = (uint64_t)a->n_rows * a->width;
    struct rows_job j = {.s = s, .n_rows = a->n_rows};

    if (a->norm) j.dy = tape_take(be, a->out);
    if (j.dy || tape_find(be, a->x)) {
        j.dx = tape_adjoint(be, a->x, n);
        if (!span_is_none(a->delta)) j.ddelta = tape_adjoint(be, a->delta, n);
        if (!j.dx || (!j.ddelta && !span_is_none(a->delta))) {
            float_pool_give(&be->floats, j.dy);
            return RD_E_NOMEM;
        }
        grad_run(be->compute, norm_tile, &j, u32_ceil_div(a->n_rows, ROWS_PER_TILE));
    }
    float_pool_give(&be->floats, j.dy);
    return RD_OK;
}

static rd_status linear_step_back(struct backend *be, const struct linear_args *a)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < a->n_outs && st == RD_OK; i++) {
        float *dy = tape_take(be, a->outs[i].out), *dx;

        if (!dy) continue;
        assert(a->outs[i].out_stride == a->outs[i].w->n_out && a->x_stride == a->outs[i].w->n_in);
        dx = tape_adjoint(be, a->x, (uint64_t)a->n_rows * a->x_stride);
        st = dx ? record_weight_back(be, a->outs[i].w, dy, a->n_rows, true, dx) : RD_E_NOMEM;
        float_pool_give(&be->floats, dy);
    }
    return st;
}

/* t [n_rows, rank]; the transposed of A [n_in, rank], of B [n_out, rank]. */
struct low_rank_scratch {
    float *t, *dt, *turned;
};

/* y += s t B, t = x A^T:  dB += s t^T dy;  dt = s dy B^T;  dA += dt^T x;  dx += dt A. */
static rd_status term_back(struct backend *be, const struct low_rank_term *m, const struct low_rank_scratch *w,
                           const float *x, const float *dy, float *dx)
{
    const struct record_pair *pair = tape_pair(be, m);
    uint32_t rank = m->a->n_out, n_in = m->a->n_in, n_out = m->b->n_in, n = m->n_rows;
    bool drops = be->pass.dropout > 0 && pair;
    const float *read = drops ? tape_dropped(be, m, x) : x;

    if (!read) return RD_E_NOMEM;
    grad_transpose(m->b->data, rank, n_out, w->turned);
    grad_gemm(be->compute, &(struct gemm){n, rank, n_out, dy, n_out, 1, w->turned, rank, w->dt, rank, false});
    for (uint64_t i = 0; i < (uint64_t)n * rank; i++) w->dt[i] *= m->scale;
    if (pair) {
        grad_transpose(m->a->data, rank, n_in, w->turned);
        grad_gemm(be->compute, &(struct gemm){n, rank, n_in, read, n_in, 1, w->turned, rank, w->t, rank, false});
        for (uint64_t i = 0; i < (uint64_t)n * rank; i++) w->t[i] *= m->scale;
        grad_gemm(be->compute, &(struct gemm){rank, n_out, n, w->t, 1, rank, dy, n_out, pair->db, n_out, true});
        grad_gemm(be->compute, &(struct gemm){rank, n_in, n, w->dt, 1, rank, read, n_in, pair->da, n_in, true});
    }
    if (!dx) return RD_OK;
    if (!drops) {
        grad_gemm(be->compute, &(struct gemm){n, n_in, rank, w->dt, rank, 1, m->a->data, n_in, dx, n_in, true});
        return RD_OK;
    }
    grad_gemm(be->compute, &(struct gemm){n, n_in, rank, w->dt, rank, 1, m->a->data, n_in, be->scratch, n_in, false});
    tape_drop_back(be, m, be->scratch);
    for (uint64_t i = 0; i < (uint64_t)n * n_in; i++) dx[i] += be->scratch[i];
    return RD_OK;
}

static rd_status low_rank_step_back(struct backend *be, const struct step *s, bool is_first)
{
    const struct low_rank_args *a = &s->u.low_rank;
    struct low_rank_scratch w = {0};
    uint64_t ranks = 0, widest = 0;
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < a->n_terms; i++) {
        const struct low_rank_term *m = &a->terms[i];

        ranks = u64_max(ranks, m->a->n_out);
        widest = u64_max(widest, (uint64_t)m->a->n_out * u32_max(m->a->n_in, m->b->n_in));
    }
    w.t = float_pool_take(&be->floats, (uint64_t)a->terms[0].n_rows * ranks);
    w.dt = float_pool_take(&be->floats, (uint64_t)a->terms[0].n_rows * ranks);
    w.turned = float_pool_take(&be->floats, widest);
    if (!w.t || !w.dt || !w.turned) st = RD_E_NOMEM;
    for (uint32_t i = 0; i < a->n_terms && st == RD_OK; i++) {
        const float *dy = tape_find(be, a->terms[i].out);
        float *dx = NULL;

        if (!dy) continue;
        if (!is_first) {
            dx = tape_adjoint(be, a->x, (uint64_t)a->terms[i].n_rows * a->x_stride);
            if (!dx) st = RD_E_NOMEM;
        }
        if (st == RD_OK) st = term_back(be, &a->terms[i], &w, s->kept[0]->x, dy, dx);
    }
    float_pool_give(&be->floats, w.t);
    float_pool_give(&be->floats, w.dt);
    float_pool_give(&be->floats, w.turned);
    return st;
}

/* ---- q, k, v ---- */

struct qkv_job {
    const struct qkv_args *a;
    const struct step *s;
    float *dq, *dk;
};

/* The rotation back by the row's cosines and sines, then the head's norm. */
static void head_back(const struct qkv_args *a, float *d, const float *x, const struct weight *norm, const float *c,
                      const float *s)
{
    const uint32_t half = a->n_rot / 2, step = a->layout == ROPE_INTERLEAVED ? 2 : 1,
                   far = a->layout == ROPE_INTERLEAVED ? 1 : half;

    for (uint32_t i = 0; i < half; i++) {
        float *p = d + (uint64_t)i * step, u = p[0], v = p[far];

        p[0] = (float)((double)u * (double)c[i] + (double)(v * s[i]));
        p[far] = (float)((double)v * (double)c[i] - (double)(u * s[i]));
    }
    if (norm) {
        float out[LIMIT_HEAD_DIM] = {0};

        norm_back(x, norm->data, d, out, a->head_dim, a->norm_eps);
        memcpy(d, out, a->head_dim * sizeof(*d));
    }
}

static void qkv_tile(void *arg, uint32_t row, uint32_t thread)
{
    const struct qkv_job *j = arg;
    const struct qkv_args *a = j->a;
    const float *inv_freq = a->inv_freq->data;
    uint64_t q = (uint64_t)row * a->n_heads * a->head_dim, k = (uint64_t)row * a->n_kv_heads * a->head_dim;
    float c[LIMIT_HEAD_DIM / 2], s[LIMIT_HEAD_DIM / 2];

    (void)thread;
    for (uint32_t i = 0; i < a->n_rot / 2; i++) {
        float angle = (float)a->positions[row] * inv_freq[i];

        c[i] = cosf(angle) * a->rope_mscale;
        s[i] = sinf(angle) * a->rope_mscale;
    }
    for (uint32_t h = 0; j->dq && h < a->n_heads; h++, q += a->head_dim)
        head_back(a, j->dq + q, a->q_norm ? j->s->kept[0]->x + q : NULL, a->q_norm, c, s);
    for (uint32_t h = 0; j->dk && h < a->n_kv_heads; h++, k += a->head_dim)
        head_back(a, j->dk + k, a->k_norm ? j->s->kept[1]->x + k : NULL, a->k_norm, c, s);
}

static rd_status qkv_step_back(struct backend *be, const struct step *s)
{
    const struct qkv_args *a = &s->u.qkv;
    uint64_t n_kv = (uint64_t)a->n_rows * a->n_kv_heads * a->head_dim;
    struct qkv_job j = {a, s, tape_find(be, a->q), be->dk};
    float *dv = be->dv;

    grad_run(be->compute, qkv_tile, &j, a->n_rows);
    be->dk = be->dv = NULL;
    if (!j.dk) return RD_OK;
    if (!tape_put(be, a->k, n_kv, j.dk)) {
        float_pool_give(&be->floats, dv);
        return RD_E_NOMEM;
    }
    return tape_put(be, a->v, n_kv, dv) ? RD_OK : RD_E_NOMEM;
}

/* ---- glu, gather ---- */

static void glu_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct rows_job *j = arg;
    const struct glu_step *g = &j->s->u.glu;
    uint64_t at = (uint64_t)tile * PIECE, n = (uint64_t)g->n_rows * g->width;

    (void)thread;
    j->kernels->glu_back(g->act, j->s->kept[0]->x + at, j->s->kept[1]->x + at, j->dy + at, j->dy + at, j->dx + at,
                         (uint32_t)u64_min(PIECE, n - at));
}

static rd_status glu_step_back(struct backend *be, const struct step *s)
{
    const struct glu_step *g = &s->u.glu;
    uint64_t n = (uint64_t)g->n_rows * g->width;
    struct rows_job j = {.s = s, .dy = tape_take(be, g->out), .kernels = grad_kernels_of(be->compute)};

    if (!j.dy) return RD_OK;
    j.dx = float_pool_take(&be->floats, n);
    if (!j.dx) {
        float_pool_give(&be->floats, j.dy);
        return RD_E_NOMEM;
    }
    grad_run(be->compute, glu_tile, &j, (uint32_t)((n + PIECE - 1) / PIECE));
    if (!tape_put(be, g->gate, n, j.dy)) {
        float_pool_give(&be->floats, j.dx);
        return RD_E_NOMEM;
    }
    return tape_put(be, g->up, n, j.dx) ? RD_OK : RD_E_NOMEM;
}

static rd_status gather_step_back(struct backend *be, const struct gather_step *g)
{
    float *dy = tape_take(be, g->out), *dx;

    if (!dy) return RD_OK;
    dx = tape_adjoint(be, g->x, (uint64_t)be->n_rows * g->width);
    for (uint32_t i = 0; dx && i < g->n; i++)
        for (uint32_t c = 0; c < g->width; c++)
            dx[(uint64_t)g->rows[i] * g->width + c] += dy[(uint64_t)i * g->width + c];
    float_pool_give(&be->floats, dy);
    return dx ? RD_OK : RD_E_NOMEM;
}

static rd_status attention_step_back(struct backend *be, const struct step *s)
{
    float *dout = tape_take(be, s->u.attention.out);
    rd_status st = dout ? attention_back(be, &s->u.attention, s->kept[0]->x, dout) : RD_OK;

    float_pool_give(&be->floats, dout);
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
