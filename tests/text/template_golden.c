/* tests/text/template_golden.c - see template_golden.h. */
#include "template_golden.h"
#include <string.h>
#include "base/mem.h"
#include "test.h"
#include "text/chat/chat_template.h"

static bool same(const struct chat_template *t, json_t *conversation, json_t *expected, char *why, size_t cap)
{
    struct chat_input in = {.messages = json_object_get(conversation, "messages"),
                            .tools = json_object_get(conversation, "tools"),
                            .kwargs = json_object_get(conversation, "kwargs"),
                            .now_s = 1700000000,
                            .add_generation_prompt =
                                json_is_true(json_object_get(conversation, "add_generation_prompt"))};
    json_t *want = json_object_get(expected, "e");
    struct rd_error err = {0};
    char *text = NULL;
    size_t n = 0;
    rd_status st = chat_template_render(t, &in, &text, &n, &err);
    bool ok = want ? st == RD_OK && n == json_string_length(want) && !memcmp(text, json_string_value(want), n)
                   : st == RD_E_TEMPLATE;

    if (!ok) {
        size_t at = 0;
        while (want && text && at < n && at < json_string_length(want) && text[at] == json_string_value(want)[at]) at++;
        snprintf(why, cap, "%s at byte %zu: \"%.60s\", wanted \"%.60s\"", st == RD_OK ? "text" : err.text, at,
                 text ? text + at : "",
                 want ? json_string_value(want) + at : json_string_value(json_object_get(expected, "error")));
    }
    mem_free(text);
    return ok;
}

int template_golden_differences(const char *golden_path, const char *conversations_path, size_t *n)
{
    json_t *golden = json_load_file(golden_path, 0, NULL), *conversations = json_load_file(conversations_path, 0, NULL);
    json_t *expected = json_object_get(golden, "expected"), *source = json_object_get(golden, "source");
    struct chat_template *t = NULL;
    struct rd_error err = {0};
    char why[1024];
    int bad = -1;

    *n = json_array_size(expected);
    if (*n == 0 || *n != json_array_size(conversations)) goto out;
    if (chat_template_create(json_string_value(source), json_string_length(source),
                             json_string_value(json_object_get(golden, "bos")),
                             json_string_value(json_object_get(golden, "eos")), &t, &err) != RD_OK) {
        test_note("%s: %s", golden_path, err.text);
        goto out;
    }
    bad = 0;
    for (size_t i = 0; i < *n; i++) {
        if (same(t, json_array_get(conversations, i), json_array_get(expected, i), why, sizeof(why))) continue;
        if (bad++ == 0) test_note("%s, conversation %zu: %s", golden_path, i, why);
    }

out:
    chat_template_destroy(t);
    json_decref(golden);
    json_decref(conversations);
    return bad;
}
