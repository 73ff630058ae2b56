/* tests/fuzz/fuzz_language.h - a language's text is compiled and followed: what the targets fuzz_schema, fuzz_regex and
 * fuzz_rules share.
 *
 * Input: the text, a 0 byte, and bytes that choose tokens. The vocabulary has every byte and some words.
 */
#pragma once
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_languages.h"

#define LANGUAGE_TOKENS  288u
#define LANGUAGE_SPECIAL 287 /* its name is <special> */
#define LANGUAGE_STEPS   48u
#define LANGUAGE_BYTES   4096u

static inline void expect(bool fact)
{
    if (!fact) abort();
}

static inline struct grammar_vocab *language_vocab(void)
{
    static const char *const words[] = {"{\"",   "\": ", ", \"", "\"}",      "}}",       "[[",   "]]",  "true",
                                        "false", "null", "aa",   "ab",       "10",       "-1",   "\\u", "e+",
                                        ".5",    "  ",   "\n ",  "\xc3\xa9", "\xe2\x82", "0000", "a\"", "\\\\",
                                        "x=",    "ca",   "z9",   "\xf0\x9f", "\":",      ","};
    uint64_t offsets[LANGUAGE_TOKENS + 1] = {0};
    bool special[LANGUAGE_TOKENS] = {false};
    struct grammar_vocab *v = NULL;
    uint8_t bytes[512];

    for (uint32_t i = 0; i < LANGUAGE_TOKENS; i++) {
        const uint8_t byte = (uint8_t)i;
        const char *word = i >= 256 && i - 256 < sizeof(words) / sizeof(words[0]) ? words[i - 256] : "";
        size_t n = i < 256 ? 1 : strlen(word);

        memcpy(bytes + offsets[i], i < 256 ? (const void *)&byte : word, n);
        offsets[i + 1] = offsets[i] + n;
    }
    special[LANGUAGE_SPECIAL] = true;
    expect(grammar_vocab_create(LANGUAGE_TOKENS, bytes, offsets, special, &v) == RD_OK);
    return v;
}

/* Every answer fits the mask; a grammar too ambiguous to be followed says so, and only that. */
static inline void language_follow(struct grammar_matcher *m, const uint8_t *data, size_t n)
{
    uint32_t has[LANGUAGE_TOKENS / 32], n_back = 0;

    for (size_t i = 0; i < n && i < LANGUAGE_STEPS; i++) {
        bool near = data[i] & 1;
        int32_t t = (int32_t)(data[i] * 9u % LANGUAGE_TOKENS);
        const uint32_t *bits;
        rd_status st = grammar_mask(m, near ? data[i] % 32u : UINT32_MAX, &bits);

        if (st == RD_E_LIMIT) return;
        expect(st == RD_OK);
        memcpy(has, bits, sizeof(has));
        for (uint32_t k = 0; k < LANGUAGE_TOKENS && !(has[t / 32] >> (t % 32) & 1) && data[i] & 2; k++)
            t = (t + 1) % (int32_t)LANGUAGE_TOKENS;
        st = grammar_accept(m, t);
        if (st == RD_E_LIMIT) return;
        if (has[t / 32] >> (t % 32) & 1)
            expect(st == RD_OK);
        else if (!near)
            expect(st == RD_E_INVALID);
        n_back += st == RD_OK;
        if (data[i] % 13 == 12 && n_back) {
            grammar_rollback(m, 1);
            n_back--;
        }
    }
}

/* check: of a shortest text, whole in text[n]; NULL: none. */
static inline void language_run(const uint8_t *data, size_t size,
                                grammar_node (*node)(struct grammar_builder *b, const char *text, size_t n),
                                void (*check)(const uint8_t *text, size_t n))
{
    const struct grammar_limits limits = {5000, 50000, (size_t)16 << 20, 200000000, 0, NULL};
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    uint64_t alive = mem_n_alive();
    struct grammar_builder *b = NULL;
    struct grammar_vocab *v = language_vocab();
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    struct rd_error err = {0};
    uint8_t text[LANGUAGE_BYTES];
    rd_status st;

    expect(grammar_builder_create(&limits, &b) == RD_OK);
    st = grammar_compile(b, node(b, (const char *)data, n), v, 64 << 10, &g, &err);
    if (st == RD_OK) st = grammar_warm(g);
    if (st == RD_OK) {
        uint64_t length;

        expect(grammar_matcher_create(g, LANGUAGE_STEPS, &m) == RD_OK);
        length = grammar_shortest(m, text, sizeof(text), NULL);
        if (length <= sizeof(text)) {
            expect(grammar_accept_bytes(m, text, length) == RD_OK && grammar_can_end(m));
            grammar_rollback(m, 1);
            if (check) check(text, length);
        }
        if (zero) language_follow(m, zero + 1, size - n - 1);
    } else {
        expect(st == RD_E_LIMIT || (!g && err.text[0] && (st == RD_E_INVALID || st == RD_E_UNSUPPORTED)));
    }
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_vocab_unref(v);
    grammar_builder_destroy(b);
    expect(mem_n_alive() == alive);
}
