/* support/schedules.c - the baton, who may run, and base/thread.h on top of them. */
#include "schedules.h"
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/random.h"
#include "base/thread.h"

#define MAX_THREADS     16u
#define MAX_POINTS      400000u /* of a schedule: more is a loop without an end */
#define MAX_IN_A_ROW    3000u   /* PCT: who spins so long waits for one of a lower priority */
#define SPURIOUS_ONE_IN 300u

enum state { FREE, READY, WANTS_LOCK, WAITS, JOINS, DONE };
struct fiber {
    enum state state;
    const void *on;      /* the lock, condition or fiber that it waits for */
    struct mutex *lock;  /* WAITS: to be taken again */
    bool timed, in_vain; /* in_vain: nobody woke it: its time has passed, or it is spurious */
    uint64_t priority;
    char name[16];
    thread_fn fn;
    void *arg;
    pthread_t id;
    sem_t baton;
};

static struct {
    bool runs, is_pct;
    struct fiber fibers[MAX_THREADS]; /* 0: who called sched_run */
    uint32_t n, current;
    struct random random;
    uint64_t n_points, n_switches, in_a_row, lowest, change_at[8];
    uint32_t n_changes;
} s;

/* Shared with the parent, which prints and sums. */
static struct report {
    struct sched_figures f;
    char text[2048];
    uint64_t seed;
} * report;

/* ---- choosing ---- */

static bool is_held(const struct mutex *m)
{
    return *(const uint32_t *)m != 0;
}

static bool can_run(const struct fiber *f)
{
    switch (f->state) {
    case READY:
        return true;
    case WANTS_LOCK:
        return !is_held(f->on);
    case JOINS:
        return ((const struct fiber *)f->on)->state == DONE;
    case FREE:
    case WAITS:
    case DONE:
        break;
    }
    return false;
}

static void give_up(const char *what)
{
    static const char *const states[] = {"-", "can run", "wants a lock", "waits", "joins", "has ended"};
    size_t at = strlen(report->text);

    at += (size_t)snprintf(report->text + at, sizeof(report->text) - at, "%s after %llu points:", what,
                           (unsigned long long)s.n_points);
    for (uint32_t i = 0; i < s.n && at < sizeof(report->text) - 64; i++)
        at += (size_t)snprintf(report->text + at, sizeof(report->text) - at, " [%s %s%s]", s.fibers[i].name,
                               states[s.fibers[i].state], s.fibers[i].timed ? " with a deadline" : "");
    _exit(3);
}

static uint32_t pick(const uint32_t *able, uint32_t n)
{
    uint32_t best = 0;

    if (!s.is_pct) return able[random_below(&s.random, n)];
    for (uint32_t i = 0; i < s.n_changes; i++)
        if (s.n_points == s.change_at[i]) s.fibers[s.current].priority = --s.lowest;
    if (s.in_a_row > MAX_IN_A_ROW) {
        s.fibers[s.current].priority = --s.lowest;
        s.in_a_row = 0;
    }
    for (uint32_t i = 1; i < n; i++)
        if (s.fibers[able[i]].priority > s.fibers[able[best]].priority) best = i;
    return able[best];
}

/* The caller's state says what it waits for; it returns when it may go on. */
static void switch_over(void)
{
    uint32_t able[MAX_THREADS], n = 0, me = s.current, next;

    if (++s.n_points > MAX_POINTS) give_up("no end");
    for (uint32_t i = 0; i < s.n; i++) {
        struct fiber *f = &s.fibers[i];

        if (f->state == WAITS && random_below(&s.random, SPURIOUS_ONE_IN) == 0) {
            f->state = WANTS_LOCK;
            f->on = f->lock;
            f->in_vain = true;
        }
        if (can_run(f)) able[n++] = i;
    }
    if (n == 0) give_up("nobody can run");
    next = pick(able, n);
    s.in_a_row = next == me ? s.in_a_row + 1 : 0;
    s.current = next;
    if (next == me) return;
    s.n_switches++;
    sem_post(&s.fibers[next].baton);
    if (s.fibers[me].state == DONE) return;
    while (sem_wait(&s.fibers[me].baton)) {}
}

void sched_point(void)
{
    if (s.runs) switch_over();
}

/* ---- base/thread.h ---- */

static void *fiber_main(void *arg)
{
    struct fiber *f = arg;

    while (sem_wait(&f->baton)) {}
    f->fn(f->arg);
    f->state = DONE;
    switch_over();
    return NULL;
}

rd_status thread_start(struct thread *t, const char *name, thread_fn fn, void *arg)
{
    struct fiber *f = &s.fibers[s.n];

    if (!s.runs || s.n == MAX_THREADS) abort();
    memset(f, 0, sizeof(*f));
    f->state = READY;
    f->fn = fn;
    f->arg = arg;
    f->priority = s.lowest + 1 + random_below(&s.random, 1u << 20);
    snprintf(f->name, sizeof(f->name), "%s", name);
    sem_init(&f->baton, 0, 0);
    if (pthread_create(&f->id, NULL, fiber_main, f)) abort();
    s.n++;
    t->id = f->id;
    t->started = true;
    sched_point();
    return RD_OK;
}

void thread_join(struct thread *t)
{
    if (!t->started) return;
    for (uint32_t i = 1; i < s.n; i++) {
        struct fiber *f = &s.fibers[i], *me = &s.fibers[s.current];

        if (!pthread_equal(f->id, t->id)) continue;
        me->state = JOINS;
        me->on = f;
        if (f->state != DONE) switch_over();
        me->state = READY;
    }
    pthread_join(t->id, NULL);
    t->started = false;
}

void thread_yield(void)
{
    if (s.runs && s.is_pct) s.fibers[s.current].priority = --s.lowest;
    sched_point();
}

void thread_set_idle(void) {}
uint32_t thread_n_cores(void)
{
    return 2;
}
uint32_t thread_n_physical_cores(void)
{
    return 2;
}

/* A mutex is its holder's number and 1; zeros, as its static initialiser has them: free. */
static uint32_t *holder_of(struct mutex *m)
{
    return (uint32_t *)m;
}

void once_run(struct once *once, void (*fn)(void))
{
    pthread_once(&once->o, fn);
}

void mutex_init(struct mutex *m)
{
    memset(m, 0, sizeof(*m));
}

void mutex_deinit(struct mutex *m)
{
    if (is_held(m) && s.runs) give_up("a lock that is held is destroyed");
}

static void take(struct mutex *m)
{
    struct fiber *me = &s.fibers[s.current];

    me->state = WANTS_LOCK;
    me->on = m;
    if (s.runs) switch_over();
    me->state = READY;
    *holder_of(m) = s.current + 1;
}

void mutex_lock(struct mutex *m)
{
    if (s.runs && *holder_of(m) == s.current + 1) give_up("a lock is taken twice");
    take(m);
}

void mutex_unlock(struct mutex *m)
{
    if (s.runs && *holder_of(m) != s.current + 1) give_up("a lock is let go by a stranger");
    *holder_of(m) = 0;
    sched_point();
}

void cond_init(struct cond *c)
{
    memset(c, 0, sizeof(*c));
}

void cond_deinit(struct cond *c)
{
    for (uint32_t i = 0; s.runs && i < s.n; i++)
        if (s.fibers[i].state == WAITS && s.fibers[i].on == c) give_up("a condition that is waited for is destroyed");
}

static void wait_for(struct cond *c, struct mutex *m, bool timed)
{
    struct fiber *me = &s.fibers[s.current];

    if (!s.runs) abort();
    *holder_of(m) = 0;
    me->state = WAITS;
    me->on = c;
    me->lock = m;
    me->timed = timed;
    me->in_vain = false;
    switch_over(); /* whoever wakes us makes us want the lock */
    me->state = READY;
    me->timed = false;
    *holder_of(m) = s.current + 1;
}

void cond_wait(struct cond *c, struct mutex *m)
{
    wait_for(c, m, false);
}

bool cond_wait_ns(struct cond *c, struct mutex *m, uint64_t timeout_ns)
{
    (void)timeout_ns;
    wait_for(c, m, true);
    return !s.fibers[s.current].in_vain;
}

static void wake(struct fiber *f)
{
    f->state = WANTS_LOCK;
    f->on = f->lock;
}

void cond_signal(struct cond *c)
{
    uint32_t waiting[MAX_THREADS], n = 0;

    sched_point();
    for (uint32_t i = 0; i < s.n; i++)
        if (s.fibers[i].state == WAITS && s.fibers[i].on == c) waiting[n++] = i;
    if (n > 0) wake(&s.fibers[waiting[random_below(&s.random, n)]]);
}

void cond_broadcast(struct cond *c)
{
    sched_point();
    for (uint32_t i = 0; i < s.n; i++)
        if (s.fibers[i].state == WAITS && s.fibers[i].on == c) wake(&s.fibers[i]);
}

#ifndef NDEBUG
void thread_owner_check(struct thread_owner *o)
{
    if (!o->bound) {
        o->id = pthread_self();
        o->bound = true;
    }
    if (!pthread_equal(o->id, pthread_self())) give_up("an object is used by a thread that does not own it");
}
#endif

/* ---- runs ---- */

static void begin(uint64_t seed)
{
    memset(&s, 0, sizeof(s));
    random_init(&s.random, seed);
    s.n = 1;
    s.fibers[0].state = READY;
    snprintf(s.fibers[0].name, sizeof(s.fibers[0].name), "test");
    sem_init(&s.fibers[0].baton, 0, 0);
    s.is_pct = seed & 1;
    s.lowest = 1u << 20;
    s.fibers[0].priority = s.lowest + 1 + random_below(&s.random, 1u << 20);
    s.n_changes = 1 + (uint32_t)random_below(&s.random, 4);
    for (uint32_t i = 0; i < s.n_changes; i++) /* short worlds and long ones alike */
        s.change_at[i] = 1 + random_below(&s.random, 16ull << random_below(&s.random, 9));
    s.runs = true;
}

static void run_one(sched_world world, uint64_t seed)
{
    struct sched_figures *f = &report->f;

    report->seed = seed;
    begin(seed);
    if (!world(seed)) give_up("not as it should be");
    s.runs = false;
    f->n_schedules++;
    f->n_points += s.n_points;
    f->n_switches += s.n_switches;
    if (s.n_points > f->most_points) f->most_points = s.n_points;
    if (s.n > f->most_threads) f->most_threads = s.n;
    for (uint32_t i = 0; i < s.n; i++) sem_destroy(&s.fibers[i].baton);
}

bool sched_run(const char *name, sched_world world, uint64_t seed, uint64_t n, struct sched_figures *f)
{
    const char *one = getenv("RADISH_SCHED_ONE");
    int status = 0;
    pid_t pid;
    bool ok;

    report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED) abort();
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        for (uint64_t i = 0; i < (one ? 1 : n); i++) run_one(world, one ? strtoull(one, NULL, 10) : random_at(seed, i));
        fflush(stdout);
        _exit(0);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ok) {
        printf("%s: schedule %llu: %s (RADISH_SCHED_ONE=%llu)\n", name, (unsigned long long)report->f.n_schedules,
               *report->text ? report->text : "the process ended by itself", (unsigned long long)report->seed);
        if (WIFSIGNALED(status)) printf("%s: signal %d\n", name, WTERMSIG(status));
    }
    if (f) {
        f->n_schedules += report->f.n_schedules;
        f->n_points += report->f.n_points;
        f->n_switches += report->f.n_switches;
        if (report->f.most_points > f->most_points) f->most_points = report->f.most_points;
        if (report->f.most_threads > f->most_threads) f->most_threads = report->f.most_threads;
    }
    munmap(report, sizeof(*report));
    return ok;
}
