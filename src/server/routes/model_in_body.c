/* server/routes/model_in_body.c - which model a request asks for, before it is parsed: one pass, strings by memchr. */
#include <jansson.h>
#include <string.h>
#include "base/hex.h"
#include "server/routes/model_gate.h"

/* Behind the string that begins at s[at] == '"'; n: it does not end. */
static size_t behind_string(const char *s, size_t n, size_t at)
{
    for (at++; at < n;) {
        const char *quote = memchr(s + at, '"', n - at);
        size_t end, n_slashes = 0;

        if (!quote) return n;
        end = (size_t)(quote - s);
        while (end - n_slashes > at && s[end - n_slashes - 1] == '\\') n_slashes++;
        if (n_slashes % 2 == 0) return end + 1;
        at = end + 1;
    }
    return n;
}

static size_t behind_blanks(const char *s, size_t n, size_t at)
{
    while (at < n && (s[at] == ' ' || s[at] == '\t' || s[at] == '\n' || s[at] == '\r')) at++;
    return at;
}

/* A string with its quotes, as it is meant. */
static bool unescape(const char *s, size_t n, char *name, size_t cap)
{
    json_t *v = json_loadb(s, n, JSON_DECODE_ANY, NULL);
    bool ok = json_is_string(v) && json_string_length(v) && json_string_length(v) < cap;

    if (ok) memcpy(name, json_string_value(v), json_string_length(v) + 1);
    json_decref(v);
    return ok;
}

/* Where the value of a member of the outermost object begins; n: it has none. key: with its quotes. */
static size_t member(const char *body, size_t n, const char *key)
{
    size_t depth = 0, n_key = strlen(key);

    for (size_t at = 0, end; at < n; at++) {
        if (body[at] == '{' || body[at] == '[') depth++;
        if (body[at] == '}' || body[at] == ']') depth -= depth > 0;
        if (body[at] != '"') continue;
        end = behind_string(body, n, at);
        if (depth == 1 && end - at == n_key && memcmp(body + at, key, n_key) == 0) {
            size_t value = behind_blanks(body, n, end);

            if (value < n && body[value] == ':') return behind_blanks(body, n, value + 1);
        }
        at = end - 1;
    }
    return n;
}

bool model_in_body(const char *body, size_t n, char *name, size_t cap)
{
    size_t value = member(body, n, "\"model\"");

    return value < n && body[value] == '"' && unescape(body + value, behind_string(body, n, value) - value, name, cap);
}

bool stream_in_body(const char *body, size_t n)
{
    size_t value = member(body, n, "\"stream\"");

    return n - value >= 4 && memcmp(body + value, "true", 4) == 0;
}

bool model_in_query(const char *query, char *name, size_t cap)
{
    size_t n = 0;

    if (!query) return false;
    while (strncmp(query, "model=", 6) != 0) {
        query = strchr(query, '&');
        if (!query) return false;
        query++;
    }
    for (query += 6; *query && *query != '&' && n + 1 < cap; query++) {
        bool is_escape = *query == '%' && hex_digit(query[1]) >= 0 && hex_digit(query[2]) >= 0;

        name[n++] = (char)(is_escape ? hex_digit(query[1]) * 16 + hex_digit(query[2]) : *query == '+' ? ' ' : *query);
        if (is_escape) query += 2;
    }
    name[n] = 0;
    return n > 0 && (!*query || *query == '&') && strlen(name) == n;
}
