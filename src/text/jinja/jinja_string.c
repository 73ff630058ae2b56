/* text/jinja/jinja_string.c - strings as Python sees them: case, white space, searching, replacing, and % formatting. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include "base/limits.h"
#include "base/utf8.h"
#include "text/jinja/jinja_case.h"
#include "text/jinja/jinja_run.h"

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
    if (cp < 0x80) return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static const struct jcase_row *find_special(uint32_t cp)
{
    size_t low = 0, high = sizeof(jcase_rows) / sizeof(jcase_rows[0]);

    while (low < high) {
        size_t mid = (low + high) / 2;
        if (jcase_rows[mid].cp == cp) return &jcase_rows[mid];
        if (jcase_rows[mid].cp < cp)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* Marks and signs that a word's case looks through. */
static bool is_case_ignorable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x387 || cp == 0x2018 || cp == 0x2019 ||
               cp == 0x2024 || cp == 0x2027;
    }
}

/* A capital sigma that ends at byte `end` of s is the last letter of a word: some letter before it, none behind. */
static bool is_final_sigma(const struct jstr *s, size_t from, size_t end, size_t *looked_at)
{
    bool before = false;
    uint32_t cp;

    for (size_t i = from, next; i > 0; i = next) {
        for (next = i - 1; next > 0 && ((unsigned char)s->s[next] & 0xC0) == 0x80; next--) {}
        size_t at = next;
        cp = jinja_next_cp(s->s, s->n, &at);
        ++*looked_at;
        if (is_case_ignorable(cp)) continue;
        before = is_cased(cp);
        break;
    }
    while (before && end < s->n) {
        cp = jinja_next_cp(s->s, s->n, &end);
        ++*looked_at;
        if (is_case_ignorable(cp)) continue;
        return !is_cased(cp);
    }
    return before;
}

static void put_case(struct buf *b, uint32_t cp, enum jcase how)
{
    char text[UTF8_MAX_BYTES];
    utf8proc_int32_t c = (utf8proc_int32_t)cp;
    bool upper = how == CASE_UPPER || how == CASE_TITLE;
    const struct jcase_row *row = cp < 0xDF || how == CASE_LOWER || how == CASE_FOLD ? NULL : find_special(cp);

    if (cp < 0x80) {
        if (upper ? cp >= 'a' && cp <= 'z' : cp >= 'A' && cp <= 'Z') cp ^= 32;
        buf_putc(b, (char)cp);
        return;
    }
    if (row) {
        buf_puts(b, how == CASE_UPPER ? row->upper : row->title);
        return;
    }
    if (how == CASE_FOLD || (how == CASE_LOWER && cp == 0x130)) {
        utf8proc_int32_t folded[4];
        int boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char(c, folded, 4, UTF8PROC_CASEFOLD, &boundary);
        for (utf8proc_ssize_t i = 0; i < n && i < 4; i++)
            buf_append(b, text, (size_t)utf8_encode((uint32_t)folded[i], text));
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
    size_t looked_at = 0;
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
        if (cp == 0x3A3 && how != CASE_UPPER && how != CASE_FOLD && (how == CASE_LOWER || inside) &&
            is_final_sigma(s, from, i, &looked_at)) {
            buf_puts(&b, "\xCF\x82");
            inside = true;
            continue;
        }
        if (looked_at > 64) {
            st = jrun_pay(r, looked_at);
            looked_at = 0;
        }
        if (how == CASE_CAPITALIZE || how == CASE_TITLE) one = inside ? CASE_LOWER : CASE_TITLE;
        if (how == CASE_SWAP)
            one = utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LU ? CASE_LOWER : CASE_UPPER;
        inside = how == CASE_TITLE ? is_cased(cp) : true;
        put_case(&b, cp, one);
    }
    if ((st = jrun_take_buf(r, &b, st, out)) == RD_OK) out->s->safe = s->safe;
    return st;
}

bool jinja_is_word(uint32_t cp)
{
    utf8proc_category_t k;

    if (cp < 0x80) return cp == '_' || (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z');
    k = utf8proc_category((utf8proc_int32_t)cp);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

int jinja_digit(uint32_t cp)
{
    int n = 0;

    if (cp < 0x80) return cp >= '0' && cp <= '9' ? (int)cp - '0' : -1;
    if (utf8proc_category((utf8proc_int32_t)cp) != UTF8PROC_CATEGORY_ND) return -1;
    while (n < 100 && utf8proc_category((utf8proc_int32_t)cp - n - 1) == UTF8PROC_CATEGORY_ND) n++;
    return n % 10; /* decimal digits stand in runs of ten, from 0 on */
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
    if ((st = jval_str_view(r, s->s + from, end - from, out)) == RD_OK) out->s->safe = s->safe;
    return st;
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
        st = b.failed ? RD_OK : jrun_pay(r, new_text->n / 16 + 1);
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
