/* backend/mlx/mlx_low_rank.c - adapters: two small products beside a matrix's, for the rows that have them.
 *
 * Adapters come and go on any thread while steps run, and arrays are the engine thread's alone. So what is loaded is host memory
 * until a step first needs it, and what is let go waits in a list for the engine thread's next look.
 */
#include <string.h>
#include "backend/mlx/mlx_backend.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"

rd_status mlx_low_rank_load(const struct host_tensor *t, struct weight *out, struct rd_error *err)
{
    const uint64_t n = (uint64_t)t->n_out * t->n_in;
    struct mlx_weight *w = mem_zalloc(1, sizeof(*w));

    if (w) w->values = mem_alloc(n, sizeof(*w->values));
    if (!w || !w->values) {
        mem_free(w);
        return error_set(err, RD_E_NOMEM, "%s: out of memory", t->name);
    }
    dtype_to_float(t->dtype, t->data, w->values, n);
    *out = (struct weight){.dtype = t->dtype,
                           .role = WEIGHT_LOW_RANK,
                           .n_out = t->n_out,
                           .n_in = t->n_in,
                           .data = w,
                           .bytes = n * sizeof(float)};
    return RD_OK;
}

void mlx_low_rank_unload(struct backend *be, struct mlx_weight *w)
{
    mutex_lock(&be->gone_lock);
    w->next_gone = be->gone;
    be->gone = w;
    mutex_unlock(&be->gone_lock);
}

void mlx_low_rank_let_go(struct backend *be)
{
    struct mlx_weight *w, *next;

    mutex_lock(&be->gone_lock);
    w = be->gone;
    be->gone = NULL;
    mutex_unlock(&be->gone_lock);
    for (; w; w = next) {
        next = w->next_gone;
        mlx_drop(w->w);
        mem_free(w->values);
        mem_free(w);
    }
}

/* [n_out, n_in] as it is, or turned: what MLX multiplies with. */
static mlx_ref matrix(struct backend *be, const struct weight *weight, bool is_turned)
{
    struct mlx_weight *w = (struct mlx_weight *)(uintptr_t)weight->data;
    const mlx_ref a = w->w ? NULL : mlx_from(be->g, MLX_F32, mlx_dims2(weight->n_out, weight->n_in), w->values);
    const mlx_ref b = is_turned && a ? mlx_in_one_piece(be->g, mlx_swap(be->g, a, 0, 1)) : a;

    if (w->w) return w->w;
    if (!b || !mlx_eval(be->g, 1, &b)) return NULL;
    w->w = mlx_keep(be->g, b);
    if (!w->w) return NULL;
    mem_free(w->values);
    w->values = NULL;
    return w->w;
}

static mlx_ref times(struct backend *be, mlx_ref x, mlx_ref w)
{
    const struct mlx_groups all = {.w = w};

    if (!x || !w) return NULL;
    return be->is_gpu ? mlx_matmul(be->g, x, w) : mlx_own_matmul(be->g, x, &all);
}

static void add_term(struct backend *be, const struct low_rank_args *a, const struct low_rank_term *m)
{
    uint32_t n = 0;
    mlx_ref x, where, t, now;

    for (uint32_t i = 0; i < m->n_rows; i++) n = u32_max(n, m->rows[i] + 1);
    where = n > m->n_rows ? mlx_from(be->g, MLX_U32, mlx_dims1(m->n_rows), m->rows) : NULL; /* else they are all of n */
    x = mlx_load(be, a->x, n, m->a->n_in, a->x_stride);
    if (where) x = mlx_take(be->g, x, where);
    t = mlx_scale(be->g, times(be, x, matrix(be, m->a, false)), m->scale);
    t = times(be, t, matrix(be, m->b, true));
    now = mlx_load(be, m->out, n, m->b->n_in, m->out_stride);
    now = where ? mlx_put(be->g, now, where, mlx_add(be->g, mlx_take(be->g, now, where), t)) : mlx_add(be->g, now, t);
    mlx_store(be, m->out, now, n, m->b->n_in, m->out_stride);
}

rd_status mlx_low_rank(struct backend *be, const struct low_rank_args *a)
{
    bool has_memory = true;

    mlx_low_rank_let_go(be);
    for (uint32_t i = 0; i < a->n_terms; i++) {
        add_term(be, a, &a->terms[i]);
        has_memory &= mlx_weight_of(a->terms[i].a)->w && mlx_weight_of(a->terms[i].b)->w;
    }
    const rd_status st = mlx_settle(be, "low_rank");

    return st == RD_OK && !has_memory ? RD_E_NOMEM : st;
}
