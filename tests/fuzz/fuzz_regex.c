/* tests/fuzz/fuzz_regex.c - any bytes as a regular expression: byte 0, odd: as a schema's pattern. */
#include "fuzz_language.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static grammar_node whole(struct grammar_builder *b, const char *text, size_t n)
{
    return grammar_from_regex(b, text, n, false);
}

static grammar_node searched(struct grammar_builder *b, const char *text, size_t n)
{
    return grammar_from_regex(b, text, n, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size) language_run(data + 1, size - 1, data[0] % 2 ? searched : whole, NULL);
    return 0;
}
