/* base/hash.h - fast 128-bit and 64-bit digests of bytes: keys of caches, checks against damage.
 *
 * Not cryptographic: who can write the bytes can make two of a kind. The values are the same on every machine and may
 * be stored in files.
 * Thread  any thread.
 * Source  XXH3, the xxhash project; libxxhash computes it at about the speed of memory.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash128 {
    uint64_t low, high;
};

struct hash128 hash128_of(const void *data, size_t n);
uint64_t hash64_of(const void *data, size_t n);
static inline bool hash128_equal(struct hash128 a, struct hash128 b)
{
    return a.low == b.low && a.high == b.high;
}
