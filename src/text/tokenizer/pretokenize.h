/* text/tokenizer/pretokenize.h - cuts text into the words inside which byte-level BPE merges.
 *
 * Each kind is a regular expression in the model's tokenizer.json; here it is a scanner made by hand, and the
 * expression is kept as the reference that the tests run through PCRE2. Letters, numbers: Unicode general categories L
 * and N (text/char_class.h); white space: the White_Space property, as llama.cpp and the hub's tokenizers have it.
 *
 * Units   bytes. Text is as pretokenize_decode() reads it: what is not a sequence is one U+FFFD per byte.
 * Thread  any thread: no state.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* _HUB: the expressions of tokenizer.json, which ignore case also where the long s is concerned. */
enum pretokenizer {
    PRE_GPT2,
    PRE_SMOLLM,
    PRE_LLAMA3,
    PRE_QWEN2,
    PRE_LLAMA3_HUB,
    PRE_QWEN2_HUB,
    PRE_O200K,
    PRE_TEKKEN,
    PRE_DEEPSEEK3,
    PRE_COUNT
};

struct pretokenizer_info {
    enum pretokenizer kind;
    bool ignore_merges; /* a word that is a vocabulary entry is that token, whatever the merges say */
    bool adds_bos;      /* when the file does not say */
};

/* name: tokenizer.ggml.pre; the names that mean the same split in llama.cpp are accepted. false: unknown. */
bool pretokenize_find(const char *name, size_t n, struct pretokenizer_info *out);
/* Comma-separated: the names of the kinds (not every alias). */
const char *pretokenize_known(void);

/* Where the word that begins at s[0] ends, 1 .. n; n >= 1. s must begin at a word, the text ends at s + n. */
size_t pretokenize_word(enum pretokenizer kind, const char *s, size_t n);

/* The reference: PCRE2 expressions (UTF, UCP), to be applied one after the other, each within the pieces of the one
 * before, both matches and what lies between matches being pieces. NULL after the last. */
const char *pretokenize_pattern(enum pretokenizer kind, unsigned stage);

/* The scanner that cuts as these expressions of a tokenizer.json do, applied one after the other. false: none. */
struct text_piece {
    const char *s;
    size_t n;
};
bool pretokenize_find_patterns(const struct text_piece *patterns, size_t n, enum pretokenizer *kind);

/* One code point of s[0..n), n >= 1, as llama.cpp reads it: overlong forms and surrogates count; anything else that is
 * wrong is one byte and U+FFFD. Returns its length. */
static inline size_t pretokenize_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *u = (const unsigned char *)s;

    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    if ((u[0] & 0xe0) == 0xc0 && n >= 2 && (u[1] & 0xc0) == 0x80) {
        *cp = (uint32_t)(u[0] & 0x1f) << 6 | (u[1] & 0x3fu);
        return 2;
    }
    if ((u[0] & 0xf0) == 0xe0 && n >= 3 && (u[1] & 0xc0) == 0x80 && (u[2] & 0xc0) == 0x80) {
        *cp = (uint32_t)(u[0] & 0x0f) << 12 | (uint32_t)(u[1] & 0x3f) << 6 | (u[2] & 0x3fu);
        return 3;
    }
    if ((u[0] & 0xf8) == 0xf0 && n >= 4 && (u[1] & 0xc0) == 0x80 && (u[2] & 0xc0) == 0x80 && (u[3] & 0xc0) == 0x80) {
        *cp = (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3f) << 12 | (uint32_t)(u[2] & 0x3f) << 6 |
              (u[3] & 0x3fu);
        if (*cp <= 0x10ffff) return 4;
    }
    *cp = 0xfffd;
    return 1;
}
