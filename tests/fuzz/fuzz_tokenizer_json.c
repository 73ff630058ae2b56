/* tests/fuzz/fuzz_tokenizer_json.c - any bytes as a tokenizer.json: refused with a reason, or a tokenizer that works.
 *
 * Input: the file, optionally a 0 byte and a text to encode with it. Seeds: corpus/fuzz_tokenizer_json/.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void expect(bool fact)
{
    if (!fact) abort();
}

static void use(const struct tokenizer *t, const char *text, size_t n)
{
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    char *back = NULL;
    size_t n_back = 0;
    struct rd_error err = {RD_OK, ""};
    rd_status st = tokenizer_encode(t, text, n, true, true, &ids, &n_ids, &err);

    expect(st == RD_OK || err.text[0]);
    if (st != RD_OK) return;
    for (uint32_t i = 0; i < n_ids; i++) expect(ids[i] >= 0 && (uint32_t)ids[i] < tokenizer_n_tokens(t));
    st = tokenizer_decode(t, ids, n_ids, true, &back, &n_back);
    expect(st != RD_OK || utf8_valid(back, n_back));
    for (uint32_t i = 0; i < n_ids; i++) tokenizer_piece(t, ids[i], false);
    mem_free(ids);
    mem_free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char fixed[] = "Hello  w\xc3\xb6rld's \xe4\xb8\xad <s>\n\n 123\xff <0x41> ab";
    const uint8_t *end = n ? memchr(data, 0, n) : NULL;
    struct tokenizer_files files = {.json = (const char *)data, .n_json = end ? (size_t)(end - data) : n};
    struct rd_error err = {RD_OK, ""};
    struct tokenizer *t = NULL;
    uint64_t alive = mem_n_alive();

    if (tokenizer_from_json(&files, &t, &err) != RD_OK) {
        expect(!t && err.text[0] && mem_n_alive() == alive);
        return 0;
    }
    use(t, fixed, sizeof(fixed) - 1);
    if (end) use(t, (const char *)end + 1, n - files.n_json - 1);
    tokenizer_destroy(t);
    expect(mem_n_alive() == alive);
    return 0;
}
