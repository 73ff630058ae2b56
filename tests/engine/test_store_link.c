/* tests/engine/test_store_link.c - pages go to the page store and come back into the tree, over the simulated model. The
 * store works when the test says so. tests/sim mixes this with everything else at random. */
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/tiers/store_link_state.h"
#include "sim_rig.h"
#include "sim_store.h"

#define P   8u
#define CAP (8u << 20)

struct rig {
    struct sim_executor x;
    struct sim_store store;
    struct engine *e;
    struct clock *clock;
    uint32_t n_pages;
    bool threads;
};

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

/* A process begins: a new engine, an empty tree, the folder as it is. */
static bool rig_start(struct rig *g)
{
    struct engine_options o = {0};

    if (!sim_init(&g->x, g->n_pages, P, test_seed())) return false;
    o = sim_options(sim_view(&g->x, 64, 8), g->clock, g->n_pages, P);
    if (!sim_store_open(&g->store, P, o.executor.page_bytes, CAP, g->clock, g->threads)) return false;
    o.store = g->store.link;
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

static void rig_stop(struct rig *g)
{
    engine_destroy(g->e);
    sim_store_close(&g->store);
    CHECK_EQ(g->x.n_wrong_rows, 0);
    sim_deinit(&g->x);
    g->e = NULL;
}

static bool rig_open(struct rig *g, uint32_t n_pages)
{
    memset(g, 0, sizeof(*g));
    log_set_sink(ignore_line, NULL);
    g->n_pages = n_pages;
    g->clock = clock_fake_create(1000000000, clock_wall_s(clock_system()));
    return sim_store_init(&g->store) && rig_start(g);
}

static void rig_close(struct rig *g)
{
    if (g->e) rig_stop(g);
    sim_store_deinit(&g->store);
    clock_fake_destroy(g->clock);
}

static struct request *submit(struct rig *g, const int32_t *prompt, uint32_t n, uint32_t max_tokens, uint64_t salt)
{
    struct request_params p = sim_params(max_tokens, salt);

    return sim_submit(g->e, &p, prompt, n);
}

static bool has_right_text(struct request *r, const int32_t *prompt, uint32_t n, uint32_t max_tokens, uint64_t salt)
{
    struct token_logprob top[20];
    struct token_out out;
    int32_t want[64];
    uint64_t digest = salt;
    uint32_t n_want, n_got = 0;
    bool same = true, was_full;

    for (uint32_t i = 0; i < n; i++) digest = sim_digest(digest, (uint32_t)prompt[i]);
    n_want = sim_greedy(digest, max_tokens, want);
    while (request_pop(r, &out, top, &was_full)) {
        same = same && n_got < n_want && out.token == want[n_got];
        n_got++;
    }
    return same && n_got == n_want;
}

/* Runs one request to its end while the store works after every step. */
static struct request_usage run(struct rig *g, uint64_t text, uint32_t n, uint64_t salt)
{
    static int32_t prompt[2048];
    struct request_usage usage = {0};
    struct request *r;

    sim_prompt(prompt, n, text);
    r = submit(g, prompt, n, 2, salt);
    if (!r) return usage;
    while (!atomic_load(&r->ended)) {
        sim_step(g->e);
        if (g->threads)
            clock_sleep_ns(1000000);
        else
            store_link_work(g->store.link);
    }
    if (r->finish == REQUEST_ERROR || !has_right_text(r, prompt, n, 2, salt))
        test_fail(__FILE__, __LINE__, "a request of %u tokens ended with %s or the wrong text", n,
                  rd_status_name(r->status));
    usage = r->usage;
    request_unref(r);
    if (!g->threads) store_link_work(g->store.link);
    return usage;
}

static struct engine_stats stats(const struct rig *g)
{
    struct engine_stats s;

    engine_get_stats(g->e, &s);
    return s;
}

TEST(a_prompt_survives_a_restart)
{
    struct rig g;
    struct request_usage u;

    CHECK(rig_open(&g, 64));
    u = run(&g, 1, 100, 0);
    CHECK_EQ(u.n_cached, 0);
    rig_stop(&g);
    CHECK(rig_start(&g));
    u = run(&g, 1, 100, 0);
    CHECK_EQ(u.n_cached, 100);
    CHECK_EQ(u.n_disk, 100);
    CHECK_EQ(stats(&g).prompt_disk, 100);
    u = run(&g, 1, 100, 0); /* from the tree now */
    CHECK_EQ(u.n_cached, 100);
    CHECK_EQ(u.n_disk, 0);
    CHECK_EQ(stats(&g).disk_loads, 1);
    rig_close(&g);
}

/* The last, partial page and the hidden state come back too: only the head is computed. */
TEST(after_a_restart_an_equal_prompt_computes_nothing)
{
    static const uint32_t lengths[] = {1, 5, P, P + 1, 3 * P - 1, 3 * P, 100};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint32_t n = lengths[i];
        struct rig g;
        struct request_usage u;

        CHECK(rig_open(&g, 64));
        (void)run(&g, 1, n, 3);
        rig_stop(&g);
        CHECK(rig_start(&g));
        CHECK_EQ(run(&g, 1, n, 4).n_cached, 0); /* not what is somebody else's */
        CHECK_EQ(g.x.n_heads, 0);
        u = run(&g, 1, n, 3);
        CHECK_EQ(u.n_cached, n);
        CHECK_EQ(u.n_disk, n);
        CHECK_EQ(g.x.n_heads, 1);
        rig_close(&g);
    }
}

TEST(a_conversation_goes_on_at_the_end_of_its_answer_after_a_restart)
{
    struct rig g;
    struct request *r;
    int32_t prompt[200];
    uint32_t n = 45;

    CHECK(rig_open(&g, 64));
    sim_prompt(prompt, n, 1);
    r = submit(&g, prompt, n, 9, 0);
    while (!atomic_load(&r->ended)) sim_step(g.e);
    n = r->seq.n_keys; /* the last sampled token was not computed */
    CHECK(n > 45);
    memcpy(prompt, r->seq.keys, n * sizeof(*prompt));
    request_unref(r);
    store_link_work(g.store.link);
    rig_stop(&g);
    CHECK(rig_start(&g));
    for (uint32_t i = 0; i < 20; i++) prompt[n + i] = 3;
    r = submit(&g, prompt, n + 20, 0, 0);
    while (!atomic_load(&r->ended)) {
        sim_step(g.e);
        store_link_work(g.store.link);
    }
    CHECK(r->usage.n_cached == n);
    CHECK_EQ(r->usage.n_disk, r->usage.n_cached);
    request_unref(r);
    rig_close(&g);
}

TEST(more_ends_than_are_staged_are_left_out_and_nothing_else)
{
    struct rig g;
    struct request *r[8];
    int32_t prompt[30];
    uint32_t n_disk = 0;

    CHECK(rig_open(&g, 512));
    for (uint32_t i = 0; i < 80; i += 8) { /* the saver sleeps */
        for (uint32_t k = 0; k < 8; k++) {
            sim_prompt(prompt, 30, 50 + i + k);
            r[k] = submit(&g, prompt, 30, 0, 0);
        }
        for (uint32_t k = 0; k < 8; k++) {
            while (!atomic_load(&r[k]->ended)) sim_step(g.e);
            request_unref(r[k]);
        }
    }
    store_link_work(g.store.link);
    rig_stop(&g);
    CHECK(rig_start(&g));
    for (uint32_t i = 0; i < 80; i++) n_disk += run(&g, 50 + i, 30, 0).n_disk == 30;
    CHECK(n_disk > 0 && n_disk < 80);
    rig_close(&g);
}

TEST(another_salt_finds_nothing)
{
    struct rig g;

    CHECK(rig_open(&g, 64));
    (void)run(&g, 1, 100, 7);
    rig_stop(&g);
    CHECK(rig_start(&g));
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0);
    CHECK_EQ(run(&g, 1, 100, 8).n_cached, 0);
    CHECK_EQ(run(&g, 1, 100, 7).n_disk, 100);
    rig_close(&g);
}

/* F20: a client makes up a salt with each request. */
TEST(salts_that_nobody_uses_any_more_take_no_place_from_others)
{
    enum { MOST = 8, N_SALTS = 40 };
    struct rig g = {.n_pages = 64};
    uint64_t n_alive = 0;

    log_set_sink(ignore_line, NULL);
    g.clock = clock_fake_create(1000000000, clock_wall_s(clock_system()));
    CHECK(sim_store_init(&g.store));
    g.store.max_spaces = MOST;
    CHECK(rig_start(&g));
    for (uint64_t salt = 1; salt <= N_SALTS; salt++) {
        CHECK_EQ(run(&g, salt, 30, salt).n_cached, 0);
        if (salt == N_SALTS / 2) n_alive = mem_n_alive();
    }
    CHECK(mem_n_alive() < n_alive + 10 * N_SALTS); /* pages and segments, that the store is asked to keep */
    rig_stop(&g);
    CHECK(rig_start(&g));
    for (uint64_t salt = 1; salt <= N_SALTS; salt++) CHECK_EQ(run(&g, salt, 30, salt).n_disk, 30);
    rig_close(&g);
}

TEST(what_was_evicted_comes_back_behind_what_is_left)
{
    struct rig g;
    struct request_usage u;

    CHECK(rig_open(&g, 64));
    (void)run(&g, 1, 100, 0);
    CHECK(radix_evict(g.e->cache.tree, 9) == 9); /* tail first: 13 pages, 4 are left */
    u = run(&g, 1, 100, 0);
    CHECK_EQ(u.n_cached, 100);
    CHECK_EQ(u.n_disk, 100 - 32);
    rig_close(&g);
}

/* A budget for three conversations, twelve of them in turns. */
TEST(many_conversations_hit_the_disk_instead_of_being_computed)
{
    struct rig g;
    uint32_t n_computed = 0;

    CHECK(rig_open(&g, 3 * 26 + 4));
    for (uint32_t turn = 0; turn < 4; turn++)
        for (uint32_t who = 0; who < 12; who++) {
            struct request_usage u = run(&g, 100 + who, 150 + turn * 10, 0);
            if (turn > 0) n_computed += u.n_prompt - u.n_cached;
        }
    CHECK(n_computed <= 3 * 12 * (10 + P));
    CHECK(stats(&g).prompt_disk > 3 * 12 * 100);
    rig_close(&g);
}

/* A stored text, an empty tree, and a request for it that waits for its load. */
static struct request *wait_for_load(struct rig *g, int32_t *prompt, uint32_t n)
{
    struct request *r;

    (void)run(g, 1, n, 0);
    radix_clear(g->e->cache.tree, NULL);
    sim_prompt(prompt, n, 1);
    r = submit(g, prompt, n, 2, 0);
    sim_step(g->e);
    return r;
}

TEST(others_pass_while_one_loads_and_the_engine_sleeps)
{
    struct rig g;
    int32_t prompt[100], other[50];
    struct request *r, *b;

    CHECK(rig_open(&g, 64));
    r = wait_for_load(&g, prompt, 100);
    CHECK(r->state == REQUEST_QUEUED && r->store.job);
    CHECK_EQ(stats(&g).pages_loading, 13);
    CHECK(!sim_step(g.e)); /* nothing to do until the doorbell */
    sim_prompt(other, 50, 2);
    b = submit(&g, other, 50, 2, 0);
    for (int i = 0; i < 20 && !atomic_load(&b->ended); i++) sim_step(g.e);
    CHECK(atomic_load(&b->ended) && has_right_text(b, other, 50, 2, 0));
    CHECK(!atomic_load(&r->ended));
    store_link_work(g.store.link);
    while (!atomic_load(&r->ended)) sim_step(g.e);
    CHECK(has_right_text(r, prompt, 100, 2, 0));
    CHECK_EQ(r->usage.n_disk, 100);
    request_unref(r);
    request_unref(b);
    rig_close(&g);
}

TEST(one_load_serves_all_that_want_it)
{
    struct rig g;
    int32_t prompt[100];
    struct request *r[4];
    uint64_t before;

    CHECK(rig_open(&g, 200));
    before = stats(&g).disk_loads;
    r[0] = wait_for_load(&g, prompt, 100);
    for (int i = 1; i < 4; i++) r[i] = submit(&g, prompt, 100 - (uint32_t)i, 2, 0);
    sim_step(g.e);
    CHECK_EQ(stats(&g).disk_loads, before + 1);
    CHECK_EQ(stats(&g).pages_loading, 13);
    store_link_work(g.store.link);
    for (int i = 0; i < 4; i++) {
        while (!atomic_load(&r[i]->ended)) sim_step(g.e);
        CHECK(has_right_text(r[i], prompt, 100 - (uint32_t)i, 2, 0));
        CHECK_EQ(r[i]->usage.n_disk, i ? 99 - i : 100); /* the state is that of the whole text alone */
        request_unref(r[i]);
    }
    CHECK_EQ(stats(&g).disk_loads, before + 1);
    rig_close(&g);
}

TEST(a_request_that_goes_away_leaves_its_load_to_others)
{
    struct rig g;
    int32_t prompt[100];
    struct request *r;
    struct page_counts c;

    CHECK(rig_open(&g, 64));
    r = wait_for_load(&g, prompt, 100);
    request_cancel(r, CANCEL_GONE);
    sim_step(g.e);
    CHECK(atomic_load(&r->ended));
    request_unref(r);
    CHECK_EQ(stats(&g).pages_loading, 13);
    store_link_work(g.store.link);
    sim_step(g.e);
    CHECK_EQ(stats(&g).pages_loading, 0);
    CHECK_EQ(run(&g, 1, 100, 0).n_disk, 0); /* in the tree already */
    radix_clear(g.e->cache.tree, NULL);
    c = page_pool_counts(g.e->pool);
    CHECK_EQ(c.n_free, c.n_total);
    rig_close(&g);
}

/* F120 */
TEST(a_load_that_takes_too_long_is_computed_instead)
{
    struct rig g;
    int32_t prompt[100];
    struct request *r;

    CHECK(rig_open(&g, 64));
    r = wait_for_load(&g, prompt, 100);
    clock_fake_advance(g.clock, 5000000000ull);
    while (!atomic_load(&r->ended)) sim_step(g.e);
    CHECK(has_right_text(r, prompt, 100, 2, 0));
    CHECK_EQ(r->usage.n_cached, 0);
    request_unref(r);
    CHECK_EQ(stats(&g).disk_loads_late, 1);
    CHECK_EQ(stats(&g).pages_loading, 13); /* the disk has them still */
    store_link_work(g.store.link);
    sim_step(g.e);
    CHECK_EQ(stats(&g).pages_loading, 0);
    CHECK_EQ(stats(&g).pages_ready, 13); /* not twice */
    rig_close(&g);
}

TEST(an_engine_ends_while_it_loads)
{
    struct rig g;
    int32_t prompt[100];
    struct request *r;

    CHECK(rig_open(&g, 64));
    r = wait_for_load(&g, prompt, 100);
    rig_stop(&g);
    CHECK(atomic_load(&r->ended) && r->status == RD_E_CLOSED);
    request_unref(r);
    rig_close(&g);
}

TEST(a_load_that_costs_more_than_computing_is_not_begun)
{
    struct rig g;

    CHECK(rig_open(&g, 64));
    g.x.clock = g.clock;
    g.x.row_ns = 1000;
    (void)run(&g, 1, 100, 0);
    radix_clear(g.e->cache.tree, NULL);
    g.store.link->load_page_ns = 1000000;
    CHECK_EQ(run(&g, 1, 100, 0).n_disk, 0);
    CHECK_EQ(stats(&g).disk_declined, 1);
    for (int i = 0; i < 200 && stats(&g).disk_loads == 0; i++) { /* and tried again when that is long ago */
        radix_clear(g.e->cache.tree, NULL);
        (void)run(&g, 1, 100, 0);
    }
    CHECK(stats(&g).disk_loads > 0);
    rig_close(&g);
}

/* A loan must not make a request fail that fits without it. */
TEST(a_tight_pool_waits_for_pages_on_loan)
{
    struct rig g;
    int32_t prompt[100], other[200];
    struct request *r, *b;

    CHECK(rig_open(&g, 30));
    r = wait_for_load(&g, prompt, 100);
    CHECK_EQ(stats(&g).pages_loading, 13);
    sim_prompt(other, 200, 2);
    b = submit(&g, other, 200, 2, 0);
    for (int i = 0; i < 10; i++) sim_step(g.e);
    CHECK(!atomic_load(&b->ended));
    store_link_work(g.store.link);
    for (int i = 0; i < 50; i++) sim_step(g.e);
    CHECK(atomic_load(&r->ended) && has_right_text(r, prompt, 100, 2, 0));
    CHECK(atomic_load(&b->ended) && has_right_text(b, other, 200, 2, 0));
    request_unref(r);
    request_unref(b);
    rig_close(&g);
}

TEST(damage_is_computed_and_stored_again)
{
    struct rig g;
    struct request_usage u;
    char path[256];
    char *data;
    size_t n;

    CHECK(rig_open(&g, 64));
    (void)run(&g, 1, 100, 0);
    rig_stop(&g);
    snprintf(path, sizeof(path), "%s/0000000000000001.pages", g.store.dir);
    CHECK_OK(file_read_all(path, 64 << 20, &data, &n, NULL));
    data[n - 1 - 3 * 64] ^= 16; /* slots of 64 bytes: the fourth from the end */
    CHECK(truncate(path, 0) == 0);
    CHECK_OK(file_write_all(path, data, n, NULL));
    mem_free(data);
    CHECK(rig_start(&g));
    u = run(&g, 1, 100, 0);
    CHECK(u.n_cached < 96);
    CHECK(stats(&g).disk.n_damaged + stats(&g).disk.n_read_errors > 0);
    rig_stop(&g);
    CHECK(rig_start(&g));
    CHECK_EQ(run(&g, 1, 100, 0).n_disk, 100);
    rig_close(&g);
}

/* Pages from some token on are stored in another form: they come back, and it is told. */
TEST(pages_that_are_packed_come_back_and_are_told)
{
    struct rig g;
    struct request_usage u;

    CHECK(rig_open(&g, 64));
    rig_stop(&g);
    g.store.lossy_from = 30; /* from page 4 on, at 32 */
    CHECK(rig_start(&g));
    (void)run(&g, 1, 100, 0);
    u = run(&g, 1, 100, 0);
    CHECK_EQ(u.n_cached, 100);
    CHECK_EQ(u.n_lossy, 0); /* as computed, in memory */
    (void)run(&g, 2, 31, 0);
    rig_stop(&g);
    CHECK(rig_start(&g));
    u = run(&g, 1, 100, 0);
    CHECK_EQ(u.n_disk, 100);
    CHECK_EQ(u.n_lossy, 64); /* pages 4 .. 11; the end is exact */
    u = run(&g, 1, 100, 0);
    CHECK_EQ(u.n_disk, 0);
    CHECK_EQ(u.n_lossy, 64); /* still */
    u = run(&g, 1, 60, 0);
    CHECK_EQ(u.n_lossy, 59 - 32);
    u = run(&g, 2, 31, 0);
    CHECK_EQ(u.n_disk, 31);
    CHECK_EQ(u.n_lossy, 0);
    radix_clear(g.e->cache.tree, NULL);
    for (uint32_t i = 0; i < 4; i++) (void)run(&g, 10 + i, 100, 0); /* computed into the same pages */
    for (uint32_t i = 0; i < 4; i++) CHECK_EQ(run(&g, 10 + i, 100, 0).n_lossy, 0);
    (void)run(&g, 1, 100, 0); /* copy on write: what is copied stays what it is */
    u = run(&g, 1, 45, 0);
    CHECK_EQ(u.n_lossy, 44 - 32);
    rig_close(&g);
}

/* The pages before the failed read are used, the rest is computed; the tree holds nothing that did not come. (F119) */
TEST(a_load_that_fails_half_way_brings_what_came_before)
{
    uint32_t n_seen[14] = {0}, n_kinds = 0;

    for (int64_t i = 0; i < 60; i++) {
        struct rig g;
        struct request_usage u;

        CHECK(rig_open(&g, 64));
        (void)run(&g, 1, 100, 0);
        radix_clear(g.e->cache.tree, NULL);
        file_fail_after(i);
        u = run(&g, 1, 100, 0);
        file_fail_after(-1);
        CHECK(u.n_cached == 100 || u.n_cached % P == 0);
        n_seen[(u.n_cached + P - 1) / P]++;
        rig_close(&g);
    }
    for (int i = 0; i < 14; i++) n_kinds += n_seen[i] > 0;
    CHECK(n_kinds > 10);
}

TEST(memory_may_run_out_anywhere_in_a_load)
{
    for (int64_t i = 0; i < 60; i++) {
        struct rig g;
        int32_t prompt[100];
        struct request *r;

        CHECK(rig_open(&g, 64));
        (void)run(&g, 1, 100, 0);
        radix_clear(g.e->cache.tree, NULL);
        sim_prompt(prompt, 100, 1);
        r = submit(&g, prompt, 100, 2, 0);
        mem_fail_after(i);
        for (int k = 0; k < 40 && !atomic_load(&r->ended); k++) {
            engine_step(g.e);
            store_link_work(g.store.link);
        }
        mem_fail_after(-1);
        sim_step(g.e);
        CHECK(atomic_load(&r->ended) && has_right_text(r, prompt, 100, 2, 0));
        request_unref(r);
        rig_close(&g);
    }
}

TEST(clearing_empties_the_disk_too)
{
    struct rig g;

    CHECK(rig_open(&g, 64));
    (void)run(&g, 1, 100, 0);
    store_link_clear(g.store.link);
    radix_clear(g.e->cache.tree, NULL);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0);
    rig_close(&g);
}

TEST(what_waits_when_the_disk_is_cleared_is_not_written)
{
    int32_t prompt[100];
    struct request *r;
    struct rig g;

    CHECK(rig_open(&g, 64));
    sim_prompt(prompt, 100, 1);
    r = submit(&g, prompt, 100, 2, 0);
    while (!atomic_load(&r->ended)) engine_step(g.e); /* its pages are copied, and not written */
    CHECK(stats(&g).disk.n_written == 0);
    store_link_clear(g.store.link);
    radix_clear(g.e->cache.tree, NULL);
    store_link_work(g.store.link);
    CHECK_EQ(stats(&g).disk.n_pages, 0);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0);
    request_unref(r);
    rig_close(&g);
}

TEST(an_adapter_has_pages_of_its_own_on_disk)
{
    const uint64_t spaces[] = {0, 1, SIM_ADAPTER, SIM_ADAPTER + 1, 2 * SIM_ADAPTER};
    struct rig g;

    CHECK(rig_open(&g, 128));
    for (uint32_t i = 0; i < 5; i++) CHECK_EQ(run(&g, 1, 100, spaces[i]).n_cached, 0);
    rig_stop(&g);
    CHECK(rig_start(&g));
    for (uint32_t i = 0; i < 5; i++) CHECK_EQ(run(&g, 1, 100, spaces[i]).n_disk, 100);
    CHECK_EQ(stats(&g).disk.n_damaged, 0);
    rig_close(&g);
}

TEST(a_text_is_taken_out_of_the_disk)
{
    for (int threads = 0; threads < 2; threads++) {
        struct rig g;
        int32_t prompt[100];

        CHECK(rig_open(&g, 128));
        if (threads) {
            rig_stop(&g);
            g.threads = true;
            CHECK(rig_start(&g));
        }
        (void)run(&g, 1, 100, 0);
        (void)run(&g, 2, 100, 0);
        sim_prompt(prompt, 100, 1);
        CHECK(store_link_prune(g.e, &(struct kv_space){0}, (const kv_key *)(const void *)prompt, 90) >= 12);
        rig_stop(&g);
        CHECK(rig_start(&g));
        CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0);
        CHECK_EQ(run(&g, 2, 100, 0).n_disk, 100);
        CHECK_EQ(store_link_prune(g.e, &(struct kv_space){.salt = {1, 2}}, (const kv_key *)(const void *)prompt, 90),
                 0);
        CHECK_EQ(stats(&g).disk.n_damaged, 0);
        rig_close(&g);
    }
}

/* F124 */
TEST(the_threads_do_the_same)
{
    struct rig g;

    CHECK(rig_open(&g, 3 * 26 + 4));
    rig_stop(&g);
    g.threads = true;
    CHECK(rig_start(&g));
    for (uint32_t turn = 0; turn < 4; turn++)
        for (uint32_t who = 0; who < 8; who++) (void)run(&g, 100 + who, 150 + turn * 10, 0);
    rig_stop(&g);
    CHECK(rig_start(&g));
    CHECK_EQ(run(&g, 100, 180, 0).n_disk, 180);
    CHECK(stats(&g).disk_loads > 0);
    store_link_clear(g.store.link);
    CHECK_EQ(stats(&g).disk.n_damaged, 0);
    rig_close(&g);
}
