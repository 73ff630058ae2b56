/* tests/fuzz/fuzz_gguf.c - any bytes as a GGUF file: refused with a text, or every view that it hands out lies inside.
 *
 * Seeds: corpus/fuzz_gguf/, written by make_gguf_corpus.py. A crash found stays there as a file.
 */
#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf.h"
#include "base/mem.h"
#include "format/gguf/gguf_dump.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile double sink; /* keeps the reads of elements alive */

/* Aborts, so that the fuzzer keeps the input. */
static void expect(bool fact)
{
    if (!fact) abort();
}

static bool inside(const void *p, uint64_t bytes, const uint8_t *data, size_t n)
{
    const uint8_t *at = p;

    return at >= data && at <= data + n && bytes <= (uint64_t)(data + n - at);
}

static void check_array(const struct model_meta *kv, const uint8_t *data, size_t n)
{
    double sum = 0;
    struct meta_strings it;
    struct model_str s;
    uint64_t n_strings = 0;

    meta_strings_of(kv, &it);
    while (meta_next_string(&it, &s)) {
        expect(inside(s.s, s.n, data, n));
        n_strings++;
    }
    if (kv->array_type == META_STRING) {
        expect(n_strings == kv->n);
        return;
    }
    for (uint64_t i = 0; i < kv->n; i++) {
        if (kv->array_type == META_F32 || kv->array_type == META_F64)
            sum += meta_f64_at(kv, i);
        else
            sum += (double)meta_u64_at(kv, i);
    }
    sink = sum;
}

/* Every typed read of one entry; keys with a 0 byte inside cannot be asked for. */
static void check_getters(const struct model_file *g, const struct model_meta *kv, const uint8_t *data, size_t n)
{
    char *key = mem_memdup(kv->key.s, kv->key.n);
    struct rd_error err;
    struct model_str s;
    uint64_t u;
    double d;
    bool b;

    if (key && strlen(key) == kv->key.n) {
        expect(model_file_find(g, key) == kv);
        model_file_u64(g, key, 0, UINT64_MAX, &u, &err);
        model_file_u64(g, key, 1, 1000, &u, &err);
        model_file_f64(g, key, &d, &err);
        model_file_bool(g, key, &b, &err);
        if (model_file_str(g, key, &s, &err) == RD_OK) expect(inside(s.s, s.n, data, n));
    }
    mem_free(key);
}

static void check_tensor(const struct model_file *g, const struct model_tensor *t, const uint8_t *data, size_t n)
{
    char *name = mem_memdup(t->name.s, t->name.n);

    expect(inside(t->name.s, t->name.n, data, n));
    expect(inside(t->data, t->n_bytes, data, n) && t->data == data + t->offset);
    expect(t->dims[0] % dtype_block_weights(t->dtype) == 0);
    if (name && strlen(name) == t->name.n) expect(model_file_find_tensor(g, name) == t);
    mem_free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct model_file *g = NULL;
    struct rd_error err = {0};
    struct buf out = {0};
    uint64_t alive = mem_n_alive();

    if (gguf_open_bytes(data, n, &g, &err) != RD_OK) {
        expect(!g && err.text[0]);
        expect(mem_n_alive() == alive);
        return 0;
    }
    expect(model_file_unchanged(g) && model_file_bytes(g) == n && model_file_version(g) >= 2);
    for (uint64_t i = 0; i < model_file_n_meta(g); i++) {
        const struct model_meta *kv = model_file_meta(g, i);

        expect(inside(kv->key.s, kv->key.n, data, n));
        if (kv->type == META_ARRAY) check_array(kv, data, n);
        check_getters(g, kv, data, n);
    }
    for (uint64_t i = 0; i < model_file_n_tensors(g); i++) check_tensor(g, model_file_tensor(g, i), data, n);
    expect(gguf_dump_text(g, &out, &err) == RD_OK && gguf_dump_json(g, &out, &err) == RD_OK);
    buf_deinit(&out);
    model_file_close(g);
    expect(mem_n_alive() == alive);
    return 0;
}
