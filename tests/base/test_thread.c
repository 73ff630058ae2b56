/* tests/base/test_thread.c - threads, conditions, queues and doorbells; clean under the thread sanitizer. */
#include "base/thread.h"
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/word_wait.h"
#include "test.h"

#define MS 1000000ull

struct counter {
    struct mutex lock;
    uint32_t n;
};

static void count_up(void *arg)
{
    struct counter *c = arg;

    for (int i = 0; i < 10000; i++) {
        mutex_lock(&c->lock);
        c->n++;
        mutex_unlock(&c->lock);
        if (i % 1000 == 0) thread_yield();
    }
}

TEST(a_mutex_keeps_four_threads_apart)
{
    struct counter c = {.n = 0};
    struct thread t[4] = {0};

    mutex_init(&c.lock);
    for (int i = 0; i < 4; i++) CHECK_OK(thread_start(&t[i], "a name of more than 15 bytes", count_up, &c));
    for (int i = 0; i < 4; i++) thread_join(&t[i]);
    thread_join(&t[0]); /* joined already */
    CHECK_EQ(c.n, 40000);
    mutex_deinit(&c.lock);
    CHECK(thread_n_cores() >= 1);
    CHECK(thread_n_physical_cores() >= 1);
    CHECK(thread_n_physical_cores() <= thread_n_cores());
}

struct sleeper {
    _Atomic uint32_t word, n_woken;
};

static void sleep_at_word(void *arg)
{
    struct sleeper *s = arg;

    while (atomic_load(&s->word) == 7) word_wait_ns(&s->word, 7, 60000 * MS);
    atomic_fetch_add(&s->n_woken, 1);
}

TEST(sleepers_at_a_word_wake_when_it_changes)
{
    struct sleeper s = {7, 0};
    struct thread t[4] = {0};

    CHECK(word_wait_ns(&s.word, 6, 60000 * MS)); /* it is another one already */
    CHECK(!word_wait_ns(&s.word, 7, MS));
    for (int i = 0; i < 4; i++) CHECK_OK(thread_start(&t[i], "sleeper", sleep_at_word, &s));
    clock_sleep_ns(5 * MS); /* some of them sleep by then */
    CHECK_EQ(atomic_load(&s.n_woken), 0);
    atomic_store(&s.word, 8);
    word_wake_all(&s.word);
    for (int i = 0; i < 4; i++) thread_join(&t[i]);
    CHECK_EQ(atomic_load(&s.n_woken), 4);
}

static void read_signal_mask(void *arg)
{
    pthread_sigmask(SIG_SETMASK, NULL, arg);
}

TEST(signals_for_the_process_are_blocked_in_threads)
{
    struct thread t = {0};
    sigset_t mask, own;

    CHECK_OK(thread_start(&t, "mask", read_signal_mask, &mask));
    thread_join(&t);
    CHECK(sigismember(&mask, SIGINT) && sigismember(&mask, SIGTERM) && sigismember(&mask, SIGPIPE));
    CHECK(!sigismember(&mask, SIGBUS) && !sigismember(&mask, SIGSEGV));
    pthread_sigmask(SIG_SETMASK, NULL, &own);
    CHECK(!sigismember(&own, SIGTERM)); /* ours is as it was */
}

static void become_idle(void *policy)
{
    thread_set_idle();
    *(int *)policy = sched_getscheduler(0);
}

TEST(an_idle_thread_is_idle_alone)
{
    struct thread t = {0};
    int own = sched_getscheduler(0), policy = -1;

    CHECK_OK(thread_start(&t, "idle", become_idle, &policy));
    thread_join(&t);
    CHECK(policy == SCHED_IDLE || policy == own); /* refused: as it was */
    CHECK_EQ(sched_getscheduler(0), own);
}

static void become_low(void *nice)
{
    thread_set_low();
    *(int *)nice = getpriority(PRIO_PROCESS, 0);
}

TEST(a_low_thread_is_low_alone)
{
    struct thread t = {0};
    int own = getpriority(PRIO_PROCESS, 0), nice = -1;

    CHECK_OK(thread_start(&t, "low", become_low, &nice));
    thread_join(&t);
    CHECK_EQ(nice, own + 10 < 19 ? own + 10 : 19);
    CHECK_EQ(getpriority(PRIO_PROCESS, 0), own);
}

TEST(a_thread_that_cannot_start_leaks_nothing)
{
    struct thread t = {0};
    struct queue *q = NULL;
    struct wake *w = NULL;
    uint64_t alive = mem_n_alive();

    mem_fail_after(0);
    CHECK_EQ(thread_start(&t, "none", count_up, NULL), RD_E_NOMEM);
    thread_join(&t);
    for (int i = 0; i < 2; i++) {
        mem_fail_after(i);
        CHECK_EQ(queue_create(4, &q), RD_E_NOMEM);
    }
    mem_fail_after(0);
    CHECK_EQ(wake_create(&w), RD_E_NOMEM);
    CHECK(!q && !w);
    queue_destroy(NULL);
    wake_destroy(NULL);
    CHECK_EQ(mem_n_alive(), alive);
}

TEST(a_timed_wait_ends)
{
    struct mutex m;
    struct cond c;
    uint64_t start = clock_now_ns(clock_system());

    mutex_init(&m);
    cond_init(&c);
    mutex_lock(&m);
    while (cond_wait_ns(&c, &m, 5 * MS)) {} /* spurious wake-ups are allowed */
    mutex_unlock(&m);
    CHECK(clock_now_ns(clock_system()) - start >= 5 * MS);
    cond_deinit(&c);
    mutex_deinit(&m);
}

TEST(an_owner_is_the_first_who_calls_until_released)
{
    struct thread_owner owner = {0};

    thread_owner_check(&owner);
    thread_owner_check(&owner);
    thread_owner_release(&owner);
    CHECK(!owner.bound);
}

TEST(a_queue_is_first_in_first_out_and_bounded)
{
    int items[5];
    struct queue *q;

    CHECK_OK(queue_create(3, &q));
    CHECK(!queue_try_pop(q));
    for (int round = 0; round < 5; round++) { /* the ring wraps */
        for (int i = 0; i < 3; i++) CHECK_OK(queue_push(q, &items[i]));
        CHECK_EQ(queue_push(q, &items[3]), RD_E_FULL);
        CHECK_EQ(queue_length(q), 3);
        CHECK(queue_pop(q) == &items[0]);
        CHECK_OK(queue_push(q, &items[4]));
        CHECK(queue_try_pop(q) == &items[1]);
        CHECK(queue_try_pop(q) == &items[2]);
        CHECK(queue_try_pop(q) == &items[4]);
    }
    CHECK_OK(queue_push(q, &items[0]));
    queue_close(q);
    CHECK_EQ(queue_push(q, &items[1]), RD_E_CLOSED);
    CHECK(queue_pop(q) == &items[0]); /* what was in it still comes out */
    CHECK(!queue_pop(q));
    queue_destroy(q);
}

enum { N_PRODUCERS = 3, N_CONSUMERS = 2, N_EACH = 5000 };
struct exchange {
    struct queue *q;
    _Atomic uint32_t seen[N_PRODUCERS * N_EACH];
    _Atomic uint32_t next_producer;
};
static struct exchange ex;

static void produce(void *arg)
{
    uint32_t first = atomic_fetch_add(&ex.next_producer, 1) * N_EACH;

    for (uint32_t i = first; i < first + N_EACH; i++)
        while (queue_push(ex.q, &ex.seen[i]) == RD_E_FULL) thread_yield();
}

static void consume(void *arg)
{
    for (_Atomic uint32_t *p; (p = queue_pop(ex.q));) atomic_fetch_add(p, 1);
}

TEST(every_item_of_many_producers_arrives_exactly_once)
{
    struct thread producers[N_PRODUCERS] = {0}, consumers[N_CONSUMERS] = {0};

    CHECK_OK(queue_create(16, &ex.q));
    for (int i = 0; i < N_CONSUMERS; i++) CHECK_OK(thread_start(&consumers[i], "consumer", consume, NULL));
    for (int i = 0; i < N_PRODUCERS; i++) CHECK_OK(thread_start(&producers[i], "producer", produce, NULL));
    for (int i = 0; i < N_PRODUCERS; i++) thread_join(&producers[i]);
    queue_close(ex.q);
    for (int i = 0; i < N_CONSUMERS; i++) thread_join(&consumers[i]);
    for (int i = 0; i < N_PRODUCERS * N_EACH; i++) CHECK_EQ(atomic_load(&ex.seen[i]), 1);
    queue_destroy(ex.q);
}

TEST(a_bell_rung_before_the_wait_is_heard_once)
{
    struct wake *w;

    CHECK_OK(wake_create(&w));
    CHECK(!wake_wait(w, 0));
    wake_ring(w);
    wake_ring(w);
    CHECK(wake_wait(w, UINT64_MAX));
    CHECK(!wake_wait(w, 1 * MS));
    wake_destroy(w);
}

struct relay {
    struct wake *there, *back;
    int n;
};

static void answer_bells(void *arg)
{
    struct relay *r = arg;

    for (int i = 0; i < 2000; i++) {
        wake_wait(r->there, UINT64_MAX);
        r->n++; /* the bells alone order this */
        wake_ring(r->back);
    }
}

TEST(two_threads_can_pass_a_turn_by_bells)
{
    struct relay r = {0};
    struct thread t = {0};

    CHECK_OK(wake_create(&r.there));
    CHECK_OK(wake_create(&r.back));
    CHECK_OK(thread_start(&t, "relay", answer_bells, &r));
    for (int i = 0; i < 2000; i++) {
        CHECK_EQ(r.n, i);
        wake_ring(r.there);
        CHECK(wake_wait(r.back, UINT64_MAX));
    }
    thread_join(&t);
    wake_destroy(r.there);
    wake_destroy(r.back);
}
