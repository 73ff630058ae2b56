/* base/hash.c - XXH3 from xxhash.h. */
#include "base/hash.h"
#define XXH_INLINE_ALL /* the header alone: a cross build has no library */
#include <xxhash.h>

struct hash128 hash128_of(const void *data, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(data, n);

    return (struct hash128){h.low64, h.high64};
}

uint64_t hash64_of(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}
