/* tests/ops/test_pool.c - the thread pool: every tile once, full barrier, no lost wake-up, no CPU time when idle. */
#include "backend/cpu_pool.h"
#include <stdatomic.h>
#include <sys/resource.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

#define MAX_TILES 5000u

/* Plain memory on purpose: the pool is the only synchronisation, and TSan watches. */
struct job {
    uint32_t seen[MAX_TILES], n_threads, add;
    _Atomic uint32_t n_bad_threads;
};

static void mark(void *arg, uint32_t tile, uint32_t thread)
{
    struct job *job = arg;

    job->seen[tile] += job->add;
    if (thread >= job->n_threads) atomic_fetch_add(&job->n_bad_threads, 1);
}

static void run_once(struct cpu_pool *pool, struct job *job, uint32_t n_tiles, uint32_t add)
{
    memset(job->seen, 0, sizeof(job->seen));
    job->add = add;
    cpu_pool_run(pool, mark, job, n_tiles);
    for (uint32_t i = 0; i < MAX_TILES; i++) CHECK_EQ(job->seen[i], i < n_tiles ? add : 0);
    CHECK_EQ(job->n_bad_threads, 0);
}

static void stress(uint32_t n_threads, uint32_t n_jobs, struct random *r)
{
    struct job *job = mem_zalloc(1, sizeof(*job));
    struct cpu_pool *pool = NULL;

    CHECK(job);
    CHECK_OK(cpu_pool_create(n_threads, &pool));
    CHECK_EQ(cpu_pool_n_threads(pool), n_threads);
    job->n_threads = n_threads;
    for (uint32_t i = 0; i < n_jobs; i++) {
        run_once(pool, job, (uint32_t)random_below(r, random_below(r, 8) ? 20 : MAX_TILES + 1), i + 1);
        if (random_below(r, 100) == 0) clock_sleep_ns(random_below(r, 150000)); /* into, and just short of, sleep */
    }
    cpu_pool_destroy(pool);
    mem_free(job);
}

TEST(every_tile_runs_once_and_is_seen_by_the_caller)
{
    struct random r;

    random_init(&r, test_seed());
    stress(1, 300, &r);
    stress(2, 4000, &r);
    stress(3, 2000, &r);
    stress(8, 1000, &r);
    stress(64, 200, &r);
}

struct tiny {
    _Atomic uint64_t sum;
    uint64_t plain[8];
};

static void tiny_tile(void *arg, uint32_t tile, uint32_t thread)
{
    struct tiny *t = arg;

    t->plain[tile]++;
    atomic_fetch_add_explicit(&t->sum, 1, memory_order_relaxed);
}

TEST(many_tiny_jobs_lose_nothing)
{
    for (uint32_t n_threads = 2; n_threads <= 4; n_threads += 2) {
        struct cpu_pool *pool = NULL;
        struct tiny t = {0};
        uint64_t want = 0;

        CHECK_OK(cpu_pool_create(n_threads, &pool));
        for (uint32_t i = 0; i < 20000; i++) {
            cpu_pool_run(pool, tiny_tile, &t, 2 + i % 7);
            want += 2 + i % 7;
        }
        CHECK_EQ(atomic_load(&t.sum), want);
        cpu_pool_destroy(pool);
        for (uint32_t i = 0; i < 2; i++) CHECK_EQ(t.plain[i], 20000);
    }
}

static void slow_tile(void *arg, uint32_t tile, uint32_t thread)
{
    struct tiny *t = arg;

    clock_sleep_ns(thread ? 300000 : 20000); /* workers that lost their core: the caller falls asleep */
    t->plain[tile]++;
    atomic_fetch_add_explicit(&t->sum, 1, memory_order_relaxed);
}

TEST(the_caller_sleeps_until_late_tiles_are_done)
{
    for (uint32_t n_threads = 2; n_threads <= 8; n_threads *= 2) {
        struct cpu_pool *pool = NULL;
        struct tiny t = {0};

        CHECK_OK(cpu_pool_create(n_threads, &pool));
        for (uint32_t i = 0; i < 300; i++) {
            cpu_pool_run(pool, slow_tile, &t, 8);
            CHECK_EQ(atomic_load(&t.sum), (i + 1) * 8);
            for (uint32_t k = 0; k < 8; k++) CHECK_EQ(t.plain[k], i + 1);
        }
        cpu_pool_destroy(pool);
    }
}

static uint64_t cpu_time_us(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

TEST(an_idle_pool_uses_no_cpu_time)
{
    struct cpu_pool *pool = NULL;
    struct tiny t = {0};
    uint64_t before;

    CHECK_OK(cpu_pool_create(2, &pool));
    cpu_pool_run(pool, tiny_tile, &t, 8);
    clock_sleep_ns(20000000);
    before = cpu_time_us();
    clock_sleep_ns(200000000);
    CHECK(cpu_time_us() - before < 20000);
    cpu_pool_run(pool, tiny_tile, &t, 8); /* and it still wakes */
    CHECK_EQ(atomic_load(&t.sum), 16);
    cpu_pool_destroy(pool);
}

TEST(destroy_works_while_starting_spinning_or_asleep)
{
    uint64_t alive = mem_n_alive();

    for (uint32_t i = 0; i < 60; i++) {
        struct cpu_pool *pool = NULL;
        struct tiny t = {0};

        CHECK_OK(cpu_pool_create(1 + i % 5, &pool));
        if (i % 3) cpu_pool_run(pool, tiny_tile, &t, 8);
        if (i % 3 == 2) clock_sleep_ns(1000000);
        cpu_pool_destroy(pool);
    }
    cpu_pool_destroy(NULL);
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(a_failed_allocation_leaves_nothing_behind)
{
    uint64_t alive = mem_n_alive();
    rd_status st = RD_E_NOMEM;

    for (int64_t i = 0; st == RD_E_NOMEM && i < 50; i++) {
        struct cpu_pool *pool = NULL;

        mem_fail_after(i);
        st = cpu_pool_create(3, &pool);
        mem_fail_after(-1);
        CHECK((st == RD_OK) == (pool != NULL));
        cpu_pool_destroy(pool);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK_OK(st);
}

TEST(running_allocates_nothing)
{
    struct cpu_pool *pool = NULL;
    struct tiny t = {0};
    uint64_t n;

    CHECK_OK(cpu_pool_create(3, &pool));
    n = mem_n_allocs();
    for (int i = 0; i < 100; i++) cpu_pool_run(pool, tiny_tile, &t, 8);
    CHECK_EQ(mem_n_allocs(), n);
    cpu_pool_destroy(pool);
}

static void count_tile(void *arg, uint32_t tile, uint32_t thread)
{
    struct tiny *t = arg;

    atomic_fetch_add_explicit(&t->sum, tile, memory_order_relaxed);
}

TEST(a_job_may_have_more_tiles_than_a_range_can_tell)
{
    struct cpu_pool *pool = NULL;
    struct tiny t = {0};
    uint64_t n = 2500000;

    CHECK_OK(cpu_pool_create(3, &pool));
    cpu_pool_run(pool, count_tile, &t, (uint32_t)n);
    CHECK_EQ(atomic_load(&t.sum), n * (n - 1) / 2);
    cpu_pool_destroy(pool);
}

static void late_tile(void *arg, uint32_t tile, uint32_t thread)
{
    struct tiny *t = arg;

    while (tile == 0 && atomic_load(&t->sum) < 399) clock_sleep_ns(100000); /* until somebody else has run all others */
    atomic_fetch_add(&t->sum, 1);
}

TEST(tiles_of_a_late_thread_are_run_by_the_others)
{
    struct cpu_pool *pool = NULL;

    CHECK_OK(cpu_pool_create(4, &pool));
    for (int i = 0; i < 20; i++) {
        struct tiny t = {0};

        cpu_pool_run(pool, late_tile, &t, 400);
        CHECK_EQ(atomic_load(&t.sum), 400);
    }
    cpu_pool_destroy(pool);
}
