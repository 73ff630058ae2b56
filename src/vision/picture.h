/* vision/picture.h - the bytes of a picture's file to upright RGB, as transformers has them (convert_to_rgb).
 *
 *     JPEG   grey, YCbCr, RGB, CMYK, YCCK; baseline and progressive       libjpeg-turbo
 *     PNG    all kinds; 16 bits: the high byte; of an APNG its picture    libpng
 *     WebP   lossy, lossless, alpha; one picture                          libwebp
 *
 * What is transparent lies on white. EXIF's orientation is applied; colour profiles are not. The format is told by the first
 * bytes, whatever a client calls it. GIF, animated WebP, BMP, TIFF, HEIC and AVIF are refused by name.
 *
 * Bounded: the size that the file declares is checked before anything of it is allocated, so that a bomb costs at most
 * 3 bytes a pixel here (4 with alpha), and in libjpeg 6 more for a progressive one. A file that ends early is refused.
 *
 * Memory  the pixels and all of libpng by base/mem.h; libjpeg and libwebp take theirs from the C library.
 * Thread  any; *cancelled is written by any thread.
 * Errors  RD_E_FORMAT what is wrong with the file; RD_E_UNSUPPORTED names the format; RD_E_LIMIT gives size and limit;
 *         RD_E_CANCELLED; RD_E_NOMEM. *out is zeroed then.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

#define PICTURE_MOST_BYTES  ((size_t)64 << 20)  /* of a file */
#define PICTURE_MOST_PIXELS ((uint64_t)1 << 26) /* 8,192 x 8,192 */
#define PICTURE_MOST_SIDE   65535u

struct picture {
    uint32_t width, height; /* upright */
    uint8_t *rgb;           /* [height, width, 3] */
};

struct picture_limits {
    size_t max_bytes;    /* 0: PICTURE_MOST_BYTES */
    uint64_t max_pixels; /* 0: PICTURE_MOST_PIXELS */
    /* Before anything is allocated for a picture of that size, as it is stored; not RD_OK: it ends with that, err set by
     * picture_decode's caller. NULL: nobody is asked. */
    rd_status (*admit)(void *arg, uint32_t w, uint32_t h);
    void *admit_arg;
    const atomic_bool *cancelled; /* looked at every few rows; NULL: never */
};

/* Whether this program was built with the three libraries. Without them decode is RD_E_UNSUPPORTED. */
bool picture_is_built(void);
/* limits: NULL: the defaults. */
rd_status picture_decode(const uint8_t *data, size_t n, const struct picture_limits *limits, struct picture *out,
                         struct rd_error *err);
/* Zeroed ones are fine. */
void picture_deinit(struct picture *p);
