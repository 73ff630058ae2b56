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
    _Atomic uint64_t elapsed_ns;              /* fake: since creation. The owner writes, any thread reads; relaxed, as a
                                               * time orders nothing */
    _Atomic uint64_t worked_ns;               /* fake: of threads, all alike; likewise */
    _Atomic uint64_t step_ns, step_thread_ns; /* likewise */
    uint64_t start_ns;
    int64_t start_wall_s;
    _Atomic int64_t jumped_s; /* of the wall clock alone; likewise */
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

static uint64_t step(_Atomic uint64_t *time, const _Atomic uint64_t *by)
{
    uint64_t ns = atomic_load_explicit(by, memory_order_relaxed);

    return ns ? atomic_fetch_add_explicit(time, ns, memory_order_relaxed) + ns
              : atomic_load_explicit(time, memory_order_relaxed);
}

static uint64_t ns_of(struct timespec t)
{
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t clock_now_ns(const struct clock *c)
{
    struct clock *own = (struct clock *)(uintptr_t)c;
    struct timespec t;

    if (c->fake) return c->start_ns + step(&own->elapsed_ns, &own->step_ns);
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ns_of(t);
}

uint64_t clock_thread_ns(const struct clock *c)
{
    struct clock *own = (struct clock *)(uintptr_t)c;
    struct timespec t;

    if (c->fake) return step(&own->worked_ns, &own->step_thread_ns);
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 ? ns_of(t) : clock_now_ns(c);
}

void clock_limit_begin(struct clock_limit *l, const struct clock *c, uint64_t thread_ns, uint64_t ns)
{
    *l = (struct clock_limit){c, UINT64_MAX, UINT64_MAX};
    if (thread_ns) l->thread_end_ns = clock_thread_ns(c) + thread_ns;
    if (ns) l->end_ns = clock_now_ns(c) + ns;
}

enum clock_end clock_limit_look(const struct clock_limit *l)
{
    if (!l->clock) return CLOCK_GOES_ON;
    if (l->thread_end_ns != UINT64_MAX && clock_thread_ns(l->clock) > l->thread_end_ns) return CLOCK_WORKED_OUT;
    return l->end_ns != UINT64_MAX && clock_now_ns(l->clock) > l->end_ns ? CLOCK_RAN_OUT : CLOCK_GOES_ON;
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

static uint64_t left(uint64_t end, uint64_t now)
{
    if (end == UINT64_MAX) return 0;
    return end > now ? end - now : 1;
}

void clock_limit_left(const struct clock_limit *l, uint64_t *thread_ns, uint64_t *ns)
{
    *thread_ns = l->clock ? left(l->thread_end_ns, clock_thread_ns(l->clock)) : 0;
    *ns = l->clock ? left(l->end_ns, clock_now_ns(l->clock)) : 0;
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

void clock_fake_step(struct clock *c, uint64_t ns, uint64_t thread_ns)
{
    atomic_store_explicit(&c->step_ns, ns, memory_order_relaxed);
    atomic_store_explicit(&c->step_thread_ns, thread_ns, memory_order_relaxed);
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

    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}
