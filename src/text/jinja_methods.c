/* text/jinja_methods.c - methods of lists, dicts, loops and cyclers, and the call of any method. Those of str:
 * jinja_str_methods.c. */
#include <string.h>
#include "base/error.h"
#include "text/jinja_run.h"

static rd_status l_append(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    *out = jval_none();
    return jlist_push(r, in.list, c->v[0]);
}

static rd_status l_extend(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items;
    size_t n;
    rd_status st = jval_iterate(r, c->v[0], &items, &n);

    *out = jval_none();
    for (size_t i = 0; st == RD_OK && i < n; i++) st = jlist_push(r, in.list, items[i]);
    return st;
}

static rd_status l_insert(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jlist *l = in.list;
    int64_t at, n = (int64_t)l->n;
    rd_status st = jarg_int(r, c->v[0], "insert", 0, &at);

    *out = jval_none();
    if (st != RD_OK || (st = jrun_pay(r, l->n / 4)) != RD_OK || (st = jlist_push(r, l, c->v[1])) != RD_OK) return st;
    if (at < 0) at += n;
    at = at < 0 ? 0 : at > n ? n : at;
    memmove(&l->items[at + 1], &l->items[at], (size_t)(n - at) * sizeof(*l->items));
    l->items[at] = c->v[1];
    return RD_OK;
}

static rd_status l_pop(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jlist *l = in.list;
    int64_t at;
    rd_status st = jarg_int(r, c->v[0], "pop", -1, &at);

    if (st != RD_OK || (st = jrun_pay(r, l->n / 4)) != RD_OK) return st;
    if (at < 0) at += (int64_t)l->n;
    if (at < 0 || (uint64_t)at >= l->n) return jrun_fail(r, l->n ? "pop index out of range" : "pop from empty list");
    *out = l->items[at];
    memmove(&l->items[at], &l->items[at + 1], (l->n - (size_t)at - 1) * sizeof(*l->items));
    l->n--;
    return RD_OK;
}

static rd_status find_item(struct jrun *r, const struct jlist *l, struct jval v, size_t *at)
{
    bool equal = false;
    rd_status st = RD_OK;

    for (*at = 0; *at < l->n; (*at)++)
        if ((st = jval_equal(r, l->items[*at], v, &equal)) != RD_OK || equal) return st;
    return jrun_fail(r, "the value is not in the list");
}

static rd_status l_index(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    size_t at;
    rd_status st = find_item(r, in.list, c->v[0], &at);

    *out = jval_int((int64_t)at);
    return st;
}

static rd_status l_remove(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    size_t at;
    rd_status st = find_item(r, in.list, c->v[0], &at);

    *out = jval_none();
    if (st != RD_OK) return st;
    memmove(&in.list->items[at], &in.list->items[at + 1], (in.list->n - at - 1) * sizeof(*in.list->items));
    in.list->n--;
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

static rd_status l_clear(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    in.list->n = 0;
    *out = jval_none();
    return RD_OK;
}

static rd_status l_copy(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jinja_slice(r, in, jval_none(), jval_none(), jval_none(), out);
}

static rd_status l_reverse(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    rd_status st = jinja_slice(r, in, jval_none(), jval_none(), jval_int(-1), out);

    if (st != RD_OK) return st;
    if (in.list->n) memcpy(in.list->items, out->list->items, in.list->n * sizeof(*in.list->items));
    *out = jval_none();
    return RD_OK;
}

const struct jfilter jinja_list_methods[] = {
    {"append", l_append, "object"},
    {"extend", l_extend, "iterable"},
    {"insert", l_insert, "index,object"},
    {"pop", l_pop, "index"},
    {"index", l_index, "value"},
    {"remove", l_remove, "value"},
    {"count", l_count, "value"},
    {"clear", l_clear, ""},
    {"copy", l_copy, ""},
    {"reverse", l_reverse, ""},
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

static rd_status d_update(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    *out = jval_none();
    return merge(r, in.dict, c);
}

static rd_status d_pop(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jentry *e;
    rd_status st = jdict_find(r, in.dict, c->v[0], &e);

    if (st != RD_OK || (st = jrun_pay(r, in.dict->n / 2)) != RD_OK) return st;
    if (!e && c->v[1].kind == J_MISSING) return jrun_fail(r, "pop: the dict has no such key");
    *out = e ? e->value : c->v[1];
    if (e) jdict_remove(in.dict, e);
    return RD_OK;
}

static rd_status d_setdefault(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jentry *e;
    rd_status st = jdict_find(r, in.dict, c->v[0], &e);

    if (st != RD_OK) return st;
    *out = e ? e->value : c->v[1].kind == J_MISSING ? jval_none() : c->v[1];
    return e ? RD_OK : jdict_set(r, in.dict, c->v[0], *out);
}

static rd_status d_clear(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    *in.dict = (struct jdict){0};
    *out = jval_none();
    return RD_OK;
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
    {"update", d_update, "*"},
    {"pop", d_pop, "key,default"},
    {"setdefault", d_setdefault, "key,default"},
    {"clear", d_clear, ""},
    {"copy", d_copy, ""},
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
    {"index", l_index, "value"}, {"count", l_count, "value"}, {NULL, NULL, NULL}};

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

bool jinja_has_method(struct jval self, const struct jstr *name)
{
    return find_method(self, name) != NULL;
}

/* How many of the parameters must be given: those of the methods that read them unasked. */
static size_t n_required(const char *name)
{
    static const char *const one[] = {"append",     "extend",       "index",        "remove",    "count",      "get",
                                      "setdefault", "startswith",   "endswith",     "find",      "rfind",      "rindex",
                                      "join",       "removeprefix", "removesuffix", "partition", "rpartition", "zfill",
                                      "center",     "ljust",        "rjust"};

    if (!strcmp(name, "insert") || !strcmp(name, "replace")) return 2;
    for (size_t i = 0; i < sizeof(one) / sizeof(one[0]); i++)
        if (!strcmp(name, one[i])) return 1;
    return 0;
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
    if (m->self.kind == J_DICT && !strcmp(f->name, "pop") && call.v[0].kind == J_MISSING)
        return jrun_fail(r, "pop() misses an argument");
    st = f->fn(r, m->self, &call, out);
    r->calls--;
    return st;
}
