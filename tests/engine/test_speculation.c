/* tests/engine/test_speculation.c - drafts: found where text repeats, taken when they pay, and never seen in the
 * output. */
#include "base/log.h"
#include "base/mem.h"
#include "engine/draft_index.h"
#include "sim_executor.h"
#include "test.h"

#define N_TEXT 3000u

/* ---- the index, against looking everywhere ---- */

static void make_text(kv_key *text, uint32_t n, uint32_t n_kinds, uint64_t seed)
{
    struct random r;

    random_init(&r, seed);
    for (uint32_t i = 0; i < n; i++) text[i] = (kv_key)random_below(&r, n_kinds);
}

static uint32_t agreement(const kv_key *text, uint32_t at, uint32_t n)
{
    uint32_t k = 0;

    while (k < DRAFT_MAX_MATCH && k <= at && text[at - k] == text[n - 1 - k]) k++;
    return k;
}

TEST(a_draft_is_what_followed_the_longest_agreement)
{
    static kv_key text[N_TEXT];
    struct draft_index *x;
    uint32_t n_found = 0;

    make_text(text, N_TEXT, 12, test_seed());
    CHECK_OK(draft_index_create(N_TEXT, &x));
    for (uint32_t n = 1; n < N_TEXT; n++) {
        kv_key draft[8];
        uint32_t n_draft, got, best = 0;

        draft_index_append(x, text + n - 1, 1);
        got = draft_index_find(x, true, text, n, 8, draft, &n_draft);
        for (uint32_t at = 0; at + 1 < n; at++) best = agreement(text, at, n) > best ? agreement(text, at, n) : best;
        if (best < DRAFT_MIN_MATCH) {
            CHECK_EQ(got, 0);
            continue;
        }
        n_found += got == best; /* it looks at a bounded number of places */
        CHECK(got <= best && n_draft > 0);
        for (uint32_t at = 0, seen = 0; at + 1 < n && !seen; at++) {
            seen = agreement(text, at, n) == got && memcmp(text + at + 1, draft, n_draft * sizeof(*draft)) == 0;
            if (at + 2 == n) CHECK(seen);
        }
    }
    CHECK(n_found > N_TEXT / 2);
    draft_index_destroy(x);
}

TEST(a_full_ring_forgets_the_oldest_and_never_makes_things_up)
{
    static kv_key text[N_TEXT];
    kv_key draft[8], tail[4] = {100, 101, 102, 103};
    struct draft_index *x;
    uint32_t n_draft;

    make_text(text, N_TEXT, 1000000, test_seed());
    CHECK_OK(draft_index_create(256, &x));
    draft_index_append(x, tail, 4);
    CHECK_EQ(draft_index_find(x, false, tail, 3, 8, draft, &n_draft), 3);
    CHECK_EQ(n_draft, 1);
    CHECK_EQ(draft[0], 103);
    draft_index_append(x, text, N_TEXT);
    CHECK_EQ(draft_index_find(x, false, tail, 3, 8, draft, &n_draft), 0);
    CHECK_EQ(draft_index_find(x, false, text, 100, 8, draft, &n_draft), 0);
    CHECK_EQ(draft_index_find(x, false, text, N_TEXT - 10, 8, draft, &n_draft), DRAFT_MAX_MATCH);
    CHECK_EQ(n_draft, 8);
    CHECK(memcmp(draft, text + N_TEXT - 10, sizeof(draft)) == 0);
    draft_index_clear(x);
    CHECK_EQ(draft_index_find(x, false, text, N_TEXT - 10, 8, draft, &n_draft), 0);
    draft_index_destroy(x);
}

TEST(texts_do_not_run_into_each_other)
{
    const kv_key a[5] = {1, 2, 3, 4, 5}, b[3] = {6, 7, 8};
    struct draft_index *x;
    kv_key draft[8];
    uint32_t n_draft;

    CHECK_OK(draft_index_create(64, &x));
    draft_index_append(x, a, 5);
    draft_index_separate(x);
    draft_index_append(x, b, 3);
    CHECK_EQ(draft_index_find(x, false, a, 3, 8, draft, &n_draft), 3);
    CHECK_EQ(n_draft, 2);
    CHECK_EQ(draft_index_find(x, false, a, 5, 8, draft, &n_draft), 0); /* nothing follows the end of a */
    draft_index_destroy(x);
}

/* ---- in the engine ---- */

struct rig {
    struct sim_executor x;
    struct engine *e;
    struct clock *clock;
};

static void ignore_line(void *arg, enum log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

/* A CHECK in a function that returns a value needs this one. */
static void want(bool ok, const char *what)
{
    if (!ok) test_fail(__FILE__, __LINE__, "%s", what);
}

static void rig_open(struct rig *g, bool speculate, uint64_t chunk_seed, uint64_t row_ns)
{
    struct engine_options o;

    log_set_sink(ignore_line, NULL);
    memset(g, 0, sizeof(*g));
    g->clock = clock_fake_create(1000000000, 1);
    CHECK(sim_init(&g->x, 256, 8, 7));
    o = (struct engine_options){.executor = sim_view(&g->x, 64, 64),
                                .clock = g->clock,
                                .n_pages = 256,
                                .page_tokens = 8,
                                .n_ctx = 1000,
                                .max_running = 8,
                                .max_queue = 16,
                                .max_chunk = 64,
                                .step_target_ns = 100000000,
                                .kv_bytes = 1 << 24,
                                .namespace_name = "sim",
                                .namespace_bytes = 3,
                                .speculate = speculate,
                                .chunk_seed = chunk_seed};
    CHECK_OK(engine_create(&o, &g->e));
    g->x.engine = g->e;
    g->x.clock = g->clock;
    g->x.step_ns = 1000000;
    g->x.row_ns = row_ns;
}

static void rig_close(struct rig *g)
{
    CHECK_EQ(g->x.n_wrong_rows, 0);
    engine_destroy(g->e);
    clock_fake_destroy(g->clock);
    sim_deinit(&g->x);
}

/* Generates n tokens after the prompt, step by step; returns how many came. */
static uint32_t generate_with(struct rig *g, const int32_t *prompt, uint32_t n_prompt,
                              const struct sampler_params *sampling, bool off, uint32_t n, int32_t *out,
                              uint32_t *n_steps)
{
    struct request_params p = {
        .sampling = *sampling, .cached = true, .max_tokens = n, .max_keys = 1000, .speculate = !off};
    struct token_logprob top[20];
    struct token_out t;
    struct request *r;
    uint32_t got = 0;
    bool was_full;

    want(engine_take_place(g->e) == RD_OK, "a place in the queue");
    want(request_create(&p, engine_cache(g->e), SIM_VOCAB, prompt, n_prompt, &r, NULL) == RD_OK, "a request");
    want(engine_submit(g->e, r) == RD_OK, "submit");
    for (*n_steps = 0; !atomic_load(&r->ended) && *n_steps < 10000; ++*n_steps) {
        struct rd_error err = {RD_OK, ""};

        engine_step(g->e);
        clock_fake_advance(g->clock, 1000000);
        want(engine_check(g->e, &err) == RD_OK, err.text);
        while (request_pop(r, &t, top, &was_full)) out[got++] = t.token;
    }
    while (request_pop(r, &t, top, &was_full)) out[got++] = t.token;
    request_unref(r);
    return got;
}

static uint32_t generate(struct rig *g, const int32_t *prompt, uint32_t n_prompt, float temperature, bool off,
                         uint32_t n, int32_t *out, uint32_t *n_steps)
{
    struct sampler_params p;

    sampler_params_default(&p);
    p.temperature = temperature;
    p.seed = 42;
    p.presence_penalty = 0.2f;
    return generate_with(g, prompt, n_prompt, &p, off, n, out, n_steps);
}

/* Stages whose outcome depends on what was written, and those with random numbers of their own. */
static void with_a_memory(struct sampler_params *p, int which)
{
    static const int32_t bad[] = {3, 4, 1, 5};
    static const uint32_t ends[] = {2, 3, 4};
    static const uint64_t breakers[(SIM_VOCAB + 63) / 64] = {1 << 6};

    sampler_params_default(p);
    p->seed = 42;
    p->temperature = which == 0 ? 0 : 0.7f;
    switch (which) {
    case 0:
    case 1:
        p->dry_multiplier = 0.8f;
        p->dry_breakers = breakers;
        break;
    case 2:
        p->mirostat = 2;
        break;
    case 3:
        p->xtc_probability = 0.5f;
        p->xtc_threshold = 0.01f;
        break;
    case 4:
        p->bad_words = (struct sampler_words){bad, ends, 3};
        break;
    case 5:
        p->repeat_last_n = 8;
        p->repetition_penalty = 1.3f;
        p->frequency_penalty = 0.3f;
        p->dynatemp_range = 0.3f;
        p->typical_p = 0.9f;
        break;
    default:
        p->mirostat = 2;
        p->dry_multiplier = 0.8f;
        p->frequency_penalty = 0.5f;
        break;
    }
}

TEST(samplers_with_a_memory_write_the_same_with_drafts_and_without)
{
    int32_t prompt[60], plain[120], drafted[120];
    struct engine_stats stats;
    uint32_t n, n_steps;
    uint64_t n_accepted = 0;

    for (uint32_t i = 0; i < 60; i++) prompt[i] = 1 + (int32_t)(i % 7);
    for (int which = 0; which < 7; which++) {
        struct sampler_params p;
        struct rig a, b;

        with_a_memory(&p, which);
        rig_open(&a, false, 0, 0);
        n = generate_with(&a, prompt, 60, &p, false, 100, plain, &n_steps);
        for (uint64_t seed = 1; seed < 12; seed++) {
            rig_open(&b, true, seed, 0);
            for (int again = 0; again < 3; again++) { /* later ones draft the first one's text */
                CHECK_EQ(generate_with(&b, prompt, 60, &p, false, 100, drafted, &n_steps), n);
                CHECK(memcmp(plain, drafted, n * sizeof(*plain)) == 0);
            }
            engine_get_stats(b.e, &stats);
            n_accepted += stats.draft_accepted;
            rig_close(&b);
        }
        rig_close(&a);
    }
    test_note("%u drafted tokens were right", (unsigned)n_accepted);
    CHECK(n_accepted > 1000);
}

TEST(drawn_text_is_the_same_with_drafts_without_and_with_drafts_of_any_length)
{
    int32_t prompt[60], plain[200], drafted[200];
    uint32_t n, n2, n_steps;

    for (uint32_t i = 0; i < 60; i++) prompt[i] = 1 + (int32_t)(i % 7);
    for (int temperature = 0; temperature < 3; temperature++) {
        struct rig a, b;

        rig_open(&a, false, 0, 0);
        n = generate(&a, prompt, 60, (float)temperature / 2, false, 150, plain, &n_steps);
        CHECK_EQ(n_steps, n);
        for (uint64_t seed = 1; seed < 40; seed++) {
            rig_open(&b, true, seed, 0);
            for (int again = 0; again < 3; again++) { /* later ones find the first one's text */
                n2 = generate(&b, prompt, 60, (float)temperature / 2, false, 150, drafted, &n_steps);
                CHECK_EQ(n2, n);
                CHECK(memcmp(plain, drafted, n * sizeof(*plain)) == 0);
            }
            rig_close(&b);
        }
        rig_close(&a);
    }
}

TEST(text_that_was_written_before_comes_in_fewer_steps_unless_it_was_asked_not_to)
{
    int32_t prompt[20], out[200];
    struct engine_stats s;
    uint32_t n_first, n_again, n_off;
    struct rig g;

    for (uint32_t i = 0; i < 20; i++) prompt[i] = 1 + (int32_t)i;
    rig_open(&g, true, 0, 20000);
    CHECK_EQ(generate(&g, prompt, 20, 0, false, 150, out, &n_first), 150);
    CHECK_EQ(generate(&g, prompt, 20, 0, false, 150, out, &n_again), 150);
    engine_get_stats(g.e, &s);
    CHECK(n_again < n_first / 4);
    CHECK(s.draft_accepted > 100);
    CHECK_EQ(generate(&g, prompt, 20, 0, true, 150, out, &n_off), 150);
    CHECK_EQ(n_off, 150);
    engine_clear_cache(g.e);
    CHECK_EQ(generate(&g, prompt, 20, 0, false, 150, out, &n_off), 150);
    CHECK(n_off > n_first / 2);
    rig_close(&g);
}

TEST(drafts_are_not_taken_where_a_row_costs_as_much_as_a_step)
{
    int32_t prompt[20], out[200];
    struct engine_stats s;
    uint32_t n_steps;
    struct rig g;

    for (uint32_t i = 0; i < 20; i++) prompt[i] = 1 + (int32_t)i;
    rig_open(&g, true, 0, 20000000);
    for (int i = 0; i < 4; i++) CHECK_EQ(generate(&g, prompt, 20, 0, false, 150, out, &n_steps), 150);
    engine_get_stats(g.e, &s);
    CHECK(s.drafted < 60); /* until the price is known */
    rig_close(&g);
}

TEST(drafts_that_are_always_wrong_are_given_up)
{
    int32_t prompt[64], out[512];
    struct engine_stats s;
    struct rig g;
    uint32_t n_steps, n = 0;

    rig_open(&g, true, 0, 20000000);
    for (uint64_t seed = 0; seed < 20; seed++) { /* the model is a hash: what followed elsewhere follows nowhere else */
        for (uint32_t i = 0; i < 64; i++) prompt[i] = 1 + (int32_t)((i * 5 + seed) % 3);
        n += generate(&g, prompt, 64, 1, false, 200, out, &n_steps);
    }
    engine_get_stats(g.e, &s);
    CHECK(s.drafted < n);
    rig_close(&g);
}

TEST(every_failed_allocation_leaves_plain_decoding)
{
    int32_t prompt[20], plain[64], out[64];
    uint32_t n_steps;
    struct rig g;

    for (uint32_t i = 0; i < 20; i++) prompt[i] = 1 + (int32_t)(i % 4);
    rig_open(&g, true, 3, 0);
    CHECK_EQ(generate(&g, prompt, 20, 0, true, 60, plain, &n_steps), 60);
    {
        struct request_params p = {.cached = true, .max_tokens = 60, .max_keys = 1000, .speculate = true};
        struct token_logprob top[20];
        struct token_out t;
        struct request *r;
        uint32_t got = 0;
        bool was_full;

        sampler_params_default(&p.sampling);
        p.sampling.temperature = 0;
        p.sampling.presence_penalty = 0.2f;
        CHECK_OK(engine_take_place(g.e));
        CHECK_OK(request_create(&p, engine_cache(g.e), SIM_VOCAB, prompt, 20, &r, NULL));
        CHECK_OK(engine_submit(g.e, r));
        mem_fail_from(0);
        while (!atomic_load(&r->ended)) engine_step(g.e);
        mem_fail_after(-1);
        while (request_pop(r, &t, top, &was_full)) out[got++] = t.token;
        CHECK_EQ(got, 60);
        CHECK_EQ(r->usage.n_drafted, 0);
        CHECK(memcmp(plain, out, sizeof(plain[0]) * 60) == 0);
        request_unref(r);
    }
    rig_close(&g);
}
