/* server/http/deadline_clock.h - the clock that a thread's deadlines are kept by. It stands still while the process does
 * (SIGSTOP, a debugger, a machine that sleeps): what clients sent meanwhile could not be read, and is not late (F98).
 * A thread that looks at it at least every DEADLINE_TICK_NS and finds that much more time gone did not run.
 * Thread  its owner.
 */
#pragma once
#include <stdint.h>

#define DEADLINE_TICK_NS 250000000ull
#define DEADLINE_JUMP_NS (6 * DEADLINE_TICK_NS)

struct deadline_clock {
    uint64_t seen_ns, lost_ns;
}; /* zeroed */

/* now_ns: base/clock.h's. Never backwards. */
static inline uint64_t deadline_now(struct deadline_clock *c, uint64_t now_ns)
{
    if (c->seen_ns && now_ns - c->seen_ns > DEADLINE_JUMP_NS) c->lost_ns += now_ns - c->seen_ns;
    c->seen_ns = now_ns;
    return now_ns - c->lost_ns;
}
