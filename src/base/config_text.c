/* base/config_text.c - one pass; texts are unescaped in place, where they never grow. */
#include "base/config_text.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"

struct reader {
    struct config *c;
    char *at, *end; /* *end is a 0 of ours */
    uint32_t line;
    const char *name;
    struct rd_error *err;
};

#define FAIL(r, ...) fail_at(r, RD_E_FORMAT, __VA_ARGS__)
static rd_status fail_at(struct reader *r, rd_status st, const char *format, ...) __attribute__((format(printf, 3, 4)));
static rd_status fail_at(struct reader *r, rd_status st, const char *format, ...)
{
    char what[200];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return error_set(r->err, st, "%s:%u: %s", r->name, r->line, what);
}

static bool is_bare(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static void skip_blanks(struct reader *r)
{
    while (*r->at == ' ' || *r->at == '\t') r->at++;
}

/* A comment up to its line's end, which stays. */
static rd_status skip_comment(struct reader *r)
{
    if (*r->at != '#') return RD_OK;
    for (; r->at < r->end && *r->at != '\n'; r->at++) {
        bool is_end = *r->at == '\r' && r->at[1] == '\n';

        if (((unsigned char)*r->at < 32 && *r->at != '\t' && !is_end) || *r->at == 127)
            return FAIL(r, "a control character in a comment");
    }
    if (r->at[-1] == '\r') r->at--;
    return RD_OK;
}

/* true: a line ended here. */
static bool take_line_end(struct reader *r)
{
    if (*r->at == '\r' && r->at[1] == '\n') r->at++;
    if (*r->at != '\n') return false;
    r->at++;
    r->line++;
    return true;
}

/* "\u00e9": n hexadecimal digits of a character. */
static rd_status read_character(struct reader *r, int n, char **out)
{
    uint32_t cp = 0;

    for (int i = 0; i < n; i++, r->at++) {
        char c = *r->at;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;

        if (digit < 0) return FAIL(r, "\\u takes 4 and \\U takes 8 hexadecimal digits");
        cp = cp << 4 | (uint32_t)digit;
    }
    if (cp == 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return FAIL(r, "\\u of what is no character");
    *out += utf8_encode(cp, *out);
    return RD_OK;
}

static rd_status read_escape(struct reader *r, char **out)
{
    static const char letters[] = "btnfr\"\\", bytes[] = "\b\t\n\f\r\"\\";
    const char *found;
    char c = *r->at;

    if (c == 'u' || c == 'U') {
        r->at++;
        return read_character(r, c == 'u' ? 4 : 8, out);
    }
    found = c ? strchr(letters, c) : NULL;
    if (!found) return FAIL(r, "an unknown escape in a text: \\\\ is a backslash, and 'single quotes' take no escapes");
    *(*out)++ = bytes[found - letters];
    r->at++;
    return RD_OK;
}

/* at: behind the first quote. */
static rd_status read_text(struct reader *r, char quote, const char **text)
{
    char *out = r->at;

    *text = out;
    if (*r->at == quote && r->at[1] == quote) return FAIL(r, "texts over several lines are not taken here");
    while (*r->at != quote) {
        unsigned char c = (unsigned char)*r->at;

        if (r->at == r->end || c == '\n' || c == '\r') return FAIL(r, "a text without its closing %c", quote);
        if ((c < 32 && c != '\t') || c == 127) return FAIL(r, "a control character in a text");
        if (c == '\\' && quote == '"') {
            rd_status st;

            r->at++;
            st = read_escape(r, &out);
            if (st != RD_OK) return st;
        } else {
            *out++ = *r->at++;
        }
    }
    r->at++;
    *out = 0;
    return RD_OK;
}

/* Digits, with single _ between them. */
static bool skip_digits(const char **s)
{
    const char *begin = *s;

    while ((**s >= '0' && **s <= '9') || (**s == '_' && *s > begin && (*s)[-1] != '_')) (*s)++;
    return *s > begin && (*s)[-1] != '_';
}

/* 12, -3, 1_000, 0.5, 1e6 */
static bool is_number(const char *s)
{
    s += *s == '-' || *s == '+';
    if (*s == '0' && s[1] >= '0' && s[1] <= '9') return false;
    if (!skip_digits(&s)) return false;
    if (*s == '.' && (s++, !skip_digits(&s))) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '-' || *s == '+';
        if (!skip_digits(&s)) return false;
    }
    return *s == 0;
}

/* What stands behind the word is still to be read. So the word moves a byte to the left, where something has been read
 * already, and its end finds room. */
static rd_status read_bare(struct reader *r, struct config_value *v)
{
    char word[64], *out;
    size_t n = strcspn(r->at, " \t\r\n,]#");

    if (n == 0) return FAIL(r, "a value is missing");
    if (n >= sizeof(word)) return FAIL(r, "a value that is neither a number, true, false nor a text in quotes");
    memcpy(word, r->at, n);
    word[n] = 0;
    r->at += n;
    if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0) {
        v->kind = CONFIG_BOOL;
        v->text = *word == 't' ? "true" : "false";
        return RD_OK;
    }
    if (!is_number(word)) return FAIL(r, "%.40s is neither a number, true nor false: texts stand in \"quotes\"", word);
    v->kind = CONFIG_NUMBER;
    v->text = out = r->at - n - 1;
    for (const char *s = word + (*word == '+'); *s; s++)
        if (*s != '_') *out++ = *s;
    *out = 0;
    return RD_OK;
}

static rd_status add_value(struct reader *r)
{
    struct config *c = r->c;
    struct config_value v = {CONFIG_TEXT, ""};
    rd_status st;

    if (*r->at == '"' || *r->at == '\'') {
        r->at++;
        st = read_text(r, r->at[-1], &v.text);
    } else if (*r->at == '{' || *r->at == '[') {
        st = FAIL(r, "a table, or a list within a list: a list of plain values is all that is taken here");
    } else {
        st = read_bare(r, &v);
    }
    if (st != RD_OK) return st;
    if (c->n_values == CONFIG_MOST_VALUES) return fail_at(r, RD_E_LIMIT, "more than %u values", CONFIG_MOST_VALUES);
    if (!mem_grow((void **)&c->values, &c->cap_values, c->n_values + 1, sizeof(*c->values)))
        return fail_at(r, RD_E_NOMEM, "out of memory");
    c->values[c->n_values++] = v;
    return RD_OK;
}

/* Blanks, comments and ends of lines within a list. */
static rd_status skip_space(struct reader *r)
{
    rd_status st = RD_OK;

    do {
        skip_blanks(r);
        st = skip_comment(r);
    } while (st == RD_OK && take_line_end(r));
    return st;
}

/* at: behind the bracket. */
static rd_status read_list(struct reader *r)
{
    for (;;) {
        rd_status st = skip_space(r);

        if (st != RD_OK) return st;
        if (*r->at == ']') break;
        st = add_value(r);
        if (st == RD_OK) st = skip_space(r);
        if (st != RD_OK) return st;
        if (*r->at == ']') break;
        if (*r->at != ',') return FAIL(r, "a list wants a comma between its values, and ] at its end");
        r->at++;
    }
    r->at++;
    return RD_OK;
}

static rd_status read_key(struct reader *r, struct config_key *key)
{
    char *begin = r->at, *end, *name = begin - 1; /* a byte to the left, as bare words */

    *key = (struct config_key){.name = name, .line = r->line, .at = (uint32_t)r->c->n_values};
    if (*begin == '[') return FAIL(r, "[tables] are not taken here: keys stand for themselves");
    if (*begin == '"' || *begin == '\'') return FAIL(r, "keys stand without quotes");
    while (is_bare(*r->at)) r->at++;
    end = r->at;
    if (end == begin) return FAIL(r, "wanted: key = value");
    skip_blanks(r);
    if (*r->at == '.') return FAIL(r, "dotted keys are not taken here");
    if (*r->at != '=') return FAIL(r, "wanted: key = value");
    r->at++;
    skip_blanks(r);
    memmove(name, begin, (size_t)(end - begin));
    end[-1] = 0;
    for (size_t i = 0; i < r->c->n_keys; i++)
        if (strcmp(r->c->keys[i].name, name) == 0)
            return FAIL(r, "%.60s was set already, in line %u", name, r->c->keys[i].line);
    return RD_OK;
}

static rd_status read_line(struct reader *r)
{
    struct config *c = r->c;
    struct config_key key;
    rd_status st;

    skip_blanks(r);
    if (*r->at != '#' && *r->at != '\n' && *r->at != '\r' && r->at < r->end) {
        st = read_key(r, &key);
        if (st != RD_OK) return st;
        key.is_list = *r->at == '[';
        if (key.is_list) r->at++;
        st = key.is_list ? read_list(r) : add_value(r);
        if (st != RD_OK) return st;
        key.n = (uint32_t)c->n_values - key.at;
        if (c->n_keys == CONFIG_MOST_KEYS) return fail_at(r, RD_E_LIMIT, "more than %u keys", CONFIG_MOST_KEYS);
        if (!mem_grow((void **)&c->keys, &c->cap_keys, c->n_keys + 1, sizeof(*c->keys)))
            return fail_at(r, RD_E_NOMEM, "out of memory");
        c->keys[c->n_keys++] = key;
        skip_blanks(r);
    }
    st = skip_comment(r);
    if (st != RD_OK) return st;
    if (r->at < r->end && !take_line_end(r))
        return FAIL(r, "something stands behind the value: texts stand in \"quotes\"");
    return RD_OK;
}

rd_status config_read(const char *text, size_t n, const char *name, struct config *out, struct rd_error *err)
{
    struct reader r = {.c = out, .line = 1, .name = name, .err = err};
    rd_status st = RD_OK;

    *out = (struct config){0};
    if (n > CONFIG_MOST_BYTES) return error_set(err, RD_E_LIMIT, "%s: more than %u bytes", name, CONFIG_MOST_BYTES);
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3, n -= 3;
    out->bytes = mem_zalloc(n + 2, 1);
    if (!out->bytes) return error_set(err, RD_E_NOMEM, "%s: out of memory", name);
    r.at = out->bytes + 1;
    r.end = r.at + n;
    memcpy(r.at, text, n);
    if (memchr(r.at, 0, n) || !utf8_valid(r.at, n)) st = error_set(err, RD_E_FORMAT, "%s: wanted text in UTF-8", name);
    while (st == RD_OK && r.at < r.end) st = read_line(&r);
    if (st != RD_OK) config_free(out);
    return st;
}

void config_free(struct config *c)
{
    mem_free(c->bytes);
    mem_free(c->keys);
    mem_free(c->values);
    *c = (struct config){0};
}
