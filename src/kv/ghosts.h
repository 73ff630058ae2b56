/* kv/ghosts.h - what is not in the tree any more, and why: for telling the cause of a miss, and for nothing else.
 *
 * A ghost is the hash of a prefix up to and with the first token that went, and the cause. The hash is a sum over
 * positions, so that it can be taken along a path in any order:
 *
 *     h(root, keys[0..n)) = root's number + sum of (keys[i] + 1) * B^(i + 1)     mod 2^64
 *
 * A table of a few thousand places, each with the latest ghost of its hashes; two prefixes may share a hash, then a cause
 * is wrong and nothing else.
 * Thread  engine thread only.
 */
#pragma once
#include <stdint.h>
#include "radish/status.h"

enum ghost_cause { GHOST_NONE, GHOST_EVICTED, GHOST_EXPIRED, GHOST_CLEARED, GHOST_N_CAUSES };

#define N_GHOSTS 8192u

struct ghosts {
    uint64_t hash[N_GHOSTS];
    uint8_t cause[N_GHOSTS];
};

/* The part of the sum that keys[0..n) at position start make. */
uint64_t ghosts_sum(const uint32_t *keys, uint32_t n, uint32_t start);
void ghosts_note(struct ghosts *g, uint64_t hash, enum ghost_cause cause);
enum ghost_cause ghosts_find(const struct ghosts *g, uint64_t hash);
