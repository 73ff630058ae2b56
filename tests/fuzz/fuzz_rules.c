/* tests/fuzz/fuzz_rules.c - any bytes as a grammar's text. Byte 0: GBNF, EBNF or Lark's, a choice, or structural tags. */
#include <jansson.h>
#include "fuzz_language.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static grammar_node from_json(struct grammar_builder *b, const char *text, size_t n, bool choice);

static grammar_node gbnf(struct grammar_builder *b, const char *text, size_t n)
{
    return grammar_from_gbnf(b, text, n);
}

static grammar_node ebnf(struct grammar_builder *b, const char *text, size_t n)
{
    return grammar_from_ebnf(b, text, n);
}

static grammar_node choice(struct grammar_builder *b, const char *text, size_t n)
{
    return from_json(b, text, n, true);
}

static grammar_node tags(struct grammar_builder *b, const char *text, size_t n)
{
    return from_json(b, text, n, false);
}

static int32_t token_of(void *arg, const char *text, size_t n)
{
    (void)arg;
    return n == 9 && !memcmp(text, "<special>", 9) ? LANGUAGE_SPECIAL : -1;
}

static grammar_node from_json(struct grammar_builder *b, const char *text, size_t n, bool is_choice)
{
    const struct schema_options o = {JSON_SPACES_PLAIN};
    const struct tag_tokens tokens = {token_of, NULL};
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    grammar_node made = 0;

    if (!v)
        grammar_fail(b, RD_E_INVALID, "not JSON");
    else
        made = is_choice ? grammar_from_choice(b, v) : grammar_from_tags(b, v, &o, &tokens);
    json_decref(v);
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static grammar_node (*const languages[])(struct grammar_builder *, const char *, size_t) = {gbnf, ebnf, choice,
                                                                                                tags};

    if (size) language_run(data + 1, size - 1, languages[data[0] % 4], NULL);
    return 0;
}
