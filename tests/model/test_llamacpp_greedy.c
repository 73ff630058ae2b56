/* tests/model/test_llamacpp_greedy.c - real models against llama.cpp: where radish would choose another token,
 * llama.cpp's own lead must be small.
 *
 * tests/golden/llamacpp/NAME.json (make_llamacpp_greedy.py) holds 16 prompts with 64 greedy tokens each and the lead of
 * every choice over the second best. radish follows llama.cpp's tokens, so that all steps are judged; as rows do not
 * depend on how a prompt is cut, one pass over prompt and tokens gives all 64 decisions. The two quantise activations
 * differently, so leads below MAX_LEAD may tip over.
 */
#include <jansson.h>
#include <math.h>
#include "base/clock.h"
#include "base/mem.h"
#include "model_rig.h"
#include "test.h"

#define N_CONTEXT 1024u
#define N_STEPS   64u
#define MAX_LEAD  0.35

struct score {
    uint32_t n_steps, n_same, n_over;
    double worst_lead;
};

static uint32_t argmax(const float *v, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return best;
}

static int32_t int_at(const json_t *array, size_t i)
{
    return (int32_t)json_integer_value(json_array_get(array, i));
}

/* One prompt and its N_STEPS tokens. logits: [N_STEPS, n_vocab]. */
static rd_status judge_prompt(struct model_rig *r, const json_t *prompt, float *logits, struct score *score)
{
    const json_t *start = json_object_get(prompt, "prompt"), *chosen = json_object_get(prompt, "tokens");
    const json_t *leads = json_object_get(prompt, "margins");
    const uint32_t n_vocab = model_config(r->m)->n_vocab, n_start = (uint32_t)json_array_size(start);
    const uint32_t n = n_start + N_STEPS - 1;
    int32_t tokens[N_CONTEXT];
    rd_status st = RD_OK;

    if (n_start == 0 || n > N_CONTEXT || json_array_size(chosen) != N_STEPS || json_array_size(leads) != N_STEPS)
        return RD_E_FORMAT;
    for (uint32_t i = 0; i < n; i++) tokens[i] = i < n_start ? int_at(start, i) : int_at(chosen, i - n_start);
    for (uint32_t pos = 0, left = n; st == RD_OK && left > 0;) {
        uint32_t rows = left > N_STEPS ? (left - N_STEPS < r->max_rows ? left - N_STEPS : r->max_rows) : left;

        left -= rows;
        st = rig_step(r, tokens + pos, pos, rows, left ? 0 : N_STEPS, logits);
        pos += rows;
    }
    for (uint32_t i = 0; st == RD_OK && i < N_STEPS; i++) {
        double lead = json_real_value(json_array_get(leads, i));
        bool same = argmax(logits + (size_t)i * n_vocab, n_vocab) == (uint32_t)int_at(chosen, i);

        score->n_steps++;
        score->n_same += same;
        score->n_over += !same && lead >= MAX_LEAD;
        if (!same) score->worst_lead = fmax(score->worst_lead, lead);
    }
    return st;
}

static rd_status judge_model(const char *path, const json_t *prompts, struct score *score)
{
    struct model_rig r;
    float *logits = NULL;
    rd_status st = rig_open(&r, path, DTYPE_F16, N_CONTEXT, 256, NULL, 0);

    if (st != RD_OK) return st;
    logits = mem_alloc((size_t)N_STEPS * model_config(r.m)->n_vocab, sizeof(float));
    if (!logits) st = RD_E_NOMEM;
    for (size_t i = 0; st == RD_OK && i < json_array_size(prompts); i++)
        st = judge_prompt(&r, json_array_get(prompts, i), logits, score);
    mem_free(logits);
    rig_close(&r);
    return st;
}

static void compare(const char *name)
{
    const char *path = test_model(name);
    uint64_t start_ns = clock_now_ns(clock_system());
    struct score score = {0};
    char file[128];
    json_t *root;
    rd_status st;

    if (!path) {
        test_note("model %s has not been fetched (tools/fetch-model %s): not compared", name, name);
        return;
    }
    snprintf(file, sizeof(file), "llamacpp/%s.json", name);
    root = json_load_file(test_path(file), 0, NULL);
    CHECK(root);
    st = judge_model(path, json_object_get(root, "prompts"), &score);
    json_decref(root);
    CHECK_OK(st);
    test_note("%s: %u of %u greedy choices as llama.cpp; largest lead of llama.cpp where not: %.3f; %.1f s", name,
              score.n_same, score.n_steps, score.worst_lead, (double)(clock_now_ns(clock_system()) - start_ns) * 1e-9);
    CHECK_EQ(score.n_steps, 16 * N_STEPS);
    CHECK_EQ(score.n_over, 0);
}

TEST(smollm2_chooses_as_llama_cpp_does)
{
    compare("smollm2");
}

TEST(gemma3_270m_chooses_as_llama_cpp_does)
{
    compare("gemma3-270m");
}

TEST(qwen2_5_coder_0_5b_chooses_as_llama_cpp_does)
{
    compare("qwen2.5-coder-0.5b");
}

TEST(qwen2_5_coder_1_5b_chooses_as_llama_cpp_does)
{
    compare("qwen2.5-coder-1.5b");
}
