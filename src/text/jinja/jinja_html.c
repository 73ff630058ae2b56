/* text/jinja/jinja_html.c - the filters around HTML and addresses: striptags, xmlattr, urlize, urlencode.
 *
 * striptags knows the numbered character references and the names of HTML 4's Latin-1 set and common punctuation;
 * others stay as they are written.
 */
#include <string.h>
#include "base/limits.h"
#include "base/utf8.h"
#include "text/jinja/jinja_run.h"

static size_t count_of(const char *s, size_t n, const char *what)
{
    size_t count = 0, len = strlen(what);

    for (size_t at = 0; (at = jinja_find_bytes(s, n, at, what, len)) != SIZE_MAX; at += len) count++;
    return count;
}

/* ---- striptags ---- */

static const struct {
    const char *name;
    uint16_t cp;
} entities[] = {
    {"amp", '&'},       {"lt", '<'},       {"gt", '>'},       {"quot", '"'},     {"apos", '\''},    {"nbsp", 160},
    {"iexcl", 161},     {"cent", 162},     {"pound", 163},    {"curren", 164},   {"yen", 165},      {"brvbar", 166},
    {"sect", 167},      {"uml", 168},      {"copy", 169},     {"ordf", 170},     {"laquo", 171},    {"not", 172},
    {"shy", 173},       {"reg", 174},      {"macr", 175},     {"deg", 176},      {"plusmn", 177},   {"sup2", 178},
    {"sup3", 179},      {"acute", 180},    {"micro", 181},    {"para", 182},     {"middot", 183},   {"cedil", 184},
    {"sup1", 185},      {"ordm", 186},     {"raquo", 187},    {"frac14", 188},   {"frac12", 189},   {"frac34", 190},
    {"iquest", 191},    {"Agrave", 192},   {"Aacute", 193},   {"Acirc", 194},    {"Atilde", 195},   {"Auml", 196},
    {"Aring", 197},     {"AElig", 198},    {"Ccedil", 199},   {"Egrave", 200},   {"Eacute", 201},   {"Ecirc", 202},
    {"Euml", 203},      {"Igrave", 204},   {"Iacute", 205},   {"Icirc", 206},    {"Iuml", 207},     {"ETH", 208},
    {"Ntilde", 209},    {"Ograve", 210},   {"Oacute", 211},   {"Ocirc", 212},    {"Otilde", 213},   {"Ouml", 214},
    {"times", 215},     {"Oslash", 216},   {"Ugrave", 217},   {"Uacute", 218},   {"Ucirc", 219},    {"Uuml", 220},
    {"Yacute", 221},    {"THORN", 222},    {"szlig", 223},    {"agrave", 224},   {"aacute", 225},   {"acirc", 226},
    {"atilde", 227},    {"auml", 228},     {"aring", 229},    {"aelig", 230},    {"ccedil", 231},   {"egrave", 232},
    {"eacute", 233},    {"ecirc", 234},    {"euml", 235},     {"igrave", 236},   {"iacute", 237},   {"icirc", 238},
    {"iuml", 239},      {"eth", 240},      {"ntilde", 241},   {"ograve", 242},   {"oacute", 243},   {"ocirc", 244},
    {"otilde", 245},    {"ouml", 246},     {"divide", 247},   {"oslash", 248},   {"ugrave", 249},   {"uacute", 250},
    {"ucirc", 251},     {"uuml", 252},     {"yacute", 253},   {"thorn", 254},    {"yuml", 255},     {"ndash", 0x2013},
    {"mdash", 0x2014},  {"lsquo", 0x2018}, {"rsquo", 0x2019}, {"ldquo", 0x201C}, {"rdquo", 0x201D}, {"bull", 0x2022},
    {"hellip", 0x2026}, {"euro", 0x20AC},  {"trade", 0x2122}, {"larr", 0x2190},  {"rarr", 0x2192},
};

/* &#65; &#x41; &amp; at s[0..n): its character, and its length; 0: none. */
static size_t read_entity(const char *s, size_t n, uint32_t *cp)
{
    size_t i = 2, digits;
    bool hex;

    *cp = 0;
    if (n > 3 && s[1] == '#') {
        hex = (s[2] | 32) == 'x';
        i += hex;
        for (digits = i; i < n && i < 12; i++) {
            int ch = (unsigned char)s[i], low = ch | 32;
            int v = ch >= '0' && ch <= '9' ? ch - '0' : hex && low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
            if (v < 0) break;
            if (*cp < 0x200000) *cp = *cp * (hex ? 16 : 10) + (uint32_t)v;
        }
        if (i == digits) return 0;
        if (*cp > 0x10FFFF || *cp == 0 || (*cp >= 0xD800 && *cp < 0xE000)) *cp = 0xFFFD;
        return i + (i < n && s[i] == ';');
    }
    for (size_t k = 0; k < sizeof(entities) / sizeof(entities[0]); k++) {
        size_t len = strlen(entities[k].name);
        if (n < len + 2 || memcmp(s + 1, entities[k].name, len) || s[len + 1] != ';') continue;
        *cp = entities[k].cp;
        return len + 2;
    }
    return 0;
}

/* s without what stands between open and close, both gone too. */
static void cut_between(const char *s, size_t n, const char *open, const char *close, struct buf *b)
{
    size_t from = 0;

    for (;;) {
        size_t at = jinja_find_bytes(s, n, from, open, strlen(open)), end = SIZE_MAX;
        if (at != SIZE_MAX) end = jinja_find_bytes(s, n, at, close, strlen(close));
        if (end == SIZE_MAX) break;
        buf_append(b, s + from, at - from);
        from = end + strlen(close);
    }
    buf_append(b, s + from, n - from);
}

/* White space runs become one blank, none at the ends; then character references become characters. */
static void put_plain(const char *s, size_t n, struct buf *b)
{
    char text[UTF8_MAX_BYTES];
    bool gap = false, any = false;
    size_t next;
    uint32_t cp;

    for (size_t i = 0; i < n; i = next) {
        next = i;
        if (jinja_is_space(jinja_next_cp(s, n, &next))) {
            gap = any;
            continue;
        }
        if (gap) buf_putc(b, ' ');
        gap = false;
        any = true;
        if (s[i] == '&' && (next = i + read_entity(s + i, n - i, &cp)) > i) {
            buf_append(b, text, (size_t)utf8_encode(cp, text));
            continue;
        }
        next = i;
        jinja_next_cp(s, n, &next);
        buf_append(b, s + i, next - i);
    }
}

static rd_status f_striptags(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct buf a = {.limit = LIMIT_TEMPLATE_OUTPUT}, b = a;
    struct jstr *s;
    rd_status st = jval_to_str(r, in, &s);

    if (st != RD_OK || (st = jrun_pay(r, s->n / 2 + count_of(s->s, s->n, "&") * 40)) != RD_OK) return st;
    cut_between(s->s, s->n, "<!--", "-->", &a);
    cut_between(a.data ? a.data : "", a.n, "<", ">", &b);
    buf_deinit(&a);
    a.limit = LIMIT_TEMPLATE_OUTPUT;
    put_plain(b.data ? b.data : "", b.n, &a);
    a.failed |= b.failed;
    buf_deinit(&b);
    return jrun_take_buf(r, &a, RD_OK, out);
}

/* ---- xmlattr ---- */

static rd_status put_escaped(struct jrun *r, struct buf *b, struct jval v)
{
    struct jval safe;
    rd_status st = jval_escape(r, v, &safe);

    if (st == RD_OK) buf_append(b, safe.s->s, safe.s->n);
    return st;
}

/* xmlattr(autospace) */
static rd_status f_xmlattr(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    bool space = c->v[0].kind == J_MISSING || jval_truth(c->v[0]);
    struct buf b = {.limit = LIMIT_TEMPLATE_OUTPUT};
    rd_status st = RD_OK;

    if (in.kind == J_UNDEF) return jrun_undefined(r, in);
    if (in.kind != J_DICT) return jrun_fail(r, "'%s' object has no attribute 'items'", jval_type_name(in));
    for (size_t i = 0; st == RD_OK && i < in.dict->n; i++) {
        const struct jentry *e = &in.dict->entries[i];
        if (e->value.kind == J_NONE || e->value.kind == J_UNDEF) continue;
        if (e->key.kind != J_STR) {
            st = jrun_fail(r, "xmlattr: keys must be str");
            break;
        }
        for (size_t k = 0; k < e->key.s->n;) {
            uint32_t cp = jinja_next_cp(e->key.s->s, e->key.s->n, &k);
            if (jinja_is_space(cp) || cp == '/' || cp == '>' || cp == '=')
                st = jrun_fail(r, "Invalid character in attribute name");
        }
        if (space || b.n) buf_putc(&b, ' ');
        if (st == RD_OK) st = put_escaped(r, &b, e->key);
        buf_puts(&b, "=\"");
        if (st == RD_OK) st = put_escaped(r, &b, e->value);
        buf_putc(&b, '"');
    }
    if ((st = jrun_take_buf(r, &b, st, out)) == RD_OK) out->s->safe = r->autoescape;
    return st;
}

/* ---- urlencode ---- */

static void put_quoted(struct buf *b, const struct jstr *s, bool query)
{
    for (size_t i = 0; i < s->n; i++) {
        unsigned char ch = (unsigned char)s->s[i];
        if (query && ch == ' ')
            buf_putc(b, '+');
        else if (ch && ch < 0x80 && (jinja_is_word(ch) || strchr(query ? ".-~" : ".-~/", ch)))
            buf_putc(b, (char)ch);
        else
            buf_printf(b, "%%%02X", ch);
    }
}

/* A mapping or a list of pairs makes a query; anything else is quoted as one text. */
static rd_status f_urlencode(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct buf b = {.limit = LIMIT_TEMPLATE_OUTPUT};
    struct jval *items, pair[2], *two;
    struct jstr *s;
    size_t n, n_two;
    rd_status st;

    if (in.kind == J_STR || in.kind == J_UNDEF || !(jval_is_list(in) || in.kind == J_DICT || in.kind == J_RANGE)) {
        if ((st = jval_to_str(r, in, &s)) != RD_OK || (st = jrun_pay(r, s->n / 4)) != RD_OK) return st;
        put_quoted(&b, s, false);
        return jrun_take_buf(r, &b, RD_OK, out);
    }
    st = jval_iterate(r, in, &items, &n);
    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if (in.kind == J_DICT) {
            pair[0] = in.dict->entries[i].key;
            pair[1] = in.dict->entries[i].value;
        } else {
            if ((st = jval_iterate(r, items[i], &two, &n_two)) != RD_OK) break;
            if (n_two != 2) {
                st = jrun_fail(r, "urlencode needs pairs");
                break;
            }
            memcpy(pair, two, sizeof(pair));
        }
        if (i) buf_putc(&b, '&');
        for (int k = 0; st == RD_OK && k < 2; k++) {
            if (k) buf_putc(&b, '=');
            if ((st = jval_to_str(r, pair[k], &s)) == RD_OK && (st = jrun_pay(r, s->n / 4 + 1)) == RD_OK)
                put_quoted(&b, s, true);
        }
    }
    return jrun_take_buf(r, &b, st, out);
}

/* ---- urlize ---- */

static bool starts(const char *s, size_t n, const char *prefix, bool fold)
{
    size_t len = strlen(prefix);

    return n >= len && (fold ? !strncasecmp(s, prefix, len) : !memcmp(s, prefix, len));
}

static bool is_domain_byte(char c)
{
    return jinja_is_word((unsigned char)c) || (unsigned char)c >= 0x80 || c == '%' || c == '-';
}

static bool all_letters(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] | 32) >= 'a' && (s[i] | 32) <= 'z')) return false;
    return n >= 2 && n <= 63;
}

/* Labels with points between them; *last: where the last begins, *n_labels of them before it. */
static bool read_labels(const char *s, size_t n, size_t min, size_t *last, size_t *n_labels)
{
    size_t from = 0;

    *n_labels = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '.') {
            if (i - from < min) return false;
            from = i + 1;
            ++*n_labels;
        } else if (!is_domain_byte(s[i])) {
            return false;
        }
    }
    *last = from;
    return n > from;
}

static bool is_ipv4(const char *s, size_t n)
{
    size_t parts = 0, digits = 0;

    for (size_t i = 0; i <= n; i++) {
        if (i < n && s[i] >= '0' && s[i] <= '9') {
            if (++digits > 3) return false;
        } else {
            if (digits == 0 || (i < n && s[i] != '.')) return false;
            digits = 0;
            parts++;
        }
    }
    return parts == 4;
}

/* http://host.tld:port/path, www.host.tld, host.com: what jinja2 takes for an address. */
static bool is_address(const char *s, size_t n)
{
    static const char *const tlds[] = {"com", "net", "int", "edu", "gov", "org", "info", "mil"};
    bool scheme = starts(s, n, "http://", true) || starts(s, n, "https://", true), known = false;
    size_t from = scheme ? (size_t)((const char *)memchr(s, '/', n) - s) + 2 : 0, end, last, labels, colon;
    bool www = !scheme && starts(s, n, "www.", true);

    if (www) from = 4;
    for (end = from; end < n && !strchr("/?#", s[end]); end++) {}
    for (colon = from; colon < end && s[colon] != ':'; colon++) {}
    if (colon < end) {
        if (end - colon < 2 || end - colon > 6) return false;
        for (size_t i = colon + 1; i < end; i++)
            if (s[i] < '0' || s[i] > '9') return false;
    }
    s += from;
    n = colon - from;
    if (scheme && is_ipv4(s, n)) return true;
    if (!read_labels(s, n, scheme || www ? 1 : 2, &last, &labels)) return false;
    if (scheme || www) return all_letters(s + last, n - last) || starts(s + last, n - last, "xn--", true);
    for (size_t i = 0; i < sizeof(tlds) / sizeof(tlds[0]); i++)
        known |= n - last == strlen(tlds[i]) && !strncasecmp(s + last, tlds[i], n - last);
    return known && labels > 0;
}

/* something@word.word */
static bool is_email(const char *s, size_t n)
{
    size_t from = n, dot = 0;

    while (from > 0 && s[from - 1] != '@') from--; /* behind the last one */
    if (from <= 1 || from == n || !is_domain_byte(s[from]) || s[from] == '-' || s[from] == '%') return false;
    for (size_t i = from; i < n; i++) {
        if (s[i] == '.')
            dot = i;
        else if (!(jinja_is_word((unsigned char)s[i]) || (unsigned char)s[i] >= 0x80 || s[i] == '-'))
            return false;
    }
    if (dot <= from || dot + 1 == n) return false;
    return !memchr(s + dot, '-', n - dot);
}

struct links {
    int64_t trim; /* -1: none */
    const char *attrs;
    struct buf *out;
};

static void put_link(const struct links *l, const char *s, size_t n)
{
    struct jstr shown = {.s = s, .n = n, .n_chars = SIZE_MAX};
    struct buf *b = l->out;
    bool trim = l->trim >= 0 && jstr_n_chars(NULL, &shown) > (uint64_t)l->trim;
    size_t at = 0;

    if (is_address(s, n)) {
        buf_puts(b, starts(s, n, "https://", false) || starts(s, n, "http://", false) ? "<a href=\""
                                                                                      : "<a href=\"https://");
        buf_append(b, s, n);
        buf_printf(b, "\"%s>", l->attrs);
        for (int64_t i = 0; trim && i < l->trim; i++) jinja_next_cp(s, n, &at);
        buf_append(b, s, trim ? at : n);
        buf_puts(b, trim ? "...</a>" : "</a>");
    } else if (starts(s, n, "mailto:", false) && is_email(s + 7, n - 7)) {
        buf_puts(b, "<a href=\"");
        buf_append(b, s, n);
        buf_puts(b, "\">");
        buf_append(b, s + 7, n - 7);
        buf_puts(b, "</a>");
    } else if (memchr(s, '@', n) && !starts(s, n, "www.", false) && !memchr(s, ':', n) && is_email(s, n)) {
        buf_puts(b, "<a href=\"mailto:");
        buf_append(b, s, n);
        buf_puts(b, "\">");
        buf_append(b, s, n);
        buf_puts(b, "</a>");
    } else {
        buf_append(b, s, n);
    }
}

/* One word: brackets before it and punctuation after it stay outside of the link, unless they balance it. */
static void put_word(const struct links *l, const char *s, size_t n)
{
    static const char *const pairs[][2] = {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}};
    size_t from = 0, end = n;

    for (;;) {
        if (from < n && (s[from] == '(' || s[from] == '<'))
            from++;
        else if (starts(s + from, n - from, "&lt;", false))
            from += 4;
        else
            break;
    }
    while (end > from) {
        if (strchr(")>.,", s[end - 1]))
            end--;
        else if (end - from >= 4 && !memcmp(s + end - 4, "&gt;", 4))
            end -= 4;
        else
            break;
    }
    for (size_t k = 0; k < 3; k++) {
        size_t opened = count_of(s + from, end - from, pairs[k][0]), tail = count_of(s + end, n - end, pairs[k][1]);
        if (opened <= count_of(s + from, end - from, pairs[k][1])) continue;
        for (size_t i = 0; i < opened && i < tail; i++)
            end = jinja_find_bytes(s, n, end, pairs[k][1], strlen(pairs[k][1])) + strlen(pairs[k][1]);
    }
    buf_append(l->out, s, from);
    put_link(l, s + from, end - from);
    buf_append(l->out, s + end, n - end);
}

/* rel="..." target="...": the words of rel, nofollow and noopener in order, each once. */
static rd_status link_attrs(struct jrun *r, struct jcall *c, struct buf *b)
{
    struct jval words, word, *keys;
    struct jargs none = {0};
    struct jcall split = {.args = &none};
    rd_status st;

    if ((st = jval_str_view(r, "", 0, &words)) != RD_OK) return st;
    if (c->v[3].kind == J_STR) words = c->v[3];
    if ((st = jinja_split(r, words, &split, &words)) != RD_OK) return st;
    if (jval_truth(c->v[1])) {
        if ((st = jval_str_view(r, "nofollow", 8, &word)) != RD_OK || (st = jlist_push(r, words.list, word)) != RD_OK)
            return st;
    }
    if ((st = jval_str_view(r, "noopener", 8, &word)) != RD_OK || (st = jlist_push(r, words.list, word)) != RD_OK)
        return st;
    if ((st = jrun_alloc(r, words.list->n, sizeof(*keys), &keys)) != RD_OK) return st;
    memcpy(keys, words.list->items, words.list->n * sizeof(*keys));
    if ((st = jinja_sort(r, keys, words.list->items, words.list->n, false)) != RD_OK) return st;
    buf_puts(b, " rel=\"");
    for (size_t i = 0; st == RD_OK && i < words.list->n; i++) {
        const struct jstr *w = words.list->items[i].s, *before = i ? words.list->items[i - 1].s : NULL;
        if (before && before->n == w->n && !memcmp(before->s, w->s, w->n)) continue;
        if (i) buf_putc(b, ' ');
        st = put_escaped(r, b, words.list->items[i]);
    }
    buf_putc(b, '"');
    if (st == RD_OK && jval_truth(c->v[2])) {
        buf_puts(b, " target=\"");
        st = put_escaped(r, b, c->v[2]);
        buf_putc(b, '"');
    }
    return st;
}

/* urlize(trim_url_limit, nofollow, target, rel) */
static rd_status f_urlize(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct buf attrs = {.limit = LIMIT_TEMPLATE_WIDTH}, b = {.limit = LIMIT_TEMPLATE_OUTPUT};
    struct links l = {.trim = -1, .out = &b};
    struct jval text;
    rd_status st = jval_escape(r, in, &text);

    if (c->v[0].kind == J_NONE) c->v[0].kind = J_MISSING;
    if (st != RD_OK || (st = jarg_int(r, c->v[0], "urlize", -1, &l.trim)) != RD_OK) return st;
    st = link_attrs(r, c, &attrs);
    if (st == RD_OK && attrs.failed) st = jrun_limit(r, "the attributes of a link are too long");
    if (st == RD_OK) st = jrun_pay(r, text.s->n * 2);
    l.attrs = attrs.data;
    for (size_t i = 0, next, from; st == RD_OK && i < text.s->n; i = next) {
        for (from = next = i; next < text.s->n; from = next)
            if (jinja_is_space(jinja_next_cp(text.s->s, text.s->n, &next))) break;
        if (from == text.s->n) next = from;
        st = jrun_pay(r, 4 + attrs.n / 8);
        put_word(&l, text.s->s + i, from - i);
        buf_append(&b, text.s->s + from, next - from);
    }
    buf_deinit(&attrs);
    if ((st = jrun_take_buf(r, &b, st, out)) == RD_OK) out->s->safe = r->autoescape;
    return st;
}

const struct jfilter jinja_html_filters[] = {
    {"striptags", f_striptags, ""},
    {"xmlattr", f_xmlattr, "autospace"},
    {"urlencode", f_urlencode, ""},
    {"urlize", f_urlize, "trim_url_limit,nofollow,target,rel"},
    {NULL, NULL, NULL},
};
