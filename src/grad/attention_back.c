/* grad/attention_back.c - the gradient of attention, with the keys and values that are in the pages.
 *
 * A task is one sequence and one KV head: it alone writes that head's dk and dv, and dq of the heads that read it. Queries go
 * in blocks of BLOCK rows; scores are computed again.
 *     s = cap(scale q k^T), p = softmax(s);  dv += p^T do;  dp = do v^T;  ds = p (dp - sum p dp);  dq = ds k;  dk += ds^T q
 * Keys are filled up with zeros to whole vectors (wide): a product's last columns would be computed one row at a time.
 */
#include <assert.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "grad/cpu_device.h"

#define BLOCK  64u
#define VECTOR 16u

/* Runs with the same pages: one sequence, or its wanted rows. */
struct sequence {
    uint32_t run, n_runs, n_keys;
};

struct attention_job {
    struct grad_device *d;
    const struct grad_attention *g;
    const struct attention_args *a;
    const float *q, *dout;
    float *dq;
    struct sequence *sequences;
    uint32_t n_sequences, max_keys;
    float *scratch; /* [n_threads, n_scratch] */
    uint64_t n_scratch;
};

/* The rows of a block, and of which position each is. */
struct block {
    uint32_t n, rows[BLOCK], positions[BLOCK];
};

static uint32_t wide(uint32_t n_keys)
{
    return u32_ceil_div(n_keys, VECTOR) * VECTOR;
}

static uint32_t row_of(const struct attention_job *j, const kv_page *table, uint32_t pos)
{
    uint32_t per_page = j->a->kv->layout.page_tokens;

    return j->g->row_of[table[pos / per_page] * per_page + pos % per_page];
}

static void read_head(const struct attention_job *j, const kv_page *table, uint32_t which, uint32_t kv_head, uint32_t n,
                      float *out)
{
    const struct kv_storage *kv = j->a->kv;
    enum dtype t = which ? kv->layout.dtype_v : kv->layout.dtype_k;
    uint64_t at = kv_head_offset(kv, j->a->layer, which, kv_head);
    uint32_t per_page = kv->layout.page_tokens;

    for (uint32_t pos = 0; pos < n; pos += per_page)
        dtype_to_float(t, kv_page_at(kv, table[pos / per_page]) + at, out + (uint64_t)pos * j->a->head_dim,
                       (uint64_t)u32_min(per_page, n - pos) * j->a->head_dim);
    memset(out + (uint64_t)n * j->a->head_dim, 0, (uint64_t)(wide(n) - n) * j->a->head_dim * sizeof(*out));
}

static void load_rows(const struct block *b, const float *from, uint64_t stride, uint32_t head, uint32_t dim, float *to)
{
    for (uint32_t i = 0; i < b->n; i++, to += dim)
        memcpy(to, from + b->rows[i] * stride + (uint64_t)head * dim, dim * sizeof(*to));
}

struct views {                        /* of a thread's scratch */
    float *k, *v, *kt, *vt, *dk, *dv; /* [wide, dim], t: [dim, wide] */
    float *q, *dout, *dq;             /* [BLOCK, dim] */
    float *p, *dp, *t;                /* [BLOCK, wide] */
};

static void block_back(const struct attention_job *j, const struct views *w, const struct block *b, uint32_t head,
                       uint32_t n_keys)
{
    const struct attention_args *a = j->a;
    const struct grad_kernels *kernels = grad_kernels_of(j->d->compute);
    const struct grad_softcap cap = {a->scale, a->softcap};
    const uint32_t dim = a->head_dim, n = b->positions[b->n - 1] + 1; /* no key after the last query's */
    const uint32_t n_wide = wide(n), stride = wide(n_keys);

    load_rows(b, j->q, a->q_stride, head, dim, w->q);
    load_rows(b, j->dout, a->out_stride, head, dim, w->dout);
    kernels->gemm(&(struct gemm){b->n, n_wide, dim, w->q, dim, 1, w->kt, stride, w->p, n_wide, false});
    kernels->gemm(&(struct gemm){b->n, n_wide, dim, w->dout, dim, 1, w->vt, stride, w->dp, n_wide, false});
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t hi = b->positions[i] + 1, lo = a->window > 0 && hi > a->window ? hi - a->window : 0;
        uint64_t at = (uint64_t)i * n_wide;
        float *t = a->softcap > 0 ? w->t + at : NULL;

        kernels->softmax(w->p + at, t, n_wide, lo, hi, cap);
        kernels->softmax_back(w->p + at, t, w->dp + at, n_wide, a->scale);
    }
    kernels->gemm(&(struct gemm){n, dim, b->n, w->p, 1, n_wide, w->dout, dim, w->dv, dim, true});
    kernels->gemm(&(struct gemm){n, dim, b->n, w->dp, 1, n_wide, w->q, dim, w->dk, dim, true});
    kernels->gemm(&(struct gemm){b->n, dim, n, w->dp, n_wide, 1, w->k, dim, w->dq, dim, false});
    for (uint32_t i = 0; i < b->n; i++) {
        float *to = j->dq + b->rows[i] * (uint64_t)a->q_stride + (uint64_t)head * dim;

        for (uint32_t c = 0; c < dim; c++) to[c] += w->dq[(uint64_t)i * dim + c];
    }
}

static float *part(float **at, uint64_t n)
{
    float *p = *at;

    *at += n;
    return p;
}

static struct views views_of(const struct attention_job *j, uint32_t thread, uint32_t n_keys)
{
    float *at = j->scratch + thread * j->n_scratch;
    uint64_t keys = (uint64_t)wide(n_keys) * j->a->head_dim, rows = (uint64_t)BLOCK * j->a->head_dim;
    struct views w = {.k = part(&at, keys), .v = part(&at, keys)};

    w.kt = part(&at, keys);
    w.vt = part(&at, keys);
    w.dk = part(&at, keys);
    w.dv = part(&at, keys);
    w.q = part(&at, rows);
    w.dout = part(&at, rows);
    w.dq = part(&at, rows);
    w.p = part(&at, (uint64_t)BLOCK * wide(n_keys));
    w.dp = part(&at, (uint64_t)BLOCK * wide(n_keys));
    w.t = part(&at, (uint64_t)BLOCK * wide(n_keys));
    return w;
}

/* The next rows of a sequence; i: of all of its rows. */
static bool next_block(const struct attention_args *a, const struct sequence *s, uint32_t *run, uint32_t *row,
                       struct block *b)
{
    for (b->n = 0; b->n < BLOCK && *run < s->run + s->n_runs;) {
        const struct seq_run *r = &a->runs[*run];

        if (*row == r->n_rows) {
            *row = 0;
            ++*run;
            continue;
        }
        b->rows[b->n] = r->row0 + *row;
        b->positions[b->n++] = r->pos0 + (*row)++;
    }
    return b->n > 0;
}

static void attention_task(void *arg, uint32_t task, uint32_t thread)
{
    const struct attention_job *j = arg;
    const struct attention_args *a = j->a;
    const struct sequence *s = &j->sequences[task / a->n_kv_heads];
    const kv_page *table = a->runs[s->run].block_table;
    uint32_t kv_head = task % a->n_kv_heads, group = a->n_heads / a->n_kv_heads, dim = a->head_dim;
    uint64_t width = (uint64_t)a->n_kv_heads * dim;
    struct views w = views_of(j, thread, s->n_keys);
    struct block b;

    read_head(j, table, 0, kv_head, s->n_keys, w.k);
    read_head(j, table, 1, kv_head, s->n_keys, w.v);
    grad_transpose(w.k, wide(s->n_keys), dim, w.kt);
    grad_transpose(w.v, wide(s->n_keys), dim, w.vt);
    memset(w.dk, 0, (size_t)s->n_keys * dim * sizeof(float));
    memset(w.dv, 0, (size_t)s->n_keys * dim * sizeof(float));
    for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (uint32_t run = s->run, row = 0; next_block(a, s, &run, &row, &b);) block_back(j, &w, &b, h, s->n_keys);
    for (uint32_t pos = 0; pos < s->n_keys; pos++) {
        uint64_t to = row_of(j, table, pos) * width + (uint64_t)kv_head * dim;

        memcpy(j->g->dk + to, w.dk + (uint64_t)pos * dim, dim * sizeof(float));
        memcpy(j->g->dv + to, w.dv + (uint64_t)pos * dim, dim * sizeof(float));
    }
}

static bool list_sequences(struct attention_job *j)
{
    const struct attention_args *a = j->a;

    j->sequences = mem_alloc(a->n_runs, sizeof(*j->sequences));
    for (uint32_t i = 0; j->sequences && i < a->n_runs; i++) {
        const struct seq_run *r = &a->runs[i];
        struct sequence *s = &j->sequences[j->n_sequences];

        if (i > 0 && r->block_table == r[-1].block_table) {
            assert(r->pos0 > r[-1].pos0); /* in order: a block's last query sees most keys */
            s[-1].n_runs++;
            s[-1].n_keys = r->pos0 + r->n_rows;
            s--;
        } else {
            *s = (struct sequence){i, 1, r->pos0 + r->n_rows};
            j->n_sequences++;
        }
        j->max_keys = u32_max(j->max_keys, s->n_keys);
    }
    return j->sequences != NULL;
}

rd_status cpu_attention_back(struct grad_device *d, const struct grad_attention *g)
{
    const struct attention_args *a = g->a;
    struct attention_job j = {.d = d, .g = g, .a = a, .q = g->q, .dout = g->dout, .dq = g->dq};
    uint64_t n_kv = (uint64_t)g->n_rows * a->n_kv_heads * a->head_dim;
    bool ok = list_sequences(&j);

    if (ok) {
        j.n_scratch =
            6 * (uint64_t)wide(j.max_keys) * a->head_dim + 3 * (uint64_t)BLOCK * (a->head_dim + wide(j.max_keys));
        j.scratch = float_pool_take(&d->floats, j.n_scratch * grad_n_threads(d->compute));
    }
    ok = ok && j.scratch;
    if (ok) {
        memset(g->dq, 0, (uint64_t)a->n_rows * a->q_stride * sizeof(float));
        memset(g->dk, 0, n_kv * sizeof(float));
        memset(g->dv, 0, n_kv * sizeof(float));
        grad_run(d->compute, attention_task, &j, j.n_sequences * a->n_kv_heads);
    }
    mem_free(j.sequences);
    float_pool_give(&d->floats, j.scratch);
    return ok ? RD_OK : RD_E_NOMEM;
}
