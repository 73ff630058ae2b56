/* tests/model/test_model_config.c - the model's numbers: what is read from a right file, and that nothing out of range
 * gets by (F05). The files are the tiny models of tests/golden with one key changed. */
#include <math.h>
#include "format/gguf/gguf.h"
#include "base/limits.h"
#include "gguf_edit.h"
#include "model/model_arch.h"
#include "test.h"

static const char *const llama = "llama/tiny-llama.gguf", *const llama31 = "llama/tiny-llama31.gguf";
static const char *const qwen2 = "qwen2/tiny-qwen2.gguf", *const yarn = "qwen2/tiny-qwen2-yarn.gguf";
static const char *const qwen3 = "qwen3/tiny-qwen3.gguf", *const gemma2 = "gemma2/tiny-gemma2.gguf";
static const char *const gemma3 = "gemma3/tiny-gemma3.gguf";

/* The config of a golden file after edits; RD_E_INTERNAL when the file itself cannot be made. */
static rd_status config_of(const char *file, const struct gguf_edit *edits, uint32_t n_edits, struct model_config *c,
                           struct rd_error *err)
{
    struct model_file *original = NULL, *edited = NULL;
    struct buf bytes = {0};
    rd_status st = RD_E_INTERNAL;

    memset(c, 0, sizeof(*c));
    memset(err, 0, sizeof(*err));
    if (gguf_open(test_path(file), &original, err) == RD_OK &&
        gguf_rewrite(original, edits, n_edits, &bytes) == RD_OK &&
        gguf_open_bytes((const uint8_t *)bytes.data, bytes.n, &edited, err) == RD_OK)
        st = model_read_config(edited, c, err);
    model_file_close(edited);
    model_file_close(original);
    buf_deinit(&bytes);
    return st;
}

static rd_status config_with(const char *file, struct gguf_edit edit, struct model_config *c, struct rd_error *err)
{
    return config_of(file, &edit, 1, c, err);
}

struct key_rule {
    const char *file, *key;
    bool is_real, required, zero_is_fine;
    double max;
};

static const struct key_rule rules[] = {
    {llama, "llama.block_count", false, true, false, LIMIT_N_LAYERS},
    {llama, "llama.context_length", false, true, false, LIMIT_CONTEXT},
    {llama, "llama.embedding_length", false, true, false, LIMIT_HIDDEN},
    {llama, "llama.feed_forward_length", false, true, false, LIMIT_FFN},
    {llama, "llama.attention.head_count", false, true, false, LIMIT_N_HEADS},
    {llama, "llama.attention.head_count_kv", false, false, false, LIMIT_N_HEADS},
    {llama, "llama.attention.key_length", false, false, false, LIMIT_HEAD_DIM},
    {llama, "llama.attention.value_length", false, false, false, LIMIT_HEAD_DIM},
    {llama, "llama.rope.dimension_count", false, false, false, LIMIT_HEAD_DIM},
    {llama, "llama.attention.layer_norm_rms_epsilon", true, true, false, 1},
    {llama, "llama.rope.freq_base", true, false, false, 1e12},
    {qwen2, "qwen2.block_count", false, true, false, LIMIT_N_LAYERS},
    {qwen3, "qwen3.feed_forward_length", false, true, false, LIMIT_FFN},
    {yarn, "qwen2.rope.scaling.factor", true, true, false, 1e6},
    {yarn, "qwen2.rope.scaling.original_context_length", false, false, false, LIMIT_CONTEXT},
    {yarn, "qwen2.rope.scaling.yarn_beta_fast", true, false, false, 1e6},
    {yarn, "qwen2.rope.scaling.yarn_beta_slow", true, false, false, 1e6},
    {yarn, "qwen2.rope.scaling.attn_factor", true, false, false, 1e3},
    {gemma2, "gemma2.attention.sliding_window", false, false, false, LIMIT_CONTEXT},
    {gemma2, "gemma2.attn_logit_softcapping", true, false, false, 1e6},
    {gemma2, "gemma2.final_logit_softcapping", true, false, false, 1e6},
    {gemma3, "gemma3.attention.sliding_window", false, true, true, LIMIT_CONTEXT},
    {gemma3, "gemma3.attention.sliding_window_pattern", false, false, false, LIMIT_N_LAYERS},
    {gemma3, "gemma3.rope.freq_base_swa", true, false, false, 1e12},
    {gemma3, "gemma3.rope.scaling.factor", true, true, false, 1e6},
};

/* Every edit of a rule's key that must be refused with the key in the text. */
static void check_refused(const struct key_rule *r, struct gguf_edit edit)
{
    struct model_config c;
    struct rd_error err;
    rd_status st = config_with(r->file, edit, &c, &err);

    if (st != RD_E_FORMAT || !strstr(err.text, r->key))
        test_fail(__FILE__, __LINE__, "%s, edit %d (%u, %g): %s \"%s\"", r->key, (int)edit.kind, edit.number,
                  (double)edit.real, rd_status_name(st), err.text);
}

TEST(every_key_is_refused_when_missing_of_the_wrong_type_zero_or_beyond_its_maximum)
{
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const struct key_rule *r = &rules[i];
        struct gguf_edit drop = {EDIT_DROP_KEY, r->key, 0, 0, NULL, {0}},
                         zero = {r->is_real ? EDIT_SET_F32 : EDIT_SET_U32, r->key, 0, 0, NULL, {0}};
        struct model_config c;
        struct rd_error err;

        if (r->required)
            check_refused(r, drop);
        else
            CHECK_OK(config_with(r->file, drop, &c, &err));
        if (r->zero_is_fine)
            CHECK_OK(config_with(r->file, zero, &c, &err));
        else
            check_refused(r, zero);
        check_refused(r, (struct gguf_edit){EDIT_SET_STRING, r->key, 0, 0, "4", {0}});
        if (r->is_real) {
            check_refused(r, (struct gguf_edit){EDIT_SET_F32, r->key, 0, (float)(2 * r->max), NULL, {0}});
            check_refused(r, (struct gguf_edit){EDIT_SET_F32, r->key, 0, -1, NULL, {0}});
            check_refused(r, (struct gguf_edit){EDIT_SET_F32, r->key, 0, NAN, NULL, {0}});
        } else {
            check_refused(r, (struct gguf_edit){EDIT_SET_U32, r->key, (uint32_t)r->max + 1, 0, NULL, {0}});
            check_refused(r, (struct gguf_edit){EDIT_SET_U32, r->key, UINT32_MAX, 0, NULL, {0}});
            check_refused(r, (struct gguf_edit){EDIT_SET_F32, r->key, 0, 4, NULL, {0}});
        }
    }
}

TEST(the_golden_models_read_as_they_were_made)
{
    struct model_config c;
    struct rd_error err;

    CHECK_OK(config_of(llama, NULL, 0, &c, &err));
    CHECK_STR(c.arch, "llama");
    CHECK_STR(c.name, "tiny llama");
    CHECK(c.n_layers == 3 && c.n_heads == 4 && c.n_kv_heads == 2 && c.head_dim == 16 && c.hidden == 64 && c.ffn == 96);
    CHECK(c.n_vocab == 96 && c.n_ctx_train == 256 && c.n_rot == 16 && c.rope_layout == ROPE_INTERLEAVED &&
          !c.tied_head);
    CHECK(c.attn_scale == 0.25f && c.embed_scale == 1 && c.act == ACT_SILU && c.rope_base == 10000 && c.window == 0);
    CHECK_OK(config_of(qwen2, NULL, 0, &c, &err));
    CHECK(c.qkv_bias && !c.qk_norms && c.rope_layout == ROPE_HALF_SPLIT && c.rope_base == 1000000);
    CHECK_OK(config_of(yarn, NULL, 0, &c, &err));
    CHECK(c.yarn_factor == 4 && c.yarn_beta_fast == 32 && c.yarn_beta_slow == 1 && c.yarn_mscale == 1 &&
          c.yarn_n_ctx_orig == 32);
    CHECK_OK(config_of(qwen3, NULL, 0, &c, &err));
    CHECK(c.qk_norms && !c.qkv_bias && c.head_dim == 32 && c.hidden == 48);
    CHECK_OK(config_of(gemma2, NULL, 0, &c, &err));
    CHECK(c.window == 8 && c.window_pattern == 2 && c.attn_softcap == 5 && c.final_softcap == 8 && c.post_norms &&
          c.tied_head);
    CHECK(c.act == ACT_GELU_TANH && c.embed_scale == sqrtf(48) && c.attn_scale == 0.25f);
    CHECK_OK(config_of(gemma3, NULL, 0, &c, &err));
    CHECK(c.window == 12 && c.window_pattern == 6 && c.attn_softcap == 0 && c.final_softcap == 0 && c.qk_norms &&
          c.post_norms);
    CHECK(c.rope_base == 1000000 && c.rope_base_local == 10000 && c.rope_linear_factor == 8 && c.n_kv_heads == 1);
}

TEST(head_dim_is_hidden_by_heads_when_the_file_does_not_say)
{
    const struct gguf_edit drops[] = {{EDIT_DROP_KEY, "llama.attention.key_length", 0, 0, NULL, {0}},
                                      {EDIT_DROP_KEY, "llama.attention.value_length", 0, 0, NULL, {0}},
                                      {EDIT_SET_U32, "llama.attention.head_count", 8, 0, NULL, {0}}};
    struct model_config c;
    struct rd_error err;

    CHECK_OK(config_of(llama, drops, 3, &c, &err));
    CHECK_EQ(c.head_dim, 8);
    CHECK_EQ(
        config_with(llama, (struct gguf_edit){EDIT_SET_U32, "llama.attention.value_length", 8, 0, NULL, {0}}, &c, &err),
        RD_E_UNSUPPORTED);
    CHECK_STR(err.text, "metadata \"llama.attention.value_length\": 8, only the key length 16 is supported");
}

TEST(numbers_that_do_not_fit_each_other_are_refused)
{
    struct model_config c;
    struct rd_error err;

    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_SET_U32, "llama.attention.head_count_kv", 3, 0, NULL, {0}}, &c,
                         &err),
             RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"llama.attention.head_count\": 4, not a multiple of 3 KV heads");
    CHECK_EQ(
        config_with(llama, (struct gguf_edit){EDIT_SET_U32, "llama.rope.dimension_count", 18, 0, NULL, {0}}, &c, &err),
        RD_E_FORMAT);
    CHECK_EQ(
        config_with(llama, (struct gguf_edit){EDIT_SET_U32, "llama.rope.dimension_count", 7, 0, NULL, {0}}, &c, &err),
        RD_E_FORMAT);
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_RESHAPE_TENSOR, "token_embd.weight", 0, 0, NULL, {64, 95}}, &c,
                         &err),
             RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"tokenizer.ggml.tokens\": 96 tokens, token_embd.weight has 95 rows");
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_SET_U32, "tokenizer.ggml.tokens", 96, 0, NULL, {0}}, &c, &err),
             RD_E_FORMAT);
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_DROP_TENSOR, "token_embd.weight", 0, 0, NULL, {0}}, &c, &err),
             RD_E_FORMAT);
    CHECK_OK(config_with(llama, (struct gguf_edit){EDIT_DROP_KEY, "tokenizer.ggml.tokens", 0, 0, NULL, {0}}, &c, &err));
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_SET_U32, "llama.expert_count", 8, 0, NULL, {0}}, &c, &err),
             RD_E_UNSUPPORTED);
    CHECK_OK(config_with(llama, (struct gguf_edit){EDIT_SET_U32, "llama.expert_count", 0, 0, NULL, {0}}, &c, &err));
}

TEST(an_unknown_architecture_is_named_and_the_known_ones_are_listed)
{
    struct model_config c;
    struct rd_error err;

    CHECK_EQ(
        config_with(llama, (struct gguf_edit){EDIT_SET_STRING, "general.architecture", 0, 0, "mamba", {0}}, &c, &err),
        RD_E_UNSUPPORTED);
    CHECK_STR(err.text,
              "architecture \"mamba\" is not supported; known: gemma2, gemma3, llama, qwen2, qwen3, qwen2vl, qwen3vl");
    CHECK_STR(model_known_archs(), "gemma2, gemma3, llama, qwen2, qwen3, qwen2vl, qwen3vl");
    CHECK_EQ(
        config_with(llama, (struct gguf_edit){EDIT_SET_STRING, "general.architecture", 0, 0, "llam", {0}}, &c, &err),
        RD_E_UNSUPPORTED);
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_SET_STRING, "general.architecture", 0, 0, "", {0}}, &c, &err),
             RD_E_UNSUPPORTED);
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_SET_U32, "general.architecture", 1, 0, NULL, {0}}, &c, &err),
             RD_E_FORMAT);
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_DROP_KEY, "general.architecture", 0, 0, NULL, {0}}, &c, &err),
             RD_E_FORMAT);
}

TEST(rope_scaling_is_known_by_name_or_refused)
{
    struct model_config c;
    struct rd_error err;

    CHECK_OK(config_with(llama, (struct gguf_edit){EDIT_SET_STRING, "llama.rope.scaling.type", 0, 0, "none", {0}}, &c,
                         &err));
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_SET_STRING, "llama.rope.scaling.type", 0, 0, "longrope", {0}},
                         &c, &err),
             RD_E_UNSUPPORTED);
    CHECK_STR(err.text,
              "metadata \"llama.rope.scaling.type\": \"longrope\" is not supported; known: none, linear, yarn, llama3");
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_SET_U32, "llama.rope.scaling.type", 1, 0, NULL, {0}}, &c, &err),
             RD_E_FORMAT);
    CHECK_EQ(config_with(llama, (struct gguf_edit){EDIT_SET_STRING, "llama.rope.scaling.type", 0, 0, "linear", {0}}, &c,
                         &err),
             RD_E_FORMAT);
    CHECK_STR(err.text, "metadata \"llama.rope.scaling.factor\" is missing");
}

/* As llama.cpp reads them: Llama files of 2023 that stretch the context say no more. */
TEST(a_factor_without_a_kind_of_scaling_is_linear)
{
    const struct gguf_edit both[] = {{EDIT_SET_F32, "llama.rope.scale_linear", 0, 2, NULL, {0}},
                                     {EDIT_SET_F32, "llama.rope.scaling.factor", 0, 4, NULL, {0}}};
    struct model_config c;
    struct rd_error err;

    for (uint32_t i = 0; i < 2; i++) {
        CHECK_OK(config_with(llama, both[i], &c, &err));
        CHECK(c.rope_linear_factor == both[i].real);
    }
    CHECK_OK(config_of(llama, both, 2, &c, &err));
    CHECK(c.rope_linear_factor == 4);
    CHECK_OK(
        config_with(llama, (struct gguf_edit){EDIT_SET_F32, "llama.rope.scaling.factor", 0, 0, NULL, {0}}, &c, &err));
    CHECK(c.rope_linear_factor == 1);
    CHECK_EQ(
        config_with(llama, (struct gguf_edit){EDIT_SET_F32, "llama.rope.scale_linear", 0, -1, NULL, {0}}, &c, &err),
        RD_E_FORMAT);
}

TEST(attention_to_later_tokens_is_refused)
{
    struct model_config c;
    struct rd_error err;

    CHECK_OK(
        config_with(qwen2, (struct gguf_edit){EDIT_SET_BOOL, "qwen2.attention.causal", 1, 0, NULL, {0}}, &c, &err));
    CHECK_EQ(config_with(qwen2, (struct gguf_edit){EDIT_SET_BOOL, "qwen2.attention.causal", 0, 0, NULL, {0}}, &c, &err),
             RD_E_UNSUPPORTED);
    CHECK_STR(err.text, "metadata \"qwen2.attention.causal\": attention to later tokens is not supported");
    CHECK_EQ(config_with(qwen2, (struct gguf_edit){EDIT_SET_U32, "qwen2.attention.causal", 0, 0, NULL, {0}}, &c, &err),
             RD_E_FORMAT);
}

/* The golden file carries the scaling as rope_freqs.weight, made by the script from the same four numbers. */
TEST(llama3_scaling_as_keys_equals_the_tensor_of_divisors)
{
    const struct gguf_edit keys[] = {{EDIT_SET_STRING, "llama.rope.scaling.type", 0, 0, "llama3", {0}},
                                     {EDIT_SET_F32, "llama.rope.scaling.factor", 0, 8, NULL, {0}},
                                     {EDIT_SET_F32, "llama.rope.scaling.low_freq_factor", 0, 1, NULL, {0}},
                                     {EDIT_SET_F32, "llama.rope.scaling.high_freq_factor", 0, 4, NULL, {0}},
                                     {EDIT_SET_U32, "llama.rope.scaling.original_context_length", 32, 0, NULL, {0}}};
    float by_keys[8], by_tensor[8], divisors[8], mscale;
    struct model_config with_keys, plain;
    const struct model_tensor *t;
    struct model_file *g = NULL;
    struct rd_error err;

    CHECK_OK(config_of(llama31, keys, 5, &with_keys, &err));
    CHECK_OK(config_of(llama31, NULL, 0, &plain, &err));
    CHECK_OK(gguf_open(test_path(llama31), &g, &err));
    t = model_file_find_tensor(g, "rope_freqs.weight");
    CHECK(t && t->dims[0] == 8);
    memcpy(divisors, t->data, sizeof(divisors));
    model_file_close(g);
    rope_global_freqs(&with_keys, NULL, by_keys, &mscale);
    rope_global_freqs(&plain, divisors, by_tensor, &mscale);
    for (int i = 0; i < 8; i++) CHECK(fabsf(by_keys[i] - by_tensor[i]) <= 1e-6f * by_tensor[i]);
    CHECK(by_keys[0] == 1 && by_keys[7] < 5e-5f);

    struct gguf_edit equal[5];
    memcpy(equal, keys, sizeof(keys));
    equal[3].real = 1;
    CHECK_EQ(config_of(llama31, equal, 5, &with_keys, &err), RD_E_FORMAT);
}

TEST(the_27b_gemmas_scale_attention_by_hidden_per_head)
{
    struct model_config c;
    struct rd_error err;

    CHECK_OK(config_with(gemma2, (struct gguf_edit){EDIT_SET_U32, "gemma2.block_count", 46, 0, NULL, {0}}, &c, &err));
    CHECK(c.attn_scale == 1 / sqrtf(12));
    CHECK_OK(config_with(gemma3, (struct gguf_edit){EDIT_SET_U32, "gemma3.block_count", 62, 0, NULL, {0}}, &c, &err));
    CHECK(c.attn_scale == 1 / sqrtf(12));
}
