/* text/grammar/regex_parse.c - from text to tree, by descent with a bounded depth. */
#include "text/grammar/regex_parse.h"
#include <string.h>
#include "base/mem.h"
#include "base/utf8.h"
#include "text/char_class.h"

void regex_fail(struct re_tree *t, rd_status st, const char *what)
{
    if (!t->failed) grammar_fail(t->b, st, "%sregex, offset %zu: %s", t->where, t->at, what);
    t->failed = true;
}

static void wrong(struct re_tree *t, const char *what)
{
    regex_fail(t, RD_E_INVALID, what);
}

static void unknown(struct re_tree *t, const char *what)
{
    regex_fail(t, RD_E_UNSUPPORTED, what);
}

uint32_t regex_add(struct re_tree *t, enum re_type type)
{
    if (t->failed) return 0;
    if (t->n_nodes > REGEX_MAX_NODES) {
        wrong(t, "too long");
        return 0;
    }
    if (!mem_grow((void **)&t->nodes, &t->cap, t->n_nodes + 2, sizeof(*t->nodes))) {
        regex_fail(t, RD_E_NOMEM, "out of memory");
        return 0;
    }
    if (t->n_nodes == 0) memset(&t->nodes[t->n_nodes++], 0, sizeof(*t->nodes));
    memset(&t->nodes[t->n_nodes], 0, sizeof(*t->nodes));
    t->nodes[t->n_nodes].type = type;
    t->nodes[t->n_nodes].nullable = type != RE_SET && type != RE_ALT;
    t->nodes[t->n_nodes].has_zero = type == RE_BEGIN || type == RE_END || type == RE_LOOK;
    return (uint32_t)t->n_nodes++;
}

void regex_append(struct re_tree *t, uint32_t parent, uint32_t child)
{
    struct re_node *p, *c;

    if (!parent || !child) return;
    p = &t->nodes[parent];
    c = &t->nodes[child];
    if (p->last)
        t->nodes[p->last].next = child;
    else
        p->first = child;
    p->last = child;
    p->has_zero |= c->has_zero;
    if (p->type == RE_SEQ) p->nullable &= c->nullable;
    if (p->type == RE_ALT) p->nullable |= c->nullable;
}

void regex_tree_deinit(struct re_tree *t)
{
    for (size_t i = 1; i < t->n_nodes; i++) mem_free(t->nodes[i].set.v);
    mem_free(t->nodes);
}

static bool more(const struct re_tree *t)
{
    return !t->failed && t->at < t->n;
}

static char peek(const struct re_tree *t)
{
    return t->at < t->n ? t->text[t->at] : 0;
}

static bool pass(struct re_tree *t, const char *word)
{
    size_t n = strlen(word);

    if (t->failed || t->n - t->at < n || memcmp(t->text + t->at, word, n) != 0) return false;
    t->at += n;
    return true;
}

static uint32_t next_char(struct re_tree *t)
{
    uint32_t c = 0;
    int n = t->at < t->n ? utf8_decode(t->text + t->at, t->n - t->at, &c) : -1;

    if (n < 0) {
        wrong(t, t->at < t->n ? "not UTF-8" : "ends too early");
        return 0;
    }
    t->at += (size_t)n;
    return c;
}

static uint32_t hex(struct re_tree *t, uint32_t n_digits)
{
    uint32_t value = 0;

    for (uint32_t i = 0; i < n_digits; i++) {
        char c = peek(t);
        uint32_t d = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : 16;

        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') d = (uint32_t)((c | 0x20) - 'a' + 10);

        if (d == 16) {
            wrong(t, "wanted hexadecimal digits");
            return 0;
        }
        value = value * 16 + d;
        t->at++;
    }
    return value;
}

static uint32_t braced_hex(struct re_tree *t)
{
    uint32_t value = 0, n = 0;

    for (; n < 6 && more(t) && peek(t) != '}'; n++) value = value * 16 + hex(t, 1);
    if (!pass(t, "}") || n == 0 || value > 0x10ffff) wrong(t, "wanted \\u{1 to 6 hexadecimal digits}");
    return value;
}

static uint32_t unicode_escape(struct re_tree *t)
{
    uint32_t c, low;

    if (pass(t, "{")) return braced_hex(t);
    c = hex(t, 4);
    if (c >= 0xd800 && c < 0xdc00 && pass(t, "\\u")) {
        low = hex(t, 4);
        if (low < 0xdc00 || low > 0xdfff) wrong(t, "half of a surrogate pair");
        return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    return c;
}

/* \p{..}: general categories by their short names, and the long ones that are met. */
static void property(struct re_tree *t, struct char_set *s, bool negated)
{
    static const struct {
        const char *name;
        uint32_t categories;
    } known[] = {
        {"L", CHARS_LETTER},   {"Letter", CHARS_LETTER}, {"Alphabetic", CHARS_LETTER}, {"M", CHARS_MARK},
        {"N", CHARS_NUMBER},   {"P", CHARS_PUNCT},       {"S", CHARS_SYMBOL},          {"Z", (uint32_t)7 << CHAR_ZS},
        {"Lu", 1u << CHAR_LU}, {"Ll", 1u << CHAR_LL},    {"Lt", 1u << CHAR_LT},        {"Lm", 1u << CHAR_LM},
        {"Lo", 1u << CHAR_LO}, {"Mn", 1u << CHAR_MN},    {"Mc", 1u << CHAR_MC},        {"Me", 1u << CHAR_ME},
        {"Nd", 1u << CHAR_ND}, {"digit", 1u << CHAR_ND}, {"Nl", 1u << CHAR_NL},        {"No", 1u << CHAR_NO},
        {"Pc", 1u << CHAR_PC}, {"Pd", 1u << CHAR_PD},    {"Ps", 1u << CHAR_PS},        {"Pe", 1u << CHAR_PE},
        {"Pi", 1u << CHAR_PI}, {"Pf", 1u << CHAR_PF},    {"Po", 1u << CHAR_PO},        {"Sm", 1u << CHAR_SM},
        {"Sc", 1u << CHAR_SC}, {"Sk", 1u << CHAR_SK},    {"So", 1u << CHAR_SO},        {"Zs", 1u << CHAR_ZS},
        {"Zl", 1u << CHAR_ZL}, {"Zp", 1u << CHAR_ZP},    {"Cc", 1u << CHAR_CC},        {"Cf", 1u << CHAR_CF}};
    const char *name, *end;

    if (!pass(t, "{") || !(end = memchr(t->text + t->at, '}', t->n - t->at))) {
        wrong(t, "wanted \\p{name}");
        return;
    }
    name = t->text + t->at;
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (strlen(known[i].name) == (size_t)(end - name) && memcmp(known[i].name, name, (size_t)(end - name)) == 0) {
            char_set_add_categories(t->b, s, known[i].categories, negated);
            t->at = (size_t)(end - t->text) + 1;
            return;
        }
    }
    unknown(t, "a property other than a general category");
}

/* After a backslash: one character (true), or a class that was added to s (false). */
static bool escape(struct re_tree *t, struct char_set *s, bool in_class, uint32_t *c)
{
    static const char named[] = "nrtfv", stand_for[] = "\n\r\t\f\v";
    char e = peek(t);
    const char *at = e ? strchr(named, e) : NULL;

    if (e == 0 || (unsigned char)e >= 0x80) {
        *c = next_char(t);
        return true;
    }
    t->at++;
    if (at)
        *c = (uint32_t)stand_for[at - named];
    else if (strchr("dDwWsS", e)) {
        char_set_add_escape(t->b, s, e);
        return false;
    } else if (e == 'p' || e == 'P') {
        property(t, s, e == 'P');
        return false;
    } else if (e == 'x')
        *c = pass(t, "{") ? braced_hex(t) : hex(t, 2);
    else if (e == 'u')
        *c = unicode_escape(t);
    else if (e == 'U')
        *c = hex(t, 8);
    else if (e == 'c')
        *c = next_char(t) & 31;
    else if (e == '0' && !(peek(t) >= '0' && peek(t) <= '9'))
        *c = 0;
    else if (e == 'b' && in_class)
        *c = 8;
    else if (e == 'a')
        *c = 7;
    else if (e == 'e')
        *c = 27;
    else if (e >= '0' && e <= '9')
        unknown(t, "a back reference");
    else if (e == 'k')
        unknown(t, "a back reference");
    else if (e == 'b' || e == 'B')
        unknown(t, "a word boundary");
    else if ((e | 0x20) >= 'a' && (e | 0x20) <= 'z')
        unknown(t, "an escape that radish does not know");
    else
        *c = (unsigned char)e;
    if (*c > 0x10ffff) wrong(t, "beyond Unicode");
    if (*c >= 0xd800 && *c <= 0xdfff) wrong(t, "half of a surrogate pair");
    return true;
}

/* The set becomes a node; it is emptied. */
static uint32_t set_node(struct re_tree *t, struct char_set *s, bool negated)
{
    uint32_t node;

    if (t->ignore_case) char_set_ignore_case(t->b, s);
    if (negated) char_set_negate(t->b, s);
    char_ranges_tidy(&s->sure);
    node = regex_add(t, RE_SET);
    if (node) {
        t->nodes[node].set = s->sure;
        memset(&s->sure, 0, sizeof(s->sure));
    }
    char_set_deinit(s);
    return node;
}

static uint32_t one_char(struct re_tree *t, uint32_t c)
{
    struct char_set s = {0};

    char_set_add(t->b, &s, c, c);
    return set_node(t, &s, false);
}

static bool class_item(struct re_tree *t, struct char_set *s, uint32_t *c)
{
    if (pass(t, "\\")) return escape(t, s, true, c);
    if (t->text[t->at] == '[' && t->at + 1 < t->n && strchr(":.=", t->text[t->at + 1])) unknown(t, "a POSIX class");
    *c = next_char(t);
    return true;
}

static uint32_t char_class(struct re_tree *t)
{
    bool negated = pass(t, "^");
    struct char_set s = {0};

    while (more(t) && peek(t) != ']') {
        uint32_t low = 0, high = 0;
        bool single = class_item(t, &s, &low);

        if (single && peek(t) == '-' && t->at + 1 < t->n && t->text[t->at + 1] != ']') {
            t->at++;
            if (!class_item(t, &s, &high))
                wrong(t, "a range that ends in a class");
            else if (high < low)
                wrong(t, "a range that runs backwards");
            char_set_add(t->b, &s, low, high);
        } else if (single) {
            char_set_add(t->b, &s, low, low);
        }
    }
    if (!pass(t, "]")) wrong(t, "a class without its ]");
    return set_node(t, &s, negated);
}

static uint32_t dot(struct re_tree *t)
{
    struct char_set s = {0};

    if (!t->dot_all) {
        char_set_add(t->b, &s, '\n', '\n');
        char_set_add(t->b, &s, '\r', '\r');
        char_set_add(t->b, &s, 0x2028, 0x2029);
        char_set_add(t->b, &s, 0x85, 0x85);
    }
    char_set_negate(t->b, &s);
    return set_node(t, &s, false);
}

static uint32_t alternatives(struct re_tree *t, uint32_t depth);

/* (?flags) or (?flags: ..: true if the group goes on. */
static bool inline_flags(struct re_tree *t)
{
    bool on = true;

    while (more(t) && peek(t) != ')' && peek(t) != ':') {
        char c = peek(t);

        if (c == '-')
            on = false;
        else if (c == 'i')
            t->ignore_case = on;
        else if (c == 's')
            t->dot_all = on;
        else if (c != 'u' && c != 'a')
            unknown(t, "a flag other than i, s, u");
        t->at++;
    }
    return peek(t) == ':' && ++t->at;
}

static uint32_t group(struct re_tree *t, uint32_t depth)
{
    bool ignore_case = t->ignore_case, dot_all = t->dot_all;
    uint32_t look = 0, inner;

    if (depth > REGEX_MAX_DEPTH) {
        wrong(t, "groups nested too deeply");
        return 0;
    }
    if (pass(t, "?")) {
        if (pass(t, "="))
            look = regex_add(t, RE_LOOK);
        else if (pass(t, "!")) {
            look = regex_add(t, RE_LOOK);
            if (look) t->nodes[look].negative = true;
        } else if (pass(t, "<=") || pass(t, "<!"))
            unknown(t, "look-behind");
        else if (pass(t, ">"))
            unknown(t, "an atomic group");
        else if (pass(t, "P<") || pass(t, "<")) {
            const char *end = memchr(t->text + t->at, '>', t->n - t->at);

            if (!end)
                wrong(t, "a name without its >");
            else
                t->at = (size_t)(end - t->text) + 1;
        } else if (pass(t, "P"))
            unknown(t, "a back reference");
        else if (!pass(t, ":") && !inline_flags(t)) {
            if (!pass(t, ")")) wrong(t, "a group without its )");
            return regex_add(t, RE_SEQ); /* (?i): from here to the end of the group around it */
        }
    }
    inner = alternatives(t, depth + 1);
    if (!pass(t, ")")) wrong(t, "a group without its )");
    t->ignore_case = ignore_case;
    t->dot_all = dot_all;
    if (!look) return inner;
    regex_append(t, look, inner);
    if (!t->failed) t->nodes[look].nullable = true;
    return look;
}

static uint32_t atom(struct re_tree *t, uint32_t depth)
{
    struct char_set s = {0};
    uint32_t c = 0;

    if (pass(t, "(")) return group(t, depth);
    if (pass(t, "[")) return char_class(t);
    if (pass(t, ".")) return dot(t);
    if (pass(t, "^") || pass(t, "\\A")) return regex_add(t, RE_BEGIN);
    if (pass(t, "$") || pass(t, "\\z") || pass(t, "\\Z")) return regex_add(t, RE_END);
    if (pass(t, "\\")) {
        bool single = escape(t, &s, false, &c);

        if (single) char_set_deinit(&s);
        return single ? one_char(t, c) : set_node(t, &s, false);
    }
    if (strchr("*+?", peek(t))) wrong(t, "nothing to repeat");
    return one_char(t, next_char(t));
}

/* {n}, {n,}, {n,m}; false: no such thing (a brace stands for itself then). */
static bool counts(struct re_tree *t, uint32_t *min, uint32_t *max)
{
    uint64_t value[2] = {0, 0};
    size_t at = t->at + 1, digits[2] = {0, 0}, i = 0;

    for (; at < t->n && t->text[at] != '}'; at++) {
        char c = t->text[at];

        if (c == ',' && i == 0)
            i = 1;
        else if (c >= '0' && c <= '9') {
            if (value[i] < GRAMMAR_UNBOUNDED) value[i] = value[i] * 10 + (uint64_t)(c - '0');
            digits[i]++;
        } else
            return false;
    }
    if (at == t->n || digits[0] == 0) return false;
    t->at = at + 1;
    *min = value[0] < GRAMMAR_UNBOUNDED ? (uint32_t)value[0] : GRAMMAR_UNBOUNDED - 1;
    *max = i == 0 ? *min : digits[1] == 0 || value[1] >= GRAMMAR_UNBOUNDED ? GRAMMAR_UNBOUNDED : (uint32_t)value[1];
    if (value[0] >= GRAMMAR_UNBOUNDED) wrong(t, "a count that is too large");
    if (*max < *min) wrong(t, "counts that run backwards");
    return true;
}

static uint32_t repeated(struct re_tree *t, uint32_t depth)
{
    uint32_t node = atom(t, depth), min = 0, max = GRAMMAR_UNBOUNDED, outer;

    if (pass(t, "+"))
        min = 1;
    else if (pass(t, "?"))
        max = 1;
    else if (!pass(t, "*") && (peek(t) != '{' || !counts(t, &min, &max)))
        return node;
    if (pass(t, "+")) unknown(t, "a possessive repeat");
    pass(t, "?");
    if (peek(t) && strchr("*+?", peek(t))) wrong(t, "nothing to repeat");
    outer = regex_add(t, RE_REPEAT);
    if (!outer || !node) return 0;
    regex_append(t, outer, node);
    t->nodes[outer].min = min;
    t->nodes[outer].max = max;
    t->nodes[outer].nullable = min == 0 || t->nodes[node].nullable;
    return outer;
}

static uint32_t alternatives(struct re_tree *t, uint32_t depth)
{
    uint32_t alt = regex_add(t, RE_ALT);

    do {
        uint32_t seq = regex_add(t, RE_SEQ);

        while (more(t) && peek(t) != '|' && peek(t) != ')') regex_append(t, seq, repeated(t, depth));
        regex_append(t, alt, seq);
    } while (pass(t, "|"));
    return t->failed ? 0 : alt;
}

uint32_t regex_parse(struct re_tree *t)
{
    uint32_t root = alternatives(t, 0);

    if (more(t)) wrong(t, "a ) without its (");
    return t->failed ? 0 : root;
}
