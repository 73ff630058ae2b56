/* tests/base/test_hash.c - digests are XXH3's, the same everywhere. */
#include "base/sip_hash.h"
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

TEST(keyed_digests_are_siphash)
{
    /* The reference implementation's vectors for the 128-bit variant: key 00 01 .. 0f, messages 00 01 .. */
    static const uint8_t message[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    const struct sip_key key = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};

    CHECK_EQ(sip_hash128(key, message, 0).low, 0xe6a825ba047f81a3u);
    CHECK_EQ(sip_hash128(key, message, 0).high, 0x930255c71472f66du);
    CHECK_EQ(sip_hash128(key, message, 3).low, 0x4ea967520cb6709cu);
    CHECK_EQ(sip_hash128(key, message, 3).high, 0x51ed8529b0b6335fu);
    CHECK_EQ(sip_hash128(key, message, 15).low, 0x11a8b03399e99354u);
    CHECK_EQ(sip_hash128(key, message, 15).high, 0xd9c3cf970fec087eu);
}
