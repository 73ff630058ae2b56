/* text/jinja/jinja_str_methods.c - the methods of Python's str. */
#include <string.h>
#include <utf8proc.h>
#include "base/limits.h"
#include "text/jinja/jinja_run.h"

static rd_status strip(struct jrun *r, struct jval in, struct jcall *c, int sides, struct jval *out)
{
    struct jstr *chars = NULL;
    rd_status st = RD_OK;

    if (c->v[0].kind != J_MISSING && c->v[0].kind != J_NONE) st = jarg_str(r, c->v[0], "strip", NULL, &chars);
    return st == RD_OK ? jinja_strip(r, in.s, chars, sides, out) : st;
}

static rd_status s_strip(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return strip(r, in, c, 3, out);
}
static rd_status s_lstrip(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return strip(r, in, c, 1, out);
}
static rd_status s_rstrip(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return strip(r, in, c, 2, out);
}
static rd_status s_upper(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jinja_case(r, in.s, CASE_UPPER, out);
}
static rd_status s_lower(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jinja_case(r, in.s, CASE_LOWER, out);
}
static rd_status s_casefold(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jinja_case(r, in.s, CASE_FOLD, out);
}
static rd_status s_title(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jinja_case(r, in.s, CASE_TITLE, out);
}
static rd_status s_swapcase(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jinja_case(r, in.s, CASE_SWAP, out);
}
static rd_status s_capitalize(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return jinja_case(r, in.s, CASE_CAPITALIZE, out);
}

/* s[from..end) onto a list */
static rd_status push_part(struct jrun *r, struct jlist *l, const struct jstr *s, size_t from, size_t end)
{
    struct jval part;
    rd_status st = jval_str_view(r, s->s + from, end - from, &part);

    return st == RD_OK ? jlist_push(r, l, part) : st;
}

/* split() without a separator: runs of white space */
static rd_status split_space(struct jrun *r, struct jstr *s, int64_t max, struct jlist *l)
{
    size_t i = 0, from, next;
    rd_status st = jrun_pay(r, s->n / 16);

    for (;;) {
        while (i < s->n) {
            next = i;
            if (!jinja_is_space(jinja_next_cp(s->s, s->n, &next))) break;
            i = next;
        }
        if (st != RD_OK || i >= s->n) return st;
        from = i;
        if (max >= 0 && (int64_t)l->n >= max) return push_part(r, l, s, from, s->n);
        for (next = i; i < s->n; i = next)
            if (jinja_is_space(jinja_next_cp(s->s, s->n, &next))) break;
        st = push_part(r, l, s, from, i);
    }
}

/* Last start of needle in s[0..end), or SIZE_MAX; also when no steps are left, which the next payment tells. */
static size_t find_last(struct jrun *r, const struct jstr *s, size_t end, const struct jstr *needle)
{
    size_t cost = 0;

    if (needle->n > end) return SIZE_MAX;
    for (size_t i = end - needle->n + 1; i-- > 0;) {
        size_t k = 0;
        while (k < needle->n && s->s[i + k] == needle->s[k]) k++;
        cost += k + 4;
        if (k < needle->n && cost < 4096) continue;
        if (jrun_pay(r, cost / 16) != RD_OK) return SIZE_MAX;
        cost = 0;
        if (k == needle->n) return i;
    }
    return SIZE_MAX;
}

static void reverse_items(struct jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jval swap = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = swap;
    }
}

/* rsplit() without a separator: words from the right, then what is left. */
static rd_status rsplit_space(struct jrun *r, struct jstr *s, int64_t max, struct jlist *l)
{
    struct jval all, rest;
    struct jstr head;
    rd_status st = jval_list(r, J_LIST, 0, &all);

    if (st != RD_OK || (st = split_space(r, s, -1, all.list)) != RD_OK) return st;
    for (size_t i = 0, skip = max >= 0 && (uint64_t)max < all.list->n ? all.list->n - (size_t)max : 0;
         st == RD_OK && i < all.list->n; i++) {
        const struct jstr *word = all.list->items[i].s;
        if (i + 1 < skip) continue;
        if (i + 1 == skip) {
            head = (struct jstr){.s = s->s, .n = (size_t)(word->s - s->s) + word->n};
            if ((st = jinja_strip(r, &head, NULL, 2, &rest)) == RD_OK) st = jlist_push(r, l, rest);
            continue;
        }
        st = jlist_push(r, l, all.list->items[i]);
    }
    return st;
}

static rd_status split(struct jrun *r, struct jval in, struct jcall *c, bool right, struct jval *out)
{
    struct jstr *s = in.s, *sep = NULL;
    int64_t max;
    size_t from = 0, end = s->n, at;
    rd_status st = jarg_int(r, c->v[1], "split", -1, &max);

    if (st != RD_OK || (st = jval_list(r, J_LIST, 0, out)) != RD_OK) return st;
    if (c->v[0].kind == J_MISSING || c->v[0].kind == J_NONE)
        return right ? rsplit_space(r, s, max, out->list) : split_space(r, s, max, out->list);
    if ((st = jarg_str(r, c->v[0], "split", NULL, &sep)) != RD_OK || (st = jrun_pay(r, s->n / 16)) != RD_OK) return st;
    if (sep->n == 0) return jrun_fail(r, "empty separator");
    while (st == RD_OK && (max < 0 || (int64_t)out->list->n < max)) {
        at = right ? find_last(r, s, end, sep) : jinja_find_bytes(s->s, s->n, from, sep->s, sep->n);
        if (at == SIZE_MAX) break;
        st = right ? push_part(r, out->list, s, at + sep->n, end) : push_part(r, out->list, s, from, at);
        if (right)
            end = at;
        else
            from = at + sep->n;
    }
    if (st == RD_OK) st = push_part(r, out->list, s, from, end);
    if (right) reverse_items(out->list);
    return st;
}

rd_status jinja_split(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return split(r, in, c, false, out);
}
static rd_status s_rsplit(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return split(r, in, c, true, out);
}

static bool ends_line(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

rd_status jinja_splitlines(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    bool keep = jval_truth(c->v[0]);
    struct jstr *s = in.s;
    size_t from = 0, next;
    rd_status st = jval_list(r, J_LIST, 0, out);

    for (size_t i = 0; st == RD_OK && i < s->n; i = next) {
        next = i;
        uint32_t cp = jinja_next_cp(s->s, s->n, &next);
        if (!ends_line(cp)) continue;
        if (cp == '\r' && next < s->n && s->s[next] == '\n') next++;
        st = push_part(r, out->list, s, from, keep ? next : i);
        from = next;
    }
    if (st == RD_OK && from < s->n) st = push_part(r, out->list, s, from, s->n);
    return st == RD_OK ? jrun_pay(r, s->n / 16) : st;
}

/* The part s[start:stop] that find, count, startswith look at, as bytes; false when start lies beyond the end. */
static rd_status window(struct jrun *r, struct jstr *s, struct jval start, struct jval stop, size_t *from, size_t *end,
                        bool *inside)
{
    int64_t n = (int64_t)jstr_n_chars(r, s), a, b;
    rd_status st;

    if (start.kind == J_NONE) start.kind = J_MISSING;
    if (stop.kind == J_NONE) stop.kind = J_MISSING;
    if ((st = jarg_int(r, start, "start", 0, &a)) != RD_OK || (st = jarg_int(r, stop, "end", n, &b)) != RD_OK)
        return st;
    if (a < 0) a = a + n < 0 ? 0 : a + n;
    if (b < 0) b = b + n < 0 ? 0 : b + n;
    if (b > n) b = n;
    *inside = a <= b;
    *from = *inside ? jstr_offset(r, s, (size_t)a) : s->n;
    *end = *inside ? jstr_offset(r, s, (size_t)b) : s->n;
    return RD_OK;
}

static rd_status affix(struct jrun *r, struct jval in, struct jcall *c, bool at_end, struct jval *out)
{
    struct jval *options = &c->v[0];
    size_t n = 1, from, end;
    bool inside, yes = false;
    rd_status st = window(r, in.s, c->v[1], c->v[2], &from, &end, &inside);

    if (st != RD_OK) return st;
    if (c->v[0].kind == J_TUPLE) {
        options = c->v[0].list->items;
        n = c->v[0].list->n;
    }
    for (size_t i = 0; i < n; i++) {
        struct jstr *p;
        if ((st = jarg_str(r, options[i], at_end ? "endswith" : "startswith", NULL, &p)) != RD_OK) return st;
        yes |= inside && p->n <= end - from && !memcmp(in.s->s + (at_end ? end - p->n : from), p->s, p->n);
    }
    *out = jval_bool(yes);
    return jrun_pay(r, n);
}

static rd_status s_startswith(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return affix(r, in, c, false, out);
}
static rd_status s_endswith(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return affix(r, in, c, true, out);
}

static rd_status s_replace(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *old, *new_text;
    int64_t count;
    rd_status st = jarg_str(r, c->v[0], "replace", NULL, &old);

    if (st != RD_OK || (st = jarg_str(r, c->v[1], "replace", NULL, &new_text)) != RD_OK) return st;
    if ((st = jarg_int(r, c->v[2], "replace", -1, &count)) != RD_OK) return st;
    return jinja_replace(r, in.s, old, new_text, count, out);
}

static rd_status search(struct jrun *r, struct jval in, struct jcall *c, bool last, bool must, struct jval *out)
{
    struct jstr *needle, head;
    size_t from, end, at;
    bool inside;
    rd_status st = jarg_str(r, c->v[0], "find", NULL, &needle);

    if (st != RD_OK || (st = window(r, in.s, c->v[1], c->v[2], &from, &end, &inside)) != RD_OK) return st;
    at = !inside ? SIZE_MAX
         : last  ? find_last(r, in.s, end, needle)
                 : jinja_find_bytes(in.s->s, end, from, needle->s, needle->n);
    if (at != SIZE_MAX && at < from) at = SIZE_MAX;
    if (at == SIZE_MAX && must) return jrun_fail(r, "substring not found");
    head = (struct jstr){.s = in.s->s, .n = at == SIZE_MAX ? 0 : at, .n_chars = SIZE_MAX};
    *out = jval_int(at == SIZE_MAX ? -1 : (int64_t)jstr_n_chars(r, &head));
    return jrun_pay(r, in.s->n / 16);
}

static rd_status s_find(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return search(r, in, c, false, false, out);
}
static rd_status s_rfind(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return search(r, in, c, true, false, out);
}
static rd_status s_index(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return search(r, in, c, false, true, out);
}
static rd_status s_rindex(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return search(r, in, c, true, true, out);
}

static rd_status s_count(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *needle;
    size_t from, end, at;
    bool inside;
    int64_t n = 0;
    rd_status st = jarg_str(r, c->v[0], "count", NULL, &needle);

    if (st != RD_OK || (st = window(r, in.s, c->v[1], c->v[2], &from, &end, &inside)) != RD_OK) return st;
    if (needle->n == 0) {
        struct jstr part = {.s = in.s->s + from, .n = end - from, .n_chars = SIZE_MAX};
        *out = jval_int(inside ? (int64_t)jstr_n_chars(r, &part) + 1 : 0);
        return RD_OK;
    }
    while (inside && (at = jinja_find_bytes(in.s->s, end, from, needle->s, needle->n)) != SIZE_MAX) {
        n++;
        from = at + needle->n;
    }
    *out = jval_int(n);
    return jrun_pay(r, in.s->n / 16 + (uint64_t)n);
}

static rd_status s_join(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jval *items;
    struct buf b;
    size_t n;
    rd_status st = jval_iterate(r, c->v[0], &items, &n);

    buf_init(&b);
    b.limit = LIMIT_TEMPLATE_OUTPUT;
    for (size_t i = 0; st == RD_OK && i < n; i++) {
        if (items[i].kind != J_STR) {
            st = jrun_fail(r, "sequence item %zu: expected str instance, %s found", i, jval_type_name(items[i]));
            break;
        }
        if (i) buf_append(&b, in.s->s, in.s->n);
        buf_append(&b, items[i].s->s, items[i].s->n);
        st = jrun_pay(r, (items[i].s->n + in.s->n) / 16 + 1);
    }
    return jrun_take_buf(r, &b, st, out);
}

enum char_class {
    CLASS_DIGIT = 1,
    CLASS_ALPHA = 2,
    CLASS_SPACE = 4,
    CLASS_LOWER = 8,
    CLASS_UPPER = 16,
    CLASS_ASCII = 32,
    CLASS_SCRIPT = 64,  /* superscript and circled digits, too */
    CLASS_NUMERIC = 128 /* fractions and letters that stand for numbers, too */
};

/* Digits that are no decimal digits: str.isdigit() takes them. */
static bool is_script_digit(uint32_t cp)
{
    return cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) ||
           (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468) || (cp >= 0x2474 && cp <= 0x247C) ||
           (cp >= 0x2488 && cp <= 0x2490) || cp == 0x24EA || (cp >= 0x24F5 && cp <= 0x24FD) || cp == 0x24FF ||
           (cp >= 0x2776 && cp <= 0x277E) || (cp >= 0x2780 && cp <= 0x2788) || (cp >= 0x278A && cp <= 0x2792);
}

static bool is_han_number(uint32_t cp)
{
    static const uint16_t numbers[] = {0x4E00, 0x4E03, 0x4E07, 0x4E09, 0x4E5D, 0x4E8C, 0x4E94, 0x5104,
                                       0x5146, 0x516B, 0x516D, 0x5341, 0x5343, 0x56DB, 0x767E, 0x96F6};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i] == cp) return true;
    return false;
}

static int class_of(uint32_t cp)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    int c = (cp < 0x80 ? CLASS_ASCII : 0) | (jinja_is_space(cp) ? CLASS_SPACE : 0);

    if (k == UTF8PROC_CATEGORY_ND) c |= CLASS_DIGIT | CLASS_SCRIPT | CLASS_NUMERIC;
    if (k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO || is_han_number(cp)) c |= CLASS_NUMERIC;
    if (is_script_digit(cp)) c |= CLASS_SCRIPT;
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) c |= CLASS_ALPHA;
    if (k == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA) c |= CLASS_LOWER;
    if (k == UTF8PROC_CATEGORY_LU) c |= CLASS_UPPER;
    if (k == UTF8PROC_CATEGORY_LT) c |= CLASS_UPPER | CLASS_LOWER; /* title case is neither: both refuse it */
    return c;
}

/* Every character is of one of the classes and none of the refused ones; some is of `need`. */
static rd_status all_of(struct jrun *r, struct jstr *s, int allowed, int refused, int need, struct jval *out)
{
    bool all = true, some = false;

    for (size_t i = 0; i < s->n && all;) {
        int k = class_of(jinja_next_cp(s->s, s->n, &i));
        all = (!allowed || (k & allowed)) && !(k & refused);
        some |= (k & need) != 0;
    }
    *out = jval_bool(all && some);
    return jrun_pay(r, s->n / 4);
}

static rd_status s_isdecimal(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return all_of(r, in.s, CLASS_DIGIT, 0, CLASS_DIGIT, out);
}
static rd_status s_isdigit(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return all_of(r, in.s, CLASS_SCRIPT, 0, CLASS_SCRIPT, out);
}
static rd_status s_isnumeric(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return all_of(r, in.s, CLASS_NUMERIC, 0, CLASS_NUMERIC, out);
}
static rd_status s_isalpha(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return all_of(r, in.s, CLASS_ALPHA, 0, CLASS_ALPHA, out);
}
static rd_status s_isalnum(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return all_of(r, in.s, CLASS_ALPHA | CLASS_NUMERIC, 0, CLASS_ALPHA | CLASS_NUMERIC, out);
}
static rd_status s_isspace(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return all_of(r, in.s, CLASS_SPACE, 0, CLASS_SPACE, out);
}
static rd_status s_islower(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return all_of(r, in.s, 0, CLASS_UPPER, CLASS_LOWER, out);
}
static rd_status s_isupper(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return all_of(r, in.s, 0, CLASS_LOWER, CLASS_UPPER, out);
}
static rd_status s_isascii(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    if (in.s->n) return all_of(r, in.s, CLASS_ASCII, 0, CLASS_ASCII, out);
    *out = jval_bool(true);
    return RD_OK;
}

/* Words of upper case letters followed by lower case ones, and at least one. */
static rd_status s_istitle(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    bool inside = false, some = false, good = true;

    for (size_t i = 0; i < in.s->n && good;) {
        int k = class_of(jinja_next_cp(in.s->s, in.s->n, &i));
        bool upper = (k & CLASS_UPPER) != 0, lower = (k & CLASS_LOWER) && !upper;
        good = !(upper && inside) && !(lower && !inside);
        inside = upper || lower;
        some |= inside;
    }
    *out = jval_bool(good && some);
    return jrun_pay(r, in.s->n / 4);
}

static rd_status s_isprintable(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    bool all = true;

    for (size_t i = 0; i < in.s->n && all;) all = jinja_is_printable(jinja_next_cp(in.s->s, in.s->n, &i));
    *out = jval_bool(all);
    return jrun_pay(r, in.s->n / 4);
}

static rd_status s_isidentifier(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    bool all = in.s->n > 0;

    for (size_t i = 0; i < in.s->n && all;) {
        bool first = i == 0;
        uint32_t cp = jinja_next_cp(in.s->s, in.s->n, &i);
        int k = class_of(cp);
        all = cp == '_' || (k & CLASS_ALPHA) || (!first && (k & CLASS_DIGIT));
    }
    *out = jval_bool(all);
    return jrun_pay(r, in.s->n / 4);
}

/* Tabs to blanks up to the next multiple of tabsize columns. */
static rd_status s_expandtabs(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct buf b = {.limit = LIMIT_TEMPLATE_OUTPUT};
    int64_t size, column = 0;
    rd_status st = jarg_int(r, c->v[0], "expandtabs", 8, &size);

    if (st == RD_OK && size > (int64_t)LIMIT_TEMPLATE_WIDTH) return jrun_limit(r, "a tab is too wide");
    for (size_t i = 0, from = 0; st == RD_OK && i < in.s->n; from = i) {
        uint32_t cp = jinja_next_cp(in.s->s, in.s->n, &i);
        if (cp == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            jbuf_fill(&b, ' ', n);
            column += n;
            st = jrun_pay(r, (uint64_t)n / 4 + 1);
            continue;
        }
        buf_append(&b, in.s->s + from, i - from);
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
    }
    if (st == RD_OK) st = jrun_pay(r, in.s->n / 4);
    return jrun_take_buf(r, &b, st, out);
}

/* Padding to a width: left blanks, then the text, then right ones. */
static rd_status pad(struct jrun *r, struct jval in, struct jcall *c, int side, struct jval *out)
{
    struct jstr *fill;
    struct buf b;
    int64_t width, left, total, n = (int64_t)jstr_n_chars(r, in.s);
    rd_status st = jarg_int(r, c->v[0], "width", 0, &width);

    if (st != RD_OK || (st = jarg_str(r, c->v[1], "fillchar", " ", &fill)) != RD_OK) return st;
    if (jstr_n_chars(r, fill) != 1) return jrun_fail(r, "the fill character must be exactly one character long");
    if (width <= n) {
        *out = in;
        return RD_OK;
    }
    if (width > (int64_t)LIMIT_TEMPLATE_BYTES) return jrun_limit(r, "the padding is too wide");
    if ((st = jrun_pay(r, (uint64_t)width / 4)) != RD_OK) return st;
    total = width - n;
    left = side < 0 ? 0 : side > 0 ? total : total / 2 + (total & width & 1); /* center: as CPython rounds */
    buf_init(&b);
    for (int64_t i = 0; i < left; i++) buf_append(&b, fill->s, fill->n);
    buf_append(&b, in.s->s, in.s->n);
    for (int64_t i = left; i < total; i++) buf_append(&b, fill->s, fill->n);
    return jrun_take_buf(r, &b, RD_OK, out);
}

static rd_status s_ljust(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return pad(r, in, c, -1, out);
}
static rd_status s_rjust(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return pad(r, in, c, 1, out);
}
static rd_status s_center(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return pad(r, in, c, 0, out);
}

static rd_status s_zfill(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    bool sign = in.s->n && (in.s->s[0] == '-' || in.s->s[0] == '+');
    struct jval digits, zero, head, width = c->v[0];
    rd_status st;

    if ((st = jval_str_view(r, in.s->s + sign, in.s->n - sign, &digits)) != RD_OK ||
        (st = jval_str_view(r, "0", 1, &zero)) != RD_OK)
        return st;
    if ((st = jval_str_view(r, in.s->s, sign, &head)) != RD_OK) return st;
    if (jval_is_int(width) && jval_to_int(width) > INT64_MIN) width = jval_int(jval_to_int(width) - sign);
    c->v[0] = width;
    c->v[1] = zero;
    if ((st = pad(r, digits, c, 1, &digits)) != RD_OK) return st;
    return jinja_binary(r, T_ADD, head, digits, out);
}

static rd_status s_removeprefix(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *p;
    rd_status st = jarg_str(r, c->v[0], "removeprefix", NULL, &p);
    bool has = st == RD_OK && p->n <= in.s->n && !memcmp(in.s->s, p->s, p->n);

    return st == RD_OK ? jval_str_view(r, in.s->s + (has ? p->n : 0), in.s->n - (has ? p->n : 0), out) : st;
}

static rd_status s_removesuffix(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    struct jstr *p;
    rd_status st = jarg_str(r, c->v[0], "removesuffix", NULL, &p);
    bool has = st == RD_OK && p->n <= in.s->n && !memcmp(in.s->s + in.s->n - p->n, p->s, p->n);

    return st == RD_OK ? jval_str_view(r, in.s->s, in.s->n - (has ? p->n : 0), out) : st;
}

static rd_status partition(struct jrun *r, struct jval in, struct jcall *c, bool last, struct jval *out)
{
    struct jstr *s = in.s, *sep;
    size_t at, end;
    rd_status st = jarg_str(r, c->v[0], "partition", NULL, &sep);

    if (st != RD_OK || (st = jval_list(r, J_TUPLE, 3, out)) != RD_OK) return st;
    if (sep->n == 0) return jrun_fail(r, "empty separator");
    at = last ? find_last(r, s, s->n, sep) : jinja_find_bytes(s->s, s->n, 0, sep->s, sep->n);
    end = at == SIZE_MAX ? (last ? 0 : s->n) : at + sep->n;
    if (at == SIZE_MAX) at = end;
    if ((st = push_part(r, out->list, s, 0, at)) != RD_OK || (st = push_part(r, out->list, s, at, end)) != RD_OK)
        return st;
    if ((st = jrun_pay(r, s->n / 16)) != RD_OK) return st;
    return push_part(r, out->list, s, end, s->n);
}

static rd_status s_partition(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return partition(r, in, c, false, out);
}
static rd_status s_rpartition(struct jrun *r, struct jval in, struct jcall *c, struct jval *out)
{
    return partition(r, in, c, true, out);
}

const struct jfilter jinja_str_methods[] = {
    {"strip", s_strip, "chars"},
    {"lstrip", s_lstrip, "chars"},
    {"rstrip", s_rstrip, "chars"},
    {"upper", s_upper, ""},
    {"lower", s_lower, ""},
    {"casefold", s_casefold, ""},
    {"title", s_title, ""},
    {"capitalize", s_capitalize, ""},
    {"swapcase", s_swapcase, ""},
    {"split", jinja_split, "sep,maxsplit"},
    {"rsplit", s_rsplit, "sep,maxsplit"},
    {"splitlines", jinja_splitlines, "keepends"},
    {"startswith", s_startswith, "prefix,start,end"},
    {"endswith", s_endswith, "suffix,start,end"},
    {"replace", s_replace, "old,new,count"},
    {"find", s_find, "sub,start,end"},
    {"rfind", s_rfind, "sub,start,end"},
    {"index", s_index, "sub,start,end"},
    {"rindex", s_rindex, "sub,start,end"},
    {"count", s_count, "sub,start,end"},
    {"join", s_join, "iterable"},
    {"format", jinja_format, "*"},
    {"format_map", jinja_format_map, "mapping"},
    {"isdigit", s_isdigit, ""},
    {"isdecimal", s_isdecimal, ""},
    {"isnumeric", s_isnumeric, ""},
    {"isalpha", s_isalpha, ""},
    {"isalnum", s_isalnum, ""},
    {"isspace", s_isspace, ""},
    {"islower", s_islower, ""},
    {"isupper", s_isupper, ""},
    {"istitle", s_istitle, ""},
    {"isprintable", s_isprintable, ""},
    {"isidentifier", s_isidentifier, ""},
    {"expandtabs", s_expandtabs, "tabsize"},
    {"isascii", s_isascii, ""},
    {"ljust", s_ljust, "width,fillchar"},
    {"rjust", s_rjust, "width,fillchar"},
    {"center", s_center, "width,fillchar"},
    {"zfill", s_zfill, "width"},
    {"removeprefix", s_removeprefix, "prefix"},
    {"removesuffix", s_removesuffix, "suffix"},
    {"partition", s_partition, "sep"},
    {"rpartition", s_rpartition, "sep"},
    {NULL, NULL, NULL},
};
