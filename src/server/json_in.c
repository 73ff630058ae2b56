/* server/json_in.c - a request body as JSON: cheap checks first, so that the recursive parser never sees depth or bytes
 * it cannot take. */
#include <string.h>
#include "base/limits.h"
#include "base/utf8.h"
#include "server/params.h"

/* Deeper than the limit? One pass that knows strings and brackets only. */
static bool too_deep(const char *s, size_t n)
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
            if (++depth > LIMIT_JSON_DEPTH) return true;
        } else if ((c == '}' || c == ']') && depth > 0) depth--;
    }
    return false;
}

int json_body_parse(const struct buf *body, json_t **out, struct api_error *e)
{
    json_error_t why;
    json_t *v;

    *out = NULL;
    if (body->n == 0) return api_error_set(e, 400, NULL, "the body is empty, a JSON object is wanted");
    if (!utf8_valid(body->data, body->n)) return api_error_set(e, 400, NULL, "the body is not valid UTF-8");
    if (memchr(body->data, 0, body->n)) return api_error_set(e, 400, NULL, "the body holds a NUL byte");
    if (too_deep(body->data, body->n))
        return api_error_set(e, 400, NULL, "the JSON is nested deeper than %u", LIMIT_JSON_DEPTH);
    v = json_loadb(body->data, body->n, JSON_REJECT_DUPLICATES, &why);
    if (!v)
        return api_error_set(e, 400, NULL, "the body is not valid JSON: line %d, column %d: %.100s", why.line,
                             why.column, why.text);
    if (!json_is_object(v)) {
        json_decref(v);
        return api_error_set(e, 400, NULL, "the body must be a JSON object");
    }
    *out = v;
    return 0;
}
