/* tests/engine/test_meter.c - what the histograms say of a request, over the simulated model and a clock set by hand. */
#include "engine/engine_state.h"
#include "sim_rig.h"

#define MS 1000000ull

static struct request *submit(struct sim_rig *g, uint32_t max_tokens, uint32_t n_prompt, uint64_t text)
{
    struct request_params p = sim_params(max_tokens, 0);
    int32_t prompt[64];

    p.ignore_eos = true;
    sim_prompt(prompt, n_prompt, text);
    return sim_submit(g->e, &p, prompt, n_prompt);
}

static void wait_ms(struct sim_rig *g, uint64_t ms)
{
    clock_fake_advance(g->clock, ms * MS);
}

static struct rd_histogram of(const struct sim_rig *g, enum rd_histogram_id id)
{
    struct rd_histogram h;

    engine_get_histogram(g->e, id, &h);
    return h;
}

static bool is_about(double a, double b)
{
    return a > b * 0.999999 && a < b * 1.000001;
}

TEST(times_are_those_of_the_clock)
{
    struct rd_record record;
    uint64_t from = 0;
    struct sim_rig g;
    struct request *r;

    CHECK(sim_rig_open(&g));
    r = submit(&g, 3, 20, 1);
    wait_ms(&g, 30); /* queued */
    sim_step(g.e);   /* admitted, and its first token */
    wait_ms(&g, 2);
    sim_step(g.e);
    wait_ms(&g, 5);
    sim_step(g.e);
    CHECK(atomic_load(&r->ended));
    CHECK(is_about(of(&g, RD_HIST_QUEUE).sum, 0.030));
    CHECK(is_about(of(&g, RD_HIST_TTFT).sum, 0.030));
    CHECK_EQ(of(&g, RD_HIST_TTFT).count, 1);
    CHECK_EQ(of(&g, RD_HIST_INTER_TOKEN).count, 2);
    CHECK(is_about(of(&g, RD_HIST_INTER_TOKEN).sum, 0.007));
    CHECK(is_about(of(&g, RD_HIST_DECODE).sum, 0.007));
    CHECK(is_about(of(&g, RD_HIST_PER_TOKEN).sum, 0.0035));
    CHECK(is_about(of(&g, RD_HIST_DECODE_SPEED).sum, 285.714));
    CHECK(is_about(of(&g, RD_HIST_RUN).sum, 0.007));
    CHECK(is_about(of(&g, RD_HIST_E2E).sum, 0.037));
    CHECK_EQ(engine_ended_requests(g.e, &from, &record, 1), 1);
    CHECK(is_about(record.queue_ms, 30) && is_about(record.ttft_ms, 30) && is_about(record.total_ms, 37));
    CHECK(is_about(record.decode_ms, 7) && is_about(record.decode_tok_s, 2e3 / 7));
    CHECK(record.gap_p50_ms > 1.9 && record.gap_p50_ms < 2.1 && record.gap_p99_ms > 4.7 && record.gap_p99_ms < 5.3);
    CHECK_EQ((uint64_t)of(&g, RD_HIST_PROMPT_TOKENS).sum, 20);
    CHECK_EQ((uint64_t)of(&g, RD_HIST_COMPUTED_TOKENS).sum, 20);
    CHECK_EQ((uint64_t)of(&g, RD_HIST_GENERATED_TOKENS).sum, 3);
    CHECK_EQ((uint64_t)of(&g, RD_HIST_STEP_ROWS).sum, 22);
    CHECK_EQ(of(&g, RD_HIST_STEP_ROWS).count, 3);
    request_unref(r);
    sim_rig_close(&g);
}

TEST(the_clients_own_time_counts_from_its_call)
{
    struct request_params p = sim_params(1, 0);
    struct sim_rig g;
    struct request *r;
    int32_t prompt[8];

    CHECK(sim_rig_open(&g));
    p.asked_ns = clock_now_ns(g.clock);
    wait_ms(&g, 4); /* it is prepared */
    sim_prompt(prompt, 8, 1);
    r = sim_submit(g.e, &p, prompt, 8);
    wait_ms(&g, 10);
    sim_step(g.e);
    CHECK(is_about(of(&g, RD_HIST_PREPARE).sum, 0.004));
    CHECK(is_about(of(&g, RD_HIST_QUEUE).sum, 0.010));
    CHECK(is_about(of(&g, RD_HIST_TTFT).sum, 0.014));
    CHECK(is_about(of(&g, RD_HIST_E2E).sum, 0.014));
    request_unref(r);
    sim_rig_close(&g);
}

/* Cached tokens are those that were not computed; a prefix in the tree came from the device. */
TEST(a_hit_is_told_by_where_it_was)
{
    struct sim_rig g;
    struct request *r;
    struct engine_stats s;

    CHECK(sim_rig_open(&g));
    for (uint32_t i = 0; i < 2; i++) {
        r = submit(&g, 2, 21, 9);
        while (!atomic_load(&r->ended)) sim_step(g.e);
        request_unref(r);
    }
    engine_get_stats(g.e, &s);
    CHECK_EQ((uint64_t)of(&g, RD_HIST_PROMPT_TOKENS).sum, 42);
    CHECK_EQ(s.prompt_cached + s.prompt_computed, 42);
    CHECK_EQ((uint64_t)of(&g, RD_HIST_COMPUTED_TOKENS).sum, s.prompt_computed);
    CHECK(s.prompt_cached >= 20);
    CHECK_EQ(s.prompt_device, s.prompt_cached);
    sim_rig_close(&g);
}

TEST(a_cancelled_request_is_told_by_where_it_was_and_has_no_duration)
{
    struct engine_stats s;
    struct sim_rig g;
    struct request *decode, *queued;

    CHECK(sim_rig_open(&g));
    decode = submit(&g, 50, 20, 1);
    sim_step(g.e);
    queued = submit(&g, 50, 20, 2);
    request_cancel(queued, CANCEL_GONE);
    request_cancel(decode, CANCEL_GONE);
    sim_step(g.e);
    engine_get_stats(g.e, &s);
    CHECK_EQ(s.n_cancelled, 2);
    CHECK_EQ(s.n_cancelled_in[RD_PHASE_DECODE], 1);
    CHECK_EQ(s.n_cancelled_in[RD_PHASE_QUEUED], 1);
    CHECK_EQ(of(&g, RD_HIST_E2E).count, 0);
    CHECK_EQ(of(&g, RD_HIST_GENERATED_TOKENS).count, 0);
    CHECK_EQ(of(&g, RD_HIST_TTFT).count, 1);
    request_unref(decode);
    request_unref(queued);
    sim_rig_close(&g);
}

/* What waits by intent would tell of nobody's patience. */
TEST(idle_requests_and_continuations_have_tokens_and_no_times)
{
    struct sim_rig g;
    int32_t prompt[20];

    CHECK(sim_rig_open(&g));
    for (uint32_t i = 0; i < 2; i++) {
        struct request_params p = sim_params(2, 0);
        struct request *r;

        p.idle = i == 0;
        p.continues = i == 1;
        sim_prompt(prompt, 20, 70 + i);
        r = sim_submit(g.e, &p, prompt, 20);
        wait_ms(&g, 1000);
        while (!atomic_load(&r->ended)) sim_step(g.e);
        request_unref(r);
    }
    CHECK_EQ(of(&g, RD_HIST_TTFT).count + of(&g, RD_HIST_QUEUE).count + of(&g, RD_HIST_E2E).count, 0);
    CHECK_EQ(of(&g, RD_HIST_PROMPT_TOKENS).count, 2);
    sim_rig_close(&g);
}
