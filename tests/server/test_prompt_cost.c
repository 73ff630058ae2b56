/* tests/server/test_prompt_cost.c - images cost no tokens' memory where they are images, and all of it wherever they might be text. */
#include "server/dialects/prompt_cost.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "test.h"

#define N_DATA 100000u

/* format with a long stretch for its %s. */
static char *with_data(const char *format, size_t *n)
{
    char *data = malloc(N_DATA + 1), *all = malloc(N_DATA + 1000);

    memset(data, 'A', N_DATA);
    data[N_DATA] = 0;
    *n = (size_t)snprintf(all, N_DATA + 1000, format, data);
    free(data);
    return all;
}

static bool is_charged(const char *format, uint64_t (*cost)(const char *, size_t))
{
    size_t n;
    char *s = with_data(format, &n);
    const uint64_t got = cost(s, n);

    free(s);
    return got > 40ull * N_DATA;
}

TEST(a_part_that_is_an_image_costs_nothing)
{
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hi\"},{\"type\":\"image_url\","
        "\"image_url\":{\"url\":\"data:image/png;base64,%s\"}}]}]}",
        "{\"messages\" : [ {\"content\" : [ {\"image_url\" : \"%s\", \"type\" : \"input_image\"} ] } ] }",
        "{\"system\":[{\"type\":\"text\",\"text\":\"x\"}],\"messages\":[{\"content\":[{\"type\":\"image\",\"source\":{"
        "\"type\":\"base64\",\"data\":\"%s\"}}]}]}",
        "{\"input\":[{\"content\":[{\"type\":\"input_image\",\"image_url\":\"%s\"}]}]}",
        "{\"messages\":[{\"content\":[{\"type\":\"video\",\"video\":[{\"a\":[{\"b\":[\"%s\"]}]}]}]}]}",
    };

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
        if (is_charged(bodies[i], prompt_json_cost)) test_fail(__FILE__, __LINE__, "body %zu is charged as text", i);
    CHECK(!is_charged("[{\"content\":[{\"type\":\"image\",\"image\":\"%s\"}]}]", prompt_messages_cost));
}

TEST(whatever_might_become_text_is_charged)
{
    static const char *const bodies[] = {
        "{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"%s\"}]}]}",
        "{\"messages\":[{\"content\":\"%s\"}]}",
        "{\"messages\":[{\"content\":[{\"type\":\"image\",\"type\":\"text\",\"text\":\"%s\"}]}]}",
        "{\"messages\":[{\"content\":[{\"type\":\"image\",\"t\\u0079pe\":\"text\",\"text\":\"%s\"}]}]}",
        "{\"messages\":[{\"content\":[{\"x\":{\"type\":\"image\"},\"type\":\"text\",\"text\":\"%s\"}]}]}",
        "{\"messages\":[{\"content\":{\"type\":\"image\",\"x\":\"%s\"}}]}",
        "{\"messages\":[{\"content\":[[{\"type\":\"image\",\"x\":\"%s\"}]]}]}",
        "{\"messages\":[{\"tool_calls\":[{\"type\":\"image\",\"x\":\"%s\"}]}]}",
        "{\"messages\":[{\"tool_calls\":[{\"content\":[{\"type\":\"image\",\"x\":\"%s\"}]}]}]}",
        "{\"messages\":[{\"content\":[{\"type\":\"image\"}],\"reasoning_content\":\"%s\"}]}",
        "{\"tools\":[{\"content\":[{\"type\":\"image\",\"x\":\"%s\"}]}]}",
        "{\"x\":{\"messages\":[{\"content\":[{\"type\":\"image\",\"x\":\"%s\"}]}]}}",
        "[{\"content\":[{\"type\":\"image\",\"x\":\"%s\"}]}]",
        "{\"messages\":[{\"content\":[{\"type\":\"image\",\"x\":\"%s\"",
        "}}]]{\"prompt\":\"%s\"}",
    };

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
        if (!is_charged(bodies[i], prompt_json_cost)) test_fail(__FILE__, __LINE__, "body %zu is not charged", i);
    CHECK(is_charged("{\"messages\":[{\"content\":[{\"type\":\"image\",\"x\":\"%s\"}]}]}", prompt_messages_cost));
}

TEST(a_text_behind_an_image_goes_on_from_the_text_before_it)
{
    static const char format[] =
        "[{\"content\":[{\"type\":\"text\",\"text\":\"aaaa\"},{\"type\":\"image\",\"image\":\"%s\"},"
        "{\"type\":\"text\",\"text\":\"bbbb\"}]}]";
    static const char plain[] = "[{\"content\":[{\"type\":\"text\",\"text\":\"aaaa\"},,"
                                "{\"type\":\"text\",\"text\":\"bbbb\"}]}]";
    size_t n;
    char *s = with_data(format, &n);

    CHECK_EQ(prompt_messages_cost(s, n), prompt_messages_cost(plain, sizeof(plain) - 1));
    for (size_t i = 1; i < 300; i++) { /* cut anywhere: of the bytes that there are, each once */
        char *part = memcpy(malloc(i), s, i);

        CHECK(prompt_messages_cost(part, i) >= 10 * (uint64_t)i && prompt_messages_cost(part, i) <= 48 * (uint64_t)i);
        free(part);
    }
    free(s);
}
