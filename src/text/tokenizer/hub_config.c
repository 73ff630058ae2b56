/* text/tokenizer/hub_config.c - the "post_processor" of a tokenizer.json, and the special tokens that tokenizer_config.json
 * names. */
#include <jansson.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "text/tokenizer/hub.h"

#define MAX_DEPTH 16

static rd_status put(int32_t **list, size_t *n, size_t at, int32_t id)
{
    int32_t *grown = mem_realloc(*list, *n + 1, sizeof(**list));

    if (!grown) return RD_E_NOMEM;
    memmove(grown + at + 1, grown + at, (*n - at) * sizeof(*grown));
    grown[at] = id;
    *list = grown;
    ++*n;
    return RD_OK;
}

/* An id in front of everything so far (at from its start), or behind it. */
static rd_status put_before(struct hub *h, size_t at, int32_t id)
{
    return put(&h->before, &h->n_before, at, id);
}
static rd_status put_after(struct hub *h, int32_t id)
{
    return put(&h->after, &h->n_after, h->n_after, id);
}

static rd_status bad(struct rd_error *err, const char *type, const char *what)
{
    return error_set(err, RD_E_FORMAT, "post_processor %s: %s", type, what);
}

/* TemplateProcessing: "single" is a list of special tokens with the text ("A") once among them. */
static rd_status read_template(struct tokenizer *t, const json_t *config, struct rd_error *err)
{
    const json_t *single = json_object_get(config, "single"), *tokens = json_object_get(config, "special_tokens");
    size_t n_texts = 0, at = 0;

    if (!json_is_array(single)) return bad(err, "TemplateProcessing", "\"single\" must be an array");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i), *special = json_object_get(item, "SpecialToken"), *ids;
        const char *name = json_string_value(json_object_get(special, "id"));

        if (json_is_object(json_object_get(item, "Sequence"))) {
            n_texts++;
            continue;
        }
        ids = name ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
        if (!json_is_array(ids))
            return bad(err, "TemplateProcessing", "an item is neither the text nor a known special token");
        for (size_t k = 0; k < json_array_size(ids); k++) {
            json_int_t id = json_integer_value(json_array_get(ids, k));
            rd_status st;

            if (!json_is_integer(json_array_get(ids, k)) || id < 0 || id >= (json_int_t)t->n_tokens)
                return bad(err, "TemplateProcessing", "an id that is no token");
            st = n_texts ? put_after(t->hub, (int32_t)id) : put_before(t->hub, at++, (int32_t)id);
            if (st != RD_OK) return error_set(err, st, "post_processor: out of memory");
        }
    }
    if (n_texts != 1)
        return error_set(err, RD_E_UNSUPPORTED,
                         "post_processor TemplateProcessing: the text must stand once, not %zu times", n_texts);
    return RD_OK;
}

/* ["text", id] */
static int32_t pair_id(const struct tokenizer *t, const json_t *pair)
{
    json_int_t id = json_integer_value(json_array_get(pair, 1));

    return json_is_integer(json_array_get(pair, 1)) && id >= 0 && id < (json_int_t)t->n_tokens ? (int32_t)id
                                                                                               : TOKEN_NONE;
}

/* BertProcessing, RobertaProcessing: cls text sep. */
static rd_status read_pair(struct tokenizer *t, const json_t *config, const char *type, struct rd_error *err)
{
    int32_t cls = pair_id(t, json_object_get(config, "cls")), sep = pair_id(t, json_object_get(config, "sep"));
    rd_status st;

    if (cls < 0 || sep < 0) return bad(err, type, "\"cls\" and \"sep\" must be [text, id] of a token");
    st = put_before(t->hub, 0, cls);
    if (st == RD_OK) st = put_after(t->hub, sep);
    return st == RD_OK ? st : error_set(err, st, "post_processor: out of memory");
}

static rd_status read_processor(struct tokenizer *t, const json_t *config, unsigned depth, struct rd_error *err)
{
    const char *type = json_string_value(json_object_get(config, "type"));
    const json_t *list = json_object_get(config, "processors");
    rd_status st = RD_OK;
    char quoted[64];

    if (!type) return error_set(err, RD_E_FORMAT, "post_processor: an entry without \"type\"");
    if (depth > MAX_DEPTH) return error_set(err, RD_E_LIMIT, "post_processor: nested more than %d deep", MAX_DEPTH);
    if (strcmp(type, "ByteLevel") == 0) return RD_OK; /* offsets alone */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, config, err);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        return read_pair(t, config, type, err);
    if (strcmp(type, "Sequence") == 0) {
        if (!json_is_array(list)) return bad(err, "Sequence", "\"processors\" must be an array");
        for (size_t i = 0; i < json_array_size(list) && st == RD_OK; i++)
            st = read_processor(t, json_array_get(list, i), depth + 1, err);
        return st;
    }
    return error_set(err, RD_E_UNSUPPORTED,
                     "post_processor \"%s\" is not known; known: ByteLevel, TemplateProcessing, BertProcessing, "
                     "RobertaProcessing, Sequence",
                     error_quote(quoted, sizeof(quoted), type, strlen(type)));
}

static rd_status parse(const char *s, size_t n, size_t flags, const char *what, json_t **out, struct rd_error *err)
{
    json_error_t why;

    *out = json_loadb(s, n, flags | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (*out) return RD_OK;
    if (json_error_code(&why) == json_error_out_of_memory) return error_set(err, RD_E_NOMEM, "%s: out of memory", what);
    return error_set(err, RD_E_FORMAT, "%s: %s", what, why.text);
}

rd_status hub_read_processor(struct tokenizer *t, const char *json, size_t n, struct rd_error *err)
{
    json_t *config;
    rd_status st;

    if (!json) return RD_OK;
    st = parse(json, n, 0, "tokenizer.json: post_processor", &config, err);
    if (st != RD_OK) return st;
    if (!json_is_null(config)) st = read_processor(t, config, 0, err);
    json_decref(config);
    return st;
}

/* A token's text, or an object that has it as "content". */
static int32_t find_token(const struct tokenizer *t, const json_t *config, const char *name)
{
    const json_t *v = json_object_get(config, name);

    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) && json_string_length(v) ? tokenizer_find(t, json_string_value(v), json_string_length(v))
                                                      : TOKEN_NONE;
}

/* Llama's and Gemma's classes in transformers make the post-processor anew from add_bos_token and add_eos_token
 * (DeepSeek's tokenizer.json has no BOS in it, but gets one). Only what the file says counts here. */
static rd_status follow_flags(struct tokenizer *t, const json_t *config)
{
    static const char *const classes[] = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"};
    const char *name = json_string_value(json_object_get(config, "tokenizer_class"));
    const json_t *bos = json_object_get(config, "add_bos_token"), *eos = json_object_get(config, "add_eos_token");
    struct hub *h = t->hub;
    bool follows = false;
    rd_status st = RD_OK;

    for (size_t i = 0; name && i < sizeof(classes) / sizeof(classes[0]); i++)
        follows |= strncmp(name, classes[i], strlen(classes[i])) == 0;
    if (!follows) return RD_OK;
    if (json_is_true(bos) && t->bos >= 0 && h->n_before == 0) st = put_before(h, 0, t->bos);
    if (json_is_false(bos) && h->n_before == 1 && h->before[0] == t->bos) h->n_before = 0;
    if (st == RD_OK && json_is_true(eos) && t->eos >= 0 && h->n_after == 0) st = put_after(h, t->eos);
    if (json_is_false(eos) && h->n_after == 1 && h->after[0] == t->eos) h->n_after = 0;
    return st;
}

rd_status hub_read_config(struct tokenizer *t, const char *json, size_t n, struct rd_error *err)
{
    json_t *config = NULL;
    rd_status st;

    if (json) {
        /* "no limit" is written as an integer of thirty digits */
        st = parse(json, n, JSON_DECODE_INT_AS_REAL, "tokenizer_config.json", &config, err);
        if (st != RD_OK) return st;
        t->bos = find_token(t, config, "bos_token");
        t->eos = find_token(t, config, "eos_token");
        st = follow_flags(t, config);
        json_decref(config);
        if (st != RD_OK) return error_set(err, st, "tokenizer_config.json: out of memory");
    }
    if (t->bos < 0 && t->hub->n_before) t->bos = t->hub->before[0];
    t->add_bos = t->bos >= 0 && t->hub->n_before && t->hub->before[0] == t->bos;
    t->add_eos = t->eos >= 0 && t->hub->n_after && t->hub->after[t->hub->n_after - 1] == t->eos;
    return RD_OK;
}
