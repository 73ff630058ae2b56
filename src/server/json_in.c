/* server/json_in.c - a request body as JSON: cheap checks first, so that the recursive parser never sees depth or bytes
 * it cannot take. */
#include <stdio.h>
#include <string.h>
#include "base/limits.h"
#include "base/utf8.h"
#include "server/params.h"

/* Deeper than the limit? One pass that knows strings and brackets only. *at: where. */
static bool too_deep(const char *s, size_t n, size_t *at)
{
    uint32_t depth = 0;
    bool in_string = false;

    for (size_t i = 0; i < n; i++) {
        char c = s[i];

        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') in_string = true;
        else if (c == '{' || c == '[') {
            *at = i;
            if (++depth > LIMIT_JSON_DEPTH) return true;
        } else if ((c == '}' || c == ']') && depth > 0) depth--;
    }
    return false;
}

/* The member of the outermost object that the byte at `at` belongs to: its name as it is written, a view; NULL: none.
 * Follows strings, brackets and commas only, so that what it reads may be broken. */
static const char *field_at(const char *s, size_t n, size_t at, size_t *n_name)
{
    const char *name = NULL;
    size_t depth = 0;
    bool expects_name = false;

    for (size_t i = 0; i < n && i <= at; i++) {
        if (s[i] == '"') {
            size_t begin = ++i;

            while (i < n && s[i] != '"') i += s[i] == '\\' ? 2 : 1;
            if (depth != 1 || !expects_name || i >= n) continue;
            name = s + begin;
            *n_name = i - begin;
            expects_name = false;
        } else if (s[i] == '{' || s[i] == '[') {
            if (++depth == 1) expects_name = s[i] == '{';
        } else if (s[i] == '}' || s[i] == ']') {
            depth -= depth > 0;
        } else if (s[i] == ',' && depth == 1) {
            expects_name = true;
            name = NULL;
        }
    }
    return name;
}

/* The text is broken at `at`: *e, whose message says how, also names the field, where its name is printable. */
static int broken(const struct buf *body, size_t at, struct api_error *e)
{
    char why[sizeof(e->message)];
    size_t n = 0;
    const char *name = field_at(body->data, body->n, at, &n);

    if (!name || n == 0 || n >= sizeof(e->param)) return -1;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || (unsigned char)name[i] > 0x7e || name[i] == '\\') return -1;
    memcpy(why, e->message, sizeof(why));
    memcpy(e->param, name, n);
    e->param[n] = 0;
    snprintf(e->message, sizeof(e->message), "%s: %.560s", e->param, why);
    return -1;
}

int json_body_parse(const struct buf *body, json_t **out, struct api_error *e)
{
    const char *nul;
    json_error_t why;
    json_t *v;
    size_t at;

    *out = NULL;
    if (body->n == 0) return api_error_set(e, 400, NULL, "the body is empty, a JSON object is wanted");
    at = utf8_valid_prefix(body->data, body->n);
    if (at < body->n) {
        api_error_set(e, 400, NULL, "the body is not valid UTF-8");
        return broken(body, at, e);
    }
    nul = memchr(body->data, 0, body->n);
    if (nul) {
        api_error_set(e, 400, NULL, "the body holds a NUL byte");
        return broken(body, (size_t)(nul - body->data), e);
    }
    if (too_deep(body->data, body->n, &at)) {
        api_error_set(e, 400, NULL, "the JSON is nested deeper than %u", LIMIT_JSON_DEPTH);
        return broken(body, at, e);
    }
    v = json_loadb(body->data, body->n, JSON_REJECT_DUPLICATES, &why);
    if (!v) {
        bool is_nul = strstr(why.text, "ALLOW_NUL") != NULL;     /* the parser's words are about its own flags */

        api_error_set(e, 400, NULL, "the body is not valid JSON: line %d, column %d: %.100s", why.line, why.column,
                      is_nul ? "the character \\u0000 is not taken" : why.text);
        return broken(body, why.position > 0 ? (size_t)why.position - 1 : 0, e);
    }
    if (!json_is_object(v)) {
        json_decref(v);
        return api_error_set(e, 400, NULL, "the body must be a JSON object");
    }
    *out = v;
    return 0;
}
