/* base/mem.c - the C library's heap and mmap behind counters. */
#include "base/mem.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/os_memory.h"

#define MEM_ALIGN 64u
#define MEM_NEVER UINT64_MAX

/* All written by any thread, relaxed: they are counts and a test hook, nothing else is published through them. */
static _Atomic uint64_t n_allocs; /* attempts, failed ones included: the number of the next one */
static _Atomic uint64_t n_alive;
static _Atomic uint64_t fail_at = MEM_NEVER;   /* this attempt fails */
static _Atomic uint64_t fail_from = MEM_NEVER; /* this one and all later ones fail */

static _Atomic uint64_t held_bytes, peak_bytes;
static _Atomic uint64_t limit_bytes = UINT64_MAX;

static _Thread_local bool has_failed; /* of the calling thread: libraries call without an argument */

void mem_clear_failed(void)
{
    has_failed = false;
}
bool mem_has_failed(void)
{
    return has_failed;
}

static _Atomic(bool (*)(void)) fault; /* says of each one whether it fails; NULL: nobody is asked */

static bool may_allocate(void)
{
    uint64_t k = atomic_fetch_add_explicit(&n_allocs, 1, memory_order_relaxed);
    bool (*fails)(void) = atomic_load_explicit(&fault, memory_order_relaxed);

    if (!(fails && fails()) && k != atomic_load_explicit(&fail_at, memory_order_relaxed) &&
        k < atomic_load_explicit(&fail_from, memory_order_relaxed))
        return true;
    has_failed = true;
    return false;
}

/* Charges n more bytes unless that goes beyond the limit. */
static bool charge(uint64_t n)
{
    uint64_t held = atomic_load_explicit(&held_bytes, memory_order_relaxed), peak;

    do {
        uint64_t limit = atomic_load_explicit(&limit_bytes, memory_order_relaxed);
        if (n > limit || held > limit - n) return false;
    } while (!atomic_compare_exchange_weak_explicit(&held_bytes, &held, held + n, memory_order_relaxed,
                                                    memory_order_relaxed));
    peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    while (held + n > peak && !atomic_compare_exchange_weak_explicit(&peak_bytes, &peak, held + n, memory_order_relaxed,
                                                                     memory_order_relaxed)) {}
    return true;
}

static void discharge(uint64_t n)
{
    atomic_fetch_sub_explicit(&held_bytes, n, memory_order_relaxed);
}

/* A new block of the heap: counted, or given back because of the limit. It has not been touched yet. */
static void *counted(void *p)
{
    if (p && !charge(os_heap_bytes(p))) {
        free(p);
        p = NULL;
    }
    if (p)
        atomic_fetch_add_explicit(&n_alive, 1, memory_order_relaxed);
    else
        has_failed = true;
    return p;
}

/* A mapping of charged bytes; NULL: none was made. */
static void *counted_map(void *p, size_t charged)
{
    if (!p) {
        discharge(charged);
        has_failed = true;
        return NULL;
    }
    atomic_fetch_add_explicit(&n_alive, 1, memory_order_relaxed);
    return p;
}

static void uncount(uint64_t n_bytes)
{
    atomic_fetch_sub_explicit(&n_alive, 1, memory_order_relaxed);
    discharge(n_bytes);
}

void *mem_zalloc(size_t n, size_t size)
{
    size_t bytes;

    if (!checked_mul(n, size, &bytes) || !may_allocate()) return NULL;
    return counted(calloc(1, bytes ? bytes : 1));
}

void *mem_alloc(size_t n, size_t size)
{
    size_t bytes;

    if (!checked_mul(n, size, &bytes) || !may_allocate()) return NULL;
    return counted(malloc(bytes ? bytes : 1));
}

void *mem_realloc(void *p, size_t n, size_t size)
{
    size_t bytes, before, after;
    uint64_t more;
    void *q;

    if (!checked_mul(n, size, &bytes) || !may_allocate()) return NULL;
    if (!p) return counted(malloc(bytes ? bytes : 1));
    before = os_heap_bytes(p);
    more = bytes > before ? bytes - before : 0;
    q = charge(more) ? realloc(p, bytes ? bytes : 1) : NULL;
    if (!q) {
        has_failed = true;
        return NULL;
    }
    /* what the heap rounds up is charged late, so that a block that has moved need not move back */
    after = os_heap_bytes(q);
    atomic_fetch_add_explicit(&held_bytes, after - before - more, memory_order_relaxed);
    return q;
}

void mem_free(void *p)
{
    if (!p) return;
    uncount(os_heap_bytes(p));
    free(p);
}

char *mem_strdup(const char *s)
{
    return mem_memdup(s, strlen(s));
}

char *mem_memdup(const void *p, size_t n)
{
    size_t bytes;
    char *copy = checked_add(n, (size_t)1, &bytes) ? mem_alloc(bytes, 1) : NULL;

    if (!copy) return NULL;
    if (n) memcpy(copy, p, n);
    copy[n] = 0;
    return copy;
}

void *mem_alloc_aligned(size_t n_bytes)
{
    const bool huge = n_bytes >= MEM_HUGE_PAGE;
    uint64_t rounded;
    void *p = NULL;

    if (!checked_align(n_bytes ? n_bytes : 1, huge ? 4096 : MEM_ALIGN, &rounded) || !may_allocate()) return NULL;
    /* not aligned_alloc, whose size has to be a multiple of the alignment */
    if (posix_memalign(&p, huge ? MEM_HUGE_PAGE : MEM_ALIGN, rounded)) p = NULL;
    p = counted(p);
    if (p && huge) mem_advise_huge(p, rounded);
    if (p) memset(p, 0, rounded);
    return p;
}

void mem_free_aligned(void *p)
{
    mem_free(p);
}

static uint8_t *map_anonymous(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

/* Where a huge page begins: more is mapped and both ends are given back. n_bytes is a multiple of the small page. */
static uint8_t *map_at_huge_page(size_t n_bytes)
{
    size_t more, head;
    uint8_t *p;

    if (!checked_add(n_bytes, (size_t)MEM_HUGE_PAGE, &more)) return NULL;
    p = map_anonymous(more);
    if (!p) return NULL;
    head = -(uintptr_t)p % MEM_HUGE_PAGE;
    if (head) munmap(p, head);
    munmap(p + head + n_bytes, MEM_HUGE_PAGE - head);
    mem_advise_huge(p + head, n_bytes);
    return p + head;
}

static bool map_size(size_t n_bytes, uint64_t *rounded)
{
    return checked_align(n_bytes ? n_bytes : 1, (uint64_t)sysconf(_SC_PAGESIZE), rounded);
}

void *mem_map(size_t n_bytes)
{
    uint64_t rounded;

    if (!map_size(n_bytes, &rounded) || !may_allocate()) return NULL;
    if (!charge(rounded)) {
        has_failed = true;
        return NULL;
    }
    return counted_map(rounded >= MEM_HUGE_PAGE ? map_at_huge_page(rounded) : map_anonymous(rounded), rounded);
}

void mem_advise_huge(const void *p, size_t n_bytes)
{
    os_advise_huge((void *)(uintptr_t)p, n_bytes);
}

void mem_unmap(void *p, size_t n_bytes)
{
    uint64_t rounded = 0;

    if (!p) return;
    map_size(n_bytes, &rounded);
    uncount(rounded);
    munmap(p, rounded);
}

void mem_make_huge_page(void)
{
    uint8_t *p = map_anonymous(2 * MEM_HUGE_PAGE), *huge;

    if (!p) return;
    huge = p + -(uintptr_t)p % MEM_HUGE_PAGE;
    mem_advise_huge(huge, MEM_HUGE_PAGE);
    *(volatile uint8_t *)huge = 0;
    munmap(p, 2 * MEM_HUGE_PAGE);
}

void mem_keep_little(void)
{
    os_heap_keep_little(MEM_OWN_MAPPING, MEM_ARENAS);
}

void mem_give_back(void)
{
    os_heap_give_back();
}

bool mem_grow(void **items, size_t *cap, size_t want, size_t size)
{
    size_t new_cap = *cap < 8 ? 8 : *cap;
    void *p;

    if (want <= *cap && *items) return true;
    while (new_cap < want)
        if (!checked_mul(new_cap, (size_t)2, &new_cap)) return false;
    p = mem_realloc(*items, new_cap, size);
    if (!p) return false;
    *items = p;
    *cap = new_cap;
    return true;
}

struct mem_usage mem_usage(void)
{
    struct mem_usage u;
    uint64_t limit = atomic_load_explicit(&limit_bytes, memory_order_relaxed);

    u.n_bytes = atomic_load_explicit(&held_bytes, memory_order_relaxed);
    u.peak_bytes = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    if (u.peak_bytes < u.n_bytes) u.peak_bytes = u.n_bytes; /* a block that grew in place */
    u.limit_bytes = limit == UINT64_MAX ? 0 : limit;
    return u;
}

void mem_reset_peak(void)
{
    atomic_store_explicit(&peak_bytes, atomic_load_explicit(&held_bytes, memory_order_relaxed), memory_order_relaxed);
}

bool mem_set_limit(uint64_t n_bytes)
{
    uint64_t before = atomic_exchange_explicit(&limit_bytes, n_bytes ? n_bytes : UINT64_MAX, memory_order_relaxed);

    if (!n_bytes || atomic_load_explicit(&held_bytes, memory_order_relaxed) <= n_bytes) return true;
    atomic_store_explicit(&limit_bytes, before, memory_order_relaxed);
    return false;
}

void mem_fail_after(int64_t i)
{
    atomic_store_explicit(&fail_from, MEM_NEVER, memory_order_relaxed);
    atomic_store_explicit(&fail_at, i < 0 ? MEM_NEVER : mem_n_allocs() + (uint64_t)i, memory_order_relaxed);
}

void mem_fail_from(int64_t i)
{
    atomic_store_explicit(&fail_at, MEM_NEVER, memory_order_relaxed);
    atomic_store_explicit(&fail_from, i < 0 ? MEM_NEVER : mem_n_allocs() + (uint64_t)i, memory_order_relaxed);
}

void mem_set_fault(bool (*fails)(void))
{
    atomic_store_explicit(&fault, fails, memory_order_relaxed);
}

uint64_t mem_n_allocs(void)
{
    return atomic_load_explicit(&n_allocs, memory_order_relaxed);
}

uint64_t mem_n_alive(void)
{
    return atomic_load_explicit(&n_alive, memory_order_relaxed);
}
