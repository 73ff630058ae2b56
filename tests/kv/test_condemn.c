/* tests/kv/test_condemn.c - what was found to be wrong is never matched again, whoever holds it or shares its pages. */
#include "kv_world.h"
#include "test.h"

enum { PAGE = 4 };

static const kv_key text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, fork_at_6[] = {1, 2, 3, 4, 5, 6, 27, 28};

static void store(struct world *w, const kv_key *keys, uint32_t n)
{
    struct kv_seq seq;

    CHECK_OK(kv_seq_init(&seq, &w->cache, keys, n, n));
    CHECK_OK(kv_seq_admit(&seq, w->root[0], ++w->now));
    while (seq.n_computed < n) CHECK_OK(world_compute(w, &seq, n - seq.n_computed));
    kv_seq_finish(&seq, true, ++w->now);
    kv_seq_deinit(&seq);
}

static struct radix_match match(struct world *w, const kv_key *keys, uint32_t n)
{
    return radix_match(w->cache.tree, w->root[0], keys, n, ++w->now);
}

TEST(what_is_condemned_goes_with_everything_below_and_what_is_before_stays)
{
    for (uint32_t at = 0; at < 12; at++) {
        struct world w;

        CHECK(world_init(&w, 32, PAGE, false));
        store(&w, text, 12);
        store(&w, fork_at_6, 8);
        radix_condemn(w.cache.tree, match(&w, text, 12).node, at);
        CHECK_EQ(match(&w, text, 12).n_match, at);
        CHECK_EQ(match(&w, fork_at_6, 8).n_match, at < 6 ? at : 8); /* the other branch only where it goes on from it */
        CHECK_EQ(radix_counts(w.cache.tree).n_keys, at < 6 ? at : at + 2);
        CHECK(world_ok(&w) && world_tree_reads(&w));
        CHECK(world_deinit(&w));
    }
}

/* Held parts stay until they are let go of, under keys that no text has: one for each. */
TEST(what_is_held_is_hidden_until_it_is_let_go_of)
{
    struct world w;
    struct radix_node *held[2];

    CHECK(world_init(&w, 32, PAGE, false));
    for (uint32_t i = 0; i < 2; i++) {
        store(&w, text, 12);
        held[i] = match(&w, text, 12).node;
        radix_lock(w.cache.tree, held[i]);
        radix_condemn(w.cache.tree, held[i], 5);
        CHECK_EQ(match(&w, text, 12).n_match, 5);
        CHECK(world_ok(&w));
    }
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 5 + 7 + 7);
    CHECK_EQ(match(&w, (const kv_key[]){1, 2, 3, 4, 5, 0}, 6).n_match, 5);
    store(&w, text, 12);
    CHECK_EQ(match(&w, text, 12).n_match, 12);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 12 + 7 + 7);
    for (uint32_t i = 0; i < 2; i++) radix_unlock(w.cache.tree, held[i]);
    CHECK(world_ok(&w));
    CHECK(radix_clear(w.cache.tree, NULL) > 0);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 0);
    CHECK(world_deinit(&w));
}

/* Both namespaces have the pages of text; fork_at_6 has the first one and a copy of the second. */
TEST(a_page_is_condemned_on_every_path_that_holds_it)
{
    const uint32_t left[] = {0, 4, 8}, left_of_fork[] = {0, 4, 8};

    for (uint32_t k = 0; k < 3; k++) {
        struct world w;
        struct radix_node *node;
        kv_page pages[3];

        CHECK(world_init(&w, 32, PAGE, false));
        store(&w, text, 12);
        store(&w, fork_at_6, 8);
        radix_path_pages(w.cache.tree, match(&w, text, 12).node, 12, pages);
        CHECK_OK(radix_insert_ready(w.cache.tree, w.root[1], text, 12, pages, ++w.now, &node));
        if (k == 1) radix_lock(w.cache.tree, node); /* is hidden, and not found again and again */
        page_pool_retain(w.pool, pages[k]);
        CHECK_EQ(radix_condemn_page(w.cache.tree, pages[k]), 2);
        CHECK_EQ(radix_condemn_page(w.cache.tree, pages[k]), 0);
        page_pool_release(w.pool, pages[k]);
        CHECK_EQ(match(&w, text, 12).n_match, left[k]);
        CHECK_EQ(match(&w, fork_at_6, 8).n_match, left_of_fork[k]);
        CHECK_EQ(radix_match(w.cache.tree, w.root[1], text, 12, ++w.now).n_match, left[k]);
        CHECK(world_ok(&w));
        if (k == 1) radix_unlock(w.cache.tree, node);
        CHECK(world_deinit(&w));
    }
}
