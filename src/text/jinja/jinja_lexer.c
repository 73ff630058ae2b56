/* text/jinja/jinja_lexer.c - template text to tokens, with the white space control of trim_blocks and lstrip_blocks.
 *
 * Text outside of tags is one T_TEXT token; comments vanish; raw blocks become text. `-` beside a delimiter strips all
 * white space on that side, `+` keeps it; a newline after %} or #} goes; blanks between a line's start and {% or {# go.
 */
#include "text/jinja/jinja_ast.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/jinja/jinja_run.h"

struct lexer {
    struct jparse *p;
    size_t i; /* next byte */
    int line;
    bool line_start; /* the last tag ended with a newline, or nothing came before */
};

rd_status jparse_fail(struct jparse *p, int line, const char *format, ...)
{
    char text[384];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set(p->err, RD_E_TEMPLATE, "line %d: %s", line, text);
}

rd_status jparse_nomem(struct jparse *p)
{
    if (p->arena->out_of_limit)
        return error_set(p->err, RD_E_LIMIT, "template_limit: the template needs too much memory");
    return error_set(p->err, RD_E_NOMEM, "out of memory while compiling a chat template");
}

rd_status jparse_enter(struct jparse *p)
{
    if (p->depth >= LIMIT_TEMPLATE_DEPTH)
        return error_set(p->err, RD_E_LIMIT, "template_limit: line %d: nested deeper than %u", jparse_peek(p)->line,
                         LIMIT_TEMPLATE_DEPTH);
    p->depth++;
    return RD_OK;
}

static rd_status push(struct lexer *x, struct jtoken t)
{
    struct jparse *p = x->p;

    if (!mem_grow((void **)&p->tokens, &p->cap_tokens, p->n_tokens + 1, sizeof(*p->tokens))) return jparse_nomem(p);
    if (t.line == 0) t.line = x->line;
    p->tokens[p->n_tokens++] = t;
    return RD_OK;
}

static void advance(struct lexer *x, size_t to)
{
    for (; x->i < to; x->i++)
        if (x->p->src[x->i] == '\n') x->line++;
}

static size_t skip_space(const struct jparse *p, size_t i)
{
    while (i < p->n) {
        size_t next = i;
        if (!jinja_is_space(jinja_next_cp(p->src, p->n, &next))) break;
        i = next;
    }
    return i;
}

/* End of src[from..to) without trailing white space. */
static size_t rstrip(const struct jparse *p, size_t from, size_t to)
{
    size_t end = from;

    for (size_t i = from; i < to;)
        if (!jinja_is_space(jinja_next_cp(p->src, to, &i))) end = i;
    return end;
}

/* The text before a tag. sign: the byte after the tag's delimiter; block: not {{. */
static rd_status push_text(struct lexer *x, size_t from, size_t to, char sign, bool block)
{
    const struct jparse *p = x->p;
    size_t end = to;

    if (sign == '-') {
        end = rstrip(p, from, to);
    } else if (sign != '+' && block) {
        size_t line = to;
        while (line > from && p->src[line - 1] != '\n') line--;
        if ((line > from || x->line_start) && rstrip(p, line, to) == line) end = line;
    }
    return end > from ? push(x, (struct jtoken){.kind = T_TEXT, .s = p->src + from, .n = end - from}) : RD_OK;
}

/* Length of the end of a tag (`%}` with its sign and what it swallows) at i, or 0. */
static size_t tag_end(const struct jparse *p, size_t i, const char *close, bool trim)
{
    const char *s = p->src + i;
    size_t left = p->n - i;

    if (left >= 3 && s[0] == '-' && s[1] == close[0] && s[2] == close[1]) return skip_space(p, i + 3) - i;
    if (left >= 3 && trim && s[0] == '+' && s[1] == close[0] && s[2] == close[1]) return 3;
    if (left >= 2 && s[0] == close[0] && s[1] == close[1]) return trim && left >= 3 && s[2] == '\n' ? 3 : 2;
    return 0;
}

static void end_tag(struct lexer *x, size_t to)
{
    advance(x, to);
    x->line_start = x->p->src[to - 1] == '\n';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}
static bool is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

/* digits with single underscores between them; returns the end */
static size_t skip_digits(const struct jparse *p, size_t i)
{
    while (i < p->n && (is_digit(p->src[i]) || (p->src[i] == '_' && i + 1 < p->n && is_digit(p->src[i + 1])))) i++;
    return i;
}

static int digit_value(char c)
{
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return 99;
}

/* s[0..n) with underscores, in a base. */
static bool parse_digits(const char *s, size_t n, int base, int64_t *out)
{
    int64_t v = 0;

    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_') continue;
        if (digit_value(s[i]) >= base || !checked_mul(v, (int64_t)base, &v) ||
            !checked_add(v, (int64_t)digit_value(s[i]), &v))
            return false;
    }
    *out = v;
    return true;
}

static rd_status lex_float(struct lexer *x, size_t end)
{
    struct jparse *p = x->p;
    struct jtoken t = {.kind = T_FLOAT};
    char text[512];
    size_t n = 0;

    for (size_t i = x->i; i < end && n < sizeof(text); i++)
        if (p->src[i] != '_') text[n++] = p->src[i];
    if (n == sizeof(text) || !parse_f64(text, n, &t.f)) return jparse_fail(p, x->line, "number too large");
    advance(x, end);
    return push(x, t);
}

static rd_status lex_number(struct lexer *x)
{
    struct jparse *p = x->p;
    const char *s = p->src;
    struct jtoken t = {.kind = T_INT};
    size_t from = x->i, end = skip_digits(p, x->i), frac = end, exponent;
    int base = 10;

    if (s[from] == '0' && from + 2 < p->n && strchr("xXoObB", s[from + 1])) {
        base = (s[from + 1] | 32) == 'x' ? 16 : (s[from + 1] | 32) == 'o' ? 8 : 2;
        for (end = from + 2; end < p->n && (digit_value(s[end]) < base || s[end] == '_'); end++) {}
        if (end == from + 2) return jparse_fail(p, x->line, "malformed number");
        from += 2;
    } else {
        if (end + 1 < p->n && s[end] == '.' && is_digit(s[end + 1])) frac = skip_digits(p, end + 1);
        if (frac < p->n && (s[frac] | 32) == 'e') {
            exponent = frac + 1;
            if (exponent < p->n && (s[exponent] == '+' || s[exponent] == '-')) exponent++;
            if (exponent < p->n && is_digit(s[exponent])) frac = skip_digits(p, exponent);
        }
        if (frac > end) return lex_float(x, frac);
    }
    if (base == 10 && s[from] == '0')
        for (size_t i = from; i < end; i++)
            if (s[i] != '0' && s[i] != '_') return jparse_fail(p, x->line, "malformed number: a 0 before its digits");
    if (!parse_digits(s + from, end - from, base, &t.i)) return jparse_fail(p, x->line, "integer too large");
    advance(x, end);
    return push(x, t);
}

/* \x41 \u0041 \U00000041 \101 at s[i] (behind the backslash): the character and the bytes read, 0 when it is none of
 * them. */
static size_t numeric_escape(const char *s, size_t n, size_t i, uint32_t *cp)
{
    size_t want = s[i] == 'x' ? 2 : s[i] == 'u' ? 4 : s[i] == 'U' ? 8 : 0, k = 0;

    *cp = 0;
    if (want) {
        for (k = 0; k < want && i + 1 + k < n && digit_value(s[i + 1 + k]) < 16; k++)
            *cp = *cp << 4 | (uint32_t)digit_value(s[i + 1 + k]);
        return k == want ? want + 1 : 0;
    }
    for (k = 0; k < 3 && i + k < n && s[i + k] >= '0' && s[i + k] <= '7'; k++)
        *cp = *cp << 3 | (uint32_t)(s[i + k] - '0');
    return k;
}

/* Python's escapes; an unknown one keeps its backslash. out: at least n bytes (no escape grows). */
static rd_status unescape(struct lexer *x, const char *s, size_t n, char *out, size_t *n_out)
{
    static const char plain[] = "n\nt\tr\ra\ab\bf\fv\v\\\\''\"\"";
    char character[UTF8_MAX_BYTES];
    size_t o = 0, used, n_character;
    uint32_t cp;

    for (size_t i = 0; i < n; i++) {
        const char *simple = NULL;
        if (s[i] != '\\' || i + 1 == n) {
            out[o++] = s[i];
            continue;
        }
        i++;
        if (s[i] == '\n') continue;
        for (const char *k = plain; *k && !simple; k += 2)
            if (*k == s[i]) simple = k + 1;
        if (simple) {
            out[o++] = *simple;
            continue;
        }
        used = numeric_escape(s, n, i, &cp);
        if (!used && strchr("xuUN", s[i])) return jparse_fail(x->p, x->line, "malformed \\%c escape in a string", s[i]);
        if (!used) {
            out[o++] = '\\';
            out[o++] = s[i];
            continue;
        }
        if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
            return jparse_fail(x->p, x->line, "an escape in a string names no character");
        n_character = (size_t)utf8_encode(cp, character);
        memcpy(out + o, character, n_character);
        o += n_character;
        i += used - 1;
    }
    *n_out = o;
    return RD_OK;
}

static rd_status lex_string(struct lexer *x)
{
    struct jparse *p = x->p;
    struct jtoken t = {.kind = T_STRING, .line = x->line};
    size_t from = x->i + 1, end = from;
    char *text;
    rd_status st;

    while (end < p->n && p->src[end] != p->src[x->i]) end += p->src[end] == '\\' ? 2 : 1;
    if (end >= p->n) return jparse_fail(p, x->line, "a string does not end");
    text = arena_alloc(p->arena, end - from + 1, 1);
    if (!text) return jparse_nomem(p);
    if ((st = unescape(x, p->src + from, end - from, text, &t.n)) != RD_OK) return st;
    t.s = text;
    advance(x, end + 1);
    return push(x, t);
}

static rd_status lex_operator(struct lexer *x, char *stack, uint32_t *depth)
{
    static const struct {
        const char *text;
        enum jtoken_kind kind;
    } table[] = {
        {"//", T_FLOORDIV}, {"**", T_POW},      {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},    {"<=", T_LE},
        {"+", T_ADD},       {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},
        {"[", T_LBRACKET},  {"]", T_RBRACKET},  {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE},
        {">", T_GT},        {"<", T_LT},        {"=", T_ASSIGN}, {".", T_DOT},    {":", T_COLON},  {"|", T_PIPE},
        {",", T_COMMA},     {";", T_SEMICOLON},
    };
    struct jparse *p = x->p;
    const char *s = p->src + x->i;

    for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++) {
        size_t n = strlen(table[k].text);
        if (n > p->n - x->i || memcmp(s, table[k].text, n)) continue;
        if (strchr("([{", s[0])) {
            if (*depth >= LIMIT_TEMPLATE_DEPTH)
                return error_set(p->err, RD_E_LIMIT, "template_limit: line %d: nested deeper than %u", x->line,
                                 LIMIT_TEMPLATE_DEPTH);
            stack[(*depth)++] = s[0] == '(' ? ')' : s[0] == '[' ? ']' : '}';
        } else if (strchr(")]}", s[0])) {
            if (*depth == 0) return jparse_fail(p, x->line, "unexpected '%c'", s[0]);
            if (stack[--*depth] != s[0])
                return jparse_fail(p, x->line, "unexpected '%c', expected '%c'", s[0], stack[*depth]);
        }
        advance(x, x->i + n);
        return push(x, (struct jtoken){.kind = table[k].kind});
    }
    return jparse_fail(p, x->line, "unexpected character 0x%02x", (unsigned char)s[0]);
}

/* The inside of {{ }} or {% %}. */
static rd_status lex_code(struct lexer *x, enum jtoken_kind end_kind)
{
    struct jparse *p = x->p;
    char stack[LIMIT_TEMPLATE_DEPTH];
    uint32_t depth = 0;
    int begin = x->line;
    rd_status st = RD_OK;

    while (st == RD_OK) {
        size_t n, end;
        advance(x, skip_space(p, x->i));
        if (x->i >= p->n) return jparse_fail(p, begin, "a tag does not end");
        n = depth ? 0 : tag_end(p, x->i, end_kind == T_VAR_END ? "}}" : "%}", end_kind == T_BLOCK_END);
        if (n) {
            st = push(x, (struct jtoken){.kind = end_kind});
            end_tag(x, x->i + n);
            return st;
        }
        if (is_digit(p->src[x->i]))
            st = lex_number(x);
        else if (p->src[x->i] == '\'' || p->src[x->i] == '"')
            st = lex_string(x);
        else if (is_name_start(p->src[x->i])) {
            for (end = x->i; end < p->n && (is_name_start(p->src[end]) || is_digit(p->src[end])); end++) {}
            st = push(x, (struct jtoken){.kind = T_NAME, .s = p->src + x->i, .n = end - x->i});
            advance(x, end);
        } else {
            st = lex_operator(x, stack, &depth);
        }
    }
    return st;
}

/* `{%- name` at i: where the name ends, else 0. */
static size_t match_block(const struct jparse *p, size_t i, const char *name)
{
    size_t n = strlen(name);

    if (p->n - i < 2 || p->src[i] != '{' || p->src[i + 1] != '%') return 0;
    i += 2;
    if (i < p->n && (p->src[i] == '-' || p->src[i] == '+')) i++;
    i = skip_space(p, i);
    return p->n - i >= n && !memcmp(p->src + i, name, n) ? skip_space(p, i + n) : 0;
}

/* {% raw %}: returns with *done when it is one. */
static rd_status lex_raw(struct lexer *x, bool *done)
{
    struct jparse *p = x->p;
    size_t i = match_block(p, x->i, "raw"), n = i ? tag_end(p, i, "%}", false) : 0, from;
    rd_status st;

    *done = n > 0;
    if (!n) return RD_OK;
    from = i + n;
    x->line_start = p->src[from - 1] == '\n';
    for (i = from; i + 1 < p->n; i++) {
        size_t end = p->src[i] == '{' ? match_block(p, i, "endraw") : 0;
        n = end ? tag_end(p, end, "%}", true) : 0;
        if (!n) continue;
        if ((st = push_text(x, from, i, p->src[i + 2], true)) != RD_OK) return st;
        end_tag(x, end + n);
        return RD_OK;
    }
    return jparse_fail(p, x->line, "a raw block does not end");
}

static rd_status lex_comment(struct lexer *x)
{
    struct jparse *p = x->p;

    for (size_t i = x->i + 2; i + 1 < p->n; i++) {
        size_t n = strchr("-+#", p->src[i]) && p->src[i] ? tag_end(p, i, "#}", true) : 0;
        if (!n) continue;
        end_tag(x, i + n);
        return RD_OK;
    }
    return jparse_fail(p, x->line, "a comment does not end");
}

rd_status jinja_lex(struct jparse *p)
{
    struct lexer x = {.p = p, .line = 1, .line_start = true};
    rd_status st = RD_OK;

    while (st == RD_OK && x.i < p->n) {
        size_t from = x.i, i = from;
        bool raw = false, found;
        char kind, sign;

        while (i + 1 < p->n && !(p->src[i] == '{' && strchr("{%#", p->src[i + 1]) && p->src[i + 1])) i++;
        found = i + 1 < p->n;
        if (!found) {
            st = push(&x, (struct jtoken){.kind = T_TEXT, .s = p->src + from, .n = p->n - from});
            advance(&x, p->n);
            break;
        }
        kind = p->src[i + 1];
        sign = i + 2 < p->n ? p->src[i + 2] : 0;
        if ((st = push_text(&x, from, i, sign, kind != '{')) != RD_OK) break;
        advance(&x, i);
        if (kind == '#') {
            st = lex_comment(&x);
            continue;
        }
        if (kind == '%' && ((st = lex_raw(&x, &raw)) != RD_OK || raw)) continue;
        st = push(&x, (struct jtoken){.kind = kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN});
        advance(&x, i + 2 + (sign == '-' || sign == '+'));
        if (st == RD_OK) st = lex_code(&x, kind == '{' ? T_VAR_END : T_BLOCK_END);
    }
    return st == RD_OK ? push(&x, (struct jtoken){.kind = T_EOF}) : st;
}
