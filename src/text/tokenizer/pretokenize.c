/* text/tokenizer/pretokenize.c - scanners for the splits of GPT-2, SmolLM, Llama 3, Qwen 2, o200k, Tekken and DeepSeek 3.
 *
 * The first four are the same alternatives in different order and with different bounds: a contraction, a run of
 * letters, of numbers, of other signs, of white space. A run of white space before a word leaves its last character to
 * the word. o200k and Tekken cut words where small letters end before capitals; DeepSeek 3 is three splits in a row,
 * scanned at once: what an earlier one isolates is an end of text to the later ones.
 */
#include "text/tokenizer/pretokenize.h"
#include <assert.h>
#include <string.h>
#include "text/char_class.h"

enum char_class { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE, CLASS_END };
enum barrier { BARRIER_NONE, BARRIER_NUMBER, BARRIER_NUMBER_CJK, BARRIER_NOT_CJK };

/* The text seems to end where the barrier is. */
struct scan {
    const char *s;
    size_t n;
    enum barrier barrier;
};
struct scan_char {
    enum char_class class;
    uint32_t cp;
    size_t n;
};

#define O CLASS_OTHER
#define L CLASS_LETTER
#define N CLASS_NUMBER
#define S CLASS_SPACE
static const uint8_t ascii_class[128] = {
    O, O, O, O, O, O, O, O, O, S, S, S, S, S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};
#undef O
#undef L
#undef N
#undef S

static bool is_ascii_letter(char c)
{
    return ((unsigned char)c | 0x20u) - 'a' < 26;
}

static enum char_class class_of(uint32_t cp)
{
    uint32_t category;

    if (cp < 0x80) return (enum char_class)ascii_class[cp];
    category = (uint32_t)1 << (char_class_bits(cp) & CHAR_CATEGORY_MASK);
    if (category & CHARS_LETTER) return CLASS_LETTER;
    if (category & CHARS_NUMBER) return CLASS_NUMBER;
    return category & (uint32_t)7 << CHAR_ZS || cp == 0x85 ? CLASS_SPACE : CLASS_OTHER;
}

/* DeepSeek 3's second split: [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff] */
static bool is_cjk(uint32_t cp)
{
    return (cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff);
}

static bool at_barrier(enum barrier barrier, const struct scan_char *c)
{
    switch (barrier) {
    case BARRIER_NUMBER:
        return c->class == CLASS_NUMBER;
    case BARRIER_NUMBER_CJK:
        return c->class == CLASS_NUMBER || is_cjk(c->cp);
    case BARRIER_NOT_CJK:
        return !is_cjk(c->cp);
    default:
        return false;
    }
}

static struct scan_char char_at(const struct scan *sc, size_t at)
{
    struct scan_char c = {CLASS_END, UINT32_MAX, 0};

    if (at >= sc->n) return c;
    c.n = pretokenize_decode(sc->s + at, sc->n - at, &c.cp);
    c.class = class_of(c.cp);
    if (sc->barrier != BARRIER_NONE && at_barrier(sc->barrier, &c)) return (struct scan_char){CLASS_END, UINT32_MAX, 0};
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

/* 's 't 'm 'd 're 've 'll: 2 or 3, else 0. long_s: the long s is an s to expressions that ignore case. */
static size_t contraction(const char *s, size_t n, bool any_case, bool long_s)
{
    char a, b;
    char fold = any_case ? 0x20 : 0;

    if (n < 2 || s[0] != '\'') return 0;
    a = s[1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (n < 3) return 0;
    b = s[2] | fold;
    if (long_s && s[1] == '\xc5' && s[2] == '\xbf') return 3;
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
        last = at; /* where the last white space of the run begins */
        at += c.n;
        if (c.cp == '\r' || c.cp == '\n') after_newline = at;
    }
}

static size_t word_gpt2(const struct scan *sc)
{
    size_t n = contraction(sc->s, sc->n, false, false), start;
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

static size_t skip_any(const struct scan *sc, size_t at, const char *set)
{
    while (at < sc->n && sc->s[at] && strchr(set, sc->s[at])) at++;
    return at;
}

static size_t word_llama3(const struct scan *sc, unsigned max_numbers, bool long_s)
{
    size_t n, at = 0;
    struct scan_char c, next;

    /* Most words of most texts: ASCII letters behind one space, or at the start of a line. */
    if (sc->s[0] == ' ' || is_ascii_letter(sc->s[0])) {
        for (at = 1; at < sc->n && is_ascii_letter(sc->s[at]);) at++;
        if ((at > 1 || sc->s[0] != ' ') && (at == sc->n || !(sc->s[at] & 0x80))) return at;
    }
    n = contraction(sc->s, sc->n, true, long_s);
    if (n) return n;
    c = char_at(sc, 0);
    if (c.class == CLASS_NUMBER) return number_run(sc, max_numbers);
    next = char_at(sc, c.n);
    if (c.class == CLASS_LETTER || (next.class == CLASS_LETTER && c.cp != '\r' && c.cp != '\n'))
        return run_end(sc, c.n, CLASS_LETTER);
    if (c.class == CLASS_OTHER || (c.cp == ' ' && next.class == CLASS_OTHER))
        return skip_any(sc, run_end(sc, c.n, CLASS_OTHER), "\r\n");
    return space_run(sc, true);
}

/* ---- o200k and Tekken ---- */

#define HEADS ((uint32_t)1 << CHAR_LU | (uint32_t)1 << CHAR_LT | BOTH)
#define TAILS ((uint32_t)1 << CHAR_LL | BOTH)
#define BOTH  ((uint32_t)1 << CHAR_LM | (uint32_t)1 << CHAR_LO | CHARS_MARK)

/* heads* tails+, as a greedy expression finds it: the end, or `at` when there is none. *head_end: where heads* ends. */
static size_t cased_word(const struct scan *sc, size_t at, size_t *head_end)
{
    size_t after_both = at, end;
    struct scan_char c;

    for (c = char_at(sc, at); c.class != CLASS_END && char_in(c.cp, HEADS); c = char_at(sc, at)) {
        at += c.n;
        if (char_in(c.cp, BOTH)) after_both = at;
    }
    *head_end = end = at;
    for (; c.class != CLASS_END && char_in(c.cp, TAILS); c = char_at(sc, end)) end += c.n;
    return end > at ? end : after_both;
}

static size_t word_cased(const struct scan *sc, unsigned max_numbers, bool contractions)
{
    struct scan_char c = char_at(sc, 0), next;
    bool may_lead = c.class != CLASS_LETTER && c.class != CLASS_NUMBER && c.cp != '\r' && c.cp != '\n';
    size_t lead = may_lead ? c.n : 0, heads_after_lead = 0, heads = 0, end = 0;

    if (c.class == CLASS_NUMBER) return number_run(sc, max_numbers);
    if (may_lead) {
        end = cased_word(sc, lead, &heads_after_lead);
        if (end == lead) end = 0;
    }
    if (!end && (!may_lead || char_in(c.cp, CHARS_MARK))) end = cased_word(sc, 0, &heads);
    if (!end && heads_after_lead > lead) end = heads_after_lead;
    if (!end) end = heads;
    if (end) return end + (contractions ? contraction(sc->s + end, sc->n - end, true, true) : 0);
    next = c.cp == ' ' ? char_at(sc, 1) : c;
    if (next.class == CLASS_OTHER) return skip_any(sc, run_end(sc, c.cp == ' ', CLASS_OTHER), "\r\n/");
    return space_run(sc, true);
}

/* ---- DeepSeek 3 ---- */

static size_t run_of(const struct scan *sc, size_t at, uint32_t categories)
{
    for (;;) {
        struct scan_char c = char_at(sc, at);

        if (c.class == CLASS_END || !char_in(c.cp, categories)) return at;
        at += c.n;
    }
}

/* What the third expression matches at the front; 0: nothing. */
static size_t match_deepseek3(const struct scan *sc)
{
    const uint32_t letters = CHARS_LETTER | CHARS_MARK, signs = CHARS_PUNCT | CHARS_SYMBOL;
    struct scan_char c = char_at(sc, 0), next = char_at(sc, c.n);
    size_t at = c.n;

    if (c.class == CLASS_END) return 0;
    if (c.cp > ' ' && c.cp < 0x7f && c.class == CLASS_OTHER) {
        while (at < sc->n && is_ascii_letter(sc->s[at])) at++;
        if (at > c.n) return at;
    }
    if (char_in(c.cp, letters)) return run_of(sc, 0, letters);
    if (next.class != CLASS_END && char_in(next.cp, letters) && !char_in(c.cp, signs) && c.cp != '\r' && c.cp != '\n')
        return run_of(sc, c.n, letters);
    if (char_in(c.cp, signs) || (c.cp == ' ' && next.class != CLASS_END && char_in(next.cp, signs)))
        return skip_any(sc, run_of(sc, c.n, signs), "\r\n");
    return c.class == CLASS_SPACE ? space_run(sc, true) : 0;
}

static size_t word_deepseek3(const struct scan *all)
{
    struct scan sc = *all;
    struct scan_char c = char_at(all, 0);
    size_t at = 0;

    if (c.class == CLASS_NUMBER) return number_run(all, 3);
    sc.barrier = is_cjk(c.cp) ? BARRIER_NOT_CJK : BARRIER_NUMBER_CJK;
    if ((at = match_deepseek3(&sc))) return at;
    do { /* what no expression matches, up to where one does */
        at += c.n;
        sc.s += c.n;
        sc.n -= c.n;
        c = char_at(&sc, 0);
    } while (c.class != CLASS_END && !match_deepseek3(&sc));
    return at;
}

size_t pretokenize_word(enum pretokenizer kind, const char *s, size_t n)
{
    struct scan sc = {s, n, BARRIER_NONE};
    struct scan_char c;

    assert(n > 0);
    switch (kind) {
    case PRE_QWEN2_HUB:
        return word_llama3(&sc, 1, true);
    case PRE_LLAMA3_HUB:
        return word_llama3(&sc, 3, true);
    case PRE_SMOLLM:
        c = char_at(&sc, 0);
        if (c.class == CLASS_NUMBER) return c.n;
        sc.barrier = BARRIER_NUMBER;
        return word_gpt2(&sc);
    case PRE_LLAMA3:
        return word_llama3(&sc, 3, false);
    case PRE_QWEN2:
        return word_llama3(&sc, 1, false);
    case PRE_O200K:
        return word_cased(&sc, 3, true);
    case PRE_TEKKEN:
        return word_cased(&sc, 1, false);
    case PRE_DEEPSEEK3:
        return word_deepseek3(&sc);
    default:
        return word_gpt2(&sc);
    }
}

/* White_Space written out: PCRE2's \s under UCP also takes U+180E, which Unicode took out in 6.3. */
#define WS   "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define LLAMA3(numbers)                                                                                                \
    "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^" WS          \
    "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"

#define CONTRACTIONS        "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define HUB_TAIL            "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define HUB_LLAMA3(numbers) CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers HUB_TAIL
#define UPPER               "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER               "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(contractions, numbers)                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contractions "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER                \
    "*" contractions "|" numbers "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS  \
    "]+"
#define DEEPSEEK3                                                                                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"                  \
    "| ?[\\p{P}\\p{S}]+[\r\n]*|[" WS "]*[\r\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"

const char *pretokenize_pattern(enum pretokenizer kind, unsigned stage)
{
    static const char *const patterns[PRE_COUNT][3] = {
        [PRE_GPT2] = {GPT2},
        [PRE_SMOLLM] = {"\\p{N}", GPT2},
        [PRE_LLAMA3] = {LLAMA3("\\p{N}{1,3}")},
        [PRE_QWEN2] = {LLAMA3("\\p{N}")},
        [PRE_LLAMA3_HUB] = {HUB_LLAMA3("\\p{N}{1,3}")},
        [PRE_QWEN2_HUB] = {HUB_LLAMA3("\\p{N}")},
        [PRE_O200K] = {CASED(CONTRACTIONS "?", "\\p{N}{1,3}")},
        [PRE_TEKKEN] = {CASED("", "\\p{N}")},
        [PRE_DEEPSEEK3] = {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK3},
    };

    return stage < 3 ? patterns[kind][stage] : NULL;
}

bool pretokenize_find_patterns(const struct text_piece *patterns, size_t n, enum pretokenizer *kind)
{
    /* As the files write them. */
    static const struct {
        const char *texts[3];
        enum pretokenizer kind;
    } rows[] = {
        {{"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}, PRE_GPT2},
        {{"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}, PRE_GPT2},
        {{CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                       "\\s+(?!\\S)|\\s+"},
         PRE_LLAMA3_HUB},
        {{CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|"
                       "\\s+"},
         PRE_QWEN2_HUB},
        {{"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
          "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
         PRE_O200K},
        {{"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
          "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
         PRE_TEKKEN},
        {{"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
          "?[\\p{P}\\p{S}]+"
          "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
         PRE_DEEPSEEK3},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t have = 0;

        for (; have < 3 && rows[i].texts[have]; have++)
            if (have >= n || strlen(rows[i].texts[have]) != patterns[have].n ||
                memcmp(rows[i].texts[have], patterns[have].s, patterns[have].n) != 0)
                break;
        if (have != n || (have < 3 && rows[i].texts[have])) continue;
        *kind = rows[i].kind;
        return true;
    }
    return false;
}

const char *pretokenize_known(void)
{
    return "gpt-2, smollm, llama-bpe, qwen2, deepseek-r1-qwen, gpt-4o, tekken, deepseek-v3";
}

bool pretokenize_find(const char *name, size_t n, struct pretokenizer_info *out)
{
    static const struct {
        const char *name;
        struct pretokenizer_info info;
    } rows[] = {
        {"gpt-2", {PRE_GPT2, false, false}},
        {"phi-2", {PRE_GPT2, false, false}},
        {"gigachat", {PRE_GPT2, false, false}},
        {"mellum", {PRE_GPT2, false, false}},
        {"a.x-4.0", {PRE_GPT2, false, false}},
        {"mpt", {PRE_GPT2, false, false}},
        {"olmo", {PRE_GPT2, false, false}},
        {"jais", {PRE_GPT2, false, false}},
        {"trillion", {PRE_GPT2, false, false}},
        {"granite-docling", {PRE_GPT2, false, false}},
        {"modern-bert", {PRE_GPT2, false, false}},
        {"smollm", {PRE_SMOLLM, false, false}},
        {"starcoder", {PRE_SMOLLM, false, false}},
        {"refact", {PRE_SMOLLM, false, false}},
        {"command-r", {PRE_SMOLLM, false, false}},
        {"codeshell", {PRE_SMOLLM, false, false}},
        {"exaone", {PRE_SMOLLM, false, false}},
        {"minerva-7b", {PRE_SMOLLM, false, false}},
        {"mellum2", {PRE_SMOLLM, false, false}},
        {"llama-bpe", {PRE_LLAMA3, true, true}},
        {"llama3", {PRE_LLAMA3, true, true}},
        {"llama-v3", {PRE_LLAMA3, true, true}},
        {"falcon3", {PRE_LLAMA3, true, true}},
        {"falcon-h1", {PRE_LLAMA3, true, true}},
        {"pixtral", {PRE_LLAMA3, true, true}},
        {"midm-2.0", {PRE_LLAMA3, true, true}},
        {"lfm2", {PRE_LLAMA3, true, true}},
        {"dbrx", {PRE_LLAMA3, false, false}},
        {"smaug-bpe", {PRE_LLAMA3, false, false}},
        {"glm4", {PRE_LLAMA3, true, false}},
        {"chatglm-bpe", {PRE_LLAMA3, false, false}},
        {"qwen2", {PRE_QWEN2, false, false}},
        {"deepseek-r1-qwen", {PRE_QWEN2, false, false}},
        {"kormo", {PRE_QWEN2, false, false}},
        {"f2llmv2", {PRE_QWEN2, false, false}},
        {"megrez", {PRE_QWEN2, false, false}},
        {"stablelm2", {PRE_QWEN2, false, false}},
        {"hunyuan", {PRE_QWEN2, false, false}},
        {"solar-open", {PRE_QWEN2, false, false}},
        /* as these models' tokenizer.json has it: llama.cpp's expressions for them leave out marks and cases of others */
        {"gpt-4o", {PRE_O200K, false, false}},
        {"llama4", {PRE_O200K, false, false}},
        {"kanana2", {PRE_O200K, false, false}},
        {"tekken", {PRE_TEKKEN, true, true}},
        {"deepseek-v3", {PRE_DEEPSEEK3, false, false}},
        {"hunyuan-dense", {PRE_DEEPSEEK3, false, false}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0) {
            *out = rows[i].info;
            return true;
        }
    return false;
}
