/* tests/support/sim_images.h - an encoder that is a lookup: an image's row is its key, so that a row that comes from another
 * image, or from another place of it, is seen at once by sim_executor.h, whose digests are of keys.
 */
#pragma once
#include "base/random.h"
#include "engine/executor.h"
#include "engine/request_images.h"

#define SIM_IMAGES 8u

struct sim_images {
    struct vision_traits traits;
    struct vision_image *images[SIM_IMAGES];
    kv_key *keys[SIM_IMAGES];
    struct random random;
    uint32_t fail_one_in;
    struct clock *clock; /* a fake one, which a piece moves on; NULL */
    uint64_t n_begun, n_ended, n_pieces, n_failed;
};

/* both_ways: rows of an image see each other; else they turn by three axes. Images of 4 to max_rows rows. */
bool sim_images_init(struct sim_images *s, bool both_ways, uint32_t max_rows, uint64_t seed);
void sim_images_deinit(struct sim_images *s);
/* x sees from now on. */
void sim_images_give(struct sim_images *s, struct executor *x);
/* Where images lie in a prompt; *n is cut where the first one begins that is not whole. Returns how many. */
uint32_t sim_images_find(const struct sim_images *s, const int32_t *prompt, uint32_t *n, struct vision_place *places);
/* Whether run i of r's rows comes as the batch's contract says: embeddings, span, axes. */
bool sim_images_are_right(const struct sim_images *s, const struct model_batch *b, uint32_t i,
                          const struct request_images *ri, const struct kv_seq *seq);
