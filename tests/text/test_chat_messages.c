/* tests/text/test_chat_messages.c - every form of message that clients send, through templates of different abilities.
 */
#include <jansson.h>
#include "base/mem.h"
#include "test.h"
#include "text/chat/chat_messages.h"
#include "text/chat/chat_template.h"

/* Writes whatever it gets; knows every role but developer. */
#define PLAIN                                                                                                          \
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}{% if m.reasoning_content %}|{{ m.reasoning_content }}"       \
    "{% endif %}{% for c in m.tool_calls or [] %}<{{ c.function.name }}{{ c.function.arguments | tojson }}>"           \
    "{% endfor %}]{% endfor %}{% if add_generation_prompt %}[assistant:{% endif %}"
/* Goes through parts, and only through parts. */
#define PARTS "{% for m in messages %}[{{ m.role }}{% for p in m.content %}({{ p.text }}){% endfor %}]{% endfor %}"
/* As Mistral's and Gemma's: user and assistant in turns, a system message at most in front. */
#define STRICT                                                                                                         \
    "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>{% set messages = messages[1:] %}{% endif %}"     \
    "{% for m in messages %}{% if m.role != ('user' if loop.index0 is even else 'assistant') %}"                       \
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role[0] }}:{{ m.content | trim }}]{% endfor %}"
#define NO_SYSTEM                                                                                                      \
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"                  \
    "[{{ m.role[0] }}:{{ m.content }}]{% endfor %}"
#define FIRST_ONLY                                                                                                     \
    "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>{% endif %}"                                      \
    "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role[0] }}:{{ m.content }}]{% endif %}{% endfor %}"

static const char *prompt_of(const char *source, const char *messages, enum chat_end end)
{
    static char out[2048];
    json_t *m = json_loads(messages, 0, NULL);
    struct chat_template *t = NULL;
    struct chat_input in = {.messages = m, .end = end};
    struct rd_error err = {0};
    char *text = NULL;
    size_t n = 0;
    rd_status st = chat_template_create(source, strlen(source), "<s>", "</s>", &t, &err);

    if (!m) test_note("bad JSON: %s", messages);
    if (st == RD_OK) st = chat_template_prompt(t, &in, &text, &n, &err);
    if (st == RD_OK && strlen(text) != n) st = RD_E_INTERNAL;
    snprintf(out, sizeof(out), "%s", st == RD_OK ? text : err.text);
    mem_free(text);
    chat_template_destroy(t);
    json_decref(m);
    return out;
}

#define U "{\"role\":\"user\",\"content\":\"hi\"}"

TEST(text_parts_are_joined_unless_the_template_goes_through_them)
{
    const char *m = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\","
                    "{\"type\":\"input_text\",\"text\":\"c\"},{\"type\":\"refusal\",\"refusal\":\"d\"}]}]";

    CHECK_STR(prompt_of(PLAIN, m, CHAT_END_NONE), "[user:abcd]");
    CHECK_STR(prompt_of(PARTS, m, CHAT_END_NONE), "[user(a)(b)(c)(d)]");
    CHECK_STR(prompt_of(PARTS, "[" U "]", CHAT_END_NONE), "[user(hi)]");
    CHECK_STR(prompt_of(PLAIN, "[{\"role\":\"user\",\"content\":[]}]", CHAT_END_NONE), "[user:]");
}

TEST(unknown_parts_are_refused_by_name)
{
    CHECK_STR(prompt_of(PLAIN, "[" U ",{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
                        CHAT_END_NONE),
              "messages: messages[1].content[0]: parts of type image_url are not supported by this model");
    CHECK_STR(prompt_of(PLAIN, "[{\"role\":\"user\",\"content\":[{\"text\":5}]}]", CHAT_END_NONE),
              "messages: messages[0].content[0] needs a type");
    CHECK_STR(prompt_of(PLAIN, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", CHAT_END_NONE),
              "messages: messages[0].content[0]: the part of type text lacks its text");
    CHECK_STR(prompt_of(PLAIN, "[{\"role\":\"user\",\"content\":5}]", CHAT_END_NONE),
              "messages: messages[0]: content must be a string or a list of parts");
    CHECK_STR(prompt_of(PLAIN, "[5]", CHAT_END_NONE), "messages: messages[0] is not an object");
    CHECK_STR(prompt_of(PLAIN, "[{\"content\":\"x\"}]", CHAT_END_NONE), "messages: messages[0] needs a role");
}

TEST(the_developer_is_the_system_unless_the_template_knows_it)
{
    const char *m = "[{\"role\":\"developer\",\"content\":\"D\"}," U "]";

    CHECK_STR(prompt_of(PLAIN, m, CHAT_END_NONE), "[system:D][user:hi]");
    CHECK_STR(prompt_of("{% if messages[0].role == 'developer' %}{% endif %}" PLAIN, m, CHAT_END_NONE),
              "[developer:D][user:hi]");
}

#define CALL(content, args)                                                                                            \
    "[" U ",{\"role\":\"assistant\"," content "\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":"     \
    "{\"name\":\"f\",\"arguments\":" args "}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"R\"}]"

TEST(arguments_become_the_object_that_they_spell)
{
    const char *want = "[user:hi][assistant:<f{\"z\": 1, \"a\": [2]}>][tool:R]";

    CHECK_STR(prompt_of(PLAIN, CALL("\"content\":\"\",", "{\"z\":1,\"a\":[2]}"), CHAT_END_NONE), want);
    CHECK_STR(prompt_of(PLAIN, CALL("\"content\":null,", "\"{\\\"z\\\":1,\\\"a\\\":[2]}\""), CHAT_END_NONE), want);
    CHECK_STR(prompt_of(PLAIN, CALL("", "\"{\\\"z\\\":1,\\\"a\\\":[2]}\""), CHAT_END_NONE), want);
    CHECK_STR(prompt_of(PLAIN, CALL("", "\"\""), CHAT_END_NONE), "[user:hi][assistant:<f{}>][tool:R]");
    CHECK_STR(prompt_of(PLAIN, CALL("", "\"no json\""), CHAT_END_NONE), "[user:hi][assistant:<f\"no json\">][tool:R]");
}

TEST(arguments_stay_text_for_a_template_that_wants_text)
{
    const char *source =
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}"
        "{% endfor %}{% endfor %}";

    CHECK_STR(prompt_of(source, CALL("", "{\"z\":1,\"a\":[2]}"), CHAT_END_NONE), "f{\"z\": 1, \"a\": [2]}");
}

TEST(null_content_is_never_written_as_none)
{
    CHECK_STR(prompt_of(PLAIN, "[" U ",{\"role\":\"assistant\",\"content\":null}," U "]", CHAT_END_NONE),
              "[user:hi][assistant:][user:hi]");
    CHECK_STR(prompt_of("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}",
                        "[" U ",{\"role\":\"assistant\"}," U "]", CHAT_END_NONE),
              "<hi><><hi>");
    CHECK_STR(prompt_of(PLAIN, "[" U ",{\"role\":\"tool\",\"content\":null},{\"role\":\"tool\"}]", CHAT_END_NONE),
              "[user:hi][tool:][tool:]");
}

TEST(the_older_function_call_is_a_tool_call)
{
    CHECK_STR(prompt_of(PLAIN,
                        "[" U
                        ",{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"f\",\"arguments\":"
                        "\"{}\"}},{\"role\":\"function\",\"name\":\"f\",\"content\":{\"t\":[1]}}]",
                        CHAT_END_NONE),
              "[user:hi][assistant:<f{}>][tool:{\"t\": [1]}]");
}

TEST(reasoning_reaches_the_template_under_either_name)
{
    CHECK_STR(prompt_of(PLAIN, "[" U ",{\"role\":\"assistant\",\"content\":\"A\",\"reasoning\":\"R\"}]", CHAT_END_NONE),
              "[user:hi][assistant:A|R]");
    CHECK_STR(prompt_of(PLAIN,
                        "[" U ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"T\"},"
                        "{\"type\":\"text\",\"text\":\"A\"}]}]",
                        CHAT_END_NONE),
              "[user:hi][assistant:A|T]");
    CHECK_STR(prompt_of("{% for m in messages %}{{ m.thinking }}{% endfor %}",
                        "[" U ",{\"role\":\"assistant\",\"content\":\"A\",\"reasoning_content\":\"R\"}]",
                        CHAT_END_NONE),
              "R");
}

#define LATE                                                                                                           \
    "[{\"role\":\"system\",\"content\":\"S\"}," U ",{\"role\":\"assistant\",\"content\":\"A\"},"                       \
    "{\"role\":\"system\",\"content\":\"L1\"},{\"role\":\"system\",\"content\":\"L2\"}," U "]"

TEST(late_system_messages_go_into_the_next_user_message_where_the_template_refuses_or_loses_them)
{
    CHECK_STR(prompt_of(PLAIN, LATE, CHAT_END_NONE), "[system:S][user:hi][assistant:A][system:L1][system:L2][user:hi]");
    CHECK_STR(prompt_of(STRICT, LATE, CHAT_END_NONE), "<S>[u:hi][a:A][u:L1\n\nL2\n\nhi]");
    CHECK_STR(prompt_of(FIRST_ONLY, LATE, CHAT_END_NONE), "<S>[u:hi][a:A][u:L1\n\nL2\n\nhi]");
    CHECK_STR(prompt_of(NO_SYSTEM, LATE, CHAT_END_NONE), "[u:S\n\nhi][a:A][u:L1\n\nL2\n\nhi]");
    CHECK_STR(prompt_of(STRICT, "[" U ",{\"role\":\"system\",\"content\":\"end\"}]", CHAT_END_NONE), "[u:hi\n\nend]");
    CHECK_STR(prompt_of(FIRST_ONLY,
                        "[{\"role\":\"system\",\"content\":\"A\"},{\"role\":\"system\",\"content\":\"B\"}," U "]",
                        CHAT_END_NONE),
              "<A\n\nB>[u:hi]");
    CHECK_STR(prompt_of(NO_SYSTEM, "[{\"role\":\"system\",\"content\":\"only\"}]", CHAT_END_NONE), "[u:only]");
}

TEST(messages_of_one_role_in_a_row_are_joined_where_turns_must_alternate)
{
    CHECK_STR(prompt_of(STRICT,
                        "[" U "," U
                        ",{\"role\":\"assistant\",\"content\":\"A\"},{\"role\":\"assistant\",\"content\":\"B\"}," U "]",
                        CHAT_END_NONE),
              "[u:hi\n\nhi][a:A\n\nB][u:hi]");
    CHECK_STR(prompt_of(STRICT, "[{\"role\":\"assistant\",\"content\":\"A\"}]", CHAT_END_NONE),
              "line 1: roles must alternate");
}

TEST(a_last_assistant_message_is_continued)
{
    const char *begun = "[" U ",{\"role\":\"assistant\",\"content\":\"Sure, \"}]";

    CHECK_STR(prompt_of(PLAIN, begun, CHAT_END_AUTO), "[user:hi][assistant:Sure, ");
    CHECK_STR(prompt_of(PLAIN, begun, CHAT_END_CONTINUE), "[user:hi][assistant:Sure, ");
    CHECK_STR(prompt_of(PLAIN, begun, CHAT_END_GENERATION), "[user:hi][assistant:Sure, ][assistant:");
    CHECK_STR(prompt_of(PLAIN, begun, CHAT_END_NONE), "[user:hi][assistant:Sure, ]");
    CHECK_STR(prompt_of(STRICT, begun, CHAT_END_AUTO), "[u:hi][a:Sure,");
    CHECK_STR(prompt_of(PARTS, begun, CHAT_END_AUTO), "[user(hi)][assistant(Sure, ");
    CHECK_STR(prompt_of(PLAIN, "[" U "]", CHAT_END_CONTINUE), "[user:hi");
}

TEST(an_empty_last_assistant_message_asks_for_an_answer)
{
    CHECK_STR(prompt_of(PLAIN, "[" U ",{\"role\":\"assistant\",\"content\":\"\"}]", CHAT_END_AUTO),
              "[user:hi][assistant:");
    CHECK_STR(prompt_of(PLAIN, "[" U ",{\"role\":\"assistant\",\"content\":null}]", CHAT_END_AUTO),
              "[user:hi][assistant:");
    CHECK_STR(prompt_of(PLAIN, "[]", CHAT_END_AUTO), "[assistant:");
    CHECK_STR(prompt_of(PLAIN, "[]", CHAT_END_CONTINUE), "continue_final_message: there is no message to continue");
    CHECK_STR(prompt_of(PLAIN, "[" U ",{\"role\":\"assistant\",\"content\":null}]", CHAT_END_CONTINUE),
              "[user:hi][assistant:");
    CHECK_STR(prompt_of("{{ messages | length }}", "[" U "]", CHAT_END_CONTINUE),
              "continue_final_message: the chat template does not write the last message's text");
}

TEST(ids_of_calls_become_what_mistral_demands)
{
    const char *source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
                         "{{ raise_exception('ids of length 9') }}{% endif %}<{{ c.id }}>{% endfor %}"
                         "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}";
    char text[64];

    snprintf(text, sizeof(text), "%s", prompt_of(source, CALL("", "{}"), CHAT_END_NONE));
    CHECK_EQ(strlen(text), 22);
    CHECK(!memcmp(text + 1, text + 12, 9));
}

/* As Llama 3.1's to 3.3's: one call a message. */
#define SINGLE                                                                                                         \
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length != 1 %}"                                      \
    "{{ raise_exception('single tool-calls only') }}{% endif %}"                                                       \
    "[{{ m.role[0] }}:{{ m.content }}{{ m.reasoning_content }}"                                                        \
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }}>{% endfor %}]{% endfor %}"
#define NAMED(id, name)                                                                                                \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":\"{}\"}}"
#define TWO_CALLS                                                                                                      \
    "{\"role\":\"assistant\",\"content\":\"Both.\",\"reasoning_content\":\"hm\","                                      \
    "\"tool_calls\":[" NAMED("c1", "a") "," NAMED("c2", "b") "]}"
#define RESULT(id, text) "{\"role\":\"tool\",\"content\":\"" text "\",\"tool_call_id\":\"" id "\"}"

TEST(calls_go_one_after_the_other_where_the_template_takes_one_a_message)
{
    CHECK_STR(
        prompt_of(SINGLE, "[" U "," TWO_CALLS "," RESULT("c2", "R2") "," RESULT("c1", "R1") "," U "]", CHAT_END_NONE),
        "[u:hi][a:Both.hm<a>][t:R1][a:<b>][t:R2][u:hi]");
    CHECK_STR(prompt_of(SINGLE, "[" U "," TWO_CALLS "," RESULT("x", "R1") "," RESULT("y", "R2") "]", CHAT_END_NONE),
              "[u:hi][a:Both.hm<a>][t:R1][a:<b>][t:R2]"); /* ids that fit no call: in their order */
    CHECK_STR(prompt_of(SINGLE, "[" U "," TWO_CALLS "]", CHAT_END_NONE), "[u:hi][a:Both.hm<a>][a:<b>]");
    CHECK_STR(prompt_of(PLAIN, "[" U "," TWO_CALLS "," RESULT("c1", "R1") "]", CHAT_END_NONE),
              "[user:hi][assistant:Both.|hm<a{}><b{}>][tool:R1]");
}

/* Whatever allocation fails while this conversation becomes a prompt. */
static void run_out_of_memory(const char *source, const char *messages)
{
    json_t *m = json_loads(messages, 0, NULL);
    uint64_t alive;
    rd_status st = RD_E_NOMEM;

    json_set_alloc_funcs(malloc, free);
    alive = mem_n_alive();
    for (int64_t i = 0; st != RD_OK; i++) {
        struct chat_template *t = NULL;
        struct chat_input in = {.messages = m, .end = CHAT_END_AUTO};
        char *text = NULL;
        size_t n;

        mem_fail_after(i);
        st = chat_template_create(source, strlen(source), "", "", &t, NULL);
        if (st == RD_OK) st = chat_template_prompt(t, &in, &text, &n, NULL);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        mem_free(text);
        chat_template_destroy(t);
        CHECK_EQ(mem_n_alive(), alive);
        CHECK(i < 10000);
    }
    json_decref(m);
}

TEST(running_out_of_memory_anywhere_is_an_error_without_leaks)
{
    run_out_of_memory(STRICT, LATE);
    run_out_of_memory(SINGLE, "[" U "," TWO_CALLS "," RESULT("c2", "R2") "," RESULT("c1", "R1") "]");
}
