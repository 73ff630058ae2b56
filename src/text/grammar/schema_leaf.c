/* text/grammar/schema_leaf.c - a conjunction without applicators as alternatives: the values it lists, or its types. */
#include <stdio.h>
#include <string.h>
#include "text/grammar/schema_state.h"

/* Whether an item of the leaf excludes this very value (rewritten enum and const). */
static bool is_excluded(const struct conj *leaf, const json_t *v)
{
    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *values = json_object_get(schema_keywords(&leaf->v[i]), SCHEMA_EXCEPT);

        for (size_t k = 0; k < json_array_size(values); k++)
            if (schema_equal(json_array_get(values, k), v)) return true;
    }
    return false;
}

/* Excluded arrays and objects cannot be told from the others of their type. */
static void refuse_excluded(struct schema_state *s, const struct conj *leaf, unsigned types)
{
    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]), *values = json_object_get(schema, SCHEMA_EXCEPT);

        for (size_t k = 0; k < json_array_size(values); k++) {
            const json_t *v = json_array_get(values, k);

            if ((json_is_array(v) && (types & TYPE_ARRAY)) || (json_is_object(v) && (types & TYPE_OBJECT)))
                schema_fail(s, schema, NULL, RD_E_UNSUPPORTED,
                            "all values except an array or object (below not or oneOf)");
        }
    }
}

static bool has_limits(const struct conj *leaf)
{
    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]);

        for (void *k = json_object_iter((json_t *)schema); k; k = json_object_iter_next((json_t *)schema, k)) {
            const char *key = json_object_iter_key(k);

            if (strcmp(key, "title") != 0 && strcmp(key, "description") != 0 && strcmp(key, "default") != 0 &&
                strcmp(key, "$defs") != 0 && strcmp(key, "definitions") != 0 && strcmp(key, "$ref") != 0 &&
                strcmp(key, "anyOf") != 0 && strcmp(key, "allOf") != 0 && strcmp(key, "oneOf") != 0 &&
                strcmp(key, "$schema") != 0 && strcmp(key, "$id") != 0 && strcmp(key, "not") != 0)
                return true;
        }
    }
    return false;
}

static grammar_node word_unless(struct schema_state *s, const struct conj *leaf, const char *word, json_t *v)
{
    return is_excluded(leaf, v) ? grammar_nothing(s->b) : grammar_word(s->b, word);
}

grammar_node schema_leaf(struct schema_state *s, const struct conj *leaf)
{
    struct node_list options = {0};
    unsigned types = schema_types(s, leaf);
    json_t *listed;

    if (!has_limits(leaf)) return json_form_value(&s->forms);
    listed = schema_listed(s, leaf);
    if (listed || s->failed) {
        for (size_t i = 0; i < json_array_size(listed); i++)
            node_list_add(s->b, &options, json_form_of(&s->forms, json_array_get(listed, i)));
        json_decref(listed);
        return node_list_alt(s->b, &options);
    }
    refuse_excluded(s, leaf, types);
    if (types & TYPE_OBJECT) node_list_add(s->b, &options, schema_object(s, leaf));
    if (types & TYPE_ARRAY) node_list_add(s->b, &options, schema_array(s, leaf));
    if (types & TYPE_STRING) node_list_add(s->b, &options, schema_string(s, leaf));
    if (types & TYPE_NUMBER) node_list_add(s->b, &options, schema_number(s, leaf, types));
    if (types & TYPE_BOOLEAN) {
        node_list_add(s->b, &options, word_unless(s, leaf, "true", json_true()));
        node_list_add(s->b, &options, word_unless(s, leaf, "false", json_false()));
    }
    if (types & TYPE_NULL) node_list_add(s->b, &options, word_unless(s, leaf, "null", json_null()));
    return node_list_alt(s->b, &options);
}
