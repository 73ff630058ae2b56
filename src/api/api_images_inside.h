/* api/api_images_inside.h - a part of a message on its way to images: between api_images.c and api_videos.c.
 *
 * Thread  as api_images.h.
 */
#pragma once
#include <jansson.h>
#include "api/api_images.h"
#include "base/buf.h"
#include "vision/picture.h"

/* A part, and how errors name it. */
struct part {
    struct api_images *im;
    const json_t *json; /* of a frame: what stands in its place */
    size_t message, i;
    uint32_t frame; /* 1 ..: of a video; 0: it is none */
    bool may_wait;  /* image_source_read's */
    const atomic_bool *cancelled;
    struct rd_error *err;
    rd_status refused; /* room for its pixels */
};

rd_status __attribute__((format(printf, 3, 4)))
api_part_bad(const struct part *p, rd_status st, const char *format, ...);
/* What went wrong with a picture or a processor, as this part's. */
rd_status api_part_failed(const struct part *p, rd_status st, const struct rd_error *why);
const char *api_part_type(const json_t *part);
/* The picture of the part, of picture_deinit by the caller. */
rd_status api_part_decode(const struct part *p, struct picture *out);
/* One more image of the request, with its mark; image's reference is taken also on failure. */
rd_status api_part_add(const struct part *p, struct vision_image *image);

/* api_videos.c */
bool api_part_is_video(const json_t *part);
/* Its images are added; what stands in its place in the text, marks and all, is in `text`. */
rd_status api_part_video(const struct part *p, struct buf *text);
