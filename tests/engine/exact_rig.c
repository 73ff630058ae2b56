/* tests/engine/exact_rig.c - see the header. */
#include "backend/compose.h"
#include "format/gguf/gguf.h"
#include "exact_rig.h"

bool rig_open_sized(struct rig *g, const char *model, struct kv_types kv, uint32_t n_threads, const char *isa,
                    uint32_t page_tokens, struct rig_size size)
{
    struct backend_options bo = {.n_threads = n_threads, .isa = isa};
    struct kv_layout layout;
    struct rd_error err = {RD_OK, ""};
    const struct model_config *c;
    uint32_t n_pages = size.n_tokens / page_tokens;

    memset(g, 0, sizeof(*g));
    if (gguf_open(strchr(model, '/') ? test_path(model) : test_model(model), &g->gguf, &err) != RD_OK ||
        test_backend_ops()->life.create(&bo, &g->backend, &err) != RD_OK ||
        model_load(g->gguf, test_backend_ops(), g->backend, size.max_rows, size.max_running, NULL, &g->model, &err) !=
            RD_OK) {
        test_fail(__FILE__, __LINE__, "%s: %s", model, err.text);
        return false;
    }
    c = model_config(g->model);
    g->n_vocab = c->n_vocab;
    layout = (struct kv_layout){c->n_layers, c->n_kv_heads, c->head_dim, page_tokens, kv.k, kv.v};
    if ((size.n_windows
             ? model_executor_init_windows(&g->x, test_backend_ops(), g->backend, g->model, &layout, n_pages,
                                           size.n_windows, size.max_rows)
             : model_executor_init(&g->x, test_backend_ops(), g->backend, g->model, &layout, n_pages)) != RD_OK)
        return false;
    g->o = (struct engine_options){.executor = model_executor_view(&g->x, size.max_rows, size.max_running),
                                   .clock = clock_system(),
                                   .n_pages = n_pages,
                                   .page_tokens = page_tokens,
                                   .n_ctx = 2048,
                                   .max_running = size.max_running,
                                   .max_queue = u32_max(64, size.max_running),
                                   .max_chunk = size.max_rows,
                                   .step_target_ns = 1000000000,
                                   .kv_bytes = 1 << 30,
                                   .namespace_name = model,
                                   .namespace_bytes = strlen(model)};
    return engine_create(&g->o, &g->e) == RD_OK;
}

bool rig_open(struct rig *g, const char *model, struct kv_types kv, uint32_t n_threads, const char *isa,
              uint32_t page_tokens)
{
    return rig_open_sized(g, model, kv, n_threads, isa, page_tokens, (struct rig_size){MAX_ROWS, 16, 6000, 0});
}

void rig_close(struct rig *g)
{
    engine_destroy(g->e);
    model_executor_deinit(&g->x);
    model_destroy(g->model);
    test_backend_ops()->life.destroy(g->backend);
    model_file_close(g->gguf);
}

void make_tokens(const struct rig *g, int32_t *tokens, uint32_t n, uint64_t seed)
{
    struct random r;

    random_init(&r, seed);
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)random_below(&r, g->n_vocab < 30000 ? g->n_vocab : 30000);
}

struct request *submit(struct rig *g, const int32_t *tokens, uint32_t n, bool cached, uint32_t max_tokens,
                       float *logits)
{
    struct request_params p = {.cached = cached, .max_tokens = max_tokens, .max_keys = 2048, .logits_out = logits};
    struct request *r = NULL;

    p.adapters = g->mix;
    p.space.adapter = adapter_mix_id(g->mix);
    sampler_params_default(&p.sampling);
    p.sampling.temperature = 0;
    if (engine_take_place(g->e) != RD_OK ||
        request_create(&p, engine_cache(g->e), g->n_vocab, tokens, n, &r, NULL) != RD_OK)
        return NULL;
    if (engine_submit(g->e, r) == RD_OK) return r;
    request_unref(r);
    return NULL;
}

bool run(struct rig *g, const int32_t *tokens, uint32_t n, bool cached, float *logits, uint32_t *n_cached)
{
    struct request *r = submit(g, tokens, n, cached, 0, logits);
    bool ok;

    if (!r) return false;
    while (!atomic_load(&r->ended)) engine_step(g->e);
    ok = r->status == RD_OK;
    if (n_cached) *n_cached = r->usage.n_cached;
    request_unref(r);
    return ok;
}

/* What the pages hold is gone. There is no engine, which would say what has a window. */
static bool spoil(struct rig *g, const struct kv_storage *kv)
{
    void *bytes = mem_alloc(kv->page_bytes, 1);
    bool ok = bytes != NULL;

    if (ok) memset(bytes, 0x5a, kv->page_bytes);
    for (uint32_t i = 0; ok && i < kv->n_pages; i++)
        ok = backend_page_in(test_backend_ops(), g->backend, kv, i, bytes) == RD_OK;
    mem_free(bytes);
    return ok;
}
static bool spoil_pages(struct rig *g)
{
    return spoil(g, &g->x.kv) && (!g->x.window || spoil(g, &g->x.windows));
}

bool restart(struct rig *g)
{
    engine_destroy(g->e);
    g->e = NULL;
    sim_store_close(&g->store);
    if (!spoil_pages(g)) return false;
    if (!sim_store_open(&g->store, g->o.page_tokens, g->o.executor.page_bytes, 1ull << 30, clock_system(), true))
        return false;
    g->o.store = g->store.link;
    return engine_create(&g->o, &g->e) == RD_OK;
}
