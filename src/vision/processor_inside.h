/* vision/processor_inside.h - what processor.c makes, whoever says of which size.
 *
 * Thread  any.
 */
#pragma once
#include "vision/processor.h"

/* What the processor of Gemma 3 has where its file does not say. */
#define PAN_SCAN_USUAL                                                                                                 \
    {                                                                                                                  \
        .least = 256, .most = 4, .least_ratio = 1.2                                                                    \
    }

struct processor_job {
    const uint8_t *const *frames; /* n of [h, w, 3] */
    uint32_t n, w, h, to_w, to_h; /* to: whole rows */
    bool is_video;
    float t_step; /* struct vision_image's */
};

/* RD_E_LIMIT, RD_E_NOMEM. */
rd_status processor_make(const struct image_processor *p, const struct processor_job *j, struct vision_image **out,
                         struct rd_error *err);
/* Halves to the even one, as Python's. */
double processor_round(double x);
