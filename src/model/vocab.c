/* model/vocab.c - GGUF metadata to a tokenizer_spec, every type, length and id checked. */
#include "model/vocab.h"
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/tokenizer/pretokenize.h"

/* The arrays that a spec borrows while the tokenizer is built. */
struct vocab_arrays {
    struct text_span *tokens, *merges;
    float *scores;
    int32_t *types;
    char pre[64];
};

static void arrays_deinit(struct vocab_arrays *a)
{
    mem_free(a->tokens);
    mem_free(a->merges);
    mem_free(a->scores);
    mem_free(a->types);
}

/* An array of one of two element types, with at least min and at most max elements. NULL *out: absent and not needed.
 */
static rd_status find_array(const struct model_file *g, const char *key, bool needed, enum meta_type type,
                            enum meta_type or_type, uint64_t max, const struct model_meta **out, struct rd_error *err)
{
    const struct model_meta *kv = model_file_find(g, key);

    *out = NULL;
    if (!kv) return needed ? error_set(err, RD_E_FORMAT, "%s is missing", key) : RD_OK;
    if (kv->type != META_ARRAY)
        return error_set(err, RD_E_FORMAT, "%s is of type %s, expected an array", key, meta_type_name(kv->type));
    if (kv->array_type != type && kv->array_type != or_type)
        return error_set(err, RD_E_FORMAT, "%s is an array of %s, expected %s", key, meta_type_name(kv->array_type),
                         meta_type_name(type));
    if (kv->n > max)
        return error_set(err, RD_E_LIMIT, "%s has %llu elements, at most %llu", key, (unsigned long long)kv->n,
                         (unsigned long long)max);
    *out = kv;
    return RD_OK;
}

static rd_status read_strings(const struct model_file *g, const char *key, bool needed, uint64_t max,
                              struct text_span **out, uint32_t *n, struct rd_error *err)
{
    const struct model_meta *kv;
    struct meta_strings it;
    struct model_str s;
    rd_status st = find_array(g, key, needed, META_STRING, META_STRING, max, &kv, err);

    if (st != RD_OK || !kv) return st;
    *out = mem_alloc(kv->n, sizeof(**out));
    if (!*out) return error_set(err, RD_E_NOMEM, "%s: out of memory", key);
    meta_strings_of(kv, &it);
    for (*n = 0; *n < kv->n && meta_next_string(&it, &s); ++*n) (*out)[*n] = (struct text_span){s.s, s.n};
    if (*n != kv->n)
        return error_set(err, RD_E_FORMAT, "%s ends after %u of %llu strings", key, *n, (unsigned long long)kv->n);
    return RD_OK;
}

static rd_status check_length(const char *key, const struct model_meta *kv, uint32_t n_tokens, struct rd_error *err)
{
    if (kv->n == n_tokens) return RD_OK;
    return error_set(err, RD_E_FORMAT, "%s has %llu elements, the vocabulary %u", key, (unsigned long long)kv->n,
                     n_tokens);
}

static rd_status read_scores(const struct model_file *g, uint32_t n_tokens, float **out, struct rd_error *err)
{
    static const char key[] = "tokenizer.ggml.scores";
    const struct model_meta *kv;
    rd_status st = find_array(g, key, false, META_F32, META_I32, LIMIT_VOCAB, &kv, err);

    if (st != RD_OK || !kv) return st;
    if ((st = check_length(key, kv, n_tokens, err)) != RD_OK) return st;
    *out = mem_alloc(n_tokens, sizeof(**out));
    if (!*out) return error_set(err, RD_E_NOMEM, "%s: out of memory", key);
    if (kv->array_type == META_F32)
        memcpy(*out, kv->data, n_tokens * sizeof(**out));
    else
        for (uint32_t i = 0; i < n_tokens; i++) (*out)[i] = (float)(int32_t)meta_u64_at(kv, i);
    return RD_OK;
}

static rd_status read_types(const struct model_file *g, uint32_t n_tokens, int32_t **out, struct rd_error *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const struct model_meta *kv;
    rd_status st = find_array(g, key, false, META_I32, META_U32, LIMIT_VOCAB, &kv, err);

    if (st != RD_OK || !kv) return st;
    if ((st = check_length(key, kv, n_tokens, err)) != RD_OK) return st;
    *out = mem_alloc(n_tokens, sizeof(**out));
    if (!*out) return error_set(err, RD_E_NOMEM, "%s: out of memory", key);
    memcpy(*out, kv->data, n_tokens * sizeof(**out));
    return RD_OK;
}

/* An id, or what *id holds already when the key is absent. */
static rd_status read_id(const struct model_file *g, const char *name, uint32_t n_tokens, int32_t *id,
                         struct rd_error *err)
{
    char key[64];
    uint64_t value;
    rd_status st;

    snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", name);
    st = model_file_u64(g, key, 0, n_tokens - 1, &value, err);
    if (st == RD_OK) *id = (int32_t)value;
    return st == RD_E_NOT_FOUND ? RD_OK : st;
}

static rd_status read_ids(const struct model_file *g, struct tokenizer_spec *spec, struct rd_error *err)
{
    const struct {
        const char *name;
        int32_t *id;
    } ids[] = {
        {"bos", &spec->bos},         {"eos", &spec->eos},         {"eot", &spec->eot},
        {"unknown", &spec->unk},     {"prefix", &spec->fim_pre},  {"suffix", &spec->fim_suf},
        {"middle", &spec->fim_mid},  {"fim_pre", &spec->fim_pre}, {"fim_suf", &spec->fim_suf},
        {"fim_mid", &spec->fim_mid},
    };
    rd_status st = RD_OK;

    spec->bos = spec->eos = spec->eot = spec->unk = spec->pad = spec->fim_pre = spec->fim_suf = spec->fim_mid =
        TOKEN_NONE;
    if (spec->model == TOKENIZER_SPM && spec->n_tokens > 2) { /* SentencePiece's own order: <unk>, <s>, </s> */
        spec->unk = 0;
        spec->bos = 1;
        spec->eos = 2;
    }
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]) && st == RD_OK; i++)
        st = read_id(g, ids[i].name, spec->n_tokens, ids[i].id, err);
    /* Nothing is padded here: older Llama files, whose id is SentencePiece's -1, are as good as others. */
    if (st == RD_OK && read_id(g, "padding", spec->n_tokens, &spec->pad, NULL) != RD_OK)
        log_info("tokenizer.ggml.padding_token_id is no token of the vocabulary");
    return st;
}

static rd_status read_bool(const struct model_file *g, const char *key, bool *out, struct rd_error *err)
{
    rd_status st = model_file_bool(g, key, out, err);

    return st == RD_E_NOT_FOUND ? RD_OK : st;
}

static rd_status read_flags(const struct model_file *g, struct tokenizer_spec *spec, struct rd_error *err)
{
    struct pretokenizer_info pre = {0};
    bool spm = spec->model == TOKENIZER_SPM;
    rd_status st;

    if (!spm && spec->pre)
        (void)pretokenize_find(spec->pre, strlen(spec->pre), &pre); /* tokenizer_create() refuses the unknown */
    spec->add_bos = (spm || pre.adds_bos) && spec->bos != TOKEN_NONE;
    spec->add_space_prefix = spm;
    if ((st = read_bool(g, "tokenizer.ggml.add_bos_token", &spec->add_bos, err)) != RD_OK) return st;
    if ((st = read_bool(g, "tokenizer.ggml.add_eos_token", &spec->add_eos, err)) != RD_OK) return st;
    if ((st = read_bool(g, "tokenizer.ggml.add_space_prefix", &spec->add_space_prefix, err)) != RD_OK) return st;
    return read_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &spec->remove_extra_whitespaces, err);
}

static rd_status read_model(const struct model_file *g, enum tokenizer_model *out, struct rd_error *err)
{
    struct model_str name;
    char quoted[64];
    rd_status st = model_file_str(g, "tokenizer.ggml.model", &name, err);

    if (st == RD_E_NOT_FOUND)
        return error_set(err, RD_E_FORMAT, "tokenizer.ggml.model is missing: the file has no vocabulary");
    if (st != RD_OK) return st;
    if (name.n == 4 && memcmp(name.s, "gpt2", 4) == 0) {
        *out = TOKENIZER_BPE;
    } else if (name.n == 5 && memcmp(name.s, "llama", 5) == 0) {
        *out = TOKENIZER_SPM;
    } else {
        return error_set(err, RD_E_UNSUPPORTED, "tokenizer.ggml.model is \"%s\"; known are gpt2 and llama",
                         error_quote(quoted, sizeof(quoted), name.s, name.n));
    }
    return RD_OK;
}

static rd_status read_pre(const struct model_file *g, const char *override, char *pre, size_t cap, struct rd_error *err)
{
    struct model_str name;
    rd_status st;

    if (override) {
        snprintf(pre, cap, "%s", override);
        return RD_OK;
    }
    st = model_file_str(g, "tokenizer.ggml.pre", &name, err);
    if (st == RD_E_NOT_FOUND)
        return error_set(err, RD_E_UNSUPPORTED,
                         "tokenizer.ggml.pre is missing; choose the pre-tokenizer with --pre: %s",
                         tokenizer_known_pre());
    if (st == RD_OK) snprintf(pre, cap, "%.*s", (int)(name.n < cap ? name.n : cap), name.s);
    return st;
}

/* A directory's tokenizer.json, with as many tokens as the model has rows. */
static rd_status load_hub(const struct model_file *g, const struct model_text *hub, const char *pre_override,
                          struct tokenizer **out, struct rd_error *err)
{
    const struct model_tensor *embed = model_file_find_tensor(g, "token_embd.weight");
    struct tokenizer_files files = {.json = hub->json,
                                    .n_json = hub->n_json,
                                    .config = hub->config,
                                    .n_config = hub->n_config,
                                    .ends = hub->ends,
                                    .n_ends = hub->n_ends};

    if (!hub->json)
        return error_set(err, RD_E_NOT_FOUND,
                         "the directory has no tokenizer.json (a tokenizer.model alone is not "
                         "read)");
    if (pre_override)
        return error_set(err, RD_E_INVALID, "tokenizer.json says how text is split: --pre is for GGUF files");
    if (embed && embed->dims[1] <= LIMIT_VOCAB) files.n_rows = (uint32_t)embed->dims[1];
    return tokenizer_from_json(&files, out, err);
}

rd_status vocab_load(const struct model_file *g, const char *pre_override, struct tokenizer **out, struct rd_error *err)
{
    struct tokenizer_spec spec = {0};
    struct vocab_arrays a = {0};
    rd_status st;

    if (model_file_text(g)) return load_hub(g, model_file_text(g), pre_override, out, err);
    if ((st = read_model(g, &spec.model, err)) != RD_OK) goto done;
    st = read_strings(g, "tokenizer.ggml.tokens", true, LIMIT_VOCAB, &a.tokens, &spec.n_tokens, err);
    if (st == RD_OK && spec.n_tokens == 0) st = error_set(err, RD_E_FORMAT, "tokenizer.ggml.tokens is empty");
    if (st != RD_OK) goto done;
    if ((st = read_scores(g, spec.n_tokens, &a.scores, err)) != RD_OK) goto done;
    if ((st = read_types(g, spec.n_tokens, &a.types, err)) != RD_OK) goto done;
    if (spec.model == TOKENIZER_BPE) {
        st = read_strings(g, "tokenizer.ggml.merges", true, LIMIT_GGUF_ARRAY, &a.merges, &spec.n_merges, err);
        if (st != RD_OK) goto done;
        if ((st = read_pre(g, pre_override, a.pre, sizeof(a.pre), err)) != RD_OK) goto done;
        spec.pre = a.pre;
    }
    spec.tokens = a.tokens;
    spec.scores = a.scores;
    spec.types = a.types;
    spec.merges = a.merges;
    if ((st = read_ids(g, &spec, err)) != RD_OK) goto done;
    if ((st = read_flags(g, &spec, err)) != RD_OK) goto done;
    st = tokenizer_create(&spec, out, err);

done:
    arrays_deinit(&a);
    return st;
}

rd_status vocab_chat_template(const struct model_file *g, struct model_str *out)
{
    rd_status st = model_file_str(g, "tokenizer.chat_template", out, NULL);

    return st == RD_OK ? RD_OK : RD_E_NOT_FOUND;
}
