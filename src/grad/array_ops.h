/* grad/array_ops.h - each op forward, back and along, of REAL: the body of array_f32.c and array_f64.c.
 *
 * Products of floats go over the threads (compute.h), all else is one loop after the other. Sums over a row are in double.
 */
#pragma once
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "grad/array.h"

static REAL *val(const rd_array *a)
{
    return a->v;
}
static const REAL *tan_of(const rd_array *a)
{
    return a->tangent;
}
static uint64_t count(const rd_array *a)
{
    return (uint64_t)a->rows * a->cols;
}

/* Where an input's adjoint is added to; NULL: nobody asks, or no memory (*ok). */
static REAL *adj(rd_array *a, bool *ok)
{
    if (!a->needs) return NULL;
    if (!a->adjoint) a->adjoint = mem_zalloc(count(a), sizeof(REAL));
    *ok = *ok && a->adjoint;
    return a->adjoint;
}

/* c [m, n] (+)= a b, element (m, k) of a at m a_m + k a_k, (k, n) of b at k b_k + n b_n. */
struct product {
    uint32_t m, n, k;
    const REAL *a;
    uint64_t a_m, a_k;
    const REAL *b;
    uint64_t b_k, b_n;
    REAL *c;
    bool add;
};

static bool multiply(rd_grad *g, const struct product *p)
{
#ifdef IS_F64
    for (uint32_t m = 0; m < p->m; m++)
        for (uint32_t n = 0; n < p->n; n++) {
            REAL sum = p->add ? p->c[(uint64_t)m * p->n + n] : 0;

            for (uint32_t k = 0; k < p->k; k++) sum += p->a[m * p->a_m + k * p->a_k] * p->b[k * p->b_k + n * p->b_n];
            p->c[(uint64_t)m * p->n + n] = sum;
        }
    return true;
#else
    struct gemm q = {p->m, p->n, p->k, p->a, p->a_m, p->a_k, p->b, p->b_k, p->c, p->n, p->add};
    float *turned = NULL;

    if (p->b_n != 1) { /* rows of n are wanted: columns become such */
        turned = mem_alloc((size_t)p->k * p->n, sizeof(float));
        if (!turned) return false;
        grad_transpose(p->b, p->n, p->k, turned);
        q.b = turned;
        q.b_k = p->n;
    }
    grad_gemm(g->compute, &q);
    mem_free(turned);
    return true;
#endif
}

/* ---- number by number ---- */

static REAL unary(enum array_op op, REAL x, REAL *slope)
{
    const REAL c = (REAL)0.79788456080286535588, cube = (REAL)0.044715;
    REAL y;

    switch (op) {
    case ARRAY_SILU:
        y = 1 / (1 + FN(exp)(-x));
        *slope = y * (1 + x * (1 - y));
        return x * y;
    case ARRAY_GELU:
        y = FN(tanh)(c * x * (1 + cube * x * x));
        *slope = (1 + y) / 2 + x / 2 * (1 - y * y) * c * (1 + 3 * cube * x * x);
        return x / 2 * (1 + y);
    case ARRAY_TANH:
        y = FN(tanh)(x);
        *slope = 1 - y * y;
        return y;
    default:
        return *slope = FN(exp)(x);
    }
}

static uint64_t of_b(const rd_array *y, uint64_t i)
{
    return y->in[1]->rows == 1 ? i % y->cols : i;
}

/* ---- norms: d is w.r.t. x of s x w, and (x - mean) s w + b ---- */

static void norm_stats(const rd_array *y, const REAL *x, double *mean, double *s)
{
    double sum = 0, squares = 0;

    if (y->op == ARRAY_LAYER_NORM)
        for (uint32_t i = 0; i < y->cols; i++) sum += (double)x[i];
    *mean = sum / y->cols;
    for (uint32_t i = 0; i < y->cols; i++) squares += ((double)x[i] - *mean) * ((double)x[i] - *mean);
    *s = 1 / sqrt(squares / y->cols + y->s);
}

/* out (+)= s (d - [mean d] - xhat mean(d xhat)), xhat = (x - mean) s: the derivative of xhat, which is its own transposed. */
static void norm_map(const rd_array *y, const REAL *x, const REAL *d, const REAL *w, REAL *out, bool times_w)
{
    double mean, s, sum = 0, dot = 0;

    norm_stats(y, x, &mean, &s);
    for (uint32_t i = 0; i < y->cols; i++) {
        double v = (double)d[i] * (w ? (double)w[i] : 1);

        sum += v;
        dot += v * ((double)x[i] - mean) * s;
    }
    if (y->op == ARRAY_RMS_NORM) sum = 0;
    for (uint32_t i = 0; i < y->cols; i++) {
        double v = (double)d[i] * (w ? (double)w[i] : 1), xhat = ((double)x[i] - mean) * s;

        v = s * (v - sum / y->cols - xhat * dot / y->cols);
        out[i] += (REAL)(times_w ? v * (double)val(y->in[1])[i] : v);
    }
}

static void norm_forward(rd_array *y)
{
    const REAL *w = val(y->in[1]), *b = y->in[2] ? val(y->in[2]) : NULL;

    for (uint32_t r = 0; r < y->rows; r++) {
        const REAL *x = val(y->in[0]) + (uint64_t)r * y->cols;
        REAL *out = val(y) + (uint64_t)r * y->cols;
        double mean, s;

        norm_stats(y, x, &mean, &s);
        for (uint32_t i = 0; i < y->cols; i++)
            out[i] = (REAL)(((double)x[i] - mean) * s * (double)w[i] + (b ? (double)b[i] : 0));
    }
}

static bool norm_back_all(rd_array *y)
{
    const REAL *d = y->adjoint;
    bool ok = true;
    REAL *dx = adj(y->in[0], &ok), *dw = adj(y->in[1], &ok), *db = y->in[2] ? adj(y->in[2], &ok) : NULL;

    for (uint32_t r = 0; ok && r < y->rows; r++, d += y->cols) {
        const REAL *x = val(y->in[0]) + (uint64_t)r * y->cols;
        double mean, s;

        norm_stats(y, x, &mean, &s);
        if (dx) norm_map(y, x, d, val(y->in[1]), dx + (uint64_t)r * y->cols, false);
        for (uint32_t i = 0; i < y->cols; i++) {
            if (dw) dw[i] += (REAL)((double)d[i] * ((double)x[i] - mean) * s);
            if (db) db[i] += d[i];
        }
    }
    return ok;
}

static void norm_tangent(rd_array *y, REAL *t)
{
    for (uint32_t r = 0; r < y->rows; r++, t += y->cols) {
        const REAL *x = val(y->in[0]) + (uint64_t)r * y->cols, *tx = tan_of(y->in[0]), *tw = tan_of(y->in[1]);
        const REAL *tb = y->in[2] ? tan_of(y->in[2]) : NULL;
        double mean, s;

        norm_stats(y, x, &mean, &s);
        if (tx) norm_map(y, x, tx + (uint64_t)r * y->cols, NULL, t, true);
        for (uint32_t i = 0; i < y->cols; i++) {
            if (tw) t[i] += (REAL)(((double)x[i] - mean) * s * (double)tw[i]);
            if (tb) t[i] += tb[i];
        }
    }
}

/* ---- softmax, losses ---- */

static void softmax_row(const REAL *x, REAL *p, uint32_t lo, uint32_t hi)
{
    double most = -INFINITY, sum = 0;

    for (uint32_t i = lo; i < hi; i++) most = fmax(most, (double)x[i]);
    for (uint32_t i = lo; i < hi; i++) sum += exp((double)x[i] - most);
    for (uint32_t i = lo; i < hi; i++) p[i] = (REAL)(exp((double)x[i] - most) / sum);
}

/* out (+)= p (d - sum p d): its own transposed, too. */
static void softmax_map(const REAL *p, const REAL *d, REAL *out, uint32_t lo, uint32_t hi)
{
    double dot = 0;

    for (uint32_t i = lo; i < hi; i++) dot += (double)p[i] * (double)d[i];
    for (uint32_t i = lo; i < hi; i++) out[i] += (REAL)((double)p[i] * ((double)d[i] - dot));
}

static double row_weight(const rd_array *y, uint32_t r)
{
    return y->weights ? (double)y->weights[r] : 1;
}

/* The loss; d: its gradient by the logits, times by, is added there. */
static bool cross_entropy_all(const rd_array *y, double *loss, double by, REAL *d)
{
    const rd_array *x = y->in[0];
    REAL *p = mem_alloc(x->cols, sizeof(*p));
    double total = 0;

    *loss = 0;
    for (uint32_t r = 0; r < x->rows; r++) total += row_weight(y, r);
    for (uint32_t r = 0; p && r < x->rows; r++) {
        const REAL *row = val(x) + (uint64_t)r * x->cols;
        double w = row_weight(y, r) / total, most = -INFINITY, sum = 0;

        if (w == 0) continue;
        for (uint32_t i = 0; i < x->cols; i++) most = fmax(most, (double)row[i]);
        for (uint32_t i = 0; i < x->cols; i++) sum += exp((double)row[i] - most);
        *loss += w * (log(sum) + most - (double)row[y->ids[r]]);
        for (uint32_t i = 0; d && i < x->cols; i++)
            d[(uint64_t)r * x->cols + i] +=
                (REAL)(by * w * (exp((double)row[i] - most) / sum - (i == (uint32_t)y->ids[r])));
    }
    mem_free(p);
    return p != NULL;
}

/* ---- RoPE: a rotation; back is the other way round ---- */

static void rope_all(const rd_array *y, const REAL *x, REAL *out, double sign, bool add)
{
    uint32_t n_heads = y->attention.n_heads, dim = y->cols / n_heads;
    bool interleaved = y->attention.window;

    for (uint32_t r = 0; r < y->rows; r++)
        for (uint32_t h = 0; h < n_heads; h++)
            for (uint32_t i = 0; i < dim / 2; i++) {
                double angle = (double)(uint32_t)y->ids[r] * pow(y->s, -2.0 * i / dim), c = cos(angle),
                       s = sign * sin(angle);
                uint64_t at = (uint64_t)r * y->cols + (uint64_t)h * dim, a = at + (interleaved ? 2 * i : i),
                         b = interleaved ? a + 1 : a + dim / 2;
                double u = (double)x[a], v = (double)x[b];

                out[a] = (REAL)(u * c - v * s) + (add ? out[a] : 0);
                out[b] = (REAL)(u * s + v * c) + (add ? out[b] : 0);
            }
}

/* ---- attention: kept is p [n_heads, n, n], then the cap's slopes ---- */

static uint32_t lowest(const rd_array *y, uint32_t r)
{
    uint32_t w = y->attention.window;

    return w > 0 && r + 1 > w ? r + 1 - w : 0;
}

struct head {
    const rd_array *y;
    uint32_t n, dim, q, kv; /* columns where the head begins */
    REAL *p, *slope;
};

static struct head head_of(const rd_array *y, uint32_t h)
{
    const struct rd_attention *a = &y->attention;
    uint32_t dim = y->cols / a->n_heads;
    uint64_t square = (uint64_t)y->rows * y->rows;

    return (struct head){y,
                         y->rows,
                         dim,
                         h * dim,
                         h / (a->n_heads / a->n_kv_heads) * dim,
                         (REAL *)y->kept + h * square,
                         (REAL *)y->kept + (a->n_heads + h) * square};
}

static double dot_rows(const REAL *a, const REAL *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}
static const REAL *at_row(const REAL *x, const rd_array *a, uint32_t r, uint32_t col)
{
    return x + (uint64_t)r * a->cols + col;
}

static void attend_head(const struct head *h)
{
    const rd_array *y = h->y, *q = y->in[0], *k = y->in[1], *v = y->in[2];
    double cap = y->attention.softcap;

    for (uint32_t r = 0; r < h->n; r++) {
        uint32_t lo = lowest(y, r);
        REAL *p = h->p + (uint64_t)r * h->n, *slope = h->slope + (uint64_t)r * h->n;
        REAL *out = val(y) + (uint64_t)r * y->cols + h->q;

        for (uint32_t t = lo; t <= r; t++) {
            double s = y->attention.scale * dot_rows(at_row(val(q), q, r, h->q), at_row(val(k), k, t, h->kv), h->dim);

            slope[t] = 1;
            if (cap > 0) {
                double c = tanh(s / cap);

                slope[t] = (REAL)(1 - c * c);
                s = cap * c;
            }
            p[t] = (REAL)s;
        }
        softmax_row(p, p, lo, r + 1);
        for (uint32_t i = 0; i < h->dim; i++) {
            double sum = 0;

            for (uint32_t t = lo; t <= r; t++) sum += (double)p[t] * (double)at_row(val(v), v, t, h->kv)[i];
            out[i] = (REAL)sum;
        }
    }
}

/* ds: a row of scratch. */
static void attend_head_back(const struct head *h, REAL *dp, REAL *ds, REAL *dq, REAL *dk, REAL *dv)
{
    const rd_array *y = h->y, *q = y->in[0], *k = y->in[1], *v = y->in[2];

    for (uint32_t r = 0; r < h->n; r++) {
        const REAL *d = at_row(y->adjoint, y, r, h->q), *p = h->p + (uint64_t)r * h->n;
        uint32_t lo = lowest(y, r);

        for (uint32_t t = lo; t <= r; t++) {
            dp[t] = (REAL)dot_rows(d, at_row(val(v), v, t, h->kv), h->dim);
            ds[t] = 0;
            for (uint32_t i = 0; dv && i < h->dim; i++) dv[(uint64_t)t * v->cols + h->kv + i] += p[t] * d[i];
        }
        softmax_map(p, dp, ds, lo, r + 1);
        for (uint32_t t = lo; t <= r; t++) {
            REAL s = (REAL)((double)ds[t] * (double)h->slope[(uint64_t)r * h->n + t] * y->attention.scale);

            for (uint32_t i = 0; i < h->dim; i++) {
                if (dq) dq[(uint64_t)r * q->cols + h->q + i] += s * at_row(val(k), k, t, h->kv)[i];
                if (dk) dk[(uint64_t)t * k->cols + h->kv + i] += s * at_row(val(q), q, r, h->q)[i];
            }
        }
    }
}

static void attend_head_tangent(const struct head *h, REAL *ts, REAL *tp, REAL *out)
{
    const rd_array *y = h->y, *q = y->in[0], *k = y->in[1], *v = y->in[2];

    for (uint32_t r = 0; r < h->n; r++) {
        const REAL *p = h->p + (uint64_t)r * h->n;
        uint32_t lo = lowest(y, r);

        for (uint32_t t = lo; t <= r; t++) {
            double s = 0;

            if (tan_of(q)) s += dot_rows(at_row(tan_of(q), q, r, h->q), at_row(val(k), k, t, h->kv), h->dim);
            if (tan_of(k)) s += dot_rows(at_row(val(q), q, r, h->q), at_row(tan_of(k), k, t, h->kv), h->dim);
            ts[t] = (REAL)(s * y->attention.scale * (double)h->slope[(uint64_t)r * h->n + t]);
            tp[t] = 0;
        }
        softmax_map(p, ts, tp, lo, r + 1);
        for (uint32_t i = 0; i < h->dim; i++) {
            double sum = 0;

            for (uint32_t t = lo; t <= r; t++) {
                sum += (double)tp[t] * (double)at_row(val(v), v, t, h->kv)[i];
                if (tan_of(v)) sum += (double)p[t] * (double)at_row(tan_of(v), v, t, h->kv)[i];
            }
            out[(uint64_t)r * y->cols + h->q + i] += (REAL)sum;
        }
    }
}

/* ---- the three ways ---- */

static bool forward(rd_grad *g, rd_array *y)
{
    const rd_array *a = y->in[0], *b = y->in[1];
    REAL *out = val(y), ignored;
    uint64_t n = count(y);
    double sum = 0;

    switch (y->op) {
    case ARRAY_ADD:
        for (uint64_t i = 0; i < n; i++) out[i] = val(a)[i] + val(b)[of_b(y, i)];
        break;
    case ARRAY_SUB:
        for (uint64_t i = 0; i < n; i++) out[i] = val(a)[i] - val(b)[of_b(y, i)];
        break;
    case ARRAY_MUL:
        for (uint64_t i = 0; i < n; i++) out[i] = val(a)[i] * val(b)[of_b(y, i)];
        break;
    case ARRAY_SCALE:
        for (uint64_t i = 0; i < n; i++) out[i] = val(a)[i] * (REAL)y->s;
        break;
    case ARRAY_SILU:
    case ARRAY_GELU:
    case ARRAY_TANH:
    case ARRAY_EXP:
        for (uint64_t i = 0; i < n; i++) out[i] = unary(y->op, val(a)[i], &ignored);
        break;
    case ARRAY_MATMUL:
        return multiply(g,
                        &(struct product){y->rows, y->cols, a->cols, val(a), a->cols, 1, val(b), b->cols, 1, out, 0});
    case ARRAY_LINEAR:
        return multiply(g,
                        &(struct product){y->rows, y->cols, a->cols, val(a), a->cols, 1, val(b), 1, b->cols, out, 0});
    case ARRAY_RESHAPE:
        memcpy(out, val(a), n * sizeof(*out));
        break;
    case ARRAY_TRANSPOSE:
        for (uint64_t i = 0; i < n; i++) out[i] = val(a)[i % y->cols * y->rows + i / y->cols];
        break;
    case ARRAY_RMS_NORM:
    case ARRAY_LAYER_NORM:
        norm_forward(y);
        break;
    case ARRAY_SOFTMAX:
        for (uint32_t r = 0; r < y->rows; r++)
            softmax_row(val(a) + (uint64_t)r * y->cols, out + (uint64_t)r * y->cols, 0, y->cols);
        break;
    case ARRAY_ROPE:
        rope_all(y, val(a), out, 1, false);
        break;
    case ARRAY_ATTEND:
        y->kept = mem_zalloc((size_t)2 * y->attention.n_heads * y->rows, y->rows * sizeof(REAL));
        if (!y->kept) return false;
        for (uint32_t h = 0; h < y->attention.n_heads; h++) {
            const struct head head = head_of(y, h);

            attend_head(&head);
        }
        break;
    case ARRAY_EMBED:
        for (uint32_t r = 0; r < y->rows; r++)
            memcpy(out + (uint64_t)r * y->cols, val(a) + (uint64_t)y->ids[r] * y->cols, y->cols * sizeof(*out));
        break;
    case ARRAY_CROSS_ENTROPY:
        if (!cross_entropy_all(y, &sum, 0, NULL)) return false;
        out[0] = (REAL)sum;
        break;
    case ARRAY_MSE:
        for (uint64_t i = 0; i < count(a); i++)
            sum += ((double)val(a)[i] - (double)val(b)[i]) * ((double)val(a)[i] - (double)val(b)[i]);
        out[0] = (REAL)(sum / (double)count(a));
        break;
    case ARRAY_SUM:
        for (uint64_t i = 0; i < count(a); i++) sum += (double)val(a)[i];
        out[0] = (REAL)sum;
        break;
    case ARRAY_LEAF:
    case ARRAY_CHECKPOINT:
        break;
    }
    return true;
}

static bool binary_back(rd_array *y)
{
    const rd_array *a = y->in[0], *b = y->in[1];
    const REAL *d = y->adjoint;
    bool ok = true;
    REAL *da = adj(y->in[0], &ok), *db = adj(y->in[1], &ok);

    for (uint64_t i = 0; ok && i < count(y); i++) {
        uint64_t k = of_b(y, i);

        if (da) da[i] += y->op == ARRAY_MUL ? d[i] * val(b)[k] : d[i];
        if (db) db[k] += y->op == ARRAY_MUL ? d[i] * val(a)[i] : y->op == ARRAY_SUB ? -d[i] : d[i];
    }
    return ok;
}

static bool product_back(rd_grad *g, rd_array *y)
{
    const rd_array *a = y->in[0], *b = y->in[1];
    const REAL *d = y->adjoint;
    bool ok = true, turned = y->op == ARRAY_LINEAR;
    REAL *da = adj(y->in[0], &ok), *db = adj(y->in[1], &ok);

    if (ok && da)
        ok = multiply(g, &(struct product){y->rows, a->cols, y->cols, d, y->cols, 1, val(b), turned ? b->cols : 1,
                                           turned ? 1 : b->cols, da, true});
    if (ok && db && turned) /* dw [n, k] = d^T a */
        ok = multiply(g, &(struct product){b->rows, b->cols, y->rows, d, 1, y->cols, val(a), a->cols, 1, db, true});
    if (ok && db && !turned) /* db [k, n] = a^T d */
        ok = multiply(g, &(struct product){b->rows, b->cols, y->rows, val(a), 1, a->cols, d, y->cols, 1, db, true});
    return ok;
}

static bool attend_back(rd_array *y)
{
    bool ok = true;
    REAL *dq = adj(y->in[0], &ok), *dk = adj(y->in[1], &ok), *dv = adj(y->in[2], &ok);
    REAL *row = mem_alloc((size_t)2 * y->rows, sizeof(*row));

    for (uint32_t h = 0; ok && row && h < y->attention.n_heads; h++) {
        const struct head head = head_of(y, h);

        attend_head_back(&head, row, row + y->rows, dq, dk, dv);
    }
    mem_free(row);
    return ok && row;
}

static bool back(rd_grad *g, rd_array *y)
{
    rd_array *a = y->in[0], *b = y->in[1];
    const REAL *d = y->adjoint;
    uint64_t n = a ? count(a) : 0;
    bool ok = true;
    double loss;
    REAL *da, *db, slope;

    switch (y->op) {
    case ARRAY_ADD:
    case ARRAY_SUB:
    case ARRAY_MUL:
        return binary_back(y);
    case ARRAY_MATMUL:
    case ARRAY_LINEAR:
        return product_back(g, y);
    case ARRAY_RMS_NORM:
    case ARRAY_LAYER_NORM:
        return norm_back_all(y);
    case ARRAY_ATTEND:
        return attend_back(y);
    case ARRAY_LEAF:
    case ARRAY_CHECKPOINT:
        return true;
    default:
        break;
    }
    da = adj(a, &ok);
    db = y->op == ARRAY_MSE ? adj(b, &ok) : NULL;
    if (!ok) return false;
    switch (y->op) {
    case ARRAY_SCALE:
        for (uint64_t i = 0; da && i < n; i++) da[i] += d[i] * (REAL)y->s;
        break;
    case ARRAY_SILU:
    case ARRAY_GELU:
    case ARRAY_TANH:
    case ARRAY_EXP:
        for (uint64_t i = 0; da && i < n; i++) {
            unary(y->op, val(a)[i], &slope);
            da[i] += d[i] * slope;
        }
        break;
    case ARRAY_RESHAPE:
        for (uint64_t i = 0; da && i < n; i++) da[i] += d[i];
        break;
    case ARRAY_TRANSPOSE:
        for (uint64_t i = 0; da && i < n; i++) da[i % y->cols * y->rows + i / y->cols] += d[i];
        break;
    case ARRAY_SOFTMAX:
        for (uint32_t r = 0; da && r < y->rows; r++) {
            uint64_t at = (uint64_t)r * y->cols;

            softmax_map(val(y) + at, d + at, da + at, 0, y->cols);
        }
        break;
    case ARRAY_ROPE:
        if (da) rope_all(y, d, da, -1, true);
        break;
    case ARRAY_EMBED:
        for (uint64_t i = 0; da && i < count(y); i++) da[(uint64_t)y->ids[i / y->cols] * y->cols + i % y->cols] += d[i];
        break;
    case ARRAY_CROSS_ENTROPY:
        return !da || cross_entropy_all(y, &loss, (double)d[0], da);
    case ARRAY_MSE:
        for (uint64_t i = 0; i < n; i++) {
            REAL x = (REAL)(2 * (double)d[0] / (double)n * ((double)val(a)[i] - (double)val(b)[i]));

            if (da) da[i] += x;
            if (db) db[i] -= x;
        }
        break;
    default: /* sum */
        for (uint64_t i = 0; da && i < n; i++) da[i] += d[0];
        break;
    }
    return true;
}

static bool tangent(rd_grad *g, rd_array *y)
{
    const rd_array *a = y->in[0], *b = y->in[1];
    const REAL *ta = tan_of(a), *tb = b ? tan_of(b) : NULL;
    uint64_t n = count(a);
    bool ok = true, turned = y->op == ARRAY_LINEAR;
    double sum = 0;
    REAL *t, *d, slope;

    if (!ta && !tb && !(y->in[2] && tan_of(y->in[2]))) return true; /* all zeros */
    y->tangent = t = mem_zalloc(count(y), sizeof(REAL));
    if (!t) return false;
    switch (y->op) {
    case ARRAY_ADD:
    case ARRAY_SUB:
    case ARRAY_MUL:
        for (uint64_t i = 0; i < n; i++) {
            uint64_t k = of_b(y, i);

            if (ta) t[i] += y->op == ARRAY_MUL ? ta[i] * val(b)[k] : ta[i];
            if (tb) t[i] += y->op == ARRAY_MUL ? tb[k] * val(a)[i] : y->op == ARRAY_SUB ? -tb[k] : tb[k];
        }
        break;
    case ARRAY_SCALE:
        for (uint64_t i = 0; i < n; i++) t[i] = ta[i] * (REAL)y->s;
        break;
    case ARRAY_SILU:
    case ARRAY_GELU:
    case ARRAY_TANH:
    case ARRAY_EXP:
        for (uint64_t i = 0; i < n; i++) {
            unary(y->op, val(a)[i], &slope);
            t[i] = ta[i] * slope;
        }
        break;
    case ARRAY_MATMUL:
    case ARRAY_LINEAR:
        if (ta)
            ok = multiply(g, &(struct product){y->rows, y->cols, a->cols, ta, a->cols, 1, val(b), turned ? 1 : b->cols,
                                               turned ? b->cols : 1, t, true});
        if (ok && tb)
            ok = multiply(g, &(struct product){y->rows, y->cols, a->cols, val(a), a->cols, 1, tb, turned ? 1 : b->cols,
                                               turned ? b->cols : 1, t, true});
        return ok;
    case ARRAY_RESHAPE:
        memcpy(t, ta, n * sizeof(*t));
        break;
    case ARRAY_TRANSPOSE:
        for (uint64_t i = 0; i < n; i++) t[i] = ta[i % y->cols * y->rows + i / y->cols];
        break;
    case ARRAY_RMS_NORM:
    case ARRAY_LAYER_NORM:
        norm_tangent(y, t);
        break;
    case ARRAY_SOFTMAX:
        for (uint32_t r = 0; r < y->rows; r++) {
            uint64_t at = (uint64_t)r * y->cols;

            softmax_map(val(y) + at, ta + at, t + at, 0, y->cols);
        }
        break;
    case ARRAY_ROPE:
        rope_all(y, ta, t, 1, false);
        break;
    case ARRAY_ATTEND:
        d = mem_alloc((size_t)2 * y->rows, sizeof(*d));
        for (uint32_t h = 0; d && h < y->attention.n_heads; h++) {
            const struct head head = head_of(y, h);

            attend_head_tangent(&head, d, d + y->rows, t);
        }
        mem_free(d);
        return d != NULL;
    case ARRAY_EMBED:
        for (uint32_t r = 0; r < y->rows; r++)
            memcpy(t + (uint64_t)r * y->cols, ta + (uint64_t)y->ids[r] * y->cols, y->cols * sizeof(*t));
        break;
    case ARRAY_CROSS_ENTROPY:
        d = mem_zalloc(n, sizeof(*d));
        ok = d && cross_entropy_all(y, &sum, 1, d);
        t[0] = ok ? (REAL)dot_rows(d, ta, (uint32_t)n) : 0;
        mem_free(d);
        return ok;
    case ARRAY_MSE:
        for (uint64_t i = 0; i < n; i++)
            sum += 2 / (double)n * ((double)val(a)[i] - (double)val(b)[i]) *
                   ((ta ? (double)ta[i] : 0) - (tb ? (double)tb[i] : 0));
        t[0] = (REAL)sum;
        break;
    default: /* sum */
        for (uint64_t i = 0; i < n; i++) sum += (double)ta[i];
        t[0] = (REAL)sum;
        break;
    }
    return true;
}

#define NAME2(s) array_kernels_##s
#define NAME(s)  NAME2(s)
const struct array_kernels NAME(SUFFIX) = {forward, back, tangent};
