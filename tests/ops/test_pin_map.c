/* tests/ops/test_pin_map.c - what one copy may join, against a list of the ranges that a driver was told of. */
#include "backend/pin_map.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define PAGE  64u
#define PAGES 512u /* of the host's memory here */

static char host_memory[PAGES * PAGE], device_memory[PAGES * PAGE];

TEST(neighbours_in_two_pinned_ranges_go_in_two_copies)
{
    struct pin_map m;
    void *host[8], *device[8];

    pin_map_init(&m);
    for (uint32_t i = 0; i < 8; i++) host[i] = host_memory + i * PAGE, device[i] = device_memory + i * PAGE;
    CHECK_EQ(pin_map_run(&m, 8, device, host, PAGE), 8); /* nothing is pinned */
    CHECK(pin_map_add(&m, host[0], 3 * PAGE) && pin_map_add(&m, host[3], 3 * PAGE));
    CHECK_EQ(pin_map_run(&m, 8, device, host, PAGE), 3); /* the ranges touch: two calls pinned them */
    CHECK_EQ(pin_map_run(&m, 5, device + 3, host + 3, PAGE), 3);
    CHECK_EQ(pin_map_run(&m, 2, device + 6, host + 6, PAGE), 2); /* behind all */
    CHECK(pin_map_remove(&m, host[0]) && !pin_map_remove(&m, host[0]) && !pin_map_remove(&m, host[4]));
    CHECK_EQ(pin_map_run(&m, 8, device, host, PAGE), 3); /* memory that is not pinned ends where some is */
    device[2] = device_memory + 100 * PAGE;
    CHECK_EQ(pin_map_run(&m, 8, device, host, PAGE), 2);
    CHECK_EQ(pin_map_run(&m, 1, device, host, PAGE), 1);
    pin_map_deinit(&m);
}

TEST(ranges_that_overlap_are_refused)
{
    struct pin_map m;

    pin_map_init(&m);
    CHECK(pin_map_add(&m, host_memory + 100, 100));
    CHECK(!pin_map_add(&m, host_memory + 199, 1) && !pin_map_add(&m, host_memory + 50, 51));
    CHECK(!pin_map_add(&m, host_memory + 50, 500) && !pin_map_add(&m, host_memory + 300, 0));
    CHECK(!pin_map_add(&m, host_memory, UINT64_MAX));
    CHECK(pin_map_add(&m, host_memory + 50, 50) && pin_map_add(&m, host_memory + 200, 50));
    CHECK_EQ(m.n, 3);
    pin_map_deinit(&m);
}

/* owner[i]: which call pinned page i, 0: none. */
TEST(random_pins_and_copies_never_cross_a_border_and_are_as_long_as_may_be)
{
    uint32_t owner[PAGES] = {0}, n_calls = 0;
    struct pin_map m;
    struct random r;

    random_init(&r, test_seed());
    pin_map_init(&m);
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t at = (uint32_t)random_below(&r, PAGES), n = 1 + (uint32_t)random_below(&r, 20), k, want = 1;
        void *host[64], *device[64];
        bool is_free = at + n <= PAGES;

        for (k = at; is_free && k < at + n; k++) is_free = owner[k] == 0;
        if (owner[at] && random_below(&r, 4) == 0) {
            uint32_t call = owner[at], first = at;

            while (first > 0 && owner[first - 1] == call) first--;
            CHECK(pin_map_remove(&m, host_memory + first * PAGE));
            for (k = first; k < PAGES && owner[k] == call; k++) owner[k] = 0;
        } else if (at + n <= PAGES) {
            CHECK_EQ(pin_map_add(&m, host_memory + at * PAGE, n * PAGE), is_free);
            if (is_free) n_calls++;
            for (k = at; is_free && k < at + n; k++) owner[k] = n_calls;
        }
        at = (uint32_t)random_below(&r, PAGES - 64);
        for (k = 0; k < 64; k++) host[k] = host_memory + (at + k) * PAGE, device[k] = device_memory + k * PAGE;
        while (want < 64 && owner[at + want] == owner[at]) want++;
        CHECK_EQ(pin_map_run(&m, 64, device, host, PAGE), want);
    }
    pin_map_deinit(&m);
}

TEST(without_memory_a_range_is_refused_and_nothing_changes)
{
    size_t before = mem_n_alive();
    struct pin_map m;

    pin_map_init(&m);
    mem_fail_after(0);
    CHECK(!pin_map_add(&m, host_memory, PAGE));
    mem_fail_after(-1);
    CHECK_EQ(m.n, 0);
    CHECK(pin_map_add(&m, host_memory, PAGE));
    pin_map_deinit(&m);
    CHECK_EQ(mem_n_alive(), before);
}
