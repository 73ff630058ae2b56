/* vision/processor.c - see the header. */
#include "vision/processor_inside.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/json_read.h"
#include "base/mem.h"
#include "base/sha.h"

#define FORM "radish image 2" /* another meaning of the same bytes gets another name */

#define MOST_ROWS (1u << 19) /* so that no count overflows */

/* ---- its file ---- */

static rd_status read_u64(const json_t *o, const char *name, uint64_t least, uint64_t most, uint64_t *out,
                          struct rd_error *err)
{
    const json_t *v = json_object_get(o, name);

    if (!v || json_is_null(v)) return RD_OK;
    if (!json_is_integer(v) || json_integer_value(v) < (json_int_t)least || json_integer_value(v) > (json_int_t)most)
        return error_set(err, RD_E_FORMAT, "%s: an integer from %llu to %llu is expected", name,
                         (unsigned long long)least, (unsigned long long)most);
    *out = (uint64_t)json_integer_value(v);
    return RD_OK;
}

static rd_status read_u32(const json_t *o, const char *name, uint32_t most, uint32_t *out, struct rd_error *err)
{
    uint64_t v = *out;
    rd_status st = read_u64(o, name, 1, most, &v, err);

    *out = (uint32_t)v;
    return st;
}

static rd_status read_three(const json_t *o, const char *name, bool above_0, float out[3], struct rd_error *err)
{
    const json_t *v = json_object_get(o, name);

    if (!v || json_is_null(v)) return RD_OK;
    for (size_t i = 0; i < 3; i++) {
        double x = json_number_value(json_array_get(v, i));

        if (json_array_size(v) != 3 || !json_is_number(json_array_get(v, i)) || !(fabs(x) < 1e6) ||
            (above_0 && !(x > 0)))
            return error_set(err, RD_E_FORMAT, "%s: three numbers%s are expected", name, above_0 ? " above 0" : "");
        out[i] = (float)x;
    }
    return RD_OK;
}

/* PIL's numbers of filters. */
static rd_status read_filter(const json_t *o, enum resize_filter *out, struct rd_error *err)
{
    const json_t *v = json_object_get(o, "resample");

    if (!v || json_is_null(v)) return RD_OK;
    if (!json_is_integer(v) || (json_integer_value(v) != 2 && json_integer_value(v) != 3))
        return error_set(err, RD_E_UNSUPPORTED, "resample: 2 (bilinear) or 3 (bicubic) is known");
    *out = json_integer_value(v) == 2 ? RESIZE_BILINEAR : RESIZE_BICUBIC;
    return RD_OK;
}

static rd_status read_size(const json_t *o, struct image_processor *p, struct rd_error *err)
{
    const json_t *size = json_object_get(o, "size");
    uint64_t h = p->side, w = p->side;
    rd_status st = RD_OK;

    if (p->kind == PROCESSOR_SQUARE) {
        st = read_u64(size, "height", 1, 8192, &h, err);
        if (st == RD_OK) st = read_u64(size, "width", 1, 8192, &w, err);
        if (st == RD_OK && (h != w || h % p->patch))
            return error_set(err, RD_E_UNSUPPORTED, "size: %llu x %llu is no square of whole patches",
                             (unsigned long long)h, (unsigned long long)w);
        p->side = (uint32_t)h;
        return st;
    }
    st = read_u64(size, "shortest_edge", 1, 1u << 30, &p->min_pixels, err); /* pixels, by their use */
    if (st == RD_OK) st = read_u64(size, "longest_edge", 1, 1u << 30, &p->max_pixels, err);
    if (st == RD_OK) st = read_u64(size, "min_pixels", 1, 1u << 30, &p->min_pixels, err);
    if (st == RD_OK) st = read_u64(size, "max_pixels", 1, 1u << 30, &p->max_pixels, err);
    if (st == RD_OK) st = read_u64(o, "min_pixels", 1, 1u << 30, &p->min_pixels, err);
    if (st == RD_OK) st = read_u64(o, "max_pixels", 1, 1u << 30, &p->max_pixels, err);
    if (st == RD_OK && p->min_pixels > p->max_pixels)
        return error_set(err, RD_E_FORMAT, "min_pixels is more than max_pixels");
    return st;
}

/* Those that are switched off would change what the encoder sees. */
static rd_status check_steps(const json_t *o, struct rd_error *err)
{
    static const char *const steps[] = {"do_resize", "do_rescale", "do_normalize"};

    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        if (json_is_false(json_object_get(o, steps[i])))
            return error_set(err, RD_E_UNSUPPORTED, "%s: false is not known", steps[i]);
    return RD_OK;
}

static rd_status read_members(const json_t *o, struct image_processor *p, struct rd_error *err)
{
    const json_t *rescale = json_object_get(o, "rescale_factor");
    rd_status st = check_steps(o, err);

    if (st == RD_OK) st = read_u32(o, "patch_size", 1024, &p->patch, err);
    if (st == RD_OK && p->kind == PROCESSOR_SMART) st = read_u32(o, "merge_size", 16, &p->merge, err);
    if (st == RD_OK && p->kind == PROCESSOR_SMART) st = read_u32(o, "temporal_patch_size", 16, &p->temporal, err);
    if (st == RD_OK) st = read_size(o, p, err);
    if (st == RD_OK) st = read_filter(o, &p->filter, err);
    if (st == RD_OK) st = read_three(o, "image_mean", false, p->mean, err);
    if (st == RD_OK) st = read_three(o, "image_std", true, p->std, err);
    if (st == RD_OK && rescale && !(json_is_number(rescale) && json_number_value(rescale) > 0))
        return error_set(err, RD_E_FORMAT, "rescale_factor: a number above 0 is expected");
    if (st == RD_OK && rescale) p->rescale = json_number_value(rescale);
    return st;
}

static rd_status read_pan_scan(const json_t *o, struct pan_scan *out, struct rd_error *err)
{
    const json_t *ratio = json_object_get(o, "pan_and_scan_min_ratio_to_activate");
    rd_status st = read_u32(o, "pan_and_scan_min_crop_size", PROCESSOR_MOST_SIDE, &out->least, err);

    if (st == RD_OK) st = read_u32(o, "pan_and_scan_max_num_crops", PROCESSOR_MOST_PARTS, &out->most, err);
    if (st == RD_OK && ratio && !json_is_null(ratio)) {
        out->least_ratio = json_number_value(ratio);
        if (!(out->least_ratio > 0))
            st = error_set(err, RD_E_FORMAT, "pan_and_scan_min_ratio_to_activate: a number above 0 is expected");
    }
    out->is_on = json_is_true(json_object_get(o, "do_pan_and_scan"));
    return st;
}

rd_status image_processor_read_video(const char *json, size_t n, struct image_processor *p, struct rd_error *err)
{
    json_error_t why;
    json_t *whole = json_read(json, n, 0, &why);
    const json_t *o = json_object_get(whole, "video_processor");
    struct image_processor sizes = *p;
    rd_status st;

    if (!whole)
        return json_error_code(&why) == json_error_out_of_memory
                   ? error_set(err, RD_E_NOMEM, "out of memory for a video processor")
                   : error_set(err, RD_E_FORMAT, "line %d: %s", why.line, why.text);
    if (!o && json_object_get(whole, "video_processor_type")) o = whole;
    sizes.min_pixels = p->video.min_pixels, sizes.max_pixels = p->video.max_pixels;
    st = o && p->kind == PROCESSOR_SMART ? read_size(o, &sizes, err) : RD_OK;
    if (st == RD_OK && p->kind == PROCESSOR_SMART)
        p->video.min_pixels = sizes.min_pixels, p->video.max_pixels = sizes.max_pixels;
    json_decref(whole);
    return st;
}

rd_status image_processor_read(const char *json, size_t n, struct image_processor *out, struct rd_error *err)
{
    static const struct image_processor smart = {.kind = PROCESSOR_SMART,
                                                 .filter = RESIZE_BICUBIC,
                                                 .patch = 14,
                                                 .merge = 2,
                                                 .temporal = 2,
                                                 .min_pixels = 56 * 56,
                                                 .max_pixels = 28 * 28 * 1280,
                                                 .rescale = 1.0 / 255,
                                                 .mean = {0.48145466f, 0.4578275f, 0.40821073f},
                                                 .std = {0.26862954f, 0.26130258f, 0.27577711f}};
    static const struct image_processor square = {.kind = PROCESSOR_SQUARE,
                                                  .filter = RESIZE_BILINEAR,
                                                  .patch = 14,
                                                  .merge = 4,
                                                  .temporal = 1,
                                                  .side = 896,
                                                  .rescale = 1.0 / 255,
                                                  .mean = {0.5f, 0.5f, 0.5f},
                                                  .std = {0.5f, 0.5f, 0.5f},
                                                  .pan_scan = PAN_SCAN_USUAL};
    json_error_t why;
    json_t *whole = json_read(json, n, 0, &why);
    const json_t *o = json_object_get(whole, "image_processor");
    const char *type;
    rd_status st;

    if (!whole)
        return json_error_code(&why) == json_error_out_of_memory
                   ? error_set(err, RD_E_NOMEM, "out of memory for an image processor")
                   : error_set(err, RD_E_FORMAT, "line %d: %s", why.line, why.text);
    if (!o) o = whole;
    type = json_string_value(json_object_get(o, "image_processor_type"));
    if (type && (!strncmp(type, "Qwen2VLImageProcessor", 21) || !strncmp(type, "Qwen2_5_VLImageProcessor", 24))) {
        *out = smart;
        st = read_members(o, out, err);
    } else if (type && !strncmp(type, "Gemma3ImageProcessor", 20)) {
        *out = square;
        st = read_members(o, out, err);
        if (st == RD_OK) st = read_pan_scan(o, &out->pan_scan, err);
    } else {
        st = error_set(err, RD_E_UNSUPPORTED, "image_processor_type %s%s%s is not known", type ? "\"" : "",
                       type ? type : "(none)", type ? "\"" : "");
    }
    json_decref(whole);
    return st;
}

/* ---- sizes ---- */

/* Halves to the even one, as Python's. */
double processor_round(double x)
{
    double down = floor(x), rest = x - down;

    if (rest != 0.5) return floor(x + 0.5);
    return fmod(down, 2) == 0 ? down : down + 1;
}

static void smart_size(const struct image_processor *p, double w, double h, double *to_w, double *to_h)
{
    double f = (double)p->patch * p->merge, beta;

    *to_h = processor_round(h / f) * f;
    *to_w = processor_round(w / f) * f;
    if (*to_h * *to_w > (double)p->max_pixels) {
        beta = sqrt(h * w / (double)p->max_pixels);
        *to_h = fmax(f, floor(h / beta / f) * f);
        *to_w = fmax(f, floor(w / beta / f) * f);
    } else if (*to_h * *to_w < (double)p->min_pixels) {
        beta = sqrt((double)p->min_pixels / (h * w));
        *to_h = ceil(h * beta / f) * f;
        *to_w = ceil(w * beta / f) * f;
    }
}

rd_status image_processor_size(const struct image_processor *p, uint32_t w, uint32_t h, uint32_t *to_w, uint32_t *to_h,
                               struct rd_error *err)
{
    uint32_t shorter = w < h ? w : h, longer = w < h ? h : w;
    double dw, dh;

    if (shorter == 0 || longer > PROCESSOR_MOST_SIDE)
        return error_set(err, RD_E_INVALID, "a picture of %u x %u pixels: sides of 1 to %u are taken", w, h,
                         PROCESSOR_MOST_SIDE);
    if (p->kind == PROCESSOR_SQUARE) {
        if (p->side < p->patch * p->merge)
            return error_set(err, RD_E_INVALID,
                             "images of %u x %u pixels have no token: one takes %u x %u patches of %u", p->side,
                             p->side, p->merge, p->merge, p->patch);
        *to_w = *to_h = p->side;
        return RD_OK;
    }
    if (longer > (uint64_t)PROCESSOR_MOST_ASPECT * shorter)
        return error_set(err, RD_E_INVALID,
                         "a picture of %u x %u pixels is too narrow: one side is more than %u times the other", w, h,
                         PROCESSOR_MOST_ASPECT);
    smart_size(p, w, h, &dw, &dh);
    if (dw > PROCESSOR_MOST_SIDE || dh > PROCESSOR_MOST_SIDE)
        return error_set(err, RD_E_INVALID, "a picture of %u x %u pixels would become %.0f x %.0f", w, h, dw, dh);
    *to_w = (uint32_t)dw, *to_h = (uint32_t)dh;
    return RD_OK;
}

/* ---- values ---- */

static void digest_of(const struct image_processor *p, const struct processor_job *j, uint8_t digest[VISION_DIGEST])
{
    char text[512];
    struct sha s;
    int length =
        snprintf(text, sizeof(text),
                 FORM " %016llx%016llx %d %d %u %u %u %u %llu %llu %a %a %a %a %a %a %a: %u frames of %u x %u\n",
                 (unsigned long long)p->eyes.high, (unsigned long long)p->eyes.low, p->kind, p->filter, p->patch,
                 p->merge, p->temporal, p->side, (unsigned long long)p->min_pixels, (unsigned long long)p->max_pixels,
                 p->rescale, (double)p->mean[0], (double)p->mean[1], (double)p->mean[2], (double)p->std[0],
                 (double)p->std[1], (double)p->std[2], j->n, j->w, j->h);

    if (j->is_video) /* sizes follow from the number of frames as well; positions from its speed */
        length += snprintf(text + length, sizeof(text) - (size_t)length, "video of %u x %u, %a\n", j->to_w, j->to_h,
                           (double)j->t_step);
    sha256_begin(&s);
    sha_add(&s, text, (size_t)length);
    for (uint32_t i = 0; i < j->n; i++) sha_add(&s, j->frames[i], (size_t)j->w * j->h * 3);
    sha_end_bytes(&s, digest);
}

/* What each byte of each channel becomes, as torchvision: (x - mean / rescale) / (std / rescale), in f32. */
static void make_tables(const struct image_processor *p, float tables[3][256])
{
    for (int c = 0; c < 3; c++) {
        float mean = (float)(p->mean[c] * (1.0 / p->rescale)), std = (float)(p->std[c] * (1.0 / p->rescale));

        for (int x = 0; x < 256; x++) tables[c][x] = ((float)x - mean) / std;
    }
}

/* [3, h, w] of [h, w, 3]. */
static void put_planes(const uint8_t *rgb, size_t n_pixels, float tables[3][256], float *out)
{
    for (size_t i = 0; i < n_pixels; i++)
        for (size_t c = 0; c < 3; c++) out[c * n_pixels + i] = tables[c][rgb[3 * i + c]];
}

/* Frame f of its patch's, whose rows begin at values: patches of a block of merge x merge one after the other. */
static void put_patches(const struct image_processor *p, const uint8_t *rgb, uint32_t w, uint32_t h, uint32_t f,
                        float tables[3][256], float *values)
{
    size_t area = (size_t)p->patch * p->patch, row_floats = 3 * p->temporal * area;
    uint32_t grid_w = w / p->patch, m = p->merge;

    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++) {
            uint32_t py = y / p->patch, px = x / p->patch;
            size_t block = (size_t)(py / m) * (grid_w / m) + px / m;
            float *row = values + (block * m * m + (size_t)(py % m) * m + px % m) * row_floats;
            size_t at = f * area + (size_t)(y % p->patch) * p->patch + x % p->patch;

            for (size_t c = 0; c < 3; c++)
                row[c * p->temporal * area + at] = tables[c][rgb[3 * ((size_t)y * w + x) + c]];
        }
}

static rd_status fill(const struct image_processor *p, const struct processor_job *j, struct vision_image *v)
{
    const uint32_t to_w = j->to_w, to_h = j->to_h;
    uint8_t *resized = mem_alloc((size_t)to_w * to_h, 3);
    size_t frame_floats = (size_t)to_w * to_h * 3 * p->temporal;
    float tables[3][256];
    rd_status st = resized ? RD_OK : RD_E_NOMEM;

    make_tables(p, tables);
    for (uint32_t i = 0; st == RD_OK && i < v->t * p->temporal; i++) {
        if (i < j->n) /* else the last one once more */
            st = resize_rgb(j->frames[i], j->w, j->h, resized, to_w, to_h, p->filter);
        if (st != RD_OK) break;
        if (p->kind == PROCESSOR_SQUARE)
            put_planes(resized, (size_t)to_w * to_h, tables, v->values);
        else
            put_patches(p, resized, to_w, to_h, i % p->temporal, tables, v->values + i / p->temporal * frame_floats);
    }
    mem_free(resized);
    return st;
}

rd_status processor_make(const struct image_processor *p, const struct processor_job *j, struct vision_image **out,
                         struct rd_error *err)
{
    const uint32_t most = p->max_rows ? p->max_rows : MOST_ROWS;
    const uint64_t n_rows = u32_ceil_div(j->n, p->temporal) * image_processor_rows(p, j->to_w, j->to_h);
    struct vision_image *v;
    rd_status st;

    if (n_rows > most)
        return error_set(err, RD_E_LIMIT, "%s of %u x %u pixels takes %llu tokens, %u are allowed",
                         j->is_video ? "a video" : "a picture", j->w, j->h, (unsigned long long)n_rows, most);
    v = mem_zalloc(1, sizeof(*v));
    if (!v) return error_set(err, RD_E_NOMEM, "out of memory for an image");
    atomic_init(&v->n_refs, 1);
    v->t = u32_ceil_div(j->n, p->temporal);
    v->h = j->to_h / p->patch, v->w = j->to_w / p->patch;
    v->t_step = j->t_step;
    v->merge = p->merge;
    v->n_rows = (uint32_t)n_rows;
    v->width = j->w, v->height = j->h;
    digest_of(p, j, v->digest);
    v->n_values = v->t * p->temporal * j->to_w * j->to_h * 3;
    v->values = mem_alloc(v->n_values, sizeof(float));
    st = v->values ? fill(p, j, v) : RD_E_NOMEM;
    if (st != RD_OK) {
        vision_image_unref(v);
        return error_set(err, st, "out of memory for an image of %u tokens", (uint32_t)n_rows);
    }
    *out = v;
    return RD_OK;
}

rd_status image_processor_run(const struct image_processor *p, const uint8_t *const *frames, uint32_t n, uint32_t w,
                              uint32_t h, struct vision_image **out, struct rd_error *err)
{
    struct processor_job j = {.frames = frames, .n = n, .w = w, .h = h};
    rd_status st = image_processor_size(p, w, h, &j.to_w, &j.to_h, err);

    if (st != RD_OK) return st;
    if (n == 0 || (p->kind == PROCESSOR_SQUARE && n != 1))
        return error_set(err, RD_E_INVALID, n ? "this model takes pictures, no video" : "a video of no frames");
    return processor_make(p, &j, out, err);
}
