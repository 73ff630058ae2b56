/* tests/engine/test_chunks.c - how prompts are cut into steps: by the speed measured, into about equal parts. */
#include "sim_rig.h"

enum { N_PAGES = 400, PAGE_TOKENS = 16, MAX_CHUNK = 1024, MOST = 16 };

struct rig {
    struct clock *clock;
    struct sim_executor x;
    struct engine *e;
};

/* A model that takes row_ns for a row; steps of prompts alone are to take 180 ms. */
static bool rig_open(struct rig *g, uint64_t row_ns)
{
    struct engine_options o;

    memset(g, 0, sizeof(*g));
    g->clock = clock_fake_create(1000000000, 1);
    if (!g->clock || !sim_init(&g->x, N_PAGES, PAGE_TOKENS, test_seed())) return false;
    o = sim_options(sim_view(&g->x, MAX_CHUNK, 8), g->clock, N_PAGES, PAGE_TOKENS);
    o.max_chunk = MAX_CHUNK;
    o.prompt_target_ns = 180000000;
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    g->x.clock = g->clock;
    g->x.row_ns = row_ns;
    return true;
}

static void rig_close(struct rig *g)
{
    engine_destroy(g->e);
    clock_fake_destroy(g->clock);
    sim_deinit(&g->x);
}

/* Submits a prompt of n tokens. */
static struct request *ask(struct rig *g, uint32_t n, uint64_t text, uint32_t max_tokens)
{
    struct request_params p = sim_params(max_tokens, 0);
    int32_t prompt[2048];

    sim_prompt(prompt, n, text);
    return sim_submit(g->e, &p, prompt, n);
}

/* The rows of each step that a prompt of n tokens, never seen before, takes. Returns the number of steps. */
static uint32_t cut(struct rig *g, uint32_t n, uint64_t text, uint32_t *rows)
{
    struct request *r = ask(g, n, text, 1);
    struct engine_stats before, after;
    uint32_t n_steps = 0;

    if (!r) return 0;
    while (!atomic_load(&r->ended) && n_steps < MOST) {
        engine_get_stats(g->e, &before);
        sim_step(g->e);
        engine_get_stats(g->e, &after);
        if (after.step_rows > before.step_rows) rows[n_steps++] = (uint32_t)(after.step_rows - before.step_rows);
    }
    request_unref(r);
    return n_steps;
}

TEST(chunks_grow_to_what_the_target_time_allows)
{
    uint32_t rows[MOST];
    struct rig g;

    CHECK(rig_open(&g, 300000));        /* 3,333 rows a second: 599 in 180 ms */
    CHECK_EQ(cut(&g, 500, 1, rows), 2); /* nothing known: 256 at most, two about equal ones */
    CHECK_EQ(rows[0], 256);
    CHECK_EQ(rows[1], 244);
    CHECK_EQ(cut(&g, 512, 2, rows), 1);
    CHECK_EQ(cut(&g, 1024, 3, rows), 2);
    CHECK_EQ(rows[0], 512);
    CHECK_EQ(cut(&g, 1300, 4, rows), 3); /* 434 each, in multiples of 32 */
    CHECK_EQ(rows[0], 448);
    CHECK_EQ(rows[1], 448);
    CHECK_EQ(rows[2], 404);
    rig_close(&g);
}

TEST(slow_models_keep_the_least_chunk_and_fast_ones_the_largest)
{
    uint32_t rows[MOST];
    struct rig g;

    CHECK(rig_open(&g, 2000000));
    for (uint64_t text = 1; text < 4; text++) {
        CHECK_EQ(cut(&g, 512, text, rows), 2);
        CHECK_EQ(rows[0], 256);
    }
    g.x.row_ns = 10000;                  /* it has the machine to itself now */
    CHECK_EQ(cut(&g, 1024, 4, rows), 2); /* 256, then all that is left */
    CHECK_EQ(rows[1], 768);
    CHECK_EQ(cut(&g, 1500, 5, rows), 2);
    CHECK_EQ(rows[0], 768);
    g.x.row_ns = 2000000;
    CHECK_EQ(cut(&g, 1000, 6, rows), 1); /* too long a step: known afterwards */
    for (uint64_t text = 7; text < 12; text++) cut(&g, 300, text, rows);
    CHECK_EQ(cut(&g, 512, 12, rows), 2);
    rig_close(&g);
}

TEST(short_prompts_say_nothing_about_large_chunks)
{
    uint32_t rows[MOST];
    struct rig g;

    CHECK(rig_open(&g, 300000));
    cut(&g, 512, 1, rows);
    g.x.row_ns = 5000000; /* a few rows: weights are read for each */
    for (uint64_t text = 2; text < 20; text++) CHECK_EQ(cut(&g, 100, text, rows), 1);
    g.x.row_ns = 300000;
    CHECK_EQ(cut(&g, 512, 20, rows), 1);
    rig_close(&g);
}

static void end_all(struct rig *g, struct request *r)
{
    for (int i = 0; i < 100 && !atomic_load(&r->ended); i++) sim_step(g->e);
}

static void expect_all_free(struct rig *g)
{
    struct page_counts c;

    engine_clear_cache(g->e);
    c = page_pool_counts(g->e->pool);
    CHECK_EQ(c.n_free, c.n_total);
    CHECK_EQ(g->x.n_wrong_rows, 0);
}

TEST(who_hangs_up_during_a_step_ends_it_and_nothing_is_lost)
{
    struct request *r, *again;
    struct engine_stats s;
    struct rig g;

    CHECK(rig_open(&g, 300000));
    CHECK(r = ask(&g, 700, 1, 1));
    sim_step(g.e); /* the first chunk stays */
    g.x.leaves = r;
    sim_step(g.e);
    CHECK_EQ(g.x.n_moot, 1);
    end_all(&g, r);
    CHECK_EQ(r->finish, REQUEST_CANCELLED);
    request_unref(r);
    CHECK(again = ask(&g, 700, 1, 1)); /* goes on behind it, with the right text */
    end_all(&g, again);
    CHECK_EQ(again->finish, REQUEST_LENGTH);
    CHECK(again->usage.n_cached >= 256 && again->usage.n_cached < 700);
    request_unref(again);
    engine_get_stats(g.e, &s);
    CHECK_EQ(s.device_errors, 0);
    CHECK_EQ(s.n_cancelled, 1);
    expect_all_free(&g);
    rig_close(&g);
}

TEST(a_step_that_others_wait_for_goes_on)
{
    struct request *first, *second, *waits;
    struct rig g;

    CHECK(rig_open(&g, 300000));
    CHECK((first = ask(&g, 300, 1, 4)) && (second = ask(&g, 40, 2, 4)) && (waits = ask(&g, 300, 1, 4)));
    g.x.leaves = first; /* waits joined what it computes; second is alone */
    sim_step(g.e);
    CHECK_EQ(g.x.n_moot, 0);
    end_all(&g, second), end_all(&g, waits), end_all(&g, first);
    CHECK_EQ(first->finish, REQUEST_CANCELLED);
    CHECK_EQ(second->finish, REQUEST_LENGTH);
    CHECK_EQ(waits->finish, REQUEST_LENGTH);
    CHECK(waits->usage.n_cached >= 128); /* the chunk that first had in that step */
    request_unref(first), request_unref(second), request_unref(waits);
    expect_all_free(&g);
    rig_close(&g);
}
