/* tests/text/tiny_vocab.h - small vocabularies made on the spot, for tests and fuzzing.
 *
 * BPE: the 256 bytes are tokens 0 .. 255 (in the byte-level alphabet), then what tiny_vocab_add() adds. SPM: <unk>,
 * <s>, </s>, then the byte tokens <0x00> .. <0xFF> from 3 on, then what is added.
 */
#pragma once
#include <stdio.h>
#include <string.h>
#include "text/tokenizer/tokenizer.h"

#define TINY_MAX 1024

struct tiny_vocab {
    struct tokenizer_spec spec;
    struct text_span tokens[TINY_MAX], merges[TINY_MAX];
    float scores[TINY_MAX];
    int32_t types[TINY_MAX];
    char names[TINY_MAX][16];
    char merge_texts[TINY_MAX][40];
};

static inline int32_t tiny_vocab_add(struct tiny_vocab *v, const char *text, enum token_type type, float score)
{
    uint32_t id = v->spec.n_tokens++;

    snprintf(v->names[id], sizeof(v->names[id]), "%s", text);
    v->tokens[id] = (struct text_span){v->names[id], strlen(v->names[id])};
    v->types[id] = type;
    v->scores[id] = score;
    return (int32_t)id;
}

static inline void tiny_vocab_merge(struct tiny_vocab *v, const char *left, const char *right)
{
    uint32_t i = v->spec.n_merges++;

    snprintf(v->merge_texts[i], sizeof(v->merge_texts[i]), "%s %s", left, right);
    v->merges[i] = (struct text_span){v->merge_texts[i], strlen(v->merge_texts[i])};
}

static inline void tiny_vocab_init(struct tiny_vocab *v, enum tokenizer_model model)
{
    memset(v, 0, sizeof(*v));
    v->spec = (struct tokenizer_spec){.model = model,
                                      .pre = "gpt-2",
                                      .bos = TOKEN_NONE,
                                      .eos = TOKEN_NONE,
                                      .eot = TOKEN_NONE,
                                      .unk = TOKEN_NONE,
                                      .pad = TOKEN_NONE,
                                      .fim_pre = TOKEN_NONE,
                                      .fim_suf = TOKEN_NONE,
                                      .fim_mid = TOKEN_NONE};
    v->spec.tokens = v->tokens;
    v->spec.merges = v->merges;
    v->spec.scores = v->scores;
    v->spec.types = v->types;
    if (model == TOKENIZER_SPM) {
        v->spec.unk = tiny_vocab_add(v, "<unk>", TOKEN_UNKNOWN, 0);
        v->spec.bos = tiny_vocab_add(v, "<s>", TOKEN_CONTROL, 0);
        v->spec.eos = tiny_vocab_add(v, "</s>", TOKEN_CONTROL, 0);
        v->spec.add_bos = true;
    }
    for (unsigned b = 0, other = 0x100; b < 256; b++) {
        char text[8];

        if (model == TOKENIZER_SPM) {
            snprintf(text, sizeof(text), "<0x%02X>", b);
            tiny_vocab_add(v, text, TOKEN_BYTE, 0);
            continue;
        }
        unsigned cp = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad) ? b : other++;
        if (cp < 0x80)
            snprintf(text, sizeof(text), "%c", (char)cp);
        else
            snprintf(text, sizeof(text), "%c%c", (char)(0xc0 | cp >> 6), (char)(0x80 | (cp & 0x3f)));
        tiny_vocab_add(v, text, TOKEN_NORMAL, 0);
    }
}
