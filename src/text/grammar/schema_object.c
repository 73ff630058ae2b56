/* text/grammar/schema_object.c - objects: members that schemas name, in their order, then the others.
 *
 * What a member must satisfy depends on its name alone: of each schema with properties, those of that name, those whose
 * pattern it matches, else the additional ones. Other names fall into regions, by the patterns that they match; each
 * region is a language of names (patterns met, less patterns missed, less the names above) with one rule for its values.
 *
 *     { a , b , c , other , other .. }       (a ,)? before the first required one, (, c)? behind it
 */
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_state.h"
#include "text/string_table.h"

#define MAX_PATTERNS 5u   /* different ones for one object: 32 regions */
#define CHUNK        8u   /* members per rule, where all are optional */
#define MAX_COUNTED  200u /* members times counts */

struct member {
    const char *name;
    size_t n;
    bool required;
    grammar_node node;
};
struct pattern {
    const char *text;
    const json_t *schema;
};
struct object_form {
    struct schema_state *s;
    const struct conj *leaf;
    struct string_table names; /* of members; the id is the index */
    struct member *members;
    size_t n_members, cap;
    struct pattern patterns[MAX_PATTERNS];
    uint32_t n_patterns;
    grammar_node others; /* "name": value, of all regions; 0: no others */
    uint32_t min, max;
};

/* unevaluatedProperties stands for additionalProperties where no applicator beside it evaluates any. */
static const json_t *additional_of(struct schema_state *s, const json_t *schema)
{
    static const char *const beside[] = {"allOf",       "anyOf", "oneOf", "not", "if", "$ref", "dependentSchemas",
                                         "dependencies"};
    const json_t *own = json_object_get(schema, "additionalProperties");
    const json_t *others = json_object_get(schema, "unevaluatedProperties");

    if (own || !others || json_is_true(others)) return own;
    for (size_t i = 0; i < sizeof(beside) / sizeof(*beside); i++) {
        if (json_object_get(schema, beside[i]))
            schema_fail(s, schema, "unevaluatedProperties", RD_E_UNSUPPORTED, "beside %s", beside[i]);
    }
    return others;
}

static void add_checked(struct schema_state *s, struct conj *c, const json_t *schema, const char *keyword,
                        const json_t *part)
{
    if (schema_is_one(part))
        conj_add(s, c, part, false);
    else
        schema_fail(s, schema, keyword, RD_E_INVALID, "wanted schemas");
}

bool schema_member(struct schema_state *s, const struct conj *leaf, const char *name, size_t n, struct conj *c)
{
    for (size_t i = 0; i < leaf->n; i++) {
        const json_t *schema = schema_keywords(&leaf->v[i]), *own, *patterns, *rest, *names;
        bool met;

        if (!schema) continue;
        own = json_object_get(json_object_get(schema, "properties"), name);
        patterns = json_object_get(schema, "patternProperties");
        names = json_object_get(schema, "propertyNames");
        met = own;
        if (own) add_checked(s, c, schema, "properties", own);
        for (void *k = json_object_iter((json_t *)patterns); k; k = json_object_iter_next((json_t *)patterns, k)) {
            const char *text = json_object_iter_key(k);

            if (!schema_pattern_matches(s, schema, text, strlen(text), name, n)) continue;
            met = true;
            add_checked(s, c, schema, "patternProperties", json_object_iter_value(k));
        }
        rest = additional_of(s, schema);
        if (!met && rest) add_checked(s, c, schema, "additionalProperties", rest);
        if (names) {
            json_t *text = json_stringn(name, n);

            if (!text)
                schema_no_memory(s);
            else
                c->dead |= !schema_accepts(s, names, text);
            json_decref(text);
        }
    }
    return !c->dead;
}

static void add_name(struct object_form *f, const char *name, size_t n, bool required)
{
    uint32_t id;
    bool is_new;

    if (string_table_add(&f->names, name, n, &id, &is_new) != RD_OK ||
        !mem_grow((void **)&f->members, &f->cap, id + 1, sizeof(*f->members))) {
        schema_no_memory(f->s);
        return;
    }
    if (is_new) f->members[f->n_members++] = (struct member){.name = name, .n = n};
    f->members[id].required |= required;
}

static void add_pattern(struct object_form *f, const json_t *schema, const char *text)
{
    for (uint32_t i = 0; i < f->n_patterns; i++)
        if (strcmp(f->patterns[i].text, text) == 0) return;
    if (f->n_patterns == MAX_PATTERNS) {
        schema_fail(f->s, schema, "patternProperties", RD_E_UNSUPPORTED, "more than %u patterns for one object",
                    MAX_PATTERNS);
        return;
    }
    f->patterns[f->n_patterns++] = (struct pattern){text, schema};
}

static void take_schema(struct object_form *f, const json_t *schema)
{
    json_t *properties = json_object_get(schema, "properties"),
           *patterns = json_object_get(schema, "patternProperties");
    uint32_t n;

    if ((properties && !json_is_object(properties)) || (patterns && !json_is_object(patterns))) {
        schema_fail(f->s, schema, properties ? "properties" : "patternProperties", RD_E_INVALID,
                    "wanted an object of schemas");
        return;
    }
    for (void *i = json_object_iter(properties); i; i = json_object_iter_next(properties, i))
        add_name(f, json_object_iter_key(i), json_object_iter_key_len(i), false);
    for (void *i = json_object_iter(patterns); i; i = json_object_iter_next(patterns, i))
        add_pattern(f, schema, json_object_iter_key(i));
    if (schema_count(f->s, schema, "minProperties", &n) && n > f->min) f->min = n;
    if (schema_count(f->s, schema, "maxProperties", &n) && n < f->max) f->max = n;
}

static void take_required(struct object_form *f, const json_t *schema)
{
    const json_t *required = json_object_get(schema, "required");

    if (required && !json_is_array(required) && !json_is_boolean(required))
        schema_fail(f->s, schema, "required", RD_E_INVALID, "wanted a list of names");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const json_t *name = json_array_get(required, i);

        if (json_is_string(name))
            add_name(f, json_string_value(name), json_string_length(name), true);
        else
            schema_fail(f->s, schema, "required", RD_E_INVALID, "wanted names");
    }
}

/* Nodes of the named members; those that no value suits are left out. false: a required one is among them. */
static bool make_members(struct object_form *f)
{
    struct schema_state *s = f->s;
    size_t n = 0;

    for (size_t i = 0; i < f->n_members && !s->failed; i++) {
        struct member *m = &f->members[i];
        struct conj c = {0};
        bool possible = schema_member(s, f->leaf, m->name, m->n, &c);

        if (!possible) {
            conj_deinit(&c);
            if (m->required) return false;
            continue;
        }
        m->node = grammar_three(s->b, json_form_quotes(&s->forms, json_form_text(&s->forms, m->name, m->n)),
                                json_form_colon(&s->forms), schema_rule(s, &c));
        f->members[n++] = *m;
    }
    f->n_members = n;
    return true;
}

/* --- other names -------------------------------------------------------------------------------------------------- */

/* The values of names that match just the patterns of `met` (bits); false: none may come. */
static bool region_values(struct object_form *f, uint32_t met, struct conj *c)
{
    for (size_t i = 0; i < f->leaf->n; i++) {
        const json_t *schema = schema_keywords(&f->leaf->v[i]), *patterns, *rest;
        bool any = false;

        if (!schema) continue;
        patterns = json_object_get(schema, "patternProperties");
        for (uint32_t k = 0; k < f->n_patterns; k++) {
            const json_t *part = met >> k & 1 ? json_object_get(patterns, f->patterns[k].text) : NULL;

            if (!part) continue;
            any = true;
            add_checked(f->s, c, schema, "patternProperties", part);
        }
        rest = additional_of(f->s, schema);
        if (!any && rest) add_checked(f->s, c, schema, "additionalProperties", rest);
    }
    return !c->dead;
}

static grammar_node pattern_node(struct object_form *f, uint32_t i)
{
    const struct pattern *p = &f->patterns[i];
    char path[300], where[340];

    schema_path(f->s, p->schema, path, sizeof(path));
    snprintf(where, sizeof(where), "%s/patternProperties: ", path);
    return regex_node(f->s->b, p->text, strlen(p->text), REGEX_SEARCHED | REGEX_JSON, where);
}

/* The names that propertyNames of the leaf's schemas allow; 0: all. */
static grammar_node allowed_names(struct object_form *f)
{
    struct conj c = {0};
    grammar_node node;

    for (size_t i = 0; i < f->leaf->n; i++) {
        const json_t *schema = schema_keywords(&f->leaf->v[i]), *names = json_object_get(schema, "propertyNames");

        if (names) add_checked(f->s, &c, schema, "propertyNames", names);
    }
    node = c.dead ? grammar_nothing(f->s->b) : c.n ? schema_names(f->s, &c) : 0;
    conj_deinit(&c);
    return node;
}

static bool is_ascii(const struct object_form *f)
{
    for (size_t i = 0; i < f->n_members; i++)
        for (size_t k = 0; k < f->members[i].n; k++)
            if ((unsigned char)f->members[i].name[k] >= 0x80) return false;
    return true;
}

/* All names but those of members, as far as nothing else is asked of them. */
static grammar_node free_names(struct object_form *f, bool plain)
{
    struct json_forms *forms = &f->s->forms;
    grammar_node c = plain || !is_ascii(f) ? json_form_plain_char(forms) : json_form_name_char(forms);
    grammar_node all = grammar_repeat(f->s->b, c, 0, GRAMMAR_UNBOUNDED);
    struct node_list taken = {0};

    if (f->names.n == 0) return all;
    for (uint32_t i = 0; i < f->names.n; i++) { /* those that may not come at all too */
        size_t n;
        const char *name = string_table_at(&f->names, i, &n);

        node_list_add(f->s->b, &taken, json_form_canonical_text(forms, name, n));
    }
    return grammar_except(f->s->b, all, node_list_alt(f->s->b, &taken));
}

static grammar_node other_members(struct object_form *f)
{
    struct schema_state *s = f->s;
    struct node_list regions = {0};
    grammar_node allowed = 0;
    bool first = true;

    for (uint32_t met = 0; met < 1u << f->n_patterns && !s->failed; met++) {
        grammar_node names;
        struct conj c = {0};

        if (!region_values(f, met, &c)) {
            conj_deinit(&c);
            continue;
        }
        if (first) allowed = allowed_names(f);
        first = false;
        names = free_names(f, allowed || f->n_patterns);
        if (allowed) names = grammar_both(s->b, names, allowed);
        for (uint32_t i = 0; i < f->n_patterns; i++) {
            if (met >> i & 1)
                names = grammar_both(s->b, names, pattern_node(f, i));
            else
                names = grammar_except(s->b, names, pattern_node(f, i));
        }
        if ((allowed || f->n_patterns) && grammar_is_nothing(s->b, names) == 1) {
            conj_deinit(&c);
            continue;
        }
        node_list_add(
            s->b, &regions,
            grammar_three(s->b, json_form_quotes(&s->forms, names), json_form_colon(&s->forms), schema_rule(s, &c)));
    }
    return regions.n ? node_list_alt(s->b, &regions) : 0;
}

/* --- members in a row --------------------------------------------------------------------------------------------- */

static grammar_node after_comma(struct object_form *f, grammar_node node)
{
    return grammar_pair(f->s->b, json_form_comma(&f->s->forms), node);
}

static grammar_node more_others(struct object_form *f, uint32_t min, uint32_t max)
{
    if (!f->others) return min ? grammar_nothing(f->s->b) : grammar_empty(f->s->b);
    return grammar_repeat(f->s->b, after_comma(f, f->others), min, max);
}

/* Others alone, without a comma before the first. */
static grammar_node only_others(struct object_form *f, uint32_t min, uint32_t max)
{
    grammar_node some;

    if (!f->others || max == 0) return min ? grammar_nothing(f->s->b) : grammar_empty(f->s->b);
    some =
        grammar_pair(f->s->b, f->others, more_others(f, min ? min - 1 : 0, max == GRAMMAR_UNBOUNDED ? max : max - 1));
    return min ? some : grammar_maybe(f->s->b, some);
}

/* Members from i on, each behind a comma, and others. */
static grammar_node following(struct object_form *f, size_t i, size_t end, grammar_node last)
{
    struct node_list row = {0};

    for (; i < end; i++) {
        grammar_node one = after_comma(f, f->members[i].node);

        node_list_add(f->s->b, &row, f->members[i].required ? one : grammar_maybe(f->s->b, one));
    }
    node_list_add(f->s->b, &row, last);
    return node_list_seq(f->s->b, &row);
}

static grammar_node from_required(struct object_form *f, size_t required)
{
    struct grammar_builder *b = f->s->b;
    struct node_list row = {0};

    for (size_t i = 0; i < required; i++)
        node_list_add(b, &row, grammar_maybe(b, grammar_pair(b, f->members[i].node, json_form_comma(&f->s->forms))));
    node_list_add(b, &row, f->members[required].node);
    node_list_add(b, &row, following(f, required + 1, f->n_members, more_others(f, 0, GRAMMAR_UNBOUNDED)));
    return node_list_seq(b, &row);
}

/* No member is required: any may be the first. What follows a chunk of members is a rule. */
static grammar_node all_optional(struct object_form *f)
{
    struct grammar_builder *b = f->s->b;
    struct node_list ways = {0};
    size_t n = f->n_members, n_chunks = (n + CHUNK - 1) / CHUNK;
    grammar_node after = more_others(f, 0, GRAMMAR_UNBOUNDED);

    node_list_add(b, &ways, only_others(f, 0, GRAMMAR_UNBOUNDED));
    for (size_t c = n_chunks; c-- > 0;) {
        size_t end = (c + 1) * CHUNK < n ? (c + 1) * CHUNK : n;

        for (size_t i = c * CHUNK; i < end; i++)
            node_list_add(b, &ways, grammar_pair(b, f->members[i].node, following(f, i + 1, end, after)));
        if (c) {
            grammar_node rule = grammar_rule(b, "members", 7);

            grammar_define(b, rule, following(f, c * CHUNK, end, after));
            after = rule;
        }
    }
    return node_list_alt(b, &ways);
}

/* Members and their number: a rule for each member and count so far. Two others could have the same name, so that they
 * count as one: more than one of them cannot be asked for. */
static grammar_node counted(struct object_form *f)
{
    struct schema_state *s = f->s;
    struct grammar_builder *b = s->b;
    bool bounded = f->max != GRAMMAR_UNBOUNDED;
    uint32_t top = bounded && f->max < f->n_members    ? f->max
                   : f->min < f->n_members && !bounded ? f->min
                                                       : (uint32_t)f->n_members;
    grammar_node *next = mem_zalloc(top + 2, sizeof(*next)), *here = mem_zalloc(top + 2, sizeof(*here)), root = 0;
    bool unsound = false;

    if (!next || !here) schema_no_memory(s);
    for (size_t i = f->n_members + 1; i-- > 0 && next && here && !s->failed;) {
        for (uint32_t k = 0; k <= top && k <= i; k++) {
            uint32_t min = f->min > k ? f->min - k : 0, max = bounded ? f->max - k : GRAMMAR_UNBOUNDED;
            struct node_list ways = {0};

            if (i == f->n_members) {
                unsound |= min > 1 && f->others;
                node_list_add(b, &ways,
                              min > 1 ? grammar_nothing(b)
                              : k     ? more_others(f, min, max)
                                      : only_others(f, min, max));
            } else {
                uint32_t more = k < top ? k + 1 : k;
                grammar_node one = k ? after_comma(f, f->members[i].node) : f->members[i].node;

                if (!f->members[i].required) node_list_add(b, &ways, next[k]);
                if (max > 0) node_list_add(b, &ways, grammar_pair(b, one, next[more]));
            }
            here[k] = grammar_rule(b, "members", 7);
            grammar_define(b, here[k], node_list_alt(b, &ways));
        }
        memcpy(next, here, (top + 2) * sizeof(*next));
    }
    if (unsound) {
        for (size_t i = 0; i < f->leaf->n; i++) {
            const json_t *schema = schema_keywords(&f->leaf->v[i]);

            if (json_object_get(schema, "minProperties"))
                schema_fail(s, schema, "minProperties", RD_E_UNSUPPORTED,
                            "more members than are named: their names could not be told to differ");
        }
    }
    if (next) root = next[0];
    mem_free(next);
    mem_free(here);
    return root;
}

static grammar_node inner(struct object_form *f)
{
    size_t required = f->n_members, n_required = 0;

    for (size_t i = f->n_members; i-- > 0;) {
        if (!f->members[i].required) continue;
        required = i;
        n_required++;
    }
    if (f->min <= n_required) f->min = 0;
    if (!f->others && f->max >= f->n_members) f->max = GRAMMAR_UNBOUNDED;
    if (f->max < n_required) return grammar_nothing(f->s->b);
    if (f->n_members == 0 && f->min <= 1) return only_others(f, f->min, f->max);
    if (f->min || f->max != GRAMMAR_UNBOUNDED) {
        if (f->n_members * (f->n_members + 1) > MAX_COUNTED * MAX_COUNTED)
            return schema_fail(f->s, f->leaf->v[0].schema, "minProperties", RD_E_UNSUPPORTED,
                               "with more than %u properties", MAX_COUNTED);
        return counted(f);
    }
    return n_required ? from_required(f, required) : all_optional(f);
}

grammar_node schema_object(struct schema_state *s, const struct conj *leaf)
{
    static const char *const words[] = {
        "properties", "patternProperties", "additionalProperties", "propertyNames",
        "required",   "minProperties",     "maxProperties",        "unevaluatedProperties"};
    struct object_form f = {.s = s, .leaf = leaf, .max = GRAMMAR_UNBOUNDED};
    grammar_node node = grammar_nothing(s->b);
    bool limited = false;

    for (size_t i = 0; i < leaf->n; i++)
        for (size_t k = 0; k < sizeof(words) / sizeof(*words); k++)
            limited |= json_object_get(schema_keywords(&leaf->v[i]), words[k]) != NULL;
    if (!limited) return json_form_object(&s->forms);
    if (string_table_init(&f.names, 8, 64) != RD_OK) {
        schema_no_memory(s);
        return 0;
    }
    for (size_t i = 0; i < leaf->n; i++)
        if (schema_keywords(&leaf->v[i])) take_schema(&f, schema_keywords(&leaf->v[i]));
    for (size_t i = 0; i < leaf->n; i++)
        if (schema_keywords(&leaf->v[i])) take_required(&f, schema_keywords(&leaf->v[i]));
    if (!s->failed && make_members(&f)) {
        f.others = other_members(&f);
        if (!s->failed) node = json_form_braces(&s->forms, inner(&f));
    }
    string_table_deinit(&f.names);
    mem_free(f.members);
    return node;
}
