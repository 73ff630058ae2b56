/* tests/engine/test_records.c - requests one by one: the last that ended, those that are there, their gaps. */
#include <math.h>
#include <stdlib.h>
#include "base/random.h"
#include "base/thread.h"
#include "engine/engine_state.h"
#include "sim_rig.h"

static struct request *submit(struct sim_rig *g, uint32_t max_tokens, uint64_t id)
{
    struct request_params p = sim_params(max_tokens, 0);
    struct request *r;
    int32_t prompt[20];

    p.ignore_eos = true;
    p.label = "a label that is longer than what a record has room for";
    sim_prompt(prompt, 20, id);
    r = sim_submit(g->e, &p, prompt, 20);
    if (r) r->id = id;
    return r;
}

TEST(the_last_that_ended_are_kept_in_order)
{
    static struct rd_record out[RECORDS_ENDED + 10];
    const uint32_t n = RECORDS_ENDED + 40;
    uint64_t from = 0;
    struct sim_rig g;

    CHECK(sim_rig_open(&g));
    for (uint32_t i = 0; i < n; i++) {
        struct request *r = submit(&g, 1, i);

        while (!atomic_load(&r->ended)) sim_step(g.e);
        request_unref(r);
    }
    CHECK_EQ(engine_ended_requests(g.e, &from, out, RECORDS_ENDED + 10), RECORDS_ENDED);
    CHECK_EQ(from, n);
    for (uint32_t i = 0; i < RECORDS_ENDED; i++) {
        CHECK_EQ(out[i].number, 40 + i);
        CHECK_EQ(out[i].id, 40 + i);
        CHECK(out[i].ended && out[i].n_generated == 1 && out[i].n_prompt == out[i].n_computed + out[i].n_cached);
    }
    CHECK_EQ(strlen(out[0].label), RD_RECORD_LABEL - 1);
    CHECK_EQ(engine_ended_requests(g.e, &from, out, 10), 0);
    from = n - 3;
    CHECK_EQ(engine_ended_requests(g.e, &from, out, 2), 2);
    CHECK_EQ(from, n - 1);
    from = UINT64_MAX;
    CHECK_EQ(engine_ended_requests(g.e, &from, out, 2), 0);
    CHECK_EQ(from, n);
    sim_rig_close(&g);
}

TEST(those_that_are_there_are_listed_until_they_are_not)
{
    struct rd_record out[4];
    struct request *r[2];
    struct sim_rig g;

    CHECK(sim_rig_open(&g));
    CHECK_EQ(engine_running_requests(g.e, out, 4), 0);
    for (uint32_t i = 0; i < 2; i++) r[i] = submit(&g, 40, 10 + i);
    sim_step(g.e);
    CHECK_EQ(engine_running_requests(g.e, out, 4), 2);
    CHECK_EQ(engine_running_requests(g.e, out, 1), 1);
    CHECK_EQ(out[0].id, 10);
    CHECK_EQ(out[0].phase, RD_PHASE_DECODE);
    CHECK_EQ(out[0].max_tokens, 40);
    CHECK(!out[0].ended);
    clock_fake_advance(g.clock, 300000000);
    sim_step(g.e);
    CHECK_EQ(engine_running_requests(g.e, out, 4), 2);
    CHECK(out[0].n_generated > 1 && out[0].age_s > 0.29);
    request_cancel(r[0], CANCEL_GONE);
    request_cancel(r[1], CANCEL_GONE);
    sim_step(g.e);
    CHECK_EQ(engine_running_requests(g.e, out, 4), 0);
    for (uint32_t i = 0; i < 2; i++) request_unref(r[i]);
    sim_rig_close(&g);
}

TEST(one_is_cancelled_by_its_id_and_no_other)
{
    struct request *r[3];
    struct sim_rig g;

    CHECK(sim_rig_open(&g));
    for (uint32_t i = 0; i < 3; i++) r[i] = submit(&g, 40, 20 + i);
    CHECK_EQ(engine_cancel_request(g.e, 21), RD_E_NOT_FOUND); /* the engine has not looked at it yet */
    sim_step(g.e);
    CHECK_OK(engine_cancel_request(g.e, 21));
    sim_step(g.e);
    CHECK(atomic_load(&r[1]->ended) && r[1]->finish == REQUEST_CANCELLED);
    CHECK(!atomic_load(&r[0]->ended) && !atomic_load(&r[2]->ended));
    CHECK_EQ(engine_cancel_request(g.e, 21), RD_E_NOT_FOUND);
    for (uint32_t i = 0; i < 3; i++) {
        while (!atomic_load(&r[i]->ended)) {
            struct token_logprob top[20];
            struct token_out t;
            bool full;

            while (request_pop(r[i], &t, top, &full)) {}
            sim_step(g.e);
        }
        request_unref(r[i]);
    }
    sim_rig_close(&g);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

TEST(percentiles_of_gaps_are_within_their_step)
{
    static uint64_t gaps[4000];
    const double shares[] = {0.5, 0.9, 0.99};
    struct gaps g = {0};
    struct random r;

    random_init(&r, test_seed());
    CHECK(gaps_quantile(&g, 0.5) <= 0);
    for (uint32_t i = 0; i < 4000; i++) {
        gaps[i] = (uint64_t)ldexp(1 + (double)random_below(&r, 1000) / 1000, 14 + (int)random_below(&r, 18));
        gaps_add(&g, gaps[i]);
    }
    qsort(gaps, 4000, sizeof(gaps[0]), by_size);
    for (uint32_t i = 0; i < 3; i++) {
        double want = (double)gaps[(size_t)ceil(shares[i] * 4000) - 1], got = gaps_quantile(&g, shares[i]);

        CHECK(got > want * 0.93 && got < want * 1.07);
    }
    g = (struct gaps){0};
    gaps_add(&g, 0);
    gaps_add(&g, UINT64_MAX);
    CHECK(gaps_quantile(&g, 0.5) < 10000 && gaps_quantile(&g, 0.99) > 3e10);
}

static void write_many(void *arg)
{
    struct records *list = arg;
    struct rd_record d;

    memset(&d, 0, sizeof(d));
    for (uint32_t i = 1; i < 20000; i++) {
        d.id = d.number = i;
        d.n_prompt = d.n_generated = i;
        records_set_running(list, 0, &d);
        records_set_n_running(list, 1);
    }
}

/* One that is written over and over is read whole, or not at all. */
TEST(readers_see_whole_records)
{
    static struct records list;
    struct rd_record d;
    struct thread t;
    uint64_t last = 0;

    CHECK_OK(thread_start(&t, "writes", write_many, &list));
    while (last < 19999) {
        if (records_running(&list, &d, 1) == 0) continue;
        CHECK(d.id == d.number && d.n_prompt == d.n_generated && d.id == d.n_prompt && d.id >= last);
        last = d.id;
    }
    thread_join(&t);
}
