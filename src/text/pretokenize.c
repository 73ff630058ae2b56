/* text/pretokenize.c - scanners for the splits of GPT-2, SmolLM, Llama 3 and Qwen 2.
 *
 * All four are the same alternatives in different order and with different bounds: a contraction, a run of letters, of
 * numbers, of other signs, of white space. A run of white space before a word leaves its last character to the word.
 */
#include "text/pretokenize.h"
#include <assert.h>
#include <string.h>
#include <utf8proc.h>

enum char_class { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE, CLASS_END };

struct scan {
    const char *s;
    size_t n;
    bool numbers_end;
}; /* numbers_end: the text ends before a number (SmolLM) */
struct scan_char { enum char_class class; uint32_t cp; size_t n; };

static enum char_class class_of(uint32_t cp)
{
    if (cp < 0x80) {
        if ((cp | 0x20) - 'a' < 26) return CLASS_LETTER;
        if (cp - '0' < 10) return CLASS_NUMBER;
        return cp == ' ' || cp - 9 < 5 ? CLASS_SPACE : CLASS_OTHER;
    }
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO:
        return CLASS_LETTER;
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO:
        return CLASS_NUMBER;
    case UTF8PROC_CATEGORY_ZS: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP:
        return CLASS_SPACE;
    default:
        if (cp >= 0x2ebf0 && cp <= 0x2ee5d)
            return CLASS_LETTER; /* CJK extension I: Unicode 15.1, which utf8proc 2.8 lacks */
        return cp == 0x85 ? CLASS_SPACE : CLASS_OTHER;
    }
}

static struct scan_char char_at(const struct scan *sc, size_t at)
{
    struct scan_char c = {CLASS_END, UINT32_MAX, 0};

    if (at >= sc->n) return c;
    c.n = pretokenize_decode(sc->s + at, sc->n - at, &c.cp);
    c.class = class_of(c.cp);
    if (sc->numbers_end && c.class == CLASS_NUMBER) c = (struct scan_char){CLASS_END, UINT32_MAX, 0};
    return c;
}

static size_t run_end(const struct scan *sc, size_t at, enum char_class class)
{
    for (;;) {
        struct scan_char c = char_at(sc, at);

        if (c.class != class) return at;
        at += c.n;
    }
}

/* 's 't 'm 'd 're 've 'll: 2 or 3, else 0. */
static size_t contraction(const struct scan *sc, bool any_case)
{
    char a, b;
    char fold = any_case ? 0x20 : 0;

    if (sc->n < 2 || sc->s[0] != '\'') return 0;
    a = sc->s[1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (sc->n < 3) return 0;
    b = sc->s[2] | fold;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* White space at the front. newlines: up to the last line end in it, if there is one. */
static size_t space_run(const struct scan *sc, bool newlines)
{
    size_t at = 0, last = 0, after_newline = 0;

    for (;;) {
        struct scan_char c = char_at(sc, at);

        if (c.class != CLASS_SPACE) {
            if (newlines && after_newline) return after_newline;
            return c.class == CLASS_END || last == 0 ? at : last;
        }
        last = at;                       /* where the last white space of the run begins */
        at += c.n;
        if (c.cp == '\r' || c.cp == '\n') after_newline = at;
    }
}

static size_t word_gpt2(const struct scan *sc)
{
    size_t n = contraction(sc, false), start;
    struct scan_char c, next;

    if (n) return n;
    c = next = char_at(sc, 0);
    start = c.cp == ' ';
    if (start) next = char_at(sc, 1);
    if (next.class == CLASS_LETTER || next.class == CLASS_NUMBER || next.class == CLASS_OTHER)
        return run_end(sc, start, next.class);
    return space_run(sc, false);
}

static size_t number_run(const struct scan *sc, unsigned max)
{
    size_t at = 0;

    for (unsigned i = 0; i < max; i++) {
        struct scan_char c = char_at(sc, at);

        if (c.class != CLASS_NUMBER) break;
        at += c.n;
    }
    return at;
}

static size_t word_llama3(const struct scan *sc, unsigned max_numbers)
{
    size_t n = contraction(sc, true), at;
    struct scan_char c, next;

    if (n) return n;
    c = char_at(sc, 0);
    if (c.class == CLASS_NUMBER) return number_run(sc, max_numbers);
    next = char_at(sc, c.n);
    if (c.class == CLASS_LETTER || (next.class == CLASS_LETTER && c.cp != '\r' && c.cp != '\n'))
        return run_end(sc, c.n, CLASS_LETTER);
    if (c.class == CLASS_OTHER || (c.cp == ' ' && next.class == CLASS_OTHER)) {
        at = run_end(sc, c.n, CLASS_OTHER);
        while (at < sc->n && (sc->s[at] == '\r' || sc->s[at] == '\n')) at++;
        return at;
    }
    return space_run(sc, true);
}

size_t pretokenize_word(enum pretokenizer kind, const char *s, size_t n)
{
    struct scan sc = {s, n, false};
    struct scan_char c;

    assert(n > 0);
    switch (kind) {
    case PRE_SMOLLM:
        c = char_at(&sc, 0);
        if (c.class == CLASS_NUMBER) return c.n;
        sc.numbers_end = true;
        return word_gpt2(&sc);
    case PRE_LLAMA3:
        return word_llama3(&sc, 3);
    case PRE_QWEN2:
        return word_llama3(&sc, 1);
    default:
        return word_gpt2(&sc);
    }
}

/* White_Space written out: PCRE2's \s under UCP also takes U+180E, which Unicode took out in 6.3. */
#define WS "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define LLAMA3(numbers)                                                                                             \
    "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers                  \
    "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"

const char *pretokenize_pattern(enum pretokenizer kind, unsigned stage)
{
    static const char *const patterns[PRE_COUNT][2] = {
        [PRE_GPT2] = {GPT2, NULL},
        [PRE_SMOLLM] = {"\\p{N}", GPT2},
        [PRE_LLAMA3] = {LLAMA3("\\p{N}{1,3}"), NULL},
        [PRE_QWEN2] = {LLAMA3("\\p{N}"), NULL},
    };

    return stage < 2 ? patterns[kind][stage] : NULL;
}

const char *pretokenize_known(void)
{
    return "gpt-2, smollm, llama-bpe, qwen2, deepseek-r1-qwen";
}

bool pretokenize_find(const char *name, size_t n, struct pretokenizer_info *out)
{
    static const struct { const char *name; struct pretokenizer_info info; } rows[] = {
        {"gpt-2", {PRE_GPT2, false, false}},       {"phi-2", {PRE_GPT2, false, false}},
        {"gigachat", {PRE_GPT2, false, false}},    {"mellum", {PRE_GPT2, false, false}},
        {"a.x-4.0", {PRE_GPT2, false, false}},     {"mpt", {PRE_GPT2, false, false}},
        {"olmo", {PRE_GPT2, false, false}},        {"jais", {PRE_GPT2, false, false}},
        {"trillion", {PRE_GPT2, false, false}},    {"granite-docling", {PRE_GPT2, false, false}},
        {"modern-bert", {PRE_GPT2, false, false}},
        {"smollm", {PRE_SMOLLM, false, false}},    {"starcoder", {PRE_SMOLLM, false, false}},
        {"refact", {PRE_SMOLLM, false, false}},    {"command-r", {PRE_SMOLLM, false, false}},
        {"codeshell", {PRE_SMOLLM, false, false}}, {"exaone", {PRE_SMOLLM, false, false}},
        {"minerva-7b", {PRE_SMOLLM, false, false}}, {"mellum2", {PRE_SMOLLM, false, false}},
        {"llama-bpe", {PRE_LLAMA3, true, true}},   {"llama3", {PRE_LLAMA3, true, true}},
        {"llama-v3", {PRE_LLAMA3, true, true}},    {"falcon3", {PRE_LLAMA3, true, true}},
        {"falcon-h1", {PRE_LLAMA3, true, true}},   {"pixtral", {PRE_LLAMA3, true, true}},
        {"midm-2.0", {PRE_LLAMA3, true, true}},    {"lfm2", {PRE_LLAMA3, true, true}},
        {"dbrx", {PRE_LLAMA3, false, false}},      {"smaug-bpe", {PRE_LLAMA3, false, false}},
        {"glm4", {PRE_LLAMA3, true, false}},       {"chatglm-bpe", {PRE_LLAMA3, false, false}},
        {"qwen2", {PRE_QWEN2, false, false}},      {"deepseek-r1-qwen", {PRE_QWEN2, false, false}},
        {"kormo", {PRE_QWEN2, false, false}},      {"f2llmv2", {PRE_QWEN2, false, false}},
        {"megrez", {PRE_QWEN2, false, false}},     {"stablelm2", {PRE_QWEN2, false, false}},
        {"hunyuan", {PRE_QWEN2, false, false}},    {"solar-open", {PRE_QWEN2, false, false}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0) {
            *out = rows[i].info;
            return true;
        }
    return false;
}
