/* tests/engine/test_wrap.c - counters of 32 bits that run over their end while a server lives for years. (F80) */
#include <stdlib.h>
#include "engine/engine_state.h"
#include "sim_rig.h"

/* Both ends of a token ring count for ever; the ring's size is a power of two, so that places go on behind 2^32. */
TEST(a_token_ring_goes_on_behind_2_to_the_32)
{
    struct request *r = calloc(1, sizeof(*r));
    struct token_out entries[16];
    struct token_logprob top[20];
    struct random rnd;
    int32_t n_in = 0, n_out = 0;

    CHECK(r);
    random_init(&rnd, test_seed());
    r->ring = entries;
    r->ring_cap = 16;
    atomic_store(&r->n_pushed, UINT32_MAX - 10);
    atomic_store(&r->n_popped, UINT32_MAX - 10);
    for (int i = 0; i < 4000; i++) {
        struct sampler_result in = {.token = n_in};
        struct token_out t;
        bool was_full;

        if (random_below(&rnd, 2)) {
            CHECK_EQ(request_ring_full(r), n_in - n_out == 16);
            if (request_push(r, &in)) n_in++;
        } else if (request_pop(r, &t, top, &was_full)) {
            CHECK_EQ(t.token, n_out);
            CHECK_EQ(was_full, n_in - n_out == 16);
            n_out++;
        }
        CHECK_EQ(request_ring_room(r), 16 - (n_in - n_out));
    }
    CHECK(n_out > 1000);
    free(r);
}

/* The version of the published statistics is odd while they are written. */
TEST(statistics_are_whole_across_the_end_of_their_version)
{
    struct clock *clock = clock_fake_create(1, 0);
    struct sim_executor x;
    struct engine *e;
    struct engine_options o;

    CHECK(sim_init(&x, 60, 4, test_seed()));
    o = sim_options(sim_view(&x, 64, 8), clock, 60, 4);
    CHECK_OK(engine_create(&o, &e));
    x.engine = e;
    atomic_store(&e->stats_version, UINT32_MAX - 9);
    for (uint64_t k = 0; k < 20; k++) {
        struct request_params p = sim_params(1, 0);
        struct engine_stats s;
        int32_t prompt[4];
        struct request *r;

        sim_prompt(prompt, 4, k);
        r = sim_submit(e, &p, prompt, 4);
        CHECK(r);
        while (!atomic_load(&r->ended)) (void)sim_step(e);
        request_unref(r);
        engine_publish_stats(e);
        engine_get_stats(e, &s);
        CHECK_EQ(s.n_length + s.n_stop, k + 1);
        CHECK_EQ(s.n_queued, 0);
    }
    CHECK(atomic_load(&e->stats_version) < 1000); /* it did run over */
    engine_destroy(e);
    sim_deinit(&x);
    clock_fake_destroy(clock);
}
