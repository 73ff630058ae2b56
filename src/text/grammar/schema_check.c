/* text/grammar/schema_check.c - whether a given value satisfies a schema: for the values of enum and const.
 *
 * A plain interpreter of the keywords. format is an annotation here, as the standard has it. Its steps are counted and its
 * depth is bounded (a $ref can lead back to itself).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/utf8.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_state.h"

#define MAX_CHECK_DEPTH 128u

bool schema_equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
        return json_number_value(a) == json_number_value(b);
    }
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!schema_equal(json_array_get(a, i), json_array_get(b, i))) return false;
        return true;
    }
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b)) return false;
        for (void *i = json_object_iter((json_t *)a); i; i = json_object_iter_next((json_t *)a, i)) {
            const json_t *other = json_object_get(b, json_object_iter_key(i));

            if (!other || !schema_equal(json_object_iter_value(i), other)) return false;
        }
        return true;
    }
    return json_equal(a, b);
}

bool schema_pattern_matches(struct schema_state *s, const json_t *schema, const char *pattern, size_t n_pattern,
                            const char *text, size_t n)
{
    char path[300], where[320];
    grammar_node both;

    schema_path(s, schema, path, sizeof(path));
    snprintf(where, sizeof(where), "%s: ", path);
    both = grammar_both(s->b, json_form_canonical_text(&s->forms, text, n),
                        regex_node(s->b, pattern, n_pattern, REGEX_SEARCHED | REGEX_JSON, where));
    return both && grammar_is_nothing(s->b, both) == 0;
}

static bool accepts(struct schema_state *s, const json_t *schema, const json_t *v, uint32_t depth);

static unsigned type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return floor(json_real_value(v)) == json_real_value(v) ? TYPE_INTEGER : TYPE_FRACTION;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_OBJECT;
    }
}

static bool listed_in(const json_t *values, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *other = json_array_get(values, i);

        if (other == v || (json_typeof(other) == json_typeof(v) || json_is_number(v) ? schema_equal(other, v) : false))
            return true;
    }
    return false;
}

static bool count_fits(struct schema_state *s, const json_t *schema, const char *min, const char *max, size_t n)
{
    uint32_t bound;

    if (schema_count(s, schema, min, &bound) && n < bound) return false;
    return !schema_count(s, schema, max, &bound) || n <= bound;
}

static bool number_fits(const json_t *schema, const json_t *v)
{
    const json_t *bound = json_object_get(schema, "minimum");
    double x = json_number_value(v), q;

    if (bound && x < json_number_value(bound)) return false;
    if (bound && json_is_true(json_object_get(schema, "exclusiveMinimum")) && x == json_number_value(bound))
        return false;
    if ((bound = json_object_get(schema, "maximum")) && x > json_number_value(bound)) return false;
    if (bound && json_is_true(json_object_get(schema, "exclusiveMaximum")) && x == json_number_value(bound))
        return false;
    bound = json_object_get(schema, "exclusiveMinimum");
    if (json_is_number(bound) && x <= json_number_value(bound)) return false;
    bound = json_object_get(schema, "exclusiveMaximum");
    if (json_is_number(bound) && x >= json_number_value(bound)) return false;
    bound = json_object_get(schema, "multipleOf");
    if (!json_is_number(bound)) return true;
    if (json_is_integer(bound) && json_is_integer(v)) return json_integer_value(v) % json_integer_value(bound) == 0;
    q = x / json_number_value(bound);
    return fabs(q - round(q)) < 1e-9;
}

static bool string_fits(struct schema_state *s, const json_t *schema, const json_t *v)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *others = json_object_get(schema, SCHEMA_NO_MATCH);
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);

    if (!count_fits(s, schema, "minLength", "maxLength", utf8_length(text, n))) return false;
    if (json_is_string(pattern) &&
        !schema_pattern_matches(s, schema, json_string_value(pattern), json_string_length(pattern), text, n))
        return false;
    pattern = json_array_get(others, 0);
    return !pattern ||
           !schema_pattern_matches(s, schema, json_string_value(pattern), json_string_length(pattern), text, n);
}

static bool array_fits(struct schema_state *s, const json_t *schema, const json_t *v, uint32_t depth)
{
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems"), *part;
    size_t n = json_array_size(v), found = 0;
    uint32_t bound;

    if (json_is_array(items)) {
        prefix = items;
        items = json_object_get(schema, "additionalItems");
    }
    if (!count_fits(s, schema, "minItems", "maxItems", n)) return false;
    for (size_t i = 0; i < n; i++) {
        part = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (part && !accepts(s, part, json_array_get(v, i), depth)) return false;
        for (size_t k = 0; json_is_true(json_object_get(schema, "uniqueItems")) && k < i; k++)
            if (schema_equal(json_array_get(v, k), json_array_get(v, i))) return false;
    }
    if (!(part = json_object_get(schema, "contains"))) return true;
    for (size_t i = 0; i < n; i++) found += accepts(s, part, json_array_get(v, i), depth);
    if (schema_count(s, schema, "maxContains", &bound) && found > bound) return false;
    return found >= (schema_count(s, schema, "minContains", &bound) ? bound : 1);
}

static bool needs_fit(struct schema_state *s, const json_t *map, const json_t *v, uint32_t depth)
{
    for (void *i = json_object_iter((json_t *)map); i; i = json_object_iter_next((json_t *)map, i)) {
        const json_t *needs = json_object_iter_value(i);

        if (!json_object_get(v, json_object_iter_key(i))) continue;
        if (schema_is_one(needs) && !accepts(s, needs, v, depth)) return false;
        for (size_t k = 0; k < json_array_size(needs); k++)
            if (!json_object_get(v, json_string_value(json_array_get(needs, k)))) return false;
    }
    return true;
}

static bool member_fits(struct schema_state *s, const json_t *schema, const char *name, size_t n, const json_t *v,
                        uint32_t depth)
{
    const json_t *own = json_object_get(json_object_get(schema, "properties"), name);
    const json_t *patterns = json_object_get(schema, "patternProperties"), *rest, *names;
    bool met = own;

    if (own && !accepts(s, own, v, depth)) return false;
    for (void *i = json_object_iter((json_t *)patterns); i; i = json_object_iter_next((json_t *)patterns, i)) {
        const char *pattern = json_object_iter_key(i);

        if (!schema_pattern_matches(s, schema, pattern, strlen(pattern), name, n)) continue;
        met = true;
        if (!accepts(s, json_object_iter_value(i), v, depth)) return false;
    }
    rest = json_object_get(schema, "additionalProperties");
    if (!met && rest && !accepts(s, rest, v, depth)) return false;
    if ((names = json_object_get(schema, "propertyNames"))) {
        json_t *text = json_stringn(name, n);
        bool fits = text && accepts(s, names, text, depth);

        json_decref(text);
        return fits;
    }
    return true;
}

static bool object_fits(struct schema_state *s, const json_t *schema, const json_t *v, uint32_t depth, bool with_needs)
{
    const json_t *required = json_object_get(schema, "required");

    if (!count_fits(s, schema, "minProperties", "maxProperties", json_object_size(v))) return false;
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));

        if (name && !json_object_get(v, name)) return false;
    }
    for (void *i = json_object_iter((json_t *)v); i; i = json_object_iter_next((json_t *)v, i)) {
        if (!member_fits(s, schema, json_object_iter_key(i), json_object_iter_key_len(i), json_object_iter_value(i),
                         depth))
            return false;
    }
    if (!with_needs) return true;
    return needs_fit(s, json_object_get(schema, "dependentRequired"), v, depth) &&
           needs_fit(s, json_object_get(schema, "dependentSchemas"), v, depth) &&
           needs_fit(s, json_object_get(schema, "dependencies"), v, depth);
}

static size_t n_accepting(struct schema_state *s, const json_t *ways, const json_t *v, uint32_t depth)
{
    size_t n = 0;

    for (size_t i = 0; i < json_array_size(ways); i++) n += accepts(s, json_array_get(ways, i), v, depth);
    return n;
}

static bool applicators_fit(struct schema_state *s, const json_t *schema, const json_t *v, uint32_t depth,
                            unsigned handled)
{
    const json_t *any = handled & HANDLED_ANY ? NULL : json_object_get(schema, "anyOf");
    const json_t *one = handled & HANDLED_ONE ? NULL : json_object_get(schema, "oneOf");
    const json_t *ways = json_object_get(schema, "allOf"), *test;

    if (any && n_accepting(s, any, v, depth) == 0) return false;
    if (one && n_accepting(s, one, v, depth) != 1) return false;
    if (handled & HANDLED_REST) return true;
    if (ways && n_accepting(s, ways, v, depth) != json_array_size(ways)) return false;
    if ((test = json_object_get(schema, "not")) && accepts(s, test, v, depth)) return false;
    if ((test = json_object_get(schema, "if"))) {
        test = json_object_get(schema, accepts(s, test, v, depth) ? "then" : "else");
        return !test || accepts(s, test, v, depth);
    }
    return true;
}

/* handled: what a branch has taken from this schema, and has as items of its own. */
static bool fits(struct schema_state *s, const json_t *schema, const json_t *v, uint32_t depth, unsigned handled)
{
    const json_t *part;

    if (!json_is_object(schema)) return !json_is_false(schema);
    if (depth > MAX_CHECK_DEPTH || ++s->n_checks > SCHEMA_MAX_CHECKS) {
        schema_fail(s, schema, NULL, RD_E_INVALID, "a listed value takes too long to check against this");
        return s->probing;
    }
    if ((part = json_object_get(schema, "$ref")) && json_is_string(part)) {
        const json_t *target = handled & HANDLED_REF ? NULL : schema_resolve(s, schema, json_string_value(part));

        if (target && !accepts(s, target, v, depth + 1)) return false;
        if (s->draft7) return true;
    }
    if (!(schema_own_types(s, schema) & type_of(v))) return false;
    if ((part = json_object_get(schema, "enum")) && part != s->known_list && !listed_in(part, v)) return false;
    if ((part = json_object_get(schema, "const")) && !schema_equal(part, v)) return false;
    if ((part = json_object_get(schema, SCHEMA_EXCEPT)) && listed_in(part, v)) return false;
    if (json_is_number(v) && !number_fits(schema, v)) return false;
    if (json_is_string(v) && !string_fits(s, schema, v)) return false;
    if (json_is_array(v) && !array_fits(s, schema, v, depth + 1)) return false;
    if (json_is_object(v) && !object_fits(s, schema, v, depth + 1, !(handled & HANDLED_REST))) return false;
    return applicators_fit(s, schema, v, depth + 1, handled);
}

static bool accepts(struct schema_state *s, const json_t *schema, const json_t *v, uint32_t depth)
{
    return fits(s, schema, v, depth, 0);
}

bool schema_accepts(struct schema_state *s, const json_t *schema, const json_t *value)
{
    return accepts(s, schema, value, 0);
}

static bool leaf_accepts(struct schema_state *s, const struct conj *leaf, const json_t *v)
{
    for (size_t i = 0; i < leaf->n && !s->failed; i++) {
        const struct item *item = &leaf->v[i];

        if (fits(s, item->schema, v, 0, item->negated ? 0 : item->handled) == item->negated) return false;
    }
    return true;
}

json_t *schema_listed(struct schema_state *s, const struct conj *leaf)
{
    const json_t *values = NULL, *one = NULL;
    json_t *out;

    for (size_t i = 0; i < leaf->n && !one; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]), *list = json_object_get(schema, "enum");

        one = json_object_get(schema, "const");
        if (list && !json_is_array(list)) {
            schema_fail(s, schema, "enum", RD_E_INVALID, "wanted a list of values");
            return NULL;
        }
        if (list && (!values || json_array_size(list) < json_array_size(values))) values = list;
    }
    if (!one && !values) return NULL;
    out = json_array();
    if (!out) schema_no_memory(s);
    s->known_list = one ? NULL : values; /* a value need not be looked for where it is from */
    if (one && leaf_accepts(s, leaf, one)) json_array_append(out, (json_t *)one);
    for (size_t i = 0; !one && i < json_array_size(values) && !s->failed; i++) {
        json_t *v = json_array_get(values, i);

        if (leaf_accepts(s, leaf, v) && json_array_append(out, v) != 0) schema_no_memory(s);
    }
    s->known_list = NULL;
    return out;
}
