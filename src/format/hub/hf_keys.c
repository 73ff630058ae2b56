/* format/hub/hf_keys.c - config.json, key by key; what is missing has the value of transformers' configuration classes. */
#include "format/hub/hf_keys.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"

#define QUOTED 64
#define NO_CAP 1e6 /* c tanh(s / c) is s then, to the last bit of any score that there is */

struct reader {
    const json_t *text; /* the text model's object */
    const struct hub_family *f;
    const struct hf_told *told;
    const char *arch;
    struct gguf_writer *w;
    uint32_t n_layers, hidden, n_heads, head_dim;
    uint32_t n_ctx;
    struct rd_error *err;
};

/* A member that is there and not null. */
static const json_t *get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_null(v) ? NULL : v;
}

static rd_status wrong(struct rd_error *err, const char *key, const json_t *v, const char *wanted)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    char quoted[QUOTED];

    error_set(err, RD_E_FORMAT, "config.json: \"%s\" is %s, expected %s", key,
              error_quote(quoted, sizeof(quoted), text ? text : "?", text ? strlen(text) : 1), wanted);
    if (text) {
        json_malloc_t unused;
        json_free_t release;

        json_get_alloc_funcs(&unused, &release);
        release(text);
    }
    return RD_E_FORMAT;
}

static rd_status get_u32(const json_t *o, const char *key, bool needed, uint32_t *out, struct rd_error *err)
{
    const json_t *v = get(o, key);

    if (!v && needed) return error_set(err, RD_E_FORMAT, "config.json: \"%s\" is missing", key);
    if (!v) return RD_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
        return wrong(err, key, v, "an integer of 32 bits");
    *out = (uint32_t)json_integer_value(v);
    return RD_OK;
}

static rd_status get_f64(const json_t *o, const char *key, bool needed, double *out, struct rd_error *err)
{
    const json_t *v = get(o, key);

    if (!v && needed) return error_set(err, RD_E_FORMAT, "config.json: \"%s\" is missing", key);
    if (!v) return RD_OK;
    if (!json_is_number(v) || !isfinite(json_number_value(v))) return wrong(err, key, v, "a number");
    *out = json_number_value(v);
    return RD_OK;
}

static rd_status get_flag(const json_t *o, const char *key, bool *out, struct rd_error *err)
{
    const json_t *v = get(o, key);

    if (v && !json_is_boolean(v)) return wrong(err, key, v, "true or false");
    if (v) *out = json_is_true(v);
    return RD_OK;
}

static const char *name_of(const struct reader *r, const char *suffix, char key[128])
{
    snprintf(key, 128, "%s.%s", r->arch, suffix);
    return key;
}

static void put_u32(struct reader *r, const char *suffix, uint32_t v)
{
    char key[128];

    gguf_add_u32(r->w, name_of(r, suffix, key), v);
}

static void put_f32(struct reader *r, const char *suffix, double v)
{
    char key[128];

    gguf_add_f32(r->w, name_of(r, suffix, key), v);
}

/* "known: llama, mistral, ..." */
static void list_types(const struct hub_families *families, char *out, size_t n)
{
    const struct hub_family *f;
    const char *arch;
    size_t at = 0;

    out[0] = 0;
    for (uint32_t i = 0; (f = families->at(i, &arch)) && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", i ? ", " : "", f->model_type);
}

/* The first family that has these weights; of those that are alike (llama, mistral) that of the earlier row. */
static rd_status find_told(const json_t *config, const struct hub_families *families, struct reader *r)
{
    const bool in_text_config = json_is_object(get(config, "text_config"));

    for (uint32_t i = 0; r->told->n_q_rows && (r->f = families->at(i, &r->arch)); i++)
        if (r->f->qk_norms == r->told->qk_norms && r->f->qkv_biases == r->told->qkv_biases &&
            r->f->post_norms == r->told->post_norms && r->f->in_text_config == in_text_config) {
            log_warn("config.json has no \"model_type\": taken for %s by the names of its weights", r->f->model_type);
            return RD_OK;
        }
    return error_set(r->err, RD_E_FORMAT, "config.json: \"model_type\" is missing, and the weights do not tell it");
}

static rd_status find_family(const json_t *config, const struct hub_families *families, struct reader *r)
{
    const json_t *v = get(config, "model_type");
    const char *type = json_string_value(v);
    char quoted[QUOTED], known[256];

    if (!v) return find_told(config, families, r);
    if (!type) return error_set(r->err, RD_E_FORMAT, "config.json: \"model_type\" is of another type, expected a text");
    for (uint32_t i = 0; (r->f = families->at(i, &r->arch)); i++)
        if (!strcmp(r->f->model_type, type)) return RD_OK;
    list_types(families, known, sizeof(known));
    return error_set(r->err, RD_E_UNSUPPORTED,
                     "config.json: \"model_type\" is \"%s\", which is not supported; known: %s",
                     error_quote(quoted, sizeof(quoted), type, strlen(type)), known);
}

static rd_status put_widths(struct reader *r)
{
    uint32_t ffn = 0, n_kv_heads;
    double eps = 1e-6;
    rd_status st;

    r->n_heads = r->f->n_heads;
    r->n_ctx = r->f->n_ctx;
    if ((st = get_u32(r->text, "num_hidden_layers", true, &r->n_layers, r->err)) != RD_OK) return st;
    if ((st = get_u32(r->text, "hidden_size", true, &r->hidden, r->err)) != RD_OK) return st;
    if ((st = get_u32(r->text, "intermediate_size", true, &ffn, r->err)) != RD_OK) return st;
    if ((st = get_u32(r->text, "num_attention_heads", false, &r->n_heads, r->err)) != RD_OK) return st;
    n_kv_heads = r->f->n_kv_heads ? r->f->n_kv_heads : r->n_heads;
    if ((st = get_u32(r->text, "num_key_value_heads", false, &n_kv_heads, r->err)) != RD_OK) return st;
    if (r->n_heads == 0) return error_set(r->err, RD_E_FORMAT, "config.json: \"num_attention_heads\" is 0");
    r->head_dim = r->f->head_dim ? r->f->head_dim : r->hidden / r->n_heads;
    if (r->told->n_q_rows && r->told->n_q_rows % r->n_heads == 0 && r->told->n_q_rows / r->n_heads <= LIMIT_HEAD_DIM)
        r->head_dim = (uint32_t)(r->told->n_q_rows / r->n_heads);
    if ((st = get_u32(r->text, "head_dim", false, &r->head_dim, r->err)) != RD_OK) return st;
    if ((st = get_u32(r->text, "max_position_embeddings", false, &r->n_ctx, r->err)) != RD_OK) return st;
    if ((st = get_f64(r->text, "rms_norm_eps", false, &eps, r->err)) != RD_OK) return st;
    put_u32(r, "block_count", r->n_layers);
    put_u32(r, "embedding_length", r->hidden);
    put_u32(r, "feed_forward_length", ffn);
    put_u32(r, "attention.head_count", r->n_heads);
    put_u32(r, "attention.head_count_kv", n_kv_heads);
    put_u32(r, "attention.key_length", r->head_dim);
    put_u32(r, "attention.value_length", r->head_dim);
    put_f32(r, "attention.layer_norm_rms_epsilon", eps);
    return RD_OK;
}

static rd_status check_act(const struct reader *r)
{
    const char *key = r->f->act_key, *act; /* transformers asks no other */
    const json_t *v = get(r->text, key);

    act = json_string_value(v);
    if (!v || (act && !strcmp(act, r->f->act))) return RD_OK;
    wrong(r->err, key, v, r->f->act);
    return RD_E_UNSUPPORTED;
}

/* ---- RoPE ---- */

struct rope {
    const json_t *global, *local;
    double theta, local_theta;
};

/* rope_parameters of transformers 5, or rope_theta and rope_scaling before. */
static rd_status find_rope(const struct reader *r, struct rope *out)
{
    const json_t *parameters = get(r->text, "rope_parameters"), *full = get(parameters, "full_attention");
    rd_status st;

    *out = (struct rope){.theta = r->f->theta, .local_theta = 1e4};
    if (parameters && !json_is_object(parameters)) return wrong(r->err, "rope_parameters", parameters, "an object");
    out->global = full ? full : parameters ? parameters : get(r->text, "rope_scaling");
    out->local = full ? get(parameters, "sliding_attention") : NULL;
    if (out->global && !json_is_object(out->global)) return wrong(r->err, "rope_scaling", out->global, "an object");
    if ((st = get_f64(r->text, "rope_theta", false, &out->theta, r->err)) != RD_OK) return st;
    if ((st = get_f64(r->text, "rope_local_base_freq", false, &out->local_theta, r->err)) != RD_OK) return st;
    if (parameters && (st = get_f64(out->global, "rope_theta", false, &out->theta, r->err)) != RD_OK) return st;
    return get_f64(out->local, "rope_theta", false, &out->local_theta, r->err);
}

static const char *rope_type(const json_t *rope)
{
    const json_t *v = get(rope, "rope_type") ? get(rope, "rope_type") : get(rope, "type");

    return !v ? "default" : json_is_string(v) ? json_string_value(v) : "?";
}

static void put_scaling_type(struct reader *r, const char *type)
{
    char key[128];

    gguf_add_str(r->w, name_of(r, "rope.scaling.type", key), type, strlen(type));
}

/* attention_factor is what cos and sin are multiplied by; the key's is a factor beside 1 + 0.1 ln(factor). */
static rd_status put_yarn(struct reader *r, const json_t *rope)
{
    double factor = 0, fast = 32, slow = 1, mscale = 0, attn, all_dim = 0, part = 0;
    uint32_t n_orig = r->n_ctx;
    rd_status st;

    if ((st = get_f64(rope, "factor", true, &factor, r->err)) != RD_OK) return st;
    if ((st = get_f64(rope, "beta_fast", false, &fast, r->err)) != RD_OK) return st;
    if ((st = get_f64(rope, "beta_slow", false, &slow, r->err)) != RD_OK) return st;
    if ((st = get_f64(rope, "attention_factor", false, &mscale, r->err)) != RD_OK) return st;
    if ((st = get_f64(rope, "mscale", false, &part, r->err)) != RD_OK) return st;
    if ((st = get_f64(rope, "mscale_all_dim", false, &all_dim, r->err)) != RD_OK) return st;
    if ((st = get_u32(rope, "original_max_position_embeddings", false, &n_orig, r->err)) != RD_OK) return st;
    if (!(factor >= 1)) return wrong(r->err, "factor", get(rope, "factor"), "1 or more");
    if (json_is_false(get(rope, "truncate")))
        return error_set(r->err, RD_E_UNSUPPORTED, "config.json: YaRN with \"truncate\": false is not supported");
    attn = 1 + 0.1 * log(factor);
    if (mscale <= 0 && part > 0 && all_dim > 0)
        mscale = (1 + 0.1 * part * log(factor)) / (1 + 0.1 * all_dim * log(factor));
    put_scaling_type(r, "yarn");
    put_f32(r, "rope.scaling.factor", factor);
    put_f32(r, "rope.scaling.yarn_beta_fast", fast);
    put_f32(r, "rope.scaling.yarn_beta_slow", slow);
    if (mscale > 0) put_f32(r, "rope.scaling.attn_factor", mscale / attn);
    put_u32(r, "rope.scaling.original_context_length", n_orig);
    if (n_orig * factor > r->n_ctx && n_orig * factor <= LIMIT_CONTEXT) r->n_ctx = (uint32_t)(n_orig * factor);
    return RD_OK;
}

static rd_status put_llama3(struct reader *r, const json_t *rope)
{
    static const struct {
        const char *json, *suffix;
    } rows[] = {
        {"factor", "rope.scaling.factor"},
        {"low_freq_factor", "rope.scaling.low_freq_factor"},
        {"high_freq_factor", "rope.scaling.high_freq_factor"},
    };
    uint32_t n_orig = 0;
    double v = 0;
    rd_status st = get_u32(rope, "original_max_position_embeddings", true, &n_orig, r->err);

    put_scaling_type(r, "llama3");
    for (size_t i = 0; st == RD_OK && i < sizeof(rows) / sizeof(rows[0]); i++) {
        st = get_f64(rope, rows[i].json, true, &v, r->err);
        put_f32(r, rows[i].suffix, v);
    }
    put_u32(r, "rope.scaling.original_context_length", n_orig);
    return st;
}

/* M-RoPE: how many pairs turn by time, height, width. */
static rd_status put_sections(struct reader *r, const json_t *rope)
{
    const json_t *v = get(rope, "mrope_section");
    int32_t sections[4] = {0};
    char key[128];

    if (json_array_size(v) != 3)
        return error_set(r->err, RD_E_FORMAT, "config.json: \"mrope_section\" is missing, or not of 3 numbers");
    for (size_t i = 0; i < 3; i++) {
        const json_t *n = json_array_get(v, i);

        if (!json_is_integer(n) || json_integer_value(n) < 0 || json_integer_value(n) > LIMIT_HEAD_DIM)
            return wrong(r->err, "mrope_section", v, "3 numbers of pairs");
        sections[i] = (int32_t)json_integer_value(n);
    }
    gguf_add_array(r->w, name_of(r, "rope.dimension_sections", key), META_I32, sections, 4);
    return RD_OK;
}

static rd_status put_rope(struct reader *r)
{
    struct rope rope;
    double part = 1, factor = 0;
    const char *type;
    char quoted[QUOTED];
    rd_status st = find_rope(r, &rope);

    if (st == RD_OK) st = get_f64(r->text, "partial_rotary_factor", false, &part, r->err);
    if (st == RD_OK) st = get_f64(rope.global, "partial_rotary_factor", false, &part, r->err);
    if (st != RD_OK) return st;
    if (part != 1) put_u32(r, "rope.dimension_count", part > 0 && part < 1 ? (uint32_t)(r->head_dim * part) : 0);
    put_f32(r, "rope.freq_base", rope.theta);
    if (r->f->local_theta) put_f32(r, "rope.freq_base_swa", rope.local_theta);
    if (strcmp(rope_type(rope.local), "default") != 0)
        return error_set(r->err, RD_E_UNSUPPORTED,
                         "config.json: sliding_attention with RoPE of type \"%s\", only "
                         "\"default\" is supported",
                         error_quote(quoted, sizeof(quoted), rope_type(rope.local), strlen(rope_type(rope.local))));
    type = rope_type(rope.global);
    if (r->f->sections && (st = put_sections(r, rope.global)) != RD_OK) return st;
    if (r->f->sections && !strcmp(type, "mrope")) return RD_OK;
    if (!strcmp(type, "default") || !strcmp(type, "dynamic")) return RD_OK; /* dynamic: beyond the context only */
    if (!strcmp(type, "yarn")) return put_yarn(r, rope.global);
    if (!strcmp(type, "llama3")) return put_llama3(r, rope.global);
    if (strcmp(type, "linear") != 0)
        return error_set(r->err, RD_E_UNSUPPORTED,
                         "config.json: RoPE of type \"%s\" is not supported; known: default, "
                         "dynamic, linear, llama3, yarn",
                         error_quote(quoted, sizeof(quoted), type, strlen(type)));
    if ((st = get_f64(rope.global, "factor", true, &factor, r->err)) != RD_OK) return st;
    put_scaling_type(r, "linear");
    put_f32(r, "rope.scaling.factor", factor);
    return RD_OK;
}

/* ---- sliding windows ---- */

/* Every how many layers one is global, from layer_types, which must be regular. */
static rd_status find_pattern(const struct reader *r, uint32_t *pattern)
{
    const json_t *types = get(r->text, "layer_types");
    uint32_t first = 0;
    rd_status st;

    if ((st = get_u32(r->text, "_sliding_window_pattern", false, pattern, r->err)) != RD_OK) return st;
    if ((st = get_u32(r->text, "sliding_window_pattern", false, pattern, r->err)) != RD_OK) return st;
    if (!types) return RD_OK;
    if (json_array_size(types) != r->n_layers)
        return error_set(r->err, RD_E_FORMAT, "config.json: \"layer_types\" has %zu entries, the model %u layers",
                         json_array_size(types), r->n_layers);
    for (uint32_t i = 0; i < r->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        bool full = type && !strcmp(type, "full_attention");

        if (!type || (!full && strcmp(type, "sliding_attention") != 0))
            return wrong(r->err, "layer_types", types, "entries of full_attention and sliding_attention");
        if (full && !first) first = i + 1;
        if (full != (first && (i + 1) % first == 0))
            return error_set(r->err, RD_E_UNSUPPORTED,
                             "config.json: \"layer_types\": layer %u breaks the order that "
                             "every n-th layer is global",
                             i);
    }
    *pattern = first ? first : r->n_layers + 1;
    return RD_OK;
}

static rd_status put_local_layers(struct reader *r)
{
    uint32_t window = r->f->window, pattern = r->f->pattern;
    rd_status st = get_u32(r->text, "sliding_window", false, &window, r->err);

    if (st == RD_OK) st = find_pattern(r, &pattern);
    if (st != RD_OK) return st;
    put_u32(r, "attention.sliding_window", window);
    put_u32(r, "attention.sliding_window_pattern", pattern);
    return RD_OK;
}

/* A window that the architecture here does not know: it matters beyond it only. */
static rd_status clamp_context(struct reader *r)
{
    bool used = r->f->window_is_on;
    uint32_t window = 0;
    rd_status st = get_flag(r->text, "use_sliding_window", &used, r->err);

    if (st == RD_OK) st = get_u32(r->text, "sliding_window", false, &window, r->err);
    if (st != RD_OK || !used || window == 0 || window >= r->n_ctx) return st;
    log_warn("config.json: sliding windows of %u tokens: that is the longest context here, instead of %u", window,
             r->n_ctx);
    r->n_ctx = window;
    return RD_OK;
}

/* How scores are scaled and capped. */
static rd_status put_scores(struct reader *r)
{
    static const struct {
        const char *json, *suffix;
        double fallback;
    } caps[] = {
        {"attn_logit_softcapping", "attn_logit_softcapping", 50},
        {"final_logit_softcapping", "final_logit_softcapping", 30},
    };
    bool both_ways = false;
    double scalar = 256, cap;
    rd_status st = get_f64(r->text, "query_pre_attn_scalar", false, &scalar, r->err);

    if (st == RD_OK) st = get_flag(r->text, "use_bidirectional_attention", &both_ways, r->err);
    if (st != RD_OK) return st;
    if (both_ways)
        return error_set(r->err, RD_E_UNSUPPORTED, "config.json: \"use_bidirectional_attention\" is not supported");
    if (!(scalar > 0)) return wrong(r->err, "query_pre_attn_scalar", get(r->text, "query_pre_attn_scalar"), "> 0");
    put_f32(r, "attention.scale", 1 / sqrt(scalar));
    for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++) {
        bool named = json_object_get(r->text, caps[i].json) != NULL;

        cap = !r->f->softcaps ? 0 : named ? NO_CAP : caps[i].fallback; /* null: none */
        if ((st = get_f64(r->text, caps[i].json, false, &cap, r->err)) != RD_OK) return st;
        if (cap != 0) put_f32(r, caps[i].suffix, cap);
    }
    return RD_OK;
}

rd_status hf_put_keys(const json_t *config, const char *name, const struct hub_families *families,
                      const struct hf_told *told, struct gguf_writer *w, struct hf_model *out, struct rd_error *err)
{
    struct reader r = {.text = config, .told = told, .w = w, .err = err};
    char key[128];
    rd_status st;

    if (!json_is_object(config)) return error_set(err, RD_E_FORMAT, "config.json: not an object");
    if ((st = find_family(config, families, &r)) != RD_OK) return st;
    if (r.f->in_text_config || (r.f->may_have_text_config && get(config, "text_config")))
        r.text = get(config, "text_config");
    if (!json_is_object(r.text))
        return error_set(err, RD_E_FORMAT, "config.json: \"text_config\" is %s, expected an object",
                         r.text ? "of another type" : "missing");
    *out = (struct hf_model){.family = r.f, .tied = r.f->tied};
    gguf_add_str(w, "general.architecture", r.arch, strlen(r.arch));
    gguf_add_str(w, "general.name", name, strlen(name));
    if ((st = put_widths(&r)) != RD_OK || (st = check_act(&r)) != RD_OK || (st = put_rope(&r)) != RD_OK) return st;
    st = r.f->window ? put_local_layers(&r) : clamp_context(&r);
    if (st == RD_OK && r.f->query_scalar) st = put_scores(&r);
    if (st == RD_OK) st = get_u32(r.text, "vocab_size", false, &out->n_vocab, err);
    if (st == RD_OK) st = get_flag(r.text, "tie_word_embeddings", &out->tied, err);
    if (st == RD_OK && r.text != config) st = get_flag(config, "tie_word_embeddings", &out->tied, err);
    if (st != RD_OK) return st;
    put_u32(&r, "context_length", r.n_ctx);
    if (r.f->sees == HUB_SEES_QWEN3)
        put_u32(&r, "n_deepstack_layers",
                (uint32_t)json_array_size(get(get(config, "vision_config"), "deepstack_visual_indexes")));
    if (r.f->half_split) gguf_add_bool(w, name_of(&r, "rope.half_split", key), true);
    return RD_OK;
}
