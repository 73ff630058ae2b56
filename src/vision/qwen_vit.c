/* vision/qwen_vit.c - the encoders of Qwen2-VL, Qwen2.5-VL and Qwen3-VL.
 *
 *     x = patch(values)                        Qwen3-VL: + positions, a square table, bilinear at the image's grid
 *     layers, with 2-D RoPE                    encoder_inside.h
 *         Qwen2-VL     LayerNorm, MLP with QuickGELU; patches see their frame
 *         Qwen2.5-VL   RMSNorm, SwiGLU; most layers see a window of window x window patches of their frame. Patches stand in
 *                      the order of windows, units of merge x merge together
 *         Qwen3-VL     LayerNorm, MLP with GELU (tanh); behind some layers a merger of its own (DeepStack)
 *     rows = fc2 gelu(fc1 of merge x merge patches of norm(x))
 *
 * Source  arXiv:2409.12191; arXiv:2502.13923; arXiv:2511.21631.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "vision/encoder_inside.h"

#define MAX_ROWS (VISION_PATCHES / 4)

/* The patch's matrix [hidden, 3, temporal, patch, patch]: whole, or as two files' convolutions, one a frame. */
static rd_status load_patch(struct vision_encoder *e, struct rd_error *err)
{
    const size_t plane = (size_t)e->patch * e->patch, n = (size_t)e->hidden * e->n_patch_values;
    float *part[2] = {NULL, NULL}, *all = NULL;
    rd_status st;

    if (!model_file_find_tensor(e->g, "v.patch_embd.weight.1"))
        return vision_matrix(e, "v.patch_embd.weight", e->hidden, e->n_patch_values, &e->patch_w, err);
    all = mem_alloc(n, sizeof(*all));
    st = all ? vision_floats(e, "v.patch_embd.weight", n / 2, &part[0], err)
             : error_set(err, RD_E_NOMEM, "vision: out of memory");
    if (st == RD_OK) st = vision_floats(e, "v.patch_embd.weight.1", n / 2, &part[1], err);
    for (size_t i = 0; st == RD_OK && i < n / plane; i++) /* i: output, channel, frame */
        memcpy(all + i * plane, part[i % 2] + i / 2 * plane, plane * sizeof(*all));
    if (st == RD_OK)
        st = vision_make_matrix(e, "v.patch_embd.weight", all, e->hidden, e->n_patch_values, &e->patch_w, err);
    mem_free(part[0]);
    mem_free(part[1]);
    mem_free(all);
    return st;
}

static rd_status load_merger(struct vision_encoder *e, const char *norm, const char *fc1, const char *fc2,
                             struct vit_merger *m, struct rd_error *err)
{
    const uint32_t wide = e->hidden * e->merge * e->merge;
    char name[96];
    rd_status st;

    snprintf(name, sizeof(name), "%s.weight", norm);
    if ((st = vision_vector(e, name, m->after_merge ? wide : e->hidden, false, &m->norm, err)) != RD_OK) return st;
    snprintf(name, sizeof(name), "%s.bias", norm);
    if (!e->family->rms_norm &&
        (st = vision_vector(e, name, m->after_merge ? wide : e->hidden, false, &m->norm_b, err)) != RD_OK)
        return st;
    snprintf(name, sizeof(name), "%s.weight", fc1);
    if ((st = vision_matrix(e, name, wide, wide, &m->fc1, err)) != RD_OK) return st;
    snprintf(name, sizeof(name), "%s.bias", fc1);
    if ((st = vision_vector(e, name, wide, true, &m->fc1_b, err)) != RD_OK) return st;
    snprintf(name, sizeof(name), "%s.weight", fc2);
    if ((st = vision_matrix(e, name, e->text_hidden, wide, &m->fc2, err)) != RD_OK) return st;
    snprintf(name, sizeof(name), "%s.bias", fc2);
    return vision_vector(e, name, e->text_hidden, true, &m->fc2_b, err);
}

static rd_status open_qwen(struct vision_encoder *e, struct rd_error *err)
{
    rd_status st;

    e->merge = e->temporal = 2;
    if ((st = vision_u32(e, "clip.vision.spatial_merge_size", false, 1, 8, &e->merge, err)) != RD_OK) return st;
    e->n_patch_values = 3 * e->temporal * e->patch * e->patch;
    e->traits = (struct vision_traits){.three_axes = true, .max_rows = MAX_ROWS};
    if ((st = load_patch(e, err)) != RD_OK) return st;
    if ((st = vision_vector(e, "v.patch_embd.bias", e->hidden, true, &e->patch_b, err)) != RD_OK) return st;
    return load_merger(e, "v.post_ln", "mm.0", "mm.2", &e->main, err);
}

/* Layers that see all: named one by one, or every n-th. */
static rd_status read_windows(struct vision_encoder *e, struct rd_error *err)
{
    const struct model_meta *named = model_file_find(e->g, "clip.vision.fullatt_block_indexes");
    uint32_t pattern = 0, pixels = 112;
    rd_status st;

    if ((st = vision_u32(e, "clip.vision.window_size", false, e->patch, 1u << 14, &pixels, err)) != RD_OK) return st;
    e->window = pixels / e->patch / e->merge * e->merge;
    if (e->window == 0) return error_set(err, RD_E_FORMAT, "vision: windows of %u pixels hold no patch", pixels);
    if (!named) {
        st = vision_u32(e, "clip.vision.n_wa_pattern", true, 1, VISION_LAYERS, &pattern, err);
        for (uint32_t l = 0; st == RD_OK && l < e->n_layers; l++) e->full[l] = (l + 1) % pattern == 0;
        return st;
    }
    for (uint64_t i = 0; named->type == META_ARRAY && named->array_type == META_U32 && i < named->n; i++)
        if (meta_u64_at(named, i) < e->n_layers) e->full[meta_u64_at(named, i)] = true;
    return RD_OK;
}

static rd_status open_qwen25(struct vision_encoder *e, struct rd_error *err)
{
    rd_status st = open_qwen(e, err);

    return st == RD_OK ? read_windows(e, err) : st;
}

static rd_status open_qwen3(struct vision_encoder *e, struct rd_error *err)
{
    const struct model_meta *deep = model_file_find(e->g, "clip.vision.is_deepstack_layers");
    const struct model_tensor *t = model_file_find_tensor(e->g, "v.position_embd.weight");
    rd_status st = open_qwen(e, err);

    if (st != RD_OK) return st;
    if (!t || t->dims[0] != e->hidden || t->dims[1] > 1u << 20)
        return error_set(err, RD_E_FORMAT, "tensor v.position_embd.weight is missing, or not of hidden %u", e->hidden);
    e->side = (uint32_t)sqrt((double)t->dims[1]);
    if ((uint64_t)e->side * e->side != t->dims[1])
        return error_set(err, RD_E_FORMAT, "v.position_embd.weight: %llu positions, expected a square",
                         (unsigned long long)t->dims[1]);
    st = vision_floats(e, "v.position_embd.weight", t->dims[1] * e->hidden, &e->positions, err);
    for (uint32_t l = 0; st == RD_OK && deep && l < e->n_layers && l < deep->n; l++) {
        struct vit_merger *m = &e->deep[e->n_deep];
        char names[3][64];

        if (deep->type != META_ARRAY || deep->array_type != META_BOOL || meta_u64_at(deep, l) == 0) continue;
        if (e->n_deep == VISION_DEEP)
            return error_set(err, RD_E_UNSUPPORTED, "vision: DeepStack of more than %u layers", VISION_DEEP);
        e->n_deep++;
        m->layer = l;
        m->after_merge = true;
        snprintf(names[0], sizeof(names[0]), "v.deepstack.%u.norm", l);
        snprintf(names[1], sizeof(names[1]), "v.deepstack.%u.fc1", l);
        snprintf(names[2], sizeof(names[2]), "v.deepstack.%u.fc2", l);
        st = load_merger(e, names[0], names[1], names[2], m, err);
    }
    return st;
}

/* The table's value at the patch's place, corners on corners. */
static void fill_position(const struct vision_run *r, uint32_t row, float *x)
{
    const struct vision_encoder *e = r->e;
    const struct vision_image *v = r->image;
    const uint32_t m = v->merge, in_frame = row % (v->h * v->w), block = in_frame / (m * m), in = in_frame % (m * m);
    const uint32_t at[2] = {block / (v->w / m) * m + in / m, block % (v->w / m) * m + in % m}, size[2] = {v->h, v->w};
    uint32_t taps[2][2];
    float weights[2][2];

    for (uint32_t d = 0; d < 2; d++) {
        float where = (float)at[d] * (float)(e->side - 1) / (float)u32_max(size[d] - 1, 1), low = floorf(where);

        taps[d][0] = u32_min((uint32_t)low, e->side - 1);
        taps[d][1] = u32_min((uint32_t)low + 1, e->side - 1);
        weights[d][1] = where - low;
        weights[d][0] = 1 - weights[d][1];
    }
    for (uint32_t i = 0; i < e->hidden; i++) {
        float sum = 0;

        for (uint32_t k = 0; k < 4; k++)
            sum += e->positions[((size_t)taps[0][k / 2] * e->side + taps[1][k % 2]) * e->hidden + i] *
                   (weights[0][k / 2] * weights[1][k % 2]);
        x[i] = sum;
    }
}

/* What threads copy together: rows row0 .. of a run. */
struct copy {
    const struct vision_run *r;
    uint32_t row0;
    float *to, *cosines, *sines;
};

static void copy_patches(void *arg, uint32_t begin, uint32_t end)
{
    const struct copy *copy = arg;
    const struct vision_run *r = copy->r;
    const uint32_t unit = r->e->merge * r->e->merge, width = r->e->n_patch_values;
    const size_t angles = (size_t)begin * (r->e->head_dim / 2);

    vision_copy_angles(r, copy->row0 + begin, end - begin, copy->cosines + angles, copy->sines + angles);
    if (!r->unit_of) {
        memcpy(copy->to + (size_t)begin * width, r->image->values + ((size_t)copy->row0 + begin) * width,
               (size_t)(end - begin) * width * sizeof(float));
        return;
    }
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t row = copy->row0 + i;
        const size_t from = (size_t)r->unit_of[row / unit] * unit + row % unit;

        memcpy(copy->to + (size_t)i * width, r->image->values + from * width, width * sizeof(float));
    }
}

static void fill_positions(void *arg, uint32_t begin, uint32_t end)
{
    const struct copy *copy = arg;

    for (uint32_t i = begin; i < end; i++)
        fill_position(copy->r, copy->row0 + i, copy->to + (size_t)i * copy->r->e->hidden);
}

static rd_status patches(struct vision_run *r, uint32_t row0, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const uint32_t half = e->head_dim / 2;
    const uint64_t n_values = (uint64_t)n * e->n_patch_values, n_angles = (uint64_t)n * half;
    const struct span x = span_add(r->x, (uint64_t)row0 * e->hidden);
    const struct span cosines = span_add(r->cosines, (uint64_t)row0 * half),
                      sines = span_add(r->sines, (uint64_t)row0 * half);
    struct copy copy = {r, row0, vision_room(r->e, r->norm, 0), vision_room(r->e, cosines, n_values),
                        vision_room(r->e, sines, n_values + n_angles)};
    rd_status st;

    vision_share(e, n, copy_patches, &copy);
    st = vision_put(r->e, r->norm, 0, n_values);
    if (st == RD_OK) st = vision_put(r->e, cosines, n_values, n_angles);
    if (st == RD_OK) st = vision_put(r->e, sines, n_values + n_angles, n_angles);
    if (st == RD_OK) st = vision_linear(e, &e->patch_w, &e->patch_b, n, r->norm, x);
    if (st != RD_OK || !e->positions) return st;
    copy.to = vision_room(r->e, r->delta, 0);
    vision_share(e, n, fill_positions, &copy);
    st = vision_put(r->e, r->delta, 0, (uint64_t)n * e->hidden);
    return st == RD_OK ? vision_add_delta(r, x, n) : st;
}

/* Rows of the text model's width to their place in the run's. */
struct put {
    struct vision_run *r;
    uint32_t row0, part;
    const float *rows;
};

static void put_rows(void *arg, uint32_t begin, uint32_t end)
{
    const struct put *put = arg;
    const struct vision_run *r = put->r;
    const uint32_t width = r->e->text_hidden;

    for (uint32_t i = begin; i < end; i++) {
        const size_t to = r->unit_of ? r->unit_of[put->row0 + i] : put->row0 + i;

        memcpy(r->rows + to * r->e->traits.n_floats + (size_t)put->part * width, put->rows + (size_t)i * width,
               width * sizeof(float));
    }
}

/* Rows first .. of a tail's, which have arrived. */
static void put_some(void *arg, const float *values, uint32_t first, uint32_t some)
{
    struct put put = *(const struct put *)arg;

    put.row0 += first;
    put.rows = values;
    vision_share(put.r->e, some, put_rows, &put);
}

static rd_status tail(struct vision_run *r, uint32_t row0, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct vit_merger *m = r->phase == VIT_DEEP ? &e->deep[r->deep] : &e->main;
    const uint32_t unit = e->merge * e->merge, n_out = n / unit, part = r->phase == VIT_DEEP ? 1 + r->deep : 0;
    struct put put = {r, row0 / unit, part, NULL};
    rd_status st = vision_norm(e, &m->norm, &m->norm_b, m->after_merge ? n_out : n,
                               span_add(r->x, (uint64_t)row0 * e->hidden), r->norm, true);

    if (st == RD_OK) st = vision_linear_once(e, &m->fc1, &m->fc1_b, n_out, r->norm, r->up);
    if (st == RD_OK) st = vision_gelu(e, GELU_ERF, n_out, unit * e->hidden, r->up);
    if (st == RD_OK) st = vision_linear(e, &m->fc2, &m->fc2_b, n_out, r->up, r->delta);
    return st == RD_OK ? vision_get_rows(r->e, r->delta, n_out, e->text_hidden, put_some, &put) : st;
}

const struct vision_family vision_qwen2 = {.projector = "qwen2vl_merger",
                                           .text_arch = "qwen2vl",
                                           .turns = true,
                                           .act = GELU_QUICK,
                                           .open = open_qwen,
                                           .patches = patches,
                                           .tail = tail};
const struct vision_family vision_qwen25 = {.projector = "qwen2.5vl_merger",
                                            .text_arch = "qwen2vl",
                                            .rms_norm = true,
                                            .gated = true,
                                            .turns = true,
                                            .open = open_qwen25,
                                            .patches = patches,
                                            .tail = tail};
const struct vision_family vision_qwen3 = {.projector = "qwen3vl_merger",
                                           .text_arch = "qwen3vl",
                                           .turns = true,
                                           .act = GELU_TANH,
                                           .open = open_qwen3,
                                           .patches = patches,
                                           .tail = tail};
