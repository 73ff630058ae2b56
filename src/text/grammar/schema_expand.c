/* text/grammar/schema_expand.c - the ways through a conjunction's applicators.
 *
 * A branch is a conjunction. First its items add what they bring without a choice ($ref, allOf, not, conditions), those
 * before `at` have; then the first with alternatives (anyOf, oneOf, a negated schema) splits it. Branches wait on a stack,
 * and those that are evidently empty go at once, so that a chain of conditions on one member costs its length.
 */
#include <string.h>
#include "base/mem.h"
#include "text/grammar/schema_state.h"

#define MAX_PROBES  400u /* branches looked at to find a conjunction empty */
#define PRUNE_AFTER 8u   /* branches from which on those that are evidently empty are left at once */

struct branch {
    struct conj c;
    size_t at;
};
struct expansion {
    struct schema_state *s;
    struct branch *v;
    size_t n, cap;
    uint32_t n_seen;
};

static bool leaf_is_empty(struct schema_state *s, const struct conj *leaf, uint32_t depth);

static struct branch *push(struct expansion *x, const struct branch *from)
{
    struct branch *b;

    if (!mem_grow((void **)&x->v, &x->cap, x->n + 1, sizeof(*x->v))) {
        schema_no_memory(x->s);
        return NULL;
    }
    b = &x->v[x->n++];
    conj_copy(x->s, &b->c, &from->c);
    b->at = from->at;
    return b;
}

/* --- keywords ----------------------------------------------------------------------------------------------------- */

static const char *const known_words[] = {"type",
                                          "enum",
                                          "const",
                                          "nullable",
                                          "multipleOf",
                                          "maximum",
                                          "exclusiveMaximum",
                                          "minimum",
                                          "exclusiveMinimum",
                                          "maxLength",
                                          "minLength",
                                          "pattern",
                                          "format",
                                          "items",
                                          "prefixItems",
                                          "additionalItems",
                                          "maxItems",
                                          "minItems",
                                          "uniqueItems",
                                          "contains",
                                          "minContains",
                                          "maxContains",
                                          "properties",
                                          "patternProperties",
                                          "additionalProperties",
                                          "propertyNames",
                                          "maxProperties",
                                          "minProperties",
                                          "required",
                                          "dependentRequired",
                                          "dependentSchemas",
                                          "dependencies",
                                          "allOf",
                                          "anyOf",
                                          "oneOf",
                                          "not",
                                          "if",
                                          "then",
                                          "else",
                                          "$ref",
                                          "unevaluatedProperties",
                                          "unevaluatedItems",
                                          SCHEMA_EXCEPT,
                                          SCHEMA_NO_MATCH,
                                          NULL};
/* They say nothing of which values are right. */
static const char *const silent_words[] = {"$schema",
                                           "$id",
                                           "id",
                                           "$anchor",
                                           "$dynamicAnchor",
                                           "$defs",
                                           "definitions",
                                           "$comment",
                                           "comment",
                                           "javaType",
                                           "tsType",
                                           "$vocabulary",
                                           "title",
                                           "description",
                                           "default",
                                           "examples",
                                           "example",
                                           "deprecated",
                                           "readOnly",
                                           "writeOnly",
                                           "contentEncoding",
                                           "contentMediaType",
                                           "contentSchema",
                                           "discriminator",
                                           "externalDocs",
                                           "xml",
                                           "enumNames",
                                           "enumDescriptions",
                                           "markdownDescription",
                                           "errorMessage",
                                           "propertyOrder",
                                           "propertyOrdering",
                                           "strict",
                                           "name",
                                           NULL};

static bool is_among(const char *key, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(key, *words) == 0) return true;
    return false;
}

static const char *const type_names[] = {"null",   "boolean", "string", "integer",
                                         "number", "array",   "object", SCHEMA_FRACTION};
static const unsigned type_bits[] = {TYPE_NULL,   TYPE_BOOLEAN, TYPE_STRING, TYPE_INTEGER,
                                     TYPE_NUMBER, TYPE_ARRAY,   TYPE_OBJECT, TYPE_FRACTION};

static unsigned type_bit(struct schema_state *s, const json_t *schema, const json_t *name)
{
    for (size_t i = 0; json_is_string(name) && i < sizeof(type_bits) / sizeof(*type_bits); i++)
        if (strcmp(json_string_value(name), type_names[i]) == 0) return type_bits[i];
    schema_fail(s, schema, "type", RD_E_INVALID, "wanted null, boolean, string, integer, number, array or object");
    return 0;
}

unsigned schema_own_types(struct schema_state *s, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned types = 0;

    if (!type) return TYPES_ALL;
    if (!json_is_array(type)) types = type_bit(s, schema, type);
    for (size_t i = 0; i < json_array_size(type); i++) types |= type_bit(s, schema, json_array_get(type, i));
    if (json_is_true(json_object_get(schema, "nullable"))) types |= TYPE_NULL;
    return types;
}

unsigned schema_types(struct schema_state *s, const struct conj *leaf)
{
    unsigned types = leaf->dead ? 0 : TYPES_ALL;

    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]);

        if (schema) types &= schema_own_types(s, schema);
    }
    return types;
}

static void check_words(struct schema_state *s, const json_t *schema)
{
    if (s->probing) return;
    for (void *i = json_object_iter((json_t *)schema); i; i = json_object_iter_next((json_t *)schema, i)) {
        const char *key = json_object_iter_key(i);

        if (is_among(key, known_words) || is_among(key, silent_words) || strncmp(key, "x-", 2) == 0) continue;
        schema_fail(s, schema, key, RD_E_UNSUPPORTED, "a keyword that radish does not support");
    }
}

/* --- one item ----------------------------------------------------------------------------------------------------- */

/* An array of schemas, at least one; NULL: absent, or wrong (failed). */
static const json_t *schemas_of(struct schema_state *s, const json_t *schema, const char *keyword)
{
    const json_t *v = json_object_get(schema, keyword);

    if (!v) return NULL;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!schema_is_one(json_array_get(v, i))) v = NULL;
    if (json_array_size(v) == 0) schema_fail(s, schema, keyword, RD_E_INVALID, "wanted a list of schemas");
    return json_array_size(v) ? v : NULL;
}

/* Whether two ways of a oneOf can both hold beside the rest of the branch. That oneOf itself is not asked again (its item
 * stays handled): no value would pass it. */
static bool can_both(struct schema_state *s, const struct branch *b, const json_t *one, const json_t *other)
{
    struct conj both;
    bool empty;

    conj_copy(s, &both, &b->c);
    conj_add(s, &both, one, false);
    conj_add(s, &both, other, false);
    empty = schema_is_empty(s, &both, 3);
    conj_deinit(&both);
    return !empty;
}

/* true: the time is over, or something else has failed. */
static bool is_late(struct schema_state *s)
{
    s->failed |= !grammar_has_time(s->b);
    return s->failed;
}

/* Splits a branch by the ways of anyOf or oneOf; the last way comes to lie deepest in the stack. */
static void split(struct expansion *x, const struct branch *b, const json_t *ways, bool one)
{
    for (size_t i = json_array_size(ways); i-- > 0 && !x->s->failed;) {
        const json_t *way = json_array_get(ways, i);
        struct branch *to;

        if (one && !x->s->probing && is_late(x->s)) return; /* each way meets all others */
        to = push(x, b);
        if (!to) return;
        conj_add(x->s, &to->c, way, false);
        for (size_t k = 0; one && k < json_array_size(ways) && !x->s->failed && !to->c.dead; k++) {
            const json_t *other = json_array_get(ways, k);

            if (k == i || x->s->probing) continue;
            if (json_is_false(other)) continue;
            if (json_is_true(other))
                to->c.dead = true;
            else if (other == way || can_both(x->s, b, way, other))
                conj_add(x->s, &to->c, other, true);
        }
    }
}

static bool lists_values(const struct conj *c)
{
    for (size_t i = 0; i < c->n; i++) {
        const json_t *schema = schema_keywords(&c->v[i]);

        if (json_object_get(schema, "const") || json_object_get(schema, "enum")) return true;
    }
    return false;
}

/* What an item that must not hold adds: nothing, the one schema that must hold instead; several wait for a split. */
static void take_negated(struct schema_state *s, struct branch *b, struct item *item)
{
    const json_t *ways = NULL;

    item->handled |= HANDLED_REST;
    if (!lists_values(&b->c)) ways = schema_negations(s, item->schema); /* else each value is checked against it */
    if (ways && json_array_size(ways) > 1) return;
    item->handled |= HANDLED_ANY;
    if (!ways) return;
    if (json_array_size(ways) == 0)
        b->c.dead = true;
    else
        conj_add(s, &b->c, json_array_get(ways, 0), false);
}

/* What an item adds to its branch without splitting it. */
static void take_item(struct schema_state *s, struct branch *b)
{
    struct item *item = &b->c.v[b->at++];
    const json_t *schema = item->schema, *ways, *v;

    if (!json_is_object(schema)) {
        schema_fail(s, schema, NULL, RD_E_INVALID, "a schema is an object, true or false");
        return;
    }
    if (item->negated) {
        take_negated(s, b, item);
        return;
    }
    v = json_object_get(schema, "$ref");
    item->handled |= (uint16_t)(HANDLED_REST | (v ? HANDLED_REF : 0) | (v && s->draft7 ? HANDLED_HIDDEN : 0));
    if (v) {
        const json_t *target = json_is_string(v) ? schema_resolve(s, schema, json_string_value(v)) : NULL;

        if (!json_is_string(v)) schema_fail(s, schema, "$ref", RD_E_INVALID, "wanted a string");
        if (target) conj_add(s, &b->c, target, false);
        if (s->draft7) return;
    }
    check_words(s, schema);
    ways = schemas_of(s, schema, "allOf");
    for (size_t i = 0; i < json_array_size(ways); i++) conj_add(s, &b->c, json_array_get(ways, i), false);
    if ((v = json_object_get(schema, "not"))) {
        if (!schema_is_one(v))
            schema_fail(s, schema, "not", RD_E_INVALID, "wanted a schema");
        else
            conj_add(s, &b->c, v, true);
    }
    ways = schema_conditions(s, schema);
    for (size_t i = 0; i < json_array_size(ways); i++) conj_add(s, &b->c, json_array_get(ways, i), false);
}

/* Splits a branch by the first item that has alternatives left; false: none has, it is a leaf. */
static bool split_next(struct expansion *x, struct branch *b)
{
    struct schema_state *s = x->s;

    for (size_t i = 0; i < b->c.n; i++) {
        struct item *item = &b->c.v[i];

        if (item->handled & HANDLED_HIDDEN) continue;
        if (!(item->handled & HANDLED_ANY) && (item->negated || json_object_get(item->schema, "anyOf"))) {
            item->handled |= HANDLED_ANY;
            split(x, b, item->negated ? schema_negations(s, item->schema) : schemas_of(s, item->schema, "anyOf"),
                  false);
            return true;
        }
        if (!item->negated && !(item->handled & HANDLED_ONE) && json_object_get(item->schema, "oneOf")) {
            item->handled |= HANDLED_ONE;
            split(x, b, schemas_of(s, item->schema, "oneOf"), true);
            return true;
        }
    }
    return false;
}

/* Counts one more branch. true: beyond a limit, and failed unless probing. */
static bool is_too_much(struct schema_state *s, struct expansion *x)
{
    x->n_seen++;
    if (s->probing) return x->n_seen > MAX_PROBES || ++s->n_probes > SCHEMA_MAX_PROBES || is_late(s);
    if (++s->n_branches > SCHEMA_MAX_BRANCHES)
        schema_fail(s, NULL, NULL, RD_E_INVALID, "more than %u ways through its alternatives", SCHEMA_MAX_BRANCHES);
    else
        is_late(s);
    return s->failed;
}

void schema_expand(struct schema_state *s, const struct conj *c, bool (*leaf)(void *arg, const struct conj *c),
                   void *arg)
{
    struct expansion x = {.s = s};
    struct branch start = {.at = 0};
    bool go_on = true;

    conj_copy(s, &start.c, c);
    push(&x, &start);
    conj_deinit(&start.c);
    while (x.n && go_on && !s->failed) {
        struct branch b = x.v[--x.n];
        bool gone = false;

        if (is_too_much(s, &x)) { /* a probe leaves it open, else that is an error */
            if (s->probing) leaf(arg, NULL);
            gone = true;
            go_on = false;
        }
        while (!gone && !b.c.dead && !s->failed && b.at < b.c.n) take_item(s, &b);
        if (!gone && x.n_seen > PRUNE_AFTER && !b.c.dead) b.c.dead = leaf_is_empty(s, &b.c, s->probing ? 0 : 1);
        if (!gone && !b.c.dead && !s->failed) gone = split_next(&x, &b);
        if (!gone && !b.c.dead && !s->failed) go_on = leaf(arg, &b.c);
        conj_deinit(&b.c);
    }
    while (x.n) conj_deinit(&x.v[--x.n].c);
    mem_free(x.v);
}

/* --- evidently empty ---------------------------------------------------------------------------------------------- */

struct probe {
    struct schema_state *s;
    uint32_t depth;
    bool found;
};

static bool counts_cross(struct schema_state *s, const struct conj *leaf, const char *min_word, const char *max_word,
                         uint32_t *min_out)
{
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED, v;

    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]);

        if (schema && schema_count(s, schema, min_word, &v) && v > min) min = v;
        if (schema && schema_count(s, schema, max_word, &v) && v < max) max = v;
    }
    if (min_out) *min_out = min;
    return min > max;
}

static bool bounds_cross(const struct conj *leaf)
{
    double min = -1e308, max = 1e308;

    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]), *v;

        if ((v = json_object_get(schema, "minimum")) && json_number_value(v) > min) min = json_number_value(v);
        if ((v = json_object_get(schema, "maximum")) && json_number_value(v) < max) max = json_number_value(v);
        v = json_object_get(schema, "exclusiveMinimum");
        if (json_is_number(v) && json_number_value(v) > min) min = json_number_value(v);
        v = json_object_get(schema, "exclusiveMaximum");
        if (json_is_number(v) && json_number_value(v) < max) max = json_number_value(v);
    }
    return min > max;
}

static bool object_is_empty(struct schema_state *s, const struct conj *leaf, uint32_t depth)
{
    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *names = json_object_get(schema_keywords(&leaf->v[i]), "required");

        for (size_t k = 0; k < json_array_size(names); k++) {
            const json_t *name = json_array_get(names, k);
            struct conj c = {0};
            bool empty;

            if (!json_is_string(name)) continue;
            empty = !schema_member(s, leaf, json_string_value(name), json_string_length(name), &c) ||
                    (c.n && schema_is_empty(s, &c, depth - 1));
            conj_deinit(&c);
            if (empty) return true;
        }
    }
    return counts_cross(s, leaf, "minProperties", "maxProperties", NULL);
}

static bool array_is_empty(struct schema_state *s, const struct conj *leaf, uint32_t depth)
{
    uint32_t min;

    if (counts_cross(s, leaf, "minItems", "maxItems", &min)) return true;
    for (size_t i = 0; i < min && i < 4; i++) {
        struct conj c = {0};
        bool empty = !schema_element(s, leaf, i, &c) || (c.n && schema_is_empty(s, &c, depth - 1));

        conj_deinit(&c);
        if (empty) return true;
    }
    return false;
}

static bool leaf_is_empty(struct schema_state *s, const struct conj *leaf, uint32_t depth)
{
    unsigned types = schema_types(s, leaf);
    json_t *listed = schema_listed(s, leaf);
    size_t n_listed = json_array_size(listed);

    json_decref(listed);
    if (types == 0 || (listed && n_listed == 0)) return true;
    if (listed || depth == 0) return false;
    if ((types & TYPE_STRING) && counts_cross(s, leaf, "minLength", "maxLength", NULL)) types &= ~(unsigned)TYPE_STRING;
    if ((types & TYPE_NUMBER) && bounds_cross(leaf)) types &= ~(unsigned)TYPE_NUMBER;
    if ((types & TYPE_OBJECT) && object_is_empty(s, leaf, depth)) types &= ~(unsigned)TYPE_OBJECT;
    if ((types & TYPE_ARRAY) && array_is_empty(s, leaf, depth)) types &= ~(unsigned)TYPE_ARRAY;
    return types == 0;
}

static bool probe_leaf(void *arg, const struct conj *leaf)
{
    struct probe *p = arg;

    p->found = !leaf || !leaf_is_empty(p->s, leaf, p->depth);
    return !p->found;
}

bool schema_is_empty(struct schema_state *s, const struct conj *c, uint32_t depth)
{
    struct probe p = {.s = s, .depth = depth};

    if (c->dead) return true;
    s->probing++;
    schema_expand(s, c, probe_leaf, &p);
    s->probing--;
    return !p.found && !s->failed;
}
