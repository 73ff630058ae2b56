/* tests/base/test_hash.c - digests are XXH3's, the same everywhere. */
#include "base/hash.h"
#include <string.h>
#include "test.h"

TEST(digests_are_xxh3)
{
    /* Of no bytes: the values that the xxhash project's own tests state. */
    CHECK_EQ(hash64_of("", 0), 0x2d06800538d394c2u);
    CHECK_EQ(hash128_of("", 0).low, 0x6001c324468d497fu);
    CHECK_EQ(hash128_of("", 0).high, 0x99aa06d3014798d8u);
}

TEST(every_bit_counts)
{
    uint8_t bytes[300];

    memset(bytes, 7, sizeof(bytes));
    const struct hash128 before = hash128_of(bytes, sizeof(bytes));
    const uint64_t before64 = hash64_of(bytes, sizeof(bytes));

    for (size_t bit = 0; bit < sizeof(bytes) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!hash128_equal(hash128_of(bytes, sizeof(bytes)), before));
        CHECK(hash64_of(bytes, sizeof(bytes)) != before64);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    CHECK(hash128_equal(hash128_of(bytes, sizeof(bytes)), before));
}
