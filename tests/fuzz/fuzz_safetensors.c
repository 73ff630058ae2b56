/* tests/fuzz/fuzz_safetensors.c - any bytes as a shard and as a config.json: refused with a text, or a table in which
 * every tensor lies inside the file, and metadata that reads.
 *
 * Input: a config.json up to the first 0 byte, or none; then the shard. Seeds: corpus/fuzz_safetensors/, written by
 * make_safetensors_corpus.py.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/hub/hf_names.h"
#include "format/hub/safetensors.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void expect(bool fact)
{
    if (!fact) abort();
}

static const struct hub_family *any_family(void)
{
    const char *arch;

    return model_hub_families()->at(0, &arch);
}

static void try_config(const char *text, size_t n, struct hf_model *m)
{
    struct gguf_writer w = {0};
    struct buf head = {0};
    struct model_file *g = NULL;
    struct model_config c;
    struct rd_error err = {RD_OK, ""};
    json_t *config = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    const struct hf_told told = {.qk_norms = n % 2 == 0, .qkv_biases = n % 3 == 0, .n_q_rows = n % 512};
    rd_status st = config ? hf_put_keys(config, "fuzz", model_hub_families(), &told, &w, m, &err) : RD_E_FORMAT;

    expect(!config || st == RD_OK || err.text[0]);
    if (st == RD_OK) {
        gguf_write_header(&w, 0, &head);
        expect(gguf_open_bytes((const uint8_t *)head.data, head.n, &g, &err) == RD_OK);
        expect(model_read_config(g, &c, &err) != RD_OK && err.text[0]); /* no embedding at least */
    } else {
        *m = (struct hf_model){.family = any_family()};
    }
    model_file_close(g);
    buf_deinit(&head);
    gguf_writer_deinit(&w);
    json_decref(config);
}

static void try_shard(const uint8_t *data, size_t n, const struct hf_model *m)
{
    char *files[] = {"fuzz"}, name[256];
    struct st_table table = {0};
    struct rd_error err = {RD_OK, ""};
    uint64_t n_header;
    rd_status st = n < 8 ? RD_E_FORMAT : safetensors_header_bytes("fuzz", data, n, &n_header, &err);

    if (st == RD_OK) st = safetensors_read("fuzz", 0, data, n_header, n, &table, &err);
    if (st == RD_OK) st = safetensors_sort(&table, files, &err);
    expect(st == RD_OK || n < 8 || err.text[0]);
    for (size_t i = 0; st == RD_OK && i < table.n; i++) {
        const struct st_tensor *t = &table.tensors[i];

        expect(t->offset >= n_header && t->n_bytes <= n && t->offset <= n - t->n_bytes);
        expect(safetensors_find(&table, t->name) == t);
        hf_gguf_name(m, t->name, name, sizeof(name));
        expect(strlen(name) < sizeof(name));
    }
    safetensors_deinit(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *end = n && *data == '{' ? memchr(data, 0, n) : NULL;
    struct hf_model m = {.family = any_family()};
    uint64_t alive = mem_n_alive();

    log_set_level(LOG_ERROR);
    if (end) try_config((const char *)data, (size_t)(end - data), &m);
    if (end) n -= (size_t)(end + 1 - data), data = end + 1;
    try_shard(data, n, &m);
    expect(mem_n_alive() == alive);
    return 0;
}
