/* backend/mlx/mlx_attention.c - q, k and v: normed, turned, written to pages; and attention over what is there.
 *
 * Rows of a step are of any number of sequences. Those that are one row of a sequence each, beside one another, are computed
 * together: their keys are gathered into one array as long as the longest, and a mask hides what is beyond the others. A run of
 * several rows is computed alone, in blocks of rows that each read the keys up to their own end.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "backend/mlx/mlx_backend.h"
#include "base/checked.h"
#include "base/mem.h"

#define BLOCK_ROWS    256u
#define SPARE_KEYS    512u /* that may be gathered for nothing, beside as many as are needed */
#define MOST_TOGETHER 256u
#define START_LAYERS  4u

/* ---- q, k, v ---- */

/* [n_rows, heads * dim] -> normed and turned -> [n_rows, heads * dim] */
static mlx_ref turn(struct backend *be, const struct qkv_args *a, mlx_ref x, uint32_t heads, const struct weight *norm)
{
    struct mlx_weight *freq = (struct mlx_weight *)(uintptr_t)a->inv_freq->data;
    const mlx_ref positions = mlx_indices_of(be, a->positions, 1, NULL, a->n_rows);

    if (!freq->periods) freq->periods = mlx_keep(be->g, mlx_reciprocal(be->g, freq->w));
    x = mlx_reshape(be->g, x, mlx_dims4(a->n_rows, heads, 1, a->head_dim));
    if (norm) x = mlx_rms_norm(be->g, x, mlx_weight_of(norm)->w, a->norm_eps);
    if (a->rope_mscale != 1 && a->n_rot < a->head_dim) {
        const mlx_ref halves[2] = {mlx_scale(be->g, mlx_slice(be->g, x, 3, 0, (int32_t)a->n_rot), a->rope_mscale),
                                   mlx_slice(be->g, x, 3, (int32_t)a->n_rot, (int32_t)a->head_dim)};

        x = mlx_concat(be->g, 2, halves, 3);
    } else {
        x = mlx_scale(be->g, x, a->rope_mscale);
    }
    return mlx_rope(be->g, x, a->n_rot, a->layout == ROPE_INTERLEAVED, positions, freq->periods);
}

static void write_rows(struct backend *be, const struct qkv_args *a, uint32_t which, mlx_ref rows)
{
    const enum dtype t = which ? a->kv->layout.dtype_v : a->kv->layout.dtype_k;
    mlx_ref *array = mlx_pages_array(a->kv, a->layer, which);
    const mlx_ref where = mlx_indices_of(be, a->row_page, a->kv->layout.page_tokens, a->row_slot, a->n_rows);
    const mlx_ref now = mlx_keep(
        be->g, mlx_put(be->g, *array, where,
                       mlx_as(be->g, mlx_reshape(be->g, rows, mlx_dims2(a->n_rows, a->n_kv_heads * a->head_dim)),
                              t == DTYPE_F32   ? MLX_F32
                              : t == DTYPE_F16 ? MLX_F16
                                               : MLX_BF16)));

    if (!now) return; /* the failure is noted */
    mlx_drop(*array);
    *array = now;
    mlx_pages_touch(a->kv);
}

/* What the step has come to by here begins to be computed, while the rest of it is still written down: every few layers; once where
 * the step before is still computed, whose results this thread waits for next, so that MLX has work until the rest comes. */
static void start(struct backend *be, const struct qkv_args *a, mlx_ref q)
{
    const mlx_ref wanted[3] = {q, *mlx_pages_array(a->kv, a->layer, 0), *mlx_pages_array(a->kv, a->layer, 1)};
    const bool due = mlx_ahead_is_set(be) ? a->layer == START_LAYERS - 1 : a->layer % START_LAYERS == START_LAYERS - 1;

    if (due) mlx_eval_async(be->g, 3, wanted);
}

rd_status mlx_qkv_rope_write(struct backend *be, const struct qkv_args *a)
{
    const uint32_t q_width = a->n_heads * a->head_dim, kv_width = a->n_kv_heads * a->head_dim;
    kv_page last = 0;
    mlx_ref q, k;

    for (uint32_t r = 0; r < a->n_rows; r++) last = u32_max(last, a->row_page[r]);
    if (mlx_pages_reach(be, a->kv, last)) {
        q = turn(be, a, mlx_load(be, a->q, a->n_rows, q_width, a->q_stride), a->n_heads, a->q_norm);
        k = turn(be, a, mlx_load(be, a->k, a->n_rows, kv_width, a->k_stride), a->n_kv_heads, a->k_norm);
        mlx_store(be, a->q, q, a->n_rows, q_width, a->q_stride);
        write_rows(be, a, 0, k);
        write_rows(be, a, 1, mlx_load(be, a->v, a->n_rows, kv_width, a->v_stride));
        start(be, a, q);
    }
    return mlx_settle(be, "qkv_rope_write");
}

/* ---- which rows read which keys ---- */

static uint32_t first_key(uint32_t pos, uint32_t window)
{
    return window && pos + 1 > window ? pos + 1 - window : 0;
}

void mlx_step_forget(struct mlx_step *s)
{
    for (size_t i = 0; i < s->n; i++) {
        mlx_drop(s->rows[i].keys);
        mlx_drop(s->rows[i].mask);
    }
    s->n = 0;
    s->runs = NULL;
}

/* Where the keys first .. first + n - 1 of a sequence lie; the first once more behind them. */
static void put_keys(int32_t *to, const struct seq_run *run, uint32_t page_tokens, uint32_t first, uint32_t n,
                     uint32_t n_wanted)
{
    for (uint32_t i = 0; i < n_wanted; i++) {
        const uint32_t t = first + (i < n ? i : 0);

        to[i] = (int32_t)(run->block_table[t / page_tokens] * page_tokens + t % page_tokens);
    }
}

/* How many runs from runs[0] on are computed together, and the longest of them. */
static uint32_t together(const struct seq_run *runs, uint32_t n, uint32_t window, uint32_t *longest)
{
    uint64_t sum = 0;
    uint32_t m = 0;

    *longest = 0;
    while (m < n && m < MOST_TOGETHER && runs[m].n_rows == 1 && (m == 0 || runs[m].row0 == runs[m - 1].row0 + 1)) {
        const uint32_t len = runs[m].pos0 + 1 - first_key(runs[m].pos0, window), most = u32_max(*longest, len);

        if (m && (uint64_t)(m + 1) * most > 2 * (sum + len) + SPARE_KEYS) break;
        sum += len;
        *longest = most;
        m++;
    }
    return m;
}

static bool add_singles(struct backend *be, struct mlx_rows *rows, const struct seq_run *runs, uint32_t n,
                        uint32_t longest, uint32_t window, uint32_t page_tokens)
{
    int32_t *keys = mem_alloc((size_t)n * longest, sizeof(*keys));
    float *mask = mem_zalloc((size_t)n * longest, sizeof(*mask));
    bool is_ragged = false;

    for (uint32_t i = 0; keys && mask && i < n; i++) {
        const uint32_t first = first_key(runs[i].pos0, window), len = runs[i].pos0 + 1 - first;

        put_keys(keys + (size_t)i * longest, &runs[i], page_tokens, first, len, longest);
        for (uint32_t t = len; t < longest; t++) mask[(size_t)i * longest + t] = -INFINITY;
        is_ragged |= len < longest;
    }
    *rows = (struct mlx_rows){.is_one = true, .row0 = runs[0].row0, .n = n, .n_keys = longest};
    if (keys && mask) rows->keys = mlx_keep(be->g, mlx_from(be->g, MLX_I32, mlx_dims2(n, longest), keys));
    if (keys && mask && is_ragged)
        rows->mask = mlx_keep(be->g, mlx_from(be->g, MLX_F32, mlx_dims4(n, 1, 1, longest), mask));
    mem_free(keys);
    mem_free(mask);
    return rows->keys && (!is_ragged || rows->mask);
}

/* A run of several rows: its keys, and within a window the mask of all its rows. */
static bool add_run(struct backend *be, struct mlx_rows *rows, const struct seq_run *run, uint32_t window,
                    uint32_t page_tokens)
{
    const uint32_t first = first_key(run->pos0, window), n = run->pos0 + run->n_rows - first;
    int32_t *keys = mem_alloc(n, sizeof(*keys));
    float *mask = window ? mem_zalloc((size_t)run->n_rows * n, sizeof(*mask)) : NULL;

    *rows = (struct mlx_rows){.row0 = run->row0, .n = run->n_rows, .n_keys = n, .pos0 = run->pos0, .first = first};
    if (keys) put_keys(keys, run, page_tokens, first, n, n);
    for (uint32_t r = 0; mask && r < run->n_rows; r++)
        for (uint32_t t = 0; t < n; t++)
            if (first + t > run->pos0 + r || first + t < first_key(run->pos0 + r, window))
                mask[(size_t)r * n + t] = -INFINITY;
    if (keys) rows->keys = mlx_keep(be->g, mlx_from(be->g, MLX_I32, mlx_dims2(1, n), keys));
    if (mask) rows->mask = mlx_keep(be->g, mlx_from(be->g, MLX_F32, mlx_dims4(1, 1, run->n_rows, n), mask));
    mem_free(keys);
    mem_free(mask);
    return rows->keys && (!window || rows->mask);
}

/* The same for all layers of a step that have the same window. */
static const struct mlx_step *step_of(struct backend *be, const struct attention_args *a)
{
    struct mlx_step *s;

    for (uint32_t i = 0; i < MLX_STEPS; i++) {
        s = &be->steps[i];
        if (s->runs == a->runs && s->n_runs == a->n_runs && s->window == a->window) return s;
    }
    s = &be->steps[be->next_step++ % MLX_STEPS];
    mlx_step_forget(s);
    for (uint32_t i = 0; i < a->n_runs;) {
        const uint32_t page_tokens = a->kv->layout.page_tokens;
        uint32_t longest, n = together(a->runs + i, a->n_runs - i, a->window, &longest);
        bool made;

        if (a->runs[i].n_rows == 0) {
            i++;
            continue;
        }
        if (!mem_grow((void **)&s->rows, &s->cap, s->n + 1, sizeof(*s->rows))) return NULL;
        if (n)
            made = add_singles(be, &s->rows[s->n++], a->runs + i, n, longest, a->window, page_tokens);
        else
            made = add_run(be, &s->rows[s->n++], &a->runs[i], a->window, page_tokens);
        if (!made) return NULL;
        i += n ? n : 1;
    }
    s->runs = a->runs;
    s->n_runs = a->n_runs;
    s->window = a->window;
    return s;
}

/* ---- attention ---- */

/* [n, n_kv_heads, n_keys, head_dim] f32 */
static mlx_ref gathered(struct backend *be, const struct attention_args *a, const struct mlx_rows *r, uint32_t which)
{
    const uint32_t n = r->is_one ? r->n : 1;
    const mlx_ref rows = mlx_take(be->g, *mlx_pages_array(a->kv, a->layer, which), r->keys);
    const mlx_ref heads = mlx_reshape(be->g, rows, mlx_dims4(n, r->n_keys, a->n_kv_heads, a->head_dim));

    return mlx_as(be->g, mlx_swap(be->g, heads, 1, 2), MLX_F32);
}

/* Rows from .. from + n - 1 of a run, [n, heads * dim]. */
static mlx_ref block_of(struct backend *be, const struct attention_args *a, const struct mlx_rows *r, mlx_ref q,
                        mlx_ref k, mlx_ref v, uint32_t from, uint32_t n)
{
    const int32_t end = (int32_t)(r->pos0 + from + n - r->first);
    struct mlx_attention one = {.scale = a->scale, .softcap = a->softcap, .causal = true};

    q = mlx_slice(be->g, q, 0, (int32_t)from, (int32_t)(from + n));
    one.q = mlx_swap(be->g, mlx_reshape(be->g, q, mlx_dims4(1, n, a->n_heads, a->head_dim)), 1, 2);
    one.k = mlx_slice(be->g, k, 2, 0, end);
    one.v = mlx_slice(be->g, v, 2, 0, end);
    if (r->mask)
        one.mask = mlx_slice(be->g, mlx_slice(be->g, r->mask, 2, (int32_t)from, (int32_t)(from + n)), 3, 0, end);
    return mlx_reshape(be->g, mlx_swap(be->g, mlx_attend(be->g, &one), 1, 2), mlx_dims2(n, a->n_heads * a->head_dim));
}

static mlx_ref attend_rows(struct backend *be, const struct attention_args *a, const struct mlx_rows *r)
{
    const uint32_t width = a->n_heads * a->head_dim;
    struct span at = a->q;
    mlx_ref q, k = gathered(be, a, r, 0), v = gathered(be, a, r, 1), blocks[16];
    uint32_t n_blocks = 0;

    at.at += (uint64_t)r->row0 * a->q_stride * sizeof(float);
    q = mlx_load(be, at, r->n, width, a->q_stride);
    if (r->is_one) {
        const struct mlx_attention all = {.q = mlx_reshape(be->g, q, mlx_dims4(r->n, a->n_heads, 1, a->head_dim)),
                                          .k = k,
                                          .v = v,
                                          .mask = r->mask,
                                          .scale = a->scale,
                                          .softcap = a->softcap};

        return mlx_reshape(be->g, mlx_attend(be->g, &all), mlx_dims2(r->n, width));
    }
    for (uint32_t from = 0; from < r->n; from += BLOCK_ROWS) {
        blocks[n_blocks++] = block_of(be, a, r, q, k, v, from, u32_min(BLOCK_ROWS, r->n - from));
        if (n_blocks < sizeof(blocks) / sizeof(blocks[0])) continue;
        blocks[0] = mlx_concat(be->g, n_blocks, blocks, 0);
        n_blocks = 1;
    }
    return n_blocks == 1 ? blocks[0] : mlx_concat(be->g, n_blocks, blocks, 0);
}

rd_status mlx_attention_op(struct backend *be, const struct attention_args *a)
{
    const struct mlx_step *s = step_of(be, a);

    for (size_t i = 0; s && i < s->n; i++) {
        const struct mlx_rows *r = &s->rows[i];
        struct span to = a->out;

        to.at += (uint64_t)r->row0 * a->out_stride * sizeof(float);
        mlx_store(be, to, attend_rows(be, a, r), r->n, a->n_heads * a->head_dim, a->out_stride);
    }
    const rd_status st = mlx_settle(be, "attention");

    return st == RD_OK && !s ? RD_E_NOMEM : st;
}
