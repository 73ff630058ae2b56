/* tests/fuzz/fuzz_tokenizer.c - any bytes as text: encoding never fails, well-formed text comes back, and streamed text is UTF-8.
 *
 * Input: a byte of flags, then the text. The vocabularies are built in. Seeds: corpus/fuzz_tokenizer/.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "../text/tiny_vocab.h"
#include "base/mem.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct tokenizer *build(enum tokenizer_model model, const char *pre)
{
    static struct tiny_vocab v;
    struct tokenizer *t = NULL;
    static const char *const merges[] = {"a", "a", "aa", "aa", "t", "h", "th", "e", "i", "n", "in", "g", "\xc4\xa0", "\xc4\xa0", "\xc3\xb0", "\xc5\x81"};

    tiny_vocab_init(&v, model);
    v.spec.pre = pre;
    for (size_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i += 2) {
        char both[16];

        snprintf(both, sizeof(both), "%s%s", merges[i], merges[i + 1]);
        if (model == TOKENIZER_BPE) tiny_vocab_merge(&v, merges[i], merges[i + 1]);
        tiny_vocab_add(&v, both, TOKEN_NORMAL, -(float)i);
    }
    tiny_vocab_add(&v, "\xe2\x96\x81", TOKEN_NORMAL, -1);
    tiny_vocab_add(&v, "<|im_end|>", TOKEN_CONTROL, 0);
    tiny_vocab_add(&v, "<u>", TOKEN_USER_DEFINED, 0);
    tiny_vocab_add(&v, "\n\n", TOKEN_USER_DEFINED, 0);
    return tokenizer_create(&v.spec, &t, NULL) == RD_OK ? t : NULL;
}

static void expect(bool fact)
{
    if (!fact) abort();
}

static void check_stream(const struct tokenizer *t, const int32_t *ids, uint32_t n)
{
    struct token_decoder d;
    char out[128];
    size_t n_out;

    token_decoder_init(&d, t, true);
    for (uint32_t i = 0; i < n; i++) {
        n_out = token_decoder_feed(&d, tokenizer_piece(t, ids[i], true), out);
        expect(n_out <= sizeof(out) && utf8_valid(out, n_out));
    }
    n_out = token_decoder_flush(&d, out);
    expect(n_out <= 12 && utf8_valid(out, n_out));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct tokenizer *kinds[5];
    const char *text = (const char *)data + 1;
    struct tokenizer *t;
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    char *back = NULL;
    size_t n_back = 0;

    if (!kinds[0]) {
        kinds[0] = build(TOKENIZER_BPE, "gpt-2");
        kinds[1] = build(TOKENIZER_BPE, "smollm");
        kinds[2] = build(TOKENIZER_BPE, "llama-bpe");
        kinds[3] = build(TOKENIZER_BPE, "qwen2");
        kinds[4] = build(TOKENIZER_SPM, NULL);
    }
    if (n == 0) return 0;
    n--;
    t = kinds[data[0] % 5];
    expect(t && tokenizer_encode(t, text, n, false, data[0] & 0x80, &ids, &n_ids, NULL) == RD_OK);
    expect(tokenizer_decode(t, ids, n_ids, true, &back, &n_back) == RD_OK);
    if (utf8_valid(text, n) && !(t == kinds[4] && memmem(text, n, "\xe2\x96\x81", 3)))    /* SPM writes U+2581 and space alike */
        expect(n_back == n && memcmp(back, text, n) == 0);
    check_stream(t, ids, n_ids);
    mem_free(ids);
    mem_free(back);
    return 0;
}
