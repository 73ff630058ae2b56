/* vision/siglip.c - the encoder of Gemma 3: SigLIP so400m, pooled.
 *
 *     x = patch(pixels) + positions[patch]
 *     layers: LayerNorm, attention over all patches, MLP with GELU (tanh)           encoder_inside.h
 *     rows = project(rmsnorm(mean of merge x merge of layernorm(x)))
 *
 * All images are of one size. Source  arXiv:2303.15343; arXiv:2503.19786, section 2.1.
 */
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "vision/encoder_inside.h"

/* The file's is [n_in rows, n_out]. */
static rd_status load_projection(struct vision_encoder *e, struct rd_error *err)
{
    const uint32_t n_in = e->hidden, n_out = e->text_hidden;
    float *values = NULL, *turned = mem_alloc((size_t)n_in * n_out, sizeof(*turned));
    rd_status st = turned ? vision_floats(e, "mm.input_projection.weight", (uint64_t)n_in * n_out, &values, err)
                          : error_set(err, RD_E_NOMEM, "vision: out of memory");

    if (st == RD_OK) {
        for (uint32_t i = 0; i < n_in; i++)
            for (uint32_t o = 0; o < n_out; o++) turned[(size_t)o * n_in + i] = values[(size_t)i * n_out + o];
        st = vision_make_matrix(e, "mm.input_projection.weight", turned, n_out, n_in, &e->project, err);
    }
    mem_free(values);
    mem_free(turned);
    return st;
}

static rd_status open_gemma3(struct vision_encoder *e, struct rd_error *err)
{
    uint32_t image = 0;
    rd_status st;

    e->merge = 4;
    e->temporal = 1;
    if ((st = vision_u32(e, "clip.vision.image_size", true, 2, 1u << 14, &image, err)) != RD_OK) return st;
    if ((st = vision_u32(e, "clip.vision.projector.scale_factor", false, 1, 64, &e->merge, err)) != RD_OK) return st;
    e->side = image / e->patch;
    if (image % e->patch || e->side % e->merge || e->side < 1)
        return error_set(err, RD_E_UNSUPPORTED,
                         "vision: images of %u with patches of %u, %u x %u of them pooled: expected "
                         "whole ones",
                         image, e->patch, e->merge, e->merge);
    e->n_patch_values = 3 * e->patch * e->patch;
    e->traits = (struct vision_traits){.both_ways = true, .max_rows = e->side / e->merge * (e->side / e->merge)};
    if ((st = vision_matrix(e, "v.patch_embd.weight", e->hidden, e->n_patch_values, &e->patch_w, err)) != RD_OK)
        return st;
    if ((st = vision_vector(e, "v.patch_embd.bias", e->hidden, true, &e->patch_b, err)) != RD_OK) return st;
    st = vision_floats(e, "v.position_embd.weight", (uint64_t)e->side * e->side * e->hidden, &e->positions, err);
    if (st == RD_OK) st = vision_vector(e, "v.post_ln.weight", e->hidden, false, &e->post_ln, err);
    if (st == RD_OK) st = vision_vector(e, "v.post_ln.bias", e->hidden, false, &e->post_ln_b, err);
    if (st == RD_OK) st = vision_vector(e, "mm.soft_emb_norm.weight", e->hidden, false, &e->soft_norm, err);
    return st == RD_OK ? load_projection(e, err) : st;
}

struct copy {
    const struct vision_run *r;
    uint32_t row0;
    float *to;
};

static void copy_patches(void *arg, uint32_t from, uint32_t end)
{
    const struct copy *copy = arg;
    const struct vision_run *r = copy->r;
    const uint32_t p = r->e->patch, w = r->image->w, width = w * p;
    const size_t plane = (size_t)width * r->image->h * p;
    float *to = copy->to + (size_t)from * r->e->n_patch_values;

    for (uint32_t row = copy->row0 + from; row < copy->row0 + end; row++)
        for (uint32_t c = 0; c < 3; c++)
            for (uint32_t y = 0; y < p; y++, to += p)
                memcpy(to, r->image->values + c * plane + (size_t)(row / w * p + y) * width + (size_t)(row % w) * p,
                       p * sizeof(*to));
}

static void copy_positions(void *arg, uint32_t from, uint32_t end)
{
    const struct copy *copy = arg;
    const size_t h = copy->r->e->hidden;

    memcpy(copy->to + from * h, copy->r->e->positions + (copy->row0 + from) * h, (end - from) * h * sizeof(float));
}

static rd_status patches(struct vision_run *r, uint32_t row0, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const struct span x = span_add(r->x, (uint64_t)row0 * e->hidden);
    struct copy copy = {r, row0, vision_room(r->e, r->norm, 0)};
    rd_status st;

    vision_share(e, n, copy_patches, &copy);
    st = vision_put(r->e, r->norm, 0, (uint64_t)n * e->n_patch_values);
    if (st == RD_OK) st = vision_linear(e, &e->patch_w, &e->patch_b, n, r->norm, x);
    if (st != RD_OK) return st;
    copy.to = vision_room(r->e, r->delta, 0);
    vision_share(e, n, copy_positions, &copy);
    st = vision_put(r->e, r->delta, 0, (uint64_t)n * e->hidden);
    return st == RD_OK ? vision_add_delta(r, x, n) : st;
}

/* Merge lines of patches, which are a line of rows, any number of times. */
static rd_status tail(struct vision_run *r, uint32_t row0, uint32_t n)
{
    const struct vision_encoder *e = r->e;
    const uint32_t h = e->hidden, w = r->image->w, m = e->merge, in_line = w / m, n_out = n / (m * m);
    const struct span normed = r->qkv, pooled = span_add(normed, (uint64_t)n * h), /* qkv is done with */
        ready = span_add(pooled, (uint64_t)n_out * h);
    const struct mean_args mean = {
        .n_out = n_out, .n_each = m * m, .width = h, .x = normed, .rows = r->means, .out = pooled};
    const struct residual_norm_args rms = {
        .n_rows = n_out, .width = h, .x = pooled, .norm = &e->soft_norm, .eps = e->eps, .out = ready};
    const uint64_t n_floats = (uint64_t)n_out * e->text_hidden;
    const float *rows;
    rd_status st = vision_norm(e, &e->post_ln, &e->post_ln_b, n, span_add(r->x, (uint64_t)row0 * h), normed, false);

    for (uint32_t i = 0; i < n_out * m * m; i++) {
        const uint32_t o = i / (m * m), k = i % (m * m);

        r->means[i] = (o / in_line * m + k / m) * w + o % in_line * m + k % m;
    }
    if (st == RD_OK) st = e->ops->op.mean_rows(e->be, &mean);
    if (st == RD_OK) st = e->ops->op.residual_norm(e->be, &rms);
    if (st == RD_OK) st = vision_linear(e, &e->project, NULL, n_out, ready, r->delta);
    if (st == RD_OK) st = vision_get(r->e, r->delta, n_floats, &rows);
    if (st == RD_OK)
        memcpy(r->rows + (size_t)(row0 / (m * m)) * e->text_hidden, rows, (size_t)n_floats * sizeof(float));
    return st;
}

const struct vision_family vision_gemma3 = {.projector = "gemma3",
                                            .text_arch = "gemma3",
                                            .act = GELU_TANH,
                                            .open = open_gemma3,
                                            .patches = patches,
                                            .tail = tail,
                                            .pools_lines = true};
