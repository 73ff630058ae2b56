/* text/grammar/schema_string.c - strings: length, patterns, formats, exceptions. */
#include <stdio.h>
#include <string.h>
#include "text/grammar/regex.h"
#include "text/grammar/schema_state.h"

struct wanted {
    struct schema_state *s;
    uint32_t min, max;
    uint32_t longest;  /* text's, in characters; GRAMMAR_UNBOUNDED: not known */
    grammar_node text; /* 0: any characters so far; canonical and regular */
};

static void narrow(struct wanted *w, grammar_node node)
{
    w->text = w->text ? grammar_both(w->s->b, w->text, node) : node;
}

static grammar_node any_plain(struct schema_state *s, uint32_t min, uint32_t max)
{
    return grammar_repeat(s->b, json_form_plain_char(&s->forms), min, max);
}

static void except(struct wanted *w, grammar_node node)
{
    if (!w->text) w->text = any_plain(w->s, 0, GRAMMAR_UNBOUNDED);
    w->text = grammar_except(w->s->b, w->text, node);
}

static grammar_node pattern_of(struct schema_state *s, const json_t *schema, const char *keyword, const json_t *pattern)
{
    char path[300], where[400];

    if (!json_is_string(pattern)) return schema_fail(s, schema, keyword, RD_E_INVALID, "wanted a regular expression");
    schema_path(s, schema, path, sizeof(path));
    snprintf(where, sizeof(where), "%s/%s: ", path, keyword);
    return regex_node(s->b, json_string_value(pattern), json_string_length(pattern), REGEX_SEARCHED | REGEX_JSON,
                      where);
}

static void take_format(struct wanted *w, const json_t *schema, const json_t *format)
{
    const char *name = json_string_value(format);
    unsigned types = schema_own_types(w->s, schema);
    struct buf regex = {0};

    if (!name) {
        schema_fail(w->s, schema, "format", RD_E_INVALID, "wanted a string");
        return;
    }
    switch (schema_format(name, w->max, &regex, &w->longest)) {
    case FORMAT_REGEX:
        if (regex.failed)
            grammar_fail(w->s->b, RD_E_NOMEM, "out of memory");
        else
            narrow(w, regex_node(w->s->b, regex.data, regex.n, REGEX_WHOLE | REGEX_JSON, "format: "));
        break;
    case FORMAT_UNKNOWN:
        if (types & TYPE_STRING)
            schema_fail(w->s, schema, "format", RD_E_UNSUPPORTED, "a format that radish does not know: %.60s", name);
        break;
    case FORMAT_NOTE:
        break;
    }
    buf_deinit(&regex);
}

static void take_schema(struct wanted *w, const json_t *schema)
{
    struct schema_state *s = w->s;
    const json_t *v, *values = json_object_get(schema, SCHEMA_EXCEPT);
    struct node_list others = {0};

    if ((v = json_object_get(schema, "pattern"))) narrow(w, pattern_of(s, schema, "pattern", v));
    if ((v = json_object_get(schema, "format"))) take_format(w, schema, v);
    if ((v = json_object_get(schema, SCHEMA_NO_MATCH)))
        except(w, pattern_of(s, schema, "not/pattern", json_array_get(v, 0)));
    for (size_t i = 0; i < json_array_size(values); i++) {
        v = json_array_get(values, i);
        if (json_is_string(v))
            node_list_add(s->b, &others,
                          json_form_canonical_text(&s->forms, json_string_value(v), json_string_length(v)));
    }
    if (others.n) except(w, node_list_alt(s->b, &others));
}

static void take_lengths(struct wanted *w, const json_t *schema)
{
    uint32_t n;

    if (schema_count(w->s, schema, "minLength", &n) && n > w->min) w->min = n;
    if (schema_count(w->s, schema, "maxLength", &n) && n < w->max) w->max = n;
}

/* The inside of the leaf's strings; canonical: also where nothing needs it. */
static grammar_node inside(struct schema_state *s, const struct conj *leaf, bool canonical)
{
    struct wanted w = {.s = s, .max = GRAMMAR_UNBOUNDED, .longest = GRAMMAR_UNBOUNDED};

    for (size_t i = 0; i < leaf->n; i++) /* before formats, which are written to fit */
        if (schema_keywords(&leaf->v[i])) take_lengths(&w, schema_keywords(&leaf->v[i]));
    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]);

        if (schema) take_schema(&w, schema);
    }
    if (w.min > w.max) return grammar_nothing(s->b);
    if (!w.text)
        return canonical ? any_plain(s, w.min, w.max)
                         : grammar_repeat(s->b, json_form_free_char(&s->forms), w.min, w.max);
    if (w.longest <= w.max) w.max = GRAMMAR_UNBOUNDED;
    if (w.min > 0 || w.max != GRAMMAR_UNBOUNDED) narrow(&w, any_plain(s, w.min, w.max));
    return w.text;
}

grammar_node schema_string(struct schema_state *s, const struct conj *leaf)
{
    static const char *const words[] = {"minLength", "maxLength", "pattern", "format", SCHEMA_NO_MATCH, SCHEMA_EXCEPT};
    bool limited = false;

    for (size_t i = 0; i < leaf->n; i++)
        for (size_t k = 0; k < sizeof(words) / sizeof(*words); k++)
            limited |= json_object_get(schema_keywords(&leaf->v[i]), words[k]) != NULL;
    return limited ? json_form_quotes(&s->forms, inside(s, leaf, false)) : json_form_string(&s->forms);
}

struct names {
    struct schema_state *s;
    struct node_list nodes;
};

static bool add_names(void *arg, const struct conj *leaf)
{
    struct names *n = arg;
    struct schema_state *s = n->s;
    json_t *listed = schema_listed(s, leaf);

    for (size_t i = 0; i < json_array_size(listed); i++) {
        const json_t *v = json_array_get(listed, i);

        if (json_is_string(v))
            node_list_add(s->b, &n->nodes,
                          json_form_canonical_text(&s->forms, json_string_value(v), json_string_length(v)));
    }
    if (!listed && (schema_types(s, leaf) & TYPE_STRING)) node_list_add(s->b, &n->nodes, inside(s, leaf, true));
    json_decref(listed);
    return !s->failed;
}

grammar_node schema_names(struct schema_state *s, const struct conj *c)
{
    struct names n = {.s = s};

    schema_expand(s, c, add_names, &n);
    return node_list_alt(s->b, &n.nodes);
}
