/* engine/gaps.h - the times between one request's tokens, kept as counts in steps of an eighth of an octave: a percentile
 * of thousands of gaps in 700 bytes, within 5 %.
 *
 * Units   nanoseconds.  Thread  engine thread only.
 */
#pragma once
#include <stdint.h>

#define GAPS_PER_OCTAVE 8u
#define GAPS_MIN_LOG2   13u /* 8 us and below: the first */
#define GAPS_OCTAVES    22u /* 34 s and above: the last */

struct gaps {
    uint32_t n, counts[GAPS_PER_OCTAVE * GAPS_OCTAVES];
};

void gaps_add(struct gaps *g, uint64_t ns);
/* The gap that a share (0 .. 1) of them does not exceed; 0: there are none. */
double gaps_quantile(const struct gaps *g, double share);
