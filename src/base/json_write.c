/* base/json_write.c - one pass; the arrays and objects that are open lie on a stack of our own. */
#include "base/json_write.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/json_number.h"
#include "base/mem.h"
#include "base/utf8.h"

#define INDENT_MASK 31u   /* of the flags: jansson's JSON_INDENT(n) is n */
#define PIECE_BYTES 4096u /* of text, at least, before it goes out */

struct level {
    const json_t *v;
    const char **keys; /* of an object whose keys are sorted: [n] */
    void *next;        /* of an object otherwise */
    size_t i, n;
};

struct writer {
    json_dump_callback_t put;
    void *arg;
    size_t flags;
    struct buf text;    /* what has not gone out */
    struct level *open; /* [n_open] */
    size_t n_open, cap_open;
};

static bool send(struct writer *w)
{
    bool ok = !w->text.failed && (w->text.n == 0 || w->put(w->text.data, w->text.n, w->arg) == 0);

    buf_clear(&w->text);
    return ok;
}

static bool put_string(struct buf *out, const char *s, size_t n)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";

    if (!utf8_valid(s, n)) return false;
    buf_putc(out, '"');
    for (size_t i = 0, plain = 0;; i++) {
        const char *known = i < n && s[i] ? strchr(from, s[i]) : NULL;

        if (i < n && !known && (unsigned char)s[i] >= 0x20) continue;
        buf_append(out, s + plain, i - plain);
        plain = i + 1;
        if (i == n) break;
        if (known) {
            buf_putc(out, '\\');
            buf_putc(out, to[known - from]);
        } else {
            buf_printf(out, "\\u%04X", (unsigned)(unsigned char)s[i]);
        }
    }
    buf_putc(out, '"');
    return true;
}

static bool put_scalar(struct writer *w, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        buf_puts(&w->text, "null");
        return true;
    case JSON_TRUE:
        buf_puts(&w->text, "true");
        return true;
    case JSON_FALSE:
        buf_puts(&w->text, "false");
        return true;
    case JSON_INTEGER:
        buf_printf(&w->text, "%lld", (long long)json_integer_value(v));
        return true;
    case JSON_STRING:
        return put_string(&w->text, json_string_value(v), json_string_length(v));
    default:
        break;
    }
    if (w->flags & JSON_WRITE_PLAIN)
        json_number_put_plain(&w->text, v);
    else
        json_number_put(&w->text, v);
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool sort_keys(struct level *l)
{
    json_t *object = (json_t *)(uintptr_t)l->v, *value;
    const char *key;
    size_t i = 0;

    if (l->n == 0) return true;
    l->keys = mem_alloc(l->n, sizeof(*l->keys));
    if (!l->keys) return false;
    json_object_foreach(object, key, value) l->keys[i++] = key;
    qsort(l->keys, l->n, sizeof(*l->keys), by_text);
    return true;
}

static bool open_level(struct writer *w, const json_t *v)
{
    struct level *l;

    if (!mem_grow((void **)&w->open, &w->cap_open, w->n_open + 1, sizeof(*w->open))) return false;
    l = &w->open[w->n_open++];
    *l = (struct level){.v = v, .n = json_is_array(v) ? json_array_size(v) : json_object_size(v)};
    if (json_is_object(v) && (w->flags & JSON_SORT_KEYS)) {
        if (!sort_keys(l)) return false;
    } else if (json_is_object(v)) {
        l->next = json_object_iter((json_t *)(uintptr_t)v);
    }
    buf_putc(&w->text, json_is_array(v) ? '[' : '{');
    return true;
}

/* Where the next element or the end stands. */
static void put_line(struct writer *w, size_t depth, bool between)
{
    size_t indent = w->flags & INDENT_MASK;

    if (indent) {
        buf_putc(&w->text, '\n');
        for (size_t i = 0; i < indent * depth; i++) buf_putc(&w->text, ' ');
    } else if (between && !(w->flags & JSON_COMPACT)) {
        buf_putc(&w->text, ' ');
    }
}

/* The next member's name; *value: its value. */
static bool put_name(struct writer *w, struct level *l, const json_t **value)
{
    const char *key = l->keys ? l->keys[l->i] : json_object_iter_key(l->next);

    *value = l->keys ? json_object_get(l->v, key) : json_object_iter_value(l->next);
    if (!l->keys) l->next = json_object_iter_next((json_t *)(uintptr_t)l->v, l->next);
    if (!put_string(&w->text, key, strlen(key))) return false;
    buf_puts(&w->text, w->flags & JSON_COMPACT ? ":" : ": ");
    return true;
}

/* In the innermost: its next value, or its end. */
static bool go_on(struct writer *w)
{
    struct level *l = &w->open[w->n_open - 1];
    bool array = json_is_array(l->v);
    const json_t *value = NULL;

    if (l->i == l->n) {
        if (l->n > 0) put_line(w, w->n_open - 1, false);
        buf_putc(&w->text, array ? ']' : '}');
        mem_free(l->keys);
        w->n_open--;
        return true;
    }
    if (l->i > 0) buf_putc(&w->text, ',');
    put_line(w, w->n_open, l->i > 0);
    if (array)
        value = json_array_get(l->v, l->i);
    else if (!put_name(w, l, &value))
        return false;
    l->i++;
    return json_is_array(value) || json_is_object(value) ? open_level(w, value) : put_scalar(w, value);
}

int json_write(const json_t *v, json_dump_callback_t put, void *arg, size_t flags)
{
    struct writer w = {.put = put, .arg = arg, .flags = flags};
    bool nests = json_is_array(v) || json_is_object(v), ok = v && (nests || (flags & JSON_ENCODE_ANY));

    if (ok) ok = nests ? open_level(&w, v) : put_scalar(&w, v);
    while (ok && w.n_open > 0) ok = go_on(&w) && (w.text.n < PIECE_BYTES || send(&w));
    if (ok) ok = send(&w);
    while (w.n_open > 0) mem_free(w.open[--w.n_open].keys);
    mem_free(w.open);
    buf_deinit(&w.text);
    return ok ? 0 : -1;
}

static int append(const char *s, size_t n, void *to)
{
    buf_append(to, s, n);
    return ((struct buf *)to)->failed ? -1 : 0;
}

char *json_written(const json_t *v, size_t flags)
{
    struct buf text = {0};
    json_malloc_t alloc;
    char *copy = NULL;

    json_get_alloc_funcs(&alloc, NULL);
    if (json_write(v, append, &text, flags) == 0) copy = alloc(text.n + 1);
    if (copy) memcpy(copy, text.data, text.n + 1);
    buf_deinit(&text);
    return copy;
}

int json_same(const json_t *a, const json_t *b)
{
    const size_t flags = JSON_WRITE_PLAIN | JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY;
    struct buf x = {0}, y = {0};
    bool same = a && b;

    if (same && a != b)
        same = json_write(a, append, &x, flags) == 0 && json_write(b, append, &y, flags) == 0 && x.n == y.n &&
               memcmp(x.data, y.data, x.n) == 0;
    buf_deinit(&x);
    buf_deinit(&y);
    return same;
}
