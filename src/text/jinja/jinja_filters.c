/* text/jinja/jinja_filters.c - the filters over text and numbers, and finding a filter by name. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "text/jinja/jinja_run.h"

rd_status jarg_str(struct jrun *r, struct jval v, const char *what, const char *missing, struct jstr **out)
{
    struct jval s;
    rd_status st;

    if (v.kind == J_MISSING && missing) {
        if ((st = jval_str_view(r, missing, strlen(missing), &s)) == RD_OK) *out = s.s;
        return st;
    }
    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if (v.kind != J_STR) return jrun_fail(r, "%s: an argument must be str, not %s", what, jval_type_name(v));
    *out = v.s;
    return RD_OK;
}

rd_status jarg_int(struct jrun *r, struct jval v, const char *what, int64_t missing, int64_t *out)
{
    *out = missing;
    if (v.kind == J_MISSING) return RD_OK;
    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if (!jval_is_int(v)) return jrun_fail(r, "%s: an argument must be int, not %s", what, jval_type_name(v));
    *out = jval_to_int(v);
    return RD_OK;
}

static rd_status case_filter(struct jrun *r, struct jval in, enum jcase how, struct jval *out)
{
    struct jstr *s;
    rd_status st = jval_to_str(r, in, &s);

    return st == RD_OK ? jinja_case(r, s, how, out) : st;
}

static rd_status f_upper(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return case_filter(r, in, CASE_UPPER, out);
}
static rd_status f_lower(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return case_filter(r, in, CASE_LOWER, out);
}
static rd_status f_capitalize(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return case_filter(r, in, CASE_CAPITALIZE, out);
}

/* Words begin after white space and - ( { [ <; unlike str.title(), not after other signs. */
static rd_status f_title(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval word, part = {.kind = J_STR};
    struct jstr *s;
    struct buf b;
    size_t from = 0, first = 0;
    rd_status st = jval_to_str(r, in, &s);

    if (st != RD_OK) return st;
    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    for (size_t i = 0, at = 0; st == RD_OK && at <= s->n; at = i) {
        uint32_t cp = at < s->n ? jinja_next_cp(s->s, s->n, &i) : ' ';
        bool last = at == s->n;
        if (!last && !jinja_is_space(cp) && !(cp < 0x80 && strchr("-({[<", (int)cp))) continue;
        if (at > from) jinja_next_cp(s->s, at, &first);
        if ((st = jval_str_view(r, s->s + from, first - from, &part)) != RD_OK) break;
        if ((st = jinja_case(r, part.s, CASE_UPPER, &word)) != RD_OK) break;
        buf_append(&b, word.s->s, word.s->n);
        if ((st = jval_str_view(r, s->s + first, at - first, &part)) != RD_OK) break;
        if ((st = jinja_case(r, part.s, CASE_LOWER, &word)) != RD_OK) break;
        buf_append(&b, word.s->s, word.s->n);
        buf_append(&b, s->s + at, i > at ? i - at : 0);
        from = first = i;
        if (last) break;
    }
    return jrun_take_buf(r, &b, st, out);
}

static rd_status f_trim(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s, *chars = NULL;
    rd_status st = jval_to_str(r, in, &s);

    if (st != RD_OK || (c->v[0].kind != J_MISSING && c->v[0].kind != J_NONE &&
                        (st = jarg_str(r, c->v[0], "trim", NULL, &chars)) != RD_OK))
        return st;
    return jinja_strip(r, s, chars, 3, out);
}

static rd_status f_replace(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s, *old, *new_text;
    int64_t count = -1;
    rd_status st = jval_to_str(r, in, &s);

    if (c->v[0].kind == J_MISSING || c->v[1].kind == J_MISSING)
        return jrun_fail(r, "replace needs the old and the new text");
    if (st != RD_OK || (st = jval_to_str(r, c->v[0], &old)) != RD_OK ||
        (st = jval_to_str(r, c->v[1], &new_text)) != RD_OK)
        return st;
    if (c->v[2].kind != J_NONE && (st = jarg_int(r, c->v[2], "replace", -1, &count)) != RD_OK) return st;
    if (r->autoescape && (s->safe || old->safe || new_text->safe)) {
        struct jval safe = {.kind = J_STR, .s = s}, fresh = {.kind = J_STR, .s = new_text};
        if ((st = jval_escape(r, safe, &safe)) != RD_OK || (st = jval_escape(r, fresh, &fresh)) != RD_OK) return st;
        if ((st = jinja_replace(r, safe.s, old, fresh.s, count, out)) == RD_OK) out->s->safe = true;
        return st;
    }
    return jinja_replace(r, s, old, new_text, count, out);
}

static rd_status f_string(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    out->kind = J_STR;
    return jval_to_str(r, in, &out->s);
}

static rd_status f_default(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    *out = in;
    if (in.kind != J_UNDEF && !(jval_truth(c->v[1]) && !jval_truth(in))) return RD_OK;
    *out = c->v[0];
    return c->v[0].kind == J_MISSING ? jval_str_view(r, "", 0, out) : RD_OK;
}

/* tojson(ensure_ascii, indent, separators, sort_keys) as transformers defines it */
static rd_status f_tojson(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jjson_style style = {.indent = c->v[1], .ascii = jval_truth(c->v[0]), .sort_keys = jval_truth(c->v[3])};

    if (jval_is_list(c->v[2]) && c->v[2].list->n == 2) {
        style.item_sep = c->v[2].list->items[0];
        style.key_sep = c->v[2].list->items[1];
    }
    return jval_to_json(r, in, &style, out);
}

/* One line of f_indent, behind the white space where it gets any. */
static rd_status put_indented(struct jrun *r, const struct jstr *line, const struct jstr *text, int64_t width,
                              struct buf *b)
{
    if (text)
        buf_append(b, text->s, text->n);
    else
        jbuf_fill(b, ' ', width);
    buf_append(b, line->s, line->n);
    return jrun_pay(r, (line->n + (text ? text->n : (size_t)(width < 0 ? 0 : width))) / 16 + 1);
}

/* indent(width, first, blank): lines after the first, blank ones only when asked for. Lines are those of
 * str.splitlines() over the text and a newline: a carriage return at the end is a part of that newline. */
static rd_status f_indent(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    static const struct jstr nothing = {.s = ""};
    struct jargs none = {0};
    struct jcall plain = {.args = &none};
    struct jstr *text = NULL;
    struct jval whole, lines;
    struct buf b = {.limit = LIMIT_TEMPLATE_OUTPUT};
    int64_t width = 4;
    bool first = jval_truth(c->v[1]), blank = jval_truth(c->v[2]);
    rd_status st = RD_OK;

    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (in.kind != J_STR) return jrun_fail(r, "indent needs a string, not %s", jval_type_name(in));
    if (c->v[0].kind == J_STR)
        text = c->v[0].s;
    else
        st = jarg_int(r, c->v[0], "indent", 4, &width);
    if (st != RD_OK) return st;
    if (width > 1000) return jrun_limit(r, "the indent is too wide");
    buf_append(&b, in.s->s, in.s->n);
    buf_putc(&b, '\n');
    if ((st = jrun_take_buf(r, &b, RD_OK, &whole)) != RD_OK) return st;
    if ((st = jinja_splitlines(r, whole, &plain, &lines)) != RD_OK) return st;
    b = (struct buf){.limit = LIMIT_TEMPLATE_OUTPUT};
    for (size_t i = 0; st == RD_OK && i < lines.list->n; i++) {
        const struct jstr *line = lines.list->items[i].s;
        bool bare = i ? line->n == 0 && !blank : !first;
        if (i) buf_putc(&b, '\n');
        st = put_indented(r, line, bare ? &nothing : text, width, &b);
    }
    if ((st = jrun_take_buf(r, &b, st, out)) == RD_OK) out->s->safe = in.s->safe;
    return st;
}

static rd_status f_safe(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s;
    rd_status st = jval_to_str(r, in, &s);

    if (st == RD_OK && (st = jval_str_view(r, s->s, s->n, out)) == RD_OK) out->s->safe = true;
    return st;
}

static rd_status f_escape(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jval_escape(r, in, out);
}
static rd_status f_forceescape(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s;
    struct jval plain;
    rd_status st = jval_to_str(r, in, &s);

    if (st != RD_OK || (st = jval_str_view(r, s->s, s->n, &plain)) != RD_OK) return st;
    return jval_escape(r, plain, out);
}

/* Text of an integer in a base (0: as its prefix says), with sign, blanks around and underscores inside; false: none.
 */
static bool read_int(const struct jstr *s, int64_t base, int64_t *out)
{
    size_t i = 0, n = s->n, n_digits = 0, next;
    int64_t v = 0;
    bool negative, zeros = base == 0;

    while (i < n && jinja_is_space((unsigned char)s->s[i])) i++;
    while (n > i && jinja_is_space((unsigned char)s->s[n - 1])) n--;
    negative = i < n && s->s[i] == '-';
    if (i < n && (s->s[i] == '-' || s->s[i] == '+')) i++;
    if (n - i > 2 && s->s[i] == '0') {
        int64_t by_prefix = (s->s[i + 1] | 32) == 'x'   ? 16
                            : (s->s[i + 1] | 32) == 'o' ? 8
                            : (s->s[i + 1] | 32) == 'b' ? 2
                                                        : -1;
        if (by_prefix > 0 && (base == by_prefix || base == 0)) {
            base = by_prefix;
            zeros = false;
            i += 2 + (s->s[i + 2] == '_');
        }
    }
    if (base == 0) base = 10;
    for (; i < n; i = next) {
        int digit, ch = (unsigned char)s->s[i];
        next = i;
        digit = jinja_digit(jinja_next_cp(s->s, n, &next));
        if (digit < 0) digit = (ch | 32) >= 'a' && (ch | 32) <= 'z' ? (ch | 32) - 'a' + 10 : 99;
        if (ch == '_' && n_digits && i + 1 < n && s->s[i + 1] != '_') continue;
        if (digit >= base || !checked_mul(v, base, &v) || !checked_add(v, (int64_t)digit, &v)) return false;
        if (zeros && n_digits && v != 0 && v == digit) return false; /* 007 has no base of its own */
        n_digits++;
    }
    *out = negative ? -v : v;
    return n_digits > 0;
}

/* The digits of a float without underscores between them, in ASCII; false: misplaced underscores, or too long. */
static bool plain_digits(const struct jstr *s, char *out, size_t cap, size_t *n)
{
    *n = 0;
    for (size_t i = 0, next; i < s->n; i = next) {
        uint32_t cp;
        next = i;
        cp = jinja_next_cp(s->s, s->n, &next);
        if (cp == '_') {
            bool between = i > 0 && next < s->n && s->s[i - 1] >= '0' && s->s[i - 1] <= '9' && s->s[next] >= '0' &&
                           s->s[next] <= '9';
            if (!between) return false;
            continue;
        }
        if (*n + 1 >= cap) return false;
        out[(*n)++] = jinja_digit(cp) >= 0 ? (char)('0' + jinja_digit(cp)) : cp < 0x80 ? (char)cp : '?';
    }
    return *n > 0;
}

bool jinja_read_float(struct jrun *r, struct jstr *s, double *out)
{
    char text[512], *t = text;
    struct jval v;
    size_t n, i, digits = 0;
    bool negative;

    if (jinja_strip(r, s, NULL, 3, &v) != RD_OK || !plain_digits(v.s, text, sizeof(text), &n)) return false;
    text[n] = 0; /* for strspn below; plain_digits leaves room */
    negative = t[0] == '-';
    i = t[0] == '-' || t[0] == '+';
    if ((n - i == 3 && !strncasecmp(t + i, "inf", 3)) || (n - i == 8 && !strncasecmp(t + i, "infinity", 8))) {
        *out = negative ? -INFINITY : INFINITY;
        return true;
    }
    if (n - i == 3 && !strncasecmp(t + i, "nan", 3)) {
        *out = NAN;
        return true;
    }
    if (parse_f64(t + (t[0] == '+'), n - (t[0] == '+'), out)) return true;
    while (i < n && t[i] >= '0' && t[i] <= '9') i++, digits++; /* well formed, but beyond a double: 1e400 */
    if (i < n && t[i] == '.')
        for (i++; i < n && t[i] >= '0' && t[i] <= '9'; i++) digits++;
    if (!digits || i >= n || (t[i] | 32) != 'e' || i + 1 >= n) return false;
    i += 1 + (t[i + 1] == '+' || t[i + 1] == '-');
    if (i == n || strspn(t + i, "0123456789") < n - i) return false;
    *out = negative ? -INFINITY : INFINITY;
    return true;
}

static rd_status f_int(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    int64_t base, v;
    char digits[400];
    double f = NAN;
    rd_status st = jarg_int(r, c->v[1], "int", 10, &base);

    if (st != RD_OK) return st;
    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (in.kind == J_STR && (st = jrun_pay(r, in.s->n)) != RD_OK) return st;
    *out = c->v[0].kind == J_MISSING ? jval_int(0) : c->v[0];
    if (base < 0 || base == 1 || base > 36) return RD_OK;
    if (in.kind == J_STR && read_int(in.s, base, &v))
        *out = jval_int(v);
    else if (jval_is_int(in))
        *out = jval_int(jval_to_int(in));
    else if (in.kind == J_FLOAT)
        f = in.f;
    else if (in.kind == J_BIG)
        *out = in;
    else if (in.kind == J_STR && !jinja_read_float(r, in.s, &f))
        f = NAN;
    if (isfinite(f) && fabs(f) >= 0x1p63) {
        snprintf(digits, sizeof(digits), "%.0f", f);
        st = jval_str(r, digits, strlen(digits), out);
        out->kind = J_BIG;
    } else if (isfinite(f)) {
        *out = jval_int((int64_t)f);
    }
    return st;
}

static rd_status f_float(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    double f;
    rd_status st;

    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (in.kind == J_STR && (st = jrun_pay(r, in.s->n * 2 + 20)) != RD_OK) return st;
    *out = c->v[0].kind == J_MISSING ? jval_float(0) : c->v[0];
    if (jval_is_number(in))
        *out = jval_float(jval_to_float(in));
    else if (in.kind == J_BIG && parse_f64(in.s->s, in.s->n, &f))
        *out = jval_float(f);
    else if (in.kind == J_STR && jinja_read_float(r, in.s, &f))
        *out = jval_float(f);
    return RD_OK;
}

/* round(precision, method): "common" is Python's round(), half to even on the exact decimal value */
static rd_status f_round(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    char text[400];
    struct jstr *method = NULL;
    int64_t precision;
    double scale, f;
    rd_status st = jarg_int(r, c->v[0], "round", 0, &precision);

    if (st != RD_OK || (st = jarg_str(r, c->v[1], "round", "common", &method)) != RD_OK) return st;
    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (!jval_is_number(in)) return jrun_fail(r, "round needs a number, not %s", jval_type_name(in));
    if (precision < -300 || precision > 30) return jrun_fail(r, "round: the precision is out of range");
    scale = pow(10, (double)precision);
    f = jval_to_float(in);
    if (jstr_is(method, "ceil"))
        *out = jval_float((ceil(f * scale) + 0.0) / scale); /* Python's ceil gives an int: no -0.0 */
    else if (jstr_is(method, "floor"))
        *out = jval_float((floor(f * scale) + 0.0) / scale);
    else if (!jstr_is(method, "common"))
        return jrun_fail(r, "method must be common, ceil or floor");
    else if (in.kind != J_FLOAT && precision >= 0)
        *out = jval_int(jval_to_int(in));
    else if (precision < 0) {
        f = nearbyint(f * scale) / scale;
        *out = in.kind == J_FLOAT ? jval_float(f) : jval_int((int64_t)f);
    } else {
        *out = in;
        if (!isfinite(f)) return RD_OK;
        if ((st = jrun_pay(r, fabs(f) > 1e22 ? 300 : 60)) != RD_OK) return st;
        snprintf(text, sizeof(text), "%.*f", (int)precision, f);
        for (char *s = text; *s; s++)
            if (*s == ',') *s = '.';
        if (parse_f64(text, strlen(text), &f)) *out = jval_float(f);
    }
    return RD_OK;
}

static rd_status f_abs(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (!jval_is_number(in)) return jrun_fail(r, "bad operand type for abs(): '%s'", jval_type_name(in));
    *out = in.kind == J_BOOL ? jval_int(in.b) : in;
    if (in.kind == J_FLOAT) *out = jval_float(fabs(in.f));
    return in.kind == J_INT && in.i < 0 ? jinja_negate(r, in, out) : RD_OK;
}

static rd_status f_format(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s;
    rd_status st = jval_to_str(r, in, &s);

    if (st == RD_OK && c->args->n && c->args->n_kw)
        return jrun_fail(r, "can't handle positional and keyword arguments at the same time");
    return st == RD_OK ? jinja_percent(r, s, c->args, out) : st;
}

static rd_status f_wordcount(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s;
    int64_t n = 0;
    bool inside = false;
    rd_status st = jval_to_str(r, in, &s);

    for (size_t i = 0; st == RD_OK && i < s->n;) {
        bool word = jinja_is_word(jinja_next_cp(s->s, s->n, &i));
        n += word && !inside;
        inside = word;
    }
    *out = jval_int(n);
    return st == RD_OK ? jrun_pay(r, s->n / 8) : st;
}

/* truncate(length, killwords, end, leeway) */
static rd_status f_truncate(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s, *end = NULL;
    struct jval cut, tail = {.kind = J_STR};
    int64_t length, leeway;
    size_t n;
    rd_status st = jval_to_str(r, in, &s);

    if (st != RD_OK || (st = jarg_int(r, c->v[0], "truncate", 255, &length)) != RD_OK) return st;
    if ((st = jarg_str(r, c->v[2], "truncate", "...", &end)) != RD_OK ||
        (st = jarg_int(r, c->v[3], "truncate", 5, &leeway)) != RD_OK)
        return st;
    if (in.kind == J_LIST || in.kind == J_TUPLE) { /* what is short enough stays what it is */
        *out = in;
        if (in.list->n <= (uint64_t)(length < 0 ? 0 : length) + (uint64_t)(leeway < 0 ? 0 : leeway)) return RD_OK;
        return jrun_fail(r, "truncate needs a string, not %s", jval_type_name(in));
    }
    if (in.kind != J_STR && in.kind != J_UNDEF && in.kind != J_DICT)
        return jrun_fail(r, "object of type '%s' has no len()", jval_type_name(in));
    *out = (struct jval){.kind = J_STR, .s = s};
    n = jstr_n_chars(r, s);
    if (length < (int64_t)jstr_n_chars(r, end) || leeway < 0)
        return jrun_fail(r, "truncate: the length is shorter than the end");
    if (n <= (uint64_t)length || n - (uint64_t)length <= (uint64_t)leeway) return RD_OK;
    n = jstr_offset(r, s, (size_t)length - jstr_n_chars(r, end));
    if (!jval_truth(c->v[1])) {
        size_t space = n;
        while (space > 0 && s->s[space - 1] != ' ') space--;
        if (space > 0) n = space - 1;
    }
    tail.s = end;
    if ((st = jval_str_view(r, s->s, n, &cut)) != RD_OK) return st;
    return jinja_binary(r, T_ADD, cut, tail, out);
}

static rd_status f_center(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *s, center = {.s = "center", .n = 6};
    struct jval width = c->v[0].kind == J_MISSING ? jval_int(80) : c->v[0];
    struct jmethod m = {.name = &center};
    struct jargs args = {.v = &width, .n = 1};
    rd_status st = jval_to_str(r, in, &s);

    if (st != RD_OK) return st;
    m.self = (struct jval){.kind = J_STR, .s = s};
    return jinja_call_method(r, &m, &args, out);
}

const struct jfilter jinja_text_filters[] = {
    {"upper", f_upper, ""},
    {"lower", f_lower, ""},
    {"capitalize", f_capitalize, ""},
    {"title", f_title, ""},
    {"trim", f_trim, "chars"},
    {"replace", f_replace, "old,new,count"},
    {"string", f_string, ""},
    {"default", f_default, "default_value,boolean"},
    {"d", f_default, "default_value,boolean"},
    {"tojson", f_tojson, "ensure_ascii,indent,separators,sort_keys"},
    {"indent", f_indent, "width,first,blank"},
    {"safe", f_safe, ""},
    {"escape", f_escape, ""},
    {"e", f_escape, ""},
    {"forceescape", f_forceescape, ""},
    {"int", f_int, "default,base"},
    {"float", f_float, "default"},
    {"round", f_round, "precision,method"},
    {"abs", f_abs, ""},
    {"format", f_format, "*"},
    {"wordcount", f_wordcount, ""},
    {"truncate", f_truncate, "length,killwords,end,leeway"},
    {"center", f_center, "width"},
    {NULL, NULL, NULL},
};

const struct jfilter *jinja_find_filter(const struct jstr *name)
{
    static const struct jfilter *const tables[] = {jinja_text_filters, jinja_list_filters, jinja_layout_filters,
                                                   jinja_html_filters};

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        for (const struct jfilter *f = tables[i]; f->name; f++)
            if (jstr_is(name, f->name)) return f;
    return NULL;
}

rd_status jinja_filter(struct jrun *r, struct jstr *name, struct jval in, const struct jargs *args, struct jval *out)
{
    const struct jfilter *f = jinja_find_filter(name);
    struct jcall call;
    char text[64];
    rd_status st = jrun_enter_call(r);

    if (st != RD_OK) return st;
    if (!f) return jrun_fail(r, "No filter named '%s'.", error_quote(text, sizeof(text), name->s, name->n));
    st = jcall_bind(r, f->name, f->signature, args, &call);
    if (st == RD_OK) st = f->fn(r, in, &call, out);
    r->calls--;
    return st;
}
