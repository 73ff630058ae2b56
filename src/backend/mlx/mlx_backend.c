/* backend/mlx/mlx_backend.c - life, sync, and the ops that are a line or two of MLX. */
#include "backend/mlx/mlx_backend.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "backend/cpu_pool.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sysinfo.h"

#define WHY_BYTES   256
#define CACHE_BYTES (512ull << 20) /* of freed arrays: a step takes about the same again */
#define SPARE_BYTES (512ull << 20) /* less of the host's memory is free: nothing is kept */
#define LOOK_STEPS  32u

/* ---- failures ---- */

void mlx_forget_arguments(struct backend *be)
{
    for (uint32_t i = 0; i < MLX_STEPS; i++) mlx_step_forget(&be->steps[i]);
    for (uint32_t i = 0; i < MLX_INDICES; i++) {
        mlx_drop(be->indices[i].array);
        be->indices[i] = (struct mlx_indices){0};
    }
}

void mlx_forget_step(struct backend *be)
{
    for (size_t i = 0; i < be->n_readings; i++) mlx_drop(be->readings[i].array);
    be->n_readings = 0;
    mlx_forget_arguments(be);
}

static rd_status settle(struct backend *be, char *why)
{
    const rd_status st = mlx_failure(be->g, why, WHY_BYTES);

    mlx_end(be->g);
    return st;
}

rd_status mlx_settle(struct backend *be, const char *what)
{
    char why[WHY_BYTES];
    const rd_status st = settle(be, why);

    if (st == RD_OK) return st;
    log_error("mlx: %s: %s", what, why);
    mlx_forget_step(be); /* its arrays in host memory may go */
    return st;
}

rd_status mlx_settle_error(struct backend *be, const char *what, struct rd_error *err)
{
    char why[WHY_BYTES];
    const rd_status st = settle(be, why);

    return st == RD_OK ? RD_OK : error_set(err, st, "%s: MLX: %s", what, why);
}

/* ---- life ---- */

static void destroy(struct backend *be)
{
    if (!be) return;
    mlx_ahead_destroy(be);
    mlx_forget_step(be);
    for (uint32_t i = 0; i < MLX_STEPS; i++) mem_free(be->steps[i].rows);
    while (be->buffers) mlx_free(be, be->buffers);
    mlx_low_rank_let_go(be);
    mutex_deinit(&be->gone_lock);
    mlx_close(be->g);
    cpu_pool_destroy(be->pool);
    mem_free(be->readings);
    mem_free(be->pages);
    mem_free(be->wanted);
    mem_free(be);
}

static void run_tiles(void *pool, void (*fn)(void *arg, uint32_t tile, uint32_t thread), void *arg, uint32_t n_tiles)
{
    cpu_pool_run(pool, fn, arg, n_tiles);
}

/* The other CPU threads are MLX's: one for each stream. */
static rd_status use_threads(struct backend *be, uint32_t n)
{
    struct mlx_threads t = {n ? n : u32_min(thread_n_physical_cores(), LIMIT_CPU_THREADS), NULL, run_tiles};
    rd_status st;

    if (be->is_gpu || t.n == 1) return RD_OK;
    st = cpu_pool_create(t.n, &be->pool);
    t.pool = be->pool;
    if (st == RD_OK) mlx_use_threads(be->g, &t);
    return st;
}

static rd_status create(const struct backend_options *o, struct backend **out, struct rd_error *err)
{
    struct backend *be = mem_zalloc(1, sizeof(*be));
    char why[WHY_BYTES] = "";

    if (!be) return error_set(err, RD_E_NOMEM, "out of memory");
    mutex_init(&be->gone_lock);
    be->no_ahead = o->no_graphs;
    be->is_gpu = mlx_has_gpu();
    be->g = mlx_open(be->is_gpu, why, sizeof(why));
    if (!be->g) {
        mutex_deinit(&be->gone_lock);
        mem_free(be);
        return error_set(err, RD_E_UNSUPPORTED, "device mlx: %s", why);
    }
    mlx_memory_cache_limit(be->g, u64_min(CACHE_BYTES, sysinfo_memory() / 16));
    if (mlx_settle(be, "cache limit") != RD_OK) log_warn("mlx: freed arrays are kept without a limit");
    if (use_threads(be, o->n_threads) != RD_OK) {
        destroy(be);
        return error_set(err, RD_E_NOMEM, "device mlx: no threads");
    }
    *out = be;
    return RD_OK;
}

static bool is_dead(const struct backend *be)
{
    return be->is_dead;
}

static void describe(const struct backend *be, char *buf, size_t n)
{
    if (be->is_gpu)
        snprintf(buf, n, "MLX %s, Metal", mlx_version());
    else
        snprintf(buf, n, "MLX %s, its CPU build, %u threads", mlx_version(),
                 be->pool ? cpu_pool_n_threads(be->pool) : 1);
}

static void library(struct library_memory *out)
{
    struct mlx_memory m;

    mlx_memory_read(&m);
    *out = (struct library_memory){m.limit, m.active, m.peak, m.cache};
}

/* Other programs, or other parts of this one, need memory. */
static void look_around(struct backend *be)
{
    uint64_t left;

    if (be->n_steps++ % LOOK_STEPS) return;
    left = sysinfo_memory_free();
    if (left && left < SPARE_BYTES) mlx_memory_clear(be->g);
}

/* ---- steps ---- */

mlx_ref mlx_indices_of(struct backend *be, const uint32_t *of, uint32_t times, const uint32_t *beside, uint32_t n)
{
    struct mlx_indices *x;
    int32_t *all;

    for (uint32_t i = 0; i < MLX_INDICES; i++) {
        x = &be->indices[i];
        if (x->array && x->of == of && x->beside == beside && x->n == n) return x->array;
    }
    all = mem_alloc(n, sizeof(*all));
    if (!all) return NULL;
    for (uint32_t i = 0; i < n; i++) all[i] = (int32_t)(of[i] * times + (beside ? beside[i] : 0));
    x = &be->indices[be->next_index++ % MLX_INDICES];
    mlx_drop(x->array);
    *x = (struct mlx_indices){of, beside, n, mlx_keep(be->g, mlx_from(be->g, MLX_I32, mlx_dims1(n), all))};
    mem_free(all);
    return x->array;
}

rd_status mlx_want(struct backend *be, mlx_ref array, void *to, uint64_t n_bytes)
{
    struct mlx_reading r = {mlx_keep(be->g, array), to, n_bytes};

    if (!r.array || !mem_grow((void **)&be->readings, &be->cap_readings, be->n_readings + 1, sizeof(r))) {
        mlx_drop(r.array);
        return RD_E_NOMEM;
    }
    be->readings[be->n_readings++] = r;
    return RD_OK;
}

bool mlx_list_wanted(struct backend *be, uint32_t *n)
{
    size_t most = be->n_readings;

    for (const struct buffer *b = be->buffers; b; b = b->next) most += b->n;
    for (size_t i = 0; i < be->n_pages; i++) most += be->pages[i]->n_arrays;
    if (!mem_grow((void **)&be->wanted, &be->cap_wanted, most, sizeof(*be->wanted))) return false;
    *n = 0;
    for (size_t i = 0; i < be->n_readings; i++) be->wanted[(*n)++] = be->readings[i].array;
    for (size_t i = 0; i < be->n_pages; i++)
        for (uint32_t k = 0; be->pages[i]->dirty && k < be->pages[i]->n_arrays; k++)
            be->wanted[(*n)++] = be->pages[i]->arrays[k];
    for (const struct buffer *b = be->buffers; b; b = b->next)
        for (size_t i = 0; i < b->n; i++)
            if (b->pieces[i].dirty) be->wanted[(*n)++] = b->pieces[i].array;
    return true;
}

/* After a failure nothing of the step is kept, and the pages must still be there: what is written to them later than a
 * failure of memory can be. */
void mlx_recover(struct backend *be)
{
    for (struct buffer *b = be->buffers; b; b = b->next) {
        for (size_t i = 0; i < b->n; i++) mlx_drop(b->pieces[i].array);
        b->n = 0;
    }
    mlx_memory_clear(be->g);
    for (size_t i = 0; i < be->n_pages && !be->is_dead; i++)
        if (!mlx_eval(be->g, be->pages[i]->n_arrays, be->pages[i]->arrays)) be->is_dead = true;
    if (mlx_settle(be, "what was left of the step") != RD_OK) be->is_dead = true;
}

void mlx_is_clean(struct backend *be)
{
    for (struct buffer *b = be->buffers; b; b = b->next)
        for (size_t i = 0; i < b->n; i++) b->pieces[i].dirty = false;
    for (size_t i = 0; i < be->n_pages; i++) be->pages[i]->dirty = false;
}

static rd_status sync(struct backend *be)
{
    uint32_t n = 0;
    bool done;
    rd_status st;

    mlx_ahead_join(be);
    done = mlx_list_wanted(be, &n) && mlx_eval(be->g, n, be->wanted);
    for (size_t i = 0; done && i < be->n_readings; i++)
        done = mlx_get(be->g, be->readings[i].array, be->readings[i].to, be->readings[i].n_bytes);
    mlx_forget_step(be);
    mlx_low_rank_let_go(be);
    look_around(be);
    st = mlx_settle(be, "step");
    if (st == RD_OK && !done) st = RD_E_NOMEM;
    if (st != RD_OK) mlx_recover(be);
    mlx_is_clean(be);
    return st == RD_OK ? st : RD_E_DEVICE;
}

/* ---- ops ---- */

static rd_status residual_norm(struct backend *be, const struct residual_norm_args *a)
{
    const mlx_ref before = mlx_load(be, a->x, a->n_rows, a->width, a->width);
    mlx_ref x = before;

    if (!span_is_none(a->delta)) {
        mlx_ref d = mlx_load(be, a->delta, a->n_rows, a->width, a->width);

        if (a->delta_norm) d = mlx_rms_norm(be->g, d, mlx_weight_of(a->delta_norm)->w, a->eps);
        x = mlx_add(be->g, before, d);
        mlx_store(be, a->x, x, a->n_rows, a->width, a->width);
    }
    if (a->norm)
        mlx_store(be, a->out, mlx_rms_norm(be->g, x, mlx_weight_of(a->norm)->w, a->eps), a->n_rows, a->width, a->width);
    return mlx_settle(be, "residual_norm");
}

static rd_status linear(struct backend *be, const struct linear_args *a)
{
    const mlx_ref x = mlx_load(be, a->x, a->n_rows, a->outs[0].w->n_in, a->x_stride);

    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct linear_out *o = &a->outs[i];
        mlx_ref y = mlx_times(be, x, o->w);

        if (o->bias) y = mlx_add(be->g, y, mlx_weight_of(o->bias)->w);
        mlx_store(be, o->out, y, a->n_rows, o->w->n_out, o->out_stride);
    }
    return mlx_settle(be, "linear");
}

static rd_status glu(struct backend *be, enum activation act, uint32_t n_rows, uint32_t width, struct span gate,
                     struct span up, struct span out)
{
    mlx_ref g = mlx_load(be, gate, n_rows, width, width);

    g = act == ACT_SILU ? mlx_silu(be->g, g) : mlx_gelu_tanh(be->g, g);
    mlx_store(be, out, mlx_multiply(be->g, g, mlx_load(be, up, n_rows, width, width)), n_rows, width, width);
    return mlx_settle(be, "glu");
}

static rd_status gather(struct backend *be, uint32_t n, uint32_t width, struct span x, const uint32_t *rows,
                        struct span out)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < n; i++) most = u32_max(most, rows[i]);
    mlx_store(be, out, mlx_take(be->g, mlx_load(be, x, most + 1, width, width), mlx_indices_of(be, rows, 1, NULL, n)),
              n, width, width);
    return mlx_settle(be, "gather");
}

static rd_status softcap(struct backend *be, struct span x, uint64_t n, float cap)
{
    const mlx_ref a = mlx_load(be, x, 1, (uint32_t)n, (uint32_t)n);

    mlx_store(be, x, mlx_scale(be->g, mlx_tanh(be->g, mlx_scale(be->g, a, 1 / cap)), cap), 1, (uint32_t)n, (uint32_t)n);
    return mlx_settle(be, "softcap");
}

#define BIT(t) (UINT64_C(1) << (t))

const struct backend_ops backend_mlx_ops = {
    .name = "mlx",
    .traits = {.slow_prompts = true, .is_inexact = true, .kv_types = BIT(DTYPE_F32) | BIT(DTYPE_F16) | BIT(DTYPE_BF16)},
    .life = {.create = create, .destroy = destroy, .is_dead = is_dead, .describe = describe},
    .memory = {.alloc = mlx_alloc,
               .free = mlx_free,
               .read = mlx_buffer_read,
               .write = mlx_buffer_write,
               .sync = sync,
               .library = library},
    .weights = {.takes_groups = mlx_takes_groups, .load = mlx_weight_load, .unload = mlx_weight_unload},
    .pages = {.create = mlx_pages_create,
              .destroy = mlx_pages_destroy,
              .copy_rows = mlx_pages_copy_rows,
              .read = mlx_pages_read,
              .write = mlx_pages_write},
    .op = {.embed = mlx_embed,
           .residual_norm = residual_norm,
           .linear = linear,
           .qkv_rope_write = mlx_qkv_rope_write,
           .attention = mlx_attention_op,
           .glu = glu,
           .gather = gather,
           .softcap = softcap,
           .choose = mlx_choose,
           .low_rank = mlx_low_rank},
    .async = &mlx_async,
};
