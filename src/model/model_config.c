/* model/model_config.c - the model's numbers from GGUF metadata, each with a range: a file that does not add up is
 * refused here, before anything is allocated by it (docs/faults.md F05). */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "model/model_arch.h"

static void key_name(const struct model_config *c, const char *suffix, char *key, size_t cap)
{
    int n = snprintf(key, cap, "%s.%s", c->arch, suffix);

    assert(n > 0 && (size_t)n < cap);
    (void)n;
}

rd_status config_u32_optional(const struct model_file *g, const struct model_config *c, const char *suffix,
                              uint32_t min, uint32_t max, uint32_t *out, struct rd_error *err)
{
    char key[128];
    uint64_t value;
    rd_status st;

    key_name(c, suffix, key, sizeof(key));
    st = model_file_u64(g, key, min, max, &value, err);
    if (st == RD_OK) *out = (uint32_t)value;
    return st == RD_E_NOT_FOUND ? RD_OK : st;
}

rd_status config_u32(const struct model_file *g, const struct model_config *c, const char *suffix, uint32_t min,
                     uint32_t max, uint32_t *out, struct rd_error *err)
{
    char key[128];

    key_name(c, suffix, key, sizeof(key));
    if (!model_file_find(g, key)) return error_set(err, RD_E_FORMAT, "metadata \"%s\" is missing", key);
    return config_u32_optional(g, c, suffix, min, max, out, err);
}

rd_status config_f32_optional(const struct model_file *g, const struct model_config *c, const char *suffix, double min,
                              double max, float *out, struct rd_error *err)
{
    char key[128];
    double value;
    rd_status st;

    key_name(c, suffix, key, sizeof(key));
    st = model_file_f64(g, key, &value, err);
    if (st == RD_E_NOT_FOUND) return RD_OK;
    if (st != RD_OK) return st;
    if (!(value >= min && value <= max))
        return error_set(err, RD_E_FORMAT, "metadata \"%s\": %g, expected %g .. %g", key, value, min, max);
    *out = (float)value;
    return RD_OK;
}

rd_status config_f32(const struct model_file *g, const struct model_config *c, const char *suffix, double min,
                     double max, float *out, struct rd_error *err)
{
    char key[128];

    key_name(c, suffix, key, sizeof(key));
    if (!model_file_find(g, key)) return error_set(err, RD_E_FORMAT, "metadata \"%s\" is missing", key);
    return config_f32_optional(g, c, suffix, min, max, out, err);
}

bool config_flag(const struct model_file *g, const struct model_config *c, const char *suffix)
{
    char key[128];
    bool v = false;

    key_name(c, suffix, key, sizeof(key));
    return model_file_bool(g, key, &v, NULL) == RD_OK && v;
}

rd_status config_rope_sections(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    const struct model_meta *v;
    uint64_t sum = 0;
    char key[128];

    key_name(c, "rope.dimension_sections", key, sizeof(key));
    v = model_file_find(g, key);
    if (!v || v->type != META_ARRAY || (v->array_type != META_I32 && v->array_type != META_U32) || v->n < 3 || v->n > 4)
        return error_set(err, RD_E_FORMAT, "metadata \"%s\": expected an array of 3 or 4 integers", key);
    for (uint32_t i = 0; i < v->n; i++) {
        uint64_t n = meta_u64_at(v, i);

        if (n > c->n_rot / 2 || (i == 3 && n != 0))
            return error_set(err, RD_E_UNSUPPORTED, "metadata \"%s\": section %u is %llu, expected %s", key, i,
                             (unsigned long long)n, i == 3 ? "0" : "at most the pairs of a head");
        if (i < 3) c->rope_sections[i] = (uint32_t)n;
        sum += n;
    }
    if (sum == c->n_rot / 2 && c->rope_sections[0] > 0) return RD_OK;
    return error_set(err, RD_E_FORMAT, "metadata \"%s\": sections of %llu pairs together, a head has %u", key,
                     (unsigned long long)sum, c->n_rot / 2);
}

/* Files that belong beside a model, given as one. */
static rd_status check_kind(const struct model_file *g, const struct model_str *arch, struct rd_error *err)
{
    struct model_str type;

    if (model_file_str(g, "general.type", &type, NULL) == RD_OK && type.n == 7 && memcmp(type.s, "adapter", 7) == 0)
        return error_set(err, RD_E_UNSUPPORTED, "an adapter (LoRA), no model: give it to --lora, beside its model");
    if (arch->n == 4 && memcmp(arch->s, "clip", 4) == 0)
        return error_set(err, RD_E_UNSUPPORTED,
                         "an encoder of images, no model: give it to --mmproj, beside its model");
    return RD_OK;
}

/* general.architecture and general.name; RD_E_UNSUPPORTED lists the architectures there are. */
static rd_status read_names(const struct model_file *g, struct model_config *c, const struct model_arch **arch,
                            struct rd_error *err)
{
    struct model_str s;
    char quoted[64];
    rd_status st = model_file_str(g, "general.architecture", &s, err);

    if (st == RD_E_NOT_FOUND) return error_set(err, RD_E_FORMAT, "metadata \"general.architecture\" is missing");
    if (st == RD_OK) st = check_kind(g, &s, err);
    if (st != RD_OK) return st;
    *arch = model_arch_find(s.s, s.n);
    if (!*arch)
        return error_set(err, RD_E_UNSUPPORTED, "architecture \"%s\" is not supported; known: %s",
                         error_quote(quoted, sizeof(quoted), s.s, s.n), model_known_archs());
    assert(s.n < sizeof(c->arch));
    memcpy(c->arch, s.s, s.n);

    st = model_file_str(g, "general.name", &s, err);
    if (st == RD_E_NOT_FOUND)
        s = (struct model_str){c->arch, strlen(c->arch)};
    else if (st != RD_OK)
        return st;
    error_quote(c->name, sizeof(c->name), s.s, s.n);
    return RD_OK;
}

static rd_status read_widths(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    uint32_t n_experts = 0, value_length;
    rd_status st;

    if ((st = config_u32(g, c, "block_count", 1, LIMIT_N_LAYERS, &c->n_layers, err)) != RD_OK) return st;
    if ((st = config_u32(g, c, "context_length", 1, LIMIT_CONTEXT, &c->n_ctx_train, err)) != RD_OK) return st;
    if ((st = config_u32(g, c, "embedding_length", 1, LIMIT_HIDDEN, &c->hidden, err)) != RD_OK) return st;
    if ((st = config_u32(g, c, "feed_forward_length", 1, LIMIT_FFN, &c->ffn, err)) != RD_OK) return st;
    if ((st = config_u32(g, c, "attention.head_count", 1, LIMIT_N_HEADS, &c->n_heads, err)) != RD_OK) return st;
    c->n_kv_heads = c->n_heads;
    if ((st = config_u32_optional(g, c, "attention.head_count_kv", 1, LIMIT_N_HEADS, &c->n_kv_heads, err)) != RD_OK)
        return st;
    if (c->n_heads % c->n_kv_heads)
        return error_set(err, RD_E_FORMAT, "metadata \"%s.attention.head_count\": %u, not a multiple of %u KV heads",
                         c->arch, c->n_heads, c->n_kv_heads);

    c->head_dim = c->hidden / c->n_heads;
    if ((st = config_u32_optional(g, c, "attention.key_length", 2, LIMIT_HEAD_DIM, &c->head_dim, err)) != RD_OK)
        return st;
    if (c->head_dim < 2 || c->head_dim > LIMIT_HEAD_DIM)
        return error_set(err, RD_E_FORMAT, "%s: head dim %u from hidden %u / %u heads, expected 2 .. %u", c->arch,
                         c->head_dim, c->hidden, c->n_heads, LIMIT_HEAD_DIM);
    value_length = c->head_dim;
    if ((st = config_u32_optional(g, c, "attention.value_length", 1, LIMIT_HEAD_DIM, &value_length, err)) != RD_OK)
        return st;
    if (value_length != c->head_dim)
        return error_set(err, RD_E_UNSUPPORTED,
                         "metadata \"%s.attention.value_length\": %u, only the key length %u is supported", c->arch,
                         value_length, c->head_dim);

    if ((st = config_u32_optional(g, c, "expert_count", 0, UINT32_MAX, &n_experts, err)) != RD_OK) return st;
    if (n_experts)
        return error_set(err, RD_E_UNSUPPORTED, "%s with %u experts: mixture of experts is not supported", c->arch,
                         n_experts);
    return config_f32(g, c, "attention.layer_norm_rms_epsilon", 1e-12, 1, &c->norm_eps, err);
}

static rd_status read_yarn(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    rd_status st;

    c->yarn_beta_fast = 32;
    c->yarn_beta_slow = 1;
    c->yarn_mscale = 1;
    c->yarn_n_ctx_orig = c->n_ctx_train;
    if ((st = config_f32(g, c, "rope.scaling.factor", 1, 1e6, &c->yarn_factor, err)) != RD_OK) return st;
    if ((st = config_f32_optional(g, c, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &c->yarn_beta_fast, err)) != RD_OK)
        return st;
    if ((st = config_f32_optional(g, c, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &c->yarn_beta_slow, err)) != RD_OK)
        return st;
    if ((st = config_f32_optional(g, c, "rope.scaling.attn_factor", 1e-3, 1e3, &c->yarn_mscale, err)) != RD_OK)
        return st;
    return config_u32_optional(g, c, "rope.scaling.original_context_length", 1, LIMIT_CONTEXT, &c->yarn_n_ctx_orig,
                               err);
}

/* Llama 3.1's scaling as keys; files made by llama.cpp carry its result as rope_freqs.weight instead. */
static rd_status read_llama3(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    rd_status st;

    if ((st = config_f32(g, c, "rope.scaling.factor", 1, 1e6, &c->rope_llama3_factor, err)) != RD_OK) return st;
    if ((st = config_f32(g, c, "rope.scaling.low_freq_factor", 1e-3, 1e6, &c->rope_llama3_low, err)) != RD_OK)
        return st;
    if ((st = config_f32(g, c, "rope.scaling.high_freq_factor", 1e-3, 1e6, &c->rope_llama3_high, err)) != RD_OK)
        return st;
    if (c->rope_llama3_high <= c->rope_llama3_low)
        return error_set(err, RD_E_FORMAT,
                         "metadata \"%s.rope.scaling.high_freq_factor\": %g, expected more than low_freq_factor %g",
                         c->arch, (double)c->rope_llama3_high, (double)c->rope_llama3_low);
    return config_u32(g, c, "rope.scaling.original_context_length", 1, LIMIT_CONTEXT, &c->rope_n_ctx_orig, err);
}

/* A file that names no kind of scaling has none or, as llama.cpp reads it, a linear one: by the factor, or by what files
 * of 2023 call it. 0 is none. */
static rd_status read_linear_unnamed(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    float factor = 0;
    rd_status st = config_f32_optional(g, c, "rope.scale_linear", 0, 1e6, &factor, err);

    if (st == RD_OK) st = config_f32_optional(g, c, "rope.scaling.factor", 0, 1e6, &factor, err);
    if (st == RD_OK && factor > 0) c->rope_linear_factor = factor;
    return st;
}

static rd_status read_rope(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    struct model_str s;
    char key[128], quoted[64];
    rd_status st;

    c->n_rot = c->head_dim;
    c->rope_base = 10000;
    c->rope_linear_factor = 1;
    if ((st = config_u32_optional(g, c, "rope.dimension_count", 2, LIMIT_HEAD_DIM, &c->n_rot, err)) != RD_OK) return st;
    if (c->n_rot % 2 || c->n_rot > c->head_dim)
        return error_set(err, RD_E_FORMAT,
                         "metadata \"%s.rope.dimension_count\": %u, expected even and at most the head dim %u", c->arch,
                         c->n_rot, c->head_dim);
    if ((st = config_f32_optional(g, c, "rope.freq_base", 1.001, 1e12, &c->rope_base, err)) != RD_OK) return st;
    c->rope_base_local = c->rope_base;

    key_name(c, "rope.scaling.type", key, sizeof(key));
    st = model_file_str(g, key, &s, err);
    if (st == RD_E_NOT_FOUND) return read_linear_unnamed(g, c, err);
    if (st != RD_OK) return st;
    if (s.n == 4 && !memcmp(s.s, "none", 4)) return RD_OK;
    if (s.n == 6 && !memcmp(s.s, "linear", 6))
        return config_f32(g, c, "rope.scaling.factor", 1e-3, 1e6, &c->rope_linear_factor, err);
    if (s.n == 4 && !memcmp(s.s, "yarn", 4)) return read_yarn(g, c, err);
    if (s.n == 6 && !memcmp(s.s, "llama3", 6)) return read_llama3(g, c, err);
    return error_set(err, RD_E_UNSUPPORTED,
                     "metadata \"%s\": \"%s\" is not supported; known: none, linear, yarn, llama3", key,
                     error_quote(quoted, sizeof(quoted), s.s, s.n));
}

/* Attention that sees later tokens (llama.cpp's attention.causal = false, of embedding models) is not computed. */
static rd_status check_causal(const struct model_file *g, const struct model_config *c, struct rd_error *err)
{
    char key[128];
    bool causal = true;
    rd_status st;

    key_name(c, "attention.causal", key, sizeof(key));
    st = model_file_bool(g, key, &causal, err);
    if (st != RD_OK && st != RD_E_NOT_FOUND) return st;
    if (causal) return RD_OK;
    return error_set(err, RD_E_UNSUPPORTED, "metadata \"%s\": attention to later tokens is not supported", key);
}

/* The vocabulary is as large as the embedding; a tokenizer in the file must agree. */
static rd_status read_vocab_size(const struct model_file *g, struct model_config *c, struct rd_error *err)
{
    const struct model_tensor *embed = model_file_find_tensor(g, "token_embd.weight");
    const struct model_meta *tokens = model_file_find(g, "tokenizer.ggml.tokens");

    if (!embed) return error_set(err, RD_E_FORMAT, "tensor token_embd.weight is missing");
    if (embed->dims[1] < 1 || embed->dims[1] > LIMIT_VOCAB)
        return error_set(err, RD_E_FORMAT, "token_embd.weight: %llu rows, expected 1 .. %u",
                         (unsigned long long)embed->dims[1], LIMIT_VOCAB);
    c->n_vocab = (uint32_t)embed->dims[1];
    if (tokens && (tokens->type != META_ARRAY || tokens->array_type != META_STRING))
        return error_set(err, RD_E_FORMAT, "metadata \"tokenizer.ggml.tokens\": not an array of strings");
    if (tokens && tokens->n != c->n_vocab)
        return error_set(err, RD_E_FORMAT,
                         "metadata \"tokenizer.ggml.tokens\": %llu tokens, token_embd.weight has %u rows",
                         (unsigned long long)tokens->n, c->n_vocab);
    return RD_OK;
}

rd_status model_read_config(const struct model_file *g, struct model_config *out, struct rd_error *err)
{
    struct model_config c = {0};
    const struct model_arch *arch;
    rd_status st;

    if ((st = read_names(g, &c, &arch, err)) != RD_OK) return st;
    if ((st = read_widths(g, &c, err)) != RD_OK) return st;
    if ((st = read_rope(g, &c, err)) != RD_OK) return st;
    if ((st = check_causal(g, &c, err)) != RD_OK) return st;
    if ((st = read_vocab_size(g, &c, err)) != RD_OK) return st;
    c.attn_scale = (float)(1 / sqrt(c.head_dim));
    c.embed_scale = 1;
    c.act = ACT_SILU;
    c.rope_layout = ROPE_HALF_SPLIT;
    c.tied_head = !model_file_find_tensor(g, "output.weight");
    if ((st = arch->read_config(g, &c, err)) != RD_OK) return st;
    *out = c;
    return RD_OK;
}
