/* tests/engine/test_exact.c - promise 1: the logits of a sequence are the same bytes cold, from the cache at every
 * split point, from disk after eviction and after a restart, in random chunks, in a batch of strangers, with 1 and 2
 * threads, with every instruction set. No tolerance.
 *
 * smollm2 is tested at every split point that leaves no more than a step's rows, and at one of four before: there a step of
 * all rows comes first. The other real models (where they have been fetched) and KV types with half the prompt, which still is more
 * than a step's rows, at about 6 split points, with one round of random chunks, single tokens behind a cached part alone, and half
 * the strangers once; the largest model with one instruction set. RADISH_LONG=1: nothing of this is left out.
 * Sanitized builds take a glance only: a short prompt on smollm2 at a few split points, with one other choice of threads
 * and pages (RADISH_LONG=1: all of them, still with a short prompt).
 */
#include "exact_rig.h"

/* The target's logits with strangers of other lengths prefilling and decoding beside it. */
static bool run_among_strangers(struct rig *g, const int32_t *tokens, float *logits)
{
    struct request *strangers[N_STRANGERS], *r;
    int32_t other[N_PROMPT];
    bool ok;

    for (uint32_t i = 0; i < g->n_strangers / 2; i++) {
        make_tokens(g, other, 20 + 30 * i, 1000 + i);
        if (!(strangers[i] = submit(g, other, 20 + 30 * i, true, 200, NULL))) return false;
    }
    for (int i = 0; i < 3; i++) engine_step(g->e); /* some decode already */
    if (!(r = submit(g, tokens, g->n_prompt, false, 0, logits))) return false;
    for (uint32_t i = g->n_strangers / 2; i < g->n_strangers; i++) {
        make_tokens(g, other, 20 + 30 * i, 1000 + i);
        if (!(strangers[i] = submit(g, other, 20 + 30 * i, true, 200, NULL))) return false;
    }
    while (!atomic_load(&r->ended)) engine_step(g->e);
    ok = r->status == RD_OK;
    request_unref(r);
    for (uint32_t i = 0; i < g->n_strangers; i++) {
        request_cancel(strangers[i], CANCEL_GONE);
        while (!atomic_load(&strangers[i]->ended)) engine_step(g->e);
        request_unref(strangers[i]);
    }
    return ok;
}

/* Leaves exactly the first k tokens of the prompt in the tree (pages of one token: eviction takes the tail token by
 * token). */
static bool keep_first(struct rig *g, const int32_t *tokens, uint32_t k)
{
    struct radix_match m = radix_match(g->e->cache.tree, g->e->root, (const kv_key *)tokens, g->n_prompt, 1);

    return radix_evict(g->e->cache.tree, m.n_match - k) == m.n_match - k;
}

/* How many of a model's ways are gone, each at least once. */
enum effort { A_FEW, SOME, MOST, ALL };

/* A_FEW: more than a step's rows still, and strangers that fill the steps. */
static void set_size(struct rig *g, enum effort effort)
{
    g->n_prompt = effort == A_FEW ? N_PROMPT / 2 : N_PROMPT;
    g->n_strangers = effort == A_FEW ? N_STRANGERS / 2 : N_STRANGERS;
}

static uint32_t next_gap(struct random *r, enum effort effort, uint32_t n_prompt, uint32_t k)
{
    static const uint32_t most[] = {[A_FEW] = 48, [SOME] = 48, [MOST] = 7, [ALL] = 1};

    if (effort == MOST && n_prompt - k < MAX_ROWS) return 1;
    return u32_min(k, 1 + (uint32_t)random_below(r, most[effort]));
}

static void check_splits(struct rig *g, const int32_t *tokens, const float *cold, float *logits, enum effort effort,
                         uint32_t *n_tested)
{
    struct random r;
    uint32_t n_whole = 0;

    random_init(&r, test_seed());
    radix_clear(g->e->cache.tree, NULL);
    CHECK(run(g, tokens, g->n_prompt, true, logits, NULL));
    CHECK(run(g, tokens, g->n_prompt, true, logits, &n_whole)); /* the head alone, on the state kept */
    CHECK_EQ(n_whole, g->n_prompt);
    CHECK(memcmp(cold, logits, g->n_vocab * sizeof(float)) == 0);
    for (uint32_t k = g->n_prompt - 1; k > 0; k -= next_gap(&r, effort, g->n_prompt, k)) {
        uint32_t n_cached = 0;

        CHECK(keep_first(g, tokens, k));
        CHECK(run(g, tokens, g->n_prompt, true, logits, &n_cached));
        CHECK_EQ(n_cached, k);
        if (memcmp(cold, logits, g->n_vocab * sizeof(float)) != 0)
            test_fail(__FILE__, __LINE__, "logits differ with %u tokens from the cache", k);
        ++*n_tested;
    }
}

static void check_disk(struct rig *g, const int32_t *tokens, const float *cold, float *logits)
{
    uint32_t n_cached = 0;

    CHECK(sim_store_init(&g->store));
    CHECK(restart(g));
    CHECK(run(g, tokens, g->n_prompt, true, logits, &n_cached));
    CHECK_EQ(n_cached, 0);
    CHECK(memcmp(cold, logits, g->n_vocab * sizeof(float)) == 0);
    CHECK(restart(g));
    for (int i = 0; i < 2; i++) { /* after a restart, after eviction */
        radix_clear(g->e->cache.tree, NULL);
        CHECK(run(g, tokens, g->n_prompt, true, logits, &n_cached));
        CHECK_EQ(n_cached, g->n_prompt); /* the head alone, on the state kept */
        CHECK(memcmp(cold, logits, g->n_vocab * sizeof(float)) == 0);
    }
    engine_destroy(g->e);
    sim_store_deinit(&g->store);
    g->o.store = NULL;
    CHECK_OK(engine_create(&g->o, &g->e));
}

static void check_chunks(struct rig *g, const int32_t *tokens, const float *cold, float *logits, enum effort effort)
{
    const int n_rounds = IS_SANITIZED || effort < MOST ? 1 : 3;
    uint32_t n_cached = 0;

    for (int i = 0; i < n_rounds; i++) {
        g->e->o.chunk_seed = 1;
        random_init(&g->e->chunk_random, test_seed() + (uint64_t)i);
        CHECK(run(g, tokens, g->n_prompt, false, logits, NULL));
        CHECK(memcmp(cold, logits, g->n_vocab * sizeof(float)) == 0);
    }
    g->e->o.chunk_seed = 0;
    if (effort < MOST) CHECK(run(g, tokens, g->n_prompt - g->n_prompt / 5, true, logits, NULL));
    g->e->o.max_chunk = 1; /* every token alone: the decode kernels */
    CHECK(run(g, tokens, g->n_prompt, effort < MOST, logits, &n_cached));
    CHECK_EQ(n_cached, effort < MOST ? g->n_prompt - g->n_prompt / 5 : 0);
    CHECK(memcmp(cold, logits, g->n_vocab * sizeof(float)) == 0);
    g->e->o.max_chunk = MAX_ROWS;
}

static void check_model(const char *name, struct kv_types kv, enum effort effort)
{
    const bool is_large = strcmp(name, "qwen2.5-coder-1.5b") == 0;
    static const struct {
        uint32_t n_threads, page_tokens;
        const char *isa;
    } other[] = {{1, 16, NULL},   {2, 64, "avx2"},         {1, 32, "avx512"}, {1, 16, "amx"},
                 {1, 32, "neon"}, {1, 16, "neon-dotprod"}, {2, 16, "ref"}};
    struct rig g, h;
    int32_t tokens[N_PROMPT];
    float *cold, *logits;
    uint32_t n_splits = 0, n_rigs = 0;

    if (!test_model(name)) {
        test_skip("%s has not been fetched (tools/fetch-model %s)", name, name);
        return;
    }
    if (IS_SANITIZED && !test_is_long()) {
        test_note("a sanitized build: only a glance at a prompt of %u tokens", N_PROMPT);
        test_note("(RADISH_LONG=1 for every model and split point)");
        if (strcmp(name, "smollm2") != 0) return;
        effort = SOME;
    }
    CHECK(rig_open(&g, name, kv, 2, NULL, 1));
    set_size(&g, effort);
    cold = malloc(g.n_vocab * sizeof(float));
    logits = malloc(g.n_vocab * sizeof(float));
    make_tokens(&g, tokens, g.n_prompt, 42);
    CHECK(run(&g, tokens, g.n_prompt, false, cold, NULL));
    CHECK(run_among_strangers(&g, tokens, logits));
    CHECK(memcmp(cold, logits, g.n_vocab * sizeof(float)) == 0);
    check_chunks(&g, tokens, cold, logits, effort);
    check_splits(&g, tokens, cold, logits, effort, &n_splits);
    rig_close(&g);
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]) && (i < 1 || !IS_SANITIZED || test_is_long()); i++) {
        struct rd_error err;
        struct backend_options bo = {.n_threads = 1, .isa = other[i].isa};
        struct backend *probe = NULL;

        if (other[i].isa && test_on_gpu()) continue;
        if (other[i].isa && test_backend_ops()->life.create(&bo, &probe, &err) == RD_E_UNSUPPORTED) {
            test_note("this processor has no %s: not tested here", other[i].isa);
            continue;
        }
        if (probe) test_backend_ops()->life.destroy(probe);
        if (other[i].isa && strcmp(other[i].isa, "ref") == 0 && !(test_is_long() && strcmp(name, "smollm2") == 0))
            continue;                                              /* minutes */
        if (other[i].isa && is_large && !test_is_long()) continue; /* test_isa has every weight type on each */
        CHECK(rig_open(&h, name, kv, other[i].n_threads, other[i].isa, other[i].page_tokens));
        set_size(&h, effort);
        CHECK(run(&h, tokens, h.n_prompt, false, logits, NULL));
        CHECK(memcmp(cold, logits, h.n_vocab * sizeof(float)) == 0);
        if (i == 0) check_disk(&h, tokens, cold, logits);
        if (effort >= MOST || (effort == SOME && i == 0)) {
            CHECK(run_among_strangers(&h, tokens, logits));
            CHECK(memcmp(cold, logits, h.n_vocab * sizeof(float)) == 0);
        }
        rig_close(&h);
        n_rigs++;
    }
    test_note("%s, KV %s/%s: equal bytes cold, from disk, among %u strangers, in random chunks, token by token, at %u "
              "split points, "
              "and with %u other choices of threads, pages and instruction set",
              name, dtype_name(kv.k), dtype_name(kv.v), g.n_strangers, n_splits, n_rigs);
    free(cold);
    free(logits);
}

static const struct kv_types halves = {DTYPE_F16, DTYPE_F16};

static enum effort all_or(enum effort effort)
{
    return test_is_long() ? ALL : effort;
}

static enum effort few(void)
{
    return test_on_gpu() ? SOME : A_FEW;
}

TEST(smollm2_is_exact)
{
    check_model("smollm2", halves, all_or(MOST));
}
TEST(gemma3_270m_is_exact)
{
    check_model("gemma3-270m", halves, all_or(few()));
}
TEST(qwen2_5_coder_0_5b_is_exact)
{
    check_model("qwen2.5-coder-0.5b", halves, all_or(few()));
}
TEST(qwen2_5_coder_1_5b_is_exact)
{
    check_model("qwen2.5-coder-1.5b", halves, all_or(A_FEW));
}

static void check_quantised(enum dtype k, enum dtype v)
{
    const struct kv_types kv = {k, v};

    if (test_on_gpu()) check_model("qwen2.5-coder-0.5b", kv, SOME); /* whose keys have a bias */
    if (!IS_SANITIZED || test_is_long()) check_model("smollm2", kv, all_or(few()));
    if (test_is_long()) check_model("gemma3-270m", kv, SOME);
}

TEST(q8_0_keys_and_values_are_exact)
{
    check_quantised(DTYPE_Q8_0, DTYPE_Q8_0);
}
TEST(q4_0_keys_and_values_are_exact)
{
    check_quantised(DTYPE_Q4_0, DTYPE_Q4_0);
}
TEST(f8_e4m3_keys_and_values_are_exact)
{
    check_quantised(DTYPE_F8_E4M3, DTYPE_F8_E4M3);
}
TEST(q8_0_keys_with_q4_0_values_are_exact)
{
    check_quantised(DTYPE_Q8_0, DTYPE_Q4_0);
}
