/* tests/text/test_chat_template.c - the templates of real models against jinja2, and the built-in ones. */
#include "text/chat/chat_template.h"
#include <jansson.h>
#include "base/file.h"
#include "base/mem.h"
#include "template_golden.h"
#include "test.h"
#include "text/chat/chat_builtins.h"

#define CONVERSATIONS "tests/golden/templates/conversations.json"

TEST(smollm2_renders_60_conversations_as_jinja2_does)
{
    size_t n;

    CHECK_EQ(template_golden_differences(test_path("tests/golden/templates/gguf_smollm2.json"),
                                         test_path(CONVERSATIONS), &n),
             0);
    CHECK_EQ(n, 60);
}

TEST(qwen_coder_renders_60_conversations_as_jinja2_does)
{
    size_t n;

    CHECK_EQ(template_golden_differences(test_path("tests/golden/templates/gguf_qwen2.5-coder-0.5b.json"),
                                         test_path(CONVERSATIONS), &n),
             0);
    CHECK_EQ(n, 60);
}

/* RADISH_TEMPLATE_GOLDENS: a folder that make_templates.py `tokenizers` has filled from the families' own files, which are
 * not ours to keep; ./check makes it. */
TEST(other_families_render_as_jinja2_does)
{
    static const char *const families[] = {"llama3_1", "gemma3", "qwen3", "qwen2_5", "deepseek_v3", "mistral_nemo"};
    const char *folder = getenv("RADISH_TEMPLATE_GOLDENS");
    char path[512];
    int n_found = 0;
    size_t n;

    for (size_t i = 0; folder && i < sizeof(families) / sizeof(families[0]); i++) {
        snprintf(path, sizeof(path), "%s/family_%s.json", folder, families[i]);
        if (!file_exists(path)) continue;
        n_found++;
        CHECK_EQ(template_golden_differences(path, test_path(CONVERSATIONS), &n), 0);
    }
    if (n_found == 0) test_skip("RADISH_TEMPLATE_GOLDENS is not set or holds no family_*.json");
}

static rd_status render_builtin(const char *name, const char *messages, bool prompt, char **text)
{
    json_t *m = json_loads(messages, 0, NULL);
    struct chat_template *t = NULL;
    struct chat_input in = {.messages = m, .add_generation_prompt = prompt};
    size_t n;
    rd_status st = chat_template_builtin(name, "<s>", "</s>", &t, NULL);

    if (st == RD_OK) st = chat_template_render(t, &in, text, &n, NULL);
    chat_template_destroy(t);
    json_decref(m);
    return st;
}

TEST(builtin_templates_write_their_families_format)
{
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\" Hi \"},"
        "{\"role\":\"assistant\",\"content\":\"Yo\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"A\"}"
        "]}]";
    static const struct {
        const char *name, *want;
    } table[] = {
        {"gemma",
         "<s><start_of_turn>user\nBe "
         "brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n<start_of_turn>user\nA<end_of_turn>\n"
         "<start_of_turn>model\n"},
        {"chatml", "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi "
                   "<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
                   "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n"},
        {"llama2", "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yo </s><s>[INST] A [/INST]"},
        {"llama3", "<s><|start_header_id|>system<|end_header_id|>\n\nBe "
                   "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\nYo<|eot_id|><|start_header_id|>user<|end_header_"
                   "id|>\n\nA<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char *text = NULL;
        CHECK_OK(render_builtin(table[i].name, messages, true, &text));
        CHECK_STR(text, table[i].want);
        mem_free(text);
    }
}

TEST(an_unknown_builtin_lists_the_known_ones)
{
    struct chat_template *t = NULL;
    struct rd_error err = {0};

    CHECK_EQ(chat_template_builtin("nope", "", "", &t, &err), RD_E_NOT_FOUND);
    CHECK(strstr(err.text, "chatml, qwen, llama2, llama3"));
}

TEST(kwargs_reach_the_template_but_replace_no_internals)
{
    static const char source[] = "{{ mood }} {{ bos_token }}{{ messages | length }}{{ tools is none }}";
    static const char *const internals[] = {
        "messages",  "tools",     "bos_token", "raise_exception", "range", "loop", "add_generation_prompt",
        "__class__", "namespace", "true"};
    json_t *kwargs = json_pack("{s:s}", "mood", "fine");
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "a");
    struct chat_template *t = NULL;
    struct chat_input in = {.messages = messages, .kwargs = kwargs};
    char *text = NULL;
    size_t n;

    CHECK_OK(chat_template_create(source, sizeof(source) - 1, "<b>", "", &t, NULL));
    CHECK(chat_template_has_tools(t));
    CHECK_OK(chat_template_render(t, &in, &text, &n, NULL));
    CHECK_STR(text, "fine <b>1True");
    mem_free(text);
    for (size_t i = 0; i < sizeof(internals) / sizeof(internals[0]); i++) {
        json_t *bad = json_pack("{s:s, s:i}", "mood", "fine", internals[i], 1);
        struct rd_error err = {0};
        in.kwargs = bad;
        CHECK_EQ(chat_template_render(t, &in, &text, &n, &err), RD_E_INVALID);
        CHECK(strstr(err.text, internals[i]));
        CHECK_EQ(chat_template_prompt(t, &in, &text, &n, &err), RD_E_INVALID);
        json_decref(bad);
    }
    chat_template_destroy(t);
    json_decref(kwargs);
    json_decref(messages);
}

TEST(every_builtin_writes_every_message_and_leaves_the_last_open)
{
    static const char *const names[] = {"chatml",  "qwen",           "llama2",    "llama3",   "llama4", "gemma",
                                        "mistral", "mistral-tekken", "deepseek",  "phi3",     "phi4",   "zephyr",
                                        "granite", "falcon3",        "command-r", "openchat", "vicuna", "alpaca"};
    json_t *messages =
        json_loads("[{\"role\":\"system\",\"content\":\"SYS\"},{\"role\":\"user\",\"content\":\"ONE\"},"
                   "{\"role\":\"assistant\",\"content\":\"TWO\"},{\"role\":\"user\",\"content\":\"THREE\"}]",
                   0, NULL);
    size_t n_listed = 1;

    for (const char *s = chat_builtin_names(); *s; s++) n_listed += *s == ',';
    CHECK_EQ(n_listed, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct chat_template *t = NULL;
        struct chat_input in = {.messages = messages, .end = CHAT_END_AUTO};
        char *text = NULL, *again = NULL, want[1024];
        size_t n = 0, n_again = 0;
        json_t *longer = json_copy(messages);

        CHECK(strstr(chat_builtin_names(), names[i]));
        CHECK_OK(chat_template_builtin(names[i], "<s>", "</s>", &t, NULL));
        CHECK_OK(chat_template_prompt(t, &in, &text, &n, NULL));
        CHECK(strstr(text, "SYS") && strstr(text, "SYS") < strstr(text, "ONE"));
        CHECK(strstr(text, "ONE") < strstr(text, "TWO") && strstr(text, "TWO") < strstr(text, "THREE"));
        json_array_append_new(longer, json_pack("{s:s, s:s}", "role", "assistant", "content", "Begun"));
        in.messages = longer;
        CHECK_OK(chat_template_prompt(t, &in, &again, &n_again, NULL));
        CHECK(n_again > n && !memcmp(again + n_again - 5, "Begun", 5));
        if (!strstr("llama2 mistral vicuna openchat", names[i])) /* in these a blank goes before the answer */
            CHECK_STR(again, strcat(strcpy(want, text), "Begun"));
        mem_free(text);
        mem_free(again);
        json_decref(longer);
        chat_template_destroy(t);
    }
    json_decref(messages);
}
