/* model/model_convert.c - plan (types, sizes, offsets), header, then tensor after tensor, its rows by several threads. */
#include "model/model_convert.h"
#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/file_out.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "format/adapter/adapter_file.h"
#include "model/adapter_inside.h"
#include "model/convert_vocab.h"
#include "model/model_arch.h"
#include "tensor/quantise.h"

#define ALIGNMENT            32u
#define MAX_HELPERS          64u
#define F16_MAX              65504.0f
#define QUANTISATION_VERSION 2u /* general.quantization_version, as llama.cpp writes it */

static const struct {
    const char *name;
    enum dtype matrix;
    uint32_t file_type;
} types[CONVERT_N_TYPES] = {
    [CONVERT_F16] = {"f16", DTYPE_F16, 1},
    [CONVERT_BF16] = {"bf16", DTYPE_BF16, 32},
    [CONVERT_Q8_0] = {"q8_0", DTYPE_Q8_0, 7},
    [CONVERT_Q4_K_M] = {"q4_k_m", DTYPE_Q4_K, 15},
};

bool convert_type_find(const char *name, enum convert_type *out)
{
    for (size_t i = 0; i < CONVERT_N_TYPES; i++)
        if (!strcmp(types[i].name, name)) {
            *out = (enum convert_type)i;
            return true;
        }
    return false;
}

/* One tensor of the output. */
struct item {
    const struct model_tensor *t; /* NULL: values */
    const float *values;
    const char *name;
    size_t n_name;
    enum dtype dtype;
    uint32_t n_heads; /* > 0: rows of each head become interleaved */
    uint32_t n_dims;
    uint64_t dims[4], n_rows, n_bytes, offset;
    const struct adapter_tensor *lora; /* NULL: the weights as they are */
    bool lora_turns;                   /* its rows stand otherwise than the source's: halves of heads, RoPE's pairs */
};

struct plan {
    const struct model_file *g;
    const struct convert_options *o;
    struct model_config c;
    bool half_split; /* wq and wk are to be permuted */
    float *factors;  /* [n_rot / 2] of rope_freqs.weight, or NULL */
    struct adapter_file lora;
    struct item *items;
    uint32_t n_items, n_merged;
    uint64_t n_bytes; /* of all tensors, gaps included */
    struct rd_error *err;
};

static bool name_is(const struct model_tensor *t, const char *suffix)
{
    size_t n = strlen(suffix);

    return t->name.n >= n && !memcmp(t->name.s + t->name.n - n, suffix, n);
}

/* ---- types ---- */

/* Layers of which q4_k_m keeps more bits. */
static bool keeps_more(const struct plan *p, const struct model_tensor *t)
{
    uint32_t n = p->c.n_layers;
    uint64_t layer;
    const char *dot = t->name.n > 4 ? memchr(t->name.s + 4, '.', t->name.n - 4) : NULL;

    if (!dot || !parse_u64(t->name.s + 4, (size_t)(dot - t->name.s - 4), &layer)) return false;
    return layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
}

static enum dtype choose_type(const struct plan *p, const struct model_tensor *t)
{
    enum dtype d = types[p->o->type].matrix;

    if (t->dims[1] == 1 && t->n_dims < 2) return DTYPE_F32;
    if (p->o->type == CONVERT_Q4_K_M) {
        bool is_head = name_is(t, "output.weight") && t->name.n == 13;

        if (name_is(t, "token_embd.weight")) is_head = p->c.tied_head;
        if (is_head)
            d = DTYPE_Q6_K;
        else if ((name_is(t, ".attn_v.weight") || name_is(t, ".ffn_down.weight")) && keeps_more(p, t))
            d = DTYPE_Q6_K;
    }
    if (t->dims[0] % dtype_block_weights(d)) d = DTYPE_Q8_0;
    if (t->dims[0] % dtype_block_weights(d)) d = DTYPE_F16;
    return d;
}

/* ---- an adapter to be merged ---- */

/* The adapter's pair of a tensor, into the item. */
static rd_status find_lora(struct plan *p, const struct model_tensor *t, bool interleaves, struct item *item)
{
    bool is_turned = interleaves && (name_is(t, ".attn_q.weight") || name_is(t, ".attn_k.weight"));

    for (uint32_t i = 0; i < p->lora.n; i++) {
        const struct adapter_tensor *l = &p->lora.tensors[i];
        char name[64];
        int n = snprintf(name, sizeof(name), "blk.%u.%s.weight", l->layer, l->matrix);

        if (t->name.n != (size_t)n || memcmp(t->name.s, name, (size_t)n) != 0) continue;
        if (l->n_in != t->dims[0] || l->n_out != t->dims[1])
            return error_set(
                p->err, RD_E_FORMAT,
                "%s: made for a matrix of %u x %u, this model's has %llu x %llu: the adapter is another model's",
                l->name, l->n_out, l->n_in, (unsigned long long)t->dims[1], (unsigned long long)t->dims[0]);
        item->lora = l;
        item->lora_turns = is_turned && p->lora.is_gguf != (p->c.rope_layout == ROPE_INTERLEAVED);
        p->n_merged++;
    }
    return RD_OK;
}

/* a, b of a pair as floats, one behind the other. */
static float *open_lora(const struct adapter_tensor *l)
{
    uint64_t n_a = (uint64_t)l->rank * l->n_in, n_b = (uint64_t)l->rank * l->n_out;
    float *values = mem_alloc(n_a + n_b, sizeof(*values));

    if (!values) return NULL;
    dtype_to_float(l->a.dtype, l->a.data, values, n_a);
    dtype_to_float(l->b.dtype, l->b.data, values + n_a, n_b);
    return values;
}

/* row += scale * B[of] A, where `of` is row r of the source as the adapter has it. */
static void add_lora(const struct plan *p, const struct item *item, const float *values, uint64_t r, float *row)
{
    const struct adapter_tensor *l = item->lora;
    uint32_t of = (uint32_t)r;
    const float *b;

    if (item->lora_turns) of = adapter_place(of, p->c.head_dim, !p->lora.is_gguf, p->lora.is_gguf);
    b = values + (uint64_t)l->rank * l->n_in + (uint64_t)of * l->rank;
    for (uint32_t j = 0; j < l->rank; j++) {
        const float s = b[j] * l->scale * (float)p->o->lora_scale;

        for (uint32_t i = 0; i < l->n_in; i++) row[i] = fmaf(s, values[(uint64_t)j * l->n_in + i], row[i]);
    }
}

/* What is wrong with it is said with its name: the model's stands before that. */
static rd_status open_adapter(struct plan *p)
{
    struct rd_error why = {RD_OK, ""};
    rd_status st = adapter_file_open(p->o->lora, &p->lora, &why);

    if (st != RD_OK)
        return error_set(p->err, st, "adapter %.200s: %.200s", p->o->lora, why.text[0] ? why.text : rd_status_text(st));
    if (p->lora.arch[0] && strcmp(p->lora.arch, p->c.arch) != 0)
        st = error_set(p->err, RD_E_UNSUPPORTED, "an adapter of %s: the model is %s", p->lora.arch, p->c.arch);
    return st;
}

/* ---- plan ---- */

static rd_status add_item(struct plan *p, struct item item)
{
    uint64_t row_bytes;

    item.n_rows = 1;
    for (uint32_t d = 1; d < item.n_dims; d++) item.n_rows *= item.dims[d];
    if (!dtype_row_bytes(item.dtype, item.dims[0], &row_bytes) || !checked_mul(row_bytes, item.n_rows, &item.n_bytes))
        return error_set(p->err, RD_E_LIMIT, "%.*s: too large", (int)item.n_name, item.name);
    item.offset = p->n_bytes;
    p->n_bytes = (item.offset + item.n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    p->items[p->n_items++] = item;
    return RD_OK;
}

/* Llama 3.1's scaling as divisors. */
static rd_status make_factors(struct plan *p)
{
    uint32_t n = p->c.n_rot / 2;

    p->factors = mem_alloc(n, sizeof(*p->factors));
    if (!p->factors) return error_set(p->err, RD_E_NOMEM, "out of memory");
    rope_llama3_divisors(&p->c, p->factors);
    return add_item(p, (struct item){.values = p->factors,
                                     .name = "rope_freqs.weight",
                                     .n_name = 17,
                                     .dtype = DTYPE_F32,
                                     .n_dims = 1,
                                     .dims = {n, 1, 1, 1}});
}

static rd_status make_plan(struct plan *p)
{
    uint64_t n = model_file_n_tensors(p->g);
    const struct model_arch *arch = model_arch_find(p->c.arch, strlen(p->c.arch));
    bool interleaves = arch && arch->interleaves;
    rd_status st = RD_OK;

    p->items = mem_zalloc(n + 1, sizeof(*p->items));
    if (!p->items) return error_set(p->err, RD_E_NOMEM, "out of memory");
    p->half_split = interleaves && p->c.rope_layout == ROPE_HALF_SPLIT;
    if (interleaves && p->c.rope_llama3_factor > 0) st = make_factors(p);
    for (uint64_t i = 0; st == RD_OK && i < n; i++) {
        const struct model_tensor *t = model_file_tensor(p->g, i);
        struct item item = {.t = t, .name = t->name.s, .n_name = t->name.n, .n_dims = t->n_dims};

        memcpy(item.dims, t->dims, sizeof(item.dims));
        item.dtype = choose_type(p, t);
        if (p->half_split && (name_is(t, ".attn_q.weight") || name_is(t, ".attn_q.bias"))) item.n_heads = p->c.n_heads;
        if (p->half_split && (name_is(t, ".attn_k.weight") || name_is(t, ".attn_k.bias")))
            item.n_heads = p->c.n_kv_heads;
        st = find_lora(p, t, interleaves, &item);
        if (st == RD_OK) st = add_item(p, item);
    }
    if (st == RD_OK && p->n_merged < p->lora.n)
        st = error_set(p->err, RD_E_FORMAT, "%u of the adapter's %u matrices are not in the model: it is another's",
                       p->lora.n - p->n_merged, p->lora.n);
    return st;
}

/* ---- header ---- */

static bool key_is(const struct model_meta *kv, const char *key)
{
    return kv->key.n == strlen(key) && !memcmp(kv->key.s, key, kv->key.n);
}

/* Keys that the output says otherwise, or not. */
static bool is_replaced(const struct plan *p, const struct model_meta *kv)
{
    char prefix[64], half_split[64];

    snprintf(prefix, sizeof(prefix), "%s.rope.scaling.", p->c.arch);
    snprintf(half_split, sizeof(half_split), "%s.rope.half_split", p->c.arch);

    if (key_is(kv, "general.file_type") || key_is(kv, "general.quantization_version") ||
        key_is(kv, "general.alignment") || key_is(kv, "split.no") || key_is(kv, "split.count") ||
        key_is(kv, "split.tensors.count"))
        return true;
    if (p->half_split && key_is(kv, half_split)) return true;
    return p->factors && kv->key.n > strlen(prefix) && !memcmp(kv->key.s, prefix, strlen(prefix));
}

static void put_tensor_infos(const struct plan *p, struct buf *out)
{
    for (uint32_t i = 0; i < p->n_items; i++) {
        const struct item *item = &p->items[i];
        uint64_t n_name = item->n_name;
        uint32_t type = (uint32_t)item->dtype;

        buf_append(out, &n_name, sizeof(n_name));
        buf_append(out, item->name, item->n_name);
        buf_append(out, &item->n_dims, sizeof(item->n_dims));
        buf_append(out, item->dims, item->n_dims * sizeof(item->dims[0]));
        buf_append(out, &type, sizeof(type));
        buf_append(out, &item->offset, sizeof(item->offset));
    }
    while (out->n % ALIGNMENT && !out->failed) buf_putc(out, 0);
}

static rd_status make_header(const struct plan *p, struct buf *out)
{
    struct gguf_writer w = {0};
    rd_status st = RD_OK;

    for (uint64_t i = 0; i < model_file_n_meta(p->g); i++)
        if (!is_replaced(p, model_file_meta(p->g, i))) gguf_add_copy(&w, model_file_meta(p->g, i));
    gguf_add_u32(&w, "general.file_type", types[p->o->type].file_type);
    gguf_add_u32(&w, "general.quantization_version", QUANTISATION_VERSION);
    if (model_file_text(p->g)) st = convert_vocab(p->g, p->o->pre, &w, p->err);
    if (st == RD_OK) {
        gguf_write_header(&w, p->n_items, out);
        put_tensor_infos(p, out);
        if (out->failed) st = error_set(p->err, RD_E_NOMEM, "out of memory for the metadata");
    }
    gguf_writer_deinit(&w);
    return st;
}

/* ---- tensors ---- */

/* next: any thread takes the next rows, relaxed, only unique; no_memory, too_large: relaxed, read after joining */
struct row_job {
    const struct plan *plan;
    const struct item *item;
    const float *lora; /* values of the item's pair */
    const uint8_t *src;
    uint64_t src_row_bytes, dst_row_bytes, rows_at_once;
    uint8_t *dst;
    atomic_uint_fast64_t next;
    atomic_bool no_memory, too_large;
};

/* Which row of the source row r is: (pair, half) of a head, from half-split order. */
static uint64_t source_row(const struct item *item, uint64_t n_rows, uint64_t r)
{
    uint64_t head_dim, head, i;

    if (item->n_heads == 0) return r;
    head_dim = n_rows / item->n_heads;
    head = r / head_dim;
    i = r % head_dim;
    return head * head_dim + i % 2 * (head_dim / 2) + i / 2;
}

static bool fits_f16(const float *row, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (fabsf(row[i]) > F16_MAX && isfinite(row[i])) return false;
    return true;
}

static void convert_rows(void *arg)
{
    struct row_job *j = arg;
    const struct item *item = j->item;
    enum dtype from = item->t->dtype;
    float *row = mem_alloc(item->dims[0], sizeof(*row));
    uint64_t first;

    if (!row) {
        atomic_store_explicit(&j->no_memory, true, memory_order_relaxed);
        return;
    }
    while ((first = atomic_fetch_add_explicit(&j->next, j->rows_at_once, memory_order_relaxed)) < item->n_rows)
        for (uint64_t r = first; r < item->n_rows && r < first + j->rows_at_once; r++) {
            uint64_t of = source_row(item, item->n_rows, r);
            const uint8_t *src = j->src + of * j->src_row_bytes;

            if (from == item->dtype && !j->lora) {
                memcpy(j->dst + r * j->dst_row_bytes, src, j->dst_row_bytes);
                continue;
            }
            dtype_to_float(from, src, row, item->dims[0]);
            if (j->lora) add_lora(j->plan, item, j->lora, of, row);
            if (item->dtype == DTYPE_F16 && !fits_f16(row, item->dims[0]))
                atomic_store_explicit(&j->too_large, true, memory_order_relaxed);
            quantise(item->dtype, row, j->dst + r * j->dst_row_bytes, item->dims[0]);
        }
    mem_free(row);
}

/* A bias of wq or wk: values instead of rows. */
static void convert_vector(const struct item *item, const void *src, float *dst)
{
    dtype_to_float(item->t->dtype, src, dst, item->dims[0]);
    if (item->n_heads) {
        float *copy = dst + item->dims[0];

        memcpy(copy, dst, item->dims[0] * sizeof(*dst));
        for (uint64_t i = 0; i < item->dims[0]; i++) dst[i] = copy[source_row(item, item->dims[0], i)];
    }
}

static rd_status convert_matrix(const struct plan *p, const struct item *item, const void *src, uint8_t *dst)
{
    struct row_job j = {.plan = p, .item = item, .src = src, .dst = dst};
    float *lora = NULL;
    struct thread helpers[MAX_HELPERS] = {0};
    uint32_t n = p->o->n_threads ? p->o->n_threads : thread_n_physical_cores();

    if (!dtype_row_bytes(item->t->dtype, item->dims[0], &j.src_row_bytes) ||
        !dtype_row_bytes(item->dtype, item->dims[0], &j.dst_row_bytes))
        return error_set(p->err, RD_E_FORMAT, "%.*s: rows of %llu weights", (int)item->n_name, item->name,
                         (unsigned long long)item->dims[0]);
    if (item->lora && !(lora = open_lora(item->lora)))
        return error_set(p->err, RD_E_NOMEM, "%.*s: out of memory", (int)item->n_name, item->name);
    j.lora = lora;
    j.rows_at_once = u64_max(1, (1u << 16) / item->dims[0]);
    atomic_init(&j.next, 0);
    atomic_init(&j.no_memory, false);
    atomic_init(&j.too_large, false);
    n = (uint32_t)u64_min(u32_min(n, MAX_HELPERS), item->n_rows / j.rows_at_once + 1);
    for (uint32_t i = 1; i < n; i++)
        if (thread_start(&helpers[i], "convert", convert_rows, &j) != RD_OK) break; /* fewer hands, the same work */
    convert_rows(&j);
    for (uint32_t i = 1; i < n; i++) thread_join(&helpers[i]);
    mem_free(lora);
    if (atomic_load_explicit(&j.too_large, memory_order_relaxed))
        return error_set(p->err, RD_E_INVALID, "%.*s: a weight is beyond f16's %g; bf16 holds it", (int)item->n_name,
                         item->name, (double)F16_MAX);
    if (!atomic_load_explicit(&j.no_memory, memory_order_relaxed)) return RD_OK;
    return error_set(p->err, RD_E_NOMEM, "%.*s: out of memory", (int)item->n_name, item->name);
}

static rd_status write_item(const struct plan *p, const struct item *item, struct file_out *f)
{
    static const uint8_t zeros[ALIGNMENT];
    struct tensor_bytes bytes = {NULL, NULL};
    uint8_t *dst = NULL;
    size_t gap = (size_t)((ALIGNMENT - item->n_bytes % ALIGNMENT) % ALIGNMENT);
    rd_status st = RD_OK;

    if (!item->t) {
        st = file_out_write(f, item->values, item->n_bytes, p->err);
        return st == RD_OK ? file_out_write(f, zeros, gap, p->err) : st;
    }
    if (item->dtype != item->t->dtype || item->n_heads || item->lora) {
        dst = mem_alloc_aligned(2 * item->dims[0] * sizeof(float) > item->n_bytes ? 2 * item->dims[0] * sizeof(float)
                                                                                  : item->n_bytes);
        if (!dst) return error_set(p->err, RD_E_NOMEM, "%.*s: out of memory", (int)item->n_name, item->name);
    }
    st = model_tensor_open(item->t, &bytes, p->err);
    if (st == RD_OK && dst) {
        if (item->n_dims < 2)
            convert_vector(item, bytes.data, (float *)(void *)dst);
        else
            st = convert_matrix(p, item, bytes.data, dst);
    }
    if (st == RD_OK) st = file_out_write(f, dst ? dst : bytes.data, item->n_bytes, p->err);
    if (st == RD_OK) st = file_out_write(f, zeros, gap, p->err);
    model_tensor_close(&bytes);
    mem_free_aligned(dst);
    return st;
}

static rd_status write_file(const struct plan *p, const char *path, const struct buf *header)
{
    struct file_out f;
    uint64_t done = 0;
    rd_status st = file_out_open(path, &f, p->err);

    if (st == RD_OK) st = file_out_write(&f, header->data, header->n, p->err);
    for (uint32_t i = 0; st == RD_OK && i < p->n_items; i++) {
        st = write_item(p, &p->items[i], &f);
        done += p->items[i].n_bytes;
        if (st == RD_OK && p->o->progress && p->o->progress->fn)
            p->o->progress->fn(p->o->progress->arg, (double)done / (double)(p->n_bytes + 1));
        if (st == RD_OK && p->o->progress && p->o->progress->cancelled &&
            p->o->progress->cancelled(p->o->progress->arg))
            st = error_set(p->err, RD_E_CANCELLED, "stopped");
    }
    if (st == RD_OK && (model_file_broken(p->g) || !model_file_unchanged(p->g)))
        st = error_set(p->err, RD_E_IO, "the model's files changed meanwhile");
    if (st == RD_OK)
        st = file_out_commit(&f, p->err);
    else
        file_out_abandon(&f);
    if (st == RD_OK && p->o->progress && p->o->progress->fn) p->o->progress->fn(p->o->progress->arg, 1);
    return st;
}

static void warn_of_loss(const struct plan *p)
{
    for (uint32_t i = 0; i < p->n_items; i++) {
        const struct model_tensor *t = p->items[i].t;

        if (t && dtype_block_weights(t->dtype) > 1 && t->dtype != p->items[i].dtype) {
            log_warn("the weights are quantised already (%.*s: %s): writing them in another type does not make them "
                     "better",
                     (int)t->name.n, t->name.s, dtype_name(t->dtype));
            return;
        }
    }
}

rd_status model_convert(const struct model_file *g, const char *path, const struct convert_options *o,
                        struct rd_error *err)
{
    struct plan p = {.g = g, .o = o, .err = err};
    struct buf header = {0};
    rd_status st = model_read_config(g, &p.c, err);

    assert(o->type < CONVERT_N_TYPES);
    if (st == RD_OK) st = model_check_tensors(g, err);
    if (st == RD_OK && o->lora) st = open_adapter(&p);
    if (st == RD_OK) st = make_plan(&p);
    if (st == RD_OK) warn_of_loss(&p);
    if (st == RD_OK) st = make_header(&p, &header);
    if (st == RD_OK) st = write_file(&p, path, &header);
    buf_deinit(&header);
    adapter_file_close(&p.lora);
    mem_free(p.items);
    mem_free(p.factors);
    return st;
}
