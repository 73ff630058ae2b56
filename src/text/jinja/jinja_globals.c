/* text/jinja/jinja_globals.c - the functions that a template finds without being given them. */
#include <string.h>
#include <time.h>
#include "base/error.h"
#include "text/jinja/jinja_run.h"

#define RANGE_MAX 100000 /* as jinja2's sandbox */

static rd_status g_range(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    int64_t start = 0, stop, step = 1;
    rd_status st;

    if (c->v[0].kind == J_MISSING) return jrun_fail(r, "range expected at least 1 argument, got 0");
    if ((st = jarg_int(r, c->v[0], "range", 0, &stop)) != RD_OK) return st;
    if (c->v[1].kind != J_MISSING) {
        start = stop;
        if ((st = jarg_int(r, c->v[1], "range", 0, &stop)) != RD_OK ||
            (st = jarg_int(r, c->v[2], "range", 1, &step)) != RD_OK)
            return st;
    }
    if (step == 0) return jrun_fail(r, "range() arg 3 must not be zero");
    if (start > INT32_MAX || start < INT32_MIN || stop > INT32_MAX || stop < INT32_MIN || step > INT32_MAX ||
        step < INT32_MIN)
        return jrun_limit(r, "Range too big. The sandbox blocks ranges larger than 100000.");
    out->kind = J_RANGE;
    if ((st = jrun_alloc(r, 1, sizeof(*out->range), &out->range)) != RD_OK) return st;
    *out->range = (struct jrange){.start = start, .step = step, .stop = stop};
    if (step > 0 && stop > start) out->range->n = (stop - start + step - 1) / step;
    if (step < 0 && stop < start) out->range->n = (start - stop - step - 1) / -step;
    return out->range->n > RANGE_MAX ? jrun_limit(r, "Range too big. The sandbox blocks ranges larger than 100000.")
                                     : RD_OK;
}

/* dict(mapping or pairs, key=value ...) */
static rd_status g_dict(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    const struct jargs *a = c->args;
    struct jval *items, *pair, key = {.kind = J_STR};
    size_t n, two;
    rd_status st = jval_dict(r, out);

    if (st == RD_OK && a->n > 1) return jrun_fail(r, "dict expected at most 1 argument, got %zu", a->n);
    if (st == RD_OK && a->n == 1 && a->v[0].kind == J_UNDEF) return jrun_undefined(r, a->v[0]);
    if (st == RD_OK && a->n == 1 && a->v[0].kind == J_DICT) {
        for (size_t i = 0; st == RD_OK && i < a->v[0].dict->n; i++)
            st = jdict_set(r, out->dict, a->v[0].dict->entries[i].key, a->v[0].dict->entries[i].value);
    } else if (st == RD_OK && a->n == 1) {
        if ((st = jval_iterate(r, a->v[0], &items, &n)) != RD_OK) return st;
        for (size_t i = 0; st == RD_OK && i < n; i++) {
            if ((st = jval_iterate(r, items[i], &pair, &two)) != RD_OK) return st;
            if (two != 2) return jrun_fail(r, "dict needs pairs");
            st = jdict_set(r, out->dict, pair[0], pair[1]);
        }
    }
    for (size_t i = 0; st == RD_OK && i < a->n_kw; i++) {
        key.s = a->names[i];
        st = jdict_set(r, out->dict, key, a->kw[i]);
    }
    return st;
}

static rd_status g_namespace(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    rd_status st = g_dict(r, in, c, out);

    out->kind = J_NAMESPACE;
    return st;
}

static rd_status g_cycler(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval list;
    rd_status st;

    if (c->args->n == 0) return jrun_fail(r, "at least one item has to be provided");
    out->kind = J_CYCLER;
    if ((st = jrun_alloc(r, 1, sizeof(*out->cycler), &out->cycler)) != RD_OK ||
        (st = jval_list(r, J_LIST, c->args->n, &list)) != RD_OK)
        return st;
    for (size_t i = 0; st == RD_OK && i < c->args->n; i++) st = jlist_push(r, list.list, c->args->v[i]);
    out->cycler->list = list.list;
    return st;
}

static rd_status g_joiner(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    rd_status st = jrun_alloc(r, 1, sizeof(*out->joiner), &out->joiner);

    out->kind = J_JOINER;
    if (st != RD_OK) return st;
    out->joiner->sep = c->v[0];
    return c->v[0].kind == J_MISSING ? jval_str_view(r, ", ", 2, &out->joiner->sep) : RD_OK;
}

static rd_status g_raise(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s;
    rd_status st = jval_to_str(r, c->v[0], &s);

    return st == RD_OK ? jrun_fail(r, "%.*s", s->n > 400 ? 400 : (int)s->n, s->s) : st;
}

static rd_status g_strftime_now(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    char format[256], text[1024];
    time_t now = (time_t)r->now_s;
    struct jstr *s;
    struct tm tm;
    rd_status st = jarg_str(r, c->v[0], "strftime_now", NULL, &s);

    if (st != RD_OK) return st;
    if (s->n >= sizeof(format) || memchr(s->s, 0, s->n) || !localtime_r(&now, &tm))
        return jrun_fail(r, "strftime_now: the format is too long");
    if ((st = jrun_pay(r, 100 + s->n * 40)) != RD_OK) return st;
    memcpy(format, s->s, s->n);
    format[s->n] = 0;
    return jval_str(r, text, strftime(text, sizeof(text), format, &tm), out);
}

static const struct jglobal globals[] = {
    {"range", g_range, "start,stop,step"},
    {"dict", g_dict, "*"},
    {"namespace", g_namespace, "*"},
    {"cycler", g_cycler, "*"},
    {"joiner", g_joiner, "sep"},
    {"raise_exception", g_raise, "message"},
    {"strftime_now", g_strftime_now, "format"},
};

const struct jglobal *jinja_find_global(const struct jstr *name)
{
    for (size_t i = 0; i < sizeof(globals) / sizeof(globals[0]); i++)
        if (jstr_is(name, globals[i].name)) return &globals[i];
    return NULL;
}
