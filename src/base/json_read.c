/* base/json_read.c - one pass; the arrays and objects that are open lie on a stack of our own. */
#include "base/json_read.h"
#undef json_copy /* jansson's own */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json_number.h"
#include "base/mem.h"
#include "base/utf8.h"

#define SHOWN_BYTES 20 /* of the text, in a message */

struct reader {
    const char *s;
    size_t n, at, flags;
    json_error_t *why;
    json_t **open; /* [n_open]: borrowed, each one is within the one before */
    size_t n_open, cap_open;
    struct buf text; /* of the string that is read */
    struct buf key;  /* of the member that is read */
};

/* Always NULL. At r->at. */
static json_t *fail(struct reader *r, enum json_error_code code, const char *what)
{
    json_error_t *why = r->why;
    size_t at = r->at < r->n ? r->at : r->n, shown = r->n - at < SHOWN_BYTES ? r->n - at : SHOWN_BYTES;

    if (!why || why->text[0]) return NULL; /* the first is the cause */
    why->line = 1;
    why->column = 1;
    for (size_t i = 0; i < at; i++) {
        why->column = r->s[i] == '\n' ? 1 : why->column + (((unsigned char)r->s[i] & 0xC0) != 0x80);
        why->line += r->s[i] == '\n';
    }
    why->position = at < INT32_MAX ? (int)at + 1 : INT32_MAX;
    while (shown > 0 && !utf8_valid(r->s + at, shown)) shown--;
    for (size_t i = 0; i < shown; i++) /* the text is not terminated */
        if (strchr("\r\n", r->s[at + i])) shown = i;
    snprintf(why->text, sizeof(why->text) - 1, shown ? "%s near '%.*s'" : "%s near end of file", what, (int)shown,
             r->s + at);
    why->text[sizeof(why->text) - 1] = (char)code;
    return NULL;
}

static json_t *no_memory(struct reader *r)
{
    return fail(r, json_error_out_of_memory, "out of memory");
}
static json_t *wrong(struct reader *r, const char *what)
{
    return fail(r, json_error_invalid_syntax, what);
}

/* The next byte that is no space; 0: the end, or a NUL, which begins nothing either. */
static char peek(struct reader *r)
{
    while (r->at < r->n && (r->s[r->at] == ' ' || r->s[r->at] == '\t' || r->s[r->at] == '\n' || r->s[r->at] == '\r'))
        r->at++;
    return r->at < r->n ? r->s[r->at] : 0;
}

static bool pass(struct reader *r, char c)
{
    if (peek(r) != c) return false;
    r->at++;
    return true;
}

/* ---- strings ---- */

/* Four digits at r->at; -1: they are not. */
static int32_t hex4(const struct reader *r, size_t at)
{
    int32_t v = 0;

    if (r->n - at < 4) return -1;
    for (size_t i = 0; i < 4; i++) {
        char c = r->s[at + i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;

        if (digit < 0) return -1;
        v = v << 4 | digit;
    }
    return v;
}

/* Behind "\u". */
static bool read_unicode(struct reader *r, struct buf *out)
{
    int32_t a = hex4(r, r->at), b;
    char bytes[UTF8_MAX_BYTES];

    if (a < 0) return wrong(r, "invalid escape"), false;
    if (a >= 0xDC00 && a <= 0xDFFF) return wrong(r, "invalid Unicode: half of a surrogate pair"), false;
    if (a == 0 && !(r->flags & JSON_ALLOW_NUL))
        return fail(r, json_error_null_character, "\\u0000 is not allowed without JSON_ALLOW_NUL"), false;
    r->at += 4;
    if (a >= 0xD800 && a <= 0xDBFF) {
        b = r->n - r->at >= 6 && r->s[r->at] == '\\' && r->s[r->at + 1] == 'u' ? hex4(r, r->at + 2) : -1;
        if (b < 0xDC00 || b > 0xDFFF) return wrong(r, "invalid Unicode: half of a surrogate pair"), false;
        r->at += 6;
        a = 0x10000 + ((a - 0xD800) << 10) + (b - 0xDC00);
    }
    buf_append(out, bytes, (size_t)utf8_encode((uint32_t)a, bytes));
    return true;
}

/* Behind the backslash. */
static bool read_escape(struct reader *r, struct buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->n ? r->s[r->at] : 0;
    const char *known = c ? strchr(from, c) : NULL;

    if (known)
        buf_putc(out, to[known - from]);
    else if (c != 'u')
        return wrong(r, "invalid escape"), false;
    r->at++;
    return known || read_unicode(r, out);
}

/* The string that begins at the quote r->at, into out, terminated. */
static bool read_string(struct reader *r, struct buf *out)
{
    buf_clear(out);
    buf_append(out, "", 0);
    for (r->at++; r->at < r->n && r->s[r->at] != '"';) {
        size_t begin = r->at;

        while (r->at < r->n && r->s[r->at] != '"' && r->s[r->at] != '\\' && (unsigned char)r->s[r->at] >= 0x20) r->at++;
        if (!utf8_valid(r->s + begin, r->at - begin)) {
            r->at = begin;
            return fail(r, json_error_invalid_utf8, "invalid UTF-8"), false;
        }
        buf_append(out, r->s + begin, r->at - begin);
        if (r->at < r->n && (unsigned char)r->s[r->at] < 0x20) return wrong(r, "control character in a string"), false;
        if (r->at < r->n && r->s[r->at] == '\\' && (r->at++, !read_escape(r, out))) return false;
    }
    if (r->at >= r->n) return fail(r, json_error_premature_end_of_input, "premature end of input"), false;
    r->at++;
    if (out->failed) return no_memory(r), false;
    return true;
}

/* ---- numbers and words ---- */

static size_t digits(const struct reader *r, size_t at)
{
    size_t begin = at;

    while (at < r->n && r->s[at] >= '0' && r->s[at] <= '9') at++;
    return at - begin;
}

/* The end of the number at r->at; 0: it is none. *real: it has a point or an exponent. */
static size_t number_end(const struct reader *r, bool *real)
{
    size_t at = r->at + (r->s[r->at] == '-'), n = digits(r, at);

    if (n == 0 || (n > 1 && r->s[at] == '0')) return 0;
    at += n;
    *real = false;
    if (at < r->n && r->s[at] == '.') {
        *real = true;
        if ((n = digits(r, at + 1)) == 0) return 0;
        at += 1 + n;
    }
    if (at < r->n && (r->s[at] | 32) == 'e') {
        *real = true;
        at++;
        if (at < r->n && (r->s[at] == '+' || r->s[at] == '-')) at++;
        if ((n = digits(r, at)) == 0) return 0;
        at += n;
    }
    return at;
}

static json_t *read_number(struct reader *r)
{
    bool real = false;
    size_t end = number_end(r, &real);
    long long i = 0;
    json_t *v;

    if (end == 0) return wrong(r, "invalid token");
    buf_clear(&r->text);
    buf_append(&r->text, r->s + r->at, end - r->at); /* terminated */
    if (r->text.failed) return no_memory(r);
    errno = 0;
    if (!real) i = strtoll(r->text.data, NULL, 10);
    real |= (r->flags & JSON_DECODE_INT_AS_REAL) || errno == ERANGE || (i == 0 && r->text.data[0] == '-');
    if (real) {
        double d = c_double(r->text.data);

        if (isnan(d)) return no_memory(r);
        v = json_number(r->text.data, r->text.n, d);
    } else {
        v = json_integer(i);
    }
    if (!v) return no_memory(r);
    r->at = end;
    return v;
}

static bool is_word(struct reader *r, const char *word)
{
    size_t n = strlen(word);

    if (r->n - r->at < n || memcmp(r->s + r->at, word, n)) return false;
    r->at += n;
    return true;
}

/* What is neither array nor object. */
static json_t *read_scalar(struct reader *r)
{
    char c = peek(r);
    json_t *v;

    if (c == '"') {
        if (!read_string(r, &r->text)) return NULL;
        v = json_stringn_nocheck(r->text.data, r->text.n);
        return v ? v : no_memory(r);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    if (c == 't' && is_word(r, "true")) return json_true();
    if (c == 'f' && is_word(r, "false")) return json_false();
    if (c == 'n' && is_word(r, "null")) return json_null();
    return r->at < r->n ? wrong(r, "invalid token")
                        : fail(r, json_error_premature_end_of_input, "premature end of input");
}

/* ---- arrays and objects ---- */

static bool read_key(struct reader *r, json_t *object)
{
    if (peek(r) != '"') return wrong(r, "string or '}' expected"), false;
    if (!read_string(r, &r->key)) return false;
    if (memchr(r->key.data, 0, r->key.n))
        return fail(r, json_error_null_byte_in_key, "NUL byte in object key not supported"), false;
    if ((r->flags & JSON_REJECT_DUPLICATES) && json_object_get(object, r->key.data))
        return fail(r, json_error_duplicate_key, "duplicate object key"), false;
    if (!pass(r, ':')) return wrong(r, "':' expected"), false;
    return true;
}

/* Puts v, whose reference is taken, into the innermost. */
static bool put(struct reader *r, json_t *v)
{
    json_t *in = r->open[r->n_open - 1];
    int failed = json_is_array(in) ? json_array_append_new(in, v) : json_object_set_new_nocheck(in, r->key.data, v);

    if (failed) (void)no_memory(r);
    return !failed;
}

static json_t *open_new(struct reader *r)
{
    json_t *v;

    if (r->n_open >= JSON_READ_DEPTH) return fail(r, json_error_stack_overflow, "maximum parsing depth reached");
    if (!mem_grow((void **)&r->open, &r->cap_open, r->n_open + 1, sizeof(*r->open))) return no_memory(r);
    v = r->s[r->at] == '[' ? json_array() : json_object();
    if (!v) return no_memory(r);
    r->at++;
    return v;
}

/* One value, begun and, if it is a scalar, ended. It belongs to the innermost; the outermost is returned through root. */
static bool begin_value(struct reader *r, json_t **root)
{
    char c = peek(r);
    bool opens = c == '[' || c == '{';
    json_t *v = opens ? open_new(r) : read_scalar(r);

    if (!v || (r->n_open > 0 && !put(r, v))) return false;
    if (r->n_open == 0) *root = v;
    if (opens) r->open[r->n_open++] = v;
    return true;
}

/* Within the innermost: the next value, or its end. is_new: nothing is in it yet. */
static bool go_on(struct reader *r, bool is_new, json_t **root)
{
    json_t *in = r->open[r->n_open - 1];
    bool array = json_is_array(in);

    if (pass(r, array ? ']' : '}')) {
        r->n_open--;
        return true;
    }
    if (!is_new && !pass(r, ',')) return wrong(r, array ? "']' expected" : "'}' expected"), false;
    return (array || read_key(r, in)) && begin_value(r, root);
}

static bool read_all(struct reader *r, json_t **root)
{
    char c = peek(r);

    if (!(r->flags & JSON_DECODE_ANY) && c != '[' && c != '{') return wrong(r, "'[' or '{' expected"), false;
    if (!begin_value(r, root)) return false;
    while (r->n_open > 0) {
        const json_t *in = r->open[r->n_open - 1];

        if (!go_on(r, json_is_array(in) ? json_array_size(in) == 0 : json_object_size(in) == 0, root)) return false;
    }
    (void)peek(r);
    if (r->at < r->n) return fail(r, json_error_end_of_input_expected, "end of file expected"), false;
    return true;
}

json_t *json_read(const char *s, size_t n, size_t flags, json_error_t *why)
{
    struct reader r = {.s = s, .n = n, .flags = flags, .why = why};
    json_t *root = NULL;

    if (why) *why = (json_error_t){.line = -1, .column = -1, .source = "<buffer>"};
    if (!read_all(&r, &root)) {
        json_decref(root);
        root = NULL;
    }
    mem_free(r.open);
    buf_deinit(&r.text);
    buf_deinit(&r.key);
    return root;
}

json_t *json_read_text(const char *s, size_t flags, json_error_t *why)
{
    return json_read(s, strlen(s), flags, why);
}

json_t *json_read_file(const char *path, size_t flags, json_error_t *why)
{
    const size_t max = (size_t)64 << 20;
    char *data = NULL;
    json_t *v = NULL;
    size_t n;

    if (file_read_all(path, max, &data, &n, NULL) == RD_OK)
        v = json_read(data, n, flags, why);
    else if (why)
        *why = (json_error_t){.line = -1, .column = -1, .source = "<file>", .text = "not read"};
    mem_free(data);
    return v;
}

json_t *json_copy(json_t *v); /* which jansson.h has declared by our name */

json_t *json_copied(json_t *v)
{
    json_t *copy = json_is_real(v) ? json_incref(v) : json_copy(v); /* jansson's copy would lack the text */

    if (json_array_size(copy) == json_array_size(v) && json_object_size(copy) == json_object_size(v)) return copy;
    json_decref(copy);
    return NULL;
}
