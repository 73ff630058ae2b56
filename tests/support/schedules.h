/* support/schedules.h - runs threads one at a time, in an order that a seed decides: schedules that can be repeated.
 *
 * schedules.c is another base/thread.c: a test that links it has its threads, locks and conditions scheduled here. Real
 * threads run, but only the one that holds the baton; at every lock, unlock, wait, signal, start, join and atomic
 * operation (of sources compiled with sched_atomics.h) the baton may go to another one. So only sequentially consistent
 * orders are seen: what a weaker memory order would allow is for the thread sanitizer.
 *
 * Two ways to choose: at random at every point; or PCT (Burckhardt, Kothari, Musuvathi, Nagarakatte, "A Randomized
 * Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010): the thread of the highest random priority runs,
 * and at depth - 1 random points the running one gets the lowest. A bug that needs d ordered events is found with a
 * probability of at least 1 / (n k^(d-1)) for n threads and k points.
 *
 * LOST WAKE-UPS. Where nobody can run and a thread waits, a wake-up was lost or there is a circle of locks, whatever
 * deadlines the waits have: a deadline is not what a correct program goes on by. A signal wakes any one of those that
 * wait; now and then, at random, a wait ends without one, as POSIX has it, and one with a deadline because of it.
 *
 * Thread  sched_run: the test's own. What it finds ends the (forked) process that ran the schedule.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct sched_figures {
    uint64_t n_schedules, n_points, n_switches, most_points;
    uint32_t most_threads;
};

/* A world: makes its objects, starts threads, joins them, checks and frees. It returns false where something is wrong. */
typedef bool (*sched_world)(uint64_t seed);

/* n schedules of the world, half of them at random, half by PCT with depth 2 to 5, in child processes. True: no fault was
 * found. What one finds is printed with the seed that repeats it: RADISH_SCHED_ONE=SEED runs that one alone.
 * f (may be NULL): added to. */
bool sched_run(const char *name, sched_world world, uint64_t seed, uint64_t n, struct sched_figures *f);

/* Another thread may run now. Harmless where no schedule runs. */
void sched_point(void);
