/* backend/cpu/host/cpu_backend.c - the CPU backend: memory, KV storage, and the ops that go row by row. */
#include "backend/cpu/cpu_backend.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "backend/cpu/rows/row_kernels.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"

#define FLOATS_PER_TILE 8192u /* less work is not worth waking a thread for */

/* ---- life ---- */

static void cpu_destroy(struct backend *be)
{
    if (!be) return;
    cpu_linear_destroy(be);
    cpu_attn_destroy(be);
    cpu_pool_destroy(be->pool);
    weight_memory_deinit(&be->weights);
    mem_free(be);
}

static rd_status cpu_create(const struct backend_options *o, struct backend **out, struct rd_error *err)
{
    uint32_t n_threads = o->n_threads ? o->n_threads : u32_min(thread_n_physical_cores(), LIMIT_CPU_THREADS);
    rd_status st = RD_E_NOMEM;
    struct backend *be = NULL;

    if (n_threads > LIMIT_CPU_THREADS)
        return error_set(err, RD_E_INVALID, "%u CPU threads, at most %u", n_threads, LIMIT_CPU_THREADS);
    be = mem_zalloc(1, sizeof(*be));
    if (!be) goto fail;
    be->ops = &backend_cpu_ops;
    be->isa = cpu_isa_best();
    be->ask_l2 = cpu_asks_l2();
    if (o->isa) {
        st = cpu_isa_parse(o->isa, &be->isa, err);
        if (st != RD_OK) goto fail;
    }
    st = cpu_pool_create(n_threads, &be->pool);
    if (st != RD_OK) goto fail_text;
    st = cpu_attn_create(be);
    if (st != RD_OK) goto fail_text;
    st = cpu_linear_create(be);
    if (st != RD_OK) goto fail_text;
    *out = be;
    return RD_OK;

fail_text:
    error_set(err, st, "CPU backend with %u threads: %s", n_threads, rd_status_text(st));
fail:
    cpu_destroy(be);
    return st;
}

static void cpu_describe(const struct backend *be, char *buf, size_t n)
{
    uint32_t n_threads = cpu_pool_n_threads(be->pool);

    snprintf(buf, n, "%s, %u thread%s", cpu_isa_name(be->isa), n_threads, n_threads == 1 ? "" : "s");
}

static rd_status cpu_sync(struct backend *be)
{
    (void)be; /* ops have ended when they return */
    return RD_OK;
}

/* ---- memory ---- */

/* Mapped: only what batches touch becomes memory, and few are as large as the largest. */
static rd_status cpu_alloc(struct backend *be, uint64_t n_bytes, struct buffer **out)
{
    struct buffer *b = mem_alloc(1, sizeof(*b));

    (void)be;
    if (!b) return RD_E_NOMEM;
    *b = (struct buffer){n_bytes <= SIZE_MAX ? mem_map((size_t)n_bytes) : NULL, (size_t)n_bytes};
    if (!b->base) {
        mem_free(b);
        return RD_E_NOMEM;
    }
    *out = b;
    return RD_OK;
}

static void cpu_free(struct backend *be, struct buffer *b)
{
    (void)be;
    if (b) mem_unmap(b->base, b->n_bytes);
    mem_free(b);
}

static rd_status keep_low_rank(const struct host_tensor *t, struct weight *out, struct rd_error *err)
{
    struct weight w = {.dtype = t->dtype, .role = WEIGHT_LOW_RANK, .n_out = t->n_out, .n_in = t->n_in};
    void *values;

    assert(t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16);
    if (t->stays) {
        w.data = t->data;
        *out = w;
        return RD_OK;
    }
    w.bytes = (uint64_t)t->n_out * t->n_in * dtype_block_bytes(t->dtype);
    w.data = values = mem_alloc_aligned((size_t)w.bytes);
    if (!values)
        return error_set(err, RD_E_NOMEM, "%s: no memory for %llu bytes", t->name, (unsigned long long)w.bytes);
    memcpy(values, t->data, (size_t)w.bytes);
    *out = w;
    return RD_OK;
}

static rd_status cpu_weight_load(struct backend *be, const struct host_tensor *t, enum weight_role role,
                                 struct weight *out, struct rd_error *err)
{
    struct weight w = {.dtype = t->dtype, .role = role, .n_out = t->n_out, .n_in = t->n_in};
    uint64_t n = (uint64_t)t->n_out * t->n_in;
    float *values;

    if (role == WEIGHT_DENSE && be->dense && dtype_block_weights(t->dtype) == 1) return cpu_pack_dense(be, t, out, err);
    if (role == WEIGHT_MATRIX || role == WEIGHT_DENSE) return cpu_pack_matrix(be, t, out, err);
    assert(t->n_in % dtype_block_weights(t->dtype) == 0);
    if (role == WEIGHT_EMBED) {
        w.data = t->data;
        *out = w;
        return RD_OK;
    }
    if (role == WEIGHT_LOW_RANK) return keep_low_rank(t, out, err);
    w.bytes = n * sizeof(*values);
    values = mem_alloc_aligned((size_t)w.bytes);
    if (!values) return error_set(err, RD_E_NOMEM, "%s: no memory for %llu floats", t->name, (unsigned long long)n);
    dtype_to_float(t->dtype, t->data, values, n);
    w.data = values;
    *out = w;
    return RD_OK;
}

static void cpu_weight_unload(struct backend *be, struct weight *w)
{
    if (!w || !w->data) return;
    switch (w->role) {
    case WEIGHT_MATRIX:
    case WEIGHT_DENSE:
        cpu_unpack_matrix(be, w);
        break;
    case WEIGHT_VECTOR:
    case WEIGHT_LOW_RANK:
        if (w->bytes > 0) mem_free_aligned((void *)(uintptr_t)w->data);
        break;
    case WEIGHT_EMBED:
        break;
    }
    memset(w, 0, sizeof(*w));
}

static rd_status cpu_kv_create(struct backend *be, const struct kv_layout *layout, uint32_t n_pages,
                               struct kv_storage *out)
{
    struct kv_storage kv = {.layout = *layout, .n_pages = n_pages};
    uint64_t bytes;

    (void)be;
    assert(layout->page_tokens && (layout->page_tokens & (layout->page_tokens - 1)) == 0 && n_pages > 0);
    assert(kv_type_fits(layout->dtype_k, layout->head_dim) && kv_type_fits(layout->dtype_v, layout->head_dim));
    for (uint32_t which = 0; which < 2; which++) kv.row_bytes[which] = kv_row_bytes(layout, which);
    bytes = (kv.row_bytes[0] + kv.row_bytes[1]) * layout->page_tokens;
    if (!checked_mul(bytes, (uint64_t)layout->n_kv_heads, &kv.page_bytes)) return RD_E_NOMEM;
    if (!checked_mul(kv.page_bytes, (uint64_t)layout->n_layers, &kv.page_bytes)) return RD_E_NOMEM;
    if (!checked_mul(kv.page_bytes, (uint64_t)n_pages, &bytes) || bytes > SIZE_MAX) return RD_E_NOMEM;
    kv.base = mem_map((size_t)bytes);
    if (!kv.base) return RD_E_NOMEM;
    *out = kv;
    return RD_OK;
}

static void cpu_kv_destroy(struct backend *be, struct kv_storage *kv)
{
    (void)be;
    if (!kv || !kv->base) return;
    mem_unmap(kv->base, (size_t)(kv->page_bytes * kv->n_pages));
    memset(kv, 0, sizeof(*kv));
}

static rd_status cpu_read(struct backend *be, void *to, struct span from, uint64_t n_bytes)
{
    (void)be;
    memcpy(to, cpu_at(from), n_bytes);
    return RD_OK;
}

static rd_status cpu_write(struct backend *be, struct span to, const void *from, uint64_t n_bytes)
{
    (void)be;
    memcpy(cpu_at(to), from, n_bytes);
    return RD_OK;
}

static rd_status cpu_kv_read(struct backend *be, const struct kv_storage *kv, void *to, kv_page from)
{
    (void)be;
    assert(from < kv->n_pages);
    memcpy(to, kv_page_at(kv, from), kv->page_bytes);
    return RD_OK;
}

static rd_status cpu_kv_write(struct backend *be, const struct kv_storage *kv, kv_page to, const void *from)
{
    (void)be;
    assert(to < kv->n_pages);
    memcpy(kv_page_at(kv, to), from, kv->page_bytes);
    return RD_OK;
}

static rd_status cpu_kv_copy_rows(struct backend *be, struct kv_storage *kv, kv_page to, kv_page from, uint32_t n_rows)
{
    uint8_t *dst = kv_page_at(kv, to);
    const uint8_t *src = kv_page_at(kv, from);

    (void)be;
    assert(to < kv->n_pages && from < kv->n_pages && to != from && n_rows <= kv->layout.page_tokens);
    for (uint32_t i = 0; i < 2 * kv->layout.n_layers; i++) {
        uint64_t row_bytes = kv->row_bytes[i % 2], head_bytes = row_bytes * kv->layout.page_tokens;

        for (uint32_t h = 0; h < kv->layout.n_kv_heads; h++, dst += head_bytes, src += head_bytes)
            memcpy(dst, src, (size_t)(n_rows * row_bytes));
    }
    return RD_OK;
}

/* ---- ops that go row by row ---- */

struct row_job {
    struct backend *be;
    void (*row)(const struct row_job *job, uint64_t row);
    const void *args;
    uint64_t n_rows, rows_per_tile;
};

static void row_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct row_job *job = arg;
    uint64_t row = tile * job->rows_per_tile, end = u64_min(row + job->rows_per_tile, job->n_rows);

    for (; row < end; row++) job->row(job, row);
}

static void run_rows(struct backend *be, void (*row)(const struct row_job *, uint64_t), const void *args,
                     uint64_t n_rows, uint64_t floats_per_row)
{
    struct row_job job = {be, row, args, n_rows, 1};

    if (floats_per_row < FLOATS_PER_TILE) job.rows_per_tile = FLOATS_PER_TILE / u64_max(floats_per_row, 1);
    cpu_pool_run(be->pool, row_tile, &job, (uint32_t)((n_rows + job.rows_per_tile - 1) / job.rows_per_tile));
}

struct embed_args {
    const struct weight *w;
    const int32_t *tokens;
    float scale, *out;
};

static void embed_row(const struct row_job *job, uint64_t row)
{
    const struct embed_args *a = job->args;
    uint32_t n = a->w->n_in;
    uint64_t row_bytes = (uint64_t)n / dtype_block_weights(a->w->dtype) * dtype_block_bytes(a->w->dtype);
    float *out = a->out + row * n;

    assert(a->tokens[row] >= 0 && (uint32_t)a->tokens[row] < a->w->n_out);
    dtype_to_float(a->w->dtype, (const uint8_t *)a->w->data + (uint64_t)a->tokens[row] * row_bytes, out, n);
    if (a->scale != 1.0f) job->be->rows->scale(out, a->scale, NULL, out, n);
}

static rd_status cpu_embed(struct backend *be, const struct weight *w, uint32_t n_rows, const int32_t *tokens,
                           float scale, struct span out)
{
    struct embed_args a = {w, tokens, scale, cpu_at(out)};

    assert(w->role == WEIGHT_EMBED);
    run_rows(be, embed_row, &a, n_rows, w->n_in);
    return RD_OK;
}

static float inverse_rms(const struct cpu_row_kernels *rows, const float *x, uint32_t n, float eps)
{
    return 1.0f / sqrtf(rows->sum_squares(x, n) / (float)n + eps);
}

static void residual_norm_row(const struct row_job *job, uint64_t row)
{
    const struct residual_norm_args *a = job->args;
    const struct cpu_row_kernels *rows = job->be->rows;
    uint64_t at = row * a->width;
    float *x = cpu_at(a->x) + at;

    if (!span_is_none(a->delta) && a->delta_norm) {
        const float *delta = cpu_at(a->delta) + at;

        rows->add_scaled(x, delta, inverse_rms(rows, delta, a->width, a->eps), a->delta_norm->data, a->width);
    } else if (!span_is_none(a->delta)) {
        rows->add(x, cpu_at(a->delta) + at, a->width);
    }
    if (a->norm) rows->scale(x, inverse_rms(rows, x, a->width, a->eps), a->norm->data, cpu_at(a->out) + at, a->width);
}

static rd_status cpu_residual_norm(struct backend *be, const struct residual_norm_args *a)
{
    assert(!a->norm || a->norm->n_in == a->width);
    assert(!a->delta_norm || a->delta_norm->n_in == a->width);
    run_rows(be, residual_norm_row, a, a->n_rows, a->width);
    return RD_OK;
}

struct glu_args {
    enum activation act;
    uint64_t n;
    const float *gate, *up;
    float *out;
};
struct softcap_args {
    uint64_t n;
    float *x, cap;
};

/* "Rows" of elementwise ops are pieces of FLOATS_PER_TILE / 4 values, wherever the real rows end. */
#define PIECE (FLOATS_PER_TILE / 4)

static void glu_piece(const struct row_job *job, uint64_t piece)
{
    const struct glu_args *a = job->args;
    uint64_t at = piece * PIECE;

    job->be->rows->glu(a->act, a->gate + at, a->up + at, a->out + at, (uint32_t)u64_min(PIECE, a->n - at));
}

static rd_status cpu_glu(struct backend *be, enum activation act, uint32_t n_rows, uint32_t width, struct span gate,
                         struct span up, struct span out)
{
    struct glu_args a = {act, (uint64_t)n_rows * width, cpu_at(gate), cpu_at(up), cpu_at(out)};

    run_rows(be, glu_piece, &a, (a.n + PIECE - 1) / PIECE, 2 * PIECE); /* exp costs more than a load: count double */
    return RD_OK;
}

static void softcap_piece(const struct row_job *job, uint64_t piece)
{
    const struct softcap_args *a = job->args;
    uint64_t at = piece * PIECE;

    job->be->rows->softcap(a->x + at, a->cap, (uint32_t)u64_min(PIECE, a->n - at));
}

static rd_status cpu_softcap(struct backend *be, struct span x, uint64_t n, float cap)
{
    struct softcap_args a = {n, cpu_at(x), cap};

    run_rows(be, softcap_piece, &a, (n + PIECE - 1) / PIECE, 2 * PIECE);
    return RD_OK;
}

static rd_status cpu_gather(struct backend *be, uint32_t n, uint32_t width, struct span x, const uint32_t *rows,
                            struct span out)
{
    const float *from = cpu_at(x);
    float *to = cpu_at(out);

    (void)be;
    for (uint32_t i = 0; i < n; i++)
        memcpy(to + (uint64_t)i * width, from + (uint64_t)rows[i] * width, width * sizeof(*to));
    return RD_OK;
}

const struct backend_ops backend_cpu_ops = {
    .name = "cpu",
    .traits = {.shares_memory = true,
               .interruptible = true,
               .slow_prompts = true,
               .same_everywhere = true,
               .gives_best = true,
               .keeps_windows = true,
               .sees_both_ways = true,
               .turns_axes = true},
    .life = {.create = cpu_create, .destroy = cpu_destroy, .describe = cpu_describe},
    .memory = {.alloc = cpu_alloc, .free = cpu_free, .read = cpu_read, .write = cpu_write, .sync = cpu_sync},
    .weights = {.load = cpu_weight_load, .unload = cpu_weight_unload, .adopt = cpu_adopt_matrix},
    .pages = {.create = cpu_kv_create,
              .destroy = cpu_kv_destroy,
              .copy_rows = cpu_kv_copy_rows,
              .read = cpu_kv_read,
              .write = cpu_kv_write},
    .op = {.embed = cpu_embed,
           .residual_norm = cpu_residual_norm,
           .linear = cpu_linear,
           .qkv_rope_write = cpu_qkv_rope_write,
           .attention = cpu_attention,
           .glu = cpu_glu,
           .low_rank = cpu_low_rank,
           .gather = cpu_gather,
           .join = cpu_join,
           .softcap = cpu_softcap,
           .layer_norm = cpu_layer_norm,
           .gelu = cpu_gelu_all,
           .turn = cpu_turn,
           .mean_rows = cpu_mean_rows,
           .attend_pack = cpu_attend_pack,
           .attend = cpu_attend},
};
