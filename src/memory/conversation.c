/* memory/conversation.c - each message as one canonical text, digested behind the digest so far. */
#include "memory/conversation.h"
#include <string.h>
#include "base/buf.h"
#include "base/json_write.h"

static int append(const char *s, size_t n, void *to)
{
    buf_append(to, s, n);
    return 0;
}

static void put_value(struct buf *out, const json_t *v)
{
    const size_t flags = JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_WRITE_PLAIN;

    if (v && json_dump_callback(v, append, out, flags) != 0) out->failed = true;
    buf_append(out, "\n", 2); /* the 0 byte: no JSON text has one */
}

static struct conversation digest(struct conversation before, struct buf *text)
{
    struct conversation c = {before.said, before.failed || text->failed};

    if (!c.failed) {
        buf_append(text, &before.said, sizeof(before.said));
        c.failed = text->failed;
    }
    if (!c.failed) c.said = hash128_of(text->data, text->n);
    buf_deinit(text);
    return c;
}

struct conversation conversation_begin(const json_t *tools)
{
    struct buf text = {0};

    put_value(&text, tools);
    return digest((struct conversation){{0, 0}, false}, &text);
}

static json_t *value_of(const json_t *arguments)
{
    if (!json_is_string(arguments)) return json_incref((json_t *)(uintptr_t)arguments);
    return json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_DECODE_ANY | JSON_ALLOW_NUL,
                      NULL);
}

bool conversation_same_arguments(const json_t *a, const json_t *b)
{
    json_t *x, *y;
    bool same;

    if (json_is_string(a) && json_is_string(b) && json_string_length(a) == json_string_length(b) &&
        memcmp(json_string_value(a), json_string_value(b), json_string_length(a)) == 0)
        return true;
    x = value_of(a);
    y = value_of(b);
    same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

/* Arguments: an object, or a text that spells one. */
static void put_arguments(struct buf *out, const json_t *arguments)
{
    json_t *value = NULL;

    if (json_is_string(arguments))
        value = json_loadb(json_string_value(arguments), json_string_length(arguments), JSON_ALLOW_NUL, NULL);
    put_value(out, value ? value : arguments);
    json_decref(value);
}

static void put_call(struct buf *out, const json_t *id, const json_t *name, const json_t *arguments)
{
    put_value(out, id);
    put_value(out, name);
    put_arguments(out, arguments);
}

/* Clients trim what they show, and send it back so. */
static void put_content(struct buf *out, const char *s, size_t n)
{
    while (n && strchr(" \t\r\n", s[0]) && s[0]) s++, n--;
    while (n && strchr(" \t\r\n", s[n - 1]) && s[n - 1]) n--;
    buf_append(out, s, n);
    buf_append(out, "\n", 2);
}

static void put_text(struct buf *out, const json_t *content)
{
    struct buf text = {0};

    if (json_is_string(content)) {
        put_content(out, json_string_value(content), json_string_length(content));
        return;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_object_get(json_array_get(content, i), "text");

        if (json_is_string(part)) buf_append(&text, json_string_value(part), json_string_length(part));
    }
    out->failed |= text.failed;
    put_content(out, text.n ? text.data : "", text.n);
    buf_deinit(&text);
}

struct conversation conversation_add(struct conversation before, const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    struct buf text = {0};

    if (role && strcmp(role, "assistant") == 0) {
        const json_t *calls = json_object_get(message, "tool_calls");

        buf_puts(&text, "assistant\n");
        put_text(&text, json_object_get(message, "content"));
        for (size_t i = 0; i < json_array_size(calls); i++) {
            const json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");

            put_call(&text, json_object_get(call, "id"), json_object_get(function, "name"),
                     json_object_get(function, "arguments"));
        }
    } else {
        put_value(&text, message);
    }
    return digest(before, &text);
}

struct conversation conversation_add_answer(struct conversation before, const char *content, size_t n,
                                            const json_t *calls)
{
    struct buf text = {0};

    buf_puts(&text, "assistant\n");
    put_content(&text, content, n);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);

        put_call(&text, json_object_get(call, "id"), json_object_get(call, "name"), json_object_get(call, "arguments"));
    }
    return digest(before, &text);
}
