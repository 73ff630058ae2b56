/* text/grammar/schema_array.c - arrays: elements by index, counts, contains, unique elements of a few values.
 *
 *     [ e0 , e1 , .. , rest , rest .. ]      e0, e1 ..: as long as some schema names that index; then all are alike
 */
#include <stdio.h>
#include <string.h>
#include "text/grammar/schema_state.h"

#define MAX_UNIQUE  8u  /* values of which a unique array is made */
#define MAX_COUNTED 64u /* elements that are counted one by one, with contains and bounds */
#define MAX_PREFIX  1000u

struct array_form {
    struct schema_state *s;
    const struct conj *leaf;
    uint32_t min, max, n_prefix;
    const json_t *contains, *contains_schema;
    uint32_t min_found, max_found;
    bool unique;
    const json_t *unique_schema;
};

/* unevaluatedItems stands for items where no applicator beside it evaluates any. */
static const json_t *rest_of(struct schema_state *s, const json_t *schema)
{
    static const char *const beside[] = {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "contains"};
    const json_t *items = json_object_get(schema, "items"), *others = json_object_get(schema, "unevaluatedItems");

    if (json_is_array(items)) items = json_object_get(schema, "additionalItems");
    if (items || !others || json_is_true(others)) return items;
    for (size_t i = 0; i < sizeof(beside) / sizeof(*beside); i++) {
        if (json_object_get(schema, beside[i]))
            schema_fail(s, schema, "unevaluatedItems", RD_E_UNSUPPORTED, "beside %s", beside[i]);
    }
    return others;
}

static const json_t *prefix_of(const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");

    return json_is_array(items) ? items : json_object_get(schema, "prefixItems");
}

bool schema_element(struct schema_state *s, const struct conj *leaf, size_t index, struct conj *c)
{
    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]), *prefix = prefix_of(schema), *part;

        if (!schema) continue;
        part = index < json_array_size(prefix) ? json_array_get(prefix, index) : rest_of(s, schema);
        if (!part) continue;
        if (schema_is_one(part))
            conj_add(s, c, part, false);
        else
            schema_fail(s, schema, "items", RD_E_INVALID, "wanted a schema");
    }
    return !c->dead;
}

/* The rule of an element; also: a schema that it satisfies beside its own (or must not, negated); may be NULL. */
static grammar_node element(struct array_form *f, size_t index, const json_t *also, bool negated)
{
    struct conj c = {0};

    schema_element(f->s, f->leaf, index, &c);
    if (also) conj_add(f->s, &c, also, negated);
    return schema_rule(f->s, &c);
}

static void take_schema(struct array_form *f, const json_t *schema)
{
    const json_t *contains = json_object_get(schema, "contains");
    size_t n_prefix = json_array_size(prefix_of(schema));
    uint32_t n;

    if (schema_count(f->s, schema, "minItems", &n) && n > f->min) f->min = n;
    if (schema_count(f->s, schema, "maxItems", &n) && n < f->max) f->max = n;
    if (n_prefix > f->n_prefix) f->n_prefix = (uint32_t)n_prefix;
    if (json_is_true(json_object_get(schema, "uniqueItems"))) {
        f->unique = true;
        f->unique_schema = schema;
    }
    if (n_prefix > MAX_PREFIX) schema_fail(f->s, schema, "prefixItems", RD_E_INVALID, "more than %u", MAX_PREFIX);
    if (!contains || f->s->failed) return;
    if (f->contains) {
        schema_fail(f->s, schema, "contains", RD_E_UNSUPPORTED, "two of them for one array");
        return;
    }
    f->contains = contains;
    f->contains_schema = schema;
    f->min_found = schema_count(f->s, schema, "minContains", &n) ? n : 1;
    f->max_found = schema_count(f->s, schema, "maxContains", &n) ? n : GRAMMAR_UNBOUNDED;
}

static grammar_node after_comma(struct array_form *f, grammar_node node)
{
    return grammar_pair(f->s->b, json_form_comma(&f->s->forms), node);
}

/* Elements alone, from the end to the begin: each is optional together with all that follow. */
static grammar_node plain(struct array_form *f)
{
    struct grammar_builder *b = f->s->b;
    uint32_t n = f->n_prefix < f->max ? f->n_prefix : f->max;
    grammar_node tail = grammar_empty(b), rest;

    if (f->max > n) {
        uint32_t min = f->min > n ? f->min - n : 0, max = f->max == GRAMMAR_UNBOUNDED ? f->max : f->max - n;

        rest = element(f, n, NULL, false);
        if (n == 0) { /* the first has no comma */
            tail = grammar_pair(
                b, rest,
                grammar_repeat(b, after_comma(f, rest), min ? min - 1 : 0, max == GRAMMAR_UNBOUNDED ? max : max - 1));
            return min ? tail : grammar_maybe(b, tail);
        }
        tail = grammar_repeat(b, after_comma(f, rest), min, max);
    }
    for (uint32_t i = n; i-- > 0;) {
        grammar_node one = element(f, i, NULL, false);

        tail = grammar_pair(b, i ? after_comma(f, one) : one, tail);
        if (i >= f->min) tail = grammar_maybe(b, tail);
    }
    return tail;
}

/* contains without any count of elements: those that match, in their number, and others between them. */
static grammar_node containing(struct array_form *f)
{
    struct grammar_builder *b = f->s->b;
    bool exact = f->max_found != GRAMMAR_UNBOUNDED;
    grammar_node found = element(f, 0, f->contains, false);
    grammar_node other = exact ? element(f, 0, f->contains, true) : element(f, 0, NULL, false);
    grammar_node others = grammar_repeat(b, after_comma(f, other), 0, GRAMMAR_UNBOUNDED);
    grammar_node next = grammar_pair(b, others, after_comma(f, found));
    grammar_node first = grammar_either(b, found, grammar_three(b, other, others, after_comma(f, found)));
    uint32_t more = exact ? f->max_found - 1 : f->min_found - 1;

    return grammar_three(b, first, grammar_repeat(b, next, f->min_found ? f->min_found - 1 : 0, more), others);
}

/* contains with counts: a rule per number of elements and of those found so far. */
static grammar_node counted(struct array_form *f, uint32_t n_max)
{
    struct grammar_builder *b = f->s->b;
    bool exact = f->max_found != GRAMMAR_UNBOUNDED;
    uint32_t n_found = (exact ? f->max_found : f->min_found) + 1;
    grammar_node next[MAX_COUNTED + 2] = {0}, here[MAX_COUNTED + 2] = {0};

    if (n_found > MAX_COUNTED)
        return schema_fail(f->s, f->contains_schema, "minContains", RD_E_UNSUPPORTED,
                           "more than %u together with other counts", MAX_COUNTED);
    for (uint32_t i = n_max + 1; i-- > 0;) {
        grammar_node found = element(f, i, f->contains, false),
                     other = element(f, i, exact ? f->contains : NULL, exact);

        for (uint32_t k = 0; k < n_found && !f->s->failed; k++) {
            struct node_list ways = {0};
            uint32_t more = k + 1 < n_found ? k + 1 : exact ? n_found : k;

            if (i >= f->min && k >= f->min_found) node_list_add(b, &ways, grammar_empty(b));
            if (i < n_max) {
                if (more < n_found)
                    node_list_add(b, &ways, grammar_pair(b, i ? after_comma(f, found) : found, next[more]));
                node_list_add(b, &ways, grammar_pair(b, i ? after_comma(f, other) : other, next[k]));
            }
            here[k] = grammar_rule(b, "elements", 8);
            grammar_define(b, here[k], node_list_alt(b, &ways));
        }
        memcpy(next, here, sizeof(next));
    }
    return next[0];
}

static grammar_node with_contains(struct array_form *f)
{
    struct grammar_builder *b = f->s->b;
    bool counts = f->min > 0 || f->max != GRAMMAR_UNBOUNDED || f->n_prefix > 0;
    grammar_node others;

    if (f->min_found > f->max_found) return grammar_nothing(b);
    if (f->min_found == 0 && f->max_found == GRAMMAR_UNBOUNDED) return plain(f);
    if (f->min_found && f->min <= f->min_found && f->max == GRAMMAR_UNBOUNDED && f->n_prefix == 0) counts = false;
    if (counts) {
        if (f->max > MAX_COUNTED)
            return schema_fail(f->s, f->contains_schema, "contains", RD_E_UNSUPPORTED,
                               "together with items by index or minItems, without a maxItems of at most %u",
                               MAX_COUNTED);
        return counted(f, f->max);
    }
    if (f->max_found)
        others = containing(f);
    else
        others = grammar_nothing(b);
    if (f->min_found) return others;
    { /* none that matches, or up to max_found of them */
        grammar_node other = element(f, 0, f->contains, true);
        grammar_node none = grammar_pair(b, other, grammar_repeat(b, after_comma(f, other), 0, GRAMMAR_UNBOUNDED));

        return grammar_either(b, grammar_maybe(b, none), others);
    }
}

/* --- unique elements ---------------------------------------------------------------------------------------------- */

struct finite {
    struct schema_state *s;
    json_t *values;
    bool is_finite;
};

static bool add_values(void *arg, const struct conj *leaf)
{
    struct finite *f = arg;
    unsigned types = schema_types(f->s, leaf);
    json_t *listed = schema_listed(f->s, leaf);

    if (!listed && !(types & ~(unsigned)(TYPE_NULL | TYPE_BOOLEAN))) {
        listed = json_array();
        if (types & TYPE_NULL) json_array_append_new(listed, json_null());
        if (types & TYPE_BOOLEAN) {
            json_array_append_new(listed, json_false());
            json_array_append_new(listed, json_true());
        }
    }
    f->is_finite = listed;
    for (size_t i = 0; i < json_array_size(listed); i++) {
        json_t *v = json_array_get(listed, i);
        bool known = false;

        for (size_t k = 0; k < json_array_size(f->values); k++) known |= schema_equal(json_array_get(f->values, k), v);
        if (!known) json_array_append(f->values, v);
    }
    json_decref(listed);
    return f->is_finite && json_array_size(f->values) <= MAX_UNIQUE;
}

/* A rule per set of values that are used up. */
static grammar_node permutations(struct array_form *f, const json_t *values)
{
    struct grammar_builder *b = f->s->b;
    uint32_t n = (uint32_t)json_array_size(values), all = 1u << n;
    grammar_node rules[1u << MAX_UNIQUE], value[MAX_UNIQUE];

    for (uint32_t i = 0; i < n; i++) value[i] = json_form_of(&f->s->forms, json_array_get(values, i));
    for (uint32_t used = all; used-- > 0;) {
        uint32_t n_used = (uint32_t)__builtin_popcount(used);
        struct node_list ways = {0};

        if (n_used >= f->min && n_used <= f->max) node_list_add(b, &ways, grammar_empty(b));
        for (uint32_t i = 0; i < n && n_used < f->max; i++) {
            if (used >> i & 1) continue;
            node_list_add(b, &ways, grammar_pair(b, used ? after_comma(f, value[i]) : value[i], rules[used | 1u << i]));
        }
        rules[used] = grammar_rule(b, "unique", 6);
        grammar_define(b, rules[used], node_list_alt(b, &ways));
    }
    return rules[0];
}

static grammar_node unique(struct array_form *f)
{
    struct finite x = {.s = f->s, .values = json_array()};
    struct conj c = {0};
    grammar_node node = 0;

    schema_element(f->s, f->leaf, 0, &c);
    if (!x.values)
        schema_no_memory(f->s);
    else if (f->n_prefix == 0 && !f->contains && (c.n || c.dead))
        schema_expand(f->s, &c, add_values, &x);
    if (c.dead) x.is_finite = true;
    if (x.is_finite && json_array_size(x.values) <= MAX_UNIQUE) {
        node = permutations(f, x.values);
    } else {
        schema_fail(f->s, f->unique_schema, "uniqueItems", RD_E_UNSUPPORTED,
                    "only for elements of at most %u listed values, or with maxItems 1", MAX_UNIQUE);
    }
    conj_deinit(&c);
    json_decref(x.values);
    return node;
}

grammar_node schema_array(struct schema_state *s, const struct conj *leaf)
{
    static const char *const words[] = {"items",       "prefixItems", "minItems",        "maxItems",
                                        "uniqueItems", "contains",    "unevaluatedItems"};
    struct array_form f = {.s = s, .leaf = leaf, .max = GRAMMAR_UNBOUNDED};
    bool limited = false;
    grammar_node inner;

    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]);

        for (size_t k = 0; k < sizeof(words) / sizeof(*words); k++)
            limited |= json_object_get(schema, words[k]) != NULL;
        if (schema) take_schema(&f, schema);
    }
    if (!limited) return json_form_array(&s->forms);
    if (f.min > f.max) return grammar_nothing(s->b);
    for (uint32_t i = 0; i < f.n_prefix && i < f.max; i++) { /* an index that no value suits ends the array before it */
        struct conj c = {0};

        if (!schema_element(s, leaf, i, &c)) f.max = i;
        conj_deinit(&c);
    }
    if (f.min > f.max || s->failed) return grammar_nothing(s->b);
    if (f.unique && f.max > 1)
        inner = unique(&f);
    else if (f.contains)
        inner = with_contains(&f);
    else
        inner = plain(&f);
    return json_form_brackets(&s->forms, inner);
}
