/* tests/support/sim_rig.c */
#include "sim_rig.h"

struct engine_options sim_options(struct executor executor, struct clock *clock, uint32_t n_pages, uint32_t page_tokens)
{
    return (struct engine_options){.executor = executor,
                                   .clock = clock,
                                   .n_pages = n_pages,
                                   .page_tokens = page_tokens,
                                   .n_ctx = 2048,
                                   .max_running = 8,
                                   .max_queue = 32,
                                   .max_chunk = 64,
                                   .step_target_ns = 100000000,
                                   .kv_bytes = 1 << 24,
                                   .namespace_name = "sim",
                                   .namespace_bytes = 3};
}

bool sim_rig_open(struct sim_rig *g)
{
    struct engine_options o;

    memset(g, 0, sizeof(*g));
    g->clock = clock_fake_create(1000000000, 1);
    if (!sim_init(&g->x, 256, 4, test_seed())) return false;
    o = sim_options(sim_view(&g->x, 64, 8), g->clock, 256, 4);
    if (engine_create(&o, &g->e) != RD_OK) return false;
    g->x.engine = g->e;
    return true;
}

void sim_rig_close(struct sim_rig *g)
{
    engine_destroy(g->e);
    CHECK_EQ(g->x.n_wrong_rows, 0);
    sim_deinit(&g->x);
    clock_fake_destroy(g->clock);
}

void sim_prompt(int32_t *prompt, uint32_t n, uint64_t text)
{
    for (uint32_t i = 0; i < n; i++) prompt[i] = 1 + (int32_t)(random_at(text, i) % (SIM_VOCAB - 1));
}

struct request_params sim_params(uint32_t max_tokens, uint64_t salt)
{
    struct request_params p = {.cached = true, .max_tokens = max_tokens, .max_keys = 2048};

    p.space = sim_space(salt);
    sampler_params_default(&p.sampling);
    p.sampling.temperature = 0;
    return p;
}

struct request *sim_submit(struct engine *e, const struct request_params *p, const int32_t *prompt, uint32_t n)
{
    struct request *r = NULL;

    if (engine_take_place(e) != RD_OK) return NULL;
    if (request_create(p, engine_cache(e), SIM_VOCAB, prompt, n, &r, NULL) == RD_OK && engine_submit(e, r) == RD_OK)
        return r;
    request_unref(r);
    engine_give_place(e);
    return NULL;
}

bool sim_step(struct engine *e)
{
    struct rd_error err = {RD_OK, ""};
    bool more = engine_step(e);

    if (engine_check(e, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
    return more;
}
