/* text/jinja/jinja_methods.c - methods of lists, dicts, loops and cyclers, and the call of any method. Those of str:
 * jinja_str_methods.c. */
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "text/jinja/jinja_run.h"

static rd_status l_index(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    int64_t n = (int64_t)in.list->n, from, end;
    bool equal = false;
    rd_status st = jarg_int(r, c->v[1], "index", 0, &from);

    if (st != RD_OK || (st = jarg_int(r, c->v[2], "index", n, &end)) != RD_OK) return st;
    from = from < 0 && (from += n) < 0 ? 0 : from;
    end = end < 0 ? end + n : end > n ? n : end;
    for (; from < end; from++) {
        if ((st = jval_equal(r, in.list->items[from], c->v[0], &equal)) != RD_OK) return st;
        *out = jval_int(from);
        if (equal) return RD_OK;
    }
    return jrun_fail(r, "the value is not in the list");
}

static rd_status range_find(struct jrun *r, struct jval in, struct jcall *c, bool count, struct jval *out)
{
    struct jval *items;
    bool equal = false;
    int64_t found = 0;
    size_t n;
    rd_status st = jval_iterate(r, in, &items, &n);

    for (size_t i = 0; st == RD_OK && i < n; i++) {
        st = jval_equal(r, items[i], c->v[0], &equal);
        found += equal;
        *out = jval_int(count ? found : (int64_t)i);
        if (equal && !count) return st;
    }
    if (st == RD_OK && !count) return jrun_fail(r, "the value is not in range");
    if (n == 0) *out = jval_int(0);
    return st;
}

static rd_status range_index(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return range_find(r, in, c, false, out);
}
static rd_status range_count(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return range_find(r, in, c, true, out);
}

static rd_status n_bit_length(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    int64_t i = jval_to_int(in), n = 0;

    for (uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i; u; u >>= 1) n++;
    *out = jval_int(n);
    return RD_OK;
}

static rd_status n_conjugate(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    *out = in.kind == J_FLOAT ? in : jval_int(jval_to_int(in));
    return RD_OK;
}

static rd_status n_is_integer(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    *out = jval_bool(in.f == floor(in.f) && in.f - in.f == 0);
    return RD_OK;
}

static rd_status l_count(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    bool equal = false;
    int64_t n = 0;
    rd_status st = RD_OK;

    for (size_t i = 0; st == RD_OK && i < in.list->n; i++) {
        st = jval_equal(r, in.list->items[i], c->v[0], &equal);
        n += equal;
    }
    *out = jval_int(n);
    return st;
}

static rd_status l_copy(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jinja_slice(r, in, jval_none(), jval_none(), jval_none(), out);
}

const struct jfilter jinja_list_methods[] = {
    {"index", l_index, "value,start,stop"},
    {"count", l_count, "value"},
    {"copy", l_copy, ""},
    {NULL, NULL, NULL},
};

static rd_status d_get(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jentry *e;
    rd_status st = jdict_find(r, in.dict, c->v[0], &e);

    if (st == RD_OK) *out = e ? e->value : c->v[1].kind == J_MISSING ? jval_none() : c->v[1];
    return st;
}

static rd_status view(struct jrun *r, struct jval in, char what, struct jval *out)
{
    const struct jdict *d = in.dict;
    struct jval v;
    rd_status st = jval_list(r, J_VIEW, d->n, out);

    if (st == RD_OK) out->list->view = what;
    for (size_t i = 0; st == RD_OK && i < d->n; i++) {
        v = what == 'k' ? d->entries[i].key : d->entries[i].value;
        if (what == 'i') st = jval_pair(r, d->entries[i].key, d->entries[i].value, &v);
        if (st == RD_OK) st = jlist_push(r, out->list, v);
    }
    return st;
}

static rd_status d_keys(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return view(r, in, 'k', out);
}
static rd_status d_values(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return view(r, in, 'v', out);
}
static rd_status d_items(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return view(r, in, 'i', out);
}

/* The entries of dict(...), which has the same arguments, on top of d. */
static rd_status merge(struct jrun *r, struct jdict *d, struct jcall *c)
{
    struct jstr name = {.s = "dict", .n = 4};
    struct jval more;
    rd_status st = jinja_find_global(&name)->fn(r, jval_none(), c, &more);

    for (size_t i = 0; st == RD_OK && i < more.dict->n; i++)
        st = jdict_set(r, d, more.dict->entries[i].key, more.dict->entries[i].value);
    return st;
}

/* {}.fromkeys(keys, value) */
static rd_status d_fromkeys(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items, value = c->v[1].kind == J_MISSING ? jval_none() : c->v[1];
    size_t n;
    rd_status st = jval_iterate(r, c->v[0], &items, &n);

    if (st == RD_OK) st = jval_dict(r, out);
    for (size_t i = 0; st == RD_OK && i < n; i++) st = jdict_set(r, out->dict, items[i], value);
    return st;
}

static rd_status d_copy(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jargs args = {.v = &in, .n = 1};
    struct jcall call = {.args = &args};
    rd_status st = jval_dict(r, out);

    return st == RD_OK ? merge(r, out->dict, &call) : st;
}

const struct jfilter jinja_dict_methods[] = {
    {"get", d_get, "key,default"},
    {"keys", d_keys, ""},
    {"values", d_values, ""},
    {"items", d_items, ""},
    {"copy", d_copy, ""},
    {"fromkeys", d_fromkeys, "iterable,value"},
    {NULL, NULL, NULL},
};

static rd_status loop_cycle(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    if (c->args->n == 0) return jrun_fail(r, "no items for cycling given");
    *out = c->args->v[in.loop->i % c->args->n];
    return RD_OK;
}

static rd_status loop_changed(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval now;
    bool equal = false;
    rd_status st = jval_list(r, J_TUPLE, c->args->n, &now);

    for (size_t i = 0; st == RD_OK && i < c->args->n; i++) st = jlist_push(r, now.list, c->args->v[i]);
    if (st == RD_OK && in.loop->last_changed.kind != J_MISSING) st = jval_equal(r, now, in.loop->last_changed, &equal);
    in.loop->last_changed = now;
    *out = jval_bool(!equal);
    return st;
}

static rd_status cycler_next(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    *out = in.cycler->list->items[in.cycler->pos];
    in.cycler->pos = (in.cycler->pos + 1) % in.cycler->list->n;
    return RD_OK;
}

static rd_status cycler_reset(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    in.cycler->pos = 0;
    *out = jval_none();
    return RD_OK;
}

static const struct jfilter loop_methods[] = {
    {"cycle", loop_cycle, "*"}, {"changed", loop_changed, "*"}, {NULL, NULL, NULL}};
static const struct jfilter cycler_methods[] = {
    {"next", cycler_next, ""}, {"reset", cycler_reset, ""}, {NULL, NULL, NULL}};
static const struct jfilter tuple_methods[] = {
    {"index", l_index, "value,start,stop"}, {"count", l_count, "value"}, {NULL, NULL, NULL}};
static const struct jfilter range_methods[] = {
    {"index", range_index, "value"}, {"count", range_count, "value"}, {NULL, NULL, NULL}};
static const struct jfilter int_methods[] = {
    {"bit_length", n_bit_length, ""}, {"conjugate", n_conjugate, ""}, {NULL, NULL, NULL}};
static const struct jfilter float_methods[] = {
    {"is_integer", n_is_integer, ""}, {"conjugate", n_conjugate, ""}, {NULL, NULL, NULL}};

static const struct jfilter *find_method(struct jval self, const struct jstr *name)
{
    const struct jfilter *table;

    switch (self.kind) {
    case J_STR:
        table = jinja_str_methods;
        break;
    case J_LIST:
        table = jinja_list_methods;
        break;
    case J_TUPLE:
        table = tuple_methods;
        break;
    case J_DICT:
        table = jinja_dict_methods;
        break;
    case J_RANGE:
        table = range_methods;
        break;
    case J_INT:
    case J_BOOL:
        table = int_methods;
        break;
    case J_FLOAT:
        table = float_methods;
        break;
    case J_LOOP:
        table = loop_methods;
        break;
    case J_CYCLER:
        table = cycler_methods;
        break;
    default:
        return NULL;
    }
    for (; table->name; table++)
        if (jstr_is(name, table->name)) return table;
    return NULL;
}

bool jinja_is_mutator(struct jval self, const struct jstr *name)
{
    static const char *const of_lists[] = {"append", "clear",   "extend", "insert", "pop",
                                           "remove", "reverse", "sort",   NULL};
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *list = self.kind == J_LIST ? of_lists : of_dicts;

    if (self.kind != J_LIST && self.kind != J_DICT) return false;
    while (*list && !jstr_is(name, *list)) list++;
    return *list != NULL;
}

bool jinja_has_method(struct jval self, const struct jstr *name)
{
    return find_method(self, name) != NULL;
}

/* How many of the parameters must be given: those of the methods that read them unasked. */
static size_t n_required(const char *name)
{
    static const char *const one[] = {"index",      "count",  "get",    "startswith",   "endswith",     "find",
                                      "rfind",      "rindex", "join",   "removeprefix", "removesuffix", "partition",
                                      "rpartition", "zfill",  "center", "ljust",        "rjust"};

    if (!strcmp(name, "replace")) return 2;
    for (size_t i = 0; i < sizeof(one) / sizeof(one[0]); i++)
        if (!strcmp(name, one[i])) return 1;
    return 0;
}

/* A method of safe text (Markup): what goes into it is escaped, what comes out is safe. */
static rd_status call_safe(struct jrun *r, const struct jfilter *f, struct jval self, struct jcall *call,
                           struct jval *out)
{
    bool pads = !strcmp(f->name, "ljust") || !strcmp(f->name, "rjust") || !strcmp(f->name, "center");
    struct jval list, *items;
    size_t n;
    rd_status st = RD_OK;

    if ((pads || !strcmp(f->name, "replace")) && call->v[1].kind == J_STR) st = jval_escape(r, call->v[1], &call->v[1]);
    if (st == RD_OK && !strcmp(f->name, "join")) {
        if ((st = jval_iterate(r, call->v[0], &items, &n)) != RD_OK || (st = jval_list(r, J_LIST, n, &list)) != RD_OK)
            return st;
        for (size_t i = 0; st == RD_OK && i < n; i++) {
            struct jval v;
            if ((st = jval_escape(r, items[i], &v)) == RD_OK) st = jlist_push(r, list.list, v);
        }
        call->v[0] = list;
    }
    if (st != RD_OK || (st = f->fn(r, self, call, out)) != RD_OK) return st;
    if (out->kind == J_STR) {
        if ((st = jval_str_view(r, out->s->s, out->s->n, out)) == RD_OK) out->s->safe = true;
    } else if (out->kind == J_LIST || out->kind == J_TUPLE) {
        for (size_t i = 0; i < out->list->n; i++)
            if (out->list->items[i].kind == J_STR) out->list->items[i].s->safe = true;
    }
    return st;
}

rd_status jinja_call_method(struct jrun *r, struct jmethod *m, const struct jargs *args, struct jval *out)
{
    const struct jfilter *f = find_method(m->self, m->name);
    struct jcall call;
    rd_status st;

    if (!f) return jrun_fail(r, "'%s' object has no such method", jval_type_name(m->self));
    if ((st = jcall_bind(r, f->name, f->signature, args, &call)) != RD_OK || (st = jrun_enter_call(r)) != RD_OK)
        return st;
    for (size_t i = 0; f->signature[0] != '*' && i < n_required(f->name); i++)
        if (call.v[i].kind == J_MISSING) return jrun_fail(r, "%s() misses an argument", f->name);
    if (m->self.kind == J_STR && m->self.s->safe) {
        st = call_safe(r, f, m->self, &call, out);
    } else {
        st = f->fn(r, m->self, &call, out);
    }
    r->calls--;
    return st;
}
