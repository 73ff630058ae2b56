/* text/grammar/gbnf.c - llama.cpp's GBNF, and the EBNF of XGrammar, which has the same syntax.
 *
 *     root ::= "a" [0-9]+ ( item | "\n" ){2,3} .     # comment
 *
 * A rule ends where the next one begins (a name and "::="), so alternatives may stand on lines of their own. <[7]> is the
 * token 7.
 */
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/grammar/char_set.h"
#include "text/grammar/grammar_languages.h"
#include "text/grammar/node_list.h"
#include "text/string_table.h"

#define MAX_DEPTH 200u /* groups within groups */

struct rule {
    grammar_node node;
    bool defined;
    size_t used_at;
};
struct reader {
    struct grammar_builder *b;
    const char *text;
    size_t n, at;
    struct string_table names;
    struct rule *rules;
    size_t rules_cap;
    bool failed;
};

static void fail(struct reader *r, rd_status st, size_t at, const char *what)
{
    unsigned line = 1, column = 1;

    for (size_t i = 0; i < at && i < r->n; i++, column++) {
        if (r->text[i] != '\n') continue;
        line++;
        column = 0;
    }
    if (!r->failed) grammar_fail(r->b, st, "line %u, column %u: %s", line, column, what);
    r->failed = true;
}

static void wrong(struct reader *r, const char *what)
{
    fail(r, RD_E_INVALID, r->at, what);
}

static char peek(const struct reader *r)
{
    return !r->failed && r->at < r->n ? r->text[r->at] : 0;
}

static bool pass(struct reader *r, const char *word)
{
    size_t n = strlen(word);

    if (r->failed || r->n - r->at < n || memcmp(r->text + r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

static void skip(struct reader *r)
{
    for (;;) {
        while (r->at < r->n && strchr(" \t\r\n", r->text[r->at]) && r->text[r->at]) r->at++;
        if (r->at >= r->n || r->text[r->at] != '#') return;
        while (r->at < r->n && r->text[r->at] != '\n') r->at++;
    }
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
}

/* The length of a name here, 0: none. */
static size_t name_length(const struct reader *r)
{
    size_t n = 0;

    if (r->at < r->n && r->text[r->at] == '.') return 0;
    while (r->at + n < r->n && is_name_char(r->text[r->at + n])) n++;
    return n;
}

/* Whether a rule begins here: its name, and "::=". */
static bool at_rule(const struct reader *r)
{
    struct reader ahead = *r;

    ahead.at += name_length(r);
    if (ahead.at == r->at) return false;
    skip(&ahead);
    return pass(&ahead, "::=");
}

static struct rule *rule_of(struct reader *r, const char *name, size_t n)
{
    uint32_t id;
    bool is_new;

    if (r->failed) return NULL;
    if (string_table_add(&r->names, name, n, &id, &is_new) != RD_OK ||
        !mem_grow((void **)&r->rules, &r->rules_cap, id + 1, sizeof(*r->rules))) {
        fail(r, RD_E_NOMEM, r->at, "out of memory");
        return NULL;
    }
    if (is_new) r->rules[id] = (struct rule){.node = grammar_rule(r->b, name, n), .used_at = r->at};
    return &r->rules[id];
}

static uint32_t hex(struct reader *r, int n_digits)
{
    uint32_t value = 0;

    for (int i = 0; i < n_digits; i++) {
        char c = peek(r);
        uint32_t d = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : 16;

        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') d = (uint32_t)((c | 0x20) - 'a' + 10);
        if (d == 16) {
            wrong(r, "wanted hexadecimal digits");
            return 0;
        }
        value = value * 16 + d;
        r->at++;
    }
    return value;
}

/* One character of a literal or class, escapes taken back. */
static uint32_t character(struct reader *r)
{
    uint32_t c = 0;
    int n;

    if (pass(r, "\\")) {
        char e = peek(r);

        r->at++;
        switch (e) {
        case 'n':
            return '\n';
        case 't':
            return '\t';
        case 'r':
            return '\r';
        case 'f':
            return '\f';
        case 'v':
            return '\v';
        case 'b':
            return '\b';
        case '0':
            return 0;
        case 'x':
            return hex(r, 2);
        case 'u':
            return hex(r, 4);
        case 'U':
            return hex(r, 8);
        default:
            if (e && !is_name_char(e)) return (unsigned char)e;
            if (e == '-' || e == '.') return (unsigned char)e;
            r->at--;
            wrong(r, "an escape that GBNF does not have");
            return 0;
        }
    }
    n = r->at < r->n ? utf8_decode(r->text + r->at, r->n - r->at, &c) : -1;
    if (n < 0)
        wrong(r, r->at < r->n ? "not UTF-8" : "ends too early");
    else
        r->at += (size_t)n;
    return c;
}

static uint32_t checked_char(struct reader *r)
{
    uint32_t c = character(r);

    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) wrong(r, "no character has that number");
    return c;
}

static grammar_node literal(struct reader *r, const char *end)
{
    struct buf text = {0};
    grammar_node node;

    while (!r->failed && !pass(r, end)) {
        char out[UTF8_MAX_BYTES];
        int n;

        if (r->at >= r->n) {
            wrong(r, "a text without its closing quote");
            break;
        }
        n = utf8_encode(checked_char(r), out);
        buf_append(&text, out, (size_t)n);
    }
    if (text.failed) fail(r, RD_E_NOMEM, r->at, "out of memory");
    node = grammar_text(r->b, text.data ? text.data : "", text.n);
    buf_deinit(&text);
    return node;
}

static grammar_node char_class(struct reader *r)
{
    bool negated = pass(r, "^");
    struct char_set s = {0};
    grammar_node node;

    while (!r->failed && peek(r) != ']') {
        uint32_t low, high;

        if (r->at >= r->n) {
            wrong(r, "a class without its ]");
            break;
        }
        low = high = checked_char(r);
        if (peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            high = checked_char(r);
            if (high < low) wrong(r, "a range that runs backwards");
        }
        char_set_add(r->b, &s, low, high);
    }
    pass(r, "]");
    if (negated) char_set_negate(r->b, &s);
    node = char_ranges_node(r->b, &s.sure, false);
    char_set_deinit(&s);
    return node;
}

static uint32_t number(struct reader *r)
{
    uint64_t v = 0;
    size_t from = r->at;

    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++)
        if (v < GRAMMAR_UNBOUNDED) v = v * 10 + (uint64_t)(peek(r) - '0');
    if (r->at == from) wrong(r, "wanted a number");
    if (v >= GRAMMAR_UNBOUNDED) wrong(r, "a number that is too large");
    return (uint32_t)v;
}

static grammar_node token(struct reader *r)
{
    uint32_t id;

    if (!pass(r, "[")) {
        fail(r, RD_E_UNSUPPORTED, r->at, "a token by its text: name it by its number, <[7]>");
        return 0;
    }
    id = number(r);
    if (!pass(r, "]>")) wrong(r, "wanted <[number]>");
    if (id >= 1u << 24) wrong(r, "no token has that number");
    return r->failed ? 0 : grammar_token(r->b, (int32_t)id);
}

static grammar_node repeat(struct reader *r, grammar_node node)
{
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;

    if (pass(r, "*")) return grammar_repeat(r->b, node, 0, max);
    if (pass(r, "+")) return grammar_repeat(r->b, node, 1, max);
    if (pass(r, "?")) return grammar_repeat(r->b, node, 0, 1);
    if (!pass(r, "{")) return node;
    skip(r);
    if (peek(r) != ',') min = max = number(r);
    skip(r);
    if (pass(r, ",")) {
        skip(r);
        max = peek(r) == '}' ? GRAMMAR_UNBOUNDED : number(r);
        skip(r);
    }
    if (!pass(r, "}")) wrong(r, "a count without its }");
    if (max < min) wrong(r, "counts that run backwards");
    return r->failed ? 0 : grammar_repeat(r->b, node, min, max);
}

static grammar_node alternatives(struct reader *r, unsigned depth);

static grammar_node atom(struct reader *r, unsigned depth)
{
    size_t n = name_length(r), at = r->at;
    const struct rule *rule;
    grammar_node node;

    if (n) {
        rule = rule_of(r, r->text + at, n);
        node = rule ? rule->node : 0;
        r->at += n;
        if (peek(r) == '(') fail(r, RD_E_UNSUPPORTED, at, "a macro");
        return node;
    }
    if (pass(r, "\"")) return literal(r, "\"");
    if (pass(r, "[")) return char_class(r);
    if (pass(r, ".")) return grammar_class(r->b, NULL, 0, true);
    if (pass(r, "<")) return token(r);
    if (pass(r, "(?")) {
        fail(r, RD_E_UNSUPPORTED, at, "look-ahead");
        return 0;
    }
    if (pass(r, "(")) {
        if (depth > MAX_DEPTH) wrong(r, "groups nested too deeply");
        node = r->failed ? 0 : alternatives(r, depth + 1);
        if (!pass(r, ")")) wrong(r, "a group without its )");
        return node;
    }
    wrong(r, "wanted a name, a \"text\", a [class], a (group) or .");
    return 0;
}

static bool ends_sequence(const struct reader *r)
{
    char c = peek(r);

    return c == 0 || c == '|' || c == ')' || at_rule(r);
}

static grammar_node alternatives(struct reader *r, unsigned depth)
{
    struct node_list ways = {0};

    do {
        struct node_list row = {0};

        skip(r);
        while (!ends_sequence(r)) {
            grammar_node node = atom(r, depth);

            skip(r);
            for (int i = 0; i < 4 && peek(r) && strchr("*+?{", peek(r)); i++) {
                node = repeat(r, node);
                skip(r);
            }
            node_list_add(r->b, &row, node);
        }
        node_list_add(r->b, &ways, node_list_seq(r->b, &row));
    } while (pass(r, "|"));
    return node_list_alt(r->b, &ways);
}

static void read_rule(struct reader *r)
{
    size_t n = name_length(r), at = r->at;
    struct rule *rule;
    grammar_node body, node;

    if (n == 0 || !at_rule(r)) {
        wrong(r, "wanted name ::= ...");
        return;
    }
    rule = rule_of(r, r->text + at, n);
    if (!rule) return;
    if (rule->defined) wrong(r, "a rule that is defined already");
    rule->defined = true;
    node = rule->node;
    r->at += n;
    skip(r);
    pass(r, "::=");
    body = alternatives(r, 0);
    if (!r->failed) grammar_define(r->b, node, body);
    if (peek(r) == ')') wrong(r, "a ) without its (");
}

grammar_node grammar_from_gbnf(struct grammar_builder *b, const char *text, size_t n)
{
    struct reader r = {.b = b, .text = text, .n = n};
    grammar_node root = 0;
    uint32_t id;

    if (string_table_init(&r.names, 16, 256) != RD_OK) {
        grammar_fail(b, RD_E_NOMEM, "out of memory");
        return 0;
    }
    for (skip(&r); r.at < r.n && !r.failed && grammar_status(b, NULL) == RD_OK; skip(&r)) read_rule(&r);
    for (id = 0; id < r.names.n && !r.failed; id++) {
        char quoted[80], what[128];
        size_t n_name;
        const char *name = string_table_at(&r.names, id, &n_name);

        if (r.rules[id].defined) continue;
        snprintf(what, sizeof(what), "no rule is named %s", error_quote(quoted, sizeof(quoted), name, n_name));
        fail(&r, RD_E_INVALID, r.rules[id].used_at, what);
    }
    id = string_table_find(&r.names, "root", 4);
    if (id == STRING_NONE)
        fail(&r, RD_E_INVALID, 0, "no rule is named root");
    else if (!r.failed) /* without memory a name can be there and its rule not */
        root = r.rules[id].node;
    string_table_deinit(&r.names);
    mem_free(r.rules);
    return r.failed ? 0 : root;
}
