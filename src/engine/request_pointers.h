/* engine/request_pointers.h - the pointers of one request: what was noted of them, and their points (pointing.h).
 *
 * Thread  init is zeroing; in between the engine thread; points: whoever saw that the request has ended.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "vision/pointer.h"

#define POINTERS_MOST 32u /* of one answer: those beyond get no points */

/* The tokens of such a model; is_on false: it has none. */
struct pointer_tokens {
    bool is_on;
    int32_t start, pad, end;
};

/* Of one request. */
struct request_pointers {
    float *states; /* [POINTERS_MOST, n_state], made with the first one */
    uint32_t last; /* position of the last that was noted */
    uint32_t n, n_done;
    bool ends;                   /* it has its last token, and ends once its points are there */
    struct vision_point *points; /* [POINTERS_MOST * VISION_POINTS_MOST], the best of each pointer first */
    uint32_t n_points;
};

void request_pointers_deinit(struct request_pointers *p);
