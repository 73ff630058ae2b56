/* text/output/output_tools.c - what the tools' schemas say about names and types. */
#include <math.h>
#include <string.h>
#include "text/output/output_impl.h"

/* OpenAI's {"type":"function","function":{..}}, or the function itself. */
static const json_t *function_of(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");

    return json_is_object(f) ? f : tool;
}

const json_t *output_tool(const struct output_parser *p)
{
    size_t i;
    const json_t *tool;

    json_array_foreach(p->o.tools, i, tool)
    {
        const json_t *f = function_of(tool), *name = json_object_get(f, "name");

        if (json_is_string(name) && json_string_length(name) == p->n_name &&
            memcmp(json_string_value(name), p->name, p->n_name) == 0)
            return f;
    }
    return NULL;
}

static const json_t *properties(const struct output_parser *p)
{
    const json_t *f = output_tool(p), *schema = json_object_get(f, "parameters");

    if (!schema) schema = json_object_get(f, "input_schema");
    return json_object_get(schema, "properties");
}

static unsigned type_bit(const json_t *name)
{
    static const struct {
        const char *name;
        unsigned bit;
    } types[] = {{"string", TYPE_STRING}, {"number", TYPE_NUMBER}, {"integer", TYPE_INTEGER}, {"boolean", TYPE_BOOLEAN},
                 {"object", TYPE_OBJECT}, {"array", TYPE_ARRAY},   {"null", TYPE_NULL}};

    for (size_t i = 0; json_is_string(name) && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(json_string_value(name), types[i].name) == 0) return types[i].bit;
    return 0;
}

static unsigned value_bit(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_NULL:
        return TYPE_NULL;
    }
    return 0;
}

static unsigned types_named(const json_t *type)
{
    unsigned bits = 0;
    size_t i;
    const json_t *v;

    if (!json_is_array(type)) return type_bit(type);
    json_array_foreach(type, i, v) bits |= type_bit(v);
    return bits;
}

unsigned output_param_types(const struct output_parser *p, const char *key, size_t n)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *schema = json_object_getn(properties(p), key, n), *v;
    unsigned bits = types_named(json_object_get(schema, "type"));
    size_t i;

    for (size_t u = 0; u < 2; u++)
        json_array_foreach(json_object_get(schema, unions[u]), i, v) bits |= types_named(json_object_get(v, "type"));
    if (bits) return bits;
    json_array_foreach(json_object_get(schema, "enum"), i, v) bits |= value_bit(v);
    return bits;
}

const char *output_param_name(const struct output_parser *p, uint32_t i)
{
    void *at = json_object_iter((json_t *)(uintptr_t)properties(p));

    while (at && i--) at = json_object_iter_next((json_t *)(uintptr_t)properties(p), at);
    return at ? json_object_iter_key(at) : NULL;
}

static bool literal(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp(s, word, n) == 0;
}

bool output_typed_value(const char *s, size_t n, unsigned types, struct buf *out)
{
    size_t at = 0, n_out = out->n;
    json_error_t why;
    json_t *v;
    unsigned bit;

    while (n && output_is_space(*s)) s++, n--;
    while (n && output_is_space(s[n - 1])) n--;
    if (n == 0) return false;
    if ((types & TYPE_BOOLEAN) && (literal(s, n, "true") || literal(s, n, "false"))) {
        buf_puts(out, literal(s, n, "true") ? "true" : "false");
        return true;
    }
    if ((types & TYPE_NULL) && (literal(s, n, "null") || literal(s, n, "none"))) {
        buf_puts(out, "null");
        return true;
    }
    v = json_loadb(s, n, JSON_DECODE_ANY, &why);
    if (!v && json_error_code(&why) == json_error_out_of_memory) return out->failed = true;
    if (v) {
        bit = value_bit(v);
        if (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v)) bit |= TYPE_INTEGER;
        if (json_is_integer(v)) bit |= TYPE_NUMBER;
        json_decref(v);
        if (!(bit & types & ~(unsigned)TYPE_STRING)) return false;
        buf_append(out, s, n);
        return true;
    }
    if (!(types & (TYPE_OBJECT | TYPE_ARRAY)) || (*s != '{' && *s != '[')) return false;
    if (output_python_value(s, n, &at, 0, out) && at == n) return true;
    out->n = n_out; /* what was half written goes */
    return false;
}
