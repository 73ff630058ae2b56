/* tests/engine/test_exact_batches.c - promise 1 where decoding goes on in batches of many sizes: what a sequence wrote
 * among up to 255 others, and the keys and values it left, are those it has alone. No tolerance.
 *
 * Two to 32 sequences on a CPU, up to 256 on a GPU and with RADISH_LONG=1: a step of another number of rows takes other
 * kernels, other tiles and, on a GPU, another recorded graph.
 */
#include "exact_rig.h"

#define N_WRITTEN 20u
#define LONGEST   64u /* prompts: 3 to 43 tokens */

static const struct kv_types halves = {DTYPE_F16, DTYPE_F16};

struct text {
    int32_t tokens[LONGEST];
    uint32_t n_prompt, n;
};

static struct text prompt_of(const struct rig *g, uint32_t i)
{
    struct text t = {.n_prompt = 3 + i * 7 % 41};

    make_tokens(g, t.tokens, t.n_prompt, 5000 + i);
    t.n = t.n_prompt;
    return t;
}

/* Takes the tokens that r wrote. */
static void finish(struct rig *g, struct request *r, struct text *t)
{
    struct token_logprob top[20];
    struct token_out out;
    bool was_full;

    while (!atomic_load(&r->ended)) engine_step(g->e);
    if (r->status != RD_OK) test_fail(__FILE__, __LINE__, "%s", rd_status_name(r->status));
    while (t->n < LONGEST && request_pop(r, &out, top, &was_full)) t->tokens[t->n++] = out.token;
    request_unref(r);
}

/* The sequence alone writes the same text; its keys and values, kept from the batch, give the logits of a cold prompt. */
static void check_alone(struct rig *g, const struct text *t, uint32_t n_batch, float *cold, float *kept)
{
    struct text alone = *t;
    struct request *r;
    uint32_t n_cached = 0;

    CHECK(run(g, t->tokens, t->n, true, kept, &n_cached));
    CHECK(n_cached + 1 >= t->n);
    CHECK(run(g, t->tokens, t->n, false, cold, NULL));
    if (memcmp(cold, kept, g->n_vocab * sizeof(float)) != 0)
        test_fail(__FILE__, __LINE__, "logits differ behind keys and values written in a batch of %u", n_batch);
    alone.n = t->n_prompt;
    r = submit(g, alone.tokens, alone.n, false, N_WRITTEN, NULL);
    CHECK(r != NULL);
    if (!r) return;
    finish(g, r, &alone);
    CHECK_EQ(alone.n, t->n);
    if (memcmp(alone.tokens, t->tokens, t->n * sizeof(*t->tokens)) != 0)
        test_fail(__FILE__, __LINE__, "another text than in a batch of %u", n_batch);
}

static void check_batch(struct rig *g, uint32_t n, float *cold, float *kept)
{
    struct text *texts = mem_zalloc(n, sizeof(*texts));
    struct request **requests = mem_zalloc(n, sizeof(*requests));
    uint32_t n_submitted = 0;

    CHECK(texts && requests);
    radix_clear(g->e->cache.tree, NULL);
    for (uint32_t i = 0; texts && requests && i < n; i++) {
        texts[i] = prompt_of(g, i);
        requests[i] = submit(g, texts[i].tokens, texts[i].n, true, N_WRITTEN, NULL);
        if (!requests[i]) break;
        n_submitted++;
    }
    CHECK_EQ(n_submitted, n);
    for (uint32_t i = 0; i < n_submitted; i++) finish(g, requests[i], &texts[i]);
    for (uint32_t i = 0; i < n_submitted; i += u32_max(1, (n - 1) / 3)) check_alone(g, &texts[i], n, cold, kept);
    mem_free(requests);
    mem_free(texts);
}

static void check_model(const char *name)
{
    static const uint32_t sizes[] = {2, 3, 8, 17, 32, 64, 100, 160, 256};
    const uint32_t most = test_on_gpu() || (test_is_long() && !IS_SANITIZED) ? 256 : IS_SANITIZED ? 3 : 32;
    struct rig g;
    float *cold, *kept;
    uint32_t n_sizes = 0;

    if (!test_model(name)) {
        test_skip("%s has not been fetched (tools/fetch-model %s)", name, name);
        return;
    }
    CHECK(
        rig_open_sized(&g, name, halves, 2, NULL, 16, (struct rig_size){u32_max(MAX_ROWS, most), most, most * 96, 0}));
    cold = mem_alloc(g.n_vocab, sizeof(float));
    kept = mem_alloc(g.n_vocab, sizeof(float));
    CHECK(cold && kept);
    for (size_t i = 0; cold && kept && i < sizeof(sizes) / sizeof(sizes[0]) && sizes[i] <= most; i++, n_sizes++)
        check_batch(&g, sizes[i], cold, kept);
    test_note("%s: texts, keys and values of %u sizes of batches up to %u", name, n_sizes, most);
    mem_free(kept);
    mem_free(cold);
    rig_close(&g);
}

TEST(smollm2_writes_in_batches_what_it_writes_alone)
{
    check_model("smollm2");
}

TEST(qwen2_5_coder_0_5b_writes_in_batches_what_it_writes_alone)
{
    if (test_on_gpu() || test_is_long())
        check_model("qwen2.5-coder-0.5b");
    else
        test_skip("RADISH_LONG=1 only");
}
