/* text/jinja/jinja_format.c - format specifications: numbers and text into columns. */
#include "text/jinja/jinja_format.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/limits.h"
#include "base/utf8.h"

enum { NUMBER_BYTES = 400 + LIMIT_TEMPLATE_WIDTH };

static bool is_align(uint32_t cp)
{
    return cp == '<' || cp == '>' || cp == '^' || cp == '=';
}

static rd_status take_width(struct jrun *r, const char *s, size_t n, size_t *i, int64_t *out)
{
    int64_t v = -1;

    for (; *i < n && s[*i] >= '0' && s[*i] <= '9'; (*i)++) {
        v = (v < 0 ? 0 : v) * 10 + (s[*i] - '0');
        if (v > LIMIT_TEMPLATE_WIDTH) return jrun_limit(r, "a width or precision is too large");
    }
    *out = v;
    return RD_OK;
}

rd_status jspec_parse(struct jrun *r, const char *s, size_t n, struct jspec *out)
{
    size_t i = 0, next = 0;
    uint32_t cp = n ? jinja_next_cp(s, n, &next) : 0;
    rd_status st;

    *out = (struct jspec){.width = -1, .precision = -1};
    if (n && next < n && is_align((unsigned char)s[next])) {
        out->fill = cp;
        out->align = s[next];
        i = next + 1;
    } else if (n && is_align(cp)) {
        out->align = (char)cp;
        i = 1;
    }
    if (i < n && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) out->sign = s[i++];
    if (i < n && s[i] == 'z') out->no_negative_zero = s[i++] == 'z';
    if (i < n && s[i] == '#') out->alt = s[i++] == '#';
    if (i < n && s[i] == '0') out->zero = s[i++] == '0';
    if ((st = take_width(r, s, n, &i, &out->width)) != RD_OK) return st;
    if (i < n && (s[i] == ',' || s[i] == '_')) out->group = s[i++];
    if (i < n && s[i] == '.') {
        i++;
        if ((st = take_width(r, s, n, &i, &out->precision)) != RD_OK) return st;
        if (out->precision < 0) return jrun_fail(r, "Format specifier missing precision");
    }
    if (i < n) out->type = s[i++];
    if (i < n) return jrun_fail(r, "Invalid format specifier");
    return RD_OK;
}

static void put_fill(struct buf *b, uint32_t fill, int64_t n)
{
    char text[UTF8_MAX_BYTES];
    size_t len = (size_t)utf8_encode(fill ? fill : ' ', text);

    if (len == 1) {
        jbuf_fill(b, text[0], n);
        return;
    }
    for (; n > 0; n--) buf_append(b, text, len);
}

/* head, blanks of the alignment =, tail; n_chars: of both. */
static rd_status put_aligned(struct jrun *r, struct buf *b, const struct jspec *p, char fallback,
                             const struct jstr *head, const struct jstr *tail, size_t n_chars)
{
    int64_t pad = p->width > (int64_t)n_chars ? p->width - (int64_t)n_chars : 0, left;
    char align = p->align ? p->align : p->zero && fallback == '>' ? '=' : fallback;
    uint32_t fill = p->fill ? p->fill : p->zero ? '0' : ' ';

    left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    put_fill(b, fill, left);
    buf_append(b, head->s, head->n);
    if (align == '=') put_fill(b, fill, pad);
    buf_append(b, tail->s, tail->n);
    if (align == '<' || align == '^') put_fill(b, fill, pad - left);
    return jrun_pay(r, (uint64_t)pad / 4 + tail->n / 16 + 1);
}

rd_status jspec_put_text(struct jrun *r, struct buf *b, const struct jspec *p, struct jstr *s, char fallback)
{
    struct jstr none = {.s = "", .n = 0}, part = *s;
    size_t n = jstr_n_chars(r, s);

    if (p->precision >= 0 && (uint64_t)p->precision < n) {
        n = (size_t)p->precision;
        part.n = jstr_offset(r, s, n);
    }
    return put_aligned(r, b, p, fallback, &none, &part, n);
}

/* Digits with a separator every `every` places; padded with zeros to at least width characters. Returns the length. */
static size_t group_digits(const char *digits, size_t n, char separator, size_t every, size_t width, char *out)
{
    size_t total = n, o = 0;

    while (total + (total - 1) / every < width && total < NUMBER_BYTES / 2) total++;
    for (size_t i = 0; i < total; i++) {
        if (i && (total - i) % every == 0) out[o++] = separator;
        out[o++] = i < total - n ? '0' : digits[i - (total - n)];
    }
    return o;
}

/* sign, prefix and text, whose first n_int bytes are the digits to group. */
static rd_status put_signed(struct jrun *r, struct buf *b, const struct jspec *p, bool negative, const char *prefix,
                            const char *text, size_t n, size_t n_int)
{
    char head_text[8], grouped[2 * NUMBER_BYTES];
    struct jstr head = {.s = head_text}, tail = {.s = text, .n = n};
    size_t o;

    if (negative || p->sign == '+' || p->sign == ' ') head_text[head.n++] = negative ? '-' : p->sign;
    while (*prefix) head_text[head.n++] = *prefix++;
    if (p->group && n_int) {
        bool zeros = p->width > 0 && ((p->zero && !p->align) || (p->align == '=' && p->fill == '0'));
        size_t width = zeros ? (size_t)p->width : 0, other = head.n + n - n_int;
        o = group_digits(text, n_int, p->group, strchr("boxX", p->type ? p->type : ' ') ? 4 : 3,
                         width > other ? width - other : 0, grouped);
        memcpy(grouped + o, text + n_int, n - n_int);
        tail = (struct jstr){.s = grouped, .n = o + n - n_int};
    }
    return put_aligned(r, b, p, '>', &head, &tail, head.n + tail.n);
}

static rd_status put_int(struct jrun *r, struct buf *b, const struct jspec *p, int64_t i)
{
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    unsigned base = p->type == 'b' ? 2 : p->type == 'o' ? 8 : p->type == 'x' || p->type == 'X' ? 16 : 10;
    const char *digits = p->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef", *prefix = "";
    char text[80 + LIMIT_TEMPLATE_WIDTH];
    size_t at = sizeof(text);

    do {
        text[--at] = digits[u % base];
        u /= base;
    } while (u);
    while (p->precision > 0 && sizeof(text) - at < (uint64_t)p->precision) text[--at] = '0'; /* of % only */
    if (p->alt)
        prefix = p->type == 'b' ? "0b" : p->type == 'o' ? "0o" : p->type == 'x' ? "0x" : p->type == 'X' ? "0X" : "";
    return put_signed(r, b, p, i < 0, prefix, text + at, sizeof(text) - at, sizeof(text) - at);
}

/* No type: repr() without a precision; with one as 'g', but with one digit behind the point, and exponents one place
 * earlier. */
static size_t write_plain(double f, int precision, bool alt, char *text, size_t cap)
{
    size_t n;
    char *e;

    if (precision < 0) return jinja_format_double(f, text);
    if (precision == 0) precision = 1;
    n = (size_t)snprintf(text, cap, "%.*e", precision - 1, f);
    if (atoi(strchr(text, 'e') + 1) == precision - 1) {
        if (alt || precision == 1) return n;
        for (e = strchr(text, 'e'); e > text && e[-1] == '0';) memmove(e - 1, e, strlen(e) + 1), e--;
        if (e > text && e[-1] == '.') memmove(e - 1, e, strlen(e) + 1);
        return strlen(text);
    }
    n = (size_t)snprintf(text, cap, alt ? "%#.*g" : "%.*g", precision, f);
    if (!strpbrk(text, ".e")) n += (size_t)snprintf(text + n, cap - n, ".0");
    return n;
}

static rd_status put_float(struct jrun *r, struct buf *b, const struct jspec *p, double f)
{
    char text[NUMBER_BYTES], format[16], type = p->type == 'n' ? 'g' : p->type == '%' ? 'f' : p->type;
    bool negative = signbit(f) && !isnan(f), zero = true;
    size_t n, n_int = 0;
    rd_status st;

    f = fabs(f);
    if (p->type == '%') f *= 100;
    if (!isfinite(f)) {
        bool upper = type == 'E' || type == 'F' || type == 'G';
        n = (size_t)snprintf(text, sizeof(text), "%s", isnan(f) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf");
    } else if (!type) {
        n = write_plain(f, (int)p->precision, p->alt, text, sizeof(text));
    } else {
        snprintf(format, sizeof(format), "%%%s.*%c", p->alt ? "#" : "", type);
        n = (size_t)snprintf(text, sizeof(text), format, p->precision < 0 ? 6 : (int)p->precision, f);
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ',') text[i] = '.'; /* a host's locale */
        zero &= !(text[i] >= '1' && text[i] <= '9') && text[i] != 'i' && text[i] != 'I';
    }
    if (p->no_negative_zero && zero) negative = false;
    if (p->type == '%') text[n++] = '%';
    while (n_int < n && text[n_int] >= '0' && text[n_int] <= '9') n_int++;
    if ((st = jrun_pay(r, 60 + n * 2 + (uint64_t)(p->precision > 0 ? p->precision : 0))) != RD_OK) return st;
    return put_signed(r, b, p, negative, "", text, n, n_int);
}

rd_status jspec_put_number(struct jrun *r, struct buf *b, const struct jspec *p, struct jval v)
{
    if (p->type && strchr("eEfFgG%", p->type)) return put_float(r, b, p, jval_to_float(v));
    return v.kind == J_FLOAT ? put_float(r, b, p, v.f) : put_int(r, b, p, jval_to_int(v));
}

static rd_status unknown_type(struct jrun *r, char type, struct jval v)
{
    return jrun_fail(r, "Unknown format code '%c' for object of type '%s'", type >= 32 && type < 127 ? type : '?',
                     jval_type_name(v));
}

static rd_status put_char(struct jrun *r, struct buf *b, const struct jspec *p, int64_t cp)
{
    char text[UTF8_MAX_BYTES];
    struct jstr none = {.s = "", .n = 0}, one = {.s = text};

    if (p->sign || p->alt || p->group) return jrun_fail(r, "sign, '#' and ',' are not allowed with 'c'");
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return jrun_fail(r, "%%c arg not in range(0x110000)");
    one.n = (size_t)utf8_encode((uint32_t)cp, text);
    return put_aligned(r, b, p, '>', &none, &one, 1);
}

rd_status jspec_put(struct jrun *r, struct buf *b, const struct jspec *p, struct jval v)
{
    bool plain = !p->no_negative_zero && !p->align && !p->sign && !p->alt && !p->zero && p->width < 0 && !p->group &&
                 p->precision < 0 && !p->type;
    struct jstr *s;
    rd_status st;

    if (v.kind == J_STR || plain) {
        if ((st = jval_to_str(r, v, &s)) != RD_OK) return st;
        if (p->type && p->type != 's') return unknown_type(r, p->type, v);
        if (p->sign || p->alt || p->group || p->align == '=' || p->no_negative_zero)
            return jrun_fail(r, "sign, '#', ',' and '=' are not allowed in a string format specifier");
        return jspec_put_text(r, b, p, s, '<');
    }
    if (jval_is_int(v)) {
        if (p->no_negative_zero && !(p->type && strchr("eEfFgG%", p->type)))
            return jrun_fail(r, "Negative zero coercion (z) not allowed in format specifier with integer");
        if (p->type && !strchr("bcdoxXneEfFgG%", p->type)) return unknown_type(r, p->type, v);
        if (p->precision >= 0 && (!p->type || strchr("bcdoxXn", p->type)))
            return jrun_fail(r, "Precision not allowed in integer format specifier");
        if (p->group == ',' && p->type && strchr("boxX", p->type))
            return jrun_fail(r, "Cannot specify ',' with this type");
        if (p->group && p->type == 'n') return jrun_fail(r, "Cannot specify ',' with 'n'.");
        return p->type == 'c' ? put_char(r, b, p, jval_to_int(v)) : jspec_put_number(r, b, p, v);
    }
    if (v.kind == J_FLOAT) {
        if (p->type && !strchr("eEfFgGn%", p->type)) return unknown_type(r, p->type, v);
        if (p->group && p->type == 'n') return jrun_fail(r, "Cannot specify ',' with 'n'.");
        return jspec_put_number(r, b, p, v);
    }
    return jrun_fail(r, "unsupported format string passed to %s.__format__", jval_type_name(v));
}

rd_status jval_ascii(struct jrun *r, struct jval v, struct jstr **out)
{
    struct jval text;
    struct buf b;
    struct jstr *s;
    rd_status st = jval_repr(r, v, &s);

    if (st != RD_OK) return st;
    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    for (size_t i = 0; i < s->n;) {
        uint32_t cp = jinja_next_cp(s->s, s->n, &i);
        if (cp < 0x80)
            buf_putc(&b, (char)cp);
        else
            buf_printf(&b, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
    if ((st = jrun_take_buf(r, &b, jrun_pay(r, s->n / 8), &text)) == RD_OK) *out = text.s;
    return st;
}
