/* tests/text/test_output_parser.c - what each family writes, and what the parser makes of it. */
#include "text/output/output_parser.h"
#include <string.h>
#include "base/limits.h"
#include "base/mem.h"
#include "output_record.h"
#include "test.h"

static struct record whole, bytes;
static const struct think_tags tags = {"<think>", "</think>"};

/* The events of a text, in one piece and byte by byte: equal, and nothing lost. */
static const char *events_of(enum output_style style, bool thinks, const char *text)
{
    json_t *tools = record_tools();
    struct output_options o = {.style = style, .think = &tags, .in_thinking = thinks, .tools = tools};
    unsigned char cut[8192];
    size_t n = strlen(text);
    const char *answer = whole.events;

    memset(cut, 1, sizeof(cut));
    if (n > sizeof(cut))
        answer = "too long";
    else if (record_run(&o, text, n, NULL, &whole) != RD_OK || record_run(&o, text, n, cut, &bytes) != RD_OK)
        answer = "failed";
    else if (whole.wrong || bytes.wrong)
        answer = "wrong order";
    else if (strcmp(whole.events, bytes.events) != 0)
        answer = bytes.events;
    else if (whole.n_raw != n || memcmp(whole.raw, text, n) != 0)
        answer = whole.raw;
    else if (bytes.n_raw != n || memcmp(bytes.raw, text, n) != 0)
        answer = bytes.raw;
    json_decref(tools);
    return answer;
}

#define GIVES(style, text, wanted) CHECK_STR(events_of(style, false, text), wanted)

TEST(text_without_calls_is_content)
{
    for (int s = 0; s < OUTPUT_N_STYLES; s++) {
        GIVES(s, "", "");
        GIVES(s, "Hello, world.\n", "c:Hello, world.\n");
        GIVES(s, "a < b and [x] ``` {y} \xc3\xa9\xe2\x82\xac", "c:a < b and [x] ``` {y} \xc3\xa9\xe2\x82\xac");
        GIVES(s, "  \n ", "c:  \n ");
        GIVES(s, "<tool_ca", "c:<tool_ca");
    }
    GIVES(OUTPUT_NO_CALLS, "<tool_call>{\"name\":\"f\"}</tool_call>", "c:<tool_call>{\"name\":\"f\"}</tool_call>");
}

TEST(hermes)
{
    GIVES(OUTPUT_HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
          "b:f|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_HERMES,
          "Look:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n"
          "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\\\"\\u00f6ln\"}}\n</tool_call>\n",
          "c:Look:|b:f|a:{\"a\": 1}|e:|b:get_weather|a:{\"city\": \"K\\\"\\u00f6ln\"}|e:");
    /* keys in any order, with an id, no arguments, nested form */
    GIVES(OUTPUT_HERMES, "<tool_call>{\"arguments\":{\"a\":[1,{\"x\":\"}\"}]},\"id\":[1],\"name\":\"f\"}</tool_call>",
          "b:f|a:{\"a\":[1,{\"x\":\"}\"}]}|e:");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\"}</tool_call>", "b:f|a:{}|e:");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>", "b:f|a:{}|e:");
    GIVES(OUTPUT_HERMES,
          "<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}</tool_call>!",
          "b:f|a:{}|e:|c:!");
    /* arguments as a string */
    GIVES(OUTPUT_HERMES,
          "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"b\\\": \\\"\\ud83d\\ude00\\n\\\"}\"}</tool_call>",
          "b:f|a:{\"b\": \"\xf0\x9f\x98\x80\n\"}|e:");
    /* a list, and two in one tag */
    GIVES(OUTPUT_HERMES,
          "<tool_call>[{\"name\":\"f\",\"arguments\":{}}, {\"name\":\"f\",\"arguments\":{\"a\":2}}]</tool_call>",
          "b:f|a:{}|e:|b:f|a:{\"a\":2}|e:");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"f\"}</tool_call>",
          "b:f|a:{}|e:|b:f|a:{}|e:");
    /* XML inside although the template said JSON */
    GIVES(OUTPUT_HERMES, "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>",
          "b:f|a:{\"a\": 5}|e:");
    /* the closing tag inside a string is text */
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"b\":\"</tool_call>\"}}</tool_call> ok",
          "b:f|a:{\"b\":\"</tool_call>\"}|e:|c: ok");
}

TEST(hermes_broken_calls_lose_nothing)
{
    GIVES(OUTPUT_HERMES, "Write <tool_call> and then JSON.", "c:Write <tool_call> and then JSON.");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"unknown\",\"arguments\":{}}</tool_call>",
          "c:<tool_call>{\"name\":\"unknown\",\"arguments\":{}}</tool_call>");
    GIVES(OUTPUT_HERMES, "<tool_call>{name: f}</tool_call>", "c:<tool_call>{name: f}</tool_call>");
    GIVES(OUTPUT_HERMES, "<tool_call><tool_call>{\"name\":\"f\"}</tool_call>", "c:<tool_call>|b:f|a:{}|e:");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f", "c:<tool_call>{\"name\":\"f");
    /* announced, then cut or broken: what there is of the arguments is delivered */
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1", "b:f|a:{\"a\": 1|e:!");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}", "b:f|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1}</tool_call>x", "b:f|a:{\"a\": 1}|e:|c:x");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": 1</tool_call>x", "b:f|a:{\"a\": 1|e:!|c:x");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{}}} done", "b:f|a:{}|e:|c:} done");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\", oops", "c:<tool_call>{\"name\":\"f\", oops");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{} oops", "b:f|a:{}|e:|c:oops");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":tru", "b:f|a:tru|e:!");
}

TEST(hermes_without_its_tag)
{
    GIVES(OUTPUT_HERMES, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "b:f|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_HERMES, "```json\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n```", "b:f|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_HERMES, "<tools>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tools>", "b:f|a:{\"a\": 1}|e:");
    /* at the beginning of a line, and only with arguments */
    GIVES(OUTPUT_HERMES,
          "<tools></tools>\n\n```json\n{\"name\": \"f\", \"arguments\": {}}\n```\n\n```json\n"
          "{\"name\": \"get_weather\", \"arguments\": {}}\n```\nDone.",
          "c:<tools></tools>|b:f|a:{}|e:|b:get_weather|a:{}|e:|c:\nDone.");
    GIVES(OUTPUT_HERMES, "I look:\n```\n{\"name\": \"f\", \"arguments\": {}}\n```", "c:I look:|b:f|a:{}|e:");
    GIVES(OUTPUT_HERMES, "I look:\n  {\"name\": \"f\", \"arguments\": {}}\nSo.", "c:I look:|b:f|a:{}|e:|c:\nSo.");
    GIVES(OUTPUT_HERMES, "I look:\n{\"name\": \"unknown\", \"arguments\": {}}",
          "c:I look:\n{\"name\": \"unknown\", \"arguments\": {}}");
    GIVES(OUTPUT_HERMES, "```\nx = {}\n```\n", "c:```\nx = {}\n```\n");
    GIVES(OUTPUT_HERMES, "{\"name\": \"f\"}", "c:{\"name\": \"f\"}");
    GIVES(OUTPUT_HERMES, "{\"name\": \"f\", \"age\": 3}", "c:{\"name\": \"f\", \"age\": 3}");
    GIVES(OUTPUT_HERMES, "so {\"name\": \"f\", \"arguments\": {}}", "c:so {\"name\": \"f\", \"arguments\": {}}");
    GIVES(OUTPUT_HERMES, "```json\n{\"x\": 1}\n```", "c:```json\n{\"x\": 1}\n```");
}

TEST(doubled_braces)
{
    static const enum output_style styles[] = {OUTPUT_HERMES, OUTPUT_LLAMA_JSON, OUTPUT_GEMMA};

    for (size_t i = 0; i < 3; i++) {
        GIVES(styles[i], "<tool_call>\n{{\"name\": \"f\", \"arguments\": {\"a\": 1}}}\n</tool_call>",
              "b:f|a:{\"a\": 1}|e:");
        GIVES(styles[i], "{{\"name\": \"f\", \"arguments\": {{\"a\": {\"b\": {}}}}}} ok",
              "b:f|a:{\"a\": {\"b\": {}}}|e:|c: ok");
        GIVES(styles[i], "```json\n{\"name\": \"f\", \"arguments\": {{\"a\": 1}}}\n```", "b:f|a:{\"a\": 1}|e:");
        /* the second one is missing; too many; in prose, a template's */
        GIVES(styles[i], "{{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "b:f|a:{\"a\": 1}|e:");
        GIVES(styles[i], "{{\"name\": \"f\", \"arguments\": {}}}}", "b:f|a:{}|e:|c:}");
        GIVES(styles[i], "{{ name }} is a name", "c:{{ name }} is a name");
        GIVES(styles[i], "{{\"name\": \"unknown\", \"arguments\": {}}}",
              "c:{{\"name\": \"unknown\", \"arguments\": {}}}");
    }
    GIVES(OUTPUT_HERMES,
          "<tool_call>{{\"name\": \"f\", \"arguments\": {{}}}}</tool_call>\n"
          "<tool_call>{{\"name\": \"f\", \"arguments\": {}}}</tool_call>",
          "b:f|a:{}|e:|b:f|a:{}|e:");
    GIVES(OUTPUT_MISTRAL, "[TOOL_CALLS][{{\"name\": \"f\", \"arguments\": {{\"a\": 1}}}}]", "b:f|a:{\"a\": 1}|e:");
}

TEST(json_with_other_members_is_text_whole)
{
    static const char *const texts[] = {
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"reason\": \"why\"}",
        "{\"reason\": {\"x\": []}, \"name\": \"f\", \"arguments\": {}}",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}, \"reason\": 1}\n</tool_call>\nok",
        "<tool_call>{\"name\": \"f\", \"note\": 2, \"arguments\": {}}</tool_call>",
        "```json\n{\"name\": \"f\", \"arguments\": {}, \"id\": 1}\n```",
        "{\"name\": \"f\", \"arguments\": {}, \"parameters\": {}}",
        "{\"type\": \"person\", \"name\": \"f\", \"parameters\": {}}",
        "{\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}",
        "{{\"name\": \"f\", \"arguments\": {{\"a\": 1}}, \"x\": 1}}",
    };
    char wanted[256];

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        snprintf(wanted, sizeof(wanted), "c:%s", texts[i]);
        GIVES(OUTPUT_HERMES, texts[i], wanted);
        if (*texts[i] == '{') GIVES(OUTPUT_LLAMA_JSON, texts[i], wanted);
    }
    /* what belongs to calls, as it is */
    GIVES(OUTPUT_HERMES, "{\"type\": \"function\", \"name\": \"f\", \"arguments\": {}}", "b:f|a:{}|e:");
    GIVES(OUTPUT_HERMES, "<tool_call>{\"id\": \"1\", \"name\": \"f\", \"arguments\": {}}</tool_call>", "b:f|a:{}|e:");
}

TEST(a_forced_call_is_one_whatever_stands_beside)
{
    static struct record r;
    json_t *tools = record_tools();
    struct output_options o = {.style = OUTPUT_HERMES, .tools = tools, .forced = true};
    const char *text = "<tool_call>\n{\"name\": \"f\", \"why\": [1], \"arguments\": {{\"a\": 1}}, \"reason\": 2}\n"
                       "</tool_call>";

    CHECK_OK(record_run(&o, text, strlen(text), NULL, &r));
    CHECK_STR(r.events, "b:f|a:{\"a\": 1}|e:");
    o.forced = false;
    CHECK_OK(record_run(&o, text, strlen(text), NULL, &r));
    CHECK_EQ(r.n_calls, 0);
    json_decref(tools);
}

static void check_kept(bool forced, const char *text, const char *wanted)
{
    static struct record r;
    json_t *tools = record_tools();
    struct output_options o = {.style = OUTPUT_HERMES, .tools = tools, .forced = forced, .keep_bare = true};

    CHECK_OK(record_run(&o, text, strlen(text), NULL, &r));
    CHECK(!r.wrong);
    CHECK_STR(r.events, wanted);
    CHECK_STR(r.raw, text);
    json_decref(tools);
}

TEST(a_call_without_tags_stays_in_the_content_where_that_is_wanted)
{
    static char text[8192], wanted[8192];
    size_t n;

    for (int forced = 0; forced < 2; forced++) {
        check_kept(forced, "Action:\n{\n  \"name\": \"f\",\n  \"arguments\": {\"a\": 1}\n}\n",
                   "c:Action:|t:\n{\n  \"name\": \"f\",\n  \"arguments\": {\"a\": 1}\n}|b:f|a:{\"a\": 1}|e:");
        check_kept(forced, "{\"arguments\": {}, \"name\": \"f\"}",
                   "t:{\"arguments\": {}, \"name\": \"f\"}|b:f|a:{}|e:");
        check_kept(forced, "```json\n{\"name\": \"f\", \"arguments\": {}}\n```\nok",
                   "t:```json\n{\"name\": \"f\", \"arguments\": {}}|b:f|a:{}|e:|t:\n```|c:\nok");
        check_kept(
            forced, "{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"f\", \"arguments\": {\"a\": 2}}",
            "t:{\"name\": \"f\", \"arguments\": {}}|b:f|a:{}|e:|t:\n{\"name\": \"f\", \"arguments\": {\"a\": 2}}|b:f|a:"
            "{\"a\": 2}|e:");
        check_kept(forced, "{\"name\": \"f\", \"arguments\": {\"a\": 1", /* cut */
                   "t:{\"name\": \"f\", \"arguments\": {\"a\": 1|b:f|a:{\"a\": 1|e:!");
        check_kept(forced, "{\"name\": \"nobody\", \"arguments\": {}}", "c:{\"name\": \"nobody\", \"arguments\": {}}");
        /* what stands between tags is not text */
        check_kept(forced, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "b:f|a:{}|e:");
    }
    /* a long one is not kept: it must not wait for its end */
    n = (size_t)sprintf(text, "{\"name\": \"f\", \"arguments\": {\"b\": \"");
    memset(text + n, 'x', 5000);
    strcpy(text + n + 5000, "\"}}");
    snprintf(wanted, sizeof(wanted), "b:f|a:{\"b\": \"%.5000s\"}|e:", text + n);
    check_kept(true, text, wanted);
}

/* The call is announced after `wanted` bytes of its text, if n_args bytes of arguments come. */
static void check_announced(const char *opener, size_t n_args, bool forced, size_t wanted)
{
    static struct record r;
    struct output_options o = {.style = OUTPUT_HERMES, .forced = forced, .sink = record_event, .user = &r};
    char head[128];
    size_t n = (size_t)snprintf(head, sizeof(head), "%s{\"name\":\"f\",\"arguments\":{\"a\":\"", opener), at = 0;
    struct output_parser *p;

    memset(&r, 0, sizeof(r));
    CHECK_OK(output_parser_create(&o, &p));
    for (; at < n + n_args && !r.n_calls; at++) CHECK_OK(output_parser_feed(p, at < n ? &head[at] : "x", 1, false));
    for (const char *end = "\"}}"; *end && !r.n_calls; end++, at++) CHECK_OK(output_parser_feed(p, end, 1, false));
    CHECK_EQ(at, wanted);
    output_parser_destroy(p);
}

TEST(calls_wait_for_their_end_within_a_bound)
{
    const size_t head = strlen("{\"name\":\"f\",\"arguments\":"), key = strlen("{\"a\":\"");

    check_announced("<tool_call>", 100, false, 11 + head + key + 100 + 3);
    check_announced("", 100, false, head + key + 100 + 3);
    check_announced("<tool_call>", 9000, false, 11 + head + 512 + 1);
    check_announced("", 9000, false, head + 4096 + 1);
    check_announced("<tool_call>", 9000, true, 11 + strlen("{\"name\":\"f\""));
    check_announced("", 9000, true, strlen("{\"name\":\"f\""));
}

TEST(qwen_xml)
{
    GIVES(OUTPUT_QWEN_XML,
          "I look.\n<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=b>\nline \"1\"\nline 2\n"
          "</parameter>\n</function>\n</tool_call>",
          "c:I look.|b:f|a:{\"a\": 12, \"b\": \"line \\\"1\\\"\\nline 2\"}|e:");
    /* a bare function element, one line, empty and odd values */
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=b>x < y </p></parameter></function> ok",
          "b:f|a:{\"b\": \"x < y </p>\"}|e:|c: ok");
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=b>\n</parameter><parameter=b></parameter></function>",
          "b:f|a:{\"b\": \"\", \"b\": \"\"}|e:");
    GIVES(OUTPUT_QWEN_XML, "<function=f>\n</function>", "b:f|a:{}|e:");
    /* types of the schema */
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=a>five</parameter><parameter=c>[1, 'x']</parameter></function>",
          "b:f|a:{\"a\": \"five\", \"c\": [1, \"x\"]}|e:");
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=c>None</parameter><parameter=d>True</parameter></function>",
          "b:f|a:{\"c\": null, \"d\": true}|e:");
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=d>{\"x\": 1}</parameter><parameter=e>2</parameter></function>",
          "b:f|a:{\"d\": {\"x\": 1}, \"e\": 2}|e:");
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=any>2</parameter><parameter=new>[]</parameter></function>",
          "b:f|a:{\"any\": \"2\", \"new\": \"[]\"}|e:");
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=a>7.0</parameter><parameter=a>1e400</parameter></function>",
          "b:f|a:{\"a\": 7.0, \"a\": 1e400}|e:");
    /* cut short */
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=b>half", "b:f|a:{\"b\": \"half|e:!");
    GIVES(OUTPUT_QWEN_XML, "<function=f><parameter=a>1", "b:f|a:{\"a\": 1|e:!");
    GIVES(OUTPUT_QWEN_XML, "<function=f", "c:<function=f");
    GIVES(OUTPUT_QWEN_XML, "<function=g></function>", "c:<function=g></function>");
    GIVES(OUTPUT_QWEN_XML, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "b:f|a:{}|e:");
}

TEST(llama_json)
{
    GIVES(OUTPUT_LLAMA_JSON, "{\"name\": \"f\", \"parameters\": {\"a\": \"1\"}}", "b:f|a:{\"a\": \"1\"}|e:");
    GIVES(OUTPUT_LLAMA_JSON, "\n<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}",
          "b:f|a:{}|e:");
    GIVES(OUTPUT_LLAMA_JSON, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {\"a\": 2}}",
          "b:f|a:{}|e:|b:f|a:{\"a\": 2}|e:");
    GIVES(OUTPUT_LLAMA_JSON, "<|python_tag|>{\"function\": \"f\", \"parameters\": {}}", "b:f|a:{}|e:");
    GIVES(OUTPUT_LLAMA_JSON, "<function=f>{\"a\": 1}</function>", "b:f|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_LLAMA_JSON, "{\"answer\": 42}", "c:{\"answer\": 42}");
    GIVES(OUTPUT_LLAMA_JSON, "<|python_tag|>print(1)", "c:<|python_tag|>print(1)");
}

TEST(pythonic)
{
    GIVES(OUTPUT_PYTHONIC, "[f(a=1, b=\"x\"), get_weather(city='K\xc3\xb6ln')]",
          "b:f|a:{\"a\": 1, \"b\": \"x\"}|e:|b:get_weather|a:{\"city\": \"K\xc3\xb6ln\"}|e:");
    GIVES(OUTPUT_PYTHONIC, "<|python_start|>[f()]<|python_end|>", "b:f|a:{}|e:");
    GIVES(OUTPUT_PYTHONIC, "[f(c=[1, -2.5e3, (True,), None,], d={'x': {'y': \"it's\\n\"}})]",
          "b:f|a:{\"c\": [1, -2.5e3, [true], null], \"d\": {\"x\": {\"y\": \"it's\\n\"}}}|e:");
    GIVES(OUTPUT_PYTHONIC, "[f(3, 'z', any=\"\"\"a \"b\" c\"\"\")]",
          "b:f|a:{\"a\": 3, \"b\": \"z\", \"any\": \"a \\\"b\\\" c\"}|e:");
    GIVES(OUTPUT_PYTHONIC, "[link](http://x) and [f(a=1)]", "c:[link](http://x) and [f(a=1)]");
    GIVES(OUTPUT_PYTHONIC, "[f(a=g(1))]", "c:[f(a=g(1))]");
    GIVES(OUTPUT_PYTHONIC, "[f(a=1), h(b=2)]", "b:f|a:{\"a\": 1}|e:|c:, h(b=2)]");
    GIVES(OUTPUT_PYTHONIC, "[f(a=1", "c:[f(a=1");
    GIVES(OUTPUT_PYTHONIC, "[1, 2, 3]", "c:[1, 2, 3]");
}

TEST(gemma)
{
    GIVES(OUTPUT_GEMMA, "Sure.\n```tool_code\nf(a=1)\n```\n", "c:Sure.|b:f|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_GEMMA, "```tool_code\nprint(default_api.f(b=')'))\nget_weather(\"K\")\n```",
          "b:f|a:{\"b\": \")\"}|e:|b:get_weather|a:{\"city\": \"K\"}|e:");
    GIVES(OUTPUT_GEMMA, "```tool_code\nx = 3\n```", "c:```tool_code\nx = 3\n```");
    GIVES(OUTPUT_GEMMA, "```python\nf(a=1)\n```", "c:```python\nf(a=1)\n```");
    GIVES(OUTPUT_GEMMA, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "b:f|a:{}|e:");
}

TEST(mistral)
{
    GIVES(OUTPUT_MISTRAL,
          "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abc123def\"}, {\"name\": \"f\"}]",
          "b:f|a:{\"a\": 1}|e:|b:f|a:{}|e:");
    GIVES(OUTPUT_MISTRAL, "Well. [TOOL_CALLS] f[ARGS]{\"a\": 1}[TOOL_CALLS]get_weather[CALL_ID]xyz[ARGS]{}",
          "c:Well.|b:f|a:{\"a\": 1}|e:|b:get_weather|a:{}|e:");
    GIVES(OUTPUT_MISTRAL, "[TOOL_CALLS]f{\"a\": 1}", "b:f|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_MISTRAL, "[TOOL_CALLS]what{\"a\": 1}", "c:[TOOL_CALLS]what{\"a\": 1}");
    GIVES(OUTPUT_MISTRAL, "[TOOL_CALLS][]", "c:[TOOL_CALLS][]");
    GIVES(OUTPUT_MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": ", "b:f|a:{\"a\": |e:!");
}

#define D_CALLS "<｜tool▁calls▁begin｜>"
#define D_CALL  "<｜tool▁call▁begin｜>"
#define D_SEP   "<｜tool▁sep｜>"
#define D_END   "<｜tool▁call▁end｜>"
#define D_ENDS  "<｜tool▁calls▁end｜>"

TEST(deepseek)
{
    GIVES(OUTPUT_DEEPSEEK,
          D_CALLS D_CALL "function" D_SEP "f\n```json\n{\"a\": 1}\n```" D_END "\n" D_CALL "function" D_SEP
                         "get_weather\n```json\n{}\n```" D_END D_ENDS,
          "b:f|a:{\"a\": 1}|e:|b:get_weather|a:{}|e:");
    GIVES(OUTPUT_DEEPSEEK, "ok" D_CALLS D_CALL "f" D_SEP "{\"a\": 1}" D_END D_ENDS, "c:ok|b:f|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_DEEPSEEK, D_CALL "function" D_SEP "{\"a\": 1}" D_END, "b:function|a:{\"a\": 1}|e:");
    GIVES(OUTPUT_DEEPSEEK, D_CALLS "no", "c:" D_CALLS "no");
    GIVES(OUTPUT_DEEPSEEK, D_CALL "function" D_SEP "nobody\n{}", "c:" D_CALL "function" D_SEP "nobody\n{}");
    GIVES(OUTPUT_DEEPSEEK, D_CALLS D_CALL "f" D_SEP "{\"a\": [1" D_END, "b:f|a:{\"a\": [1|e:!");
}

TEST(thinking)
{
    GIVES(OUTPUT_NO_CALLS, "<think>\nhm, so\n\nyes\n</think>\n\nAnswer.\n", "r:hm, so\n\nyes|c:Answer.\n");
    GIVES(OUTPUT_HERMES, "\n<think>x</think>\n<tool_call>{\"name\":\"f\"}</tool_call>", "r:x|b:f|a:{}|e:");
    GIVES(OUTPUT_NO_CALLS, "<think>\n\n</think>\n\nAnswer", "c:Answer");
    GIVES(OUTPUT_NO_CALLS, "<think>never ends ", "r:never ends ");
    GIVES(OUTPUT_NO_CALLS, "The tag <think> is text.</think>", "c:The tag <think> is text.</think>");
    CHECK_STR(events_of(OUTPUT_NO_CALLS, true, "\nI think\n</think>\n\nA"), "r:I think|c:A");
    CHECK_STR(events_of(OUTPUT_HERMES, true, "use <tool_call>{}?</think>{\"name\":\"f\",\"arguments\":{}}"),
              "r:use <tool_call>{}?|b:f|a:{}|e:");
    CHECK_STR(events_of(OUTPUT_NO_CALLS, true, "no end"), "r:no end");
    GIVES(OUTPUT_NO_CALLS, "<think>a</think><think>b</think>c", "r:ab|c:c");
}

TEST(white_space_runs_longer_than_the_hold_pass)
{
    char text[600], wanted[600];

    snprintf(text, sizeof(text), "a%*s<tool_call>{\"name\":\"f\"}</tool_call>", 200, "");
    snprintf(wanted, sizeof(wanted), "c:a%*s|b:f|a:{}|e:", 192, "");
    GIVES(OUTPUT_HERMES, text, wanted);
}

TEST(heads_are_held_back_within_a_bound)
{
    size_t n = LIMIT_TOOL_HEAD_BYTES + 1000;
    char *text = mem_alloc(n, 1);
    struct record *r = mem_zalloc(1, sizeof(*r));
    struct output_options o = {.style = OUTPUT_HERMES, .sink = record_event, .user = r};
    struct output_parser *p;

    CHECK(text && r);
    memset(text, 'x', n);
    memcpy(text, "<tool_call>{\"arguments\":\"", 25);
    CHECK_OK(output_parser_create(&o, &p));
    for (size_t i = 0; i < LIMIT_TOOL_HEAD_BYTES - 1; i += 61)
        CHECK_OK(output_parser_feed(p, text + i,
                                    i + 61 < LIMIT_TOOL_HEAD_BYTES - 1 ? 61 : LIMIT_TOOL_HEAD_BYTES - 1 - i, false));
    CHECK_EQ(r->n_raw, 0);
    r->n_raw = 0;
    CHECK_OK(output_parser_feed(p, text, 600, false));
    CHECK(r->wrong || r->n_raw > 0); /* it left, more than the record holds */
    output_parser_destroy(p);
    mem_free(text);
    mem_free(r);
}

TEST(control_tokens_are_seen_but_never_shown)
{
    static struct record r;
    json_t *tools = record_tools();
    struct output_options o = {.style = OUTPUT_MISTRAL, .tools = tools, .sink = record_event, .user = &r};
    struct output_parser *p;

    CHECK_OK(output_parser_create(&o, &p));
    CHECK_OK(output_parser_feed(p, "Hm [TOOL_CALLS] ", 16, false));
    CHECK_OK(output_parser_feed(p, "[TOOL_CALLS]", 12, true));
    CHECK_OK(output_parser_feed(p, "nonsense ", 9, false));
    CHECK_OK(output_parser_feed(p, "[TOOL_CALLS]", 12, true));
    CHECK_OK(output_parser_feed(p, "f", 1, false));
    CHECK_OK(output_parser_feed(p, "[ARGS]", 6, true));
    CHECK_OK(output_parser_feed(p, "{}", 2, false));
    CHECK_OK(output_parser_finish(p));
    output_parser_destroy(p);
    json_decref(tools);
    CHECK_STR(r.events, "c:Hm [TOOL_CALLS] nonsense|b:f|a:{}|e:");
    CHECK_STR(r.raw, "Hm [TOOL_CALLS] [TOOL_CALLS]nonsense [TOOL_CALLS]f[ARGS]{}");
}

TEST(without_tools_any_name_is_one)
{
    static struct record r;
    struct output_options o = {.style = OUTPUT_HERMES};
    const char *text = "<tool_call>{\"name\":\"whatever\",\"arguments\":{\"q\":1}}</tool_call>";

    CHECK_OK(record_run(&o, text, strlen(text), NULL, &r));
    CHECK_STR(r.events, "b:whatever|a:{\"q\":1}|e:");
}

TEST(styles_are_found_in_templates)
{
    enum output_style style;

    CHECK_EQ(output_style_detect("... <tool_call>\\n{\"name\" ..."), OUTPUT_HERMES);
    CHECK_EQ(output_style_detect("<tool_call>\n<function=x>\n<parameter=y>"), OUTPUT_QWEN_XML);
    CHECK_EQ(output_style_detect("{{- \"[TOOL_CALLS][\" }}"), OUTPUT_MISTRAL);
    CHECK_EQ(output_style_detect("'<|start_header_id|>' ... '<|python_tag|>'"), OUTPUT_LLAMA_JSON);
    CHECK_EQ(output_style_detect("<|start_header_id|> [func_name1(params_name1=params_value1)]"), OUTPUT_PYTHONIC);
    CHECK_EQ(output_style_detect("<start_of_turn>"), OUTPUT_GEMMA);
    CHECK_EQ(output_style_detect("{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'}}"), OUTPUT_DEEPSEEK);
    CHECK_EQ(output_style_detect("<|im_start|>"), OUTPUT_HERMES);
    for (int s = 0; s < OUTPUT_N_STYLES; s++) {
        CHECK(output_style_find(output_style_name((enum output_style)s), &style));
        CHECK_EQ(style, s);
    }
    CHECK(!output_style_find("nothing", &style));
    CHECK_STR(output_think_detect("... '</think>' ...")->open, "<think>");
    CHECK(!output_think_detect("plain"));
    CHECK(output_prompt_thinks(&tags, "assistant\n<think>\n", 18));
    CHECK(!output_prompt_thinks(&tags, "assistant\n<think>\n\n</think>\n\n", 29));
    CHECK(!output_prompt_thinks(&tags, "", 0));
    CHECK(!output_prompt_thinks(NULL, "<think>", 7));
    CHECK(output_turn_thinks(&tags, "assistant\n<think>\nLet me", 24));
    CHECK(output_turn_thinks(&tags, "<think>a</think>b<think>", 24));
    CHECK(!output_turn_thinks(&tags, "<think>\n\n</think>\n\nSo", 22));
    CHECK(!output_turn_thinks(&tags, "", 0));
    CHECK(!output_turn_thinks(NULL, "<think>", 7));
}

TEST(call_ids)
{
    uint64_t random[2] = {0x0123456789abcdefull, 0xfedcba9876543210ull};
    char id[OUTPUT_CALL_ID_BYTES];

    output_call_id(OUTPUT_HERMES, random, id);
    CHECK_EQ(strlen(id), 29);
    CHECK(memcmp(id, "call_", 5) == 0);
    output_call_id(OUTPUT_MISTRAL, random, id);
    CHECK_EQ(strlen(id), 9);
    CHECK_EQ(strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"), 9);
}

TEST(every_allocation_fails_once)
{
    static const char text[] = "<think>a</think>b<tool_call>{\"arguments\":{\"x\":1},\"name\":\"f\"}</tool_call>"
                               "<tool_call><function=f><parameter=a>12</parameter></function></tool_call>";
    static struct record r;
    json_t *tools = record_tools();
    struct output_options o = {.style = OUTPUT_HERMES, .think = &tags, .tools = tools};
    uint64_t alive = mem_n_alive();
    bool done = false;

    for (int64_t i = 0; !done && i < 100; i++) {
        rd_status st;

        mem_fail_after(i);
        st = record_run(&o, text, strlen(text), NULL, &r);
        mem_fail_after(-1);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        CHECK_EQ(mem_n_alive(), alive);
        done = st == RD_OK;
    }
    CHECK(done);
    CHECK_STR(r.events, "r:a|c:b|b:f|a:{\"x\":1}|e:|b:f|a:{\"a\": 12}|e:");
    json_decref(tools);
}
