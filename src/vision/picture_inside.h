/* vision/picture_inside.h - between the decoders of vision/picture.h and what they share.
 *
 * Thread  that of the decode.
 */
#pragma once
#include "vision/picture.h"

struct picture_source {
    const uint8_t *data;
    size_t n;
    struct picture_limits limits; /* none is 0 */
    uint32_t turn;                /* EXIF's orientation, 1 to 8; 1 until a decoder has found another */
    struct rd_error *err;
};

/* The declared size is checked, then the pixels are there. format: its name, for err. */
rd_status picture_begin(struct picture_source *s, const char *format, uint64_t w, uint64_t h, struct picture *out);
bool picture_is_cancelled(const struct picture_source *s);
/* TIFF's bytes, as EXIF has them: 1 to 8; 1 where they say nothing that can be understood. */
uint32_t picture_exif_turn(const uint8_t *tiff, size_t n);
/* rgba of n pixels, on white, to rgb. */
void picture_put_on_white(const uint8_t *rgba, size_t n, uint8_t *rgb);

/* On failure what is in out is freed by the caller. */
rd_status picture_decode_jpeg(struct picture_source *s, struct picture *out);
rd_status picture_decode_png(struct picture_source *s, struct picture *out);
rd_status picture_decode_webp(struct picture_source *s, struct picture *out);
