/* tests/fuzz/fuzz_tokenizer.c - any bytes as text: encoding never fails, well-formed text comes back, and streamed text
 * is UTF-8.
 *
 * Input: a byte of flags, then the text. The vocabularies are built in. Seeds: corpus/fuzz_tokenizer/.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define MAX_TOKENS 512

struct vocab {
    struct tokenizer_spec spec;
    struct text_span tokens[MAX_TOKENS], merges[16];
    int32_t types[MAX_TOKENS];
    float scores[MAX_TOKENS];
    char texts[MAX_TOKENS][16], merge_texts[16][16];
};

static void add(struct vocab *v, const char *text, enum token_type type, float score)
{
    uint32_t id = v->spec.n_tokens++;

    snprintf(v->texts[id], sizeof(v->texts[id]), "%s", text);
    v->tokens[id] = (struct text_span){v->texts[id], strlen(v->texts[id])};
    v->types[id] = type;
    v->scores[id] = score;
}

/* Byte tokens: <0xXX>, or the byte-level alphabet. */
static void add_bytes(struct vocab *v)
{
    for (unsigned b = 0, other = 0x100; b < 256; b++) {
        bool prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        char text[8] = "";

        if (v->spec.model == TOKENIZER_SPM)
            snprintf(text, sizeof(text), "<0x%02X>", b);
        else
            utf8_encode(prints ? b : other++, text);
        add(v, text, v->spec.model == TOKENIZER_SPM ? TOKEN_BYTE : TOKEN_NORMAL, 0);
    }
}

static struct tokenizer *build(enum tokenizer_model model, const char *pre)
{
    static const char *const merges[][2] = {{"a", "a"},
                                            {"aa", "aa"},
                                            {"t", "h"},
                                            {"th", "e"},
                                            {"i", "n"},
                                            {"in", "g"},
                                            {"\xc4\xa0", "\xc4\xa0"},
                                            {"\xc3\xb0", "\xc5\x81"}};
    static struct vocab v;
    struct tokenizer *t = NULL;

    memset(&v, 0, sizeof(v));
    v.spec = (struct tokenizer_spec){.model = model,
                                     .pre = pre,
                                     .tokens = v.tokens,
                                     .scores = v.scores,
                                     .types = v.types,
                                     .merges = v.merges,
                                     .bos = -1,
                                     .eos = -1,
                                     .eot = -1,
                                     .unk = -1,
                                     .pad = -1,
                                     .fim_pre = -1,
                                     .fim_suf = -1,
                                     .fim_mid = -1};
    add_bytes(&v);
    for (uint32_t i = 0; i < sizeof(merges) / sizeof(merges[0]); i++) {
        char both[16];

        snprintf(both, sizeof(both), "%s%s", merges[i][0], merges[i][1]);
        add(&v, both, TOKEN_NORMAL, -(float)i);
        snprintf(v.merge_texts[i], sizeof(v.merge_texts[i]), "%s %s", merges[i][0], merges[i][1]);
        v.merges[i] = (struct text_span){v.merge_texts[i], strlen(v.merge_texts[i])};
        v.spec.n_merges += model == TOKENIZER_BPE;
    }
    add(&v, "\xe2\x96\x81", TOKEN_NORMAL, -1);
    add(&v, "<|im_end|>", TOKEN_CONTROL, 0);
    add(&v, "<u>", TOKEN_USER_DEFINED, 0);
    add(&v, "\n\n", TOKEN_USER_DEFINED, 0);
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
    if (utf8_valid(text, n) &&
        !(t == kinds[4] && memmem(text, n, "\xe2\x96\x81", 3))) /* SPM writes U+2581 and space alike */
        expect(n_back == n && memcmp(back, text, n) == 0);
    check_stream(t, ids, n_ids);
    mem_free(ids);
    mem_free(back);
    return 0;
}
