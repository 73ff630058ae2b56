/* tests/engine/test_cache_names.c - what requests of one name computed is listed, saved and dropped as one thing, and
 * nobody else loses anything by it. tests/sim mixes this with everything else at random. */
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/names/cache_names.h"
#include "engine/tiers/ram_link.h"
#include "sim_rig.h"
#include "sim_store.h"

#define P   8u
#define CAP (8u << 20)

struct rig {
    struct sim_executor x;
    struct sim_store store;
    struct ram_link *ram;
    struct engine *e;
    struct clock *clock;
    uint32_t n_pages;
    bool has_store, has_ram;
};

static const struct kv_space open_space;

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static bool rig_start(struct rig *g)
{
    struct engine_options o = {0};

    if (!sim_init(&g->x, g->n_pages, P, test_seed())) return false;
    o = sim_options(sim_view(&g->x, 64, 8), g->clock, g->n_pages, P);
    if (g->has_store && !sim_store_open(&g->store, P, o.executor.page_bytes, CAP, g->clock, false)) return false;
    if (g->has_ram &&
        ram_link_create(400 * o.executor.page_bytes, o.executor.page_bytes, P, 512, false, &g->ram) != RD_OK)
        return false;
    o.store = g->store.link;
    o.ram = g->ram;
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

static void rig_stop(struct rig *g)
{
    engine_destroy(g->e);
    if (g->has_store) sim_store_close(&g->store);
    ram_link_destroy(g->ram);
    CHECK_EQ(g->x.n_wrong_rows, 0);
    sim_deinit(&g->x);
    g->e = NULL;
    g->ram = NULL;
}

static bool rig_open(struct rig *g, uint32_t n_pages, bool has_store, bool has_ram)
{
    memset(g, 0, sizeof(*g));
    log_set_sink(ignore_line, NULL);
    g->n_pages = n_pages;
    g->has_store = has_store;
    g->has_ram = has_ram;
    g->clock = clock_fake_create(1000000000, clock_wall_s(clock_system()));
    return (!has_store || sim_store_init(&g->store)) && rig_start(g);
}

static void rig_close(struct rig *g)
{
    if (g->e) rig_stop(g);
    if (g->has_store) sim_store_deinit(&g->store);
    clock_fake_destroy(g->clock);
}

static void work(struct rig *g)
{
    sim_step(g->e);
    if (g->has_store) store_link_work(g->store.link);
    clock_fake_advance(g->clock, 1000000);
}

/* Texts with one number begin alike for n_same tokens: a system prompt. */
static void make_prompt(int32_t *prompt, uint32_t n_same, uint32_t n, uint64_t text)
{
    sim_prompt(prompt, n, text);
    sim_prompt(prompt, n_same, 77);
}

static struct request *submit(struct rig *g, const char *name, uint64_t salt, const int32_t *prompt, uint32_t n,
                              uint32_t max_tokens)
{
    struct request_params p = sim_params(max_tokens, salt);

    p.name = name;
    return sim_submit(g->e, &p, prompt, n);
}

/* Prompt tokens that were cached; UINT32_MAX: it failed. */
static uint32_t run(struct rig *g, const char *name, uint64_t salt, const int32_t *prompt, uint32_t n)
{
    struct request *r = submit(g, name, salt, prompt, n, 2);
    uint32_t n_cached;

    if (!r) return UINT32_MAX;
    while (!atomic_load(&r->ended)) work(g);
    n_cached = r->finish == REQUEST_ERROR ? UINT32_MAX : r->usage.n_cached;
    request_unref(r);
    work(g);
    return n_cached;
}

struct seen {
    uint32_t n;
    struct cache_name_info last;
    char names[256];
};

static void see(void *arg, const struct cache_name_info *info)
{
    struct seen *s = arg;

    s->n++;
    s->last = *info;
    if (strlen(s->names) + strlen(info->name) + 2 < sizeof(s->names)) strcat(strcat(s->names, info->name), " ");
}

static struct seen list(struct rig *g, const struct kv_space *space)
{
    struct seen s = {0};

    if (cache_names_list(g->e, space, see, &s) != RD_OK) s.n = UINT32_MAX;
    return s;
}

static uint32_t n_stored(struct rig *g, const int32_t *prompt, uint32_t n)
{
    return radix_match(engine_cache(g->e)->tree, engine_root(g->e), token_keys(prompt), n, 0).n_ready;
}

static uint64_t drop(struct rig *g, const struct kv_space *space, const char *name)
{
    uint64_t n_pages = 0;

    if (cache_names_drop(g->e, space, name, NULL, &n_pages) != RD_OK) return 0;
    if (g->has_store) store_link_work(g->store.link);
    return n_pages;
}

TEST(a_drop_gives_back_what_nobody_else_uses)
{
    struct rig g;
    int32_t a[200], b[200], c[200];
    struct seen s;

    CHECK(rig_open(&g, 256, false, false));
    make_prompt(a, 50, 200, 1);
    make_prompt(b, 50, 200, 2);
    make_prompt(c, 50, 200, 3);
    CHECK_EQ(run(&g, "a", 0, a, 100), 0);
    CHECK_EQ(run(&g, "a", 0, a, 200), 100); /* the conversation grew: still one text */
    CHECK_EQ(run(&g, "b", 0, b, 200), 50);
    CHECK_EQ(run(&g, NULL, 0, c, 200), 50);
    s = list(&g, &open_space);
    CHECK_EQ(s.n, 2);
    CHECK_STR(s.names, "b a ");
    CHECK_EQ(s.last.n_ends, 1 + 1); /* the first answer was no part of the second prompt */
    CHECK_EQ(s.last.n_tokens, 201 + 1);
    CHECK_EQ(s.last.n_own, 201 + 1 - 50);
    CHECK(drop(&g, &open_space, "a") >= 18);
    CHECK_EQ(n_stored(&g, a, 200), 50);
    CHECK_EQ(n_stored(&g, b, 200), 200);
    CHECK_EQ(n_stored(&g, c, 200), 200);
    CHECK_EQ(list(&g, &open_space).n, 1);
    CHECK(drop(&g, &open_space, "b") >= 18);
    CHECK_EQ(n_stored(&g, b, 200), 50);
    CHECK_EQ(n_stored(&g, c, 200), 200); /* of somebody without a name */
    CHECK_EQ(cache_names_drop(g.e, &open_space, "b", NULL, &(uint64_t){0}), RD_E_NOT_FOUND);
    rig_close(&g);
}

TEST(another_space_has_names_of_its_own)
{
    struct rig g;
    int32_t a[100];
    const struct kv_space one = sim_space(1), two = sim_space(2);
    uint64_t n_pages;

    CHECK(rig_open(&g, 128, false, false));
    make_prompt(a, 0, 100, 1);
    CHECK_EQ(run(&g, "a", 1, a, 100), 0);
    CHECK_EQ(run(&g, "a", 2, a, 100), 0);
    CHECK_EQ(list(&g, &open_space).n, 0);
    CHECK_EQ(list(&g, &one).n, 1);
    CHECK_EQ(cache_names_drop(g.e, &open_space, "a", NULL, &n_pages), RD_E_NOT_FOUND);
    CHECK(drop(&g, &one, "a") > 0);
    CHECK_EQ(list(&g, &two).n, 1);
    CHECK_EQ(run(&g, "a", 2, a, 100), 100);
    CHECK_EQ(run(&g, "a", 1, a, 100), 0);
    rig_close(&g);
}

TEST(a_name_may_be_dropped_while_a_request_of_it_runs)
{
    struct rig g;
    int32_t a[100];
    struct request *r;
    uint32_t n_free;

    CHECK(rig_open(&g, 128, true, true));
    make_prompt(a, 0, 100, 1);
    n_free = page_pool_n_free(g.e->pool);
    r = submit(&g, "a", 0, a, 100, 40);
    CHECK(r != NULL);
    while (r->n_generated < 5) work(&g);
    CHECK_EQ(list(&g, &open_space).last.n_running, 1);
    (void)drop(&g, &open_space, "a");
    CHECK_EQ(list(&g, &open_space).n, 0);
    CHECK(n_stored(&g, a, 100) == 100);   /* it is in use */
    CHECK_EQ(run(&g, "a", 0, a, 50), 49); /* the name made anew shares it meanwhile */
    while (!atomic_load(&r->ended)) {
        struct token_out t;
        struct token_logprob top[20];
        bool was_full;

        work(&g);
        while (request_pop(r, &t, top, &was_full)) {}
    }
    CHECK(r->finish != REQUEST_ERROR);
    request_unref(r);
    work(&g);
    work(&g);
    CHECK_EQ(n_stored(&g, a, 100), 50); /* what the first one alone had is gone */
    (void)drop(&g, &open_space, "a");
    work(&g);
    CHECK_EQ(n_stored(&g, a, 100), 50); /* two had it, so it is no name's: like anything else */
    radix_clear(engine_cache(g.e)->tree, NULL);
    CHECK_EQ(page_pool_n_free(g.e->pool), n_free);
    rig_stop(&g);
    CHECK(rig_start(&g));
    CHECK_EQ(run(&g, NULL, 0, a, 100), 50); /* from the disk, too */
    rig_close(&g);
}

/* Told as to a file, and given back after a restart. */
struct told {
    int32_t *keys[8];
    struct cache_name_end end[8];
    uint32_t n, n_dropped;
};

static void told_end(void *arg, const struct cache_name_end *end)
{
    struct told *t = arg;

    if (t->n == 8) return;
    t->keys[t->n] = (int32_t *)(void *)mem_memdup(end->keys, end->n * sizeof(*end->keys));
    t->end[t->n] = *end;
    t->end[t->n].name = "a";
    t->end[t->n].space = &open_space;
    t->end[t->n].keys = token_keys(t->keys[t->n]);
    t->n++;
}

static void told_drop(void *arg, const struct kv_space *space, const char *name)
{
    (void)space, (void)name;
    ((struct told *)arg)->n_dropped++;
}

TEST(what_is_saved_outlives_a_restart_and_can_be_dropped_then)
{
    struct rig g;
    int32_t a[200], b[200];
    struct told t = {0};
    struct cache_name_info info;
    uint32_t n_left = 1;

    CHECK(rig_open(&g, 256, true, false));
    make_prompt(a, 48, 200, 1);
    make_prompt(b, 48, 200, 2);
    cache_names_tell(g.e, &(struct cache_name_teller){&t, told_end, told_drop});
    CHECK_EQ(run(&g, "a", 0, a, 200), 0);
    CHECK_EQ(run(&g, NULL, 0, b, 200), 48);
    CHECK_EQ(t.n, 0);
    store_link_clear(g.store.link); /* as if the disk had dropped it */
    CHECK_EQ(list(&g, &open_space).last.n_disk, 0);
    CHECK_OK(cache_names_save(g.e, &open_space, "a", &info, &n_left));
    CHECK_EQ(n_left, 0);
    CHECK(info.is_saved);
    CHECK_OK(store_link_sync(g.e));
    CHECK_EQ(list(&g, &open_space).last.n_disk, 200);
    CHECK_EQ(t.n, 1);
    CHECK_EQ(t.end[0].n_common, 48);
    CHECK_EQ(radix_node_class(radix_match(engine_cache(g.e)->tree, engine_root(g.e), token_keys(a), 200, 0).node),
             RADIX_DAY);
    CHECK_EQ(run(&g, NULL, 0, b, 200), 200); /* and b's is on disk again */
    rig_stop(&g);
    CHECK(rig_start(&g));
    CHECK_EQ(list(&g, &open_space).n, 0);
    CHECK_OK(cache_names_restore(g.e, &t.end[0]));
    CHECK_EQ(list(&g, &open_space).last.n_disk, 200);
    CHECK(list(&g, &open_space).last.is_saved);
    CHECK_EQ(list(&g, &open_space).last.n_tokens, 0);
    CHECK_EQ(run(&g, "a", 0, a, 200), 199); /* read from there, all but the state at its end */
    CHECK_EQ(list(&g, &open_space).last.n_own, 200 - 48 + 1);
    cache_names_tell(g.e, &(struct cache_name_teller){&t, told_end, told_drop});
    CHECK(drop(&g, &open_space, "a") > 0);
    CHECK_EQ(t.n_dropped, 1);
    CHECK_EQ(n_stored(&g, a, 200), 48);
    rig_stop(&g);
    CHECK(rig_start(&g));
    CHECK_EQ(run(&g, NULL, 0, a, 200), 48); /* as much as b has in common with it */
    CHECK_EQ(run(&g, NULL, 0, b, 200), 199);
    rig_close(&g);
    for (uint32_t i = 0; i < t.n; i++) mem_free(t.keys[i]);
}

TEST(host_memory_is_dropped_too)
{
    struct rig g;
    int32_t a[200], b[200];

    CHECK(rig_open(&g, 64, false, true));
    make_prompt(a, 48, 200, 1);
    CHECK_EQ(run(&g, "a", 0, a, 200), 0);
    for (uint64_t i = 0; i < 6; i++) {
        make_prompt(b, 0, 200, 10 + i);
        (void)run(&g, NULL, 0, b, 200); /* a's pages leave the tree */
    }
    CHECK(ram_link_n_more(g.e, &open_space, token_keys(a), 200, 0) > 100);
    (void)drop(&g, &open_space, "a");
    CHECK_EQ(ram_link_n_more(g.e, &open_space, token_keys(a), 200, 0), 0);
    CHECK(ram_link_n_more(g.e, &open_space, token_keys(b), 200, 0) + n_stored(&g, b, 200) >= 192);
    rig_close(&g);
}

/* 100,000 names by a client who will not stop: bounded, and neither the saved ones nor another tenant's go for them. */
TEST(any_number_of_names_takes_bounded_room)
{
    struct rig g;
    int32_t a[40];
    char name[32];
    struct seen s;
    uint32_t n = test_is_long() ? 100000 : 12000, n_left, n_saved = 0;

    CHECK(rig_open(&g, 256, true, false));
    make_prompt(a, 0, 40, 1);
    for (uint32_t i = 0; i < n; i++) {
        struct request_params p = sim_params(0, 3);
        struct request *r;

        snprintf(name, sizeof(name), "name-%u", i);
        p.name = name;
        p.fair_key = i == 0 ? 5 : 6; /* another tenant's first */
        r = sim_submit(g.e, &p, a, 1 + i % 40);
        CHECK(r != NULL);
        while (!atomic_load(&r->ended)) engine_step(g.e);
        request_unref(r);
        clock_fake_advance(g.clock, 1000000);
        if (i > 0 && i < 100)
            n_saved += cache_names_save(g.e, &(struct kv_space){.salt = {3, 0}}, name, NULL, &n_left) == RD_OK;
    }
    {
        struct rd_error err = {RD_OK, ""};

        CHECK_OK(engine_check(g.e, &err));
    }
    s = list(&g, &(struct kv_space){.salt = {3, 0}});
    CHECK_EQ(n_saved, LIMIT_SAVED_NAMES);
    CHECK_EQ(s.n, LIMIT_CACHE_NAMES / 4 + 1);
    CHECK_EQ(cache_names_save(g.e, &(struct kv_space){.salt = {3, 0}}, "name-0", NULL, &n_left), RD_OK);
    CHECK_EQ(cache_names_save(g.e, &(struct kv_space){.salt = {3, 0}}, name, NULL, &n_left), RD_E_LIMIT);
    CHECK_EQ(cache_names_save(g.e, &(struct kv_space){.salt = {3, 0}}, "name-1000", NULL, &n_left), RD_E_NOT_FOUND);
    rig_close(&g);
}

TEST(a_name_has_at_most_so_many_texts)
{
    struct rig g;
    int32_t a[40];

    CHECK(rig_open(&g, 1024, false, false));
    for (uint32_t i = 0; i < LIMIT_CACHE_ENDS + 20; i++) {
        make_prompt(a, 20, 40, i);
        CHECK(run(&g, "a", 0, a, 40) != UINT32_MAX);
    }
    CHECK_EQ(list(&g, &open_space).last.n_ends, LIMIT_CACHE_ENDS);
    CHECK(drop(&g, &open_space, "a") > 0);
    CHECK_EQ(radix_counts(engine_cache(g.e)->tree).n_nodes, 0); /* those that were not told apart, too: all below */
    rig_close(&g);
}

/* Wherever memory runs out a request has its answer, and everything adds up. */
TEST(any_allocation_may_fail)
{
    struct rig g;
    int32_t a[100];
    uint64_t n_pages;
    uint32_t n_failed = 0;

    CHECK(rig_open(&g, 256, true, true));
    for (int64_t i = 0; i < 60; i++) {
        struct request *r;
        struct seen s = {0};

        make_prompt(a, 24, 60 + (uint32_t)i % 40, (uint64_t)i / 5);
        r = submit(&g, i % 3 ? "a" : "b", 0, a, 60 + (uint32_t)i % 40, 2);
        CHECK(r != NULL);
        mem_fail_after(i % 20);
        for (uint32_t k = 0; k < 200 && !atomic_load(&r->ended); k++) engine_step(g.e);
        if (i % 4 == 0) n_failed += cache_names_list(g.e, &open_space, see, &s) != RD_OK;
        if (i % 5 == 0) n_failed += cache_names_drop(g.e, &open_space, "a", NULL, &n_pages) != RD_OK;
        if (i % 7 == 0) n_failed += cache_names_save(g.e, &open_space, "b", NULL, &(uint32_t){0}) != RD_OK;
        mem_fail_after(-1);
        while (!atomic_load(&r->ended)) work(&g);
        CHECK(r->finish != REQUEST_ERROR);
        request_unref(r);
        work(&g);
    }
    test_note("%u calls failed", n_failed);
    rig_close(&g);
}
