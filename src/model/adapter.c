/* model/adapter.c - an adapter's pairs held to the model's shapes and loaded; mixes. */
#include "model/adapter.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "format/adapter/adapter_file.h"
#include "model/adapter_inside.h"
#include "model/model_arch.h"

static const struct {
    const char *name;
    enum tensor_dim n_out, n_in;
} targets[ADAPT_N] = {
    {"attn_q", DIM_Q, DIM_HIDDEN},      {"attn_k", DIM_KV, DIM_HIDDEN},    {"attn_v", DIM_KV, DIM_HIDDEN},
    {"attn_output", DIM_HIDDEN, DIM_Q}, {"ffn_gate", DIM_FFN, DIM_HIDDEN}, {"ffn_up", DIM_FFN, DIM_HIDDEN},
    {"ffn_down", DIM_HIDDEN, DIM_FFN},
};

static rd_status find_target(const struct model_config *c, const struct adapter_tensor *t, enum adapter_target *out,
                             struct rd_error *err)
{
    uint32_t i = 0;

    while (i < ADAPT_N && strcmp(targets[i].name, t->matrix) != 0) i++;
    if (i == ADAPT_N || t->layer >= c->n_layers)
        return error_set(err, RD_E_FORMAT, "%s: no matrix of %s with %u layers: the adapter is another model's",
                         t->name, c->arch, c->n_layers);
    *out = (enum adapter_target)i;
    if (t->n_in == tensor_dim_size(c, targets[i].n_in) && t->n_out == tensor_dim_size(c, targets[i].n_out))
        return RD_OK;
    return error_set(
        err, RD_E_FORMAT, "%s: made for a matrix of %u x %u, this model's has %u x %u: the adapter is another model's",
        t->name, t->n_out, t->n_in, tensor_dim_size(c, targets[i].n_out), tensor_dim_size(c, targets[i].n_in));
}

const char *adapter_target_name(enum adapter_target t)
{
    return targets[t].name;
}

void adapter_target_sizes(const struct model_config *c, enum adapter_target t, uint32_t *n_out, uint32_t *n_in)
{
    *n_out = tensor_dim_size(c, targets[t].n_out);
    *n_in = tensor_dim_size(c, targets[t].n_in);
}

uint32_t adapter_place(uint32_t o, uint32_t head_dim, bool from_pairs, bool to_pairs)
{
    uint32_t half = head_dim / 2, head = o / head_dim * head_dim, i = o % head_dim;

    if (from_pairs == to_pairs) return o;
    return to_pairs ? head + i % half * 2 + i / half : head + i % 2 * half + i / 2;
}

/* The part of one rank. */
struct load_call {
    struct model *m;
    struct adapter *a;
    struct adapter_part *part;
    const struct adapter_file *f;
    struct hash128 *digests; /* [n_layers * ADAPT_N] of the pairs, whole */
    uint64_t n_placed;       /* bytes of part->block that have their matrix */
    uint64_t n_copied;       /* bytes that the backend has copied */
};

static bool is_narrow(enum dtype t)
{
    return t == DTYPE_F16 || t == DTYPE_BF16;
}

/* Of a matrix in the block: whole cache lines. */
static uint64_t placed_bytes(enum dtype dtype, uint64_t n)
{
    return (n * (is_narrow(dtype) ? sizeof(uint16_t) : sizeof(float)) + 63) / 64 * 64;
}

/* n floats that came from this type become it again, where they are. */
static void narrow(enum dtype dtype, float *values, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t v = dtype == DTYPE_F16 ? float_to_half(values[i]) : float_to_bf16(values[i]);

        memcpy((uint8_t *)values + i * sizeof(v), &v, sizeof(v));
    }
}

/* Kept in 16 bits where the file has it so: the same numbers, half the memory to read. values are used up. */
static rd_status load_matrix(struct load_call *c, const char *name, enum dtype dtype, float *values, uint32_t rank,
                             uint32_t width, struct weight *out, struct rd_error *err)
{
    const uint64_t n = (uint64_t)rank * width;
    uint8_t *to = (uint8_t *)c->part->block + c->n_placed;
    const struct host_tensor t = {.name = name,
                                  .dtype = is_narrow(dtype) ? dtype : DTYPE_F32,
                                  .n_out = rank,
                                  .n_in = width,
                                  .data = to,
                                  .stays = true};
    rd_status st;

    if (is_narrow(dtype)) narrow(dtype, values, n);
    memcpy(to, values, n * (is_narrow(dtype) ? sizeof(uint16_t) : sizeof(float)));
    c->n_placed += placed_bytes(dtype, n);
    st = c->m->ops->weights.load(c->m->be, &t, WEIGHT_LOW_RANK, out, err);
    c->n_copied += out->bytes;
    return st;
}

/* Of `values` [n_rows, width] the columns of a cut, together, where they are. */
static void keep_columns(float *values, uint32_t n_rows, uint32_t width, struct cut cut)
{
    for (uint32_t j = 0; j < n_rows && cut.n < width; j++)
        memmove(values + (uint64_t)j * cut.n, values + (uint64_t)j * width + cut.first, cut.n * sizeof(*values));
}

/* values: room for two of the largest matrix. b becomes [rank, n_out], its rows in the model's order, and of these the rank's. */
static rd_status load_pair(struct load_call *c, const struct adapter_tensor *t, enum adapter_target target,
                           float *values, struct rd_error *err)
{
    const struct model *m = c->m;
    struct adapter_pair *pair = &c->part->pairs[t->layer * ADAPT_N + target];
    const struct cut cut = model_rows_cut(m, targets[target].n_out);
    bool is_turned = (target == ADAPT_Q || target == ADAPT_K) && m->arch->interleaves;
    bool to_pairs = m->config.rope_layout == ROPE_INTERLEAVED;
    uint64_t n_a = (uint64_t)t->rank * t->n_in, n_b = (uint64_t)t->rank * t->n_out;
    float *turned = values + (n_a > n_b ? n_a : n_b);
    struct hash128 parts[3] = {0};
    rd_status st = RD_OK;

    dtype_to_float(t->a.dtype, t->a.data, values, n_a);
    parts[0] = hash128_of(values, n_a * sizeof(*values));
    if (cut.n > 0) st = load_matrix(c, t->name, t->a.dtype, values, t->rank, t->n_in, &pair->a, err);
    if (st != RD_OK) return st;
    dtype_to_float(t->b.dtype, t->b.data, values, n_b);
    for (uint32_t o = 0; o < t->n_out; o++) {
        uint32_t to = is_turned ? adapter_place(o, m->config.head_dim, c->f->is_gguf, to_pairs) : o;

        for (uint32_t j = 0; j < t->rank; j++) turned[(uint64_t)j * t->n_out + to] = values[(uint64_t)o * t->rank + j];
    }
    parts[1] = hash128_of(turned, n_b * sizeof(*turned));
    memcpy(&parts[2], &t->scale, sizeof(t->scale));
    c->digests[t->layer * ADAPT_N + target] = hash128_of(parts, sizeof(parts));
    pair->scale = t->scale;
    if (t->rank > c->a->info.max_rank) c->a->info.max_rank = t->rank;
    if (cut.n == 0) return RD_OK;
    keep_columns(turned, t->rank, t->n_out, cut);
    return load_matrix(c, t->name, t->b.dtype, turned, t->rank, cut.n, &pair->b, err);
}

static rd_status load_pairs(struct load_call *c, struct rd_error *err)
{
    uint64_t most = 0, n_block = 0;
    float *values;
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < c->f->n; i++) {
        const struct adapter_tensor *t = &c->f->tensors[i];
        uint64_t n = (uint64_t)t->rank * (t->n_in > t->n_out ? t->n_in : t->n_out);

        if (n > most) most = n;
        n_block += placed_bytes(t->a.dtype, (uint64_t)t->rank * t->n_in) +
                   placed_bytes(t->b.dtype, (uint64_t)t->rank * t->n_out);
    }
    values = mem_alloc(2 * most, sizeof(*values));
    c->part->block = values ? mem_alloc_aligned((size_t)n_block) : NULL;
    if (!c->part->block) mem_free(values);
    if (!c->part->block) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < c->f->n && st == RD_OK; i++) {
        enum adapter_target target = ADAPT_Q;

        st = find_target(&c->m->config, &c->f->tensors[i], &target, err);
        if (st == RD_OK) st = load_pair(c, &c->f->tensors[i], target, values, err);
    }
    mem_free(values);
    if (c->n_copied > 0) { /* else the backend reads them where they are */
        mem_free_aligned(c->part->block);
        c->part->block = NULL;
    }
    c->a->info.n_bytes += c->n_copied > 0 ? c->n_copied : n_block;
    return st;
}

/* The pairs as recorded steps find them. */
static rd_status load_table(struct model *m, struct adapter *a, struct adapter_part *part, struct rd_error *err)
{
    const uint32_t n = a->n_layers * ADAPT_N;
    struct low_rank_pair *pairs;
    rd_status st;

    if (!m->ops->op.low_rank_rows) return RD_OK;
    pairs = mem_zalloc(n, sizeof(*pairs));
    if (!pairs) return error_set(err, RD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++)
        if (part->pairs[i].a.data)
            pairs[i] = (struct low_rank_pair){&part->pairs[i].a, &part->pairs[i].b, part->pairs[i].scale};
    st = m->ops->weights.load_pairs(m->be, pairs, n, &part->table, err);
    a->info.n_bytes += part->table.bytes;
    mem_free(pairs);
    return st;
}

/* Adds the part of the next rank. */
static rd_status load(struct model *m, const struct adapter_file *f, struct adapter *a, struct rd_error *err)
{
    size_t n = (size_t)m->config.n_layers * ADAPT_N;
    struct adapter_part *part = &a->parts[a->n_parts++];
    struct load_call c = {m, a, part, f, mem_zalloc(n, sizeof(*c.digests)), 0, 0};
    rd_status st;

    part->ops = m->ops;
    part->be = m->be;

    if (f->arch[0] && strcmp(f->arch, m->config.arch) != 0) {
        st = error_set(err, RD_E_UNSUPPORTED, "an adapter of %s: the model is %s", f->arch, m->config.arch);
    } else {
        part->pairs = mem_zalloc(n, sizeof(*part->pairs));
        st = part->pairs && c.digests ? load_pairs(&c, err) : error_set(err, RD_E_NOMEM, "out of memory");
    }
    if (st == RD_OK) st = load_table(m, a, part, err);
    if (st == RD_OK) a->info.digest = hash128_of(c.digests, n * sizeof(*c.digests));
    mem_free(c.digests);
    return st;
}

rd_status adapter_load(struct model *m, const char *path, struct adapter **out, struct rd_error *err)
{
    return adapter_load_ranks(&m, 1, path, out, err);
}

rd_status adapter_load_ranks(struct model *const *models, uint32_t n, const char *path, struct adapter **out,
                             struct rd_error *err)
{
    const struct model *m = models[0];
    struct adapter_file f;
    struct adapter *a = NULL;
    rd_status st;

    *out = NULL;
    if (!m->ops->op.low_rank) return error_set(err, RD_E_UNSUPPORTED, "adapters are not computed on %s", m->ops->name);
    if ((st = adapter_file_open(path, &f, err)) != RD_OK) return st;
    a = mem_zalloc(1, sizeof(*a));
    if (a) {
        atomic_init(&a->refs, 1);
        a->n_layers = m->config.n_layers;
        a->info.n_matrices = f.n;
        snprintf(a->info.base, sizeof(a->info.base), "%s", f.base);
        for (uint32_t i = 0; i < n && st == RD_OK; i++) st = load(models[i], &f, a, err);
    } else {
        st = error_set(err, RD_E_NOMEM, "out of memory");
    }
    adapter_file_close(&f);
    if (st == RD_OK)
        *out = a;
    else
        adapter_unref(a);
    return st;
}

const struct adapter_info *adapter_info(const struct adapter *a)
{
    return &a->info;
}

void adapter_ref(struct adapter *a)
{
    atomic_fetch_add(&a->refs, 1);
}

bool adapter_is_used(const struct adapter *a)
{
    return atomic_load(&a->refs) > 1;
}

void adapter_unref(struct adapter *a)
{
    if (!a || atomic_fetch_sub(&a->refs, 1) != 1) return;
    for (uint32_t r = 0; r < a->n_parts; r++) {
        struct adapter_part *part = &a->parts[r];

        for (uint32_t i = 0; part->pairs && i < a->n_layers * ADAPT_N; i++) {
            part->ops->weights.unload(part->be, &part->pairs[i].a);
            part->ops->weights.unload(part->be, &part->pairs[i].b);
        }
        if (part->table.data) part->ops->weights.unload(part->be, &part->table);
        mem_free_aligned(part->block);
        mem_free(part->pairs);
    }
    mem_free(a);
}

/* ---- mixes ---- */

static int by_digest(const void *x, const void *y)
{
    const struct hash128 *a = &((const struct adapter_use *)x)->adapter->info.digest,
                         *b = &((const struct adapter_use *)y)->adapter->info.digest;

    if (a->high != b->high) return a->high < b->high ? -1 : 1;
    return a->low == b->low ? 0 : a->low < b->low ? -1 : 1;
}

rd_status adapter_mix_create(const struct adapter_use *uses, uint32_t n, struct adapter_mix **out, struct rd_error *err)
{
    struct {
        struct hash128 digest;
        float scale;
        uint32_t zero;
    } named[ADAPTER_MIX_MAX] = {0};
    struct adapter_mix *x;
    uint32_t n_ranks = 0;

    *out = NULL;
    if (n > ADAPTER_MIX_MAX)
        return error_set(err, RD_E_LIMIT, "%u adapters in one request, at most %u", n, ADAPTER_MIX_MAX);
    x = mem_zalloc(1, sizeof(*x));
    if (!x) return error_set(err, RD_E_NOMEM, "out of memory");
    atomic_init(&x->refs, 1);
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(uses[i].scale)) {
            mem_free(x);
            return error_set(err, RD_E_INVALID, "the scale of an adapter is no number");
        }
        if (uses[i].scale == 0) continue;
        n_ranks += uses[i].adapter->info.max_rank;
        x->uses[x->n++] = uses[i];
    }
    if (n_ranks > ADAPTER_MIX_RANKS || x->n == 0) {
        mem_free(x);
        return n_ranks == 0 ? RD_OK
                            : error_set(err, RD_E_LIMIT, "adapters of rank %u in one request, at most %u", n_ranks,
                                        ADAPTER_MIX_RANKS);
    }
    qsort(x->uses, x->n, sizeof(*x->uses), by_digest);
    for (uint32_t i = 0; i < x->n; i++) {
        adapter_ref(x->uses[i].adapter);
        named[i].digest = x->uses[i].adapter->info.digest;
        named[i].scale = x->uses[i].scale;
    }
    x->id = hash128_of(named, x->n * sizeof(*named));
    *out = x;
    return RD_OK;
}

struct hash128 adapter_mix_id(const struct adapter_mix *x)
{
    return x ? x->id : (struct hash128){0, 0};
}

struct adapter_mix *adapter_mix_ref(struct adapter_mix *x)
{
    if (x) atomic_fetch_add(&x->refs, 1);
    return x;
}

void adapter_mix_unref(struct adapter_mix *x)
{
    if (!x || atomic_fetch_sub(&x->refs, 1) != 1) return;
    for (uint32_t i = 0; i < x->n; i++) adapter_unref(x->uses[i].adapter);
    mem_free(x);
}
