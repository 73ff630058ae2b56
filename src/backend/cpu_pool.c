/* backend/cpu_pool.c - every thread has a range of the job's tiles, from which the others steal when theirs are empty.
 *
 *     range of a thread, one 64-bit word:   generation << 40 | first tile << 20 | behind its last tile
 *
 * A tile is taken by compare-and-swap on the word that has it: the owner takes the first, a thief half of what is left,
 * from the end, runs one of these and makes the others its own range. So threads that are in time touch their own cache
 * line alone, a late one's tiles are spread over the others, and it may find none when it comes. Success proves that the
 * generation it read fn and arg under is still the current one (a job's fields change only after all its tiles were
 * taken and done), so nobody has to check in or out. Tiles in one range at a time do not come back to it before one of
 * them was run: a word has no value twice in a generation.
 *
 *     caller:  all ranges are empty: fields, n_done = 0, ranges, generation + 1
 *              -> wakes sleepers -> takes tiles -> n_done == n_tiles? return : spin ~50 us : sleep until it is
 *     worker:  takes tiles, counts them -> spin ~50 us : sleep until the generation changes
 *
 * The caller sleeps rather than yields: when it waits that long, the worker with the last tile has lost its core to
 * another thread, and only a core that is idle takes it over from there.
 * No wake-up is lost: a worker counts itself as asleep, then looks at the generation again, under the mutex; the caller
 * writes the generation, then looks at the count (both sequentially consistent), and signals under the mutex. So it is
 * the other way round, with caller_asleep and n_done.
 * (A stale compare-and-swap could succeed only after exactly 2^24 jobs passed between its two instructions, and if then
 * just these tiles of the same range were left.)
 */
#include "backend/cpu_pool.h"
#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "backend/spin_pause.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

#define SPIN_NS             50000u
#define MOST_TILES          ((1u << 20) - 1) /* of a job: what a range can tell */
#define SPIN_CHECK          64u              /* pauses between two looks at the clock */
#define WAIT_PAUSES         1024u            /* about 50 us as well */
#define WAIT_PAUSES_CROWDED 32u              /* more threads than cores */

typedef void (*tile_fn)(void *arg, uint32_t tile, uint32_t thread);

struct worker {
    struct cpu_pool *pool;
    uint32_t index;
    struct thread thread;
};

struct range {
    _Alignas(64) _Atomic uint64_t word;
}; /* release by whoever fills it, acquire by takers */

struct cpu_pool {
    /* Written by the caller before the ranges are, read by workers; valid once a tile was taken. */
    _Atomic(tile_fn) fn;
    _Atomic(void *) arg;
    _Atomic uint32_t first_tile, n_tiles;     /* of the job's part that the ranges have: tile 0 there is first_tile */
    _Alignas(64) _Atomic uint32_t generation; /* 24 bits; goes up when the ranges are there */
    _Alignas(64) _Atomic uint32_t n_done;     /* sequentially consistent: see caller_asleep */
    _Atomic bool caller_asleep;               /* changed under the mutex */
    _Alignas(64) _Atomic uint32_t n_asleep;   /* changed under the mutex */
    _Atomic bool stop;                        /* set under the mutex */
    struct mutex mutex;
    /* waits have no deadline: the word, stop or n_done changes, then they are signalled */
    struct cond wake, done;
    uint64_t spin_ns;       /* 0 when there are more threads than cores: spinning would steal from the others */
    uint32_t n_threads;     /* workers + 1 */
    struct worker *workers; /* [n_threads - 1] */
    struct range *ranges;   /* [n_threads] */
};

/* ---- ranges ---- */

static uint64_t range_make(uint32_t generation, uint32_t first, uint32_t end)
{
    return (uint64_t)generation << 40 | (uint64_t)first << 20 | end;
}

static uint32_t range_first(uint64_t word)
{
    return (uint32_t)(word >> 20) & MOST_TILES;
}
static uint32_t range_end(uint64_t word)
{
    return (uint32_t)word & MOST_TILES;
}

/* The first n tiles of a range of one's own, the last n of another's. */
static uint64_t range_without(uint64_t word, bool own, uint32_t n)
{
    return own ? word + ((uint64_t)n << 20) : word - n;
}

/* Tiles that are done. Their job may be over right after. */
static void count_done(struct cpu_pool *pool, uint32_t n)
{
    uint32_t n_tiles;

    if (n == 0) return;
    n_tiles = atomic_load_explicit(&pool->n_tiles, memory_order_relaxed); /* while ours are not counted it stays */
    if (atomic_fetch_add(&pool->n_done, n) + n != n_tiles || !atomic_load(&pool->caller_asleep)) return;
    mutex_lock(&pool->mutex);
    cond_signal(&pool->done);
    mutex_unlock(&pool->mutex);
}

/* Whether a thread can have tiles of that generation beside its own range: it must be empty, and the caller not be about to
 * fill it. (A new job may have begun since the thread found nothing more to do.) */
static bool may_steal(struct cpu_pool *pool, uint32_t thread, uint32_t generation)
{
    uint64_t own;

    if (atomic_load_explicit(&pool->generation, memory_order_acquire) != generation) return false;
    own = atomic_load_explicit(&pool->ranges[thread].word, memory_order_relaxed);
    return range_first(own) >= range_end(own);
}

/* Takes the first tile of a thread's own range, or half of another's; runs one. False: the range is empty. */
static bool run_one(struct cpu_pool *pool, uint32_t owner, uint32_t thread)
{
    _Atomic uint64_t *range = &pool->ranges[owner].word;
    uint64_t word = atomic_load_explicit(range, memory_order_acquire);

    for (;;) {
        uint32_t first = range_first(word), end = range_end(word), first_tile, n;
        tile_fn fn;
        void *arg;

        if (first >= end) return false;
        if (owner != thread && !may_steal(pool, thread, (uint32_t)(word >> 40))) return false;
        fn = atomic_load_explicit(&pool->fn, memory_order_relaxed);
        arg = atomic_load_explicit(&pool->arg, memory_order_relaxed);
        first_tile = atomic_load_explicit(&pool->first_tile, memory_order_relaxed);
        n = owner == thread ? 1 : (end - first + 1) / 2;
        if (!atomic_compare_exchange_weak_explicit(range, &word, range_without(word, owner == thread, n),
                                                   memory_order_acq_rel, memory_order_acquire))
            continue;
        if (owner != thread) first = end - n;
        if (n > 1) /* its own range is empty: nobody else writes it */
            atomic_store_explicit(&pool->ranges[thread].word, range_make((uint32_t)(word >> 40), first + 1, end),
                                  memory_order_release);
        fn(arg, first_tile + first, thread);
        return true;
    }
}

/* Runs tiles until none is left. */
static void run_tiles(struct cpu_pool *pool, uint32_t thread)
{
    uint32_t n_done, victim;

    do {
        for (n_done = 0; run_one(pool, thread, thread); n_done++) {}
        count_done(pool, n_done);
        for (victim = (thread + 1) % pool->n_threads; victim != thread; victim = (victim + 1) % pool->n_threads)
            if (run_one(pool, victim, thread)) {
                count_done(pool, 1);
                break;
            }
    } while (victim != thread);
}

/* ---- workers ---- */

/* true: the generation moved on while spinning. */
static bool spin_for_work(struct cpu_pool *pool, uint32_t generation)
{
    uint64_t start = 0;

    if (pool->spin_ns == 0) return false;
    for (uint32_t i = 0;; i++) {
        uint64_t now;

        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != generation) return true;
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return false;
        pause_briefly();
        if (i % SPIN_CHECK) continue;
        now = clock_now_ns(clock_system());
        if (start == 0) start = now;
        if (now - start > pool->spin_ns) return false;
    }
}

/* false: the pool is closing. */
static bool sleep_for_work(struct cpu_pool *pool, uint32_t generation)
{
    bool stop;

    mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->n_asleep, 1);
    while (!(stop = atomic_load(&pool->stop)) && atomic_load(&pool->generation) == generation)
        cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->n_asleep, 1);
    mutex_unlock(&pool->mutex);
    return !stop;
}

static void worker_main(void *arg)
{
    struct worker *w = arg;
    struct cpu_pool *pool = w->pool;
    uint32_t generation;

    do {
        do {
            generation = atomic_load_explicit(&pool->generation, memory_order_acquire);
            run_tiles(pool, w->index);
        } while (spin_for_work(pool, generation));
    } while (sleep_for_work(pool, generation));
}

static void wake_workers(struct cpu_pool *pool, uint32_t n_wanted)
{
    if (atomic_load(&pool->n_asleep) == 0) return;
    mutex_lock(&pool->mutex);
    if (n_wanted >= pool->n_threads - 1)
        cond_broadcast(&pool->wake);
    else
        while (n_wanted--) cond_signal(&pool->wake);
    mutex_unlock(&pool->mutex);
}

/* The last tiles run on other threads. */
static void wait_for_tiles(struct cpu_pool *pool, uint32_t n_tiles)
{
    uint32_t n_pauses = pool->spin_ns ? WAIT_PAUSES : WAIT_PAUSES_CROWDED;

    for (uint32_t i = 0; i < n_pauses; i++) {
        if (atomic_load_explicit(&pool->n_done, memory_order_acquire) == n_tiles) return;
        pause_briefly();
    }
    mutex_lock(&pool->mutex);
    (void)atomic_exchange(&pool->caller_asleep, true); /* qemu's AArch64 lets a load pass a store before it, not this */
    while (atomic_load(&pool->n_done) != n_tiles) cond_wait(&pool->done, &pool->mutex);
    atomic_store(&pool->caller_asleep, false);
    mutex_unlock(&pool->mutex);
}

/* At most MOST_TILES. */
static void run_part(struct cpu_pool *pool, tile_fn fn, void *arg, uint32_t first_tile, uint32_t n_tiles)
{
    uint32_t generation = (atomic_load_explicit(&pool->generation, memory_order_relaxed) + 1) & 0xFFFFFF;
    uint32_t share = n_tiles / pool->n_threads, n_longer = n_tiles % pool->n_threads;

    atomic_store_explicit(&pool->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&pool->first_tile, first_tile, memory_order_relaxed);
    atomic_store_explicit(&pool->n_tiles, n_tiles, memory_order_relaxed);
    atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
    for (uint32_t t = 0, first = 0; t < pool->n_threads; t++) {
        uint32_t end = first + share + (t < n_longer);

        atomic_store_explicit(&pool->ranges[t].word, range_make(generation, first, end), memory_order_release);
        first = end;
    }
    atomic_store(&pool->generation, generation);
    wake_workers(pool, n_tiles - 1);
    run_tiles(pool, 0);
    wait_for_tiles(pool, n_tiles);
}

void cpu_pool_run(struct cpu_pool *pool, tile_fn fn, void *arg, uint32_t n_tiles)
{
    if (pool->n_threads == 1 || n_tiles <= 1) {
        for (uint32_t i = 0; i < n_tiles; i++) fn(arg, i, 0);
        return;
    }
    for (uint32_t first = 0; first < n_tiles; first += MOST_TILES)
        run_part(pool, fn, arg, first, n_tiles - first < MOST_TILES ? n_tiles - first : MOST_TILES);
}

uint32_t cpu_pool_n_threads(const struct cpu_pool *pool)
{
    return pool->n_threads;
}

rd_status cpu_pool_create(uint32_t n_threads, struct cpu_pool **out)
{
    rd_status st = RD_E_NOMEM;
    struct cpu_pool *pool = mem_alloc_aligned(sizeof(*pool));

    assert(n_threads >= 1 && out);
    if (!pool) return st;
    mutex_init(&pool->mutex);
    cond_init(&pool->wake);
    cond_init(&pool->done);
    pool->n_threads = n_threads;
    pool->spin_ns = n_threads <= thread_n_cores() ? SPIN_NS : 0;
    pool->ranges = mem_alloc_aligned(n_threads * sizeof(*pool->ranges));
    pool->workers = mem_zalloc(n_threads - 1, sizeof(*pool->workers));
    if (!pool->workers || !pool->ranges) goto fail;
    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        struct worker *w = &pool->workers[i];

        w->pool = pool;
        w->index = i + 1;
        st = thread_start(&w->thread, "radish-cpu", worker_main, w);
        if (st != RD_OK) goto fail;
    }
    *out = pool;
    return RD_OK;

fail:
    cpu_pool_destroy(pool);
    return st;
}

void cpu_pool_destroy(struct cpu_pool *pool)
{
    if (!pool) return;
    mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    cond_broadcast(&pool->wake);
    mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; pool->workers && i + 1 < pool->n_threads; i++) thread_join(&pool->workers[i].thread);
    cond_deinit(&pool->wake);
    cond_deinit(&pool->done);
    mutex_deinit(&pool->mutex);
    mem_free(pool->workers);
    mem_free_aligned(pool->ranges);
    mem_free_aligned(pool);
}
