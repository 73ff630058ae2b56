/* tests/ops/test_rank_threads.c - ranks that meet: nobody goes on before all have come, everybody sees what the others
 * showed, whoever leaves takes all along, who does not come is named, and who is stopped, wherever that is, holds nobody. Under the
 * thread sanitizer, too. */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>
#include "backend/ranks.h"
#include "base/random.h"
#include "base/thread.h"
#include "sanitized.h"
#include "test.h"

#define N_MEETINGS 20000u
#define PATIENCE   20000000000u

struct walk {
    struct rank_group *g;
    uint32_t rank, n, n_meetings, leaves_at; /* UINT32_MAX: never */
    rd_status why;
    uint32_t shown[2]; /* of this meeting, of the one before */
    uint32_t n_met, n_wrong;
    rd_status st;
};

static void walk(void *arg)
{
    struct walk *w = arg;

    for (uint32_t i = 0; i < w->n_meetings; i++) {
        const void *all[RANKS_MAX];

        if (i == w->leaves_at) {
            rank_group_leave(w->g, w->why);
            w->st = w->why;
            return;
        }
        w->shown[i & 1] = i * 16 + w->rank;
        w->st = rank_group_meet(w->g, w->rank, &w->shown[i & 1], all);
        if (w->st != RD_OK) return;
        for (uint32_t k = 0; k < w->n; k++) w->n_wrong += *(const uint32_t *)all[k] != i * 16 + k;
        w->n_met++;
    }
}

/* All ranks' walks, each in a thread; returns their number. */
static void walk_all(struct walk *walks, uint32_t n)
{
    struct thread threads[RANKS_MAX] = {{0}};

    for (uint32_t i = 0; i < n; i++) CHECK_OK(thread_start(&threads[i], "walk", walk, &walks[i]));
    for (uint32_t i = 0; i < n; i++) thread_join(&threads[i]);
}

TEST(everybody_sees_what_the_others_show)
{
    for (uint32_t n = 1; n <= RANKS_MAX; n++)
        for (uint32_t n_spin = 0; n_spin <= 500; n_spin += 500) {
            struct walk walks[RANKS_MAX] = {{0}};
            struct rank_group *g = NULL;
            uint32_t lost;

            CHECK_OK(rank_group_create(n, n_spin, PATIENCE, &g));
            for (uint32_t i = 0; i < n; i++)
                walks[i] =
                    (struct walk){.g = g, .rank = i, .n = n, .n_meetings = N_MEETINGS / n, .leaves_at = UINT32_MAX};
            walk_all(walks, n);
            for (uint32_t i = 0; i < n; i++) {
                CHECK_OK(walks[i].st);
                CHECK_EQ(walks[i].n_met, N_MEETINGS / n);
                CHECK_EQ(walks[i].n_wrong, 0);
            }
            CHECK(!rank_group_has_lost(g, &lost));
            rank_group_destroy(g);
        }
}

TEST(who_leaves_takes_all_along_and_they_may_meet_again)
{
    struct random r;
    struct rank_group *g = NULL;

    random_init(&r, test_seed());
    CHECK_OK(rank_group_create(4, 0, PATIENCE, &g));
    for (int round = 0; round < 200; round++) {
        struct walk walks[RANKS_MAX] = {{0}};
        const uint32_t who = (uint32_t)random_below(&r, 4), when = (uint32_t)random_below(&r, 20);

        for (uint32_t i = 0; i < 4; i++)
            walks[i] = (struct walk){.g = g,
                                     .rank = i,
                                     .n = 4,
                                     .n_meetings = 20,
                                     .leaves_at = i == who ? when : UINT32_MAX,
                                     .why = round % 2 ? RD_E_CANCELLED : RD_E_DEVICE};
        walk_all(walks, 4);
        for (uint32_t i = 0; i < 4; i++) {
            CHECK_EQ(walks[i].st, round % 2 ? RD_E_CANCELLED : RD_E_DEVICE);
            CHECK_EQ(walks[i].n_met, when);
            CHECK_EQ(walks[i].n_wrong, 0);
        }
        rank_group_reset(g);
    }
    rank_group_destroy(g);
}

TEST(who_does_not_come_is_named_for_good)
{
    struct rank_group *g = NULL;
    struct walk walks[2] = {{0}};
    struct thread threads[2] = {{0}};
    uint32_t lost = 99;

    CHECK_OK(rank_group_create(3, 10, 200000000, &g));
    for (uint32_t i = 0; i < 2; i++) { /* ranks 0 and 2 */
        walks[i] = (struct walk){.g = g, .rank = 2 * i, .n = 3, .n_meetings = 3, .leaves_at = UINT32_MAX};
        CHECK_OK(thread_start(&threads[i], "walk", walk, &walks[i]));
    }
    for (uint32_t i = 0; i < 2; i++) thread_join(&threads[i]);
    CHECK_EQ(walks[0].st, RD_E_DEVICE);
    CHECK_EQ(walks[1].st, RD_E_DEVICE);
    CHECK(rank_group_has_lost(g, &lost));
    CHECK_EQ(lost, 1);
    rank_group_reset(g); /* does nothing */
    walks[0].n_meetings = 1;
    walk(&walks[0]);
    CHECK_EQ(walks[0].st, RD_E_DEVICE);
    rank_group_destroy(g);
}

static atomic_bool is_held;
static atomic_uint n_stopped;

/* A signal comes between any two instructions. */
static void stand_still(int number)
{
    (void)number;
    atomic_fetch_add(&n_stopped, 1);
    while (atomic_load(&is_held)) usleep(500);
}

struct walker {
    struct walk walk;
    atomic_bool has_ended;
};

static void walk_until_held(void *arg)
{
    struct walker *w = arg;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    walk(&w->walk);
    atomic_store(&w->has_ended, true);
}

static bool ends(struct walker *w)
{
    for (int i = 0; i < 20000 && !atomic_load(&w->has_ended); i++) usleep(1000);
    return atomic_load(&w->has_ended);
}

TEST(a_rank_that_is_stopped_anywhere_keeps_the_others_for_their_patience)
{
    const struct sigaction act = {.sa_handler = stand_still};
    const uint32_t n_rounds = test_is_long() ? 300 : 30;
    struct random r;

    if (IS_SANITIZED) {
        test_skip("a sanitizer lets signals in at calls alone");
        return;
    }
    random_init(&r, test_seed());
    CHECK_EQ(sigaction(SIGUSR2, &act, NULL), 0);
    for (uint32_t round = 0; round < n_rounds; round++) {
        const uint32_t who = (uint32_t)random_below(&r, 3);
        struct walker walkers[3] = {0};
        struct thread threads[3] = {0};
        struct rank_group *g = NULL;
        bool came = true;

        atomic_store(&is_held, true);
        atomic_store(&n_stopped, 0);
        CHECK_OK(rank_group_create(3, round % 3 * 100, 50000000, &g));
        for (uint32_t i = 0; i < 3; i++) {
            walkers[i].walk =
                (struct walk){.g = g, .rank = i, .n = 3, .n_meetings = UINT32_MAX, .leaves_at = UINT32_MAX};
            CHECK_OK(thread_start(&threads[i], "walk", walk_until_held, &walkers[i]));
        }
        usleep((useconds_t)random_below(&r, 4000));
        CHECK_EQ(pthread_kill(threads[who].id, SIGUSR2), 0);
        for (uint32_t i = 0; i < 3; i++) came &= i == who || ends(&walkers[i]);
        if (!came) test_fail(__FILE__, __LINE__, "round %u: who is not stopped did not come back", round);
        atomic_store(&is_held, false);
        for (uint32_t i = 0; i < 3; i++) {
            thread_join(&threads[i]);
            CHECK_EQ(walkers[i].walk.st, RD_E_DEVICE);
            CHECK_EQ(walkers[i].walk.n_wrong, 0);
        }
        CHECK_EQ(atomic_load(&n_stopped), 1);
        rank_group_destroy(g);
    }
}
