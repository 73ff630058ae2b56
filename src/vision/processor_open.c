/* vision/processor_open.c - the processor of a model: its directory's file, or the keys of its encoder's. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "vision/processor_inside.h"

#define MOST_CONFIG_BYTES (1u << 20)

#define CLIP_MEAN                                                                                                      \
    {                                                                                                                  \
        0.48145466f, 0.4578275f, 0.40821073f                                                                           \
    }
#define CLIP_STD                                                                                                       \
    {                                                                                                                  \
        0.26862954f, 0.26130258f, 0.27577711f                                                                          \
    }
#define HALVES                                                                                                         \
    {                                                                                                                  \
        0.5f, 0.5f, 0.5f                                                                                               \
    }

/* What a family's models have, as far as their files do not say. */
static const struct {
    const char *projector;
    struct image_processor p;
} families[] = {
    {"gemma3",
     {.kind = PROCESSOR_SQUARE,
      .filter = RESIZE_BILINEAR,
      .merge = 4,
      .temporal = 1,
      .side = 896,
      .mean = HALVES,
      .std = HALVES,
      .pan_scan = PAN_SCAN_USUAL}},
    {"qwen2vl_merger",
     {.filter = RESIZE_BICUBIC,
      .merge = 2,
      .temporal = 2,
      .min_pixels = 3136,
      .mean = CLIP_MEAN,
      .std = CLIP_STD,
      .video = {128 * 28 * 28, 768 * 28 * 28, false, 0}}},
    {"qwen2.5vl_merger",
     {.filter = RESIZE_BICUBIC,
      .merge = 2,
      .temporal = 2,
      .min_pixels = 3136,
      .mean = CLIP_MEAN,
      .std = CLIP_STD,
      .video = {128 * 28 * 28, 768 * 28 * 28, false, 2}}},
    {"qwen3vl_merger",
     {.filter = RESIZE_BICUBIC,
      .merge = 2,
      .temporal = 2,
      .min_pixels = 65536,
      .mean = HALVES,
      .std = HALVES,
      .video = {4096, 25165824, true, 0}}},
};

/* *out as it was where the key is not there. */
static rd_status key_u64(const struct model_file *g, const char *key, uint64_t most, uint64_t *out,
                         struct rd_error *err)
{
    rd_status st = model_file_u64(g, key, 1, most, out, err);

    return st == RD_E_NOT_FOUND ? RD_OK : st;
}

static rd_status key_u32(const struct model_file *g, const char *key, uint32_t most, uint32_t *out,
                         struct rd_error *err)
{
    uint64_t v = *out;
    rd_status st = key_u64(g, key, most, &v, err);

    *out = (uint32_t)v;
    return st;
}

static rd_status key_three(const struct model_file *g, const char *key, bool above_0, float out[3],
                           struct rd_error *err)
{
    const struct model_meta *m = model_file_find(g, key);

    if (!m) return RD_OK;
    for (uint64_t i = 0; i < 3; i++) {
        const bool is_there = m->type == META_ARRAY && m->n == 3 && m->array_type == META_F32;
        const double x = is_there ? meta_f64_at(m, i) : NAN;

        if (!(fabs(x) < 1e6) || (above_0 && !(x > 0)))
            return error_set(err, RD_E_FORMAT, "metadata \"%s\": three numbers%s are expected", key,
                             above_0 ? " above 0" : "");
        out[i] = (float)x;
    }
    return RD_OK;
}

static rd_status find_family(const struct model_file *eyes, struct image_processor *out, struct rd_error *err)
{
    struct model_str s = {NULL, 0};
    char quoted[64];
    rd_status st = model_file_str(eyes, "clip.projector_type", &s, err);

    if (st == RD_E_NOT_FOUND) st = model_file_str(eyes, "clip.vision.projector_type", &s, err);
    if (st == RD_E_NOT_FOUND) return error_set(err, RD_E_FORMAT, "metadata \"clip.projector_type\" is missing");
    if (st != RD_OK) return st;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strlen(families[i].projector) == s.n && !memcmp(families[i].projector, s.s, s.n)) {
            *out = families[i].p;
            return RD_OK;
        }
    return error_set(err, RD_E_UNSUPPORTED, "metadata \"clip.projector_type\": \"%s\" is not supported",
                     error_quote(quoted, sizeof(quoted), s.s, s.n));
}

rd_status image_processor_of_keys(const struct model_file *eyes, struct image_processor *out, struct rd_error *err)
{
    rd_status st = find_family(eyes, out, err);
    bool is_square;
    uint64_t unit;

    if (st != RD_OK) return st;
    is_square = out->kind == PROCESSOR_SQUARE;
    out->rescale = 1.0 / 255;
    out->patch = 14;
    st = key_u32(eyes, "clip.vision.patch_size", 1024, &out->patch, err);
    if (st == RD_OK && is_square) st = key_u32(eyes, "clip.vision.image_size", 8192, &out->side, err);
    if (st == RD_OK && is_square) st = key_u32(eyes, "clip.vision.projector.scale_factor", 64, &out->merge, err);
    if (st == RD_OK && !is_square) st = key_u32(eyes, "clip.vision.spatial_merge_size", 16, &out->merge, err);
    if (st == RD_OK) st = key_three(eyes, "clip.vision.image_mean", false, out->mean, err);
    if (st == RD_OK) st = key_three(eyes, "clip.vision.image_std", true, out->std, err);
    if (st != RD_OK || is_square) return st;
    unit = (uint64_t)out->patch * out->merge * out->patch * out->merge;
    out->max_pixels = unit * PROCESSOR_MOST_ROWS;
    if (out->video.tokens_per_second)
        st = key_u32(eyes, "clip.vision.tokens_per_second", 1000, &out->video.tokens_per_second, err);
    if (st != RD_OK) return st;
    st = key_u64(eyes, "clip.vision.image_min_pixels", 1u << 30, &out->min_pixels, err);
    if (st == RD_OK) st = key_u64(eyes, "clip.vision.image_max_pixels", 1u << 30, &out->max_pixels, err);
    if (st == RD_OK && out->min_pixels > out->max_pixels)
        return error_set(err, RD_E_FORMAT, "image_min_pixels is more than image_max_pixels");
    return st;
}

/* A file of the model's directory by `read`. *found: it is there. */
typedef rd_status (*read_fn)(const char *json, size_t n, struct image_processor *out, struct rd_error *err);
static rd_status read_file(const char *model, const char *name, read_fn read, bool *found, struct image_processor *out,
                           struct rd_error *err)
{
    struct rd_error why = {RD_OK, ""};
    char path[4096], *text = NULL;
    size_t n = 0;
    rd_status st;

    *found = false;
    if (snprintf(path, sizeof(path), "%s/%s", model, name) >= (int)sizeof(path) || !file_exists(path)) return RD_OK;
    st = file_read_all(path, MOST_CONFIG_BYTES, &text, &n, err);
    if (st != RD_OK) return st;
    *found = true;
    st = read(text, n, out, &why);
    mem_free(text);
    return st == RD_OK ? st : error_set(err, st, "%s: %s", name, why.text);
}

/* Sizes of videos: of the directory's file for them; else what the family's models have, or pictures here. */
static rd_status read_video(const char *model, const struct image_processor *keys, bool found,
                            struct image_processor *out, struct rd_error *err)
{
    bool has_file = false;
    rd_status st;

    out->video = keys->video;
    if (out->kind != PROCESSOR_SMART) return RD_OK;
    if (found && !out->video.in_pairs) out->video.min_pixels = out->min_pixels, out->video.max_pixels = out->max_pixels;
    st = read_file(model, "video_preprocessor_config.json", image_processor_read_video, &has_file, out, err);
    if (st != RD_OK || has_file) return st;
    return read_file(model, "processor_config.json", image_processor_read_video, &has_file, out, err);
}

/* The encoder reads patches as its own file says. */
static rd_status check_agreement(const struct image_processor *p, const struct image_processor *keys,
                                 struct rd_error *err)
{
    if (p->kind == keys->kind && p->patch == keys->patch && p->merge == keys->merge && p->temporal == keys->temporal &&
        p->side == keys->side)
        return RD_OK;
    return error_set(err, RD_E_FORMAT,
                     "the image processor makes patches of %u, %u x %u a token, %u frames, images of %u; the encoder "
                     "reads %u, %u x %u, %u, %u",
                     p->patch, p->merge, p->merge, p->temporal, p->side, keys->patch, keys->merge, keys->merge,
                     keys->temporal, keys->side);
}

rd_status image_processor_open(const char *model, const struct model_file *eyes, uint32_t max_rows,
                               struct image_processor *out, struct rd_error *err)
{
    struct image_processor keys;
    bool found = false;
    rd_status st = image_processor_of_keys(eyes, &keys, err);

    if (st == RD_OK) st = read_file(model, "preprocessor_config.json", image_processor_read, &found, out, err);
    if (st == RD_OK && !found) st = read_file(model, "processor_config.json", image_processor_read, &found, out, err);
    if (st != RD_OK) return st;
    if (!found) *out = keys;
    if (out->kind == PROCESSOR_SQUARE && keys.kind == PROCESSOR_SQUARE)
        out->merge = keys.merge; /* it is config.json's */
    out->max_rows = max_rows;
    if ((st = read_video(model, &keys, found, out, err)) != RD_OK) return st;
    return check_agreement(out, &keys, err);
}
