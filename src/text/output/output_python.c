/* text/output/output_python.c - calls written as Python: [f(a=1), g(b="x")] and code blocks of calls.
 *
 * A call is held until its closing parenthesis, then its arguments are converted at once: literals only (text, numbers,
 * True, False, None, lists, tuples, dicts). Anything else is not a call. Positional arguments take their names from the
 * schema's order.
 */
#include <string.h>
#include "base/utf8.h"
#include "text/output/output_impl.h"

#define NEST_MAX 32u

enum { P_OPEN, P_NAME, P_ARGS, P_CLOSE };

/* ---- literals ---- */

static void skip_space(const char *s, size_t n, size_t *at)
{
    while (*at < n && output_is_space(s[*at])) ++*at;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Digits of an escape; false: too few. */
static bool hex_digits(const char *s, size_t n, size_t at, size_t count, uint32_t *out)
{
    *out = 0;
    if (n - at < count) return false;
    for (size_t i = 0; i < count; i++) {
        const char *digits = "0123456789abcdef", *d = s[at + i] ? strchr(digits, s[at + i] | 32) : NULL;

        if (!d || !is_word(s[at + i])) return false;
        *out = *out << 4 | (uint32_t)(d - digits);
    }
    return true;
}

/* The escape whose letter is at *at; appends what it stands for. Unknown ones stay as written, as in Python. */
static void put_escape(const char *s, size_t n, size_t *at, struct buf *out)
{
    static const char from[] = "nrtbfav0\\'\"", to[] = "\n\r\t\b\f\a\v\0\\'\"";
    char c = s[*at], utf8[UTF8_MAX_BYTES];
    const char *known = c ? strchr(from, c) : NULL;
    size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t cp;

    ++*at;
    if (known) {
        buf_putc(out, to[known - from]);
    } else if (count && hex_digits(s, n, *at, count, &cp)) {
        *at += count;
        buf_append(out, utf8, (size_t)utf8_encode(cp, utf8));
    } else if (c != '\n') {
        buf_putc(out, '\\');
        buf_putc(out, c);
    }
}

static bool put_string(const char *s, size_t n, size_t *at, struct buf *out)
{
    char quote = s[*at];
    bool triple = n - *at >= 3 && s[*at + 1] == quote && s[*at + 2] == quote;
    size_t width = triple ? 3 : 1;
    struct buf text = {0};

    for (*at += width; *at < n;) {
        char c = s[*at];

        if (c == quote && (!triple || (n - *at >= 3 && s[*at + 1] == quote && s[*at + 2] == quote))) {
            *at += width;
            buf_putc(out, '"');
            buf_put_json(out, text.n ? text.data : "", text.n);
            buf_putc(out, '"');
            if (text.failed) out->failed = true;
            buf_deinit(&text);
            return true;
        }
        ++*at;
        if (c == '\\' && *at < n)
            put_escape(s, n, at, &text);
        else
            buf_putc(&text, c);
    }
    buf_deinit(&text);
    return false;
}

static size_t count_digits(const char *s, size_t n, size_t at)
{
    size_t i = at;

    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    return i - at;
}

/* Numbers that Python and JSON write alike. */
static bool put_number(const char *s, size_t n, size_t *at, struct buf *out)
{
    size_t i = *at + (s[*at] == '-'), digits = count_digits(s, n, i);

    if (!digits || (s[i] == '0' && digits > 1)) return false;
    i += digits;
    if (i < n && s[i] == '.') {
        digits = count_digits(s, n, i + 1);
        if (!digits) return false;
        i += 1 + digits;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        size_t sign = i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-');

        digits = count_digits(s, n, i + 1 + sign);
        if (!digits) return false;
        i += 1 + sign + digits;
    }
    if (i < n && (is_word(s[i]) || s[i] == '.')) return false;
    buf_append(out, s + *at, i - *at);
    *at = i;
    return true;
}

static bool put_word(const char *s, size_t n, size_t *at, struct buf *out)
{
    static const char *const words[][2] = {{"True", "true"},   {"true", "true"}, {"False", "false"},
                                           {"false", "false"}, {"None", "null"}, {"null", "null"}};
    size_t end = *at;

    while (end < n && is_word(s[end])) end++;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (end - *at != strlen(words[i][0]) || memcmp(s + *at, words[i][0], end - *at) != 0) continue;
        buf_puts(out, words[i][1]);
        *at = end;
        return true;
    }
    return false;
}

static bool put_container(const char *s, size_t n, size_t *at, uint32_t depth, struct buf *out)
{
    char open = s[*at], close = open == '{' ? '}' : open == '(' ? ')' : ']';

    ++*at;
    buf_putc(out, open == '{' ? '{' : '[');
    for (bool first = true;; first = false) {
        skip_space(s, n, at);
        if (*at < n && s[*at] == close) break;
        if (!first) buf_puts(out, ", ");
        if (open == '{') {
            if (*at >= n || (s[*at] != '"' && s[*at] != '\'') || !put_string(s, n, at, out)) return false;
            skip_space(s, n, at);
            if (*at >= n || s[(*at)++] != ':') return false;
            buf_puts(out, ": ");
        }
        if (!output_python_value(s, n, at, depth + 1, out)) return false;
        skip_space(s, n, at);
        if (*at < n && s[*at] == ',')
            ++*at;
        else if (*at >= n || s[*at] != close)
            return false;
    }
    ++*at;
    buf_putc(out, open == '{' ? '}' : ']');
    return true;
}

bool output_python_value(const char *s, size_t n, size_t *at, uint32_t depth, struct buf *out)
{
    char c;

    skip_space(s, n, at);
    if (*at >= n || depth > NEST_MAX) return false;
    c = s[*at];
    if (c == '"' || c == '\'') return put_string(s, n, at, out);
    if (c == '[' || c == '{' || c == '(') return put_container(s, n, at, depth, out);
    if (c == '-' || (c >= '0' && c <= '9')) return put_number(s, n, at, out);
    return put_word(s, n, at, out);
}

/* ---- arguments of a call ---- */

/* name= at *at: its length, and *at behind the sign; 0: a positional argument. */
static size_t keyword(const char *s, size_t n, size_t *at)
{
    size_t end = *at, sign;

    while (end < n && is_word(s[end])) end++;
    sign = end;
    skip_space(s, n, &sign);
    if (end == *at || sign >= n || s[sign] != '=') return 0;
    end -= *at;
    *at = sign + 1;
    return end;
}

static bool convert_args(const struct output_parser *p, const char *s, size_t n, struct buf *out)
{
    size_t at = 0;

    buf_putc(out, '{');
    for (uint32_t i = 0;; i++) {
        const char *name, *positional;
        size_t n_name;

        skip_space(s, n, &at);
        if (at == n) break;
        if (i) buf_puts(out, ", ");
        name = s + at;
        n_name = keyword(s, n, &at);
        if (!n_name) {
            positional = output_param_name(p, i);
            if (!positional) return false;
            name = positional;
            n_name = strlen(name);
        }
        buf_putc(out, '"');
        buf_put_json(out, name, n_name);
        buf_puts(out, "\": ");
        if (!output_python_value(s, n, &at, 0, out)) return false;
        skip_space(s, n, &at);
        if (at < n && s[at++] != ',') return false;
    }
    buf_putc(out, '}');
    return true;
}

/* ---- the machine ---- */

/* The name is complete; the parenthesis is behind it. */
static enum output_step name_ends(struct output_parser *p)
{
    static const char prefix[] = "default_api.";
    struct output_call *c = &p->call;

    if (p->n_name == 5 && memcmp(p->name, "print", 5) == 0 && !c->wrapped && !(p->o.tools && output_name_known(p))) {
        c->wrapped = true;
        p->n_name = 0;
        return STEP_ON;
    }
    if (p->n_name > sizeof(prefix) - 1 && memcmp(p->name, prefix, sizeof(prefix) - 1) == 0) {
        p->n_name -= (uint32_t)(sizeof(prefix) - 1);
        memmove(p->name, p->name + sizeof(prefix) - 1, p->n_name);
    }
    p->name[p->n_name] = 0;
    if (!output_name_known(p)) return STEP_FAIL;
    c->at = P_ARGS;
    c->from = p->cur;
    return STEP_ON;
}

static enum output_step name_byte(struct output_parser *p, char b)
{
    p->cur++;
    if (p->n_name == 0 && output_is_space(b)) return STEP_ON;
    if (b == '(') return name_ends(p);
    if ((!is_word(b) && b != '.' && b != '-') || p->n_name == LIMIT_TOOL_NAME_BYTES) return STEP_FAIL;
    p->name[p->n_name++] = b;
    return STEP_ON;
}

static enum output_step args_end(struct output_parser *p)
{
    struct output_call *c = &p->call;

    buf_clear(&p->value);
    if (!convert_args(p, output_held(p) + c->from, p->cur - c->from, &p->value)) return STEP_FAIL;
    p->cur++;
    output_announce(p);
    output_args(p, p->value.data, p->value.n);
    c->args_done = true;
    c->at = P_CLOSE;
    return c->wrapped ? STEP_ON : STEP_DONE;
}

/* Looks for the closing parenthesis: knows strings and brackets only. */
static enum output_step args_byte(struct output_parser *p, char b)
{
    struct output_call *c = &p->call;

    if (c->quote) {
        char three[4] = {c->quote, c->quote, c->quote, 0};
        enum output_match m = MATCH_FULL;

        if (c->scan.escaped) {
            c->scan.escaped = false;
        } else if (b == '\\') {
            c->scan.escaped = true;
        } else if (b == c->quote) {
            if (c->triple) m = output_match(p, p->cur, three);
            if (m == MATCH_PART) return STEP_MORE;
            if (m == MATCH_FULL) {
                c->quote = 0;
                p->cur += c->triple ? 2 : 0;
            }
        }
    } else if (b == '"' || b == '\'') {
        char three[4] = {b, b, b, 0};
        enum output_match m = output_match(p, p->cur, three);

        if (m == MATCH_PART) return STEP_MORE;
        c->quote = b;
        c->triple = m == MATCH_FULL;
        p->cur += c->triple ? 2 : 0;
    } else if (b == '(' || b == '[' || b == '{') {
        c->depth++;
    } else if (b == ')' && c->depth == 0) {
        return args_end(p);
    } else if (b == ')' || b == ']' || b == '}') {
        if (c->depth-- == 0) return STEP_FAIL;
    }
    p->cur++;
    return STEP_ON;
}

enum output_step output_python_step(struct output_parser *p)
{
    struct output_call *c = &p->call;
    char b;

    if (c->at == P_OPEN && (p->head == HEAD_PY_CODE || p->container)) {
        if (!p->container) p->container = 'c';
        c->at = P_NAME;
    }
    if (p->cur >= output_n_held(p)) return STEP_MORE;
    b = output_held(p)[p->cur];
    switch (c->at) {
    case P_OPEN:
        if (b == '[') {
            p->container = 'p';
            c->at = P_NAME;
        } else if (!output_is_space(b)) {
            return STEP_FAIL;
        }
        p->cur++;
        return STEP_ON;
    case P_NAME:
        return name_byte(p, b);
    case P_ARGS:
        return args_byte(p, b);
    default:
        break;
    }
    p->cur++; /* P_CLOSE: of print( */
    if (b == ')') return STEP_DONE;
    return output_is_space(b) ? STEP_ON : STEP_FAIL;
}
