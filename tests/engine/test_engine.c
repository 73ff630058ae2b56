/* tests/engine/test_engine.c - the step loop over the simulated model, one promise at a time. tests/sim mixes all of
 * them at random. */
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine_state.h"
#include "engine/public_prefix.h"
#include "sim_executor.h"
#include "test.h"

#define MAX_OUT 128u

struct rig {
    struct sim_executor x;
    struct engine *e;
    struct clock *clock;
};

/* What a test asks for; 0 = the default of rig_submit. */
struct ask {
    uint32_t max_tokens, ring_cap;
    bool uncached, hold;
    uint64_t key, salt;
    uint32_t *n_end_wakes;
};

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static bool rig_open(struct rig *g, uint32_t n_pages, uint32_t page_tokens, uint32_t max_running, uint32_t max_queue,
                     uint32_t max_chunk)
{
    uint32_t max_rows = max_chunk > max_running ? max_chunk : max_running;
    struct engine_options o;

    log_set_sink(ignore_line, NULL);
    memset(g, 0, sizeof(*g));
    g->clock = clock_fake_create(1000000000, 1);
    if (!g->clock || !sim_init(&g->x, n_pages, page_tokens, test_seed())) return false;
    o = (struct engine_options){.executor = sim_view(&g->x, max_rows, max_running),
                                .clock = g->clock,
                                .n_pages = n_pages,
                                .page_tokens = page_tokens,
                                .n_ctx = 4096,
                                .max_running = max_running,
                                .max_queue = max_queue,
                                .max_chunk = max_chunk,
                                .step_target_ns = 100000000,
                                .ttl_ns = 10000000000ull,
                                .kv_bytes = 1 << 24,
                                .namespace_name = "sim",
                                .namespace_bytes = 3};
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

/* The engine is empty but for its cache: every page is accounted for, every place was given back. */
static void rig_close(struct rig *g)
{
    struct rd_error err = {RD_OK, ""};
    struct page_counts c;

    if (engine_check(g->e, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK_EQ(g->x.n_wrong_rows, 0);
    CHECK_EQ(atomic_load(&g->e->n_places), 0);
    CHECK_EQ(g->e->n_live + g->e->n_queue, 0);
    engine_clear_cache(g->e);
    c = page_pool_counts(g->e->pool);
    CHECK_EQ(c.n_free, c.n_total);
    engine_destroy(g->e);
    clock_fake_destroy(g->clock);
    sim_deinit(&g->x);
}

static void count_end_wake(void *arg)
{
    ++*(uint32_t *)arg;
}

static struct request *try_submit(struct rig *g, const int32_t *prompt, uint32_t n, struct ask a, rd_status *st)
{
    struct request_params p = {
        .cached = !a.uncached, .max_tokens = a.max_tokens, .max_keys = 4096, .hold = a.hold, .fair_key = a.key};
    struct request *r = NULL;

    p.space = sim_space(a.salt);
    sampler_params_default(&p.sampling);
    p.sampling.temperature = 0;
    if (a.n_end_wakes) {
        p.wake = count_end_wake;
        p.wake_arg = a.n_end_wakes;
    }
    if ((*st = engine_take_place(g->e)) != RD_OK) return NULL;
    *st = request_create(&p, engine_cache(g->e), SIM_VOCAB, prompt, n, &r, NULL);
    if (*st == RD_OK && a.ring_cap) r->ring_cap = a.ring_cap;
    if (*st == RD_OK) *st = engine_submit(g->e, r);
    if (*st == RD_OK) return r;
    engine_give_place(g->e);
    request_unref(r);
    return NULL;
}

static struct request *submit(struct rig *g, const int32_t *prompt, uint32_t n, struct ask a)
{
    rd_status st;
    struct request *r = try_submit(g, prompt, n, a, &st);

    if (!r) test_fail(__FILE__, __LINE__, "submit: %s", rd_status_name(st));
    return r;
}

static void make_prompt(int32_t *prompt, uint32_t n, uint64_t seed)
{
    struct random r;

    random_init(&r, seed);
    for (uint32_t i = 0; i < n; i++) prompt[i] = (int32_t)random_below(&r, SIM_VOCAB);
}

static bool step(struct rig *g)
{
    struct rd_error err = {RD_OK, ""};
    bool ran = engine_step(g->e);

    clock_fake_advance(g->clock, 1000000);
    if (engine_check(g->e, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
    return ran;
}

static bool ended(const struct request *r)
{
    return atomic_load(&r->ended);
}

static void run_to_end(struct rig *g, struct request *r)
{
    for (int i = 0; !ended(r) && i < 100000; i++) step(g);
    if (!ended(r)) test_fail(__FILE__, __LINE__, "the request never ended");
}

static uint32_t read_ring(struct request *r, int32_t *out, uint32_t n)
{
    struct token_logprob top[20];
    struct token_out t;
    bool was_full;

    while (n < MAX_OUT && request_pop(r, &t, top, &was_full)) out[n++] = t.token;
    return n;
}

/* The greedy continuation without an end token: what every finished request must have said. */
static void expected(const int32_t *prompt, uint32_t n_prompt, int32_t *out, uint32_t n)
{
    uint64_t digest = 0;

    for (uint32_t i = 0; i < n_prompt; i++) digest = sim_digest(digest, (uint32_t)prompt[i]);
    for (uint32_t i = 0; i < n; i++) {
        float logits[SIM_VOCAB];
        uint32_t best = 0;

        sim_logits(digest, logits);
        for (uint32_t v = 1; v < SIM_VOCAB; v++)
            if (logits[v] > logits[best]) best = v;
        out[i] = (int32_t)best;
        digest = sim_digest(digest, best);
    }
}

/* Ended by length, with the right text and prompt = computed + cached. */
static bool is_right(struct request *r, const int32_t *prompt, uint32_t n_prompt)
{
    int32_t out[MAX_OUT], want[MAX_OUT];
    uint32_t n = read_ring(r, out, 0);

    expected(prompt, n_prompt, want, n);
    return ended(r) && r->finish == REQUEST_LENGTH && r->status == RD_OK && n == r->p.max_tokens &&
           r->usage.n_generated == n && memcmp(out, want, n * sizeof(out[0])) == 0 && r->usage.n_prompt == n_prompt &&
           r->usage.n_prompt == r->usage.n_cached + r->n_prompt_computed && r->usage.n_joined <= r->usage.n_cached;
}

static struct engine_stats stats_of(struct rig *g)
{
    struct engine_stats s;

    engine_get_stats(g->e, &s);
    return s;
}

TEST(a_thousand_decode_steps_of_eight_sequences_allocate_nothing)
{
    enum { N = 8 };
    struct rig g;
    struct request *r[N];
    int32_t prompt[40], out[MAX_OUT];
    uint64_t before;

    CHECK(rig_open(&g, 1000, 16, N, 16, 64));
    for (int i = 0; i < N; i++) {
        make_prompt(prompt, 40, test_seed() + (uint64_t)i);
        CHECK(r[i] = submit(&g, prompt, 40, (struct ask){.max_tokens = 3000}));
    }
    for (int i = 0; i < 20; i++) step(&g);
    CHECK_EQ(stats_of(&g).n_decode, N);
    before = mem_n_allocs();
    for (int i = 0; i < 1000; i++) {
        engine_step(g.e);
        for (int k = 0; k < N; k++) read_ring(r[k], out, 0);
    }
    CHECK_EQ(mem_n_allocs(), before);
    for (int i = 0; i < N; i++) {
        CHECK(r[i]->n_generated > 1000);
        request_cancel(r[i], CANCEL_GONE);
        run_to_end(&g, r[i]);
        request_unref(r[i]);
    }
    rig_close(&g);
}

TEST(a_full_queue_says_so_and_every_path_gives_its_place_back)
{
    struct rig g;
    struct request *r[4];
    int32_t prompt[4200];
    rd_status st;

    CHECK(rig_open(&g, 64, 16, 1, 3, 64));
    make_prompt(prompt, 4200, 1);
    for (int i = 0; i < 3; i++) CHECK(r[i] = submit(&g, prompt, 8, (struct ask){.max_tokens = 4, .uncached = true}));
    CHECK(!try_submit(&g, prompt, 8, (struct ask){.max_tokens = 4}, &st));
    CHECK_EQ(st, RD_E_FULL);
    step(&g); /* one was admitted: its place is free */
    CHECK(r[3] = submit(&g, prompt, 8, (struct ask){.max_tokens = 4}));
    CHECK_EQ(engine_take_place(g.e), RD_E_FULL);
    request_cancel(r[3], CANCEL_GONE);
    step(&g);
    CHECK(ended(r[3]));
    CHECK_OK(engine_take_place(g.e));
    engine_give_place(g.e); /* never came */
    CHECK(!try_submit(&g, prompt, 1024, (struct ask){.max_tokens = 4}, &st));
    CHECK_EQ(st, RD_E_CONTEXT);
    for (int i = 0; i < 3; i++) {
        run_to_end(&g, r[i]);
        CHECK(is_right(r[i], prompt, 8));
    }
    for (int i = 0; i < 4; i++) request_unref(r[i]);
    rig_close(&g);
}

TEST(preempted_requests_resume_with_identical_output)
{
    enum { N = 6 };
    struct rig g;
    struct request *r[N];
    int32_t prompt[N][12];
    uint32_t n_running = N;

    CHECK(rig_open(&g, 30, 4, N, 16, 32));
    for (int i = 0; i < N; i++) {
        make_prompt(prompt[i], 12, 100 + (uint64_t)i);
        CHECK(r[i] = submit(&g, prompt[i], 12, (struct ask){.max_tokens = 60}));
    }
    for (int k = 0; n_running > 0 && k < 10000; k++) {
        step(&g);
        n_running = 0;
        for (int i = 0; i < N; i++) n_running += !ended(r[i]);
    }
    CHECK_EQ(n_running, 0);
    CHECK(stats_of(&g).n_preempted > 0);
    for (int i = 0; i < N; i++) {
        CHECK(is_right(r[i], prompt[i], 12));
        request_unref(r[i]);
    }
    rig_close(&g);
}

TEST(a_key_with_one_request_is_served_after_one_of_a_key_with_a_hundred)
{
    enum { N = 101 };
    struct rig g;
    struct request *r[N];
    int32_t prompt[8];
    uint32_t n_before = 0;

    CHECK(rig_open(&g, 64, 16, 1, 128, 64));
    make_prompt(prompt, 8, 1);
    for (int i = 0; i < N; i++)
        CHECK(r[i] = submit(&g, prompt, 8, (struct ask){.max_tokens = 3, .key = i == N - 1 ? 2 : 1}));
    run_to_end(&g, r[N - 1]);
    for (int i = 0; i < N - 1; i++) n_before += ended(r[i]);
    CHECK_EQ(n_before, 1);
    for (int i = 0; i < N; i++) {
        run_to_end(&g, r[i]);
        CHECK(is_right(r[i], prompt, 8));
        request_unref(r[i]);
    }
    rig_close(&g);
}

/* Places, not turns: long answers of one key have them all. The newest of those gives one up, and nothing of its answer. */
TEST(a_key_of_which_nothing_runs_does_not_wait_for_long_answers_of_another)
{
    enum { N = 7, LONG = 60 };
    struct rig g;
    struct request *r[N], *other;
    int32_t prompt[N][8];
    uint32_t n_steps = 0;

    CHECK(rig_open(&g, 256, 16, 4, 64, 64));
    for (uint32_t i = 0; i < N; i++) {
        make_prompt(prompt[i], 8, 1 + i);
        CHECK(r[i] = submit(&g, prompt[i], 8, (struct ask){.max_tokens = LONG, .key = 1}));
    }
    for (uint32_t i = 0; i < 6; i++) step(&g);
    CHECK_EQ(g.e->n_live, 4);
    CHECK(other = submit(&g, prompt[0] + 1, 7, (struct ask){.max_tokens = 3, .key = 2}));
    for (; !ended(other) && n_steps < 1000; n_steps++) step(&g);
    CHECK(n_steps <= 6);
    CHECK_EQ(g.e->stats.n_preempted, 1);
    CHECK(is_right(other, prompt[0] + 1, 7));
    request_unref(other);
    for (uint32_t i = 0; i < N; i++) {
        run_to_end(&g, r[i]);
        CHECK(is_right(r[i], prompt[i], 8));
        CHECK_EQ(r[i]->usage.n_preempted, i == 3 ? 1 : 0);
        request_unref(r[i]);
    }
    rig_close(&g);
}

/* More keys than places, one request of each: who runs goes on. So it is with requests of one key. */
TEST(a_key_with_one_place_keeps_it)
{
    enum { N = 6 };
    struct rig g;
    struct request *r[N];
    int32_t prompt[N][8];

    for (uint32_t one_key = 0; one_key < 2; one_key++) {
        CHECK(rig_open(&g, 256, 16, 3, 64, 64));
        for (uint32_t i = 0; i < N; i++) {
            make_prompt(prompt[i], 8, 1 + i);
            CHECK(r[i] = submit(&g, prompt[i], 8, (struct ask){.max_tokens = 20, .key = one_key ? 1 : 1 + i}));
            step(&g);
        }
        for (uint32_t i = 0; i < N; i++) {
            run_to_end(&g, r[i]);
            CHECK(is_right(r[i], prompt[i], 8));
            request_unref(r[i]);
        }
        CHECK_EQ(g.e->stats.n_preempted, 0);
        rig_close(&g);
    }
}

/* All of them run: a prompt's rows go by turns of keys, too, and not in order of admission alone. */
TEST(a_short_prompt_does_not_wait_for_all_long_prompts_of_another_key)
{
    enum { N = 7, LONG = 512, SHORT = 80 };
    struct rig g;
    struct request *r[N], *other;
    int32_t prompt[N][LONG];
    uint32_t n_steps = 0, n_before = 0;

    CHECK(rig_open(&g, 512, 16, N + 1, 64, 64));
    for (uint32_t i = 0; i < N; i++) {
        make_prompt(prompt[i], LONG, 1 + i);
        CHECK(r[i] = submit(&g, prompt[i], LONG, (struct ask){.max_tokens = 1, .key = 1}));
    }
    for (uint32_t i = 0; i < 4; i++) step(&g);
    CHECK(other = submit(&g, prompt[0] + 1, SHORT, (struct ask){.max_tokens = 1, .key = 2}));
    for (; !ended(other) && n_steps < 1000; n_steps++) step(&g);
    CHECK(n_steps <= 5); /* two chunks of it, and of the other key's as many */
    CHECK(is_right(other, prompt[0] + 1, SHORT));
    request_unref(other);
    run_to_end(&g, r[0]);
    for (uint32_t i = 1; i < N; i++) n_before += ended(r[i]);
    CHECK_EQ(n_before, 0); /* of one key the first that came is the first that is done */
    for (uint32_t i = 0; i < N; i++) {
        run_to_end(&g, r[i]);
        CHECK(is_right(r[i], prompt[i], LONG));
        request_unref(r[i]);
    }
    rig_close(&g);
}

TEST(a_big_request_is_not_starved_by_small_ones)
{
    enum { N = 12 };
    struct rig g;
    struct request *big, *small[N];
    int32_t prompt[72], tiny[4];
    uint32_t n_small = 0, n_steps = 0;

    CHECK(rig_open(&g, 20, 4, 4, 32, 32));
    make_prompt(prompt, 72, 1);
    make_prompt(tiny, 4, 2);
    for (uint32_t i = 0; i < N; i++)
        CHECK(small[i] = submit(&g, tiny, 4, (struct ask){.max_tokens = 5 + i, .uncached = true}));
    step(&g);
    CHECK(big = submit(&g, prompt, 72, (struct ask){.max_tokens = 2, .uncached = true}));
    while (!ended(big) && n_steps < 2000) {
        step(&g);
        n_steps++;
        for (int i = 0; i < N; i++) { /* somebody small is always waiting */
            if (!ended(small[i])) continue;
            CHECK(is_right(small[i], tiny, 4));
            request_unref(small[i]);
            n_small++;
            CHECK(small[i] = submit(&g, tiny, 4, (struct ask){.max_tokens = 5, .uncached = true}));
        }
    }
    CHECK(is_right(big, prompt, 72));
    CHECK(n_small <= N + 4);
    request_unref(big);
    for (int i = 0; i < N; i++) {
        run_to_end(&g, small[i]);
        request_unref(small[i]);
    }
    rig_close(&g);
}

TEST(a_cancelled_head_that_did_not_fit_lets_the_next_in)
{
    struct rig g;
    struct request *runs, *big, *small;
    int32_t prompt[72];

    CHECK(rig_open(&g, 20, 4, 4, 8, 32));
    make_prompt(prompt, 72, 1);
    CHECK(runs = submit(&g, prompt, 8, (struct ask){.max_tokens = 30, .ring_cap = 2, .uncached = true}));
    for (int i = 0; i < 5; i++) step(&g); /* paused: it will not release anything */
    CHECK(big = submit(&g, prompt, 72, (struct ask){.max_tokens = 2, .uncached = true}));
    CHECK(small = submit(&g, prompt, 4, (struct ask){.max_tokens = 2, .uncached = true}));
    for (int i = 0; i < 5; i++) step(&g);
    CHECK(!ended(small));
    request_cancel(big, CANCEL_GONE);
    for (int i = 0; i < 5; i++) step(&g);
    CHECK(ended(big));
    CHECK(is_right(small, prompt, 4));
    request_cancel(runs, CANCEL_GONE);
    run_to_end(&g, runs);
    request_unref(runs);
    request_unref(big);
    request_unref(small);
    rig_close(&g);
}

TEST(eight_equal_prompts_are_computed_once)
{
    enum { N = 8, LEN = 100 };
    struct rig g;
    struct request *r[N];
    int32_t prompt[LEN];
    struct engine_stats s;

    CHECK(rig_open(&g, 200, 16, N, 16, 10));
    make_prompt(prompt, LEN, 1);
    for (int i = 0; i < N; i++) CHECK(r[i] = submit(&g, prompt, LEN, (struct ask){.max_tokens = 5}));
    step(&g);
    CHECK_EQ(stats_of(&g).n_waiting, N - 1);
    for (int i = 0; i < N; i++) {
        run_to_end(&g, r[i]);
        CHECK(is_right(r[i], prompt, LEN));
    }
    s = stats_of(&g);
    CHECK_EQ(s.prompt_computed, LEN); /* the state at its end serves the others too */
    CHECK_EQ(s.prompt_cached, (N - 1) * LEN);
    CHECK_EQ(s.prompt_joined, (N - 1) * LEN);
    CHECK_EQ(s.step_rows, LEN + N * 4); /* and four decode rows each: the fifth token needs none */
    for (int i = 0; i < N; i++) request_unref(r[i]);
    rig_close(&g);
}

TEST(an_owner_that_leaves_mid_prefill_costs_others_nothing)
{
    struct rig g;
    struct request *a, *b, *c;
    int32_t prompt[100];
    struct engine_stats s;

    CHECK(rig_open(&g, 200, 16, 4, 16, 10));
    make_prompt(prompt, 100, 1);
    CHECK(a = submit(&g, prompt, 100, (struct ask){.max_tokens = 5}));
    CHECK(b = submit(&g, prompt, 100, (struct ask){.max_tokens = 5}));
    CHECK(c = submit(&g, prompt, 60, (struct ask){.max_tokens = 5}));
    for (int i = 0; i < 3; i++) step(&g);
    request_cancel(a, CANCEL_GONE);
    run_to_end(&g, b);
    run_to_end(&g, c);
    CHECK_EQ(a->finish, REQUEST_CANCELLED);
    CHECK(is_right(b, prompt, 100));
    CHECK(is_right(c, prompt, 60));
    s = stats_of(&g);
    CHECK_EQ(s.prompt_computed, 101); /* every row once, and the last of c */
    CHECK_EQ(b->usage.n_cached, 30);
    CHECK_EQ(c->usage.n_cached, 59);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    rig_close(&g);
}

TEST(a_slow_reader_pauses_only_itself_and_a_pop_resumes_it)
{
    struct rig g;
    struct request *slow, *other;
    int32_t prompt[2][10], out[MAX_OUT], want[MAX_OUT];
    struct token_logprob top[20];
    struct token_out t;
    uint32_t n = 0;
    bool was_full;

    CHECK(rig_open(&g, 200, 16, 4, 16, 32));
    make_prompt(prompt[0], 10, 1);
    make_prompt(prompt[1], 10, 2);
    CHECK(slow = submit(&g, prompt[0], 10, (struct ask){.max_tokens = 20, .ring_cap = 4}));
    CHECK(other = submit(&g, prompt[1], 10, (struct ask){.max_tokens = 40}));
    run_to_end(&g, other);
    CHECK(is_right(other, prompt[1], 10));
    CHECK_EQ(slow->n_generated, 4);
    CHECK(!step(&g)); /* nothing to do: the thread would sleep */
    CHECK(request_pop(slow, &t, top, &was_full));
    CHECK(was_full);
    out[n++] = t.token;
    CHECK(step(&g));
    CHECK(!step(&g));
    CHECK_EQ(slow->n_generated, 5);
    while (!ended(slow)) {
        n = read_ring(slow, out, n);
        step(&g);
    }
    n = read_ring(slow, out, n);
    expected(prompt[0], 10, want, 20);
    CHECK_EQ(n, 20);
    CHECK(memcmp(out, want, 20 * sizeof(out[0])) == 0);
    request_unref(slow);
    request_unref(other);
    rig_close(&g);
}

TEST(pages_are_taken_from_a_paused_request_before_a_running_one)
{
    struct rig g;
    struct request *slow, *other;
    int32_t prompt[2][10];

    CHECK(rig_open(&g, 16, 4, 4, 16, 32));
    make_prompt(prompt[0], 10, 1);
    make_prompt(prompt[1], 10, 2);
    CHECK(slow = submit(&g, prompt[0], 10, (struct ask){.max_tokens = 20, .ring_cap = 8, .uncached = true}));
    for (int i = 0; i < 10; i++) step(&g);
    CHECK(other = submit(&g, prompt[1], 10, (struct ask){.max_tokens = 48, .uncached = true}));
    run_to_end(&g, other); /* needs 15 of the 16 pages */
    CHECK(is_right(other, prompt[1], 10));
    CHECK_EQ(stats_of(&g).n_preempted, 1);
    CHECK_EQ(slow->n_generated, 8);
    request_cancel(slow, CANCEL_GONE);
    run_to_end(&g, slow);
    request_unref(slow);
    request_unref(other);
    rig_close(&g);
}

TEST(a_cancel_in_any_state_ends_once)
{
    enum { QUEUED, WAITING, PREFILL, DECODE, N };
    struct rig g;
    struct request *r[N];
    int32_t prompt[100], other[60];
    uint32_t n_wakes[N] = {0};
    struct engine_stats s;

    CHECK(rig_open(&g, 200, 16, 2, 16, 10));
    make_prompt(prompt, 100, 1);
    make_prompt(other, 60, 2);
    CHECK(r[DECODE] = submit(&g, other, 10, (struct ask){.max_tokens = 1000}));
    for (int i = 0; i < 5; i++) step(&g);
    CHECK(r[PREFILL] = submit(&g, prompt, 100, (struct ask){.max_tokens = 5, .n_end_wakes = &n_wakes[PREFILL]}));
    step(&g);
    r[WAITING] = submit(&g, prompt, 90, (struct ask){.max_tokens = 5, .n_end_wakes = &n_wakes[WAITING]});
    r[QUEUED] = submit(&g, other, 60, (struct ask){.max_tokens = 5, .n_end_wakes = &n_wakes[QUEUED]});
    CHECK(r[WAITING] && r[QUEUED]);
    step(&g);
    s = stats_of(&g);
    CHECK_EQ(s.n_decode, 1);
    CHECK_EQ(s.n_prefill, 1);
    CHECK_EQ(s.n_queued + s.n_waiting, 2);
    for (int i = 0; i < N; i++) {
        request_cancel(r[i], CANCEL_GONE);
        request_cancel(r[i], CANCEL_GONE);
        step(&g);
        CHECK(ended(r[i]));
        CHECK_EQ(r[i]->finish, REQUEST_CANCELLED);
        CHECK_EQ(r[i]->status, RD_E_CANCELLED);
        if (i != DECODE) CHECK_EQ(n_wakes[i], 1);
        CHECK_EQ(stats_of(&g).n_cancelled, i + 1);
        request_cancel(r[i], CANCEL_SATISFIED); /* after the end: nothing */
        step(&g);
        CHECK_EQ(r[i]->finish, REQUEST_CANCELLED);
        request_unref(r[i]);
    }
    rig_close(&g);
}

TEST(a_cancel_and_the_end_in_one_step_end_it_once)
{
    struct rig g;
    struct request *r;
    int32_t prompt[10];

    CHECK(rig_open(&g, 200, 16, 2, 16, 32));
    make_prompt(prompt, 10, 1);
    for (int late = 0; late < 2; late++) {
        CHECK(r = submit(&g, prompt, 10, (struct ask){.max_tokens = 5}));
        while (r->n_generated < 4) step(&g);
        if (!late) request_cancel(r, CANCEL_GONE);
        step(&g);
        request_cancel(r, CANCEL_GONE);
        step(&g);
        CHECK_EQ(r->finish, late ? REQUEST_LENGTH : REQUEST_CANCELLED);
        CHECK_EQ(stats_of(&g).n_cancelled, 1);
        CHECK_EQ(stats_of(&g).n_length, late);
        request_unref(r);
    }
    CHECK(r = submit(&g, prompt, 10, (struct ask){.max_tokens = 50}));
    while (r->n_generated < 4) step(&g);
    request_cancel(r, CANCEL_SATISFIED); /* a stop string was found */
    step(&g);
    CHECK_EQ(r->finish, REQUEST_STOP);
    CHECK_OK(r->status);
    request_unref(r);
    rig_close(&g);
}

TEST(unused_entries_expire_and_clock_jumps_do_no_harm)
{
    struct rig g;
    struct request *r;
    int32_t prompt[40];

    CHECK(rig_open(&g, 200, 16, 2, 16, 32));
    make_prompt(prompt, 40, 1);
    CHECK(r = submit(&g, prompt, 40, (struct ask){.max_tokens = 5}));
    run_to_end(&g, r);
    request_unref(r);
    clock_fake_advance(g.clock, 5000000000ull);
    step(&g);
    CHECK(stats_of(&g).pages_ready > 0); /* half of the TTL */
    clock_fake_advance(g.clock, 7000000000ull);
    step(&g);
    CHECK_EQ(stats_of(&g).pages_ready, 0);
    CHECK(r = submit(&g, prompt, 40, (struct ask){.max_tokens = 50}));
    for (int i = 0; !ended(r); i++) {
        step(&g);
        if (i == 10) clock_fake_advance(g.clock, 1000000000000000000ull); /* 31 years */
    }
    CHECK(is_right(r, prompt, 40));
    request_unref(r);
    CHECK_EQ(stats_of(&g).accounting_errors, 0);
    rig_close(&g);
}

static uint32_t cached_tokens(struct rig *g, const int32_t *prompt, uint32_t n)
{
    struct request *r = submit(g, prompt, n, (struct ask){.max_tokens = 2});
    uint32_t n_cached;

    if (!r) return 0;
    run_to_end(g, r);
    if (!is_right(r, prompt, n)) test_fail(__FILE__, __LINE__, "wrong output");
    n_cached = r->usage.n_cached;
    request_unref(r);
    return n_cached;
}

TEST(what_is_stored_whole_is_not_computed_again)
{
    struct rig g;
    struct request *r;
    int32_t prompt[50];
    uint64_t n_forward;

    CHECK(rig_open(&g, 64, 16, 4, 16, 32));
    make_prompt(prompt, 40, 1);
    CHECK(r = submit(&g, prompt, 40, (struct ask){.max_tokens = 9}));
    run_to_end(&g, r);
    CHECK(is_right(r, prompt, 40));
    n_forward = g.x.n_forward;
    for (int i = 0; i < 8; i++) prompt[40 + i] = (int32_t)r->seq.keys[40 + i];
    request_unref(r);
    for (uint32_t n = 40; n <= 48; n += 8) { /* the prompt, and the answer sent back: both ends are kept */
        CHECK(r = submit(&g, prompt, n, (struct ask){.max_tokens = 1}));
        run_to_end(&g, r);
        CHECK(is_right(r, prompt, n));
        CHECK_EQ(r->usage.n_cached, n);
        CHECK_EQ(r->n_prompt_computed, 0);
        request_unref(r);
    }
    CHECK_EQ(g.x.n_forward, n_forward);
    CHECK_EQ(g.x.n_heads, 2);
    CHECK(r = submit(&g, prompt, 44, (struct ask){.max_tokens = 3})); /* ends inside the answer: one token to compute */
    run_to_end(&g, r);
    CHECK(is_right(r, prompt, 44));
    CHECK_EQ(r->usage.n_cached, 43);
    request_unref(r);
    rig_close(&g);
}

/* Tokens of the prompt that came from the cache of one salt (0: of none). */
static uint32_t cached_with_salt(struct rig *g, const int32_t *prompt, uint32_t n, uint64_t salt)
{
    struct request *r = submit(g, prompt, n, (struct ask){.max_tokens = 2, .salt = salt});
    uint32_t n_cached;

    if (!r) return 0;
    run_to_end(g, r);
    if (r->status != RD_OK) test_fail(__FILE__, __LINE__, "%s", rd_status_name(r->status));
    n_cached = r->usage.n_cached;
    request_unref(r);
    return n_cached;
}

TEST(another_salt_shares_nothing)
{
    struct rig g;
    int32_t prompt[40];

    CHECK(rig_open(&g, 64, 16, 4, 16, 32));
    make_prompt(prompt, 40, 1);
    for (uint64_t salt = 0; salt < 3; salt++) CHECK_EQ(cached_with_salt(&g, prompt, 40, salt), 0);
    for (uint64_t salt = 0; salt < 3; salt++) CHECK_EQ(cached_with_salt(&g, prompt, 40, salt), 40);
    CHECK_EQ(radix_counts(g.e->cache.tree).n_namespaces, 3);
    engine_clear_cache(g.e);
    clock_fake_advance(g.clock, 2000000000);
    CHECK_EQ(cached_with_salt(&g, prompt, 40, 0), 0);
    CHECK_EQ(radix_counts(g.e->cache.tree).n_namespaces, 1); /* those that hold nothing are forgotten */
    rig_close(&g);
}

TEST(a_public_prompt_is_found_under_every_salt_and_nothing_behind_it)
{
    enum { PUBLIC = 37, N = 60 }; /* ends inside a page */
    struct rig g;
    int32_t prompt[N], other[N];

    CHECK(rig_open(&g, 64, 16, 4, 16, 32));
    make_prompt(prompt, N, 1);
    memcpy(other, prompt, sizeof(prompt));
    other[PUBLIC] = (prompt[PUBLIC] + 1) % (int32_t)SIM_VOCAB;
    g.x.public_tokens = PUBLIC;
    CHECK_OK(public_prefix_add(g.e, (const kv_key *)prompt, PUBLIC));
    CHECK_OK(public_prefix_add(g.e, (const kv_key *)prompt, PUBLIC)); /* once more is nothing new */
    CHECK_EQ(cached_with_salt(&g, prompt, N, 1), 0);                  /* computed by one of them, for all of them */
    CHECK_EQ(cached_with_salt(&g, prompt, N, 2), PUBLIC);
    CHECK_EQ(cached_with_salt(&g, other, N, 3), PUBLIC);
    CHECK_EQ(cached_with_salt(&g, prompt, N, 0), PUBLIC);
    CHECK_EQ(cached_with_salt(&g, prompt, N, 2), N);
    CHECK_EQ(cached_with_salt(&g, prompt, 20, 4), 19); /* a part of it: but for the token that gives logits */
    CHECK_EQ(cached_with_salt(&g, prompt, PUBLIC, 5), PUBLIC - 1);
    CHECK_EQ(engine_check(g.e, NULL), RD_OK);
    engine_clear_cache(g.e);
    CHECK_EQ(cached_with_salt(&g, other, N, 2), 0);
    CHECK_EQ(cached_with_salt(&g, prompt, N, 3), PUBLIC);
    rig_close(&g);
}

TEST(another_adapter_shares_nothing_not_even_what_is_public)
{
    enum { PUBLIC = 37, N = 60 };
    const uint64_t adapters[] = {0, SIM_ADAPTER, 2 * SIM_ADAPTER};
    struct rig g;
    int32_t prompt[N];

    CHECK(rig_open(&g, 96, 16, 4, 16, 32));
    make_prompt(prompt, N, 1);
    g.x.public_tokens = PUBLIC;
    CHECK_OK(public_prefix_add(g.e, (const kv_key *)prompt, PUBLIC));
    for (uint32_t i = 0; i < 3; i++) { /* each computes it once, for its own salts alone */
        CHECK_EQ(cached_with_salt(&g, prompt, N, adapters[i] + 1), 0);
        CHECK_EQ(cached_with_salt(&g, prompt, N, adapters[i] + 2), PUBLIC);
        CHECK_EQ(cached_with_salt(&g, prompt, N, adapters[i]), PUBLIC);
        CHECK_EQ(cached_with_salt(&g, prompt, N, adapters[i]), N);
        CHECK_EQ(engine_check(g.e, NULL), RD_OK);
    }
    CHECK_EQ(radix_counts(g.e->cache.tree).n_namespaces, 9);
    rig_close(&g);
}

TEST(a_prompt_is_of_tokens)
{
    struct rig g;
    struct rd_error err = {0};
    struct request_params p = {.max_tokens = 1, .max_keys = 100};
    struct request *r = NULL;
    int32_t prompt[10];

    CHECK(rig_open(&g, 64, 16, 4, 16, 32));
    make_prompt(prompt, 10, 1);
    prompt[7] = -5;
    sampler_params_default(&p.sampling);
    CHECK_EQ(request_create(&p, engine_cache(g.e), SIM_VOCAB, prompt, 10, &r, &err), RD_E_INVALID);
    CHECK_STR(err.text, "key 7 of the prompt is a row of no image");
    CHECK(!key_is_token(KV_KEY_ROW) && key_is_token(KV_KEY_ROW - 1) && key_token(token_key(INT32_MAX)) == INT32_MAX);
    rig_close(&g);
}

TEST(a_public_prompt_needs_memory_and_a_place_in_the_list)
{
    struct rig g;
    int32_t prompt[50];
    uint64_t n_alive;

    CHECK(rig_open(&g, 64, 16, 4, 16, 32));
    make_prompt(prompt, 50, 1);
    n_alive = mem_n_alive();
    for (int i = 0; i < 2; i++) { /* the table, then the pages */
        mem_fail_after(i);
        CHECK_EQ(public_prefix_add(g.e, (const kv_key *)prompt, 40), RD_E_NOMEM);
        mem_fail_after(-1);
    }
    CHECK_OK(public_prefix_add(g.e, (const kv_key *)prompt, 40));
    CHECK(mem_n_alive() > n_alive);
    for (uint32_t i = 1; i < LIMIT_PUBLIC_PREFIXES; i++) {
        prompt[0] = (int32_t)i;
        prompt[1] = (int32_t)(i * 7 + 1);
        CHECK_OK(public_prefix_add(g.e, (const kv_key *)prompt, 2));
    }
    prompt[0] = prompt[1] = 3000;
    CHECK_EQ(public_prefix_add(g.e, (const kv_key *)prompt, 2), RD_E_LIMIT);
    rig_close(&g);
}

TEST(a_head_that_fails_ends_only_its_own_requests)
{
    struct rig g;
    struct request *r, *other;
    int32_t prompt[40], stranger[10];

    CHECK(rig_open(&g, 64, 16, 4, 16, 32));
    make_prompt(prompt, 40, 1);
    make_prompt(stranger, 10, 2);
    CHECK_EQ(cached_tokens(&g, prompt, 40), 0);
    CHECK(other = submit(&g, stranger, 10, (struct ask){.max_tokens = 20}));
    step(&g);
    CHECK(r = submit(&g, prompt, 40, (struct ask){.max_tokens = 5}));
    g.x.fail_next_head = true;
    run_to_end(&g, r);
    CHECK_EQ(r->status, RD_E_DEVICE);
    run_to_end(&g, other);
    CHECK(is_right(other, stranger, 10));
    CHECK_EQ(cached_tokens(&g, prompt, 40), 40);
    request_unref(r);
    request_unref(other);
    rig_close(&g);
}

/* Fills the pool with strangers so that everything evictable goes. */
static void press(struct rig *g, uint64_t seed)
{
    int32_t other[80];

    for (uint64_t i = 0; i < 10; i++) {
        struct request *r;

        make_prompt(other, 80, seed + i);
        CHECK(r = submit(g, other, 80, (struct ask){.max_tokens = 5}));
        run_to_end(g, r);
        CHECK(is_right(r, other, 80));
        request_unref(r);
    }
}

TEST(a_held_path_survives_pressure_and_goes_when_it_is_let_go)
{
    struct rig g;
    struct request *r;
    int32_t prompt[41];
    struct radix_node *held;

    CHECK(rig_open(&g, 40, 4, 2, 16, 32));
    make_prompt(prompt, 41, 1);
    CHECK(r = submit(&g, prompt, 41, (struct ask){.hold = true}));
    run_to_end(&g, r);
    CHECK_OK(r->status);
    CHECK(held = r->held);
    request_unref(r);
    press(&g, 10);
    engine_clear_cache(g.e);
    CHECK_EQ(cached_tokens(&g, prompt, 41), 41);
    kv_unhold(engine_cache(g.e), held);
    press(&g, 20);
    CHECK_EQ(cached_tokens(&g, prompt, 41), 0);
    rig_close(&g);
}

TEST(what_can_never_fit_beside_handles_is_refused_and_not_waited_for)
{
    struct rig g;
    struct request *r;
    int32_t prompt[41], other[60];
    struct radix_node *held;

    CHECK(rig_open(&g, 20, 4, 2, 16, 32));
    make_prompt(prompt, 41, 1);
    make_prompt(other, 60, 2);
    CHECK(r = submit(&g, prompt, 41, (struct ask){.hold = true}));
    run_to_end(&g, r);
    CHECK(held = r->held);
    request_unref(r);
    CHECK(r = submit(&g, other, 60, (struct ask){.max_tokens = 2}));
    run_to_end(&g, r);
    CHECK_EQ(r->status, RD_E_NO_PAGES);
    request_unref(r);
    kv_unhold(engine_cache(g.e), held);
    CHECK_EQ(cached_tokens(&g, other, 60), 0);
    rig_close(&g);
}

TEST(a_device_error_ends_only_what_it_touched)
{
    struct rig g;
    struct request *a, *b;
    int32_t before[40], prompt[2][40];

    CHECK(rig_open(&g, 200, 16, 1, 16, 64));
    make_prompt(before, 40, 1);
    make_prompt(prompt[0], 40, 2);
    make_prompt(prompt[1], 40, 3);
    CHECK_EQ(cached_tokens(&g, before, 40), 0);
    CHECK(a = submit(&g, prompt[0], 40, (struct ask){.max_tokens = 20}));
    CHECK(b = submit(&g, prompt[1], 40, (struct ask){.max_tokens = 20}));
    for (int i = 0; i < 3; i++) step(&g);
    CHECK_EQ(a->n_generated, 3);
    g.x.fail_next = true;
    step(&g);
    CHECK(ended(a));
    CHECK_EQ(a->finish, REQUEST_ERROR);
    CHECK_EQ(a->status, RD_E_DEVICE);
    run_to_end(&g, b);
    CHECK(is_right(b, prompt[1], 40));
    CHECK_EQ(stats_of(&g).device_errors, 1);
    CHECK_EQ(stats_of(&g).n_failed, 1);
    CHECK_EQ(cached_tokens(&g, before, 40), 40);
    request_unref(a);
    request_unref(b);
    rig_close(&g);
}

TEST(a_device_that_failed_for_good_is_told)
{
    struct rig g;
    struct request *r;
    int32_t prompt[2][40];

    CHECK(rig_open(&g, 200, 16, 1, 16, 64));
    for (int i = 0; i < 2; i++) {
        make_prompt(prompt[i], 40, 1 + i);
        CHECK(r = submit(&g, prompt[i], 40, (struct ask){.max_tokens = 20}));
        g.x.fail_next = true;
        g.x.is_dead = i == 1;
        step(&g);
        CHECK(ended(r));
        CHECK_EQ(r->status, RD_E_DEVICE);
        CHECK_EQ(stats_of(&g).device_dead, i);
        request_unref(r);
    }
    rig_close(&g);
}

TEST(invalid_numbers_end_one_request_and_are_not_stored)
{
    struct rig g;
    struct request *a, *b, *waiter;
    int32_t prompt[2][40];

    CHECK(rig_open(&g, 200, 16, 4, 16, 128));
    make_prompt(prompt[0], 40, 1);
    make_prompt(prompt[1], 40, 2);
    CHECK(a = submit(&g, prompt[0], 40, (struct ask){.max_tokens = 20}));
    CHECK(waiter = submit(&g, prompt[0], 40, (struct ask){.max_tokens = 20}));
    CHECK(b = submit(&g, prompt[1], 40, (struct ask){.max_tokens = 20}));
    g.x.broken = a;
    run_to_end(&g, b);
    CHECK(is_right(b, prompt[1], 40));
    CHECK_EQ(a->finish, REQUEST_ERROR);
    CHECK_EQ(a->status, RD_E_MODEL_OUTPUT);
    run_to_end(&g, waiter);
    CHECK(is_right(waiter, prompt[0], 40));
    CHECK_EQ(waiter->usage.n_cached, 0); /* computed by itself, not taken from the broken one */
    request_unref(a);
    request_unref(waiter);
    g.x.broken = NULL;
    engine_clear_cache(g.e);
    CHECK(a = submit(&g, prompt[0], 40, (struct ask){.max_tokens = 20}));
    for (int i = 0; i < 5; i++) step(&g);
    CHECK_EQ(a->n_generated, 5);
    g.x.broken = a;
    step(&g);
    CHECK_EQ(a->status, RD_E_MODEL_OUTPUT);
    CHECK_EQ(a->usage.n_generated, 5);
    request_unref(a);
    request_unref(b);
    rig_close(&g);
}

TEST(a_prompt_beside_others_is_cut_to_the_target_time_whatever_short_prompts_took)
{
    int32_t prompt[3900];
    uint64_t longest = 0;
    struct request *r[2];
    struct rig g;

    CHECK(rig_open(&g, 600, 16, 4, 8, 4096));
    g.x.clock = g.clock;
    g.x.step_ns = 5000000, g.x.row_ns = 100000; /* a step takes 5 ms and 0.1 ms a row; 100 ms are the target */
    make_prompt(prompt, 3900, 1);
    r[0] = submit(&g, prompt, 20, (struct ask){.max_tokens = 60});
    for (int i = 0; i < 3; i++) step(&g); /* 20 rows in 7 ms: 286 in the target time? */
    r[1] = submit(&g, prompt + 1, 3899, (struct ask){.max_tokens = 1});
    while (!ended(r[1])) {
        step(&g);
        if (g.e->stats.step_ns_last > longest) longest = g.e->stats.step_ns_last;
    }
    CHECK(longest > 80000000 && longest < 110000000);
    run_to_end(&g, r[0]);
    for (int i = 0; i < 2; i++) request_unref(r[i]);
    rig_close(&g);
}

TEST(the_first_long_prompt_is_cut_beside_others_though_nobody_knows_what_prompts_take)
{
    int32_t prompt[900];
    uint64_t longest = 0;
    struct request *r[2];
    struct rig g;

    CHECK(rig_open(&g, 200, 16, 4, 8, 1024));
    g.x.clock = g.clock;
    g.x.step_ns = 5000000, g.x.row_ns = 1000000; /* 900 rows would take 905 ms; 100 ms are the target */
    make_prompt(prompt, 900, 1);
    r[0] = submit(&g, prompt, 4, (struct ask){.max_tokens = 60}); /* too short to tell */
    for (int i = 0; i < 3; i++) step(&g);
    r[1] = submit(&g, prompt + 1, 899, (struct ask){.max_tokens = 1});
    while (!ended(r[1])) {
        step(&g);
        if (g.e->stats.step_ns_last > longest) longest = g.e->stats.step_ns_last;
    }
    CHECK(longest < 110000000);
    run_to_end(&g, r[0]);
    for (int i = 0; i < 2; i++) request_unref(r[i]);
    rig_close(&g);
}

TEST(a_stop_ends_requests_of_every_state_once)
{
    enum { N = 5 };
    struct rig g;
    struct request *r[N];
    int32_t prompt[100], other[60];
    uint32_t n_wakes[N] = {0};
    rd_status st;

    CHECK(rig_open(&g, 200, 16, 2, 16, 10));
    make_prompt(prompt, 100, 1);
    make_prompt(other, 60, 2);
    CHECK(r[0] = submit(&g, other, 10, (struct ask){.max_tokens = 1000}));
    for (int i = 0; i < 5; i++) step(&g);
    CHECK(r[1] = submit(&g, prompt, 100, (struct ask){.max_tokens = 5, .n_end_wakes = &n_wakes[1]}));
    CHECK(r[2] = submit(&g, prompt, 90, (struct ask){.max_tokens = 5, .n_end_wakes = &n_wakes[2]}));
    CHECK(r[3] = submit(&g, other, 60, (struct ask){.max_tokens = 5, .n_end_wakes = &n_wakes[3]}));
    step(&g);
    CHECK(r[4] = submit(&g, other, 60,
                        (struct ask){.max_tokens = 5, .n_end_wakes = &n_wakes[4]})); /* still in the inbox */
    engine_stop(g.e);
    engine_stop(g.e);
    for (int i = 0; i < N; i++) {
        CHECK(ended(r[i]));
        CHECK_EQ(r[i]->finish, REQUEST_ERROR);
        CHECK_EQ(r[i]->status, RD_E_CLOSED);
        if (i > 0) CHECK_EQ(n_wakes[i], 1);
    }
    CHECK_EQ(stats_of(&g).n_failed, N);
    CHECK(!try_submit(&g, other, 10, (struct ask){.max_tokens = 1}, &st));
    CHECK_EQ(st, RD_E_CLOSED);
    CHECK_EQ(engine_submit(g.e, r[0]), RD_E_CLOSED);
    for (int i = 0; i < N; i++) request_unref(r[i]);
    rig_close(&g);
}

static rd_status create_one(struct engine **e, struct request **r)
{
    static const int32_t prompt[3] = {1, 2, 3};
    struct sim_executor x = {0};
    struct engine_options o = {.executor = sim_view(&x, 8, 4),
                               .clock = clock_system(),
                               .n_pages = 8,
                               .page_tokens = 4,
                               .n_ctx = 32,
                               .max_running = 4,
                               .max_queue = 4,
                               .max_chunk = 8,
                               .step_target_ns = 1,
                               .kv_bytes = 1 << 20,
                               .namespace_name = "sim",
                               .namespace_bytes = 3};
    struct rd_bias bias = {1, 1};
    struct request_params p = {.max_tokens = 4, .max_keys = 32, .prompt_logprobs = true};
    rd_status st = engine_create(&o, e);

    if (st != RD_OK) return st;
    sampler_params_default(&p.sampling);
    p.sampling.n_top_logprobs = 3;
    p.sampling.presence_penalty = 1;
    p.sampling.bias = &bias;
    p.sampling.n_bias = 1;
    st = request_create(&p, engine_cache(*e), SIM_VOCAB, prompt, 3, r, NULL);
    if (st != RD_OK) engine_destroy(*e);
    return st;
}

TEST(every_failed_allocation_of_create_is_a_clean_error)
{
    uint64_t alive = mem_n_alive();
    int64_t i = 0;

    for (rd_status st = RD_E_NOMEM; st != RD_OK; i++) {
        struct engine *e = NULL;
        struct request *r = NULL;

        mem_fail_after(i);
        st = create_one(&e, &r);
        mem_fail_after(-1);
        if (st == RD_OK) {
            request_unref(r);
            engine_destroy(e);
        } else {
            CHECK_EQ(st, RD_E_NOMEM);
        }
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK(i > 20);
}
