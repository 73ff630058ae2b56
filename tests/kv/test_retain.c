/* tests/kv/test_retain.c - what is kept longest, and that nothing is kept for ever. */
#include "base/mem.h"
#include "kv_world.h"
#include "test.h"

#define SECOND 1000000000ull
enum { PAGE = 16 };

/* A request at this second: what it finds; then all of it is stored. */
static uint32_t ask(struct world *w, const kv_key *keys, uint32_t n)
{
    struct kv_seq seq;
    uint32_t n_match;

    w->now += SECOND;
    if (kv_seq_init(&seq, &w->cache, keys, n, n) != RD_OK) return 0;
    if (kv_seq_admit(&seq, w->root[0], w->now) != RD_OK) return 0;
    n_match = seq.n_match;
    while (seq.n_computed < n) {
        uint32_t need;

        if (world_compute(w, &seq, n - seq.n_computed) == RD_OK) continue;
        need = kv_seq_pages_needed(&seq, n - seq.n_computed) - page_pool_n_free(w->pool);
        if (radix_evict(w->cache.tree, need) == 0) break;
    }
    kv_seq_finish(&seq, true, w->now);
    kv_seq_deinit(&seq);
    return n_match;
}

static void fill(kv_key *keys, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++) keys[i] = seed * 4096 + i;
}

static uint32_t stored(struct world *w, const kv_key *keys, uint32_t n)
{
    struct radix_match m = radix_match(w->cache.tree, w->root[0], keys, n, w->now);

    return m.n_match;
}

static struct radix_node *node_at(struct world *w, const kv_key *keys, uint32_t n)
{
    return radix_match(w->cache.tree, w->root[0], keys, n, w->now).node;
}

/* Prompts of n keys that nobody asks for again, each in a second. */
static void flood(struct world *w, uint32_t n_prompts, uint32_t n)
{
    static uint32_t seed = 1000;
    kv_key keys[256];

    for (uint32_t i = 0; i < n_prompts; i++) {
        fill(keys, n, seed++);
        ask(w, keys, n);
    }
}

static uint32_t n_in_class(const struct world *w, enum radix_class class)
{
    return (uint32_t)radix_counts(w->cache.tree).class_keys[class];
}

/* The history grows to three quarters of the budget, and every turn leaves a branch behind that is never used again,
 * as thinking does: several budgets in all. */
TEST(a_long_chat_leaves_prompts_that_are_often_used)
{
    enum { N = 10, PROMPT = 20, PAGES = 256, TURNS = 192 };
    struct world w;
    kv_key prompts[N][PROMPT + 4], chat[PAGES * PAGE], branch[PAGES * PAGE];
    uint32_t n_chat = 0, n_lost = 0;

    CHECK(world_init(&w, PAGES, PAGE, false));
    for (uint32_t i = 0; i < N; i++) fill(prompts[i], PROMPT + 4, i);
    for (uint32_t round = 0; round < 3; round++) /* three users each */
        for (uint32_t i = 0; i < N; i++) {
            for (uint32_t k = PROMPT; k < PROMPT + 4; k++) prompts[i][k] = 100000 + w.now / SECOND % 1000;
            ask(&w, prompts[i], PROMPT + 4);
        }
    fill(chat, PAGES * PAGE, 77);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        n_chat += PAGE;
        memcpy(branch, chat, n_chat * sizeof(*chat));
        fill(branch + n_chat, 3 * PAGE, 100 + turn);
        ask(&w, branch, n_chat + 3 * PAGE);
        if (turn % 4 == 0) {
            uint32_t i = turn / 4 % N; /* each one about every eighty seconds */
            for (uint32_t k = PROMPT; k < PROMPT + 4; k++) prompts[i][k] = 200000 + turn;
            n_lost += ask(&w, prompts[i], PROMPT + 4) < PROMPT;
        }
        CHECK(world_ok(&w));
    }
    CHECK_EQ(n_lost, 0);
    CHECK(radix_counts(w.cache.tree).n_pages_evicted > PAGES);
    CHECK(world_tree_reads(&w));
    CHECK(world_deinit(&w));
}

TEST(what_is_marked_outlives_what_is_not_until_its_time_is_over)
{
    struct world w;
    kv_key marked[64], plain[64];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(marked, 64, 1);
    fill(plain, 64, 2);
    ask(&w, marked, 64);
    ask(&w, plain, 64);
    radix_retain(w.cache.tree, w.root[0], marked, 64, RADIX_SHORT);
    flood(&w, 40, 64);
    CHECK_EQ(stored(&w, plain, 64), 0);
    CHECK_EQ(stored(&w, marked, 64), 64); /* and used: its time begins anew */
    w.now += 301 * SECOND;
    flood(&w, 1, 64);
    ask(&w, plain, 64);
    flood(&w, 15, 64);
    CHECK_EQ(stored(&w, marked, 64), 0);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(no_class_keeps_more_than_its_share)
{
    enum { N = 24 };
    struct world w;
    kv_key keys[N][64];
    uint32_t n = 0;

    CHECK(world_init(&w, 128, PAGE, false)); /* 2,048 tokens: a class keeps 256 */
    for (uint32_t i = 0; i < N; i++) {
        fill(keys[i], 64, i);
        ask(&w, keys[i], 64);
        radix_retain(w.cache.tree, w.root[0], keys[i], 64, RADIX_DAY);
    }
    CHECK_EQ(n_in_class(&w, RADIX_DAY), N * 64);
    flood(&w, 100, 64);
    for (uint32_t i = 0; i < N; i++) n += stored(&w, keys[i], 64) == 64;
    CHECK_EQ(n, 3); /* a node counts a page beside its keys: 80 each */
    for (uint32_t i = N - 3; i < N; i++) CHECK_EQ(stored(&w, keys[i], 64), 64); /* the latest */
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

/* One text of so many keys of a class beside 2,560 keys that come after it, in a pool of 1,024. */
static bool outlives_a_flood(enum radix_class class, uint32_t n)
{
    struct world w;
    kv_key keys[256];
    bool stays;

    if (!world_init(&w, 64, PAGE, false)) return false;
    w.now = 100000 * SECOND; /* longer ago than any class lasts */
    fill(keys, n, 1);
    ask(&w, keys, n);
    if (class == RADIX_HELD)
        radix_hold_next(w.cache.tree, w.root[0], keys, n);
    else
        radix_retain(w.cache.tree, w.root[0], keys, n, class);
    flood(&w, 40, 64);
    stays = stored(&w, keys, n) == n;
    return world_ok(&w) && world_deinit(&w) && stays;
}

TEST(a_class_keeps_exactly_its_share)
{
    const enum radix_class an_eighth[] = {RADIX_SHORT, RADIX_LONG, RADIX_DAY};

    for (uint32_t i = 0; i < 3; i++) { /* and a page that each node counts */
        CHECK(outlives_a_flood(an_eighth[i], 128 - PAGE));
        CHECK(!outlives_a_flood(an_eighth[i], 128 - PAGE + 1));
    }
    CHECK(outlives_a_flood(RADIX_HELD, 256 - PAGE));
    CHECK(!outlives_a_flood(RADIX_HELD, 256 - PAGE + 1));
}

/* Two texts, the one of a class: does it lose its last page first when the other one was used so much later? */
static bool goes_first(enum radix_class class, uint64_t later_ns)
{
    struct world w;
    kv_key kept[64], plain[64];
    bool first;

    if (!world_init(&w, 64, PAGE, false)) return false;
    fill(kept, 64, 1), fill(plain, 64, 2);
    w.now = 100000 * SECOND;
    ask(&w, plain, 64), ask(&w, kept, 64);
    if (class == RADIX_HELD)
        radix_hold_next(w.cache.tree, w.root[0], kept, 64);
    else
        radix_retain(w.cache.tree, w.root[0], kept, 64, class);
    w.now += later_ns;
    first = stored(&w, plain, 64) == 64 && radix_evict(w.cache.tree, 1) == 1 && stored(&w, plain, 64) == 64;
    return world_ok(&w) && world_deinit(&w) && first;
}

/* What a text costs to compute again decides among plain ones alone. */
TEST(of_what_is_kept_the_least_recently_used_goes_first_whatever_it_cost)
{
    struct world w;
    kv_key deep[2048], flat[32];

    CHECK(world_init(&w, 256, PAGE, false));
    fill(deep, 2048, 1), fill(flat, 32, 2);
    ask(&w, deep, 2048);
    radix_retain(w.cache.tree, w.root[0], deep, 2048, RADIX_SHORT);
    ask(&w, flat, 32);
    radix_retain(w.cache.tree, w.root[0], flat, 32, RADIX_SHORT);
    w.now += 100 * SECOND;
    stored(&w, (const kv_key[]){9}, 1); /* tells the tree the time */
    CHECK_EQ(radix_evict(w.cache.tree, 1), 1);
    CHECK_EQ(stored(&w, flat, 32), 32);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(a_class_counts_for_exactly_its_time)
{
    const struct {
        enum radix_class class;
        uint64_t s;
    } all[] = {{RADIX_SHORT, 300}, {RADIX_HELD, 300}, {RADIX_LONG, 3600}, {RADIX_DAY, 86400}};

    for (uint32_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        CHECK(!goes_first(all[i].class, all[i].s * SECOND - 1));
        CHECK(goes_first(all[i].class, all[i].s * SECOND));
        CHECK_EQ(radix_class_period_ns(all[i].class), all[i].s * SECOND);
    }
    CHECK_EQ(radix_class_period_ns(RADIX_SHARED), 300 * SECOND);
}

TEST(where_everything_is_marked_the_least_recently_used_goes_as_ever)
{
    enum { N = 40, PAGES = 64 };
    struct world w;
    kv_key keys[N][64];

    CHECK(world_init(&w, PAGES, PAGE, false));
    for (uint32_t i = 0; i < N; i++) {
        fill(keys[i], 64, i);
        ask(&w, keys[i], 64);
        radix_retain(w.cache.tree, w.root[0], keys[i], 64, RADIX_SHORT);
    }
    for (uint32_t i = 0; i < N - PAGES / 4; i++) CHECK_EQ(stored(&w, keys[i], 64), 0);
    for (uint32_t i = N - PAGES / 4; i < N; i++) CHECK_EQ(stored(&w, keys[i], 64), 64);
    CHECK_EQ(radix_evict(w.cache.tree, PAGES), PAGES); /* nothing is stuck */
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 0);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(all_classes_together_leave_a_quarter_to_everybody)
{
    struct world w;
    kv_key keys[64];

    CHECK(world_init(&w, 128, PAGE, false));
    for (uint32_t i = 0; i < 60; i++) {
        fill(keys, 64, i);
        ask(&w, keys, 64);
        if (i % 4 == 3)
            radix_hold_next(w.cache.tree, w.root[0], keys, 64);
        else
            radix_retain(w.cache.tree, w.root[0], keys, 64,
                         i % 4 == 0   ? RADIX_SHORT
                         : i % 4 == 1 ? RADIX_LONG
                                      : RADIX_DAY);
    }
    flood(&w, 50, 64);
    CHECK(n_in_class(&w, RADIX_PLAIN) >= 128 * PAGE / 4);
    CHECK(n_in_class(&w, RADIX_HELD) <= 128 * PAGE / 4 && n_in_class(&w, RADIX_HELD) >= 128 * PAGE / 8);
    CHECK(n_in_class(&w, RADIX_DAY) <= 128 * PAGE / 8 && n_in_class(&w, RADIX_DAY) >= 128 * PAGE / 16);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(a_chat_is_held_while_a_tool_runs_and_no_longer)
{
    struct world w;
    kv_key chat[96], other[96];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(chat, 96, 1);
    fill(other, 96, 2);
    ask(&w, chat, 64);
    ask(&w, other, 64);
    radix_hold_next(w.cache.tree, w.root[0], chat, 64);
    radix_hold_next(w.cache.tree, w.root[0], other, 64);
    CHECK_EQ(radix_node_class(node_at(&w, chat, 64)), RADIX_HELD);
    flood(&w, 30, 64);
    CHECK_EQ(ask(&w, chat, 96), 64); /* the tool's result */
    CHECK_EQ(radix_node_class(node_at(&w, chat, 64)), RADIX_PLAIN);
    CHECK_EQ(radix_node_class(node_at(&w, other, 64)), RADIX_HELD);
    flood(&w, 30, 64);
    CHECK_EQ(stored(&w, chat, 96), 0);
    w.now += 300 * SECOND; /* a client that never came back */
    flood(&w, 16, 64);
    CHECK_EQ(stored(&w, other, 64), 0);
    CHECK_EQ(n_in_class(&w, RADIX_HELD), 0);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(both_parts_of_what_is_kept_are_kept_when_it_is_split)
{
    struct world w;
    kv_key held[64], marked[64], shared[64];

    CHECK(world_init(&w, 128, PAGE, false));
    fill(held, 64, 1), fill(marked, 64, 2), fill(shared, 64, 3);
    ask(&w, held, 64), ask(&w, marked, 64);
    radix_hold_next(w.cache.tree, w.root[0], held, 64);
    radix_retain(w.cache.tree, w.root[0], held, 32, RADIX_SHORT); /* a hold is worth more */
    radix_retain(w.cache.tree, w.root[0], marked, 64, RADIX_LONG);
    fill(marked + 32, 32, 4);
    ask(&w, marked, 64);
    for (uint32_t i = 0; i < 3; i++) {
        fill(shared + 32, 32, 10 + i);
        ask(&w, shared, 64);
    }
    fill(shared + 16, 48, 20);
    ask(&w, shared, 64);
    CHECK_EQ(n_in_class(&w, RADIX_HELD), 64);
    CHECK_EQ(n_in_class(&w, RADIX_LONG), 64);
    CHECK_EQ(n_in_class(&w, RADIX_SHARED), 32);
    CHECK_EQ(radix_counts(w.cache.tree).n_splits, 4);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

/* top is held again by another chat, and between it and the chat that goes on lies a part that is not. */
TEST(a_chat_that_goes_on_lets_go_of_no_hold_above_a_part_that_had_none)
{
    struct world w;
    kv_key chat[80], fork[64], other[64];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(chat, 80, 1);
    memcpy(fork, chat, sizeof(fork)), fill(fork + 32, 32, 2);
    memcpy(other, chat, sizeof(other)), fill(other + 16, 48, 3);
    ask(&w, chat, 64);
    radix_hold_next(w.cache.tree, w.root[0], chat, 64);
    ask(&w, fork, 64); /* takes back the hold of what it goes on from */
    CHECK_EQ(radix_node_class(node_at(&w, chat, 32)), RADIX_PLAIN);
    CHECK_EQ(radix_node_class(node_at(&w, chat, 64)), RADIX_HELD);
    ask(&w, other, 64);
    radix_hold_next(w.cache.tree, w.root[0], other, 64);
    CHECK_EQ(radix_node_class(node_at(&w, chat, 32)), RADIX_PLAIN);
    ask(&w, chat, 80);
    CHECK_EQ(radix_node_class(node_at(&w, chat, 64)), RADIX_PLAIN);
    CHECK_EQ(radix_node_class(node_at(&w, chat, 16)), RADIX_HELD);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(classes_with_a_long_time_outlive_the_ttl)
{
    struct world w;
    kv_key a[32], b[32], c[32];
    uint64_t ttl = 1800 * SECOND;

    CHECK(world_init(&w, 64, PAGE, false));
    fill(a, 32, 1), fill(b, 32, 2), fill(c, 32, 3);
    w.now = 100000 * SECOND;
    ask(&w, a, 32), ask(&w, b, 32), ask(&w, c, 32);
    radix_retain(w.cache.tree, w.root[0], b, 32, RADIX_LONG);
    radix_hold_next(w.cache.tree, w.root[0], c, 32);
    w.now += ttl + 10 * SECOND;
    CHECK_EQ(radix_expire(w.cache.tree, w.now - ttl, w.now, 100), 4); /* a and c: 5 minutes are over, too */
    CHECK_EQ(radix_expire(w.cache.tree, w.now + ttl - ttl, w.now + ttl, 100), 2);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 0);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(no_more_is_kept_than_was_asked_for)
{
    struct world w;
    kv_key keys[64], longer[100];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(keys, 64, 1);
    ask(&w, keys, 64);
    radix_retain(w.cache.tree, w.root[0], keys, 20, RADIX_LONG);
    CHECK_EQ(n_in_class(&w, RADIX_LONG), 20);
    CHECK_EQ(n_in_class(&w, RADIX_PLAIN), 44);
    radix_retain(w.cache.tree, w.root[0], keys, 40, RADIX_SHORT);
    CHECK_EQ(n_in_class(&w, RADIX_LONG), 20); /* the longer time stays */
    CHECK_EQ(n_in_class(&w, RADIX_SHORT), 20);
    memcpy(longer, keys, sizeof(keys));
    fill(longer + 64, 36, 9);
    radix_retain(w.cache.tree, w.root[0], longer, 100, RADIX_DAY); /* what is not stored cannot be kept */
    CHECK_EQ(n_in_class(&w, RADIX_DAY), 64);
    fill(keys, 64, 5);
    radix_retain(w.cache.tree, w.root[0], keys, 64, RADIX_DAY);
    radix_hold_next(w.cache.tree, w.root[0], keys, 64);
    CHECK_EQ(radix_counts(w.cache.tree).n_keys, 64);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(a_prefix_that_many_go_on_from_is_shared_with_all_above_it)
{
    struct world w;
    kv_key keys[48];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(keys, 48, 1);
    for (uint32_t i = 0; i < 3; i++) {
        fill(keys + 32, 16, 10 + i);
        ask(&w, keys, 48);
        CHECK_EQ(n_in_class(&w, RADIX_SHARED), i < 2 ? 0 : 32);
    }
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

TEST(a_prefix_of_one_page_is_shared_and_a_shorter_one_is_not)
{
    for (uint32_t n = PAGE - 1; n <= PAGE; n++) {
        struct world w;
        kv_key keys[48];

        CHECK(world_init(&w, 64, PAGE, false));
        fill(keys, 48, 1);
        for (uint32_t i = 0; i < 3; i++) {
            fill(keys + n, 48 - n, 10 + i);
            ask(&w, keys, 48);
        }
        CHECK_EQ(n_in_class(&w, RADIX_SHARED), n < PAGE ? 0 : PAGE);
        CHECK(world_ok(&w));
        CHECK(world_deinit(&w));
    }
}

TEST(without_memory_less_is_kept_and_nothing_breaks)
{
    struct world w;
    kv_key keys[64];

    CHECK(world_init(&w, 64, PAGE, false));
    fill(keys, 64, 1);
    ask(&w, keys, 64);
    mem_fail_after(0);
    radix_retain(w.cache.tree, w.root[0], keys, 20, RADIX_LONG);
    mem_fail_after(-1);
    CHECK_EQ(n_in_class(&w, RADIX_LONG), 0);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}

/* Equal in age, the deep one stays: its tokens attend to more. */
TEST(of_leaves_of_about_one_age_the_dearest_goes_last)
{
    struct world w;
    kv_key deep[2048], flat[32];

    CHECK(world_init(&w, 256, PAGE, false));
    fill(deep, 2048, 1);
    fill(flat, 32, 2);
    ask(&w, deep, 2048);
    ask(&w, flat, 32); /* a second younger */
    w.now += 100 * SECOND;
    stored(&w, (const kv_key[]){9}, 1); /* tells the tree the time */
    CHECK_EQ(radix_evict(w.cache.tree, 1), 1);
    CHECK_EQ(stored(&w, deep, 2048), 2048);
    CHECK_EQ(stored(&w, flat, 32), 16); /* both are used at this moment now */
    CHECK_EQ(radix_evict(w.cache.tree, 1), 1);
    CHECK_EQ(stored(&w, deep, 2048), 2048);
    CHECK_EQ(stored(&w, flat, 32), 0);
    CHECK(world_ok(&w));
    CHECK(world_deinit(&w));
}
