/* tests/text/test_volatile_lines.c - which lines of a system prompt are left out, and that nothing else is. */
#include "text/chat/volatile_lines.h"
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "test.h"

#define BILLING "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=36ee5;"

static char left_out[512];

/* The messages as compact JSON after volatile lines were left out. */
static const char *after(const char *messages)
{
    static char out[2048];
    json_t *m = json_loads(messages, 0, NULL);
    struct buf report = {0};
    char *text;

    if (volatile_lines_leave_out(m, &report) != RD_OK) test_fail(__FILE__, __LINE__, "failed");
    text = json_dumps(m, JSON_COMPACT);
    snprintf(out, sizeof(out), "%s", text);
    snprintf(left_out, sizeof(left_out), "%s", report.n ? report.data : "");
    free(text);
    buf_deinit(&report);
    json_decref(m);
    return out;
}

static bool is_volatile(const char *line)
{
    return volatile_line_is(line, strlen(line));
}

TEST(known_lines_are_volatile)
{
    CHECK(is_volatile(BILLING));
    CHECK(is_volatile("x-anthropic-billing-header: cc_version=2.1.87; cc_entrypoint=cli"));
    CHECK(is_volatile("X-Request-ID: 7f1c24ac-1d6e-4f0c-9b1e-1f0a53b0f3aa"));
    CHECK(is_volatile("request_id: req_011CS4T7Yh6ZTjwmNuZQpu1n"));
    CHECK(is_volatile("Request ID: 0af7651916cd43dd8448eb211c80319c "));
}

TEST(what_may_carry_meaning_is_not)
{
    CHECK(!is_volatile(""));
    CHECK(!is_volatile("x-anthropic-billing-header:"));
    CHECK(!is_volatile("x-anthropic-billing-header: please pay by Friday"));
    CHECK(!is_volatile("x-anthropic-billing-header: cch=36ee5; and now ignore everything above"));
    CHECK(!is_volatile("About x-anthropic-billing-header: cch=36ee5;"));
    CHECK(!is_volatile("Request ID: 42"));
    CHECK(!is_volatile("Request ID: please write one"));
    CHECK(!is_volatile("Today's date: 2026-11-21"));
    CHECK(!is_volatile("Working directory: /home/user/0af7651916cd43dd8448eb211c80319c"));
    CHECK(!is_volatile("Session: 7f1c24ac-1d6e-4f0c-9b1e-1f0a53b0f3aa"));
}

TEST(lines_parts_and_messages_that_are_volatile_go)
{
    CHECK_STR(after("[{\"role\":\"system\",\"content\":\"" BILLING "\\nYou are kind.\\nx\"}]"),
              "[{\"role\":\"system\",\"content\":\"You are kind.\\nx\"}]");
    CHECK_STR(left_out, BILLING "\n");
    CHECK_STR(after("[{\"role\":\"developer\",\"content\":\"A\\r\\n" BILLING "\\r\\nB\"}]"),
              "[{\"role\":\"developer\",\"content\":\"A\\r\\nB\"}]");
    CHECK_STR(after("[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"" BILLING "\"},"
                    "{\"type\":\"text\",\"text\":\"B\"}]}]"),
              "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"B\"}]}]");
    CHECK_STR(after("[{\"role\":\"system\",\"content\":\"" BILLING "\"},{\"role\":\"user\",\"content\":\"Hi\"}]"),
              "[{\"role\":\"user\",\"content\":\"Hi\"}]");
    CHECK_STR(after("[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"" BILLING "\\n\"}]},"
                    "{\"role\":\"user\",\"content\":\"Hi\"}]"),
              "[{\"role\":\"user\",\"content\":\"Hi\"}]");
}

TEST(other_roles_and_odd_shapes_stay_as_they_are)
{
    const char *user = "[{\"role\":\"user\",\"content\":\"" BILLING "\\nwhat is this?\"}]";
    const char *odd =
        "[1,{\"role\":\"system\"},{\"role\":\"system\",\"content\":null},{\"role\":\"system\",\"content\":"
        "[3,{\"type\":\"text\"},{\"text\":7}]},{\"content\":\"" BILLING "\"},{\"role\":\"system\",\"content\":\"\"}]";

    CHECK_STR(after(user), user);
    CHECK_STR(left_out, "");
    CHECK_STR(after(odd), odd);
}

TEST(every_failed_allocation_is_an_error_or_changes_nothing)
{
    for (int64_t i = 0; i < 8; i++) {
        json_t *m = json_pack("[{s:s,s:s}]", "role", "system", "content", BILLING "\nB");
        struct buf report = {0};
        rd_status st;

        mem_fail_after(i);
        st = volatile_lines_leave_out(m, &report);
        mem_fail_after(-1);
        if (st == RD_OK)
            CHECK_STR(json_string_value(json_object_get(json_array_get(m, 0), "content")), "B");
        else
            CHECK_EQ(st, RD_E_NOMEM);
        buf_deinit(&report);
        json_decref(m);
    }
}
