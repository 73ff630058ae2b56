/* tests/engine/images_rig.h - an engine over the simulated model that sees: 256 pages of 4 tokens, a clock that stands still. */
#pragma once
#include "engine/engine_state.h"
#include "sim_executor.h"
#include "sim_images.h"

#define IMAGES_RIG_ROWS 48u /* of its largest image */

struct images_rig {
    struct sim_images images; /* sim_executor.c finds it by a pointer */
    struct sim_executor x;
    struct engine *e;
    struct clock *clock;
};

/* image_bytes: of encoded images that are kept. change: the options before there is an engine; NULL: as they are. */
bool images_rig_open(struct images_rig *g, bool both_ways, uint64_t image_bytes,
                     void (*change)(struct images_rig *g, struct engine_options *o));
/* Fails the test where anything is left. */
void images_rig_close(struct images_rig *g);
