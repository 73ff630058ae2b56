/* api/form_node.c - kind by kind. */
#include "api/form_node.h"

const struct grammar_limits form_limits = {
    100000, 1000000, 64u << 20, 600000000ull * CLOCK_SLOWDOWN, 30000000000ull * CLOCK_SLOWDOWN, NULL};

json_t *form_json(struct grammar_builder *b, const char *text, size_t n)
{
    json_error_t why = {.text = ""};
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);

    if (v) return v;
    if (json_error_code(&why) == json_error_out_of_memory)
        grammar_fail(b, RD_E_NOMEM, "out of memory");
    else
        grammar_fail(b, RD_E_INVALID, "not JSON: %.200s, line %d, column %d", why.text, why.line, why.column);
    return NULL;
}

static grammar_node json_node(struct grammar_builder *b, enum rd_grammar_kind kind, const json_t *v,
                              const struct schema_options *o, const struct tag_tokens *tokens)
{
    if (kind == RD_GRAMMAR_JSON_SCHEMA) return grammar_from_schema(b, v, o);
    if (kind == RD_GRAMMAR_CHOICE) return grammar_from_choice(b, v);
    return grammar_from_tags(b, v, o, tokens);
}

grammar_node form_node(struct grammar_builder *b, enum rd_grammar_kind kind, const char *text, size_t n,
                       const struct tag_tokens *tokens)
{
    static const struct schema_options plain = {JSON_SPACES_PLAIN};
    grammar_node node = 0;
    json_t *v;

    switch (kind) {
    case RD_GRAMMAR_JSON_OBJECT:
        return grammar_json_object(b, &plain);
    case RD_GRAMMAR_REGEX:
        return grammar_from_regex(b, text, n, false);
    case RD_GRAMMAR_GBNF:
        return grammar_from_gbnf(b, text, n);
    case RD_GRAMMAR_EBNF:
        return grammar_from_ebnf(b, text, n);
    case RD_GRAMMAR_JSON_SCHEMA:
    case RD_GRAMMAR_CHOICE:
    case RD_GRAMMAR_TAGS:
        v = form_json(b, text, n);
        if (v) node = json_node(b, kind, v, &plain, tokens);
        json_decref(v);
        return node;
    default:
        return grammar_repeat(b, grammar_class(b, NULL, 0, true), 0, GRAMMAR_UNBOUNDED);
    }
}
