/* text/jinja/jinja_str_format.c - the two ways to fill in a text: "%s" % x, and "{}".format(x).
 *
 * A safe format text (Markup) escapes what it is given, and gives safe text. Attributes in replacement fields are read
 * as the template itself would read them.
 */
#include <math.h>
#include <string.h>
#include "base/limits.h"
#include "text/jinja/jinja_format.h"

/* ---- % ---- */

static rd_status percent_text(struct jrun *r, struct buf *b, const struct jspec *p, struct jval v, bool escape)
{
    struct jval safe;
    struct jstr *s;
    rd_status st = p->type == 's' ? jval_to_str(r, v, &s) : p->type == 'r' ? jval_repr(r, v, &s) : jval_ascii(r, v, &s);

    if (st != RD_OK) return st;
    if (escape) {
        if ((st = jval_escape(r, (struct jval){.kind = J_STR, .s = s}, &safe)) != RD_OK) return st;
        s = safe.s;
    }
    return jspec_put_text(r, b, p, s, '>');
}

static rd_status percent_number(struct jrun *r, struct buf *b, struct jspec *p, struct jval v)
{
    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if (!jval_is_number(v))
        return jrun_fail(r, "%%%c format: a real number is required, not %s", p->type, jval_type_name(v));
    if (strchr("eEfFgG", p->type)) return jspec_put_number(r, b, p, v);
    if (v.kind == J_FLOAT) {
        if (strchr("xXo", p->type)) return jrun_fail(r, "%%%c format: an integer is required, not float", p->type);
        if (!(fabs(v.f) < 9e18)) return jrun_fail(r, "the number is too large for %%%c", p->type);
        v = jval_int((int64_t)v.f);
    }
    if (strchr("iu", p->type)) p->type = 'd';
    return jspec_put_number(r, b, p, v);
}

static rd_status percent_char(struct jrun *r, struct buf *b, const struct jspec *p, struct jval v)
{
    struct jspec one = *p;

    one.zero = one.alt = false;
    one.sign = 0;
    one.precision = -1;
    if (!one.align) one.align = '>';
    if (jval_is_int(v)) {
        one.type = 'c';
        return jspec_put(r, b, &one, v);
    }
    if (v.kind != J_STR || jstr_n_chars(r, v.s) != 1) return jrun_fail(r, "%%c requires int or char");
    return jspec_put_text(r, b, &one, v.s, '>');
}

/* What a format takes its values from. */
struct percent {
    struct jstr *f;
    size_t i, used;
    const struct jargs *args;
};

static rd_status next_value(struct jrun *r, struct percent *x, struct jval *out)
{
    if (x->used >= x->args->n) return jrun_fail(r, "not enough arguments for format string");
    *out = x->args->v[x->used++];
    return RD_OK;
}

/* (name) of a conversion, from the named arguments or the one mapping among the others. */
static rd_status named_value(struct jrun *r, struct percent *x, struct jval *out)
{
    const struct jargs *args = x->args;
    struct jval key, owner = args->n == 1 ? args->v[0] : jval_none();
    size_t from = x->i + 1, depth = 1, end = from;
    struct jentry *e;
    rd_status st;

    for (; end < x->f->n && depth; end++) depth += (x->f->s[end] == '(') - (x->f->s[end] == ')');
    if (depth) return jrun_fail(r, "incomplete format key");
    if ((st = jval_str_view(r, x->f->s + from, end - 1 - from, &key)) != RD_OK) return st;
    x->i = end;
    for (size_t k = 0; k < args->n_kw; k++) {
        if (args->names[k]->n != key.s->n || memcmp(args->names[k]->s, key.s->s, key.s->n)) continue;
        *out = args->kw[k];
        return RD_OK;
    }
    if (owner.kind != J_DICT) return jrun_fail(r, "format requires a mapping");
    if ((st = jdict_find(r, owner.dict, key, &e)) != RD_OK) return st;
    if (!e) return jrun_fail(r, "the format names a key that is not there");
    *out = e->value;
    return RD_OK;
}

/* A width or precision: digits, or * for the next value. */
static rd_status percent_size(struct jrun *r, struct percent *x, int64_t *out)
{
    struct jval v;
    rd_status st;

    *out = -1;
    if (x->i < x->f->n && x->f->s[x->i] == '*') {
        x->i++;
        if ((st = next_value(r, x, &v)) != RD_OK) return st;
        if (!jval_is_int(v)) return jrun_fail(r, "* wants int");
        *out = jval_to_int(v);
        if (*out > LIMIT_TEMPLATE_WIDTH || *out < -(int64_t)LIMIT_TEMPLATE_WIDTH)
            return jrun_limit(r, "a width or precision is too large");
        return RD_OK;
    }
    for (; x->i < x->f->n && x->f->s[x->i] >= '0' && x->f->s[x->i] <= '9'; x->i++) {
        *out = (*out < 0 ? 0 : *out) * 10 + (x->f->s[x->i] - '0');
        if (*out > LIMIT_TEMPLATE_WIDTH) return jrun_limit(r, "a width or precision is too large");
    }
    return RD_OK;
}

static rd_status take_flags(struct jrun *r, struct percent *x, struct jspec *p)
{
    bool left = false;
    rd_status st;

    for (; x->i < x->f->n && x->f->s[x->i] && strchr("-+ 0#", x->f->s[x->i]); x->i++) {
        char c = x->f->s[x->i];
        left |= c == '-';
        p->zero |= c == '0';
        p->alt |= c == '#';
        if (c == '+' || (c == ' ' && !p->sign)) p->sign = c;
    }
    if ((st = percent_size(r, x, &p->width)) != RD_OK) return st;
    if (p->width < -1) {
        left = true;
        p->width = -p->width;
    }
    if (x->i < x->f->n && x->f->s[x->i] == '.') {
        x->i++;
        if ((st = percent_size(r, x, &p->precision)) != RD_OK) return st;
        if (p->precision < 0) p->precision = 0;
    }
    if (x->i < x->f->n && x->f->s[x->i] && strchr("hlL", x->f->s[x->i])) x->i++;
    if (left) {
        p->align = '<';
        p->zero = false;
    }
    return RD_OK;
}

static rd_status percent_one(struct jrun *r, struct buf *b, struct percent *x)
{
    struct jspec p = {.width = -1, .precision = -1};
    struct jval v = {.kind = J_MISSING};
    rd_status st;

    if (x->i < x->f->n && x->f->s[x->i] == '(' && (st = named_value(r, x, &v)) != RD_OK) return st;
    if ((st = take_flags(r, x, &p)) != RD_OK) return st;
    if (x->i >= x->f->n) return jrun_fail(r, "incomplete format");
    p.type = x->f->s[x->i++];
    if (p.type == '%') {
        buf_putc(b, '%');
        return RD_OK;
    }
    if (!p.type || !strchr("diuxXoeEfFgGcsra", p.type))
        return jrun_fail(r, "unsupported format character '%c'", p.type >= 32 && p.type < 127 ? p.type : '?');
    if (v.kind == J_MISSING && (st = next_value(r, x, &v)) != RD_OK) return st;
    if (p.type == 'c') return percent_char(r, b, &p, v);
    if (!strchr("sra", p.type)) return percent_number(r, b, &p, v);
    p.zero = false;
    return percent_text(r, b, &p, v, x->f->safe);
}

rd_status jinja_percent(struct jrun *r, struct jstr *format, const struct jargs *args, struct jval *out)
{
    struct percent x = {.f = format, .args = args};
    struct buf b;
    bool lone = args->n == 1 && args->n_kw == 0;
    enum jkind kind = lone ? args->v[0].kind : J_NONE;
    rd_status st = RD_OK;

    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    while (st == RD_OK && x.i < format->n) {
        size_t at = jinja_find_bytes(format->s, format->n, x.i, "%", 1);
        if (at == SIZE_MAX) at = format->n;
        buf_append(&b, format->s + x.i, at - x.i);
        x.i = at + 1;
        if (at < format->n && (st = percent_one(r, &b, &x)) == RD_OK) st = jrun_pay(r, 1);
    }
    /* Python takes what has items for a mapping, and those may go unused */
    if (st == RD_OK && x.used < args->n && args->n_kw == 0 &&
        !(kind == J_DICT || kind == J_LIST || kind == J_RANGE || kind == J_UNDEF))
        st = jrun_fail(r, "not all arguments converted during string formatting");
    st = jrun_take_buf(r, &b, st, out);
    if (st == RD_OK) out->s->safe = format->safe;
    return st;
}

/* ---- str.format ---- */

struct fields {
    const struct jargs *args;
    struct jval map; /* of format_map; else missing */
    int64_t next;    /* number of the next {}; -1: numbers are given */
    bool escape;
};

static rd_status format_text(struct jrun *r, struct fields *x, const char *s, size_t n, uint32_t depth, struct buf *b);

static bool all_digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    return n > 0 && n < 10;
}

static int64_t to_index(const char *s, size_t n)
{
    int64_t v = 0;

    for (size_t i = 0; i < n; i++) v = v * 10 + (s[i] - '0');
    return v;
}

/* The argument that begins a field: a number, nothing (the next number), or a name. */
static rd_status field_value(struct jrun *r, struct fields *x, const char *s, size_t n, struct jval *out)
{
    struct jval key;
    struct jentry *e;
    int64_t index;
    rd_status st;

    if (n == 0 || all_digits(s, n)) {
        if (n == 0 ? x->next < 0 : x->next > 0)
            return jrun_fail(r, "cannot switch between manual field specification and automatic field numbering");
        index = n ? to_index(s, n) : x->next++;
        if (n) x->next = -1;
        if (x->map.kind != J_MISSING || index >= (int64_t)x->args->n)
            return jrun_fail(r, "Replacement index %lld out of range for positional args tuple", (long long)index);
        *out = x->args->v[index];
        return RD_OK;
    }
    if (x->map.kind == J_MISSING) {
        for (size_t i = 0; i < x->args->n_kw; i++) {
            if (x->args->names[i]->n != n || memcmp(x->args->names[i]->s, s, n)) continue;
            *out = x->args->kw[i];
            return RD_OK;
        }
    } else {
        if ((st = jval_str_view(r, s, n, &key)) != RD_OK || (st = jdict_find(r, x->map.dict, key, &e)) != RD_OK)
            return st;
        if (e) *out = e->value;
        if (e) return RD_OK;
    }
    return jrun_fail(r, "format: no argument named '%.*s'", n > 60 ? 60 : (int)n, s);
}

/* first(.name | [key])* */
static rd_status field_path(struct jrun *r, struct fields *x, const char *s, size_t n, struct jval *out)
{
    size_t i = 0, end;
    struct jval key;
    rd_status st;

    while (i < n && s[i] != '.' && s[i] != '[') i++;
    st = field_value(r, x, s, i, out);
    while (st == RD_OK && i < n) {
        bool item = s[i] == '[';
        if (!item && s[i] != '.') return jrun_fail(r, "Only '.' or '[' may follow ']' in format field specifier");
        for (end = ++i; end < n && (item ? s[end] != ']' : s[end] != '.' && s[end] != '['); end++) {}
        if (end == i) return jrun_fail(r, "Empty attribute in format string");
        if (item && end == n) return jrun_fail(r, "Missing ']' in format string");
        if (item && all_digits(s + i, end - i))
            key = jval_int(to_index(s + i, end - i));
        else if ((st = jval_str_view(r, s + i, end - i, &key)) != RD_OK)
            return st;
        st = item ? jinja_get_item(r, *out, key, out) : jinja_get_attr(r, *out, key.s, out);
        i = end + item;
    }
    return st;
}

static rd_status put_field(struct jrun *r, struct fields *x, struct buf *b, const struct buf *spec_text, struct jval v)
{
    struct jspec spec;
    struct jval text;
    struct buf one;
    rd_status st;

    if (v.kind == J_STR && v.s->safe && x->escape && spec_text->n)
        return jrun_fail(r, "Unsupported format specification for Markup.");
    if ((st = jspec_parse(r, spec_text->data ? spec_text->data : "", spec_text->n, &spec)) != RD_OK) return st;
    if (!x->escape || (v.kind == J_STR && v.s->safe)) return jspec_put(r, b, &spec, v);
    buf_init(&one);
    one.limit = LIMIT_TEMPLATE_OUTPUT;
    if ((st = jrun_take_buf(r, &one, jspec_put(r, &one, &spec, v), &text)) != RD_OK) return st;
    if ((st = jval_escape(r, text, &text)) == RD_OK) buf_append(b, text.s->s, text.s->n);
    return st;
}

/* One field, s[0..n) between its braces. */
static rd_status format_field(struct jrun *r, struct fields *x, const char *s, size_t n, uint32_t depth, struct buf *b)
{
    struct buf spec = {.limit = LIMIT_TEMPLATE_WIDTH};
    struct jval v;
    size_t end = 0, colon;
    char conversion = 0;
    bool bracket = false;
    rd_status st;

    for (; end < n && (bracket || (s[end] != ':' && s[end] != '!')); end++) {
        bracket = s[end] == '[' || (bracket && s[end] != ']');
        if (s[end] == '{') return jrun_fail(r, "unexpected '{' in field name");
    }
    colon = end;
    if (end < n && s[end] == '!') {
        if (end + 1 >= n || (end + 2 < n && s[end + 2] != ':'))
            return jrun_fail(r, "expected ':' after conversion specifier");
        conversion = s[end + 1];
        colon = end + 2;
        if (!strchr("rsa", conversion)) return jrun_fail(r, "Unknown conversion specifier");
    }
    if ((st = field_path(r, x, s, end, &v)) != RD_OK) return st;
    if (conversion) {
        struct jstr *text;
        st = conversion == 'r'   ? jval_repr(r, v, &text)
             : conversion == 'a' ? jval_ascii(r, v, &text)
                                 : jval_to_str(r, v, &text);
        if (st != RD_OK) return st;
        v = (struct jval){.kind = J_STR, .s = text};
    }
    if (colon < n) st = format_text(r, x, s + colon + 1, n - colon - 1, depth + 1, &spec);
    if (st == RD_OK && spec.failed) st = jrun_limit(r, "a format specification is too long");
    if (st == RD_OK) st = put_field(r, x, b, &spec, v);
    buf_deinit(&spec);
    return st;
}

/* Text with fields; depth 1 is a specification inside one. */
static rd_status format_text(struct jrun *r, struct fields *x, const char *s, size_t n, uint32_t depth, struct buf *b)
{
    rd_status st = RD_OK;

    if (depth > 1) return jrun_fail(r, "Max string recursion exceeded");
    for (size_t i = 0; st == RD_OK && i < n;) {
        size_t from = i, level = 1;

        while (i < n && s[i] != '{' && s[i] != '}') i++;
        buf_append(b, s + from, i - from);
        if (i == n) break;
        if (i + 1 < n && s[i + 1] == s[i]) {
            buf_putc(b, s[i]);
            i += 2;
            continue;
        }
        if (s[i] == '}') return jrun_fail(r, "Single '}' encountered in format string");
        for (from = ++i; i < n; i++) {
            level += (s[i] == '{') - (s[i] == '}');
            if (level == 0) break;
        }
        if (i == n)
            return jrun_fail(r, from == n ? "Single '{' encountered in format string"
                                          : "expected '}' before end of string");
        if ((st = jrun_pay(r, 2)) == RD_OK) st = format_field(r, x, s + from, i - from, depth, b);
        i++;
    }
    return st;
}

static rd_status format_all(struct jrun *r, struct jstr *s, struct fields *x, struct jval *out)
{
    struct buf b;
    rd_status st = jrun_pay(r, s->n / 16);

    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    if (st == RD_OK) st = format_text(r, x, s->s, s->n, 0, &b);
    st = jrun_take_buf(r, &b, st, out);
    if (st == RD_OK) out->s->safe = s->safe;
    return st;
}

rd_status jinja_format(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct fields x = {.args = c->args, .map = {.kind = J_MISSING}, .escape = in.s->safe};

    return format_all(r, in.s, &x, out);
}

rd_status jinja_format_map(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct fields x = {.args = c->args, .map = c->v[0], .escape = in.s->safe};

    if (c->v[0].kind == J_UNDEF) return jrun_undefined(r, c->v[0]);
    if (c->v[0].kind != J_DICT) return jrun_fail(r, "format_map() needs a mapping");
    return format_all(r, in.s, &x, out);
}
