/* server/params/json_in.c - a request body as JSON: cheap checks first, so that the recursive parser never sees depth or bytes
 * it cannot take. */
#include <stdio.h>
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "server/params/params.h"

/* What jansson 2.14 takes for a value, in bytes of the heap: counted from its structs; tests/server/test_json_in.py
 * watches what a body takes. */
#define OBJECT_BYTES  224u
#define LIST_BYTES    128u
#define STRING_BYTES  112u /* a name in its table, or a value's two blocks; and its bytes */
#define NUMBER_BYTES  32u
#define ELEMENT_BYTES 16u /* place of an element, with what the list grows by */
#define TEXT_BYTES    16u /* more where a number keeps its text */
#define LONG_DIGITS   19u /* integers of this many digits may not fit into 64 bits */

/* Behind the string that begins at s[i], its quotes left out; n: it has no end. */
static size_t string_end(const char *s, size_t n, size_t i)
{
    while (i < n && s[i] != '"') i += s[i] == '\\' ? 2 : 1;
    return i < n ? i : n;
}

/* Behind the number that begins at s[i]. */
static size_t number_end(const char *s, size_t n, size_t i)
{
    size_t end = i + 1;

    while (end < n && ((s[end] >= '0' && s[end] <= '9') || (s[end] && strchr("+-.eE", s[end])))) end++;
    return end;
}

/* What it takes: a short integer, or a number with its text (base/json_number.h). */
static size_t number_bytes(const char *s, size_t n)
{
    return n < LONG_DIGITS && strspn(s, "-0123456789") >= n ? NUMBER_BYTES : NUMBER_BYTES + TEXT_BYTES + n;
}

/* One pass that knows strings, brackets and numbers only. false: deeper than the limit, or more values than that;
 * *at: where. */
static bool measure(const char *s, size_t n, struct json_size *size, size_t *at)
{
    uint32_t depth = 0;

    for (size_t i = 0; i < n;) {
        char c = s[i];

        *at = i++;
        if (c == '"') {
            size_t end = string_end(s, n, i), bytes = end - i;

            size->n_tree += STRING_BYTES;
            size->n_text += bytes;
            if (bytes > size->n_longest) size->n_longest = bytes;
            i = end + 1;
        } else if (c == '{' || c == '[') {
            size->n_tree += c == '{' ? OBJECT_BYTES : LIST_BYTES;
            if (++depth > LIMIT_JSON_DEPTH) return false;
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        } else if (c == ',') {
            size->n_tree += ELEMENT_BYTES;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            i = number_end(s, n, i - 1);
            size->n_tree += number_bytes(s + *at, i - *at);
        }
        if (size->n_tree > LIMIT_JSON_TREE_BYTES) return false;
    }
    return true;
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

            i = string_end(s, n, i);
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

int json_body_check(struct buf *body, struct json_size *size, struct api_error *e)
{
    const char *nul;
    size_t at;

    memset(size, 0, sizeof(*size));
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
    if (measure(body->data, body->n, size, &at)) return 0;
    if (size->n_tree > LIMIT_JSON_TREE_BYTES)
        api_error_set(e, 400, NULL, "too many values: at most %u MiB of them, texts not counted",
                      LIMIT_JSON_TREE_BYTES >> 20);
    else
        api_error_set(e, 400, NULL, "the JSON is nested deeper than %u", LIMIT_JSON_DEPTH);
    return broken(body, at, e);
}

int json_body_value(const struct buf *body, json_t **out, struct api_error *e)
{
    json_error_t why;
    json_t *v;

    *out = NULL;
    mem_clear_failed();
    v = json_loadb(body->data, body->n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!v && mem_has_failed()) /* which jansson calls a syntax error */
        return api_error_set(e, 503, NULL, "out of memory");
    if (!v) {
        api_error_set(e, 400, NULL, "the body is not valid JSON: line %d, column %d: %.100s", why.line, why.column,
                      why.text);
        return broken(body, why.position > 0 ? (size_t)why.position - 1 : 0, e);
    }
    *out = v;
    return 0;
}

int json_body_tree(const struct buf *body, json_t **out, struct api_error *e)
{
    if (json_body_value(body, out, e)) return -1;
    if (json_is_object(*out)) return 0;
    json_decref(*out);
    *out = NULL;
    return api_error_set(e, 400, NULL, "the body must be a JSON object");
}

int json_body_parse(struct buf *body, json_t **out, struct api_error *e)
{
    struct json_size size;

    *out = NULL;
    return json_body_check(body, &size, e) ? -1 : json_body_tree(body, out, e);
}

const char *json_plain(const json_t *v)
{
    const char *s = json_string_value(v);

    return s && strlen(s) == json_string_length(v) ? s : NULL;
}

static int append_text(const char *s, size_t n, void *to)
{
    buf_append(to, s, n);
    return ((struct buf *)to)->failed ? -1 : 0;
}

char *json_text(const json_t *v, size_t flags)
{
    struct buf text = {0};

    if (json_dump_callback(v, append_text, &text, flags) == 0) return buf_take(&text, NULL);
    buf_deinit(&text);
    return NULL;
}

size_t json_tree_bytes(const char *s, size_t n)
{
    struct json_size size = {0};
    size_t at;

    measure(s, n, &size, &at);
    return size.n_tree;
}
