/* api/api_inspect.c - `radish inspect`: what is in a model file, and what it needs to run. */
#include <string.h>
#include "api/api_state.h"
#include "base/error.h"
#include "base/mem.h"
#include "format/gguf_dump.h"
#include "format/hf_dir.h"
#include "model/vocab.h"

#define INSPECT_CONTEXTS 3

/* Memory for weights (about the tensors' size, repacked) and KV per token. */
static void put_needs_text(const struct gguf *g, struct buf *out)
{
    static const uint32_t contexts[INSPECT_CONTEXTS] = {4096, 32768, 131072};
    struct model_config c;
    struct rd_error why = {RD_OK, ""};
    struct kv_layout layout;
    uint64_t weights = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) weights += gguf_tensor_at(g, i)->n_bytes;
    buf_puts(out, "\nmemory\n");
    buf_printf(out, "  weights              %10.1f MiB\n", (double)weights / (1 << 20));
    if (model_read_config(g, &c, &why) != RD_OK) {
        buf_printf(out, "  radish cannot run this file: %s\n", why.text);
        return;
    }
    layout = (struct kv_layout){c.n_layers, c.n_kv_heads, c.head_dim, 16, DTYPE_F16, DTYPE_F16};
    buf_printf(out, "  KV per token (f16)   %10.1f KiB\n", (double)kv_page_bytes(&layout) / 16 / 1024);
    for (int i = 0; i < INSPECT_CONTEXTS; i++) {
        if (contexts[i] > c.n_ctx_train) break;
        buf_printf(out, "  KV of %6u tokens   %10.1f MiB\n", contexts[i],
                   (double)kv_page_bytes(&layout) / 16 * contexts[i] / (1 << 20));
    }
}

static void put_needs_json(const struct gguf *g, struct buf *out)
{
    struct model_config c;
    struct rd_error why = {RD_OK, ""};
    struct kv_layout layout;
    struct gguf_str source = {NULL, 0};

    buf_puts(out, ", \"run\": ");
    if (model_read_config(g, &c, &why) != RD_OK) {
        buf_puts(out, "{\"error\": \"");
        buf_put_json(out, why.text, strlen(why.text));
        buf_puts(out, "\"}");
    } else {
        layout = (struct kv_layout){c.n_layers, c.n_kv_heads, c.head_dim, 16, DTYPE_F16, DTYPE_F16};
        buf_printf(out, "{\"architecture\": \"%s\", \"context_length\": %u, \"kv_bytes_per_token_f16\": %llu}", c.arch,
                   c.n_ctx_train, (unsigned long long)kv_page_bytes(&layout) / 16);
    }
    buf_puts(out, ", \"chat_template\": ");
    if (vocab_chat_template(g, &source) == RD_OK && source.n > 0) {
        buf_putc(out, '"');
        buf_put_json(out, source.s, source.n);
        buf_putc(out, '"');
    } else {
        buf_puts(out, "null");
    }
}

static void put_template_text(const struct gguf *g, struct buf *out)
{
    struct gguf_str source = {NULL, 0};

    buf_puts(out, "\nchat template\n");
    if (vocab_chat_template(g, &source) != RD_OK || source.n == 0) {
        buf_puts(out, "  none in the file: the family's format is used\n");
        return;
    }
    for (size_t i = 0; i < source.n; i++) {
        unsigned char ch = (unsigned char)source.s[i];

        if (i == 0 || source.s[i - 1] == '\n') buf_puts(out, "  ");
        if (ch < 0x20 && ch != '\n' && ch != '\t') buf_printf(out, "\\x%02x", ch);
        else buf_putc(out, (char)ch);
    }
    buf_putc(out, '\n');
}

rd_status rd_inspect(const char *path, bool json, char **text, struct rd_error *err)
{
    struct gguf *g = NULL;
    struct buf out = {0};
    rd_status st;

    *text = NULL;
    json_set_alloc_funcs(api_json_alloc, mem_free);
    st = model_file_open(path, &g, err);
    if (st != RD_OK) return st;
    st = json ? gguf_dump_json(g, &out, err) : gguf_dump_text(g, &out, err);
    if (st == RD_OK && json) {
        while (out.n > 0 && (out.data[out.n - 1] == '\n' || out.data[out.n - 1] == '}')) {
            bool brace = out.data[out.n - 1] == '}';

            out.data[--out.n] = 0;                          /* the object goes on with what the file needs to run */
            if (brace) break;
        }
        put_needs_json(g, &out);
        buf_puts(&out, "}\n");
    } else if (st == RD_OK) {
        put_needs_text(g, &out);
        put_template_text(g, &out);
    }
    if (st == RD_OK && out.failed) st = error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK) *text = buf_take(&out, NULL);
    buf_deinit(&out);
    gguf_close(g);
    return st;
}
