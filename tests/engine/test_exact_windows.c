/* tests/engine/test_exact_windows.c - layers that see the last tokens alone keep no more than those, and the logits are the
 * bytes that a cache gives which keeps everything: cold, at every split point, where windows are scarce and a match goes
 * back to where they are, from disk and host memory, beside others, in what is written behind; in pages of 1, 4 and 16 tokens.
 *
 * The tiny models, whose windows are short, at every split point. gemma3-270m where it has been fetched, with a prompt longer
 * than its window: at a few split points, half of what is written behind, and half of the times through host memory; all of it with
 * RADISH_LONG=1.
 */
#include "exact_rig.h"
#include "engine/tiers/ram_link.h"
#include "model/model.h"

#define MAX_PROMPT 640u
#define N_WRITERS  6u
#define N_WRITTEN  60u
#define N_SPARE    5u /* windows beside those that a sequence's next row sees */

struct setup {
    const char *model;
    struct kv_types kv;
    uint32_t n_prompt, page_tokens;
    bool all_splits;
};

static bool open_rig(struct rig *g, const struct setup *s, uint32_t n_windows)
{
    return rig_open_sized(g, s->model, s->kv, 2, NULL, s->page_tokens,
                          (struct rig_size){MAX_ROWS, 16, s->n_prompt * 8, n_windows});
}

static uint32_t least_windows(const struct setup *s, uint32_t window)
{
    return window / s->page_tokens + N_SPARE;
}

/* Tokens of the prompt that are kept: in whole pages, or all. */
static uint32_t keep_first(struct rig *g, const int32_t *tokens, uint32_t n, uint32_t k)
{
    uint32_t n_match;

    while ((n_match = radix_match(g->e->cache.tree, g->e->root, (const kv_key *)tokens, n, 1).n_match) > k)
        if (radix_evict(g->e->cache.tree, 1) == 0) break;
    return n_match;
}

static bool equal(const struct rig *g, const float *a, const float *b)
{
    return memcmp(a, b, g->n_vocab * sizeof(float)) == 0;
}

/* With windows for all pages every match is used whole; with a few it may be cut short, but gives the same bytes. */
static void check_splits(struct rig *g, const struct setup *s, const int32_t *tokens, const float *cold, float *logits,
                         bool is_scarce)
{
    struct random r;
    uint32_t n_cached, n_tested = 0;

    random_init(&r, test_seed());
    CHECK(run(g, tokens, s->n_prompt, true, logits, NULL));
    for (uint32_t k = s->n_prompt - 1; k > 0; n_tested++) {
        uint32_t n = keep_first(g, tokens, s->n_prompt, k),
                 less = s->all_splits ? 1 : 1 + (uint32_t)random_below(&r, 300);

        CHECK(run(g, tokens, s->n_prompt, true, logits, &n_cached));
        CHECK(is_scarce ? n_cached <= n : n_cached == n);
        if (!equal(g, cold, logits))
            test_fail(__FILE__, __LINE__, "logits differ with %u of %u kept tokens from the cache", n_cached, n);
        k = u32_min(k, n);
        k -= u32_min(k, less);
    }
    test_note("%s, pages of %u, %u windows: %u split points; %llu matches cut short by %llu tokens", s->model,
              s->page_tokens, g->x.windows.n_pages, n_tested, (unsigned long long)g->e->cache.n_cut_short,
              (unsigned long long)g->e->cache.n_cut_tokens);
    if (g->x.windows.n_pages * s->page_tokens >= s->n_prompt)
        CHECK_EQ(g->e->cache.n_cut_short, 0);
    else
        CHECK(g->e->cache.n_cut_short > 0 || !s->all_splits);
}

/* Other texts leave the prompt's path at any place. What was computed again for one is there for the next. */
static void check_branches(struct rig *g, struct rig *whole, const struct setup *s, const int32_t *tokens,
                           float *logits, bool is_scarce)
{
    float *want = malloc(g->n_vocab * sizeof(float));
    int32_t other[MAX_PROMPT];
    struct random r;

    random_init(&r, test_seed() + 1);
    CHECK(run(g, tokens, s->n_prompt, true, logits, NULL));
    for (uint32_t i = 0; i < (s->all_splits ? 10u : 1u); i++) {
        uint32_t at = 1 + (uint32_t)random_below(&r, s->n_prompt - 1), n_cached[2];

        make_tokens(g, other, s->n_prompt, 900 + i);
        memcpy(other, tokens, at * sizeof(*tokens));
        CHECK(run(whole, other, s->n_prompt, false, want, NULL));
        for (int twice = 0; twice < 2; twice++) {
            CHECK(run(g, other, s->n_prompt, true, logits, &n_cached[twice]));
            CHECK(equal(g, want, logits));
            if (twice) break;
            make_tokens(g, other + at, s->n_prompt - at, 950 + i); /* leaves at the same place */
            CHECK(run(whole, other, s->n_prompt, false, want, NULL));
        }
        CHECK(is_scarce || n_cached[1] >= at);
    }
    free(want);
}

static void check_disk(struct rig *g, const struct setup *s, const int32_t *tokens, const float *cold, float *logits)
{
    uint32_t n_cached = 0;

    CHECK(sim_store_init(&g->store));
    CHECK(restart(g));
    CHECK(run(g, tokens, s->n_prompt, true, logits, &n_cached));
    CHECK_EQ(n_cached, 0);
    CHECK(equal(g, cold, logits));
    CHECK(restart(g));
    for (int i = 0; i < 2; i++) { /* after a restart, after eviction */
        radix_clear(g->e->cache.tree, NULL);
        CHECK(run(g, tokens, s->n_prompt, true, logits, &n_cached));
        CHECK_EQ(n_cached, s->n_prompt); /* the head alone, on the state kept */
        CHECK(equal(g, cold, logits));
    }
    for (uint32_t k = s->n_prompt / 2; k > 0; k /= 3) { /* a part of it in memory */
        (void)keep_first(g, tokens, s->n_prompt, k);
        CHECK(run(g, tokens, s->n_prompt, true, logits, NULL));
        CHECK(equal(g, cold, logits));
    }
    engine_destroy(g->e);
    sim_store_deinit(&g->store);
    g->o.store = NULL;
    CHECK_OK(engine_create(&g->o, &g->e));
}

/* Several at once, of which the windows hold few. */
static void check_beside(struct rig *g, const struct setup *s, const int32_t *tokens, const float *cold, float *logits)
{
    const uint32_t n_strangers = s->all_splits ? N_STRANGERS : 2;
    struct request *strangers[N_STRANGERS], *r;
    int32_t other[MAX_PROMPT];

    for (uint32_t i = 0; i < n_strangers; i++) {
        make_tokens(g, other, s->n_prompt, 1000 + i);
        memcpy(other, tokens, s->n_prompt / (i + 2) * sizeof(*tokens));
        CHECK(strangers[i] = submit(g, other, s->n_prompt / 2, true, 20, NULL));
    }
    for (int i = 0; i < 3; i++) engine_step(g->e);
    CHECK(r = submit(g, tokens, s->n_prompt, true, 0, logits));
    while (!atomic_load(&r->ended)) engine_step(g->e);
    CHECK_OK(r->status);
    CHECK(equal(g, cold, logits));
    request_unref(r);
    for (uint32_t i = 0; i < n_strangers; i++) {
        while (!atomic_load(&strangers[i]->ended)) engine_step(g->e);
        CHECK_OK(strangers[i]->status);
        request_unref(strangers[i]);
    }
}

/* N_WRITERS texts that begin alike for a while, and what is written behind them: steps of several rows, recorded where they
 * can be. What was kept of them gives the logits of a cold prompt. */
static bool write_all(struct rig *g, const struct setup *s, const int32_t *tokens, int32_t (*texts)[N_WRITTEN])
{
    const uint32_t n_writers = s->all_splits ? N_WRITERS : N_WRITERS / 2;
    struct request *r[N_WRITERS];
    int32_t prompt[MAX_PROMPT];
    bool ok = true;

    for (uint32_t i = 0; i < n_writers; i++) {
        const uint32_t n = s->n_prompt - 3 * i, n_common = n * (i % 3) / 2;

        make_tokens(g, prompt, n, 2000 + i);
        memcpy(prompt, tokens, n_common * sizeof(*tokens));
        r[i] = submit(g, prompt, n, true, N_WRITTEN - 7 * i, NULL);
        if (!r[i]) return false;
    }
    for (uint32_t i = 0; i < n_writers; i++) {
        struct token_logprob top[20];
        struct token_out out;
        bool was_full;
        uint32_t n = 0;

        while (!atomic_load(&r[i]->ended)) engine_step(g->e);
        while (n < N_WRITTEN && request_pop(r[i], &out, top, &was_full)) texts[i][n++] = out.token;
        ok &= r[i]->status == RD_OK && n > 0;
        request_unref(r[i]);
    }
    return ok;
}

static void check_written(struct rig *g, const struct setup *s, const int32_t *tokens, const int32_t (*want)[N_WRITTEN])
{
    int32_t texts[N_WRITERS][N_WRITTEN];

    for (int i = 0; i < (g->e->o.executor.begin ? 3 : 1);
         i++) { /* a step is given op by op, then recorded, then replayed */
        memset(texts, 0, sizeof(texts));
        CHECK(write_all(g, s, tokens, texts));
        CHECK(memcmp(texts, want, sizeof(texts)) == 0);
    }
}

static uint32_t ram_pages(const struct setup *s)
{
    return s->n_prompt / s->page_tokens + 3;
}

/* Pages that left a small pool come back, with their windows, as far as these were there when they left. */
static void check_ram(const struct setup *s, const int32_t *tokens, const float *cold, float *logits,
                      uint32_t n_windows)
{
    const uint32_t n_pages = ram_pages(s);
    struct rig rig, *g = &rig;
    int32_t other[MAX_PROMPT];
    struct ram_link *ram = NULL;
    struct engine_stats stats;
    struct rd_error err = {RD_OK, ""};

    CHECK(open_rig(g, s, n_windows));
    engine_destroy(g->e);
    g->e = NULL;
    CHECK_OK(ram_link_create(800 * g->o.executor.page_bytes, g->o.executor.page_bytes, s->page_tokens,
                             2048 / s->page_tokens + 1, false, &ram));
    g->o.ram = ram;
    g->o.n_pages = n_pages;
    CHECK_OK(engine_create(&g->o, &g->e));
    for (uint32_t i = 0; i < (s->all_splits ? 6 : 3); i++) {
        CHECK(run(g, tokens, s->n_prompt, true, logits, NULL));
        if (!equal(g, cold, logits)) test_fail(__FILE__, __LINE__, "logits differ, %u times from host memory", i);
        make_tokens(g, other, s->n_prompt, 3000 + i); /* pushes it out, all of it or a part */
        CHECK(run(g, other, s->n_prompt - s->n_prompt / 8 * i, true, logits, NULL));
    }
    if (engine_check(g->e, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
    engine_get_stats(g->e, &stats);
    test_note("%s, pages of %u, %u windows: %llu prompt tokens came back from host memory", s->model, s->page_tokens,
              n_windows, (unsigned long long)stats.prompt_ram);
    CHECK(stats.prompt_ram > 0 || n_windows < n_pages || s->n_prompt < 4 * s->page_tokens); /* too few to fill it */
    engine_destroy(g->e);
    g->e = NULL;
    ram_link_destroy(ram);
    rig_close(g);
}

static void check_model(const struct setup *s)
{
    struct rig whole, g;
    int32_t tokens[MAX_PROMPT];
    int32_t want[N_WRITERS][N_WRITTEN] = {{0}};
    float *cold, *logits;
    struct rd_error err = {RD_OK, ""};

    if (!test_backend_ops()->traits.keeps_windows) {
        test_skip("backend %s keeps whole pages", test_backend_ops()->name);
        return;
    }
    if (!strchr(s->model, '/') && !test_model(s->model)) {
        test_skip("%s has not been fetched (tools/fetch-model %s)", s->model, s->model);
        return;
    }
    CHECK(open_rig(&whole, s, 0));
    CHECK_EQ(whole.x.window, 0);
    cold = malloc(whole.n_vocab * sizeof(float));
    logits = malloc(whole.n_vocab * sizeof(float));
    make_tokens(&whole, tokens, s->n_prompt, 42);
    CHECK(run(&whole, tokens, s->n_prompt, false, cold, NULL));
    CHECK(write_all(&whole, s, tokens, want));
    for (int is_scarce = 0; is_scarce < 2; is_scarce++) {
        uint32_t window = model_config(whole.model)->window;

        CHECK(open_rig(&g, s, is_scarce ? least_windows(s, window) : s->n_prompt * 8 / s->page_tokens));
        CHECK(g.x.window == window && window < s->n_prompt);
        CHECK(run(&g, tokens, s->n_prompt, false, logits, NULL));
        CHECK(equal(&g, cold, logits));
        check_splits(&g, s, tokens, cold, logits, is_scarce);
        check_branches(&g, &whole, s, tokens, logits, is_scarce);
        check_beside(&g, s, tokens, cold, logits);
        if (s->page_tokens > 1)
            check_disk(&g, s, tokens, cold, logits); /* smaller ones do not pay, and are not loaded */
        check_written(&g, s, tokens, (const int32_t(*)[N_WRITTEN])want);
        check_ram(s, tokens, cold, logits,
                  is_scarce ? u32_min(ram_pages(s), 2 * least_windows(s, window)) : ram_pages(s));
        if (engine_check(g.e, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
        rig_close(&g);
    }
    rig_close(&whole);
    free(cold);
    free(logits);
}

static void check_tiny(const char *model, struct kv_types kv, uint32_t page_tokens)
{
    check_model(&(struct setup){model, kv, IS_SANITIZED ? 40 : 90, page_tokens, true});
}

static const struct kv_types halves = {DTYPE_F16, DTYPE_F16};

TEST(tiny_gemma3_is_exact_with_windows_in_pages_of_1)
{
    check_tiny("tests/golden/gemma3/tiny-gemma3.gguf", halves, 1);
}
TEST(tiny_gemma3_is_exact_with_windows_in_pages_of_4)
{
    check_tiny("tests/golden/gemma3/tiny-gemma3.gguf", halves, 4);
}
TEST(tiny_gemma3_is_exact_with_windows_in_pages_of_16)
{
    check_tiny("tests/golden/gemma3/tiny-gemma3.gguf", halves, 16);
}
TEST(tiny_gemma2_is_exact_with_windows_in_pages_of_1)
{
    check_tiny("tests/golden/gemma2/tiny-gemma2.gguf", halves, 1);
}
TEST(tiny_gemma2_is_exact_with_windows_in_pages_of_4)
{
    check_tiny("tests/golden/gemma2/tiny-gemma2.gguf", halves, 4);
}

TEST(gemma3_270m_is_exact_with_windows)
{
    if (IS_SANITIZED)
        test_skip("not in a sanitized build");
    else
        check_model(&(struct setup){"gemma3-270m", halves, MAX_PROMPT, 16, test_is_long()});
}
TEST(gemma3_270m_is_exact_with_windows_of_q8_0_and_q4_0)
{
    if (IS_SANITIZED || !(test_is_long() || test_on_gpu()))
        test_skip("RADISH_LONG=1, or a GPU");
    else
        check_model(&(struct setup){"gemma3-270m", {DTYPE_Q8_0, DTYPE_Q4_0}, MAX_PROMPT, 16, false});
}
