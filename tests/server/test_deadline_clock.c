/* tests/server/test_deadline_clock.c - F98: time in which the process did not run is nobody's delay. */
#include "server/http/deadline_clock.h"
#include "test.h"

#define SECOND_NS 1000000000ull

TEST(a_pause_is_left_out_and_a_late_tick_is_not)
{
    struct deadline_clock c = {0};
    uint64_t real = 5 * SECOND_NS, begun = deadline_now(&c, real);

    CHECK_EQ(begun, real);
    for (int i = 0; i < 8; i++) deadline_now(&c, real += DEADLINE_TICK_NS);
    CHECK_EQ(deadline_now(&c, real) - begun, 2 * SECOND_NS);
    CHECK_EQ(deadline_now(&c, real += SECOND_NS) - begun, 3 * SECOND_NS);        /* busy, not stopped */
    CHECK_EQ(deadline_now(&c, real += 3600 * SECOND_NS) - begun, 3 * SECOND_NS); /* a debugger, an hour */
    CHECK_EQ(deadline_now(&c, real += SECOND_NS) - begun, 4 * SECOND_NS);
    CHECK_EQ(deadline_now(&c, real += 60 * SECOND_NS) - begun, 4 * SECOND_NS);
}
