/* model/adapter_params.c - see the header. */
#include "model/adapter_params.h"
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "base/philox.h"
#include "format/adapter/adapter_file.h"
#include "format/adapter/adapter_write.h"
#include "format/hub/hf_names.h"
#include "model/adapter_inside.h"
#include "model/model_arch.h"

static bool is_called(const char *name, const char *text, size_t n)
{
    return strlen(name) == n && memcmp(name, text, n) == 0;
}

uint32_t adapter_target_bit(const char *name, size_t n)
{
    if (is_called("all", name, n)) return (1u << ADAPTER_N_TARGETS) - 1;
    for (uint32_t i = 0; i < ADAPTER_N_TARGETS; i++) {
        const char *gguf = adapter_target_name((enum adapter_target)i);

        if (is_called(gguf, name, n) || is_called(hf_module_name(gguf), name, n)) return 1u << i;
    }
    return 0;
}

/* Uniform within +-1 / sqrt(n_in): a number of 24 bits follows from seed, pair and place. */
static void fill(float *a, uint64_t n, uint32_t n_in, uint32_t pair, uint64_t seed)
{
    const double bound = 1 / sqrt(n_in);

    for (uint64_t i = 0; i < n; i += 4) {
        struct philox_words w = philox_4x32((uint32_t)(i / 4), (uint32_t)(i >> 34), pair, 0x41, seed);

        for (uint64_t k = i; k < n && k < i + 4; k++)
            a[k] = (float)(((double)(w.w[k - i] >> 8) + 0.5) / 8388608.0 - 1.0) * (float)bound;
    }
}

static rd_status make_half(struct adapter *a, float *values, uint32_t rank, uint32_t width, struct weight *out,
                           struct rd_error *err)
{
    const struct host_tensor t = {.name = "adapter", .dtype = DTYPE_F32, .n_out = rank, .n_in = width, .data = values};
    rd_status st = a->parts->ops->weights.load(a->parts->be, &t, WEIGHT_LOW_RANK, out, err);

    a->info.n_bytes += out->bytes;
    return st;
}

static rd_status make_pair(struct model *m, struct adapter *a, const struct adapter_shape *s, uint32_t i, float *values,
                           struct rd_error *err)
{
    enum adapter_target target = (enum adapter_target)(i % ADAPT_N);
    struct adapter_pair *pair = &a->parts->pairs[i];
    uint32_t n_in, n_out;
    rd_status st;

    adapter_target_sizes(&m->config, target, &n_out, &n_in);
    pair->scale = (float)(s->alpha / (s->by_root ? sqrt(s->rank) : s->rank));
    fill(values, (uint64_t)s->rank * n_in, n_in, i, s->seed);
    if ((st = make_half(a, values, s->rank, n_in, &pair->a, err)) != RD_OK) return st;
    memset(values, 0, (size_t)s->rank * n_out * sizeof(*values));
    a->info.n_matrices++;
    return make_half(a, values, s->rank, n_out, &pair->b, err);
}

rd_status adapter_create(struct model *m, const struct adapter_shape *s, struct adapter **out, struct rd_error *err)
{
    const struct model_config *c = &m->config;
    uint32_t n = c->n_layers * ADAPT_N, widest = c->ffn > c->hidden ? c->ffn : c->hidden;
    struct adapter *a;
    float *values;
    rd_status st = RD_OK;

    *out = NULL;
    if (!m->ops->op.low_rank) return error_set(err, RD_E_UNSUPPORTED, "adapters are not computed on %s", m->ops->name);
    if (s->rank < 1 || s->rank > ADAPTER_MAX_RANK)
        return error_set(err, RD_E_INVALID, "rank %u; it may be 1 to %u", s->rank, ADAPTER_MAX_RANK);
    if (!(s->alpha > 0) || !isfinite(s->alpha)) return error_set(err, RD_E_INVALID, "alpha must be above 0");
    if (c->n_heads * c->head_dim > widest) widest = c->n_heads * c->head_dim;
    a = mem_zalloc(1, sizeof(*a));
    values = mem_alloc((size_t)s->rank * widest, sizeof(*values));
    if (a) {
        atomic_init(&a->refs, 1);
        a->n_parts = 1;
        a->parts[0] = (struct adapter_part){m->ops, m->be, mem_zalloc(n, sizeof(struct adapter_pair)), NULL, {0}};
        a->n_layers = c->n_layers;
        a->info.max_rank = s->rank;
    }
    if (!a || !values || !a->parts->pairs) st = error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n && st == RD_OK; i++)
        if (s->targets >> i % ADAPT_N & 1) st = make_pair(m, a, s, i, values, err);
    mem_free(values);
    if (st == RD_OK)
        *out = a;
    else
        adapter_unref(a);
    return st;
}

bool adapter_pair_at(struct adapter *a, uint32_t i, struct adapter_pair_view *out)
{
    for (uint32_t k = 0; k < a->n_layers * ADAPT_N; k++) {
        struct adapter_pair *p = &a->parts->pairs[k];

        if (!p->a.data || i-- > 0) continue;
        *out = (struct adapter_pair_view){.layer = k / ADAPT_N,
                                          .target = k % ADAPT_N,
                                          .rank = p->a.n_out,
                                          .n_in = p->a.n_in,
                                          .n_out = p->b.n_in,
                                          .a_weight = &p->a,
                                          .b_weight = &p->b,
                                          .a = (float *)(uintptr_t)p->a.data,
                                          .b = (float *)(uintptr_t)p->b.data};
        return true;
    }
    return false;
}

/* [n_out, rank], its rows as the kind of file has them. */
static float *file_order(const struct model *m, const struct adapter_pair_view *v, bool gguf)
{
    bool is_turned = (v->target == ADAPT_Q || v->target == ADAPT_K) && m->arch->interleaves;
    bool to_pairs = m->config.rope_layout == ROPE_INTERLEAVED;
    float *b = mem_alloc((size_t)v->n_out * v->rank, sizeof(*b));

    for (uint32_t o = 0; b && o < v->n_out; o++) {
        uint32_t at = is_turned ? adapter_place(o, m->config.head_dim, gguf, to_pairs) : o;

        for (uint32_t j = 0; j < v->rank; j++) b[(uint64_t)o * v->rank + j] = v->b[(uint64_t)j * v->n_out + at];
    }
    return b;
}

rd_status adapter_save(struct model *m, struct adapter *a, const char *path, const struct adapter_save *s,
                       struct rd_error *err)
{
    struct adapter_out o = {.n = a->info.n_matrices,
                            .rank = s->shape->rank,
                            .alpha = s->shape->alpha,
                            .dropout = s->dropout,
                            .bf16 = s->bf16,
                            .by_root = s->shape->by_root,
                            .base = s->base,
                            .arch = m->config.arch};
    struct adapter_out_pair *pairs = mem_zalloc(o.n, sizeof(*pairs));
    struct adapter_pair_view v;
    float *at = (float *)(uintptr_t)s->numbers;
    rd_status st = pairs ? RD_OK : error_set(err, RD_E_NOMEM, "out of memory");

    for (uint32_t i = 0; st == RD_OK && i < o.n && adapter_pair_at(a, i, &v); i++) {
        if (at) {
            v.a = at;
            v.b = at + (uint64_t)v.rank * v.n_in;
            at = v.b + (uint64_t)v.rank * v.n_out;
        }
        pairs[i] = (struct adapter_out_pair){v.layer, adapter_target_name((enum adapter_target)v.target),
                                             v.n_in,  v.n_out,
                                             v.a,     file_order(m, &v, s->gguf)};
        if (!pairs[i].b) st = error_set(err, RD_E_NOMEM, "out of memory");
    }
    o.pairs = pairs;
    if (st == RD_OK) st = s->gguf ? adapter_write_gguf(path, &o, err) : adapter_write_peft(path, &o, err);
    for (uint32_t i = 0; pairs && i < o.n; i++) mem_free(pairs[i].b);
    mem_free(pairs);
    return st;
}
