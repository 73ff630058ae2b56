/* tests/store/test_page_store.c - what is put is found, by exactly its tokens, within the cap, across restarts; a long
 * random run against a naive model. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/limits.h"
#include "store_rig.h"

#define PAGE 1000u

TEST(a_text_comes_back_after_a_restart)
{
    struct store_rig g;
    uint32_t tokens[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    rig_text(1, tokens, 8);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 8), 0); /* pending: not synced yet */
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 8), 8);
    CHECK_EQ(rig_counts(&g).n_pages, 8);
    CHECK_EQ(rig_counts(&g).n_bytes, rig_dir_bytes(&g));
    rig_close(&g);
    CHECK(rig_open(&g));
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 8), 8);
    tokens[5 * RIG_P + 1]++;
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 8), 5);
    CHECK_EQ(rig_counts(&g).n_damaged, 0);
    rig_deinit(&g);
}

TEST(closing_writes_what_is_pending)
{
    struct store_rig g;
    uint32_t tokens[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    rig_text(1, tokens, 8);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
    rig_close(&g);
    CHECK(rig_open(&g));
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 8), 8);
    rig_deinit(&g);
}

TEST(a_shared_prefix_is_stored_once)
{
    struct store_rig g;
    uint32_t tokens[8 * RIG_P];
    uint64_t once;

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    rig_text(4, tokens, 8);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8)); /* pending as well as */
    CHECK_OK(page_store_flush(g.s));
    once = rig_dir_bytes(&g);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8)); /* written */
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_dir_bytes(&g), once);
    rig_text(5, tokens, 8); /* the same first half */
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_counts(&g).n_pages, 12);
    CHECK_EQ(rig_counts(&g).n_known, 20);
    rig_deinit(&g);
}

/* F114, F123 */
TEST(namespaces_and_shapes_never_meet)
{
    struct store_rig g;
    struct store_space *b, *wide, *again;
    uint32_t tokens[4 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    CHECK_OK(page_store_space(g.s, "b", 1, RIG_P, PAGE, &b));
    CHECK_OK(page_store_space(g.s, "a", 1, RIG_P, PAGE + 8, &wide));
    CHECK_OK(page_store_space(g.s, "a", 1, RIG_P, PAGE, &again));
    CHECK(again == g.space && b != g.space && wide != g.space);
    rig_text(1, tokens, 4);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 4));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, b, "b", tokens, 4), 0);
    CHECK_EQ(rig_get(&g, wide, "a", tokens, 4), 0);
    CHECK_OK(rig_put(&g, b, "b", tokens, 4));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, b, "b", tokens, 4), 4);
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 4), 4);
    CHECK_EQ(rig_counts(&g).n_segments, 2);
    CHECK_OK(page_store_drop(g.s, g.space)); /* a tenant goes, with all that was his */
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 4), 0);
    CHECK_EQ(rig_get(&g, b, "b", tokens, 4), 4);
    CHECK_EQ(rig_counts(&g).n_segments, 1);
    CHECK_OK(page_store_drop(g.s, NULL));
    CHECK_EQ(rig_dir_bytes(&g), 0);
    CHECK_EQ(page_store_space(g.s, "a", 1, RIG_P, 0, &b), RD_E_LIMIT);
    rig_deinit(&g);
}

/* Namespaces cost nothing once nobody holds them, however many there were, and those that are held stay as they are. */
TEST(namespaces_come_and_go_beyond_their_limit)
{
    enum { N = 3 * LIMIT_STORE_SPACES / 2 };
    struct store_rig g;
    struct store_space *held, *again;
    uint32_t tokens[4 * RIG_P];
    uint64_t n_alive = 0;
    char name[32];

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    rig_text(1, tokens, 4);
    CHECK_OK(page_store_space(g.s, "held", 4, RIG_P, PAGE, &held));
    for (uint32_t i = 0; i < N; i++) {
        struct store_space *space;

        snprintf(name, sizeof(name), "salt %u", i);
        CHECK_OK(page_store_space(g.s, name, strlen(name), RIG_P, PAGE, &space));
        if (i % 25000 == 0) CHECK_OK(rig_put(&g, space, name, tokens, 4));
        page_store_unref(g.s, space);
        if (i == 1000) n_alive = mem_n_alive();
    }
    CHECK_OK(page_store_flush(g.s));
    CHECK(mem_n_alive() <= n_alive + 10); /* segments */
    for (uint32_t i = 0; i < N; i += 25000) {
        struct store_space *space;

        snprintf(name, sizeof(name), "salt %u", i);
        CHECK_OK(page_store_space(g.s, name, strlen(name), RIG_P, PAGE, &space));
        CHECK_EQ(rig_get(&g, space, name, tokens, 4), 4); /* forgotten, and found again by its name */
        page_store_unref(g.s, space);
    }
    CHECK_OK(page_store_space(g.s, "held", 4, RIG_P, PAGE, &again));
    CHECK(again == held);
    rig_deinit(&g);
}

TEST(too_many_namespaces_held_at_once_are_refused_until_one_is_let_go)
{
    struct store_rig g;
    struct store_space *spaces[9], *more;
    char name = 'b';

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    g.max_spaces = 10; /* that of the rig is one */
    CHECK(rig_open(&g));
    for (uint32_t i = 0; i < 9; i++, name++) CHECK_OK(page_store_space(g.s, &name, 1, RIG_P, PAGE, &spaces[i]));
    CHECK_EQ(page_store_space(g.s, "more", 4, RIG_P, PAGE, &more), RD_E_LIMIT);
    CHECK(page_store_ref(g.s, spaces[4]) == spaces[4]);
    page_store_unref(g.s, spaces[4]); /* it has another holder */
    CHECK_EQ(page_store_space(g.s, "more", 4, RIG_P, PAGE, &more), RD_E_LIMIT);
    page_store_unref(g.s, spaces[4]);
    CHECK_OK(page_store_space(g.s, "more", 4, RIG_P, PAGE, &more));
    CHECK_EQ(page_store_space(g.s, "f", 1, RIG_P, PAGE, &more), RD_E_LIMIT); /* spaces[4] is forgotten */
    page_store_unref(g.s, NULL);
    CHECK(!page_store_ref(g.s, NULL));
    rig_deinit(&g);
}

/* What was forsaken does not come back because its namespace was forgotten. */
TEST(what_was_forsaken_is_never_found_again)
{
    struct store_rig g;
    struct store_space *space;
    uint32_t tokens[4 * RIG_P];
    char name[32];

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    CHECK(rig_open(&g));
    rig_text(1, tokens, 4);
    CHECK_OK(page_store_space(g.s, "b", 1, RIG_P, PAGE, &space));
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 4));
    CHECK_OK(rig_put(&g, space, "b", tokens, 4));
    CHECK_OK(page_store_flush(g.s));
    page_store_forsake(g.s, space);
    page_store_unref(g.s, space);
    for (uint32_t round = 0; round < 2; round++) { /* one of them, then all */
        for (uint32_t i = 0; i < 1000; i++) {
            snprintf(name, sizeof(name), "salt %u", i);
            CHECK_OK(page_store_space(g.s, name, strlen(name), RIG_P, PAGE, &space));
            page_store_unref(g.s, space);
        }
        CHECK_OK(page_store_space(g.s, "b", 1, RIG_P, PAGE, &space));
        CHECK_EQ(rig_get(&g, space, "b", tokens, 4), 0);
        page_store_unref(g.s, space);
        CHECK_EQ(rig_get(&g, g.space, "a", tokens, 4), round ? 0 : 4);
        page_store_forsake(g.s, NULL);
    }
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 4));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 4), 4);
    rig_deinit(&g);
}

TEST(the_least_recently_used_segment_goes_first)
{
    struct store_rig g;
    uint32_t old[4 * RIG_P], kept[4 * RIG_P], tokens[4 * RIG_P];

    rig_init(&g, PAGE, 40000, 8192); /* a handful of segments of 3 pages */
    CHECK(rig_open(&g));
    rig_text(0, old, 3);
    rig_text(400, kept, 3);
    CHECK_OK(rig_put(&g, g.space, "a", old, 3));
    clock_fake_advance(g.clock, 5000000000ull);
    CHECK_OK(rig_put(&g, g.space, "a", kept, 3));
    for (uint64_t k = 2; k < 60; k++) {
        clock_fake_advance(g.clock, 5000000000ull);
        rig_text(k * 400, tokens, 3);
        CHECK_OK(rig_put(&g, g.space, "a", tokens, 3));
        CHECK_OK(page_store_flush(g.s));
        CHECK_EQ(rig_get(&g, g.space, "a", kept, 3), 3); /* used all the time */
        CHECK(rig_dir_bytes(&g) <= 40000);
        if (k % 20 == 0) {
            rig_close(&g);
            CHECK(rig_open(&g));
        }
    }
    CHECK_EQ(rig_get(&g, g.space, "a", old, 3), 0);
    CHECK(rig_counts(&g).n_evicted > 0);
    rig_deinit(&g);
}

/* F118 */
TEST(a_smaller_cap_is_kept_from_the_start)
{
    struct store_rig g;
    uint32_t tokens[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 8192);
    CHECK(rig_open(&g));
    for (uint64_t k = 0; k < 20; k++) {
        rig_text(k * 4, tokens, 8);
        CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
    }
    rig_close(&g);
    CHECK(rig_dir_bytes(&g) > 100000);
    g.cap_bytes = 50000;
    CHECK(rig_open(&g));
    CHECK(rig_dir_bytes(&g) <= 50000);
    CHECK_EQ(rig_dir_bytes(&g), rig_counts(&g).n_bytes);
    rig_close(&g);
    g.cap_bytes = 1000; /* less than one page takes */
    CHECK(rig_open(&g));
    CHECK_EQ(rig_put(&g, g.space, "a", tokens, 8), RD_E_LIMIT);
    CHECK_EQ(rig_dir_bytes(&g), 0);
    rig_deinit(&g);
}

/* F117 */
TEST(a_second_store_on_the_folder_reads_and_inherits_the_writing)
{
    struct store_rig g, other;
    uint32_t tokens[8 * RIG_P], more[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 16384);
    CHECK(rig_open(&g));
    rig_text(1, tokens, 8);
    rig_text(100, more, 8);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
    CHECK_OK(page_store_flush(g.s));
    other = g;
    CHECK(rig_open(&other));
    CHECK_EQ(rig_counts(&other).is_writer, 0);
    CHECK_EQ(rig_get(&other, other.space, "a", tokens, 8), 8);
    CHECK_EQ(rig_put(&other, other.space, "a", more, 8), RD_E_AGAIN);
    CHECK_OK(rig_put(&g, g.space, "a", more, 8));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&other, other.space, "a", more, 8), 0);
    page_store_refresh(other.s);
    CHECK_EQ(rig_get(&other, other.space, "a", more, 8), 8);
    CHECK_OK(page_store_drop(g.s, NULL));
    CHECK_EQ(rig_get(&other, other.space, "a", tokens, 8), 0); /* listed, but gone: a miss */
    page_store_refresh(other.s);
    CHECK_EQ(rig_counts(&other).n_segments, 0);
    rig_close(&g);
    page_store_refresh(other.s);
    CHECK_EQ(rig_counts(&other).is_writer, 1);
    CHECK_OK(rig_put(&other, other.space, "a", more, 8));
    CHECK_OK(page_store_flush(other.s));
    CHECK_EQ(rig_get(&other, other.space, "a", more, 8), 8);
    rig_close(&other);
    rig_deinit(&g);
}

TEST(on_a_disk_that_is_full_the_cache_turns_over_and_does_not_grow)
{
    struct store_rig g;
    uint32_t text[8 * RIG_P];
    uint64_t n_bytes;

    rig_init(&g, PAGE, 8 << 20, 16384);
    g.keep_free_bytes = UINT64_MAX; /* no disk has that */
    CHECK(rig_open(&g));
    rig_text(1, text, 8);
    CHECK_EQ(rig_put(&g, g.space, "a", text, 8), RD_E_LIMIT); /* of nothing nothing can go */
    CHECK_EQ(rig_counts(&g).is_failing, 0);
    CHECK_EQ(rig_dir_bytes(&g), 0);
    rig_close(&g);

    g.keep_free_bytes = 0;
    CHECK(rig_open(&g));
    for (uint64_t k = 0; k < 20; k++) {
        clock_fake_advance(g.clock, 1000000000ull);
        rig_text(4 * k, text, 8);
        CHECK_OK(rig_put(&g, g.space, "a", text, 8));
    }
    rig_close(&g);
    n_bytes = rig_dir_bytes(&g);
    CHECK(n_bytes > 0);

    g.keep_free_bytes = UINT64_MAX;
    CHECK(rig_open(&g));
    for (uint64_t k = 30; k < 35; k++) {
        clock_fake_advance(g.clock, 1000000000ull);
        rig_text(4 * k, text, 8);
        CHECK_OK(rig_put(&g, g.space, "a", text, 8));
        CHECK_OK(page_store_flush(g.s));
        CHECK_EQ(rig_get(&g, g.space, "a", text, 8), 8);
        CHECK(rig_dir_bytes(&g) <= n_bytes);
    }
    CHECK(rig_counts(&g).n_evicted > 0);
    rig_text(4 * 19, text, 8);
    CHECK_EQ(rig_get(&g, g.space, "a", text, 8), 8); /* the latest of before is there still */
    rig_text(0, text, 8);
    CHECK_EQ(rig_get(&g, g.space, "a", text, 8), 0);
    rig_deinit(&g);
}

/* rm -rf of the folder of a running server. */
static void remove_folder(const struct store_rig *g)
{
    char command[256];

    snprintf(command, sizeof(command), "rm -r '%s'", g->dir);
    CHECK_EQ(system(command), 0);
}

TEST(a_folder_that_is_removed_is_begun_anew)
{
    struct store_rig g;
    uint32_t tokens[8 * RIG_P], more[8 * RIG_P], last[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 16384);
    CHECK(rig_open(&g));
    rig_text(1, tokens, 8);
    rig_text(100, more, 8);
    rig_text(200, last, 8);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
    CHECK_OK(page_store_flush(g.s));
    CHECK_OK(rig_put(&g, g.space, "a", more, 8)); /* pending when the folder goes */
    remove_folder(&g);
    page_store_refresh(g.s);
    CHECK_EQ(rig_counts(&g).n_segments, 0);
    CHECK(rig_counts(&g).n_dropped > 0);
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 8), 0);
    CHECK_OK(rig_put(&g, g.space, "a", last, 8));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(rig_get(&g, g.space, "a", last, 8), 8);
    CHECK_EQ(rig_counts(&g).is_writer, 1);
    rig_close(&g);
    CHECK(rig_open(&g)); /* and it outlives a restart */
    CHECK_EQ(rig_get(&g, g.space, "a", last, 8), 8);
    rig_deinit(&g);
}

TEST(who_makes_a_removed_folder_first_is_its_one_writer)
{
    struct store_rig g, other;
    uint32_t tokens[8 * RIG_P], more[8 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 16384);
    CHECK(rig_open(&g));
    rig_text(1, tokens, 8);
    rig_text(100, more, 8);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 8));
    CHECK_OK(page_store_flush(g.s));
    remove_folder(&g);
    other = g;
    CHECK(rig_open(&other));
    CHECK_EQ(rig_counts(&other).is_writer, 1);
    CHECK_OK(rig_put(&other, other.space, "a", more, 8));
    CHECK_OK(page_store_flush(other.s));
    page_store_refresh(g.s);
    CHECK_EQ(rig_counts(&g).is_writer, 0);
    CHECK_EQ(rig_put(&g, g.space, "a", tokens, 8), RD_E_AGAIN);
    CHECK_EQ(rig_get(&g, g.space, "a", more, 8), 8); /* with the new folder's key */
    rig_close(&other);
    page_store_refresh(g.s);
    CHECK_EQ(rig_counts(&g).is_writer, 1);
    CHECK_EQ(rig_get(&g, g.space, "a", more, 8), 8);
    rig_deinit(&g);
}

/* F122 */
TEST(files_are_the_users_alone)
{
    struct store_rig g;
    uint32_t tokens[4 * RIG_P];
    struct stat st;
    mode_t before = umask(0);
    char sub[200];

    rig_init(&g, PAGE, 1 << 20, 1 << 16);
    snprintf(sub, sizeof(sub), "%s/kv", g.dir);
    struct store_options o = {.dir = sub, .cap_bytes = 1 << 20, .segment_bytes = 0, .clock = g.clock};
    CHECK_OK(page_store_open(&o, &g.s, NULL));
    CHECK_OK(page_store_space(g.s, "a", 1, RIG_P, PAGE, &g.space));
    rig_text(1, tokens, 4);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 4));
    rig_close(&g);
    umask(before);
    CHECK(stat(sub, &st) == 0 && (st.st_mode & 0777) == 0700);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"lock", "key", "0000000000000001.pages"};
        char path[300];

        snprintf(path, sizeof(path), "%s/%s", sub, names[i]);
        CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
        unlink(path);
    }
    CHECK(chmod(sub, 0770) == 0); /* others could write pages there: not used */
    CHECK_EQ(page_store_open(&o, &g.s, NULL), RD_E_INVALID);
    g.s = NULL;
    CHECK(rmdir(sub) == 0);
    rig_deinit(&g);
}

/* ---- the naive model: which pages of which texts have been flushed; evictions make it an upper bound ---- */

#define N_TEXTS   48u
#define MAX_PAGES 12u

struct model {
    uint32_t n_flushed[2][N_TEXTS]; /* by space: pages of a text that must be there while nothing was evicted */
    uint32_t n_put[2][N_TEXTS];
    bool evicts;
};

static bool random_turn(struct store_rig *g, struct store_space **spaces, struct model *m, struct random *r)
{
    static const char *const names[] = {"a", "b"};
    uint32_t which = (uint32_t)random_below(r, 2), k = (uint32_t)random_below(r, N_TEXTS);
    uint32_t n = 1 + (uint32_t)random_below(r, MAX_PAGES), tokens[MAX_PAGES * RIG_P], got;

    rig_text(k, tokens, MAX_PAGES);
    switch (random_below(r, 16)) {
    case 0:
        if (page_store_flush(g->s) != RD_OK) return false;
        memcpy(m->n_flushed, m->n_put, sizeof(m->n_put));
        break;
    case 1:
        if (random_below(r, 8)) break;
        rig_close(g);
        if (!rig_open(g) || page_store_space(g->s, "b", 1, RIG_P, g->page_bytes, &spaces[1]) != RD_OK) return false;
        spaces[0] = g->space;
        memcpy(m->n_flushed, m->n_put, sizeof(m->n_put));
        break;
    case 2:
    case 3:
    case 4:
    case 5:
    case 6:
    case 7:
        if (rig_put(g, spaces[which], names[which], tokens, n) != RD_OK) return false;
        if (m->n_put[which][k] < n) m->n_put[which][k] = n;
        break;
    default:
        got = rig_get(g, spaces[which], names[which], tokens, n);
        if (!m->evicts && got < n && got < m->n_flushed[which][k]) return false;
        break;
    }
    clock_fake_advance(g->clock, random_below(r, 2000000000));
    return true;
}

static void random_run(uint64_t cap, uint64_t segment, uint32_t n_turns, bool evicts)
{
    struct store_rig g;
    struct store_space *spaces[2];
    struct model m = {.evicts = evicts};
    struct random r;

    random_init(&r, test_seed());
    rig_init(&g, 400, cap, segment);
    CHECK(rig_open(&g));
    spaces[0] = g.space;
    CHECK_OK(page_store_space(g.s, "b", 1, RIG_P, g.page_bytes, &spaces[1]));
    for (uint32_t i = 0; i < n_turns; i++) {
        CHECK(random_turn(&g, spaces, &m, &r));
        CHECK_EQ(rig_counts(&g).n_damaged, 0);
        if (i % 16 == 0) {
            CHECK_EQ(rig_counts(&g).n_bytes, rig_dir_bytes(&g));
            CHECK(rig_dir_bytes(&g) <= cap);
        }
    }
    if (!evicts) CHECK_EQ(rig_counts(&g).n_evicted, 0);
    rig_deinit(&g);
}

TEST(a_random_run_with_room_loses_nothing)
{
    random_run(8 << 20, 30000, test_is_long() ? 200000 : 6000, false);
}
/* F118 */
TEST(a_random_run_without_room_stays_within_its_cap)
{
    random_run(60000, 7000, test_is_long() ? 200000 : 6000, true);
}

/* F121 */
TEST(a_million_entries_open_quickly)
{
    struct store_rig g;
    uint32_t tokens[RIG_P];
    uint8_t page[8] = {0};
    const uint32_t n = test_is_long() ? 1000000 : 20000;
    uint64_t before;

    rig_init(&g, sizeof(page), 1ull << 30, 8 << 20);
    CHECK(rig_open(&g));
    for (uint32_t i = 0; i < n; i++) {
        struct hash128 digest;

        for (uint32_t k = 0; k < RIG_P; k++) tokens[k] = i + k;
        page_store_chain(g.s, g.space, tokens, 0, 1, &digest);
        CHECK_OK(page_store_put(g.s, g.space, &digest, 0, tokens, page));
        if (i % 1000 == 999) CHECK_OK(page_store_flush(g.s));
    }
    rig_close(&g);
    before = clock_now_ns(clock_system());
    CHECK(rig_open(&g));
    test_note("%u entries: opened in %llu ms", n,
              (unsigned long long)((clock_now_ns(clock_system()) - before) / 1000000));
    CHECK_EQ(rig_counts(&g).n_pages, n);
    rig_deinit(&g);
}

/* For people: which models and tenants have how much, the latest used first; one of them can be dropped. */
TEST(what_is_there_is_listed_by_namespace)
{
    struct store_rig g;
    struct store_space_info list[8];
    struct store_space *other;
    uint32_t tokens[12 * RIG_P];

    rig_init(&g, PAGE, 1 << 20, 20000);
    CHECK(rig_open(&g));
    CHECK_EQ(page_store_list(g.s, list, 8), 0);
    CHECK_OK(page_store_space(g.s, "other", 5, RIG_P, PAGE, &other));
    rig_text(1, tokens, 12);
    CHECK_OK(rig_put(&g, g.space, "a", tokens, 12));
    clock_fake_advance(g.clock, 5000000000ull);
    CHECK_OK(rig_put(&g, other, "other", tokens, 3));
    CHECK_OK(page_store_flush(g.s));
    CHECK_EQ(page_store_list(g.s, list, 8), 2);
    CHECK_EQ(list[0].n_pages, 3); /* used last */
    CHECK_EQ(list[0].n_tokens, 3 * RIG_P);
    CHECK_EQ(list[1].n_pages, 12);
    CHECK(list[0].used_s > list[1].used_s && list[1].n_segments >= 1);
    CHECK_STR(list[0].about, "a model\nf16\n");
    CHECK_EQ(list[0].n_bytes + list[1].n_bytes, rig_dir_bytes(&g));
    CHECK_EQ(page_store_list(g.s, list + 2, 1), 1); /* no room for more */
    CHECK_OK(page_store_drop_listed(g.s, list[1].space));
    CHECK_EQ(page_store_list(g.s, list, 8), 1);
    CHECK_EQ(rig_get(&g, g.space, "a", tokens, 12), 0);
    CHECK_EQ(rig_get(&g, other, "other", tokens, 12), 3);
    mem_fail_after(0);
    CHECK_EQ(page_store_list(g.s, list, 8), 0);
    mem_fail_after(-1);
    {
        FILE *f = fopen(rig_segment_path(&g, 0), "r+"); /* a text that is none is not shown */

        CHECK(f && fseek(f, SEGMENT_ABOUT, SEEK_SET) == 0 && fwrite("\xff\xfe", 2, 1, f) == 1);
        fclose(f);
    }
    CHECK_EQ(page_store_list(g.s, list, 8), 1);
    CHECK_STR(list[0].about, "");
    rig_deinit(&g);
}
