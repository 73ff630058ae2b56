/* text/jinja/jinja_layout.c - the filters that break text into lines: wordwrap as Python's textwrap, pprint as its pprint;
 * and filesizeformat. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/limits.h"
#include "text/jinja/jinja_run.h"

/* ---- wordwrap ---- */

struct wrap {
    struct jrun *r;
    struct buf *out;
    const uint32_t *cp; /* the line's code points */
    size_t n;
    size_t width;
    bool break_words, break_hyphens;
    const struct jstr *newline;
    const struct jstr *text; /* where the line stands; offset[i]: of code point i */
    const size_t *offset;
    size_t chunk; /* the end of the chunk that was begun: what is cut off a long word stays one */
};

static bool is_blank(uint32_t cp)
{
    return cp == ' ' || (cp >= 9 && cp <= 13);
}

static bool is_letter(uint32_t cp)
{
    return jinja_is_word(cp) && jinja_digit(cp) < 0;
}

/* What may stand before a dash between words. */
static bool is_punct(uint32_t cp)
{
    return jinja_is_word(cp) || (cp && cp < 0x80 && strchr("!\"'&.,?", (int)cp));
}

/* Two or more dashes at i, then a word. Returns their end, or 0. */
static size_t long_dash(const struct wrap *w, size_t i)
{
    size_t end = i;

    while (end < w->n && w->cp[end] == '-') end++;
    return end >= i + 2 && end < w->n && jinja_is_word(w->cp[end]) ? end : 0;
}

/* A hyphen at i that a word may be broken behind. */
static bool breaks_behind(const struct wrap *w, size_t i)
{
    const uint32_t *c = w->cp;
    bool before = (i >= 2 && is_letter(c[i - 2]) && is_letter(c[i - 1])) ||
                  (i >= 3 && is_letter(c[i - 3]) && c[i - 2] == '-' && is_punct(c[i - 1]));
    size_t next = i + 1;

    if (!before || next >= w->n || !is_letter(c[next])) return false;
    next++;
    if (next < w->n && c[next] == '-') next++;
    return next < w->n && is_letter(c[next]);
}

/* The end of the chunk that begins at i: blanks, a long dash, or a word up to where it may be broken. */
static size_t chunk_end(const struct wrap *w, size_t i)
{
    size_t end = i;

    if (is_blank(w->cp[i])) {
        while (end < w->n && is_blank(w->cp[end])) end++;
        return end;
    }
    if (!w->break_hyphens) {
        while (end < w->n && !is_blank(w->cp[end])) end++;
        return end;
    }
    if (i > 0 && is_punct(w->cp[i - 1]) && (end = long_dash(w, i))) return end;
    for (end = i + 1; end < w->n && !is_blank(w->cp[end]); end++) {
        if (w->cp[end] == '-' && breaks_behind(w, end)) return end + 1;
        if (is_punct(w->cp[end - 1]) && long_dash(w, end)) return end;
    }
    return end;
}

static size_t chunk_at(struct wrap *w, size_t i)
{
    if (i >= w->chunk) w->chunk = chunk_end(w, i);
    return w->chunk;
}

static bool all_space(const struct wrap *w, size_t from, size_t end)
{
    while (from < end && jinja_is_space(w->cp[from])) from++;
    return from == end;
}

/* How much of a chunk that is longer than a line goes onto this one, where `room` is left. */
static size_t cut_word(const struct wrap *w, size_t from, size_t end, size_t room)
{
    size_t cut = from + room;

    if (!w->break_hyphens || end - from <= room) return cut < end ? cut : end;
    for (size_t i = cut; i-- > from + 1;) {
        if (w->cp[i] != '-') continue;
        for (size_t k = from; k < i; k++)
            if (w->cp[k] != '-') return i + 1;
        break;
    }
    return cut;
}

/* One output line from i on; returns where the next begins. */
static size_t wrap_line(struct wrap *w, size_t i, bool *wrote)
{
    size_t from, end, last;
    bool any = false;

    end = chunk_at(w, i);
    if (*wrote && all_space(w, i, end)) i = end;
    from = last = i;
    while (i < w->n && (end = chunk_at(w, i)) - from <= w->width) {
        last = i;
        i = end;
        any = true;
    }
    if (i < w->n && end - i > w->width && (w->break_words || !any)) {
        last = i;
        i = w->break_words ? cut_word(w, i, end, w->width - (i - from)) : end;
        any = true;
    }
    if (!any) return i;
    end = all_space(w, last, i) ? last : i;
    if (end == from) return i;
    if (*wrote) buf_append(w->out, w->newline->s, w->newline->n);
    buf_append(w->out, w->text->s + w->offset[from], w->offset[end] - w->offset[from]);
    *wrote = true;
    return i;
}

static rd_status wrap_text(struct wrap *w)
{
    rd_status st = RD_OK;
    bool wrote = false;

    for (size_t i = 0; st == RD_OK && i < w->n;) {
        size_t next = wrap_line(w, i, &wrote);
        st = jrun_pay(w->r, (next - i) * 2 + w->newline->n / 16 + 4);
        i = next;
    }
    return st;
}

/* Code points and byte offsets of one line, in arrays of the rendering. */
static rd_status read_line(struct jrun *r, const struct jstr *line, struct wrap *w)
{
    uint32_t *cp;
    size_t *offset;
    rd_status st = jrun_alloc(r, line->n + 1, sizeof(*cp), &cp);

    if (st != RD_OK || (st = jrun_alloc(r, line->n + 1, sizeof(*offset), &offset)) != RD_OK) return st;
    w->n = 0;
    for (size_t i = 0; i < line->n; w->n++) {
        offset[w->n] = i;
        cp[w->n] = jinja_next_cp(line->s, line->n, &i);
    }
    offset[w->n] = line->n;
    w->cp = cp;
    w->offset = offset;
    w->text = line;
    w->chunk = 0;
    return jrun_pay(r, line->n / 2);
}

/* wordwrap(width, break_long_words, wrapstring, break_on_hyphens) */
static rd_status f_wordwrap(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jargs none = {0};
    struct jcall plain = {.args = &none};
    struct jstr *newline = NULL;
    struct jval lines;
    struct buf b = {.limit = LIMIT_TEMPLATE_OUTPUT};
    int64_t width;
    struct wrap w = {.r = r, .out = &b};
    rd_status st = jarg_int(r, c->v[0], "wordwrap", 79, &width);

    if (c->v[2].kind == J_NONE) c->v[2].kind = J_MISSING;
    if (st != RD_OK || (st = jarg_str(r, c->v[2], "wordwrap", "\n", &newline)) != RD_OK) return st;
    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (in.kind != J_STR) return jrun_fail(r, "'%s' object has no attribute 'splitlines'", jval_type_name(in));
    if ((st = jinja_splitlines(r, in, &plain, &lines)) != RD_OK) return st;
    if (width <= 0 && lines.list->n) return jrun_fail(r, "invalid width %lld (must be > 0)", (long long)width);
    w.width = (size_t)width;
    w.break_words = c->v[1].kind == J_MISSING || jval_truth(c->v[1]);
    w.break_hyphens = c->v[3].kind == J_MISSING || jval_truth(c->v[3]);
    w.newline = newline;
    for (size_t i = 0; st == RD_OK && i < lines.list->n; i++) {
        if (i) buf_append(&b, newline->s, newline->n);
        if ((st = read_line(r, lines.list->items[i].s, &w)) == RD_OK) st = wrap_text(&w);
    }
    return jrun_take_buf(r, &b, st, out);
}

/* ---- pprint ---- */

enum { PPRINT_WIDTH = 80 };

struct pretty {
    struct jrun *r;
    struct buf *out;
};

static rd_status put_pretty(struct pretty *p, struct jval v, size_t indent, size_t allowance, uint32_t level);

static void next_line(struct pretty *p, size_t indent)
{
    buf_putc(p->out, '\n');
    for (; indent; indent--) buf_putc(p->out, ' ');
}

/* A copy with the keys of every dict in order, as pprint prints them; keys of several types stay as they are. */
static rd_status sort_keys(struct jrun *r, struct jval in, struct jval *out)
{
    struct jval *keys, *order, v;
    rd_status st = jrun_enter_call(r);

    *out = in;
    if (st != RD_OK) return st;
    if (in.kind == J_LIST || in.kind == J_TUPLE) {
        st = jval_list(r, in.kind, in.list->n, out);
        for (size_t i = 0; st == RD_OK && i < in.list->n; i++)
            if ((st = sort_keys(r, in.list->items[i], &v)) == RD_OK) st = jlist_push(r, out->list, v);
    } else if (in.kind == J_DICT) {
        size_t n = in.dict->n;
        bool text = true, number = true;
        if ((st = jrun_alloc(r, n, sizeof(*keys), &keys)) != RD_OK ||
            (st = jrun_alloc(r, n, sizeof(*order), &order)) != RD_OK)
            return st;
        for (size_t i = 0; i < n; i++) {
            keys[i] = in.dict->entries[i].key;
            order[i] = jval_int((int64_t)i);
            text &= keys[i].kind == J_STR;
            number &= jval_is_number(keys[i]);
        }
        if (text || number) st = jinja_sort(r, keys, order, n, false);
        if (st == RD_OK) st = jval_dict(r, out);
        for (size_t i = 0; st == RD_OK && i < n; i++)
            if ((st = sort_keys(r, in.dict->entries[order[i].i].value, &v)) == RD_OK)
                st = jdict_set(r, out->dict, in.dict->entries[order[i].i].key, v);
    }
    r->calls--;
    return st;
}

static rd_status put_pretty_items(struct pretty *p, const struct jlist *l, size_t indent, size_t allowance,
                                  uint32_t level)
{
    rd_status st = RD_OK;

    for (size_t i = 0; st == RD_OK && i < l->n; i++) {
        if (i) {
            buf_putc(p->out, ',');
            next_line(p, indent + 1);
        }
        st = put_pretty(p, l->items[i], indent + 1, i + 1 == l->n ? allowance : 1, level);
    }
    return st;
}

static rd_status put_pretty_dict(struct pretty *p, const struct jdict *d, size_t indent, size_t allowance,
                                 uint32_t level)
{
    struct jstr *key;
    rd_status st = RD_OK;

    for (size_t i = 0; st == RD_OK && i < d->n; i++) {
        if (i) {
            buf_putc(p->out, ',');
            next_line(p, indent + 1);
        }
        if ((st = jval_repr(p->r, d->entries[i].key, &key)) != RD_OK) break;
        buf_append(p->out, key->s, key->n);
        buf_puts(p->out, ": ");
        st = put_pretty(p, d->entries[i].value, indent + 1 + jstr_n_chars(p->r, key) + 2, i + 1 == d->n ? allowance : 1,
                        level);
    }
    return st;
}

/* The repr of s[from..end) onto a list; *n: its length. */
static rd_status piece_repr(struct jrun *r, const struct jstr *s, size_t from, size_t end, struct jval *out, size_t *n)
{
    struct jval part;
    rd_status st = jval_str_view(r, s->s + from, end - from, &part);

    if (st != RD_OK || (st = jval_repr(r, part, &out->s)) != RD_OK) return st;
    out->kind = J_STR;
    *n = jstr_n_chars(r, out->s);
    return RD_OK;
}

/* One line of a long text in pieces that end behind white space. */
static rd_status cut_pretty_line(struct jrun *r, const struct jstr *line, size_t width, size_t last_width,
                                 struct jlist *chunks)
{
    size_t from = 0, n;
    struct jval rep, kept = {.kind = J_MISSING};
    rd_status st = RD_OK;

    for (size_t at = 0, end; st == RD_OK && at < line->n; at = end) {
        size_t next = end = at;
        while (end < line->n && !jinja_is_space(jinja_next_cp(line->s, line->n, &next))) end = next;
        for (next = end; end < line->n && jinja_is_space(jinja_next_cp(line->s, line->n, &next));) end = next;
        if ((st = piece_repr(r, line, from, end, &rep, &n)) != RD_OK) break;
        if (n > (end == line->n ? last_width : width)) {
            if (kept.kind == J_STR) st = jlist_push(r, chunks, kept);
            from = at;
            if (st == RD_OK) st = piece_repr(r, line, from, end, &rep, &n);
        }
        kept = rep;
    }
    return st == RD_OK && kept.kind == J_STR ? jlist_push(r, chunks, kept) : st;
}

static rd_status put_pretty_str(struct pretty *p, struct jval v, size_t indent, size_t allowance, uint32_t level)
{
    struct jrun *r = p->r;
    struct jval keep = jval_bool(true), lines, chunks, rep;
    struct jargs args = {.v = &keep, .n = 1};
    struct jcall call = {.args = &args, .v = {keep}};
    size_t width, last_width, n;
    rd_status st;

    if (v.s->n == 0) {
        buf_puts(p->out, "''");
        return RD_OK;
    }
    indent += level == 1;
    allowance += level == 1;
    width = PPRINT_WIDTH > indent ? PPRINT_WIDTH - indent : 0;
    last_width = width > allowance ? width - allowance : 0;
    if ((st = jinja_splitlines(r, v, &call, &lines)) != RD_OK || (st = jval_list(r, J_LIST, 0, &chunks)) != RD_OK)
        return st;
    for (size_t i = 0; st == RD_OK && i < lines.list->n; i++) {
        const struct jstr *line = lines.list->items[i].s;
        bool last = i + 1 == lines.list->n;
        if ((st = piece_repr(r, line, 0, line->n, &rep, &n)) != RD_OK) break;
        if (n <= (last ? last_width : width))
            st = jlist_push(r, chunks.list, rep);
        else
            st = cut_pretty_line(r, line, width, last ? last_width : width, chunks.list);
    }
    if (st != RD_OK) return st;
    if (level == 1 && chunks.list->n > 1) buf_putc(p->out, '(');
    for (size_t i = 0; i < chunks.list->n; i++) {
        if (i) next_line(p, indent);
        buf_append(p->out, chunks.list->items[i].s->s, chunks.list->items[i].s->n);
    }
    if (level == 1 && chunks.list->n > 1) buf_putc(p->out, ')');
    return RD_OK;
}

static rd_status put_pretty(struct pretty *p, struct jval v, size_t indent, size_t allowance, uint32_t level)
{
    struct jstr *rep;
    rd_status st = jval_repr(p->r, v, &rep);

    if (st != RD_OK || (st = jrun_enter_call(p->r)) != RD_OK || (st = jrun_pay(p->r, indent / 4)) != RD_OK) return st;
    level++;
    if (jstr_n_chars(p->r, rep) + indent + allowance <= PPRINT_WIDTH) {
        buf_append(p->out, rep->s, rep->n);
    } else if (v.kind == J_DICT) {
        buf_putc(p->out, '{');
        st = put_pretty_dict(p, v.dict, indent, allowance + 1, level);
        buf_putc(p->out, '}');
    } else if (v.kind == J_LIST) {
        buf_putc(p->out, '[');
        st = put_pretty_items(p, v.list, indent, allowance + 1, level);
        buf_putc(p->out, ']');
    } else if (v.kind == J_TUPLE) {
        buf_putc(p->out, '(');
        st = put_pretty_items(p, v.list, indent, allowance + 1 + (v.list->n == 1), level);
        buf_puts(p->out, v.list->n == 1 ? ",)" : ")");
    } else if (v.kind == J_STR && !v.s->safe) {
        st = put_pretty_str(p, v, indent, allowance, level);
    } else {
        buf_append(p->out, rep->s, rep->n);
    }
    p->r->calls--;
    return st;
}

static rd_status f_pprint(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval sorted;
    struct buf b = {.limit = LIMIT_TEMPLATE_OUTPUT};
    struct pretty p = {r, &b};
    rd_status st = sort_keys(r, in, &sorted);

    if (st == RD_OK) st = put_pretty(&p, sorted, 0, 0, 0);
    return jrun_take_buf(r, &b, st, out);
}

/* filesizeformat(binary) */
static rd_status f_filesizeformat(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    static const char units[] = "kMGTPEZY";
    bool binary = jval_truth(c->v[0]);
    double bytes = 0, base = binary ? 1024 : 1000, unit = base;
    char text[64];
    size_t i = 0;
    int n;

    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (jval_is_number(in))
        bytes = jval_to_float(in);
    else if (in.kind != J_STR || !jinja_read_float(r, in.s, &bytes))
        return jrun_fail(r, "could not convert %s to float", jval_type_name(in));
    if (bytes == 1) {
        n = snprintf(text, sizeof(text), "1 Byte");
    } else if (bytes < base) {
        if (!(bytes > -1e18)) return jrun_fail(r, "cannot convert float to an integer number of bytes");
        n = snprintf(text, sizeof(text), "%lld Bytes", (long long)bytes);
    } else {
        for (unit *= base; !(bytes < unit) && i + 2 < sizeof(units); i++) unit *= base;
        n = snprintf(text, sizeof(text), "%.1f %c%sB", base * bytes / unit, binary && i == 0 ? 'K' : units[i],
                     binary ? "i" : "");
    }
    return jval_str(r, text, (size_t)n, out);
}

const struct jfilter jinja_layout_filters[] = {
    {"wordwrap", f_wordwrap, "width,break_long_words,wrapstring,break_on_hyphens"},
    {"pprint", f_pprint, ""},
    {"filesizeformat", f_filesizeformat, "binary"},
    {NULL, NULL, NULL},
};
