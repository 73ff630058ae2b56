/* tests/base/test_random.c - known answers, ranges, and rough uniformity. */
#include "base/random.h"
#include "test.h"

/* Philox4x32-10 again, for all four words of counter and result, so that the published vectors with 128-bit counters
 * can be checked, and then this against random_at(). */
static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t k[2] = {key[0], key[1]};

    memcpy(out, counter, 16);
    for (int i = 0; i < 10; i++) {
        uint64_t a = 0xD2511F53ull * out[0], b = 0xCD9E8D57ull * out[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ out[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ out[3] ^ k[1],
                            (uint32_t)a};
        memcpy(out, next, 16);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
}

TEST(philox_gives_the_published_answers)
{
    /* Known-answer vectors of Philox4x32-10: zeros, ones, digits of pi. */
    static const uint32_t counters[3][4] = {
        {0}, {~0u, ~0u, ~0u, ~0u}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
    static const uint32_t keys[3][2] = {{0}, {~0u, ~0u}, {0xa4093822, 0x299f31d0}};
    static const uint32_t want[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                        {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                        {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    uint32_t got[4];

    for (int i = 0; i < 3; i++) {
        philox(counters[i], keys[i], got);
        CHECK_EQ(memcmp(got, want[i], 16), 0);
    }
    CHECK_EQ((int64_t)random_at(0, 0), (int64_t)0xe169c58d6627e8d5ull);
}

TEST(random_at_depends_on_seed_and_counter_only)
{
    struct random r;

    random_init(&r, test_seed());
    for (int i = 0; i < 10000; i++) {
        uint64_t seed = random_u64(&r), counter = random_u64(&r);
        uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0};
        uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, out[4];
        philox(c, k, out);
        CHECK_EQ((int64_t)random_at(seed, counter), (int64_t)((uint64_t)out[1] << 32 | out[0]));
        double u = random_at_unit(seed, counter);
        CHECK(u >= 0 && u < 1);
    }
}

TEST(xoshiro_follows_its_definition)
{
    /* From the state {1,2,3,4}: rotl(s1 * 5, 7) * 9, computed by hand for the first two. */
    struct random r = {{1, 2, 3, 4}};

    CHECK_EQ((int64_t)random_u64(&r), 11520);
    CHECK_EQ((int64_t)random_u64(&r), 0);
    CHECK_EQ((int64_t)random_u64(&r), 1509978240);
}

TEST(equal_seeds_give_equal_rows_and_others_differ)
{
    struct random a, b, c;

    random_init(&a, 42);
    random_init(&b, 42);
    random_init(&c, 43);
    int n_equal = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t v = random_u64(&a);
        CHECK(v == random_u64(&b));
        n_equal += v == random_u64(&c);
    }
    CHECK_EQ(n_equal, 0);
}

TEST(below_stays_below_and_is_even)
{
    struct random r;
    uint32_t counts[7] = {0};

    random_init(&r, test_seed());
    for (int i = 0; i < 70000; i++) counts[random_below(&r, 7)]++;
    for (int i = 0; i < 7; i++) CHECK(counts[i] > 9400 && counts[i] < 10600); /* six sigma */
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ(random_below(&r, 1), 0);
        CHECK(random_below(&r, (UINT64_MAX / 2) + 2) <= UINT64_MAX / 2 + 1);
    }
}

TEST(unit_fills_the_interval)
{
    struct random r;
    double sum = 0, low = 1, high = 0;

    random_init(&r, test_seed());
    for (int i = 0; i < 100000; i++) {
        double u = random_unit(&r);
        CHECK(u >= 0 && u < 1);
        sum += u;
        if (u < low) low = u;
        if (u > high) high = u;
    }
    CHECK(sum > 49400 && sum < 50600);
    CHECK(low < 0.001 && high > 0.999);
}

TEST(the_systems_bytes_do_not_repeat)
{
    unsigned char a[64] = {0}, b[64] = {0};

    random_os(a, sizeof(a));
    random_os(b, sizeof(b));
    CHECK(memcmp(a, b, sizeof(a)) != 0);
    random_os(a, 0);
}
