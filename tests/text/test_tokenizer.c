/* tests/text/test_tokenizer.c - merging against naive models, special tokens, hostile vocabularies and texts, streaming
 * decode. */
#include "text/tokenizer/tokenizer.h"
#include <sys/resource.h>
#include "test.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "sanitized.h"
#include "text/tiny_vocab.h"

static struct tiny_vocab vocab;
static const char *const strings_of_abc[] = {"ab",   "bc",   "abc", "aa",  "aab", "bb",  "ca",  "cab",
                                             "aaaa", "abab", "cc",  "bcc", "ba",  "aaa", "bca", "abca"};
#define N_STRINGS (sizeof(strings_of_abc) / sizeof(strings_of_abc[0]))

static bool encodes_to(const struct tokenizer *t, const char *text, size_t n, bool add, bool parse, const int32_t *want,
                       size_t n_want)
{
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    struct rd_error err = {0};
    bool same = tokenizer_encode(t, text, n, add, parse, &ids, &n_ids, &err) == RD_OK && n_ids == n_want &&
                (n_want == 0 || memcmp(ids, want, n_want * sizeof(*ids)) == 0);

    for (size_t i = 0; !same && i < n_ids; i++)
        test_note("id %zu: %d, wanted %d", i, ids ? ids[i] : -1, i < n_want ? want[i] : -1);
    mem_free(ids);
    return same;
}

/* ---- naive models: strings in an array, the best pair found by looking at all of them ---- */

struct parts {
    char s[64][16];
    size_t n;
};

static void parts_merge(struct parts *p, size_t i)
{
    char right[16];

    memcpy(right, p->s[i + 1], sizeof(right));
    strcat(p->s[i], right);
    p->n--;
    memmove(p->s[i + 1], p->s[i + 2], (p->n - i - 1) * sizeof(p->s[0]));
}

static int naive_rank(const struct parts *p, size_t i)
{
    char pair[40];

    snprintf(pair, sizeof(pair), "%s %s", p->s[i], p->s[i + 1]);
    for (uint32_t r = 0; r < vocab.spec.n_merges; r++)
        if (strcmp(vocab.merge_texts[r], pair) == 0) return (int)r;
    return -1;
}

static int32_t naive_find(const char *s)
{
    for (uint32_t i = 0; i < vocab.spec.n_tokens; i++)
        if (strcmp(vocab.names[i], s) == 0) return (int32_t)i;
    return TOKEN_NONE;
}

static size_t naive_ids(const struct parts *p, int32_t *ids, int32_t first_byte)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n; i++) {
        int32_t id = naive_find(p->s[i]);

        if (id >= 0) ids[n++] = id;
        for (const char *c = p->s[i]; id < 0 && *c; c++) ids[n++] = first_byte + (unsigned char)*c;
    }
    return n;
}

static size_t random_parts(struct random *r, struct parts *p, char *text)
{
    p->n = 1 + random_below(r, 40);
    for (size_t i = 0; i < p->n; i++) {
        p->s[i][0] = text[i] = "abc"[random_below(r, 3)];
        p->s[i][1] = 0;
    }
    return p->n;
}

TEST(bpe_merges_as_a_naive_model_does)
{
    struct random r;

    random_init(&r, test_seed());
    for (unsigned round = 0; round < 60; round++) {
        struct tokenizer *t = NULL;

        tiny_vocab_init(&vocab, TOKENIZER_BPE);
        for (unsigned m = 0; m < 14; m++) { /* random merges; some results are no tokens */
            const char *left = random_below(&r, 2) ? "a" : strings_of_abc[random_below(&r, 8)];
            const char *right = random_below(&r, 2) ? "b" : strings_of_abc[random_below(&r, N_STRINGS)];
            char both[16];

            if (m < 3) left = "a", right = &"a\0b\0c"[2 * m];
            tiny_vocab_merge(&vocab, left, right);
            snprintf(both, sizeof(both), "%s%s", left, right);
            if (naive_find(both) < 0 && random_below(&r, 4)) tiny_vocab_add(&vocab, both, TOKEN_NORMAL, 0);
        }
        CHECK_OK(tokenizer_create(&vocab.spec, &t, NULL));
        for (unsigned k = 0; k < 40; k++) {
            struct parts p;
            char text[64];
            int32_t want[256];
            size_t n = random_parts(&r, &p, text);

            for (;;) {
                int best = -1;
                size_t at = 0;

                for (size_t i = 0; i + 1 < p.n; i++) {
                    int rank = naive_rank(&p, i);

                    if (rank >= 0 && (best < 0 || rank < best)) best = rank, at = i;
                }
                if (best < 0) break;
                parts_merge(&p, at);
                if (strlen(p.s[at]) > 7) break;
            }
            size_t longest = 0;

            for (size_t i = 0; i < p.n; i++) longest = strlen(p.s[i]) > longest ? strlen(p.s[i]) : longest;
            if (longest > 7) continue; /* the naive model's strings are short */
            CHECK(encodes_to(t, text, n, false, false, want, naive_ids(&p, want, 0)));
        }
        tokenizer_destroy(t);
    }
}

TEST(spm_merges_as_a_naive_model_does)
{
    struct random r;

    random_init(&r, test_seed());
    for (unsigned round = 0; round < 60; round++) {
        struct tokenizer *t = NULL;

        tiny_vocab_init(&vocab, TOKENIZER_SPM);
        vocab.spec.add_bos = false;
        for (size_t i = 0; i < N_STRINGS; i++) /* scores with ties and both signs of zero */
            if (random_below(&r, 3))
                tiny_vocab_add(&vocab, strings_of_abc[i], TOKEN_NORMAL, (float)random_below(&r, 7) - 3.0f);
        for (unsigned c = 0; c < 3; c++)
            if (random_below(&r, 3)) tiny_vocab_add(&vocab, &"a\0b\0c"[2 * c], TOKEN_NORMAL, -0.0f);
        CHECK_OK(tokenizer_create(&vocab.spec, &t, NULL));
        for (unsigned k = 0; k < 40; k++) {
            struct parts p;
            char text[64];
            int32_t want[256];
            size_t n = random_parts(&r, &p, text);

            for (;;) {
                int32_t best = TOKEN_NONE;
                size_t at = 0;

                for (size_t i = 0; i + 1 < p.n; i++) {
                    char both[32];
                    int32_t id;

                    snprintf(both, sizeof(both), "%s%s", p.s[i], p.s[i + 1]);
                    id = naive_find(both);
                    if (id >= 0 && (best < 0 || vocab.scores[id] > vocab.scores[best])) best = id, at = i;
                }
                if (best < 0) break;
                parts_merge(&p, at);
            }
            CHECK(encodes_to(t, text, n, false, false, want, naive_ids(&p, want, 3)));
        }
        tokenizer_destroy(t);
    }
}

/* ---- special tokens ---- */

TEST(special_tokens_in_text_are_text_unless_asked_for)
{
    struct tokenizer *t = NULL;
    int32_t control, user, longer, want[32];
    const char text[] = "<e><u><u>>";

    tiny_vocab_init(&vocab, TOKENIZER_BPE);
    control = tiny_vocab_add(&vocab, "<e>", TOKEN_CONTROL, 0);
    user = tiny_vocab_add(&vocab, "<u>", TOKEN_USER_DEFINED, 0);
    longer = tiny_vocab_add(&vocab, "<u>>", TOKEN_USER_DEFINED, 0);
    vocab.spec.bos = vocab.spec.eos = control;
    vocab.spec.add_bos = vocab.spec.add_eos = true;
    CHECK_OK(tokenizer_create(&vocab.spec, &t, NULL));
    memcpy(want, (int32_t[]){control, user, longer}, 12);
    CHECK(encodes_to(t, text, 10, false, true, want, 3));
    memcpy(want, (int32_t[]){'<', 'e', '>', user, longer}, 20);
    CHECK_EQ(tokenizer_find(t, "<", 1), '<');
    CHECK(encodes_to(t, text, 10, false, false, want, 5));
    memcpy(want, (int32_t[]){control, control}, 8);
    CHECK(encodes_to(t, "", 0, true, false, want, 2));
    CHECK(encodes_to(t, "", 0, false, false, want, 0));
    CHECK_EQ(tokenizer_piece(t, control, false).n, 0);
    CHECK_EQ(tokenizer_piece(t, control, true).n, 3);
    CHECK_EQ(tokenizer_piece(t, user, false).n, 3);
    CHECK_EQ(tokenizer_piece(t, -5, true).n, 0);
    CHECK_EQ(tokenizer_piece(t, 1 << 30, true).n, 0);
    CHECK(tokenizer_is_end(t, control) && !tokenizer_is_end(t, user));
    tokenizer_destroy(t);
}

TEST(longest_special_token_first_then_leftmost)
{
    struct tokenizer *t = NULL;
    int32_t two, three, want[8];

    tiny_vocab_init(&vocab, TOKENIZER_BPE);
    two = tiny_vocab_add(&vocab, "##", TOKEN_USER_DEFINED, 0);
    three = tiny_vocab_add(&vocab, "#!#", TOKEN_USER_DEFINED, 0);
    CHECK_OK(tokenizer_create(&vocab.spec, &t, NULL));
    memcpy(want, (int32_t[]){'#', three, two}, 12);
    CHECK(encodes_to(t, "##!###", 6, false, false, want, 3));
    memcpy(want, (int32_t[]){two, two, '#'}, 12);
    CHECK(encodes_to(t, "#####", 5, false, false, want, 3));
    tokenizer_destroy(t);
}

TEST(end_tokens_are_control_tokens_by_name)
{
    struct tokenizer *t = NULL;
    int32_t im_end, end, strike;
    uint32_t n = 0;
    const int32_t *ends;

    tiny_vocab_init(&vocab, TOKENIZER_BPE);
    im_end = tiny_vocab_add(&vocab, "<|im_end|>", TOKEN_USER_DEFINED, 0);
    end = tiny_vocab_add(&vocab, "<|endoftext|>", TOKEN_CONTROL, 0);
    strike = tiny_vocab_add(&vocab, "</s>", TOKEN_USER_DEFINED, 0);
    vocab.spec.eos = end;
    CHECK_OK(tokenizer_create(&vocab.spec, &t, NULL));
    ends = tokenizer_end_tokens(t, &n);
    CHECK_EQ(n, 2);
    CHECK_EQ(ends[0], im_end);
    CHECK_EQ(ends[1], end);
    CHECK_EQ(tokenizer_type(t, im_end), TOKEN_CONTROL);
    CHECK(!tokenizer_is_end(t, strike));
    tokenizer_destroy(t);
}

/* ---- round trips and streaming ---- */

static struct tokenizer *make(enum tokenizer_model model, bool space_prefix)
{
    struct tokenizer *t = NULL;

    tiny_vocab_init(&vocab, model);
    if (model == TOKENIZER_BPE) {
        tiny_vocab_merge(&vocab, "a", "b");
        tiny_vocab_add(&vocab, "ab", TOKEN_NORMAL, 0);
        tiny_vocab_merge(&vocab, "ab", "a");
        tiny_vocab_add(&vocab, "aba", TOKEN_NORMAL, 0);
    } else {
        tiny_vocab_add(&vocab, "\xe2\x96\x81", TOKEN_NORMAL, -1);
        tiny_vocab_add(&vocab, "ab", TOKEN_NORMAL, -2);
        tiny_vocab_add(&vocab,
                       "\xe2\x96\x81"
                       "ab",
                       TOKEN_NORMAL, -3);
    }
    vocab.spec.add_space_prefix = space_prefix;
    return tokenizer_create(&vocab.spec, &t, NULL) == RD_OK ? t : NULL;
}

/* What a reader of the whole text sees: each maximal ill-formed part is one U+FFFD. */
static size_t replace_invalid(const char *s, size_t n, char *out)
{
    size_t n_out = 0;

    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);

        n_out += (size_t)utf8_encode(cp, out + n_out);
        i += (size_t)(len < 0 ? -len : len);
    }
    return n_out;
}

TEST(streamed_text_equals_the_whole_text_and_is_always_whole_utf8)
{
    struct random r;

    random_init(&r, test_seed());
    for (unsigned kind = 0; kind < 3; kind++) {
        struct tokenizer *t = make(kind == 0 ? TOKENIZER_BPE : TOKENIZER_SPM, kind == 2);

        CHECK(t);
        for (unsigned round = 0; round < (test_is_long() ? 200000 : 10000); round++) {
            struct token_decoder d;
            int32_t ids[40];
            uint32_t n = (uint32_t)random_below(&r, 40);
            char *text = NULL, want[400], got[400];
            size_t n_text, n_want, n_got = 0;

            for (uint32_t i = 0; i < n; i++) {
                static const unsigned char bytes[] = {0xf0, 0x9f, 0x98, 0x80, 0xe2, 0x82, 0xac, 0xc3,
                                                      0xa9, 0xed, 0xa0, 0xc0, 0xff, ' ',  'x'};
                int32_t base = kind ? 3 : 0;

                ids[i] = random_below(&r, 4) ? base + bytes[random_below(&r, sizeof(bytes))]
                                             : (int32_t)random_below(&r, vocab.spec.n_tokens + 3) - 1;
                if (i + 3 < n && random_below(&r, 3) == 0) { /* a whole character in three tokens */
                    ids[i++] = base + 0xe2;
                    ids[i++] = base + 0x82;
                    ids[i] = base + 0xac;
                }
            }
            CHECK_OK(tokenizer_decode(t, ids, n, true, &text, &n_text));
            n_want = replace_invalid(text, n_text, want);
            token_decoder_init(&d, t, true);
            for (uint32_t i = 0; i < n; i++) {
                size_t before = n_got;

                n_got += token_decoder_feed(&d, tokenizer_piece(t, ids[i], true), got + n_got);
                CHECK(utf8_valid(got + before, n_got - before));
            }
            n_got += token_decoder_flush(&d, got + n_got);
            CHECK_EQ(n_got, n_want);
            CHECK(memcmp(got, want, n_got) == 0);
            mem_free(text);
        }
        tokenizer_destroy(t);
    }
}

/* SPM writes U+2581 and space alike. */
static size_t marks_to_spaces(char *s, size_t n)
{
    size_t n_out = 0;

    for (size_t i = 0; i < n; i++) {
        bool mark = n - i >= 3 && memcmp(s + i, "\xe2\x96\x81", 3) == 0;

        s[n_out++] = mark ? ' ' : s[i];
        i += mark ? 2 : 0;
    }
    return n_out;
}

TEST(any_bytes_come_back)
{
    struct random r;

    random_init(&r, test_seed());
    for (unsigned kind = 0; kind < 3; kind++) {
        struct tokenizer *t = make(kind == 0 ? TOKENIZER_BPE : TOKENIZER_SPM, kind == 2);

        for (unsigned round = 0; round < 3000; round++) {
            char s[64], *text = NULL;
            size_t n = random_below(&r, sizeof(s)), n_text = 0;
            int32_t *ids = NULL;
            uint32_t n_ids;

            for (size_t i = 0; i < n; i++) s[i] = (char)(kind ? random_u64(&r) : random_below(&r, 128));
            if (kind == 0 && n > 4)
                memcpy(s, "\xf0\x9f\x98\x80", 4); /* BPE: well-formed text; other bytes become U+FFFD */
            CHECK_OK(tokenizer_encode(t, s, n, false, false, &ids, &n_ids, NULL));
            CHECK_OK(tokenizer_decode(t, ids, n_ids, true, &text, &n_text));
            n_text = marks_to_spaces(text, n_text);
            n = marks_to_spaces(s, n);
            CHECK_EQ(n_text, n);
            CHECK(memcmp(text, s, n) == 0);
            mem_free(text);
            mem_free(ids);
        }
        tokenizer_destroy(t);
    }
}

/* ---- what must be refused, and what must not hurt ---- */

static bool refused(rd_status want, const char *mentions)
{
    struct tokenizer *t = NULL;
    struct rd_error err = {0};
    uint64_t alive = mem_n_alive();
    rd_status st = tokenizer_create(&vocab.spec, &t, &err);

    if (st != want || t || !strstr(err.text, mentions))
        test_note("%s \"%s\", wanted %s", rd_status_name(st), err.text, mentions);
    return st == want && !t && strstr(err.text, mentions) && mem_n_alive() == alive;
}

TEST(vocabularies_that_do_not_add_up_are_refused_with_a_reason)
{
    static char big[LIMIT_TOKEN_BYTES + 1];

    tiny_vocab_init(&vocab, TOKENIZER_BPE);
    vocab.spec.pre = "nonsense";
    CHECK(refused(RD_E_UNSUPPORTED, "smollm"));
    CHECK(refused(RD_E_UNSUPPORTED, "--pre"));
    vocab.spec.pre = NULL;
    CHECK(refused(RD_E_UNSUPPORTED, "pre-tokenizer"));
    vocab.spec.pre = "gpt-2";
    vocab.spec.eos = 256;
    CHECK(refused(RD_E_FORMAT, "eos token is 256"));
    vocab.spec.eos = -7;
    CHECK(refused(RD_E_FORMAT, "eos token is -7"));
    vocab.spec.eos = TOKEN_NONE;
    vocab.spec.add_bos = true;
    CHECK(refused(RD_E_FORMAT, "bos"));
    vocab.spec.add_bos = false;
    vocab.merges[0] = (struct text_span){"nospace", 7};
    vocab.spec.n_merges = 1;
    CHECK(refused(RD_E_FORMAT, "merge 0"));
    vocab.merges[0] = (struct text_span){"a ", 2};
    CHECK(refused(RD_E_FORMAT, "merge 0"));
    vocab.spec.n_merges = 0;
    tiny_vocab_add(&vocab, "A", TOKEN_NORMAL, 0);
    CHECK(refused(RD_E_FORMAT, "tokens 65 and 256 are both"));
    vocab.tokens[256] = (struct text_span){big, sizeof(big)};
    CHECK(refused(RD_E_LIMIT, "token 256"));
    vocab.spec.n_tokens = 0;
    CHECK(refused(RD_E_FORMAT, "empty"));
    vocab.spec.n_tokens = LIMIT_VOCAB + 1;
    CHECK(refused(RD_E_LIMIT, "at most"));
    tiny_vocab_init(&vocab, TOKENIZER_SPM);
    vocab.scores[7] = (float)(0.0 / 0.0);
    CHECK(refused(RD_E_FORMAT, "token 7"));
    vocab.spec.scores = NULL;
    CHECK(refused(RD_E_FORMAT, "scores"));
}

TEST(odd_entries_are_harmless)
{
    struct tokenizer *t = NULL;
    int32_t want[2] = {'x', 0};

    tiny_vocab_init(&vocab, TOKENIZER_BPE);
    tiny_vocab_add(&vocab, "", TOKEN_NORMAL, 0); /* empty entries, cyclic merges, byte tokens that are none */
    tiny_vocab_add(&vocab, "", TOKEN_CONTROL, 0);
    tiny_vocab_add(&vocab, "<0x-1>", TOKEN_BYTE, 0);
    tiny_vocab_add(&vocab, "<0xzz>", TOKEN_BYTE, 0);
    tiny_vocab_add(&vocab, "odd", 77, 0);
    tiny_vocab_merge(&vocab, "ab", "ab");
    tiny_vocab_merge(&vocab, "a", "b");
    tiny_vocab_merge(&vocab, "a", "b");
    CHECK_OK(tokenizer_create(&vocab.spec, &t, NULL));
    CHECK(encodes_to(t, "x", 1, false, true, want, 1));
    CHECK_EQ(tokenizer_piece(t, 258, true).n, 0);
    CHECK_EQ(tokenizer_piece(t, 260, true).n, 0);
    CHECK_EQ(tokenizer_type(t, 260), TOKEN_UNUSED);
    CHECK_EQ(tokenizer_find(t, "", 0), TOKEN_NONE);
    CHECK_EQ(tokenizer_find(t, "abab", 4), TOKEN_NONE); /* named by a merge, but no token */
    tokenizer_destroy(t);
}

TEST(no_memory_leaves_nothing_behind)
{
    uint64_t alive = mem_n_alive();

    for (unsigned kind = 0; kind < 2; kind++) {
        struct tokenizer *t = NULL;
        int32_t *ids = NULL;
        uint32_t n;
        rd_status st;

        tiny_vocab_init(&vocab, kind ? TOKENIZER_SPM : TOKENIZER_BPE);
        tiny_vocab_add(&vocab, "<u>", TOKEN_USER_DEFINED, 0);
        for (int64_t i = 0; !t; i++) {
            mem_fail_after(i);
            st = tokenizer_create(&vocab.spec, &t, NULL);
            mem_fail_after(-1);
            CHECK(st == (t ? RD_OK : RD_E_NOMEM));
            if (!t) CHECK_EQ(mem_n_alive(), alive);
        }
        for (int64_t i = 0; !ids; i++) {
            uint64_t before = mem_n_alive();

            mem_fail_after(i);
            st = tokenizer_encode(t, "ab <u> c\xff <u>", 13, true, true, &ids, &n, NULL);
            mem_fail_after(-1);
            CHECK(st == (ids ? RD_OK : RD_E_NOMEM));
            if (!ids) CHECK_EQ(mem_n_alive(), before);
        }
        mem_free(ids);
        tokenizer_destroy(t);
        CHECK_EQ(mem_n_alive(), alive);
    }
}

/* The time that our own instructions took: not the machine's other work, not the page faults of fresh memory. */
static double user_ms(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec * 1e3 + (double)u.ru_utime.tv_usec / 1e3;
}

static double best_ms(const struct tokenizer *t, const char *s, size_t n, size_t repeats)
{
    double best = 1e30;

    for (size_t i = 0; i < repeats; i++) {
        int32_t *ids = NULL;
        uint32_t n_ids;
        double took, start = user_ms();

        if (tokenizer_encode(t, s, n, false, true, &ids, &n_ids, NULL) != RD_OK) return 1e30;
        took = user_ms() - start;
        mem_free(ids);
        if (took < best) best = took;
    }
    return best;
}

/* Ten times the text may take thirteen times as long (F10); quadratic would be a hundred. Measured figures are printed,
 * and only what cannot be n log n on a busy machine fails. */
TEST(hostile_texts_take_time_in_proportion)
{
    static const char *const parts[] = {"a", "ab",   "\xcc\x81",     " ",  "\n",  "#",
                                        "1", "\xff", "\xe4\xb8\xad", "<u", "<u>", "'s"};
    size_t n = test_is_long() ? 10000000 : IS_SANITIZED ? 500000 : 2000000;
    char *s = mem_alloc(n, 1);

    for (unsigned kind = 0; kind < 2; kind++) {
        struct tokenizer *t = NULL;
        double worst = 0, ms = 0;
        size_t slowest = 0;

        tiny_vocab_init(&vocab, kind ? TOKENIZER_SPM : TOKENIZER_BPE);
        for (size_t i = 0; i < N_STRINGS; i++) tiny_vocab_add(&vocab, strings_of_abc[i], TOKEN_NORMAL, -(float)i);
        for (const char *const *m = (const char *const[]){"a", "a", "aa", "aa", "a", "b", "ab", "ab", NULL}; *m; m += 2)
            tiny_vocab_merge(&vocab, m[0], m[1]);
        tiny_vocab_add(&vocab, "<u>", TOKEN_USER_DEFINED, 0);
        tiny_vocab_add(&vocab, "##", TOKEN_USER_DEFINED, 0);
        tiny_vocab_add(&vocab, "########", TOKEN_USER_DEFINED, 0);
        CHECK_OK(tokenizer_create(&vocab.spec, &t, NULL));
        for (size_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++) {
            size_t len = strlen(parts[k]);
            double small, large;

            for (size_t i = 0; i < n; i++) s[i] = parts[k][i % len];
            small = best_ms(t, s, n / 10, 3);
            large = best_ms(t, s, n, 1);
            if (small > 1 && large / small > worst) worst = large / small, slowest = k, ms = large;
            CHECK(large < 40 * small + 100);
        }
        test_note("%s: ten times the text takes at most %.1f times as long (part %zu, %zu bytes in %.0f ms)",
                  kind ? "spm" : "bpe", worst, slowest, n, ms);
        tokenizer_destroy(t);
    }
    mem_free(s);
}
