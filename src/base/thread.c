/* base/thread.c - pthreads behind a small face. */
#include "base/thread.h"
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/crash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os_thread.h"

/* A call that fails here was misused: unlocked by a stranger, destroyed while held. */
static void must_work(int rc)
{
    assert(rc == 0);
    (void)rc;
}

struct thread_start_args {
    thread_fn fn;
    void *arg;
    char name[OS_THREAD_NAME_BYTES];
};

static void *thread_main(void *p)
{
    struct thread_start_args args = *(struct thread_start_args *)p;

    mem_free(p);
    os_thread_set_name(args.name);
    crash_thread_begin();
    args.fn(args.arg);
    crash_thread_end();
    return NULL;
}

rd_status thread_start(struct thread *t, const char *name, thread_fn fn, void *arg)
{
    struct thread_start_args *args = mem_zalloc(1, sizeof(*args));
    sigset_t blocked, before;
    int rc;

    if (!args) return RD_E_NOMEM;
    args->fn = fn;
    args->arg = arg;
    snprintf(args->name, sizeof(args->name), "%s", name);

    sigfillset(&blocked); /* all but those that the thread itself raises by a fault */
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGABRT);
    must_work(pthread_sigmask(SIG_SETMASK, &blocked, &before));
    rc = pthread_create(&t->id, NULL, thread_main, args);
    must_work(pthread_sigmask(SIG_SETMASK, &before, NULL));
    if (rc) {
        mem_free(args);
        if (rc != EAGAIN) return RD_E_INTERNAL;
        log_error(
            "no thread \"%s\": the system's limit on processes and threads is reached (ulimit -u, or a container's)",
            name);
        return RD_E_LIMIT;
    }
    t->started = true;
    return RD_OK;
}

void thread_join(struct thread *t)
{
    if (!t->started) return;
    must_work(pthread_join(t->id, NULL));
    t->started = false;
}

void thread_yield(void)
{
    sched_yield();
}

void thread_set_idle(void)
{
    os_thread_set_idle();
}

void thread_set_low(void)
{
    os_thread_set_low();
}

uint32_t thread_n_cores(void)
{
    return u32_max(os_n_cores(), 1);
}

uint32_t thread_n_physical_cores(void)
{
    uint32_t n = os_n_physical_cores(), all = thread_n_cores();

    return n ? u32_min(n, all) : all;
}

void once_run(struct once *once, void (*fn)(void))
{
    must_work(pthread_once(&once->o, fn));
}

void mutex_init(struct mutex *m)
{
    must_work(pthread_mutex_init(&m->m, NULL));
}
void mutex_deinit(struct mutex *m)
{
    must_work(pthread_mutex_destroy(&m->m));
}
void mutex_lock(struct mutex *m)
{
    must_work(pthread_mutex_lock(&m->m));
}
void mutex_unlock(struct mutex *m)
{
    must_work(pthread_mutex_unlock(&m->m));
}

void cond_init(struct cond *c)
{
    must_work(os_cond_init(&c->c));
}

void cond_deinit(struct cond *c)
{
    must_work(pthread_cond_destroy(&c->c));
}
void cond_wait(struct cond *c, struct mutex *m)
{
    must_work(pthread_cond_wait(&c->c, &m->m));
}
void cond_signal(struct cond *c)
{
    must_work(pthread_cond_signal(&c->c));
}
void cond_broadcast(struct cond *c)
{
    must_work(pthread_cond_broadcast(&c->c));
}

bool cond_wait_ns(struct cond *c, struct mutex *m, uint64_t timeout_ns)
{
    /* at most 36 years: keeps the sum in range */
    int rc = os_cond_wait_ns(&c->c, &m->m, u64_min(timeout_ns, UINT64_C(1) << 60));

    assert(rc == 0 || rc == ETIMEDOUT);
    return rc == 0;
}

#ifndef NDEBUG
void thread_owner_check(struct thread_owner *o)
{
    if (!o->bound) {
        o->id = pthread_self();
        o->bound = true;
    }
    assert(pthread_equal(o->id, pthread_self()));
}
#endif
