/* text/unicode_norm.c - decompose, order, compose. */
#include "text/unicode_norm.h"
#include <string.h>
#include <utf8proc.h>
#include "base/mem.h"
#include "base/utf8.h"
#include "text/char_class.h"

#define MAX_DECOMPOSED 32     /* code points of one character: 18 in Unicode 15 */
#define FIRST_MARK     0x300u /* below it nothing changes or combines in NFC */

struct points {
    int32_t *cps;
    size_t n, cap;
};

static bool is_jamo_tail(uint32_t cp)
{
    return (cp >= 0x1161 && cp <= 0x1175) || (cp >= 0x11a8 && cp <= 0x11c2);
}

static utf8proc_option_t options_of(enum unicode_form form)
{
    return form == FORM_NFKC || form == FORM_NFKD ? UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE;
}

/* 0 for marks that are younger than the tables of the hub's tokenizers. */
static int combining_class(uint32_t cp)
{
    return char_class_bits(cp) & CHAR_FLAG_MARK ? utf8proc_get_property((utf8proc_int32_t)cp)->combining_class : 0;
}

/* Younger than those tables: decomposes into itself. */
static bool is_young(uint32_t cp)
{
    return cp == 0x32ff || (cp >= 0xa7f2 && cp <= 0xa7f4) || cp == 0xab69 || (cp >= 0x10780 && cp <= 0x107bf) ||
           cp == 0x11938 || cp == 0x1f16c || (cp >= 0x1e030 && cp <= 0x1e06f) || (cp >= 0x1fbf0 && cp <= 0x1fbf9);
}

/* Code points of one character taken apart, in out (room for MAX_DECOMPOSED). */
static size_t take_apart(enum unicode_form form, uint32_t cp, int32_t *out)
{
    int boundary = 0;
    utf8proc_ssize_t n = 0;

    if (!is_young(cp))
        n = utf8proc_decompose_char((utf8proc_int32_t)cp, out, MAX_DECOMPOSED, options_of(form), &boundary);
    if (n >= 1 && n <= MAX_DECOMPOSED) return (size_t)n;
    *out = (int32_t)cp;
    return 1;
}

/* Stays as it is in this form whatever stands beside it. May say no for one that would. */
static bool is_inert(enum unicode_form form, uint32_t cp)
{
    const utf8proc_property_t *p;
    bool composes = form == FORM_NFC || form == FORM_NFKC;
    int32_t alone[MAX_DECOMPOSED];
    size_t n;

    if (cp < 0x80 || (form == FORM_NFC && cp < FIRST_MARK)) return true;
    p = utf8proc_get_property((utf8proc_int32_t)cp);
    if (combining_class(cp)) return false;
    if (composes && (is_jamo_tail(cp) || (p->comb_index != UINT16_MAX && p->comb_index >= 0x8000))) return false;
    n = take_apart(form, cp, alone);
    if (n == 1) return (uint32_t)alone[0] == cp;
    if (!composes) return false;
    return utf8proc_normalize_utf32(alone, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1 &&
           (uint32_t)alone[0] == cp;
}

bool unicode_starts_clean(const char *s, size_t n)
{
    uint32_t cp;

    return n > 0 && utf8_decode(s, n, &cp) > 0 && is_inert(FORM_NFC, cp);
}

/* Bytes at the front that are in the form and stay so: up to the last inert character before one that is not. */
static size_t inert_prefix(enum unicode_form form, const char *s, size_t n)
{
    size_t at = 0, last = 0;
    uint32_t seen[4] = {0}; /* texts repeat few characters: the newest answers are kept */
    unsigned next = 0;

    while (at < n) {
        uint32_t cp;

        if (!(s[at] & 0x80)) {
            last = at++;
            continue;
        }
        last = s[at] < '\xc0' ? last : at;
        at += (size_t)utf8_decode(s + at, n - at, &cp);
        if (cp == seen[0] || cp == seen[1] || cp == seen[2] || cp == seen[3]) continue;
        if (!is_inert(form, cp)) {
            /* what stands before may combine with it */
            return last > 0 ? last - 1 - utf8_unfinished_tail(s, last - 1) : 0;
        }
        seen[next++ & 3] = cp;
    }
    return n;
}

static bool decompose(enum unicode_form form, const char *s, size_t n, struct points *out)
{
    for (size_t at = 0; at < n;) {
        uint32_t cp;

        at += (size_t)utf8_decode(s + at, n - at, &cp);
        if (out->cap < out->n + MAX_DECOMPOSED &&
            !mem_grow((void **)&out->cps, &out->cap, out->n + MAX_DECOMPOSED, sizeof(*out->cps)))
            return false;
        out->n += take_apart(form, cp, out->cps + out->n);
    }
    return true;
}

/* Sorts a run of marks by combining class, equal ones in their order. scratch: room for n. */
static void sort_marks(int32_t *cps, size_t n, int32_t *scratch)
{
    size_t starts[257] = {0};

    for (size_t i = 0; i < n; i++) starts[combining_class((uint32_t)cps[i]) + 1]++;
    for (unsigned c = 0; c < 256; c++) starts[c + 1] += starts[c];
    for (size_t i = 0; i < n; i++) scratch[starts[combining_class((uint32_t)cps[i])]++] = cps[i];
    memcpy(cps, scratch, n * sizeof(*cps));
}

static void insert_marks(int32_t *cps, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        int32_t cp = cps[i];
        size_t at = i;

        for (; at && combining_class((uint32_t)cps[at - 1]) > combining_class((uint32_t)cp); at--)
            cps[at] = cps[at - 1];
        cps[at] = cp;
    }
}

static bool order_marks(struct points *p)
{
    int32_t *scratch = NULL;
    size_t scratch_cap = 0;

    for (size_t at = 0; at < p->n;) {
        size_t end = at;

        while (end < p->n && combining_class((uint32_t)p->cps[end])) end++;
        if (end - at > 1 && end - at <= 16) {
            insert_marks(p->cps + at, end - at);
        } else if (end - at > 16) {
            if (end - at > scratch_cap && !mem_grow((void **)&scratch, &scratch_cap, end - at, sizeof(*scratch)))
                return false;
            sort_marks(p->cps + at, end - at, scratch);
        }
        at = end + 1;
    }
    mem_free(scratch);
    return true;
}

/* Composes what stands between younger marks, which nothing combines across (see combining_class). */
static void compose(struct points *p)
{
    size_t kept = 0;

    for (size_t at = 0; at < p->n;) {
        size_t end = at;
        utf8proc_ssize_t n;

        while (end < p->n &&
               (combining_class((uint32_t)p->cps[end]) == utf8proc_get_property(p->cps[end])->combining_class))
            end++;
        n = end > at ? utf8proc_normalize_utf32(p->cps + at, (utf8proc_ssize_t)(end - at),
                                                UTF8PROC_COMPOSE | UTF8PROC_STABLE)
                     : 0;
        if (n < 0) n = (utf8proc_ssize_t)(end - at);
        memmove(p->cps + kept, p->cps + at, (size_t)n * sizeof(*p->cps));
        kept += (size_t)n;
        if (end < p->n) p->cps[kept++] = p->cps[end++];
        at = end;
    }
    p->n = kept;
}

rd_status unicode_normalize(enum unicode_form form, const char *s, size_t n, struct buf *out, bool *changed)
{
    size_t keep = inert_prefix(form, s, n);
    struct points p = {0};
    char utf8[UTF8_MAX_BYTES];

    *changed = keep < n;
    if (keep == n) return RD_OK;
    buf_clear(out);
    buf_append(out, s, keep);
    if (!decompose(form, s + keep, n - keep, &p) || !order_marks(&p)) {
        mem_free(p.cps);
        return RD_E_NOMEM;
    }
    if (form == FORM_NFC || form == FORM_NFKC) compose(&p);
    for (size_t i = 0; i < p.n; i++) buf_append(out, utf8, (size_t)utf8_encode((uint32_t)p.cps[i], utf8));
    mem_free(p.cps);
    return out->failed ? RD_E_NOMEM : RD_OK;
}

size_t unicode_lower(uint32_t cp, char out[8])
{
    int n;

    if (cp < 0x80) {
        out[0] = (char)(cp - 'A' < 26 ? cp + 0x20 : cp);
        return 1;
    }
    if (cp == 0x130) {
        memcpy(out, "i\xcc\x87", 3);
        return 3;
    }
    n = utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), out);
    return (size_t)n;
}
