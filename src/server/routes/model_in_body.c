/* server/routes/model_in_body.c - which model a body asks for, before it is parsed: one pass, strings by memchr. */
#include <jansson.h>
#include <string.h>
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

bool model_in_body(const char *body, size_t n, char *name, size_t cap)
{
    static const char key[] = "\"model\"";
    size_t depth = 0;

    for (size_t at = 0, end; at < n; at++) {
        if (body[at] == '{' || body[at] == '[') depth++;
        if (body[at] == '}' || body[at] == ']') depth -= depth > 0;
        if (body[at] != '"') continue;
        end = behind_string(body, n, at);
        if (depth == 1 && end - at == sizeof(key) - 1 && memcmp(body + at, key, sizeof(key) - 1) == 0) {
            size_t value = behind_blanks(body, n, end);

            if (value < n && body[value] == ':') {
                value = behind_blanks(body, n, value + 1);
                if (value >= n || body[value] != '"') return false;
                return unescape(body + value, behind_string(body, n, value) - value, name, cap);
            }
        }
        at = end - 1;
    }
    return false;
}
