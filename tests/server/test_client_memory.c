/* tests/server/test_client_memory.c - who may have how much of one budget, and that its parts are its sum. */
#include "server/http/client_memory.h"
#include <stdlib.h>
#include <string.h>
#include "base/random.h"
#include "test.h"

#define MIB (1ull << 20)

static uint64_t sum_of_parts(const struct client_memory *m)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < CLIENT_PARTS; i++) sum += m->parts[i];
    return sum;
}

TEST(alone_a_charge_gets_half_and_the_next_finds_some)
{
    struct client_memory m;
    struct client_charge a, b, c;
    struct api_error e;

    client_memory_init(&m, 256 * MIB); /* 16 of them reserved */
    client_charge_init(&a, &m, NULL);
    client_charge_init(&b, &m, "other");
    client_charge_init(&c, &m, "third");
    CHECK_EQ(client_charge_set(&a, CLIENT_BODIES, 120 * MIB, &e), 0);
    CHECK_EQ(client_charge_set(&a, CLIENT_BODIES, 121 * MIB, &e), -1);
    CHECK_EQ(e.http, 413); /* nor would an empty server have that much */
    CHECK_EQ(a.sum, 120 * MIB);
    CHECK_EQ(client_charge_set(&b, CLIENT_TREES, 61 * MIB, &e), -1);
    CHECK_EQ(e.http, 429);
    CHECK_EQ(client_charge_set(&b, CLIENT_TREES, 60 * MIB, &e), 0);
    CHECK_EQ(client_charge_set(&c, CLIENT_TREES, 30 * MIB, &e), 0);
    CHECK_EQ(m.n_refused, 2);
    client_charge_clear(&a);
    client_charge_clear(&b);
    client_charge_clear(&c);
    CHECK_EQ(m.used, 0);
    CHECK_EQ(m.peak, 210 * MIB);
}

TEST(many_charges_of_one_key_leave_a_quarter)
{
    struct client_memory m;
    struct client_charge mine[1000], other;

    client_memory_init(&m, 256 * MIB);
    for (int i = 0; i < 1000; i++) {
        client_charge_init(&mine[i], &m, "one");
        (void)client_charge_set(&mine[i], CLIENT_REQUESTS, MIB, NULL);
    }
    CHECK_EQ(m.used, 180 * MIB); /* three quarters of 240 */
    client_charge_init(&other, &m, "two");
    CHECK_EQ(client_charge_set(&other, CLIENT_REQUESTS, 25 * MIB, NULL), 0);
    client_charge_clear(&other);
    for (int i = 0; i < 1000; i++) client_charge_clear(&mine[i]);
    CHECK_EQ(m.used, 0);
}

TEST(small_requests_go_on_when_nothing_else_does)
{
    struct client_memory m;
    struct client_charge unread, small, big;

    client_memory_init(&m, 64 * MIB);
    client_charge_init(&unread, &m, NULL);
    client_charge_init(&small, &m, NULL);
    client_charge_init(&big, &m, NULL);
    client_charge_force(&unread, CLIENT_UNREAD, 61 * MIB); /* nobody was asked */
    CHECK(client_memory_tight(&m));
    CHECK_EQ(client_charge_set(&big, CLIENT_BODIES, MIB, NULL), -1);
    CHECK_EQ(client_charge_set(&small, CLIENT_BODIES, CLIENT_SMALL_BYTES, NULL), 0);
    CHECK_EQ(client_charge_set(&small, CLIENT_BODIES, CLIENT_SMALL_BYTES + 1, NULL), -1);
    client_charge_force(&unread, CLIENT_UNREAD, 70 * MIB);
    CHECK_EQ(client_charge_set(&big, CLIENT_BODIES, 1, NULL), -1);
    CHECK_EQ(m.used, 70 * MIB + CLIENT_SMALL_BYTES);
    client_charge_clear(&unread);
    client_charge_clear(&small);
    CHECK_EQ(m.used, 0);
}

TEST(what_is_moved_or_gets_another_key_is_counted_once)
{
    struct client_memory m;
    struct client_charge a, b;

    client_memory_init(&m, 64 * MIB);
    client_charge_init(&a, &m, NULL);
    CHECK_EQ(client_charge_set(&a, CLIENT_BODIES, MIB, NULL), 0);
    client_charge_owner(&a, "key");
    client_charge_init(&b, &m, "key");
    client_charge_move(&b, &a, CLIENT_BODIES);
    CHECK_EQ(a.sum, 0);
    CHECK_EQ(b.sum, MIB);
    client_charge_clear(&a);
    CHECK_EQ(m.used, MIB);
    client_charge_clear(&b);
    CHECK_EQ(m.used, 0);
    for (unsigned i = 0; i < CLIENT_KEYS; i++) CHECK_EQ(m.keys[i], 0);
}

TEST(long_random_run_keeps_the_sums)
{
    static const char *const keys[] = {NULL, "a", "b", "c"};
    struct client_memory m;
    struct client_charge charges[40];
    uint64_t seed = 11;

    client_memory_init(&m, 64 * MIB);
    for (uint32_t i = 0; i < 40; i++) client_charge_init(&charges[i], &m, keys[i % 4]);
    for (uint64_t step = 0; step < 200000; step++) {
        uint64_t r = random_at(seed, step);
        struct client_charge *c = &charges[r % 40];
        enum client_part part = (enum client_part)((r >> 8) % CLIENT_PARTS);
        uint64_t n = (r >> 16) % (1ull << (r >> 40) % 24), before = c->parts[part];

        switch ((r >> 48) % 8) {
        case 0:
            client_charge_clear(c);
            break;
        case 1:
            client_charge_owner(c, keys[(r >> 52) % 4]);
            break;
        case 2:
            client_charge_move(&charges[(r >> 52) % 40], c, part);
            break;
        default:
            if (client_charge_set(c, part, n, NULL))
                CHECK_EQ(c->parts[part], before);
            else
                CHECK_EQ(c->parts[part], n);
        }
        CHECK_EQ(sum_of_parts(&m), m.used);
        CHECK(m.used <= m.limit);
    }
    for (uint32_t i = 0; i < 40; i++) client_charge_clear(&charges[i]);
    CHECK_EQ(m.used, 0);
}
