/* text/jinja/jinja_lists.c - the filters over sequences: choosing, ordering, grouping. Results of generators are J_GEN, as in
 * jinja2: always true, without length, taken once. */
#include <string.h>
#include "base/limits.h"
#include "text/jinja/jinja_run.h"

rd_status jinja_sort(struct jrun *r, struct jval *keys, struct jval *items, size_t n, bool descending)
{
    struct jval *keys_b, *items_b;
    int c = 0;
    rd_status st;

    if ((st = jrun_alloc(r, n, sizeof(*keys_b), &keys_b)) != RD_OK ||
        (st = jrun_alloc(r, n, sizeof(*items_b), &items_b)) != RD_OK)
        return st;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t mid = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n, a = low,
                   b = mid;
            for (size_t o = low; o < high; o++) {
                bool take_b = a == mid;
                if (!take_b && b < high) {
                    if ((st = jval_compare(r, keys[b], keys[a], "<", &c)) != RD_OK) return st;
                    take_b = descending ? c == 1 : c == -1;
                }
                keys_b[o] = keys[take_b ? b : a];
                items_b[o] = items[take_b ? b++ : a++];
            }
        }
        memcpy(keys, keys_b, n * sizeof(*keys));
        memcpy(items, items_b, n * sizeof(*items));
        if ((st = jrun_pay(r, n)) != RD_OK) return st;
    }
    return RD_OK;
}

static const struct jval no_fallback = {.kind = J_MISSING};

rd_status jinja_path(struct jrun *r, struct jval v, struct jval path, struct jval fallback, struct jval *out)
{
    struct jval key;
    size_t from = 0, end;
    rd_status st;

    *out = v;
    if (path.kind == J_MISSING || path.kind == J_NONE) return RD_OK;
    if (path.kind != J_STR) {
        if ((st = jinja_get_item(r, v, path, out)) == RD_OK && out->kind == J_UNDEF && fallback.kind != J_MISSING)
            *out = fallback;
        return st;
    }
    for (; from <= path.s->n; from = end + 1) {
        int64_t index = 0;
        bool digits;
        end = jinja_find_bytes(path.s->s, path.s->n, from, ".", 1);
        if (end == SIZE_MAX) end = path.s->n;
        digits = end > from && end - from < 10;
        for (size_t i = from; digits && i < end; i++) {
            digits = path.s->s[i] >= '0' && path.s->s[i] <= '9';
            index = index * 10 + (path.s->s[i] - '0');
        }
        if (digits)
            key = jval_int(index);
        else if ((st = jval_str_view(r, path.s->s + from, end - from, &key)) != RD_OK)
            return st;
        if ((st = jinja_get_item(r, *out, key, out)) != RD_OK) return st;
        if (out->kind == J_UNDEF && fallback.kind != J_MISSING) *out = fallback;
    }
    return RD_OK;
}

static rd_status fold_case(struct jrun *r, struct jval *v)
{
    return v->kind == J_STR ? jinja_case(r, v->s, CASE_LOWER, v) : RD_OK;
}

/* Keys of items for sorting and comparing: the attribute (several with commas make a list), lower case unless
 * case_sensitive. */
static rd_status make_keys(struct jrun *r, const struct jval *items, size_t n, struct jval attribute,
                           bool case_sensitive, struct jval **out)
{
    struct jval *keys, part, piece;
    rd_status st = jrun_alloc(r, n, sizeof(*keys), &keys);

    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if (attribute.kind != J_STR || jinja_find_bytes(attribute.s->s, attribute.s->n, 0, ",", 1) == SIZE_MAX) {
            if ((st = jinja_path(r, items[i], attribute, no_fallback, &keys[i])) == RD_OK && !case_sensitive)
                st = fold_case(r, &keys[i]);
            continue;
        }
        if ((st = jval_list(r, J_LIST, 2, &keys[i])) != RD_OK) return st;
        for (size_t from = 0, end; st == RD_OK && from <= attribute.s->n; from = end + 1) {
            end = jinja_find_bytes(attribute.s->s, attribute.s->n, from, ",", 1);
            if (end == SIZE_MAX) end = attribute.s->n;
            if ((st = jval_str_view(r, attribute.s->s + from, end - from, &piece)) != RD_OK) return st;
            if ((st = jinja_path(r, items[i], piece, no_fallback, &part)) != RD_OK) return st;
            if (!case_sensitive && (st = fold_case(r, &part)) != RD_OK) return st;
            st = jlist_push(r, keys[i].list, part);
        }
    }
    *out = keys;
    return st;
}

/* A list of its own with the items of in. */
static rd_status copy_items(struct jrun *r, struct jval in, enum jkind kind, struct jval *out)
{
    struct jval *items;
    size_t n;
    rd_status st = jval_iterate(r, in, &items, &n);

    if (st != RD_OK || (st = jval_list(r, kind, n, out)) != RD_OK) return st;
    if (n) memcpy(out->list->items, items, n * sizeof(*items));
    out->list->n = n;
    return RD_OK;
}

static rd_status f_list(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return copy_items(r, in, J_LIST, out);
}

static rd_status f_length(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    size_t n;
    rd_status st = jval_length(r, in, &n);

    *out = jval_int(st == RD_OK ? (int64_t)n : 0);
    return st;
}

static rd_status f_first(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items;
    size_t n;
    rd_status st = jval_iterate(r, in, &items, &n);

    if (st != RD_OK) return st;
    *out = n ? items[0] : jval_undef();
    if (in.kind == J_GEN && n) {
        in.list->items++;
        in.list->n = n - 1;
    }
    return RD_OK;
}

static rd_status f_last(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items;
    size_t n;
    rd_status st = jval_iterate(r, in, &items, &n);

    if (st == RD_OK) *out = n ? items[n - 1] : jval_undef();
    return st;
}

static rd_status f_reverse(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval swap;
    rd_status st;

    if (in.kind == J_STR) return jinja_slice(r, in, jval_none(), jval_none(), jval_int(-1), out);
    if ((st = copy_items(r, in, J_GEN, out)) != RD_OK) return st;
    for (size_t i = 0, n = out->list->n; i < n / 2; i++) {
        swap = out->list->items[i];
        out->list->items[i] = out->list->items[n - 1 - i];
        out->list->items[n - 1 - i] = swap;
    }
    return RD_OK;
}

/* join(d, attribute); where everything is escaped, one safe part makes the whole safe and the others escaped. */
static rd_status f_join(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items, v, separator = c->v[0];
    struct jstr *sep, *s;
    struct buf b;
    bool safe = r->autoescape && separator.kind == J_STR && separator.s->safe;
    size_t n;
    rd_status st = jval_iterate(r, in, &items, &n);

    if (st != RD_OK) return st;
    for (size_t i = 0; r->autoescape && i < n; i++) safe |= items[i].kind == J_STR && items[i].s->safe;
    if (safe && separator.kind != J_MISSING && (st = jval_escape(r, separator, &separator)) != RD_OK) return st;
    if ((st = jval_to_str(r, separator, &sep)) != RD_OK) return st;
    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if ((st = jinja_path(r, items[i], c->v[1], no_fallback, &v)) != RD_OK) break;
        if ((safe && (st = jval_escape(r, v, &v)) != RD_OK) || (st = jval_to_str(r, v, &s)) != RD_OK) break;
        if (i) buf_append(&b, sep->s, sep->n);
        buf_append(&b, s->s, s->n);
        st = jrun_pay(r, (s->n + sep->n) / 16 + 1);
    }
    if ((st = jrun_take_buf(r, &b, st, out)) == RD_OK) out->s->safe = safe;
    return st;
}

/* An item by a fixed sequence of draws: the same template and variables give the same text, as the cache wants. */
static rd_status f_random(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items;
    uint32_t h = ++r->n_random * 2654435761u;
    size_t n;
    rd_status st = jval_iterate(r, in, &items, &n);

    if (st == RD_OK) *out = n ? items[(h >> 8) % n] : jval_undef();
    return st;
}

/* sort(reverse, case_sensitive, attribute) */
static rd_status f_sort(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *keys;
    rd_status st = copy_items(r, in, J_LIST, out);

    if (st != RD_OK ||
        (st = make_keys(r, out->list->items, out->list->n, c->v[2], jval_truth(c->v[1]), &keys)) != RD_OK)
        return st;
    return jinja_sort(r, keys, out->list->items, out->list->n, jval_truth(c->v[0]));
}

static rd_status dict_items(struct jrun *r, struct jval in, enum jkind kind, struct jval *out)
{
    struct jval pair;
    rd_status st = jval_list(r, kind, in.dict->n, out);

    for (size_t i = 0; st == RD_OK && i < in.dict->n; i++)
        if ((st = jval_pair(r, in.dict->entries[i].key, in.dict->entries[i].value, &pair)) == RD_OK)
            st = jlist_push(r, out->list, pair);
    return st;
}

static rd_status f_items(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    if (in.kind == J_UNDEF) return jval_list(r, J_GEN, 0, out);
    if (in.kind != J_DICT) return jrun_fail(r, "Can only get item pairs from a mapping.");
    return dict_items(r, in, J_GEN, out);
}

/* dictsort(case_sensitive, by, reverse) */
static rd_status f_dictsort(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *keys;
    struct jstr *by;
    bool value;
    rd_status st = jarg_str(r, c->v[1], "dictsort", "key", &by);

    if (st != RD_OK) return st;
    value = jstr_is(by, "value");
    if (!value && !jstr_is(by, "key")) return jrun_fail(r, "You can only sort by either \"key\" or \"value\"");
    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (in.kind != J_DICT) return jrun_fail(r, "dictsort needs a mapping, not %s", jval_type_name(in));
    if ((st = dict_items(r, in, J_LIST, out)) != RD_OK) return st;
    if ((st = make_keys(r, out->list->items, out->list->n, jval_int(value), jval_truth(c->v[0]), &keys)) != RD_OK)
        return st;
    return jinja_sort(r, keys, out->list->items, out->list->n, jval_truth(c->v[2]));
}

/* unique(case_sensitive, attribute) */
static rd_status f_unique(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items, *keys, seen;
    struct jentry *e;
    size_t n;
    rd_status st = jval_iterate(r, in, &items, &n);

    if (st != RD_OK || (st = make_keys(r, items, n, c->v[1], jval_truth(c->v[0]), &keys)) != RD_OK) return st;
    if ((st = jval_list(r, J_GEN, 0, out)) != RD_OK || (st = jval_dict(r, &seen)) != RD_OK) return st;
    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if ((st = jdict_find(r, seen.dict, keys[i], &e)) != RD_OK || e) continue;
        if ((st = jdict_set(r, seen.dict, keys[i], jval_none())) == RD_OK) st = jlist_push(r, out->list, items[i]);
    }
    return st;
}

/* min, max(case_sensitive, attribute) */
static rd_status extreme(struct jrun *r, struct jval in, struct jcall *c, int sign, struct jval *out)
{
    struct jval *items, *keys;
    size_t n, best = 0;
    int order = 0;
    rd_status st = jval_iterate(r, in, &items, &n);

    if (st != RD_OK || (st = make_keys(r, items, n, c->v[1], jval_truth(c->v[0]), &keys)) != RD_OK) return st;
    for (size_t i = 1; i < n; i++) {
        if ((st = jval_compare(r, keys[i], keys[best], sign < 0 ? "<" : ">", &order)) != RD_OK) return st;
        if (order == sign) best = i;
    }
    *out = n ? items[best] : jval_undef();
    return RD_OK;
}

static rd_status f_min(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return extreme(r, in, c, -1, out);
}
static rd_status f_max(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return extreme(r, in, c, 1, out);
}

/* sum(attribute, start) */
static rd_status f_sum(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items, v;
    size_t n;
    rd_status st = jval_iterate(r, in, &items, &n);

    *out = c->v[1].kind == J_MISSING ? jval_int(0) : c->v[1];
    if (out->kind == J_STR) return jrun_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; st == RD_OK && i < n; i++)
        if ((st = jinja_path(r, items[i], c->v[0], no_fallback, &v)) == RD_OK)
            st = jinja_binary(r, T_ADD, *out, v, out);
    return st;
}

/* groupby(attribute, default, case_sensitive): a list of (grouper, list) */
static rd_status f_groupby(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval sorted, *keys, group, pair, name;
    bool equal = false;
    rd_status st = copy_items(r, in, J_LIST, &sorted);

    if (st != RD_OK ||
        (st = make_keys(r, sorted.list->items, sorted.list->n, c->v[0], jval_truth(c->v[2]), &keys)) != RD_OK)
        return st;
    for (size_t i = 0; i < sorted.list->n; i++)
        if (keys[i].kind == J_UNDEF && c->v[1].kind != J_MISSING) keys[i] = c->v[1];
    if ((st = jinja_sort(r, keys, sorted.list->items, sorted.list->n, false)) != RD_OK) return st;
    st = jval_list(r, J_LIST, 0, out);
    for (size_t i = 0; st == RD_OK && i < sorted.list->n; i++) {
        if (i && (st = jval_equal(r, keys[i], keys[i - 1], &equal)) != RD_OK) return st;
        if (i == 0 || !equal) {
            if ((st = jinja_path(r, sorted.list->items[i], c->v[0], c->v[1], &name)) != RD_OK) return st;
            if ((st = jval_list(r, J_LIST, 0, &group)) != RD_OK || (st = jval_pair(r, name, group, &pair)) != RD_OK)
                return st;
            pair.list->view = 'g';
            if ((st = jlist_push(r, out->list, pair)) != RD_OK) return st;
        }
        st = jlist_push(r, group.list, sorted.list->items[i]);
    }
    return st;
}

/* batch(linecount, fill_with) */
static rd_status f_batch(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items, row = {.kind = J_MISSING};
    int64_t size;
    size_t n;
    rd_status st = jarg_int(r, c->v[0], "batch", 0, &size);

    if (st != RD_OK || (st = jval_iterate(r, in, &items, &n)) != RD_OK || (st = jval_list(r, J_GEN, 0, out)) != RD_OK)
        return st;
    if ((st = jval_list(r, J_LIST, 0, &row)) != RD_OK) return st;
    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if ((int64_t)row.list->n == size)
            if ((st = jlist_push(r, out->list, row)) != RD_OK || (st = jval_list(r, J_LIST, 0, &row)) != RD_OK)
                return st;
        st = jlist_push(r, row.list, items[i]);
    }
    if (st != RD_OK || row.list->n == 0) return st;
    while (st == RD_OK && c->v[1].kind != J_MISSING && c->v[1].kind != J_NONE && (int64_t)row.list->n < size)
        st = jlist_push(r, row.list, c->v[1]);
    return st == RD_OK ? jlist_push(r, out->list, row) : st;
}

/* slice(slices, fill_with) */
static rd_status f_slice(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items, row;
    int64_t parts;
    size_t n, at = 0;
    rd_status st = jarg_int(r, c->v[0], "slice", 0, &parts);

    if (st != RD_OK || (st = jval_iterate(r, in, &items, &n)) != RD_OK || (st = jval_list(r, J_GEN, 0, out)) != RD_OK)
        return st;
    if (parts == 0) return jrun_fail(r, "integer division or modulo by zero");
    for (uint64_t k = 0; st == RD_OK && parts > 0 && k < (uint64_t)parts; k++) {
        size_t extra = n % (uint64_t)parts, size = n / (uint64_t)parts + (k < extra);
        if ((st = jval_list(r, J_LIST, 0, &row)) != RD_OK || (st = jlist_push(r, out->list, row)) != RD_OK) return st;
        for (size_t i = 0; st == RD_OK && i < size; i++) st = jlist_push(r, row.list, items[at++]);
        if (st == RD_OK && k >= extra && c->v[1].kind != J_MISSING && c->v[1].kind != J_NONE)
            st = jlist_push(r, row.list, c->v[1]);
    }
    return st;
}

/* map("filter", args...) or map(attribute=, default=) */
static rd_status f_map(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    const struct jargs *a = c->args;
    struct jargs rest = *a;
    struct jval *items, v, attribute = {.kind = J_MISSING}, missing = {.kind = J_MISSING};
    size_t n;
    rd_status st;

    if (!jval_truth(in)) return jval_list(r, J_GEN, 0, out); /* whatever it is: false, 0, None */
    st = jval_iterate(r, in, &items, &n);

    for (size_t i = 0; i < a->n_kw; i++) {
        if (jstr_is(a->names[i], "attribute")) attribute = a->kw[i];
        if (jstr_is(a->names[i], "default")) missing = a->kw[i];
    }
    if (st != RD_OK || (st = jval_list(r, J_GEN, n, out)) != RD_OK) return st;
    if (attribute.kind == J_MISSING) {
        if (a->n == 0 || a->v[0].kind != J_STR) return jrun_fail(r, "map requires a filter argument");
        rest.v++;
        rest.n--;
    }
    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if (attribute.kind == J_MISSING)
            st = jinja_filter(r, a->v[0].s, items[i], &rest, &v);
        else
            st = jinja_path(r, items[i], attribute, missing, &v);
        if (st == RD_OK) st = jlist_push(r, out->list, v);
    }
    return st;
}

/* The four of select: by attribute or by the item, keeping what passes or what fails. */
static rd_status choose(struct jrun *r, struct jval in, struct jcall *c, bool by_attr, bool keep, struct jval *out)
{
    struct jargs rest = *c->args;
    struct jval *items, v, attribute = {.kind = J_MISSING};
    struct jstr *test = NULL;
    size_t n;
    bool yes;
    rd_status st;

    if (!jval_truth(in)) return jval_list(r, J_GEN, 0, out);
    st = jval_iterate(r, in, &items, &n);
    if (st != RD_OK || (st = jval_list(r, J_GEN, 0, out)) != RD_OK) return st;
    if (by_attr) {
        if (rest.n == 0) return jrun_fail(r, "Missing parameter for attribute name");
        attribute = rest.v[0];
        rest.v++;
        rest.n--;
    }
    if (rest.n) {
        if (rest.v[0].kind != J_STR) return jrun_fail(r, "the name of a test must be a string");
        test = rest.v[0].s;
        rest.v++;
        rest.n--;
    }
    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if ((st = jinja_path(r, items[i], attribute, no_fallback, &v)) != RD_OK) return st;
        yes = jval_truth(v);
        if (test && (st = jinja_test(r, test, v, &rest, &yes)) != RD_OK) return st;
        if (yes == keep) st = jlist_push(r, out->list, items[i]);
    }
    return st;
}

static rd_status f_select(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return choose(r, in, c, false, true, out);
}
static rd_status f_reject(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return choose(r, in, c, false, false, out);
}
static rd_status f_selectattr(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return choose(r, in, c, true, true, out);
}
static rd_status f_rejectattr(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return choose(r, in, c, true, false, out);
}

static rd_status f_attr(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *name;
    bool private;
    rd_status st = jarg_str(r, c->v[0], "attr", "", &name);

    if (st != RD_OK) return st;
    private = name->n >= 2 && name->s[0] == '_' && name->s[1] == '_';
    if (in.kind != J_DICT || private || jinja_has_method(in, name)) return jinja_get_attr(r, in, name, out);
    *out = jval_undef(); /* attr reads no items */
    return RD_OK;
}

const struct jfilter jinja_list_filters[] = {
    {"list", f_list, ""},
    {"length", f_length, ""},
    {"count", f_length, ""},
    {"first", f_first, ""},
    {"last", f_last, ""},
    {"reverse", f_reverse, ""},
    {"join", f_join, "d,attribute"},
    {"random", f_random, ""},
    {"sort", f_sort, "reverse,case_sensitive,attribute"},
    {"items", f_items, ""},
    {"dictsort", f_dictsort, "case_sensitive,by,reverse"},
    {"unique", f_unique, "case_sensitive,attribute"},
    {"min", f_min, "case_sensitive,attribute"},
    {"max", f_max, "case_sensitive,attribute"},
    {"sum", f_sum, "attribute,start"},
    {"groupby", f_groupby, "attribute,default,case_sensitive"},
    {"batch", f_batch, "linecount,fill_with"},
    {"slice", f_slice, "slices,fill_with"},
    {"map", f_map, "*"},
    {"select", f_select, "*"},
    {"reject", f_reject, "*"},
    {"selectattr", f_selectattr, "*"},
    {"rejectattr", f_rejectattr, "*"},
    {"attr", f_attr, "name"},
    {NULL, NULL, NULL},
};
