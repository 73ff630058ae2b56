/* tests/train/test_trainer.c - an adapter learns: against PEFT and torch (tests/golden/make_train.py), and against itself. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/mem.h"
#include "grad/grad_kernels.h"
#include "lora_make.h"
#include "model/model.h"
#include "model/adapter_inside.h"
#include "model/model_rig.h"
#include "sanitized.h"
#include "test.h"
#include "train/trainer.h"

enum { N_SAMPLES = 4, MAX_TOKENS = 32, RANK = 2, WARM_UP = 5 };

/* Whether all is compared that can be: sanitized builds look for what one step shows. */
static bool compares_all(void)
{
    return !IS_SANITIZED || test_is_long();
}

static const struct {
    const char *name, *path;
} models[] = {
    {"llama", "llama/tiny-llama.gguf"},    {"llama31", "llama/tiny-llama31.gguf"},
    {"qwen2", "qwen2/tiny-qwen2.gguf"},    {"qwen2-yarn", "qwen2/tiny-qwen2-yarn.gguf"},
    {"qwen3", "qwen3/tiny-qwen3.gguf"},    {"qwen3-tied", "qwen3/tiny-qwen3-tied.gguf"},
    {"gemma2", "gemma2/tiny-gemma2.gguf"}, {"gemma3", "gemma3/tiny-gemma3.gguf"},
};
#define N_MODELS (sizeof(models) / sizeof(models[0]))

struct golden {
    uint32_t n_params, n_steps;
    float loss, *gradient, *losses, *numbers;
    char *bytes;
};

static bool read_golden(const char *name, struct golden *g)
{
    char path[96];
    size_t n = 0;

    snprintf(path, sizeof(path), "tests/golden/train/%s.ref", name);
    if (file_read_all(test_path(path), 1 << 20, &g->bytes, &n, NULL) != RD_OK) return false;
    memcpy(&g->n_params, g->bytes, 4);
    memcpy(&g->n_steps, g->bytes + 4, 4);
    memcpy(&g->loss, g->bytes + 8, 4);
    if (n != 12 + 6 * (size_t)g->n_params + 4 * (size_t)g->n_steps) return false;
    g->gradient = mem_alloc(g->n_params, sizeof(float));
    g->losses = mem_alloc(g->n_steps, sizeof(float));
    g->numbers = mem_alloc(g->n_params, sizeof(float));
    memcpy(g->gradient, g->bytes + 12, 4 * (size_t)g->n_params);
    memcpy(g->losses, g->bytes + 12 + 4 * (size_t)g->n_params, 4 * (size_t)g->n_steps);
    dtype_to_float(DTYPE_F16, g->bytes + 12 + 4 * ((size_t)g->n_params + g->n_steps), g->numbers, g->n_params);
    return true;
}

static void free_golden(struct golden *g)
{
    mem_free(g->bytes);
    mem_free(g->gradient);
    mem_free(g->losses);
    mem_free(g->numbers);
}

static struct trainer_options options(void)
{
    return (struct trainer_options){
        .n_threads = 2,
        .kv_type = DTYPE_F32,
        .max_rows = 128,
        .shape = {.rank = RANK, .alpha = 4, .targets = 0x7f, .seed = 1},
        .clip = 1,
        .adamw = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .decay = 0.01},
    };
}

static int32_t sample_tokens[N_SAMPLES][MAX_TOKENS];
static bool sample_targets[N_SAMPLES][MAX_TOKENS];

/* make_train.py's sample(). */
static void make_samples(uint32_t step, struct train_sample samples[N_SAMPLES])
{
    for (uint32_t k = 0; k < N_SAMPLES; k++) {
        uint32_t n = 6 + (5 * step + 3 * k) % 15;

        for (uint32_t i = 0; i < n; i++) {
            sample_tokens[k][i] = (int32_t)((7 * i * i + 11 * i * (k + 1) + 13 * step) % 94);
            sample_targets[k][i] = i > 0 && i % 3 != 1;
        }
        samples[k] = (struct train_sample){sample_tokens[k], sample_targets[k], n};
    }
}

/* Row o of a file with halves of heads stands where in the model: PEFT's order to ours. */
static uint32_t place(struct trainer *t, const struct adapter_pair_view *v, uint32_t o)
{
    const struct model_config *c = model_config(trainer_model(t));

    return v->target <= 1 && c->rope_layout == ROPE_INTERLEAVED ? adapter_place(o, c->head_dim, false, true) : o;
}

/* Ours (A, then B's transposed) to PEFT's (A, then B), or back. */
static void reorder(struct trainer *t, float *peft, float *ours, bool to_ours)
{
    struct adapter_pair_view v;
    uint64_t at = 0;

    for (uint32_t i = 0; adapter_pair_at(trainer_adapter(t), i, &v); i++) {
        uint64_t n_a = (uint64_t)v.rank * v.n_in;

        memcpy((to_ours ? ours : peft) + at, (to_ours ? peft : ours) + at, n_a * sizeof(float));
        at += n_a;
        for (uint32_t o = 0; o < v.n_out; o++)
            for (uint32_t j = 0; j < v.rank; j++) {
                float *x = peft + at + (uint64_t)o * v.rank + j,
                      *y = ours + at + (uint64_t)j * v.n_out + place(t, &v, o);

                if (to_ours)
                    *y = *x;
                else
                    *x = *y;
            }
        at += (uint64_t)v.rank * v.n_out;
    }
}

/* make_train.py's first(). */
static void set_first(struct trainer *t, bool zero_b)
{
    uint64_t n = trainer_n_params(t), at = 0;
    float *state = mem_zalloc(3 * n, sizeof(float)), *peft = mem_zalloc(n, sizeof(float));
    struct adapter_pair_view v;

    for (uint32_t i = 0; adapter_pair_at(trainer_adapter(t), i, &v); i++) {
        for (uint64_t k = 0; k < (uint64_t)v.rank * v.n_in; k++)
            peft[at++] = (float)(sin(0.7 * (double)k + i + 0.25) / sqrt(v.n_in));
        for (uint64_t k = 0; k < (uint64_t)v.rank * v.n_out; k++)
            peft[at++] = zero_b ? 0 : (float)(sin(0.7 * (double)k + i + 0.5) * 0.05);
    }
    reorder(t, peft, state, true);
    trainer_state_set(t, 0, state);
    mem_free(state);
    mem_free(peft);
}

/* Distance by the norms of both. */
static double distance(const float *a, const float *b, uint64_t n)
{
    double diff = 0, size = 0;

    for (uint64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(diff / size);
}

static struct trainer *open_trainer(const char *path, const struct trainer_options *o)
{
    struct trainer *t = NULL;
    struct rd_error err = {0};
    char full[96];

    snprintf(full, sizeof(full), "tests/golden/%s", path);
    if (trainer_open(test_path(full), o, &t, &err) != RD_OK) test_note("%s: %s", path, err.text);
    return t;
}

static double lr_of(uint32_t step, uint32_t n_steps)
{
    return lr_at(LR_LINEAR, 4e-3, step + 1, WARM_UP, n_steps);
}

TEST(gradients_are_those_of_torch)
{
    for (size_t k = 0; k < N_MODELS; k++) {
        const struct trainer_options o = options();
        struct train_sample samples[N_SAMPLES];
        struct train_result r;
        struct golden g = {0};
        struct trainer *t = open_trainer(models[k].path, &o);
        float *peft, *ours;

        CHECK(t && read_golden(models[k].name, &g));
        CHECK_EQ(trainer_n_params(t), g.n_params);
        set_first(t, false);
        make_samples(0, samples);
        CHECK_OK(trainer_gradient(t, samples, N_SAMPLES, &r, NULL));
        peft = mem_zalloc(g.n_params, sizeof(float));
        ours = mem_zalloc(g.n_params, sizeof(float));
        CHECK_OK(trainer_gradients_get(t, ours));
        reorder(t, peft, ours, false);
        test_note("%s: loss %.7f, torch %.7f; gradients differ by %.1e", models[k].name, r.loss, (double)g.loss,
                  distance(peft, g.gradient, g.n_params));
        CHECK(fabs(r.loss - (double)g.loss) < 1e-5 * fabs(r.loss));
        CHECK(distance(peft, g.gradient, g.n_params) < 1e-4);
        mem_free(peft);
        mem_free(ours);
        free_golden(&g);
        trainer_close(t);
    }
}

TEST(fifty_steps_go_where_peft_goes)
{
    for (size_t k = 0; k < N_MODELS; k++) {
        const struct trainer_options o = options();
        struct train_sample samples[N_SAMPLES];
        struct train_result r;
        struct golden g = {0};
        struct trainer *t = open_trainer(models[k].path, &o);
        float *state, *peft;
        double worst = 0;
        uint32_t n_steps;

        CHECK(t && read_golden(models[k].name, &g));
        set_first(t, true);
        n_steps = compares_all() ? g.n_steps : 8; /* four sets of samples, twice */
        for (uint32_t step = 0; step < n_steps; step++) {
            make_samples(step % 4, samples);
            CHECK_OK(trainer_step(t, samples, N_SAMPLES, lr_of(step, g.n_steps), &r, NULL));
            worst = fmax(worst, fabs(r.loss - (double)g.losses[step]) / (double)g.losses[step]);
        }
        state = mem_zalloc(3 * trainer_n_params(t), sizeof(float));
        peft = mem_zalloc(g.n_params, sizeof(float));
        trainer_state_get(t, state);
        reorder(t, peft, state, false);
        test_note("%s: losses within %.1e, numbers within %.1e", models[k].name, worst,
                  distance(peft, g.numbers, g.n_params));
        CHECK(worst < 1e-3);
        if (n_steps == g.n_steps) CHECK(distance(peft, g.numbers, g.n_params) < 1e-2);
        mem_free(state);
        mem_free(peft);
        free_golden(&g);
        trainer_close(t);
    }
}

/* A step or two with dropout, of this many threads: everything that the next step depends on. */
static float *run_steps(const struct trainer_options *o, const char *path, uint64_t *n)
{
    struct train_sample samples[N_SAMPLES];
    struct train_result r;
    struct trainer *t = open_trainer(path, o);
    float *state;

    if (!t) return NULL;
    *n = 3 * trainer_n_params(t);
    state = mem_zalloc(*n, sizeof(float));
    for (uint32_t step = 0; step < (compares_all() ? 3 : 1); step++) {
        make_samples(step, samples);
        if (trainer_step(t, samples, N_SAMPLES, 1e-2, &r, NULL) != RD_OK) test_note("step %u failed", step);
    }
    trainer_state_get(t, state);
    trainer_close(t);
    return state;
}

/* With AMX gradients have bits of their own; all other instruction sets have the same. */
TEST(threads_instruction_sets_and_recomputing_change_no_bit)
{
    for (size_t k = 0; k < N_MODELS; k++) {
        static const char *const isas[] = {NULL, NULL, NULL, NULL, "ref", "avx2", "neon"};
        struct trainer_options o = options();
        float *want, *of_floats, *got;
        uint64_t n = 0;

        o.dropout = 0.25;
        o.dropout_seed = 5;
        o.kv_type = DTYPE_F16;
        want = run_steps(&o, models[k].path, &n);
        o.isa = "avx512";
        of_floats = run_steps(&o, models[k].path, &n); /* NULL: not this processor's, which has no AMX then */
        CHECK(want != NULL);
        for (uint32_t i = 1; i < 7; i++) {
            o.n_threads = i < 3 ? 2 * i - 1 : 2;
            o.memory_bytes = i == 2 ? 1 : i == 3 ? 300000 : 0; /* all layers again; some */
            o.isa = isas[i];
            got = run_steps(&o, models[k].path, &n);
            if (!got && o.isa) continue; /* not this processor's */
            CHECK(got && memcmp(of_floats && o.isa ? of_floats : want, got, n * sizeof(float)) == 0);
            mem_free(got);
        }
        o.isa = NULL;
        o.dropout_seed = 6;
        got = run_steps(&o, models[k].path, &n);
        CHECK(got && memcmp(want, got, n * sizeof(float)) != 0);
        mem_free(got);
        mem_free(of_floats);
        mem_free(want);
    }
}

/* Of numbers of 32 bits, and of 16. */
TEST(log_probabilities_are_those_that_are_served)
{
    for (size_t j = 0; j < 2 * N_MODELS; j++) {
        const size_t k = j / 2;
        struct trainer_options o = options();
        struct train_sample samples[N_SAMPLES];
        struct train_result r;
        struct trainer *t;
        struct model_rig rig;
        struct adapter *a = NULL;
        struct adapter_mix *mix = NULL;
        float trained[N_SAMPLES * MAX_TOKENS], *logits = mem_alloc(MAX_TOKENS * 96, sizeof(float));
        char path[96], dir[] = "/tmp/radish-train-XXXXXX", file[64];
        uint32_t at = 0;

        o.kv_type = DTYPE_F16;
        o.bf16 = j % 2 == 1;
        t = open_trainer(models[k].path, &o);
        CHECK(t && mkdtemp(dir));
        for (uint32_t step = 0; step < 4; step++) {
            make_samples(step, samples);
            CHECK_OK(trainer_step(t, samples, N_SAMPLES, 1e-2, &r, NULL));
        }
        CHECK_OK(trainer_save(t, dir, &(struct adapter_save){&o.shape, 0, "tiny", false, o.bf16, NULL}, NULL));
        snprintf(file, sizeof(file), "%s/a.gguf", dir);
        CHECK_OK(trainer_save(t, file, &(struct adapter_save){&o.shape, 0, "tiny", true, o.bf16, NULL}, NULL));
        CHECK_OK(trainer_loss(t, samples, N_SAMPLES, trained, &r, NULL));
        trainer_close(t);

        snprintf(path, sizeof(path), "tests/golden/%s", models[k].path);
        CHECK_OK(rig_open(&rig, test_path(path), DTYPE_F16, 64, 64, NULL, 1));
        for (int gguf = 0; gguf < 2; gguf++) {
            CHECK_OK(adapter_load(rig.m, gguf ? file : dir, &a, NULL));
            CHECK_OK(adapter_mix_create(&(struct adapter_use){a, 1}, 1, &mix, NULL));
            at = 0;
            for (uint32_t s = 0; s < N_SAMPLES; s++) { /* as a server: a prompt of 5 tokens, then one by one */
                for (uint32_t i = 0; i < samples[s].n; i = i < 5 ? 5 : i + 1) {
                    CHECK(rig_fill(&rig, samples[s].tokens + i, i, i < 5 ? 5 : 1, i < 5 ? 5 : 1));
                    rig.batch.adapters[0] = mix;
                    rig.batch.n_adapted = 1;
                    CHECK_OK(model_forward(rig.m, &rig.kv, &rig.batch, logits + (size_t)i * 96));
                }
                for (uint32_t i = 1; i < samples[s].n; i++) {
                    if (!samples[s].targets[i]) continue;
                    float served = (float)-grad_kernels_ref.cross_entropy(logits + (size_t)(i - 1) * 96, 96,
                                                                          (uint32_t)samples[s].tokens[i], 1);

                    CHECK(memcmp(&served, &trained[at], sizeof(served)) == 0);
                    at++;
                }
            }
            CHECK_EQ(at, r.n_targets);
            adapter_mix_unref(mix);
            adapter_unref(a);
        }
        rig_close(&rig);
        mem_free(logits);
        lora_remove(dir);
    }
}

/* Errors leave the numbers as they were. */
TEST(what_cannot_be_learned_is_refused)
{
    const struct trainer_options good = options();
    struct trainer_options o = good;
    struct train_sample samples[N_SAMPLES];
    struct train_result r;
    struct trainer *t = NULL;
    struct rd_error err = {0};
    const char *path = test_path("tests/golden/llama/tiny-llama.gguf");
    float *state;
    int32_t tokens[3] = {1, 96, 2};
    bool targets[3] = {false, false, false};

    o.shape.rank = 0;
    CHECK_EQ(trainer_open(path, &o, &t, &err), RD_E_INVALID);
    o = good;
    o.shape.targets = 0;
    CHECK_EQ(trainer_open(path, &o, &t, &err), RD_E_INVALID);
    o = good;
    o.dropout = 1;
    CHECK_EQ(trainer_open(path, &o, &t, &err), RD_E_INVALID);
    CHECK_EQ(trainer_open("/nowhere.gguf", &good, &t, &err), RD_E_NOT_FOUND);
    CHECK(!t);

    CHECK_OK(trainer_open(path, &good, &t, &err));
    CHECK_EQ(trainer_step(t, &(struct train_sample){tokens, targets, 3}, 1, 1, &r, &err), RD_E_INVALID);
    tokens[1] = 5;
    CHECK_EQ(trainer_step(t, &(struct train_sample){tokens, targets, 3}, 1, 1, &r, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "no token"));
    state = mem_zalloc(3 * trainer_n_params(t), sizeof(float));
    trainer_state_get(t, state);
    for (uint64_t i = 0; i < trainer_n_params(t); i++) state[i] = 1e30f;
    trainer_state_set(t, 7, state);
    make_samples(0, samples);
    CHECK_EQ(trainer_step(t, samples, N_SAMPLES, 1e-2, &r, &err), RD_E_MODEL_OUTPUT);
    CHECK(strstr(err.text, "no number") && trainer_n_steps(t) == 7);
    mem_free(state);
    trainer_close(t);
}

TEST(any_allocation_of_a_step_may_fail)
{
    struct trainer_options o = options();
    struct train_sample samples[N_SAMPLES];
    struct train_result r;
    struct trainer *t;
    float *before, *after;
    uint32_t n_failed = 0;
    bool done = false;

    o.n_threads = 1;
    o.memory_bytes = 1;
    o.dropout = 0.1;
    make_samples(1, samples);
    for (int64_t i = 0; !done && i < 5000; i++) { /* anew: what a step gave back stays for the next */
        uint64_t n;
        rd_status st;

        t = open_trainer("gemma2/tiny-gemma2.gguf", &o);
        CHECK(t != NULL);
        n = 3 * trainer_n_params(t);
        before = mem_zalloc(n, sizeof(float));
        after = mem_zalloc(n, sizeof(float));
        trainer_state_get(t, before);
        mem_fail_from(i);
        st = trainer_step(t, samples, N_SAMPLES, 1e-2, &r, NULL);
        mem_fail_after(-1);
        mem_fail_from(-1);
        done = st == RD_OK;
        trainer_state_get(t, after);
        CHECK(done || memcmp(before, after, n * sizeof(float)) == 0);
        n_failed += !done;
        if (!done && i % 16 == 0) CHECK_OK(trainer_step(t, samples, N_SAMPLES, 1e-2, &r, NULL)); /* it goes on */
        mem_free(before);
        mem_free(after);
        trainer_close(t);
    }
    CHECK(done && n_failed > 20);
    test_note("%u allocations failed", n_failed);
}
