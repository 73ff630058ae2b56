/* tests/train/test_cuda_train.c - training on a GPU: against the CPU's, and against itself. Skipped where there is no GPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "backend/backend_registry.h"
#include "base/mem.h"
#include "grad/device.h"
#include "lora_make.h"
#include "model/adapter_inside.h"
#include "model/model.h"
#include "model/model_rig.h"
#include "test.h"
#include "train/trainer.h"

enum { N_SAMPLES = 4, MAX_TOKENS = 40, N_STEPS = 50 };

static const char *const models[] = {
    "llama/tiny-llama.gguf", "llama/tiny-llama31.gguf",    "qwen2/tiny-qwen2.gguf",   "qwen2/tiny-qwen2-yarn.gguf",
    "qwen3/tiny-qwen3.gguf", "qwen3/tiny-qwen3-tied.gguf", "gemma2/tiny-gemma2.gguf", "gemma3/tiny-gemma3.gguf",
};
#define N_MODELS (sizeof(models) / sizeof(models[0]))

static bool no_gpu(void)
{
    const struct backend_options o = {.n_threads = 1};
    const struct backend_ops *ops;
    struct backend *be;
    struct rd_error err = {0};

    if (backend_open("cuda", &o, &ops, &be, &err) != RD_OK) {
        test_skip("%s", err.text);
        return true;
    }
    ops->life.destroy(be);
    return false;
}

static struct trainer_options options(const char *device)
{
    return (struct trainer_options){
        .device = device,
        .n_threads = 2,
        .kv_type = DTYPE_F16,
        .max_rows = 256,
        .shape = {.rank = 4, .alpha = 8, .targets = 0x7f, .seed = 1},
        .clip = 1,
        .adamw = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .decay = 0.01},
    };
}

static int32_t sample_tokens[N_SAMPLES][MAX_TOKENS];
static bool sample_targets[N_SAMPLES][MAX_TOKENS];

static void make_samples(uint32_t step, struct train_sample samples[N_SAMPLES])
{
    for (uint32_t k = 0; k < N_SAMPLES; k++) {
        uint32_t n = 6 + (5 * step + 13 * k) % 35;

        for (uint32_t i = 0; i < n; i++) {
            sample_tokens[k][i] = (int32_t)((7 * i * i + 11 * i * (k + 1) + 13 * step) % 94);
            sample_targets[k][i] =
                i > 0 && i % 3 != 1 && !(k == 2 && i > n / 2); /* the last rows of one are not wanted */
        }
        samples[k] = (struct train_sample){sample_tokens[k], sample_targets[k], n};
    }
}

static double distance(const float *a, const float *b, uint64_t n)
{
    double diff = 0, size = 0;

    for (uint64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(diff / size);
}

static struct trainer *open_trainer(const char *model, const struct trainer_options *o)
{
    struct trainer *t = NULL;
    struct rd_error err = {0};
    char path[96];

    snprintf(path, sizeof(path), "tests/golden/%s", model);
    if (trainer_open(test_path(path), o, &t, &err) != RD_OK) test_note("%s: %s", model, err.text);
    return t;
}

/* B of numbers other than 0, so that A's gradient is something. */
static void set_numbers(struct trainer *t)
{
    const uint64_t n = trainer_n_params(t);
    float *state = mem_zalloc(3 * n, sizeof(float));

    for (uint64_t i = 0; i < n; i++) state[i] = (float)(sin(0.7 * (double)i + 0.25) * 0.06);
    CHECK_OK(trainer_state_set(t, 0, state));
    mem_free(state);
}

static float *gradient(const char *device, const char *model, enum dtype kv, double dropout, uint64_t *n, double *loss)
{
    struct trainer_options o = options(device);
    struct train_sample samples[N_SAMPLES];
    struct train_result r;
    struct rd_error err = {0};
    struct trainer *t;
    float *g;

    o.kv_type = kv;
    o.dropout = dropout;
    o.dropout_seed = 3;
    t = open_trainer(model, &o);
    if (!t) return NULL;
    set_numbers(t);
    make_samples(1, samples);
    *n = trainer_n_params(t);
    g = mem_zalloc(*n, sizeof(float));
    if (trainer_gradient(t, samples, N_SAMPLES, &r, &err) != RD_OK) test_note("%s: %s", model, err.text);
    if (trainer_gradients_get(t, g) != RD_OK) test_note("%s: gradients", model);
    *loss = r.loss;
    trainer_close(t);
    return g;
}

/* Factors of products are bf16 there, with dropout's masks the same. */
TEST(gradients_are_the_cpus)
{
    if (no_gpu()) return;
    for (size_t k = 0; k < N_MODELS * 3; k++) {
        static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
        const char *model = models[k / 3];
        uint64_t n = 0, n_cpu = 0;
        double loss = 0, loss_cpu = 0, dropout = k % 3 == 1 ? 0.25 : 0;
        float *got = gradient("cuda", model, types[k % 3], dropout, &n, &loss);
        float *want = gradient("cpu", model, types[k % 3], dropout, &n_cpu, &loss_cpu);

        CHECK(got && want && n == n_cpu);
        test_note("%s, keys %s, dropout %.2f: loss %.6f, cpu %.6f; gradients differ by %.2e", model,
                  dtype_name(types[k % 3]), dropout, loss, loss_cpu, distance(got, want, n));
        CHECK(fabs(loss - loss_cpu) < 1e-2 * loss_cpu);
        CHECK(distance(got, want, n) < 4e-2); /* the forward passes differ, too: 2.1e-2 on an H100 */
        mem_free(got);
        mem_free(want);
    }
}

TEST(fifty_steps_go_where_the_cpus_go)
{
    if (no_gpu()) return;
    for (size_t k = 0; k < N_MODELS; k++) {
        const struct trainer_options on_gpu = options("cuda"), on_cpu = options("cpu");
        struct trainer *t = open_trainer(models[k], &on_gpu), *cpu = open_trainer(models[k], &on_cpu);
        struct train_sample samples[N_SAMPLES];
        struct train_result r, r_cpu;
        double worst = 0, first = 0;

        CHECK(t && cpu);
        for (uint32_t step = 0; step < N_STEPS; step++) {
            const double lr = lr_at(LR_LINEAR, 4e-3, step + 1, 5, N_STEPS);

            make_samples(step % 4, samples);
            CHECK_OK(trainer_step(t, samples, N_SAMPLES, lr, &r, NULL));
            CHECK_OK(trainer_step(cpu, samples, N_SAMPLES, lr, &r_cpu, NULL));
            if (step == 0) first = r.loss;
            worst = fmax(worst, fabs(r.loss - r_cpu.loss) / r_cpu.loss);
        }
        test_note("%s: loss %.4f to %.4f, cpu %.4f; within %.1e", models[k], first, r.loss, r_cpu.loss, worst);
        CHECK(worst < 2e-2);
        trainer_close(t);
        trainer_close(cpu);
    }
}

/* Three steps, or one, its state to another trainer, and two more. */
static float *run_steps(const struct trainer_options *o, const char *model, bool interrupted, uint64_t *n)
{
    struct train_sample samples[N_SAMPLES];
    struct train_result r;
    struct trainer *t = open_trainer(model, o);
    float *state;

    if (!t) return NULL;
    *n = 3 * trainer_n_params(t);
    state = mem_zalloc(*n, sizeof(float));
    for (uint32_t step = 0; step < 3; step++) {
        make_samples(step, samples);
        if (trainer_step(t, samples, N_SAMPLES, 1e-2, &r, NULL) != RD_OK) test_note("step %u failed", step);
        if (step > 0 || !interrupted) continue;
        if (trainer_state_get(t, state) != RD_OK) test_note("no state");
        trainer_close(t);
        t = open_trainer(model, o);
        if (!t || trainer_state_set(t, 1, state) != RD_OK) test_note("no state");
    }
    if (trainer_state_get(t, state) != RD_OK) test_note("no state");
    trainer_close(t);
    return state;
}

TEST(again_and_recomputed_and_resumed_are_the_same_bits)
{
    if (no_gpu()) return;
    for (size_t k = 0; k < N_MODELS; k++) {
        struct trainer_options o = options("cuda");
        uint64_t n = 0;
        float *want, *got;

        o.dropout = 0.25;
        o.dropout_seed = 5;
        o.bf16 = k % 2;
        want = run_steps(&o, models[k], false, &n);
        CHECK(want != NULL);
        for (uint32_t i = 0; i < 4; i++) {
            o.memory_bytes = i == 1 ? 1 : i == 2 ? 300000 : 0; /* all layers again; some */
            got = run_steps(&o, models[k], i == 3, &n);
            CHECK(got && memcmp(want, got, n * sizeof(float)) == 0);
            mem_free(got);
        }
        o.memory_bytes = 0;
        o.dropout_seed = 6;
        got = run_steps(&o, models[k], false, &n);
        CHECK(got && memcmp(want, got, n * sizeof(float)) != 0);
        mem_free(got);
        mem_free(want);
    }
}

/* -log softmax of rows of logits by the GPU, as the trainer has it. */
static void losses_on_gpu(struct model_rig *rig, const struct backend_ops *ops, const float *logits,
                          const int32_t *targets, uint32_t n, uint32_t n_vocab, double *out)
{
    const struct grad_device_ops *dev = grad_device_of("cuda");
    struct grad_loss a = {.n_rows = n, .n_vocab = n_vocab, .n_all = n, .targets = targets};
    struct grad_device *d = NULL;
    struct buffer *b = NULL;

    CHECK_OK(dev->create(&(struct backend_options){0}, rig->be, &d, NULL));
    CHECK_OK(ops->memory.alloc(rig->be, (uint64_t)n * n_vocab * sizeof(float), &b));
    a.logits = span_of(b, 0);
    CHECK_OK(dev->write(d, *(void **)b, logits,
                        (uint64_t)n * n_vocab * sizeof(float))); /* a buffer begins with its address */
    CHECK_OK(ops->memory.sync(rig->be));
    CHECK_OK(dev->loss(d, &a));
    CHECK_OK(dev->losses_of(d, n, out));
    dev->destroy(d);
    ops->memory.free(rig->be, b);
}

TEST(log_probabilities_are_those_that_are_served)
{
    if (no_gpu()) return;
    setenv("RADISH_TEST_DEVICE", "cuda", 1);
    for (size_t j = 0; j < 2 * N_MODELS; j++) {
        const char *model = models[j / 2];
        const struct backend_ops *ops = backend_find("cuda")->ops;
        struct trainer_options o = options("cuda");
        struct train_sample samples[N_SAMPLES];
        struct train_result r;
        struct trainer *t;
        struct model_rig rig;
        struct adapter *a = NULL;
        struct adapter_mix *mix = NULL;
        float trained[N_SAMPLES * MAX_TOKENS], *logits = mem_alloc(MAX_TOKENS * 96, sizeof(float));
        double losses[MAX_TOKENS];
        char path[96], dir[] = "/tmp/radish-train-XXXXXX";
        uint32_t at = 0, n_wrong = 0;

        o.bf16 = j % 2;
        t = open_trainer(model, &o);
        CHECK(t && mkdtemp(dir));
        for (uint32_t step = 0; step < 4; step++) {
            make_samples(step, samples);
            CHECK_OK(trainer_step(t, samples, N_SAMPLES, 1e-2, &r, NULL));
        }
        CHECK_OK(trainer_save(t, dir, &(struct adapter_save){&o.shape, 0, "tiny", false, o.bf16, NULL}, NULL));
        CHECK_OK(trainer_loss(t, samples, N_SAMPLES, trained, &r, NULL));
        trainer_close(t);
        snprintf(path, sizeof(path), "tests/golden/%s", model);
        CHECK_OK(rig_open(&rig, test_path(path), DTYPE_F16, 64, 64, NULL, 1));
        CHECK_OK(adapter_load(rig.m, dir, &a, NULL));
        CHECK_OK(adapter_mix_create(&(struct adapter_use){a, 1}, 1, &mix, NULL));
        for (uint32_t s = 0; s < N_SAMPLES; s++) { /* as a server: a prompt of 5 tokens, then one by one */
            for (uint32_t i = 0; i < samples[s].n; i = i < 5 ? 5 : i + 1) {
                CHECK(rig_fill(&rig, samples[s].tokens + i, i, i < 5 ? 5 : 1, i < 5 ? 5 : 1));
                rig.batch.adapters[0] = mix;
                rig.batch.n_adapted = 1;
                CHECK_OK(model_forward(rig.m, &rig.kv, &rig.batch, logits + (size_t)i * 96));
            }
            losses_on_gpu(&rig, ops, logits, samples[s].tokens + 1, samples[s].n - 1, 96, losses);
            for (uint32_t i = 1; i < samples[s].n; i++) {
                const float served = (float)-losses[i - 1];

                if (samples[s].targets[i]) n_wrong += memcmp(&served, &trained[at++], sizeof(served)) != 0;
            }
        }
        CHECK_EQ(at, r.n_targets);
        if (n_wrong) test_note("%s, bf16 %d: %u of %u differ", model, o.bf16, n_wrong, at);
        CHECK_EQ(n_wrong, 0);
        adapter_mix_unref(mix);
        adapter_unref(a);
        rig_close(&rig);
        mem_free(logits);
        lora_remove(dir);
    }
}

TEST(what_is_no_number_changes_nothing)
{
    if (no_gpu()) return;
    const struct trainer_options o = options("cuda");
    struct trainer *t = open_trainer(models[0], &o);
    struct train_sample samples[N_SAMPLES];
    struct train_result r;
    struct rd_error err = {0};
    const uint64_t n = 3 * trainer_n_params(t);
    float *state = mem_zalloc(n, sizeof(float)), *after = mem_zalloc(n, sizeof(float));

    for (uint64_t i = 0; i < n / 3; i++) state[i] = 1e30f;
    CHECK_OK(trainer_state_set(t, 7, state));
    make_samples(0, samples);
    CHECK_EQ(trainer_step(t, samples, N_SAMPLES, 1e-2, &r, &err), RD_E_MODEL_OUTPUT);
    CHECK(strstr(err.text, "no number") && trainer_n_steps(t) == 7);
    CHECK_OK(trainer_state_get(t, after));
    CHECK(memcmp(state, after, n * sizeof(float)) == 0);
    mem_free(state);
    mem_free(after);
    trainer_close(t);
}

/* Host memory may run out anywhere in a step; the numbers stay. */
TEST(any_allocation_of_a_step_may_fail)
{
    if (no_gpu()) return;
    struct trainer_options o = options("cuda");
    struct train_sample samples[N_SAMPLES];
    struct train_result r;
    struct trainer *t;
    uint64_t n;
    float *before, *after;
    uint32_t n_failed = 0;
    bool done = false;

    o.memory_bytes = 1;
    o.dropout = 0.1;
    t = open_trainer(models[6], &o);
    CHECK(t != NULL);
    n = 3 * trainer_n_params(t);
    before = mem_zalloc(n, sizeof(float));
    after = mem_zalloc(n, sizeof(float));
    make_samples(1, samples);
    for (int64_t i = 0; !done && i < 3000; i++) {
        CHECK_OK(trainer_state_get(t, before));
        mem_fail_from(i);
        done = trainer_step(t, samples, N_SAMPLES, 1e-2, &r, NULL) == RD_OK;
        mem_fail_after(-1);
        mem_fail_from(-1);
        CHECK_OK(trainer_state_get(t, after));
        CHECK(done || memcmp(before, after, n * sizeof(float)) == 0);
        n_failed += !done;
    }
    CHECK(done && n_failed > 20);
    test_note("%u allocations failed", n_failed);
    mem_free(before);
    mem_free(after);
    trainer_close(t);
}
