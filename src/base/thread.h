/* base/thread.h - threads, locks, conditions, ownership checks. No other file includes pthread.h.
 *
 * Thread  any thread. struct thread_owner: binds to the first thread that calls in, later calls from another
 *         thread assert in debug builds (NDEBUG not set) and cost nothing in release builds.
 * Errors  RD_E_NOMEM / RD_E_INTERNAL from create; lock operations on live objects do not fail.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"

struct thread {
    pthread_t id;
    bool started;
};
typedef void (*thread_fn)(void *arg);

/* name: at most 15 bytes, shown by top -H. Signals are blocked in the new thread. RD_E_LIMIT: the system has no more, as is logged. */
rd_status thread_start(struct thread *t, const char *name, thread_fn fn, void *arg);
/* Joins; harmless when never started or already joined. */
void thread_join(struct thread *t);
void thread_yield(void);
/* From now on the calling thread runs only when no other wants its core. */
void thread_set_idle(void);
/* From now on it has a tenth of a core that others want: they hardly notice, and it does come to its end. */
void thread_set_low(void);
/* Cores this process may use (affinity and cgroup quota respected), at least 1. */
uint32_t thread_n_cores(void);
/* The same, but hardware threads that share a core count once: a core's vector and matrix units are shared by them. */
uint32_t thread_n_physical_cores(void);

/* fn runs in the first call alone; the others return when it has. */
struct once {
    pthread_once_t o;
};
#define ONCE_INIT                                                                                                      \
    {                                                                                                                  \
        PTHREAD_ONCE_INIT                                                                                              \
    }
void once_run(struct once *once, void (*fn)(void));

struct mutex {
    pthread_mutex_t m;
};
void mutex_init(struct mutex *m);
void mutex_deinit(struct mutex *m);
void mutex_lock(struct mutex *m);
void mutex_unlock(struct mutex *m);

struct cond {
    pthread_cond_t c;
}; /* waits on the monotonic clock */
void cond_init(struct cond *c);
void cond_deinit(struct cond *c);
void cond_wait(struct cond *c, struct mutex *m);
/* false: the time passed. Every wait in radish has a deadline or a reason not to. */
bool cond_wait_ns(struct cond *c, struct mutex *m, uint64_t timeout_ns);
void cond_signal(struct cond *c);
void cond_broadcast(struct cond *c);

struct thread_owner {
    pthread_t id;
    bool bound;
};
#ifdef NDEBUG
static inline void thread_owner_check(struct thread_owner *o)
{
    (void)o;
}
#else
void thread_owner_check(struct thread_owner *o);
#endif
/* Lets another thread become the owner (handing over). */
static inline void thread_owner_release(struct thread_owner *o)
{
    o->bound = false;
}
