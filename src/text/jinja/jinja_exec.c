/* text/jinja/jinja_exec.c - statements: what they write, and the scopes they open.
 *
 * A scope is a block of variables with a parent. for, macro, call, with, filter and set blocks open one; if does not.
 * Macros keep the scope they were defined in. Reading looks outwards, then into the context, then at the globals;
 * writing touches the innermost.
 */
#include <string.h>
#include "base/limits.h"
#include "text/jinja/jinja_run.h"

rd_status jscope_set(struct jrun *r, struct jstr *name, struct jval v)
{
    struct jscope *s = r->scope;
    struct jvar *vars;
    rd_status st = jrun_pay(r, s->n / 8 + 1);

    if (st != RD_OK) return st;
    jstr_hash(name);
    for (size_t i = 0; i < s->n; i++) {
        const struct jstr *other = s->vars[i].name;
        if (other->hash != name->hash || other->n != name->n || memcmp(other->s, name->s, name->n)) continue;
        s->vars[i].value = v;
        return RD_OK;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        if ((st = jrun_alloc(r, cap, sizeof(*vars), &vars)) != RD_OK) return st;
        if (s->n) memcpy(vars, s->vars, s->n * sizeof(*vars));
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct jvar){name, v};
    return RD_OK;
}

/* On success r->scope is a new scope inside parent; the caller puts the old one back. */
static rd_status open_scope(struct jrun *r, struct jscope *parent)
{
    struct jscope *s;
    rd_status st = jrun_alloc(r, 1, sizeof(*s), &s);

    if (st != RD_OK) return st;
    s->parent = parent;
    r->scope = s;
    return RD_OK;
}

static rd_status assign(struct jrun *r, const struct jnode *target, struct jval v)
{
    struct jval *items, owner;
    size_t n, i = 0;
    rd_status st;

    if (target->kind == N_NAME) return jscope_set(r, target->name, v);
    if (target->kind == N_ATTR) {
        if ((st = jinja_eval(r, target->a, &owner)) != RD_OK) return st;
        if (owner.kind != J_NAMESPACE) return jrun_fail(r, "cannot assign attribute on non-namespace object");
        return jdict_set(r, owner.dict, (struct jval){.kind = J_STR, .s = target->name}, v);
    }
    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if ((st = jval_iterate(r, v, &items, &n)) != RD_OK) return st;
    if (n != target->n_items) return jrun_fail(r, "cannot unpack %zu values into %u names", n, target->n_items);
    for (const struct jnode *t = target->items; st == RD_OK && t; t = t->next) st = assign(r, t, items[i++]);
    return st;
}

/* Runs a body and gives its text. */
static rd_status capture(struct jrun *r, const struct jnode *body, struct jval *out)
{
    struct buf text, *outer = r->out;
    rd_status st;

    buf_init(&text);
    r->out = &text;
    st = jinja_exec(r, body);
    r->out = outer;
    if ((st = jrun_take_buf(r, &text, st, out)) == RD_OK) out->s->safe = r->autoescape;
    return st;
}

/* The filter chain of a block, over its text in *v. */
static rd_status apply_filters(struct jrun *r, const struct jnode *filter, struct jval *v)
{
    struct jval in = *v;
    struct jnode step;
    rd_status st;

    if (r->frames >= LIMIT_TEMPLATE_FRAMES) return jrun_limit(r, "the template nests too deeply");
    r->frames++;
    if (filter->a && (st = apply_filters(r, filter->a, &in)) != RD_OK) return st;
    r->frames--;
    step = *filter;
    step.a = NULL;
    *v = in;
    return jinja_eval(r, &step, v);
}

static rd_status exec_captured(struct jrun *r, const struct jnode *n)
{
    struct jscope *outer = r->scope;
    struct jval text;
    rd_status st = open_scope(r, outer);

    if (st == RD_OK) st = capture(r, n->body, &text);
    if (st == RD_OK && n->b && r->flow == FLOW_NEXT) st = apply_filters(r, n->b, &text);
    r->scope = outer;
    if (st != RD_OK || r->flow != FLOW_NEXT) return st; /* break leaves before the text is used */
    if (n->kind == N_SET_BLOCK) return assign(r, n->a, text);
    if (text.kind != J_STR) return jrun_fail(r, "expected str instance, %s found", jval_type_name(text));
    return jrun_write(r, text.s->s, text.s->n);
}

static rd_status exec_if(struct jrun *r, const struct jnode *n)
{
    struct jval v;
    rd_status st;

    for (const struct jnode *b = n->items; b; b = b->next) {
        if ((st = jinja_eval(r, b->a, &v)) != RD_OK) return st;
        if (jval_truth(v)) return jinja_exec(r, b->body);
    }
    return jinja_exec(r, n->orelse);
}

/* The items that pass `for x in items if test`. */
static rd_status filter_items(struct jrun *r, const struct jnode *n, struct jval *items, size_t count,
                              struct jval *kept)
{
    struct jscope *outer = r->scope;
    struct jval v;
    rd_status st = jval_list(r, J_LIST, 0, kept);

    for (size_t i = 0; st == RD_OK && i < count; i++) {
        if ((st = open_scope(r, outer)) != RD_OK || (st = assign(r, n->a, items[i])) != RD_OK) break;
        if ((st = jinja_eval(r, n->c, &v)) == RD_OK && jval_truth(v)) st = jlist_push(r, kept->list, items[i]);
        r->scope = outer;
    }
    r->scope = outer;
    return st;
}

/* A loop over iterable; the scope around it is r->scope. */
static rd_status run_loop(struct jrun *r, const struct jnode *n, struct jval iterable, uint32_t depth)
{
    struct jscope *outer = r->scope;
    struct jval kept, loop = {.kind = J_LOOP};
    struct jstr *name;
    bool completed = false; /* jinja2's else looks whether a body ran to its end */
    rd_status st = jrun_alloc(r, 1, sizeof(*loop.loop), &loop.loop);

    if (st != RD_OK || (st = jval_str_view(r, "loop", 4, &kept)) != RD_OK) return st;
    name = kept.s;
    if ((st = jval_iterate(r, iterable, &loop.loop->items, &loop.loop->n)) != RD_OK) return st;
    if (n->c) {
        if ((st = filter_items(r, n, loop.loop->items, loop.loop->n, &kept)) != RD_OK) return st;
        loop.loop->items = kept.list->items;
        loop.loop->n = kept.list->n;
    }
    loop.loop->depth = depth;
    loop.loop->node = n;
    loop.loop->scope = outer;
    for (size_t i = 0; st == RD_OK && i < loop.loop->n; i++) {
        loop.loop->i = i;
        if ((st = open_scope(r, outer)) != RD_OK) break;
        if ((st = jscope_set(r, name, loop)) != RD_OK || (st = assign(r, n->a, loop.loop->items[i])) != RD_OK) break;
        st = jinja_exec(r, n->body);
        r->scope = outer;
        completed |= r->flow == FLOW_NEXT;
        if (r->flow == FLOW_BREAK) i = loop.loop->n;
        r->flow = FLOW_NEXT;
    }
    r->scope = outer;
    if (st != RD_OK || completed || !n->orelse) return st;
    if ((st = open_scope(r, outer)) == RD_OK) st = jinja_exec(r, n->orelse);
    r->scope = outer;
    return st;
}

static rd_status exec_for(struct jrun *r, const struct jnode *n)
{
    struct jval iterable;
    rd_status st = jinja_eval(r, n->b, &iterable);

    return st == RD_OK ? run_loop(r, n, iterable, 0) : st;
}

rd_status jinja_call_loop(struct jrun *r, struct jloop *loop, const struct jargs *args, struct jval *out)
{
    struct jscope *outer = r->scope;
    struct buf text, *out_before = r->out;
    rd_status st;

    if (!loop->node->flag) return jrun_fail(r, "loop() needs a loop marked `recursive`");
    if (args->n != 1 || args->n_kw) return jrun_fail(r, "loop() takes one argument");
    if ((st = jrun_enter_call(r)) != RD_OK) return st;
    buf_init(&text);
    r->out = &text;
    r->scope = loop->scope;
    st = run_loop(r, loop->node, args->v[0], loop->depth + 1);
    r->scope = outer;
    r->out = out_before;
    r->calls--;
    if ((st = jrun_take_buf(r, &text, st, out)) == RD_OK) out->s->safe = r->autoescape;
    return st;
}

static rd_status make_macro(struct jrun *r, const struct jnode *n, struct jval *out)
{
    rd_status st = jrun_alloc(r, 1, sizeof(*out->macro), &out->macro);

    out->kind = J_MACRO;
    if (st == RD_OK) *out->macro = (struct jmacro){.node = n, .scope = r->scope, .autoescape = r->autoescape};
    return st;
}

static rd_status set_text_name(struct jrun *r, const char *name, struct jval v)
{
    struct jval s;
    rd_status st = jval_str_view(r, name, strlen(name), &s);

    return st == RD_OK ? jscope_set(r, s.s, v) : st;
}

/* The arguments beyond the parameters: varargs, kwargs, caller, where the macro reads them; else they are errors. */
static rd_status bind_rest(struct jrun *r, const struct jnode *n, const struct jargs *args, const bool *used)
{
    const char *name = n->name ? n->name->s : "caller";
    int len = n->name ? (int)n->name->n : 6;
    struct jval rest, kwargs, caller = jval_undef();
    rd_status st;

    if (args->n > n->n_items && !(n->op & MACRO_VARARGS))
        return jrun_fail(r, "macro '%.*s' takes not more than %u argument(s)", len, name, n->n_items);
    if (n->op & MACRO_VARARGS) {
        if ((st = jval_list(r, J_TUPLE, 0, &rest)) != RD_OK) return st;
        for (size_t i = n->n_items; i < args->n; i++)
            if ((st = jlist_push(r, rest.list, args->v[i])) != RD_OK) return st;
        if ((st = set_text_name(r, "varargs", rest)) != RD_OK) return st;
    }
    if ((st = jval_dict(r, &kwargs)) != RD_OK) return st;
    for (size_t i = 0; i < args->n_kw; i++) {
        if (used[i]) continue;
        if (jstr_is(args->names[i], "caller") && (n->op & MACRO_CALLER)) {
            caller = args->kw[i];
            continue;
        }
        if (!(n->op & MACRO_KWARGS))
            return jrun_fail(r, "macro '%.*s' takes no keyword argument '%.*s'", len, name, (int)args->names[i]->n,
                             args->names[i]->s);
        if ((st = jdict_set(r, kwargs.dict, (struct jval){.kind = J_STR, .s = args->names[i]}, args->kw[i])) != RD_OK)
            return st;
    }
    if ((n->op & MACRO_KWARGS) && (st = set_text_name(r, "kwargs", kwargs)) != RD_OK) return st;
    if ((n->op & MACRO_CALLER)) return set_text_name(r, "caller", caller);
    return RD_OK;
}

static rd_status bind_params(struct jrun *r, const struct jnode *n, const struct jargs *args)
{
    bool *used;
    size_t i = 0;
    rd_status st = jrun_alloc(r, args->n_kw, sizeof(*used), &used);

    for (const struct jnode *p = n->items; st == RD_OK && p; p = p->next, i++) {
        struct jval v = {.kind = J_MISSING};
        if (i < args->n) v = args->v[i];
        for (size_t k = 0; k < args->n_kw; k++) {
            if (args->names[k]->n != p->name->n || memcmp(args->names[k]->s, p->name->s, p->name->n)) continue;
            if (i < args->n) return jrun_fail(r, "argument '%.*s' is given twice", (int)p->name->n, p->name->s);
            v = args->kw[k];
            used[k] = true;
        }
        if (v.kind == J_MISSING && p->a && (st = jinja_eval(r, p->a, &v)) != RD_OK) return st;
        if (v.kind == J_MISSING) v = jval_undef();
        st = jscope_set(r, p->name, v);
    }
    return st == RD_OK ? bind_rest(r, n, args, used) : st;
}

rd_status jinja_call_macro(struct jrun *r, struct jmacro *m, const struct jargs *args, struct jval *out)
{
    struct jscope *outer = r->scope;
    bool autoescape = r->autoescape;
    rd_status st = jrun_enter_call(r);

    if (st != RD_OK) return st;
    st = open_scope(r, m->scope);
    if (st == RD_OK) st = bind_params(r, m->node, args);
    r->autoescape = m->autoescape;
    if (st == RD_OK) st = capture(r, m->node->body, out);
    r->autoescape = autoescape;
    if (st == RD_OK) out->s->safe = autoescape;
    r->scope = outer;
    r->calls--;
    return st;
}

/* call(...) f(x): f(x, caller=the body as a macro) */
static rd_status exec_call(struct jrun *r, const struct jnode *n)
{
    struct jnode call = *n->a, kwarg = {.kind = N_KWARG, .line = n->line},
                 constant = {.kind = N_CONST, .line = n->line};
    struct jnode *copies, **tail = &call.items;
    struct jval name, v;
    struct jstr *s;
    size_t i = 0;
    rd_status st;

    if ((st = make_macro(r, n->b, &constant.value)) != RD_OK || (st = jval_str_view(r, "caller", 6, &name)) != RD_OK)
        return st;
    if ((st = jrun_alloc(r, call.n_items, sizeof(*copies), &copies)) != RD_OK) return st;
    for (const struct jnode *a = n->a->items; a; a = a->next, i++) {
        copies[i] = *a;
        *tail = &copies[i];
        tail = &copies[i].next;
    }
    kwarg.name = name.s;
    kwarg.a = &constant;
    *tail = &kwarg;
    call.n_items++;
    if ((st = jinja_eval(r, &call, &v)) != RD_OK || (st = jval_to_str(r, v, &s)) != RD_OK) return st;
    return jrun_write(r, s->s, s->n);
}

static rd_status exec_with(struct jrun *r, const struct jnode *n)
{
    struct jscope *outer = r->scope, *inner;
    struct jval v;
    rd_status st = open_scope(r, outer);

    inner = r->scope;
    for (const struct jnode *s = n->items; st == RD_OK && s; s = s->next) {
        r->scope = outer; /* values are read outside */
        st = jinja_eval(r, s->b, &v);
        r->scope = inner;
        if (st == RD_OK) st = assign(r, s->a, v);
    }
    if (st == RD_OK) st = jinja_exec(r, n->body);
    r->scope = outer;
    return st;
}

static rd_status exec_output(struct jrun *r, const struct jnode *expr)
{
    struct jval v;
    struct jstr *s;
    rd_status st = jinja_eval(r, expr, &v);

    if (st == RD_OK && r->autoescape) st = jval_escape(r, v, &v);
    if (st != RD_OK || (st = jval_to_str(r, v, &s)) != RD_OK) return st;
    return jrun_write(r, s->s, s->n);
}

static rd_status exec_print(struct jrun *r, const struct jnode *n)
{
    rd_status st = RD_OK;

    for (const struct jnode *i = n->items; st == RD_OK && i; i = i->next) st = exec_output(r, i);
    return st;
}

static rd_status exec_autoescape(struct jrun *r, const struct jnode *n)
{
    struct jscope *outer = r->scope;
    bool before = r->autoescape;
    struct jval on;
    rd_status st = jinja_eval(r, n->a, &on);

    if (st != RD_OK || (st = open_scope(r, outer)) != RD_OK) return st;
    r->autoescape = jval_truth(on);
    st = jinja_exec(r, n->body);
    r->autoescape = before;
    r->scope = outer;
    return st;
}

static rd_status exec_block(struct jrun *r, const struct jnode *n)
{
    struct jscope *outer = r->scope, *parent = outer;
    rd_status st;

    while (!n->flag && parent->parent) parent = parent->parent;
    if ((st = open_scope(r, parent)) == RD_OK) st = jinja_exec(r, n->body);
    r->scope = outer;
    return st;
}

static rd_status exec_one(struct jrun *r, const struct jnode *n)
{
    struct jval v;
    rd_status st;

    switch (n->kind) {
    case N_TEXT:
        return jrun_write(r, n->name->s, n->name->n);
    case N_OUTPUT:
        return exec_output(r, n->a);
    case N_PRINT:
        return exec_print(r, n);
    case N_AUTOESCAPE:
        return exec_autoescape(r, n);
    case N_BLOCK:
        return exec_block(r, n);
    case N_ABSENT:
        return jrun_fail(r, "'%.*s' is not available here: there is no loader for other templates", (int)n->name->n,
                         n->name->s);
    case N_IF:
        return exec_if(r, n);
    case N_FOR:
        return exec_for(r, n);
    case N_SET:
        if ((st = jinja_eval(r, n->b, &v)) != RD_OK) return st;
        return assign(r, n->a, v);
    case N_SET_BLOCK:
    case N_FILTER_BLOCK:
        return exec_captured(r, n);
    case N_MACRO:
        if ((st = make_macro(r, n, &v)) != RD_OK) return st;
        return jscope_set(r, n->name, v);
    case N_CALL_BLOCK:
        return exec_call(r, n);
    case N_WITH:
        return exec_with(r, n);
    case N_BREAK:
        r->flow = FLOW_BREAK;
        return RD_OK;
    case N_CONTINUE:
        r->flow = FLOW_CONTINUE;
        return RD_OK;
    default:
        return jrun_fail(r, "this is no statement");
    }
}

rd_status jinja_exec(struct jrun *r, const struct jnode *chain)
{
    rd_status st = RD_OK;

    if (r->frames >= LIMIT_TEMPLATE_FRAMES) return jrun_limit(r, "the template nests too deeply");
    r->frames++;
    for (; st == RD_OK && chain && r->flow == FLOW_NEXT; chain = chain->next) {
        r->line = chain->line;
        if ((st = jrun_pay(r, 1)) == RD_OK) st = exec_one(r, chain);
    }
    r->frames--;
    return st;
}
