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

/* Nanoseconds that the calling thread has computed: what waits for a core does not go on. */
uint64_t clock_thread_ns(const struct clock *c);

/* What a piece of work may take: of its thread's own time, which does not depend on what else runs on the machine, and in
 * all. Asked of the thread that began it. Zeroed: it never ends. */
struct clock_limit {
    const struct clock *clock;
    uint64_t thread_end_ns, end_ns; /* UINT64_MAX: none */
};
enum clock_end { CLOCK_GOES_ON, CLOCK_WORKED_OUT, CLOCK_RAN_OUT };
/* 0: no limit of that kind. */
void clock_limit_begin(struct clock_limit *l, const struct clock *c, uint64_t thread_ns, uint64_t ns);
/* CLOCK_WORKED_OUT: the thread has used its time; CLOCK_RAN_OUT: it has not, yet all of the time is over. */
enum clock_end clock_limit_look(const struct clock_limit *l);
/* What is left of both, at least 1; 0: no limit. */
void clock_limit_left(const struct clock_limit *l, uint64_t *thread_ns, uint64_t *ns);

/* How many times as long a sanitizer makes the same work: what limits a thread's own time, so that a kind of work may not
 * cost more, allows so much more there. A grammar of four tools takes 78 ms, 220 with ASan and UBSan, 1,720 with TSan. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CLOCK_SLOWDOWN 24u
#elif __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define CLOCK_SLOWDOWN 6u
#endif
#elif defined(__SANITIZE_THREAD__)
#define CLOCK_SLOWDOWN 24u
#elif defined(__SANITIZE_ADDRESS__)
#define CLOCK_SLOWDOWN 6u
#endif
#ifndef CLOCK_SLOWDOWN
#define CLOCK_SLOWDOWN 1u
#endif

/* A clock that stands still until told otherwise. */
struct clock *clock_fake_create(uint64_t now_ns, int64_t wall_s);
void clock_fake_advance(struct clock *c, uint64_t ns);
/* From now on each look at the time moves it on by ns, and each look at a thread's own time that by thread_ns. */
void clock_fake_step(struct clock *c, uint64_t ns, uint64_t thread_ns);
/* The wall clock alone is set on, or back. */
void clock_fake_jump(struct clock *c, int64_t wall_s);
void clock_fake_destroy(struct clock *c);

/* Sleeps the calling thread (system clock). Not for the engine thread. */
void clock_sleep_ns(uint64_t ns);
