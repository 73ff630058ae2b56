/* tests/engine/test_exact_tiers.c - promise 1 over tiers and time: text and logits of a request are the same bytes
 * computed cold and alone, and
 *
 *     after kill -9 and a restart, off the disk         after another model wrote to the same folder
 *     with any part of it left in memory (split points from the printed seed), the rest off the disk
 *     where the answer is part of the next prompt (as it was sampled), kept or reloaded
 *     beside others below the same prefix, whose attention shares reads, and alone, where it does not
 *
 * smollm2 with f16 and q8_0/q4_0; with RADISH_LONG=1 every real model that was fetched, with every KV type that it takes.
 */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/tiers/ram_link.h"
#include "exact_rig.h"
#include "model/model.h"

#define N_NEW    6u
#define N_NEXT   40u /* tokens of the next turn */
#define N_BESIDE 3u

/* What a request gave: its text and the logits that its last token was drawn from. */
struct told {
    int32_t text[N_NEW];
    uint32_t n, n_cached, n_disk;
    float *logits;
};

static void take(struct request *r, struct told *out)
{
    struct token_logprob top[20];
    struct token_out t;
    bool was_full;

    while (request_pop(r, &t, top, &was_full))
        if (out->n < N_NEW) out->text[out->n++] = t.token;
    out->n_cached = r->usage.n_cached;
    out->n_disk = r->usage.n_disk;
}

static bool ask(struct rig *g, const int32_t *tokens, uint32_t n, bool cached, struct told *out)
{
    struct request *r = submit(g, tokens, n, cached, N_NEW, out->logits);
    bool ok;

    out->n = 0;
    if (!r) return false;
    while (!atomic_load(&r->ended)) engine_step(g->e);
    take(r, out);
    ok = r->status == RD_OK;
    request_unref(r);
    return ok;
}

static bool same(const struct rig *g, const struct told *a, const struct told *b)
{
    return a->n == b->n && memcmp(a->text, b->text, a->n * sizeof(a->text[0])) == 0 &&
           memcmp(a->logits, b->logits, g->n_vocab * sizeof(float)) == 0;
}

static uint64_t n_stored(struct rig *g)
{
    struct store_counts c;

    page_store_get_counts(store_link_store(g->store.link), &c);
    return c.n_pages;
}

/* Waits until everything that was computed is on disk. */
static bool settle(struct rig *g, uint64_t n_pages)
{
    for (int i = 0; i < 5000 && n_stored(g) < n_pages; i++) clock_sleep_ns(2000000);
    return n_stored(g) >= n_pages;
}

/* A process computes the prompt and is killed once it is stored, while it goes on with others. */
static void compute_and_die(struct rig *g, const char *model, struct kv_types kv, uint64_t seed)
{
    atomic_bool *stored = mmap(NULL, sizeof(*stored), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sim_store folder = g->store;
    int32_t tokens[N_PROMPT];
    int status;
    pid_t pid;

    CHECK(stored != MAP_FAILED);
    pid = fork();
    if (pid == 0) {
        struct told t = {0};

        if (!rig_open(g, model, kv, 2, NULL, 16)) _exit(1);
        g->store = folder;
        t.logits = malloc(g->n_vocab * sizeof(float));
        if (!restart(g)) _exit(2);
        make_tokens(g, tokens, N_PROMPT, seed);
        if (!ask(g, tokens, N_PROMPT, true, &t) || !settle(g, N_PROMPT / 16 + 1)) _exit(3);
        atomic_store(stored, true);
        for (uint64_t i = 1;; i++) {
            make_tokens(g, tokens, N_PROMPT, seed + i);
            (void)ask(g, tokens, N_PROMPT, true, &t);
        }
    }
    for (int i = 0; i < 30000 && !atomic_load(stored) && waitpid(pid, &status, WNOHANG) == 0; i++) usleep(2000);
    CHECK(atomic_load(stored));
    usleep((unsigned)(random_at(test_seed(), seed) % 100000));
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    munmap(stored, sizeof(*stored));
}

static void check_splits(struct rig *g, const int32_t *tokens, const struct told *cold, struct told *t)
{
    struct random r;

    random_init(&r, test_seed());
    for (int i = 0; i < (test_is_long() ? 20 : 3); i++) {
        uint32_t keep = (uint32_t)random_below(&r, N_PROMPT / 16 + 1);
        struct radix_match m;

        CHECK(ask(g, tokens, N_PROMPT, true, t));
        CHECK(same(g, cold, t));
        m = radix_match(g->e->cache.tree, g->e->root, (const kv_key *)tokens, N_PROMPT, 1);
        for (uint32_t n = (m.n_match + 15) / 16; n > keep; n--) CHECK(radix_evict(g->e->cache.tree, 1) == 1);
        CHECK(ask(g, tokens, N_PROMPT, true, t));
        if (!same(g, cold, t)) test_fail(__FILE__, __LINE__, "differs with %u pages kept, the rest off the disk", keep);
        CHECK_EQ(t->n_cached, N_PROMPT);
    }
}

/* The next turn holds the answer as it was sampled. */
static void check_replay(struct rig *g, const int32_t *tokens, const struct told *cold, struct told *t)
{
    int32_t next[N_PROMPT + N_NEW + N_NEXT];
    struct told alone = {.logits = malloc(g->n_vocab * sizeof(float))};
    uint32_t n = N_PROMPT + cold->n;

    memcpy(next, tokens, N_PROMPT * sizeof(*next));
    memcpy(next + N_PROMPT, cold->text, cold->n * sizeof(*next));
    make_tokens(g, next + n, N_NEXT, 77);
    CHECK(ask(g, next, n + N_NEXT, false, &alone));
    for (int i = 0; i < 3; i++) {
        if (i == 1) CHECK(restart(g));
        if (i == 2) radix_clear(g->e->cache.tree, NULL);
        CHECK(ask(g, next, n + N_NEXT, true, t));
        CHECK(same(g, &alone, t));
        CHECK(t->n_cached >= n - 1);
    }
    free(alone.logits);
}

/* Several requests below one prefix decode together, each with a question of its own. */
static void check_shared(struct rig *g, const int32_t *tokens)
{
    int32_t prompt[N_BESIDE][N_PROMPT];
    struct told alone[N_BESIDE] = {0}, beside[N_BESIDE] = {0};
    struct request *r[N_BESIDE];

    for (uint32_t i = 0; i < N_BESIDE; i++) {
        memcpy(prompt[i], tokens, sizeof(prompt[i]));
        make_tokens(g, prompt[i] + N_PROMPT - 10 - i, 10, 500 + i);
        alone[i].logits = malloc(g->n_vocab * sizeof(float));
        beside[i].logits = malloc(g->n_vocab * sizeof(float));
        CHECK(ask(g, prompt[i], N_PROMPT - i, false, &alone[i]));
    }
    for (uint32_t i = 0; i < N_BESIDE; i++) {
        r[i] = submit(g, prompt[i], N_PROMPT - i, true, N_NEW, beside[i].logits);
        CHECK(r[i] != NULL);
    }
    for (uint32_t i = 0; i < N_BESIDE; i++) {
        while (!atomic_load(&r[i]->ended)) engine_step(g->e);
        take(r[i], &beside[i]);
        request_unref(r[i]);
        CHECK(same(g, &alone[i], &beside[i]));
        CHECK(beside[i].n_cached > 0);
        free(alone[i].logits);
        free(beside[i].logits);
    }
}

/* Pages that left a small pool for host memory, by the copies that a device takes, are the same when they are back. */
static void check_host_memory(const char *model, struct kv_types kv)
{
    struct rig g = {0};
    struct told cold = {0}, t = {0};
    int32_t tokens[N_PROMPT], other[N_PROMPT];
    struct ram_link *ram = NULL;
    struct engine_stats s;

    if (!test_model(model)) {
        test_skip("%s has not been fetched (tools/fetch-model %s)", model, model);
        return;
    }
    CHECK(rig_open(&g, model, kv, 2, NULL, 16));
    engine_destroy(g.e);
    g.e = NULL;
    CHECK_OK(ram_link_create(200 * g.x.kv.page_bytes, g.x.kv.page_bytes, 16, 2048 / 16, true, &ram));
    g.o.ram = ram;
    g.o.n_pages = N_PROMPT / 16 + 3;
    CHECK_OK(engine_create(&g.o, &g.e));
    cold.logits = malloc(g.n_vocab * sizeof(float));
    t.logits = malloc(g.n_vocab * sizeof(float));
    make_tokens(&g, tokens, N_PROMPT, 42);
    CHECK(ask(&g, tokens, N_PROMPT, false, &cold));
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(ask(&g, tokens, N_PROMPT, true, &t));
        CHECK(same(&g, &cold, &t));
        CHECK(i == 0 || t.n_cached >= N_PROMPT / 16 * 16 - 16);
        make_tokens(&g, other, N_PROMPT, 100 + i); /* pushes it out, all of it or a part */
        CHECK(ask(&g, other, N_PROMPT - 20 * (uint32_t)i, true, &t));
    }
    engine_get_stats(g.e, &s);
    CHECK(s.prompt_ram > 0);
    test_note("%s: %llu prompt tokens came back from host memory with the same bytes", model,
              (unsigned long long)s.prompt_ram);
    engine_destroy(g.e);
    g.e = NULL;
    ram_link_destroy(ram);
    free(cold.logits);
    free(t.logits);
    rig_close(&g);
}

TEST(host_memory_is_exact)
{
    check_host_memory("smollm2", (struct kv_types){DTYPE_F16, DTYPE_F16});
}

/* Another model, or the same with keys and values of another kind, writes to the folder. */
static bool write_as_another(struct rig *g, const char *model, struct kv_types kv)
{
    const char *other = strcmp(model, "smollm2") != 0 ? "smollm2" : test_model("gemma3-270m") ? "gemma3-270m" : model;
    struct kv_types other_kv = {kv.v == DTYPE_F32 ? DTYPE_F16 : DTYPE_F32, DTYPE_F32};
    struct rig h;
    struct told t = {0};
    int32_t tokens[N_PROMPT];
    bool ok;

    engine_destroy(g->e);
    g->e = NULL;
    sim_store_close(&g->store);
    if (!rig_open(&h, other, other_kv, 1, NULL, 16)) return false;
    h.store = g->store;
    t.logits = malloc(h.n_vocab * sizeof(float));
    make_tokens(g, tokens, N_PROMPT, 42); /* the same ids */
    ok = restart(&h) && ask(&h, tokens, N_PROMPT, true, &t) && t.n_cached == 0 && settle(&h, 2 * (N_PROMPT / 16));
    engine_destroy(h.e);
    h.e = NULL;
    sim_store_close(&h.store);
    free(t.logits);
    rig_close(&h);
    return ok && restart(g);
}

static void check_tiers(const char *model, struct kv_types kv)
{
    struct rig g = {0};
    struct sim_store folder;
    struct told cold = {0}, t = {0};
    int32_t tokens[N_PROMPT];

    if (test_on_gpu()) {
        test_skip("a GPU build has no disk cache");
        return;
    }
    if (!test_model(model)) {
        test_skip("%s has not been fetched (tools/fetch-model %s)", model, model);
        return;
    }
    CHECK(sim_store_init(&folder));
    g.store = folder;
    compute_and_die(&g, model, kv, 42);
    CHECK(rig_open(&g, model, kv, 2, NULL, 16));
    cold.logits = malloc(g.n_vocab * sizeof(float));
    t.logits = malloc(g.n_vocab * sizeof(float));
    make_tokens(&g, tokens, N_PROMPT, 42);
    CHECK(ask(&g, tokens, N_PROMPT, false, &cold));
    g.store = folder;
    CHECK(restart(&g));
    CHECK(ask(&g, tokens, N_PROMPT, true, &t));
    CHECK(same(&g, &cold, &t));
    CHECK_EQ(t.n_disk, N_PROMPT);
    check_splits(&g, tokens, &cold, &t);
    CHECK(write_as_another(&g, model, kv));
    CHECK(ask(&g, tokens, N_PROMPT, true, &t));
    CHECK(same(&g, &cold, &t));
    CHECK_EQ(t.n_disk, N_PROMPT);
    check_replay(&g, tokens, &cold, &t);
    check_shared(&g, tokens);
    engine_destroy(g.e);
    g.e = NULL;
    sim_store_deinit(&g.store);
    free(cold.logits);
    free(t.logits);
    rig_close(&g);
    test_note("%s, KV %s/%s: the same bytes after kill -9, eviction, another model, replay and beside others", model,
              dtype_name(kv.k), dtype_name(kv.v));
}

TEST(f16_is_exact_over_tiers)
{
    check_tiers("smollm2", (struct kv_types){DTYPE_F16, DTYPE_F16});
}
TEST(q8_0_with_q4_0_values_is_exact_over_tiers)
{
    check_tiers("smollm2", (struct kv_types){DTYPE_Q8_0, DTYPE_Q4_0});
}

TEST(every_model_with_every_kv_type_is_exact_over_tiers)
{
    static const char *const models[] = {"smollm2", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"};
    static const struct kv_types types[] = {{DTYPE_F16, DTYPE_F16},   {DTYPE_BF16, DTYPE_BF16},
                                            {DTYPE_F32, DTYPE_F32},   {DTYPE_Q8_0, DTYPE_Q8_0},
                                            {DTYPE_Q8_0, DTYPE_Q4_0}, {DTYPE_Q4_0, DTYPE_Q4_0}};

    for (size_t i = 0; test_is_long() && i < sizeof(models) / sizeof(models[0]); i++)
        for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) check_tiers(models[i], types[k]);
    if (!test_is_long()) test_skip("RADISH_LONG=1 only");
}
