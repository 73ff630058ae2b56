/* text/jinja/jinja_text.c - values to text as Python writes them (str, repr, json.dumps, HTML escapes), and JSON to values.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/json_number.h"
#include "base/limits.h"
#include "text/jinja/jinja_run.h"

/* The shortest digits that read back as f, laid out as repr() does: fixed for exponents -4 to 15, else d.ddde+XX. */
size_t jinja_format_double(double f, char *out)
{
    char text[40], digits[24];
    int n = 0, exponent, point;
    size_t o = 0;
    double back;

    if (isnan(f)) return (size_t)sprintf(out, "nan");
    if (isinf(f)) return (size_t)sprintf(out, f < 0 ? "-inf" : "inf");
    for (int precision = fabs(f) < 1e-300 ? 0 : 14; precision < 17;
         precision++) { /* 15 digits hold all that is shorter */
        snprintf(text, sizeof(text), "%.*e", precision, f);
        for (char *c = text; *c; c++)
            if (*c == ',') *c = '.'; /* a host's locale */
        if (parse_f64(text, strlen(text), &back) && back == f) break;
    }
    exponent = atoi(strchr(text, 'e') + 1);
    for (const char *c = text; *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0') n--;
    if (signbit(f)) out[o++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[o++] = digits[0];
        if (n > 1) out[o++] = '.';
        for (int i = 1; i < n; i++) out[o++] = digits[i];
        return o + (size_t)sprintf(out + o, "e%c%02d", exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
    }
    point = exponent + 1;
    if (point <= 0) out[o++] = '0';
    for (int i = 0; i < point; i++) out[o++] = i < n ? digits[i] : '0';
    out[o++] = '.';
    for (int i = point; i < 0; i++) out[o++] = '0';
    for (int i = point > 0 ? point : 0; i < n; i++) out[o++] = digits[i];
    if (out[o - 1] == '.') out[o++] = '0';
    out[o] = 0;
    return o;
}

static void put_double(struct buf *b, double f)
{
    char text[40];

    buf_append(b, text, jinja_format_double(f, text));
}

bool jinja_is_printable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

static void put_str_repr(struct buf *b, const struct jstr *s)
{
    bool single = s->n && memchr(s->s, '\'', s->n), twice = s->n && memchr(s->s, '"', s->n);
    char quote = single && !twice ? '"' : '\'';

    buf_putc(b, quote);
    for (size_t i = 0, from = 0; i < s->n; from = i) {
        uint32_t cp = jinja_next_cp(s->s, s->n, &i);
        if (cp == (uint32_t)quote || cp == '\\')
            buf_printf(b, "\\%c", (int)cp);
        else if (cp == '\n')
            buf_puts(b, "\\n");
        else if (cp == '\r')
            buf_puts(b, "\\r");
        else if (cp == '\t')
            buf_puts(b, "\\t");
        else if (jinja_is_printable(cp))
            buf_append(b, s->s + from, i - from);
        else if (cp < 0x100)
            buf_printf(b, "\\x%02x", cp);
        else
            buf_printf(b, cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
    buf_putc(b, quote);
}

static rd_status put_repr(struct jrun *r, struct buf *b, struct jval v);

static rd_status put_items(struct jrun *r, struct buf *b, const struct jval *items, size_t n, const char *open,
                           const char *close)
{
    rd_status st = RD_OK;

    buf_puts(b, open);
    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if (i) buf_puts(b, ", ");
        st = put_repr(r, b, items[i]);
    }
    buf_puts(b, close);
    return st;
}

static rd_status put_dict(struct jrun *r, struct buf *b, const struct jdict *d)
{
    rd_status st = RD_OK;

    buf_putc(b, '{');
    for (size_t i = 0; st == RD_OK && i < d->n; i++) {
        if (i) buf_puts(b, ", ");
        if ((st = put_repr(r, b, d->entries[i].key)) != RD_OK) break;
        buf_puts(b, ": ");
        st = put_repr(r, b, d->entries[i].value);
    }
    buf_putc(b, '}');
    return st;
}

static rd_status put_object(struct jrun *r, struct buf *b, struct jval v)
{
    rd_status st = jrun_enter_call(r);
    const char *view;

    if (st != RD_OK) return st;
    switch (v.kind) {
    case J_LIST:
        st = put_items(r, b, v.list->items, v.list->n, "[", "]");
        break;
    case J_TUPLE:
        st = put_items(r, b, v.list->items, v.list->n, "(", v.list->n == 1 ? ",)" : ")");
        break;
    case J_VIEW:
        view = v.list->view == 'k' ? "dict_keys([" : v.list->view == 'v' ? "dict_values([" : "dict_items([";
        st = put_items(r, b, v.list->items, v.list->n, view, "])");
        break;
    case J_DICT:
        st = put_dict(r, b, v.dict);
        break;
    case J_NAMESPACE:
        buf_puts(b, "<Namespace ");
        st = put_dict(r, b, v.dict);
        buf_putc(b, '>');
        break;
    case J_RANGE:
        buf_printf(b, "range(%lld, %lld", (long long)v.range->start, (long long)v.range->stop);
        if (v.range->step != 1) buf_printf(b, ", %lld", (long long)v.range->step);
        buf_putc(b, ')');
        break;
    case J_LOOP:
        buf_printf(b, "<LoopContext %zu/%zu>", v.loop->i + 1, v.loop->n);
        break;
    case J_MACRO:
        if (v.macro->node->name)
            buf_printf(b, "<Macro '%.*s'>", (int)v.macro->node->name->n, v.macro->node->name->s);
        else
            buf_puts(b, "<Macro anonymous>");
        break;
    default:
        buf_printf(b, "<%s>", jval_type_name(v));
        break;
    }
    r->calls--;
    return st;
}

static rd_status put_repr(struct jrun *r, struct buf *b, struct jval v)
{
    rd_status st = jrun_pay(r, 2 + (v.kind == J_STR ? v.s->n / 4 : 0));

    if (st != RD_OK) return st;
    switch (v.kind) {
    case J_MISSING:
        break;
    case J_UNDEF:
        buf_puts(b, "Undefined");
        break;
    case J_NONE:
        buf_puts(b, "None");
        break;
    case J_BOOL:
        buf_puts(b, v.b ? "True" : "False");
        break;
    case J_INT:
        buf_printf(b, "%lld", (long long)v.i);
        break;
    case J_FLOAT:
        put_double(b, v.f);
        return jrun_pay(r, 60);
    case J_BIG:
        buf_append(b, v.s->s, v.s->n);
        return jrun_pay(r, v.s->n / 8);
    case J_STR:
        if (v.s->safe) buf_puts(b, "Markup(");
        put_str_repr(b, v.s);
        if (v.s->safe) buf_putc(b, ')');
        break;
    default:
        return put_object(r, b, v);
    }
    return RD_OK;
}

rd_status jval_repr(struct jrun *r, struct jval v, struct jstr **out)
{
    struct jval s;
    struct buf b;
    rd_status st;

    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    st = jrun_take_buf(r, &b, put_repr(r, &b, v), &s);
    if (st == RD_OK) *out = s.s;
    return st;
}

rd_status jval_to_str(struct jrun *r, struct jval v, struct jstr **out)
{
    struct jval s;
    rd_status st;

    if (v.kind == J_STR) {
        *out = v.s;
        return RD_OK;
    }
    if (v.kind != J_UNDEF) return jval_repr(r, v, out);
    if ((st = jval_str_view(r, "", 0, &s)) == RD_OK) *out = s.s;
    return st;
}

/* ---- JSON ---- */

struct json_writer {
    struct jrun *r;
    struct buf *b;
    const struct jjson_style *style;
    struct jstr indent; /* when has_indent: one level */
    bool has_indent;
    struct jstr item_sep, key_sep;
    uint32_t depth;
};

static rd_status put_json(struct json_writer *w, struct jval v);

/* json.dumps escapes these and, when asked for ASCII, the rest. */
static void put_json_str(struct json_writer *w, const struct jstr *s)
{
    static const char *const names[] = {"\\b", "\\t", "\\n", NULL, "\\f", "\\r"};

    buf_putc(w->b, '"');
    for (size_t i = 0, from = 0; i < s->n; from = i) {
        uint32_t cp = jinja_next_cp(s->s, s->n, &i);
        if (cp == '"' || cp == '\\')
            buf_printf(w->b, "\\%c", (int)cp);
        else if (cp >= 8 && cp <= 13 && cp != 11)
            buf_puts(w->b, names[cp - 8]);
        else if (cp < 0x20)
            buf_printf(w->b, "\\u%04x", cp);
        else if (cp < 0x7F || !w->style->ascii)
            buf_append(w->b, s->s + from, i - from);
        else if (cp < 0x10000)
            buf_printf(w->b, "\\u%04x", cp);
        else
            buf_printf(w->b, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
    }
    buf_putc(w->b, '"');
}

static rd_status json_line(struct json_writer *w)
{
    rd_status st = RD_OK;

    if (!w->has_indent) return RD_OK;
    buf_putc(w->b, '\n');
    for (uint32_t i = 0; st == RD_OK && i < w->depth; i++) {
        buf_append(w->b, w->indent.s, w->indent.n);
        st = jrun_pay(w->r, w->indent.n / 8 + 1);
    }
    return st;
}

static rd_status put_json_key(struct json_writer *w, struct jval key)
{
    if (key.kind == J_STR) {
        put_json_str(w, key.s);
        return RD_OK;
    }
    if (!jval_is_number(key) && key.kind != J_BIG && key.kind != J_NONE)
        return jrun_fail(w->r, "keys must be str, int, float, bool or None, not %s", jval_type_name(key));
    buf_putc(w->b, '"');
    put_json(w, key);
    buf_putc(w->b, '"');
    return RD_OK;
}

/* The order of the entries: as they are, or by key. */
static rd_status json_order(struct json_writer *w, const struct jdict *d, struct jval **order)
{
    struct jval *keys;
    rd_status st = jrun_alloc(w->r, d->n, sizeof(**order), order);

    if (st != RD_OK || (st = jrun_alloc(w->r, d->n, sizeof(*keys), &keys)) != RD_OK) return st;
    for (size_t i = 0; i < d->n; i++) {
        (*order)[i] = jval_int((int64_t)i);
        keys[i] = d->entries[i].key;
    }
    return w->style->sort_keys ? jinja_sort(w->r, keys, *order, d->n, false) : RD_OK;
}

static rd_status put_json_dict(struct json_writer *w, const struct jdict *d)
{
    struct jval *order;
    rd_status st = json_order(w, d, &order);

    buf_putc(w->b, '{');
    w->depth++;
    for (size_t i = 0; st == RD_OK && i < d->n; i++) {
        const struct jentry *e = &d->entries[order[i].i];
        if (i) buf_append(w->b, w->item_sep.s, w->item_sep.n);
        if ((st = json_line(w)) != RD_OK || (st = put_json_key(w, e->key)) != RD_OK) break;
        buf_append(w->b, w->key_sep.s, w->key_sep.n);
        st = put_json(w, e->value);
    }
    w->depth--;
    if (st == RD_OK && d->n) st = json_line(w);
    buf_putc(w->b, '}');
    return st;
}

static rd_status put_json_list(struct json_writer *w, const struct jlist *l)
{
    rd_status st = RD_OK;

    buf_putc(w->b, '[');
    w->depth++;
    for (size_t i = 0; st == RD_OK && i < l->n; i++) {
        if (i) buf_append(w->b, w->item_sep.s, w->item_sep.n);
        if ((st = json_line(w)) == RD_OK) st = put_json(w, l->items[i]);
    }
    w->depth--;
    if (st == RD_OK && l->n) st = json_line(w);
    buf_putc(w->b, ']');
    return st;
}

static rd_status put_json(struct json_writer *w, struct jval v)
{
    rd_status st = jrun_pay(w->r, 2 + (v.kind == J_STR ? v.s->n / 4 : 0));

    if (st != RD_OK) return st;
    switch (v.kind) {
    case J_NONE:
        buf_puts(w->b, "null");
        break;
    case J_BOOL:
        buf_puts(w->b, v.b ? "true" : "false");
        break;
    case J_INT:
        buf_printf(w->b, "%lld", (long long)v.i);
        break;
    case J_FLOAT:
        if (isnan(v.f))
            buf_puts(w->b, "NaN");
        else if (isinf(v.f))
            buf_puts(w->b, v.f < 0 ? "-Infinity" : "Infinity");
        else
            put_double(w->b, v.f);
        return jrun_pay(w->r, 60);
    case J_BIG:
        buf_append(w->b, v.s->s, v.s->n);
        return jrun_pay(w->r, v.s->n / 4);
    case J_STR:
        put_json_str(w, v.s);
        break;
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
        if ((st = jrun_enter_call(w->r)) != RD_OK) return st;
        st = v.kind == J_DICT ? put_json_dict(w, v.dict) : put_json_list(w, v.list);
        w->r->calls--;
        return st;
    default:
        return jrun_fail(w->r, "Object of type %s is not JSON serializable", jval_type_name(v));
    }
    return RD_OK;
}

rd_status jval_to_json(struct jrun *r, struct jval v, const struct jjson_style *style, struct jval *out)
{
    struct buf b;
    struct json_writer w = {
        .r = r, .b = &b, .style = style, .item_sep = {.s = ", ", .n = 2}, .key_sep = {.s = ": ", .n = 2}};
    struct jval indent;
    int64_t n = 0;
    rd_status st;

    if (jval_is_int(style->indent)) {
        n = jval_to_int(style->indent);
        if (n > 1000) return jrun_limit(r, "the indent is too wide");
        n = n < 0 ? 0 : n;
        if ((st = jval_str(r, "", 0, &indent)) != RD_OK ||
            (st = jrun_alloc(r, (size_t)n + 1, 1, &indent.s->s)) != RD_OK)
            return st;
        memset((char *)(uintptr_t)indent.s->s, ' ', (size_t)n);
        w.indent = (struct jstr){.s = indent.s->s, .n = (size_t)n};
        w.has_indent = true;
    } else if (style->indent.kind == J_STR) {
        w.indent = *style->indent.s;
        w.has_indent = true;
    }
    if (w.has_indent) w.item_sep = (struct jstr){.s = ",", .n = 1};
    if (style->item_sep.kind == J_STR) w.item_sep = *style->item_sep.s;
    if (style->key_sep.kind == J_STR) w.key_sep = *style->key_sep.s;
    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    return jrun_take_buf(r, &b, put_json(&w, v), out);
}

rd_status jval_escape(struct jrun *r, struct jval v, struct jval *out)
{
    struct jstr *s;
    struct buf b;
    rd_status st = jval_to_str(r, v, &s);

    if (st != RD_OK) return st;
    if (s->safe) {
        *out = (struct jval){.kind = J_STR, .s = s};
        return RD_OK;
    }
    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    for (size_t i = 0; i < s->n; i++) {
        switch (s->s[i]) {
        case '&':
            buf_puts(&b, "&amp;");
            break;
        case '<':
            buf_puts(&b, "&lt;");
            break;
        case '>':
            buf_puts(&b, "&gt;");
            break;
        case '"':
            buf_puts(&b, "&#34;");
            break;
        case '\'':
            buf_puts(&b, "&#39;");
            break;
        default:
            buf_putc(&b, s->s[i]);
            break;
        }
    }
    st = jrun_take_buf(r, &b, jrun_pay(r, s->n / 8), out);
    if (st == RD_OK) out->s->safe = true;
    return st;
}

static rd_status object_from_json(struct jrun *r, const json_t *j, struct jval *out)
{
    const char *key;
    json_t *value;
    struct jval k, v;
    rd_status st = jval_dict(r, out);

    if (st != RD_OK) return st;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        if ((st = jval_str_view(r, key, strlen(key), &k)) != RD_OK || (st = jval_from_json(r, value, &v)) != RD_OK ||
            (st = jdict_set(r, out->dict, k, v)) != RD_OK)
            return st;
    }
    return RD_OK;
}

/* As Python's json.loads(): an int of any size, a float that may be infinite. */
static rd_status number_from_json(struct jrun *r, const json_t *j, struct jval *out)
{
    const char *text = json_number_text(j);
    rd_status st = RD_OK;

    if (!text || !json_number_is_whole(text)) {
        *out = jval_float(json_real_value(j));
    } else if (strspn(text, "-0") == strlen(text)) {
        *out = jval_int(0); /* -0 */
    } else {
        r->fuel += strlen(text);
        st = jval_str_view(r, text, strlen(text), out);
        out->kind = J_BIG;
    }
    return st;
}

rd_status jval_from_json(struct jrun *r, const json_t *j, struct jval *out)
{
    struct jval v;
    size_t n;
    rd_status st = jrun_enter_call(r);

    if (st != RD_OK) return st;
    r->fuel += LIMIT_TEMPLATE_PER_VALUE; /* more to render may take more steps */
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = jval_none();
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = jval_bool(json_is_true(j));
        break;
    case JSON_INTEGER:
        *out = jval_int(json_integer_value(j));
        break;
    case JSON_REAL:
        st = number_from_json(r, j, out);
        break;
    case JSON_STRING:
        r->fuel += json_string_length(j);
        st = jval_str_view(r, json_string_value(j), json_string_length(j), out);
        break;
    case JSON_OBJECT:
        st = object_from_json(r, j, out);
        break;
    case JSON_ARRAY:
        n = json_array_size(j);
        st = jval_list(r, J_LIST, n, out);
        for (size_t i = 0; st == RD_OK && i < n; i++)
            if ((st = jval_from_json(r, json_array_get(j, i), &v)) == RD_OK) st = jlist_push(r, out->list, v);
        break;
    }
    r->calls--;
    return st;
}
