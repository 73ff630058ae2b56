/* tests/engine/test_ram_link.c - pages of a device leave for host memory and come back, over the simulated model, whose
 * copies take as long as the test says. tests/sim mixes this with everything else at random. */
#include "base/mem.h"
#include "engine/tiers/ram_link_state.h"
#include "sim_rig.h"

#define P 8u

struct rig {
    struct sim_executor x;
    struct ram_link *ram;
    struct engine *e;
    struct clock *clock;
};

static bool rig_open(struct rig *g, uint32_t n_pages, uint32_t n_slots)
{
    struct engine_options o = {0};

    memset(g, 0, sizeof(*g));
    g->clock = clock_fake_create(1000000000, 1);
    if (!sim_init(&g->x, n_pages, P, test_seed())) return false;
    g->x.has_driver = true;
    o = sim_options(sim_view(&g->x, 64, 8), g->clock, n_pages, P);
    if (n_slots &&
        ram_link_create(n_slots * o.executor.page_bytes, o.executor.page_bytes, P, 2048 / P, false, &g->ram) != RD_OK)
        return false;
    o.ram = g->ram;
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

static void rig_close(struct rig *g)
{
    engine_destroy(g->e);
    ram_link_destroy(g->ram);
    CHECK_EQ(g->x.n_wrong_rows, 0);
    sim_deinit(&g->x);
    clock_fake_destroy(g->clock);
}

static struct request *submit(struct rig *g, uint64_t text, uint32_t n, uint32_t max_tokens, uint64_t salt)
{
    struct request_params p = sim_params(max_tokens, salt);
    int32_t prompt[1024];

    sim_prompt(prompt, n, text);
    return sim_submit(g->e, &p, prompt, n);
}

static void step(struct rig *g)
{
    sim_step(g->e);
    clock_fake_advance(g->clock, 1000000);
}

static struct request_usage finish(struct rig *g, struct request *r)
{
    struct request_usage usage;

    for (int i = 0; i < 10000 && !atomic_load(&r->ended); i++) step(g);
    if (r->status != RD_OK) test_fail(__FILE__, __LINE__, "%s", rd_status_name(r->status));
    usage = r->usage;
    request_unref(r);
    return usage;
}

/* Prefill only: its pages are read and checked, and the last token's row is computed. */
static struct request_usage run(struct rig *g, uint64_t text, uint32_t n, uint64_t salt)
{
    return finish(g, submit(g, text, n, 0, salt));
}

static struct engine_stats stats(const struct rig *g)
{
    struct engine_stats s;

    engine_get_stats(g->e, &s);
    return s;
}

TEST(evicted_pages_come_back_from_host_memory)
{
    struct rig g;
    struct request_usage u;

    CHECK(rig_open(&g, 32, 200));
    for (uint64_t text = 1; text <= 8; text++) CHECK_EQ(run(&g, text, 100, 0).n_cached, 0);
    for (uint64_t text = 1; text <= 6; text++) {
        u = run(&g, text, 100, 0);
        CHECK(u.n_cached >= 96 && u.n_ram > 0); /* whole pages: 12 of them */
    }
    CHECK(stats(&g).prompt_ram > 0 && stats(&g).ram.n_saved > 0 && stats(&g).ram.n_loads >= 6);
    CHECK_EQ(stats(&g).ram.n_leaving + stats(&g).ram.n_loading, 0);
    rig_close(&g);
}

TEST(what_came_back_and_leaves_again_is_not_copied_again)
{
    struct rig g;
    uint64_t saved;

    CHECK(rig_open(&g, 32, 200));
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 0);
    for (int round = 0; round < 3; round++) {
        saved = stats(&g).ram.n_saved;
        for (uint64_t text = 1; text <= 8; text++) CHECK(run(&g, text, 100, 0).n_cached >= 96);
    }
    CHECK_EQ(stats(&g).ram.n_saved, saved); /* all of it is there since the first round */
    rig_close(&g);
}

TEST(no_namespace_finds_anothers_pages)
{
    struct rig g;

    CHECK(rig_open(&g, 32, 200));
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 5);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0);
    CHECK_EQ(run(&g, 1, 100, 6).n_cached, 0);
    CHECK(run(&g, 1, 100, 5).n_ram > 0);
    rig_close(&g);
}

TEST(others_decode_while_a_prompt_is_copied_back)
{
    struct rig g;
    struct request *decoding, *loading;
    uint32_t before;

    CHECK(rig_open(&g, 64, 200));
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 0);
    decoding = submit(&g, 20, 10, 200, 0);
    for (int i = 0; i < 3; i++) step(&g);
    g.x.n_slow = UINT32_MAX; /* until somebody waits */
    loading = submit(&g, 1, 100, 0, 0);
    step(&g);
    CHECK(loading->ram.load != NULL);
    before = decoding->n_generated;
    for (int i = 0; i < 5; i++) {
        struct token_logprob top[20];
        struct token_out out;
        bool was_full;

        step(&g);
        while (request_pop(decoding, &out, top, &was_full)) continue;
    }
    CHECK(atomic_load(&decoding->ended) || decoding->n_generated == before + 5);
    CHECK(loading->ram.load != NULL);
    g.x.n_slow = 0;
    CHECK(finish(&g, loading).n_ram > 0);
    request_cancel(decoding, CANCEL_SATISFIED);
    finish(&g, decoding);
    rig_close(&g);
}

TEST(a_client_that_leaves_during_a_load_leaves_the_pages_behind)
{
    struct rig g;
    struct request *decoding, *r;

    CHECK(rig_open(&g, 64, 200));
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 0);
    decoding = submit(&g, 20, 10, 3, 0);
    step(&g);
    g.x.n_slow = UINT32_MAX;
    r = submit(&g, 1, 100, 0, 0);
    step(&g);
    CHECK(r->ram.load != NULL);
    request_cancel(r, CANCEL_GONE);
    step(&g);
    CHECK(atomic_load(&r->ended) && r->finish == REQUEST_CANCELLED);
    request_unref(r);
    g.x.n_slow = 0;
    finish(&g, decoding);
    step(&g);
    CHECK_EQ(stats(&g).ram.n_loading, 0);
    CHECK_EQ(run(&g, 1, 100, 0).n_ram, 0); /* in the tree */
    rig_close(&g);
}

TEST(requests_for_one_prompt_share_a_load)
{
    struct rig g;
    struct request *r[4];
    uint64_t loads;

    CHECK(rig_open(&g, 64, 200));
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 0);
    loads = stats(&g).ram.n_loads;
    for (uint32_t i = 0; i < 4; i++) r[i] = submit(&g, 1, 100 - i, 0, 0);
    for (uint32_t i = 0; i < 4; i++) CHECK(finish(&g, r[i]).n_cached >= 88);
    CHECK_EQ(stats(&g).ram.n_loads, loads + 1);
    rig_close(&g);
}

TEST(a_failed_copy_is_computed_again)
{
    struct rig g;

    CHECK(rig_open(&g, 32, 200));
    g.x.move_fail_one_in = 1;
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 0);
    step(&g); /* the last are on their way */
    CHECK_EQ(stats(&g).ram.n_pages, 0);
    g.x.move_fail_one_in = 0;
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 0);
    CHECK(stats(&g).ram.n_pages > 0);
    g.x.move_fail_one_in = 1;
    CHECK_EQ(run(&g, 1, 100, 0).n_ram, 0);
    CHECK(stats(&g).ram.n_failed > 0);
    rig_close(&g);
}

TEST(pages_that_go_in_one_copy_end_at_the_border_of_a_pinned_chunk)
{
    struct rig g;

    CHECK(rig_open(&g, 300, 1024)); /* 16 chunks of 64 slots, side by side, pinned one by one */
    for (uint64_t text = 1; text <= 1500; text++) run(&g, text, 2 * P, 0); /* pages leave in order, to slots in order */
    CHECK_EQ(g.x.n_refused, 0);
    CHECK(g.x.n_pinned >= 16 && g.x.n_joined > 50 && g.x.n_at_border > 1); /* neighbours on both sides, in two chunks */
    CHECK_EQ(stats(&g).ram.n_failed, 0);
    for (uint64_t text = 1300; text <= 1400; text++) CHECK(run(&g, text, 2 * P, 0).n_cached > 0);
    rig_close(&g);
}

/* Copies that do not begin, and such that end badly, one in three of each, in both directions. */
TEST(copies_that_fail_are_misses_and_the_device_lives)
{
    struct rig g;
    uint32_t n_cached = 0;

    CHECK(rig_open(&g, 32, 200));
    g.x.begin_fail_one_in = g.x.move_fail_one_in = 3;
    for (int round = 0; round < 20; round++)
        for (uint64_t text = 1; text <= 8; text++) n_cached += run(&g, text, 100, 0).n_cached > 0;
    CHECK(n_cached > 0 && n_cached < 160 && stats(&g).ram.n_failed > 10 && stats(&g).ram.n_pages_loaded > 0);
    CHECK(!stats(&g).device_dead);
    CHECK_EQ(stats(&g).ram.n_leaving + stats(&g).ram.n_loading, 0);
    rig_close(&g); /* every page that was read had its text's rows */
}

TEST(pages_that_are_leaving_are_room_where_nothing_more_can_leave)
{
    struct rig g;
    struct kv_cache *cache;

    CHECK(rig_open(&g, 32, 200));
    cache = engine_cache(g.e);
    run(&g, 1, 100, 0);
    CHECK_EQ(page_pool_n_free(cache->pool), 32 - 13);
    radix_evict(cache->tree, 32); /* as ahead of need: whole pages are on their way */
    CHECK_EQ(page_pool_n_free(cache->pool), 32 - 12);
    CHECK_EQ(engine_evict(g.e, 4), 12); /* 0 would end a request that has all pages to itself */
    CHECK_EQ(page_pool_n_free(cache->pool), 32);
    rig_close(&g);
}

TEST(clearing_the_cache_clears_host_memory)
{
    struct rig g;

    CHECK(rig_open(&g, 32, 200));
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 0);
    engine_clear_cache(g.e);
    CHECK_EQ(run(&g, 1, 100, 0).n_cached, 0);
    rig_close(&g);
}

TEST(explaining_tells_what_host_memory_has)
{
    struct rig g;
    kv_key keys[100];
    struct kv_space open = {0}, salted = {.salt = {1, 0}}, adapted = {.adapter = {1, 0}};

    CHECK(rig_open(&g, 32, 200));
    for (uint64_t text = 1; text <= 8; text++) run(&g, text, 100, 0);
    for (uint32_t i = 0; i < 100; i++) keys[i] = 1 + (kv_key)(random_at(1, i) % (SIM_VOCAB - 1));
    CHECK_EQ(ram_link_n_more(g.e, &open, keys, 100, 0), 96);
    CHECK_EQ(ram_link_n_more(g.e, &open, keys, 100, 20), 76);
    CHECK_EQ(ram_link_n_more(g.e, &open, keys, 99, 96), 0);
    CHECK_EQ(ram_link_n_more(g.e, &salted, keys, 100, 0), 0);
    CHECK_EQ(ram_link_n_more(g.e, &adapted, keys, 100, 0), 0);
    rig_close(&g);
}

TEST(without_memory_nothing_is_lost_but_time)
{
    size_t before = mem_n_alive();
    struct ram_link *l = NULL;

    for (int64_t i = 0; !l; i++) {
        mem_fail_after(i);
        (void)ram_link_create(1 << 20, 4096, P, 100, false, &l);
        mem_fail_after(-1);
        CHECK(l || mem_n_alive() == before);
    }
    ram_link_destroy(l);
    for (int64_t i = 0; i < 40; i += 3) { /* and in the middle of a request */
        struct rig g;
        struct request *r;

        CHECK(rig_open(&g, 32, 200));
        for (uint64_t text = 1; text <= 6; text++) run(&g, text, 100, 0);
        r = submit(&g, 1, 100, 0, 0);
        mem_fail_after(i);
        for (int k = 0; k < 20; k++) engine_step(g.e);
        mem_fail_after(-1);
        finish(&g, r);
        rig_close(&g);
    }
    CHECK_EQ(mem_n_alive(), before);
}
