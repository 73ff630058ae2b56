/* base/thread.c - pthreads behind a small face, and the count of cores that are really ours. */
#include "base/thread.h"
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/checked.h"
#include "base/crash.h"
#include "base/mem.h"

#define NS_PER_S 1000000000ull

/* A call that fails here was misused: unlocked by a stranger, destroyed while held. */
static void must_work(int rc)
{
    assert(rc == 0);
    (void)rc;
}

struct thread_start_args {
    thread_fn fn;
    void *arg;
    char name[16];
};

static void *thread_main(void *p)
{
    struct thread_start_args args = *(struct thread_start_args *)p;

    mem_free(p);
    pthread_setname_np(pthread_self(), args.name);
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
        return rc == EAGAIN ? RD_E_NOMEM : RD_E_INTERNAL;
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
    const struct sched_param none = {0};

    (void)sched_setscheduler(0, SCHED_IDLE, &none); /* 0: this thread; refused at worst */
}

/* The first line of a small kernel file; false when there is none. */
static bool read_line(const char *path, char *line, int cap)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(line, cap, f);

    if (f) fclose(f);
    if (ok) line[strcspn(line, "\n")] = 0;
    return ok;
}

/* Cores of a quota, rounded up; 0: none ("max" or -1), or not understood. */
static uint32_t quota_cores(const char *quota, size_t quota_len, const char *period)
{
    uint64_t q, p;

    if (!parse_u64(quota, quota_len, &q) || !parse_u64(period, strlen(period), &p) || p == 0 || q == 0) return 0;
    return (uint32_t)u64_min(q / p + (q % p != 0), UINT32_MAX);
}

/* cgroup v2 (our group and each one above it), then v1; the smallest quota, 0: none. */
static uint32_t cgroup_cores(void)
{
    char group[512], path[600], line[64], period[64];
    uint32_t least = 0, n;

    if (read_line("/proc/self/cgroup", group, sizeof(group)) && strncmp(group, "0::/", 4) == 0) {
        for (char *end = group + strlen(group);; end = strrchr(group + 3, '/')) {
            *end = 0;
            snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", group + 3);
            if (read_line(path, line, sizeof(line))) {
                char *blank = strchr(line, ' ');
                n = blank ? quota_cores(line, (size_t)(blank - line), blank + 1) : 0;
                if (n && (!least || n < least)) least = n;
            }
            if (!group[3]) break;
        }
    }
    if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof(line)) &&
        read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof(period))) {
        n = quota_cores(line, strlen(line), period);
        if (n && (!least || n < least)) least = n;
    }
    return least;
}

uint32_t thread_n_cores(void)
{
    uint32_t n = 1, quota = cgroup_cores();
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) n = (uint32_t)CPU_COUNT(&set);
    if (quota) n = u32_min(n, quota);
    return u32_max(n, 1);
}

/* "0-3,8": does the list name a CPU below `cpu` that is in the set? */
static bool lists_earlier(const char *list, const cpu_set_t *set, uint32_t cpu)
{
    for (const char *at = list; *at;) {
        size_t n = strspn(at, "0123456789");
        uint64_t first, last;

        if (!parse_u64(at, n, &first)) return false;
        at += n;
        last = first;
        if (*at == '-') {
            n = strspn(++at, "0123456789");
            if (!parse_u64(at, n, &last)) return false;
            at += n;
        }
        for (; first <= last && first < cpu; first++)
            if (CPU_ISSET(first, set)) return true;
        at += *at == ',';
        if (*at && !strchr("0123456789", *at)) return false;
    }
    return false;
}

uint32_t thread_n_physical_cores(void)
{
    uint32_t n = 0;
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) return thread_n_cores();
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char path[96], list[256];

        if (!CPU_ISSET(cpu, &set)) continue;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
        if (!read_line(path, list, sizeof(list)) || !lists_earlier(list, &set, cpu)) n++;
    }
    return u32_max(u32_min(n, thread_n_cores()), 1);
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
    pthread_condattr_t attr;

    must_work(pthread_condattr_init(&attr));
    must_work(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
    must_work(pthread_cond_init(&c->c, &attr));
    must_work(pthread_condattr_destroy(&attr));
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
    struct timespec until;
    int rc;

    clock_gettime(CLOCK_MONOTONIC, &until);
    timeout_ns = u64_min(timeout_ns, UINT64_C(1) << 60); /* 36 years: keeps the sum in range */
    timeout_ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(timeout_ns / NS_PER_S);
    until.tv_nsec = (long)(timeout_ns % NS_PER_S);
    rc = pthread_cond_timedwait(&c->c, &m->m, &until);
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
