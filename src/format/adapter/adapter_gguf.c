/* format/adapter/adapter_gguf.c - adapters as llama.cpp's converter writes them. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/adapter/adapter_parts.h"
#include "format/gguf/gguf.h"

#define MAX_BYTES ((size_t)4 << 30)

static bool is_word(const struct model_file *g, const char *key, const char *word)
{
    struct model_str s;

    return model_file_str(g, key, &s, NULL) == RD_OK && s.n == strlen(word) && !memcmp(s.s, word, s.n);
}

/* "blk.3.attn_q.weight.lora_a" */
static bool parse(struct model_str name, uint32_t *layer, char matrix[24], bool *is_b)
{
    const char *end = name.s + name.n, *at = name.s + 4, *dot;
    uint64_t n;

    if (name.n < 4 + 14 || memcmp(name.s, "blk.", 4) != 0 || memcmp(end - 14, ".weight.lora_", 13) != 0) return false;
    if (end[-1] != 'a' && end[-1] != 'b') return false;
    *is_b = end[-1] == 'b';
    end -= 14;
    dot = memchr(at, '.', (size_t)(end - at));
    if (!dot || !parse_u64(at, (size_t)(dot - at), &n) || n >= UINT32_MAX || end - dot - 1 >= 24) return false;
    *layer = (uint32_t)n;
    snprintf(matrix, 24, "%.*s", (int)(end - dot - 1), dot + 1);
    return true;
}

static rd_status read_tensor(struct adapter_file *f, const struct model_tensor *m, double alpha, struct rd_error *err)
{
    char name[160], matrix[24];
    struct adapter_tensor *t;
    uint32_t layer;
    bool is_b;
    rd_status st;

    error_quote(name, sizeof(name), m->name.s, m->name.n);
    if (!parse(m->name, &layer, matrix, &is_b) || m->dims[2] != 1 || m->dims[3] != 1)
        return error_set(err, RD_E_UNSUPPORTED, "%s: only adapters of the layers' matrices are read", name);
    t = adapter_add(f, layer, matrix, name);
    if (!t) return error_set(err, RD_E_NOMEM, "out of memory");
    st = adapter_set(t, is_b, m->dtype, m->dims[1], m->dims[0], m->data, err);
    if (st == RD_OK) t->scale = alpha != 0 ? (float)(alpha / t->rank) : 1;
    return st;
}

static rd_status read_all(struct adapter_file *f, const struct model_file *g, struct rd_error *err)
{
    struct model_str arch;
    double alpha = 0;
    rd_status st;

    if (!is_word(g, "general.type", "adapter"))
        return error_set(err, RD_E_UNSUPPORTED, "a GGUF file, but no adapter (general.type)");
    if (!is_word(g, "adapter.type", "lora"))
        return error_set(err, RD_E_UNSUPPORTED, "adapter.type is not \"lora\": other adapters are not read");
    st = model_file_f64(g, "adapter.lora.alpha", &alpha, err);
    if (st == RD_E_NOT_FOUND) return error_set(err, RD_E_FORMAT, "adapter.lora.alpha is missing");
    if (st != RD_OK) return st;
    if ((st = model_file_str(g, "general.architecture", &arch, err)) == RD_OK)
        error_quote(f->arch, sizeof(f->arch), arch.s, arch.n);
    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) {
        st = read_tensor(f, model_file_tensor(g, i), alpha, err);
        if (st != RD_OK) return st;
    }
    return RD_OK;
}

rd_status adapter_open_gguf(const char *path, struct adapter_file *f, struct rd_error *err)
{
    struct model_file *g = NULL;
    size_t n = 0;
    rd_status st = file_read_all(path, MAX_BYTES, &f->bytes, &n, err);

    f->is_gguf = true;
    if (st == RD_OK) st = gguf_open_bytes((const uint8_t *)f->bytes, n, &g, err);
    f->own = g;
    return st != RD_OK ? st : read_all(f, g, err);
}

void adapter_close_gguf(struct adapter_file *f)
{
    model_file_close(f->own);
}
