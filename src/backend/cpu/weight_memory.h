/* backend/cpu/weight_memory.h - where packed weights lie: close together in big mappings.
 *
 * Decode reads every weight once per token, in the order in which they were loaded. In huge pages that is a sixth faster
 * than in small ones, and most matrices are smaller than a huge page, so they share mappings. One is unmapped when the
 * last of its weights is released; room is not used twice.
 * Thread  one at a time.
 * Errors  RD_E_NOMEM: nothing was taken.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

struct weight_chunk;
struct weight_memory {
    struct weight_chunk *chunks;
}; /* zeros to begin with */

/* n_bytes zeros at a multiple of 64. */
rd_status weight_memory_take(struct weight_memory *m, uint64_t n_bytes, void **out);
/* p: from take, or NULL. */
void weight_memory_release(struct weight_memory *m, const void *p);
/* All weights were released. */
void weight_memory_deinit(struct weight_memory *m);
