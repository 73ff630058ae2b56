/* tests/kv/test_kv_windows.c - windows of pages, one fact at a time; the random runs of test_kv_random.c put them together. */
#include "base/mem.h"
#include "kv/page_pool_state.h"
#include "kv_world.h"
#include "test.h"

#define P      4u
#define WINDOW 6u

static const kv_key *count_to(uint32_t n)
{
    static kv_key keys[256];

    for (uint32_t i = 0; i < n; i++) keys[i] = i + 1;
    return keys;
}

static rd_status start(struct world *w, struct kv_seq *seq, const kv_key *keys, uint32_t n)
{
    rd_status st = kv_seq_init(seq, &w->cache, keys, n, 128);

    return st == RD_OK ? kv_seq_admit(seq, w->root[0], ++w->now) : st;
}

static void end(struct world *w, struct kv_seq *seq)
{
    kv_seq_finish(seq, true, ++w->now);
    kv_seq_deinit(seq);
}

static bool store(struct world *w, const kv_key *keys, uint32_t n)
{
    struct kv_seq seq;
    bool ok = start(w, &seq, keys, n) == RD_OK;

    while (ok && seq.n_computed < n)
        ok = world_compute(w, &seq, n - seq.n_computed < P ? n - seq.n_computed : P) == RD_OK;
    end(w, &seq);
    return ok && world_ok(w);
}

static struct window_counts counts(const struct world *w)
{
    return page_pool_window_counts(w->pool);
}

TEST(a_window_is_free_used_or_kept_and_goes_with_its_page)
{
    struct page_pool *pool = NULL;
    kv_page id[4];
    struct window_counts n;

    CHECK_OK(page_pool_create(4, P, &pool));
    CHECK(page_pool_windows(pool) == NULL);
    CHECK_OK(page_pool_make_windows(pool, 2));
    CHECK_OK(page_pool_take(pool, 4, id));
    CHECK_EQ(page_pool_window(pool, id[0]), KV_NO_PAGE);
    CHECK_EQ(page_pool_open_windows(pool, 3, id), RD_E_NO_PAGES);
    CHECK_EQ(page_pool_window_counts(pool).n_free, 2); /* none was taken */
    CHECK_OK(page_pool_open_windows(pool, 2, id));
    CHECK(page_pool_window(pool, id[0]) != page_pool_window(pool, id[1]));
    CHECK_EQ(page_pool_windows(pool)[id[1]], page_pool_window(pool, id[1]));
    CHECK_EQ(page_pool_open_windows(pool, 1, id + 2), RD_E_NO_PAGES); /* both are used */
    page_pool_use_window(pool, id[0]);
    page_pool_leave_window(pool, id[0]);
    CHECK_EQ(page_pool_window_users(pool, id[0]), 1);
    page_pool_favour_window(pool, id[0]);
    page_pool_leave_window(pool, id[0]);
    page_pool_leave_window(pool, id[1]);
    CHECK_OK(page_pool_open_windows(pool, 1, id + 2));
    CHECK_EQ(page_pool_window(pool, id[1]), KV_NO_PAGE); /* left last, but nothing speaks for it */
    CHECK(page_pool_window(pool, id[0]) != KV_NO_PAGE);
    page_pool_release(pool, id[0]);
    page_pool_pass_window(pool, id[2], id[3]);
    CHECK_EQ(page_pool_window(pool, id[2]), KV_NO_PAGE);
    n = page_pool_window_counts(pool);
    CHECK(n.n_total == 2 && n.n_free == 1 && n.n_kept == 0 && n.n_used == 1 && n.n_dropped == 1);
    CHECK_OK(page_pool_check(pool, NULL));
    page_pool_close_window(pool, id[3]);
    CHECK_EQ(page_pool_window_counts(pool).n_free, 2);
    for (int i = 1; i < 4; i++) page_pool_release(pool, id[i]);
    CHECK_OK(page_pool_check(pool, NULL));
    page_pool_destroy(pool);
}

TEST(windows_are_made_whole_or_not_at_all)
{
    uint64_t n_alive = mem_n_alive();
    struct page_pool *pool = NULL;
    rd_status st = RD_E_NOMEM;
    int i;

    CHECK_OK(page_pool_create(4, P, &pool));
    for (i = 0; st == RD_E_NOMEM; i++) {
        mem_fail_after(i);
        st = page_pool_make_windows(pool, 2);
        mem_fail_after(-1);
        CHECK((page_pool_windows(pool) != NULL) == (st == RD_OK));
    }
    CHECK(st == RD_OK && i > 1);
    page_pool_destroy(pool);
    CHECK_EQ(mem_n_alive(), n_alive);
}

TEST(a_long_sequence_uses_what_its_next_row_sees)
{
    struct world w;
    struct kv_seq seq;

    CHECK(world_init_windows(&w, 40, P, 5, WINDOW)); /* 20 of 64 tokens */
    CHECK_OK(start(&w, &seq, count_to(64), 64));
    for (uint32_t n = 0; n < 64; n += 3) {
        CHECK_OK(world_compute(&w, &seq, n + 3 <= 64 ? 3 : 64 - n));
        CHECK(world_ok(&w));
        CHECK(counts(&w).n_used <= 3);
    }
    CHECK_EQ(kv_seq_reserve(&seq, 13), RD_E_NO_PAGES); /* 4 pages; 3 windows are left */
    CHECK(world_ok(&w));
    end(&w, &seq);
    CHECK_EQ(counts(&w).n_used, 0);
    CHECK(world_deinit(&w));
}

TEST(a_match_goes_back_to_where_windows_are_and_the_next_one_does_not)
{
    struct world w;
    struct kv_seq seq;
    kv_key keys[80];

    CHECK(world_init_windows(&w, 60, P, 8, WINDOW));
    CHECK(store(&w, count_to(64), 64));
    memcpy(keys, count_to(64), 64 * sizeof(*keys));
    for (int i = 0; i < 3; i++) {
        for (uint32_t k = 24; k < 40; k++)
            keys[k] = i == 2 && k < 26 ? k + 1 : 1000 + 100 * (uint32_t)i + k; /* leaves at 24, 24, 26 */
        CHECK_OK(start(&w, &seq, keys, 34));
        CHECK_EQ(seq.n_match, i < 2 ? 24 : 26);
        CHECK_EQ(seq.n_again, i == 0 ? 24 : i == 1 ? 0 : 26);
        CHECK_EQ(seq.n_computed, i == 0 ? 0 : 24); /* 26: inside of a page that is not full */
        CHECK_EQ(seq.n_hit, seq.n_computed);
        while (seq.n_computed < 24) {
            uint32_t n_free = page_pool_n_free(w.pool);

            CHECK_OK(world_compute(&w, &seq, 4));
            CHECK(world_ok(&w));
            CHECK_EQ(page_pool_n_free(w.pool), n_free); /* its page gave way to the tree's */
        }
        CHECK(world_compute(&w, &seq, 34 - seq.n_computed) == RD_OK && world_ok(&w));
        end(&w, &seq);
        CHECK(world_ok(&w) && world_tree_reads(&w));
    }
    CHECK_EQ(w.cache.n_cut_short, 2);
    CHECK_EQ(w.cache.n_cut_tokens, 24 + 2);
    CHECK(world_deinit(&w));
}

TEST(a_waiter_sees_its_window_though_the_owner_has_gone_on)
{
    struct world w;
    struct kv_seq owner, waiter;
    kv_key keys[24];

    CHECK(world_init_windows(&w, 60, P, 20, WINDOW));
    CHECK_OK(start(&w, &owner, count_to(60), 60));
    memcpy(keys, count_to(24), sizeof(keys));
    keys[20] = 999;
    CHECK_OK(start(&w, &waiter, keys, 24));
    CHECK(waiter.state == KV_SEQ_WAITING && waiter.wait_until == 20);
    CHECK_OK(world_compute(&w, &owner, 48)); /* passes it by far */
    CHECK(waiter.state == KV_SEQ_RUNNABLE && waiter.n_computed == 20 && waiter.n_again == 0);
    CHECK_EQ(waiter.window_from, 3);
    CHECK(world_ok(&w));
    CHECK_OK(world_compute(&w, &owner, 12));
    CHECK_OK(world_compute(&w, &waiter, 4));
    end(&w, &owner);
    end(&w, &waiter);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(ends_are_kept_longer_than_what_was_passed)
{
    struct world w;
    struct kv_seq seq;
    kv_key keys[40];

    CHECK(world_init_windows(&w, 60, P, 9, WINDOW));
    CHECK(store(&w, count_to(32), 32)); /* 2 or 3 windows of its end */
    memcpy(keys, count_to(40), sizeof(keys));
    keys[0] = 77;
    CHECK(store(&w, keys, 40)); /* other pages, more than there are windows */
    CHECK_OK(start(&w, &seq, count_to(40), 40));
    CHECK(seq.n_computed == 32 && seq.n_again == 0);
    CHECK(counts(&w).n_dropped > 0);
    end(&w, &seq);
    CHECK(world_deinit(&w));
}

TEST(what_an_owner_computed_before_it_failed_is_still_merged)
{
    struct world w;
    struct kv_seq owner, other;

    CHECK(world_init_windows(&w, 60, P, 6, WINDOW));
    CHECK_OK(start(&w, &owner, count_to(60), 60));
    for (int i = 0; i < 10; i++) CHECK_OK(world_compute(&w, &owner, 4));
    CHECK_OK(start(&w, &other, count_to(13), 13)); /* ends where the owner's windows are gone */
    CHECK(other.state == KV_SEQ_RUNNABLE && other.n_computed < 12 && other.n_again == 12);
    CHECK_OK(world_compute(&w, &other, 8));
    CHECK(other.n_relied >= 8 && world_ok(&w)); /* pages that the owner computed */
    kv_seq_poison(&owner);
    CHECK(other.state == KV_SEQ_RUNNABLE); /* its part of the node was ready */
    end(&w, &owner);
    CHECK(world_ok(&w));
    CHECK_OK(world_compute(&w, &other, 13 - other.n_computed));
    end(&w, &other);
    CHECK(world_ok(&w));
    CHECK_EQ(counts(&w).n_used, 0);
    CHECK(world_deinit(&w));
}

TEST(loans_use_windows_of_their_end_alone)
{
    struct world w;
    struct kv_loan loan;
    kv_page pages[5];

    CHECK(world_init_windows(&w, 60, P, 3, WINDOW));
    CHECK_OK(page_pool_take(w.pool, 5, pages));
    kv_loan_begin(&w.cache, &loan, pages, 5);
    CHECK_EQ(kv_loan_open_windows(&w.cache, &loan, 1), RD_E_NO_PAGES);
    CHECK(world_ok(&w));
    CHECK_OK(kv_loan_open_windows(&w.cache, &loan, kv_window_first(&w.cache, 20))); /* pages 3 and 4 */
    CHECK_EQ(counts(&w).n_used, 2);
    CHECK(world_ok(&w));
    kv_loan_close_windows(&w.cache, &loan, 4); /* the first of them was not filled */
    CHECK_EQ(counts(&w).n_used, 1);
    CHECK(world_ok(&w));
    kv_loan_end(&w.cache, &loan);
    CHECK_EQ(counts(&w).n_free, 3);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

/* Each invariant of windows, broken by hand. */
#define BREAK(place, value, words)                                                                                     \
    do {                                                                                                               \
        __typeof__(place) was = (place);                                                                               \
        struct rd_error err = {RD_OK, ""};                                                                             \
        (place) = (value);                                                                                             \
        CHECK_EQ(kv_check(&w.cache, &err), RD_E_INTERNAL);                                                             \
        if (!strstr(err.text, words)) test_fail(__FILE__, __LINE__, "\"%s\" said: %s", words, err.text);               \
        (place) = was;                                                                                                 \
        CHECK_OK(kv_check(&w.cache, &err));                                                                            \
    } while (0)

TEST(every_invariant_of_windows_is_checked)
{
    struct world w;
    struct kv_seq seq;
    struct windows *n;
    kv_page kept, likely, used;

    CHECK(world_init_windows(&w, 40, P, 12, WINDOW));
    CHECK(store(&w, count_to(20), 20));
    CHECK_OK(start(&w, &seq, count_to(32), 32));
    CHECK_OK(world_compute(&w, &seq, 3));
    n = &w.pool->windows;
    used = seq.pages[5], kept = n->kept[0].head, likely = n->kept[1].head;
    CHECK(kept != KV_NO_PAGE && likely != KV_NO_PAGE && n->counts.n_free > 1);
    BREAK(n->counts.n_free, n->counts.n_free - 1, "windows free");
    BREAK(n->counts.n_kept, n->counts.n_kept + 1, "windows free");
    BREAK(n->counts.n_used, n->counts.n_used + 1, "windows free");
    BREAK(n->free_ids[0], n->free_ids[1], "windows free");
    BREAK(n->free_ids[0], 12, "windows free");
    BREAK(n->of[kept], n->of[used], "windows free");
    BREAK(n->of[used], 12, "windows free");
    BREAK(n->of[used], KV_NO_PAGE, "windows free");
    BREAK(n->records[kept].is_likely, true, "windows free");
    BREAK(n->records[kept].prev, used, "windows free");
    BREAK(n->records[likely].n_users, 1, "windows free");
    BREAK(n->kept[0].tail, used, "windows free");
    BREAK(n->kept[1].head, KV_NO_PAGE, "windows free");
    BREAK(n->records[used].n_users, 2, "window's users 2");
    BREAK(seq.window_from, 5, "uses other windows");
    BREAK(seq.windows[5], 11, "its table of windows is another");
    BREAK(w.cache.window, 30, "uses other windows");
    end(&w, &seq);
    mem_fail_after(0);
    CHECK_EQ(page_pool_check(w.pool, NULL), RD_E_NOMEM);
    mem_fail_after(-1);
    CHECK_OK(page_pool_check(w.pool, NULL));
    CHECK(world_deinit(&w));
}
