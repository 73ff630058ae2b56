/* text/json_scan.c - a cursor over JSON text. */
#include "text/json_scan.h"
#include <string.h>
#include "base/checked.h"
#include "base/utf8.h"

static bool fail(struct json_scan *sc)
{
    sc->failed = true;
    return false;
}

char json_scan_peek(struct json_scan *sc)
{
    while (sc->at < sc->n &&
           (sc->s[sc->at] == ' ' || sc->s[sc->at] == '\n' || sc->s[sc->at] == '\r' || sc->s[sc->at] == '\t'))
        sc->at++;
    return sc->failed || sc->at >= sc->n ? 0 : sc->s[sc->at];
}

bool json_scan_enter(struct json_scan *sc, char open)
{
    if (json_scan_peek(sc) != open) return fail(sc);
    sc->at++;
    return true;
}

/* After an opening bracket or a value: true when a value or member follows. */
static bool next_item(struct json_scan *sc, char open, char close)
{
    char c = json_scan_peek(sc);
    size_t back = sc->at;

    if (c == close) {
        sc->at++;
        return false;
    }
    while (back > 0 &&
           (sc->s[back - 1] == ' ' || sc->s[back - 1] == '\n' || sc->s[back - 1] == '\r' || sc->s[back - 1] == '\t'))
        back--;
    if (back > 0 && sc->s[back - 1] == open) return c ? true : fail(sc); /* the first one */
    if (c != ',') return fail(sc);
    sc->at++;
    c = json_scan_peek(sc);
    return c && c != close ? true : fail(sc);
}

bool json_scan_member(struct json_scan *sc, struct buf *key)
{
    if (!next_item(sc, '{', '}')) return false;
    buf_clear(key);
    if (!json_scan_string(sc, key)) return false;
    if (json_scan_peek(sc) != ':') return fail(sc);
    sc->at++;
    return true;
}

bool json_scan_element(struct json_scan *sc)
{
    return next_item(sc, '[', ']');
}

static bool hex4(struct json_scan *sc, uint32_t *out)
{
    *out = 0;
    if (sc->n - sc->at < 4) return fail(sc);
    for (unsigned i = 0; i < 4; i++) {
        char c = sc->s[sc->at++];
        uint32_t digit = c >= '0' && c <= '9' ? (uint32_t)(c - '0') : (uint32_t)((c | 0x20) - 'a') + 10;

        if (digit > 15 || (digit > 9 && (c | 0x20) < 'a')) return fail(sc);
        *out = *out << 4 | digit;
    }
    return true;
}

/* What follows a backslash. */
static bool escape(struct json_scan *sc, struct buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = sc->at < sc->n ? sc->s[sc->at++] : 0, utf8[UTF8_MAX_BYTES];
    const char *known = c ? strchr(from, c) : NULL;
    uint32_t cp, low;

    if (known) {
        buf_putc(out, to[known - from]);
        return true;
    }
    if (c != 'u' || !hex4(sc, &cp)) return fail(sc);
    if (cp >= 0xdc00 && cp <= 0xdfff) return fail(sc);
    if (cp >= 0xd800 && cp <= 0xdbff) {
        if (sc->n - sc->at < 6 || sc->s[sc->at] != '\\' || sc->s[sc->at + 1] != 'u') return fail(sc);
        sc->at += 2;
        if (!hex4(sc, &low) || low < 0xdc00 || low > 0xdfff) return fail(sc);
        cp = 0x10000 + ((cp & 0x3ff) << 10 | (low & 0x3ff));
    }
    buf_append(out, utf8, (size_t)utf8_encode(cp, utf8));
    return true;
}

bool json_scan_string(struct json_scan *sc, struct buf *out)
{
    size_t start;

    if (json_scan_peek(sc) != '"') return fail(sc);
    for (start = ++sc->at; sc->at < sc->n; sc->at++) {
        unsigned char c = (unsigned char)sc->s[sc->at];

        if (c != '"' && c != '\\' && c >= 0x20) continue;
        if (c < 0x20 || !utf8_valid(sc->s + start, sc->at - start)) return fail(sc);
        buf_append(out, sc->s + start, sc->at - start);
        sc->at++;
        if (c == '"') return true;
        if (!escape(sc, out)) return false;
        start = sc->at--;
    }
    return fail(sc);
}

/* The bytes that can be part of a number, keyword or literal. */
static size_t plain_end(const struct json_scan *sc)
{
    size_t at = sc->at;

    while (at < sc->n && sc->s[at] && !strchr(" \t\r\n,:]}[{\"", sc->s[at])) at++;
    return at;
}

bool json_scan_uint(struct json_scan *sc, uint64_t *out)
{
    size_t end;

    json_scan_peek(sc);
    end = plain_end(sc);
    if (sc->failed || end == sc->at || !parse_u64(sc->s + sc->at, end - sc->at, out)) return fail(sc);
    sc->at = end;
    return true;
}

bool json_scan_number(struct json_scan *sc, double *out)
{
    size_t end;

    json_scan_peek(sc);
    end = plain_end(sc);
    if (sc->failed || end == sc->at || !parse_f64(sc->s + sc->at, end - sc->at, out)) return fail(sc);
    sc->at = end;
    return true;
}

/* Passes a string without looking at its escapes. */
static bool skip_string(struct json_scan *sc)
{
    for (sc->at++; sc->at < sc->n; sc->at++) {
        if (sc->s[sc->at] == '\\')
            sc->at++;
        else if (sc->s[sc->at] == '"')
            return ++sc->at, true;
    }
    return fail(sc);
}

bool json_scan_skip(struct json_scan *sc, const char **start, size_t *n_value)
{
    size_t begin, depth = 0, end;

    if (!json_scan_peek(sc)) return fail(sc);
    begin = sc->at;
    do {
        char c = json_scan_peek(sc);

        if (c == '"') {
            if (!skip_string(sc)) return false;
        } else if (c == '{' || c == '[') {
            depth++;
            sc->at++;
        } else if (depth && (c == '}' || c == ']')) {
            depth--;
            sc->at++;
        } else if (depth && (c == ',' || c == ':')) {
            sc->at++;
        } else {
            end = plain_end(sc);
            if (!c || end == sc->at) return fail(sc);
            sc->at = end;
        }
    } while (depth);
    if (start) *start = sc->s + begin;
    if (n_value) *n_value = sc->at - begin;
    return true;
}
