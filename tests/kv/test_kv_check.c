/* tests/kv/test_kv_check.c - the checks of the tree, the pages and the sequences find what they are there for: each
 * invariant is broken by hand, named by the check, and put right again.
 */
#include "base/mem.h"
#include "kv_world.h"
#include "test.h"

static rd_status check(const struct world *w, struct rd_error *err)
{
    *err = (struct rd_error){RD_OK, ""};
    return kv_check(&w->cache, err);
}

/* `what` is made of place, which is then as it was; the check must say `said`. */
#define BREAK(place, what, said)                                                                                       \
    do {                                                                                                               \
        __typeof__(place) was = (place);                                                                               \
        struct rd_error err;                                                                                           \
                                                                                                                       \
        (place) = (what);                                                                                              \
        CHECK_EQ(check(&w, &err), RD_E_INTERNAL);                                                                      \
        (place) = was;                                                                                                 \
        if (!strstr(err.text, said)) {                                                                                 \
            test_fail(__FILE__, __LINE__, "said \"%s\", wanted \"%s\"", err.text, said);                               \
            return;                                                                                                    \
        }                                                                                                              \
        CHECK_OK(check(&w, &err));                                                                                     \
    } while (0)

static const kv_key first[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, second[] = {1, 2, 3, 4, 5, 6, 17, 18, 19},
                    third[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};

static bool store(struct world *w, const kv_key *keys, uint32_t n)
{
    struct kv_seq seq;
    bool ok = kv_seq_init(&seq, &w->cache, keys, n, n) == RD_OK && kv_seq_admit(&seq, w->root[0], ++w->now) == RD_OK &&
              world_compute(w, &seq, n - seq.n_computed) == RD_OK;

    kv_seq_finish(&seq, true, ++w->now);
    kv_seq_deinit(&seq);
    return ok && world_ok(w);
}

TEST(every_invariant_of_the_tree_is_checked)
{
    struct world w;
    struct radix_node *top, *leaf, *other;
    struct page_pool *pool;
    struct kv_seq seq;

    CHECK(world_init(&w, 32, 4, false));
    CHECK(store(&w, first, 10) && store(&w, second, 9));
    pool = w.pool;
    top = w.root[0]->first_child;
    leaf = top->first_child;
    other = leaf->next_sibling;
    CHECK(top->n_keys == 6 && leaf && other && !other->next_sibling);

    BREAK(leaf->parent, other, "links are broken");
    BREAK(other->prev_sibling, NULL, "links are broken");
    BREAK(leaf->start, leaf->start + 1, "does not start where its parent ends");
    BREAK(leaf->keys[0], other->keys[0], "first key finds another");
    BREAK(leaf->last_use, top->last_use + 1, "used later than its parent");
    BREAK(top->n_children, 3, "wrong number of children");
    BREAK(leaf->n_pages, leaf->n_pages + 1, "pages do not cover");
    BREAK(top->n_computed, 7, "wrong number of keys");
    BREAK(leaf->n_keys, 0, "wrong number of keys");
    BREAK(leaf->owner, &seq, "pending and owner do not agree");
    BREAK(leaf->on_lru, false, "on the LRU list, or not, wrongly");
    BREAK(leaf->created, top->created - 1, "created before its parent");
    BREAK(leaf->created, leaf->last_use + 1, "used before it was created");
    BREAK(leaf->n_hits, top->n_hits + 1, "fewer hits than its children");
    BREAK(leaf->class, (uint8_t)(leaf->class + 1), "of a wrong class");
    BREAK(leaf->claim, 1, "claimed, but not its parent");
    BREAK(w.cache.tree->lru[leaf->class].tail, NULL, "nodes, 2 say they are on it");
    BREAK(w.root[0]->n_keys, 1, "not a root");
    BREAK(w.root[0]->n_pages, 1, "not a root");
    BREAK(w.root[0]->on_lru, true, "not a root");
    BREAK(w.root[0]->parent, leaf, "not a root");
    BREAK(leaf->lru_prev, leaf, "LRU links are broken");
    BREAK(leaf->lru_next, leaf->lru_next ? NULL : other, "LRU l");
    BREAK(w.cache.tree->counts.n_nodes, 7, "counters say otherwise");
    BREAK(w.cache.tree->counts.n_keys, 1, "counters say otherwise");
    BREAK(w.cache.tree->counts.node_bytes, 1, "counters say otherwise");
    BREAK(w.cache.tree->counts.n_namespaces, 7, "counters say otherwise");
    BREAK(w.cache.tree->counts.class_keys[leaf->class], 1, "counted");
    BREAK(w.cache.tree->counts.depth_keys[0], 1, "depth 0 has");
    BREAK(w.cache.tree->counts.depth_nodes[0], 1, "depth 0 has");
    BREAK(w.cache.tree->counts.class_keys[RADIX_DAY], 1, "counted"); /* the last of each list */
    BREAK(w.cache.tree->counts.class_nodes[RADIX_DAY], 1, "counted");
    BREAK(w.cache.tree->lru[RADIX_DAY].head, w.cache.tree->lru[leaf->class].head, "LRU links are broken");
    BREAK(w.cache.tree->counts.depth_nodes[RADIX_N_DEPTHS - 1], 1, "counted");
    BREAK(w.cache.tree->counts.depth_keys[RADIX_N_DEPTHS - 1], 1, "counted");
    BREAK(leaf->locks, 1, "fewer locks than its children");
    /* a child that is locked below one that is: its own page is not pinned */
    top->locks++, w.root[0]->locks++;
    {
        struct rd_error err;

        CHECK_EQ(check(&w, &err), RD_E_INTERNAL);
        CHECK(strstr(err.text, "locked, but a page is not pinned"));
    }
    top->locks--, w.root[0]->locks--;
    page_pool_set_fill(pool, leaf->pages[leaf->n_pages - 1], 0);
    {
        struct rd_error err;

        CHECK_EQ(check(&w, &err), RD_E_INTERNAL);
        CHECK(strstr(err.text, "fill below its computed rows"));
    }
    page_pool_set_fill(pool, leaf->pages[leaf->n_pages - 1], 2);
    BREAK(leaf->pages[leaf->n_pages - 1], 31, "holds a free page");
    CHECK(top->n_pages == 2);
    BREAK(top->pages[0], 31, "holds a free page");
    CHECK(world_deinit(&w));
}

TEST(every_invariant_of_sequences_is_checked)
{
    struct world w;
    struct kv_seq owner, waiter, other;

    CHECK(world_init(&w, 32, 4, false));
    CHECK(store(&w, first, 10));
    CHECK_OK(kv_seq_init(&owner, &w.cache, third, 14, 20));
    CHECK_OK(kv_seq_admit(&owner, w.root[0], ++w.now));
    CHECK_OK(world_compute(&w, &owner, 1));
    CHECK_OK(kv_seq_init(&waiter, &w.cache, third, 14, 20));
    CHECK_OK(kv_seq_admit(&waiter, w.root[0], ++w.now));
    CHECK(owner.state == KV_SEQ_RUNNABLE && waiter.state == KV_SEQ_WAITING && owner.n_computed == 11);

    BREAK(owner.prev, &owner, "links are broken");
    BREAK(waiter.prev, NULL,
          "live sequence 1 (state 0, 14 keys, computed 0, reserved 0, path 14, waits for 13): links");
    BREAK(waiter.n_keys, 13, "path too long");
    owner.keys[owner.n_keys++] = 77;
    BREAK(owner.n_path, 15, "path too long"); /* beyond its node, though it has so many keys */
    owner.n_keys--;
    BREAK(owner.keys[0], 99, "keys differ from its path");
    BREAK(waiter.wait_until, 14, "waits for its last key");
    BREAK(owner.n_pages_cap, owner.n_pages - 1, "counts out of range");
    CHECK(!owner.node->first_child);
    {
        struct radix_node below = {.parent = owner.node, .keys = owner.keys, .n_keys = 2, .n_computed = 1, .start = 14};

        below.locks = owner.node->locks;
        below.created = owner.node->created;
        BREAK(owner.node->first_child, &below, "computed below a pending node");
    }
    BREAK(owner.live, false, "links are broken");
    BREAK(owner.state, KV_SEQ_DONE, "links are broken");
    BREAK(w.cache.live_tail, &owner, "is not the last");
    BREAK(owner.n_path, 15, "path too long");
    BREAK(owner.keys[3], 99, "keys differ from its path");
    BREAK(owner.root, w.root[1], "path leads to another root");
    BREAK(owner.n_path, 13, "owns more than its path");
    BREAK(owner.n_relied, 12, "its hit is not computed");
    BREAK(owner.n_computed, 10, "does not compute its pending nodes next in order");
    BREAK(owner.n_reserved, 12, "rows left reserved");
    BREAK(owner.n_pages, owner.n_pages - 1, "block table has the wrong length");
    BREAK(owner.first_own_page, owner.n_pages + 1, "counts out of range");
    BREAK(owner.pages[0], owner.pages[1], "block table differs from the path");
    BREAK(owner.pages[owner.first_own_page], 31, "a free page in the block table");
    BREAK(waiter.wait_until, 11, "waits for what is there");
    BREAK(waiter.wait_until, 15, "waits for what is there, or for what nobody computes");
    BREAK(owner.state, KV_SEQ_POISONED, "waits while nothing runs");
    BREAK(owner.state, KV_SEQ_POISONED, "live sequence 1 (state 0");
    {
        kv_page last = owner.pages[owner.n_pages - 1];
        struct rd_error err;

        page_pool_pin(w.pool, w.root[0]->first_child->pages[2]); /* not the first page; and nothing runs: told first */
        owner.state = KV_SEQ_POISONED;
        CHECK_EQ(check(&w, &err), RD_E_INTERNAL);
        CHECK(strstr(err.text, "page 2: ") && strstr(err.text, "counted"));
        owner.state = KV_SEQ_RUNNABLE;
        page_pool_unpin(w.pool, w.root[0]->first_child->pages[2]);
        CHECK_EQ(last, 2);
        CHECK_OK(check(&w, &err));
    }
    {
        struct radix_node *node = owner.node;
        struct rd_error err;

        owner.node = NULL;
        CHECK_EQ(check(&w, &err), RD_E_INTERNAL);
        owner.node = node;
        CHECK_OK(check(&w, &err));
        page_pool_add_writer(w.pool, w.root[0]->first_child->pages[0]);
        CHECK_EQ(check(&w, &err), RD_E_INTERNAL);
        CHECK(strstr(err.text, "counted"));
        page_pool_drop_writer(w.pool, w.root[0]->first_child->pages[0]);
        CHECK_OK(check(&w, &err));
    }
    BREAK(w.cache.live, &waiter, "its owner is gone");
    CHECK_OK(kv_seq_init(&other, &w.cache, third, 12, 12)); /* splits: the owner has two pending nodes now */
    CHECK_OK(kv_seq_admit(&other, w.root[0], ++w.now));
    BREAK(w.cache.live, &waiter, "pending node at 10: its owner is gone");
    kv_seq_finish(&other, false, ++w.now);
    kv_seq_deinit(&other);
    CHECK_OK(kv_seq_init(&other, &w.cache, second + 6, 3, 3)); /* right below the root */
    CHECK_OK(kv_seq_admit(&other, w.root[0], ++w.now));
    BREAK(waiter.next, NULL, "pending node at 0: its owner is gone");
    kv_seq_finish(&other, false, ++w.now);
    kv_seq_deinit(&other);
    kv_seq_finish(&waiter, false, ++w.now);
    kv_seq_finish(&owner, false, ++w.now);
    kv_seq_deinit(&waiter);
    kv_seq_deinit(&owner);
    CHECK(world_deinit(&w));
}

/* A sequence without a path is no reason to look at nothing else, and the check keeps no memory. */
TEST(what_is_behind_an_uncached_sequence_is_checked)
{
    struct world w;
    struct kv_seq uncached, seq;
    uint64_t n_alive;

    CHECK(world_init(&w, 32, 4, false));
    CHECK_OK(kv_seq_init(&uncached, &w.cache, first, 10, 10));
    CHECK_OK(kv_seq_admit(&uncached, NULL, ++w.now));
    CHECK_OK(kv_seq_init(&seq, &w.cache, first, 10, 10));
    CHECK_OK(kv_seq_admit(&seq, w.root[0], ++w.now));
    CHECK_OK(world_compute(&w, &seq, 6));
    n_alive = mem_n_alive();
    BREAK(seq.n_reserved, 7, "live sequence 1 (state 1, 10 keys, computed 6, reserved 7");
    BREAK(seq.is_ahead, true, "rows left reserved");
    CHECK_OK(world_compute(&w, &uncached, 6));
    page_pool_set_fill(w.pool, uncached.pages[1], 1);
    {
        struct rd_error err;

        CHECK_EQ(check(&w, &err), RD_E_INTERNAL);
        CHECK(strstr(err.text, "live sequence 0") && strstr(err.text, "fill below its computed rows"));
    }
    page_pool_set_fill(w.pool, uncached.pages[1], 2);
    CHECK_EQ(mem_n_alive(), n_alive);
    mem_fail_after(0);
    {
        struct rd_error err;
        CHECK_EQ(check(&w, &err), RD_E_NOMEM);
    }
    mem_fail_after(-1);
    kv_seq_finish(&uncached, false, ++w.now);
    kv_seq_finish(&seq, false, ++w.now);
    kv_seq_deinit(&uncached);
    kv_seq_deinit(&seq);
    CHECK(world_deinit(&w));
}

/* What comes next in the text that was used last: drafts are made of it. */
TEST(what_follows_a_match_is_of_the_branch_that_was_used_last)
{
    struct world w;
    struct radix_match m;
    kv_key keys[8];

    CHECK(world_init(&w, 32, 4, false));
    CHECK(store(&w, first, 10) && store(&w, second, 9));
    m = radix_match(w.cache.tree, w.root[0], first, 3, w.now);
    CHECK_EQ(radix_following(&m, keys, 8), 3); /* within a node: up to its end */
    CHECK(keys[0] == 4 && keys[2] == 6);
    CHECK_EQ(radix_following(&m, keys, 2), 2);
    m = radix_match(w.cache.tree, w.root[0], first, 6, w.now);
    CHECK_EQ(radix_following(&m, keys, 8), 3);
    CHECK(keys[0] == 17 && keys[2] == 19);
    (void)radix_match(w.cache.tree, w.root[0], first, 10, ++w.now);
    m = radix_match(w.cache.tree, w.root[0], first, 6, w.now);
    CHECK_EQ(radix_following(&m, keys, 8), 4);
    CHECK(keys[0] == 7 && keys[3] == 10);
    m = radix_match(w.cache.tree, w.root[0], first, 10, ++w.now);
    CHECK_EQ(radix_following(&m, keys, 8), 0); /* nothing follows */
    CHECK(radix_node_last_use(m.node) == w.now);
    CHECK(world_deinit(&w));
}
