/* text/grammar/char_set.c - ranges of code points, their union and complement. */
#include "text/grammar/char_set.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "text/char_class.h"
#include "text/grammar/node_list.h"

#define LAST_CHAR 0x10ffffu

static void range_add(struct grammar_builder *b, struct char_ranges *r, uint32_t low, uint32_t high)
{
    if (low > high) return;
    if (!mem_grow((void **)&r->v, &r->cap, r->n + 1, sizeof(*r->v))) {
        grammar_fail(b, RD_E_NOMEM, "out of memory");
        return;
    }
    r->v[r->n++] = (struct grammar_range){low, high};
}

static void ranges_deinit(struct char_ranges *r)
{
    mem_free(r->v);
    memset(r, 0, sizeof(*r));
}

void char_set_deinit(struct char_set *s)
{
    ranges_deinit(&s->sure);
    ranges_deinit(&s->most);
}

static void add_plain(struct grammar_builder *b, struct char_ranges *r, uint32_t low, uint32_t high)
{
    if (low < 0xd800 && high > 0xdfff) {
        range_add(b, r, low, 0xd7ff);
        range_add(b, r, 0xe000, high);
    } else {
        if (low >= 0xd800 && low <= 0xdfff) low = 0xe000;
        if (high >= 0xd800 && high <= 0xdfff) high = 0xd7ff;
        range_add(b, r, low, high);
    }
}

void char_set_add(struct grammar_builder *b, struct char_set *s, uint32_t low, uint32_t high)
{
    add_plain(b, &s->sure, low, high);
    add_plain(b, &s->most, low, high);
}

static int by_low(const void *a, const void *b)
{
    const struct grammar_range *x = a, *y = b;

    return x->low < y->low ? -1 : x->low > y->low;
}

void char_ranges_tidy(struct char_ranges *r)
{
    size_t n = 0;

    if (r->n == 0) return;
    qsort(r->v, r->n, sizeof(*r->v), by_low);
    for (size_t i = 1; i < r->n; i++) {
        if (r->v[i].low <= r->v[n].high + 1) {
            if (r->v[i].high > r->v[n].high) r->v[n].high = r->v[i].high;
        } else {
            r->v[++n] = r->v[i];
        }
    }
    r->n = n + 1;
}

void char_ranges_negate(struct grammar_builder *b, struct char_ranges *r)
{
    struct char_ranges other = {0};
    uint32_t next = 0;

    char_ranges_tidy(r);
    for (size_t i = 0; i < r->n; i++) {
        if (r->v[i].low > next) add_plain(b, &other, next, r->v[i].low - 1);
        next = r->v[i].high + 1;
    }
    if (next <= LAST_CHAR) add_plain(b, &other, next, LAST_CHAR);
    ranges_deinit(r);
    *r = other;
    char_ranges_tidy(r);
}

bool char_ranges_have(const struct char_ranges *r, uint32_t c)
{
    for (size_t i = 0; i < r->n; i++)
        if (c >= r->v[i].low && c <= r->v[i].high) return true;
    return false;
}

void char_set_negate(struct grammar_builder *b, struct char_set *s)
{
    struct char_ranges sure = s->sure;

    char_ranges_negate(b, &s->most);
    char_ranges_negate(b, &sure);
    s->sure = s->most;
    s->most = sure;
}

static void add_categories(struct grammar_builder *b, struct char_ranges *r, uint32_t categories)
{
    uint32_t first = LAST_CHAR + 1;

    for (uint32_t c = 0; c <= LAST_CHAR; c++) {
        bool in = char_in(c, categories);

        if (in && first > LAST_CHAR) first = c;
        if (!in && first <= LAST_CHAR) {
            add_plain(b, r, first, c - 1);
            first = LAST_CHAR + 1;
        }
    }
    if (first <= LAST_CHAR) add_plain(b, r, first, LAST_CHAR);
}

void char_set_add_categories(struct grammar_builder *b, struct char_set *s, uint32_t categories, bool negated)
{
    uint32_t wanted = negated ? ~categories : categories;

    add_categories(b, &s->sure, wanted);
    add_categories(b, &s->most, wanted);
}

/* White space beyond ASCII: of Unicode, of ECMA-262 and of Python together. */
static const struct grammar_range wide_spaces[] = {
    {0x1c, 0x1f},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x180e, 0x180e}, {0x2000, 0x200b},
    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x2060}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};

void char_set_add_escape(struct grammar_builder *b, struct char_set *s, char letter)
{
    struct char_set one = {0};

    switch (letter | 0x20) {
    case 'd':
        char_set_add(b, &one, '0', '9');
        add_categories(b, &one.most, (uint32_t)1 << CHAR_ND);
        break;
    case 'w':
        char_set_add(b, &one, '0', '9');
        char_set_add(b, &one, 'A', 'Z');
        char_set_add(b, &one, '_', '_');
        char_set_add(b, &one, 'a', 'z');
        add_categories(b, &one.most, CHARS_LETTER | CHARS_NUMBER | CHARS_MARK | (uint32_t)1 << CHAR_PC);
        break;
    default:
        char_set_add(b, &one, 9, 13);
        char_set_add(b, &one, ' ', ' ');
        for (size_t i = 0; i < sizeof(wide_spaces) / sizeof(*wide_spaces); i++)
            range_add(b, &one.most, wide_spaces[i].low, wide_spaces[i].high);
        break;
    }
    if (!(letter & 0x20)) char_set_negate(b, &one);
    for (size_t i = 0; i < one.sure.n; i++) range_add(b, &s->sure, one.sure.v[i].low, one.sure.v[i].high);
    for (size_t i = 0; i < one.most.n; i++) range_add(b, &s->most, one.most.v[i].low, one.most.v[i].high);
    char_set_deinit(&one);
}

static void fold(struct grammar_builder *b, struct char_ranges *r)
{
    size_t n = r->n;

    for (size_t i = 0; i < n; i++) {
        uint32_t low = r->v[i].low, high = r->v[i].high;

        for (uint32_t c = low; c <= high && c < 0x80; c++) {
            if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) range_add(b, r, c ^ 0x20, c ^ 0x20);
        }
    }
}

void char_set_ignore_case(struct grammar_builder *b, struct char_set *s)
{
    bool beyond = false;

    fold(b, &s->sure);
    fold(b, &s->most);
    for (size_t i = 0; i < s->most.n; i++) beyond |= s->most.v[i].high >= 0x80;
    /* The Kelvin sign and the long s are a k and an s; of other letters only their own spelling is sure, and no letter
     * beyond ASCII is surely left out. */
    range_add(b, &s->most, 0x17f, 0x17f);
    range_add(b, &s->most, 0x212a, 0x212a);
    range_add(b, &s->most, 0x130, 0x131);
    if (beyond) add_categories(b, &s->most, CHARS_LETTER & ~((uint32_t)1 << CHAR_LO));
}

int json_escaped_char(uint32_t c, char out[8])
{
    static const char named[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
    const char *at = c && c < 0x80 ? strchr(named, (int)c) : NULL;

    if (at) return snprintf(out, 8, "\\%c", letters[at - named]);
    return c < 0x20 ? snprintf(out, 8, "\\u%04x", (unsigned)c) : 0;
}

grammar_node char_ranges_node(struct grammar_builder *b, struct char_ranges *r, bool json)
{
    struct char_ranges raw = {0};
    struct node_list parts = {0};
    char escaped[8];

    char_ranges_tidy(r);
    if (!json) return grammar_class(b, r->v, (uint32_t)r->n, false);
    for (size_t i = 0; i < r->n; i++) {
        uint32_t from = r->v[i].low;

        for (uint32_t c = from; c <= r->v[i].high && c <= '\\'; c++) {
            int n = json_escaped_char(c, escaped);

            if (n == 0) continue;
            node_list_add(b, &parts, grammar_text(b, escaped, (size_t)n));
            if (c > from) range_add(b, &raw, from, c - 1);
            from = c + 1;
        }
        range_add(b, &raw, from, r->v[i].high);
    }
    if (raw.n) node_list_add(b, &parts, grammar_class(b, raw.v, (uint32_t)raw.n, false));
    ranges_deinit(&raw);
    return node_list_alt(b, &parts);
}
