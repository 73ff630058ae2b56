/* tests/text/test_tool_grammar.c - texts that may hold calls, and what the parser of outputs finds in them: each call that
 * it finds follows its schema, whichever of its forms the model has begun.
 */
#include "text/output/tool_grammar.h"
#include <jansson.h>
#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"
#include "text/grammar/grammar.h"
#include "text/output/output_parser.h"

/* Two functions, with one value of arguments each. */
static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"look\", \"strict\": true, \"parameters\": {\"type\": "
    "\"object\", "
    "\"properties\": {\"n\": {\"type\": \"integer\", \"const\": 7}}, \"required\": [\"n\"], \"additionalProperties\": "
    "false}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"go\", \"parameters\": {\"type\": \"object\", \"properties\": "
    "{\"n\": {\"type\": \"integer\", \"const\": 7}}, \"required\": [\"n\"], \"additionalProperties\": false}}}]";

static const struct style {
    enum output_style style;
    const char *template_source;
} styles[] = {{OUTPUT_HERMES, ""},          {OUTPUT_LLAMA_JSON, ""},   {OUTPUT_GEMMA, ""},
              {OUTPUT_QWEN_XML, ""},        {OUTPUT_MISTRAL, ""},      {OUTPUT_MISTRAL, "[ARGS]"},
              {OUTPUT_DEEPSEEK, "```json"}, {OUTPUT_DEEPSEEK, "plain"}};
#define N_STYLES (sizeof(styles) / sizeof(styles[0]))

static struct grammar *grammar_of(const struct style *s, const json_t *tools)
{
    const struct tool_grammar form = {.style = s->style, .template_source = s->template_source, .tools = tools};
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct rd_error err = {0};

    if (grammar_builder_create(NULL, &b) != RD_OK) return NULL;
    if (grammar_compile(b, tool_grammar_free(b, &form), NULL, 0, &g, &err) != RD_OK) printf("said: %s\n", err.text);
    grammar_builder_destroy(b);
    return g;
}

struct found {
    uint32_t n_calls, n_wrong;
    bool is_call;
    struct buf arguments;
};

/* Without its spaces: {"n":7}, or another way to write it (XML has it as text). */
static void see(void *user, const struct output_event *ev)
{
    struct found *f = user;

    if (ev->type == OUTPUT_CALL_BEGIN) {
        f->n_calls++;
        buf_clear(&f->arguments);
    }
    if (ev->type == OUTPUT_CALL_ARGS)
        for (size_t i = 0; i < ev->n; i++)
            if (!strchr(" \n\r\t", ev->text[i])) buf_putc(&f->arguments, ev->text[i]);
    if (ev->type == OUTPUT_CALL_END) {
        const bool right = f->arguments.n == 7 && memcmp(f->arguments.data, "{\"n\":7}", 7) == 0;

        f->n_wrong += !right;
    }
}

static void find_calls(enum output_style style, const json_t *tools, const struct buf *text, struct found *f)
{
    const struct output_options o = {.style = style, .tools = tools, .sink = see, .user = f};
    struct output_parser *p = NULL;

    CHECK_OK(output_parser_create(&o, &p));
    CHECK_OK(output_parser_feed(p, text->data ? text->data : "", text->n, false));
    CHECK_OK(output_parser_finish(p));
    output_parser_destroy(p);
}

/* What texts and calls are made of, and what nearly is a call. */
static const char *const pieces[] = {"{",
                                     "}",
                                     "{{",
                                     "}}",
                                     "[",
                                     "]",
                                     "\"name\"",
                                     "\"function\"",
                                     "\"arguments\"",
                                     "\"parameters\"",
                                     "\"type\"",
                                     "\"id\"",
                                     ":",
                                     ": ",
                                     ",",
                                     ", ",
                                     "\"look\"",
                                     "\"go\"",
                                     "\"other\"",
                                     "\"function\": {",
                                     "{\"n\": 7}",
                                     "{\"n\": 8}",
                                     "{\"n\":7",
                                     "7",
                                     "\"{\\\"n\\\": 8}\"",
                                     "\n",
                                     "\n\n",
                                     " ",
                                     "\r\n",
                                     "\t",
                                     "a",
                                     "Let me see.",
                                     "```",
                                     "```json",
                                     "```json\n",
                                     "```\n",
                                     "```tool_code\n",
                                     "<tool_call>",
                                     "</tool_call>",
                                     "<tool_call>\n",
                                     "\n</tool_call>",
                                     "<tools>",
                                     "</tools>",
                                     "<function_call>",
                                     "<function=look>",
                                     "<function=look>\n",
                                     "<parameter=n>",
                                     "<parameter=n>\n",
                                     "\n</parameter>\n",
                                     "</function>",
                                     "<|python_tag|>",
                                     "[TOOL_CALLS]",
                                     "[ARGS]",
                                     "look",
                                     "look(",
                                     "n=8",
                                     "[look(n=8)]",
                                     "<｜tool▁calls▁begin｜>",
                                     "<｜tool▁call▁begin｜>",
                                     "<｜tool▁sep｜>",
                                     "<｜tool▁call▁end｜>",
                                     "{\"name\": \"look\"",
                                     "{\"name\": \"look\", \"arguments\": ",
                                     "{\"name\": \"other\", \"arguments\": {}}",
                                     "{\"type\": \"function\", ",
                                     "{{\"name\": \"go\", \"parameters\": {{\"n\": 7}}}}",
                                     "{\"arguments\": {\"n\": 7}, \"name\": \"look\"}",
                                     "\xc3\xa9",
                                     "<"};

/* A text of the grammar: pieces as far as they may follow, and from time to time what must. */
static bool write_text(struct random *r, struct grammar *g, struct buf *text)
{
    struct grammar_matcher *m = NULL;
    uint8_t end[512];
    uint64_t n;
    bool ok;

    if (grammar_matcher_create(g, 1, &m) != RD_OK) return false;
    buf_clear(text);
    for (uint32_t i = 4 + (uint32_t)random_below(r, 60); i > 0 && text->n < 400; i--) {
        const char *piece = pieces[random_below(r, sizeof(pieces) / sizeof(pieces[0]))];

        if (grammar_accept_bytes(m, (const uint8_t *)piece, strlen(piece)) == RD_OK) buf_puts(text, piece);
    }
    n = grammar_shortest(m, end, sizeof(end), NULL);
    ok = n <= sizeof(end);
    if (ok) buf_append(text, (const char *)end, n);
    grammar_matcher_destroy(m);
    return ok && !text->failed;
}

TEST(every_call_that_is_found_in_a_text_follows_its_schema)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct found f = {0};
    struct buf text = {0};
    struct random r;

    CHECK(tools);
    random_init(&r, test_seed());
    for (size_t i = 0; i < N_STYLES; i++) {
        struct grammar *g = grammar_of(&styles[i], tools);
        uint32_t n_calls = 0;

        CHECK(g);
        for (uint32_t k = 0; k < 3000; k++) {
            CHECK(write_text(&r, g, &text));
            memset(&f, 0, offsetof(struct found, arguments));
            find_calls(styles[i].style, tools, &text, &f);
            if (f.n_wrong) test_fail(__FILE__, __LINE__, "style %zu: %.*s", i, (int)text.n, text.data);
            n_calls += f.n_calls;
        }
        printf("style %s: %u calls in 3,000 texts\n", output_style_name(styles[i].style), n_calls);
        CHECK(n_calls > 20);
        grammar_unref(g);
    }
    buf_deinit(&f.arguments);
    buf_deinit(&text);
    json_decref(tools);
}

static bool accepts(struct grammar *g, const char *text)
{
    struct grammar_matcher *m = NULL;
    bool ok;

    if (grammar_matcher_create(g, 1, &m) != RD_OK) return false;
    ok = grammar_accept_bytes(m, (const uint8_t *)text, strlen(text)) == RD_OK && grammar_can_end(m);
    grammar_matcher_destroy(m);
    return ok;
}

TEST(the_forms_that_models_write_are_held_and_text_stays_free)
{
    static const char *const good[] = {
        "",
        "Hello!",
        "{\"name\": \"look\", \"arguments\": {\"n\": 7}}",
        "{\"name\":\"look\",\"arguments\":{\"n\":7}}",
        "{\n  \"name\": \"go\",\n  \"arguments\": {\n    \"n\": 7\n  }\n}",
        "{{\"name\": \"go\", \"arguments\": {\"n\": 7}}}",
        "{{\"name\": \"go\", \"arguments\": {{\"n\": 7}}}}",
        "{\"function\": \"go\", \"parameters\": {\"n\": 7}}",
        "{\"type\": \"function\", \"function\": {\"name\": \"go\", \"arguments\": {\"n\": 7}}}",
        "{\"arguments\": {\"n\": 7}, \"name\": \"look\"}",
        "I look.\n{\"name\": \"look\", \"arguments\": {\"n\": 7}}",
        "I look.\n\n```json\n{\"name\": \"look\", \"arguments\": {\"n\": 7}}\n```",
        "```json\n[{\"name\": \"look\", \"arguments\": {\"n\": 7}}, {\"name\": \"go\", \"arguments\": {\"n\":7}}]\n```",
        "{\"name\": \"look\", \"arguments\": {\"n\": 7}}\n{\"name\": \"go\", \"arguments\": {\"n\": 7}}",
        "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"n\": 7}}\n</tool_call>",
        "Well: <tools>\n{\"name\": \"look\", \"arguments\": {\"n\": 7}}\n</tools>",
        "int main(void)\n{\n    return 0;\n}\n",
        "```json\n{\"name\": \"Ada\", \"age\": 36}\n```\nThat is all.",
        "{\"answer\": {\"name\": \"look\"}}",
        "[{\"type\": \"function\", \"function\": {\"name\": \"other\", \"parameters\": {}}}]",
        "The tool is called {\"name\": \"look\"} there.",
        "a <tool> b",
    };
    static const char *const bad[] = {
        "{\"name\": \"look\", \"arguments\": {\"n\": 8}}",
        "{\"name\": \"look\"}",
        "{ \"name\" : \"look\" , \"arguments\" : {} }",
        "Now:\n  {\"name\": \"look\", \"arguments\": {}}",
        "```json\n{\"name\": \"look\", \"arguments\": {\"n\": \"7\"}}\n```",
        "```\n{\"name\": \"go\", \"arguments\": {}}\n```",
        "```json\n[ {\"name\": \"go\", \"arguments\": {}} ]\n```",
        "{{\"name\": \"look\", \"arguments\": {{}}}}",
        "{\"arguments\": {\"n\": 8}, \"name\": \"look\"}",
        "{\"type\": \"function\", \"function\": {\"name\": \"go\", \"arguments\": {}}}",
        "{\"name\": \"look\", \"arguments\": \"{\\\"n\\\": 8}\"}",
        "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>",
        "<tools>{\"name\": \"look\", \"arguments\": {}}</tools>",
        "<function_call>{\"name\": \"look\", \"arguments\": {}}",
    };
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct grammar *g = grammar_of(&styles[0], tools);

    CHECK(tools && g);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (!accepts(g, good[i])) test_fail(__FILE__, __LINE__, "refused: %s", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (accepts(g, bad[i])) test_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
    grammar_unref(g);
    json_decref(tools);
}

TEST(one_call_is_one_call_where_only_one_may_come)
{
    json_t *tools = json_loads(tools_text, 0, NULL);
    const struct tool_grammar form = {.style = OUTPUT_HERMES, .template_source = "", .tools = tools, .single = true};
    const char *one = "```json\n{\"name\": \"look\", \"arguments\": {\"n\": 7}}\n```";
    const char *two = "{\"name\": \"look\", \"arguments\": {\"n\": 7}}\n{\"name\": \"go\", \"arguments\": {\"n\": 7}}";
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;

    CHECK_OK(grammar_builder_create(NULL, &b));
    CHECK_OK(grammar_compile(b, tool_grammar_free(b, &form), NULL, 0, &g, NULL));
    CHECK(accepts(g, one) && !accepts(g, two));
    grammar_unref(g);
    grammar_builder_destroy(b);
    json_decref(tools);
}

static const char strings_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"strict\": true, \"parameters\": {\"type\": "
    "\"object\", "
    "\"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"^[A-Z]+$\", \"maxLength\": 3}, "
    "\"b\": {\"type\": \"string\", \"const\": \"x y\"}, \"c\": {\"type\": \"string\", \"minLength\": 2}}, "
    "\"required\": [\"a\", \"b\", \"c\"]}}}]";

TEST(strings_between_tags_follow_their_schemas)
{
    static const struct {
        const char *a, *b, *c;
        bool good;
    } cases[] = {{"OSL", "x y", "ab", true}, {"OSLO", "x y", "ab", false}, {"osl", "x y", "ab", false},
                 {"O", "x", "ab", false},    {"O", "x y", "a", false},     {"O", "x y", "<b>\n\"\xc3\xa9", true}};
    json_t *tools = json_loads(strings_text, 0, NULL);
    struct grammar *g = grammar_of(&(struct style){OUTPUT_QWEN_XML, ""}, tools);
    struct buf text = {0};

    CHECK(tools && g);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        buf_clear(&text);
        buf_printf(&text,
                   "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n<parameter=b>\n%s\n</parameter>\n"
                   "<parameter=c>\n%s\n</parameter>\n</function>\n</tool_call>",
                   cases[i].a, cases[i].b, cases[i].c);
        CHECK(!text.failed);
        if (accepts(g, text.data) != cases[i].good) test_fail(__FILE__, __LINE__, "case %zu", i);
    }
    buf_deinit(&text);
    grammar_unref(g);
    json_decref(tools);
}
