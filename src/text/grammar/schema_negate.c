/* text/grammar/schema_negate.c - schemas rewritten: what must not hold as what must, conditions as alternatives.
 *
 * A schema is a conjunction of its keywords, so it does not hold just when one of them does not:
 *
 *     not {"minLength": 3, "required": ["a"]}   is one of   {"type": "string", "maxLength": 2}
 *                                                           {"type": "object", "properties": {"a": false}}
 *
 * Rewritten schemas are values of jansson like all others, kept until the grammar is made, and made once per schema.
 */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "text/grammar/schema_state.h"

struct rewriting {
    struct schema_state *s;
    const json_t *source;
    json_t *out;
    bool unknown;
};

/* The array kept for a schema and letter; *is_new: to be filled. NULL: no memory. */
static json_t *kept(struct schema_state *s, const json_t *schema, char letter, bool *is_new)
{
    char key[sizeof(schema) + 1];
    uint32_t id;

    memcpy(key, &schema, sizeof(schema));
    key[sizeof(schema)] = letter;
    if (string_table_add(&s->rewrites, key, sizeof(key), &id, is_new) != RD_OK ||
        (*is_new && json_array_append_new(s->rewritten, json_array()) != 0)) {
        schema_no_memory(s);
        return NULL;
    }
    return json_array_get(s->rewritten, id);
}

static json_t *alias(struct rewriting *r, json_t *v)
{
    if (!v)
        schema_no_memory(r->s);
    else if (json_is_object(v))
        schema_alias(r->s, v, r->source);
    return v;
}

static void add(struct rewriting *r, json_t *v)
{
    alias(r, v);
    if (v && json_array_append_new(r->out, v) != 0) schema_no_memory(r->s);
}

static json_t *opposite(struct rewriting *r, const json_t *schema)
{
    if (json_is_boolean(schema)) return json_boolean(json_is_false(schema));
    return alias(r, json_pack("{s:O}", "not", (json_t *)schema));
}

static void unknown(struct rewriting *r, const char *keyword)
{
    r->unknown = true;
    schema_fail(r->s, r->source, keyword, RD_E_UNSUPPORTED,
                "what does not match this cannot be told (it is below not, if, or a oneOf whose ways overlap)");
}

/* {"type": type, keyword: value}; value is taken. */
static void add_typed(struct rewriting *r, const char *type, const char *keyword, json_t *value)
{
    add(r, json_pack("{s:s, s:o}", "type", type, keyword, value));
}

/* --- one keyword that does not hold --------------------------------------------------------------------------------- */

static void not_type(struct rewriting *r)
{
    static const char *const names[] = {"null", "boolean", "string", "integer", SCHEMA_FRACTION, "array", "object"};
    static const unsigned bits[] = {TYPE_NULL,     TYPE_BOOLEAN, TYPE_STRING, TYPE_INTEGER,
                                    TYPE_FRACTION, TYPE_ARRAY,   TYPE_OBJECT};
    unsigned types = schema_own_types(r->s, r->source);
    json_t *others = json_array();

    for (size_t i = 0; i < sizeof(bits) / sizeof(*bits); i++)
        if (!(types & bits[i])) json_array_append_new(others, json_string(names[i]));
    if (json_array_size(others))
        add(r, json_pack("{s:o}", "type", others));
    else
        json_decref(others);
}

static void not_bound(struct rewriting *r, const char *keyword, const json_t *v, const char *opposite_word)
{
    if (!json_is_number(v))
        unknown(r, keyword);
    else
        add_typed(r, "number", opposite_word, json_incref((json_t *)v));
}

/* minLength 3: at most 2. maxLength 3: at least 4. */
static void not_count(struct rewriting *r, const char *keyword, const char *type, bool is_min,
                      const char *opposite_word)
{
    uint32_t count;

    if (!schema_count(r->s, r->source, keyword, &count)) return;
    if (is_min && count == 0) return;
    add_typed(r, type, opposite_word, json_integer(is_min ? (json_int_t)count - 1 : (json_int_t)count + 1));
}

static void not_required(struct rewriting *r, const json_t *names)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));

        if (name) add(r, json_pack("{s:s, s:{s:b}}", "type", "object", "properties", name, 0));
    }
}

static void not_properties(struct rewriting *r, const json_t *properties)
{
    for (void *i = json_object_iter((json_t *)properties); i; i = json_object_iter_next((json_t *)properties, i)) {
        const char *name = json_object_iter_key(i);

        add(r, json_pack("{s:s, s:[s], s:{s:o}}", "type", "object", "required", name, "properties", name,
                         opposite(r, json_object_iter_value(i))));
    }
}

static void not_prefix(struct rewriting *r, const json_t *prefix)
{
    for (size_t i = 0; i < json_array_size(prefix); i++) {
        json_t *items = json_array();

        for (size_t k = 0; k < i; k++) json_array_append_new(items, json_true());
        json_array_append_new(items, opposite(r, json_array_get(prefix, i)));
        add(r, json_pack("{s:s, s:i, s:o}", "type", "array", "minItems", (int)i + 1, "prefixItems", items));
    }
}

static void not_dependent(struct rewriting *r, const json_t *map)
{
    for (void *i = json_object_iter((json_t *)map); i; i = json_object_iter_next((json_t *)map, i)) {
        const char *name = json_object_iter_key(i), *other;
        const json_t *needs = json_object_iter_value(i);

        if (schema_is_one(needs)) {
            add(r, json_pack("{s:s, s:[s], s:o}", "type", "object", "required", name, "not",
                             json_incref((json_t *)needs)));
        }
        for (size_t k = 0; k < json_array_size(needs); k++) {
            other = json_string_value(json_array_get(needs, k));
            if (other)
                add(r, json_pack("{s:s, s:[s], s:{s:b}}", "type", "object", "required", name, "properties", other, 0));
        }
    }
}

/* None of the ways, or two of them. */
static void not_one(struct rewriting *r, const json_t *ways)
{
    size_t n = json_array_size(ways);
    json_t *none = json_array();

    for (size_t i = 0; i < n; i++) json_array_append_new(none, opposite(r, json_array_get(ways, i)));
    add(r, json_pack("{s:o}", "allOf", none));
    if (n > 12) unknown(r, "oneOf");
    for (size_t i = 0; i < n && n <= 12; i++)
        for (size_t k = 0; k < i; k++)
            add(r, json_pack("{s:[O,O]}", "allOf", json_array_get(ways, k), json_array_get(ways, i)));
}

static void not_any(struct rewriting *r, const json_t *ways)
{
    json_t *none = json_array();

    for (size_t i = 0; i < json_array_size(ways); i++)
        json_array_append_new(none, opposite(r, json_array_get(ways, i)));
    add(r, json_pack("{s:o}", "allOf", none));
}

static void not_numbers_and_strings(struct rewriting *r, const char *key, const json_t *v)
{
    static const char *const beyond[][2] = {{"minimum", "exclusiveMaximum"},
                                            {"maximum", "exclusiveMinimum"},
                                            {"exclusiveMinimum", "maximum"},
                                            {"exclusiveMaximum", "minimum"}};
    static const struct {
        const char *word, *type, *other;
        bool is_min;
    } counts[] = {{"minLength", "string", "maxLength", true},
                  {"maxLength", "string", "minLength", false},
                  {"minItems", "array", "maxItems", true},
                  {"maxItems", "array", "minItems", false},
                  {"minProperties", "object", "maxProperties", true},
                  {"maxProperties", "object", "minProperties", false}};

    for (size_t i = 0; i < sizeof(beyond) / sizeof(*beyond); i++)
        if (strcmp(key, beyond[i][0]) == 0) not_bound(r, key, v, beyond[i][1]);
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        if (strcmp(key, counts[i].word) == 0) not_count(r, key, counts[i].type, counts[i].is_min, counts[i].other);
    if (strcmp(key, "pattern") == 0) add_typed(r, "string", SCHEMA_NO_MATCH, json_pack("[O]", (json_t *)v));
    if (strcmp(key, SCHEMA_NO_MATCH) == 0) add_typed(r, "string", "pattern", json_incref(json_array_get(v, 0)));
    if (strcmp(key, SCHEMA_EXCEPT) == 0) add(r, json_pack("{s:O}", "enum", (json_t *)v));
}

static void not_items(struct rewriting *r, const char *key, const json_t *v)
{
    bool is_prefix = json_is_array(v), after_prefix = json_object_get(r->source, "prefixItems");

    if (is_prefix)
        not_prefix(r, v);
    else if (json_is_true(v))
        return;
    else if (after_prefix)
        unknown(r, key);
    else
        add_typed(r, "array", "contains", opposite(r, v));
}

static void not_keyword(struct rewriting *r, const char *key, const json_t *v)
{
    static const char *const no_way[] = {"multipleOf",        "format",        "uniqueItems",
                                         "patternProperties", "propertyNames", "unevaluatedProperties",
                                         "unevaluatedItems",  "minContains",   "maxContains"};
    const json_t *needs = r->source;

    not_numbers_and_strings(r, key, v);
    for (size_t i = 0; i < sizeof(no_way) / sizeof(*no_way); i++)
        if (strcmp(key, no_way[i]) == 0 && !(json_is_false(v) && strcmp(key, "uniqueItems") == 0)) unknown(r, key);
    if (strcmp(key, "type") == 0)
        not_type(r);
    else if (strcmp(key, "enum") == 0)
        add(r, json_pack("{s:O}", SCHEMA_EXCEPT, (json_t *)v));
    else if (strcmp(key, "const") == 0)
        add(r, json_pack("{s:[O]}", SCHEMA_EXCEPT, (json_t *)v));
    else if (strcmp(key, "required") == 0)
        not_required(r, v);
    else if (strcmp(key, "properties") == 0)
        not_properties(r, v);
    else if (strcmp(key, "prefixItems") == 0)
        not_prefix(r, v);
    else if (strcmp(key, "items") == 0)
        not_items(r, key, v);
    else if (strcmp(key, "contains") == 0)
        add_typed(r, "array", "items", opposite(r, v));
    else if (strcmp(key, "dependentRequired") == 0 || strcmp(key, "dependentSchemas") == 0 ||
             strcmp(key, "dependencies") == 0)
        not_dependent(r, v);
    else if (strcmp(key, "anyOf") == 0)
        not_any(r, v);
    else if (strcmp(key, "oneOf") == 0)
        not_one(r, v);
    else if (strcmp(key, "not") == 0)
        add(r, json_pack("{s:[O]}", "allOf", (json_t *)v));
    else if (strcmp(key, "$ref") == 0) {
        const json_t *target = json_is_string(v) ? schema_resolve(r->s, needs, json_string_value(v)) : NULL;

        if (target)
            add(r, opposite(r, target));
        else
            r->unknown = true;
    } else if (strcmp(key, "additionalProperties") == 0 || strcmp(key, "additionalItems") == 0) {
        if (!json_is_true(v)) unknown(r, key);
    }
}

/* if and then and else: if without then, or neither if nor else. */
static void not_condition(struct rewriting *r)
{
    json_t *test = json_object_get(r->source, "if"), *yes = json_object_get(r->source, "then");
    json_t *no = json_object_get(r->source, "else");

    if (test && yes) add(r, json_pack("{s:[O,o]}", "allOf", test, opposite(r, yes)));
    if (test && no) add(r, json_pack("{s:[o,o]}", "allOf", opposite(r, test), opposite(r, no)));
}

static bool is_unknown(const json_t *out)
{
    return json_array_size(out) && json_is_null(json_array_get(out, json_array_size(out) - 1));
}

const json_t *schema_negations(struct schema_state *s, const json_t *schema)
{
    struct rewriting r = {.s = s, .source = schema};
    const json_t *all;
    bool is_new = false;

    r.out = kept(s, schema, 'n', &is_new);
    if (!r.out) return NULL;
    if (!is_new && !is_unknown(r.out)) return r.out;
    if (!is_new && s->probing) return NULL;
    if (!is_new) json_array_clear(r.out); /* found unknown while probing: say so now */
    if (s->draft7 && json_object_get(schema, "$ref")) {
        not_keyword(&r, "$ref", json_object_get(schema, "$ref"));
    } else {
        for (void *i = json_object_iter((json_t *)schema); i; i = json_object_iter_next((json_t *)schema, i))
            not_keyword(&r, json_object_iter_key(i), json_object_iter_value(i));
        all = json_object_get(schema, "allOf");
        for (size_t i = 0; i < json_array_size(all); i++) add(&r, opposite(&r, json_array_get(all, i)));
        not_condition(&r);
    }
    if (r.unknown) json_array_append_new(r.out, json_null()); /* its mark, for the next time */
    return r.unknown || s->failed ? NULL : r.out;
}

/* --- conditions ----------------------------------------------------------------------------------------------------- */

static void depends(struct rewriting *r, const char *name, const json_t *needs)
{
    json_t *then = NULL, *names;

    if (schema_is_one(needs)) {
        then = json_pack("{s:[s], s:[O]}", "required", name, "allOf", (json_t *)needs);
    } else if (json_is_array(needs)) {
        names = json_copy((json_t *)needs);
        if (names) json_array_append_new(names, json_string(name));
        then = json_pack("{s:o}", "required", names);
    } else {
        return; /* schema_conditions has said so */
    }
    add(r, json_pack("{s:[o,o]}", "anyOf", alias(r, json_pack("{s:{s:b}}", "properties", name, 0)), alias(r, then)));
}

const json_t *schema_conditions(struct schema_state *s, const json_t *schema)
{
    static const char *const words[] = {"dependentSchemas", "dependentRequired", "dependencies"};
    json_t *test = json_object_get(schema, "if"), *yes = json_object_get(schema, "then"),
           *no = json_object_get(schema, "else");
    struct rewriting r = {.s = s, .source = schema};
    bool is_new = false;

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        json_t *map = json_object_get(schema, words[i]);

        for (void *k = json_object_iter(map); k; k = json_object_iter_next(map, k))
            if (!schema_is_one(json_object_iter_value(k)) && !json_is_array(json_object_iter_value(k)))
                schema_fail(s, schema, words[i], RD_E_INVALID, "wanted schemas or lists of names");
    }
    r.out = kept(s, schema, 'c', &is_new);
    if (!r.out || !is_new) return r.out;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        json_t *map = json_object_get(schema, words[i]);

        for (void *k = json_object_iter(map); k; k = json_object_iter_next(map, k))
            depends(&r, json_object_iter_key(k), json_object_iter_value(k));
    }
    if (test && (yes || no)) {
        json_t *met = yes ? json_pack("{s:[O,O]}", "allOf", test, yes) : json_pack("{s:[O]}", "allOf", test);
        json_t *unmet = no ? json_pack("{s:[o,O]}", "allOf", opposite(&r, test), no) : opposite(&r, test);

        add(&r, json_pack("{s:[o,o]}", "anyOf", alias(&r, met), alias(&r, unmet)));
    }
    return s->failed ? NULL : r.out;
}
