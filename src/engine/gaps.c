/* engine/gaps.c - the highest bits of a gap are its place. */
#include "engine/gaps.h"
#include <math.h>

#define N_COUNTS (GAPS_PER_OCTAVE * GAPS_OCTAVES)

void gaps_add(struct gaps *g, uint64_t ns)
{
    uint32_t at = 0;

    if (ns >> GAPS_MIN_LOG2) {
        uint32_t log2 = 63 - (uint32_t)__builtin_clzll(ns);

        at = (log2 - GAPS_MIN_LOG2) * GAPS_PER_OCTAVE + (uint32_t)(ns >> (log2 - 3) & (GAPS_PER_OCTAVE - 1));
    }
    g->counts[at < N_COUNTS ? at : N_COUNTS - 1]++;
    g->n++;
}

double gaps_quantile(const struct gaps *g, double share)
{
    uint64_t want = (uint64_t)ceil(share * g->n), seen = 0;
    uint32_t at = 0;

    if (g->n == 0) return 0;
    for (at = 0; at + 1 < N_COUNTS; at++)
        if ((seen += g->counts[at]) >= want && seen > 0) break;
    /* the middle of its place: (8 + part) / 8 of a power of two */
    return ldexp((GAPS_PER_OCTAVE + at % GAPS_PER_OCTAVE + 0.5) / GAPS_PER_OCTAVE,
                 (int)(GAPS_MIN_LOG2 + at / GAPS_PER_OCTAVE));
}
