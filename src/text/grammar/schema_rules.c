/* text/grammar/schema_rules.c - conjunctions of schemas, a rule for each, and the queue of rules to fill. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "text/grammar/schema_state.h"

grammar_node schema_fail(struct schema_state *s, const json_t *v, const char *keyword, rd_status st, const char *fmt,
                         ...)
{
    char path[300], what[200];
    va_list args;

    if (s->probing || s->failed) return 0;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    schema_path(s, v, path, sizeof(path));
    grammar_fail(s->b, st, "%s%s%s: %s", path, keyword ? "/" : "", keyword ? keyword : "", what);
    s->failed = true;
    return 0;
}

void schema_no_memory(struct schema_state *s)
{
    grammar_fail(s->b, RD_E_NOMEM, "out of memory");
    s->failed = true;
}

bool schema_is_one(const json_t *v)
{
    return json_is_object(v) || json_is_boolean(v);
}

bool schema_count(struct schema_state *s, const json_t *schema, const char *keyword, uint32_t *out)
{
    const json_t *v = json_object_get(schema, keyword);
    double x = json_number_value(v);

    if (!v) return false;
    if (!json_is_number(v) || x < 0 || x != (double)(uint64_t)x) {
        schema_fail(s, schema, keyword, RD_E_INVALID, "wanted a whole number from 0 on");
        return false;
    }
    *out = x >= (double)(GRAMMAR_UNBOUNDED - 1) ? GRAMMAR_UNBOUNDED - 1 : (uint32_t)x;
    return true;
}

/* --- conjunctions ------------------------------------------------------------------------------------------------- */

void conj_add(struct schema_state *s, struct conj *c, const json_t *schema, bool negated)
{
    if (json_is_boolean(schema)) {
        c->dead |= json_is_true(schema) == negated;
        return;
    }
    for (size_t i = 0; i < c->n; i++) {
        if (c->v[i].schema != schema) continue;
        if (c->v[i].negated == negated) return;
        c->dead = true;
    }
    if (!mem_grow((void **)&c->v, &c->cap, c->n + 1, sizeof(*c->v))) {
        schema_no_memory(s);
        return;
    }
    c->v[c->n++] = (struct item){.schema = schema, .negated = negated};
}

void conj_copy(struct schema_state *s, struct conj *to, const struct conj *from)
{
    memset(to, 0, sizeof(*to));
    to->dead = from->dead;
    if (from->n == 0) return;
    if (!mem_grow((void **)&to->v, &to->cap, from->n, sizeof(*to->v))) {
        schema_no_memory(s);
        return;
    }
    memcpy(to->v, from->v, from->n * sizeof(*to->v));
    to->n = from->n;
}

void conj_deinit(struct conj *c)
{
    mem_free(c->v);
    memset(c, 0, sizeof(*c));
}

static int by_address(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    uintptr_t i = (uintptr_t)x->schema, k = (uintptr_t)y->schema;

    return i != k ? (i < k ? -1 : 1) : (int)x->negated - (int)y->negated;
}

/* The number of a conjunction, whatever the order of its items. STRING_NONE: no memory. */
static uint32_t conj_id(struct schema_state *s, const struct conj *c, bool *is_new)
{
    struct conj sorted;
    uint32_t id = STRING_NONE;
    uintptr_t *key;

    conj_copy(s, &sorted, c);
    key = mem_alloc(c->n + 1, sizeof(*key));
    if (!key || sorted.n != c->n) {
        schema_no_memory(s);
    } else {
        qsort(sorted.v, sorted.n, sizeof(*sorted.v), by_address);
        for (size_t i = 0; i < sorted.n; i++) key[i] = (uintptr_t)sorted.v[i].schema | sorted.v[i].negated;
        if (string_table_add(&s->rules, (const char *)key, sorted.n * sizeof(*key), &id, is_new) != RD_OK) {
            schema_no_memory(s);
            id = STRING_NONE;
        }
    }
    mem_free(key);
    conj_deinit(&sorted);
    return id;
}

/* {"type": "string"} and the like need no rule of their own; 0: not so simple. */
static grammar_node simple(struct schema_state *s, const struct conj *c)
{
    const json_t *schema = c->v[0].schema, *type = json_object_get(schema, "type");
    const char *name = json_string_value(type);

    if (c->n != 1 || c->v[0].negated || !name) return 0;
    for (void *i = json_object_iter((json_t *)schema); i; i = json_object_iter_next((json_t *)schema, i)) {
        const char *key = json_object_iter_key(i);

        if (strcmp(key, "type") != 0 && strcmp(key, "title") != 0 && strcmp(key, "description") != 0 &&
            strcmp(key, "default") != 0 && strcmp(key, "examples") != 0)
            return 0;
    }
    if (strcmp(name, "string") == 0) return json_form_string(&s->forms);
    if (strcmp(name, "integer") == 0) return json_form_integer(&s->forms);
    if (strcmp(name, "number") == 0) return json_form_number(&s->forms);
    if (strcmp(name, "object") == 0) return json_form_object(&s->forms);
    if (strcmp(name, "array") == 0) return json_form_array(&s->forms);
    return 0;
}

grammar_node schema_rule(struct schema_state *s, struct conj *c)
{
    grammar_node rule = 0;
    char path[300];
    bool is_new;
    uint32_t id;

    if (c->dead || s->failed || c->n == 0) {
        rule = c->dead ? grammar_nothing(s->b) : s->failed ? 0 : json_form_value(&s->forms);
        conj_deinit(c);
        return rule;
    }
    rule = simple(s, c);
    id = rule ? STRING_NONE : conj_id(s, c, &is_new);
    if (id == STRING_NONE) {
        conj_deinit(c);
        return rule;
    }
    if (!is_new) {
        conj_deinit(c);
        return s->rule_of[id];
    }
    schema_path(s, c->v[0].schema, path, sizeof(path));
    rule = grammar_rule(s->b, path, strlen(path));
    if (!mem_grow((void **)&s->rule_of, &s->rule_of_cap, id + 1, sizeof(*s->rule_of)) ||
        !mem_grow((void **)&s->queue, &s->queue_cap, s->n_queue + 1, sizeof(*s->queue))) {
        schema_no_memory(s);
        conj_deinit(c);
        return 0;
    }
    s->rule_of[id] = rule;
    s->queue[s->n_queue++] = (struct waiting){*c, rule};
    memset(c, 0, sizeof(*c));
    return rule;
}

grammar_node schema_rule_of(struct schema_state *s, const json_t *schema)
{
    struct conj c = {0};

    conj_add(s, &c, schema, false);
    return schema_rule(s, &c);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

struct leaves {
    struct schema_state *s;
    struct node_list nodes;
};

static bool add_leaf(void *arg, const struct conj *leaf)
{
    struct leaves *l = arg;

    if (l->nodes.n == SCHEMA_MAX_LEAVES) {
        schema_fail(l->s, leaf->n ? leaf->v[0].schema : NULL, NULL, RD_E_INVALID,
                    "more than %u combinations of alternatives", SCHEMA_MAX_LEAVES);
        return false;
    }
    node_list_add(l->s->b, &l->nodes, schema_leaf(l->s, leaf));
    return !l->s->failed && grammar_status(l->s->b, NULL) == RD_OK;
}

static void fill_rules(struct schema_state *s)
{
    while (s->queue_at < s->n_queue && !s->failed && grammar_status(s->b, NULL) == RD_OK) {
        struct waiting w = s->queue[s->queue_at];
        struct leaves l = {.s = s};

        memset(&s->queue[s->queue_at++].conj, 0, sizeof(w.conj));
        schema_expand(s, &w.conj, add_leaf, &l);
        grammar_define(s->b, w.rule, node_list_alt(s->b, &l.nodes));
        conj_deinit(&w.conj);
    }
}

static void state_deinit(struct schema_state *s)
{
    for (size_t i = s->queue_at; i < s->n_queue; i++) conj_deinit(&s->queue[i].conj);
    mem_free(s->queue);
    mem_free(s->rule_of);
    mem_free(s->places);
    mem_free(s->place_of);
    mem_free(s->uri_place);
    string_table_deinit(&s->by_pointer);
    string_table_deinit(&s->uris);
    string_table_deinit(&s->rules);
    string_table_deinit(&s->rewrites);
    json_decref(s->rewritten);
}

static bool is_draft7(const json_t *schema)
{
    const char *name = json_string_value(json_object_get(schema, "$schema"));

    return name && (strstr(name, "draft-07") || strstr(name, "draft-06") || strstr(name, "draft-04"));
}

grammar_node grammar_from_schema(struct grammar_builder *b, const json_t *schema, const struct schema_options *o)
{
    struct schema_state s = {.b = b, .root = schema, .draft7 = is_draft7(schema)};
    grammar_node root = 0;

    if (!schema_is_one(schema)) {
        grammar_fail(b, RD_E_INVALID, "#: a schema is an object, true or false");
        return 0;
    }
    json_forms_init(&s.forms, b, o);
    s.rewritten = json_array();
    if (!s.rewritten || string_table_init(&s.by_pointer, 64, 512) != RD_OK ||
        string_table_init(&s.uris, 8, 64) != RD_OK || string_table_init(&s.rules, 64, 512) != RD_OK ||
        string_table_init(&s.rewrites, 8, 64) != RD_OK) {
        schema_no_memory(&s);
    } else {
        schema_find_places(&s);
        if (!s.failed) root = schema_rule_of(&s, schema);
        fill_rules(&s);
    }
    state_deinit(&s);
    return s.failed ? 0 : root;
}
