/* text/jinja/jinja_eval.c - expressions to values. */
#include <string.h>
#include "base/error.h"
#include "base/limits.h"
#include "text/jinja/jinja_run.h"

#define SPREAD_MAX 4096u /* arguments that *list may add to a call */

static rd_status eval_name(struct jrun *r, struct jstr *name, struct jval *out)
{
    const struct jglobal *g;
    struct jentry *e;
    struct jval key = {.kind = J_STR, .s = name};
    rd_status st;

    for (const struct jscope *s = r->scope; s; s = s->parent) {
        if ((st = jrun_pay(r, s->n / 8)) != RD_OK) return st;
        for (size_t i = s->n; i-- > 0;) {
            const struct jstr *other = s->vars[i].name;
            if (other->hash != name->hash || other->n != name->n || memcmp(other->s, name->s, name->n)) continue;
            *out = s->vars[i].value;
            return RD_OK;
        }
    }
    if ((st = jdict_find(r, r->context, key, &e)) != RD_OK) return st;
    if (e) {
        *out = e->value;
        return RD_OK;
    }
    if ((g = jinja_find_global(name))) {
        *out = (struct jval){.kind = J_FUNC, .func = g};
        return RD_OK;
    }
    *out = jval_undef();
    if ((st = jrun_alloc(r, 1, sizeof(*out->undef), &out->undef)) == RD_OK) out->undef->name = name;
    return st;
}

/* An undefined value that remembers owner and name, for the message of whoever uses it. */
static rd_status undefined_of(struct jrun *r, struct jval owner, struct jval key, struct jval *out)
{
    struct jundef *u;
    rd_status st = jrun_alloc(r, 1, sizeof(*u), &u);

    if (st != RD_OK) return st;
    u->owner = owner;
    u->has_owner = true;
    if ((st = jval_to_str(r, key, &u->name)) != RD_OK) return st;
    *out = (struct jval){.kind = J_UNDEF, .undef = u};
    return RD_OK;
}

rd_status jrun_undefined(struct jrun *r, struct jval v)
{
    char name[128];

    if (!v.undef || !v.undef->name) return jrun_fail(r, "the value is undefined");
    error_quote(name, sizeof(name), v.undef->name->s, v.undef->name->n);
    if (v.undef->unsafe)
        return jrun_fail(r, "access to attribute '%s' of '%s' object is unsafe", name, jval_type_name(v.undef->owner));
    if (!v.undef->has_owner) return jrun_fail(r, "'%s' is undefined", name);
    return jrun_fail(r, "'%s' object has no attribute or element '%s'", jval_type_name(v.undef->owner), name);
}

static bool loop_attr(const struct jloop *l, const struct jstr *name, struct jval *out)
{
    if (jstr_is(name, "index"))
        *out = jval_int((int64_t)l->i + 1);
    else if (jstr_is(name, "index0"))
        *out = jval_int((int64_t)l->i);
    else if (jstr_is(name, "revindex"))
        *out = jval_int((int64_t)(l->n - l->i));
    else if (jstr_is(name, "revindex0"))
        *out = jval_int((int64_t)(l->n - l->i) - 1);
    else if (jstr_is(name, "first"))
        *out = jval_bool(l->i == 0);
    else if (jstr_is(name, "last"))
        *out = jval_bool(l->i + 1 == l->n);
    else if (jstr_is(name, "length"))
        *out = jval_int((int64_t)l->n);
    else if (jstr_is(name, "depth"))
        *out = jval_int((int64_t)l->depth + 1);
    else if (jstr_is(name, "depth0"))
        *out = jval_int(l->depth);
    else if (jstr_is(name, "previtem") && l->i > 0)
        *out = l->items[l->i - 1];
    else if (jstr_is(name, "nextitem") && l->i + 1 < l->n)
        *out = l->items[l->i + 1];
    else
        return false;
    return true;
}

/* What a macro says about itself; its arguments (missing here) are made by macro_arguments. */
static bool macro_attr(const struct jmacro *m, const struct jstr *name, struct jval *out)
{
    if (jstr_is(name, "name"))
        *out = m->node->name ? (struct jval){.kind = J_STR, .s = m->node->name} : jval_none();
    else if (jstr_is(name, "arguments"))
        *out = (struct jval){.kind = J_MISSING};
    else if (jstr_is(name, "catch_kwargs"))
        *out = jval_bool(m->node->op & MACRO_KWARGS);
    else if (jstr_is(name, "catch_varargs"))
        *out = jval_bool(m->node->op & MACRO_VARARGS);
    else if (jstr_is(name, "caller"))
        *out = jval_bool(m->node->op & MACRO_CALLER);
    else
        return false;
    return true;
}

static rd_status macro_arguments(struct jrun *r, const struct jmacro *m, struct jval *out)
{
    rd_status st = jval_list(r, J_TUPLE, m->node->n_items, out);

    for (const struct jnode *p = m->node->items; st == RD_OK && p; p = p->next)
        st = jlist_push(r, out->list, (struct jval){.kind = J_STR, .s = p->name});
    return st;
}

static bool number_attr(struct jval v, const struct jstr *name, struct jval *out)
{
    bool whole = v.kind != J_FLOAT;

    if (jstr_is(name, "real") || (whole && jstr_is(name, "numerator")))
        *out = whole ? jval_int(jval_to_int(v)) : v;
    else if (jstr_is(name, "imag"))
        *out = whole ? jval_int(0) : jval_float(0);
    else if (whole && jstr_is(name, "denominator"))
        *out = jval_int(1);
    else
        return false;
    return true;
}

static bool range_attr(const struct jrange *v, const struct jstr *name, struct jval *out)
{
    if (jstr_is(name, "start"))
        *out = jval_int(v->start);
    else if (jstr_is(name, "stop"))
        *out = jval_int(v->stop);
    else if (jstr_is(name, "step"))
        *out = jval_int(v->step);
    else
        return false;
    return true;
}

/* Attributes that are no entries: fields of loops and namespaces, methods. */
static rd_status own_attr(struct jrun *r, struct jval v, struct jstr *name, struct jval *out, bool *found)
{
    struct jval key = {.kind = J_STR, .s = name};
    struct jentry *e;
    rd_status st;

    *found = false;
    if (v.kind == J_LOOP) {
        *found = loop_attr(v.loop, name, out);
        if (*found) return RD_OK;
    } else if (v.kind == J_NAMESPACE) {
        if ((st = jdict_find(r, v.dict, key, &e)) != RD_OK) return st;
        *found = e != NULL;
        if (e) *out = e->value;
        return RD_OK;
    } else if (v.kind == J_CYCLER && jstr_is(name, "current")) {
        *out = v.cycler->list->items[v.cycler->pos];
        *found = true;
        return RD_OK;
    }
    if (v.kind == J_MACRO && macro_attr(v.macro, name, out)) {
        *found = true;
        if (out->kind == J_MISSING) return macro_arguments(r, v.macro, out);
        return RD_OK;
    }
    if (jval_is_number(v) && number_attr(v, name, out)) {
        *found = true;
        return RD_OK;
    }
    if (v.kind == J_RANGE && range_attr(v.range, name, out)) {
        *found = true;
        return RD_OK;
    }
    if (v.kind == J_TUPLE && v.list->view == 'g' && (jstr_is(name, "grouper") || jstr_is(name, "list"))) {
        *out = v.list->items[jstr_is(name, "list")];
        *found = true;
        return RD_OK;
    }
    if (jinja_is_mutator(v, name)) {
        *found = true;
        if ((st = undefined_of(r, v, key, out)) == RD_OK) out->undef->unsafe = true;
        return st;
    }
    if (!jinja_has_method(v, name)) return RD_OK;
    *found = true;
    out->kind = J_METHOD;
    if ((st = jrun_alloc(r, 1, sizeof(*out->method), &out->method)) != RD_OK) return st;
    *out->method = (struct jmethod){v, name};
    return RD_OK;
}

static rd_status refuse_private(struct jrun *r, struct jval v, const struct jstr *name)
{
    char text[128];

    return jrun_fail(r, "access to attribute '%s' of '%s' object is unsafe",
                     error_quote(text, sizeof(text), name->s, name->n), jval_type_name(v));
}

rd_status jinja_get_attr(struct jrun *r, struct jval v, struct jstr *name, struct jval *out)
{
    struct jval key = {.kind = J_STR, .s = name};
    struct jentry *e;
    bool found;
    rd_status st;

    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if ((st = own_attr(r, v, name, out, &found)) != RD_OK || found) return st;
    if (v.kind == J_DICT) {
        if ((st = jdict_find(r, v.dict, key, &e)) != RD_OK) return st;
        if (e) {
            *out = e->value;
            return RD_OK;
        }
    }
    if (name->n >= 2 && name->s[0] == '_' && name->s[1] == '_') return refuse_private(r, v, name);
    return undefined_of(r, v, key, out);
}

/* Index i of n, negative from the end. */
static bool in_range(int64_t i, size_t n, size_t *out)
{
    if (i < 0) i += (int64_t)n;
    *out = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

rd_status jinja_get_item(struct jrun *r, struct jval v, struct jval key, struct jval *out)
{
    struct jentry *e = NULL;
    size_t i, from;
    bool found;
    rd_status st;

    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if (v.kind == J_DICT) {
        if (key.kind != J_LIST && key.kind != J_DICT && (st = jdict_find(r, v.dict, key, &e)) != RD_OK) return st;
        if (e) {
            *out = e->value;
            return RD_OK;
        }
    } else if (jval_is_int(key)) {
        if ((v.kind == J_LIST || v.kind == J_TUPLE) && in_range(jval_to_int(key), v.list->n, &i)) {
            *out = v.list->items[i];
            return RD_OK;
        }
        if (v.kind == J_STR && in_range(jval_to_int(key), jstr_n_chars(r, v.s), &i)) {
            from = jstr_offset(r, v.s, i);
            i = from;
            jinja_next_cp(v.s->s, v.s->n, &i);
            if ((st = jval_str_view(r, v.s->s + from, i - from, out)) == RD_OK) out->s->safe = v.s->safe;
            return st;
        }
        if (v.kind == J_RANGE && in_range(jval_to_int(key), (size_t)v.range->n, &i)) {
            *out = jval_int(v.range->start + (int64_t)i * v.range->step);
            return RD_OK;
        }
    }
    if (key.kind == J_STR) {
        if ((st = own_attr(r, v, key.s, out, &found)) != RD_OK || found) return st;
        if (key.s->n >= 2 && key.s->s[0] == '_' && key.s->s[1] == '_') return refuse_private(r, v, key.s);
    }
    return undefined_of(r, v, key, out);
}

static rd_status eval_item(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v, part[3] = {{.kind = J_NONE}, {.kind = J_NONE}, {.kind = J_NONE}};
    rd_status st = jinja_eval(r, n->a, &v);

    if (st != RD_OK) return st;
    if (n->b->kind != N_SLICE) {
        if ((st = jinja_eval(r, n->b, &part[0])) != RD_OK) return st;
        return jinja_get_item(r, v, part[0], out);
    }
    if (n->b->a && (st = jinja_eval(r, n->b->a, &part[0])) != RD_OK) return st;
    if (n->b->b && (st = jinja_eval(r, n->b->b, &part[1])) != RD_OK) return st;
    if (n->b->c && (st = jinja_eval(r, n->b->c, &part[2])) != RD_OK) return st;
    r->line = n->line;
    if ((st = jinja_slice(r, v, part[0], part[1], part[2], out)) != RD_OK) return st;
    if (out->kind == J_UNDEF) return jrun_fail(r, "'%s' object cannot be cut by these bounds", jval_type_name(v));
    return RD_OK;
}

static rd_status eval_sequence(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    rd_status st = jval_list(r, n->kind == N_LIST ? J_LIST : J_TUPLE, n->n_items, out);

    for (const struct jnode *i = n->items; st == RD_OK && i; i = i->next)
        if ((st = jinja_eval(r, i, &v)) == RD_OK) st = jlist_push(r, out->list, v);
    return st;
}

static rd_status eval_dict(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval k, v;
    rd_status st = jval_dict(r, out);

    for (const struct jnode *i = n->items; st == RD_OK && i; i = i->next->next)
        if ((st = jinja_eval(r, i, &k)) == RD_OK && (st = jinja_eval(r, i->next, &v)) == RD_OK)
            st = jdict_set(r, out->dict, k, v);
    return st;
}

/* a ~ b: text; where everything is escaped, one safe part makes the whole safe and the others escaped. */
static rd_status eval_concat(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval parts;
    struct buf b;
    bool safe = false;
    struct jval v;
    rd_status st = jval_list(r, J_LIST, n->n_items, &parts);

    for (const struct jnode *i = n->items; st == RD_OK && i; i = i->next) {
        if ((st = jinja_eval(r, i, &v)) != RD_OK) return st;
        safe |= r->autoescape && v.kind == J_STR && v.s->safe;
        st = jlist_push(r, parts.list, v);
    }
    if (st != RD_OK) return st;
    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    for (size_t i = 0; st == RD_OK && i < parts.list->n; i++) {
        struct jstr *s;
        v = parts.list->items[i];
        if ((safe && (st = jval_escape(r, v, &v)) != RD_OK) || (st = jval_to_str(r, v, &s)) != RD_OK) break;
        buf_append(&b, s->s, s->n);
        st = jrun_pay(r, s->n / 24);
    }
    if ((st = jrun_take_buf(r, &b, st, out)) == RD_OK) out->s->safe = safe;
    return st;
}

static rd_status compare_once(struct jrun *r, enum jtoken_kind op, struct jval a, struct jval b, bool *out)
{
    static const char *const names[] = {">", ">=", "<", "<="};
    int c = 0;
    rd_status st;

    if (op == T_EQ || op == T_NE) {
        st = jval_equal(r, a, b, out);
        if (op == T_NE) *out = !*out;
        return st;
    }
    if (op == T_IN || op == T_NOT_IN) {
        st = jval_contains(r, b, a, out);
        if (op == T_NOT_IN) *out = !*out;
        return st;
    }
    if ((st = jval_compare(r, a, b, names[op - T_GT], &c)) != RD_OK) return st;
    *out = c == 2 ? false : op == T_GT ? c > 0 : op == T_GE ? c >= 0 : op == T_LT ? c < 0 : c <= 0;
    return RD_OK;
}

/* a < b < c: each operand once, stopping at the first false. */
static rd_status eval_compare(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval a, b;
    bool yes = true;
    rd_status st = jinja_eval(r, n->a, &a);

    for (const struct jnode *i = n->items; st == RD_OK && yes && i; i = i->next) {
        if ((st = jinja_eval(r, i->a, &b)) != RD_OK) return st;
        st = compare_once(r, (enum jtoken_kind)i->op, a, b, &yes);
        a = b;
    }
    *out = jval_bool(yes);
    return st;
}

static rd_status add_kwarg(struct jrun *r, struct jargs *args, size_t *cap, struct jstr *name, struct jval v)
{
    struct jstr **names;
    struct jval *kw;
    rd_status st;

    for (size_t i = 0; i < args->n_kw; i++)
        if (args->names[i]->n == name->n && !memcmp(args->names[i]->s, name->s, name->n))
            return jrun_fail(r, "a named argument is given twice");
    if (args->n_kw == *cap) {
        *cap = *cap ? *cap * 2 : 4;
        if ((st = jrun_alloc(r, *cap, sizeof(*names), &names)) != RD_OK ||
            (st = jrun_alloc(r, *cap, sizeof(*kw), &kw)) != RD_OK)
            return st;
        if (args->n_kw) {
            memcpy(names, args->names, args->n_kw * sizeof(*names));
            memcpy(kw, args->kw, args->n_kw * sizeof(*kw));
        }
        args->names = names;
        args->kw = kw;
    }
    args->names[args->n_kw] = name;
    args->kw[args->n_kw++] = v;
    return jrun_pay(r, args->n_kw);
}

static rd_status spread(struct jrun *r, enum jnode_kind kind, struct jval v, struct jlist *list, struct jargs *args,
                        size_t *cap)
{
    struct jval *items;
    size_t n;
    rd_status st = RD_OK;

    if (kind == N_STAR) {
        if ((st = jval_iterate(r, v, &items, &n)) != RD_OK) return st;
        if (n > SPREAD_MAX) return jrun_limit(r, "too many arguments");
        for (size_t i = 0; st == RD_OK && i < n; i++) st = jlist_push(r, list, items[i]);
        return st;
    }
    if (v.kind != J_DICT) return jrun_fail(r, "argument after ** must be a mapping, not %s", jval_type_name(v));
    if (v.dict->n > SPREAD_MAX) return jrun_limit(r, "too many arguments");
    for (size_t i = 0; st == RD_OK && i < v.dict->n; i++) {
        if (v.dict->entries[i].key.kind != J_STR) return jrun_fail(r, "keywords must be strings");
        st = add_kwarg(r, args, cap, v.dict->entries[i].key.s, v.dict->entries[i].value);
    }
    return st;
}

static rd_status eval_args(struct jrun *r, const struct jnode *call, struct jargs *args)
{
    struct jval list, v;
    size_t cap = 0;
    rd_status st;

    *args = (struct jargs){0};
    if (!call->items) return RD_OK;
    if ((st = jval_list(r, J_LIST, call->n_items, &list)) != RD_OK) return st;
    for (const struct jnode *i = call->items; st == RD_OK && i; i = i->next) {
        bool wrapped = i->kind == N_KWARG || i->kind == N_STAR || i->kind == N_STAR2;
        if ((st = jinja_eval(r, wrapped ? i->a : i, &v)) != RD_OK) return st;
        if (!wrapped)
            st = jlist_push(r, list.list, v);
        else if (i->kind == N_KWARG)
            st = add_kwarg(r, args, &cap, i->name, v);
        else
            st = spread(r, i->kind, v, list.list, args, &cap);
    }
    args->v = list.list->items;
    args->n = list.list->n;
    return st;
}

rd_status jcall_bind(struct jrun *r, const char *what, const char *signature, const struct jargs *args,
                     struct jcall *call)
{
    size_t n = 0;
    char name[64];

    *call = (struct jcall){.args = args};
    if (signature[0] == '*') return RD_OK;
    for (const char *s = signature; *s; n++) {
        size_t len = strcspn(s, ",");
        if (n < args->n) call->v[n] = args->v[n];
        for (size_t i = 0; i < args->n_kw; i++) {
            if (args->names[i]->n != len || memcmp(args->names[i]->s, s, len)) continue;
            if (n < args->n) return jrun_fail(r, "%s: argument '%.*s' is given twice", what, (int)len, s);
            call->v[n] = args->kw[i];
        }
        s += len + (s[len] == ',');
    }
    if (args->n > n) return jrun_fail(r, "%s takes at most %zu arguments, %zu given", what, n, args->n);
    for (size_t i = 0; i < args->n_kw; i++) {
        bool known = false;
        for (const char *s = signature; *s; s += strcspn(s, ","), s += *s == ',')
            known |= strcspn(s, ",") == args->names[i]->n && !memcmp(s, args->names[i]->s, args->names[i]->n);
        if (!known)
            return jrun_fail(r, "%s has no argument named '%s'", what,
                             error_quote(name, sizeof(name), args->names[i]->s, args->names[i]->n));
    }
    return RD_OK;
}

rd_status jinja_call(struct jrun *r, struct jval f, const struct jargs *args, struct jval *out)
{
    struct jcall call;
    rd_status st = RD_OK;

    switch (f.kind) {
    case J_UNDEF:
        return jrun_undefined(r, f);
    case J_MACRO:
        return jinja_call_macro(r, f.macro, args, out);
    case J_LOOP:
        return jinja_call_loop(r, f.loop, args, out);
    case J_METHOD:
        return jinja_call_method(r, f.method, args, out);
    case J_FUNC:
        if ((st = jcall_bind(r, f.func->name, f.func->signature, args, &call)) != RD_OK) return st;
        return f.func->fn(r, jval_none(), &call, out);
    case J_JOINER:
        if (f.joiner->used)
            *out = f.joiner->sep;
        else
            st = jval_str_view(r, "", 0, out);
        if (f.joiner->used) return RD_OK;
        f.joiner->used = true;
        return st;
    default:
        return jrun_fail(r, "'%s' object is not callable", jval_type_name(f));
    }
}

static rd_status eval_call(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jargs args;
    struct jval f;
    rd_status st = jinja_eval(r, n->a, &f);

    if (st != RD_OK || (st = eval_args(r, n, &args)) != RD_OK) return st;
    r->line = n->line;
    return jinja_call(r, f, &args, out);
}

static rd_status eval_filter(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jargs args;
    struct jval in;
    rd_status st = n->a ? jinja_eval(r, n->a, &in) : RD_OK;

    if (st != RD_OK) return st;
    if (!n->a) in = *out; /* the text of a filter or set block, see jinja_exec.c */
    if ((st = eval_args(r, n, &args)) != RD_OK) return st;
    r->line = n->line;
    return jinja_filter(r, n->name, in, &args, out);
}

static rd_status eval_test(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jargs args;
    struct jval in;
    bool yes = false;
    rd_status st = jinja_eval(r, n->a, &in);

    if (st != RD_OK || (st = eval_args(r, n, &args)) != RD_OK) return st;
    r->line = n->line;
    st = jinja_test(r, n->name, in, &args, &yes);
    *out = jval_bool(yes);
    return st;
}

static rd_status eval_logic(struct jrun *r, const struct jnode *n, struct jval *out)
{
    rd_status st = jinja_eval(r, n->a, out);

    if (st != RD_OK) return st;
    switch (n->kind) {
    case N_NOT:
        *out = jval_bool(!jval_truth(*out));
        return RD_OK;
    case N_AND:
        return jval_truth(*out) ? jinja_eval(r, n->b, out) : RD_OK;
    case N_OR:
        return jval_truth(*out) ? RD_OK : jinja_eval(r, n->b, out);
    default:
        break; /* N_COND */
    }
    if (jval_truth(*out)) return jinja_eval(r, n->b, out);
    if (n->c) return jinja_eval(r, n->c, out);
    *out = jval_undef();
    return RD_OK;
}

static rd_status eval_binary(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval a, b;
    rd_status st = jinja_eval(r, n->a, &a);

    if (st != RD_OK || (st = jinja_eval(r, n->b, &b)) != RD_OK) return st;
    r->line = n->line;
    return jinja_binary(r, (enum jtoken_kind)n->op, a, b, out);
}

static rd_status eval_sign(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    rd_status st = jinja_eval(r, n->a, &v);

    if (st != RD_OK) return st;
    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if (v.kind == J_BIG) return jrun_fail(r, "the integer is too large (64 bits)");
    if (!jval_is_number(v))
        return jrun_fail(r, "bad operand type for unary %s: '%s'", n->kind == N_NEG ? "-" : "+", jval_type_name(v));
    if (n->kind == N_NEG) return jinja_negate(r, v, out);
    *out = v.kind == J_BOOL ? jval_int(v.b) : v;
    return RD_OK;
}

static rd_status eval_attr(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    rd_status st = jinja_eval(r, n->a, &v);

    if (st != RD_OK) return st;
    r->line = n->line;
    return jinja_get_attr(r, v, n->name, out);
}

rd_status jinja_eval(struct jrun *r, const struct jnode *n, struct jval *out)
{
    rd_status st = jrun_pay(r, 1);

    if (st != RD_OK) return st;
    if (r->frames >= LIMIT_TEMPLATE_FRAMES) return jrun_limit(r, "the template nests too deeply");
    r->frames++;
    r->line = n->line;
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        break;
    case N_NAME:
        st = eval_name(r, n->name, out);
        break;
    case N_LIST:
    case N_TUPLE:
        st = eval_sequence(r, n, out);
        break;
    case N_DICT:
        st = eval_dict(r, n, out);
        break;
    case N_COND:
    case N_AND:
    case N_OR:
    case N_NOT:
        st = eval_logic(r, n, out);
        break;
    case N_NEG:
    case N_POS:
        st = eval_sign(r, n, out);
        break;
    case N_BINARY:
        st = eval_binary(r, n, out);
        break;
    case N_CONCAT:
        st = eval_concat(r, n, out);
        break;
    case N_COMPARE:
        st = eval_compare(r, n, out);
        break;
    case N_ATTR:
        st = eval_attr(r, n, out);
        break;
    case N_ITEM:
        st = eval_item(r, n, out);
        break;
    case N_CALL:
        st = eval_call(r, n, out);
        break;
    case N_FILTER:
        st = eval_filter(r, n, out);
        break;
    case N_TEST:
        st = eval_test(r, n, out);
        break;
    default:
        st = jrun_fail(r, "this is no expression");
        break;
    }
    r->frames--;
    return st;
}
