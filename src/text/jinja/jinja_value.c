/* text/jinja/jinja_value.c - making, comparing and walking values. */
#include "text/jinja/jinja_value.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "text/jinja/jinja_run.h"

rd_status jval_str_view(struct jrun *r, const char *s, size_t n, struct jval *out)
{
    struct jstr *str;
    rd_status st = jrun_alloc(r, 1, sizeof(*str), &str);

    if (st != RD_OK) return st;
    *str = (struct jstr){.s = s, .n = n, .n_chars = SIZE_MAX};
    *out = (struct jval){.kind = J_STR, .s = str};
    return RD_OK;
}

rd_status jval_str(struct jrun *r, const char *s, size_t n, struct jval *out)
{
    char *copy;
    rd_status st = jrun_alloc(r, n + 1, 1, &copy);

    if (st != RD_OK) return st;
    if (n) memcpy(copy, s, n);
    return jval_str_view(r, copy, n, out);
}

rd_status jval_list(struct jrun *r, enum jkind kind, size_t cap, struct jval *out)
{
    struct jlist *l;
    rd_status st = jrun_alloc(r, 1, sizeof(*l), &l);

    if (st != RD_OK || (cap && (st = jrun_alloc(r, cap, sizeof(*l->items), &l->items)) != RD_OK)) return st;
    l->cap = cap;
    *out = (struct jval){.kind = kind, .list = l};
    return RD_OK;
}

rd_status jlist_push(struct jrun *r, struct jlist *l, struct jval v)
{
    struct jval *items;
    rd_status st;

    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        if ((st = jrun_alloc(r, cap, sizeof(*items), &items)) != RD_OK) return st;
        if (l->n) memcpy(items, l->items, l->n * sizeof(*items));
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return RD_OK;
}

rd_status jval_pair(struct jrun *r, struct jval a, struct jval b, struct jval *out)
{
    rd_status st = jval_list(r, J_TUPLE, 2, out);

    if (st != RD_OK || (st = jlist_push(r, out->list, a)) != RD_OK) return st;
    return jlist_push(r, out->list, b);
}

rd_status jval_dict(struct jrun *r, struct jval *out)
{
    struct jdict *d;
    rd_status st = jrun_alloc(r, 1, sizeof(*d), &d);

    *out = (struct jval){.kind = J_DICT, .dict = d};
    return st;
}

static uint32_t hash_bytes(const void *p, size_t n)
{
    const unsigned char *s = p;
    uint32_t h = 2166136261u; /* FNV-1a; collisions are paid for, probe by probe */

    for (size_t i = 0; i < n; i++) h = (h ^ s[i]) * 16777619u;
    return h ? h : 1;
}

uint32_t jstr_hash(struct jstr *s)
{
    if (!s->hash) s->hash = hash_bytes(s->s, s->n);
    return s->hash;
}

/* Equal values have equal hashes: 1 == 1.0 == true. */
static rd_status hash_value(struct jrun *r, struct jval v, uint32_t *out)
{
    uint32_t h = 0;
    rd_status st;

    if (v.kind == J_FLOAT && v.f >= -9e18 && v.f <= 9e18 && v.f == floor(v.f)) v = jval_int((int64_t)v.f);
    switch (v.kind) {
    case J_BIG:
    case J_STR:
        *out = jstr_hash(v.s);
        return jrun_pay(r, v.s->n / 32 + 1);
    case J_NONE:
    case J_UNDEF:
        *out = 7;
        return RD_OK;
    case J_BOOL:
    case J_INT:
        v = jval_int(jval_to_int(v));
        *out = hash_bytes(&v.i, sizeof(v.i));
        return RD_OK;
    case J_FLOAT:
        *out = hash_bytes(&v.f, sizeof(v.f));
        return RD_OK;
    case J_TUPLE:
        *out = 99;
        if ((st = jrun_enter_call(r)) != RD_OK) return st;
        for (size_t i = 0; i < v.list->n; i++) {
            if ((st = hash_value(r, v.list->items[i], &h)) != RD_OK) return st;
            *out = *out * 31 + h;
        }
        r->calls--;
        return jrun_pay(r, v.list->n);
    case J_LIST:
    case J_DICT:
        return jrun_fail(r, "unhashable type: '%s'", jval_type_name(v));
    default:
        *out = hash_bytes(&v.s, sizeof(v.s));
        return RD_OK;
    }
}

/* Puts entry k into the index. */
static void index_add(struct jdict *d, uint32_t hash, size_t k)
{
    size_t at = hash & (d->n_index - 1);

    while (d->index[at]) at = (at + 1) & (d->n_index - 1);
    d->index[at] = (uint32_t)k + 1;
}

/* A new index with room for as many entries again. */
static rd_status reindex(struct jrun *r, struct jdict *d)
{
    size_t n_index = 16;
    uint32_t hash;
    rd_status st;

    while (n_index < d->n * 4) n_index *= 2;
    if ((st = jrun_alloc(r, n_index, sizeof(*d->index), &d->index)) != RD_OK) return st;
    d->n_index = n_index;
    for (size_t k = 0; k < d->n; k++) {
        if ((st = hash_value(r, d->entries[k].key, &hash)) != RD_OK) return st;
        index_add(d, hash, k);
    }
    return jrun_pay(r, d->n);
}

rd_status jdict_find(struct jrun *r, struct jdict *d, struct jval key, struct jentry **found)
{
    uint32_t hash;
    bool equal;
    rd_status st = hash_value(r, key, &hash);

    *found = NULL;
    if (st != RD_OK || d->n == 0) return st;
    if (d->n_index == 0 && (st = reindex(r, d)) != RD_OK) return st;
    for (size_t at = hash & (d->n_index - 1); d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        struct jentry *e = &d->entries[d->index[at] - 1];
        if ((st = jrun_pay(r, 1)) != RD_OK) return st;
        if (e->key.kind == J_STR && key.kind == J_STR && jstr_hash(e->key.s) != hash) continue;
        if ((st = jval_equal(r, e->key, key, &equal)) != RD_OK) return st;
        if (!equal) continue;
        *found = e;
        return RD_OK;
    }
    return RD_OK;
}

struct jentry *jdict_find_text(struct jdict *d, const char *s, size_t n)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->entries[i].key.kind == J_STR && d->entries[i].key.s->n == n && !memcmp(d->entries[i].key.s->s, s, n))
            return &d->entries[i];
    return NULL;
}

rd_status jdict_set(struct jrun *r, struct jdict *d, struct jval key, struct jval value)
{
    struct jentry *e;
    uint32_t hash;
    rd_status st = jdict_find(r, d, key, &e);

    if (st != RD_OK) return st;
    if (e) {
        e->value = value;
        return RD_OK;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        if ((st = jrun_alloc(r, cap, sizeof(*e), &e)) != RD_OK) return st;
        if (d->n) memcpy(e, d->entries, d->n * sizeof(*e));
        d->entries = e;
        d->cap = cap;
    }
    d->entries[d->n++] = (struct jentry){key, value};
    if (d->n * 2 > d->n_index) return reindex(r, d);
    if ((st = hash_value(r, key, &hash)) != RD_OK) return st;
    index_add(d, hash, d->n - 1);
    return RD_OK;
}

void jdict_remove(struct jdict *d, struct jentry *e)
{
    size_t k = (size_t)(e - d->entries);

    memmove(e, e + 1, (d->n - k - 1) * sizeof(*e));
    d->n--;
    d->n_index = 0; /* the next search makes a new index */
    d->index = NULL;
}

bool jval_truth(struct jval v)
{
    switch (v.kind) {
    case J_MISSING:
    case J_UNDEF:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    case J_STR:
        return v.s->n > 0;
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        return v.list->n > 0;
    case J_DICT:
        return v.dict->n > 0;
    case J_RANGE:
        return v.range->n > 0;
    default:
        return true;
    }
}

const char *jval_type_name(struct jval v)
{
    static const char *const names[] = {"missing", "Undefined", "NoneType",  "bool",        "int",       "float",
                                        "int",     "str",       "list",      "tuple",       "dict_view", "generator",
                                        "dict",    "range",     "Namespace", "LoopContext", "Macro",     "function",
                                        "method",  "Cycler",    "Joiner"};

    return names[v.kind];
}

size_t jstr_n_chars(struct jrun *r, struct jstr *s)
{
    if (s->n_chars == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->n; n++) jinja_next_cp(s->s, s->n, &i);
        s->n_chars = n;
        if (r) r->fuel -= r->fuel < s->n / 8 ? r->fuel : s->n / 8;
    }
    return s->n_chars;
}

size_t jstr_offset(struct jrun *r, struct jstr *s, size_t i)
{
    size_t at = 0;

    if (jstr_n_chars(r, s) == s->n) return i;
    for (size_t k = 0; k < i && at < s->n; k++) jinja_next_cp(s->s, s->n, &at);
    r->fuel -= r->fuel < at / 8 ? r->fuel : at / 8;
    return at;
}

static rd_status iterate_str(struct jrun *r, struct jstr *s, struct jval **items, size_t *n)
{
    struct jval list;
    rd_status st = jval_list(r, J_LIST, jstr_n_chars(r, s), &list);

    for (size_t i = 0, from = 0; st == RD_OK && i < s->n; from = i) {
        struct jval c;
        jinja_next_cp(s->s, s->n, &i);
        if ((st = jval_str_view(r, s->s + from, i - from, &c)) == RD_OK) st = jlist_push(r, list.list, c);
    }
    if (st != RD_OK) return st;
    *items = list.list->items;
    *n = list.list->n;
    return RD_OK;
}

rd_status jval_iterate(struct jrun *r, struct jval v, struct jval **items, size_t *n)
{
    rd_status st;

    *items = NULL;
    *n = 0;
    switch (v.kind) {
    case J_UNDEF:
        return RD_OK;
    case J_STR:
        return iterate_str(r, v.s, items, n);
    case J_GEN:
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        *items = v.list->items;
        *n = v.list->n;
        if (v.kind == J_GEN) v.list->n = 0;
        return RD_OK;
    case J_DICT:
        if ((st = jrun_alloc(r, v.dict->n, sizeof(**items), items)) != RD_OK) return st;
        for (size_t i = 0; i < v.dict->n; i++) (*items)[i] = v.dict->entries[i].key;
        *n = v.dict->n;
        return RD_OK;
    case J_RANGE:
        if ((st = jrun_alloc(r, (size_t)v.range->n, sizeof(**items), items)) != RD_OK) return st;
        for (int64_t i = 0; i < v.range->n; i++) (*items)[i] = jval_int(v.range->start + i * v.range->step);
        *n = (size_t)v.range->n;
        return RD_OK;
    default:
        return jrun_fail(r, "'%s' object is not iterable", jval_type_name(v));
    }
}

rd_status jval_length(struct jrun *r, struct jval v, size_t *n)
{
    switch (v.kind) {
    case J_UNDEF:
        *n = 0;
        return RD_OK;
    case J_STR:
        *n = jstr_n_chars(r, v.s);
        return RD_OK;
    case J_LIST:
    case J_TUPLE:
    case J_VIEW:
        *n = v.list->n;
        return RD_OK;
    case J_DICT:
        *n = v.dict->n;
        return RD_OK;
    case J_RANGE:
        *n = (size_t)v.range->n;
        return RD_OK;
    case J_LOOP:
        *n = v.loop->n;
        return RD_OK;
    default:
        return jrun_fail(r, "object of type '%s' has no len()", jval_type_name(v));
    }
}

static rd_status equal_lists(struct jrun *r, const struct jlist *a, const struct jlist *b, bool *out)
{
    rd_status st = RD_OK;

    *out = a->n == b->n;
    for (size_t i = 0; st == RD_OK && *out && i < a->n && i < b->n; i++)
        st = jval_equal(r, a->items[i], b->items[i], out);
    return st;
}

static rd_status equal_dicts(struct jrun *r, struct jdict *a, struct jdict *b, bool *out)
{
    rd_status st = RD_OK;

    *out = a->n == b->n;
    for (size_t i = 0; st == RD_OK && *out && i < a->n; i++) {
        struct jentry *e;
        if ((st = jdict_find(r, b, a->entries[i].key, &e)) != RD_OK) return st;
        if (!e)
            *out = false;
        else
            st = jval_equal(r, a->entries[i].value, e->value, out);
    }
    return st;
}

/* Views of keys and items compare as sets. */
static rd_status equal_sets(struct jrun *r, const struct jlist *a, const struct jlist *b, bool *out)
{
    rd_status st = RD_OK;

    *out = a->n == b->n;
    for (size_t i = 0; st == RD_OK && *out && i < a->n; i++) {
        *out = false;
        for (size_t k = 0; st == RD_OK && !*out && k < b->n; k++) st = jval_equal(r, a->items[i], b->items[k], out);
    }
    return st;
}

/* A number's digits before the point, as they are compared where one of two is J_BIG; buf: for those of a float. Only a
 * float of 2^63 or more can be as large as a J_BIG, and is whole. */
static struct jstr digits_of(struct jval v, char *buf, size_t cap)
{
    if (v.kind == J_BIG) return *v.s;
    if (v.kind == J_FLOAT)
        snprintf(buf, cap, "%.0f", v.f);
    else
        snprintf(buf, cap, "%lld", (long long)jval_to_int(v));
    return (struct jstr){.s = buf, .n = strlen(buf)};
}

/* One of the two is J_BIG, the other a number or J_BIG. -1, 0, 1; 2: nan. */
static int compare_big(struct jval a, struct jval b)
{
    char x[400], y[400];
    struct jstr s, t;
    bool minus, other;
    int c;

    if (a.kind == J_FLOAT && !isfinite(a.f)) return isnan(a.f) ? 2 : a.f > 0 ? 1 : -1;
    if (b.kind == J_FLOAT && !isfinite(b.f)) return isnan(b.f) ? 2 : b.f > 0 ? -1 : 1;
    s = digits_of(a, x, sizeof(x));
    t = digits_of(b, y, sizeof(y));
    minus = s.s[0] == '-';
    other = t.s[0] == '-';
    if (minus != other) return minus ? -1 : 1;
    c = s.n == t.n ? memcmp(s.s, t.s, s.n) : s.n < t.n ? -1 : 1;
    return c == 0 ? 0 : (c < 0) == minus ? 1 : -1;
}

static bool is_big_pair(struct jval a, struct jval b)
{
    return (a.kind == J_BIG && (b.kind == J_BIG || jval_is_number(b))) || (b.kind == J_BIG && jval_is_number(a));
}

rd_status jval_equal(struct jrun *r, struct jval a, struct jval b, bool *out)
{
    rd_status st = jrun_pay(r, 1);

    if (st != RD_OK) return st;
    if (jval_is_int(a) && jval_is_int(b)) {
        *out = jval_to_int(a) == jval_to_int(b);
    } else if (jval_is_number(a) && jval_is_number(b)) {
        *out = jval_to_float(a) == jval_to_float(b);
    } else if (is_big_pair(a, b)) {
        *out = compare_big(a, b) == 0;
    } else if (a.kind != b.kind) {
        *out = false;
    } else if (a.kind == J_STR) {
        *out = a.s->n == b.s->n && !memcmp(a.s->s, b.s->s, a.s->n);
        return jrun_pay(r, *out ? a.s->n / 64 : 0);
    } else if (a.kind == J_NONE || a.kind == J_UNDEF) {
        *out = true;
    } else if (a.kind == J_VIEW && a.list->view != 'v' && a.list->view == b.list->view) {
        return equal_sets(r, a.list, b.list, out);
    } else if (a.kind == J_LIST || a.kind == J_TUPLE || a.kind == J_DICT) {
        if ((st = jrun_enter_call(r)) != RD_OK) return st;
        st = a.kind == J_DICT ? equal_dicts(r, a.dict, b.dict, out) : equal_lists(r, a.list, b.list, out);
        r->calls--;
        return st;
    } else if (a.kind == J_RANGE) {
        *out = a.range->n == b.range->n &&
               (a.range->n == 0 || (a.range->start == b.range->start && a.range->step == b.range->step));
    } else {
        *out = a.s == b.s; /* the same object */
    }
    return RD_OK;
}

rd_status jval_compare(struct jrun *r, struct jval a, struct jval b, const char *op, int *out)
{
    rd_status st = jrun_pay(r, 1);
    bool equal;

    if (st != RD_OK) return st;
    if (a.kind == J_UNDEF) return jrun_undefined(r, a);
    if (b.kind == J_UNDEF) return jrun_undefined(r, b);
    if (jval_is_int(a) && jval_is_int(b)) {
        int64_t x = jval_to_int(a), y = jval_to_int(b);
        *out = (x > y) - (x < y);
    } else if (jval_is_number(a) && jval_is_number(b)) {
        double x = jval_to_float(a), y = jval_to_float(b);
        *out = isnan(x) || isnan(y) ? 2 : (x > y) - (x < y); /* 2: neither */
    } else if (is_big_pair(a, b)) {
        *out = compare_big(a, b);
    } else if (a.kind == J_STR && b.kind == J_STR) {
        size_t n = a.s->n < b.s->n ? a.s->n : b.s->n;
        int c = memcmp(a.s->s, b.s->s, n);
        *out = c ? (c > 0) - (c < 0) : (a.s->n > b.s->n) - (a.s->n < b.s->n);
        return jrun_pay(r, n / 64);
    } else if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE)) {
        if ((st = jrun_enter_call(r)) != RD_OK) return st;
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++) {
            if ((st = jval_equal(r, a.list->items[i], b.list->items[i], &equal)) != RD_OK) return st;
            if (equal) continue;
            st = jval_compare(r, a.list->items[i], b.list->items[i], op, out);
            r->calls--;
            return st;
        }
        r->calls--;
        *out = (a.list->n > b.list->n) - (a.list->n < b.list->n);
    } else {
        return jrun_fail(r, "'%s' not supported between instances of '%s' and '%s'", op, jval_type_name(a),
                         jval_type_name(b));
    }
    return RD_OK;
}

rd_status jval_contains(struct jrun *r, struct jval container, struct jval item, bool *out)
{
    struct jval *items;
    struct jentry *e;
    size_t n;
    rd_status st;

    *out = false;
    if (container.kind == J_STR) {
        if (item.kind != J_STR)
            return jrun_fail(r, "'in <string>' requires string as left operand, not %s", jval_type_name(item));
        *out = jinja_find_bytes(container.s->s, container.s->n, 0, item.s->s, item.s->n) != SIZE_MAX;
        return jrun_pay(r, container.s->n / 16);
    }
    if (container.kind == J_DICT) {
        if ((st = jdict_find(r, container.dict, item, &e)) == RD_OK) *out = e != NULL;
        return st;
    }
    if (container.kind > J_RANGE || container.kind == J_NONE || jval_is_number(container))
        return jrun_fail(r, "argument of type '%s' is not iterable", jval_type_name(container));
    if ((st = jval_iterate(r, container, &items, &n)) != RD_OK) return st;
    for (size_t i = 0; st == RD_OK && !*out && i < n; i++) st = jval_equal(r, items[i], item, out);
    return st;
}
