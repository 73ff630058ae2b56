/* tests/text/test_pretokenize.c - the scanners against their regular expressions in PCRE2 (JIT, UCP), and by hand. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "test.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "text/tokenizer/pretokenize.h"

#define MAX_CUTS 65536

static pcre2_code *compile(const char *pattern)
{
    int error;
    PCRE2_SIZE at;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);

    if (code) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return code;
}

/* Cuts each piece of s (ends[0..n)) into matches and what lies between them. Returns the new number of pieces, 0 on
 * failure. */
static size_t apply(const char *pattern, const char *s, const uint32_t *ends, size_t n, uint32_t *out)
{
    pcre2_code *code = compile(pattern);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    pcre2_match_data *data;
    size_t n_out = 0, start = 0;

    if (!code || !limits) return 0;
    pcre2_set_match_limit(limits, 10000000);
    data = pcre2_match_data_create_from_pattern(code, NULL);
    for (size_t i = 0; i < n; i++) {
        size_t at = start, done = start;

        while (at < ends[i]) {
            int rc =
                pcre2_match(code, (PCRE2_SPTR)s + start, ends[i] - start, at - start, PCRE2_NO_UTF_CHECK, data, limits);
            PCRE2_SIZE *v = pcre2_get_ovector_pointer(data);

            if (rc < 0) break;
            if (start + v[0] > done) out[n_out++] = (uint32_t)(start + v[0]);
            done = at = start + v[1];
            out[n_out++] = (uint32_t)done;
        }
        if (done < ends[i]) out[n_out++] = ends[i];
        start = ends[i];
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
    return n_out;
}

static size_t split_reference(enum pretokenizer kind, const char *s, size_t n, uint32_t *out)
{
    uint32_t *other = mem_alloc(MAX_CUTS, sizeof(*other));
    size_t n_out = 1;

    out[0] = (uint32_t)n;
    for (unsigned stage = 0; pretokenize_pattern(kind, stage); stage++) {
        memcpy(other, out, n_out * sizeof(*out));
        n_out = apply(pretokenize_pattern(kind, stage), s, other, n_out, out);
    }
    mem_free(other);
    return n_out;
}

static size_t split(enum pretokenizer kind, const char *s, size_t n, uint32_t *out)
{
    size_t at = 0, n_out = 0;

    while (at < n) {
        at += pretokenize_word(kind, s + at, n - at);
        out[n_out++] = (uint32_t)at;
    }
    return n_out;
}

/* A character out of the kinds that the patterns tell apart; old blocks, so that every Unicode version agrees. */
static uint32_t any_char(struct random *r)
{
    static const char ascii[] = "aZ09 \t\n\r'stmdrevlLSE.-_/\\\"$ \n  ";
    static const uint32_t other[] = {0xe9,   0x130,  0x17f,    0x3b1,  0x416,  0x4e2d, 0x3042, 0xac00,  0x627,
                                     0x905,  0x93f,  0x301,    0x660,  0xb2,   0x2167, 0xbd,   0x1d7d8, 0x1f600,
                                     0x200d, 0xfe0f, 0xa0,     0x2003, 0x3000, 0x85,   0x2028, 0x180e,  0x1680,
                                     0x200b, 0xfeff, 0xe000,   0x20ac, 0x0,    0x7f,   0x1f,   0x1c,    0xb,
                                     0xc,    0xfffd, 0x10ffff, 0x2c6,  0xaa};

    switch (random_below(r, 4)) {
    case 0:
        return other[random_below(r, sizeof(other) / sizeof(other[0]))];
    case 1:
        return (uint32_t)random_below(r, 0x250);
    default:
        return (unsigned char)ascii[random_below(r, sizeof(ascii) - 1)];
    }
}

TEST(scanners_cut_where_the_expressions_cut)
{
    struct random r;
    char s[4 * 400];
    uint32_t *a = mem_alloc(MAX_CUTS, sizeof(*a)), *b = mem_alloc(MAX_CUTS, sizeof(*b));

    random_init(&r, test_seed());
    for (unsigned round = 0; round < (test_is_long() ? 40000 : 2500); round++) {
        size_t n = 0, n_chars = 1 + random_below(&r, round % 10 ? 24 : 400);

        for (size_t i = 0; i < n_chars; i++) n += (size_t)utf8_encode(any_char(&r), s + n);
        for (enum pretokenizer kind = 0; kind < PRE_COUNT; kind++) {
            size_t n_a = split(kind, s, n, a), n_b = split_reference(kind, s, n, b);

            CHECK_EQ(n_a, n_b);
            for (size_t i = 0; i < n_a; i++) CHECK_EQ(a[i], b[i]);
        }
    }
    mem_free(a);
    mem_free(b);
}

static bool splits_as(enum pretokenizer kind, const char *text, const char *bars)
{
    uint32_t ends[256];
    char got[512];
    size_t n = split(kind, text, strlen(text), ends), at = 0, start = 0;

    for (size_t i = 0; i < n; i++) {
        if (i) got[at++] = '|';
        memcpy(got + at, text + start, ends[i] - start);
        at += ends[i] - start;
        start = ends[i];
    }
    got[at] = 0;
    if (strcmp(got, bars)) test_note("got \"%s\", wanted \"%s\"", got, bars);
    return strcmp(got, bars) == 0;
}

TEST(kinds_differ_in_numbers_spaces_and_contractions)
{
    CHECK(splits_as(PRE_GPT2, "it's 1234  ok\n\nx", "it|'s| 1234| | ok|\n|\n|x"));
    CHECK(splits_as(PRE_SMOLLM, "a  12 b", "a|  |1|2| b"));
    CHECK(splits_as(PRE_LLAMA3, "IT'S 1234  ok\n\nx", "IT|'S| |123|4| | ok|\n\n|x"));
    CHECK(splits_as(PRE_QWEN2, "x12 (y)!\n z", "x|1|2| (|y|)!\n| z"));
    CHECK(splits_as(PRE_GPT2, "end  ", "end|  "));
    CHECK(splits_as(PRE_LLAMA3, " \n \n  a", " \n \n| | a"));
}

TEST(every_byte_string_is_cut_into_words_that_cover_it)
{
    struct random r;
    char s[64];

    random_init(&r, test_seed());
    for (unsigned round = 0; round < 20000; round++) {
        size_t n = 1 + random_below(&r, sizeof(s));

        for (size_t i = 0; i < n; i++)
            s[i] = (char)(random_below(&r, 2) ? random_u64(&r) : 0x80 | random_below(&r, 128));
        for (enum pretokenizer kind = 0; kind < PRE_COUNT; kind++)
            for (size_t at = 0; at < n;) {
                size_t len = pretokenize_word(kind, s + at, n - at);

                CHECK(len >= 1 && len <= n - at);
                at += len;
            }
    }
}

TEST(known_names_are_found_and_others_are_not)
{
    struct pretokenizer_info info;

    CHECK(pretokenize_find("smollm", 6, &info) && info.kind == PRE_SMOLLM && !info.ignore_merges);
    CHECK(pretokenize_find("llama-bpe", 9, &info) && info.kind == PRE_LLAMA3 && info.ignore_merges && info.adds_bos);
    CHECK(pretokenize_find("deepseek-r1-qwen", 16, &info) && info.kind == PRE_QWEN2);
    CHECK(pretokenize_find("tekken", 6, &info) && info.kind == PRE_TEKKEN && info.ignore_merges && info.adds_bos);
    CHECK(pretokenize_find("gpt-4o", 6, &info) && info.kind == PRE_O200K && !info.ignore_merges && !info.adds_bos);
    CHECK(pretokenize_find("deepseek-v3", 11, &info) && info.kind == PRE_DEEPSEEK3 && !info.adds_bos);
    CHECK(!pretokenize_find("qwen", 4, &info));
    CHECK(!pretokenize_find("", 0, &info));
}
