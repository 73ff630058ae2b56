/* vision/encoder.c - opens an encoder, and walks an image through it block by block. */
#include "vision/encoder.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os_machine.h"
#include "base/thread.h"
#include "vision/encoder_inside.h"

#define DEVICE_LEAST 192u    /* rows: tiles of products and attention on devices are as large */
#define DEVICE_STEP  96u     /* times VISION_STEP_FLOPS on a device */
#define HOST_LEAST   48u     /* rows: fewer are not worth reading a layer's weights for */
#define STAGE_FLOPS  160000u /* on a device: a number that the host copies takes about as long as so many operations */
#define MANY_CORES   8u      /* these end together with more tiles than a block of rows has; their caches hold two */
#define PACK_FLOPS   32u     /* a number that is packed takes about as long as so many operations */

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
    e->stage_floats = (uint64_t)STAGE_ROWS * u32_max(u32_max(e->hidden, e->n_patch_values), e->text_hidden);
    e->stage = mem_map((size_t)(e->stage_floats * sizeof(float)));
    if (!e->stage) return error_set(err, RD_E_NOMEM, "vision: out of memory");
    if (e->ops->memory.pin) e->ops->memory.pin(e->be, e->stage, e->stage_floats * sizeof(float), true);
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
    if (e->stage && e->ops->memory.pin) e->ops->memory.pin(e->be, e->stage, e->stage_floats * sizeof(float), false);
    if (e->stage) mem_unmap(e->stage, (size_t)(e->stage_floats * sizeof(float)));
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

/* ---- a run ---- */

static uint32_t patches_of(const struct vision_image *v)
{
    uint64_t n = (uint64_t)v->t * v->h;

    return n <= VISION_PATCHES && n * v->w <= VISION_PATCHES ? (uint32_t)(n * v->w) : 0;
}

static uint32_t most_positions(const struct vision_image *v)
{
    return u32_max(v->h, v->w);
}

/* Floats of the run's parts, in this order: the backend's, then the host's; the sums of both in the last. */
struct sizes {
    uint64_t x, qkv, norm, delta, attn, up, gate, pack, cosines, sines, rows, angles, units, means, frames, windows,
        frame_blocks, window_blocks, device, host;
};

/* Rows of a block, in equal parts. */
static uint32_t rows_of_block(const struct vision_encoder *e, uint64_t n)
{
    const uint64_t parts = (n + DEVICE_ROWS - 1) / DEVICE_ROWS;

    if (e->ops->traits.shares_memory || n == 0) return thread_n_cores() < MANY_CORES ? BLOCK_ROWS : 2 * BLOCK_ROWS;
    return (uint32_t)(((n + parts - 1) / parts + 63) / 64 * 64);
}

/* Heads that are attended together, at most. */
static uint32_t most_heads(const struct vision_encoder *e)
{
    return e->ops->traits.shares_memory ? u32_min(ATTEND_HEADS, e->n_heads) : e->n_heads;
}

/* Blocks of keys of all groups: a frame's, or where there are windows the more of both. */
static uint64_t most_blocks(const struct vision_encoder *e, const struct vision_image *v)
{
    const uint64_t side = e->window, h = v->h, w = v->w;
    const uint64_t frames = (h * w + ATTEND_BLOCK - 1) / ATTEND_BLOCK;
    const uint64_t windows =
        side ? ((h + side - 1) / side) * ((w + side - 1) / side) * ((side * side + ATTEND_BLOCK - 1) / ATTEND_BLOCK)
             : 0;

    return v->t * u64_max(frames, windows);
}

static struct sizes sizes_of(const struct vision_encoder *e, const struct vision_image *v)
{
    const uint64_t n = patches_of(v), h = e->hidden, unit = (uint64_t)v->merge * v->merge;
    /* where whole lines are pooled a block is those */
    const uint64_t block = u64_max(rows_of_block(e, n), e->family->pools_lines ? (uint64_t)v->w * e->merge : 0);
    struct sizes s = {.x = n * h,
                      .qkv = n * 3 * h,
                      /* also: patches in another order; merged rows, h * unit floats of block / unit rows */
                      .norm = block * u64_max(h, e->n_patch_values),
                      .delta = block * u64_max(h, e->text_hidden),
                      .attn = n * h,
                      .up = block * u64_max(e->ffn, h),
                      .gate = e->family->gated ? block * e->ffn : 0,
                      .pack = attend_packed_floats(e->head_dim, most_heads(e), most_blocks(e, v)),
                      .cosines = e->family->turns ? n * e->head_dim / 2 : 0,
                      .sines = e->family->turns ? n * e->head_dim / 2 : 0,
                      .rows = (uint64_t)v->n_rows * e->traits.n_floats,
                      .angles = e->family->turns ? (uint64_t)most_positions(v) * e->head_dim / 2 : 0,
                      .units = n / u64_max(unit, 1),
                      .means = e->family->pools_lines ? n : 0,
                      .frames = v->t,
                      .windows = n,
                      .frame_blocks = (uint64_t)v->t + 1,
                      .window_blocks = n + 1};
    uint64_t *part = &s.x;

    for (; part < &s.device; part++) { /* each begins on a cache line */
        *part = (*part + 15) / 16 * 16;
        *(part < &s.rows ? &s.device : &s.host) += *part;
    }
    return s;
}

uint64_t vision_run_bytes(const struct vision_encoder *e, const struct vision_image *image)
{
    const struct sizes s = sizes_of(e, image);

    return (s.device + s.host) * sizeof(float);
}

/* Whether grid, rows and values are such as this encoder's processor makes. */
static bool fits(const struct vision_encoder *e, const struct vision_image *v)
{
    const uint64_t n = patches_of(v);

    if (n == 0 || v->merge != e->merge || v->h % v->merge || v->w % v->merge || !v->values) return false;
    if (v->n_rows != (uint64_t)v->t * (v->h / v->merge) * (v->w / v->merge)) return false;
    if (e->family->pools_lines && (v->t != 1 || v->h != e->side || v->w != e->side)) return false;
    return v->n_values == n * e->n_patch_values;
}

/* Cosines, then sines, of all lines and columns: [2][most_positions][head_dim / 4]. */
static void fill_table(struct vision_run *r)
{
    const uint32_t half = r->e->head_dim / 2, quarter = half / 2, n = most_positions(r->image);
    float *cosines = r->angles, *sines = r->angles + (size_t)n * quarter;
    float inv_freq[LIMIT_HEAD_DIM / 4 + 1];

    for (uint32_t i = 0; i < quarter; i++) inv_freq[i] = 1.0f / powf(10000.0f, (float)(2 * i) / (float)half);
    for (uint32_t at = 0; at < n; at++)
        for (uint32_t i = 0; i < quarter; i++, cosines++, sines++) os_sincosf((float)at * inv_freq[i], sines, cosines);
}

/* Rows row0 .. of a table of angles. */
struct angles {
    const struct vision_run *r;
    uint32_t row0;
    const float *table;
    float *to;
};

static void copy_angles(void *arg, uint32_t begin, uint32_t end)
{
    const struct angles *a = arg;
    const struct vision_run *r = a->r;
    const struct vision_image *v = r->image;
    const uint32_t half = r->e->head_dim / 2, quarter = half / 2, m = v->merge, unit = m * m;
    float *out = a->to + (size_t)begin * half;

    for (uint32_t row = a->row0 + begin; row < a->row0 + end; row++, out += half) {
        uint32_t at = r->unit_of ? r->unit_of[row / unit] : row / unit, in = row % unit;
        uint32_t in_frame = at % (v->h / m * (v->w / m));
        uint32_t line = in_frame / (v->w / m) * m + in / m, column = in_frame % (v->w / m) * m + in % m;

        memcpy(out, a->table + (size_t)line * quarter, quarter * sizeof(*out));
        memcpy(out + quarter, a->table + (size_t)column * quarter, quarter * sizeof(*out));
    }
}

/* Of n rows. Pairs of a head turn by the patch's line, then by its column. */
static rd_status fill_angles(struct vision_run *r, uint32_t row0, uint32_t n)
{
    const uint32_t half = r->e->head_dim / 2, quarter = half / 2;
    const struct span to[2] = {span_add(r->cosines, (uint64_t)row0 * half), span_add(r->sines, (uint64_t)row0 * half)};
    rd_status st = RD_OK;

    for (uint32_t which = 0; st == RD_OK && which < 2; which++) {
        const float *table = r->angles + (size_t)which * most_positions(r->image) * quarter;
        struct angles angles = {r, row0, table, vision_room(r->e, to[which])};

        vision_share(r->e, n, copy_angles, &angles);
        st = vision_put(r->e, to[which], (uint64_t)n * half);
    }
    return st;
}

/* Units in the order of windows, and where these end. */
static void fill_windows(struct vision_run *r)
{
    const struct vision_image *v = r->image;
    const uint32_t m = v->merge, h = v->h / m, w = v->w / m, side = r->e->window / m;
    uint32_t n = 0;

    for (uint32_t t = 0; t < v->t; t++)
        for (uint32_t y0 = 0; y0 < h; y0 += side)
            for (uint32_t x0 = 0; x0 < w; x0 += side) {
                for (uint32_t y = y0; y < u32_min(y0 + side, h); y++)
                    for (uint32_t x = x0; x < u32_min(x0 + side, w); x++) r->unit_of[n++] = (t * h + y) * w + x;
                r->windows[r->n_windows++] = n * m * m;
            }
}

static void count_blocks(const uint32_t *ends, uint32_t n, uint32_t *blocks)
{
    blocks[0] = 0;
    for (uint32_t g = 0; g < n; g++)
        blocks[g + 1] = blocks[g] + u32_ceil_div(ends[g] - (g ? ends[g - 1] : 0), ATTEND_BLOCK);
}

/* The run's memory: on the host, and where the backend's is not that, on the device. */
static rd_status take_memory(struct vision_run *r, const struct sizes *s)
{
    const bool shares = r->e->ops->traits.shares_memory;

    r->n_bytes = (s->host + (shares ? s->device : 0)) * sizeof(float);
    r->memory = mem_map((size_t)r->n_bytes);
    if (!r->memory) return RD_E_NOMEM;
    return shares ? RD_OK : r->e->ops->memory.alloc(r->e->be, s->device * sizeof(float), &r->buffer);
}

struct span vision_take_part(struct span *at, uint64_t n)
{
    const struct span part = *at;

    *at = span_add(*at, n);
    return part;
}

rd_status vision_run_begin(struct vision_encoder *e, struct vision_image *image, struct vision_run **out)
{
    const struct sizes s = sizes_of(e, image);
    struct vision_run *r;
    struct span part;
    float *at;
    rd_status st;

    if (!fits(e, image)) return RD_E_INVALID;
    r = mem_zalloc(1, sizeof(*r));
    if (!r) return RD_E_NOMEM;
    r->e = e;
    r->n = patches_of(image);
    r->block = rows_of_block(e, r->n);
    st = take_memory(r, &s);
    if (st != RD_OK) {
        if (r->memory) mem_unmap(r->memory, (size_t)r->n_bytes);
        mem_free(r);
        return st;
    }
    r->image = vision_image_ref(image);
    part = r->buffer ? span_of(r->buffer, 0) : span_of_host(r->memory);
    r->x = vision_take_part(&part, s.x);
    r->qkv = vision_take_part(&part, s.qkv);
    r->norm = vision_take_part(&part, s.norm);
    r->delta = vision_take_part(&part, s.delta);
    r->attn = vision_take_part(&part, s.attn);
    r->up = vision_take_part(&part, s.up);
    r->gate = vision_take_part(&part, s.gate);
    r->pack = vision_take_part(&part, s.pack);
    r->cosines = vision_take_part(&part, s.cosines);
    r->sines = vision_take_part(&part, s.sines);
    at = r->memory + (r->buffer ? 0 : s.device);
    r->rows = at, at += s.rows;
    r->angles = at, at += s.angles;
    r->unit_of = e->window ? (uint32_t *)(void *)at : NULL, at += s.units;
    r->means = (uint32_t *)(void *)at, at += s.means;
    r->frames = (uint32_t *)(void *)at, at += s.frames;
    r->windows = (uint32_t *)(void *)at, at += s.windows;
    r->frame_blocks = (uint32_t *)(void *)at, at += s.frame_blocks;
    r->window_blocks = (uint32_t *)(void *)at;
    for (r->n_frames = 0; r->n_frames < image->t; r->n_frames++)
        r->frames[r->n_frames] = (r->n_frames + 1) * image->h * image->w;
    if (e->family->turns) fill_table(r);
    if (e->window) fill_windows(r);
    count_blocks(r->frames, r->n_frames, r->frame_blocks);
    if (e->window) count_blocks(r->windows, r->n_windows, r->window_blocks);
    *out = r;
    return RD_OK;
}

void vision_run_end(struct vision_run *r)
{
    if (!r) return;
    if (r->buffer) r->e->ops->memory.free(r->e->be, r->buffer);
    mem_unmap(r->memory, (size_t)r->n_bytes);
    vision_image_unref(r->image);
    mem_free(r);
}

const float *vision_run_rows(const struct vision_run *r)
{
    assert(r->phase == VIT_DONE);
    return r->rows;
}

double vision_run_done(const struct vision_run *r)
{
    const double part = 1.0 / r->e->n_layers, heads = r->e->n_heads;
    const double some = u32_min(most_heads(r->e), r->e->n_heads - r->head);
    double in_layer = 0;

    if (r->phase == VIT_PATCHES) return 0;
    if (r->phase >= VIT_TAIL) return 1;
    if (r->phase == VIT_ATTEND) in_layer = 0.2 + 0.4 * (r->head + some * r->row / r->n) / heads;
    if (r->phase > VIT_ATTEND) in_layer = 0.6 + 0.4 * (double)r->row / r->n;
    return part * (r->layer + in_layer);
}

/* ---- blocks ---- */

#define SHARERS    4u   /* threads: memory is not much faster for more */
#define SHARE_ROWS 256u /* that are worth a thread */

struct share {
    struct thread thread;
    void (*fn)(void *arg, uint32_t from, uint32_t to);
    void *arg;
    uint32_t from, to;
};

static void run_share(void *arg)
{
    const struct share *s = arg;

    s->fn(s->arg, s->from, s->to);
}

void vision_share(const struct vision_encoder *e, uint32_t n, void (*fn)(void *arg, uint32_t from, uint32_t to),
                  void *arg)
{
    const uint32_t most = u32_min(SHARERS, thread_n_cores()), n_shares = e->stage ? u32_min(most, n / SHARE_ROWS) : 1;
    struct share shares[SHARERS] = {{.fn = NULL}};
    uint32_t from = 0;

    for (uint32_t i = 0; i + 1 < n_shares; i++, from += n / n_shares) {
        shares[i] = (struct share){.fn = fn, .arg = arg, .from = from, .to = from + n / n_shares};
        if (thread_start(&shares[i].thread, "vision-copy", run_share, &shares[i]) != RD_OK) break;
    }
    fn(arg, from, n); /* the rest is this thread's */
    for (uint32_t i = 0; i + 1 < n_shares; i++) thread_join(&shares[i].thread);
}

float *vision_room(const struct vision_encoder *e, struct span to)
{
    return e->stage ? e->stage : (float *)(uintptr_t)to.at;
}

rd_status vision_put(const struct vision_encoder *e, struct span to, uint64_t n)
{
    rd_status st;

    if (!e->stage) return RD_OK;
    assert(n <= e->stage_floats);
    st = e->ops->memory.write(e->be, to, e->stage, n * sizeof(float));
    return st == RD_OK ? e->ops->memory.sync(e->be) : st; /* the stage is free again */
}

rd_status vision_get(const struct vision_encoder *e, struct span from, uint64_t n, const float **out)
{
    rd_status st;

    *out = e->stage ? e->stage : (const float *)(uintptr_t)from.at;
    if (!e->stage) return RD_OK;
    assert(n <= e->stage_floats);
    st = e->ops->memory.read(e->be, e->stage, from, n * sizeof(float));
    return st == RD_OK ? e->ops->memory.sync(e->be) : st;
}

static rd_status linear(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                        struct span x, struct span out, bool once)
{
    const struct linear_args a = {.n_rows = n,
                                  .x = x,
                                  .x_stride = w->n_in,
                                  .n_outs = 1,
                                  .outs = {{w, b && b->data ? b : NULL, out, w->n_out}},
                                  .once = once,
                                  .many = true};

    return e->ops->op.linear(e->be, &a);
}

rd_status vision_linear(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                        struct span x, struct span out)
{
    return linear(e, w, b, n, x, out, false);
}

rd_status vision_linear_once(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                             struct span x, struct span out)
{
    return linear(e, w, b, n, x, out, true);
}

rd_status vision_gelu(const struct vision_encoder *e, enum gelu kind, uint32_t n, uint32_t width, struct span x)
{
    const struct gelu_args a = {kind, (uint64_t)n * width, x, true};

    return e->ops->op.gelu(e->be, &a);
}

rd_status vision_norm(const struct vision_encoder *e, const struct weight *w, const struct weight *b, uint32_t n,
                      struct span x, struct span out, bool for_linear)
{
    const struct layer_norm_args ln = {n, w->n_in, x, w, b, e->eps, out, for_linear};
    const struct residual_norm_args rms = {.n_rows = n, .width = w->n_in, .x = x, .norm = w, .eps = e->eps, .out = out};

    return b->data ? e->ops->op.layer_norm(e->be, &ln) : e->ops->op.residual_norm(e->be, &rms);
}

static struct attend_args attend_args_of(const struct vision_run *r, uint32_t row, uint32_t n);

/* q and k of the rows turned, and where the backend does that, put to where attend reads them. */
static rd_status fill_or_turn(struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const uint32_t h = e->hidden, stride = 3 * h, half = e->head_dim / 2;
    const struct span qkv = span_add(r->qkv, (uint64_t)row * stride);
    const bool turns = e->family->turns;
    const struct turn_args turn = {.n_rows = n,
                                   .n_heads = e->n_heads,
                                   .head_dim = e->head_dim,
                                   .q = qkv,
                                   .k = span_add(qkv, h),
                                   .stride = stride,
                                   .cosines = turns ? span_add(r->cosines, (uint64_t)row * half) : span_none(),
                                   .sines = turns ? span_add(r->sines, (uint64_t)row * half) : span_none()};
    struct attend_args fill = attend_args_of(r, row, n);
    rd_status st = RD_E_UNSUPPORTED;

    fill.q = qkv;
    fill.k = span_add(qkv, h);
    fill.v = span_add(qkv, 2 * (uint64_t)h);
    if (e->ops->op.attend_fill) st = e->ops->op.attend_fill(e->be, &fill, turns ? &turn : NULL);
    r->filled = st == RD_OK;
    if (st != RD_E_UNSUPPORTED) return st;
    return turns ? e->ops->op.turn(e->be, &turn) : RD_OK;
}

static rd_status do_qkv(struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct vit_layer *w = &e->layers[r->layer];
    const uint32_t h = e->hidden, stride = 3 * h;
    const struct span qkv = span_add(r->qkv, (uint64_t)row * stride);
    struct linear_args a = {.n_rows = n, .x = r->norm, .x_stride = h, .n_outs = w->qkv.data ? 1 : 3, .many = true};
    const struct weight *ws[3] = {w->qkv.data ? &w->qkv : &w->q, &w->k, &w->v};
    const struct weight *bs[3] = {w->qkv.data ? &w->qkv_b : &w->q_b, &w->k_b, &w->v_b};
    rd_status st = vision_norm(e, &w->ln1, &w->ln1_b, n, span_add(r->x, (uint64_t)row * h), r->norm, true);

    for (uint32_t i = 0; i < a.n_outs; i++)
        a.outs[i] = (struct linear_out){ws[i], bs[i]->data ? bs[i] : NULL, span_add(qkv, (uint64_t)i * h), stride};
    if (st == RD_OK) st = e->ops->op.linear(e->be, &a);
    return st == RD_OK ? fill_or_turn(r, row, n) : st;
}

rd_status vision_add_delta(const struct vision_run *r, struct span x, uint32_t n)
{
    const struct residual_norm_args a = {
        .n_rows = n, .width = r->e->hidden, .x = x, .delta = r->delta, .eps = r->e->eps};

    return r->e->ops->op.residual_norm(r->e->be, &a);
}

static rd_status do_mlp(struct vision_run *r, struct span x, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct vit_layer *w = &e->layers[r->layer];
    rd_status st = vision_norm(e, &w->ln2, &w->ln2_b, n, x, r->norm, true);

    if (st == RD_OK && e->family->gated) {
        st = vision_linear(e, &w->up, &w->up_b, n, r->norm, r->up);
        if (st == RD_OK) st = vision_linear(e, &w->gate, &w->gate_b, n, r->norm, r->gate);
        if (st == RD_OK) st = e->ops->op.glu(e->be, ACT_SILU, n, e->ffn, r->gate, r->up, r->up);
    } else if (st == RD_OK) {
        st = vision_linear_once(e, &w->up, &w->up_b, n, r->norm, r->up);
        if (st == RD_OK) st = vision_gelu(e, e->family->act, n, e->ffn, r->up);
    }
    if (st == RD_OK) st = vision_linear_once(e, &w->down, &w->down_b, n, r->up, r->delta);
    return st == RD_OK ? vision_add_delta(r, x, n) : st;
}

/* Heads that are attended together, from r->head on. */
static uint32_t some_heads(const struct vision_run *r)
{
    return u32_min(most_heads(r->e), r->e->n_heads - r->head);
}

static struct attend_args attend_args_of(const struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const bool windows = e->window && !e->full[r->layer];

    return (struct attend_args){.row0 = row,
                                .n_rows = n,
                                .n_heads = e->n_heads,
                                .head_dim = e->head_dim,
                                .q = r->qkv,
                                .k = span_add(r->qkv, e->hidden),
                                .v = span_add(r->qkv, 2 * (uint64_t)e->hidden),
                                .stride = 3 * e->hidden,
                                .head0 = r->head,
                                .n_some = some_heads(r),
                                .out = span_add(r->attn, (uint64_t)row * e->hidden),
                                .scale = 1.0f / sqrtf((float)e->head_dim),
                                .n_groups = windows ? r->n_windows : r->n_frames,
                                .group_ends = windows ? r->windows : r->frames,
                                .group_blocks = windows ? r->window_blocks : r->frame_blocks,
                                .packed = r->pack,
                                .for_linear = true};
}

static rd_status do_mix(struct vision_run *r, uint32_t row, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct vit_layer *w = &e->layers[r->layer];
    const struct span x = span_add(r->x, (uint64_t)row * e->hidden);
    rd_status st = vision_linear_once(e, &w->out, &w->out_b, n, span_add(r->attn, (uint64_t)row * e->hidden), r->delta);

    if (st == RD_OK) st = vision_add_delta(r, x, n);
    return st == RD_OK ? do_mlp(r, x, n) : st;
}

/* Floating-point operations of a row of the present phase. */
static uint64_t row_flops(const struct vision_run *r)
{
    const struct vision_encoder *e = r->e;
    const uint64_t copied = e->stage ? STAGE_FLOPS : 0;
    const uint64_t h = e->hidden, keys = e->window && !e->full[r->layer] ? (uint64_t)e->window * e->window
                                                                         : (uint64_t)r->image->h * r->image->w;

    switch (r->phase) {
    case VIT_PATCHES:
        return 2 * h * e->n_patch_values + copied * e->n_patch_values;
    case VIT_QKV:
        return 6 * h * h;
    case VIT_ATTEND:
        if (!r->packed) return PACK_FLOPS * e->head_dim * some_heads(r);
        return 4 * (uint64_t)e->head_dim * keys * some_heads(r);
    case VIT_MIX:
        return 2 * h * h + (e->family->gated ? 6 : 4) * h * e->ffn;
    case VIT_DEEP:
    case VIT_TAIL:
        return 2 * h * h * e->merge * e->merge + 2 * h * e->text_hidden +
               copied * e->text_hidden / (e->merge * e->merge);
    case VIT_DONE:
        break;
    }
    return 1;
}

/* Rows of the next block: whole units, where they are merged whole lines. */
static uint32_t block_rows(const struct vision_run *r, uint64_t n_flops)
{
    const struct vision_encoder *e = r->e;
    const bool staged = e->stage && (r->phase == VIT_PATCHES || r->phase >= VIT_DEEP);
    const uint64_t most = r->phase == VIT_ATTEND ? r->n : staged ? u32_min(r->block, STAGE_ROWS) : r->block;
    uint64_t n = u64_min(n_flops / row_flops(r), most);
    uint32_t least = e->stage ? DEVICE_LEAST : n < 16 ? 8 : 16;

    /* a device does the rest at once, rather than little of it in another step */
    if (e->stage && n < most && n * 4 >= u64_min(most, r->n - r->row) * 3) n = most;
    if (r->phase == VIT_ATTEND && !r->packed) return r->n;
    if (r->phase >= VIT_DEEP) least = e->merge * e->merge;
    if (e->family->pools_lines && r->phase == VIT_TAIL) { /* its scratch: qkv's */
        least = r->image->w * e->merge;
        return e->stage ? u32_min(u32_max(STAGE_ROWS / least, 1) * least, r->n - r->row) : least;
    }
    if (e->stage && n >= u64_min(most, r->n - r->row)) return (uint32_t)u64_min(most, r->n - r->row);
    return u32_min(u32_max((uint32_t)n / least * least, least), r->n - r->row);
}

/* Whether what a step has left is for a few rows only, while there are more of them. */
static bool is_rest(const struct vision_run *r, uint64_t n_flops)
{
    const uint64_t n = n_flops / row_flops(r);

    return !r->e->stage && n < HOST_LEAST && n < r->n - r->row;
}

static bool is_deep(const struct vision_run *r)
{
    return r->deep < r->e->n_deep && r->e->deep[r->deep].layer == r->layer;
}

/* The layer's share of the result's memory is there when the rows come: a device computes meanwhile. */
static void touch_rows(const struct vision_run *r)
{
    const uint64_t n = (uint64_t)r->image->n_rows * r->e->traits.n_floats, n_layers = r->e->n_layers;
    const uint64_t from = n * r->layer / n_layers, to = n * (r->layer + 1) / n_layers;

    if (r->e->stage && r->deep == 0) memset(r->rows + from, 0, (size_t)(to - from) * sizeof(float));
}

/* After the last row of a phase. */
static void next_phase(struct vision_run *r)
{
    r->row = 0;
    switch (r->phase) {
    case VIT_PATCHES:
        r->phase = VIT_QKV;
        return;
    case VIT_QKV:
        r->phase = VIT_ATTEND;
        r->packed = r->filled;
        return;
    case VIT_ATTEND:
        r->phase = VIT_MIX;
        return;
    case VIT_MIX:
        if (is_deep(r)) {
            r->phase = VIT_DEEP;
            return;
        }
        break;
    case VIT_DEEP:
        r->deep++;
        break;
    case VIT_TAIL:
    case VIT_DONE:
        r->phase = VIT_DONE;
        return;
    }
    touch_rows(r);
    r->phase = ++r->layer < r->e->n_layers ? VIT_QKV : VIT_TAIL;
    if (r->phase == VIT_TAIL) r->layer = r->e->n_layers - 1;
}

static rd_status do_block(struct vision_run *r, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct attend_args a = attend_args_of(r, r->row, n);
    rd_status st;

    switch (r->phase) {
    case VIT_PATCHES:
        if (e->family->turns && (st = fill_angles(r, r->row, n)) != RD_OK) return st;
        return e->family->patches(r, r->row, n);
    case VIT_QKV:
        return do_qkv(r, r->row, n);
    case VIT_ATTEND:
        return r->packed ? e->ops->op.attend(e->be, &a) : e->ops->op.attend_pack(e->be, &a);
    case VIT_MIX:
        return do_mix(r, r->row, n);
    case VIT_DEEP:
    case VIT_TAIL:
        return e->family->tail(r, r->row, n);
    case VIT_DONE:
        break;
    }
    return RD_E_INVALID;
}

/* After a block of n rows. */
static void move_on(struct vision_run *r, uint32_t n)
{
    if (r->phase == VIT_ATTEND && !r->packed) {
        r->packed = true;
        return;
    }
    r->row += n;
    if (r->row < r->n) return;
    r->packed = false;
    r->head += r->phase == VIT_ATTEND ? some_heads(r) : 0;
    if (r->phase == VIT_ATTEND && r->head < r->e->n_heads) {
        r->row = 0;
        return;
    }
    r->head = 0;
    next_phase(r);
}

uint32_t vision_run_phase(const struct vision_run *r)
{
    static_assert(VIT_DONE + 1 == VISION_PHASES, "packing stands where the end does");
    return r->phase == VIT_ATTEND && !r->packed ? VIT_DONE : r->phase;
}

rd_status vision_run_step(struct vision_run *r, uint64_t n_flops, uint64_t *n_done)
{
    const struct vision_encoder *e = r->e;
    uint64_t left = n_flops ? n_flops : VISION_STEP_FLOPS * (e->stage ? DEVICE_STEP : 1), unasked;
    rd_status st = RD_OK;

    assert(r->phase != VIT_DONE);
    if (!n_done) n_done = &unasked;
    *n_done = 0;
    while (r->phase != VIT_DONE) {
        const uint32_t n = block_rows(r, left);
        const uint64_t cost = n * row_flops(r);

        st = do_block(r, n);
        if (st != RD_OK) return st;
        if (model_file_broken(e->g)) return RD_E_DEVICE;
        move_on(r, n);
        *n_done += cost;
        if (cost >= left || is_rest(r, left - cost)) break;
        left -= cost;
    }
    if (e->stage) st = e->ops->memory.sync(e->be); /* what a step takes is seen by who asked for it */
    return st != RD_OK ? st : r->phase == VIT_DONE ? RD_OK : RD_E_AGAIN;
}
