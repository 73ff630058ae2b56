/* tests/kv/test_kv_random.c - everything at once, at random, against a fake page memory: see kv_world.h.
 *
 * The naive model of a sequence is its own list of keys: whatever the cache shares, copies, evicts or hands over,
 * every row that it reads must be the hash of exactly those keys.
 */
#include "base/checked.h"
#include "base/mem.h"
#include "kv_world.h"
#include "sanitized.h"
#include "test.h"

enum { N_SEQS = 14, MAX_KEYS = 72, N_HOLDS = 4 };

struct run {
    struct world w;
    struct kv_seq seqs[N_SEQS];
    bool used[N_SEQS];        /* initialised */
    kv_key old[16][MAX_KEYS]; /* prompts to be repeated and continued */
    uint32_t n_old[16];
    struct {
        struct radix_node *node;
        kv_key keys[MAX_KEYS];
        uint32_t n;
        struct radix_node *root;
    } holds[N_HOLDS];
    uint64_t n_steps, n_poisoned, n_preempted, n_waited, n_uncached, n_short;
    bool bad;
};

#define MUST(run, cond)                                                                                                \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            printf("line %d: %s\n", __LINE__, #cond);                                                                  \
            (run)->bad = true;                                                                                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

static uint32_t below(struct run *r, uint32_t n)
{
    return world_below(&r->w, n);
}

/* Mostly a repeat of an older prompt, cut or continued, so that paths are shared in all ways; 1 .. 48 keys. */
static uint32_t make_prompt(struct run *r, kv_key *keys)
{
    uint32_t slot = below(r, 16), n = 0, want = 1 + below(r, 48);

    uint32_t live = below(r, N_SEQS);
    if (r->used[live] && below(r, 2)) { /* what somebody computes right now */
        n = r->seqs[live].n_keys < want ? r->seqs[live].n_keys : want;
        memcpy(keys, r->seqs[live].keys, n * sizeof(*keys));
        if (n > 0 && below(r, 4) == 0) want = n;
    } else if (below(r, 10) > 0) {
        n = r->n_old[slot] < want ? r->n_old[slot] : want;
        memcpy(keys, r->old[slot], n * sizeof(*keys));
        if (n > 0 && below(r, 3) == 0) want = n; /* ends on the stored path */
    }
    for (; n < want; n++) keys[n] = below(r, 3);
    slot = below(r, 16);
    memcpy(r->old[slot], keys, n * sizeof(*keys));
    r->n_old[slot] = n;
    return n;
}

static void admit(struct run *r, struct kv_seq *seq)
{
    struct radix_node *root = below(r, 12) == 0 ? NULL : r->w.root[below(r, 4) == 0];
    bool no_memory = below(r, 8) == 0;
    uint32_t n_naive = root ? world_naive_match(&r->w, root, seq->keys, seq->n_keys) : 0;
    rd_status st;

    if (no_memory) mem_fail_after(below(r, 3));
    st = kv_seq_admit(seq, root, ++r->w.now);
    mem_fail_after(-1);
    if (st != RD_OK) {
        MUST(r, st == RD_E_NOMEM && no_memory && !seq->live);
        MUST(r, kv_seq_admit(seq, NULL, r->w.now) == RD_OK);
        r->n_uncached++;
        n_naive = 0;
    }
    uint32_t n_take = n_naive < seq->n_keys ? n_naive : seq->n_keys - 1;
    if (seq->state == KV_SEQ_RUNNABLE && seq->node) {
        uint32_t n_reach = n_take;

        if (seq->n_again) { /* what it uses now is still there, and is not what it may be judged by */
            MUST(r, seq->n_again == n_take && seq->n_computed < n_take);
            n_reach = seq->n_computed;
            r->n_short++;
        }
        MUST(r, world_naive_reach(&r->w, seq->node, n_take) == n_reach);
        n_take = n_reach;
    }
    MUST(r, seq->n_hit == n_take);
    MUST(r, seq->state == KV_SEQ_WAITING ? seq->wait_until == n_take : seq->n_computed == n_take);
    r->n_waited += seq->state == KV_SEQ_WAITING;
}

static void start_one(struct run *r)
{
    kv_key keys[MAX_KEYS];
    uint32_t i = below(r, N_SEQS), n = make_prompt(r, keys);

    if (r->used[i]) return;
    MUST(r, kv_seq_init(&r->seqs[i], &r->w.cache, keys, n, MAX_KEYS) == RD_OK);
    r->used[i] = true;
    admit(r, &r->seqs[i]);
}

/* Ends seq; sometimes without memory for what finishing would like to do. What was stored must match at once. */
static void finish(struct run *r, struct kv_seq *seq, bool again)
{
    bool store = seq->state != KV_SEQ_POISONED && below(r, 4) > 0, no_memory = below(r, 6) == 0;
    bool whole = store && !no_memory && seq->cached && seq->state == KV_SEQ_RUNNABLE;
    uint64_t n_failed = radix_counts(r->w.cache.tree).n_insert_failed;
    uint32_t n_computed = seq->n_computed;
    struct radix_node *root = seq->root;

    if (no_memory) mem_fail_from(below(r, 2));
    kv_seq_finish(seq, store, ++r->w.now);
    mem_fail_from(-1);
    kv_seq_finish(seq, store, r->w.now);
    MUST(r, seq->state == KV_SEQ_DONE && !seq->live);
    if (whole && radix_counts(r->w.cache.tree).n_insert_failed == n_failed)
        MUST(r, radix_match(r->w.cache.tree, root, seq->keys, n_computed, r->w.now).n_match == n_computed);
    if (again) {
        r->n_preempted++;
        admit(r, seq);
        return;
    }
    uint32_t slot = below(r, 16); /* its output becomes part of later prompts */
    memcpy(r->old[slot], seq->keys, seq->n_keys * sizeof(kv_key));
    r->n_old[slot] = seq->n_keys;
    kv_seq_deinit(seq);
    r->used[seq - r->seqs] = false;
}

static struct kv_seq *youngest_unreserved(struct run *r)
{
    struct kv_seq *seq = r->w.cache.live_tail;
    while (seq && seq->n_reserved > seq->n_computed) seq = seq->prev;
    return seq;
}

/* Pages for the rows: take, evict, or preempt the youngest that has nothing reserved in this step. */
static bool reserve(struct run *r, struct kv_seq *seq, uint32_t n)
{
    struct page_counts before = page_pool_counts(r->w.pool);
    uint32_t need = kv_seq_pages_needed(seq, n);
    struct window_counts windows = page_pool_window_counts(r->w.pool);
    bool no_window = need > windows.n_free + windows.n_kept;
    rd_status st = kv_seq_reserve(seq, n);

    if (r->w.n_windows && no_window) {
        struct kv_seq *victim = youngest_unreserved(r);

        r->bad = r->bad || st != RD_E_NO_PAGES || seq->n_reserved != seq->n_computed;
        if (victim && victim != seq) finish(r, victim, below(r, 2) == 0);
        return false;
    }
    if (st == RD_OK) return before.n_free - page_pool_n_free(r->w.pool) <= need;
    r->bad = r->bad || st != RD_E_NO_PAGES || need <= before.n_free || seq->n_reserved != seq->n_computed;
    radix_evict(r->w.cache.tree, need - before.n_free);
    if (kv_seq_reserve(seq, n) == RD_OK) return true;
    if (page_pool_counts(r->w.pool).n_ready > 0 && page_pool_n_free(r->w.pool) < need) {
        printf("pages are ready, but eviction does not find them\n");
        r->bad = true;
    }
    struct kv_seq *victim = youngest_unreserved(r);
    if (victim && victim != seq) finish(r, victim, below(r, 2) == 0);
    return false;
}

static void fail_step(struct run *r, struct kv_seq **step, uint32_t n_step)
{
    uint32_t n_bad = 1 + below(r, n_step);

    for (uint32_t i = 0; i < n_bad; i++) {
        kv_seq_poison(step[i]);
        kv_seq_poison(step[i]);
        MUST(r, step[i]->state == KV_SEQ_POISONED);
    }
    for (uint32_t i = n_bad; i < n_step; i++) { /* the rest of the step is good, or was not run */
        if (below(r, 2)) {
            kv_seq_unreserve(step[i]);
            continue;
        }
        world_write(&r->w, step[i]);
        kv_seq_commit(step[i]);
    }
    for (uint32_t i = 0; i < N_SEQS; i++)
        if (r->used[i] && r->seqs[i].state == KV_SEQ_POISONED) {
            r->n_poisoned++;
            finish(r, &r->seqs[i], below(r, 2) == 0);
        }
}

static void step(struct run *r)
{
    struct kv_seq *in_step[N_SEQS];
    uint32_t n_step = 0, first = below(r, N_SEQS);

    for (uint32_t i = 0; i < N_SEQS && !r->bad; i++) {
        struct kv_seq *seq = &r->seqs[(first + i) % N_SEQS];
        if (!r->used[seq - r->seqs] || seq->state != KV_SEQ_RUNNABLE || below(r, 4) == 0) continue;
        if (seq->n_computed == seq->n_keys && (seq->n_keys == seq->n_keys_cap || below(r, 6) == 0)) {
            finish(r, seq, false);
            continue;
        }
        if (seq->n_computed == seq->n_keys) kv_seq_push(seq, below(r, 3));
        uint32_t n_left = seq->n_keys - seq->n_computed, n_max = n_left > 6 && below(r, 8) > 0 ? 6 : n_left;
        if (reserve(r, seq, 1 + below(r, n_max))) in_step[n_step++] = seq;
    }
    if (n_step == 0 || r->bad) return;
    r->n_steps++;
    for (uint32_t i = 0; i < n_step; i++) MUST(r, world_can_read(&r->w, in_step[i]));
    if (below(r, 150) == 0) {
        fail_step(r, in_step, n_step);
        return;
    }
    for (uint32_t i = 0; i < n_step; i++) world_write(&r->w, in_step[i]);
    for (uint32_t i = 0; i < n_step; i++) {
        if (below(r, 20) == 0)
            kv_seq_unreserve(in_step[i]);
        else
            kv_seq_commit(in_step[i]);
    }
}

static void hold_or_unhold(struct run *r)
{
    uint32_t i = below(r, N_HOLDS), n;

    if (r->holds[i].node) {
        n = r->holds[i].n; /* nothing of it went */
        MUST(r, radix_match(r->w.cache.tree, r->holds[i].root, r->holds[i].keys, n, r->w.now).n_ready == n);
        kv_unhold(&r->w.cache, r->holds[i].node);
        r->holds[i].node = NULL;
        return;
    }
    n = make_prompt(r, r->holds[i].keys);
    r->holds[i].root = r->w.root[below(r, 4) == 0];
    if (below(r, 5) == 0) mem_fail_after(0);
    r->holds[i].node = kv_hold(&r->w.cache, r->holds[i].root, r->holds[i].keys, n, ++r->w.now, &r->holds[i].n);
    mem_fail_after(-1);
    MUST(r, r->holds[i].n <= n);
}

static void one_operation(struct run *r)
{
    uint32_t what = below(r, 100), i = below(r, N_SEQS), freed;
    kv_key keys[MAX_KEYS];

    if (what < 34) {
        for (uint32_t n = 1 + below(r, 6); n > 0 && !r->bad; n--) start_one(r); /* bursts share what is pending */
    } else if (what < 70) {
        step(r);
    } else if (what < 80) {
        if (r->used[i]) finish(r, &r->seqs[i], below(r, 3) == 0);
    } else if (what < 86) {
        freed = page_pool_n_free(r->w.pool);
        uint32_t n = radix_evict(r->w.cache.tree, 1 + below(r, 4));
        MUST(r, page_pool_n_free(r->w.pool) == freed + n);
    } else if (what < 90) {
        freed = page_pool_n_free(r->w.pool);
        uint32_t n = radix_expire(r->w.cache.tree, r->w.now - below(r, 50), r->w.now, 1 + below(r, 3));
        MUST(r, page_pool_n_free(r->w.pool) == freed + n);
    } else if (what < 94) {
        hold_or_unhold(r);
    } else if (what < 96) {
        uint32_t n = make_prompt(r, keys);
        struct radix_node *root = r->w.root[below(r, 2)];

        if (below(r, 8) == 0) mem_fail_after(0);
        if (below(r, 2))
            radix_hold_next(r->w.cache.tree, root, keys, n);
        else
            radix_retain(r->w.cache.tree, root, keys, n, below(r, 2) ? RADIX_SHORT : RADIX_DAY);
        mem_fail_after(-1);
    } else if (what < 99) {
        uint32_t n = make_prompt(r, keys);
        struct radix_node *root = r->w.root[below(r, 2)];
        MUST(r,
             radix_match(r->w.cache.tree, root, keys, n, r->w.now).n_match == world_naive_match(&r->w, root, keys, n));
    } else if (below(r, 10) == 0) {
        radix_clear(r->w.cache.tree, below(r, 2) ? r->w.root[below(r, 2)] : NULL);
    }
}

/* n_windows 0: none. */
static void run_world_with(uint32_t n_pages, uint32_t page_tokens, bool constant_hash, uint32_t n_windows,
                           uint32_t window, uint32_t n_operations)
{
    static struct run r;
    uint64_t n_alive = mem_n_alive();

    memset(&r, 0, sizeof(r));
    if (n_windows)
        CHECK(world_init_windows(&r.w, n_pages, page_tokens, n_windows, window));
    else
        CHECK(world_init(&r.w, n_pages, page_tokens, constant_hash));
    for (uint32_t i = 0; i < n_operations; i++) {
        one_operation(&r);
        if (r.bad || !world_ok(&r.w) || (i % 16 == 0 && !world_tree_reads(&r.w))) {
            test_fail(__FILE__, __LINE__, "operation %u of a pool of %u pages of %u", i, n_pages, page_tokens);
            return;
        }
    }
    for (uint32_t i = 0; i < N_SEQS; i++)
        if (r.used[i]) finish(&r, &r.seqs[i], false);
    for (uint32_t i = 0; i < N_HOLDS; i++)
        if (r.holds[i].node) kv_unhold(&r.w.cache, r.holds[i].node);
    CHECK(!r.bad && world_ok(&r.w));
    radix_clear(r.w.cache.tree, NULL);
    CHECK_EQ(radix_counts(r.w.cache.tree).n_nodes, 0); /* no lock was left behind */
    CHECK_EQ(page_pool_n_free(r.w.pool), n_pages);
    struct radix_counts n = radix_counts(r.w.cache.tree);
    test_note("%u pages of %u: %llu steps, %llu waited, %llu handed over, %llu poisoned, %llu preempted, "
              "%llu uncached, %llu splits, %llu evicted, %llu inserts failed, %llu rows copied",
              n_pages, page_tokens, (unsigned long long)r.n_steps, (unsigned long long)r.n_waited,
              (unsigned long long)r.w.cache.n_owner_handed_over, (unsigned long long)r.n_poisoned,
              (unsigned long long)r.n_preempted, (unsigned long long)r.n_uncached, (unsigned long long)n.n_splits,
              (unsigned long long)n.n_pages_evicted, (unsigned long long)n.n_insert_failed,
              (unsigned long long)r.w.cache.n_rows_copied);
    if (n_windows) {
        struct window_counts c = page_pool_window_counts(r.w.pool);

        CHECK_EQ(c.n_free, n_windows);
        CHECK((r.n_short > 0) == (n_windows < n_pages));
        test_note("%u windows, %u tokens of each row seen: %llu gave way; %llu matches cut short by %llu tokens",
                  n_windows, window, (unsigned long long)c.n_dropped, (unsigned long long)r.w.cache.n_cut_short,
                  (unsigned long long)r.w.cache.n_cut_tokens);
    }
    CHECK(world_deinit(&r.w));
    CHECK_EQ(mem_n_alive(), n_alive);
}

static void run_world(uint32_t n_pages, uint32_t page_tokens, bool constant_hash, uint32_t n_operations)
{
    run_world_with(n_pages, page_tokens, constant_hash, 0, 0, n_operations);
}

/* RADISH_KV_OPS: so many (tools/mutate asks for fewer). */
static uint32_t n_ops(void)
{
    const char *s = getenv("RADISH_KV_OPS");
    uint64_t n;

    if (s && parse_u64(s, strlen(s), &n) && n > 0 && n <= UINT32_MAX) return (uint32_t)n;
    return test_is_long() ? 3000000u : IS_SANITIZED ? 30000u : 100000u;
}

TEST(random_run_with_pages_of_4)
{
    run_world(90, 4, false, n_ops());
}
TEST(random_run_with_pages_of_1)
{
    run_world(300, 1, false, n_ops() / 2);
}
TEST(random_run_with_pages_of_16)
{
    run_world(40, 16, false, n_ops());
}
TEST(random_run_with_a_tiny_pool)
{
    run_world(19, 4, false, n_ops());
}
TEST(random_run_with_a_constant_hash)
{
    run_world(90, 4, true, n_ops() / 2);
}
TEST(random_run_with_windows_of_10)
{
    run_world_with(90, 4, false, 40, 10, n_ops());
}
TEST(random_run_with_windows_in_pages_of_1)
{
    run_world_with(300, 1, false, 90, 5, n_ops() / 2);
}
TEST(random_run_with_windows_of_a_token)
{
    run_world_with(90, 4, false, 24, 1, n_ops() / 2);
}
TEST(random_run_with_few_windows)
{
    run_world_with(60, 4, false, 12, 9, n_ops());
}
TEST(random_run_with_windows_of_pages_of_16)
{
    run_world_with(40, 16, false, 10, 20, n_ops() / 2);
}
TEST(random_run_with_a_window_for_every_page)
{
    run_world_with(50, 4, false, 50, 64, n_ops() / 2);
}
