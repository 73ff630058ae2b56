/* text/grammar/schema_state.h - a JSON schema on its way to a grammar: what the parts schema_*.c share.
 *
 * A value must satisfy several schemas at once (allOf, $ref beside other keywords, a property that two subschemas name):
 * what is compiled is therefore a conjunction, a list of schema objects. Each distinct conjunction is one rule, made when
 * it is first needed and filled from a queue, so that nesting takes no stack and recursion ends.
 *
 *     {conjunction} --expand--> leaves: conjunctions without applicators, one per way through anyOf, oneOf, if, not ..
 *     leaf --> values it lists (enum, const), checked one by one against all of it, or
 *          --> an alternative per type: strings, numbers, arrays, objects
 *
 * A schema that must not hold is rewritten into schemas one of which must hold (schema_negate.c); exclusiveness of oneOf is
 * either evident or added as such. Rewritten schemas are made once per schema, so their number is bounded.
 *
 * Errors  the builder fails, naming the keyword and its path.
 * Thread  as the builder.
 */
#pragma once
#include "base/buf.h"
#include "text/grammar/grammar_languages.h"
#include "text/grammar/json_forms.h"
#include "text/grammar/node_list.h"
#include "text/string_table.h"

#define SCHEMA_MAX_DEPTH    250u     /* of a schema's own nesting */
#define SCHEMA_MAX_PLACES   200000u  /* objects and arrays in it */
#define SCHEMA_MAX_BRANCHES 20000u   /* ways through anyOf and the like, in all */
#define SCHEMA_MAX_PROBES   100000u  /* while asking whether they are empty */
#define SCHEMA_MAX_LEAVES   1000u    /* of one conjunction */
#define SCHEMA_MAX_CHECKS   2000000u /* steps of checking values against schemas */

/* Names of our own that rewritten schemas have; no schema of a client may. */
#define SCHEMA_EXCEPT   "\001except"    /* values that are excluded */
#define SCHEMA_NO_MATCH "\001noPattern" /* a list of patterns that must not match */
#define SCHEMA_FRACTION "\001fraction"  /* a type: numbers that are no integers */

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_STRING = 4,
    TYPE_INTEGER = 8,
    TYPE_FRACTION = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_NUMBER = TYPE_INTEGER | TYPE_FRACTION,
    TYPES_ALL = 127
};

/* negated: must not hold. handled: bits of applicators that a branch has decided (schema_expand.c). */
struct item {
    const json_t *schema;
    uint16_t handled;
    bool negated;
};

struct conj {
    struct item *v;
    size_t n, cap;
    bool dead; /* it holds a schema and its opposite */
};

/* Bits of item.handled. */
enum { HANDLED_REF = 1, HANDLED_ANY = 2, HANDLED_ONE = 4, HANDLED_REST = 8, HANDLED_HIDDEN = 16 };

struct place {                           /* of an object or array within the document */
    const json_t *v, *map;               /* map: keys of this object are names, not keywords */
    const char *key;                     /* in its parent; NULL: index */
    uint32_t parent, index, depth, base; /* base: id of a URI in uris */
    bool is_map;
};

struct waiting {
    struct conj conj;
    grammar_node rule;
};

struct schema_state {
    struct grammar_builder *b;
    struct json_forms forms;
    const json_t *root;
    bool draft7; /* $ref hides its siblings */
    struct place *places;
    size_t n_places, places_cap;
    struct string_table by_pointer; /* a json_t's address -> place_of[id] */
    uint32_t *place_of;
    size_t place_of_cap;
    struct string_table uris; /* URIs with or without fragment -> uri_place[id] */
    uint32_t *uri_place;
    size_t uri_place_cap;
    struct string_table rules; /* a conjunction -> rule_of[id] */
    grammar_node *rule_of;
    size_t rule_of_cap;
    struct waiting *queue;
    size_t n_queue, queue_at, queue_cap;
    struct string_table rewrites; /* a json_t's address and a letter -> its entry of rewritten */
    json_t *rewritten;            /* array of arrays of schemas */
    uint32_t n_branches, n_probes, n_checks;
    const json_t *known_list; /* an enum whose values are being checked */
    int probing;              /* > 0: only asking whether a conjunction is empty; nothing fails */
    bool failed;
};

/* Fails the builder once; with probing: does nothing. v: where (its path), may be NULL. Returns 0. */
grammar_node schema_fail(struct schema_state *s, const json_t *v, const char *keyword, rd_status st, const char *fmt,
                         ...) __attribute__((format(printf, 5, 6)));
void schema_no_memory(struct schema_state *s);

/* --- schema_places.c: paths, $id, $ref ------------------------------------------------------------------------------ */
void schema_find_places(struct schema_state *s);
/* "#/properties/a"; "#" when v is none. */
void schema_path(const struct schema_state *s, const json_t *v, char *out, size_t cap);
/* A rewritten schema stands where its source does. */
void schema_alias(struct schema_state *s, const json_t *rewritten, const json_t *source);
/* What a $ref of schema refers to; NULL: failed. */
const json_t *schema_resolve(struct schema_state *s, const json_t *schema, const char *ref);

/* --- schema_rules.c: conjunctions ----------------------------------------------------------------------------------- */
void conj_add(struct schema_state *s, struct conj *c, const json_t *schema, bool negated);
void conj_copy(struct schema_state *s, struct conj *to, const struct conj *from);
void conj_deinit(struct conj *c);
/* The rule of values that satisfy all of c; c is emptied. */
grammar_node schema_rule(struct schema_state *s, struct conj *c);
grammar_node schema_rule_of(struct schema_state *s, const json_t *schema);

/* --- schema_expand.c ------------------------------------------------------------------------------------------------ */
/* Calls leaf for each way through c's applicators, until it returns false. */
void schema_expand(struct schema_state *s, const struct conj *c, bool (*leaf)(void *arg, const struct conj *c),
                   void *arg);
/* true: evidently no value satisfies all of c. false: perhaps one does. */
bool schema_is_empty(struct schema_state *s, const struct conj *c, uint32_t depth);
/* The types that items of a leaf allow by "type" alone; that one schema does. */
unsigned schema_types(struct schema_state *s, const struct conj *leaf);
unsigned schema_own_types(struct schema_state *s, const json_t *schema);
/* The keywords of a leaf's item that are left to obey; NULL: it has none (negated, rewritten, a boolean). */
static inline const json_t *schema_keywords(const struct item *i)
{
    return i->negated || (i->handled & HANDLED_HIDDEN) || !json_is_object(i->schema) ? NULL : i->schema;
}

/* --- schema_negate.c: rewritten schemas, kept ------------------------------------------------------------------------ */
/* Schemas one of which holds just when schema does not (an array); NULL: failed, or probing and unknown. */
const json_t *schema_negations(struct schema_state *s, const json_t *schema);
/* Schemas that all hold just when if/then/else and the dependencies of schema do; NULL: failed. */
const json_t *schema_conditions(struct schema_state *s, const json_t *schema);

/* --- schema_check.c ------------------------------------------------------------------------------------------------- */
/* Whether a value satisfies a schema. */
bool schema_accepts(struct schema_state *s, const json_t *schema, const json_t *value);
bool schema_equal(const json_t *a, const json_t *b); /* 1 and 1.0 are equal, members have no order */
/* The values that a leaf lists (enum, const), if it does: those that satisfy all of it; a new array. NULL: it lists none. */
json_t *schema_listed(struct schema_state *s, const struct conj *leaf);
bool schema_pattern_matches(struct schema_state *s, const json_t *schema, const char *pattern, size_t n_pattern,
                            const char *text, size_t n);

/* --- values by type: of a leaf; the node of those of one type, 0 after a failure ------------------------------------- */
grammar_node schema_leaf(struct schema_state *s, const struct conj *leaf); /* of all types */
grammar_node schema_string(struct schema_state *s, const struct conj *leaf);
/* The inside of strings that satisfy c, canonical and regular. */
grammar_node schema_names(struct schema_state *s, const struct conj *c);
grammar_node schema_number(struct schema_state *s, const struct conj *leaf, unsigned types);
grammar_node schema_array(struct schema_state *s, const struct conj *leaf);
grammar_node schema_object(struct schema_state *s, const struct conj *leaf);
/* What the value of a member of that name, or the element at that index, must satisfy: added to c. false: no value can. */
bool schema_member(struct schema_state *s, const struct conj *leaf, const char *name, size_t n, struct conj *c);
bool schema_element(struct schema_state *s, const struct conj *leaf, size_t index, struct conj *c);
/* A format of strings (schema_format.c): a regular expression, appended to `regex`; or a note, such as "int32", that does
 * not say which strings they are. max: the longest that is allowed. *longest: of the expression's texts, where it is
 * known to be at most max; otherwise unchanged. */
enum format_kind { FORMAT_UNKNOWN, FORMAT_REGEX, FORMAT_NOTE };
enum format_kind schema_format(const char *name, uint32_t max, struct buf *regex, uint32_t *longest);

/* A count (minLength ..): at most UINT32_MAX - 1; false: there is none. Fails if it is no count. */
bool schema_count(struct schema_state *s, const json_t *schema, const char *keyword, uint32_t *out);
/* true, false and objects are schemas. */
bool schema_is_one(const json_t *v);
