/* text/jinja/jinja_tests.c - what stands after `is`. */
#include <math.h>
#include <string.h>
#include <utf8proc.h>
#include "base/error.h"
#include "text/jinja/jinja_run.h"

static rd_status t_defined(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind != J_UNDEF;
    return RD_OK;
}
static rd_status t_undefined(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_UNDEF;
    return RD_OK;
}
static rd_status t_none(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_NONE;
    return RD_OK;
}
static rd_status t_string(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_STR;
    return RD_OK;
}
static rd_status t_number(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = jval_is_number(v) || v.kind == J_BIG;
    return RD_OK;
}
static rd_status t_integer(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_INT || v.kind == J_BIG;
    return RD_OK;
}
static rd_status t_float(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_FLOAT;
    return RD_OK;
}
static rd_status t_boolean(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_BOOL;
    return RD_OK;
}
static rd_status t_true(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_BOOL && v.b;
    return RD_OK;
}
static rd_status t_false(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_BOOL && !v.b;
    return RD_OK;
}
static rd_status t_mapping(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_DICT;
    return RD_OK;
}

static rd_status t_iterable(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_UNDEF || v.kind == J_STR || jval_is_list(v) || v.kind == J_DICT || v.kind == J_RANGE ||
           v.kind == J_LOOP;
    return RD_OK;
}

static rd_status t_sequence(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_UNDEF || v.kind == J_STR || v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_DICT ||
           v.kind == J_RANGE;
    return RD_OK;
}

static rd_status t_callable(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_UNDEF || v.kind == J_MACRO || v.kind == J_FUNC || v.kind == J_METHOD || v.kind == J_LOOP ||
           v.kind == J_JOINER;
    return RD_OK;
}

static rd_status remainder_is(struct jrun *r, struct jval v, struct jval by, int64_t want, bool *out)
{
    struct jval left;
    rd_status st = jinja_binary(r, T_MOD, v, by, &left);

    return st == RD_OK ? jval_equal(r, left, jval_int(want), out) : st;
}

static rd_status t_odd(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return remainder_is(r, v, jval_int(2), 1, out);
}
static rd_status t_even(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return remainder_is(r, v, jval_int(2), 0, out);
}
static rd_status t_divisibleby(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return remainder_is(r, v, c->v[0], 0, out);
}

static rd_status t_eq(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return jval_equal(r, v, c->v[0], out);
}
static rd_status t_ne(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    rd_status st = jval_equal(r, v, c->v[0], out);

    *out = !*out;
    return st;
}

static rd_status ordered(struct jrun *r, struct jval a, struct jval b, const char *op, int want, bool or_equal,
                         bool *out)
{
    int order = 0;
    rd_status st = jval_compare(r, a, b, op, &order);

    *out = order == want || (or_equal && order == 0);
    return st;
}

static rd_status t_lt(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return ordered(r, v, c->v[0], "<", -1, false, out);
}
static rd_status t_le(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return ordered(r, v, c->v[0], "<=", -1, true, out);
}
static rd_status t_gt(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return ordered(r, v, c->v[0], ">", 1, false, out);
}
static rd_status t_ge(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return ordered(r, v, c->v[0], ">=", 1, true, out);
}
static rd_status t_in(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return jval_contains(r, c->v[0], v, out);
}

static rd_status t_sameas(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    struct jval w = c->v[0];

    *out = v.kind == w.kind &&
           (v.kind == J_NONE || (v.kind == J_BOOL && v.b == w.b) || (v.kind == J_INT && v.i == w.i) ||
            (v.kind == J_STR && v.s->n == w.s->n && !memcmp(v.s->s, w.s->s, v.s->n)) || (v.kind > J_STR && v.s == w.s));
    return RD_OK;
}

/* str.islower and isupper: a letter with case, and none of the other case. */
static rd_status all_case(struct jrun *r, struct jval v, utf8proc_category_t want, bool *out)
{
    struct jstr *s;
    bool any = false, other = false;
    rd_status st = jval_to_str(r, v, &s);

    for (size_t i = 0; st == RD_OK && i < s->n;) {
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)jinja_next_cp(s->s, s->n, &i));
        any |= k == want;
        other |= k != want && (k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT);
    }
    *out = any && !other;
    return st == RD_OK ? jrun_pay(r, s->n / 8) : st;
}

static rd_status t_lower(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return all_case(r, v, UTF8PROC_CATEGORY_LL, out);
}
static rd_status t_upper(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    return all_case(r, v, UTF8PROC_CATEGORY_LU, out);
}
static rd_status t_escaped(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_STR && v.s->safe;
    return RD_OK;
}
static rd_status t_filter(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_STR && jinja_find_filter(v.s);
    return RD_OK;
}
static rd_status t_test(struct jrun *r, struct jval v, struct jcall *c, bool *out)
{
    *out = v.kind == J_STR && jinja_find_test(v.s);
    return RD_OK;
}

/* A test with a parameter needs it. */
static const struct jtest tests[] = {
    {"defined", t_defined, ""},
    {"undefined", t_undefined, ""},
    {"none", t_none, ""},
    {"string", t_string, ""},
    {"number", t_number, ""},
    {"integer", t_integer, ""},
    {"float", t_float, ""},
    {"boolean", t_boolean, ""},
    {"true", t_true, ""},
    {"false", t_false, ""},
    {"mapping", t_mapping, ""},
    {"iterable", t_iterable, ""},
    {"sequence", t_sequence, ""},
    {"callable", t_callable, ""},
    {"odd", t_odd, ""},
    {"even", t_even, ""},
    {"divisibleby", t_divisibleby, "num"},
    {"eq", t_eq, "b"},
    {"equalto", t_eq, "b"},
    {"==", t_eq, "b"},
    {"ne", t_ne, "b"},
    {"!=", t_ne, "b"},
    {"lt", t_lt, "b"},
    {"lessthan", t_lt, "b"},
    {"<", t_lt, "b"},
    {"le", t_le, "b"},
    {"<=", t_le, "b"},
    {"gt", t_gt, "b"},
    {"greaterthan", t_gt, "b"},
    {">", t_gt, "b"},
    {"ge", t_ge, "b"},
    {">=", t_ge, "b"},
    {"in", t_in, "seq"},
    {"sameas", t_sameas, "other"},
    {"lower", t_lower, ""},
    {"upper", t_upper, ""},
    {"escaped", t_escaped, ""},
    {"filter", t_filter, ""},
    {"test", t_test, ""},
};

const struct jtest *jinja_find_test(const struct jstr *name)
{
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        if (jstr_is(name, tests[i].name)) return &tests[i];
    return NULL;
}

rd_status jinja_test(struct jrun *r, struct jstr *name, struct jval in, const struct jargs *args, bool *out)
{
    const struct jtest *t = jinja_find_test(name);
    struct jcall call;
    char text[64];
    rd_status st;

    if (!t) return jrun_fail(r, "No test named '%s'.", error_quote(text, sizeof(text), name->s, name->n));
    if ((st = jcall_bind(r, t->name, t->signature, args, &call)) != RD_OK) return st;
    if (t->signature[0] && call.v[0].kind == J_MISSING) return jrun_fail(r, "the test '%s' needs an argument", t->name);
    return t->fn(r, in, &call, out);
}
