/* text/jinja/jinja_run.h - one rendering: its limits, scopes, output, and the tables of what a template can call.
 * Thread  the rendering's.
 */
#pragma once
#include <jansson.h>
#include "base/arena.h"
#include "base/buf.h"
#include "text/jinja/jinja_ast.h"

struct jvar {
    struct jstr *name;
    struct jval value;
};
struct jscope {
    struct jscope *parent;
    struct jvar *vars;
    size_t n, cap;
};

enum jflow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

struct jrun {
    struct arena arena;
    struct jdict *context;
    struct jscope *scope; /* innermost */
    struct buf *out;
    enum jflow flow;
    uint64_t fuel;          /* steps left */
    uint32_t frames, calls; /* nesting of nodes; of macros, recursive loops, nested values */
    uint32_t n_random;      /* draws of the filter `random` */
    bool autoescape;        /* inside {% autoescape true %} */
    int line;
    int64_t now_s;
    struct rd_error *err;
};

/* Arguments of a call. names[i] belongs to kwargs[i]. */
struct jargs {
    struct jval *v;
    size_t n;
    struct jstr **names;
    struct jval *kw;
    size_t n_kw;
};

struct jcall;

/* ---- limits and errors ---- */
rd_status jrun_fail(struct jrun *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
rd_status jrun_limit(struct jrun *r, const char *what);
/* Pays steps of work; RD_E_LIMIT when none are left. */
rd_status jrun_pay(struct jrun *r, uint64_t steps);
/* Zeroed arena memory, paid by its size. *out is a pointer to a pointer. */
rd_status jrun_alloc(struct jrun *r, size_t n, size_t size, void *out);
rd_status jrun_enter_call(struct jrun *r); /* undone with r->calls-- */
/* Appends to the output, paid by its size. */
rd_status jrun_write(struct jrun *r, const char *s, size_t n);
/* n times c; unpaid. */
static inline void jbuf_fill(struct buf *b, char c, int64_t n)
{
    char block[64];

    __builtin_memset(block, c, sizeof(block));
    for (; n > 0 && !b->failed; n -= (int64_t)sizeof(block)) buf_append(b, block, n < 64 ? (size_t)n : sizeof(block));
}
/* A buffer's text as a string value; the buffer is freed in any case. st: what filled it. */
rd_status jrun_take_buf(struct jrun *r, struct buf *b, rd_status st, struct jval *out);
rd_status jrun_undefined(struct jrun *r, struct jval v); /* fails with why v is undefined */

/* ---- jinja_eval.c ---- */
rd_status jinja_eval(struct jrun *r, const struct jnode *n, struct jval *out);
rd_status jinja_get_attr(struct jrun *r, struct jval v, struct jstr *name, struct jval *out);
rd_status jinja_get_item(struct jrun *r, struct jval v, struct jval key, struct jval *out);
rd_status jinja_call(struct jrun *r, struct jval f, const struct jargs *args, struct jval *out);
/* ---- jinja_ops.c ---- */
rd_status jinja_binary(struct jrun *r, enum jtoken_kind op, struct jval a, struct jval b, struct jval *out);
rd_status jinja_negate(struct jrun *r, struct jval a, struct jval *out);
rd_status jinja_slice(struct jrun *r, struct jval v, struct jval start, struct jval stop, struct jval step,
                      struct jval *out);
/* "%s" % args */
rd_status jinja_percent(struct jrun *r, struct jstr *format, const struct jargs *args, struct jval *out);
/* ---- jinja_str_format.c: str.format and str.format_map, as methods ---- */
rd_status jinja_format(struct jrun *r, struct jval in, struct jcall *c, struct jval *out);
rd_status jinja_format_map(struct jrun *r, struct jval in, struct jcall *c, struct jval *out);
/* ---- jinja_exec.c ---- */
rd_status jinja_exec(struct jrun *r, const struct jnode *chain);
rd_status jinja_call_macro(struct jrun *r, struct jmacro *m, const struct jargs *args, struct jval *out);
rd_status jinja_call_loop(struct jrun *r, struct jloop *loop, const struct jargs *args, struct jval *out);
rd_status jscope_set(struct jrun *r, struct jstr *name, struct jval v);

/* ---- tables: a signature names the parameters ("width,first"); "*" takes the arguments as they are, in v[0..n) ----
 */
struct jcall {
    const struct jargs *args;
    struct jval v[6];
}; /* v: bound parameters, J_MISSING when not given */
rd_status jcall_bind(struct jrun *r, const char *what, const char *signature, const struct jargs *args,
                     struct jcall *call);
typedef rd_status (*jfilter_fn)(struct jrun *r, struct jval in, struct jcall *c, struct jval *out);
typedef rd_status (*jtest_fn)(struct jrun *r, struct jval in, struct jcall *c, bool *out);
struct jfilter {
    const char *name;
    jfilter_fn fn;
    const char *signature;
};
struct jtest {
    const char *name;
    jtest_fn fn;
    const char *signature;
};
struct jglobal {
    const char *name;
    jfilter_fn fn;
    const char *signature;
};
/* NULL when there is none. */
const struct jfilter *jinja_find_filter(const struct jstr *name);
const struct jtest *jinja_find_test(const struct jstr *name);
const struct jglobal *jinja_find_global(const struct jstr *name);
rd_status jinja_filter(struct jrun *r, struct jstr *name, struct jval in, const struct jargs *args, struct jval *out);
rd_status jinja_test(struct jrun *r, struct jstr *name, struct jval in, const struct jargs *args, bool *out);
/* Each kind of filter in its file; tables end with a NULL name. */
extern const struct jfilter jinja_text_filters[], jinja_list_filters[], jinja_layout_filters[], jinja_html_filters[];
/* ---- methods: has says whether kind has one of that name ---- */
bool jinja_has_method(struct jval self, const struct jstr *name);
/* A method that would change its list or dict: there, but closed, as in jinja2's ImmutableSandboxedEnvironment. */
bool jinja_is_mutator(struct jval self, const struct jstr *name);
rd_status jinja_call_method(struct jrun *r, struct jmethod *m, const struct jargs *args, struct jval *out);
extern const struct jfilter jinja_str_methods[], jinja_list_methods[], jinja_dict_methods[];
/* ---- values from JSON (jinja_text.c) ---- */
rd_status jval_from_json(struct jrun *r, const json_t *j, struct jval *out);

/* ---- helpers for filters and methods ---- */
/* The text of an argument, or its default when missing or (none_ok) None; fails for other types, naming what. */
rd_status jarg_str(struct jrun *r, struct jval v, const char *what, const char *missing, struct jstr **out);
rd_status jarg_int(struct jrun *r, struct jval v, const char *what, int64_t missing, int64_t *out);
/* Python's float(text): false when it is none. */
bool jinja_read_float(struct jrun *r, struct jstr *s, double *out);
/* str.splitlines and str.split, as methods. */
rd_status jinja_splitlines(struct jrun *r, struct jval in, struct jcall *c, struct jval *out);
rd_status jinja_split(struct jrun *r, struct jval in, struct jcall *c, struct jval *out);
/* Sorts stably by keys (merge sort), moving items along. */
rd_status jinja_sort(struct jrun *r, struct jval *keys, struct jval *items, size_t n, bool descending);
/* a.b.0 as map, sort and groupby read it; fallback (may be J_MISSING) stands for each part that is undefined. */
rd_status jinja_path(struct jrun *r, struct jval v, struct jval path, struct jval fallback, struct jval *out);
/* lower() and its like, by code point. */
enum jcase { CASE_LOWER, CASE_UPPER, CASE_CAPITALIZE, CASE_TITLE, CASE_SWAP, CASE_FOLD };
rd_status jinja_case(struct jrun *r, struct jstr *s, enum jcase how, struct jval *out);
bool jinja_is_space(uint32_t cp);
bool jinja_is_word(uint32_t cp);      /* a letter, a digit or _ */
bool jinja_is_printable(uint32_t cp); /* repr() writes it as it is */
int jinja_digit(uint32_t cp);         /* the value of a decimal digit of any script; -1: none */
/* Code point at s[*i], which moves on; invalid bytes count as one each. */
uint32_t jinja_next_cp(const char *s, size_t n, size_t *i);
/* First byte position of needle in s[from..), or SIZE_MAX. */
size_t jinja_find_bytes(const char *s, size_t n, size_t from, const char *needle, size_t n_needle);
/* strip: sides 1 left, 2 right; chars NULL: white space. */
rd_status jinja_strip(struct jrun *r, struct jstr *s, struct jstr *chars, int sides, struct jval *out);
rd_status jinja_replace(struct jrun *r, struct jstr *s, struct jstr *old, struct jstr *new_text, int64_t count,
                        struct jval *out);
