/* base/histogram.h - how often a quantity had which size: counts between fixed bounds, and the sum of all values.
 *
 *     bounds        10        100       1000              ascending, in the quantity's unit
 *     counts   ..10    11..100   101..1000   1001..       one more than bounds
 *
 * One thread adds and any thread reads, without a lock and without an instruction that locks. A reader may find a value
 * counted that is not in the sum yet, never half of one.
 *
 * Units   integers of the caller's: nanoseconds, tokens.
 * Thread  histogram_add: one at a time (the atomics are stored by it alone, relaxed: each number stands for itself).
 *         histogram_read: any.
 */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

#define HISTOGRAM_BOUNDS_MAX 24u

struct histogram_bounds {
    uint32_t n;
    uint64_t at[HISTOGRAM_BOUNDS_MAX];
};

/* Zeroed, and bounds set: empty. */
struct histogram {
    const struct histogram_bounds *bounds; /* borrowed, constant */
    atomic_uint_fast64_t counts[HISTOGRAM_BOUNDS_MAX + 1], sum;
};

void histogram_add(struct histogram *h, uint64_t value);
/* counts: the caller's array of bounds->n + 1. */
void histogram_read(const struct histogram *h, uint64_t *counts, uint64_t *sum);
