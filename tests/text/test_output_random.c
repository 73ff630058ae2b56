/* tests/text/test_output_random.c - random text, mixed from tags, JSON, names and noise, cut anywhere: nothing is lost
 * or doubled, the cuts change nothing, and well-formed answers come back as what they were made from (F30). */
#include <jansson.h>
#include <string.h>
#include "base/mem.h"
#include "base/random.h"
#include "output_record.h"
#include "test.h"

#define TEXT_MAX 4096u

static const struct think_tags tags = {"<think>", "</think>"};

static const char *const bits[] = {
    "<tool_call>",
    "</tool_call>",
    "<tools>",
    "</tools>",
    "<function_call>",
    "```json",
    "```tool_code",
    "```",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    ";",
    "\"",
    "'",
    "\\",
    "\\u00e9",
    "\\ud83d",
    "\\ude00",
    "<",
    ">",
    "/",
    "=",
    " ",
    "\n",
    "\t",
    "          ",
    "\"name\"",
    "\"arguments\"",
    "\"parameters\"",
    "\"function\"",
    "\"f\"",
    "\"type\"",
    "{\"name\": \"f\", \"arguments\": {",
    "\n{{\"name\": \"f\", \"arguments\": {{",
    "}}",
    ", \"id\": 1",
    ", \"why\": 1}",
    "\n```\n",
    "{\"name\": \"f\"",
    "{\"arguments\": {\"a\": [1]}, \"name\": \"get_weather\"}",
    "f",
    "g",
    "f(",
    "get_weather(city=",
    "a=1",
    "b='x'",
    "None",
    "null",
    "true",
    "12",
    "-3.5e2",
    "print(",
    "default_api.",
    "<function=",
    "<function=f>",
    "<parameter=",
    "<parameter=a>",
    "<parameter=b>\n",
    "\n</parameter>",
    "</parameter>",
    "</function>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[TOOL_CALLS]f[ARGS]{",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "<think>",
    "</think>",
    "<thi",
    "<tool",
    "\xc3\xa9",
    "\xe2\x82\xac",
    "\xf0\x9f\x98\x80",
    "x",
    "word ",
    "Hello.",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "function",
    "<｜tool▁calls▁end｜>",
    "\xff",
    "\x80",
    "\"\"\"",
    "'''",
};

static uint32_t below(struct random *r, uint32_t n)
{
    return (uint32_t)random_below(r, n);
}

static size_t make_text(struct random *r, char *text)
{
    uint32_t n_bits = 1 + below(r, 24);
    size_t n = 0;

    for (uint32_t i = 0; i < n_bits; i++) {
        const char *bit = bits[below(r, sizeof(bits) / sizeof(bits[0]))];

        memcpy(text + n, bit, strlen(bit));
        n += strlen(bit);
        if (below(r, 40) == 0) text[n++] = (char)below(r, 256);
    }
    return n;
}

TEST(random_text_is_delivered_once_however_it_is_cut)
{
    static struct record whole, parts;
    uint32_t n_rounds = test_is_long() ? 3000000 : 120000, n_calls = 0;
    char text[TEXT_MAX];
    unsigned char cut[TEXT_MAX];
    json_t *tools = record_tools();
    struct random r;

    random_init(&r, test_seed());
    for (uint32_t i = 0; i < n_rounds; i++) {
        struct output_options o = {.style = (enum output_style)below(&r, OUTPUT_N_STYLES),
                                   .think = below(&r, 3) ? &tags : NULL,
                                   .in_thinking = below(&r, 4) == 0,
                                   .forced = below(&r, 4) == 0,
                                   .keep_bare = below(&r, 3) == 0,
                                   .tools = below(&r, 4) ? tools : NULL};
        size_t n = make_text(&r, text);
        uint32_t every = 1 + below(&r, 6);

        for (size_t k = 0; k < n; k++) cut[k] = below(&r, every) == 0;
        CHECK_OK(record_run(&o, text, n, NULL, &whole));
        CHECK_OK(record_run(&o, text, n, cut, &parts));
        CHECK(!whole.wrong && !parts.wrong);
        CHECK_EQ(whole.n_raw, n);
        CHECK(memcmp(whole.raw, text, n) == 0);
        CHECK_EQ(parts.n_raw, n);
        CHECK(memcmp(parts.raw, text, n) == 0);
        CHECK_EQ(whole.n_events, parts.n_events);
        CHECK(memcmp(whole.events, parts.events, whole.n_events) == 0);
        n_calls += whole.n_calls;
    }
    CHECK(n_calls > n_rounds / 50);
    json_decref(tools);
}

/* ---- answers made from known parts ---- */

struct answer {
    char text[TEXT_MAX], events[TEXT_MAX];
    size_t n, n_events;
};

static void add(char *to, size_t *n, const char *s)
{
    memcpy(to + *n, s, strlen(s) + 1);
    *n += strlen(s);
}

static void add_event(struct answer *a, const char *kind, const char *text)
{
    if (a->n_events) add(a->events, &a->n_events, "|");
    add(a->events, &a->n_events, kind);
    add(a->events, &a->n_events, text);
}

/* A random JSON object as text. */
static void make_arguments(struct random *r, char *out)
{
    static const char *const values[] = {"1",
                                         "-2.5",
                                         "true",
                                         "null",
                                         "\"x\"",
                                         "\"}\"",
                                         "\"</tool_call>\"",
                                         "\"\\\"[\"",
                                         "[1,2]",
                                         "{}",
                                         "[{}]",
                                         "{\"k\": [\"]\"]}",
                                         "\"\xc3\xa9\\u00e9\""};
    size_t n = 0;

    add(out, &n, "{");
    for (uint32_t i = 0, count = below(r, 4); i < count; i++) {
        char key[32];

        snprintf(key, sizeof(key), "%s\"k%u\":%s", i ? ", " : "", i, below(r, 2) ? " " : "");
        add(out, &n, key);
        add(out, &n, values[below(r, sizeof(values) / sizeof(values[0]))]);
    }
    add(out, &n, "}");
}

static void make_call(struct random *r, enum output_style style, bool first, struct answer *a)
{
    const char *name = below(r, 2) ? "f" : "get_weather";
    char args[512], call[1024];

    make_arguments(r, args);
    switch (style) {
    case OUTPUT_HERMES:
        snprintf(call, sizeof(call), "\n<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>", name, args);
        break;
    case OUTPUT_MISTRAL:
        snprintf(call, sizeof(call), "[TOOL_CALLS]%s[ARGS]%s", name, args);
        break;
    case OUTPUT_DEEPSEEK:
        snprintf(call, sizeof(call), "%s%sfunction%s%s\n```json\n%s\n```%s", first ? "<｜tool▁calls▁begin｜>" : "\n",
                 "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", name, args, "<｜tool▁call▁end｜>");
        break;
    default:
        snprintf(call, sizeof(call), "%s{\"name\": \"%s\", \"parameters\": %s}", first ? "<|python_tag|>" : "; ", name,
                 args);
        break;
    }
    add(a->text, &a->n, call);
    add_event(a, "b:", name);
    add_event(a, "a:", args);
    add_event(a, "e:", "");
}

TEST(well_formed_answers_come_back_as_they_were_made)
{
    static const enum output_style styles[] = {OUTPUT_HERMES, OUTPUT_MISTRAL, OUTPUT_DEEPSEEK, OUTPUT_LLAMA_JSON};
    static const char *const texts[] = {"Sure.", "a < b", "{\"x\": 1} is JSON", "caf\xc3\xa9 \xe2\x82\xac",
                                        "1. one\n2. two"};
    static struct record got;
    static struct answer a;
    json_t *tools = record_tools();
    struct random r;

    random_init(&r, test_seed() + 1);
    for (uint32_t i = 0; i < 20000; i++) {
        struct output_options o = {.style = styles[below(&r, 4)], .think = &tags, .tools = tools};
        unsigned char cut[TEXT_MAX];

        memset(&a, 0, sizeof(a));
        if (below(&r, 2)) {
            const char *thought = texts[below(&r, 5)];

            add(a.text, &a.n, "<think>\n");
            add(a.text, &a.n, thought);
            add(a.text, &a.n, "\n</think>\n\n");
            add_event(&a, "r:", thought);
        }
        if (below(&r, 2)) {
            const char *text = texts[below(&r, 5)];

            add(a.text, &a.n, text);
            add_event(&a, "c:", text);
        }
        for (uint32_t k = 0, n = below(&r, 4); k < n; k++) make_call(&r, o.style, k == 0, &a);
        for (size_t k = 0; k < a.n; k++) cut[k] = below(&r, 4) == 0;
        CHECK_OK(record_run(&o, a.text, a.n, cut, &got));
        CHECK_STR(got.events, a.events);
    }
    json_decref(tools);
}

/* XML and Python arguments are written by the parser: always JSON, whatever the values are. */
TEST(converted_arguments_are_json)
{
    static struct record got;
    json_t *tools = record_tools();
    struct random r;

    random_init(&r, test_seed() + 2);
    for (uint32_t i = 0; i < 20000; i++) {
        static const char *const keys[] = {"a", "b", "c", "d", "e", "any"};
        struct output_options o = {.style = OUTPUT_QWEN_XML, .tools = tools};
        char text[2 * TEXT_MAX], value[TEXT_MAX], *begin, *end;
        size_t n = 0;

        add(text, &n, "<function=f>");
        for (uint32_t k = 0, count = below(&r, 4); k < count; k++) {
            size_t n_value = make_text(&r, value);

            while (n_value > 200) n_value--;
            for (size_t m = 0; m < n_value; m++) /* valid UTF-8 without the closing tag */
                if ((unsigned char)value[m] >= 0x80 || value[m] == '/' || value[m] == 0) value[m] = '_';
            value[n_value] = 0;
            n += (size_t)sprintf(text + n, "<parameter=%s>%s</parameter>", keys[below(&r, 6)], value);
        }
        add(text, &n, "</function>");
        CHECK_OK(record_run(&o, text, n, NULL, &got));
        begin = strstr(got.events, "|a:");
        CHECK(begin && got.n_calls == 1);
        end = got.events + got.n_events - 3;
        CHECK_STR(end, "|e:");
        {
            json_t *v = json_loadb(begin + 3, (size_t)(end - begin - 3), JSON_ALLOW_NUL, NULL);

            CHECK(json_is_object(v));
            json_decref(v);
        }
    }
    json_decref(tools);
}
