/* model/model_load.c - from a GGUF file to a model on a backend.
 *
 * Order: config, ops that are there, every tensor's name, type and shape, nothing left over in the file; only then is
 * memory taken in proportion to the file's numbers and are weights loaded. A tensor that the architecture's table does
 * not name is refused: leaving a bias out would give wrong text silently.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "backend/compose.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"
#include "model/blocks.h"
#include "model/packed_weights.h"

/* One tensor of the table: where in the file it is and what it becomes. */
struct tensor_place {
    const struct tensor_spec *spec;
    uint32_t layer;  /* of a layer's tensor */
    char name[96];   /* "blk.3.attn_q.weight" */
    char label[640]; /* "layer 3 wq (blk.3.attn_q.weight)" */
    enum tensor_dim out, in;
    uint32_t n_out, n_in;
};

uint32_t tensor_dim_size(const struct model_config *c, enum tensor_dim d)
{
    switch (d) {
    case DIM_ONE:
        return 1;
    case DIM_HIDDEN:
        return c->hidden;
    case DIM_FFN:
        return c->ffn;
    case DIM_VOCAB:
        return c->n_vocab;
    case DIM_Q:
        return c->n_heads * c->head_dim;
    case DIM_KV:
        return c->n_kv_heads * c->head_dim;
    case DIM_HEAD:
        return c->head_dim;
    case DIM_HALF_ROT:
        return c->n_rot / 2;
    }
    assert(!"an unknown tensor_dim");
    return 0;
}

static void place_tensor(const struct model_config *c, const struct tensor_spec *spec, uint32_t layer,
                         struct tensor_place *out)
{
    out->spec = spec;
    out->layer = layer;
    if (spec->outer) {
        snprintf(out->name, sizeof(out->name), "%s", spec->suffix);
    } else {
        snprintf(out->name, sizeof(out->name), "blk.%u.%s", layer, spec->suffix);
    }
    out->out = spec->n_out;
    out->in = spec->n_in;
    out->n_out = tensor_dim_size(c, spec->n_out);
    out->n_in = tensor_dim_size(c, spec->n_in);
}

/* t: the tensor of the place, or NULL. A directory's has a name of its own. */
static void label_tensor(struct tensor_place *p, const struct model_tensor *t)
{
    const char *name = t && t->source ? t->source : p->name;

    if (p->spec->outer)
        snprintf(p->label, sizeof(p->label), "%s (%s)", p->spec->field, name);
    else
        snprintf(p->label, sizeof(p->label), "layer %u %s (%s)", p->layer, p->spec->field, name);
}

/* "[4096,512]", GGUF order, trailing dimensions of 1 left out beyond n_dims. */
static const char *shape_text(char *buf, size_t cap, const struct model_tensor *t)
{
    size_t n = 0;

    for (uint32_t d = 0; d < t->n_dims && n < cap; d++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%llu", d ? "," : "[", (unsigned long long)t->dims[d]);
    if (n < cap) snprintf(buf + n, cap - n, "]");
    return buf;
}

static rd_status check_tensor(const struct tensor_place *p, const struct model_tensor *t, struct rd_error *err)
{
    bool is_vector = p->spec->role == WEIGHT_VECTOR;
    uint64_t row_bytes;
    char found[96];

    if (t->dims[0] != p->n_in || t->dims[1] != p->n_out || t->dims[2] != 1 || t->dims[3] != 1) {
        shape_text(found, sizeof(found), t);
        if (is_vector) return error_set(err, RD_E_FORMAT, "%s: shape %s, expected [%u]", p->label, found, p->n_in);
        return error_set(err, RD_E_FORMAT, "%s: shape %s, expected [%u,%u]", p->label, found, p->n_in, p->n_out);
    }
    if (is_vector && dtype_block_weights(t->dtype) != 1)
        return error_set(err, RD_E_FORMAT, "%s: type %s, expected F32, F16 or BF16", p->label, dtype_name(t->dtype));
    if (!dtype_row_bytes(t->dtype, p->n_in, &row_bytes) || t->n_bytes != row_bytes * p->n_out)
        return error_set(err, RD_E_FORMAT, "%s: type %s, rows of %u weights are not whole blocks of %u", p->label,
                         dtype_name(t->dtype), p->n_in, dtype_block_weights(t->dtype));
    return RD_OK;
}

/* Calls fn for every tensor of the architecture's table, layer by layer, until it fails. */
typedef rd_status (*tensor_fn)(void *arg, const struct tensor_place *p, const struct model_tensor *t,
                               struct rd_error *err);

static rd_status for_each_tensor(const struct model_arch *arch, const struct model_config *c,
                                 const struct model_file *g, tensor_fn fn, void *arg, struct rd_error *err)
{
    for (uint32_t step = 0; step <= c->n_layers; step++) /* step 0: outer ones; step n: layer n - 1 */
        for (uint32_t i = 0; i < arch->n_weights; i++) {
            const struct model_tensor *t;
            struct tensor_place p;
            rd_status st;

            if (arch->weights[i].outer != (step == 0)) continue;
            place_tensor(c, &arch->weights[i], step ? step - 1 : 0, &p);
            t = model_file_find_tensor(g, p.name);
            label_tensor(&p, t);
            st = fn(arg, &p, t, err);
            if (st != RD_OK) return st;
        }
    return RD_OK;
}

struct check_totals {
    uint64_t n_found, n_bytes;
};

static rd_status check_one(void *arg, const struct tensor_place *p, const struct model_tensor *t, struct rd_error *err)
{
    struct check_totals *totals = arg;
    rd_status st;

    if (!t && p->spec->optional) return RD_OK;
    if (!t) return error_set(err, RD_E_FORMAT, "%s: tensor is missing", p->label);
    st = check_tensor(p, t, err);
    totals->n_found++;
    totals->n_bytes += t->n_bytes;
    return st;
}

/* true: the table names this tensor of the file. */
static bool table_has(const struct model_arch *arch, const struct model_config *c, struct model_str name)
{
    const char *dot = name.n > 4 && !memcmp(name.s, "blk.", 4) ? memchr(name.s + 4, '.', name.n - 4) : NULL;
    const char *suffix = dot ? dot + 1 : name.s;
    size_t n = name.n - (size_t)(suffix - name.s);
    uint64_t layer;

    if (dot && name.s[4] == '0' && dot - name.s > 5) return false; /* blk.03 is not blk.3 */
    if (dot && (!parse_u64(name.s + 4, (size_t)(dot - name.s - 4), &layer) || layer >= c->n_layers)) return false;
    for (uint32_t i = 0; i < arch->n_weights; i++)
        if (arch->weights[i].outer == !dot && strlen(arch->weights[i].suffix) == n &&
            !memcmp(arch->weights[i].suffix, suffix, n))
            return true;
    return false;
}

static rd_status check_tensors(const struct model_arch *arch, const struct model_config *c, const struct model_file *g,
                               uint64_t *n_bytes, struct rd_error *err)
{
    struct check_totals totals = {0};
    rd_status st = for_each_tensor(arch, c, g, check_one, &totals, err);
    char quoted[96];

    if (st != RD_OK) return st;
    *n_bytes = totals.n_bytes;
    if (totals.n_found == model_file_n_tensors(g)) return RD_OK;
    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
        struct model_str name = model_file_tensor(g, i)->name;

        if (!table_has(arch, c, name))
            return error_set(err, RD_E_UNSUPPORTED, "tensor %s: not a part of %s with %u layers",
                             error_quote(quoted, sizeof(quoted), name.s, name.n), c->arch, c->n_layers);
    }
    return RD_OK;
}

/* Ops that a forward pass of this config needs and the backend lacks. */
static rd_status check_ops(const struct backend_ops *ops, const struct model_config *c, struct rd_error *err)
{
    const struct {
        const char *name;
        bool there;
    } needed[] = {
        {"weights.load", ops->weights.load != NULL}, {"weights.unload", ops->weights.unload != NULL},
        {"memory.alloc", ops->memory.alloc != NULL}, {"memory.free", ops->memory.free != NULL},
        {"memory.read", ops->memory.read != NULL},   {"memory.write", ops->memory.write != NULL},
        {"op.embed", ops->op.embed != NULL},         {"op.residual_norm", ops->op.residual_norm != NULL},
        {"op.linear", ops->op.linear != NULL},       {"op.qkv_rope_write", ops->op.qkv_rope_write != NULL},
        {"op.attention", ops->op.attention != NULL}, {"op.glu", ops->op.glu != NULL},
        {"op.gather", ops->op.gather != NULL},       {"op.softcap", ops->op.softcap != NULL || c->final_softcap <= 0},
        {"memory.sync", ops->memory.sync != NULL},
    };

    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (!needed[i].there)
            return error_set(err, RD_E_UNSUPPORTED, "architecture %s needs %s, which backend %s does not have", c->arch,
                             needed[i].name, ops->name);
    return RD_OK;
}

struct load_state {
    struct model *m;
    const struct model_file *g;
    const struct model_progress *progress;
    uint64_t done_bytes, total_bytes;
};

/* As what the backend gets it: always the same for one tensor. */
static enum dtype loaded_as(const struct model *m, const struct model_tensor *t)
{
    return t->n_hub_bytes > 0 && m->ops->weights.takes && m->ops->weights.takes(m->be, t->hub_dtype) ? t->hub_dtype
                                                                                                     : t->dtype;
}

struct cut model_rows_cut(const struct model *m, enum tensor_dim out)
{
    const struct model_share *s = &m->share;
    const uint32_t d = m->config.head_dim;

    switch (out) {
    case DIM_Q:
        return (struct cut){s->heads.first * d, s->heads.n * d};
    case DIM_KV:
        return (struct cut){s->kv_heads.first * d, s->kv_heads.n * d};
    case DIM_FFN:
        return s->ffn;
    case DIM_HIDDEN:
        return s->hidden;
    case DIM_VOCAB:
        return s->vocab;
    case DIM_ONE:
    case DIM_HEAD:
    case DIM_HALF_ROT:
        break;
    }
    return (struct cut){0, tensor_dim_size(&m->config, out)};
}

/* Likewise of any weight, n rows or numbers: what is read whole, norms and the embedding, every rank has whole. */
static struct cut cut_of(const struct model *m, enum weight_role role, enum tensor_dim out, uint32_t n)
{
    const bool is_whole = role == WEIGHT_EMBED || (out == DIM_HIDDEN && role != WEIGHT_MATRIX);

    return is_whole || m->share.n_ranks == 1 ? (struct cut){0, n} : model_rows_cut(m, out);
}

/* The part of what the backend is to load. Rows of a matrix are bytes that follow each other, in all types. */
static void cut_host(struct host_tensor *host, enum weight_role role, struct cut cut, struct weight_groups *groups)
{
    uint64_t row_bytes = 0;

    if (role == WEIGHT_VECTOR) {
        host->data = (const uint8_t *)host->data + (uint64_t)cut.first * dtype_block_bytes(host->dtype);
        host->n_in = cut.n;
        return;
    }
    host->n_whole = host->n_out;
    host->n_out = cut.n;
    if (host->groups) {
        *groups = weight_groups_rows(host->groups, cut.first, cut.n);
        host->groups = groups;
    } else if (dtype_row_bytes(host->dtype, host->n_in, &row_bytes)) {
        host->data = (const uint8_t *)host->data + cut.first * row_bytes;
    }
}

static rd_status load_weight(struct load_state *s, const struct tensor_place *p, const struct model_tensor *t,
                             enum weight_role role, struct weight *out, struct rd_error *err)
{
    struct model *m = s->m;
    struct host_tensor host = {
        .name = p->label, .dtype = loaded_as(m, t), .n_out = p->n_out, .n_in = p->n_in, .data = t->data};
    const struct cut cut = role == WEIGHT_VECTOR ? cut_of(m, role, p->in, p->n_in) : cut_of(m, role, p->out, p->n_out);
    struct weight_groups groups;
    struct tensor_bytes bytes = {NULL, NULL};
    uint64_t n_packed = 0;
    rd_status st = RD_OK;

    if (cut.n == 0) return RD_OK;
    if (role != WEIGHT_VECTOR && t->groups && m->ops->weights.takes_groups &&
        m->ops->weights.takes_groups(m->be, t->groups))
        host.groups = t->groups;
    if (role == WEIGHT_MATRIX) n_packed = packed_weights_take(m->packed, &host, out);
    if (role != WEIGHT_EMBED && m->outer.embed.data && t == model_file_find_tensor(s->g, "token_embd.weight"))
        bytes.data = m->embed.data; /* the tied head: what was made for the embedding */
    else if (n_packed == 0 && !host.groups)
        st = model_tensor_open_as(t, host.dtype, &bytes, err);
    host.data = bytes.data;
    host.stays = role == WEIGHT_EMBED || !bytes.owned;
    if (st == RD_OK && m->share.n_ranks > 1) cut_host(&host, role, cut, &groups);
    if (n_packed == 0 && st == RD_OK) st = m->ops->weights.load(m->be, &host, role, out, err);
    if (role == WEIGHT_EMBED && st == RD_OK) { /* the weight refers to them */
        m->embed = bytes;
        m->weight_bytes += !bytes.owned ? 0 : host.dtype == t->dtype ? t->n_bytes : t->n_hub_bytes;
    } else {
        model_tensor_close(&bytes);
    }
    if (st != RD_OK) return st;
    m->weight_bytes += out->bytes;
    m->packed_bytes += n_packed;
    if (role == WEIGHT_MATRIX) packed_weights_note(m->packed, &host, out);
    return RD_OK;
}

static rd_status load_one(void *arg, const struct tensor_place *p, const struct model_tensor *t, struct rd_error *err)
{
    struct load_state *s = arg;
    char *base = p->spec->outer ? (char *)&s->m->outer : (char *)&s->m->layers[p->layer];
    rd_status st;

    if (!t) return RD_OK;
    st = load_weight(s, p, t, p->spec->role, (struct weight *)(base + p->spec->offset), err);
    s->done_bytes += t->n_bytes;
    if (st == RD_OK && s->progress && s->progress->fn)
        s->progress->fn(s->progress->arg, (double)s->done_bytes / (double)s->total_bytes);
    if (st == RD_OK && s->progress && s->progress->cancelled && s->progress->cancelled(s->progress->arg))
        return error_set(err, RD_E_CANCELLED, "loading was cancelled");
    return st;
}

/* No output.weight: the embedding's tensor once more, in the form that linear wants. */
static rd_status load_tied_head(struct load_state *s, struct rd_error *err)
{
    const struct model_config *c = &s->m->config;
    struct tensor_place p = {.out = DIM_VOCAB,
                             .in = DIM_HIDDEN,
                             .n_out = c->n_vocab,
                             .n_in = c->hidden,
                             .label = "output (token_embd.weight, tied)"};

    if (!c->tied_head) return RD_OK;
    return load_weight(s, &p, model_file_find_tensor(s->g, "token_embd.weight"), WEIGHT_MATRIX, &s->m->outer.output,
                       err);
}

static rd_status load_frequencies(struct model *m, const float *values, const char *label, struct weight *out,
                                  struct rd_error *err)
{
    struct host_tensor host = {label, DTYPE_F32, 1, m->config.n_rot / 2, values, true, NULL, 0};
    rd_status st = m->ops->weights.load(m->be, &host, WEIGHT_VECTOR, out, err);

    if (st == RD_OK) m->weight_bytes += out->bytes;
    return st;
}

static rd_status init_rope(struct model *m, const struct model_file *g, struct rd_error *err)
{
    const struct model_config *c = &m->config;
    const struct model_tensor *t = m->outer.rope_freqs.data ? model_file_find_tensor(g, "rope_freqs.weight") : NULL;
    uint32_t n = c->n_rot / 2;
    struct tensor_bytes bytes = {NULL, NULL};
    float *factors = NULL, *local;
    rd_status st = t ? model_tensor_open(t, &bytes, err) : RD_OK;

    if (st != RD_OK) return st;

    m->inv_freq_host = mem_zalloc(2 * (size_t)n, sizeof(float));
    if (t) factors = mem_alloc(n, sizeof(float));
    if (c->rope_sections[0] > 0) m->rope_axis_of = mem_zalloc(n, sizeof(*m->rope_axis_of));
    if (c->rope_sections[0] > 0 && m->rope_axis_of) rope_axes_of_pairs(c, m->rope_axis_of);
    if (!m->inv_freq_host || (t && !factors) || (c->rope_sections[0] > 0 && !m->rope_axis_of))
        st = error_set(err, RD_E_NOMEM, "RoPE frequencies: out of memory");
    if (st == RD_OK && t) dtype_to_float(t->dtype, bytes.data, factors, n);
    model_tensor_close(&bytes);
    for (uint32_t i = 0; st == RD_OK && t && i < n; i++)
        if (!(factors[i] > 0))
            st = error_set(err, RD_E_FORMAT, "rope_freqs.weight: factor %u is %g, expected > 0", i, (double)factors[i]);
    if (st == RD_OK) {
        local = m->inv_freq_host + n;
        rope_global_freqs(c, factors, m->inv_freq_host, &m->rope_mscale);
        rope_local_freqs(c, local);
        st = load_frequencies(m, m->inv_freq_host, "RoPE frequencies", &m->inv_freq, err);
        if (st == RD_OK) st = load_frequencies(m, local, "RoPE frequencies of the window", &m->inv_freq_local, err);
    }
    mem_free(factors);
    return st;
}

/* Everything that is known before memory is taken in proportion to the file's numbers. */
static rd_status check_model(struct model *m, struct load_state *load, struct rd_error *err)
{
    struct model_str arch_name;
    rd_status st;

    if ((st = model_read_config(load->g, &m->config, err)) != RD_OK) return st;
    if ((st = model_file_str(load->g, "general.architecture", &arch_name, err)) != RD_OK) return st;
    m->arch = model_arch_find(arch_name.s, arch_name.n);
    m->share = model_share_of(&m->config, m->share.rank, m->share.n_ranks);
    if ((st = check_ops(m->ops, &m->config, err)) != RD_OK) return st;
    if (m->share.n_ranks > 1 && !m->ops->op.join)
        return error_set(err, RD_E_UNSUPPORTED, "backend %s computes with one rank alone", m->ops->name);
    return check_tensors(m->arch, &m->config, load->g, &load->total_bytes, err);
}

rd_status model_check_tensors(const struct model_file *g, struct rd_error *err)
{
    struct model_config c;
    uint64_t n_bytes;
    rd_status st = model_read_config(g, &c, err);

    return st == RD_OK ? check_tensors(model_arch_find(c.arch, strlen(c.arch)), &c, g, &n_bytes, err) : st;
}

static rd_status load_all(struct model *m, struct load_state *load, struct rd_error *err)
{
    rd_status st;

    m->layers = mem_zalloc(m->config.n_layers, sizeof(*m->layers));
    if (!m->layers) return error_set(err, RD_E_NOMEM, "model: out of memory");
    if ((st = for_each_tensor(m->arch, &m->config, load->g, load_one, load, err)) != RD_OK) return st;
    if ((st = load_tied_head(load, err)) != RD_OK) return st;
    if ((st = init_rope(m, load->g, err)) != RD_OK) return st;
    st = workspace_init(m);
    return st == RD_OK ? st : error_set(err, st, "no memory for the activations of %u rows", m->max_rows);
}

/* Nobody reads the file's bytes afterwards, whatever became of it. */
static rd_status load_and_wait(struct model *m, struct load_state *load, struct rd_error *err)
{
    rd_status st = load_all(m, load, err), done;

    done = backend_weights_done(m->ops, m->be, st == RD_OK ? err : NULL);
    return st == RD_OK ? done : st;
}

rd_status model_load_packed(const struct model_source *s, struct model **out, struct rd_error *err)
{
    struct model *m = mem_zalloc(1, sizeof(*m));
    struct load_state load = {.m = m, .g = s->g, .progress = s->progress};
    rd_status st;

    assert(s->max_rows >= 1 && s->max_logits >= 1);
    if (!m) return error_set(err, RD_E_NOMEM, "model: out of memory");
    m->ops = s->ops;
    m->be = s->be;
    m->g = s->g;
    m->share.rank = s->rank;
    m->share.n_ranks = u32_max(1, s->n_ranks);
    m->group = s->group;
    m->max_rows = s->max_rows;
    m->max_logits = u32_min(s->max_rows, s->max_logits);
    if (s->ops->async) { /* padding rows have room, too */
        m->max_rows = u32_ceil_div(m->max_rows, MODEL_PAD_ROWS) * MODEL_PAD_ROWS;
        m->max_logits = u32_ceil_div(m->max_logits, MODEL_PAD_ROWS) * MODEL_PAD_ROWS;
    }
    if ((st = check_model(m, &load, err)) != RD_OK) goto fail;
    if (s->packed) st = packed_weights_create(s->packed, s->g, s->ops, s->be, &m->packed, err);
    if (st == RD_OK) st = load_and_wait(m, &load, err);
    if (model_file_broken(s->g) || !model_file_unchanged(s->g))
        st = error_set(err, RD_E_IO, "the model file changed while it was being loaded");
    if (st != RD_OK) goto fail;
    packed_weights_save(m->packed);
    *out = m;
    return RD_OK;

fail:
    model_destroy(m);
    return st;
}

rd_status model_load(const struct model_file *g, const struct backend_ops *ops, struct backend *be, uint32_t max_rows,
                     uint32_t max_logits, const struct model_progress *progress, struct model **out,
                     struct rd_error *err)
{
    const struct model_source s = {g, ops, be, max_rows, max_logits, progress, NULL, 0, 1, NULL};

    return model_load_packed(&s, out, err);
}

const struct weight *model_head_weight(const struct model *m)
{
    return &m->outer.output;
}

static void unload(struct model *m, struct weight *w)
{
    if (w->data) m->ops->weights.unload(m->be, w);
}

void model_destroy(struct model *m)
{
    if (!m) return;
    packed_weights_destroy(m->packed); /* first: it may still be reading the weights */
    for (uint32_t i = 0; m->arch && i < m->arch->n_weights; i++) {
        const struct tensor_spec *spec = &m->arch->weights[i];

        if (spec->outer) {
            unload(m, (struct weight *)((char *)&m->outer + spec->offset));
            continue;
        }
        for (uint32_t l = 0; m->layers && l < m->config.n_layers; l++)
            unload(m, (struct weight *)((char *)&m->layers[l] + spec->offset));
    }
    model_tensor_close(&m->embed);
    unload(m, &m->inv_freq);
    unload(m, &m->inv_freq_local);
    workspace_deinit(m);
    mem_free(m->inv_freq_host);
    mem_free(m->rope_axis_of);
    mem_free(m->layers);
    mem_free(m);
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

uint64_t model_weight_bytes(const struct model *m)
{
    return m->weight_bytes;
}

uint64_t model_packed_bytes(const struct model *m)
{
    return m->packed_bytes;
}

uint64_t model_workspace_bytes(const struct model *m)
{
    return m->ws.n_bytes;
}

bool model_is_broken(const struct model *m)
{
    return model_file_broken(m->g) || packed_weights_broken(m->packed);
}

/* What this model, on this backend, does not compute. */
static bool is_unknown(const struct model *m, const struct model_batch *b)
{
    const struct device_traits *t = &m->ops->traits;

    if (b->rope_axes && (!m->rope_axis_of || !t->turns_axes)) return true;
    if (b->embeds && b->n_embed != m->config.hidden * (1 + m->config.n_deep)) return true;
    for (uint32_t i = 0; i < b->n_runs; i++)
        if (b->runs[i].both_from < b->runs[i].both_to && !t->sees_both_ways) return true;
    return false;
}

rd_status model_forward(struct model *m, struct kv_storage *kv, const struct model_batch *b, float *logits)
{
    rd_status st = is_unknown(m, b) ? RD_E_UNSUPPORTED : decode_step_forward(m, kv, b, logits);

    return model_is_broken(m) ? RD_E_DEVICE : st;
}

bool model_can_begin(const struct model *m)
{
    return !span_is_none(m->ws.choices) && m->ws.padded && m->ops->async && m->ops->async->can_mark(m->be);
}

bool model_begins_adapted(const struct model *m)
{
    return model_can_begin(m) && m->ops->op.low_rank_rows;
}

rd_status model_begin(struct model *m, struct kv_storage *kv, const struct model_batch *b, const uint32_t *from)
{
    return b->embeds || b->rope_axes ? RD_E_UNSUPPORTED : decode_step_begin(m, kv, b, from);
}

rd_status model_end(struct model *m)
{
    rd_status st = m->ops->async->wait_mark(m->be);

    return model_is_broken(m) ? RD_E_DEVICE : st;
}

rd_status model_warm_up(struct model *m, struct kv_storage *kv, struct kv_storage *windows)
{
    if (!model_can_begin(m)) return RD_OK;
    return model_is_broken(m) ? RD_E_DEVICE : decode_step_warm_up(m, kv, windows);
}

bool model_gives_choices(const struct model *m)
{
    return !span_is_none(m->ws.choices);
}

bool model_gives_best(const struct model *m)
{
    return m->ops->traits.gives_best && m->ops->traits.shares_memory && m->config.final_softcap <= 0 &&
           m->share.n_ranks == 1;
}

rd_status model_read_logits(struct model *m, uint32_t row, float *logits)
{
    assert(!span_is_none(m->ws.logits) && row < m->max_logits);
    return pass_read_logits(m, row, logits);
}

rd_status model_head(struct model *m, uint32_t n, const float *const *states, float *logits)
{
    rd_status st = pass_head(m, n, states, logits);

    return model_is_broken(m) ? RD_E_DEVICE : st;
}

rd_status model_head_of_pass(struct model *m, uint32_t first, uint32_t n, float *host, struct span *out)
{
    rd_status st = pass_head_of_pass(m, first, n, host, out);

    return model_is_broken(m) ? RD_E_DEVICE : st;
}
