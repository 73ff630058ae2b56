/* server/params/params_sampling.c - parameters of sampling that are lists: biases, words, token ids, the order of stages. */
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "server/params/params_custom.h"

static int no_memory(struct api_error *e)
{
    return api_error_set(e, 503, NULL, "out of memory");
}

/* ---- logit_bias ---- */

static int add_bias(const char *name, const char *key, int64_t id, const json_t *value, struct gen_params *p,
                    struct api_error *e)
{
    double b = json_is_false(value) ? -100 : json_number_value(value);

    if (!(json_is_number(value) || json_is_false(value)) || !(b >= -100 && b <= 100))
        return api_error_set(e, 400, name, "%s: biases must be within -100 and 100, or false", name);
    if (!key) {
        if (id < 0 || id > INT32_MAX) return api_error_set(e, 400, name, "%s: not a token id", name);
        p->bias[p->n_bias++] = (struct rd_bias){(int32_t)id, (float)b};
        return 0;
    }
    if (*key == 0 || strlen(key) > LIMIT_WORD_BYTES)
        return api_error_set(e, 400, name, "%s: texts must have 1 to %u bytes", name, LIMIT_WORD_BYTES);
    key = mem_strdup(key);
    if (!key) return no_memory(e);
    p->text_bias[p->n_text_bias++] = (struct rd_text_bias){key, (float)b};
    return 0;
}

/* OpenAI's {"15043": -5}; llama-server's too: a key that is no number is text. */
static int bias_map(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        size_t n = strspn(key, "0123456789");
        bool is_id = n > 0 && n <= 9 && key[n] == 0;

        if (add_bias(name, is_id ? NULL : key, is_id ? strtol(key, NULL, 10) : 0, value, p, e)) return -1;
    }
    return 0;
}

/* llama-server's [[15043, 1.5], [15044, false], ["text", -1]]. */
static int bias_pairs(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *pair = json_array_get(v, i), *key = json_array_get(pair, 0);
        int rc;

        if (json_array_size(pair) != 2 || !(json_is_integer(key) || json_is_string(key)))
            return api_error_set(e, 400, name, "%s: element %zu is not a pair of a token and its bias", name, i);
        rc = add_bias(name, json_string_value(key), json_integer_value(key), json_array_get(pair, 1), p, e);
        if (rc) return rc;
    }
    return 0;
}

int param_logit_bias(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    size_t n = json_is_array(v) ? json_array_size(v) : json_object_size(v);

    p->bias = mem_zalloc(n + 1, sizeof(*p->bias));
    p->text_bias = mem_zalloc(n + 1, sizeof(*p->text_bias));
    if (!p->bias || !p->text_bias) return no_memory(e);
    return json_is_object(v) ? bias_map(name, v, p, e) : bias_pairs(name, v, p, e);
}

/* ---- words and ids ---- */

static int set_texts(const char *name, const json_t *v, struct text_list *to, struct api_error *e)
{
    size_t n = json_array_size(v);

    to->items = mem_zalloc(n + 1, sizeof(*to->items)); /* an empty list is not none */
    if (!to->items) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_array_get(v, i);
        size_t bytes = json_string_length(s);

        if (bytes == 0 || bytes > LIMIT_WORD_BYTES)
            return api_error_set(e, 400, name, "%s: each must have 1 to %u bytes", name, LIMIT_WORD_BYTES);
        to->items[to->n] = mem_strdup(json_string_value(s));
        if (!to->items[to->n++]) return no_memory(e);
    }
    return 0;
}

int param_bad_words(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    return set_texts(name, v, &p->bad_words, e);
}

/* llama.cpp's word for no breakers is ["none"]. */
int param_dry_breakers(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    if (set_texts(name, v, &p->dry_breakers, e)) return -1;
    if (p->dry_breakers.n == 1 && strcmp(p->dry_breakers.items[0], "none") == 0) {
        mem_free(p->dry_breakers.items[0]);
        p->dry_breakers.n = 0;
    }
    return 0;
}

int param_stop_tokens(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    return json_array_size(v) ? param_tokens(name, v, &p->stop_tokens, &p->n_stop_tokens, e) : 0;
}

int param_allowed(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    return param_tokens(name, v, &p->allowed, &p->n_allowed, e);
}

/* ---- the rest ---- */

/* A string goes through as it is; of a list the names, each with a semicolon behind it. */
int param_samplers(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    struct buf out = {0};

    if (json_is_string(v)) {
        p->samplers = mem_strdup(json_string_value(v));
        return p->samplers ? 0 : no_memory(e);
    }
    buf_puts(&out, ";");
    for (size_t i = 0; i < json_array_size(v); i++) buf_printf(&out, "%s;", json_string_value(json_array_get(v, i)));
    p->samplers = buf_take(&out, NULL);
    return p->samplers ? 0 : no_memory(e);
}

int param_response_fields(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    text_list_deinit(&p->response_fields);
    return json_array_size(v) ? set_texts(name, v, &p->response_fields, e) : 0;
}

/* llama-server's: 0 is none. */
int param_n_probs(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    (void)name;
    (void)e;
    if (json_number_value(v) == 0) return 0;
    p->top_logprobs = (int64_t)json_number_value(v);
    p->logprobs = true;
    return 0;
}

void text_list_deinit(struct text_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) mem_free(list->items[i]);
    mem_free(list->items);
    *list = (struct text_list){NULL, 0};
}
