/* tests/fuzz/fuzz_schema.c - any JSON as a schema: refused by name, or followed; its shortest text is JSON. */
#include <jansson.h>
#include "fuzz_language.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static grammar_node node(struct grammar_builder *b, const char *text, size_t n)
{
    const struct schema_options o = {(enum json_spaces)(n % 3)};
    json_t *schema = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    grammar_node made = 0;

    if (schema)
        made = grammar_from_schema(b, schema, &o);
    else
        grammar_fail(b, RD_E_INVALID, "not JSON");
    json_decref(schema);
    return made;
}

static void is_json(const uint8_t *text, size_t n)
{
    json_t *v = json_loadb((const char *)text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

    expect(v != NULL);
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    language_run(data, size, node, is_json);
    return 0;
}
