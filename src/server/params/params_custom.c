/* server/params/params_custom.c - prompts, messages, tools, stop strings, biases: lists with their own shapes and caps. */
#include "server/params/params_custom.h"
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"

static int no_memory(struct api_error *e)
{
    return api_error_set(e, 503, NULL, "out of memory");
}

int param_bool(const json_t *body, const char *name, bool *value, struct api_error *e)
{
    const json_t *v = json_object_get(body, name);

    if (!v || json_is_null(v)) return 0;
    if (!json_is_boolean(v)) return api_error_set(e, 400, name, "%s: true or false wanted", name);
    *value = json_is_true(v);
    return 0;
}

bool param_is_model(const char *name, const struct rd_info *info)
{
    size_t n = strlen(info->model_id);

    return strncmp(name, info->model_id, n) == 0 && (name[n] == 0 || strcmp(name + n, ":latest") == 0);
}

int param_check_model(const json_t *body, const struct rd_info *info, struct api_error *e)
{
    const json_t *v = json_object_get(body, "model");
    char quoted[160];

    if (!v || json_is_null(v)) return 0;
    if (json_string_length(v) == 0 || param_is_model(json_string_value(v), info)) return 0;
    error_quote(quoted, sizeof(quoted), json_string_value(v), json_string_length(v));
    api_error_set(e, 404, "model", "The model `%s` does not exist; this server has `%s`", quoted, info->model_id);
    e->code = "model_not_found";
    return -1;
}

/* ---- prompts ---- */

int param_tokens(const char *name, const json_t *v, int32_t **tokens, uint32_t *n, struct api_error *e)
{
    size_t count = json_array_size(v);
    int32_t *ids;

    if (count > LIMIT_CONTEXT) return api_error_set(e, 400, name, "%s: at most %u tokens", name, LIMIT_CONTEXT);
    ids = mem_alloc(count, sizeof(*ids));
    if (!ids) return no_memory(e);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(v, i);

        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) {
            mem_free(ids);
            return api_error_set(e, 400, name, "%s: element %zu is not a token id", name, i);
        }
        ids[i] = (int32_t)json_integer_value(id);
    }
    *tokens = ids;
    *n = (uint32_t)count;
    return 0;
}

static int one_prompt(const char *name, const json_t *v, struct prompt *to, struct api_error *e)
{
    if (json_is_string(v)) {
        if (json_string_length(v) == 0) return api_error_set(e, 400, name, "%s: empty", name);
        to->n_text = json_string_length(v);
        to->text = mem_memdup(json_string_value(v), to->n_text);
        return to->text ? 0 : no_memory(e);
    }
    if (!json_is_array(v)) return api_error_set(e, 400, name, "%s: strings, or lists of token ids, in one list", name);
    if (json_array_size(v) == 0) return api_error_set(e, 400, name, "%s: empty", name);
    return param_tokens(name, v, &to->tokens, &to->n_tokens, e);
}

int param_prompt(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    const json_t *first = json_array_get(v, 0);
    bool many = json_is_string(first) || json_is_array(first);
    size_t n = many ? json_array_size(v) : 1;

    if (n > LIMIT_PROMPTS) return api_error_set(e, 400, name, "%s: at most %u prompts", name, LIMIT_PROMPTS);
    p->prompts = mem_zalloc(n, sizeof(*p->prompts));
    if (!p->prompts) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        p->n_prompts++;
        if (one_prompt(name, many ? json_array_get(v, i) : v, &p->prompts[i], e)) return -1;
    }
    return 0;
}

/* ---- the rest ---- */

int param_stop(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;

    p->stop = mem_zalloc(n, sizeof(*p->stop));
    if (!p->stop) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;

        if (json_string_length(s) == 0) continue; /* clients send "" for none */
        if (json_string_length(s) > LIMIT_STOP_BYTES)
            return api_error_set(e, 400, name, "%s: at most %u bytes each", name, LIMIT_STOP_BYTES);
        p->stop[p->n_stop] = mem_strdup(json_string_value(s));
        if (!p->stop[p->n_stop++]) return no_memory(e);
    }
    return 0;
}

int param_cache_salt(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    size_t n = json_string_length(v);

    if (n == 0 || n > LIMIT_SALT_BYTES || strlen(json_string_value(v)) != n)
        return api_error_set(e, 400, name, "%s: 1 to %u bytes wanted, without NUL", name, LIMIT_SALT_BYTES);
    mem_free(p->cache_salt);
    p->cache_salt = mem_strdup(json_string_value(v));
    return p->cache_salt ? 0 : api_error_set(e, 503, NULL, "out of memory");
}

int param_processor_kwargs(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    const char *member;
    json_t *x;

    json_object_foreach((json_t *)(uintptr_t)v, member, x)
    {
        if (strcmp(member, "do_pan_and_scan") != 0)
            return api_error_set(e, 400, name, "%s: \"%.40s\" is not known, do_pan_and_scan is", name, member);
        if (!json_is_boolean(x) && !json_is_null(x))
            return api_error_set(e, 400, name, "%s: do_pan_and_scan: true or false wanted", name);
        p->pan_and_scan = json_is_null(x) ? 0 : json_is_true(x) ? 1 : -1;
    }
    return 0;
}

/* After the row has stored it: false is not what nothing is, where the server shifts. */
int param_context_shift(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    (void)name;
    (void)v;
    (void)e;
    p->has_context_shift = true;
    return 0;
}

int param_cache_name(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v), i = 0;

    while (i < n && (unsigned char)s[i] >= 0x20 && s[i] != 0x7F) i++;
    if (n == 0 || n > LIMIT_CACHE_NAME_CHARS || i < n)
        return api_error_set(e, 400, name, "%s: 1 to %u bytes wanted, without control characters", name,
                             LIMIT_CACHE_NAME_CHARS);
    mem_free(p->cache_name);
    p->cache_name = mem_strdup(s);
    return p->cache_name ? 0 : api_error_set(e, 503, NULL, "out of memory");
}

/* After the row has stored it. -1 is what llama-server's and vLLM's clients send for a random one. */
int param_seed(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    (void)name;
    (void)v;
    (void)e;
    p->has_seed = p->seed != -1;
    return 0;
}

int param_suffix(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    if (!json_is_string(v)) return api_error_set(e, 400, name, "%s: a string wanted", name);
    if (json_string_length(v) == 0) return 0;
    p->n_suffix = json_string_length(v);
    p->suffix = mem_memdup(json_string_value(v), p->n_suffix);
    return p->suffix ? 0 : no_memory(e);
}
