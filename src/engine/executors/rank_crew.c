/* engine/executors/rank_crew.c - a number of jobs that the caller raises, and one of those done that each rank raises.
 *
 *     caller:  job, arg -> begun + 1, wake -> rank 0's part -> until all done == begun: spin, then sleep
 *     rank:    until begun changes: spin, then sleep -> its part -> done = begun -> back + 1, wake
 */
#include "engine/executors/rank_crew.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include "backend/spin_pause.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/word_wait.h"

#define SLICE_NS 1000000000u /* of a wait: a pause of the whole process counts as one */

struct member {
    _Alignas(64) _Atomic uint32_t done; /* the last job that it is back from; written by its thread */
    struct rank_crew *crew;
    uint32_t rank;
    struct thread thread;
};

struct rank_crew {
    uint32_t n, n_spin;
    /* Written by the caller while all are back, released by begun. */
    rank_job job;
    void *arg;
    bool is_last; /* instead of a job: threads end */
    _Alignas(64) _Atomic uint32_t begun;
    _Alignas(64) _Atomic uint32_t back; /* raised after a member's done */
    struct member members[RANKS_MAX];   /* rank 0's is not used */
};

rd_status rank_crew_create(uint32_t n, uint32_t n_spin, struct rank_crew **out)
{
    struct rank_crew *c = mem_alloc_aligned(sizeof(*c));

    if (!c) return RD_E_NOMEM;
    c->n = n;
    c->n_spin = n_spin;
    for (uint32_t i = 0; i < n; i++) {
        c->members[i].crew = c;
        c->members[i].rank = i;
    }
    *out = c;
    return RD_OK;
}

/* What follows job number `seen`: its number. */
static uint32_t next_job(struct rank_crew *c, uint32_t seen)
{
    for (uint32_t i = 0; i < c->n_spin; i++) {
        if (atomic_load(&c->begun) != seen) return seen + 1;
        pause_briefly();
    }
    while (atomic_load(&c->begun) == seen) word_wait_ns(&c->begun, seen, SLICE_NS);
    return seen + 1;
}

static void do_jobs(void *arg)
{
    struct member *m = arg;
    struct rank_crew *c = m->crew;

    for (uint32_t job = next_job(c, atomic_load(&m->done)); !c->is_last; job = next_job(c, job)) {
        c->job(c->arg, m->rank);
        atomic_store(&m->done, job);
        atomic_fetch_add(&c->back, 1);
        word_wake_all(&c->back);
    }
}

rd_status rank_crew_start(struct rank_crew *c, uint32_t *failed)
{
    rd_status st = RD_OK;

    for (uint32_t i = 1; i < c->n && st == RD_OK; i++) {
        struct member *m = &c->members[i];
        char name[16];

        snprintf(name, sizeof(name), "rank %u", i);
        atomic_store(&m->done, atomic_load(&c->begun));
        st = thread_start(&m->thread, name, do_jobs, m);
        *failed = i;
    }
    return st;
}

/* The first rank that is not back; RANKS_MAX: all are. */
static uint32_t first_away(const struct rank_crew *c)
{
    const uint32_t job = atomic_load_explicit(&c->begun, memory_order_relaxed);

    for (uint32_t i = 1; i < c->n; i++)
        if (c->members[i].thread.started && atomic_load(&c->members[i].done) != job) return i;
    return RANKS_MAX;
}

uint32_t rank_crew_wait(struct rank_crew *c, uint64_t patience_ns)
{
    const uint64_t slice = u64_min(SLICE_NS, patience_ns);
    uint64_t waited = 0;

    for (uint32_t i = 0; i < c->n_spin && first_away(c) < RANKS_MAX; i++) pause_briefly();
    while (waited < 2 * patience_ns) {
        const uint32_t seen = atomic_load(&c->back);

        if (first_away(c) == RANKS_MAX) break;
        if (!word_wait_ns(&c->back, seen, slice)) waited += slice;
    }
    return first_away(c);
}

uint32_t rank_crew_do(struct rank_crew *c, rank_job job, void *arg, uint64_t patience_ns)
{
    c->job = job;
    c->arg = arg;
    atomic_fetch_add(&c->begun, 1);
    word_wake_all(&c->begun);
    job(arg, 0);
    return rank_crew_wait(c, patience_ns);
}

void rank_crew_destroy(struct rank_crew *c)
{
    if (!c) return;
    c->is_last = true;
    atomic_fetch_add(&c->begun, 1);
    word_wake_all(&c->begun);
    for (uint32_t i = 1; i < c->n; i++) thread_join(&c->members[i].thread);
    mem_free_aligned(c);
}
