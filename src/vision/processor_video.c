/* vision/processor_video.c - videos, and pictures that are seen in parts. */
#include <math.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "vision/processor_inside.h"

/* ---- pan and scan ---- */

/* Into how many a side is cut: about as many squares as it has, of at least `least` pixels. */
static uint32_t n_parts(const struct pan_scan *s, uint32_t longer, uint32_t shorter)
{
    uint32_t n = (uint32_t)floor((double)longer / shorter + 0.5), room = longer / s->least;

    n = u32_min(room, n);
    return u32_min(s->most, n < 2 ? 2 : n);
}

uint32_t image_processor_parts(const struct image_processor *p, uint32_t w, uint32_t h,
                               struct picture_part parts[PROCESSOR_MOST_PARTS])
{
    const struct pan_scan *s = &p->pan_scan;
    const bool is_wide = w >= h;
    const uint32_t longer = is_wide ? w : h, shorter = is_wide ? h : w;
    uint32_t n, size;

    if (p->kind != PROCESSOR_SQUARE || s->least == 0 || shorter == 0) return 0;
    if ((double)longer / shorter < s->least_ratio) return 0;
    n = n_parts(s, longer, shorter);
    size = u32_ceil_div(longer, n);
    if (u32_min(size, shorter) < s->least) return 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = size * i, length = at < longer ? u32_min(size, longer - at) : 0;

        if (length == 0) return i; /* parts of a few pixels each: the last one has none left */
        parts[i] = is_wide ? (struct picture_part){at, 0, length, h} : (struct picture_part){0, at, w, length};
    }
    return n;
}

/* ---- videos ---- */

uint32_t image_processor_video_images(const struct image_processor *p, uint32_t n)
{
    if (p->kind != PROCESSOR_SMART || n == 0) return 0;
    return p->video.in_pairs ? u32_ceil_div(n, p->temporal) : 1;
}

double image_processor_seconds(const struct image_processor *p, uint32_t i, uint32_t n, double fps)
{
    const uint32_t first = i * p->temporal, last = u32_min(first + p->temporal, n) - 1;

    return ((double)first / fps + (double)last / fps) / 2;
}

/* Of all frames together: as many pixels as are allowed, in time, too. */
static void size_of_all(const struct image_processor *p, uint32_t n, double w, double h, double *to_w, double *to_h)
{
    const double f = (double)p->patch * p->merge, most = (double)p->video.max_pixels,
                 least = (double)p->video.min_pixels;
    double frames = processor_round((double)n / p->temporal) * p->temporal, beta;

    if (h < f || w < f) {
        double scale = fmax(f / h, f / w);

        h = floor(h * scale), w = floor(w * scale);
    }
    *to_h = processor_round(h / f) * f;
    *to_w = processor_round(w / f) * f;
    if (frames * *to_h * *to_w > most) {
        beta = sqrt(n * h * w / most);
        *to_h = fmax(f, floor(h / beta / f) * f);
        *to_w = fmax(f, floor(w / beta / f) * f);
    } else if (frames * *to_h * *to_w < least) {
        beta = sqrt(least / (n * h * w));
        *to_h = ceil(h * beta / f) * f;
        *to_w = ceil(w * beta / f) * f;
    }
}

static rd_status size_of(const struct image_processor *p, struct processor_job *j, uint32_t n, struct rd_error *err)
{
    struct image_processor frame = *p;
    double w, h;
    rd_status st;

    frame.min_pixels = p->video.min_pixels, frame.max_pixels = p->video.max_pixels;
    st = image_processor_size(&frame, j->w, j->h, &j->to_w, &j->to_h, err); /* its limits hold in any case */
    if (st != RD_OK || !p->video.in_pairs) return st;
    size_of_all(p, n > p->temporal ? n : p->temporal, j->w, j->h, &w, &h);
    if (w > PROCESSOR_MOST_SIDE || h > PROCESSOR_MOST_SIDE)
        return error_set(err, RD_E_INVALID, "frames of %u x %u pixels would become %.0f x %.0f", j->w, j->h, w, h);
    j->to_w = (uint32_t)w, j->to_h = (uint32_t)h;
    return RD_OK;
}

rd_status image_processor_video(const struct image_processor *p, const uint8_t *const *frames, uint32_t n, uint32_t w,
                                uint32_t h, double fps, struct vision_image **out, struct rd_error *err)
{
    const uint32_t n_images = image_processor_video_images(p, n), each = p->video.in_pairs ? p->temporal : n;
    struct processor_job j = {.w = w, .h = h, .is_video = true};
    rd_status st;

    if (n == 0) return error_set(err, RD_E_INVALID, "a video of no frames");
    if (n_images == 0) return error_set(err, RD_E_INVALID, "this model takes pictures, no video");
    if (n > PROCESSOR_MOST_FRAMES)
        return error_set(err, RD_E_LIMIT, "a video of %u frames, %u are allowed", n, PROCESSOR_MOST_FRAMES);
    if ((st = size_of(p, &j, n, err)) != RD_OK) return st;
    if (p->video.tokens_per_second) j.t_step = (float)p->video.tokens_per_second * (float)(p->temporal / fps);
    for (uint32_t i = 0; i < n_images; i++) {
        j.frames = frames + (size_t)i * each;
        j.n = u32_min(each, n - i * each);
        if ((st = processor_make(p, &j, &out[i], err)) == RD_OK) continue;
        while (i-- > 0) vision_image_unref(out[i]);
        return st;
    }
    return RD_OK;
}
