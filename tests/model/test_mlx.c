/* tests/model/test_mlx.c - models on the backend mlx: transformers' logits within what MLX's sums allow, whatever a prompt was cut
 * into and whatever shares its steps.
 *
 * Bounds, as shares of the range of the logits: 1e-3 for weights, keys and values of f32, 2e-2 for bf16.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/checked.h"
#include "base/mem.h"
#include "base/random.h"
#include "model/model_convert.h"
#include "hub_make.h"
#include "model_rig.h"
#include "reference.h"
#include "test.h"
#include "test_backend.h"

#define N_CONTEXT 64u
#define N_MODELS  (sizeof(models) / sizeof(models[0]))

static const char *const models[] = {
    "llama/tiny-llama", "llama/tiny-llama31",    "qwen2/tiny-qwen2",   "qwen2/tiny-qwen2-yarn",
    "qwen3/tiny-qwen3", "qwen3/tiny-qwen3-tied", "gemma2/tiny-gemma2", "gemma3/tiny-gemma3",
};

static bool is_here(void)
{
    if (backend_find("mlx")->ops && setenv("RADISH_TEST_DEVICE", "mlx", 1) == 0) return true;
    test_skip("this build is without MLX");
    return false;
}

/* The reference's tokens in chunks of 1 .. most rows; the worst error of all their logits. */
static double error_of(const char *file, const struct reference *ref, enum dtype kv, uint32_t most)
{
    float *logits = mem_zalloc((size_t)ref->n_tokens * ref->n_vocab, sizeof(float));
    struct model_rig r = {0};
    struct random random;
    double worst = INFINITY;
    rd_status st = rig_open(&r, file, kv, N_CONTEXT, N_CONTEXT, NULL, 2);

    random_init(&random, test_seed());
    for (uint32_t pos = 0, n; st == RD_OK && pos < ref->n_tokens; pos += n) {
        n = most >= ref->n_tokens ? ref->n_tokens : 1 + (uint32_t)random_below(&random, most);
        n = u32_min(n, ref->n_tokens - pos);
        st = rig_step(&r, ref->tokens + pos, pos, n, n, logits + (size_t)pos * ref->n_vocab);
    }
    if (st == RD_OK) worst = reference_error(ref, logits);
    rig_close(&r);
    mem_free(logits);
    return worst;
}

TEST(every_architecture_gives_the_logits_of_transformers_in_f32)
{
    if (!is_here()) return;
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref = {0};
        double whole, f16;

        CHECK(reference_read(models[i], &ref));
        whole = error_of(reference_file(models[i], "gguf"), &ref, DTYPE_F32, N_CONTEXT);
        f16 = error_of(reference_file(models[i], "gguf"), &ref, DTYPE_F16, N_CONTEXT);
        test_note("%s: worst error / range of the logits: KV F32 %.2e, F16 %.2e", models[i], whole, f16);
        CHECK(whole <= 1e-3);
        CHECK(f16 <= 2e-3);
        mem_free(ref.bytes);
    }
}

/* The same model with matrices of bf16, in a file of its own. */
static bool as_bf16(const char *model, const char *path)
{
    const struct convert_options o = {.type = CONVERT_BF16, .n_threads = 1};
    struct rd_error err = {RD_OK, ""};
    struct model_file *g = NULL;
    bool ok = model_file_open(reference_file(model, "gguf"), model_hub_families(), &g, &err) == RD_OK &&
              model_convert(g, path, &o, &err) == RD_OK;

    if (!ok) test_note("%s: %s", model, err.text);
    model_file_close(g);
    return ok;
}

TEST(every_architecture_gives_the_logits_of_transformers_in_bf16)
{
    char dir[] = "/tmp/radish-test-XXXXXX", path[64];

    if (!is_here()) return;
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/bf16.gguf", dir);
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref = {0};
        double e = INFINITY;

        CHECK(reference_read(models[i], &ref));
        if (as_bf16(models[i], path)) e = error_of(path, &ref, DTYPE_BF16, N_CONTEXT);
        test_note("%s: weights and KV BF16: worst error / range of the logits %.2e", models[i], e);
        CHECK(e <= 2e-2);
        unlink(path);
        mem_free(ref.bytes);
    }
    rmdir(dir);
}

TEST(logits_stay_within_the_bound_however_a_prompt_is_cut)
{
    if (!is_here()) return;
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref = {0};

        CHECK(reference_read(models[i], &ref));
        CHECK(error_of(reference_file(models[i], "gguf"), &ref, DTYPE_F32, 1) <= 1e-3);
        CHECK(error_of(reference_file(models[i], "gguf"), &ref, DTYPE_F32, 7) <= 1e-3);
        mem_free(ref.bytes);
    }
}

/* ---- several sequences in a step ---- */

enum { SEQUENCES = 5 };

/* Sequences that begin as the reference does, each on pages of its own: what they have so far, then rows of all in one step. */
static double mixed_error_of(const char *file, const struct reference *ref)
{
    static const uint32_t had[SEQUENCES] = {5, 17, 1, 9, 20}, more[SEQUENCES] = {1, 1, 1, 7, 1};
    const uint32_t per = N_CONTEXT / 16;
    float *want = mem_zalloc((size_t)16 * ref->n_vocab, sizeof(float)),
          *got = mem_zalloc((size_t)16 * ref->n_vocab, sizeof(float));
    struct reference rows = {.n_vocab = ref->n_vocab, .logits = want};
    struct model_batch b;
    struct model_rig r = {0};
    double worst = INFINITY;
    rd_status st = rig_open(&r, file, DTYPE_F32, SEQUENCES * N_CONTEXT, N_CONTEXT, NULL, 2);

    if (st != RD_OK || model_batch_init(&b, (struct model_batch_room){N_CONTEXT, SEQUENCES, 16, 0}) != RD_OK) goto done;
    for (uint32_t s = 0; s < SEQUENCES && st == RD_OK; s++) {
        model_batch_clear(&b);
        model_batch_begin_run(&b, 0, r.table + s * per, NULL);
        for (uint32_t i = 0; i < had[s]; i++) model_batch_add_row(&b, ref->tokens[i], 16);
        st = model_forward(r.m, &r.kv, &b, NULL);
    }
    model_batch_clear(&b);
    for (uint32_t s = 0; s < SEQUENCES; s++) {
        model_batch_begin_run(&b, had[s], r.table + s * per, NULL);
        for (uint32_t i = had[s]; i < had[s] + more[s]; i++, rows.n_tokens++) {
            model_batch_want_logits(&b, model_batch_add_row(&b, ref->tokens[i], 16), NULL);
            memcpy(want + (size_t)rows.n_tokens * ref->n_vocab, ref->logits + (size_t)i * ref->n_vocab,
                   ref->n_vocab * sizeof(float));
        }
    }
    if (st == RD_OK) st = model_forward(r.m, &r.kv, &b, got);
    if (st == RD_OK) worst = reference_error(&rows, got);
    model_batch_deinit(&b);

done:
    rig_close(&r);
    mem_free(want);
    mem_free(got);
    return worst;
}

TEST(sequences_of_different_lengths_share_a_step)
{
    if (!is_here()) return;
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref = {0};
        double e;

        CHECK(reference_read(models[i], &ref) && ref.n_tokens > 21);
        e = mixed_error_of(reference_file(models[i], "gguf"), &ref);
        if (!(e <= 1e-3)) test_fail(__FILE__, __LINE__, "%s: worst error / range %.2e", models[i], e);
        mem_free(ref.bytes);
    }
}

/* ---- MLX's own groups ---- */

/* Logits of every row, `chunk` rows at a time, or NULL; *bytes: what the weights take. */
static float *logits_of(const char *path, const struct reference *ref, uint32_t chunk, uint64_t *bytes)
{
    float *logits = mem_zalloc((size_t)ref->n_tokens * ref->n_vocab, sizeof(float));
    struct model_rig r = {0};
    rd_status st = rig_open(&r, path, DTYPE_F32, N_CONTEXT, N_CONTEXT, NULL, 2);

    if (st == RD_OK) *bytes = model_weight_bytes(r.m);
    for (uint32_t pos = 0, n; st == RD_OK && pos < ref->n_tokens; pos += n) {
        n = u32_min(chunk, ref->n_tokens - pos);
        st = rig_step(&r, ref->tokens + pos, pos, n, n, logits + (size_t)pos * ref->n_vocab);
    }
    rig_close(&r);
    if (st == RD_OK) return logits;
    mem_free(logits);
    return NULL;
}

TEST(groups_are_computed_as_they_are)
{
    static const uint32_t bits[] = {4, 8, 3, 6};
    static const char *const of_32[] = {"llama/tiny-llama", "qwen2/tiny-qwen2-yarn"}; /* the second one is tied */

    if (!is_here()) return;
    for (size_t i = 0; i < 16; i++) {
        const char *model = of_32[i / 8];
        const uint32_t chunk = i % 8 < 4 ? 1 : N_CONTEXT; /* many rows at a time: in bf16 */
        struct reference ref = {0}, opened;
        struct hub_options grouped = {.mlx_bits = bits[i % 4]}, plain = {.mlx_bits = bits[i % 4], .mlx_opened = true};
        char dir[64], dir_plain[64];
        uint64_t n_bytes = 0, n_plain = 0;
        float *got, *want;
        double e = INFINITY;

        CHECK(reference_read(model, &ref) && hub_make(reference_file(model, "gguf"), &grouped, dir) &&
              hub_make(reference_file(model, "gguf"), &plain, dir_plain));
        got = logits_of(dir, &ref, chunk, &n_bytes);
        want = logits_of(dir_plain, &ref, chunk, &n_plain);
        opened = ref;
        opened.logits = want;
        if (got && want) e = reference_error(&opened, got);
        if (!(e <= (chunk == 1 ? 1e-3 : 2e-2)) || n_bytes * 2 > n_plain)
            test_fail(__FILE__, __LINE__, "%s, %u bits: worst error / range %.2e; %llu bytes, opened %llu", model,
                      bits[i % 4], e, (unsigned long long)n_bytes, (unsigned long long)n_plain);
        hub_remove(dir);
        hub_remove(dir_plain);
        mem_free(got);
        mem_free(want);
        mem_free(ref.bytes);
    }
}

/* Greedy tokens behind the reference's, one step after the other, or each begun before the one before is known. */
static bool decode(struct model_rig *r, const struct reference *ref, uint32_t n, bool ahead, int32_t *tokens)
{
    const struct row_draw greedy = {0};
    const uint32_t from = 0, first = ref->n_tokens / 2;
    struct row_choice choices[2];
    float *logits = mem_alloc(ref->n_vocab, sizeof(*logits));
    int32_t token = ref->tokens[first - 1];
    bool ok = logits && rig_step(r, ref->tokens, 0, first - 1, 1, logits) == RD_OK;

    for (uint32_t i = 0; i <= n && ok; i++) { /* step i is begun, step i - 1 is waited for */
        r->batch.choices = &choices[i % 2];
        if (i < n) {
            ok = rig_fill(r, &token, first - 1 + i, 1, 0);
            model_batch_want_logits(&r->batch, 0, &greedy);
            ok = ok && model_begin(r->m, &r->kv, &r->batch, ahead && i ? &from : NULL) == RD_OK;
        }
        if (ahead && i == 0) continue;
        if (ahead || i < n) {
            const uint32_t k = ahead ? i - 1 : i;

            ok = ok && model_end(r->m) == RD_OK && !isnan(choices[k % 2].value);
            tokens[k] = choices[k % 2].token;
            token = ahead ? 0 : tokens[k]; /* not known yet where it is ahead */
        }
    }
    r->batch.choices = NULL;
    mem_free(logits);
    return ok;
}

TEST(steps_begun_ahead_choose_the_tokens_of_steps_that_wait)
{
    enum { N = 30 };

    if (!is_here()) return;
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref = {0};
        struct model_rig r = {0};
        int32_t one[N] = {0}, other[N] = {0};

        CHECK(reference_read(models[i], &ref));
        CHECK_OK(rig_open(&r, reference_file(models[i], "gguf"), DTYPE_F32, 2 * N_CONTEXT, N_CONTEXT, NULL, 2));
        CHECK(model_can_begin(r.m));
        CHECK(decode(&r, &ref, N, false, one));
        CHECK(decode(&r, &ref, N, true, other));
        CHECK(memcmp(one, other, sizeof(one)) == 0);
        rig_close(&r);
        mem_free(ref.bytes);
    }
}
