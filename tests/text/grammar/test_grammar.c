/* tests/text/grammar/test_grammar.c - compiled grammars against their naive reading, on random grammars and texts. */
#include "test.h"
#include "base/mem.h"
#include "naive_grammar.h"
#include "text/grammar/grammar.h"

#define N_GRAMMARS 3000u
#define N_TEXTS    60u

static struct naive naive;

/* NULL: the grammar has no text (the builder then says RD_E_INVALID). */
static struct grammar *compiled(const struct naive *n, struct grammar_vocab *v)
{
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    rd_status st;
    struct rd_error err = {0};

    if (grammar_builder_create(NULL, &b) != RD_OK) return NULL;
    st = grammar_compile(b, naive_build(n, b), v, 0, &g, &err);
    if (st != RD_OK && !strstr(err.text, "without any text"))
        test_fail(__FILE__, __LINE__, "seed %" PRIu64 ": %s", n->rng, err.text);
    grammar_builder_destroy(b);
    return st == RD_OK ? g : NULL;
}

/* A character or a byte of one, more often the next one of a shortest way. */
static uint8_t next_byte(struct naive *n, struct grammar_matcher *m)
{
    static const uint8_t bytes[] = "abc\xC3\xA9\xAA\xE6\x97\xA5\xF0\x9F\x98\x80";
    uint8_t byte;
    uint64_t left = naive_draw(n, 3) == 0 ? grammar_shortest(m, &byte, 1, NULL) : 0;

    if (left > 0 && left != UINT64_MAX) return byte;
    return bytes[naive_draw(n, naive_draw(n, 3) ? 3 : sizeof(bytes) - 1)];
}

/* The shortest text from here is one of the grammar. */
static bool check_shortest(struct naive *n, struct grammar_matcher *m, uint8_t *text, uint32_t n_text)
{
    uint8_t rest[NAIVE_TEXT];
    uint64_t left = grammar_shortest(m, rest, NAIVE_TEXT, NULL);

    if (left > NAIVE_TEXT - n_text) return true;
    memcpy(text + n_text, rest, left);
    naive_read(n, text, (uint32_t)(n_text + left));
    return naive_is_text(n);
}

static bool check_text(struct naive *n, struct grammar *g)
{
    struct grammar_matcher *m = NULL;
    uint8_t text[NAIVE_TEXT];
    bool ok = true;

    if (grammar_matcher_create(g, NAIVE_TEXT, &m) != RD_OK) return false;
    for (uint32_t k = 0; ok; k++) {
        rd_status st;

        naive_read(n, text, k);
        ok = grammar_can_end(m) == naive_is_text(n) && (n->products || naive_is_prefix(n));
        if (ok) ok = check_shortest(n, m, text, k);
        if (!ok || k == 14) break;
        text[k] = next_byte(n, m);
        st = grammar_accept_bytes(m, text + k, 1);
        naive_read(n, text, k + 1);
        if (st == RD_OK) continue;
        ok = st == RD_E_INVALID && (n->products ? !naive_is_text(n) : !naive_is_prefix(n));
        break;
    }
    grammar_matcher_destroy(m);
    return ok;
}

TEST(texts_and_prefixes_are_those_of_the_naive_reading)
{
    uint32_t n_empty = 0;

    for (uint32_t i = 0; i < N_GRAMMARS; i++) {
        struct grammar *g;

        naive_make(&naive, test_seed() + i);
        g = compiled(&naive, NULL);
        n_empty += !g;
        if (!g) {
            naive_read(&naive, NULL, 0);
            if (!naive.products && naive.has_text[naive.bodies[0]]) {
                test_fail(__FILE__, __LINE__, "grammar %u has texts", i);
                return;
            }
        }
        for (uint32_t k = 0; g && k < N_TEXTS; k++)
            if (!check_text(&naive, g)) {
                test_fail(__FILE__, __LINE__, "grammar %u, text %u: %.*s", i, k, (int)naive.n_text, naive.text);
                grammar_unref(g);
                return;
            }
        grammar_unref(g);
    }
    CHECK(n_empty < N_GRAMMARS / 3);
}
