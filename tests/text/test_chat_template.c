/* tests/text/test_chat_template.c - the templates of real models against jinja2, and the built-in ones. */
#include "text/chat_template.h"
#include <jansson.h>
#include "base/file.h"
#include "base/mem.h"
#include "template_golden.h"
#include "test.h"

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

/* RADISH_TOKENIZERS: a folder that make_templates.py `tokenizers` has filled from the families' own files, which are
 * not ours to keep. */
TEST(other_families_render_as_jinja2_does)
{
    static const char *const families[] = {"llama3_1", "gemma3", "qwen3", "qwen2_5", "deepseek_v3", "mistral_nemo"};
    const char *folder = getenv("RADISH_TOKENIZERS");
    char path[512];
    int n_found = 0;
    size_t n;

    for (size_t i = 0; folder && i < sizeof(families) / sizeof(families[0]); i++) {
        snprintf(path, sizeof(path), "%s/family_%s.json", folder, families[i]);
        if (!file_exists(path)) continue;
        n_found++;
        CHECK_EQ(template_golden_differences(path, test_path(CONVERSATIONS), &n), 0);
    }
    if (n_found == 0) test_note("no goldens of other families: RADISH_TOKENIZERS is not set or holds no family_*.json");
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
    CHECK(strstr(err.text, "gemma, chatml, llama2, llama3"));
}

TEST(kwargs_reach_the_template_but_replace_no_internals)
{
    static const char source[] = "{{ mood }} {{ bos_token }}{{ messages | length }}{{ tools is none }}";
    json_t *kwargs = json_pack("{s:s, s:s, s:[], s:s}", "mood", "fine", "bos_token", "X", "messages", "tools", "Y");
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
    chat_template_destroy(t);
    json_decref(kwargs);
    json_decref(messages);
}
