/* tests/torture/faults.c - the table of sites and the verdict on each call. The calls themselves: fault_calls.c. */
#include "faults.h"
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/mem.h"
#include "fault_calls.h"

#define MOST_INTERRUPTS 1000u /* in a row: whoever is interrupted tries again, without an end */

enum mode { OFF, RECORDING, ARMED };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but mode and the counts */
static _Atomic int mode;                                 /* relaxed: set while nobody runs, or it does not matter */
static struct fault_site sites[FAULT_MAX_SITES];         /* open addressing by key */
static struct fault_site *order[FAULT_MAX_SITES / 2], last_failed;
static uint32_t n_sites, scenario_now;
static struct fault armed;
static uint32_t n_reached; /* hits of the armed one and, for ever, behind it */
static _Atomic uint64_t n_failed, n_memory;
static _Thread_local bool exempt, inside;

#define ERRORS(name, ...) {__VA_ARGS__},
static const int errors[FAULT_N_KINDS][12] = {FAULT_CALLS(ERRORS)};
#undef ERRORS
#define NAME(name, ...) #name,
static const char *const names[FAULT_N_KINDS] = {FAULT_CALLS(NAME)};
#undef NAME

static bool memory_fails(void)
{
    return fault_verdict(FAULT_MEMORY) != 0;
}

void fault_init(void)
{
    void *frames[4];

    (void)backtrace(frames, 4); /* loads what it needs now, not inside a hook */
    mem_set_fault(memory_fails);
}

void fault_exempt(bool on)
{
    exempt = on;
}

static uint64_t key_of(enum fault_kind kind, void *const *frames, int n)
{
    uint64_t key = hash64_of(frames, (size_t)n * sizeof(*frames)) + (uint64_t)kind * 0x9e3779b97f4a7c15u;

    return key ? key : 1;
}

/* Under the lock. */
static struct fault_site *site_of(uint64_t key)
{
    for (uint64_t i = key;; i++) {
        struct fault_site *s = &sites[i % FAULT_MAX_SITES];

        if (s->key == key || s->key == 0) return s;
    }
}

static void note(uint64_t key, enum fault_kind kind, void *const *frames, int n)
{
    struct fault_site *s = site_of(key);

    if (s->key == 0 && n_sites < FAULT_MAX_SITES / 2) {
        *s = (struct fault_site){.key = key, .kind = kind, .scenario = scenario_now, .n_frames = n};
        memcpy(s->frames, frames, (size_t)n * sizeof(*frames));
        order[n_sites++] = s;
    }
    s->n_hits++;
}

/* Under the lock: whether this hit is the one, or behind it. */
static bool is_hit(enum fault_kind kind, uint64_t key, uint64_t number)
{
    if (kind != armed.kind) return false;
    if (n_reached == 0 && !(armed.site ? key == armed.site : number >= armed.number)) return false;
    n_reached++;
    return n_reached == 1 || (armed.for_ever && (armed.error != EINTR || n_reached < MOST_INTERRUPTS));
}

int fault_verdict(enum fault_kind kind)
{
    int now = atomic_load_explicit(&mode, memory_order_relaxed), n = 0, error = 0;
    void *frames[FAULT_DEPTH + 2];
    uint64_t number, key = 0;
    int saved = errno;

    if (now == OFF || exempt || inside) return 0;
    number = kind == FAULT_MEMORY ? atomic_fetch_add_explicit(&n_memory, 1, memory_order_relaxed) : 0;
    if (now == ARMED && kind != armed.kind) return 0;
    inside = true;
    if (now == RECORDING || armed.site || (n_reached == 0 && number >= armed.number)) {
        n = backtrace(frames, FAULT_DEPTH + 2) - 2; /* without this function and its caller in the hook */
        if (n < 0) n = 0;
        key = key_of(kind, frames + 2, n < FAULT_SITE_DEPTH ? n : FAULT_SITE_DEPTH);
    }
    pthread_mutex_lock(&lock);
    if (now == RECORDING)
        note(key, kind, frames + 2, n);
    else if (is_hit(kind, key, number))
        error = armed.error;
    if (error && atomic_fetch_add(&n_failed, 1) == 0) {
        last_failed = (struct fault_site){.key = key, .kind = kind, .n_frames = n};
        memcpy(last_failed.frames, frames + 2, (size_t)n * sizeof(*frames));
    }
    pthread_mutex_unlock(&lock);
    inside = false;
    errno = saved;
    return error;
}

void fault_record(uint32_t scenario)
{
    scenario_now = scenario;
    atomic_store(&n_memory, 0);
    atomic_store(&mode, RECORDING);
}

void fault_forget(void)
{
    memset(sites, 0, sizeof(sites));
    n_sites = 0;
}

void fault_stop(void)
{
    atomic_store(&mode, OFF);
}

void fault_arm(const struct fault *f)
{
    pthread_mutex_lock(&lock);
    armed = *f;
    n_reached = 0;
    atomic_store(&n_failed, 0);
    atomic_store(&n_memory, 0);
    pthread_mutex_unlock(&lock);
    atomic_store(&mode, ARMED);
}

uint64_t fault_n_failed(void)
{
    return atomic_load(&n_failed);
}
uint64_t fault_n_memory(void)
{
    return atomic_load(&n_memory);
}
uint32_t fault_n_sites(void)
{
    return n_sites;
}
const struct fault_site *fault_site(uint32_t i)
{
    return order[i];
}
int fault_error(enum fault_kind kind, unsigned i)
{
    return i < 12 ? errors[kind][i] : 0;
}
const char *fault_kind_name(enum fault_kind kind)
{
    return names[kind];
}
const struct fault_site *fault_last(void)
{
    return &last_failed;
}

const char *fault_error_name(int error)
{
    return error == FAULT_SHORT ? "short" : error == FAULT_END ? "end" : strerrorname_np(error);
}

void fault_print(const struct fault_site *s)
{
    fflush(stdout);
    inside = true;
    backtrace_symbols_fd(s->frames, s->n_frames, STDOUT_FILENO);
    inside = false;
}

void fault_print_here(void)
{
    struct fault_site s = {.key = 0};

    printf("    at\n");
    s.n_frames = backtrace(s.frames, FAULT_DEPTH);
    fault_print(&s);
}
