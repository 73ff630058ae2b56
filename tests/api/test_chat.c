/* tests/api/test_chat.c - a conversation of the library's: messages in, text and calls out, without a server. */
#include <jansson.h>
#include "base/mem.h"
#include "radish/radish.h"
#include "test.h"

static rd_engine *open_tiny(void)
{
    struct rd_options o;
    struct rd_error err = {RD_OK, ""};
    rd_engine *e = NULL;
    static char path[512];

    rd_options_default(&o);
    snprintf(path, sizeof(path), "%s", test_path("tests/golden/llama/tiny-llama.gguf"));
    o.model = path;
    o.n_threads = 1;
    o.no_disk_cache = true;
    rd_set_log(RD_LOG_ERROR, NULL, NULL);
    if (rd_open(&o, &e, &err) != RD_OK) test_fail(__FILE__, __LINE__, "%s", err.text);
    return e;
}

struct heard {
    rd_chat *chat;
    uint32_t n_cached, n_prompt;
    char text[4096];
    size_t n;
};

static int hear(void *user, uint32_t index, const struct rd_event *ev)
{
    struct heard *h = user;

    (void)index;
    if (h->n + ev->text_bytes < sizeof(h->text))
        memcpy(h->text + h->n, ev->text, ev->text_bytes), h->n += ev->text_bytes;
    if (ev->type == RD_EVENT_DONE) h->n_cached = ev->usage.n_cached, h->n_prompt = ev->usage.n_prompt;
    return rd_chat_hear(h->chat, ev, NULL) != RD_OK;
}

static json_t *last_of(const rd_chat *chat)
{
    char *json = rd_chat_json(chat);
    json_t *all = json_loads(json, 0, NULL), *last = json_incref(json_array_get(all, json_array_size(all) - 1));

    rd_free(json);
    json_decref(all);
    return last;
}

TEST(a_conversation_is_asked_again_and_only_the_new_is_computed)
{
    rd_engine *e = open_tiny();
    struct rd_request_options q;
    struct heard h = {0};
    json_t *answer;
    char *by_chat, *by_json, *json;
    size_t n_chat, n_json;

    CHECK(e != NULL);
    CHECK_OK(rd_chat_new("[{\"role\":\"system\",\"content\":\"abc\"}]", NULL, NULL, &h.chat, NULL));
    CHECK_OK(rd_chat_say(h.chat, "user", "a \"b\"\nc", 7, NULL));
    CHECK_EQ(rd_chat_length(h.chat), 2);
    CHECK_OK(rd_chat_render(e, h.chat, RD_PROMPT_NEW, &by_chat, &n_chat, NULL));
    json = rd_chat_json(h.chat);
    CHECK_OK(rd_apply_template(e, json, NULL, NULL, RD_PROMPT_NEW, &by_json, &n_json, NULL));
    CHECK(n_chat == n_json && memcmp(by_chat, by_json, n_json) == 0 && strstr(by_chat, "a \"b\"\nc"));
    rd_free(by_chat);
    rd_free(by_json);
    rd_free(json);
    rd_request_options_default(&q);
    q.chat = h.chat;
    q.max_tokens = 12;
    q.sampling.temperature = 0;
    q.parse_thinking = true;
    CHECK_OK(rd_generate(e, &q, hear, &h, NULL));
    CHECK_EQ(rd_chat_length(h.chat), 3);
    answer = last_of(h.chat);
    CHECK_STR(json_string_value(json_object_get(answer, "role")), "assistant");
    CHECK(strlen(json_string_value(json_object_get(answer, "content"))) == h.n);
    json_decref(answer);
    CHECK_OK(rd_chat_say(h.chat, "user", "def", 3, NULL));
    CHECK_OK(rd_generate(e, &q, hear, &h, NULL));
    CHECK_EQ(rd_chat_length(h.chat), 5);
    CHECK(h.n_cached > h.n_prompt / 2); /* the first turn was there */
    CHECK_OK(rd_chat_cut(h.chat, 2, NULL));
    CHECK_EQ(rd_chat_length(h.chat), 2);
    CHECK_OK(rd_chat_say(h.chat, "user", "ghi", 3, NULL));
    answer = last_of(h.chat);
    CHECK_STR(json_string_value(json_object_get(answer, "content")), "ghi");
    json_decref(answer);
    rd_chat_free(h.chat);
    rd_close(e);
}

/* Events as a model with tools gives them; a call that was cut is called by nobody. */
TEST(an_answer_is_put_together_from_its_events)
{
    const struct rd_delta deltas[] = {{.type = RD_DELTA_REASONING, .text = "hm", .text_bytes = 2, .id = ""},
                                      {.type = RD_DELTA_CONTENT, .text = "Well", .text_bytes = 4, .id = ""},
                                      {.type = RD_DELTA_CALL_BEGIN, .text = "f", .text_bytes = 1, .id = "call_1"},
                                      {.type = RD_DELTA_CALL_ARGUMENTS, .text = "{\"a\"", .text_bytes = 4, .id = ""},
                                      {.type = RD_DELTA_CALL_ARGUMENTS, .text = ":\"x\"}", .text_bytes = 5, .id = ""},
                                      {.type = RD_DELTA_CALL_END, .text = "", .id = "", .complete = true},
                                      {.type = RD_DELTA_CALL_BEGIN, .text = "g", .text_bytes = 1, .id = "call_2"},
                                      {.type = RD_DELTA_CALL_ARGUMENTS, .text = "{", .text_bytes = 1, .id = ""},
                                      {.type = RD_DELTA_CALL_END, .text = "", .id = ""}};
    struct rd_event ev = {.type = RD_EVENT_TOKEN};
    rd_chat *chat = NULL;
    json_t *m, *calls;

    CHECK_OK(rd_chat_new(NULL, "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", NULL, &chat, NULL));
    for (size_t i = 0; i < sizeof(deltas) / sizeof(deltas[0]); i++) {
        ev.deltas = &deltas[i];
        ev.n_deltas = 1;
        CHECK_OK(rd_chat_hear(chat, &ev, NULL));
    }
    CHECK_EQ(rd_chat_length(chat), 0);
    ev = (struct rd_event){.type = RD_EVENT_DONE};
    CHECK_OK(rd_chat_hear(chat, &ev, NULL));
    CHECK_OK(rd_chat_hear(chat, &ev, NULL)); /* nothing more was said */
    CHECK_EQ(rd_chat_length(chat), 1);
    m = last_of(chat);
    calls = json_object_get(m, "tool_calls");
    CHECK_STR(json_string_value(json_object_get(m, "content")), "Well");
    CHECK_STR(json_string_value(json_object_get(m, "reasoning_content")), "hm");
    CHECK_EQ(json_array_size(calls), 1);
    CHECK_STR(json_string_value(json_object_get(json_array_get(calls, 0), "id")), "call_1");
    CHECK_STR(json_string_value(json_object_get(json_object_get(json_array_get(calls, 0), "function"), "arguments")),
              "{\"a\":\"x\"}");
    json_decref(m);
    CHECK_OK(rd_chat_result(chat, "call_1", "7", 1, NULL));
    m = last_of(chat);
    CHECK_STR(json_string_value(json_object_get(m, "role")), "tool");
    CHECK_STR(json_string_value(json_object_get(m, "tool_call_id")), "call_1");
    json_decref(m);
    ev = (struct rd_event){.type = RD_EVENT_TOKEN, .text = "lost", .text_bytes = 4};
    CHECK_OK(rd_chat_hear(chat, &ev, NULL));
    ev = (struct rd_event){.type = RD_EVENT_ERROR};
    CHECK_OK(rd_chat_hear(chat, &ev, NULL));
    CHECK_EQ(rd_chat_length(chat), 2);
    rd_chat_free(chat);
}

TEST(what_cannot_be_a_message_is_refused_and_nothing_changes)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "5",
                                      "{}",
                                      "{\"role\":5}",
                                      "{\"role\":\"\"}",
                                      "{\"role\":\"user\"",
                                      "{\"role\":\"a\",\"role\":\"b\"}"};
    struct rd_error err = {RD_OK, ""};
    struct rd_request_options q;
    rd_chat *chat = NULL;
    rd_request *r = NULL;
    rd_engine *e = open_tiny();

    CHECK(e != NULL);
    CHECK_EQ(rd_chat_new("{}", NULL, NULL, &chat, &err), RD_E_INVALID);
    CHECK_EQ(rd_chat_new("[5]", NULL, NULL, &chat, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "messages[0]") != NULL);
    CHECK_EQ(rd_chat_new(NULL, "{}", NULL, &chat, &err), RD_E_INVALID);
    CHECK_EQ(rd_chat_new(NULL, NULL, "[]", &chat, &err), RD_E_INVALID);
    CHECK(chat == NULL);
    CHECK_OK(rd_chat_new("[{\"role\":\"user\",\"content\":\"a\"}]", NULL, NULL, &chat, &err));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) CHECK_EQ(rd_chat_add(chat, bad[i], &err), RD_E_INVALID);
    CHECK_EQ(rd_chat_say(chat, "", "a", 1, &err), RD_E_INVALID);
    CHECK_EQ(rd_chat_length(chat), 1);
    rd_request_options_default(&q);
    q.chat = chat;
    q.prompt = "a";
    q.prompt_bytes = 1;
    CHECK_EQ(rd_submit(e, &q, NULL, NULL, &r, &err), RD_E_INVALID);
    q.prompt = NULL;
    q.tools_json = "[]";
    CHECK_EQ(rd_submit(e, &q, NULL, NULL, &r, &err), RD_E_INVALID);
    rd_chat_free(chat);
    rd_chat_free(NULL);
    rd_close(e);
}

TEST(without_memory_a_conversation_is_what_it_was)
{
    rd_chat *chat = NULL;
    char long_text[600];

    memset(long_text, 'a', sizeof(long_text));
    for (int64_t i = 0; i < 200; i++) {
        uint32_t n;
        rd_status st;
        json_t *m;

        mem_fail_after(chat ? -1 : i);
        if (!chat && rd_chat_new("[{\"role\":\"user\",\"content\":\"a\"}]", "[]", NULL, &chat, NULL) != RD_OK) {
            CHECK(chat == NULL);
            mem_fail_after(-1);
            continue;
        }
        n = rd_chat_length(chat);
        mem_fail_after(i % 9);
        st = i % 3 == 0   ? rd_chat_say(chat, "user", long_text, sizeof(long_text), NULL)
             : i % 3 == 1 ? rd_chat_add(chat, "{\"role\":\"user\",\"content\":\"b\"}", NULL)
                          : rd_chat_cut(chat, n / 2, NULL);
        mem_fail_after(-1);
        CHECK(st == RD_OK || (st == RD_E_NOMEM && rd_chat_length(chat) == n));
        if (rd_chat_length(chat) > 0) {
            m = last_of(chat);
            CHECK(json_is_object(m));
            json_decref(m);
        }
    }
    CHECK(chat != NULL);
    rd_chat_free(chat);
}
