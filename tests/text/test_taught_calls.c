/* tests/text/test_taught_calls.c - which instructions show calls as text. */
#include <string.h>
#include "test.h"
#include "text/output/taught_calls.h"

#define SYSTEM(text) "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"system\",\"content\":\"" text "\"}]"
#define CALL         "{\\n  \\\"name\\\": \\\"some_tool\\\",\\n  \\\"arguments\\\": {\\\"x\\\": 1}\\n}"

TEST(calls_without_tags_in_a_system_message_are_seen)
{
    CHECK(taught_calls(OUTPUT_HERMES, SYSTEM("Do it so:\\n\\nAction:\\n" CALL "\\nNow begin.")));
    CHECK(taught_calls(OUTPUT_HERMES, SYSTEM("```json\\n" CALL "\\n```")));
    CHECK(taught_calls(OUTPUT_HERMES, SYSTEM("{\\\"name\\\": \\\"f\\\", \\\"parameters\\\": {}}")));
    CHECK(taught_calls(OUTPUT_HERMES,
                       "[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"Hi\"},{\"type\":"
                       "\"text\",\"text\":\"Action:\\n" CALL "\"}]}]"));
}

TEST(other_conversations_show_none)
{
    static const char *const none[] = {
        SYSTEM("You are a helpful assistant."),
        SYSTEM("Write <tool_call>" CALL "</tool_call>"), /* the model's own form */
        SYSTEM("The JSON " CALL " in a line is no example"),
        SYSTEM("{\\\"name\\\": \\\"f\\\", \\\"description\\\": \\\"d\\\", \\\"parameters\\\": {\\\"type\\\": "
               "\\\"object\\\"}}"),
        SYSTEM("\\\"arguments\\\""),
        "[{\"role\":\"user\",\"content\":\"" CALL "\"}]", /* a user's data */
        "[{\"role\":\"assistant\",\"content\":\"" CALL "\"}]",
        "[{\"role\":\"system\",\"content\":[\"\\\"arguments\\\"\",null,{\"text\":7}]}]",
        "[null,7,{\"role\":\"system\"},\"\\\"arguments\\\"\"]",
        "{\"\\\"arguments\\\"\":1}",
        "\\\"arguments\\\" is no JSON",
    };

    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) CHECK(!taught_calls(OUTPUT_HERMES, none[i]));
    CHECK(!taught_calls(OUTPUT_HERMES, NULL));
    /* a style whose own calls are bare cannot tell */
    CHECK(!taught_calls(OUTPUT_LLAMA_JSON, SYSTEM(CALL)));
}
