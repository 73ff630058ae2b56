/* tests/model/test_golden.c - tiny seeded models of every architecture against transformers' logits
 * (tests/golden/make_tiny_models.py), and the first promise on them: the bits of a row's logits do not depend on how
 * the prompt was cut, on what shares the batch, on the number of threads or on the instruction set. */
#include <math.h>
#include "backend/compose.h"
#include "base/checked.h"
#include "base/mem.h"
#include "base/random.h"
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

static double error_of(const char *model, enum dtype kv_dtype)
{
    struct reference ref = {0};
    struct model_rig r = {0};
    double worst = INFINITY;
    float *logits = NULL;

    if (reference_read(model, &ref) &&
        rig_open(&r, reference_file(model, "gguf"), kv_dtype, N_CONTEXT, N_CONTEXT, NULL, 2) == RD_OK) {
        logits = mem_zalloc((size_t)ref.n_tokens * ref.n_vocab, sizeof(float));
        if (logits && model_config(r.m)->n_vocab == ref.n_vocab &&
            rig_step(&r, ref.tokens, 0, ref.n_tokens, ref.n_tokens, logits) == RD_OK)
            worst = reference_error(&ref, logits);
    }
    mem_free(logits);
    rig_close(&r);
    mem_free(ref.bytes);
    return worst;
}

TEST(every_architecture_gives_the_logits_of_transformers)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        double f32 = error_of(models[i], DTYPE_F32), f16 = error_of(models[i], DTYPE_F16);

        test_note("%s: worst error / logit range: KV F32 %.2e, F16 %.2e, BF16 %.2e", models[i], f32, f16,
                  error_of(models[i], DTYPE_BF16));
        CHECK(f32 <= (test_on_gpu() ? 3e-2 : 1e-5)); /* a GPU rounds what matrices read to bf16 */
        CHECK(f16 <= (test_on_gpu() ? 3e-2 : 2e-3));
    }
}

/* One way to run the reference's tokens: chunk lengths from a seed, or n_fixed each; logits of every row. */
static bool run_in_chunks(const char *model, const struct reference *ref, uint32_t n_fixed, uint64_t chunk_seed,
                          const char *isa, uint32_t n_threads, float *logits)
{
    struct model_rig r;
    struct random random;
    bool ok = true;

    random_init(&random, chunk_seed);
    if (rig_open(&r, reference_file(model, "gguf"), DTYPE_F16, N_CONTEXT, N_CONTEXT, isa, n_threads) != RD_OK)
        return false;
    for (uint32_t pos = 0; ok && pos < ref->n_tokens;) {
        uint32_t n = n_fixed ? n_fixed : 1 + (uint32_t)random_below(&random, 17);

        n = u32_min(n, ref->n_tokens - pos);
        ok = rig_step(&r, ref->tokens + pos, pos, n, n, logits + (size_t)pos * ref->n_vocab) == RD_OK;
        pos += n;
    }
    rig_close(&r);
    return ok;
}

TEST(logits_have_the_same_bits_in_one_chunk_token_by_token_and_in_random_chunks)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref;

        CHECK(reference_read(models[i], &ref));
        size_t n = (size_t)ref.n_tokens * ref.n_vocab;
        float *whole = mem_zalloc(n, sizeof(float)), *cut = mem_zalloc(n, sizeof(float));

        CHECK(run_in_chunks(models[i], &ref, ref.n_tokens, 0, NULL, 2, whole));
        CHECK(run_in_chunks(models[i], &ref, 1, 0, NULL, 1, cut));
        CHECK(!memcmp(whole, cut, n * sizeof(float)));
        for (uint64_t s = 0; s < 5; s++) {
            memset(cut, 0, n * sizeof(float));
            CHECK(run_in_chunks(models[i], &ref, 0, test_seed() + s, NULL, 2, cut));
            CHECK(!memcmp(whole, cut, n * sizeof(float)));
        }
        mem_free(whole);
        mem_free(cut);
        mem_free(ref.bytes);
    }
}

TEST(logits_have_the_same_bits_on_every_instruction_set)
{
    static const char *const isas[] = {"avx2", "avx512", "amx"};

    if (test_on_gpu()) {
        test_skip("the instruction sets are the CPU's");
        return;
    }
    for (size_t v = 0; v < sizeof(isas) / sizeof(isas[0]); v++) {
        const struct backend_options options = {.n_threads = 1, .isa = isas[v]};
        struct backend *be = NULL;
        rd_status st = backend_cpu_ops.life.create(&options, &be, NULL);

        backend_cpu_ops.life.destroy(be);
        if (st == RD_E_UNSUPPORTED) {
            test_note("this CPU has no %s: not compared", isas[v]);
            continue;
        }
        CHECK_OK(st);
        for (size_t i = 0; i < N_MODELS; i++) {
            struct reference ref;

            CHECK(reference_read(models[i], &ref));
            size_t n = (size_t)ref.n_tokens * ref.n_vocab;
            float *plain = mem_zalloc(n, sizeof(float)), *fast = mem_zalloc(n, sizeof(float));

            CHECK(run_in_chunks(models[i], &ref, ref.n_tokens, 0, "ref", 1, plain));
            CHECK(run_in_chunks(models[i], &ref, 0, test_seed(), isas[v], 2, fast));
            CHECK(!memcmp(plain, fast, n * sizeof(float)));
            mem_free(plain);
            mem_free(fast);
            mem_free(ref.bytes);
        }
    }
}

static bool same_pages(struct model_rig *a, struct model_rig *b)
{
    const struct backend_ops *ops = test_backend_ops();
    size_t n = a->kv.page_bytes;
    char *pages[2] = {mem_alloc(n, 1), mem_alloc(n, 1)};
    bool same = pages[0] && pages[1];

    for (kv_page id = 0; id < a->n_pages && same; id++)
        same = backend_page_out(ops, a->be, &a->kv, id, pages[0]) == RD_OK &&
               backend_page_out(ops, b->be, &b->kv, id, pages[1]) == RD_OK && memcmp(pages[0], pages[1], n) == 0;
    mem_free(pages[0]);
    mem_free(pages[1]);
    return same;
}

/* Rows whose logits are not wanted are dropped in the last layer: those that are wanted keep their bits, and the cache
 * is complete. */
TEST(asking_for_fewer_logits_changes_neither_those_nor_the_cache)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref;
        struct model_rig all, few;

        CHECK(reference_read(models[i], &ref));
        CHECK_OK(rig_open(&all, reference_file(models[i], "gguf"), DTYPE_F16, N_CONTEXT, N_CONTEXT, NULL, 2));
        CHECK_OK(rig_open(&few, reference_file(models[i], "gguf"), DTYPE_F16, N_CONTEXT, N_CONTEXT, NULL, 2));
        size_t row = ref.n_vocab;
        float *want = mem_zalloc(ref.n_tokens * row, sizeof(float)),
              *got = mem_zalloc(ref.n_tokens * row, sizeof(float));

        CHECK_OK(rig_step(&all, ref.tokens, 0, ref.n_tokens, ref.n_tokens, want));
        CHECK_OK(rig_step(&few, ref.tokens, 0, 13, 0, NULL));     /* no logits at all */
        CHECK_OK(rig_step(&few, ref.tokens + 13, 13, 9, 3, got)); /* the last three */
        CHECK(!memcmp(got, want + 19 * row, 3 * row * sizeof(float)));
        CHECK_OK(rig_step(&few, ref.tokens + 22, 22, ref.n_tokens - 22, 1, got));
        CHECK(!memcmp(got, want + (ref.n_tokens - 1) * row, row * sizeof(float)));
        CHECK(same_pages(&all, &few));
        mem_free(want);
        mem_free(got);
        mem_free(ref.bytes);
        rig_close(&all);
        rig_close(&few);
    }
}

/* Two copies of a sequence at different places of one batch, logits asked for in reverse. */
TEST(a_row_does_not_see_its_neighbours_in_the_batch)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref;
        struct model_rig r;
        uint32_t positions[30], slots[30], logit_rows[2] = {29, 16};
        kv_page pages[30];
        int32_t tokens[30];
        const kv_page short_table[2] = {0, 1}, long_table[2] = {3, 2};
        struct seq_run runs[2] = {{0, 13, 0, short_table, 0, 0}, {13, 17, 0, long_table, 0, 0}};
        struct model_batch b = {.n_rows = 30,
                                .tokens = tokens,
                                .positions = positions,
                                .row_page = pages,
                                .row_slot = slots,
                                .n_runs = 2,
                                .runs = runs,
                                .n_logits = 2,
                                .logit_rows = logit_rows};

        CHECK(reference_read(models[i], &ref));
        CHECK_OK(rig_open(&r, reference_file(models[i], "gguf"), DTYPE_F16, N_CONTEXT, N_CONTEXT, NULL, 2));
        size_t row = ref.n_vocab;
        float *want = mem_zalloc(17 * row, sizeof(float)), *got = mem_zalloc(2 * row, sizeof(float));

        CHECK_OK(rig_step(&r, ref.tokens, 0, 17, 17, want));
        for (uint32_t k = 0; k < 30; k++) {
            positions[k] = k < 13 ? k : k - 13;
            tokens[k] = k < 13 ? ref.tokens[20 + k] : ref.tokens[k - 13];
            pages[k] = (k < 13 ? short_table : long_table)[positions[k] / 16];
            slots[k] = positions[k] % 16;
        }
        b.states = mem_zalloc(2 * (size_t)model_config(r.m)->hidden, sizeof(float));
        CHECK_OK(model_forward(r.m, &r.kv, &b, got));
        CHECK(!memcmp(got, want + 16 * row, row * sizeof(float)));      /* row 29: position 16 of the long one */
        CHECK(!memcmp(got + row, want + 3 * row, row * sizeof(float))); /* row 16: position 3 */
        CHECK_OK(model_head(r.m, 1, (const float *[]){b.states + model_config(r.m)->hidden}, got));
        CHECK(!memcmp(got, want + 3 * row, row * sizeof(float))); /* the head alone, on the state of row 16 */
        mem_free(b.states);
        mem_free(want);
        mem_free(got);
        mem_free(ref.bytes);
        rig_close(&r);
    }
}

#define N_SEQUENCES 5u
#define N_STEPS     13u

/* Sequence s of the reference's tokens: its pages in the rig, its first tokens computed. */
static rd_status begin_sequence(struct model_rig *r, const struct reference *ref, uint32_t s, uint32_t n)
{
    uint32_t positions[N_CONTEXT], slots[N_CONTEXT];
    kv_page pages[N_CONTEXT];
    const kv_page *table = r->table + s * (N_CONTEXT / 16);
    struct seq_run run = {0, n, 0, table, 0, 0};
    const struct model_batch b = {.n_rows = n,
                                  .tokens = (int32_t *)ref->tokens,
                                  .positions = positions,
                                  .row_page = pages,
                                  .row_slot = slots,
                                  .n_runs = 1,
                                  .runs = &run};

    for (uint32_t i = 0; i < n; i++) positions[i] = i, pages[i] = table[i / 16], slots[i] = i % 16;
    return model_forward(r->m, &r->kv, &b, NULL);
}

/* On a GPU the steps after the second are a graph with padding rows; warm: the first ones, too. */
static void check_decode(bool warm)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        uint32_t n_warm = 0;
        struct reference ref;
        struct model_rig r;
        uint32_t positions[N_SEQUENCES], slots[N_SEQUENCES], rows[N_SEQUENCES];
        int32_t tokens[N_SEQUENCES];
        kv_page pages[N_SEQUENCES];
        struct seq_run runs[N_SEQUENCES];
        struct row_choice choices[N_SEQUENCES];
        bool unread[N_SEQUENCES] = {false, true, false, true, true}, all[N_SEQUENCES] = {true, true, true, true, true};
        struct row_draw draws[N_SEQUENCES] = {{0}};
        struct model_batch b = {.n_rows = N_SEQUENCES,
                                .tokens = tokens,
                                .positions = positions,
                                .row_page = pages,
                                .row_slot = slots,
                                .n_runs = N_SEQUENCES,
                                .runs = runs,
                                .n_logits = N_SEQUENCES,
                                .logit_rows = rows};

        CHECK(reference_read(models[i], &ref));
        CHECK_OK(
            rig_open(&r, reference_file(models[i], "gguf"), DTYPE_F16, N_SEQUENCES * N_CONTEXT, N_CONTEXT, NULL, 2));
        size_t row = ref.n_vocab;
        float *want = mem_zalloc(ref.n_tokens * row, sizeof(float)),
              *got = mem_zalloc(N_SEQUENCES * row, sizeof(float));

        while (warm && model_warm_up(r.m, &r.kv, NULL) == RD_E_AGAIN) n_warm++;
        CHECK(!warm || (n_warm > 0) == test_on_gpu());
        CHECK_OK(rig_step(&r, ref.tokens, 0, ref.n_tokens, ref.n_tokens, want));
        if (warm)
            while (model_warm_up(r.m, &r.kv, NULL)) test_fail(__FILE__, __LINE__, "something was left to warm up");
        for (uint32_t s = 0; s < N_SEQUENCES; s++) CHECK_OK(begin_sequence(&r, &ref, s, 2 + 3 * s));
        for (uint32_t step = 0; step < N_STEPS; step++) {
            for (uint32_t s = 0; s < N_SEQUENCES; s++) {
                const kv_page *table = r.table + s * (N_CONTEXT / 16);

                positions[s] = 2 + 3 * s + step;
                tokens[s] = ref.tokens[positions[s]];
                pages[s] = table[positions[s] / 16], slots[s] = positions[s] % 16;
                runs[s] = (struct seq_run){s, 1, positions[s], table, 0, 0};
                rows[s] = s;
            }
            b.choices = step % 2 && model_gives_choices(r.m) ? choices : NULL;
            b.unread = step % 4 == 3 ? all : unread; /* all: the logits need not be computed */
            b.draws = draws;
            CHECK_OK(model_forward(r.m, &r.kv, &b, got));
            for (uint32_t s = 0; s < N_SEQUENCES; s++) {
                const float *logits = want + positions[s] * row;
                uint32_t best = 0;

                if (b.choices && b.unread[s]) CHECK_OK(model_read_logits(r.m, s, got + s * row));
                CHECK(!memcmp(got + s * row, logits, row * sizeof(float)));
                for (uint32_t t = 1; t < row; t++) best = logits[t] > logits[best] ? t : best;
                if (b.choices) CHECK(choices[s].token == (int32_t)best && choices[s].value == logits[best]);
            }
        }
        mem_free(want);
        mem_free(got);
        mem_free(ref.bytes);
        rig_close(&r);
    }
}

TEST(sequences_that_decode_together_have_the_bits_of_one_prefill)
{
    check_decode(false);
}

TEST(what_was_recorded_beforehand_has_the_bits_of_one_prefill)
{
    check_decode(true);
}

/* Says that nobody waits any more when it is asked for the second time. */
static bool second_time(void *arg)
{
    return ++*(int *)arg == 2;
}

TEST(what_a_text_model_does_not_compute_is_refused)
{
    struct reference ref;
    struct model_rig r;
    const float row[1] = {0};
    const float *embeds[N_CONTEXT] = {row};
    const uint32_t axes[3 * N_CONTEXT] = {0};

    CHECK(reference_read(models[0], &ref));
    CHECK_OK(rig_open(&r, reference_file(models[0], "gguf"), DTYPE_F32, N_CONTEXT, N_CONTEXT, NULL, 2));
    float *logits = mem_zalloc(ref.n_vocab, sizeof(float));

    CHECK(rig_fill(&r, ref.tokens, 0, 4, 1));
    r.batch.rope_axes = axes;
    CHECK_EQ(model_forward(r.m, &r.kv, &r.batch, logits), RD_E_UNSUPPORTED);
    r.batch.rope_axes = NULL;
    r.batch.embeds = embeds;
    r.batch.n_embed = 1;
    CHECK_EQ(model_forward(r.m, &r.kv, &r.batch, logits), RD_E_UNSUPPORTED);
    r.batch.embeds = NULL;
    CHECK_OK(model_forward(r.m, &r.kv, &r.batch, logits));
    mem_free(logits);
    rig_close(&r);
    mem_free(ref.bytes);
}

TEST(a_pass_that_nobody_waits_for_ends_early_and_leaves_no_trace)
{
    if (test_on_gpu()) {
        test_skip("a device is not asked");
        return;
    }
    for (size_t i = 0; i < N_MODELS; i++) {
        struct reference ref;
        struct model_rig r;
        uint32_t positions[N_CONTEXT], slots[N_CONTEXT];
        kv_page pages[N_CONTEXT];
        int n_asked = 0;

        CHECK(reference_read(models[i], &ref));
        CHECK_OK(rig_open(&r, reference_file(models[i], "gguf"), DTYPE_F16, N_CONTEXT, N_CONTEXT, NULL, 2));
        struct seq_run run = {0, ref.n_tokens, 0, r.table, 0, 0};
        const struct model_batch b = {.n_rows = ref.n_tokens,
                                      .tokens = (int32_t *)ref.tokens,
                                      .positions = positions,
                                      .row_page = pages,
                                      .row_slot = slots,
                                      .n_runs = 1,
                                      .runs = &run,
                                      .is_moot = second_time,
                                      .moot_arg = &n_asked};
        float *want = mem_zalloc(ref.n_vocab, sizeof(float)), *got = mem_zalloc(ref.n_vocab, sizeof(float));

        for (uint32_t p = 0; p < ref.n_tokens; p++) positions[p] = p, pages[p] = r.table[p / 16], slots[p] = p % 16;
        CHECK_OK(rig_step(&r, ref.tokens, 0, ref.n_tokens, 1, want));
        CHECK_EQ(model_forward(r.m, &r.kv, &b, NULL), RD_E_CANCELLED);
        CHECK_EQ(n_asked, 2);
        CHECK_OK(rig_step(&r, ref.tokens, 0, ref.n_tokens, 1, got));
        CHECK(memcmp(want, got, ref.n_vocab * sizeof(float)) == 0);
        mem_free(want), mem_free(got);
        mem_free(ref.bytes);
        rig_close(&r);
    }
}
