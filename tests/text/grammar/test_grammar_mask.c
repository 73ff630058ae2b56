/* tests/text/grammar/test_grammar_mask.c - masks against brute force, and what matchers promise: ends that come in time,
 * rollback, bounded memory. Random grammars and small random vocabularies.
 */
#include "base/mem.h"
#include "naive_grammar.h"
#include "test.h"
#include "text/grammar/grammar.h"

#define N_GRAMMARS 400u
#define N_TOKENS   90u
#define N_STEPS    12u
#define SPECIAL    7

static struct naive naive;

/* Texts of one to five bytes over the characters of random grammars; every byte of theirs is a token (whole), or only
 * those of one byte are (not whole). Token SPECIAL is special. */
static struct grammar_vocab *random_vocab(struct naive *n, bool whole)
{
    static const uint8_t bytes[] = "abc\xC3\xA9\xAA\xE6\x97\xA5\xF0\x9F\x98\x80";
    const uint32_t n_bytes = whole ? sizeof(bytes) - 1 : 3;
    uint8_t text[N_TOKENS * 6];
    uint64_t offsets[N_TOKENS + 1];
    bool special[N_TOKENS] = {false};
    struct grammar_vocab *v = NULL;
    uint64_t at = 0;

    special[SPECIAL] = true;
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        uint32_t size = i >= 10 && i < 10 + n_bytes ? 1 : naive_draw(n, 6);
        bool cut = naive_draw(n, 4) == 0;

        offsets[i] = at;
        for (uint32_t k = 0; k < size; k++) {
            if (size == 1 && i >= 10 && i < 10 + n_bytes)
                text[at++] = bytes[i - 10];
            else
                text[at++] = bytes[naive_draw(n, cut ? sizeof(bytes) - 1 : 3)];
        }
    }
    offsets[N_TOKENS] = at;
    if (grammar_vocab_create(N_TOKENS, text, offsets, special, &v) != RD_OK) return NULL;
    return v;
}

static struct grammar *compiled(const struct naive *n, struct grammar_vocab *v, size_t space)
{
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;

    if (grammar_builder_create(NULL, &b) != RD_OK) return NULL;
    if (grammar_compile(b, naive_build(n, b), v, space, &g, NULL) != RD_OK) g = NULL;
    grammar_builder_destroy(b);
    return g;
}

/* A bit is set exactly where the token can be accepted. Copies them: they are lent. */
static bool mask_is_what_is_accepted(struct grammar_matcher *m, uint32_t *copy)
{
    const uint32_t *bits;
    bool any = false;

    if (grammar_mask(m, UINT32_MAX, &bits) != RD_OK) return false;
    memcpy(copy, bits, (N_TOKENS + 31) / 32 * sizeof(*bits));
    for (int32_t t = 0; t < (int32_t)N_TOKENS; t++) {
        bool can = grammar_accept(m, t) == RD_OK;

        if (can) grammar_rollback(m, 1);
        if (can != (copy[t / 32] >> (t % 32) & 1)) return false;
        any |= can;
    }
    return any || grammar_can_end(m);
}

static int32_t draw_token(struct naive *n, const uint32_t *bits)
{
    uint32_t from = naive_draw(n, N_TOKENS);

    for (uint32_t i = 0; i < N_TOKENS; i++) {
        uint32_t t = (from + i) % N_TOKENS;

        if (bits[t / 32] >> (t % 32) & 1) return (int32_t)t;
    }
    return -1;
}

static bool walk_masks(struct naive *n, struct grammar *g)
{
    struct grammar_matcher *m = NULL;
    uint32_t bits[(N_TOKENS + 31) / 32];
    bool ok = grammar_matcher_create(g, N_STEPS + 1, &m) == RD_OK;

    for (uint32_t k = 0; ok && k < N_STEPS; k++) {
        int32_t t;

        ok = mask_is_what_is_accepted(m, bits);
        t = ok ? draw_token(n, bits) : -1;
        if (t < 0) break;
        ok = grammar_accept(m, t) == RD_OK;
        if (ok && naive_draw(n, 5) == 0) grammar_rollback(m, 1);
    }
    grammar_matcher_destroy(m);
    return ok;
}

TEST(a_mask_has_the_tokens_that_are_accepted)
{
    for (uint32_t i = 0; i < N_GRAMMARS; i++) {
        struct grammar_vocab *v;
        struct grammar *g;
        bool ok = true;

        naive_make(&naive, test_seed() + i);
        v = random_vocab(&naive, i % 4 != 0);
        CHECK(v);
        g = compiled(&naive, v, i % 3 ? 0 : 3000); /* little space: sets are swept at every step */
        for (uint32_t k = 0; ok && g && k < 4; k++) ok = walk_masks(&naive, g);
        grammar_unref(g);
        grammar_vocab_unref(v);
        if (!ok) test_fail(__FILE__, __LINE__, "grammar %u", i);
        CHECK(ok);
    }
}

/* Follows masks with so many tokens left. The text ends in time unless even the shortest way is too long, and then it
 * takes no more tokens than bytes. too_ambiguous: it could not be followed, which is raised and says nothing else. */
static bool ends_in_time(struct naive *n, struct grammar *g, uint32_t n_left, uint32_t *too_ambiguous)
{
    struct grammar_matcher *m = NULL;
    const uint32_t *bits;
    bool ok = grammar_matcher_create(g, 400, &m) == RD_OK;
    uint64_t most = ok ? grammar_shortest(m, NULL, 0, NULL) : 0;
    uint32_t k = 0;

    for (; ok && k < 400; k++) {
        uint32_t left = n_left > k ? n_left - k : 0;
        rd_status st;
        int32_t t;

        if (grammar_can_end(m) && (left <= 1 || naive_draw(n, 8) == 0)) break;
        st = grammar_mask(m, left, &bits);
        if (st == RD_E_LIMIT) {
            ++*too_ambiguous;
            grammar_matcher_destroy(m);
            return true;
        }
        ok = st == RD_OK;
        t = ok ? draw_token(n, bits) : -1;
        if (t < 0) {
            ok = ok && grammar_can_end(m);
            break;
        }
        ok = grammar_accept(m, t) == RD_OK;
    }
    ok = ok && grammar_can_end(m) && k <= (n_left > most ? n_left : most);
    grammar_matcher_destroy(m);
    return ok;
}

TEST(texts_end_within_the_tokens_that_are_left)
{
    uint32_t too_ambiguous = 0;

    for (uint32_t i = 0; i < N_GRAMMARS; i++) {
        struct grammar_vocab *v;
        struct grammar *g;
        bool ok = true;

        naive_make(&naive, test_seed() + 7000 + i);
        v = random_vocab(&naive, true);
        CHECK(v);
        g = compiled(&naive, v, i % 3 ? 0 : 3000);
        for (uint32_t k = 1; ok && g && k < 12; k++) ok = ends_in_time(&naive, g, k, &too_ambiguous);
        grammar_unref(g);
        grammar_vocab_unref(v);
        if (!ok) test_fail(__FILE__, __LINE__, "grammar %u", i);
        CHECK(ok);
    }
    CHECK(too_ambiguous < N_GRAMMARS / 20); /* of 11 texts each */
}

/* Strings of bounded length have states by the hundred that share their masks, all but the last; tokens here are up to
 * N_TOKENS long. */
TEST(counted_strings_share_masks_and_end_where_they_must)
{
    static uint8_t text[N_TOKENS * N_TOKENS];
    uint64_t offsets[N_TOKENS + 1];
    struct grammar_vocab *v = NULL;
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    uint32_t copy[(N_TOKENS + 31) / 32];
    grammar_node parts[3];
    uint64_t at = 0;

    for (uint32_t i = 0; i < N_TOKENS; i++) {
        uint32_t size = i < 70 ? i : 1 + i % 3;

        offsets[i] = at;
        for (uint32_t k = 0; k < size; k++) text[at++] = (uint8_t)(i < 70 ? 'a' + (i + k) % 3 : 'x');
        if (i >= 70)
            text[at - 1] = i % 2 ? '"' : ',';
        else if (i % 7 == 6)
            text[at - 1 - i / 3] = '"';
    }
    offsets[N_TOKENS] = at;
    CHECK_OK(grammar_vocab_create(N_TOKENS, text, offsets, NULL, &v));
    CHECK_OK(grammar_builder_create(NULL, &b));
    parts[0] = grammar_repeat(b, grammar_class(b, &(struct grammar_range){'a', 'z'}, 1, false), 2, 170);
    parts[1] = grammar_text(b, "\"", 1);
    parts[2] = grammar_repeat(b, grammar_seq(b, parts, 2), 0, GRAMMAR_UNBOUNDED);
    CHECK_OK(grammar_compile(b, parts[2], v, 0, &g, NULL));
    CHECK_OK(grammar_warm(g));
    CHECK_OK(grammar_matcher_create(g, 1000, &m));
    for (uint32_t i = 0; i < 400; i++) {
        CHECK(mask_is_what_is_accepted(m, copy));
        if (grammar_accept(m, 1 + (int32_t)(i % 3)) == RD_OK && i % 200 != 150) continue;
        CHECK_OK(grammar_accept_bytes(m, (const uint8_t *)"\"", 1));
    }
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_builder_destroy(b);
    grammar_vocab_unref(v);
}

/* The end is further than 2^32 bytes: whatever is left, some token leads nearer to it. */
TEST(an_end_that_is_far_beyond_all_that_is_left_has_a_way)
{
    struct grammar_vocab *v = NULL;
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    const uint32_t *bits;
    grammar_node part;

    CHECK_OK(grammar_vocab_create(3, (const uint8_t *)"abab", (const uint64_t[]){0, 1, 2, 4}, NULL, &v));
    CHECK_OK(grammar_builder_create(NULL, &b));
    part = grammar_repeat(b, grammar_text(b, "ab", 2), 300, 300);
    CHECK_OK(grammar_compile(b, grammar_repeat(b, part, 1000000000, GRAMMAR_UNBOUNDED), v, 0, &g, NULL));
    CHECK_OK(grammar_matcher_create(g, 4, &m));
    for (uint32_t left = 1; left; left *= 2) {
        CHECK_OK(grammar_mask(m, left, &bits));
        CHECK_EQ(bits[0], 5);
    }
    CHECK_OK(grammar_accept(m, 0));
    CHECK_OK(grammar_mask(m, 7, &bits));
    CHECK_EQ(bits[0], 2);
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_builder_destroy(b);
    grammar_vocab_unref(v);
}

/* Any name but those known: each letter of a known one is a state that differs from that of any other name by one byte. */
TEST(states_that_are_nearly_alike_have_masks_of_their_own)
{
    static const char *const known[] = {"code", "colour", "message", "m", "mess"};
    static const char *const pieces[] = {"co",  "cod",  "code",   "code\"", "de",  "de\"",  "m\"",
                                         "me",  "mess", "mess\"", "x\"",    "age", "our\"", "lour",
                                         "\":", "\"}",  "e\": 1", "s\"",    "xyz", "zz\"x"};
    static uint8_t text[4096];
    uint64_t offsets[N_TOKENS + 1];
    struct grammar_vocab *v = NULL;
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    uint32_t copy[(N_TOKENS + 31) / 32], n_pieces = sizeof(pieces) / sizeof(pieces[0]);
    grammar_node names[5], parts[3];
    uint64_t at = 0;

    for (uint32_t i = 0; i < N_TOKENS; i++) {
        uint32_t size = i < 26 ? 1 : i < 52 ? 2 : 3;

        offsets[i] = at;
        if (i == N_TOKENS - 1) {
            text[at++] = '"';
        } else if (i >= 60 && i - 60 < n_pieces) {
            memcpy(text + at, pieces[i - 60], strlen(pieces[i - 60]));
            at += strlen(pieces[i - 60]);
        } else {
            for (uint32_t k = 0; k < size; k++) text[at++] = (uint8_t)('a' + (i * (k + 1) + k) % 26);
        }
    }
    offsets[N_TOKENS] = at;
    CHECK_OK(grammar_vocab_create(N_TOKENS, text, offsets, NULL, &v));
    CHECK_OK(grammar_builder_create(NULL, &b));
    for (uint32_t i = 0; i < 5; i++) names[i] = grammar_text(b, known[i], strlen(known[i]));
    parts[0] = grammar_except(
        b, grammar_repeat(b, grammar_class(b, &(struct grammar_range){'a', 'z'}, 1, false), 0, GRAMMAR_UNBOUNDED),
        grammar_alt(b, names, 5));
    parts[1] = grammar_text(b, "\"", 1);
    parts[2] = grammar_repeat(b, grammar_seq(b, parts, 2), 0, GRAMMAR_UNBOUNDED);
    CHECK_OK(grammar_compile(b, parts[2], v, 0, &g, NULL));
    CHECK_OK(grammar_matcher_create(g, 100, &m));
    for (uint32_t i = 0; i < 5; i++) {
        for (uint32_t k = 0; k < strlen(known[i]); k++) {
            CHECK(mask_is_what_is_accepted(m, copy));
            CHECK_OK(grammar_accept_bytes(m, (const uint8_t *)known[i] + k, 1));
        }
        CHECK(mask_is_what_is_accepted(m, copy));
        CHECK_EQ(grammar_accept_bytes(m, (const uint8_t *)"\"", 1), RD_E_INVALID);
        CHECK_OK(grammar_accept_bytes(m, (const uint8_t *)"y\"", 2));
    }
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_builder_destroy(b);
    grammar_vocab_unref(v);
}

/* What a rolled back matcher says is what one says that never went on. */
static bool same_as_replayed(struct grammar *g, struct grammar_matcher *m, const int32_t *tokens, uint32_t n)
{
    struct grammar_matcher *other = NULL;
    const uint32_t *bits;
    uint32_t first[(N_TOKENS + 31) / 32];
    uint8_t x[16], y[16];
    bool ok = grammar_matcher_create(g, N_STEPS, &other) == RD_OK;

    for (uint32_t i = 0; ok && i < n; i++) ok = grammar_accept(other, tokens[i]) == RD_OK;
    ok = ok && grammar_mask(m, UINT32_MAX, &bits) == RD_OK;
    if (ok) memcpy(first, bits, sizeof(first));
    ok = ok && grammar_mask(other, UINT32_MAX, &bits) == RD_OK && !memcmp(first, bits, sizeof(first));
    ok = ok && grammar_can_end(m) == grammar_can_end(other) && grammar_must_end(m) == grammar_must_end(other);
    if (ok) {
        uint32_t forced = grammar_forced(m, x, sizeof(x));

        ok = grammar_forced(other, y, sizeof(y)) == forced && !memcmp(x, y, forced);
    }
    grammar_matcher_destroy(other);
    return ok;
}

TEST(rollback_is_as_if_the_tokens_had_never_come)
{
    for (uint32_t i = 0; i < N_GRAMMARS; i++) {
        struct grammar_matcher *m = NULL;
        struct grammar_vocab *v;
        struct grammar *g;
        const uint32_t *bits;
        int32_t tokens[N_STEPS];
        uint32_t n = 0;
        bool ok = true;

        naive_make(&naive, test_seed() + 20000 + i);
        v = random_vocab(&naive, true);
        CHECK(v);
        g = compiled(&naive, v, i % 2 ? 0 : 3000);
        if (g) ok = grammar_matcher_create(g, N_STEPS, &m) == RD_OK;
        for (uint32_t k = 0; g && ok && k < 20; k++) {
            int32_t t = -1;

            if (n < N_STEPS && grammar_mask(m, UINT32_MAX, &bits) == RD_OK) t = draw_token(&naive, bits);
            if (t >= 0 && naive_draw(&naive, 3)) {
                ok = grammar_accept(m, t) == RD_OK;
                tokens[n++] = t;
            } else if (n) {
                uint32_t back = 1 + naive_draw(&naive, n);

                grammar_rollback(m, back);
                n -= back;
                ok = same_as_replayed(g, m, tokens, n);
            }
        }
        grammar_matcher_destroy(m);
        grammar_unref(g);
        grammar_vocab_unref(v);
        if (!ok) test_fail(__FILE__, __LINE__, "grammar %u", i);
        CHECK(ok);
    }
}

/* Forced bytes are the only ones that go on; where there are none, there is a choice or an end. */
TEST(forced_bytes_have_no_alternative)
{
    for (uint32_t i = 0; i < N_GRAMMARS; i++) {
        struct grammar_matcher *m = NULL;
        struct grammar *g;
        uint8_t forced[8];
        uint32_t n;

        naive_make(&naive, test_seed() + 30000 + i);
        g = compiled(&naive, NULL, 0);
        if (!g) continue;
        CHECK_OK(grammar_matcher_create(g, 64, &m));
        n = grammar_forced(m, forced, sizeof(forced));
        for (uint32_t k = 0; k <= n; k++) {
            uint32_t n_ways = 0;

            for (unsigned c = 0; c < 256; c++) {
                uint8_t byte = (uint8_t)c;

                if (grammar_accept_bytes(m, &byte, 1) != RD_OK) continue;
                n_ways++;
                grammar_rollback(m, 1);
                CHECK(k == n || byte == forced[k]);
            }
            if (k < n)
                CHECK(n_ways == 1 && !grammar_can_end(m));
            else if (n < sizeof(forced))
                CHECK(n_ways != 1 || grammar_can_end(m));
            if (k < n) CHECK_OK(grammar_accept_bytes(m, forced + k, 1));
        }
        grammar_matcher_destroy(m);
        grammar_unref(g);
    }
}

TEST(special_tokens_come_only_where_they_are_named)
{
    struct grammar_builder *b = NULL;
    struct grammar_vocab *v;
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    const uint32_t *bits;
    grammar_node parts[2], loop;
    uint8_t forced[8];

    naive_make(&naive, test_seed());
    v = random_vocab(&naive, true);
    CHECK(v);
    CHECK_OK(grammar_builder_create(NULL, &b));
    loop = grammar_class(b, NULL, 0, true);
    parts[0] = grammar_token(b, SPECIAL);
    parts[1] = grammar_repeat(b, loop, 0, GRAMMAR_UNBOUNDED);
    CHECK_OK(grammar_compile(b, grammar_seq(b, parts, 2), v, 0, &g, NULL));
    CHECK_OK(grammar_matcher_create(g, 8, &m));
    CHECK_EQ(grammar_forced(m, forced, 3), 0); /* a token is not cut */
    CHECK_EQ(grammar_forced(m, forced, 8), 4);
    CHECK(!memcmp(forced, "\xFF\0\0\7", 4));
    CHECK_OK(grammar_mask(m, UINT32_MAX, &bits));
    for (uint32_t t = 0; t < N_TOKENS; t++) CHECK_EQ(bits[t / 32] >> (t % 32) & 1, t == SPECIAL);
    CHECK_OK(grammar_accept(m, SPECIAL));
    CHECK_OK(grammar_mask(m, UINT32_MAX, &bits));
    CHECK_EQ(bits[0] >> SPECIAL & 1, 0);
    CHECK_EQ(grammar_accept(m, SPECIAL), RD_E_INVALID);
    CHECK_EQ(grammar_accept(m, -1), RD_E_INVALID);
    CHECK_EQ(grammar_accept(m, N_TOKENS), RD_E_INVALID);
    grammar_matcher_destroy(m);
    grammar_unref(g);
    g = NULL;
    CHECK_EQ(grammar_compile(b, grammar_token(b, N_TOKENS), v, 0, &g, NULL), RD_E_INVALID);
    grammar_builder_destroy(b);
    CHECK_OK(grammar_builder_create(NULL, &b));
    CHECK_EQ(grammar_compile(b, grammar_token(b, SPECIAL + 1), v, 0, &g, NULL), RD_E_INVALID); /* a plain one */
    grammar_builder_destroy(b);
    grammar_vocab_unref(v);
}

/* A whole life, with each allocation failing in turn: nothing leaks, and what fails changes nothing. */
static rd_status whole_life(struct naive *n)
{
    struct grammar_builder *b = NULL;
    struct grammar_vocab *v = random_vocab(n, true);
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    const uint32_t *bits;
    rd_status st = v ? grammar_builder_create(NULL, &b) : RD_E_NOMEM;

    if (st == RD_OK) st = grammar_compile(b, naive_build(n, b), v, 3000, &g, NULL);
    if (st == RD_OK) st = grammar_warm(g);
    if (st == RD_OK) st = grammar_matcher_create(g, N_STEPS, &m);
    for (uint32_t k = 0; st == RD_OK && k < 6; k++) {
        int32_t t;

        st = grammar_mask(m, 4 - k / 2, &bits);
        t = st == RD_OK ? draw_token(n, bits) : -1;
        if (t < 0) break;
        st = grammar_accept(m, t);
        if (st != RD_OK && grammar_mask(m, UINT32_MAX, &bits) == RD_OK) st = grammar_accept(m, t);
    }
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_builder_destroy(b);
    grammar_vocab_unref(v);
    return st;
}

TEST(any_allocation_may_fail)
{
    for (uint32_t i = 0; i < 12; i++) {
        uint64_t alive = mem_n_alive();
        rd_status st = RD_E_NOMEM;

        for (int64_t k = 0;; k += 1 + k / 500) { /* some grammars take many thousand */
            uint64_t n_allocs = mem_n_allocs();

            naive_make(&naive, test_seed() + i);
            mem_fail_after(k);
            st = whole_life(&naive);
            mem_fail_after(-1);
            CHECK_EQ(mem_n_alive(), alive);
            CHECK(st == RD_OK || st == RD_E_NOMEM || st == RD_E_INVALID);
            if (mem_n_allocs() - n_allocs <= (uint64_t)k) break; /* none failed */
        }
        CHECK(st != RD_E_NOMEM);
    }
}
