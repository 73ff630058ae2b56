/* engine/request_images.h - the images of one request: where they lie in its prompt, and what it has of them.
 *
 * Thread  init, deinit: whoever has the request; in between the engine thread (images.h).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kv/kv_seq.h"
#include "radish/status.h"
#include "vision/vision.h"

struct image_entry;

/* Of one request, rising by place. */
struct request_images {
    uint32_t n, n_encoded; /* encoded: those that were, for this request or one that it joined */
    bool lost;             /* it reached one that cannot be encoded: no memory, or nobody has its pixels */
    struct vision_place *places;
    struct image_entry **entries; /* [n] that it has; NULL: none */
    struct kv_whole *wholes;      /* [n] */
    uint64_t encoder_ns;          /* of those that were encoded for it */
    uint64_t encoded_ns;          /* clock: when the last of them was; 0: none */
};

/* places: copied, their images referenced. NULL traits: the model sees nothing. RD_E_INVALID: images that overlap or leave
 * the n keys, or keys of rows outside of them; RD_E_UNSUPPORTED: no eyes; RD_E_NOMEM. */
rd_status request_images_init(struct request_images *ri, const struct vision_place *places, uint32_t n_places,
                              const kv_key *keys, uint32_t n, const struct vision_traits *traits, struct rd_error *err);
/* As wholes of a sequence: how much of each place a match takes at least. Matches end inside of no image whose rows see each
 * other. Else VISION_SURE_ROWS: a first key is one image's within a process alone (vision.h); pages that a disk or another
 * machine has may end behind few keys of an image that another process knew by them. */
struct kv_whole request_images_whole(const struct vision_place *place, const struct vision_traits *traits);
void request_images_deinit(struct request_images *ri);
