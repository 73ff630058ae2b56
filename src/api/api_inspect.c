/* api/api_inspect.c - `radish inspect`: what is in a model file, and what it needs to run. */
#include <string.h>
#include "api/api_state.h"
#include "api/inspect_eyes.h"
#include "base/error.h"
#include "base/mem.h"
#include "engine/executor.h"
#include "format/gguf/gguf_dump.h"
#include "format/model_file.h"
#include "model/vocab.h"

#define INSPECT_CONTEXTS 3
enum { N_TYPES = DTYPE_F8_E4M3 + 1 }; /* the largest number of an enum dtype, and one */

/* Would this build run it? As far as the file tells: architecture, tensors and their types, tokenizer. */
static rd_status check_runs(const struct model_file *g, const char *path, struct rd_error *why)
{
    rd_engine *tokenizer = NULL;
    struct model_config c;
    rd_status st = model_read_config(g, &c, why);

    if (st == RD_OK) st = model_check_tensors(g, why);
    if (st == RD_OK) st = rd_open_tokenizer(path, NULL, &tokenizer, why);
    rd_close(tokenizer);
    return st;
}

static void put_str(struct buf *out, const struct model_file *g, const char *key, const char *otherwise)
{
    struct model_str s = {NULL, 0};

    if (!model_file_find(g, key) || model_file_str(g, key, &s, NULL) != RD_OK) buf_puts(out, otherwise);
    for (size_t i = 0; i < s.n; i++) buf_putc(out, (unsigned char)s.s[i] < 0x20 || s.s[i] == 0x7f ? '?' : s.s[i]);
}

/* The two types that hold most of the weights, with their shares. */
static void put_types(struct buf *out, const struct model_file *g)
{
    uint64_t bytes[N_TYPES] = {0}, all = 0;

    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
        const struct model_tensor *t = model_file_tensor(g, i);
        bytes[t->dtype] += t->n_bytes;
        all += t->n_bytes;
    }
    for (int n = 0; n < 2; n++) {
        int most = 0;
        for (int i = 1; i < N_TYPES; i++)
            if (bytes[i] > bytes[most]) most = i;
        if (bytes[most] * 100 < all || bytes[most] == 0) break;
        buf_printf(out, "%s%s (%u %%)", n ? ", " : "", dtype_name((enum dtype)most),
                   (unsigned)(bytes[most] * 100 / all));
        bytes[most] = 0;
    }
    buf_putc(out, '\n');
}

static void put_count(struct buf *out, uint64_t n)
{
    if (n >= 1000000000)
        buf_printf(out, "%.2f billion\n", (double)n / 1e9);
    else if (n >= 1000000)
        buf_printf(out, "%.1f million\n", (double)n / 1e6);
    else
        buf_printf(out, "%llu\n", (unsigned long long)n);
}

/* What a reader wants to know first. */
static void put_summary(const struct model_file *g, const char *path, struct buf *out)
{
    struct model_config c;
    struct rd_error why = {RD_OK, ""};
    bool known = model_read_config(g, &c, NULL) == RD_OK;
    uint64_t weights = 0, n_parameters = 0;

    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
        const struct model_tensor *t = model_file_tensor(g, i);
        weights += t->n_bytes;
        n_parameters += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    }
    buf_puts(out, "name          ");
    put_str(out, g, "general.name", "not in the file");
    buf_puts(out, "\narchitecture  ");
    put_str(out, g, "general.architecture", "not in the file");
    if (known)
        buf_printf(out, ", %u layers, hidden size %u, %u heads (%u for keys and values)", c.n_layers, c.hidden,
                   c.n_heads, c.n_kv_heads);
    buf_puts(out, "\nparameters    ");
    put_count(out, n_parameters);
    buf_puts(out, "weights       ");
    put_types(out, g);
    if (known) {
        struct kv_layout layout = {c.n_layers, c.n_kv_heads, c.head_dim, 16, DTYPE_F16, DTYPE_F16};
        double kv = (double)executor_kv_bytes(&c, &layout, c.n_ctx_train);
        buf_printf(
            out,
            "context       %u tokens\nmemory        %.1f MiB: %.1f of weights, %.1f of KV cache for one full context\n",
            c.n_ctx_train, ((double)weights + kv) / (1 << 20), (double)weights / (1 << 20), kv / (1 << 20));
    } else {
        buf_printf(out, "memory        %.1f MiB of weights\n", (double)weights / (1 << 20));
    }
    inspect_put_eyes(g, path, false, out);
    if (inspect_is_encoder(g))
        buf_puts(out, "runs          beside its model: --mmproj, or in the same folder\n\n");
    else if (check_runs(g, path, &why) == RD_OK)
        buf_puts(out, "runs          yes\n\n");
    else
        buf_printf(out, "runs          no: %s\n\n", *why.text ? why.text : rd_status_text(why.status));
}

/* Memory for weights (about the tensors' size, repacked) and KV per token. */
static void put_needs_text(const struct model_file *g, struct buf *out)
{
    static const uint32_t contexts[INSPECT_CONTEXTS] = {4096, 32768, 131072};
    struct model_config c;
    struct rd_error why = {RD_OK, ""};
    struct kv_layout layout;
    uint64_t weights = 0;

    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) weights += model_file_tensor(g, i)->n_bytes;
    buf_puts(out, "\nmemory\n");
    buf_printf(out, "  weights              %10.1f MiB\n", (double)weights / (1 << 20));
    if (inspect_is_encoder(g)) return;
    if (model_read_config(g, &c, &why) != RD_OK) {
        buf_printf(out, "  radish cannot run this file: %s\n", why.text);
        return;
    }
    layout = (struct kv_layout){c.n_layers, c.n_kv_heads, c.head_dim, 16, DTYPE_F16, DTYPE_F16};
    buf_printf(out, "  KV per token (f16)   %10.1f KiB\n", (double)kv_page_bytes(&layout) / 16 / 1024);
    if (c.window > 0 && c.window < c.n_ctx_train)
        buf_printf(out, "  %u of %u layers keep no more than %u tokens (on a CPU)\n",
                   c.n_layers - model_n_global(&c, c.n_layers), c.n_layers, c.window);
    for (int i = 0; i < INSPECT_CONTEXTS; i++) {
        if (contexts[i] > c.n_ctx_train) break;
        buf_printf(out, "  KV of %6u tokens   %10.1f MiB\n", contexts[i],
                   (double)executor_kv_bytes(&c, &layout, contexts[i]) / (1 << 20));
    }
}

static void put_needs_json(const struct model_file *g, const char *path, struct buf *out)
{
    struct model_config c;
    struct rd_error why = {RD_OK, ""};
    struct kv_layout layout;
    struct model_str source = {NULL, 0};

    buf_puts(out, ", \"run\": ");
    if (inspect_is_encoder(g)) {
        buf_puts(out, "{\"mmproj\": true}");
    } else if (check_runs(g, path, &why) != RD_OK || model_read_config(g, &c, &why) != RD_OK) {
        buf_puts(out, "{\"error\": \"");
        buf_put_json(out, why.text, strlen(why.text));
        buf_puts(out, "\"}");
    } else {
        layout = (struct kv_layout){c.n_layers, c.n_kv_heads, c.head_dim, 16, DTYPE_F16, DTYPE_F16};
        buf_printf(out, "{\"architecture\": \"%s\", \"context_length\": %u, \"kv_bytes_per_token_f16\": %llu}", c.arch,
                   c.n_ctx_train, (unsigned long long)kv_page_bytes(&layout) / 16);
    }
    inspect_put_eyes(g, path, true, out);
    buf_puts(out, ", \"chat_template\": ");
    if (vocab_chat_template(g, &source) == RD_OK && source.n > 0) {
        buf_putc(out, '"');
        buf_put_json(out, source.s, source.n);
        buf_putc(out, '"');
    } else {
        buf_puts(out, "null");
    }
}

static void put_template_text(const struct model_file *g, struct buf *out)
{
    struct model_str source = {NULL, 0};

    buf_puts(out, "\nchat template\n");
    if (vocab_chat_template(g, &source) != RD_OK || source.n == 0) {
        buf_puts(out, "  none in the file: the family's format is used\n");
        return;
    }
    for (size_t i = 0; i < source.n; i++) {
        unsigned char ch = (unsigned char)source.s[i];

        if (i == 0 || source.s[i - 1] == '\n') buf_puts(out, "  ");
        if (ch < 0x20 && ch != '\n' && ch != '\t')
            buf_printf(out, "\\x%02x", ch);
        else
            buf_putc(out, (char)ch);
    }
    buf_putc(out, '\n');
}

rd_status rd_inspect(const char *path, bool json, char **text, struct rd_error *err)
{
    struct model_file *g = NULL;
    struct buf out = {0};
    rd_status st;

    *text = NULL;
    if (!path) return error_set(err, RD_E_INVALID, "no model given");
    json_set_alloc_funcs(api_json_alloc, mem_free);
    st = model_file_open(path, model_hub_families(), &g, err);
    if (st != RD_OK) return st;
    if (!json) put_summary(g, path, &out);
    st = json ? gguf_dump_json(g, &out, err) : gguf_dump_text(g, &out, err);
    if (st == RD_OK && json) {
        while (out.n > 0 && (out.data[out.n - 1] == '\n' || out.data[out.n - 1] == '}')) {
            bool brace = out.data[out.n - 1] == '}';

            out.data[--out.n] = 0; /* the object goes on with what the file needs to run */
            if (brace) break;
        }
        put_needs_json(g, path, &out);
        buf_puts(&out, "}\n");
    } else if (st == RD_OK) {
        put_needs_text(g, &out);
        if (!inspect_is_encoder(g)) put_template_text(g, &out);
    }
    if (st == RD_OK && out.failed) st = error_set(err, RD_E_NOMEM, "out of memory");
    if (st == RD_OK) *text = buf_take(&out, NULL);
    buf_deinit(&out);
    model_file_close(g);
    return st;
}
