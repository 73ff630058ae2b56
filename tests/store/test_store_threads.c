/* tests/store/test_store_threads.c - one thread writes and drops, others find and read: nothing but right pages, and
 * nothing for the thread sanitizer to say. Then many processes on one folder: one writes, all read. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/thread.h"
#include "store_rig.h"

#define PAGE    2000u
#define N_TEXTS 30u
#define N_PAGES 8u

struct shared {
    struct store_rig *g;
    atomic_bool stop;
    atomic_uint n_came;
    uint64_t seed;
};

static void reader(void *arg)
{
    struct shared *sh = arg;
    struct random r;
    uint32_t tokens[N_PAGES * RIG_P];

    random_init(&r, sh->seed);
    while (!atomic_load(&sh->stop)) {
        rig_text(random_below(&r, N_TEXTS), tokens, N_PAGES);
        atomic_fetch_add(&sh->n_came, rig_get(sh->g, sh->g->space, "a", tokens, N_PAGES));
        (void)rig_counts(sh->g);
        page_store_say(sh->g->s, sh->g->space, "pages");
    }
}

/* F124 */
TEST(readers_beside_the_writer_see_whole_pages)
{
    struct store_rig g;
    struct shared sh = {.g = &g, .seed = test_seed() + 1};
    struct thread threads[2] = {{0}};
    struct random r;
    uint32_t tokens[N_PAGES * RIG_P];
    uint64_t begin = clock_now_ns(clock_system());

    rig_init(&g, PAGE, 150000, 20000);
    CHECK(rig_open(&g));
    random_init(&r, test_seed());
    for (int i = 0; i < 2; i++) CHECK_OK(thread_start(&threads[i], "reader", reader, &sh));
    while (clock_now_ns(clock_system()) - begin < 2000000000ull) {
        rig_text(random_below(&r, N_TEXTS), tokens, N_PAGES);
        (void)rig_put(&g, g.space, "a", tokens, N_PAGES);
        clock_fake_advance(g.clock, 500000000);
        if (random_below(&r, 3) == 0) (void)page_store_flush(g.s);
        if (random_below(&r, 100) == 0) (void)page_store_drop(g.s, NULL);
    }
    atomic_store(&sh.stop, true);
    for (int i = 0; i < 2; i++) thread_join(&threads[i]);
    test_note("%u pages came, %llu written, %llu dropped for room", atomic_load(&sh.n_came),
              (unsigned long long)rig_counts(&g).n_written, (unsigned long long)rig_counts(&g).n_evicted);
    CHECK(atomic_load(&sh.n_came) > 0);
    CHECK_EQ(rig_counts(&g).n_damaged, 0);
    rig_deinit(&g);
}

/* 0: all was well. */
static int one_process(struct store_rig *g, uint64_t seed)
{
    struct random r;
    uint32_t tokens[N_PAGES * RIG_P];

    random_init(&r, seed);
    for (int i = 0; i < 60; i++) {
        if (!g->s && !rig_open(g)) return 1;
        rig_text(random_below(&r, N_TEXTS), tokens, N_PAGES);
        if (rig_counts(g).is_writer) {
            if (rig_put(g, g->space, "a", tokens, N_PAGES) != RD_OK || page_store_flush(g->s) != RD_OK) return 2;
        }
        page_store_refresh(g->s);
        (void)rig_get(g, g->space, "a", tokens, N_PAGES);
        if (random_below(&r, 20) == 0) rig_close(g);
    }
    return 0;
}

/* F117 */
TEST(many_processes_share_a_folder)
{
    struct store_rig g;
    pid_t pids[6];

    rig_init(&g, PAGE, 150000, 20000);
    for (int i = 0; i < 6; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) _exit(one_process(&g, test_seed() + (uint64_t)i));
    }
    for (int i = 0; i < 6; i++) {
        int status = 0;

        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 0);
    }
    CHECK(rig_dir_bytes(&g) <= 150000);
    CHECK(rig_open(&g));
    CHECK_EQ(rig_counts(&g).is_writer, 1);
    CHECK_EQ(rig_counts(&g).n_damaged, 0);
    rig_deinit(&g);
}
