/* api/image_pot.h - the memory of images on their way: reserved before they are decoded, given back when pixels go.
 *
 *     declared size --take--> decoded, processed --give: what decoding took--> values --give: when they are freed
 *
 * Nobody can have all of it: a tenant has at most IMAGE_POT_SHARE times of what is still free. Alone that is three quarters, and
 * whoever takes what it can leaves a quarter of what it found to those who come next.
 *
 * Thread  any thread.
 * Errors  RD_E_FULL: images of other requests have it, now; RD_E_LIMIT: more than a tenant can have at any time.
 */
#pragma once
#include <stdint.h>
#include "base/thread.h"
#include "radish/status.h"

#define IMAGE_POT_BYTES (1ull << 30)
#define IMAGE_POT_SHARE 3u
#define IMAGE_POT_MOST                                                                                                 \
    (IMAGE_POT_BYTES / (IMAGE_POT_SHARE + 1) * IMAGE_POT_SHARE) /* of a tenant, where nobody else has any */
#define IMAGE_POT_SLOTS 64u                                     /* tenants whose hashes meet in one are one */

struct image_pot {
    struct mutex lock;
    uint64_t total, slots[IMAGE_POT_SLOTS]; /* bytes */
};

void image_pot_init(struct image_pot *p);
void image_pot_deinit(struct image_pot *p);
/* tenant: a hash. */
rd_status image_pot_take(struct image_pot *p, uint64_t tenant, uint64_t n);
void image_pot_give(struct image_pot *p, uint64_t tenant, uint64_t n);
