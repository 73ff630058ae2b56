/* tests/fuzz/fuzz_jinja.c - any bytes as a template: compiles and renders, or says why not. */
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "text/jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *vars = json_pack("{s:[{s:s,s:s},{s:s,s:[{s:s}]}],s:n,s:b,s:i,s:o,s:s}", "messages", "role", "user",
                             "content", "hi \xc5\xbc", "role", "assistant", "tool_calls", "name", "f", "tools",
                             "add_generation_prompt", 1, "n", 7, "f", json_real(2.5), "s", "a b\nc");
    struct jinja *t = NULL;
    char *text = NULL;
    size_t n;

    if (jinja_create((const char *)data, size, &t, NULL) == RD_OK) jinja_render(t, vars, 1700000000, &text, &n, NULL);
    mem_free(text);
    jinja_destroy(t);
    json_decref(vars);
    return 0;
}
