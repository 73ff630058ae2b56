/* tests/fuzz/fuzz_vocab.c - any bytes as a GGUF file with a vocabulary: refused with a text, or a tokenizer that encodes
 * every text to ids within it, whose pieces stream as well-formed text.
 *
 * Seeds: corpus/fuzz_vocab/, written by make_vocab_corpus.py.
 */
#include <stdlib.h>
#include <string.h>
#include "format/gguf/gguf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define PIECES 64u /* tokens whose pieces are looked at */

/* Aborts, so that the fuzzer keeps the input. */
static void expect(bool fact)
{
    if (!fact) abort();
}

static void check_streamed(const struct tokenizer *t, const int32_t *ids, uint32_t n_ids)
{
    struct token_decoder d;
    char *out = NULL;

    token_decoder_init(&d, t, true);
    for (uint32_t i = 0; i < n_ids && i < PIECES; i++) {
        struct text_span piece = tokenizer_piece(t, ids[i], true);
        size_t n;

        out = mem_alloc(piece.n * 3 + 12, 1);
        if (!out) return;
        n = token_decoder_feed(&d, piece, out);
        expect(n <= piece.n * 3 + 12 && utf8_valid(out, n));
        mem_free(out);
    }
}

static void check_text(const struct tokenizer *t, const char *text, size_t n)
{
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    struct rd_error err = {0};

    for (unsigned how = 0; how < 4; how++) {
        if (tokenizer_encode(t, text, n, how & 1, how & 2, &ids, &n_ids, &err) != RD_OK) {
            expect(err.text[0]);
            continue;
        }
        for (uint32_t i = 0; i < n_ids; i++) expect(ids[i] >= 0 && (uint32_t)ids[i] < tokenizer_n_tokens(t));
        check_streamed(t, ids, n_ids);
        mem_free(ids);
        ids = NULL;
    }
}

static void check_tokenizer(const struct tokenizer *t, const uint8_t *data, size_t n)
{
    static const char text[] = "the <|im_end|>  caf\xc3\xa9 12345 \xff\n\n \xe2\x96\x81\xe6\x97\xa5 <s>";
    uint32_t n_ends = 0;
    const int32_t *ends = tokenizer_end_tokens(t, &n_ends);

    for (uint32_t i = 0; i < n_ends; i++) expect(ends[i] >= 0 && (uint32_t)ends[i] < tokenizer_n_tokens(t));
    check_text(t, text, sizeof(text) - 1);
    check_text(t, (const char *)data + (n > 400 ? n - 400 : 0), n > 400 ? 400 : n); /* the vocabulary's own bytes */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct model_file *g = NULL;
    struct tokenizer *t = NULL;
    struct rd_error err = {0};
    struct model_str source;
    uint64_t alive = mem_n_alive();

    if (gguf_open_bytes(data, n, &g, &err) != RD_OK) return 0;
    for (unsigned i = 0; i < 2; i++) {
        rd_status st = vocab_load(g, i ? "qwen2" : NULL, &t, &err);

        expect(st == RD_OK ? t != NULL : !t && err.text[0]);
        if (st == RD_OK) check_tokenizer(t, data, n);
        tokenizer_destroy(t);
        t = NULL;
    }
    if (vocab_chat_template(g, &source) == RD_OK)
        expect((const uint8_t *)source.s >= data && (const uint8_t *)source.s + source.n <= data + n);
    model_file_close(g);
    expect(mem_n_alive() == alive);
    return 0;
}
