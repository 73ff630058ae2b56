/* backend/pin_map.h - which host memory is pinned, range by range: one copy never leaves the range that it begins in.
 *
 * Pages that lie side by side on the device and in host memory go in one copy. A driver refuses a copy whose host memory
 * was pinned in two calls, or only in part, even where the two ranges touch: so what is joined ends at a range's border.
 *
 * Thread  any; one lock. Errors  add: see there.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/thread.h"

struct pin_range {
    uintptr_t begin, end;
};
struct pin_map {
    struct mutex lock;
    struct pin_range *ranges; /* [n], by address, none overlaps another */
    size_t n, cap;
};

void pin_map_init(struct pin_map *m);
void pin_map_deinit(struct pin_map *m);
/* False: no memory, nothing of it, or it overlaps what is there; nothing has changed. */
bool pin_map_add(struct pin_map *m, const void *p, uint64_t n_bytes);
/* The range that begins at p. False: there is none. */
bool pin_map_remove(struct pin_map *m, const void *p);
/* Of n >= 1 pieces of n_bytes each, device[i] and host[i], how many of the first go in one copy: neighbours on both
 * sides, and all of their host memory in one range, or in none. */
uint32_t pin_map_run(struct pin_map *m, uint32_t n, void *const *device, void *const *host, uint64_t n_bytes);
