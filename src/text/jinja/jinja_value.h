/* text/jinja/jinja_value.h - the values of a rendering: Python's types, by value, with their contents in the rendering's
 * arena.
 *
 *     struct jval  16 bytes: kind + number or pointer; copied freely
 *     jstr         bytes (UTF-8) + cached code point count and hash; never changed once made
 *     jlist        list, tuple, view of a dict, or the result of a generator (items not yet taken)
 *     jdict        entries in insertion order + a hash index
 *
 * Thread  the rendering's. Constants of a compiled template are shared: their caches are filled when compiled.
 * Errors  what can fail takes the rendering (jinja_run.h) and returns its status.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"

struct jrun;
struct jnode;
struct jscope;

enum jkind {
    J_MISSING, /* an argument that was not given; never seen by a template */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_BIG, /* an int beyond 64 bits, in digits: it can be passed on and compared, not computed with */
    J_STR,
    J_LIST,
    J_TUPLE,
    J_VIEW,
    J_GEN, /* all struct jlist */
    J_DICT,
    J_RANGE,
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_FUNC,
    J_METHOD,
    J_CYCLER,
    J_JOINER
};

struct jstr {
    const char *s;
    size_t n;
    size_t n_chars; /* SIZE_MAX: not counted yet */
    uint32_t hash;  /* 0: not computed yet */
    bool safe;      /* Markup: made by `safe` or `escape`; + escapes the other side */
};

struct jval {
    enum jkind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s; /* J_STR, J_BIG */
        struct jlist *list;
        struct jdict *dict; /* J_DICT, J_NAMESPACE */
        struct jrange *range;
        struct jundef *undef; /* may be NULL */
        struct jloop *loop;
        struct jmacro *macro;
        const struct jglobal *func;
        struct jmethod *method;
        struct jcycler *cycler;
        struct jjoiner *joiner;
    };
};

struct jlist {
    struct jval *items;
    size_t n, cap;
    char view;
}; /* view: k(eys), v(alues), i(tems); g(roup) */
struct jentry {
    struct jval key, value;
};
struct jdict {
    struct jentry *entries;
    size_t n, cap;
    uint32_t *index;
    size_t n_index;
}; /* index: entry + 1, 0 = free */
struct jrange {
    int64_t start, step, n, stop; /* stop: as it was given, for repr() */
};
struct jundef {
    struct jstr *name;
    struct jval owner;
    bool has_owner;
    bool unsafe; /* there is such an attribute, but the sandbox keeps it away */
};
struct jmacro {
    const struct jnode *node;
    struct jscope *scope;
    bool autoescape; /* where it was defined */
};
struct jmethod {
    struct jval self;
    struct jstr *name;
};
struct jcycler {
    struct jlist *list;
    size_t pos;
};
struct jjoiner {
    struct jval sep;
    bool used;
};
struct jloop {
    struct jval *items;
    size_t n, i;
    uint32_t depth;
    const struct jnode *node; /* a recursive loop: what loop(x) runs again */
    struct jscope *scope;
    struct jval last_changed; /* loop.changed(): a tuple, or missing */
};

static inline struct jval jval_none(void)
{
    return (struct jval){.kind = J_NONE};
}
static inline struct jval jval_bool(bool b)
{
    return (struct jval){.kind = J_BOOL, .b = b};
}
static inline struct jval jval_int(int64_t i)
{
    return (struct jval){.kind = J_INT, .i = i};
}
static inline struct jval jval_float(double f)
{
    return (struct jval){.kind = J_FLOAT, .f = f};
}
static inline struct jval jval_undef(void)
{
    return (struct jval){.kind = J_UNDEF, .undef = NULL};
}
static inline bool jval_is_int(struct jval v)
{
    return v.kind == J_INT || v.kind == J_BOOL;
}
static inline bool jval_is_number(struct jval v)
{
    return jval_is_int(v) || v.kind == J_FLOAT;
}
static inline bool jval_is_list(struct jval v)
{
    return v.kind >= J_LIST && v.kind <= J_GEN;
}
static inline int64_t jval_to_int(struct jval v)
{
    return v.kind == J_BOOL ? v.b : v.i;
}
static inline double jval_to_float(struct jval v)
{
    return v.kind == J_FLOAT ? v.f : (double)jval_to_int(v);
}
static inline bool jstr_is(const struct jstr *s, const char *text)
{
    return s->n == __builtin_strlen(text) && !__builtin_memcmp(s->s, text, s->n);
}

/* ---- making values ---- */
rd_status jval_str(struct jrun *r, const char *s, size_t n, struct jval *out); /* copies */
rd_status jval_str_view(struct jrun *r, const char *s, size_t n,
                        struct jval *out); /* borrows: outlives the rendering */
rd_status jval_list(struct jrun *r, enum jkind kind, size_t cap, struct jval *out); /* empty, room for cap */
rd_status jlist_push(struct jrun *r, struct jlist *l, struct jval v);
rd_status jval_pair(struct jrun *r, struct jval a, struct jval b, struct jval *out); /* a tuple of two */
rd_status jval_dict(struct jrun *r, struct jval *out);
rd_status jdict_set(struct jrun *r, struct jdict *d, struct jval key, struct jval value);
/* *found: the entry, or NULL; fails when the key is not hashable. Valid until the dict changes. */
rd_status jdict_find(struct jrun *r, struct jdict *d, struct jval key, struct jentry **found);
struct jentry *jdict_find_text(struct jdict *d, const char *s, size_t n);
void jdict_remove(struct jdict *d, struct jentry *e);

/* ---- looking at values ---- */
bool jval_truth(struct jval v);
const char *jval_type_name(struct jval v); /* Python's: "str", "dict", "NoneType" */
uint32_t jstr_hash(struct jstr *s);
size_t jstr_n_chars(struct jrun *r, struct jstr *s);
/* Byte offset of code point i (i <= n_chars). */
size_t jstr_offset(struct jrun *r, struct jstr *s, size_t i);
/* The items of anything iterable: *items is valid until the object changes; a J_GEN is empty afterwards. */
rd_status jval_iterate(struct jrun *r, struct jval v, struct jval **items, size_t *n);
/* len(): fails for what has none. */
rd_status jval_length(struct jrun *r, struct jval v, size_t *n);
rd_status jval_equal(struct jrun *r, struct jval a, struct jval b, bool *out);
/* Python's < as -1, 0, 1; fails for types without order, naming op. */
rd_status jval_compare(struct jrun *r, struct jval a, struct jval b, const char *op, int *out);
/* item in container */
rd_status jval_contains(struct jrun *r, struct jval container, struct jval item, bool *out);

/* ---- text (jinja_text.c) ---- */
/* str(v) and repr(v). */
rd_status jval_to_str(struct jrun *r, struct jval v, struct jstr **out);
rd_status jval_repr(struct jrun *r, struct jval v, struct jstr **out);
/* Python's repr of a double, at most 32 bytes with the 0. Returns its length. */
size_t jinja_format_double(double f, char *out);
struct jjson_style {
    struct jval indent, item_sep, key_sep;
    bool ascii, sort_keys;
}; /* J_MISSING: the default */
rd_status jval_to_json(struct jrun *r, struct jval v, const struct jjson_style *style, struct jval *out);
rd_status jval_escape(struct jrun *r, struct jval v, struct jval *out); /* HTML, safe */
