/* vision/encoder_open.c - opens an encoder: which family a file is of, its sizes, its weights by name. */
#include "vision/encoder.h"
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/thread.h"
#include "vision/encoder_inside.h"

#define COPIERS 8u /* threads, with the engine's: memory is not much faster for more */

static const struct vision_family *const families[] = {&vision_gemma3, &vision_qwen2, &vision_qwen25, &vision_qwen3};

/* ---- weights ---- */

static rd_status find(struct vision_encoder *e, const char *name, uint64_t n, const struct model_tensor **out,
                      struct rd_error *err)
{
    const struct model_tensor *t = model_file_find_tensor(e->g, name);
    uint64_t found = 1;

    if (!t) return error_set(err, RD_E_FORMAT, "tensor %s is missing", name);
    for (uint32_t d = 0; d < 4; d++)
        if (!checked_mul(found, t->dims[d], &found)) found = 0;
    if (found != n)
        return error_set(err, RD_E_FORMAT, "%s: %llu weights, expected %llu", t->source ? t->source : name,
                         (unsigned long long)found, (unsigned long long)n);
    *out = t;
    return RD_OK;
}

/* A convolution over patches that do not overlap is a matrix, whose columns are several dims of the file. */
static bool has_rows(const struct model_tensor *t, uint64_t n_in)
{
    if (dtype_block_weights(t->dtype) > 1) return t->dims[0] == n_in;
    return t->dims[0] == n_in || t->dims[0] * t->dims[1] == n_in || t->dims[0] * t->dims[1] * t->dims[2] == n_in;
}

static void note_weight(struct vision_encoder *e, rd_status st, const struct weight *w)
{
    if (st != RD_OK) return;
    e->n_bytes += w->bytes;
    e->is_local |= w->role == WEIGHT_DENSE && w->format && e->ops->traits.same_everywhere;
}

rd_status vision_matrix(struct vision_encoder *e, const char *name, uint32_t n_out, uint32_t n_in, struct weight *out,
                        struct rd_error *err)
{
    const struct model_tensor *t = NULL;
    struct tensor_bytes bytes;
    uint64_t row_bytes;
    rd_status st = find(e, name, (uint64_t)n_out * n_in, &t, err);

    if (st != RD_OK) return st;
    if (!has_rows(t, n_in) || !dtype_row_bytes(t->dtype, n_in, &row_bytes) || t->n_bytes != row_bytes * n_out)
        return error_set(err, RD_E_FORMAT, "%s: rows of %llu weights of type %s, expected %u",
                         t->source ? t->source : name, (unsigned long long)t->dims[0], dtype_name(t->dtype), n_in);
    if ((st = model_tensor_open(t, &bytes, err)) != RD_OK) return st;
    st = e->ops->weights.load(e->be, &(struct host_tensor){name, t->dtype, n_out, n_in, bytes.data, false, NULL, 0},
                              WEIGHT_DENSE, out, err);
    model_tensor_close(&bytes);
    note_weight(e, st, out);
    return st;
}

rd_status vision_floats(struct vision_encoder *e, const char *name, uint64_t n, float **out, struct rd_error *err)
{
    const struct model_tensor *t = NULL;
    struct tensor_bytes bytes;
    rd_status st = find(e, name, n, &t, err);

    if (st != RD_OK) return st;
    if (dtype_block_weights(t->dtype) != 1)
        return error_set(err, RD_E_FORMAT, "%s: type %s, expected F32, F16 or BF16", name, dtype_name(t->dtype));
    *out = mem_alloc(n, sizeof(**out));
    if (!*out) return error_set(err, RD_E_NOMEM, "%s: out of memory", name);
    if ((st = model_tensor_open(t, &bytes, err)) != RD_OK) return st; /* *out is freed with its owner */
    dtype_to_float(t->dtype, bytes.data, *out, n);
    model_tensor_close(&bytes);
    return RD_OK;
}

static rd_status load_floats(struct vision_encoder *e, const char *name, const float *values, uint32_t n_out,
                             uint32_t n_in, enum weight_role role, struct weight *out, struct rd_error *err)
{
    rd_status st = e->ops->weights.load(
        e->be, &(struct host_tensor){name, DTYPE_F32, n_out, n_in, values, false, NULL, 0}, role, out, err);

    note_weight(e, st, out);
    return st;
}

rd_status vision_make_matrix(struct vision_encoder *e, const char *name, const float *values, uint32_t n_out,
                             uint32_t n_in, struct weight *out, struct rd_error *err)
{
    return load_floats(e, name, values, n_out, n_in, WEIGHT_DENSE, out, err);
}

rd_status vision_vector(struct vision_encoder *e, const char *name, uint32_t n, bool optional, struct weight *out,
                        struct rd_error *err)
{
    float *values = NULL;
    rd_status st;

    if (optional && !model_file_find_tensor(e->g, name)) return RD_OK;
    st = vision_floats(e, name, n, &values, err);
    if (st == RD_OK) st = load_floats(e, name, values, 1, n, WEIGHT_VECTOR, out, err);
    mem_free(values);
    return st;
}

rd_status vision_u32(const struct vision_encoder *e, const char *key, bool needed, uint32_t min, uint32_t max,
                     uint32_t *out, struct rd_error *err)
{
    uint64_t v;
    rd_status st = model_file_u64(e->g, key, min, max, &v, err);

    if (st == RD_OK) *out = (uint32_t)v;
    if (st != RD_E_NOT_FOUND) return st;
    return needed ? error_set(err, RD_E_FORMAT, "metadata \"%s\" is missing", key) : RD_OK;
}

static rd_status layer_matrix(struct vision_encoder *e, uint32_t l, const char *suffix, uint32_t n_out, uint32_t n_in,
                              struct weight *w, struct weight *b, struct rd_error *err)
{
    char name[96];
    rd_status st;

    snprintf(name, sizeof(name), "v.blk.%u.%s.weight", l, suffix);
    if ((st = vision_matrix(e, name, n_out, n_in, w, err)) != RD_OK) return st;
    snprintf(name, sizeof(name), "v.blk.%u.%s.bias", l, suffix);
    return vision_vector(e, name, n_out, true, b, err);
}

static rd_status layer_norm(struct vision_encoder *e, uint32_t l, const char *suffix, struct weight *w,
                            struct weight *b, struct rd_error *err)
{
    char name[96];
    rd_status st;

    snprintf(name, sizeof(name), "v.blk.%u.%s.weight", l, suffix);
    if ((st = vision_vector(e, name, e->hidden, false, w, err)) != RD_OK) return st;
    snprintf(name, sizeof(name), "v.blk.%u.%s.bias", l, suffix);
    return e->family->rms_norm ? RD_OK : vision_vector(e, name, e->hidden, false, b, err);
}

static rd_status load_layer(struct vision_encoder *e, uint32_t l, struct rd_error *err)
{
    struct vit_layer *w = &e->layers[l];
    uint32_t h = e->hidden, f = e->ffn;
    char name[96];
    rd_status st;

    snprintf(name, sizeof(name), "v.blk.%u.attn_qkv.weight", l);
    if ((st = layer_norm(e, l, "ln1", &w->ln1, &w->ln1_b, err)) != RD_OK) return st;
    if ((st = layer_norm(e, l, "ln2", &w->ln2, &w->ln2_b, err)) != RD_OK) return st;
    if (model_file_find_tensor(e->g, name)) {
        if ((st = layer_matrix(e, l, "attn_qkv", 3 * h, h, &w->qkv, &w->qkv_b, err)) != RD_OK) return st;
    } else {
        if ((st = layer_matrix(e, l, "attn_q", h, h, &w->q, &w->q_b, err)) != RD_OK) return st;
        if ((st = layer_matrix(e, l, "attn_k", h, h, &w->k, &w->k_b, err)) != RD_OK) return st;
        if ((st = layer_matrix(e, l, "attn_v", h, h, &w->v, &w->v_b, err)) != RD_OK) return st;
    }
    if ((st = layer_matrix(e, l, "attn_out", h, h, &w->out, &w->out_b, err)) != RD_OK) return st;
    if (e->family->gated && (st = layer_matrix(e, l, "ffn_gate", f, h, &w->gate, &w->gate_b, err)) != RD_OK) return st;
    if ((st = layer_matrix(e, l, "ffn_up", f, h, &w->up, &w->up_b, err)) != RD_OK) return st;
    return layer_matrix(e, l, "ffn_down", h, f, &w->down, &w->down_b, err);
}

/* The width of the MLP, which files of Qwen2-VL do not say: of the weights. */
static rd_status find_ffn(struct vision_encoder *e, struct rd_error *err)
{
    const struct model_tensor *t = model_file_find_tensor(e->g, "v.blk.0.ffn_up.weight");

    if (!t || t->dims[0] != e->hidden || t->dims[1] < 1 || t->dims[1] > LIMIT_FFN)
        return error_set(err, RD_E_FORMAT, "tensor v.blk.0.ffn_up.weight is missing, or not of %u columns", e->hidden);
    e->ffn = (uint32_t)t->dims[1];
    return RD_OK;
}

static rd_status find_family(const struct model_file *g, const struct vision_family **out, struct rd_error *err)
{
    struct model_str s;
    char quoted[64];
    rd_status st = model_file_str(g, "clip.projector_type", &s, err);

    if (st == RD_E_NOT_FOUND) st = model_file_str(g, "clip.vision.projector_type", &s, err);
    if (st == RD_E_NOT_FOUND) return error_set(err, RD_E_FORMAT, "metadata \"clip.projector_type\" is missing");
    if (st != RD_OK) return st;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strlen(families[i]->projector) == s.n && !memcmp(families[i]->projector, s.s, s.n)) {
            *out = families[i];
            return RD_OK;
        }
    return error_set(err, RD_E_UNSUPPORTED,
                     "metadata \"clip.projector_type\": \"%s\" is not supported; known: gemma3, qwen2vl_merger, "
                     "qwen2.5vl_merger, qwen3vl_merger",
                     error_quote(quoted, sizeof(quoted), s.s, s.n));
}

rd_status vision_file_fits(const struct model_file *g, const char *text_arch, uint32_t text_hidden,
                           struct rd_error *err)
{
    const struct vision_family *family = NULL;
    uint64_t width = text_hidden;
    rd_status st = find_family(g, &family, err);

    if (st == RD_OK) st = model_file_u64(g, "clip.vision.projection_dim", 1, LIMIT_HIDDEN, &width, err);
    if (st != RD_OK && st != RD_E_NOT_FOUND) return st;
    if (width == text_hidden && strcmp(family->text_arch, text_arch) == 0) return RD_OK;
    return error_set(err, RD_E_FORMAT,
                     "%s is for text models of architecture %s and width %llu; this one is %s, width %u: they do not "
                     "belong together",
                     family->projector, family->text_arch, (unsigned long long)width, text_arch, text_hidden);
}

static rd_status read_sizes(struct vision_encoder *e, struct rd_error *err)
{
    double eps = 1e-6;
    uint32_t text;
    rd_status st;

    if ((st = vision_u32(e, "clip.vision.embedding_length", true, 4, LIMIT_HIDDEN, &e->hidden, err)) != RD_OK)
        return st;
    if ((st = vision_u32(e, "clip.vision.attention.head_count", true, 1, LIMIT_N_HEADS, &e->n_heads, err)) != RD_OK)
        return st;
    if ((st = vision_u32(e, "clip.vision.block_count", true, 1, VISION_LAYERS, &e->n_layers, err)) != RD_OK) return st;
    if ((st = vision_u32(e, "clip.vision.patch_size", true, 2, 64, &e->patch, err)) != RD_OK) return st;
    text = e->text_hidden;
    if ((st = vision_u32(e, "clip.vision.projection_dim", false, 1, LIMIT_HIDDEN, &text, err)) != RD_OK) return st;
    st = model_file_f64(e->g, "clip.vision.attention.layer_norm_epsilon", &eps, err);
    if (st != RD_OK && st != RD_E_NOT_FOUND) return st;
    e->eps = (float)eps;
    e->head_dim = e->hidden / e->n_heads;
    if (e->hidden % e->n_heads || e->head_dim % 4 || e->head_dim > LIMIT_HEAD_DIM)
        return error_set(err, RD_E_FORMAT,
                         "vision: %u heads of hidden %u, expected a head dim that is a multiple of 4, "
                         "up to %u",
                         e->n_heads, e->hidden, LIMIT_HEAD_DIM);
    if (!(eps > 0 && eps < 1)) return error_set(err, RD_E_FORMAT, "vision: layer norm epsilon %g", eps);
    if (text != e->text_hidden)
        return error_set(err, RD_E_FORMAT,
                         "the vision file projects to %u, the text model has hidden %u: they do not "
                         "belong together",
                         text, e->text_hidden);
    return find_ffn(e, err);
}

/* What the host and a device exchange at most: a block's patches, or its rows. */
static rd_status make_stage(struct vision_encoder *e, struct rd_error *err)
{
    const uint32_t patches = e->n_patch_values + e->head_dim; /* and their angles */

    e->stage_floats = (uint64_t)STAGE_ROWS * u32_max(u32_max(e->hidden, patches), e->text_hidden);
    e->stage = mem_map((size_t)(2 * e->stage_floats * sizeof(float)));
    if (!e->stage) return error_set(err, RD_E_NOMEM, "vision: out of memory");
    if (e->ops->memory.pin) e->ops->memory.pin(e->be, e->stage, 2 * e->stage_floats * sizeof(float), true);
    if (copiers_create(u32_min(COPIERS, thread_n_cores()) - 1, &e->copiers) != RD_OK)
        return error_set(err, RD_E_NOMEM, "vision: out of memory");
    return RD_OK;
}

rd_status vision_encoder_open(const struct model_file *g, const struct backend_ops *ops, struct backend *be,
                              uint32_t text_hidden, struct vision_encoder **out, struct rd_error *err)
{
    struct vision_encoder *e = mem_zalloc(1, sizeof(*e));
    rd_status st;

    if (!e) return error_set(err, RD_E_NOMEM, "vision: out of memory");
    e->g = g;
    e->ops = ops;
    e->be = be;
    e->text_hidden = text_hidden;
    if (!ops->op.attend || !ops->op.attend_pack || !ops->op.layer_norm || !ops->op.gelu || !ops->op.turn ||
        !ops->op.mean_rows) {
        st = error_set(err, RD_E_UNSUPPORTED, "backend %s has no ops of encoders", ops->name);
        goto fail;
    }
    if ((st = find_family(g, &e->family, err)) != RD_OK || (st = read_sizes(e, err)) != RD_OK) goto fail;
    e->layers = mem_zalloc(e->n_layers, sizeof(*e->layers));
    if (!e->layers) {
        st = error_set(err, RD_E_NOMEM, "vision: out of memory");
        goto fail;
    }
    for (uint32_t l = 0; l < e->n_layers; l++)
        if ((st = load_layer(e, l, err)) != RD_OK) goto fail;
    if ((st = e->family->open(e, err)) != RD_OK) goto fail;
    if ((st = vision_pointer_open(e, err)) != RD_OK) goto fail;
    if (ops->weights.done && (st = ops->weights.done(be, err)) != RD_OK) goto fail;
    if (!ops->traits.shares_memory && (st = make_stage(e, err)) != RD_OK) goto fail;
    e->traits.n_deep = e->n_deep;
    e->traits.n_floats = text_hidden * (1 + e->n_deep);
    if (model_file_broken(g)) {
        st = error_set(err, RD_E_IO, "the vision file changed while it was being loaded");
        goto fail;
    }
    *out = e;
    return RD_OK;

fail:
    vision_encoder_close(e);
    return st;
}

static void unload(struct vision_encoder *e, struct weight *w, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (w[i].data) e->ops->weights.unload(e->be, &w[i]);
}

static void unload_merger(struct vision_encoder *e, struct vit_merger *m)
{
    unload(e, &m->norm, 1);
    unload(e, &m->norm_b, 1);
    unload(e, &m->fc1, 1);
    unload(e, &m->fc1_b, 1);
    unload(e, &m->fc2, 1);
    unload(e, &m->fc2_b, 1);
}

void vision_encoder_close(struct vision_encoder *e)
{
    if (!e) return;
    for (uint32_t l = 0; e->layers && l < e->n_layers; l++) /* a layer is weights and nothing else */
        unload(e, (struct weight *)&e->layers[l], sizeof(e->layers[l]) / sizeof(struct weight));
    mem_free(e->layers);
    unload(e, &e->patch_w, 1);
    unload(e, &e->patch_b, 1);
    unload(e, &e->post_ln, 1);
    unload(e, &e->post_ln_b, 1);
    unload(e, &e->soft_norm, 1);
    unload(e, &e->project, 1);
    unload_merger(e, &e->main);
    unload(e, (struct weight *)&e->pointer, sizeof(e->pointer) / sizeof(struct weight)); /* as a layer */
    for (uint32_t i = 0; i < VISION_DEEP; i++) unload_merger(e, &e->deep[i]);
    copiers_destroy(e->copiers);
    if (e->spare) e->ops->memory.free(e->be, e->spare);
    if (e->stage && e->ops->memory.pin) e->ops->memory.pin(e->be, e->stage, 2 * e->stage_floats * sizeof(float), false);
    if (e->stage) mem_unmap(e->stage, (size_t)(2 * e->stage_floats * sizeof(float)));
    mem_free(e->positions);
    mem_free(e);
}

const struct vision_traits *vision_encoder_traits(const struct vision_encoder *e)
{
    return &e->traits;
}

bool vision_encoder_is_local(const struct vision_encoder *e)
{
    return e->is_local;
}

uint64_t vision_encoder_bytes(const struct vision_encoder *e)
{
    return e->n_bytes;
}
