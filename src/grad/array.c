/* grad/array.c - radish/grad.h: sessions, what ops check, and the ways through what a function did.
 *
 *     nodes   [ leaves .. | w, x | what fn made, in order ........ y ]     back: from y to the first that fn made; adjoints of
 *                                ^ mark                                   what lies before the mark stay there
 */
#include "grad/array.h"
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "tensor/dtype.h"

/* ---- sessions and nodes ---- */

static const rd_array *fail(rd_grad *g, rd_status st, const char *what)
{
    if (g->error.status == RD_OK) error_set(&g->error, st, "%s", what);
    return NULL;
}

static size_t number_bytes(const rd_array *a)
{
    return a->is_f64 ? sizeof(double) : sizeof(float);
}
static size_t array_bytes(const rd_array *a)
{
    return (size_t)a->rows * a->cols * number_bytes(a);
}
static const struct array_kernels *kernels_of(const rd_array *a)
{
    return a->is_f64 ? &array_kernels_f64 : &array_kernels_f32;
}

static void free_node(rd_array *a)
{
    if (!a) return;
    mem_free(a->v);
    mem_free(a->adjoint);
    mem_free(a->tangent);
    mem_free(a->ids);
    mem_free(a->weights);
    mem_free(a->kept);
    mem_free(a->ins);
    mem_free(a);
}

static void release(rd_grad *g, size_t mark)
{
    while (g->n > mark) free_node(g->nodes[--g->n]);
}

rd_status rd_grad_open(uint32_t n_threads, rd_grad **out, struct rd_error *err)
{
    rd_grad *g = mem_zalloc(1, sizeof(*g));
    rd_status st;

    *out = NULL;
    if (!g) return error_set(err, RD_E_NOMEM, "out of memory");
    st = grad_compute_create(n_threads, NULL, &g->compute, err);
    if (st == RD_OK)
        *out = g;
    else
        rd_grad_close(g);
    return st;
}

void rd_grad_close(rd_grad *g)
{
    if (!g) return;
    release(g, 0);
    mem_free(g->nodes);
    grad_compute_destroy(g->compute);
    mem_free(g);
}

rd_status rd_grad_error(rd_grad *g, struct rd_error *err)
{
    rd_status st = g->error.status;

    if (err && st != RD_OK) *err = g->error;
    g->error.status = RD_OK;
    return st;
}

size_t rd_grad_mark(const rd_grad *g)
{
    return g->n;
}

void rd_grad_release(rd_grad *g, size_t mark)
{
    if (mark <= g->n) release(g, mark);
}

/* A node of zeros, the last of all. NULL: no memory. */
static rd_array *make(rd_grad *g, enum array_op op, bool is_f64, uint32_t rows, uint32_t cols)
{
    rd_array *a = mem_zalloc(1, sizeof(*a));

    if (a) {
        *a = (rd_array){.op = op, .is_f64 = is_f64, .rows = rows, .cols = cols};
        a->v = mem_zalloc((size_t)rows * cols, number_bytes(a));
    }
    if (!a || !a->v || !mem_grow((void **)&g->nodes, &g->cap, g->n + 1, sizeof(*g->nodes))) {
        free_node(a);
        fail(g, RD_E_NOMEM, "out of memory");
        return NULL;
    }
    g->nodes[g->n++] = a;
    return a;
}

const rd_array *rd_array_new(rd_grad *g, enum rd_array_type type, uint32_t rows, uint32_t cols, const void *values)
{
    rd_array *a;

    if (rows < 1 || cols < 1) return fail(g, RD_E_INVALID, "an array of nothing");
    a = make(g, ARRAY_LEAF, type == RD_F64, rows, cols);
    if (!a || !values) return a;
    memcpy(a->v, values, array_bytes(a));
    if (type == RD_BF16)
        for (uint64_t i = 0; i < (uint64_t)rows * cols; i++)
            ((float *)a->v)[i] = bf16_to_float(float_to_bf16(((float *)a->v)[i]));
    return a;
}

const void *rd_array_values(const rd_array *a)
{
    return a->v;
}
uint32_t rd_array_rows(const rd_array *a)
{
    return a->rows;
}
uint32_t rd_array_cols(const rd_array *a)
{
    return a->cols;
}

/* ---- ops ---- */

static rd_array *open_const(const rd_array *a)
{
    return (rd_array *)(uintptr_t)a;
}

/* A node of an op with these inputs (NULL: none there). NULL: no memory, or they are of different types. */
static rd_array *node(rd_grad *g, enum array_op op, uint32_t rows, uint32_t cols, const rd_array *a, const rd_array *b,
                      const rd_array *c)
{
    rd_array *y;

    if ((b && b->is_f64 != a->is_f64) || (c && c->is_f64 != a->is_f64)) {
        fail(g, RD_E_INVALID, "arrays of different types");
        return NULL;
    }
    y = make(g, op, a->is_f64, rows, cols);
    if (!y) return NULL;
    y->in[0] = open_const(a);
    y->in[1] = open_const(b);
    y->in[2] = open_const(c);
    for (int i = 0; i < 3; i++) y->needs |= y->in[i] && y->in[i]->needs;
    return y;
}

/* Computes it. */
static const rd_array *done(rd_grad *g, rd_array *y)
{
    if (!y) return NULL;
    if (!kernels_of(y)->forward(g, y) || (g->is_forward && !kernels_of(y)->tangent(g, y)))
        return fail(g, RD_E_NOMEM, "out of memory");
    return y;
}

static const rd_array *binary(rd_grad *g, enum array_op op, const rd_array *a, const rd_array *b)
{
    if (!a || !b) return NULL;
    if (a->cols != b->cols || (a->rows != b->rows && b->rows != 1))
        return fail(g, RD_E_INVALID, "add, sub, mul: shapes that do not go together");
    return done(g, node(g, op, a->rows, a->cols, a, b, NULL));
}
const rd_array *rd_add(rd_grad *g, const rd_array *a, const rd_array *b)
{
    return binary(g, ARRAY_ADD, a, b);
}
const rd_array *rd_sub(rd_grad *g, const rd_array *a, const rd_array *b)
{
    return binary(g, ARRAY_SUB, a, b);
}
const rd_array *rd_mul(rd_grad *g, const rd_array *a, const rd_array *b)
{
    return binary(g, ARRAY_MUL, a, b);
}

static const rd_array *unary(rd_grad *g, enum array_op op, const rd_array *a, double s)
{
    rd_array *y = a ? node(g, op, a->rows, a->cols, a, NULL, NULL) : NULL;

    if (y) y->s = s;
    return done(g, y);
}
const rd_array *rd_scale(rd_grad *g, const rd_array *a, double s)
{
    return unary(g, ARRAY_SCALE, a, s);
}
const rd_array *rd_silu(rd_grad *g, const rd_array *a)
{
    return unary(g, ARRAY_SILU, a, 0);
}
const rd_array *rd_gelu(rd_grad *g, const rd_array *a)
{
    return unary(g, ARRAY_GELU, a, 0);
}
const rd_array *rd_tanh(rd_grad *g, const rd_array *a)
{
    return unary(g, ARRAY_TANH, a, 0);
}
const rd_array *rd_exp(rd_grad *g, const rd_array *a)
{
    return unary(g, ARRAY_EXP, a, 0);
}
const rd_array *rd_softmax(rd_grad *g, const rd_array *a)
{
    return unary(g, ARRAY_SOFTMAX, a, 0);
}

const rd_array *rd_matmul(rd_grad *g, const rd_array *a, const rd_array *b)
{
    if (!a || !b) return NULL;
    if (a->cols != b->rows) return fail(g, RD_E_INVALID, "matmul: [m, k] [k, n] wanted");
    return done(g, node(g, ARRAY_MATMUL, a->rows, b->cols, a, b, NULL));
}
const rd_array *rd_linear(rd_grad *g, const rd_array *x, const rd_array *w)
{
    if (!x || !w) return NULL;
    if (x->cols != w->cols) return fail(g, RD_E_INVALID, "linear: [m, k] [n, k] wanted");
    return done(g, node(g, ARRAY_LINEAR, x->rows, w->rows, x, w, NULL));
}

const rd_array *rd_reshape(rd_grad *g, const rd_array *a, uint32_t rows, uint32_t cols)
{
    if (!a) return NULL;
    if ((uint64_t)rows * cols != (uint64_t)a->rows * a->cols)
        return fail(g, RD_E_INVALID, "reshape: another number of numbers");
    return done(g, node(g, ARRAY_RESHAPE, rows, cols, a, NULL, NULL));
}
const rd_array *rd_transpose(rd_grad *g, const rd_array *a)
{
    return a ? done(g, node(g, ARRAY_TRANSPOSE, a->cols, a->rows, a, NULL, NULL)) : NULL;
}

static const rd_array *norm(rd_grad *g, enum array_op op, const rd_array *x, const rd_array *w, const rd_array *b,
                            double eps)
{
    rd_array *y;

    if (w->rows != 1 || w->cols != x->cols || (b && (b->rows != 1 || b->cols != x->cols)))
        return fail(g, RD_E_INVALID, "norm: weights of one row as wide as x wanted");
    y = node(g, op, x->rows, x->cols, x, w, b);
    if (y) y->s = eps;
    return done(g, y);
}
const rd_array *rd_rms_norm(rd_grad *g, const rd_array *x, const rd_array *w, double eps)
{
    return x && w ? norm(g, ARRAY_RMS_NORM, x, w, NULL, eps) : NULL;
}
const rd_array *rd_layer_norm(rd_grad *g, const rd_array *x, const rd_array *w, const rd_array *b, double eps)
{
    return x && w && b ? norm(g, ARRAY_LAYER_NORM, x, w, b, eps) : NULL;
}

/* A copy of n words for a node. */
static bool give_ids(rd_grad *g, rd_array *y, const void *ids, uint32_t n)
{
    if (!y) return false;
    y->ids = (int32_t *)(void *)mem_memdup(ids, n * sizeof(*y->ids));
    if (!y->ids) fail(g, RD_E_NOMEM, "out of memory");
    return y->ids != NULL;
}

const rd_array *rd_rope(rd_grad *g, const rd_array *x, uint32_t n_heads, const uint32_t *positions, double theta,
                        bool interleaved)
{
    rd_array *y;

    if (!x) return NULL;
    if (n_heads < 1 || x->cols % (2 * n_heads) != 0)
        return fail(g, RD_E_INVALID, "rope: heads of an even width wanted");
    y = node(g, ARRAY_ROPE, x->rows, x->cols, x, NULL, NULL);
    if (!give_ids(g, y, positions, x->rows)) return NULL;
    y->s = theta;
    y->attention.n_heads = n_heads;
    y->attention.window = interleaved;
    return done(g, y);
}

const rd_array *rd_attend(rd_grad *g, const rd_array *q, const rd_array *k, const rd_array *v,
                          const struct rd_attention *a)
{
    rd_array *y;

    if (!q || !k || !v) return NULL;
    if (a->n_heads < 1 || a->n_kv_heads < 1 || a->n_heads % a->n_kv_heads != 0 || q->cols % a->n_heads != 0 ||
        k->cols != q->cols / a->n_heads * a->n_kv_heads || v->cols != k->cols || k->rows != q->rows ||
        v->rows != q->rows)
        return fail(g, RD_E_INVALID, "attend: heads and shapes that do not go together");
    y = node(g, ARRAY_ATTEND, q->rows, q->cols, q, k, v);
    if (y) y->attention = *a;
    return done(g, y);
}

static bool ids_fit(const int32_t *ids, uint32_t n, uint32_t below)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= below) return false;
    return true;
}

const rd_array *rd_embed_rows(rd_grad *g, const rd_array *table, const int32_t *ids, uint32_t n)
{
    rd_array *y;

    if (!table) return NULL;
    if (n < 1 || !ids_fit(ids, n, table->rows)) return fail(g, RD_E_INVALID, "embed_rows: an id beyond the table");
    y = node(g, ARRAY_EMBED, n, table->cols, table, NULL, NULL);
    return give_ids(g, y, ids, n) ? done(g, y) : NULL;
}

const rd_array *rd_cross_entropy(rd_grad *g, const rd_array *logits, const int32_t *targets, const float *weights)
{
    rd_array *y;
    double sum = 0;

    if (!logits) return NULL;
    if (!ids_fit(targets, logits->rows, logits->cols))
        return fail(g, RD_E_INVALID, "cross_entropy: a target beyond the logits");
    for (uint32_t i = 0; i < logits->rows; i++) sum += weights ? (double)weights[i] : 1;
    if (!(sum > 0)) return fail(g, RD_E_INVALID, "cross_entropy: no row has weight");
    y = node(g, ARRAY_CROSS_ENTROPY, 1, 1, logits, NULL, NULL);
    if (!give_ids(g, y, targets, logits->rows)) return NULL;
    if (weights) {
        y->weights = (float *)(void *)mem_memdup(weights, logits->rows * sizeof(*weights));
        if (!y->weights) return fail(g, RD_E_NOMEM, "out of memory");
    }
    return done(g, y);
}

const rd_array *rd_mse(rd_grad *g, const rd_array *a, const rd_array *b)
{
    if (!a || !b) return NULL;
    if (a->rows != b->rows || a->cols != b->cols) return fail(g, RD_E_INVALID, "mse: two arrays of one shape wanted");
    return done(g, node(g, ARRAY_MSE, 1, 1, a, b, NULL));
}
const rd_array *rd_sum(rd_grad *g, const rd_array *a)
{
    return a ? done(g, node(g, ARRAY_SUM, 1, 1, a, NULL, NULL)) : NULL;
}

/* ---- functions ---- */

/* What fn makes of in, or NULL with an error. */
static rd_array *call(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in)
{
    const rd_array *y = fn(g, arg, in, n_in);

    if (!y && g->error.status == RD_OK) fail(g, RD_E_INVALID, "the function gave nothing");
    return open_const(y);
}

const rd_array *rd_checkpoint(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in)
{
    size_t mark = g->n;
    rd_array *inner, *y;
    void *values;

    for (uint32_t i = 0; i < n_in; i++)
        if (!in[i]) return NULL;
    inner = call(g, fn, arg, in, n_in);
    if (!inner || !g->is_reverse || g->n == mark || inner != g->nodes[g->n - 1]) return inner;
    values = inner->v; /* the only thing that stays */
    inner->v = NULL;
    y = mem_zalloc(1, sizeof(*y));
    if (y) {
        *y = (rd_array){.op = ARRAY_CHECKPOINT,
                        .is_f64 = inner->is_f64,
                        .needs = inner->needs,
                        .rows = inner->rows,
                        .cols = inner->cols,
                        .v = values,
                        .fn = fn,
                        .arg = arg,
                        .n_ins = n_in};
        y->ins = mem_alloc(n_in ? n_in : 1, sizeof(*y->ins));
    }
    release(g, mark);
    if (!y || !y->ins) {
        mem_free(y ? NULL : values);
        free_node(y);
        return fail(g, RD_E_NOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < n_in; i++) y->ins[i] = open_const(in[i]);
    g->nodes[g->n++] = y; /* there was room: fn made a node at least */
    return y;
}

static rd_status back_to(rd_grad *g, size_t mark);

/* What the checkpoint's function made, made again and gone back through. */
static rd_status back_checkpoint(rd_grad *g, rd_array *y)
{
    size_t mark = g->n;
    rd_array *inner = call(g, y->fn, y->arg, (const rd_array *const *)y->ins, y->n_ins);
    rd_status st = RD_OK;

    if (!inner) st = g->error.status;
    if (inner && inner->rows == y->rows && inner->cols == y->cols) {
        inner->adjoint = y->adjoint;
        y->adjoint = NULL;
        st = back_to(g, mark);
    }
    release(g, mark);
    return st;
}

/* From the last node to the one at mark. */
static rd_status back_to(rd_grad *g, size_t mark)
{
    rd_status st = RD_OK;

    for (size_t i = g->n; i-- > mark && st == RD_OK;) {
        rd_array *y = g->nodes[i];

        if (!y->adjoint || !y->needs) continue;
        if (y->op == ARRAY_CHECKPOINT)
            st = back_checkpoint(g, y);
        else if (!kernels_of(y)->back(g, y))
            st = error_set(&g->error, RD_E_NOMEM, "out of memory");
    }
    return st;
}

/* An array of values that another had: *from is taken, or zeros. */
static const rd_array *keep(rd_grad *g, const rd_array *shape, void **from)
{
    rd_array *a = make(g, ARRAY_LEAF, shape->is_f64, shape->rows, shape->cols);

    if (a && *from) {
        mem_free(a->v);
        a->v = *from;
        *from = NULL;
    }
    return a;
}

static rd_status begin(rd_grad *g, const rd_array *const *in, uint32_t n_in)
{
    if (g->is_forward || g->is_reverse) {
        fail(g, RD_E_INVALID, "a function is being differentiated already");
        return RD_E_INVALID;
    }
    for (uint32_t i = 0; i < n_in; i++)
        if (!in[i]) {
            fail(g, RD_E_INVALID, "an input is not there");
            return g->error.status;
        }
    g->error.status = RD_OK;
    return RD_OK;
}

/* The value's shape, its numbers taken out of it: it may be an input itself. */
struct taken {
    rd_array shape;
    void *v;
};

static bool take(rd_grad *g, const rd_array *y, size_t mark, struct taken *out)
{
    bool is_own = false;

    out->shape = (rd_array){.is_f64 = y->is_f64, .rows = y->rows, .cols = y->cols};
    for (size_t i = mark; i < g->n; i++) is_own |= g->nodes[i] == y;
    out->v = is_own ? y->v : mem_memdup(y->v, array_bytes(y));
    if (is_own) open_const(y)->v = NULL;
    return out->v != NULL;
}

/* cotangent NULL: 1, of a value that is one number. */
static rd_status reverse(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in,
                         const rd_array *cotangent, const rd_array **value, const rd_array **grads)
{
    struct taken taken = {.v = NULL};
    size_t mark;
    rd_array *y;
    rd_status st = begin(g, in, n_in);

    *value = NULL;
    for (uint32_t i = 0; i < n_in; i++) grads[i] = NULL;
    if (st != RD_OK) return st;
    mark = g->n;
    g->is_reverse = true;
    for (uint32_t i = 0; i < n_in; i++) open_const(in[i])->needs = true;
    y = call(g, fn, arg, in, n_in);
    if (!y) {
        st = g->error.status;
    } else if (cotangent ? cotangent->rows != y->rows || cotangent->cols != y->cols || cotangent->is_f64 != y->is_f64
                         : y->rows != 1 || y->cols != 1) {
        st = error_set(&g->error, RD_E_INVALID, cotangent ? "a cotangent of another shape" : "the value is no number");
    } else {
        mem_free(y->adjoint);
        y->adjoint = cotangent ? (void *)mem_memdup(cotangent->v, array_bytes(y)) : mem_zalloc(1, sizeof(double));
        if (y->adjoint && !cotangent && y->is_f64) *(double *)y->adjoint = 1;
        if (y->adjoint && !cotangent && !y->is_f64) *(float *)y->adjoint = 1;
        st = y->adjoint ? back_to(g, mark) : error_set(&g->error, RD_E_NOMEM, "out of memory");
        if (st == RD_OK && !take(g, y, mark, &taken)) st = error_set(&g->error, RD_E_NOMEM, "out of memory");
    }
    release(g, mark);
    if (st == RD_OK) {
        *value = keep(g, &taken.shape, &taken.v);
        for (uint32_t i = 0; i < n_in; i++) grads[i] = keep(g, in[i], &open_const(in[i])->adjoint);
        st = g->error.status;
    }
    mem_free(taken.v);
    for (uint32_t i = 0; i < n_in; i++) {
        open_const(in[i])->needs = false;
        mem_free(in[i]->adjoint);
        open_const(in[i])->adjoint = NULL;
    }
    g->is_reverse = false;
    return st;
}

rd_status rd_grad_value(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in,
                        const rd_array **value, const rd_array **grads)
{
    return reverse(g, fn, arg, in, n_in, NULL, value, grads);
}

rd_status rd_vjp(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in,
                 const rd_array *cotangent, const rd_array **value, const rd_array **grads)
{
    *value = NULL;
    if (!cotangent) {
        fail(g, RD_E_INVALID, "a cotangent is not there");
        return RD_E_INVALID;
    }
    return reverse(g, fn, arg, in, n_in, cotangent, value, grads);
}

rd_status rd_jvp(rd_grad *g, rd_grad_fn *fn, void *arg, const rd_array *const *in, uint32_t n_in,
                 const rd_array *const *tangents, const rd_array **value, const rd_array **tangent)
{
    struct taken taken = {.v = NULL};
    void *t = NULL;
    size_t mark;
    rd_array *y;
    rd_status st = begin(g, in, n_in);

    *value = *tangent = NULL;
    for (uint32_t i = 0; i < n_in && st == RD_OK; i++)
        if (tangents[i] && (tangents[i]->rows != in[i]->rows || tangents[i]->cols != in[i]->cols ||
                            tangents[i]->is_f64 != in[i]->is_f64))
            st = error_set(&g->error, RD_E_INVALID, "a tangent of another shape");
    if (st != RD_OK) return st;
    mark = g->n;
    g->is_forward = true;
    for (uint32_t i = 0; i < n_in && st == RD_OK; i++) {
        if (!tangents[i]) continue;
        mem_free(in[i]->tangent); /* one input given twice: the last */
        open_const(in[i])->tangent = mem_memdup(tangents[i]->v, array_bytes(in[i]));
        if (!in[i]->tangent) st = error_set(&g->error, RD_E_NOMEM, "out of memory");
    }
    y = st == RD_OK ? call(g, fn, arg, in, n_in) : NULL;
    if (!y) {
        st = g->error.status;
    } else {
        bool ok = take(g, y, mark, &taken);

        if (ok && y->tangent) ok = (t = mem_memdup(y->tangent, array_bytes(y))) != NULL;
        if (!ok) st = error_set(&g->error, RD_E_NOMEM, "out of memory");
    }
    release(g, mark);
    if (st == RD_OK) {
        *value = keep(g, &taken.shape, &taken.v);
        *tangent = keep(g, &taken.shape, &t);
        st = g->error.status;
    }
    mem_free(taken.v);
    mem_free(t);
    for (uint32_t i = 0; i < n_in; i++) {
        mem_free(in[i]->tangent);
        open_const(in[i])->tangent = NULL;
    }
    g->is_forward = false;
    return st;
}
