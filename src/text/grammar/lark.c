/* text/grammar/lark.c - Lark's grammars as llguidance reads them.
 *
 *     start: "SELECT " (NAME | "*") tail?        rules in small letters, terminals in capitals
 *     NAME: /[a-z]+/                             /regular expressions/ over the whole terminal
 *     %ignore /[ \t]+/                           may stand before, between and behind terminals of rules
 *     %import common.INT -> NUMBER
 *     args: %json { "type": "object" }           a JSON schema
 *     part: %regex { "substring_words": "a b" }  words in a row of a text
 *     line[capture, stop="!"]: /[a-z!]+/         a rule with attributes; what is captured says nothing to a grammar
 *     %llguidance { }                            options of that library: nothing to a grammar
 *
 * A rule's max_tokens and temperature are of tokens, not of text: they are not held. As a grammar: a terminal is no
 * longest match, it is any of its texts.
 */
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/grammar/grammar_languages.h"
#include "text/grammar/node_list.h"
#include "text/grammar/regex.h"
#include "text/grammar/rule_reader.h"

#define MAX_DEPTH 200u

struct lark {
    struct rule_reader r;
    struct node_list ignored;
    grammar_node gap; /* what %ignore allows, any number of times; 0: nothing */
    bool in_terminal;
};

static void skip_line(struct rule_reader *r)
{
    while (r->at < r->n && r->text[r->at] != '\n') r->at++;
}

static void skip_blanks(struct rule_reader *r)
{
    while (r->at < r->n) {
        if (r->text[r->at] == ' ' || r->text[r->at] == '\t' || r->text[r->at] == '\r')
            r->at++;
        else if (r->text[r->at] == '#' || (r->text[r->at] == '/' && r->at + 1 < r->n && r->text[r->at + 1] == '/'))
            skip_line(r);
        else
            return;
    }
}

static void skip_lines(struct rule_reader *r)
{
    for (skip_blanks(r); r->at < r->n && r->text[r->at] == '\n'; skip_blanks(r)) r->at++;
}

/* Blanks; line ends too where the alternatives go on behind them. */
static void skip(struct rule_reader *r, bool inside)
{
    struct rule_reader ahead;

    skip_blanks(r);
    ahead = *r;
    skip_lines(&ahead);
    if (inside || reader_peek(&ahead) == '|') r->at = ahead.at;
}

static size_t name_length(const struct rule_reader *r)
{
    size_t n = 0;

    for (; r->at + n < r->n; n++) {
        char c = r->text[r->at + n];

        if (!((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && c != '_' && !(n && ((c >= '0' && c <= '9') || c == '-')))
            break;
    }
    return n;
}

static bool is_terminal(const char *name)
{
    return (name[0] >= 'A' && name[0] <= 'Z') || (name[0] == '_' && name[1] >= 'A' && name[1] <= 'Z');
}

/* A terminal within a rule may be followed by what is ignored. */
static grammar_node terminal(struct lark *l, grammar_node node)
{
    return l->gap && !l->in_terminal ? grammar_pair(l->r.b, node, l->gap) : node;
}

/* --- literals ----------------------------------------------------------------------------------------------------- */

/* "text", escapes taken back, into out. */
static void quoted(struct rule_reader *r, struct buf *out)
{
    static const char named[] = "nrtfvb\"\\/'", stand_for[] = "\n\r\t\f\v\b\"\\/'";

    while (!r->failed && !reader_pass(r, "\"")) {
        const char *at;
        char e;

        if (r->at >= r->n || reader_peek(r) == '\n') {
            reader_wrong(r, "a text without its closing quote");
        } else if (!reader_pass(r, "\\")) {
            buf_putc(out, r->text[r->at++]);
        } else if ((e = reader_peek(r)) && (at = strchr(named, e))) {
            buf_putc(out, stand_for[at - named]);
            r->at++;
        } else if (e == 'x' || e == 'u') {
            char utf8[UTF8_MAX_BYTES];

            r->at++;
            buf_append(out, utf8, (size_t)utf8_encode(reader_hex(r, e == 'x' ? 2 : 4), utf8));
        } else {
            reader_wrong(r, "an escape that radish does not know");
        }
    }
    if (out->failed) reader_fail(r, RD_E_NOMEM, r->at, "out of memory");
    if (!r->failed && !utf8_valid(out->data ? out->data : "", out->n)) reader_wrong(r, "not UTF-8");
}

static grammar_node any_case(struct rule_reader *r, const char *s, size_t n)
{
    struct node_list row = {0};

    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        struct grammar_range both[2] = {{(uint32_t)(c & ~0x20), (uint32_t)(c & ~0x20)},
                                        {(uint32_t)(c | 0x20), (uint32_t)(c | 0x20)}};

        node_list_add(r->b, &row, letter ? grammar_class(r->b, both, 2, false) : grammar_text(r->b, &c, 1));
    }
    return node_list_seq(r->b, &row);
}

static uint32_t only_char(struct rule_reader *r, const struct buf *s)
{
    uint32_t c = 0;

    if (s->n == 0 || utf8_decode(s->data, s->n, &c) != (int)s->n)
        reader_wrong(r, "a range goes from one character to another");
    return c;
}

static grammar_node text_or_range(struct rule_reader *r)
{
    struct buf s = {0}, to = {0};
    grammar_node node = 0;

    quoted(r, &s);
    if (!r->failed && reader_pass(r, "..")) {
        struct grammar_range range = {only_char(r, &s), 0};

        if (!reader_pass(r, "\""))
            reader_wrong(r, "wanted \"a\"..\"z\"");
        else
            quoted(r, &to);
        if (!r->failed) range.high = only_char(r, &to);
        if (!r->failed && range.high < range.low) reader_wrong(r, "a range that runs backwards");
        if (!r->failed) node = grammar_class(r->b, &range, 1, false);
    } else if (!r->failed && reader_peek(r) == 'i') {
        r->at++;
        for (size_t i = 0; i < s.n; i++)
            if ((unsigned char)s.data[i] >= 0x80)
                reader_fail(r, RD_E_UNSUPPORTED, r->at, "any case of letters beyond ASCII");
        node = any_case(r, s.data ? s.data : "", s.n);
    } else {
        node = grammar_text(r->b, s.data ? s.data : "", s.n);
    }
    buf_deinit(&s);
    buf_deinit(&to);
    return r->failed ? 0 : node;
}

static grammar_node regex(struct rule_reader *r)
{
    size_t from = r->at, n, flags;
    bool in_class = false;
    char where[64];

    while (r->at < r->n && r->text[r->at] != '\n' && (in_class || r->text[r->at] != '/')) {
        if (r->text[r->at] == '\\')
            r->at++;
        else if (r->text[r->at] == '[')
            in_class = true;
        else if (r->text[r->at] == ']')
            in_class = false;
        r->at++;
    }
    if (r->at >= r->n || r->text[r->at] != '/') {
        r->at = from;
        reader_wrong(r, "a regular expression without its closing /");
        return 0;
    }
    n = r->at++ - from;
    for (flags = 0; r->at + flags < r->n && r->text[r->at + flags] >= 'a' && r->text[r->at + flags] <= 'z';) flags++;
    snprintf(where, sizeof(where), "at byte %zu: ", from);
    r->at += flags;
    return regex_node_flags(r->b, r->text + from, n, r->text + r->at - flags, flags, REGEX_WHOLE, where);
}

static grammar_node special_token(struct rule_reader *r)
{
    unsigned id;
    int used = 0;
    char digits[24] = "";

    memcpy(digits, r->text + r->at, r->n - r->at < 20 ? r->n - r->at : 20);
    if (sscanf(digits, "<[%8u]>%n", &id, &used) == 1 && used && id < 1u << 24) {
        r->at += (size_t)used;
        return grammar_token(r->b, (int32_t)id);
    }
    reader_fail(r, RD_E_UNSUPPORTED, r->at, "a token by its text: name it by its number, <[7]>");
    return 0;
}

/* The JSON object or list that comes next; the caller's. NULL: failed. */
static json_t *inline_json(struct rule_reader *r, const char *what)
{
    json_error_t why = {.text = ""};
    size_t depth = 0, end;
    bool in_text = false;
    json_t *v;

    skip(r, true);
    for (end = r->at; end < r->n; end++) {
        char c = r->text[end];

        if (in_text && c == '\\')
            end++;
        else if (c == '"')
            in_text = !in_text;
        else if (!in_text && (c == '{' || c == '['))
            depth++;
        else if (!in_text && (c == '}' || c == ']') && --depth == 0)
            break;
    }
    v = end < r->n ? json_loadb(r->text + r->at, end + 1 - r->at, JSON_ALLOW_NUL, &why) : NULL;
    if (v)
        r->at = end + 1;
    else if (end < r->n && json_error_code(&why) == json_error_out_of_memory)
        reader_fail(r, RD_E_NOMEM, r->at, "out of memory");
    else
        reader_wrong(r, what);
    return v;
}

static grammar_node inline_schema(struct rule_reader *r)
{
    struct schema_options o = {.spaces = JSON_SPACES_PLAIN};
    json_t *v = inline_json(r, "%json: not a JSON schema");
    grammar_node node = v ? grammar_from_schema(r->b, v, &o) : 0;

    json_decref(v);
    return node;
}

/* How long the piece at the beginning of s is: a word, what stands between two words, or a character. */
static size_t piece_length(const char *s, size_t n, bool words)
{
    uint32_t c;
    size_t i = 0;
    int used = n ? utf8_decode(s, n, &c) : 0;

    if (!words || used <= 0) return used > 0 ? (size_t)used : n;
    while (i < n && strchr(" \t\r\n", s[i]) == NULL) i++;
    return i ? i : 1;
}

/* Pieces in a row, from any to any, or none: of each the rest behind it, which may be left off anywhere. */
static grammar_node pieces_in_a_row(struct rule_reader *r, const grammar_node *pieces, size_t n)
{
    struct node_list ways = {0};
    grammar_node rest = grammar_empty(r->b);

    for (size_t i = n; i-- > 0;) {
        rest = grammar_maybe(r->b, grammar_pair(r->b, pieces[i], rest));
        node_list_add(r->b, &ways, rest);
    }
    return n ? node_list_alt(r->b, &ways) : rest;
}

static grammar_node substring(struct rule_reader *r)
{
    json_t *v = inline_json(r, "%regex: not JSON"), *chunks = json_object_get(v, "substring_chunks"), *text;
    struct node_list pieces = {0};
    bool words = (text = json_object_get(v, "substring_words")) != NULL;
    grammar_node node = 0;

    if (!text) text = json_object_get(v, "substring_chars");
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        const json_t *c = json_array_get(chunks, i);

        if (!json_is_string(c)) reader_wrong(r, "%regex: substring_chunks: wanted strings");
        node_list_add(r->b, &pieces, grammar_text(r->b, json_string_value(c), json_string_length(c)));
    }
    for (size_t at = 0, n; !r->failed && json_is_string(text) && at < json_string_length(text); at += n) {
        n = piece_length(json_string_value(text) + at, json_string_length(text) - at, words);
        node_list_add(r->b, &pieces, grammar_text(r->b, json_string_value(text) + at, n));
    }
    if (v && !json_is_array(chunks) && !json_is_string(text))
        reader_fail(r, RD_E_UNSUPPORTED, r->at, "%regex: only substring_chunks, substring_words and substring_chars");
    if (!r->failed) node = pieces_in_a_row(r, pieces.v, pieces.n);
    mem_free(pieces.v);
    json_decref(v);
    return node;
}

/* --- expressions -------------------------------------------------------------------------------------------------- */

static grammar_node alternatives(struct lark *l, unsigned depth, bool inside);

static grammar_node atom(struct lark *l, unsigned depth)
{
    struct rule_reader *r = &l->r;
    size_t n = name_length(r), at = r->at;
    grammar_node node;

    if (n) {
        const struct named_rule *rule = reader_rule(r, r->text + at, n);

        node = rule ? rule->node : 0;
        r->at += n;
        if (l->in_terminal && !is_terminal(r->text + at)) reader_fail(r, RD_E_INVALID, at, "a rule within a terminal");
        return is_terminal(r->text + at) ? terminal(l, node) : node;
    }
    if (reader_pass(r, "\"")) return terminal(l, text_or_range(r));
    if (reader_pass(r, "/")) return terminal(l, regex(r));
    if (reader_pass(r, "%regex")) return terminal(l, substring(r));
    if (reader_pass(r, "%json")) return terminal(l, inline_schema(r));
    if (reader_peek(r) == '<') return terminal(l, special_token(r));
    if (reader_peek(r) == '(' || reader_peek(r) == '[') {
        bool optional = r->text[r->at++] == '[';

        if (depth > MAX_DEPTH) reader_wrong(r, "groups nested too deeply");
        node = r->failed ? 0 : alternatives(l, depth + 1, true);
        if (!reader_pass(r, optional ? "]" : ")")) reader_wrong(r, "a group that is not closed");
        return optional && !r->failed ? grammar_maybe(r->b, node) : node;
    }
    if (strchr("~&%", reader_peek(r)) && reader_peek(r))
        reader_fail(r, RD_E_UNSUPPORTED, at, "an operator that radish does not know");
    reader_wrong(r, "wanted a name, a \"text\", a /regular expression/ or a (group)");
    return 0;
}

static grammar_node repeat(struct rule_reader *r, grammar_node node)
{
    uint32_t min, max;
    bool braces;

    if (reader_pass(r, "*")) return grammar_repeat(r->b, node, 0, GRAMMAR_UNBOUNDED);
    if (reader_pass(r, "+")) return grammar_repeat(r->b, node, 1, GRAMMAR_UNBOUNDED);
    if (reader_pass(r, "?")) return grammar_repeat(r->b, node, 0, 1);
    braces = reader_pass(r, "{");
    if (!braces && !reader_pass(r, "~")) return node;
    skip_blanks(r);
    min = reader_peek(r) == ',' ? 0 : reader_number(r);
    max = min;
    skip_blanks(r);
    if (reader_pass(r, braces ? "," : "..")) {
        skip_blanks(r);
        max = braces && reader_peek(r) == '}' ? GRAMMAR_UNBOUNDED : reader_number(r);
        skip_blanks(r);
    }
    if (braces && !reader_pass(r, "}")) reader_wrong(r, "a count without its }");
    if (max < min) reader_wrong(r, "counts that run backwards");
    return r->failed ? 0 : grammar_repeat(r->b, node, min, max);
}

static grammar_node alternatives(struct lark *l, unsigned depth, bool inside)
{
    struct rule_reader *r = &l->r;
    struct node_list ways = {0};

    do {
        struct node_list row = {0};

        skip(r, inside);
        while (reader_peek(r) && !strchr("|)]\n", reader_peek(r)) &&
               !(reader_peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] == '>')) {
            grammar_node node = atom(l, depth);

            skip_blanks(r);
            if (reader_peek(r) && strchr("*+?~{", reader_peek(r))) node = repeat(r, node);
            if (reader_peek(r) && strchr("*+?", reader_peek(r))) reader_wrong(r, "nothing to repeat");
            node_list_add(r->b, &row, node);
            skip(r, inside);
        }
        if (reader_pass(r, "->")) { /* the name of an alternative: nothing to a grammar */
            skip_blanks(r);
            r->at += name_length(r);
            skip(r, inside);
        }
        node_list_add(r->b, &ways, node_list_seq(r->b, &row));
    } while (reader_pass(r, "|"));
    return node_list_alt(r->b, &ways);
}

/* --- statements --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *regex;
} common[] = {{"DIGIT", "[0-9]"},
              {"HEXDIGIT", "[0-9a-fA-F]"},
              {"INT", "[0-9]+"},
              {"SIGNED_INT", "[+-]?[0-9]+"},
              {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
              {"FLOAT", "[0-9]+(?:[eE][+-]?[0-9]+)|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
              {"SIGNED_FLOAT", "[+-]?(?:[0-9]+(?:[eE][+-]?[0-9]+)|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
              {"NUMBER", "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
              {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
              {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
              {"LCASE_LETTER", "[a-z]"},
              {"UCASE_LETTER", "[A-Z]"},
              {"LETTER", "[a-zA-Z]"},
              {"WORD", "[a-zA-Z]+"},
              {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
              {"WS_INLINE", "[ \\t]+"},
              {"WS", "[ \\t\\f\\r\\n]+"},
              {"CR", "\\r"},
              {"LF", "\\n"},
              {"NEWLINE", "(?:\\r?\\n)+"},
              {"SH_COMMENT", "#[^\\n]*"},
              {"CPP_COMMENT", "//[^\\n]*"},
              {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
              {"SQL_COMMENT", "--[^\\n]*"}};

static void import_one(struct rule_reader *r, const char *name, size_t n, const char *as, size_t n_as)
{
    for (size_t i = 0; i < sizeof(common) / sizeof(*common); i++) {
        grammar_node node;

        if (strlen(common[i].name) != n || memcmp(common[i].name, name, n) != 0) continue;
        node = reader_define(r, as, n_as);
        if (!r->failed)
            grammar_define(r->b, node, regex_node(r->b, common[i].regex, strlen(common[i].regex), REGEX_WHOLE, ""));
        return;
    }
    reader_fail(r, RD_E_UNSUPPORTED, r->at, "an import that radish does not know");
}

static void import(struct rule_reader *r)
{
    skip_blanks(r);
    if (!reader_pass(r, "common")) {
        reader_fail(r, RD_E_UNSUPPORTED, r->at, "an import from other than common");
        return;
    }
    skip_blanks(r);
    if (reader_pass(r, "(")) {
        do {
            const char *name;
            size_t n;

            skip_lines(r);
            name = r->text + r->at;
            n = name_length(r);
            r->at += n;
            import_one(r, name, n, name, n);
            skip_lines(r);
        } while (reader_pass(r, ","));
        if (!reader_pass(r, ")")) reader_wrong(r, "a list that is not closed");
    } else if (reader_pass(r, ".")) {
        const char *name = r->text + r->at, *as = name;
        size_t n = name_length(r), n_as = n;

        r->at += n;
        skip_blanks(r);
        if (reader_pass(r, "->")) {
            skip_blanks(r);
            as = r->text + r->at;
            n_as = name_length(r);
            r->at += n_as;
        }
        import_one(r, name, n, as, n_as);
    } else {
        reader_wrong(r, "wanted common.NAME");
    }
}

static grammar_node any_text(struct rule_reader *r)
{
    return grammar_repeat(r->b, grammar_class(r->b, NULL, 0, true), 0, GRAMMAR_UNBOUNDED);
}

/* [capture, max_tokens=20, stop="\n"]: 0 or what the rule's text ends with, and holds nowhere else (llguidance calls it
 * stop where it is not of the captured text, suffix where it is: one to a grammar). */
static grammar_node attributes(struct rule_reader *r)
{
    static const char *const of_captures[] = {"capture", "stop_capture"}, *const of_tokens[] = {"max_tokens",
                                                                                                "temperature"};
    grammar_node stop = 0;

    do {
        size_t from, n;
        const char *name;
        bool known = false, valued;

        skip_blanks(r);
        from = r->at;
        name = r->text + from;
        n = name_length(r);
        r->at += n;
        skip_blanks(r);
        valued = reader_pass(r, "=");
        skip_blanks(r);
        for (size_t i = 0; i < 2; i++) {
            if (n == strlen(of_captures[i]) && memcmp(name, of_captures[i], n) == 0) {
                struct buf ignored = {0};

                known = true;
                if (valued && reader_pass(r, "\"")) quoted(r, &ignored);
                buf_deinit(&ignored);
            }
            if (n == strlen(of_tokens[i]) && memcmp(name, of_tokens[i], n) == 0) {
                known = valued;
                while (reader_peek(r) == '.' || (reader_peek(r) >= '0' && reader_peek(r) <= '9')) r->at++;
            }
        }
        if ((n == 4 && memcmp(name, "stop", n) == 0) || (n == 6 && memcmp(name, "suffix", n) == 0)) {
            known = valued;
            if (reader_pass(r, "\""))
                stop = text_or_range(r);
            else if (reader_pass(r, "/"))
                stop = regex(r);
            else
                known = false;
        }
        if (!known) reader_fail(r, RD_E_UNSUPPORTED, from, "an attribute of a rule that radish does not know");
        skip_blanks(r);
    } while (reader_pass(r, ","));
    if (!reader_pass(r, "]")) reader_wrong(r, "attributes without their ]");
    return stop;
}

static void statement(struct lark *l, bool only_ignored)
{
    struct rule_reader *r = &l->r;
    grammar_node node, body, stop = 0;
    const char *name;
    size_t n;

    if (reader_peek(r) == '%') {
        bool ignore = reader_pass(r, "%ignore");

        l->in_terminal = true;
        if (ignore && only_ignored)
            node_list_add(r->b, &l->ignored, alternatives(l, 0, false));
        else if (ignore)
            skip_line(r);
        else if (reader_pass(r, "%llguidance"))
            json_decref(inline_json(r, "%llguidance: not a JSON object"));
        else if (!reader_pass(r, "%import"))
            reader_fail(r, RD_E_UNSUPPORTED, r->at, "a directive other than %import, %ignore and %llguidance");
        else if (!only_ignored)
            import(r);
        else
            skip_line(r);
        return;
    }
    if (only_ignored) {
        skip_line(r);
        return;
    }
    if (reader_peek(r) == '?' || reader_peek(r) == '!') r->at++;
    name = r->text + r->at;
    n = name_length(r);
    if (n == 0) {
        reader_wrong(r, "wanted name: ...");
        return;
    }
    r->at += n;
    if (reader_peek(r) == '.') { /* a priority, for a lexer */
        r->at++;
        if (reader_peek(r) == '-') r->at++;
        reader_number(r);
    }
    if (reader_pass(r, "[")) stop = attributes(r);
    if (reader_peek(r) == '{') reader_fail(r, RD_E_UNSUPPORTED, r->at, "parameters of a rule");
    skip_blanks(r);
    if (!reader_pass(r, ":")) reader_wrong(r, "wanted name: ...");
    node = reader_define(r, name, n);
    if (r->failed) return;
    l->in_terminal = is_terminal(name);
    body = alternatives(l, 0, false);
    if (stop && !r->failed) {
        grammar_node met = grammar_pair(r->b, any_text(r), grammar_pair(r->b, stop, any_text(r)));

        body = grammar_pair(r->b, grammar_except(r->b, body, met), stop);
    }
    if (!r->failed) grammar_define(r->b, node, body);
    if (reader_peek(r) && reader_peek(r) != '\n') reader_wrong(r, "a group that was not opened");
}

static void read_all(struct lark *l, bool only_ignored)
{
    struct rule_reader *r = &l->r;

    r->at = 0;
    for (skip_lines(r); r->at < r->n && !r->failed && grammar_status(r->b, NULL) == RD_OK; skip_lines(r))
        statement(l, only_ignored);
}

static grammar_node from_lark(struct grammar_builder *b, const char *text, size_t n)
{
    struct lark l = {.gap = 0};
    grammar_node root;

    if (!reader_init(&l.r, b, text, n)) return 0;
    read_all(&l, true); /* what is ignored, before it is needed */
    if (l.ignored.n) {
        grammar_node rule = grammar_rule(b, "ignored", 7);

        grammar_define(b, rule, grammar_repeat(b, node_list_alt(b, &l.ignored), 0, GRAMMAR_UNBOUNDED));
        l.gap = rule;
    }
    if (!l.r.failed) read_all(&l, false);
    root = reader_finish(&l.r, "start");
    mem_free(l.ignored.v);
    return l.gap && !l.r.failed ? grammar_pair(b, l.gap, root) : root;
}

grammar_node grammar_from_ebnf(struct grammar_builder *b, const char *text, size_t n)
{
    return n && memmem(text, n, "::=", 3) ? grammar_from_gbnf(b, text, n) : from_lark(b, text, n);
}
