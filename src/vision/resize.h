/* vision/resize.h - pictures made larger and smaller, byte for byte as Pillow does it (Image.resize), which transformers'
 * processors were written on; torchvision's bytes differ from these by 1 at most.
 *
 *     out[y, x] = sum of in over the filter's support, widened by the scale where it gets smaller (antialias): rows first,
 *     then columns, each rounded to 8 bits; weights in fixed point of 22 bits
 *
 * Thread  any.  Errors  RD_E_NOMEM.
 * Source  Pillow, src/libImaging/Resample.c (the arithmetic; the code is ours). Cubic: Keys 1981, a = -1/2.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

enum resize_filter { RESIZE_BILINEAR, RESIZE_BICUBIC };

/* in [h, w, 3] to out [to_h, to_w, 3]; all sides at least 1, at most 2^16. */
rd_status resize_rgb(const uint8_t *in, uint32_t w, uint32_t h, uint8_t *out, uint32_t to_w, uint32_t to_h,
                     enum resize_filter filter);
