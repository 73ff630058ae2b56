/* tests/engine/test_verify.c - hits are computed again while nothing else is to do; what is wrong is found, dropped and
 * counted. Over the simulated model: a row of a page is a digest, and a wrong one is made by hand. */
#include "base/log.h"
#include "base/mem.h"
#include "engine/tiers/store_link_state.h"
#include "sim_rig.h"
#include "sim_store.h"

#define P 8u

struct rig {
    struct sim_executor x;
    struct sim_store store;
    struct engine *e;
    struct clock *clock;
    double share;
    uint32_t n_pages;
    bool with_store;
};

static char logged[4096];

static void keep_line(void *arg, enum log_level level, const char *line)
{
    (void)arg;
    if (level == LOG_ERROR) snprintf(logged, sizeof(logged), "%s", line);
}

static bool rig_start(struct rig *g)
{
    struct engine_options o = {0};

    if (!sim_init(&g->x, g->n_pages, P, test_seed())) return false;
    o = sim_options(sim_view(&g->x, 64, 8), g->clock, g->n_pages, P);
    o.verify_share = g->share;
    o.verify_seed = test_seed();
    if (g->with_store && !sim_store_open(&g->store, P, o.executor.page_bytes, 8 << 20, g->clock, false)) return false;
    o.store = g->store.link;
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

static bool rig_open(struct rig *g, uint32_t n_pages, double share, bool with_store)
{
    memset(g, 0, sizeof(*g));
    log_set_sink(keep_line, NULL);
    logged[0] = 0;
    g->n_pages = n_pages;
    g->share = share;
    g->with_store = with_store;
    g->clock = clock_fake_create(1000000000, clock_wall_s(clock_system()));
    return (!with_store || sim_store_init(&g->store)) && rig_start(g);
}

static void rig_stop(struct rig *g)
{
    engine_destroy(g->e);
    if (g->with_store) sim_store_close(&g->store);
    sim_deinit(&g->x);
}

static void rig_close(struct rig *g)
{
    rig_stop(g);
    if (g->with_store) sim_store_deinit(&g->store);
    clock_fake_destroy(g->clock);
}

static struct request *submit(struct rig *g, uint64_t text, uint32_t n, uint32_t max_tokens, uint64_t salt, bool hold)
{
    struct request_params p = sim_params(max_tokens, salt);
    int32_t prompt[2048];

    p.hold = hold;
    sim_prompt(prompt, n, text);
    return sim_submit(g->e, &p, prompt, n);
}

static bool step(struct rig *g)
{
    bool more = sim_step(g->e);

    if (g->with_store) store_link_work(g->store.link);
    return more;
}

/* Runs a prompt to its end, and nothing after it. */
static struct request_usage run(struct rig *g, uint64_t text, uint32_t n, uint64_t salt)
{
    struct request_usage usage = {0};
    struct request *r = submit(g, text, n, 0, salt, false);

    if (!r) return usage;
    while (!atomic_load(&r->ended)) step(g);
    if (r->finish != REQUEST_LENGTH) test_fail(__FILE__, __LINE__, "ended with %s", rd_status_name(r->status));
    usage = r->usage;
    request_unref(r);
    return usage;
}

static void idle(struct rig *g)
{
    while (step(g)) {}
}

static struct verify_counts counts(const struct rig *g)
{
    struct engine_stats s;

    engine_get_stats(g->e, &s);
    return s.verify;
}

/* The page that covers position pos of a stored text. */
static kv_page page_of(struct rig *g, uint64_t text, uint32_t n, uint64_t salt, uint32_t pos)
{
    int32_t prompt[2048];
    kv_page pages[2048 / P + 1];
    struct kv_space s = {.salt = {salt, 0}};
    struct radix_node *root = engine_root_of(g->e, &s);
    struct radix_match m;

    sim_prompt(prompt, n, text);
    m = radix_match(g->e->cache.tree, root, (const kv_key *)prompt, n, 1);
    if (m.n_ready <= pos)
        test_fail(__FILE__, __LINE__, "%u of %u are stored", m.n_ready, n);
    else
        radix_path_pages(g->e->cache.tree, m.node, m.n_ready, pages);
    return m.n_ready > pos ? pages[pos / P] : 0;
}

static void spoil(struct rig *g, kv_page page, uint32_t row)
{
    g->x.rows[(size_t)page * P + row] ^= 1;
}

TEST(hits_are_computed_again_when_nothing_else_is_to_do)
{
    struct rig g;

    CHECK(rig_open(&g, 200, 1, false));
    (void)run(&g, 1, 300, 0);
    idle(&g);
    CHECK_EQ(counts(&g).n_hits, 0);
    CHECK_EQ(run(&g, 1, 300, 0).n_cached, 300);
    CHECK_EQ(run(&g, 1, 203, 0).n_cached, 202);
    CHECK_EQ(run(&g, 1, 100, 7).n_cached, 0);
    CHECK_EQ(run(&g, 1, 90, 7).n_cached, 89);
    CHECK_EQ(counts(&g).n_waiting, 3);
    idle(&g);
    CHECK_EQ(counts(&g).n_verified, 3);
    CHECK_EQ(counts(&g).n_tokens, 300 + 202 + 89);
    CHECK_EQ(counts(&g).n_mismatches + counts(&g).n_skipped, 0);
    CHECK_EQ(g.x.n_wrong_rows, 0);
    rig_close(&g);
}

TEST(only_a_share_is_drawn_and_none_by_default)
{
    struct rig g;

    CHECK(rig_open(&g, 200, 0, false));
    for (int i = 0; i < 5; i++) (void)run(&g, 1, 100, 0);
    idle(&g);
    CHECK_EQ(counts(&g).n_hits + counts(&g).n_verified, 0);
    rig_close(&g);
    CHECK(rig_open(&g, 200, 0.25, false));
    for (int i = 0; i < 401; i++) {
        (void)run(&g, 1, 20, 0);
        idle(&g);
    }
    CHECK_EQ(counts(&g).n_hits, 400);
    CHECK(counts(&g).n_verified > 60 && counts(&g).n_verified < 140);
    rig_close(&g);
}

TEST(a_request_that_comes_waits_for_one_block_and_the_rest_is_done_later)
{
    struct rig g;
    struct request *r;
    uint64_t n_before;

    CHECK(rig_open(&g, 400, 1, false));
    (void)run(&g, 1, 1000, 0);
    (void)run(&g, 1, 1000, 0);
    CHECK(step(&g) && step(&g));
    CHECK(counts(&g).n_tokens > 0 && counts(&g).n_tokens < 1000);
    n_before = counts(&g).n_tokens;
    r = submit(&g, 2, 100, 0, 0, false);
    while (!atomic_load(&r->ended)) step(&g);
    CHECK_EQ(counts(&g).n_tokens, n_before);
    request_unref(r);
    idle(&g);
    CHECK_EQ(counts(&g).n_tokens, 1000);
    CHECK_EQ(counts(&g).n_verified, 1);
    rig_close(&g);
}

TEST(a_flipped_bit_is_found_dropped_counted_and_the_next_request_is_right)
{
    for (uint32_t pos = 0; pos < 150; pos += 1 + pos / 3) {
        struct rig g;
        struct request_usage u;

        CHECK(rig_open(&g, 200, 1, false));
        (void)run(&g, 1, 150, 0);
        (void)run(&g, 1, 150, 0);
        spoil(&g, page_of(&g, 1, 150, 0, pos), pos % P);
        idle(&g);
        CHECK_EQ(counts(&g).n_mismatches, 1);
        CHECK_EQ(counts(&g).n_verified, 0);
        CHECK(strstr(logged, "THE CACHE IS WRONG") && strstr(logged, "namespace \"sim\""));
        u = run(&g, 1, 150, 0);
        CHECK_EQ(u.n_cached, pos / P * P);
        idle(&g);
        CHECK_EQ(run(&g, 1, 150, 0).n_cached, 150);
        idle(&g);
        CHECK_EQ(counts(&g).n_mismatches, 1);
        CHECK_EQ(g.x.n_wrong_rows, 0);
        rig_close(&g);
    }
}

TEST(what_was_computed_below_a_wrong_page_goes_with_it_and_what_is_beside_it_stays)
{
    struct rig g;
    kv_page page;

    CHECK(rig_open(&g, 400, 1, false));
    (void)run(&g, 1, 100, 0);
    (void)run(&g, 2, 100, 0);
    (void)run(&g, 1, 100, 9); /* the same text of somebody else */
    page = page_of(&g, 1, 100, 0, 20);
    (void)run(&g, 1, 200, 0); /* goes on behind what will be wrong: a hit of 100 */
    spoil(&g, page, 4);
    idle(&g);
    CHECK_EQ(counts(&g).n_mismatches, 1);
    CHECK_EQ(run(&g, 1, 200, 0).n_cached, 16);
    CHECK_EQ(run(&g, 2, 100, 0).n_cached, 100);
    CHECK_EQ(run(&g, 1, 100, 9).n_cached, 100);
    idle(&g);
    CHECK_EQ(counts(&g).n_mismatches, 1);
    rig_close(&g);
}

/* Public prompts are pages that several namespaces hold. */
TEST(a_wrong_page_goes_from_every_namespace_that_shares_it)
{
    struct rig g;
    struct kv_space salt = {.salt = {9, 0}};
    struct radix_node *other, *node, *held;
    struct radix_match m;
    kv_page pages[64];
    int32_t prompt[100];
    uint32_t n_held;

    CHECK(rig_open(&g, 200, 1, true));
    (void)run(&g, 1, 100, 0);
    (void)run(&g, 1, 100, 0);
    (void)run(&g, 3, 40, 9);
    sim_prompt(prompt, 100, 1);
    m = radix_match(g.e->cache.tree, g.e->root, (const kv_key *)prompt, 100, 1);
    radix_path_pages(g.e->cache.tree, m.node, 100, pages);
    other = engine_root_of(g.e, &salt);
    CHECK_OK(radix_insert_ready(g.e->cache.tree, other, (const kv_key *)prompt, 100, pages, 1, &node));
    held = kv_hold(engine_cache(g.e), other, (const kv_key *)prompt, 60, 1, &n_held);
    CHECK_EQ(n_held, 60);
    spoil(&g, pages[42 / P], 2);
    while (counts(&g).n_mismatches == 0) step(&g);
    m = radix_match(g.e->cache.tree, other, (const kv_key *)prompt, 100, 1);
    CHECK_EQ(m.n_match, 40);
    m = radix_match(g.e->cache.tree, g.e->root, (const kv_key *)prompt, 100, 1);
    CHECK_EQ(m.n_match, 40);
    step(&g);
    radix_clear(g.e->cache.tree, NULL);
    CHECK_EQ(run(&g, 3, 40, 9).n_cached, 0); /* all of the disk cache went */
    kv_unhold(engine_cache(g.e), held);
    idle(&g);
    rig_close(&g);
}

TEST(a_wrong_state_is_found)
{
    struct rig g;
    struct radix_match m;
    int32_t prompt[50];

    CHECK(rig_open(&g, 100, 1, false));
    (void)run(&g, 1, 50, 0);
    (void)run(&g, 1, 50, 0);
    sim_prompt(prompt, 50, 1);
    m = radix_match(g.e->cache.tree, g.e->root, (const kv_key *)prompt, 50, 1);
    *(uint8_t *)(uintptr_t)radix_node_state(m.node) ^= 4;
    idle(&g);
    CHECK_EQ(counts(&g).n_mismatches, 1);
    CHECK(strstr(logged, "hidden state"));
    CHECK_EQ(run(&g, 1, 50, 0).n_cached, 48);
    rig_close(&g);
}

TEST(a_handle_on_a_wrong_path_keeps_it_from_nobody_and_goes_as_usual)
{
    struct rig g;
    struct request *r;
    struct radix_node *held;

    CHECK(rig_open(&g, 100, 1, false));
    r = submit(&g, 1, 100, 0, 0, true);
    while (!atomic_load(&r->ended)) step(&g);
    held = r->held;
    CHECK(held != NULL);
    request_unref(r);
    (void)run(&g, 1, 100, 0);
    spoil(&g, page_of(&g, 1, 100, 0, 42), 2);
    idle(&g);
    CHECK_EQ(counts(&g).n_mismatches, 1);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 40);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 100);
    idle(&g);
    CHECK_EQ(counts(&g).n_mismatches, 1);
    CHECK_EQ(g.x.n_wrong_rows, 0);
    kv_unhold(engine_cache(g.e), held);
    engine_clear_cache(g.e);
    CHECK_EQ(page_pool_n_free(g.e->pool), 100);
    rig_close(&g);
}

TEST(what_was_evicted_meanwhile_is_skipped_and_a_full_cache_gives_a_few_pages)
{
    struct rig g;

    CHECK(rig_open(&g, 100, 1, false));
    (void)run(&g, 1, 200, 0);
    (void)run(&g, 1, 200, 0);
    CHECK(radix_evict(g.e->cache.tree, 3) == 3);
    idle(&g);
    CHECK_EQ(counts(&g).n_skipped, 1);
    radix_clear(g.e->cache.tree, NULL);
    (void)run(&g, 1, 395, 0);
    (void)run(&g, 2, 395, 0); /* all but 0 to 2 of 100 pages */
    (void)run(&g, 2, 395, 0);
    idle(&g);
    CHECK_EQ(counts(&g).n_verified, 1);
    CHECK_EQ(counts(&g).n_skipped, 1);
    rig_close(&g);
}

TEST(a_device_error_while_verifying_ends_nothing)
{
    struct rig g;

    CHECK(rig_open(&g, 100, 1, false));
    (void)run(&g, 1, 100, 0);
    (void)run(&g, 1, 100, 0);
    g.x.fail_next = true;
    idle(&g);
    CHECK_EQ(counts(&g).n_mismatches, 0);
    CHECK_EQ(counts(&g).n_skipped, 1);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 100);
    idle(&g);
    CHECK_EQ(counts(&g).n_verified, 1);
    rig_close(&g);
}

/* A page that came from disk is verified, too; one that is wrong goes from the disk with its namespace. */
TEST(wrong_pages_go_from_the_disk_too)
{
    struct rig g;

    CHECK(rig_open(&g, 100, 1, true));
    (void)run(&g, 1, 100, 0);
    (void)run(&g, 1, 100, 5);
    radix_clear(g.e->cache.tree, NULL);
    CHECK_EQ(run(&g, 1, 100, 0).n_disk, 100);
    idle(&g);
    CHECK_EQ(counts(&g).n_verified, 1);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 100);
    spoil(&g, page_of(&g, 1, 100, 0, 50), 0);
    idle(&g);
    CHECK_EQ(counts(&g).n_mismatches, 1);
    store_link_work(g.store.link);
    radix_clear(g.e->cache.tree, NULL);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0); /* gone from disk */
    CHECK_EQ(run(&g, 1, 100, 5).n_disk, 100); /* not what is somebody else's */
    rig_stop(&g);
    CHECK(rig_start(&g));
    CHECK_EQ(run(&g, 1, 100, 0).n_disk, 100); /* what was computed after is */
    idle(&g);
    CHECK_EQ(counts(&g).n_verified, 1);
    CHECK_EQ(g.x.n_wrong_rows, 0);
    rig_close(&g);
}

TEST(staged_copies_of_a_wrong_page_are_not_written)
{
    struct rig g;
    struct request *r;

    CHECK(rig_open(&g, 100, 1, true));
    r = submit(&g, 1, 100, 0, 0, false);
    while (!atomic_load(&r->ended)) engine_step(g.e); /* the saver has not come to it */
    request_unref(r);
    CHECK(g.store.link->save_head != NULL);
    r = submit(&g, 1, 100, 0, 0, false);
    while (!atomic_load(&r->ended)) engine_step(g.e);
    request_unref(r);
    spoil(&g, page_of(&g, 1, 100, 0, 50), 0);
    while (counts(&g).n_mismatches == 0) engine_step(g.e);
    CHECK(g.store.link->save_head == NULL);
    idle(&g);
    radix_clear(g.e->cache.tree, NULL);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0);
    rig_close(&g);
}

/* A process that only reads the folder cannot drop anything there: it does not look at it any more. */
TEST(a_reader_forsakes_what_it_cannot_drop)
{
    struct rig g;
    struct page_store *other = NULL;
    struct store_options so = {0};

    CHECK(rig_open(&g, 100, 1, true));
    (void)run(&g, 1, 100, 0);
    rig_stop(&g);
    so = (struct store_options){.dir = g.store.dir, .cap_bytes = 8 << 20, .clock = g.clock};
    CHECK_OK(page_store_open(&so, &other, NULL)); /* the writer */
    CHECK(rig_start(&g));
    CHECK_EQ(run(&g, 1, 100, 0).n_disk, 100);
    idle(&g);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 100);
    spoil(&g, page_of(&g, 1, 100, 0, 50), 0);
    idle(&g);
    CHECK_EQ(counts(&g).n_mismatches, 1);
    store_link_work(g.store.link);
    radix_clear(g.e->cache.tree, NULL);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0);
    page_store_close(other);
    rig_close(&g);
}

TEST(the_list_of_those_that_wait_is_bounded_and_memory_that_is_out_skips_one)
{
    struct rig g;
    struct request *r;
    uint64_t n_skipped;

    CHECK(rig_open(&g, 100, 1, false));
    (void)run(&g, 1, 20, 0);
    for (int i = 0; i < 40; i++) (void)run(&g, 1, 20, 0);
    CHECK_EQ(counts(&g).n_waiting + counts(&g).n_skipped + counts(&g).n_verified, 40);
    idle(&g);
    CHECK_EQ(counts(&g).n_waiting, 0);
    CHECK_EQ(counts(&g).n_mismatches, 0);
    r = submit(&g, 1, 20, 0, 0, false);
    n_skipped = counts(&g).n_skipped;
    mem_fail_after(0);
    while (!atomic_load(&r->ended)) step(&g);
    mem_fail_after(-1);
    CHECK_EQ(counts(&g).n_skipped, n_skipped + 1);
    request_unref(r);
    idle(&g);
    rig_close(&g);
}
