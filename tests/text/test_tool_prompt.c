/* tests/text/test_tool_prompt.c - tools in a prompt whose template knows none. */
#include "text/output/tool_prompt.h"
#include <stdlib.h>
#include <string.h>
#include "test.h"

/* The messages after the tools were explained, as compact JSON; the long explanation is cut to "TOOLS". */
static const char *explained(const char *tools, const char *messages)
{
    static char out[4096];
    json_t *t = tools ? json_loads(tools, 0, NULL) : NULL, *m = json_loads(messages, 0, NULL);
    char *text, *from, *to;

    if (tool_prompt_explain(t, m) != RD_OK) return "failed";
    text = json_dumps(m, JSON_COMPACT);
    snprintf(out, sizeof(out), "%s", text);
    free(text);
    from = strstr(out, "# Tools");
    to = strstr(out, "answer directly.");
    if (from && to && strstr(from, "\\\"name\\\": \\\"f\\\"")) {
        memmove(from + 5, to + 16, strlen(to + 16) + 1);
        memcpy(from, "TOOLS", 5);
    }
    json_decref(t);
    json_decref(m);
    return out;
}

#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

TEST(tools_are_explained_in_the_system_message)
{
    CHECK_STR(explained(TOOLS, "[{\"role\":\"user\",\"content\":\"Hi\"}]"),
              "[{\"role\":\"system\",\"content\":\"TOOLS\"},{\"role\":\"user\",\"content\":\"Hi\"}]");
    CHECK_STR(
        explained(TOOLS, "[{\"role\":\"system\",\"content\":\"Be kind.\"},{\"role\":\"user\",\"content\":\"Hi\"}]"),
        "[{\"role\":\"system\",\"content\":\"Be kind.\\n\\nTOOLS\"},{\"role\":\"user\",\"content\":\"Hi\"}]");
    CHECK_STR(explained(TOOLS, "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"A\"}]}]"),
              "[{\"role\":\"system\",\"content\":\"A\\n\\nTOOLS\"}]");
    CHECK_STR(explained(NULL, "[{\"role\":\"user\",\"content\":\"Hi\"}]"), "[{\"role\":\"user\",\"content\":\"Hi\"}]");
}

TEST(calls_and_results_become_text)
{
    CHECK_STR(
        explained(NULL, "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"x\",\"type\":\"function\","
                        "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}},{\"function\":{\"name\":\"g\","
                        "\"arguments\":{\"b\":2}}}]},{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"one\"},"
                        "{\"role\":\"tool\",\"content\":\"two\"},{\"role\":\"user\",\"content\":\"ok\"}]"),
        "[{\"role\":\"assistant\",\"content\":\"<tool_call>\\n{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": "
        "1}}\\n</tool_call>\\n<tool_call>\\n{\\\"name\\\": \\\"g\\\", \\\"arguments\\\": {\\\"b\\\": "
        "2}}\\n</tool_call>\"},"
        "{\"role\":\"user\",\"tool_call_id\":\"x\",\"content\":\"<tool_response>\\none\\n</tool_response>\\n"
        "<tool_response>\\ntwo\\n</tool_response>\"},{\"role\":\"user\",\"content\":\"ok\"}]");
}

TEST(a_begun_call_reads_as_one)
{
    for (int s = OUTPUT_HERMES; s < OUTPUT_N_STYLES; s++) {
        struct buf named = {0}, any = {0};

        tool_prompt_begin_call((enum output_style)s, "", "f", &named);
        tool_prompt_begin_call((enum output_style)s, "", "", &any);
        CHECK(named.n > any.n && any.n > 0);
        CHECK(memcmp(named.data, any.data, any.n) == 0);
        buf_deinit(&named);
        buf_deinit(&any);
    }
}
