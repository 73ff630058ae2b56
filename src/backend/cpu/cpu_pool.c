/* backend/cpu/cpu_pool.c - one 64-bit word holds the whole state of the loop: generation << 32 | next tile.
 *
 * A thread takes a tile by compare-and-swap on that word. Success proves that the generation it read fn, arg and
 * n_tiles under is still the current one (a job's fields change only after all its tiles were taken and done), so
 * nobody has to check in or out: a worker that sleeps through a job costs nothing, and one that wakes late finds no
 * tile.
 *
 *     caller:  word = (gen, closed), fields, n_done = 0, word = (gen + 1, 0)
 *              -> wakes sleepers -> takes tiles -> n_done == n_tiles? return : spin ~50 us : sleep until it is
 *     worker:  word has tiles left? take one : spin ~50 us : sleep until the generation changes
 *
 * The caller sleeps rather than yields: when it waits that long, the worker with the last tile has lost its core to
 * somebody else, and only a core that is idle takes it over from there.
 * No wake-up is lost: a worker counts itself as asleep, then looks at the word again, under the mutex; the caller
 * writes the word, then looks at the count (both sequentially consistent), and signals under the mutex. So it is the
 * other way round, with caller_asleep and n_done.
 * (A stale compare-and-swap could succeed only after exactly 2^32 jobs passed between its two instructions.)
 */
#include "backend/cpu/cpu_pool.h"
#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

#define SPIN_NS     50000u
#define TILE_NONE   UINT32_MAX              /* never below n_tiles */
#define SPIN_CHECK  64u                     /* pauses between two looks at the clock */
#define WAIT_PAUSES 1024u                   /* about 50 us as well */
#define WAIT_PAUSES_CROWDED 32u             /* more threads than cores */

typedef void (*tile_fn)(void *arg, uint32_t tile, uint32_t thread);

struct worker { struct cpu_pool *pool; uint32_t index; struct thread thread; };

struct cpu_pool {
    /* Written by the caller before the word's generation goes up, read by workers; valid once a tile was taken. */
    _Atomic(tile_fn) fn;
    _Atomic(void *) arg;
    _Atomic uint32_t n_tiles;
    _Alignas(64) _Atomic uint64_t word;     /* generation << 32 | next tile; release by the caller, acquire by takers */
    _Alignas(64) _Atomic uint32_t n_done;   /* sequentially consistent: see caller_asleep */
    _Atomic bool caller_asleep;             /* changed under the mutex */
    _Alignas(64) _Atomic uint32_t n_asleep; /* changed under the mutex */
    _Atomic bool stop;                      /* set under the mutex */
    struct mutex mutex;
    /* waits have no deadline: the word, stop or n_done changes, then they are signalled */
    struct cond wake, done;
    uint64_t spin_ns; /* 0 when there are more threads than cores: spinning would steal from the others */
    uint32_t n_threads;                     /* workers + 1 */
    struct worker *workers;                 /* [n_threads - 1] */
};

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static uint32_t word_generation(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static uint64_t word_make(uint32_t generation, uint32_t tile)
{
    return (uint64_t)generation << 32 | tile;
}

/* Counts a tile that is done. n_tiles: of its job, which may be over right after. */
static void count_done(struct cpu_pool *pool, uint32_t n_tiles)
{
    if (atomic_fetch_add(&pool->n_done, 1) + 1 != n_tiles || !atomic_load(&pool->caller_asleep)) return;
    mutex_lock(&pool->mutex);
    cond_signal(&pool->done);
    mutex_unlock(&pool->mutex);
}

/* Runs tiles until none is left; returns the generation that it found empty. */
static uint32_t run_tiles(struct cpu_pool *pool, uint32_t thread)
{
    uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);

    for (;;) {
        uint32_t n_tiles = atomic_load_explicit(&pool->n_tiles, memory_order_acquire);
        tile_fn fn = atomic_load_explicit(&pool->fn, memory_order_acquire);
        void *arg = atomic_load_explicit(&pool->arg, memory_order_acquire);

        /* n_tiles may be of a newer job than word: then word's job is over all the same */
        if ((uint32_t)word >= n_tiles) return word_generation(word);
        if (!atomic_compare_exchange_weak_explicit(&pool->word, &word, word + 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(arg, (uint32_t)word, thread);
        count_done(pool, n_tiles);
        word = atomic_load_explicit(&pool->word, memory_order_acquire);
    }
}

/* true: the generation moved on while spinning. */
static bool spin_for_work(struct cpu_pool *pool, uint32_t generation)
{
    uint64_t start = 0;

    if (pool->spin_ns == 0) return false;
    for (uint32_t i = 0;; i++) {
        uint64_t now;

        if (word_generation(atomic_load_explicit(&pool->word, memory_order_relaxed)) != generation) return true;
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
    while (!(stop = atomic_load(&pool->stop)) && word_generation(atomic_load(&pool->word)) == generation)
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
        do generation = run_tiles(pool, w->index); while (spin_for_work(pool, generation));
    } while (sleep_for_work(pool, generation));
}

static void wake_workers(struct cpu_pool *pool, uint32_t n_wanted)
{
    if (atomic_load(&pool->n_asleep) == 0) return;
    mutex_lock(&pool->mutex);
    if (n_wanted >= pool->n_threads - 1) cond_broadcast(&pool->wake);
    else while (n_wanted--) cond_signal(&pool->wake);
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
    atomic_store(&pool->caller_asleep, true);
    while (atomic_load(&pool->n_done) != n_tiles) cond_wait(&pool->done, &pool->mutex);
    atomic_store(&pool->caller_asleep, false);
    mutex_unlock(&pool->mutex);
}

void cpu_pool_run(struct cpu_pool *pool, tile_fn fn, void *arg, uint32_t n_tiles)
{
    uint32_t generation;

    if (pool->n_threads == 1 || n_tiles <= 1) {
        for (uint32_t i = 0; i < n_tiles; i++) fn(arg, i, 0);
        return;
    }
    /* Close the old job first: whoever sees a field of the new one also sees that its old word is gone. */
    generation = word_generation(atomic_load_explicit(&pool->word, memory_order_relaxed));
    atomic_store_explicit(&pool->word, word_make(generation, TILE_NONE), memory_order_relaxed);
    atomic_store_explicit(&pool->fn, fn, memory_order_release);
    atomic_store_explicit(&pool->arg, arg, memory_order_release);
    atomic_store_explicit(&pool->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->n_tiles, n_tiles, memory_order_release);
    atomic_store(&pool->word, word_make(generation + 1, 0));
    wake_workers(pool, n_tiles - 1);
    run_tiles(pool, 0);
    wait_for_tiles(pool, n_tiles);
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
    pool->workers = mem_zalloc(n_threads - 1, sizeof(*pool->workers));
    if (!pool->workers) goto fail;
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
    mem_free_aligned(pool);
}
