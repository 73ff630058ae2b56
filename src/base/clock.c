/* base/clock.c - the machine's clock, and one that stands still. */
#include "base/clock.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include "base/mem.h"

#define NS_PER_S 1000000000ull

struct clock {
    bool fake;
    _Atomic uint64_t elapsed_ns;        /* fake: since creation. The owner writes, any thread reads; relaxed, as a
                                         * time orders nothing */
    uint64_t start_ns;
    int64_t start_wall_s;
    _Atomic int64_t jumped_s;           /* of the wall clock alone; likewise */
};

static const struct clock system_clock;

const struct clock *clock_system(void)
{
    return &system_clock;
}

static uint64_t elapsed(const struct clock *c)
{
    return atomic_load_explicit(&((struct clock *)(uintptr_t)c)->elapsed_ns, memory_order_relaxed);
}

uint64_t clock_now_ns(const struct clock *c)
{
    struct timespec t;

    if (c->fake) return c->start_ns + elapsed(c);
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

int64_t clock_wall_s(const struct clock *c)
{
    struct timespec t;

    if (c->fake)
        return c->start_wall_s + (int64_t)(elapsed(c) / NS_PER_S) +
               atomic_load_explicit(&((struct clock *)(uintptr_t)c)->jumped_s, memory_order_relaxed);
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec;
}

struct clock *clock_fake_create(uint64_t now_ns, int64_t wall_s)
{
    struct clock *c = mem_zalloc(1, sizeof(*c));

    if (!c) return NULL;
    c->fake = true;
    c->start_ns = now_ns;
    c->start_wall_s = wall_s;
    return c;
}

void clock_fake_advance(struct clock *c, uint64_t ns)
{
    atomic_fetch_add_explicit(&c->elapsed_ns, ns, memory_order_relaxed);
}

void clock_fake_jump(struct clock *c, int64_t wall_s)
{
    atomic_fetch_add_explicit(&c->jumped_s, wall_s, memory_order_relaxed);
}

void clock_fake_destroy(struct clock *c)
{
    mem_free(c);
}

void clock_sleep_ns(uint64_t ns)
{
    struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};

    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {}
}
