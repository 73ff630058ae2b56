/* tests/engine/test_step_ahead.c - decode steps that begin while the one before runs, over the simulated model, which tells
 * its choices late. tests/sim mixes this with everything else at random. */
#include "model/adapter_inside.h"
#include "sim_rig.h"

#define P 4u

struct rig {
    struct sim_executor x;
    struct engine *e;
    struct clock *clock;
    uint32_t min_tokens;
    struct adapter_mix *mix;
};

static bool rig_open(struct rig *g, bool ahead)
{
    struct engine_options o = {0};

    memset(g, 0, sizeof(*g));
    g->clock = clock_fake_create(1000000000, 1);
    if (!sim_init(&g->x, 256, P, test_seed())) return false;
    g->x.chooses = ahead;
    o = sim_options(sim_view(&g->x, 64, 8), g->clock, 256, P);
    o.n_ctx = 512;
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

static void rig_close(struct rig *g)
{
    engine_destroy(g->e);
    CHECK_EQ(g->x.n_wrong_rows, 0);
    CHECK_EQ(g->x.n_late, 0);
    sim_deinit(&g->x);
    clock_fake_destroy(g->clock);
}

static struct request *submit(struct rig *g, uint64_t text, uint32_t max_tokens, int32_t stop, float temperature)
{
    struct request_params p = sim_params(max_tokens, 0);
    int32_t prompt[10];

    p.max_keys = 512;
    p.sampling.temperature = temperature;
    p.sampling.seed = text;
    p.stop_tokens = &stop;
    p.n_stop_tokens = stop >= 0;
    p.min_tokens = g->min_tokens;
    p.adapters = g->mix;
    sim_prompt(prompt, 10, text);
    return sim_submit(g->e, &p, prompt, 10);
}

static uint32_t take(struct request *r, int32_t *text, uint32_t n)
{
    struct token_logprob top[20];
    struct token_out t;
    bool was_full;

    while (request_pop(r, &t, top, &was_full)) text[n++] = t.token;
    return n;
}

static uint32_t finish(struct rig *g, struct request *r, int32_t *text)
{
    uint32_t n = 0;

    for (int i = 0; i < 1000 && !atomic_load(&r->ended); i++) {
        sim_step(g->e);
        n = take(r, text, n);
    }
    n = take(r, text, n);
    request_unref(r);
    return n;
}

TEST(the_text_is_the_same_with_steps_ahead_and_without)
{
    struct rig a, b;
    int32_t x[200], y[200];

    CHECK(rig_open(&a, true) && rig_open(&b, false));
    for (uint64_t text = 1; text < 20; text++) {
        uint32_t n = finish(&a, submit(&a, text, 100, 3, 0), x), m = finish(&b, submit(&b, text, 100, 3, 0), y);

        CHECK_EQ(n, m);
        CHECK(memcmp(x, y, n * sizeof(*x)) == 0);
    }
    CHECK(a.x.n_begun_ahead > 50);
    CHECK_EQ(b.x.n_begun_ahead, 0);
    rig_close(&a);
    rig_close(&b);
}

TEST(ends_that_must_not_be_are_passed_over_as_without)
{
    struct rig a, b;
    int32_t x[200], y[200];

    CHECK(rig_open(&a, true) && rig_open(&b, false));
    a.min_tokens = b.min_tokens = 60; /* token 3, about every 24th, is no stop before that */
    for (uint64_t text = 1; text < 20; text++) {
        uint32_t n = finish(&a, submit(&a, text, 100, 3, 0), x), m = finish(&b, submit(&b, text, 100, 3, 0), y);

        CHECK(n >= 60);
        CHECK_EQ(n, m);
        CHECK(memcmp(x, y, n * sizeof(*x)) == 0);
    }
    CHECK(a.x.n_begun_ahead > 500);
    rig_close(&a);
    rig_close(&b);
}

TEST(an_answer_of_n_tokens_takes_n_steps)
{
    struct rig g;
    int32_t text[100];
    uint64_t begin;

    CHECK(rig_open(&g, true));
    begin = g.x.n_forward;
    CHECK_EQ(finish(&g, submit(&g, 1, 50, -1, 0.5f), text), 50);
    CHECK_EQ(g.x.n_forward - begin, 50); /* none too many where the length says so */
    CHECK_EQ(g.x.n_begun_ahead, 48);
    rig_close(&g);
}

TEST(what_ends_leaves_the_others_alone)
{
    struct rig g;
    struct request *gone, *satisfied, *stays;
    int32_t text[200], want[200];
    uint32_t n = 0, n_want;

    CHECK(rig_open(&g, true));
    n_want = finish(&g, submit(&g, 3, 60, -1, 0), want);
    engine_clear_cache(g.e);
    gone = submit(&g, 1, 100, -1, 0.7f);
    satisfied = submit(&g, 2, 100, -1, 0.7f);
    stays = submit(&g, 3, 60, -1, 0);
    for (int i = 0; i < 10; i++) sim_step(g.e);
    CHECK(g.e->has_next); /* all three are in the step under way */
    request_cancel(gone, CANCEL_GONE);
    sim_step(g.e);
    CHECK(atomic_load(&gone->ended) && gone->finish == REQUEST_CANCELLED);
    for (int i = 0; i < 5; i++) sim_step(g.e);
    CHECK(g.e->has_next);
    request_cancel(satisfied, CANCEL_SATISFIED);
    for (int i = 0; i < 3; i++) sim_step(g.e);
    CHECK(atomic_load(&satisfied->ended) && satisfied->finish == REQUEST_STOP);
    n = finish(&g, stays, text);
    CHECK_EQ(n, n_want);
    CHECK(memcmp(text, want, n * sizeof(*text)) == 0);
    request_unref(gone);
    request_unref(satisfied);
    rig_close(&g);
}

TEST(an_adapter_stays_until_the_step_under_way_is_done_with_it)
{
    struct adapter adapter = {.info = {.digest = {1, 2}, .max_rank = 4}};
    struct request *r;
    struct rig g;
    uint64_t id;

    atomic_init(&adapter.refs, 1);
    CHECK(rig_open(&g, true));
    CHECK_EQ(adapter_mix_create(&(struct adapter_use){&adapter, 1}, 1, &g.mix, NULL), RD_OK);
    id = adapter_mix_id(g.mix).low;
    r = submit(&g, 1, 100, -1, 0.7f);
    adapter_mix_unref(g.mix);
    for (int i = 0; i < 10; i++) sim_step(g.e);
    CHECK(g.e->has_next && g.x.n_begun_ahead > 5);
    request_cancel(r, CANCEL_GONE);
    request_unref(r);
    CHECK(adapter_is_used(&adapter));
    sim_step(g.e); /* the request is gone, then the step under way ends */
    CHECK(!g.e->has_next && !adapter_is_used(&adapter));
    CHECK_EQ(g.x.adapter_seen, id);
    rig_close(&g);
}

TEST(who_arrives_is_admitted_behind_the_step_under_way)
{
    struct rig g;
    struct request *first, *second;
    int32_t text[300];

    CHECK(rig_open(&g, true));
    first = submit(&g, 1, 200, -1, 0.7f);
    for (int i = 0; i < 8; i++) sim_step(g.e);
    CHECK(g.e->has_next);
    second = submit(&g, 2, 5, -1, 0.7f);
    sim_step(g.e); /* the step under way ends */
    sim_step(g.e); /* its prompt */
    CHECK_EQ(second->n_generated, 1);
    finish(&g, second, text);
    finish(&g, first, text);
    rig_close(&g);
}

TEST(a_failed_step_takes_the_one_behind_it_along)
{
    struct rig g;
    struct request *r;
    int32_t text[200];

    CHECK(rig_open(&g, true));
    r = submit(&g, 1, 100, -1, 0.7f);
    for (int i = 0; i < 8; i++) sim_step(g.e);
    CHECK(g.e->has_next);
    g.x.late[g.x.first_late].fail = true;
    sim_step(g.e);
    CHECK(atomic_load(&r->ended) && r->status == RD_E_DEVICE && !g.e->has_next);
    request_unref(r);
    CHECK_EQ(finish(&g, submit(&g, 2, 20, -1, 0.7f), text), 20);
    rig_close(&g);
}

TEST(an_engine_that_stops_waits_for_the_step_under_way)
{
    struct rig g;
    struct request *r;

    CHECK(rig_open(&g, true));
    r = submit(&g, 1, 100, -1, 0.7f);
    for (int i = 0; i < 8; i++) sim_step(g.e);
    CHECK(g.e->has_next);
    rig_close(&g);
    CHECK_EQ(r->status, RD_E_CLOSED);
    request_unref(r);
}
