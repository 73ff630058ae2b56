/* server/params/params_form.c - what an output is held to, under all the names that clients have for it. */
#include <string.h>
#include "base/mem.h"
#include "server/params/params_custom.h"

/* Every field that is a form by itself. */
static const struct {
    const char *name;
    enum rd_grammar_kind kind;
} forms[] = {
    {"grammar", RD_GRAMMAR_GBNF},
    {"ebnf", RD_GRAMMAR_EBNF},
    {"guided_grammar", RD_GRAMMAR_EBNF},
    {"json_schema", RD_GRAMMAR_JSON_SCHEMA},
    {"guided_json", RD_GRAMMAR_JSON_SCHEMA},
    {"regex", RD_GRAMMAR_REGEX},
    {"guided_regex", RD_GRAMMAR_REGEX},
    {"choice", RD_GRAMMAR_CHOICE},
    {"guided_choice", RD_GRAMMAR_CHOICE},
    {"structural_tag", RD_GRAMMAR_TAGS},
};

/* The name as a constant: it outlives the body. */
static const char *constant_of(const char *name)
{
    static const char *const others[] = {"response_format", "structured_outputs"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(others[i], name) == 0) return others[i];
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (strcmp(forms[i].name, name) == 0) return forms[i].name;
    return NULL;
}

/* A string as it is, all else as its JSON. A request has one form; a client that speaks to servers of several ages gives
 * the same one in two fields (guidance: guided_grammar and structured_outputs). */
static int set_form(const char *name, enum rd_grammar_kind kind, const json_t *v, struct gen_params *p,
                    struct api_error *e)
{
    char *text;
    size_t n;
    bool same;

    if (json_is_string(v)) {
        n = json_string_length(v);
        text = mem_memdup(json_string_value(v), n + 1);
    } else {
        text = json_text(v, JSON_COMPACT | JSON_ENCODE_ANY);
        n = text ? strlen(text) : 0;
    }
    if (!text) return api_error_set(e, 503, NULL, "out of memory");
    if (p->grammar_kind == RD_GRAMMAR_NONE) {
        p->grammar = text;
        p->n_grammar = n;
        p->grammar_name = constant_of(name);
        p->grammar_kind = kind;
        return 0;
    }
    same = kind == p->grammar_kind && n == p->n_grammar && memcmp(text, p->grammar, n) == 0;
    mem_free(text);
    if (same) return 0;
    return api_error_set(e, 400, name, "%s: the output has a form already, from another field", name);
}

static bool is_empty(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
}

int param_form(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    if (is_empty(v)) return 0;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (strcmp(forms[i].name, name) == 0) return set_form(name, forms[i].kind, v, p, e);
    return api_error_set(e, 500, name, "%s: no such form", name);
}

/* vLLM's {json, regex, choice, grammar, json_object, structural_tag}, of which one is given. */
int param_structured_outputs(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    static const struct {
        const char *key;
        enum rd_grammar_kind kind;
    } keys[] = {{"json", RD_GRAMMAR_JSON_SCHEMA},        {"regex", RD_GRAMMAR_REGEX},
                {"choice", RD_GRAMMAR_CHOICE},           {"grammar", RD_GRAMMAR_EBNF},
                {"json_object", RD_GRAMMAR_JSON_OBJECT}, {"structural_tag", RD_GRAMMAR_TAGS}};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *form = json_object_get(v, keys[i].key);

        if (form && !is_empty(form) && set_form(name, keys[i].kind, form, p, e)) return -1;
    }
    return 0;
}

/* {type: json_schema, json_schema: {schema}}, with the schema directly below as llama-server has it, or in `value`. */
static int schema_format(const char *name, const json_t *v, bool is_needed, struct gen_params *p, struct api_error *e)
{
    const json_t *wrapped = json_object_get(v, "json_schema"), *schema = json_object_get(wrapped, "schema");

    if (!schema) schema = json_object_get(v, "schema");
    if (!schema) schema = json_object_get(v, "value");
    if (schema && !json_is_null(schema)) return set_form(name, RD_GRAMMAR_JSON_SCHEMA, schema, p, e);
    if (!is_needed) return set_form(name, RD_GRAMMAR_JSON_OBJECT, v, p, e);
    return api_error_set(e, 400, name, "%s.json_schema.schema: a JSON schema wanted", name);
}

int param_response_format(const char *name, const json_t *v, struct gen_params *p, struct api_error *e)
{
    static const struct {
        const char *type, *key;
        enum rd_grammar_kind kind;
    } others[] = {{"regex", "regex", RD_GRAMMAR_REGEX}, {"regex", "pattern", RD_GRAMMAR_REGEX},
                  {"regex", "value", RD_GRAMMAR_REGEX}, {"grammar", "grammar", RD_GRAMMAR_EBNF},
                  {"ebnf", "ebnf", RD_GRAMMAR_EBNF},    {"choice", "choice", RD_GRAMMAR_CHOICE}};
    const char *type = json_plain(json_object_get(v, "type"));

    if (!type) return api_error_set(e, 400, name, "%s: an object with a type wanted", name);
    if (strcmp(type, "text") == 0) return 0;
    if (strcmp(type, "json_schema") == 0 || strcmp(type, "json") == 0) return schema_format(name, v, true, p, e);
    if (strcmp(type, "json_object") == 0) return schema_format(name, v, false, p, e);
    if (strcmp(type, "structural_tag") == 0) return set_form(name, RD_GRAMMAR_TAGS, v, p, e);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        const json_t *form = strcmp(type, others[i].type) == 0 ? json_object_get(v, others[i].key) : NULL;

        if (form) return set_form(name, others[i].kind, form, p, e);
    }
    return api_error_set(
        e, 400, name, "%s.type: text, json_object, json_schema, structural_tag, regex, grammar or choice wanted", name);
}
