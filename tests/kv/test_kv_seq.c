/* tests/kv/test_kv_seq.c - sequences over tree and pool, rule by rule (docs/engine.md); page_tokens is 4 unless a test
 * says so. */
#include "base/clock.h"
#include "base/mem.h"
#include "kv_world.h"
#include "test.h"

enum { CAP = 64 };
#define KEYS(...) ((const kv_key[]){__VA_ARGS__})

static rd_status start(struct world *w, struct kv_seq *seq, const kv_key *keys, uint32_t n)
{
    rd_status st = kv_seq_init(seq, &w->cache, keys, n, CAP);
    return st == RD_OK ? kv_seq_admit(seq, w->root[0], ++w->now) : st;
}

static void end(struct world *w, struct kv_seq *seq, bool store)
{
    kv_seq_finish(seq, store, ++w->now);
    kv_seq_deinit(seq);
}

/* 1, 2, .. n */
static const kv_key *count_to(uint32_t n)
{
    static kv_key keys[8192];
    for (uint32_t i = 0; i < n; i++) keys[i] = i + 1;
    return keys;
}

TEST(a_repeat_takes_all_but_one_token_from_the_tree)
{
    struct world w;
    struct kv_seq a, b;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(10), 10));
    CHECK_EQ(a.state, KV_SEQ_RUNNABLE);
    CHECK_EQ(a.n_hit, 0);
    CHECK_OK(world_compute(&w, &a, 10));
    end(&w, &a, true);
    CHECK(world_ok(&w));
    CHECK_OK(start(&w, &b, count_to(10), 10));
    CHECK_EQ(b.match_kind, RADIX_EXACT);
    CHECK_EQ(b.n_hit, 9); /* KV alone gives no logits */
    CHECK_EQ(b.n_hit_in_flight, 0);
    CHECK_EQ(b.n_computed, 9);
    CHECK_OK(world_compute(&w, &b, 1));
    CHECK(world_ok(&w));
    end(&w, &b, true);
    CHECK_EQ(radix_counts(w.cache.tree).n_nodes, 1);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 3); /* the duplicate row's page is free again */
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_waiter_runs_in_the_step_that_passes_its_position)
{
    struct world w;
    struct kv_seq a, b, c;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(12), 12));
    CHECK_OK(start(&w, &b, KEYS(1, 2, 3, 4, 5, 99), 6)); /* ends inside the pending node: splits it */
    CHECK_OK(start(&w, &c, count_to(9), 9));             /* waits for part of it */
    CHECK(world_ok(&w));
    CHECK_EQ(b.state, KV_SEQ_WAITING);
    CHECK_EQ(b.wait_until, 5);
    CHECK_EQ(c.wait_until, 8);
    CHECK_EQ(w.cache.n_joined_in_flight, 2);
    CHECK_OK(world_compute(&w, &a, 4));
    CHECK(b.state == KV_SEQ_WAITING && c.state == KV_SEQ_WAITING);
    CHECK_OK(world_compute(&w, &a, 2));
    CHECK_EQ(b.state, KV_SEQ_RUNNABLE);
    CHECK_EQ(b.n_computed, 5);
    CHECK_EQ(b.n_hit_in_flight, 5);
    CHECK_EQ(c.state, KV_SEQ_WAITING);
    CHECK(world_ok(&w) && world_can_read(&w, &b));
    CHECK_OK(world_compute(&w, &a, 2));
    CHECK_EQ(c.state, KV_SEQ_RUNNABLE);
    CHECK_OK(world_compute(&w, &b, 1));
    CHECK_OK(world_compute(&w, &c, 1));
    CHECK_OK(world_compute(&w, &a, 4));
    CHECK(world_ok(&w) && world_tree_reads(&w));
    end(&w, &a, true);
    end(&w, &b, true);
    end(&w, &c, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_match_never_calls_a_position_ready_before_its_step_is_done)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(8), 8));
    CHECK_OK(kv_seq_reserve(&a, 8));
    CHECK_EQ(radix_match(w.cache.tree, w.root[0], count_to(8), 8, w.now).n_match, 8);
    CHECK_EQ(radix_match(w.cache.tree, w.root[0], count_to(8), 8, w.now).n_ready, 0);
    world_write(&w, &a);
    kv_seq_commit(&a);
    CHECK_EQ(radix_match(w.cache.tree, w.root[0], count_to(8), 8, w.now).n_ready, 8);
    end(&w, &a, true);
    CHECK(world_deinit(&w));
}

TEST(the_first_waiter_inherits_and_the_rest_wait_for_it)
{
    struct world w;
    struct kv_seq a, b, c;

    CHECK(world_init(&w, 32, 4, false));
    CHECK_OK(start(&w, &a, count_to(20), 20));
    CHECK_OK(start(&w, &b, count_to(10), 10)); /* ends inside */
    CHECK_OK(start(&w, &c, count_to(16), 16)); /* needs more */
    CHECK_OK(world_compute(&w, &a, 6));
    end(&w, &a, false); /* cancelled */
    CHECK(world_ok(&w));
    CHECK_EQ(b.state, KV_SEQ_RUNNABLE); /* goes on where a stopped */
    CHECK_EQ(b.n_computed, 6);
    CHECK_EQ(b.n_hit, 6);
    CHECK_EQ(c.state, KV_SEQ_WAITING);
    CHECK_EQ(c.wait_until, 10); /* its own part begins where b's ends */
    CHECK_EQ(w.cache.n_owner_handed_over, 2);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 16); /* what nobody needs is gone */
    CHECK_OK(world_compute(&w, &b, 4));
    CHECK_EQ(c.state, KV_SEQ_RUNNABLE);
    CHECK_EQ(c.n_computed, 10);
    CHECK_OK(world_compute(&w, &c, 6));
    CHECK(world_ok(&w) && world_tree_reads(&w));
    end(&w, &b, true);
    end(&w, &c, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(handing_over_without_memory_loses_sharing_but_nobody)
{
    struct world w;
    struct kv_seq a, b, c, d;

    CHECK(world_init(&w, 32, 4, false));
    CHECK_OK(start(&w, &a, count_to(20), 20));
    mem_fail_from(2); /* room for the sequence's arrays, none to split the node where its prompt ends */
    CHECK_OK(start(&w, &b, count_to(10), 10));
    mem_fail_from(2);
    CHECK_OK(start(&w, &c, count_to(16), 16));
    mem_fail_from(-1);
    CHECK_OK(start(&w, &d, count_to(24), 24));
    CHECK_OK(world_compute(&w, &a, 6));
    mem_fail_from(0);
    kv_seq_finish(&a, true, ++w.now);
    mem_fail_from(-1);
    CHECK(world_ok(&w));
    CHECK_EQ(b.state, KV_SEQ_RUNNABLE);
    CHECK_EQ(c.wait_until, 10); /* then computes the rest alone */
    CHECK_EQ(d.wait_until, 10);
    CHECK_OK(world_compute(&w, &b, 4));
    CHECK(c.state == KV_SEQ_RUNNABLE && d.state == KV_SEQ_RUNNABLE);
    CHECK_OK(world_compute(&w, &c, 6));
    CHECK_OK(world_compute(&w, &d, 14));
    CHECK(world_ok(&w));
    kv_seq_deinit(&a);
    end(&w, &d, true);
    end(&w, &c, true); /* stored already */
    end(&w, &b, true);
    CHECK_EQ(radix_match(w.cache.tree, w.root[0], count_to(24), 24, w.now).n_ready, 24);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 7); /* 3 pages of [1..10], page 2 copied and 3..5 of the rest */
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

TEST(a_prompt_that_ends_inside_a_node_locks_no_more_than_it_needs)
{
    struct world w;
    struct kv_seq a, b;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(40), 40));
    CHECK_OK(world_compute(&w, &a, 40));
    end(&w, &a, true);
    CHECK_OK(start(&w, &b, count_to(8), 8));
    CHECK_EQ(page_pool_counts(w.pool).n_locked, 2);
    CHECK_EQ(radix_evict(w.cache.tree, 16), 8); /* all that lies beyond the prompt */
    CHECK_OK(world_compute(&w, &b, 1));
    CHECK(world_ok(&w));
    end(&w, &b, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_hold_keeps_what_was_asked_for_and_no_more)
{
    struct world w;
    struct kv_seq a;
    struct radix_node *node;
    uint32_t n_held = 0;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(40), 40));
    CHECK_OK(world_compute(&w, &a, 40));
    end(&w, &a, true);
    node = kv_hold(&w.cache, w.root[0], count_to(40), 8, ++w.now, &n_held);
    CHECK_EQ(n_held, 8);
    CHECK_EQ(radix_evict(w.cache.tree, 16), 8);
    CHECK_EQ(radix_match(w.cache.tree, w.root[0], count_to(40), 40, w.now).n_ready, 8);
    kv_unhold(&w.cache, node);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(an_owner_that_leaves_alone_leaves_what_it_computed)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(20), 20));
    CHECK_OK(world_compute(&w, &a, 6));
    CHECK_OK(kv_seq_reserve(&a, 6)); /* a step that was not run */
    end(&w, &a, true);
    CHECK(world_ok(&w));
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 6);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 2);
    CHECK_OK(start(&w, &a, count_to(20), 20));
    CHECK_EQ(a.n_hit, 6);
    CHECK_EQ(kv_seq_pages_needed(&a, 2), 0); /* the rows given back are appended in place */
    end(&w, &a, true);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 6);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_waiter_that_gives_up_changes_nothing_for_the_others)
{
    struct world w;
    struct kv_seq a, b, c;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(10), 10));
    CHECK_OK(start(&w, &b, count_to(14), 14)); /* has a pending node of its own below */
    CHECK_OK(start(&w, &c, count_to(13), 13)); /* waits for b, who waits for a */
    CHECK_EQ(c.wait_until, 12);
    end(&w, &b, true);
    CHECK(world_ok(&w));
    CHECK_EQ(c.state, KV_SEQ_WAITING);
    CHECK_EQ(c.wait_until, 10); /* c inherits b's part */
    end(&w, &c, false);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 10);
    CHECK_OK(world_compute(&w, &a, 10));
    end(&w, &a, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(two_sequences_in_one_step_never_get_the_same_rows)
{
    struct world w;
    struct kv_seq a, b, c;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 6));
    end(&w, &a, true);
    CHECK_OK(start(&w, &b, KEYS(1, 2, 3, 4, 5, 6, 20), 7));
    CHECK_OK(start(&w, &c, KEYS(1, 2, 3, 4, 5, 6, 30), 7));
    CHECK_EQ(kv_seq_pages_needed(&b, 1), 0);
    CHECK_EQ(kv_seq_pages_needed(&c, 1), 0);
    CHECK_OK(kv_seq_reserve(&b, 1));
    CHECK_EQ(kv_seq_pages_needed(&c, 1), 1);
    CHECK_OK(kv_seq_reserve(&c, 1));
    CHECK(b.pages[1] != c.pages[1]);
    CHECK_EQ(b.pages[0], c.pages[0]);
    CHECK_EQ(w.cache.n_rows_copied, 2);
    world_write(&w, &b);
    world_write(&w, &c);
    kv_seq_commit(&b);
    kv_seq_commit(&c);
    CHECK(world_ok(&w) && world_can_read(&w, &b) && world_can_read(&w, &c) && world_tree_reads(&w));
    end(&w, &b, true);
    end(&w, &c, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(reserve_without_pages_takes_nothing)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 2, 4, false));
    CHECK_OK(start(&w, &a, count_to(12), 12));
    CHECK_EQ(kv_seq_pages_needed(&a, 12), 3);
    CHECK_EQ(kv_seq_reserve(&a, 12), RD_E_NO_PAGES);
    CHECK(world_ok(&w));
    CHECK_EQ(page_pool_n_free(w.pool), 2);
    CHECK_OK(world_compute(&w, &a, 8)); /* any chunk that fits */
    end(&w, &a, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_finished_tail_is_one_node_whatever_its_length)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(5), 5));
    CHECK_OK(world_compute(&w, &a, 5));
    for (kv_key k = 0; k < 30; k++) {
        kv_seq_push(&a, 100 + k);
        CHECK_OK(world_compute(&w, &a, 1));
        CHECK(world_ok(&w));
    }
    kv_seq_push(&a, 200); /* sampled, but without KV: not inserted */
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 5);
    end(&w, &a, true);
    CHECK_EQ(radix_counts(w.cache.tree).n_nodes, 2); /* prompt and tail */
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 35);
    CHECK_EQ(w.cache.n_rows_copied, 0);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 9);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

TEST(equal_tails_are_stored_once)
{
    struct world w;
    struct kv_seq s[3];

    CHECK(world_init(&w, 32, 4, false));
    for (int i = 0; i < 3; i++) CHECK_OK(start(&w, &s[i], count_to(8), 8));
    CHECK_OK(world_compute(&w, &s[0], 8));
    for (int i = 1; i < 3; i++) CHECK_OK(world_compute(&w, &s[i], 1));
    for (kv_key k = 0; k < 10; k++)
        for (int i = 0; i < 3; i++) {
            kv_seq_push(&s[i], 50 + k);
            CHECK_OK(world_compute(&w, &s[i], 1));
        }
    for (int i = 0; i < 3; i++) end(&w, &s[i], true);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 18);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 5);
    CHECK_EQ(page_pool_n_free(w.pool), 27);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

TEST(a_preempted_sequence_goes_on_from_its_own_keys)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 6));
    kv_seq_push(&a, 77);
    CHECK_OK(world_compute(&w, &a, 1));
    kv_seq_push(&a, 78);
    kv_seq_finish(&a, true, ++w.now);
    CHECK_EQ(a.state, KV_SEQ_DONE);
    CHECK_EQ(page_pool_counts(w.pool).n_ready, 2); /* evictable */
    CHECK_EQ(radix_evict(w.cache.tree, 1), 1);     /* and some of it goes */
    CHECK_OK(kv_seq_admit(&a, w.root[0], ++w.now));
    CHECK_EQ(a.n_keys, 8);
    CHECK_EQ(a.n_prompt, 6);
    CHECK_EQ(a.n_hit, 6 - 2);
    CHECK_OK(world_compute(&w, &a, 4));
    CHECK(world_ok(&w));
    end(&w, &a, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(an_uncached_sequence_matches_and_stores_nothing)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(kv_seq_init(&a, &w.cache, count_to(6), 6, CAP));
    CHECK_OK(kv_seq_admit(&a, NULL, ++w.now));
    CHECK_OK(world_compute(&w, &a, 6));
    CHECK(world_ok(&w));
    CHECK_EQ(page_pool_counts(w.pool).n_pending, 2);
    end(&w, &a, true);
    CHECK_EQ(page_pool_n_free(w.pool), 16);
    CHECK_EQ(radix_counts(w.cache.tree).n_nodes, 0);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(a_device_error_ends_its_owner_and_waiters_and_nobody_else)
{
    struct world w;
    struct kv_seq old, a, waiter, below, other;

    CHECK(world_init(&w, 32, 4, false));
    CHECK_OK(start(&w, &old, count_to(6), 6));
    CHECK_OK(world_compute(&w, &old, 6));
    end(&w, &old, true);
    CHECK_OK(start(&w, &a, count_to(14), 14));
    CHECK_OK(start(&w, &waiter, count_to(10), 10));
    CHECK_OK(start(&w, &below, count_to(20), 20));
    CHECK_OK(start(&w, &other, KEYS(1, 2, 3, 4, 5, 6, 90, 91), 8)); /* shares what is ready */
    CHECK_OK(kv_seq_reserve(&other, 2));
    CHECK_OK(kv_seq_reserve(&a, 8));
    kv_seq_poison(&a);
    CHECK_EQ(a.state, KV_SEQ_POISONED);
    CHECK_EQ(waiter.state, KV_SEQ_POISONED);
    CHECK_EQ(below.state, KV_SEQ_POISONED);
    CHECK_EQ(other.state, KV_SEQ_RUNNABLE);
    CHECK_EQ(page_pool_counts(w.pool).n_quarantined, 3); /* the copied page and two more */
    world_write(&w, &other);
    kv_seq_commit(&other);
    CHECK(world_ok(&w) && world_can_read(&w, &other) && world_tree_reads(&w));
    CHECK_EQ(radix_match(w.cache.tree, w.root[0], count_to(14), 14, w.now).n_match, 6); /* later ones start afresh */
    kv_seq_poison(&a);                                                                  /* idempotent */
    end(&w, &a, false);
    end(&w, &waiter, false);
    end(&w, &below, false);
    CHECK_EQ(page_pool_counts(w.pool).n_quarantined, 0);
    end(&w, &other, true);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

TEST(a_failed_append_leaves_the_ready_rows_of_its_page_in_use)
{
    struct world w;
    struct kv_seq a, b;

    CHECK(world_init(&w, 32, 4, false));
    CHECK_OK(start(&w, &a, count_to(6), 6));
    CHECK_OK(world_compute(&w, &a, 6));
    end(&w, &a, true);
    CHECK_OK(start(&w, &a, count_to(8), 8));
    CHECK_OK(kv_seq_reserve(&a, 2)); /* rows 2 and 3 of a page whose rows 0 and 1 are ready */
    kv_seq_poison(&a);
    CHECK_EQ(page_pool_counts(w.pool).n_quarantined, 0);
    CHECK_OK(start(&w, &b, count_to(8), 8));
    CHECK_EQ(b.n_hit, 6);
    CHECK_EQ(kv_seq_pages_needed(&b, 2), 1); /* but nobody gets the spoilt rows */
    CHECK_OK(world_compute(&w, &b, 2));
    end(&w, &a, false);
    end(&w, &b, true);
    CHECK(world_ok(&w) && world_tree_reads(&w) && world_deinit(&w));
}

TEST(a_held_path_stays_whatever_happens_around_it)
{
    struct world w;
    struct kv_seq a, b;
    struct radix_node *held, *nothing;
    uint32_t n;

    CHECK(world_init(&w, 16, 4, false));
    CHECK_OK(start(&w, &a, count_to(12), 12));
    CHECK_OK(world_compute(&w, &a, 5));
    held = kv_hold(&w.cache, w.root[0], count_to(12), 12, ++w.now, &n); /* the computed part only */
    CHECK_EQ(n, 5);
    CHECK(world_ok(&w));
    nothing = kv_hold(&w.cache, w.root[0], KEYS(500), 1, ++w.now, &n);
    CHECK_EQ(n, 0);
    CHECK(nothing == w.root[0]);
    CHECK_OK(start(&w, &b, KEYS(1, 2, 3, 9), 4));
    end(&w, &a, false);
    end(&w, &b, false);
    CHECK(world_ok(&w));
    CHECK_EQ(radix_clear(w.cache.tree, NULL), 0);
    CHECK_EQ(radix_match(w.cache.tree, w.root[0], count_to(12), 12, w.now).n_ready, 5);
    kv_unhold(&w.cache, held);
    kv_unhold(&w.cache, nothing);
    CHECK_EQ(radix_clear(w.cache.tree, NULL), 2);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(admission_locks_before_anything_can_be_evicted_for_it)
{
    struct world w;
    struct kv_seq a;

    CHECK(world_init(&w, 3, 4, false));
    CHECK_OK(start(&w, &a, count_to(8), 8));
    CHECK_OK(world_compute(&w, &a, 8));
    end(&w, &a, true);
    CHECK_OK(start(&w, &a, count_to(20), 20));
    CHECK_EQ(radix_evict(w.cache.tree, 3), 0); /* its own prefix was the oldest leaf */
    CHECK_EQ(page_pool_counts(w.pool).n_locked, 2);
    end(&w, &a, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(init_and_admit_without_memory_change_nothing)
{
    struct world w;
    struct kv_seq a, b;
    rd_status st = RD_E_NOMEM;
    int i;

    CHECK(world_init(&w, 32, 4, false));
    CHECK_OK(start(&w, &a, count_to(12), 12));
    CHECK_OK(world_compute(&w, &a, 3));
    for (i = 0; st != RD_OK && i < 10; i++) {
        uint64_t n_alive = mem_n_alive();
        mem_fail_after(i);
        st = kv_seq_init(&b, &w.cache, KEYS(1, 2, 3, 4, 5, 77), 6, CAP);
        mem_fail_after(-1);
        CHECK(st == RD_OK || mem_n_alive() == n_alive);
    }
    CHECK_EQ(i, 3);
    for (st = RD_E_NOMEM, i = 0; st != RD_OK && i < 10; i++) {
        uint64_t n_alive = mem_n_alive();
        uint64_t n_bytes = radix_counts(w.cache.tree).node_bytes;
        mem_fail_after(i);
        st = kv_seq_admit(&b, w.root[0], ++w.now);
        mem_fail_after(-1);
        CHECK(st == RD_OK || (st == RD_E_NOMEM && !b.live && mem_n_alive() == n_alive));
        CHECK(st == RD_OK || radix_counts(w.cache.tree).node_bytes == n_bytes);
        CHECK(world_ok(&w));
    }
    CHECK(i > 3);
    end(&w, &b, true);
    end(&w, &a, true);
    CHECK(world_ok(&w) && world_deinit(&w));
}

TEST(steps_allocate_nothing)
{
    struct world w;
    struct kv_seq a;
    uint64_t n_allocs;

    CHECK(world_init(&w, 32, 4, false));
    CHECK_OK(start(&w, &a, count_to(40), 40));
    n_allocs = mem_n_allocs();
    CHECK_OK(world_compute(&w, &a, 25));
    CHECK_OK(world_compute(&w, &a, 15));
    for (kv_key k = 0; k < 20; k++) {
        kv_seq_push(&a, k);
        CHECK_OK(world_compute(&w, &a, 1));
    }
    CHECK_EQ(mem_n_allocs(), n_allocs);
    end(&w, &a, true);
    CHECK(world_deinit(&w));
}

TEST(admitting_a_long_hit_takes_microseconds)
{
    enum { N = 4000, ROUNDS = 200 };
    struct world w;
    struct kv_seq a;
    uint64_t t, best = UINT64_MAX;

    CHECK(world_init(&w, 512, 16, false));
    CHECK_OK(kv_seq_init(&a, &w.cache, count_to(N), N, N + 16));
    CHECK_OK(kv_seq_admit(&a, w.root[0], ++w.now));
    CHECK_OK(world_compute(&w, &a, N));
    kv_seq_finish(&a, true, ++w.now);
    for (int i = 0; i < ROUNDS; i++) {
        t = clock_now_ns(clock_system());
        CHECK_OK(kv_seq_admit(&a, w.root[0], ++w.now));
        t = clock_now_ns(clock_system()) - t;
        if (t < best) best = t;
        CHECK_EQ(a.n_hit, N - 1);
        kv_seq_finish(&a, true, ++w.now);
    }
    test_note("admission of a hit of %d tokens: %.1f us at best of %d", N, (double)best / 1e3, ROUNDS);
    kv_seq_deinit(&a);
    CHECK(world_ok(&w) && world_deinit(&w));
}
