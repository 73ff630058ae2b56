/* grad/cpu_device.c - device.h on a CPU: host memory, f32, threads. attention_back.c has attention. */
#include "grad/cpu_device.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "backend/cpu/cpu_backend.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/philox.h"

#define ROWS_PER_TILE 4u
#define PIECE         4096u
#define COPY_PIECE    32768u

/* ---- life, memory ---- */

static void waiting_done(struct grad_device *d)
{
    for (uint32_t i = 0; i < d->waiting.n; i++) float_pool_give(&d->floats, d->waiting.dts[i]);
    d->waiting.n = 0;
}

static void destroy(struct grad_device *d)
{
    if (!d) return;
    waiting_done(d);
    float_pool_deinit(&d->floats);
    for (size_t i = 0; i < d->n_frozen; i++) mem_free(d->frozen[i].own);
    mem_free(d->frozen);
    mem_free(d->scratch);
    mem_free(d->losses);
    grad_compute_destroy(d->compute);
    mem_free(d);
}

static rd_status create(const struct backend_options *o, struct backend *inner, struct grad_device **out,
                        struct rd_error *err)
{
    struct grad_device *d = mem_zalloc(1, sizeof(*d));
    rd_status st;

    if (!d) return error_set(err, RD_E_NOMEM, "out of memory");
    d->inner = inner;
    st = grad_compute_create_in(inner->pool, o->isa, &d->compute, err);
    if (st == RD_OK)
        *out = d;
    else
        destroy(d);
    return st;
}

static bool has_matrix_unit(const struct grad_device *d)
{
    return grad_has_matrix_unit(d->compute);
}

static rd_status loaded(struct grad_device *d, const struct host_tensor *t, const struct weight *w)
{
    struct frozen f = {w->data, {t->dtype, t->n_out, t->n_in, t->data}, NULL};

    if (!t->stays) {
        uint64_t n = (uint64_t)t->n_out * (t->n_in / dtype_block_weights(t->dtype)) * dtype_block_bytes(t->dtype);

        f.m.data = f.own = mem_memdup(t->data, n);
    }
    if (!f.m.data || !mem_grow((void **)&d->frozen, &d->cap_frozen, d->n_frozen + 1, sizeof(f))) {
        mem_free(f.own);
        return RD_E_NOMEM;
    }
    d->frozen[d->n_frozen++] = f;
    return RD_OK;
}

static void unloaded(struct grad_device *d, const struct weight *w)
{
    for (size_t i = 0; i < d->n_frozen; i++)
        if (d->frozen[i].key == w->data) {
            mem_free(d->frozen[i].own);
            d->frozen[i] = d->frozen[--d->n_frozen];
            return;
        }
}

static void *take(struct grad_device *d, uint64_t n_bytes)
{
    return float_pool_take(&d->floats, (n_bytes + sizeof(float) - 1) / sizeof(float));
}
static void give(struct grad_device *d, void *p)
{
    float_pool_give(&d->floats, p);
}
static void trim(struct grad_device *d)
{
    waiting_done(d);
    float_pool_trim(&d->floats);
}

static rd_status zero(struct grad_device *d, void *p, uint64_t n_bytes)
{
    (void)d;
    memset(p, 0, n_bytes);
    return RD_OK;
}

static rd_status copy(struct grad_device *d, void *to, const void *from, uint64_t n_bytes)
{
    (void)d;
    memcpy(to, from, n_bytes);
    return RD_OK;
}

/* A gigabyte a step of a small model is kept: all threads copy. */
struct copy_job {
    struct grad_device *d;
    float *to;
    struct span from;
    uint64_t n;
};

static void copy_piece(void *arg, uint32_t piece, uint32_t thread)
{
    const struct copy_job *j = arg;
    const uint64_t at = (uint64_t)piece * COPY_PIECE;

    (void)thread;
    /* host memory to host memory: it cannot fail */
    (void)backend_cpu_ops.memory.read(j->d->inner, j->to + at, span_add(j->from, at),
                                      u64_min(COPY_PIECE, j->n - at) * sizeof(float));
}

static rd_status keep(struct grad_device *d, void *to, enum dtype type, struct span from, uint64_t n)
{
    struct copy_job j = {d, to, from, n};

    assert(type == DTYPE_F32);
    grad_run(d->compute, copy_piece, &j, (uint32_t)((n + COPY_PIECE - 1) / COPY_PIECE));
    return RD_OK;
}

static rd_status restore(struct grad_device *d, struct span to, const void *from, uint64_t n)
{
    return backend_cpu_ops.memory.write(d->inner, to, from, n * sizeof(float));
}

/* ---- dropout ---- */

struct mask_job {
    const struct grad_mask *m;
    const float *x;
    float *out;
    uint32_t n_in;
};

/* Four columns a call of the generator; an element stays where its word is at least p * 2^32. */
static void mask_row(void *arg, uint32_t row, uint32_t thread)
{
    const struct mask_job *j = arg;
    const struct grad_mask *p = j->m;
    const uint32_t least = (uint32_t)((double)p->dropout * 4294967296.0);
    const float scale = 1.0f / (1.0f - p->dropout), *x = j->x + (uint64_t)row * j->n_in;
    float *out = j->out + (uint64_t)row * j->n_in;

    (void)thread;
    for (uint32_t i = 0; i < j->n_in; i += 4) {
        struct philox_words w = philox_4x32(i / 4, row, p->id, p->pass, p->seed);

        for (uint32_t k = 0; k < 4 && i + k < j->n_in; k++) out[i + k] = w.w[k] >= least ? x[i + k] * scale : 0.0f;
    }
}

static bool room(struct grad_device *d, uint64_t n)
{
    return mem_grow((void **)&d->scratch, &d->cap_scratch, (size_t)n, sizeof(float));
}

/* x with the mask's dropout in d->scratch; NULL: no memory. */
static const float *dropped(struct grad_device *d, const struct grad_mask *m, const float *x, uint32_t n_rows,
                            uint32_t n_in)
{
    struct mask_job j = {m, x, NULL, n_in};

    if (!room(d, (uint64_t)n_rows * n_in)) return NULL;
    j.out = d->scratch;
    grad_run(d->compute, mask_row, &j, n_rows);
    return d->scratch;
}

static rd_status drop(struct grad_device *d, const struct grad_mask *m, struct span x, uint32_t n_rows, uint32_t n_in,
                      struct span *out)
{
    const uint64_t n = (uint64_t)n_rows * n_in;
    rd_status st;

    if (!room(d, n)) return RD_E_NOMEM;
    st = backend_cpu_ops.memory.read(d->inner, d->scratch, x, n * sizeof(float));
    if (st != RD_OK) return st;
    (void)dropped(d, m, d->scratch, n_rows, n_in);
    *out = span_of_host(d->scratch);
    return RD_OK;
}

/* ---- norms, products ---- */

struct norm_job {
    const struct grad_norm *g;
    const struct grad_kernels *kernels;
};

static void norm_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct norm_job *j = arg;
    const struct grad_norm *g = j->g;
    const struct residual_norm_args *a = g->a;
    const uint32_t end = u32_min((tile + 1) * ROWS_PER_TILE, a->n_rows);
    const float *delta = g->delta;
    float *ddelta = g->ddelta;

    (void)thread;
    for (uint32_t r = tile * ROWS_PER_TILE; r < end; r++) {
        uint64_t at = (uint64_t)r * a->width;

        if (g->dy) j->kernels->norm_back(g->x + at, a->norm->data, g->dy + at, g->dx + at, a->width, a->eps);
        if (!ddelta) continue;
        if (a->delta_norm) {
            memset(ddelta + at, 0, a->width * sizeof(float));
            j->kernels->norm_back(delta + at, a->delta_norm->data, g->dx + at, ddelta + at, a->width, a->eps);
        } else {
            memcpy(ddelta + at, g->dx + at, a->width * sizeof(float));
        }
    }
}

static rd_status norm_step(struct grad_device *d, const struct grad_norm *g)
{
    struct norm_job job = {g, grad_kernels_of(d->compute)};

    grad_run(d->compute, norm_tile, &job, u32_ceil_div(g->a->n_rows, ROWS_PER_TILE));
    return RD_OK;
}

static const struct grad_matrix *frozen_of(const struct grad_device *d, const struct weight *w)
{
    for (size_t i = 0; i < d->n_frozen; i++)
        if (d->frozen[i].key == w->data) return &d->frozen[i].m;
    return NULL;
}

static void waiting_compute(struct grad_device *d)
{
    if (d->waiting.n > 0) grad_products(d->compute, &d->waiting.p, 1);
    waiting_done(d);
}

/* Of a dx [m, n_in]: what waits for it, or nothing. */
static struct grad_product waiting_for(struct grad_device *d, float *dx, uint32_t m, uint32_t n_in, bool add)
{
    if (d->waiting.n > 0 && d->waiting.p.c == dx) return d->waiting.p;
    return (struct grad_product){.m = m, .n = n_in, .c = dx, .c_m = n_in, .add = add};
}

static rd_status linear_back(struct grad_device *d, const struct grad_linear *a)
{
    struct grad_product p = waiting_for(d, a->dx, a->n_rows, a->of[0].w->n_in, a->add);

    for (uint32_t i = 0; i < a->n; i++) {
        const struct grad_matrix *m = frozen_of(d, a->of[i].w);

        if (!m) return RD_E_UNSUPPORTED;
        assert(p.n_of < GRAD_FACTORS);
        p.of[p.n_of++] =
            (struct grad_factor){.k = m->n_rows, .a = a->of[i].dy, .a_m = m->n_rows, .a_k = 1, .matrix = *m};
    }
    grad_product_frozen(d->compute, &p);
    waiting_done(d);
    return RD_OK;
}

/* Of a term: dt [n_rows, rank]; the transposed of B [n_out, rank]. */
struct low_rank_scratch {
    float *dt, *turned;
};

struct low_rank_job {
    struct grad_device *d;
    const struct grad_low_rank *terms;
    uint32_t n;
    struct low_rank_scratch of[GRAD_TERMS];
};

static void turn_tile(void *arg, uint32_t i, uint32_t thread)
{
    const struct low_rank_job *j = arg;
    const struct weight *b = j->terms[i].term->b;

    (void)thread;
    grad_transpose(b->data, j->terms[i].term->a->n_out, b->n_in, j->of[i].turned);
}

/* c [rank, n_cols] += t^T x, both of n rows. x is a matrix: its columns lie apart, and are packed. */
static struct grad_product outer(const float *t, uint32_t rank, uint32_t n, const float *x, uint32_t n_cols, float *c)
{
    return (struct grad_product){.m = rank,
                                 .n = n_cols,
                                 .n_of = 1,
                                 .of[0] = {.k = n, .a = t, .a_m = 1, .a_k = rank, .matrix = {DTYPE_F32, n, n_cols, x}},
                                 .c = c,
                                 .c_m = n_cols,
                                 .add = true};
}

/* y += t B, t = s x A^T:  dB += t^T dy;  dt = s dy B^T;  dA += dt^T x;  dx += dt A, which waits. */
static void low_rank_products(struct low_rank_job *j)
{
    struct grad_product some[2 * GRAD_TERMS];
    uint32_t n = 0;

    grad_run(j->d->compute, turn_tile, j, j->n);
    for (uint32_t i = 0; i < j->n; i++) {
        const struct grad_low_rank *g = &j->terms[i];
        const uint32_t rank = g->term->a->n_out, n_out = g->term->b->n_in, n_rows = g->term->n_rows;
        struct grad_product dt = {.m = n_rows, .n = rank, .n_of = 1, .c = j->of[i].dt, .c_m = rank};

        dt.of[0] =
            (struct grad_factor){.k = n_out, .a = g->dy, .a_m = n_out, .a_k = 1, .b = j->of[i].turned, .b_k = rank};
        dt.scale = g->term->scale;
        some[n++] = dt;
        if (g->da) some[n++] = outer(g->t, rank, n_rows, g->dy, n_out, g->db);
    }
    grad_products(j->d->compute, some, n);
    n = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        const struct grad_low_rank *g = &j->terms[i];
        const struct weight *a = g->term->a;

        if (g->da && !(g->mask->dropout > 0))
            some[n++] = outer(j->of[i].dt, a->n_out, g->term->n_rows, g->x, a->n_in, g->da);
    }
    grad_products(j->d->compute, some, n);
}

/* Of a term with dropout: what it reads of x, and what that gets. */
static rd_status dropped_back(struct grad_device *d, const struct grad_low_rank *g, const float *dt)
{
    const struct weight *a = g->term->a;
    const uint32_t rank = a->n_out, n_in = a->n_in, n = g->term->n_rows;
    struct grad_product p = {.m = n, .n = n_in, .n_of = 1, .c_m = n_in};
    const float *read = dropped(d, g->mask, g->x, n, n_in);
    float *dx = g->dx;

    if (!read) return RD_E_NOMEM;
    if (g->da) {
        const struct grad_product da = outer(dt, rank, n, read, n_in, g->da);

        grad_products(d->compute, &da, 1);
    }
    if (!dx) return RD_OK;
    p.of[0] = (struct grad_factor){.k = rank, .a = dt, .a_m = rank, .a_k = 1, .b = a->data, .b_k = n_in};
    p.c = d->scratch;
    grad_products(d->compute, &p, 1);
    (void)dropped(d, g->mask, d->scratch, n, n_in);
    if (g->dx_is_new) memset(dx, 0, (size_t)n * n_in * sizeof(*dx));
    for (uint64_t i = 0; i < (uint64_t)n * n_in; i++) dx[i] += d->scratch[i];
    return RD_OK;
}

/* dt stays, and dx waits for linear_back. */
static void wait_for_linear(struct grad_device *d, const struct grad_low_rank *g, float *dt)
{
    const struct weight *a = g->term->a;
    struct waiting *w = &d->waiting;

    if (w->n == GRAD_TERMS || (w->n > 0 && w->p.c != g->dx)) waiting_compute(d);
    if (w->n == 0)
        w->p =
            (struct grad_product){.m = g->term->n_rows, .n = a->n_in, .c = g->dx, .c_m = a->n_in, .add = !g->dx_is_new};
    w->p.of[w->n] =
        (struct grad_factor){.k = a->n_out, .a = dt, .a_m = a->n_out, .a_k = 1, .b = a->data, .b_k = a->n_in};
    w->dts[w->n++] = dt;
    w->p.n_of = w->n;
}

static rd_status low_rank_back(struct grad_device *d, const struct grad_low_rank *terms, uint32_t n)
{
    struct low_rank_job j = {.d = d, .terms = terms, .n = n};
    rd_status st = RD_OK;

    assert(n <= GRAD_TERMS);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t rank = terms[i].term->a->n_out;

        j.of[i].dt = float_pool_take(&d->floats, rank * terms[i].term->n_rows);
        j.of[i].turned = float_pool_take(&d->floats, rank * terms[i].term->b->n_in);
        if (!j.of[i].dt || !j.of[i].turned) st = RD_E_NOMEM;
    }
    if (st == RD_OK) low_rank_products(&j);
    for (uint32_t i = 0; i < n; i++) {
        float_pool_give(&d->floats, j.of[i].turned);
        if (st == RD_OK && terms[i].dx && !(terms[i].mask->dropout > 0)) {
            wait_for_linear(d, &terms[i], j.of[i].dt);
            continue;
        }
        if (st == RD_OK && terms[i].mask->dropout > 0) {
            waiting_compute(d);
            st = dropped_back(d, &terms[i], j.of[i].dt);
        }
        float_pool_give(&d->floats, j.of[i].dt);
    }
    return st;
}

/* ---- q, k, v ---- */

/* The rotation back by the row's cosines and sines, then the head's norm. */
static void head_back(const struct grad_kernels *kernels, const struct qkv_args *a, float *d, const float *x,
                      const struct weight *norm, const float *c, const float *s)
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

        kernels->norm_back(x, norm->data, d, out, a->head_dim, a->norm_eps);
        memcpy(d, out, a->head_dim * sizeof(*d));
    }
}

struct qkv_job {
    const struct grad_qkv *g;
    const struct grad_kernels *kernels;
};

static void qkv_tile(void *arg, uint32_t row, uint32_t thread)
{
    const struct qkv_job *job = arg;
    const struct grad_qkv *j = job->g;
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
        head_back(job->kernels, a, j->dq + q, a->q_norm ? (const float *)j->q + q : NULL, a->q_norm, c, s);
    for (uint32_t h = 0; j->dk && h < a->n_kv_heads; h++, k += a->head_dim)
        head_back(job->kernels, a, j->dk + k, a->k_norm ? (const float *)j->k + k : NULL, a->k_norm, c, s);
}

static rd_status qkv_back(struct grad_device *d, const struct grad_qkv *g)
{
    struct qkv_job job = {g, grad_kernels_of(d->compute)};

    assert(g->out_q == g->dq && g->out_k == g->dk && g->out_v == g->dv);
    grad_run(d->compute, qkv_tile, &job, g->a->n_rows);
    return RD_OK;
}

/* ---- glu, gather ---- */

struct glu_job {
    const struct grad_glu *g;
    const struct grad_kernels *kernels;
};

static void glu_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct glu_job *j = arg;
    const struct grad_glu *g = j->g;
    const uint64_t at = (uint64_t)tile * PIECE;

    (void)thread;
    j->kernels->glu_back(g->act, (const float *)g->gate + at, (const float *)g->up + at, g->dy + at,
                         (float *)g->dgate + at, (float *)g->dup + at, (uint32_t)u64_min(PIECE, g->n - at));
}

static rd_status glu_back(struct grad_device *d, const struct grad_glu *g)
{
    struct glu_job j = {g, grad_kernels_of(d->compute)};

    grad_run(d->compute, glu_tile, &j, (uint32_t)((g->n + PIECE - 1) / PIECE));
    return RD_OK;
}

static rd_status gather_back(struct grad_device *d, uint32_t n, uint32_t width, const uint32_t *rows, const float *dy,
                             float *dx)
{
    (void)d;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < width; c++) dx[(uint64_t)rows[i] * width + c] += dy[(uint64_t)i * width + c];
    return RD_OK;
}

/* ---- the loss ---- */

struct loss_job {
    struct grad_device *d;
    const struct grad_loss *a;
    float *logits;
};

/* One row's loss; its logits become their gradient, behind the cap, too. */
static void loss_row(void *arg, uint32_t row, uint32_t thread)
{
    struct loss_job *j = arg;
    const struct grad_loss *a = j->a;
    float *x = j->logits + (uint64_t)row * a->n_vocab, *slope = NULL;

    (void)thread;
    if (a->cap > 0 && a->weight != 0) {
        slope = mem_alloc(a->n_vocab, sizeof(*slope));
        if (!slope) {
            j->d->losses[a->first + row] = NAN;
            return;
        }
        for (uint32_t i = 0; i < a->n_vocab; i++) slope[i] = 1 - (x[i] / a->cap) * (x[i] / a->cap);
    }
    j->d->losses[a->first + row] =
        grad_kernels_of(j->d->compute)->cross_entropy(x, a->n_vocab, (uint32_t)a->targets[row], (float)a->weight);
    if (slope)
        for (uint32_t i = 0; i < a->n_vocab; i++) x[i] *= slope[i];
    mem_free(slope);
}

static rd_status loss(struct grad_device *d, const struct grad_loss *a)
{
    struct loss_job j = {d, a, (float *)(uintptr_t)a->logits.at};

    assert(!a->logits.buffer && (a->weight == 0 || a->gradient == j.logits));
    if (!mem_grow((void **)&d->losses, &d->cap_losses, a->n_all, sizeof(*d->losses))) return RD_E_NOMEM;
    grad_run(d->compute, loss_row, &j, a->n_rows);
    return RD_OK;
}

static rd_status losses_of(struct grad_device *d, uint32_t n, double *out)
{
    memcpy(out, d->losses, n * sizeof(*out));
    return RD_OK;
}

/* ---- numbers ---- */

static rd_status sum_squares(struct grad_device *d, const float *x, uint64_t n, double *out)
{
    (void)d;
    *out = 0;
    for (uint64_t i = 0; i < n; i++) *out += (double)x[i] * (double)x[i];
    return RD_OK;
}

static rd_status round_values(struct grad_device *d, const float *masters, float *values, uint64_t n)
{
    (void)d;
    for (uint64_t i = 0; i < n; i++) values[i] = bf16_to_float(float_to_bf16(masters[i]));
    return RD_OK;
}

static void update_half(void *arg, uint32_t half, uint32_t thread)
{
    const struct grad_update *u = arg;
    const struct grad_half *h = &u->halves[half];

    (void)thread;
    adamw_update(&u->o, u->scale, u->masters ? u->masters + h->at : h->values, u->grads + h->at, u->moments + h->at,
                 u->squares + h->at, h->n);
    if (u->masters) (void)round_values(NULL, u->masters + h->at, h->values, h->n);
}

static rd_status update(struct grad_device *d, const struct grad_update *u)
{
    struct grad_update job = *u;

    grad_run(d->compute, update_half, &job, u->n_halves);
    return RD_OK;
}

const struct grad_device_ops grad_device_cpu = {
    .name = "cpu",
    .kept_type = DTYPE_F32,
    .out_bytes = sizeof(float),
    .reads_t = true,
    .create = create,
    .destroy = destroy,
    .has_matrix_unit = has_matrix_unit,
    .loaded = loaded,
    .unloaded = unloaded,
    .take = take,
    .give = give,
    .trim = trim,
    .zero = zero,
    .read = copy,
    .write = copy,
    .keep = keep,
    .restore = restore,
    .drop = drop,
    .linear_back = linear_back,
    .norm_back = norm_step,
    .low_rank_back = low_rank_back,
    .qkv_back = qkv_back,
    .attention_back = cpu_attention_back,
    .glu_back = glu_back,
    .gather_back = gather_back,
    .loss = loss,
    .losses_of = losses_of,
    .sum_squares = sum_squares,
    .update = update,
    .round = round_values,
};
