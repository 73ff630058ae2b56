/* text/grammar/gbnf.c - llama.cpp's GBNF, and the EBNF of XGrammar, which has the same syntax.
 *
 *     root ::= "a" [0-9]+ ( item | "\n" ){2,3} .     # comment
 *
 * A rule ends where the next one begins (a name and "::="), so alternatives may stand on lines of their own. <[7]> is the
 * token 7.
 */
#include <string.h>
#include "base/buf.h"
#include "base/utf8.h"
#include "text/grammar/char_set.h"
#include "text/grammar/grammar_languages.h"
#include "text/grammar/node_list.h"
#include "text/grammar/rule_reader.h"

#define MAX_DEPTH 200u /* groups within groups */

static void skip(struct rule_reader *r)
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
static size_t name_length(const struct rule_reader *r)
{
    size_t n = 0;

    if (r->at < r->n && r->text[r->at] == '.') return 0;
    while (r->at + n < r->n && is_name_char(r->text[r->at + n])) n++;
    return n;
}

/* Whether a rule begins here: its name, and "::=". */
static bool at_rule(const struct rule_reader *r)
{
    struct rule_reader ahead = *r;

    ahead.at += name_length(r);
    if (ahead.at == r->at) return false;
    skip(&ahead);
    return reader_pass(&ahead, "::=");
}

/* One character of a literal or class, escapes taken back. */
static uint32_t character(struct rule_reader *r)
{
    uint32_t c = 0;
    int n;

    if (reader_pass(r, "\\")) {
        char e = reader_peek(r);

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
            return reader_hex(r, 2);
        case 'u':
            return reader_hex(r, 4);
        case 'U':
            return reader_hex(r, 8);
        default:
            if (e && !is_name_char(e)) return (unsigned char)e;
            if (e == '-' || e == '.') return (unsigned char)e;
            r->at--;
            reader_wrong(r, "an escape that GBNF does not have");
            return 0;
        }
    }
    n = r->at < r->n ? utf8_decode(r->text + r->at, r->n - r->at, &c) : -1;
    if (n < 0)
        reader_wrong(r, r->at < r->n ? "not UTF-8" : "ends too early");
    else
        r->at += (size_t)n;
    return c;
}

static uint32_t checked_char(struct rule_reader *r)
{
    uint32_t c = character(r);

    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) reader_wrong(r, "no character has that number");
    return c;
}

static grammar_node literal(struct rule_reader *r, const char *end)
{
    struct buf text = {0};
    grammar_node node;

    while (!r->failed && !reader_pass(r, end)) {
        char out[UTF8_MAX_BYTES];
        int n;

        if (r->at >= r->n) {
            reader_wrong(r, "a text without its closing quote");
            break;
        }
        n = utf8_encode(checked_char(r), out);
        buf_append(&text, out, (size_t)n);
    }
    if (text.failed) reader_fail(r, RD_E_NOMEM, r->at, "out of memory");
    node = grammar_text(r->b, text.data ? text.data : "", text.n);
    buf_deinit(&text);
    return node;
}

static grammar_node char_class(struct rule_reader *r)
{
    bool negated = reader_pass(r, "^");
    struct char_set s = {0};
    grammar_node node;

    while (!r->failed && reader_peek(r) != ']') {
        uint32_t low, high;

        if (r->at >= r->n) {
            reader_wrong(r, "a class without its ]");
            break;
        }
        low = high = checked_char(r);
        if (reader_peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            high = checked_char(r);
            if (high < low) reader_wrong(r, "a range that runs backwards");
        }
        char_set_add(r->b, &s, low, high);
    }
    reader_pass(r, "]");
    if (negated) char_set_negate(r->b, &s);
    node = char_ranges_node(r->b, &s.sure, false);
    char_set_deinit(&s);
    return node;
}

static grammar_node token(struct rule_reader *r)
{
    uint32_t id;

    if (!reader_pass(r, "[")) {
        reader_fail(r, RD_E_UNSUPPORTED, r->at, "a token by its text: name it by its number, <[7]>");
        return 0;
    }
    id = reader_number(r);
    if (!reader_pass(r, "]>")) reader_wrong(r, "wanted <[number]>");
    if (id >= 1u << 24) reader_wrong(r, "no token has that number");
    return r->failed ? 0 : grammar_token(r->b, (int32_t)id);
}

static grammar_node repeat(struct rule_reader *r, grammar_node node)
{
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;

    if (reader_pass(r, "*")) return grammar_repeat(r->b, node, 0, max);
    if (reader_pass(r, "+")) return grammar_repeat(r->b, node, 1, max);
    if (reader_pass(r, "?")) return grammar_repeat(r->b, node, 0, 1);
    if (!reader_pass(r, "{")) return node;
    skip(r);
    if (reader_peek(r) != ',') min = max = reader_number(r);
    skip(r);
    if (reader_pass(r, ",")) {
        skip(r);
        max = reader_peek(r) == '}' ? GRAMMAR_UNBOUNDED : reader_number(r);
        skip(r);
    }
    if (!reader_pass(r, "}")) reader_wrong(r, "a count without its }");
    if (max < min) reader_wrong(r, "counts that run backwards");
    return r->failed ? 0 : grammar_repeat(r->b, node, min, max);
}

static grammar_node alternatives(struct rule_reader *r, unsigned depth);

static grammar_node atom(struct rule_reader *r, unsigned depth)
{
    size_t n = name_length(r), at = r->at;
    const struct named_rule *rule;
    grammar_node node;

    if (n) {
        rule = reader_rule(r, r->text + at, n);
        node = rule ? rule->node : 0;
        r->at += n;
        if (reader_peek(r) == '(') reader_fail(r, RD_E_UNSUPPORTED, at, "a macro");
        return node;
    }
    if (reader_pass(r, "\"")) return literal(r, "\"");
    if (reader_pass(r, "[")) return char_class(r);
    if (reader_pass(r, ".")) return grammar_class(r->b, NULL, 0, true);
    if (reader_pass(r, "<")) return token(r);
    if (reader_pass(r, "(?")) {
        reader_fail(r, RD_E_UNSUPPORTED, at, "look-ahead");
        return 0;
    }
    if (reader_pass(r, "(")) {
        if (depth > MAX_DEPTH) reader_wrong(r, "groups nested too deeply");
        node = r->failed ? 0 : alternatives(r, depth + 1);
        if (!reader_pass(r, ")")) reader_wrong(r, "a group without its )");
        return node;
    }
    reader_wrong(r, "wanted a name, a \"text\", a [class], a (group) or .");
    return 0;
}

static bool ends_sequence(const struct rule_reader *r)
{
    char c = reader_peek(r);

    return c == 0 || c == '|' || c == ')' || at_rule(r);
}

static grammar_node alternatives(struct rule_reader *r, unsigned depth)
{
    struct node_list ways = {0};

    do {
        struct node_list row = {0};

        skip(r);
        while (!ends_sequence(r)) {
            grammar_node node = atom(r, depth);

            skip(r);
            for (int i = 0; i < 4 && reader_peek(r) && strchr("*+?{", reader_peek(r)); i++) {
                node = repeat(r, node);
                skip(r);
            }
            node_list_add(r->b, &row, node);
        }
        node_list_add(r->b, &ways, node_list_seq(r->b, &row));
    } while (reader_pass(r, "|"));
    return node_list_alt(r->b, &ways);
}

static void read_rule(struct rule_reader *r)
{
    size_t n = name_length(r), at = r->at;
    grammar_node body, node;

    if (n == 0 || !at_rule(r)) {
        reader_wrong(r, "wanted name ::= ...");
        return;
    }
    node = reader_define(r, r->text + at, n);
    r->at += n;
    skip(r);
    reader_pass(r, "::=");
    body = alternatives(r, 0);
    if (!r->failed) grammar_define(r->b, node, body);
    if (reader_peek(r) == ')') reader_wrong(r, "a ) without its (");
}

grammar_node grammar_from_gbnf(struct grammar_builder *b, const char *text, size_t n)
{
    struct rule_reader r;

    if (!reader_init(&r, b, text, n)) return 0;
    for (skip(&r); r.at < r.n && !r.failed && grammar_status(b, NULL) == RD_OK; skip(&r)) read_rule(&r);
    return reader_finish(&r, "root");
}
