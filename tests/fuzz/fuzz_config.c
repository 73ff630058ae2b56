/* tests/fuzz/fuzz_config.c - configuration files: base/config_text.h. What is read reads the same when it is written again. */
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/config_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void put(const struct config_value *v, struct buf *out)
{
    if (v->kind != CONFIG_TEXT) {
        buf_puts(out, v->text);
        return;
    }
    buf_puts(out, "\"");
    for (const char *s = v->text; *s; s++) {
        if ((unsigned char)*s < 32 || *s == 127 || *s == '"' || *s == '\\')
            buf_printf(out, "\\u%04x", *s);
        else
            buf_append(out, s, 1);
    }
    buf_puts(out, "\"");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct config a, b;
    struct rd_error err;
    struct buf out = {0};

    if (config_read((const char *)data, n, "fuzz", &a, &err) != RD_OK) {
        if (!*err.text || a.bytes) abort();
        return 0;
    }
    for (size_t i = 0; i < a.n_keys; i++) {
        buf_printf(&out, "%s = %s", a.keys[i].name, a.keys[i].is_list ? "[" : "");
        for (uint32_t k = 0; k < a.keys[i].n; k++) {
            if (k) buf_puts(&out, ", ");
            put(&a.values[a.keys[i].at + k], &out);
        }
        buf_puts(&out, a.keys[i].is_list ? "]\n" : "\n");
    }
    if (config_read(out.n ? out.data : "", out.n, "again", &b, &err) != RD_OK || a.n_keys != b.n_keys ||
        a.n_values != b.n_values)
        abort();
    for (size_t i = 0; i < a.n_values; i++)
        if (a.values[i].kind != b.values[i].kind || strcmp(a.values[i].text, b.values[i].text) != 0) abort();
    config_free(&a);
    config_free(&b);
    buf_deinit(&out);
    return 0;
}
