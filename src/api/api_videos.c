/* api/api_videos.c - videos as lists of frames, decoded one after the other and made to images together. */
#include <math.h>
#include <string.h>
#include <strings.h>
#include "api/api_images_inside.h"
#include "api/api_state.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/mem.h"

#define USUAL_FPS   2.0 /* as Qwen's own utilities take frames */
#define LEAST_FPS   0.01
#define MOST_FPS    1000.0
#define MOST_PIXELS 67108864u /* of a video's frames together, while they are decoded: 192 MiB */

struct frames {
    uint32_t n, width, height;
    uint64_t n_pixels;
    struct picture *pictures; /* [n] */
    const uint8_t **rgb;      /* [n] */
};

bool api_part_is_video(const json_t *part)
{
    const char *type = api_part_type(part);

    return !strcmp(type, "video") || !strcmp(type, "video_url");
}

/* ---- the frames ---- */

/* A list of "data:..;base64,FRAME,FRAME": each by itself; NULL: no memory, or no such URL. */
static json_t *split_url(const char *url)
{
    const char *at = strchr(url, ',');
    json_t *list = json_array();

    while (list && at) {
        const char *next = strchr(at + 1, ',');
        const size_t n = next ? (size_t)(next - at - 1) : strlen(at + 1);

        if (json_array_append_new(list, json_stringn(at + 1, n)) != 0) {
            json_decref(list);
            return NULL;
        }
        at = next;
    }
    return list;
}

/* A new reference; NULL: the error is set. */
static json_t *list_of(const struct part *p)
{
    json_t *place = json_object_get(p->json, "video"), *list;
    const char *url;

    if (!place) place = json_object_get(p->json, "video_url");
    if (json_is_object(place)) place = json_object_get(place, "url");
    if (json_is_array(place)) return json_incref(place);
    url = json_string_value(place);
    if (!url) {
        api_part_bad(p, RD_E_INVALID, "the part has no video: a list of frames is wanted, each an image");
        return NULL;
    }
    if (strncasecmp(url, "data:video/jpeg;base64,", 23) != 0) {
        api_part_bad(p, RD_E_INVALID,
                     "this server opens no video files: send its frames, as a list of images or as "
                     "data:video/jpeg;base64,FRAME,FRAME,..");
        return NULL;
    }
    list = split_url(url);
    if (!list) api_part_bad(p, RD_E_NOMEM, "out of memory for the video");
    return list;
}

static rd_status read_fps(const struct part *p, double *out)
{
    const json_t *v = json_object_get(p->json, "fps");

    *out = USUAL_FPS;
    if (!v) v = json_object_get(p->json, "sample_fps");
    if (!v) v = json_object_get(json_object_get(p->json, "video_url"), "fps");
    if (!v || json_is_null(v)) return RD_OK;
    *out = json_number_value(v);
    if (json_is_number(v) && *out >= LEAST_FPS && *out <= MOST_FPS) return RD_OK;
    return api_part_bad(p, RD_E_INVALID, "fps: a number from 0.01 to 1000 is wanted");
}

/* A frame's part is an object with an image in it. */
static rd_status decode_frame(const struct part *p, json_t *frame, struct picture *out)
{
    struct part of = *p;
    json_t *own = NULL;
    rd_status st;

    if (json_is_string(frame) && !(own = json_pack("{s:s, s:O}", "type", "image", "image", frame)))
        return api_part_bad(p, RD_E_NOMEM, "out of memory for the frame");
    if (!own && !json_is_object(frame)) return api_part_bad(p, RD_E_INVALID, "an image is wanted");
    of.json = own ? own : frame;
    st = api_part_decode(&of, out);
    json_decref(own);
    return st;
}

static rd_status add_frame(const struct part *p, struct frames *f, json_t *frame)
{
    struct picture *x = &f->pictures[f->n];
    rd_status st;

    if (p->cancelled && atomic_load(p->cancelled)) return error_set(p->err, RD_E_CANCELLED, "cancelled");
    if ((st = decode_frame(p, frame, x)) != RD_OK) return st;
    f->rgb[f->n++] = x->rgb;
    f->n_pixels += (uint64_t)x->width * x->height;
    if (f->n == 1) f->width = x->width, f->height = x->height;
    if (x->width != f->width || x->height != f->height)
        return api_part_bad(p, RD_E_INVALID, "it has %u x %u pixels, the first one %u x %u", x->width, x->height,
                            f->width, f->height);
    if (f->n_pixels > MOST_PIXELS)
        return api_part_bad(p, RD_E_LIMIT, "the video's frames have more than 67 million pixels together");
    return RD_OK;
}

static rd_status read_frames(const struct part *p, json_t *list, struct frames *f)
{
    const size_t n = json_array_size(list);
    struct part of = *p;
    json_t *frame;
    rd_status st = RD_OK;
    size_t i;

    if (n == 0) return api_part_bad(p, RD_E_INVALID, "a video of no frames");
    if (n > PROCESSOR_MOST_FRAMES)
        return api_part_bad(p, RD_E_LIMIT, "a video of %zu frames, %u are allowed", n, PROCESSOR_MOST_FRAMES);
    f->pictures = mem_zalloc(n, sizeof(*f->pictures));
    f->rgb = mem_zalloc(n, sizeof(*f->rgb));
    if (!f->pictures || !f->rgb) return api_part_bad(p, RD_E_NOMEM, "out of memory for the video");
    json_array_foreach(list, i, frame)
    {
        of.frame = (uint32_t)i + 1;
        if (st == RD_OK) st = add_frame(&of, f, frame);
    }
    return st;
}

static void frames_deinit(struct frames *f)
{
    for (uint32_t i = 0; i < f->n; i++) picture_deinit(&f->pictures[i]);
    mem_free(f->pictures);
    mem_free(f->rgb);
}

/* ---- the images ---- */

/* Takes the references of images, also where it fails. */
static rd_status add_all(const struct part *p, const struct frames *f, double fps, struct vision_image **images,
                         uint32_t n, struct buf *text)
{
    const struct image_processor *processor = &p->im->engine->processor;
    rd_status st = RD_OK;

    for (uint32_t i = 0; i < n; i++) {
        if (st != RD_OK) {
            vision_image_unref(images[i]);
            continue;
        }
        st = api_part_add(p, images[i]);
        if (st == RD_OK && processor->video.in_pairs)
            buf_printf(text, "<%.1f seconds>", image_processor_seconds(processor, i, f->n, fps));
        if (st == RD_OK) buf_puts(text, p->im->list[p->im->n - 1].mark);
    }
    return st;
}

static rd_status make_images(const struct part *p, const struct frames *f, double fps, struct buf *text)
{
    const struct image_processor *processor = &p->im->engine->processor;
    const uint32_t n = image_processor_video_images(processor, f->n);
    struct vision_image **images = mem_zalloc(n ? n : 1, sizeof(struct vision_image *));
    struct rd_error why = {RD_OK, ""};
    rd_status st;

    if (!images) return api_part_bad(p, RD_E_NOMEM, "out of memory for the video");
    st = image_processor_video(processor, f->rgb, f->n, f->width, f->height, fps, images, &why);
    st = st == RD_OK ? add_all(p, f, fps, images, n, text) : api_part_failed(p, st, &why);
    mem_free(images);
    return st;
}

rd_status api_part_video(const struct part *p, struct buf *text)
{
    struct frames f = {0};
    double fps = USUAL_FPS;
    json_t *list;
    rd_status st;

    if (!image_processor_video_images(&p->im->engine->processor, 1))
        return api_part_bad(p, RD_E_INVALID, "this model takes pictures, no video");
    if (p->im->n_pictures == IMAGES_MOST) return api_part_bad(p, RD_E_LIMIT, "more than 64 images");
    p->im->n_pictures++;
    if ((st = read_fps(p, &fps)) != RD_OK) return st;
    if (!(list = list_of(p))) return p->err ? p->err->status : RD_E_INVALID;
    st = read_frames(p, list, &f);
    if (st == RD_OK) st = make_images(p, &f, fps, text);
    frames_deinit(&f);
    json_decref(list);
    return st;
}
