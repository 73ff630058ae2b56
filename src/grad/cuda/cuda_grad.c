/* grad/cuda/cuda_grad.c - grad_device_cuda: the GPU's memory, in the order of the backend's stream, and a launch or a few an op.
 *
 * Memory comes of a pool of CUDA's own, which keeps what is given back for the next pass; taking and giving are in the stream's
 * order, so that nothing is waited for.
 *
 * What is rounded on the way back, and nowhere else: the factors of products are bf16 (gradients of what linear gave, weights, what
 * a pair read and the pair), and what is kept of activations, except for the residual stream. Sums are f32. */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "backend/cuda/host/cuda_backend.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "grad/cuda/cuda_grad.h"

/* Of a turned weight: what is opened at a time. */
#define OPEN_BYTES (256ull << 20)

static cudaStream_t stream_of(const struct grad_device *d)
{
    return (cudaStream_t)d->l.stream;
}
static void forget_pairs(struct grad_device *d);

/* ---- life, memory ---- */

static void destroy(struct grad_device *d)
{
    if (!d) return;
    cudaSetDevice(d->be->device);
    if (d->l.stream) cudaStreamSynchronize(stream_of(d));
    forget_pairs(d);
    if (d->runs_device) cudaFreeAsync(d->runs_device, stream_of(d));
    if (d->dropped.base) cudaFreeAsync(d->dropped.base, stream_of(d));
    if (d->losses) cudaFreeAsync(d->losses, stream_of(d));
    if (d->parts) cudaFreeAsync(d->parts, stream_of(d));
    if (d->l.stream) cudaStreamSynchronize(stream_of(d));
    if (d->pool) cudaMemPoolDestroy(d->pool);
    mem_free(d->runs_host);
    mem_free(d);
}

static rd_status create(const struct backend_options *o, struct backend *inner, struct grad_device **out,
                        struct rd_error *err)
{
    const struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned,
                                           .location = {.type = cudaMemLocationTypeDevice, .id = inner->device}};
    struct grad_device *d = mem_zalloc(1, sizeof(*d));
    uint64_t all = UINT64_MAX;
    cudaError_t e;

    (void)o;
    if (!d) return error_set(err, RD_E_NOMEM, "out of memory");
    d->be = inner;
    d->l = inner->l;
    d->l.pdl = false; /* a product's weights are written by the launch before it, and would be asked for too early */
    e = cudaSetDevice(inner->device);
    if (e == cudaSuccess) e = cudaMemPoolCreate(&d->pool, &props);
    if (e == cudaSuccess) e = cudaMemPoolSetAttribute(d->pool, cudaMemPoolAttrReleaseThreshold, &all);
    if (e == cudaSuccess) {
        *out = d;
        return RD_OK;
    }
    d->pool = NULL;
    destroy(d);
    return error_set(err, e == cudaErrorMemoryAllocation ? RD_E_NOMEM : RD_E_UNSUPPORTED,
                     "device cuda (%s): no memory pools: %s", inner->name, cudaGetErrorString(e));
}

static void *take(struct grad_device *d, uint64_t n_bytes)
{
    void *p = NULL;
    cudaError_t e;

    if (cuda_here(d->be) != RD_OK) return NULL;
    e = cudaMallocFromPoolAsync(&p, u64_max(n_bytes, 1), d->pool, stream_of(d));
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        if (cuda_check(d->be, (int)cudaStreamSynchronize(stream_of(d)), "memory") != RD_OK) return NULL;
        cudaMemPoolTrimTo(d->pool, 0);
        e = cudaMallocFromPoolAsync(&p, u64_max(n_bytes, 1), d->pool, stream_of(d));
    }
    if (e == cudaSuccess) return p;
    if (e == cudaErrorMemoryAllocation)
        cudaGetLastError();
    else
        (void)cuda_check(d->be, (int)e, "memory");
    return NULL;
}

static void give(struct grad_device *d, void *p)
{
    if (p && !d->be->is_dead) (void)cuda_check(d->be, (int)cudaFreeAsync(p, stream_of(d)), "memory");
}

/* What a pass that failed has left. */
static void trim(struct grad_device *d)
{
    forget_pairs(d);
}

void *cuda_grad_take(struct grad_device *d, uint64_t n_bytes)
{
    return take(d, n_bytes);
}
void cuda_grad_give(struct grad_device *d, void *p)
{
    give(d, p);
}

static rd_status zero(struct grad_device *d, void *p, uint64_t n_bytes)
{
    return cuda_check(d->be, (int)cudaMemsetAsync(p, 0, n_bytes, stream_of(d)), "zero");
}

/* Between host memory that is not pinned and the device: waits. */
static rd_status copy(struct grad_device *d, void *to, const void *from, uint64_t n_bytes, enum cudaMemcpyKind kind)
{
    rd_status st = cuda_here(d->be);

    if (st == RD_OK) st = cuda_check(d->be, (int)cudaMemcpyAsync(to, from, n_bytes, kind, stream_of(d)), "copy");
    return st == RD_OK ? cuda_check(d->be, (int)cudaStreamSynchronize(stream_of(d)), "copy") : st;
}

static rd_status read_out(struct grad_device *d, void *to, const void *from, uint64_t n_bytes)
{
    return copy(d, to, from, n_bytes, cudaMemcpyDeviceToHost);
}
static rd_status write_in(struct grad_device *d, void *to, const void *from, uint64_t n_bytes)
{
    return copy(d, to, from, n_bytes, cudaMemcpyHostToDevice);
}

static rd_status keep(struct grad_device *d, void *to, enum dtype type, struct span from, uint64_t n)
{
    const rd_status st = cuda_let_go(d->be);

    return st == RD_OK ? cuda_check(d->be, grad_cuda_keep(&d->l, (int)type, n, cuda_at(from), to), "keep") : st;
}

static rd_status restore(struct grad_device *d, struct span to, const void *from, uint64_t n)
{
    const rd_status st = cuda_let_go(d->be);

    if (st != RD_OK) return st;
    return cuda_check(
        d->be, (int)cudaMemcpyAsync(cuda_at(to), from, n * sizeof(float), cudaMemcpyDeviceToDevice, stream_of(d)),
        "restore");
}

/* ---- dropout ---- */

static struct grad_cuda_mask mask_of(const struct grad_mask *m)
{
    return (struct grad_cuda_mask){(uint32_t)((double)m->dropout * 4294967296.0), m->id, m->pass,
                                   1.0f / (1.0f - m->dropout), m->seed};
}

static rd_status drop(struct grad_device *d, const struct grad_mask *m, struct span x, uint32_t n_rows, uint32_t n_in,
                      struct span *out)
{
    const uint64_t n_bytes = (uint64_t)n_rows * n_in * sizeof(float);
    const struct grad_cuda_mask mask = mask_of(m);
    rd_status st = cuda_let_go(d->be);

    if (st != RD_OK) return st;
    if (d->dropped.n_bytes < n_bytes) {
        give(d, d->dropped.base);
        d->dropped = (struct buffer){take(d, n_bytes), n_bytes, NULL};
        if (!d->dropped.base) {
            d->dropped.n_bytes = 0;
            return RD_E_NOMEM;
        }
    }
    *out = span_of(&d->dropped, 0);
    return cuda_check(d->be, grad_cuda_drop(&d->l, &mask, n_rows, n_in, cuda_at(x), (float *)(void *)d->dropped.base),
                      "drop");
}

/* ---- products ---- */

/* Whether the tuned product takes these as they lie: then nothing is needed to add in. */
static bool is_whole(const struct grad_device *d, const void *x16, uint32_t x_stride, uint32_t n_out)
{
    return d->l.compute == 90 && (uintptr_t)x16 % 32 == 0 && x_stride % 8 == 0 && n_out % 4 == 0;
}

/* dx [m, n_in] (+)= x16 [m, x_stride] turned [n_in, stride]^T, over k columns. */
static rd_status turned_product(struct grad_device *d, const uint16_t *x16, uint32_t m, uint32_t x_stride, uint32_t k,
                                const uint16_t *turned, uint32_t stride, uint32_t n_in, bool add, float *dx)
{
    const struct cuda_matrix w = {
        .format = CUDA_BF16, .n_out = n_in, .n_in = k, .row_stride = stride, .values = turned};
    struct cuda_linear_args a = {.n_rows = m, .x16 = x16, .x_stride = x_stride, .n_outs = 1};
    float *scratch = NULL;
    rd_status st;

    if (add && !is_whole(d, x16, x_stride, n_in) && !(scratch = take(d, (uint64_t)m * n_in * sizeof(float))))
        return RD_E_NOMEM;
    a.outs[0] = (struct cuda_linear_out){&w, NULL, scratch ? scratch : dx, n_in};
    if (add) a.add_to = dx;
    st = cuda_check(d->be, cuda_linear(&d->l, &a), "gradient of a product");
    give(d, scratch);
    return st;
}

/* A weight is turned, and bf16, piece by piece. */
static rd_status weight_back(struct grad_device *d, const struct weight *w, const void *dy, uint32_t m, bool add,
                             float *dx)
{
    const struct cuda_matrix *matrix = &((const struct cuda_weight *)w->data)->m;
    const uint64_t at_once = u64_max(64, OPEN_BYTES / 2 / w->n_in / 64 * 64);
    const uint32_t most = (uint32_t)u64_min(at_once, (w->n_out + 63ull) / 64 * 64);
    uint16_t *turned = take(d, (uint64_t)w->n_in * most * sizeof(*turned));
    rd_status st = turned ? RD_OK : RD_E_NOMEM;

    for (uint32_t first = 0, n; first < w->n_out && st == RD_OK; first += n) {
        uint32_t stride;

        n = u32_min(most, w->n_out - first);
        stride = (n + 63) / 64 * 64;
        st = cuda_check(d->be, grad_cuda_open(&d->l, matrix, first, n, stride, turned), "opening a weight");
        if (st == RD_OK)
            st = turned_product(d, (const uint16_t *)dy + first, m, w->n_out, n, turned, stride, w->n_in,
                                add || first > 0, dx);
    }
    give(d, turned);
    return st;
}

static void forget_pairs(struct grad_device *d)
{
    for (uint32_t i = 0; i < GRAD_CUDA_FACTORS; i++) {
        give(d, d->pairs_own[i]);
        d->pairs_own[i] = NULL;
    }
    d->pairs.n = 0;
}

/* The pairs' part of dx, where no product takes it along. */
static rd_status settle_pairs(struct grad_device *d)
{
    rd_status st = RD_OK;

    if (d->pairs.n > 0) st = cuda_check(d->be, grad_cuda_sum(&d->l, &d->pairs), "gradient through pairs");
    forget_pairs(d);
    return st;
}

/* All of them in one sum, where they lie as it wants them. */
static bool sum_of(const struct grad_device *d, const struct grad_linear *a, struct grad_cuda_sum *sum)
{
    *sum = d->pairs;
    if (sum->n == 0)
        *sum = (struct grad_cuda_sum){.n_rows = a->n_rows, .n_in = a->of[0].w->n_in, .dx = a->dx, .add = a->add};
    for (uint32_t i = 0; i < a->n; i++) {
        const struct cuda_matrix *m = &((const struct cuda_weight *)a->of[i].w->data)->m;

        if (m->format != CUDA_BF16) return false;
        sum->factors[sum->n++] =
            (struct grad_cuda_factor){a->of[i].dy, m->values, a->of[i].w->n_out, a->of[i].w->n_out, m->row_stride};
    }
    return grad_cuda_sum_fits(&d->l, sum);
}

static rd_status linear_back(struct grad_device *d, const struct grad_linear *a)
{
    bool add = a->add;
    struct grad_cuda_sum sum;
    rd_status st = d->pairs.n > 0 && d->pairs.dx != a->dx ? settle_pairs(d) : RD_OK;

    if (st != RD_OK) return st;
    if (sum_of(d, a, &sum)) {
        st = cuda_check(d->be, grad_cuda_sum(&d->l, &sum), "gradient of products");
        forget_pairs(d);
        return st;
    }
    add |= d->pairs.n > 0;
    st = settle_pairs(d);
    for (uint32_t i = 0; i < a->n && st == RD_OK; i++)
        st = weight_back(d, a->of[i].w, a->of[i].dy, a->n_rows, add || i > 0, a->dx);
    return st;
}

/* ---- pairs ---- */

struct pair_room {
    uint16_t *a16, *a_turned, *b16; /* [rank, n_in], [n_in, stride], [rank, n_out] */
    uint16_t *t, *dt, *x16;         /* [n, stride]; x with dropout */
    float *parts, *dx;              /* of dp; of dx before dropout */
};

static bool make_room(struct grad_device *d, const struct grad_low_rank *g, uint32_t stride, bool turns,
                      struct pair_room *r)
{
    const uint32_t rank = g->term->a->n_out, n_in = g->term->a->n_in, n_out = g->term->b->n_in, n = g->term->n_rows;
    const bool drops = g->mask->dropout > 0;

    r->a16 = take(d, 2ull * rank * n_in);
    if (turns) r->a_turned = take(d, 2ull * n_in * stride);
    r->b16 = take(d, 2ull * rank * n_out);
    r->t = take(d, 2ull * n * stride);
    r->dt = take(d, 2ull * n * stride);
    r->parts =
        take(d, u64_max(grad_cuda_outer_floats(n, rank, n_in), grad_cuda_outer_floats(n, rank, n_out)) * sizeof(float));
    if (drops) {
        r->x16 = take(d, 2ull * n * n_in);
        r->dx = take(d, 4ull * n * n_in);
    }
    return r->a16 && (!turns || r->a_turned) && r->b16 && r->t && r->dt && r->parts && (!drops || (r->x16 && r->dx));
}

static void give_room(struct grad_device *d, const struct pair_room *r)
{
    give(d, r->a16);
    give(d, r->a_turned);
    give(d, r->b16);
    give(d, r->t);
    give(d, r->dt);
    give(d, r->x16);
    give(d, r->parts);
    give(d, r->dx);
}

/* dt = s dy B^T;  t = s x A^T;  dB += t^T dy;  dA += dt^T x. */
static int pair_gradients(struct grad_device *d, const struct grad_low_rank *g, uint32_t stride,
                          const struct pair_room *r, const uint16_t *x)
{
    const struct low_rank_term *m = g->term;
    const uint32_t rank = m->a->n_out, n_in = m->a->n_in, n_out = m->b->n_in, n = m->n_rows;
    int e = grad_cuda_pair(&d->l, rank, n_in, n_out, stride, m->a->data, m->b->data, r->a16, r->a_turned, r->b16);

    if (!e) e = grad_cuda_down(&d->l, n, n_out, rank, g->dy, r->b16, m->scale, stride, r->dt);
    if (e || !g->da) return e;
    e = grad_cuda_down(&d->l, n, n_in, rank, x, r->a16, m->scale, stride, r->t);
    if (!e) e = grad_cuda_outer(&d->l, n, rank, n_out, r->t, stride, g->dy, r->parts, g->db);
    return e ? e : grad_cuda_outer(&d->l, n, rank, n_in, r->dt, stride, x, r->parts, g->da);
}

/* Whether dt A can wait for the products of the same x: what is taken here lies well. */
static bool joins_products(const struct grad_device *d, const struct grad_low_rank *g)
{
    return grad_cuda_sum_fits(&d->l, &(struct grad_cuda_sum){.n_in = g->term->a->n_in, .dx = g->dx});
}

static void add_pair(struct grad_device *d, const struct grad_low_rank *g, uint32_t stride, struct pair_room *r)
{
    const struct weight *a = g->term->a;
    struct grad_cuda_sum sum = d->pairs;

    if (sum.n == 0)
        sum = (struct grad_cuda_sum){.n_rows = g->term->n_rows, .n_in = a->n_in, .dx = g->dx, .add = !g->dx_is_new};
    sum.factors[sum.n++] = (struct grad_cuda_factor){r->dt, r->a16, a->n_out, stride, a->n_in};
    d->pairs_own[2 * d->pairs.n] = r->dt;
    d->pairs_own[2 * d->pairs.n + 1] = r->a16;
    d->pairs = sum;
    r->dt = r->a16 = NULL;
}

static rd_status term_back(struct grad_device *d, const struct grad_low_rank *g)
{
    const struct low_rank_term *m = g->term;
    const uint32_t stride = (m->a->n_out + 63) / 64 * 64, n_in = m->a->n_in, n = m->n_rows;
    const struct grad_cuda_mask mask = mask_of(g->mask);
    const bool drops = g->mask->dropout > 0;
    const bool joins = g->dx && !drops && joins_products(d, g);
    struct pair_room r = {0};
    rd_status st = RD_OK;

    if (d->pairs.n > 0 && (!joins || d->pairs.dx != g->dx || d->pairs.n == GRAD_CUDA_FACTORS / 2)) st = settle_pairs(d);
    if (st == RD_OK && !make_room(d, g, stride, g->dx && !joins, &r)) st = RD_E_NOMEM;
    if (st == RD_OK && drops) st = cuda_check(d->be, grad_cuda_drop16(&d->l, &mask, n, n_in, g->x, r.x16), "drop");
    if (st == RD_OK)
        st = cuda_check(d->be, pair_gradients(d, g, stride, &r, drops ? r.x16 : g->x), "gradient of a pair");
    if (st == RD_OK && joins) add_pair(d, g, stride, &r);
    if (st == RD_OK && g->dx && !joins)
        st = turned_product(d, r.dt, n, stride, stride, r.a_turned, stride, n_in, !drops && !g->dx_is_new,
                            drops ? r.dx : g->dx);
    if (st == RD_OK && g->dx && drops)
        st = cuda_check(d->be, grad_cuda_drop_add(&d->l, &mask, n, n_in, r.dx, g->dx_is_new, g->dx), "drop");
    give_room(d, &r);
    return st;
}

static rd_status low_rank_back(struct grad_device *d, const struct grad_low_rank *terms, uint32_t n)
{
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < n && st == RD_OK; i++) st = term_back(d, &terms[i]);
    return st;
}

/* ---- rows ---- */

static rd_status norm_back(struct grad_device *d, const struct grad_norm *g)
{
    const struct residual_norm_args *a = g->a;
    const struct grad_cuda_norm n = {.n_rows = a->n_rows,
                                     .width = a->width,
                                     .x = g->x,
                                     .dy = g->dy,
                                     .norm = a->norm ? a->norm->data : NULL,
                                     .delta_norm = a->delta_norm ? a->delta_norm->data : NULL,
                                     .delta = g->delta,
                                     .eps = a->eps,
                                     .dx = g->dx,
                                     .ddelta = g->ddelta};

    return cuda_check(d->be, grad_cuda_norm(&d->l, &n), "gradient of a norm");
}

static rd_status qkv_back(struct grad_device *d, const struct grad_qkv *g)
{
    const struct qkv_args *a = g->a;
    const void *positions = NULL;
    struct grad_cuda_qkv q = {.n_rows = a->n_rows,
                              .n_heads = a->n_heads,
                              .n_kv_heads = a->n_kv_heads,
                              .head_dim = a->head_dim,
                              .n_rot = a->n_rot,
                              .inv_freq = a->inv_freq->data,
                              .q_norm = a->q_norm ? a->q_norm->data : NULL,
                              .k_norm = a->k_norm ? a->k_norm->data : NULL,
                              .mscale = a->rope_mscale,
                              .eps = a->norm_eps,
                              .half_split = a->layout == ROPE_HALF_SPLIT,
                              .q = g->q,
                              .k = g->k,
                              .dq = g->dq,
                              .dk = g->dk,
                              .dv = g->dv,
                              .out_q = g->out_q,
                              .out_k = g->out_k,
                              .out_v = g->out_v};
    rd_status st = cuda_send(d->be, a->positions, a->n_rows * sizeof(uint32_t), &positions);

    q.positions = positions;
    return st == RD_OK ? cuda_check(d->be, grad_cuda_qkv(&d->l, &q), "gradient of q, k, v") : st;
}

static rd_status glu_back(struct grad_device *d, const struct grad_glu *g)
{
    return cuda_check(d->be,
                      grad_cuda_glu(&d->l, g->act == ACT_SILU ? CUDA_SILU : CUDA_GELU_TANH, g->n, g->gate, g->up, g->dy,
                                    g->dgate, g->dup),
                      "gradient of a glu");
}

static rd_status gather_back(struct grad_device *d, uint32_t n, uint32_t width, const uint32_t *rows, const float *dy,
                             float *dx)
{
    const void *sent = NULL;
    rd_status st = cuda_send(d->be, rows, n * sizeof(*rows), &sent);

    return st == RD_OK ? cuda_check(d->be, grad_cuda_scatter(&d->l, n, width, sent, dy, dx), "gradient of gather") : st;
}

/* ---- loss, numbers ---- */

static rd_status loss(struct grad_device *d, const struct grad_loss *a)
{
    const void *targets = NULL;
    rd_status st = cuda_let_go(d->be);

    if (st == RD_OK &&
        d->cap_losses < a->first + a->n_rows) { /* what is there is not needed: first is 0 where it grows */
        const uint32_t n = a->n_all;

        give(d, d->losses);
        d->losses = take(d, n * sizeof(*d->losses));
        d->cap_losses = d->losses ? n : 0;
        if (!d->losses) return RD_E_NOMEM;
    }
    if (st == RD_OK) st = cuda_send(d->be, a->targets, a->n_rows * sizeof(*a->targets), &targets);
    if (st != RD_OK) return st;
    return cuda_check(d->be,
                      grad_cuda_loss(&d->l, a->n_rows, a->n_vocab, cuda_at(a->logits), targets, a->cap,
                                     (float)a->weight, a->weight != 0 ? a->gradient : NULL, d->losses + a->first),
                      "loss");
}

static rd_status losses_of(struct grad_device *d, uint32_t n, double *out)
{
    return read_out(d, out, d->losses, n * sizeof(*out));
}

static rd_status sum_squares(struct grad_device *d, const float *x, uint64_t n, double *out)
{
    double parts[GRAD_CUDA_PARTS];
    rd_status st;

    if (!d->parts && !(d->parts = take(d, sizeof(parts)))) return RD_E_NOMEM;
    st = cuda_check(d->be, grad_cuda_squares(&d->l, n, x, d->parts), "norm of the gradient");
    if (st == RD_OK) st = read_out(d, parts, d->parts, sizeof(parts));
    *out = 0;
    for (uint32_t i = 0; i < GRAD_CUDA_PARTS && st == RD_OK; i++) *out += parts[i];
    return st;
}

static rd_status update(struct grad_device *d, const struct grad_update *u)
{
    const struct adamw *o = &u->o;
    const struct grad_cuda_adamw a = {.b1 = (float)o->beta1,
                                      .b2 = (float)o->beta2,
                                      .c1 = (float)(1 - o->beta1),
                                      .c2 = (float)(1 - o->beta2),
                                      .rate = (float)(o->lr / (1 - pow(o->beta1, (double)o->step))),
                                      .keep = (float)(1 - o->lr * o->decay),
                                      .root = (float)(1 / sqrt(1 - pow(o->beta2, (double)o->step))),
                                      .eps = (float)o->eps,
                                      .scale = (float)u->scale};
    rd_status st = cuda_here(d->be);

    for (uint32_t i = 0; i < u->n_halves && st == RD_OK; i++) {
        const struct grad_half *h = &u->halves[i];

        st = cuda_check(d->be,
                        grad_cuda_update(&d->l, &a, h->n, u->grads + h->at, u->moments + h->at, u->squares + h->at,
                                         u->masters ? u->masters + h->at : h->values, h->values),
                        "update");
    }
    return st;
}

static rd_status round_values(struct grad_device *d, const float *masters, float *values, uint64_t n)
{
    return cuda_check(d->be, grad_cuda_round(&d->l, n, masters, values), "rounding");
}

const struct grad_device_ops grad_device_cuda = {
    .name = "cuda",
    .kept_type = DTYPE_BF16,
    .out_bytes = sizeof(uint16_t),
    .create = create,
    .destroy = destroy,
    .take = take,
    .give = give,
    .trim = trim,
    .zero = zero,
    .read = read_out,
    .write = write_in,
    .keep = keep,
    .restore = restore,
    .drop = drop,
    .linear_back = linear_back,
    .norm_back = norm_back,
    .low_rank_back = low_rank_back,
    .qkv_back = qkv_back,
    .attention_back = cuda_attention_back,
    .glu_back = glu_back,
    .gather_back = gather_back,
    .loss = loss,
    .losses_of = losses_of,
    .sum_squares = sum_squares,
    .update = update,
    .round = round_values,
};
