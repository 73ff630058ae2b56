/* tests/kv/test_kv_parts.c - the small parts of kv/, each by itself and to its last count: ghosts, loans, states, rows
 * ahead of a step, rows given back, isolation, namespaces. What a random run would notice only by luck.
 */
#include "base/mem.h"
#include "kv_world.h"
#include "test.h"

#define KEYS(...) ((const kv_key[]){__VA_ARGS__})

static rd_status start(struct world *w, struct kv_seq *seq, const kv_key *keys, uint32_t n)
{
    rd_status st = kv_seq_init(seq, &w->cache, keys, n, 64);
    return st == RD_OK ? kv_seq_admit(seq, w->root[0], ++w->now) : st;
}

static void end(struct world *w, struct kv_seq *seq, bool store)
{
    kv_seq_finish(seq, store, ++w->now);
    kv_seq_deinit(seq);
}

static bool store(struct world *w, const kv_key *keys, uint32_t n)
{
    struct kv_seq seq;
    bool ok = start(w, &seq, keys, n) == RD_OK && world_compute(w, &seq, n - seq.n_computed) == RD_OK;

    end(w, &seq, true);
    return ok && world_ok(w);
}

static const kv_key *count_to(uint32_t n)
{
    static kv_key keys[1024];
    for (uint32_t i = 0; i < n; i++) keys[i] = i + 1;
    return keys;
}

static struct radix_match match(struct world *w, const kv_key *keys, uint32_t n)
{
    return radix_match(w->cache.tree, w->root[0], keys, n, w->now);
}

/* ---- ghosts ---- */

TEST(the_sum_of_a_prefix_is_that_of_the_header_in_any_order_of_its_parts)
{
    const uint64_t base = 0x9E3779B97F4A7C15ull;
    uint32_t keys[40];
    uint64_t sum = 0, power = base;

    for (uint32_t i = 0; i < 40; i++) keys[i] = i * 2654435761u % 7; /* 0 among them: a key like any other */
    for (uint32_t n = 0; n <= 40; n++) {
        CHECK(ghosts_sum(keys, n, 0) == sum);
        for (uint32_t k = 0; k <= n; k++) CHECK(ghosts_sum(keys, k, 0) + ghosts_sum(keys + k, n - k, k) == sum);
        if (n < 40) sum += ((uint64_t)keys[n] + 1) * power;
        power *= base;
    }
}

TEST(a_ghost_says_its_last_cause_and_no_other_hash_does)
{
    struct ghosts *g = mem_zalloc(1, sizeof(*g));

    CHECK(g);
    ghosts_note(g, 12345, GHOST_EVICTED);
    CHECK_EQ(ghosts_find(g, 12345), GHOST_EVICTED);
    CHECK_EQ(ghosts_find(g, 12346), GHOST_NONE);
    ghosts_note(g, 12345, GHOST_CLEARED);
    CHECK_EQ(ghosts_find(g, 12345), GHOST_CLEARED);
    mem_free(g);
}

/* Splits, joins of siblings and cuts do not change which prefix a ghost is of. */
TEST(what_was_dropped_is_known_with_its_cause_wherever_the_path_was_cut)
{
    struct world w;
    struct radix *tree;

    CHECK(world_init(&w, 64, 4, false));
    tree = w.cache.tree;
    CHECK(store(&w, count_to(14), 14));
    CHECK(store(&w, KEYS(1, 2, 3, 4, 5, 6, 70), 7)); /* splits: the lower part's sum begins behind key 6 */
    CHECK_EQ(radix_cause(tree, w.root[0], count_to(14), 12), GHOST_NONE);
    (void)match(&w, KEYS(1, 2, 3, 4, 5, 6, 70), 7);
    w.now++;
    (void)match(&w, KEYS(1, 2, 3, 4, 5, 6, 70), 7); /* the long branch is older */
    CHECK_EQ(radix_evict(tree, 1), 1);
    CHECK_EQ(match(&w, count_to(14), 14).n_match, 12);
    CHECK_EQ(radix_cause(tree, w.root[0], count_to(14), 12), GHOST_EVICTED);
    CHECK_EQ(radix_cause(tree, w.root[0], count_to(14), 11), GHOST_NONE);
    CHECK_EQ(radix_cause(tree, w.root[1], count_to(14), 12), GHOST_NONE); /* another namespace's */
    CHECK(radix_clear_path(tree, w.root[0], KEYS(1, 2, 3, 4, 5, 6, 70), 7) <= 1);
    CHECK_EQ(radix_cause(tree, w.root[0], KEYS(1, 2, 3, 4, 5, 6, 70), 6), GHOST_CLEARED);
    w.now += 10;
    (void)match(&w, KEYS(9), 1);
    CHECK(radix_expire(tree, w.now, w.now, 1) > 0);
    CHECK_EQ(radix_cause(tree, w.root[0], count_to(14), 6), GHOST_EXPIRED);
    CHECK(radix_clear(tree, NULL) > 0);
    CHECK_EQ(radix_cause(tree, w.root[0], count_to(14), 0), GHOST_CLEARED);
    CHECK(store(&w, KEYS(2, 3), 2));
    CHECK(store(&w, KEYS(2, 3, 4, 5), 4)); /* a child below a node: its sum begins behind the node's */
    CHECK(radix_clear_path(tree, w.root[0], KEYS(2, 3, 4, 5), 4) <= 1);
    CHECK_EQ(radix_cause(tree, w.root[0], KEYS(2, 3, 4, 5), 2), GHOST_CLEARED);
    CHECK(world_ok(&w) && world_deinit(&w));
}

/* ---- loans ---- */

TEST(pages_on_loan_are_pending_until_their_own_loan_ends)
{
    struct world w;
    struct kv_loan a, b, c;
    struct rd_error err;
    kv_page pages[4];

    CHECK(world_init(&w, 8, 4, false));
    CHECK_OK(page_pool_take(w.pool, 4, pages));
    kv_loan_begin(&w.cache, &a, pages, 2);
    kv_loan_begin(&w.cache, &b, pages + 2, 1);
    kv_loan_begin(&w.cache, &c, pages + 3, 1);
    CHECK(w.cache.loans == &c && c.next == &b && b.next == &a && !a.next);
    CHECK(!c.prev && b.prev == &c && a.prev == &b);
    CHECK_EQ(page_pool_counts(w.pool).n_pending, 4);
    CHECK(world_ok(&w));
    a.n = 1; /* a check that did not count each page would pass */
    CHECK_EQ(kv_check(&w.cache, &err), RD_E_INTERNAL);
    CHECK(strstr(err.text, "page 1: holders 1, writers 1, pins 0, window's users 0; counted 0, 0, 0, 0"));
    a.n = 2;
    kv_loan_end(&w.cache, &b); /* from the middle */
    CHECK(c.next == &a && a.prev == &c);
    CHECK_EQ(page_pool_counts(w.pool).n_pending, 3);
    CHECK_EQ(page_pool_n_free(w.pool), 5);
    CHECK(world_ok(&w));
    kv_loan_end(&w.cache, &c);
    CHECK(w.cache.loans == &a && !a.prev);
    kv_loan_end(&w.cache, &a);
    CHECK(!w.cache.loans);
    CHECK_EQ(page_pool_n_free(w.pool), 8);
    CHECK(world_ok(&w) && world_deinit(&w));
}

/* ---- rows ahead, and rows given back ---- */

TEST(a_row_ahead_has_a_place_stays_through_the_commit_and_goes_back)
{
    struct world w;
    struct kv_seq a;
    kv_page rest[8];

    CHECK(world_init(&w, 8, 4, false));
    CHECK_OK(start(&w, &a, count_to(3), 3));
    CHECK_EQ(kv_seq_pages_needed(&a, 0), 0);
    CHECK_OK(kv_seq_reserve(&a, 0));
    CHECK_EQ(a.n_reserved, 0);
    CHECK_OK(kv_seq_reserve(&a, 3));
    CHECK_EQ(kv_seq_pages_ahead(&a), 0); /* row 3 of the same page */
    CHECK_OK(kv_seq_reserve_ahead(&a));
    CHECK(a.is_ahead && a.n_reserved == 4 && a.n_pages == 1);
    CHECK_EQ(page_pool_fill(w.pool, a.pages[0]), 4);
    world_write(&w, &a);
    kv_seq_commit_rows(&a, 3);
    CHECK(a.is_ahead && a.n_computed == 3 && a.n_reserved == 4);
    CHECK(world_ok(&w));
    kv_seq_push(&a, 40);

    CHECK_EQ(kv_seq_pages_ahead(&a), 1); /* the next step's row begins a page */
    CHECK_OK(page_pool_take(w.pool, 7, rest));
    CHECK_EQ(kv_seq_reserve_ahead(&a), RD_E_NO_PAGES);
    CHECK(a.n_reserved == 4 && a.n_pages == 1);
    for (uint32_t i = 0; i < 7; i++) page_pool_release(w.pool, rest[i]);
    CHECK_OK(kv_seq_reserve_ahead(&a));
    CHECK(a.n_reserved == 5 && a.n_pages == 2 && a.is_ahead);
    CHECK_EQ(page_pool_n_free(w.pool), 6);
    CHECK_EQ(page_pool_fill(w.pool, a.pages[1]), 1);
    world_write(&w, &a);
    kv_seq_commit_rows(&a, 1);
    CHECK(a.is_ahead && a.n_computed == 4 && a.n_reserved == 5);
    CHECK(world_ok(&w));
    kv_seq_unreserve(&a); /* the step after this one is not run */
    CHECK(!a.is_ahead && a.n_reserved == 4 && a.n_pages == 1);
    CHECK_EQ(page_pool_n_free(w.pool), 7);
    CHECK_EQ(page_pool_fill(w.pool, a.pages[0]), 4); /* a full page stays full */
    CHECK(world_ok(&w));

    kv_seq_push(&a, 50);
    CHECK_OK(kv_seq_reserve(&a, 1));
    CHECK_OK(kv_seq_reserve_ahead(&a));
    kv_seq_push(&a, 51);
    world_write(&w, &a);
    kv_seq_commit(&a); /* both: nothing is ahead any more */
    CHECK(!a.is_ahead && a.n_computed == 6);
    CHECK(world_ok(&w));
    CHECK_OK(kv_seq_reserve(&a, 1));
    CHECK_OK(kv_seq_reserve_ahead(&a));
    CHECK(a.is_ahead);
    kv_seq_finish(&a, true, ++w.now);
    CHECK(!a.is_ahead && !a.node && !a.live && a.state == KV_SEQ_DONE);
    CHECK(a.n_computed == 0 && a.n_reserved == 0 && a.n_pages == 0 && a.first_own_page == 0 && a.n_path == 0);
    CHECK(!a.prev && !a.next);
    kv_seq_finish(&a, true, ++w.now); /* idempotent */
    kv_seq_deinit(&a);
    CHECK(!a.keys && !a.pages && !a.end_state);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(rows_given_back_leave_the_fill_at_the_last_computed_row)
{
    struct world w;
    struct kv_seq a, b;

    for (uint32_t n = 1; n <= 9; n++) {
        CHECK(world_init(&w, 8, 4, false));
        CHECK_OK(start(&w, &a, count_to(n), n));
        CHECK_OK(world_compute(&w, &a, n));
        for (uint32_t rows = 1; rows <= 9; rows++) {
            CHECK_OK(kv_seq_reserve(&a, rows));
            kv_seq_unreserve(&a);
            CHECK_EQ(a.n_pages, (n + 3) / 4);
            CHECK_EQ(page_pool_fill(w.pool, a.pages[a.n_pages - 1]), (n - 1) % 4 + 1);
            CHECK(world_ok(&w));
        }
        end(&w, &a, true);
        CHECK(world_ok(&w) && world_deinit(&w));
    }
    /* somebody has appended behind ours meanwhile: its rows stay */
    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, count_to(5), 5));
    CHECK_OK(start(&w, &a, KEYS(1, 2, 3, 4, 5, 60, 61), 7));
    CHECK_OK(start(&w, &b, KEYS(1, 2, 3, 4, 5, 70), 6));
    CHECK_OK(kv_seq_reserve(&a, 1)); /* row 1 of the shared page */
    world_write(&w, &a);
    kv_seq_commit(&a);
    CHECK_OK(world_compute(&w, &b, 1)); /* a copy */
    CHECK_OK(kv_seq_reserve(&b, 2));
    kv_seq_unreserve(&b);
    CHECK_EQ(page_pool_fill(w.pool, b.pages[1]), 2);
    CHECK_EQ(page_pool_fill(w.pool, a.pages[1]), 2);
    CHECK(world_ok(&w));
    end(&w, &a, true);
    end(&w, &b, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(keys_are_taken_back_with_what_was_computed_for_them)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 8, 4, false));
    CHECK_OK(start(&w, &a, count_to(5), 5));
    CHECK_OK(world_compute(&w, &a, 5));
    for (kv_key k = 0; k < 5; k++) kv_seq_push(&a, 100 + k);
    CHECK_OK(world_compute(&w, &a, 4)); /* drafts: 9 rows, 10 keys */
    kv_seq_truncate(&a, 9);             /* the last has no row */
    CHECK(a.n_keys == 9 && a.n_computed == 9 && a.n_pages == 3);
    kv_seq_truncate(&a, 6);
    CHECK(a.n_keys == 6 && a.n_computed == 6 && a.n_reserved == 6 && a.n_pages == 2);
    CHECK_EQ(page_pool_fill(w.pool, a.pages[1]), 2);
    CHECK_EQ(page_pool_n_free(w.pool), 6);
    CHECK(world_ok(&w));
    kv_seq_push(&a, 7);
    CHECK_OK(world_compute(&w, &a, 1));
    end(&w, &a, true);
    CHECK_EQ(match(&w, KEYS(1, 2, 3, 4, 5, 100, 7), 7).n_match, 7);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

/* b's prompt ends inside a's, without memory to cut there; when another one cuts, b's node begins where its path ends. */
TEST(an_heir_that_was_left_below_its_path_goes_on_at_its_end)
{
    struct world w;
    struct kv_seq a, b, c;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(10), 10));
    CHECK_OK(world_compute(&w, &a, 3));
    CHECK_OK(kv_seq_init(&b, &w.cache, count_to(6), 6, 8));
    mem_fail_after(0);
    CHECK_OK(kv_seq_admit(&b, w.root[0], ++w.now));
    mem_fail_after(-1);
    CHECK_OK(start(&w, &c, KEYS(1, 2, 3, 4, 5, 6, 90), 7));
    CHECK_EQ(radix_counts(w.cache.tree).n_splits, 1);
    CHECK(b.node->start == 6 && b.n_path == 6);
    end(&w, &a, true);
    CHECK(world_ok(&w));
    CHECK(b.state == KV_SEQ_RUNNABLE && b.n_computed == 3 && c.state == KV_SEQ_WAITING);
    CHECK_OK(world_compute(&w, &b, 3));
    CHECK(c.state == KV_SEQ_RUNNABLE);
    CHECK_OK(world_compute(&w, &c, 1));
    end(&w, &b, true);
    end(&w, &c, true);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

/* The device failed in a step whose next one was planned already. */
TEST(what_was_poisoned_with_a_row_ahead_begins_anew_without_it)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 8, 4, false));
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(kv_seq_reserve(&a, 6));
    CHECK_OK(kv_seq_reserve_ahead(&a));
    kv_seq_poison(&a);
    kv_seq_finish(&a, true, ++w.now);
    CHECK_EQ(page_pool_n_free(w.pool), 8);
    CHECK_OK(kv_seq_admit(&a, w.root[0], ++w.now));
    CHECK(!a.is_ahead && world_ok(&w));
    CHECK_OK(world_compute(&w, &a, 6));
    CHECK(world_ok(&w));
    end(&w, &a, true);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

/* Another sequence appends to the page in which ours ends: ours goes on in a copy and lets go of the page. */
TEST(whoever_finds_its_own_page_appended_to_goes_on_in_a_copy)
{
    struct world w;
    struct kv_seq a, b;
    kv_page shared;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 6));
    shared = a.pages[1];
    CHECK_OK(start(&w, &b, KEYS(1, 2, 3, 4, 5, 6, 90), 7));
    CHECK_OK(world_compute(&w, &b, 1));
    CHECK_EQ(b.pages[1], shared);
    kv_seq_push(&a, 91);
    CHECK_EQ(page_pool_writers(w.pool, shared), 2);
    CHECK_EQ(kv_seq_pages_needed(&a, 1), 1);
    CHECK_OK(world_compute(&w, &a, 1));
    CHECK(a.pages[1] != shared && a.first_own_page == 0);
    CHECK_EQ(page_pool_writers(w.pool, shared), 1); /* b */
    CHECK_EQ(w.cache.n_rows_copied, 2);
    CHECK(world_ok(&w) && world_can_read(&w, &a) && world_can_read(&w, &b));
    end(&w, &a, true);
    end(&w, &b, true);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

TEST(a_block_table_has_a_place_more_than_the_keys_need)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 8, 4, false));
    CHECK_OK(kv_seq_init(&a, &w.cache, count_to(3), 3, 8));
    CHECK_EQ(a.n_keys_cap, 8);
    CHECK_EQ(a.n_pages_cap, 3);
    CHECK_EQ(a.n_prompt, 3);
    kv_seq_deinit(&a);
    CHECK_OK(kv_seq_init(&a, &w.cache, count_to(9), 9, 2));
    CHECK_EQ(a.n_keys_cap, 9);
    CHECK_EQ(a.n_pages_cap, 4);
    kv_seq_deinit(&a);
    CHECK(world_deinit(&w));
}

TEST(a_sequence_that_is_admitted_again_begins_anew)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 16, 4, false));
    w.cache.state_bytes = 8;
    CHECK(store(&w, count_to(8), 8));
    CHECK_OK(start(&w, &a, count_to(10), 10));
    CHECK(a.n_match == 8 && a.match_kind == RADIX_PREFIX && a.n_ready_at_admit == 8 && a.n_hit == 8 && a.cached);
    CHECK_OK(world_compute(&w, &a, 2));
    kv_seq_keep_state(&a, "12345678");
    CHECK_EQ(a.end_state_at, 10);
    kv_seq_finish(&a, false, ++w.now);
    CHECK_OK(kv_seq_admit(&a, NULL, ++w.now)); /* uncached now */
    CHECK(!a.cached && !a.root && !a.node && a.state == KV_SEQ_RUNNABLE);
    CHECK(a.n_match == 0 && a.match_kind == RADIX_MISS && a.n_ready_at_admit == 0 && a.n_hit == 0);
    CHECK(a.n_hit_in_flight == 0 && a.wait_until == 0 && a.n_path == 0 && a.end_state_at == 0 && a.n_computed == 0);
    CHECK_OK(world_compute(&w, &a, 10));
    CHECK(world_ok(&w));
    end(&w, &a, true); /* nothing to store under */
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_waiter_that_runs_waits_for_nothing)
{
    struct world w;
    struct kv_seq a, b;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(8), 8));
    CHECK_OK(start(&w, &b, count_to(8), 8));
    CHECK(b.state == KV_SEQ_WAITING && b.wait_until == 7);
    CHECK_OK(world_compute(&w, &a, 8));
    CHECK(b.state == KV_SEQ_RUNNABLE && b.wait_until == 0 && b.n_hit == 7 && b.n_hit_in_flight == 7);
    end(&w, &a, true);
    end(&w, &b, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(one_computed_key_is_stored_and_none_is_nothing)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 16, 4, false));
    w.cache.state_bytes = 8;
    CHECK_OK(start(&w, &a, KEYS(5), 1));
    end(&w, &a, true);
    CHECK_EQ(match(&w, KEYS(5), 1).n_match, 0);
    CHECK_OK(kv_seq_init(&a, &w.cache, KEYS(5), 1, 4));
    CHECK_OK(kv_seq_admit(&a, w.root[0], ++w.now));
    CHECK_OK(world_compute(&w, &a, 1));
    end(&w, &a, true);
    CHECK_EQ(match(&w, KEYS(5), 1).n_ready, 1);
    CHECK(world_ok(&w) && world_deinit(&w));
}

/* ---- the state behind the last key ---- */

enum { STATE = 4096 };

static const void *state(char c)
{
    static char bytes[4][STATE];
    static unsigned next;
    char *s = bytes[next++ % 4];

    memset(s, c, STATE);
    return s;
}

static char state_at(struct world *w, const kv_key *keys, uint32_t n)
{
    struct radix_match m = match(w, keys, n);
    const char *s = m.n_match == n && m.n_in_node == m.node->n_keys ? radix_node_state(m.node) : NULL;

    return s && s[0] == s[STATE - 1] ? s[0] : '-';
}

TEST(the_state_of_a_prompt_is_kept_and_taken_whole)
{
    struct world w;
    struct kv_seq a, b;
    uint64_t n_alive = mem_n_alive(), n_bytes;

    CHECK(world_init(&w, 32, 4, false));
    w.cache.state_bytes = STATE;
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 3));
    n_bytes = radix_counts(w.cache.tree).node_bytes;
    kv_seq_keep_state(&a, state('x')); /* not the prompt's end: the node does not get it */
    CHECK_EQ(a.end_state_at, 3);
    CHECK_OK(world_compute(&w, &a, 3));
    CHECK_EQ(state_at(&w, count_to(6), 6), '-');
    kv_seq_keep_state(&a, state('p'));
    CHECK_EQ(a.end_state_at, 6);
    CHECK_EQ(state_at(&w, count_to(6), 6), 'p');
    CHECK_EQ(radix_counts(w.cache.tree).node_bytes, n_bytes + STATE);
    kv_seq_keep_state(&a, state('q')); /* equal keys have equal states: the first stays */
    CHECK_EQ(state_at(&w, count_to(6), 6), 'p');
    CHECK_EQ(radix_counts(w.cache.tree).node_bytes, n_bytes + STATE);
    CHECK(!kv_seq_take_whole(&a)); /* it has computed rows of its own */
    CHECK(world_ok(&w));

    CHECK_OK(start(&w, &b, count_to(6), 6));
    CHECK_EQ(b.n_computed, 5);
    CHECK_OK(kv_seq_reserve(&b, 1));
    CHECK(!kv_seq_take_whole(&b)); /* its last row has a place already */
    CHECK_EQ(b.n_computed, 5);
    kv_seq_unreserve(&b);
    end(&w, &b, false);
    CHECK_OK(start(&w, &b, count_to(6), 6));
    const char *taken = kv_seq_take_whole(&b);
    CHECK(taken && taken[0] == 'p' && taken[STATE - 1] == 'p');
    CHECK(b.n_computed == 6 && b.n_hit == 6 && b.n_pages == 2 && b.first_own_page == 2);
    CHECK(world_ok(&w) && world_can_read(&w, &b));
    kv_seq_push(&b, 70);
    CHECK(!kv_seq_take_whole(&b)); /* the node ends before its last key */
    CHECK_EQ(b.n_computed, 6);
    CHECK_OK(world_compute(&w, &b, 1));
    end(&w, &b, true);
    end(&w, &a, true);
    CHECK_EQ(state_at(&w, KEYS(1, 2, 3, 4, 5, 6, 70), 7), '-');

    CHECK_OK(start(&w, &b, KEYS(1, 2, 3), 3)); /* the split-off beginning has no state */
    CHECK(!kv_seq_take_whole(&b));
    CHECK_EQ(b.n_computed, 2);
    CHECK_EQ(b.n_hit, 2);
    end(&w, &b, false);
    CHECK_EQ(state_at(&w, count_to(6), 6), 'p'); /* the lower part kept it */
    CHECK(world_ok(&w) && world_deinit(&w));
    CHECK_EQ(mem_n_alive(), n_alive);
}

TEST(the_state_of_a_tail_is_kept_where_it_ends_there)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 32, 4, false));
    w.cache.state_bytes = STATE;
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 6));
    kv_seq_push(&a, 70);
    CHECK_OK(world_compute(&w, &a, 1));
    kv_seq_keep_state(&a, state('t'));
    CHECK_EQ(state_at(&w, count_to(6), 6), '-'); /* the prompt's node is not at the end any more */
    end(&w, &a, true);
    CHECK_EQ(state_at(&w, KEYS(1, 2, 3, 4, 5, 6, 70), 7), 't');

    CHECK_OK(start(&w, &a, count_to(6), 6)); /* more was computed since: of which it is not */
    CHECK_OK(world_compute(&w, &a, 1));
    kv_seq_push(&a, 80);
    CHECK_OK(world_compute(&w, &a, 1));
    kv_seq_keep_state(&a, state('u'));
    kv_seq_push(&a, 81);
    CHECK_OK(world_compute(&w, &a, 1));
    end(&w, &a, true);
    CHECK_EQ(match(&w, KEYS(1, 2, 3, 4, 5, 6, 80, 81), 8).n_match, 8);
    CHECK_EQ(state_at(&w, KEYS(1, 2, 3, 4, 5, 6, 80, 81), 8), '-');

    CHECK_OK(start(&w, &a, count_to(6), 6)); /* the tail lies inside something longer */
    CHECK_OK(world_compute(&w, &a, 1));
    kv_seq_push(&a, 80);
    CHECK_OK(world_compute(&w, &a, 1));
    kv_seq_keep_state(&a, state('v'));
    end(&w, &a, true);
    CHECK_EQ(state_at(&w, KEYS(1, 2, 3, 4, 5, 6, 80, 81), 8), '-');
    CHECK_EQ(radix_evict(w.cache.tree, 100), 3); /* the key goes, and its state with it */
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_state_belongs_to_cached_sequences_of_a_cache_that_keeps_states)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 32, 4, false));
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 6));
    kv_seq_keep_state(&a, state('x')); /* no bytes are kept in this one */
    CHECK_EQ(a.end_state_at, 0);
    CHECK(!a.end_state);
    end(&w, &a, true);
    w.cache.state_bytes = STATE;
    CHECK_OK(kv_seq_init(&a, &w.cache, count_to(6), 6, 8));
    CHECK_OK(kv_seq_admit(&a, NULL, ++w.now));
    CHECK_OK(world_compute(&w, &a, 6));
    kv_seq_keep_state(&a, state('x'));
    CHECK_EQ(a.end_state_at, 0);
    CHECK(!kv_seq_take_whole(&a));
    end(&w, &a, true);
    CHECK_OK(start(&w, &a, count_to(6), 6)); /* 5 of 6 are computed: not the node's last */
    kv_seq_keep_state(&a, state('y'));
    CHECK_EQ(state_at(&w, count_to(6), 6), '-');
    kv_seq_poison(&a);
    kv_seq_keep_state(&a, state('y'));
    CHECK_EQ(a.end_state_at, 5);
    end(&w, &a, false);

    mem_fail_from(3); /* no memory to split: its node ends behind its prompt */
    CHECK_OK(start(&w, &a, KEYS(1, 2, 3), 3));
    mem_fail_from(-1);
    CHECK(radix_node_end(a.node) == 6 && a.n_path == 3);
    CHECK_OK(world_compute(&w, &a, 1));
    kv_seq_keep_state(&a, state('z'));
    CHECK_EQ(state_at(&w, count_to(6), 6), '-');
    CHECK(!kv_seq_take_whole(&a));
    kv_seq_push(&a, 99); /* differs from what the node has there */
    CHECK(world_ok(&w));
    end(&w, &a, false);
    mem_fail_after(3);
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 1));
    mem_fail_after(0);
    kv_seq_keep_state(&a, state('n')); /* no memory: none is kept, nothing is counted */
    mem_fail_after(-1);
    CHECK_EQ(state_at(&w, count_to(6), 6), '-');
    end(&w, &a, false);
    CHECK(world_ok(&w) && world_deinit(&w));
}

/* ---- holds ---- */

TEST(a_hold_without_memory_covers_less_or_locks_more)
{
    struct world w;
    struct kv_seq a;
    struct radix_node *held;
    uint32_t n = 99;

    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, count_to(4), 4));
    CHECK_OK(start(&w, &a, count_to(12), 12));
    held = kv_hold(&w.cache, w.root[0], count_to(12), 12, ++w.now, &n); /* behind them nothing is computed yet */
    CHECK(n == 4 && held == a.node->parent);
    kv_unhold(&w.cache, held);
    CHECK_OK(world_compute(&w, &a, 4));
    mem_fail_after(0);
    held = kv_hold(&w.cache, w.root[0], count_to(12), 12, ++w.now, &n);
    mem_fail_after(-1);
    CHECK(n == 4 && held == a.node->parent); /* a pending node is never held: less */
    CHECK_EQ(radix_node_locks(held), 2);
    kv_unhold(&w.cache, held);
    held = kv_hold(&w.cache, w.root[0], count_to(12), 12, ++w.now, &n);
    CHECK_EQ(n, 8);
    CHECK(radix_node_start(held) == 4 && radix_node_n_keys(held) == 4);
    CHECK(memcmp(radix_node_keys(held), count_to(12) + 4, 4 * sizeof(kv_key)) == 0);
    kv_unhold(&w.cache, held);
    mem_fail_after(0);
    held = kv_hold(&w.cache, w.root[0], count_to(12), 2, ++w.now, &n);
    mem_fail_after(-1);
    CHECK_EQ(n, 2);
    CHECK_EQ(radix_node_n_keys(held), 4); /* all of a ready one: more */
    kv_unhold(&w.cache, held);
    CHECK(world_ok(&w));
    end(&w, &a, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_path_that_is_held_when_the_tree_goes_leaves_no_pin)
{
    struct world w;
    uint32_t n;

    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, count_to(8), 8));
    CHECK(kv_hold(&w.cache, w.root[0], count_to(8), 8, ++w.now, &n));
    CHECK_EQ(page_pool_counts(w.pool).n_locked, 2);
    CHECK(world_deinit(&w));
}

/* ---- poison ---- */

TEST(poison_takes_only_pages_that_no_ready_node_holds_and_once)
{
    struct world w;
    struct kv_seq a, b;

    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, KEYS(50, 51, 52, 53, 54, 55, 56, 57), 8));
    CHECK_OK(start(&w, &b, KEYS(50, 51, 52, 53, 54, 55, 56, 57), 8)); /* a hit, on another path */
    CHECK_OK(start(&w, &a, KEYS(4, 12, 13, 14, 15, 16, 17, 18), 8));  /* keys that are page ids, too */
    CHECK_OK(world_compute(&w, &a, 8));
    kv_seq_push(&a, 90);
    CHECK_OK(kv_seq_reserve(&a, 1));
    CHECK_EQ(a.pages[2], 4);
    kv_seq_poison(&a);
    CHECK_EQ(a.state, KV_SEQ_POISONED);
    CHECK(!a.node);
    CHECK_EQ(page_pool_counts(w.pool).n_quarantined, 1); /* the tail's page, not the prompt's two */
    kv_seq_poison(&a);
    CHECK_EQ(page_pool_counts(w.pool).n_quarantined, 1);
    CHECK_EQ(b.state, KV_SEQ_RUNNABLE);
    kv_seq_finish(&a, false, ++w.now);
    kv_seq_poison(&a);
    CHECK_EQ(a.state, KV_SEQ_DONE);
    kv_seq_deinit(&a);
    CHECK_OK(start(&w, &a, count_to(12), 12)); /* a pending node: whoever is elsewhere goes on */
    kv_seq_poison(&a);
    CHECK_EQ(b.state, KV_SEQ_RUNNABLE);
    end(&w, &a, false);
    end(&w, &b, true);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

TEST(who_waits_no_further_than_what_stays_is_not_poisoned)
{
    struct world w;
    struct kv_seq a, b;

    CHECK(world_init(&w, 16, 4, false));
    CHECK(store(&w, count_to(4), 4));
    CHECK_OK(start(&w, &a, count_to(12), 12)); /* pending from 4 on */
    CHECK_OK(start(&w, &b, count_to(5), 5));   /* its hit ends where that begins */
    CHECK(b.state == KV_SEQ_RUNNABLE && b.n_hit == 4);
    kv_seq_poison(&a);
    CHECK(b.state == KV_SEQ_RUNNABLE);
    CHECK_OK(world_compute(&w, &b, 1));
    CHECK(world_ok(&w));
    end(&w, &a, false);
    end(&w, &b, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

/* ---- isolation ---- */

static void count_zeroed(void *arg, kv_page id)
{
    struct world *w = arg;
    memset(w->rows + (size_t)id * w->P, 0, w->P * sizeof(*w->rows));
    w->n_zeroed++;
}

TEST(a_page_is_zeroed_when_it_changes_its_tenant)
{
    struct world w;
    uint64_t tenants[4] = {0};
    kv_page pages[2] = {2, 3};

    CHECK(world_init(&w, 4, 4, false));
    kv_isolate(&w.cache, w.root[0], pages, 2); /* no tenants: as they are */
    CHECK_EQ(w.n_zeroed, 0);
    w.cache.tenants = tenants;
    w.cache.zero_page = count_zeroed;
    kv_isolate(&w.cache, w.root[0], pages, 2);
    CHECK_EQ(w.n_zeroed, 2);
    CHECK(tenants[2] == radix_root_id(w.root[0]) && tenants[3] == tenants[2] && tenants[0] == 0 && tenants[1] == 0);
    kv_isolate(&w.cache, w.root[0], pages, 2); /* its own: stay */
    CHECK_EQ(w.n_zeroed, 2);
    kv_isolate(&w.cache, w.root[1], pages, 1);
    CHECK_EQ(w.n_zeroed, 3);
    CHECK(tenants[2] == radix_root_id(w.root[1]) && tenants[2] != tenants[3]);
    kv_isolate(&w.cache, NULL, pages, 2); /* nobody's are zeroed always */
    kv_isolate(&w.cache, NULL, pages, 2);
    CHECK_EQ(w.n_zeroed, 7);
    CHECK(tenants[2] == 0 && tenants[3] == 0);
    CHECK(world_deinit(&w));
}

TEST(every_page_that_a_sequence_takes_is_isolated)
{
    struct world w;
    uint64_t tenants[8] = {0};
    struct kv_seq a;

    CHECK(world_init(&w, 8, 4, false));
    w.cache.tenants = tenants;
    w.cache.zero_page = count_zeroed;
    CHECK_OK(start(&w, &a, count_to(8), 8));
    CHECK_OK(kv_seq_reserve(&a, 8));
    CHECK_EQ(w.n_zeroed, 2);
    CHECK_OK(kv_seq_reserve_ahead(&a));
    CHECK_EQ(w.n_zeroed, 3);
    for (uint32_t i = 0; i < 3; i++) CHECK_EQ(tenants[a.pages[i]], radix_root_id(w.root[0]));
    kv_seq_unreserve(&a);
    end(&w, &a, false);
    CHECK(world_deinit(&w));
}

/* ---- namespaces ---- */

static const struct radix_root *root_of(const struct radix_node *node)
{
    return (const struct radix_root *)(const void *)node;
}

TEST(a_namespace_has_a_hash_a_number_and_bytes_of_its_own)
{
    struct world w;
    struct radix_node *node, *again;
    uint64_t n_bytes;

    CHECK(world_init(&w, 8, 4, false));
    CHECK(radix_root_id(w.root[0]) == 1 && radix_root_id(w.root[1]) == 2);
    n_bytes = radix_counts(w.cache.tree).node_bytes;
    CHECK_OK(radix_namespace(w.cache.tree, "foobar", 6, &node));
    CHECK(root_of(node)->hash == 0x85944171f73967e8ull); /* FNV-1a's own vector */
    CHECK(node->ghost_sum == 0x85944171f73967e8ull);
    CHECK(radix_counts(w.cache.tree).node_bytes == n_bytes + sizeof(struct radix_root) + 6);
    CHECK_EQ(radix_root_id(node), 3);
    CHECK_OK(radix_namespace(w.cache.tree, "foobarx", 6, &again)); /* what is behind the name is none of it */
    CHECK(again == node);
    CHECK_OK(radix_namespace(w.cache.tree, "x", 1, &node));
    CHECK_OK(radix_namespace(w.cache.tree, "x", 1, &again));
    CHECK(again == node);
    CHECK_OK(radix_namespace(w.cache.tree, "y", 1, &again));
    CHECK(again != node);
    CHECK(world_deinit(&w));
    CHECK(world_init(&w, 8, 4, true)); /* all in one bucket */
    CHECK(w.cache.tree->roots[0] && w.cache.tree->roots[0]->next && !w.cache.tree->roots[0]->next->next);
    CHECK(world_deinit(&w));
}

TEST(empty_namespaces_are_forgotten_and_nothing_else)
{
    enum { N = 5000 };
    struct world w;
    struct radix_node *node, *held, *wide;
    uint64_t n_alive, n_bytes;
    kv_page page;
    uint32_t n;

    CHECK(world_init(&w, 64, 4, false));
    CHECK(store(&w, KEYS(1, 2), 2)); /* root 0 holds something, and the list of leaves a leaf */
    held = kv_hold(&w.cache, w.root[1], KEYS(9), 1, ++w.now, &n);
    CHECK(held == w.root[1]);
    n_alive = mem_n_alive();
    n_bytes = radix_counts(w.cache.tree).node_bytes;
    for (uint32_t i = 0; i < N; i++) CHECK_OK(radix_namespace(w.cache.tree, &i, sizeof(i), &node));
    CHECK_OK(radix_namespace(w.cache.tree, "wide", 4, &wide));
    CHECK_OK(page_pool_take(w.pool, 1, &page));
    page_pool_set_fill(w.pool, page, 4);
    for (kv_key k = 0; k < 20; k++) /* its children get a table */
        CHECK_OK(radix_insert_ready(w.cache.tree, wide, &k, 1, &page, ++w.now, &node));
    page_pool_release(w.pool, page);
    CHECK(radix_clear(w.cache.tree, wide) <= 1);
    CHECK_EQ(radix_counts(w.cache.tree).n_namespaces, N + 3);
    CHECK_OK(radix_namespace(w.cache.tree, "kept", 4, &node));
    radix_drop_empty(w.cache.tree, node);
    CHECK_EQ(radix_counts(w.cache.tree).n_namespaces, 3); /* full, held, kept */
    CHECK(world_ok(&w));
    radix_drop_empty(w.cache.tree, NULL);
    CHECK_EQ(radix_counts(w.cache.tree).n_namespaces, 2);
    CHECK_EQ(radix_counts(w.cache.tree).node_bytes, n_bytes);
    CHECK_EQ(mem_n_alive(), n_alive);
    CHECK_EQ(match(&w, KEYS(1, 2), 2).n_match, 2);
    CHECK_OK(radix_namespace(w.cache.tree, "kept", 4, &node));
    CHECK_EQ(radix_root_id(node), N + 5); /* a number is never given again */
    kv_unhold(&w.cache, held);
    radix_drop_empty(w.cache.tree, w.root[0]);
    CHECK_EQ(radix_counts(w.cache.tree).n_namespaces, 1);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_tree_and_a_pool_give_all_their_memory_back)
{
    struct world w;
    uint64_t n_alive = mem_n_alive();

    for (uint32_t n = 1; n <= 64; n++) { /* of every size: a write behind an array would be seen */
        struct page_pool *pool = NULL;
        CHECK_OK(page_pool_create(n, 4, &pool));
        CHECK_OK(page_pool_check(pool, NULL));
        page_pool_destroy(pool);
    }
    CHECK(world_init(&w, 64, 4, false));
    for (kv_key k = 0; k < 40; k++) CHECK(store(&w, &k, 1)); /* the root's table grows three times */
    CHECK_OK(kv_check(&w.cache, NULL));
    CHECK(world_deinit(&w));
    radix_destroy(NULL);
    CHECK_EQ(mem_n_alive(), n_alive);
}

/* ---- nodes ---- */

static uint64_t bytes_of(uint32_t n_nodes, uint32_t n_pages, uint32_t n_keys)
{
    return n_nodes * sizeof(struct radix_node) + (uint64_t)4 * (n_pages + n_keys);
}

TEST(the_bytes_of_nodes_are_counted_exactly)
{
    struct world w;
    uint64_t before;

    CHECK(world_init(&w, 32, 4, false));
    before = radix_counts(w.cache.tree).node_bytes;
    CHECK(store(&w, count_to(10), 10));
    CHECK(radix_counts(w.cache.tree).node_bytes == before + bytes_of(1, 3, 10));
    CHECK_EQ(radix_node_last_use(match(&w, count_to(10), 10).node), w.now);
    CHECK(store(&w, KEYS(1, 2, 3, 4, 5, 60), 6)); /* [1..5] pages 0, 1; [6..10] pages 1, 2; [60] page 1 */
    CHECK(radix_counts(w.cache.tree).node_bytes == before + bytes_of(3, 5, 11));
    CHECK_EQ(match(&w, count_to(10), 10).node->pages[1], 2);
    CHECK(radix_clear(w.cache.tree, NULL) == 4); /* 3 and a copy */
    CHECK(radix_counts(w.cache.tree).node_bytes == before);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(many_children_get_a_table_that_is_at_most_half_full)
{
    struct world w;
    struct radix_node *top, *node;
    uint64_t before, n_alive = mem_n_alive();
    kv_page page;

    CHECK(world_init(&w, 8, 4, false));
    before = radix_counts(w.cache.tree).node_bytes;
    CHECK_OK(page_pool_take(w.pool, 1, &page));
    page_pool_set_fill(w.pool, page, 4);
    CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], KEYS(7), 1, &page, ++w.now, &top));
    for (kv_key k = 1; k <= 40; k++) {
        CHECK_OK(radix_insert_ready(w.cache.tree, w.root[0], KEYS(7, k * 100), 2, &page, ++w.now, &node));
        CHECK_EQ(radix_node_last_use(node), w.now);
        CHECK_EQ(top->table_cap, k <= 4 ? 0 : k <= 8 ? 16 : k <= 16 ? 32 : k <= 32 ? 64 : 128);
        CHECK(radix_counts(w.cache.tree).node_bytes ==
              before + bytes_of(1 + k, 1 + k, 1 + k) + top->table_cap * sizeof(void *));
    }
    page_pool_release(w.pool, page);
    CHECK_EQ(radix_clear(w.cache.tree, w.root[0]), 1); /* the node goes with its table */
    CHECK(radix_counts(w.cache.tree).node_bytes == before);
    CHECK(world_ok(&w) && world_deinit(&w));
    CHECK_EQ(mem_n_alive(), n_alive);
}

/* A key that goes takes the state behind it along; another may be kept then. */
TEST(a_state_goes_with_its_key)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 32, 4, false));
    w.cache.state_bytes = STATE;
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 6));
    kv_seq_keep_state(&a, state('p'));
    end(&w, &a, true);
    CHECK_EQ(radix_evict(w.cache.tree, 1), 1);
    CHECK_EQ(match(&w, count_to(6), 6).n_match, 4);
    CHECK_EQ(state_at(&w, count_to(4), 4), '-');
    CHECK(world_ok(&w));
    CHECK_OK(start(&w, &a, count_to(4), 4));
    CHECK_OK(world_compute(&w, &a, 1));
    kv_seq_keep_state(&a, state('r'));
    CHECK_EQ(state_at(&w, count_to(4), 4), 'r');
    end(&w, &a, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}
