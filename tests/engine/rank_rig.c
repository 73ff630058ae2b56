/* tests/engine/rank_rig.c - see the header. */
#include "rank_rig.h"
#include <stdio.h>
#include <stdlib.h>
#include "backend/ranks.h"
#include "model/model_arch.h"

const uint32_t rank_numbers[5] = {1, 2, 3, 4, 8};

const char *rank_devices(uint32_t n_ranks)
{
    static char list[64];
    const char *set = getenv("RADISH_TEST_GPUS");
    const uint32_t n_gpus = set ? (uint32_t)strtoul(set, NULL, 10) : 1;
    size_t n = 0;

    if (!test_on_gpu()) return "cpu";
    for (uint32_t i = 0; i < u32_min(n_ranks, RANKS_MAX); i++)
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%u", i ? "," : "cuda:", i % n_gpus);
    return list;
}

struct executor_options rank_options(const struct model_file *f, uint32_t n_ranks, struct kv_types kv)
{
    enum join_way way = JOIN_AUTO;

    if (test_on_gpu() && !join_way_parse(getenv("RADISH_TEST_REDUCE"), &way))
        test_fail(__FILE__, __LINE__, "RADISH_TEST_REDUCE: auto, peer, nccl or host");
    return (struct executor_options){.file = f,
                                     .device = rank_devices(n_ranks),
                                     .n_threads = 2,
                                     .n_ranks = n_ranks,
                                     .join_way = way,
                                     .rank_patience_ns = test_on_gpu() ? 20000000000u : 0,
                                     .max_running = 16,
                                     .max_chunk = 64,
                                     .page_tokens = PAGE_TOKENS,
                                     .dtype_k = kv.k,
                                     .dtype_v = kv.v,
                                     .kv_tokens = (uint64_t)RANK_N_PAGES * PAGE_TOKENS};
}

bool rank_number_fits(uint32_t n_ranks)
{
    const char *most = getenv("RADISH_TEST_MOST_RANKS");

    return !most || n_ranks <= strtoul(most, NULL, 10);
}

bool open_ranked(struct ranked *r, const char *model, uint32_t n_ranks, struct kv_types kv)
{
    struct executor_options o;
    struct rd_error err = {RD_OK, ""};

    memset(r, 0, sizeof(*r));
    if (model_file_open(strchr(model, '/') ? test_path(model) : test_model(model), model_hub_families(), &r->g.gguf,
                        &err) != RD_OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", model, err.text);
        return false;
    }
    o = rank_options(r->g.gguf, n_ranks, kv);
    if (executor_open(&o, &r->x, &r->t, &err) != RD_OK) {
        test_fail(__FILE__, __LINE__, "%s, %u ranks: %s", model, n_ranks, err.text);
        return false;
    }
    r->g.n_vocab = r->x->n_vocab;
    r->g.o = (struct engine_options){.executor = *r->x,
                                     .clock = clock_system(),
                                     .n_pages = r->t.n_pages,
                                     .page_tokens = PAGE_TOKENS,
                                     .n_ctx = 512,
                                     .max_running = 16,
                                     .max_queue = 64,
                                     .max_chunk = 64,
                                     .step_target_ns = 1000000000,
                                     .kv_bytes = 1 << 30,
                                     .namespace_name = model,
                                     .namespace_bytes = strlen(model)};
    return engine_create(&r->g.o, &r->g.e) == RD_OK;
}

void close_ranked(struct ranked *r)
{
    engine_destroy(r->g.e);
    executor_close(r->x);
    model_file_close(r->g.gguf);
}
