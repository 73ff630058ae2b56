/* api/api_marks.c - names of special tokens in what a client sends are marked, so that they stay text in the prompt
 * (text/tokenizer/special_marks.h).
 *
 * Everything is foreign: messages of every role, tools, template variables, the names of their members. An assistant's
 * message keeps the tags around its thinking, and one that is put back as its model wrote it those of its calls, too.
 */
#include <string.h>
#include "api/api_state.h"
#include "base/error.h"
#include "base/mem.h"
#include "text/tokenizer/special_marks.h"

#define MAX_ALLOWED 32u

struct marker {
    const struct tokenizer *t;
    const char *thinking[3], *written[MAX_ALLOWED + 1]; /* allowed in an assistant's message; in one that is put back */
    bool failed;
};

static json_t *mark(struct marker *k, const json_t *v, const char *const *allowed);

static void allow_tags(const struct api_style *style, struct marker *k)
{
    uint32_t n = 0;

    if (style->think) {
        k->thinking[0] = k->written[n++] = style->think->open;
        k->thinking[1] = k->written[n++] = style->think->close;
    }
    for (uint32_t i = 0; n < MAX_ALLOWED; i++) {
        const char *tag = output_style_marker(style->tools, i);

        if (!tag) return;
        k->written[n++] = tag;
    }
}

/* s with marks, or NULL: it is as it was. mem_free. */
static char *mark_text(struct marker *k, const char *s, size_t n, const char *const *allowed, size_t *n_out)
{
    struct buf out = {0};
    bool changed = special_marks_put(k->t, s, n, allowed, &out);
    char *text = changed ? buf_take(&out, n_out) : NULL;

    k->failed |= out.failed;
    buf_deinit(&out);
    return text;
}

static json_t *mark_string(struct marker *k, const json_t *v, const char *const *allowed)
{
    size_t n = 0;
    char *text = mark_text(k, json_string_value(v), json_string_length(v), allowed, &n);
    json_t *out = text ? json_stringn(text, n) : NULL;

    k->failed |= text && !out;
    mem_free(text);
    return out;
}

/* Arguments that are JSON's text: names may be spelled with its escapes. */
static json_t *mark_arguments(struct marker *k, const json_t *v, const char *const *allowed)
{
    const size_t parse = JSON_DECODE_ANY | JSON_ALLOW_NUL, write = JSON_COMPACT | JSON_ENCODE_ANY;
    const bool escapes = memmem(json_string_value(v), json_string_length(v), "\\u", 2) != NULL;
    json_t *value = escapes ? json_loadb(json_string_value(v), json_string_length(v), parse, NULL) : NULL;
    json_t *marked = value ? mark(k, value, allowed) : NULL, *out = NULL;
    char *text = marked ? json_dumps(marked, write) : NULL;

    if (text) out = json_string(text);
    k->failed |= marked && !out;
    mem_free(text);
    json_decref(marked);
    json_decref(value);
    return out || k->failed ? out : mark_string(k, v, allowed);
}

static json_t *mark_list(struct marker *k, const json_t *v, const char *const *allowed)
{
    json_t *out = NULL;

    for (size_t i = 0; i < json_array_size(v) && !k->failed; i++) {
        json_t *item = mark(k, json_array_get(v, i), allowed);

        if (!item) continue;
        if (!out) out = json_copy((json_t *)(uintptr_t)v);
        k->failed |= json_array_set_new(out, i, item) != 0;
    }
    return out;
}

static json_t *mark_object(struct marker *k, const json_t *v, const char *const *allowed)
{
    json_t *out = json_object(), *value;
    bool changed = false;
    const char *name;

    k->failed |= !out;
    json_object_foreach((json_t *)(uintptr_t)v, name, value)
    {
        bool is_text = strcmp(name, "arguments") == 0 && json_is_string(value);
        json_t *now = is_text ? mark_arguments(k, value, allowed) : mark(k, value, allowed);
        size_t n = 0;
        char *named = mark_text(k, name, strlen(name), allowed, &n);

        changed |= now || named;
        k->failed |= json_object_set_new(out, named ? named : name, now ? now : json_incref(value)) != 0;
        mem_free(named);
        if (k->failed) break;
    }
    if (changed) return out;
    json_decref(out);
    return NULL;
}

/* A new reference, or NULL: nothing in it is to be marked. */
static json_t *mark(struct marker *k, const json_t *v, const char *const *allowed)
{
    if (json_is_string(v)) return mark_string(k, v, allowed);
    if (json_is_array(v)) return mark_list(k, v, allowed);
    return json_is_object(v) ? mark_object(k, v, allowed) : NULL;
}

/* *value becomes what was marked, if anything was. */
static rd_status take(json_t **value, json_t *marked, bool failed, struct rd_error *err)
{
    if (failed) {
        json_decref(marked);
        return error_set(err, RD_E_NOMEM, "out of memory for a prompt");
    }
    if (!marked) return RD_OK;
    json_decref(*value);
    *value = marked;
    return RD_OK;
}

rd_status api_mark(const rd_engine *engine, json_t **value, struct rd_error *err)
{
    struct marker k = {.t = engine->tokenizer};
    json_t *marked = k.t && *value ? mark(&k, *value, NULL) : NULL;

    return take(value, marked, k.failed, err);
}

rd_status api_mark_messages(const rd_engine *engine, json_t **messages, const struct answer_pick *picks,
                            struct rd_error *err)
{
    struct marker k = {.t = engine->tokenizer};
    json_t *marked = NULL;

    allow_tags(&engine->style, &k);
    for (size_t i = 0; k.t && i < json_array_size(*messages) && !k.failed; i++) {
        const json_t *m = json_array_get(*messages, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        const bool is_answer = role && strcmp(role, "assistant") == 0, is_back = picks && picks[i].serial;
        json_t *now = mark(&k, m, is_back ? k.written : is_answer ? k.thinking : NULL);

        if (!now) continue;
        if (!marked) marked = json_copy(*messages);
        k.failed |= json_array_set_new(marked, i, now) != 0;
    }
    return take(messages, marked, k.failed, err);
}

rd_status api_unmark(char **text, size_t *n, struct rd_error *err)
{
    struct text_breaks breaks = {NULL, 0, 0};
    size_t n_plain = 0;
    char *plain = NULL;
    rd_status st = text_marks_take(*text, *n, &plain, &n_plain, &breaks);

    text_breaks_deinit(&breaks);
    if (st != RD_OK) return error_set(err, st, "prompt: %s", rd_status_text(st));
    if (!plain) return RD_OK;
    mem_free(*text);
    *text = plain;
    *n = n_plain;
    return RD_OK;
}

void api_unmark_error(struct rd_error *err)
{
    struct text_breaks breaks = {NULL, 0, 0};
    char *plain = NULL;
    size_t n = 0;

    if (!err) return;
    (void)text_marks_take(err->text, strlen(err->text), &plain, &n, &breaks);
    if (plain) memcpy(err->text, plain, n + 1); /* it is shorter */
    text_breaks_deinit(&breaks);
    mem_free(plain);
}

rd_status rd_tokenize_parts(const rd_engine *engine, const struct rd_text_part *parts, size_t n_parts, bool add_special,
                            int32_t **tokens, uint32_t *n_tokens, struct rd_error *err)
{
    struct buf text = {0};
    rd_status st;

    if (engine->process)
        return error_set(err, RD_E_UNSUPPORTED, "parts: the model's backend is a process that tokenises itself");
    for (size_t i = 0; i < n_parts; i++) {
        if (parts[i].is_foreign)
            special_marks_put(engine->tokenizer, parts[i].text, parts[i].n_bytes, NULL, &text);
        else
            text_marks_write_text(&text, parts[i].text, parts[i].n_bytes);
    }
    if (text.failed)
        st = error_set(err, RD_E_NOMEM, "out of memory for a text of %zu parts", n_parts);
    else
        st = tokenizer_encode_marked(engine->tokenizer, text.n ? text.data : "", text.n, add_special, tokens, n_tokens,
                                     err);
    buf_deinit(&text);
    return st;
}
