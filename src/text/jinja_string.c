/* text/jinja_string.c - strings as Python sees them: case, white space, searching, replacing, and % formatting. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include "base/limits.h"
#include "base/utf8.h"
#include "text/jinja_run.h"

uint32_t jinja_next_cp(const char *s, size_t n, size_t *i)
{
    uint32_t cp = (unsigned char)s[*i];
    int len;

    if (cp < 0x80) {
        (*i)++;
        return cp;
    }
    len = utf8_decode(s + *i, n - *i, &cp);
    *i += (size_t)(len < 0 ? 1 : len);
    return cp;
}

bool jinja_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x1F);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

size_t jinja_find_bytes(const char *s, size_t n, size_t from, const char *needle, size_t n_needle)
{
    const char *hit;

    if (from > n || n_needle > n - from) return SIZE_MAX;
    if (n_needle == 0) return from;
    hit = memmem(s + from, n - from, needle, n_needle);
    return hit ? (size_t)(hit - s) : SIZE_MAX;
}

static bool is_cased(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static void put_case(struct buf *b, uint32_t cp, enum jcase how)
{
    char text[UTF8_MAX_BYTES];
    utf8proc_int32_t c = (utf8proc_int32_t)cp;

    if (cp == 0xDF && how == CASE_UPPER) {
        buf_puts(b, "SS");
        return;
    } /* the one common letter that grows */
    if (cp == 0xDF && how == CASE_TITLE) {
        buf_puts(b, "Ss");
        return;
    }
    if (how == CASE_LOWER)
        c = utf8proc_tolower(c);
    else if (how == CASE_UPPER)
        c = utf8proc_toupper(c);
    else
        c = utf8proc_totitle(c);
    buf_append(b, text, (size_t)utf8_encode((uint32_t)c, text));
}

rd_status jinja_case(struct jrun *r, struct jstr *s, enum jcase how, struct jval *out)
{
    struct buf b;
    bool inside = false;
    rd_status st = jrun_pay(r, s->n / 2); /* tables per code point */

    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    for (size_t i = 0, from = 0; st == RD_OK && i < s->n; from = i) {
        uint32_t cp = jinja_next_cp(s->s, s->n, &i);
        enum jcase one = how;

        if (cp == 0xFFFD) {
            buf_append(&b, s->s + from, i - from);
            continue;
        }
        if (how == CASE_CAPITALIZE || how == CASE_TITLE) one = inside ? CASE_LOWER : CASE_TITLE;
        if (how == CASE_SWAP)
            one = utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LU ? CASE_LOWER : CASE_UPPER;
        inside = how == CASE_TITLE ? is_cased(cp) : true;
        put_case(&b, cp, one);
    }
    return jrun_take_buf(r, &b, st, out);
}

static bool in_set(uint32_t cp, const struct jstr *chars)
{
    if (!chars) return jinja_is_space(cp);
    for (size_t i = 0; i < chars->n;)
        if (jinja_next_cp(chars->s, chars->n, &i) == cp) return true;
    return false;
}

rd_status jinja_strip(struct jrun *r, struct jstr *s, struct jstr *chars, int sides, struct jval *out)
{
    size_t from = 0, end = s->n, cost = chars ? chars->n / 8 + 1 : 1;
    rd_status st;

    while ((sides & 1) && from < end) {
        size_t next = from;
        if (!in_set(jinja_next_cp(s->s, s->n, &next), chars)) break;
        if ((st = jrun_pay(r, cost)) != RD_OK) return st;
        from = next;
    }
    while ((sides & 2) && end > from) {
        size_t start = end - 1, next;
        while (start > from && end - start < 4 && ((unsigned char)s->s[start] & 0xC0) == 0x80) start--;
        next = start;
        if (!in_set(jinja_next_cp(s->s, s->n, &next), chars) || next != end) break;
        if ((st = jrun_pay(r, cost)) != RD_OK) return st;
        end = start;
    }
    return jval_str_view(r, s->s + from, end - from, out);
}

rd_status jinja_replace(struct jrun *r, struct jstr *s, struct jstr *old, struct jstr *new_text, int64_t count,
                        struct jval *out)
{
    struct buf b;
    size_t from = 0, at;
    rd_status st = jrun_pay(r, s->n / 16);

    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    for (int64_t k = 0; st == RD_OK && (count < 0 || k < count); k++) {
        at = jinja_find_bytes(s->s, s->n, from, old->s, old->n);
        if (at == SIZE_MAX) break;
        buf_append(&b, s->s + from, at - from);
        buf_append(&b, new_text->s, new_text->n);
        st = b.failed ? RD_OK : jrun_pay(r, new_text->n / 64 + 1);
        from = at + old->n;
        if (old->n) continue;
        if (from >= s->n) { /* an empty pattern stands before each character and at the end */
            from = s->n;
            break;
        }
        jinja_next_cp(s->s, s->n, &from);
        buf_append(&b, s->s + at, from - at);
    }
    if (from < s->n) buf_append(&b, s->s + from, s->n - from);
    return jrun_take_buf(r, &b, st, out);
}

/* ---- % formatting ---- */

struct spec {
    bool left, plus, space, zero, alt;
    int width, precision;
    char type;
};

/* One number at *i, bounded; -1 when there is none. */
static int take_number(const struct jstr *f, size_t *i)
{
    int v = -1;

    while (*i < f->n && f->s[*i] >= '0' && f->s[*i] <= '9' && v < 100000)
        v = (v < 0 ? 0 : v) * 10 + (f->s[(*i)++] - '0');
    return v;
}

static void put_padded(struct buf *b, const struct spec *p, const char *s, size_t n, size_t n_chars, bool number)
{
    size_t pad = p->width > 0 && (size_t)p->width > n_chars ? (size_t)p->width - n_chars : 0;
    bool zero = p->zero && number && !p->left;

    if (zero && n && strchr("+- ", s[0])) {
        buf_putc(b, s[0]);
        s++;
        n--;
    }
    for (size_t i = 0; !p->left && i < pad; i++) buf_putc(b, zero ? '0' : ' ');
    buf_append(b, s, n);
    for (size_t i = 0; p->left && i < pad; i++) buf_putc(b, ' ');
}

static rd_status put_number(struct jrun *r, struct buf *b, const struct spec *p, struct jval v)
{
    char text[512], format[16];
    int n, precision = p->precision < 0 ? 6 : p->precision > 100 ? 100 : p->precision;
    int64_t i;

    if (v.kind == J_UNDEF) return jrun_undefined(r, v);
    if (!jval_is_number(v))
        return jrun_fail(r, "%%%c format: a real number is required, not %s", p->type, jval_type_name(v));
    if (strchr("eEfFgG", p->type)) {
        snprintf(format, sizeof(format), "%%%s%s.*%c", p->plus ? "+" : p->space ? " " : "", p->alt ? "#" : "", p->type);
        n = snprintf(text, sizeof(text), format, precision, jval_to_float(v));
    } else {
        if (v.kind == J_FLOAT && !(fabs(v.f) < 9e18)) return jrun_fail(r, "the number is too large for %%%c", p->type);
        if (v.kind == J_FLOAT && strchr("xXo", p->type))
            return jrun_fail(r, "%%%c format: an integer is required, not float", p->type);
        i = v.kind == J_FLOAT ? (int64_t)v.f : jval_to_int(v);
        if (p->type == 'x' || p->type == 'X' || p->type == 'o') {
            uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
            const char *prefix = !p->alt ? "" : p->type == 'o' ? "0o" : p->type == 'x' ? "0x" : "0X";
            n = snprintf(text, sizeof(text),
                         p->type == 'x'   ? "%s%s%llx"
                         : p->type == 'X' ? "%s%s%llX"
                                          : "%s%s%llo",
                         i < 0 ? "-" : "", prefix, (unsigned long long)u);
        } else {
            n = snprintf(text, sizeof(text), p->plus ? "%+lld" : p->space ? "% lld" : "%lld", (long long)i);
        }
    }
    put_padded(b, p, text, (size_t)n, (size_t)n, true);
    return RD_OK;
}

static rd_status put_conversion(struct jrun *r, struct buf *b, const struct spec *p, struct jval v)
{
    struct jval chars;
    struct jstr *s;
    size_t n;
    rd_status st;

    switch (p->type) {
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        return put_number(r, b, p, v);
    case 'c':
        if (jval_is_int(v)) {
            char text[UTF8_MAX_BYTES];
            if (jval_to_int(v) < 0 || jval_to_int(v) > 0x10FFFF) return jrun_fail(r, "%%c needs a character");
            if ((st = jval_str(r, text, (size_t)utf8_encode((uint32_t)jval_to_int(v), text), &chars)) != RD_OK)
                return st;
            v = chars;
        }
        if (v.kind != J_STR || jstr_n_chars(r, v.s) != 1) return jrun_fail(r, "%%c requires int or char");
        s = v.s;
        break;
    case 's':
        if ((st = jval_to_str(r, v, &s)) != RD_OK) return st;
        break;
    case 'r':
    case 'a':
        if ((st = jval_repr(r, v, &s)) != RD_OK) return st;
        break;
    default:
        return jrun_fail(r, "unsupported format character '%c'", p->type >= 32 && p->type < 127 ? p->type : '?');
    }
    n = jstr_n_chars(r, s);
    if (p->precision >= 0 && (size_t)p->precision < n) n = (size_t)p->precision;
    put_padded(b, p, s->s, n == jstr_n_chars(r, s) ? s->n : jstr_offset(r, s, n), n, false);
    return jrun_pay(r, s->n / 64 + (p->width > 0 ? (uint64_t)p->width / 16 : 0));
}

/* (name) of a conversion, from the one mapping among the arguments. */
static rd_status take_named(struct jrun *r, struct jstr *f, size_t *i, const struct jargs *args, struct jval *out)
{
    size_t end = jinja_find_bytes(f->s, f->n, *i, ")", 1);
    struct jval key, owner = args->n == 1 ? args->v[0] : jval_none();
    struct jentry *e;
    rd_status st;

    if (end == SIZE_MAX) return jrun_fail(r, "incomplete format key");
    if ((st = jval_str_view(r, f->s + *i + 1, end - *i - 1, &key)) != RD_OK) return st;
    *i = end + 1;
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

static rd_status next_arg(struct jrun *r, const struct jargs *args, size_t *used, struct jval *out)
{
    if (*used >= args->n) return jrun_fail(r, "not enough arguments for format string");
    *out = args->v[(*used)++];
    return RD_OK;
}

static rd_status put_spec(struct jrun *r, struct buf *b, struct jstr *f, size_t *i, const struct jargs *args,
                          size_t *used)
{
    struct spec p = {.precision = -1};
    struct jval v = {.kind = J_MISSING};
    rd_status st;

    if (*i < f->n && f->s[*i] == '(' && (st = take_named(r, f, i, args, &v)) != RD_OK) return st;
    for (; *i < f->n && f->s[*i] && strchr("-+ 0#", f->s[*i]); (*i)++) {
        p.left |= f->s[*i] == '-';
        p.plus |= f->s[*i] == '+';
        p.space |= f->s[*i] == ' ';
        p.zero |= f->s[*i] == '0';
        p.alt |= f->s[*i] == '#';
    }
    p.width = take_number(f, i);
    if (*i < f->n && f->s[*i] == '.') {
        (*i)++;
        p.precision = take_number(f, i);
        if (p.precision < 0) p.precision = 0;
    }
    if (*i >= f->n) return jrun_fail(r, "incomplete format");
    p.type = f->s[(*i)++];
    if (p.type == '%') {
        buf_putc(b, '%');
        return RD_OK;
    }
    if (v.kind == J_MISSING && (st = next_arg(r, args, used, &v)) != RD_OK) return st;
    if (p.width > 0 && (st = jrun_pay(r, (uint64_t)p.width / 16)) != RD_OK) return st;
    return put_conversion(r, b, &p, v);
}

rd_status jinja_percent(struct jrun *r, struct jstr *format, const struct jargs *args, struct jval *out)
{
    struct buf b;
    size_t used = 0, i = 0;
    rd_status st = RD_OK;

    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    while (st == RD_OK && i < format->n) {
        size_t at = jinja_find_bytes(format->s, format->n, i, "%", 1);
        if (at == SIZE_MAX) at = format->n;
        buf_append(&b, format->s + i, at - i);
        i = at + 1;
        if (at < format->n) st = put_spec(r, &b, format, &i, args, &used);
    }
    if (st == RD_OK && used < args->n && !(args->n == 1 && args->v[0].kind == J_DICT) && args->n_kw == 0)
        st = jrun_fail(r, "not all arguments converted during string formatting");
    return jrun_take_buf(r, &b, st, out);
}
