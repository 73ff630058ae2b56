/* tests/kv/test_claim.c - whose nodes are, and that a drop takes what is one user's alone. */
#include "base/mem.h"
#include "kv_world.h"
#include "test.h"

enum { PAGE = 16, A = 1, B = 2 };

static void store(struct world *w, const kv_key *keys, uint32_t n)
{
    struct kv_seq seq;

    w->now += 1000000000ull;
    CHECK_OK(kv_seq_init(&seq, &w->cache, keys, n, n));
    CHECK_OK(kv_seq_admit(&seq, w->root[0], w->now));
    while (seq.n_computed < n) CHECK_OK(world_compute(w, &seq, n - seq.n_computed));
    kv_seq_finish(&seq, true, w->now);
    kv_seq_deinit(&seq);
}

static void claim(struct world *w, const kv_key *keys, uint32_t n, uint64_t who)
{
    radix_claim(w->cache.tree, w->root[0], keys, n, &(struct radix_claim){.who = who});
}

static uint32_t stored(struct world *w, const kv_key *keys, uint32_t n)
{
    return radix_match(w->cache.tree, w->root[0], keys, n, w->now).n_match;
}

static uint32_t n_common(struct world *w, const kv_key *keys, uint32_t n, uint64_t who)
{
    uint32_t n_stored;

    return radix_n_common(w->cache.tree, w->root[0], keys, n, who, &n_stored);
}

/* The first n_same keys as every text has them, the rest its own. */
static void fill(kv_key *keys, uint32_t n_same, uint32_t n, uint32_t text)
{
    for (uint32_t i = 0; i < n; i++) keys[i] = i < n_same ? i : text * 4096 + i;
}

TEST(a_drop_takes_what_is_one_users_alone)
{
    struct world w;
    kv_key a[100], b[100], c[100];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(a, 40, 100, 1);
    fill(b, 40, 90, 2);
    fill(c, 70, 100, 1);
    for (uint32_t i = 70; i < 100; i++) c[i] = 9 * 4096 + i;
    memcpy(c, a, 70 * sizeof(*c)); /* goes on from the middle of a */
    store(&w, a, 100);
    claim(&w, a, 100, A);
    CHECK_EQ(n_common(&w, a, 100, A), 0);
    store(&w, b, 90);
    claim(&w, b, 90, B);
    CHECK_EQ(n_common(&w, a, 100, A), 40);
    CHECK_EQ(n_common(&w, b, 90, B), 40);
    store(&w, c, 100);
    claim(&w, c, 100, RADIX_COMMON); /* somebody without a name */
    CHECK_EQ(n_common(&w, a, 100, A), 70);
    CHECK(world_ok(&w));
    CHECK(radix_drop_claim(w.cache.tree, w.root[0], a, 100, A) > 0);
    CHECK_EQ(stored(&w, a, 100), 70);
    CHECK_EQ(stored(&w, b, 90), 90);
    CHECK_EQ(stored(&w, c, 100), 100);
    CHECK_EQ(radix_drop_claim(w.cache.tree, w.root[0], a, 100, A), 0); /* there is no more of it */
    CHECK(radix_drop_claim(w.cache.tree, w.root[0], b, 90, B) > 0);
    CHECK_EQ(stored(&w, b, 90), 40);
    CHECK_EQ(stored(&w, c, 100), 100);
    CHECK(world_ok(&w));
    radix_clear(w.cache.tree, NULL);
    CHECK(world_deinit(&w));
}

TEST(what_goes_on_from_it_goes_too_unless_it_is_in_use)
{
    struct world w;
    kv_key a[120];
    struct radix_node *held;

    CHECK(world_init(&w, 64, PAGE, false));
    fill(a, 0, 120, 1);
    store(&w, a, 50);
    claim(&w, a, 50, A);
    store(&w, a, 120);
    claim(&w, a, 120, A);
    held = radix_match(w.cache.tree, w.root[0], a, 50, w.now).node;
    radix_lock(w.cache.tree, held);
    CHECK_EQ(radix_drop_claim(w.cache.tree, w.root[0], a, 50, A),
             4);                      /* of 8 pages; the locked part ends in the fourth */
    CHECK_EQ(stored(&w, a, 120), 50); /* locked, and no further */
    CHECK_EQ(radix_drop_claim(w.cache.tree, w.root[0], a, 50, A), 0);
    radix_unlock(w.cache.tree, held);
    CHECK_EQ(radix_drop_claim(w.cache.tree, w.root[0], a, 50, A), 4);
    CHECK_EQ(stored(&w, a, 120), 0);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

/* After a restart the tree knows nothing of who shared what: the user remembers. */
TEST(a_beginning_that_is_said_to_be_common_stays)
{
    struct world w;
    kv_key a[100];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(a, 0, 100, 1);
    store(&w, a, 100);
    radix_claim(w.cache.tree, w.root[0], a, 100, &(struct radix_claim){.who = A, .n_common = 1});
    CHECK_EQ(n_common(&w, a, 100, A), 1);
    radix_claim(w.cache.tree, w.root[0], a, 100, &(struct radix_claim){.who = A, .n_common = 37});
    CHECK_EQ(n_common(&w, a, 100, A), 37);
    CHECK(radix_drop_claim(w.cache.tree, w.root[0], a, 100, A) > 0);
    CHECK_EQ(stored(&w, a, 100), 37);
    CHECK(world_ok(&w));
    radix_clear(w.cache.tree, NULL);
    CHECK(world_deinit(&w));
}

struct told {
    uint64_t was;
    uint32_t n, n_calls;
};

static void note(void *arg, uint64_t was, const kv_key *keys, uint32_t n)
{
    struct told *t = arg;

    (void)keys;
    t->was = was;
    if (n > t->n) t->n = n;
    t->n_calls++;
}

TEST(who_loses_a_part_is_told_once)
{
    struct world w;
    kv_key a[100], b[100];
    struct told t = {0};
    const struct radix_claim c = {.who = B, .shared = note, .arg = &t};

    CHECK(world_init(&w, 64, PAGE, false));
    fill(a, 60, 100, 1);
    fill(b, 60, 100, 2);
    store(&w, a, 100);
    claim(&w, a, 100, A);
    store(&w, b, 100);
    radix_claim(w.cache.tree, w.root[0], b, 100, &c);
    CHECK_EQ(t.was, A);
    CHECK_EQ(t.n, 60);
    CHECK_EQ(t.n_calls, 1);
    radix_claim(w.cache.tree, w.root[0], b, 100, &c);
    CHECK_EQ(t.n_calls, 1);
    radix_clear(w.cache.tree, NULL);
    CHECK(world_deinit(&w));
}

/* Without memory for a split less is claimed, and nothing breaks. */
TEST(a_split_without_memory_claims_less)
{
    struct world w;
    kv_key a[100];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(a, 0, 100, 1);
    store(&w, a, 100);
    mem_fail_after(0);
    claim(&w, a, 60, A);
    mem_fail_after(-1);
    CHECK_EQ(radix_drop_claim(w.cache.tree, w.root[0], a, 60, A), 0);
    CHECK(world_ok(&w));
    radix_clear(w.cache.tree, NULL);
    CHECK(world_deinit(&w));
}
