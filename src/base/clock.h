/* base/clock.h - the one clock. Deadlines and TTLs are monotonic; wall time is for "created" fields and logs.
 *
 * A struct clock is passed to whoever needs time, so that tests and the simulator stand still or jump.
 * Thread  any thread (a fake clock: its owner sets it, atomics inside).
 */
#pragma once
#include <stdint.h>

struct clock;

/* The machine's clock; static, never freed. */
const struct clock *clock_system(void);
/* Nanoseconds since an arbitrary start, never backwards. */
uint64_t clock_now_ns(const struct clock *c);
/* Seconds since 1970. */
int64_t clock_wall_s(const struct clock *c);

/* A clock that stands still until told otherwise. */
struct clock *clock_fake_create(uint64_t now_ns, int64_t wall_s);
void clock_fake_advance(struct clock *c, uint64_t ns);
/* The wall clock alone is set on, or back. */
void clock_fake_jump(struct clock *c, int64_t wall_s);
void clock_fake_destroy(struct clock *c);

/* Sleeps the calling thread (system clock). Not for the engine thread. */
void clock_sleep_ns(uint64_t ns);
