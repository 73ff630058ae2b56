/* tests/api/test_grammar_store.c - the grammars of an engine: shared, counted, bounded, given up when nobody uses them.
 */
#include <stdio.h>
#include "api/grammar_store.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "test.h"
#include "text/tiny_vocab.h"

#define MIB ((uint64_t)1 << 20)

static struct tiny_vocab vocab;

static struct tokenizer *tokens(void)
{
    struct tokenizer *t = NULL;
    struct rd_error err = {0};

    tiny_vocab_init(&vocab, TOKENIZER_BPE);
    return tokenizer_create(&vocab.spec, &t, &err) == RD_OK ? t : NULL;
}

/* A choice of two texts of so many bytes: about 80 bytes of grammar for each. Small ones: they are compiled within a limit
 * of time, by slow builds too. */
static rd_status get(struct grammar_store *s, unsigned i, unsigned n, struct grammar **g, struct rd_error *err)
{
    char *text = mem_alloc(2 * (size_t)n + 64, 1);
    struct output_form f = {.kind = RD_GRAMMAR_CHOICE, .text = text};
    rd_status st;
    int at = sprintf(text, "[\"%u", i);

    for (unsigned k = 0; k < n; k++) text[at++] = (char)('a' + (i * 7 + k * k) % 26);
    at += sprintf(text + at, "\",\"%u", i);
    for (unsigned k = 0; k < n; k++) text[at++] = (char)('A' + (i * 3 + k * k) % 26);
    at += sprintf(text + at, "\"]");
    f.n_text = (size_t)at;
    st = grammar_store_get(s, &f, false, g, err);
    mem_free(text);
    return st;
}

TEST(one_form_is_compiled_once_and_shared)
{
    struct tokenizer *t = tokens();
    struct grammar_store *s = NULL;
    struct grammar *a, *b, *c;

    CHECK_OK(grammar_store_create(t, 0, &s));
    CHECK_OK(get(s, 1, 10, &a, NULL));
    CHECK_OK(get(s, 1, 10, &b, NULL));
    CHECK_OK(get(s, 2, 10, &c, NULL));
    CHECK(a == b && a != c);
    CHECK_EQ(grammar_store_counts(s).n_grammars, 2);
    grammar_unref(a);
    grammar_unref(b);
    grammar_unref(c);
    grammar_store_destroy(s);
    tokenizer_destroy(t);
}

/* By a clock on which every look at the thread's time takes 1 ms, or 200 ms: a form is looked at some ten times. */
TEST(what_takes_long_is_left_for_later_and_nothing_is_kept)
{
    static const char schema[] = "{\"anyOf\": [{\"minLength\": 1}, {\"minLength\": 2}, {\"minLength\": 3}, "
                                 "{\"minLength\": 4}, {\"minLength\": 5}, {\"minLength\": 6}, {\"minLength\": 7}, "
                                 "{\"minLength\": 8}, {\"minLength\": 9}, {\"minLength\": 10}, {\"minLength\": 11}, "
                                 "{\"minLength\": 12}, {\"minLength\": 13}, {\"minLength\": 14}]}";
    const struct output_form f = {.kind = RD_GRAMMAR_JSON_SCHEMA, .text = schema, .n_text = sizeof(schema) - 1};
    struct clock *c = clock_fake_create(0, 0);
    struct tokenizer *t = tokens();
    struct grammar_store *s = NULL;
    struct grammar *g = NULL, *again = NULL;
    struct rd_error err = {0};

    CHECK(c);
    CHECK_OK(grammar_store_create(t, 0, &s));
    grammar_store_set_clock(s, c);
    clock_fake_step(c, 0, 1000000);
    CHECK_EQ(grammar_store_get(s, &f, true, &g, &err), RD_E_AGAIN);
    CHECK(!g);
    CHECK_EQ(grammar_store_counts(s).n_grammars, 0);
    CHECK_EQ(grammar_store_counts(s).used, 0);
    clock_fake_step(c, 0, 200000000ull * CLOCK_SLOWDOWN);
    CHECK_EQ(grammar_store_get(s, &f, true, &g, &err), RD_E_AGAIN);
    CHECK_EQ(grammar_store_get(s, &f, false, &g, &err), RD_E_INVALID); /* it has 0.6 s */
    clock_fake_step(c, 0, 1000000);
    CHECK_OK(grammar_store_get(s, &f, false, &g, &err));
    CHECK_OK(grammar_store_get(s, &f, true, &again, &err)); /* it is known now */
    CHECK(g == again);
    grammar_unref(g);
    grammar_unref(again);
    grammar_store_destroy(s);
    tokenizer_destroy(t);
    clock_fake_destroy(c);
}

TEST(grammars_in_use_are_never_more_than_the_budget_and_others_go_for_them)
{
    enum { N = 120 };
    struct tokenizer *t = tokens();
    struct grammar_store *s = NULL;
    struct grammar *held[N] = {0}, *g;
    struct rd_error err = {0};
    uint64_t before = mem_usage().n_bytes;
    uint32_t n_ok = 0, n_full = 0;

    CHECK_OK(grammar_store_create(t, 8 * MIB, &s));
    for (unsigned i = 0; i < N; i++) { /* all of them in use */
        rd_status st = get(s, i, 600, &held[i], &err);

        CHECK(st == RD_OK || st == RD_E_FULL);
        n_ok += st == RD_OK;
        n_full += st == RD_E_FULL;
        CHECK(grammar_store_counts(s).used <= 8 * MIB);
        CHECK(mem_usage().n_bytes - before < 20 * MIB);
    }
    CHECK(n_ok > 20 && n_full > 20);
    CHECK(strstr(err.text, "try again later"));
    CHECK_EQ(grammar_store_counts(s).n_grammars, n_ok);
    CHECK_EQ(get(s, N, 600, &g, NULL), RD_E_FULL);
    CHECK_OK(get(s, 0, 600, &g, NULL)); /* a known one costs nothing */
    grammar_unref(g);
    for (unsigned i = 1; i < N; i++) { /* all but the first are left, and go */
        grammar_unref(held[i]);
        held[i] = NULL;
    }
    for (unsigned i = 0; i < 100; i++) {
        CHECK_OK(get(s, N + i, 600, &g, NULL));
        CHECK(grammar_store_counts(s).used <= 8 * MIB);
        grammar_unref(g);
    }
    CHECK_OK(get(s, 0, 600, &g, NULL));
    CHECK(g == held[0]); /* which was used all the time */
    grammar_unref(g);
    grammar_unref(held[0]);
    grammar_store_destroy(s);
    CHECK(mem_usage().n_bytes <= before + 4096);
    tokenizer_destroy(t);
}

TEST(the_one_used_longest_ago_goes_first)
{
    struct tokenizer *t = tokens();
    struct grammar_store *s = NULL;
    struct grammar *g, *first;
    uint32_t n = 0, most = 0;

    CHECK_OK(grammar_store_create(t, 8 * MIB, &s));
    CHECK_OK(get(s, 0, 600, &first, NULL));
    grammar_unref(first);
    for (unsigned i = 1; i < 200; i++) {
        CHECK_OK(get(s, i, 600, &g, NULL));
        grammar_unref(g);
        CHECK_OK(get(s, 0, 600, &g, NULL)); /* used again and again: the same */
        CHECK(g == first);
        grammar_unref(g);
        n = grammar_store_counts(s).n_grammars;
        most = n > most ? n : most;
    }
    CHECK(n < 190 && most > 20);
    grammar_store_destroy(s);
    tokenizer_destroy(t);
}

TEST(one_that_is_too_big_says_so)
{
    struct tokenizer *t = tokens();
    struct grammar_store *s = NULL;
    struct grammar *g = NULL;
    struct rd_error err = {0};

    CHECK_OK(grammar_store_create(t, 8 * MIB, &s));
    CHECK_EQ(get(s, 1, 14000, &g, &err), RD_E_LIMIT);
    CHECK(strstr(err.text, "1 MiB"));
    CHECK_OK(get(s, 1, 400, &g, &err));
    grammar_unref(g);
    grammar_store_destroy(s);
    tokenizer_destroy(t);
}

/* [[[[..: every bracket is a set that is held. */
TEST(a_text_that_is_nested_beyond_its_share_ends_alone)
{
    const struct output_form any = {.kind = RD_GRAMMAR_JSON_SCHEMA, .text = "true", .n_text = 4};
    struct tokenizer *t = tokens();
    struct grammar_store *s = NULL;
    struct grammar *g = NULL;
    struct grammar_matcher *deep, *flat;
    rd_status st = RD_OK;
    uint32_t depth = 0;

    CHECK_OK(grammar_store_create(t, 64 * MIB, &s));
    CHECK_OK(grammar_store_get(s, &any, false, &g, NULL));
    CHECK_OK(grammar_matcher_create(g, 8, &deep));
    CHECK_OK(grammar_matcher_create(g, 8, &flat));
    CHECK_OK(grammar_accept_bytes(flat, (const uint8_t *)"[", 1));
    while (st == RD_OK && depth < 2000000) {
        st = grammar_accept_bytes(deep, (const uint8_t *)(depth % 2 ? "[" : "{\"a\": "), depth % 2 ? 1 : 6);
        depth += st == RD_OK;
        CHECK(grammar_store_counts(s).used <= 64 * MIB);
        if (depth % 4 == 0) CHECK_OK(grammar_accept_bytes(flat, (const uint8_t *)"1, ", 3));
    }
    CHECK_EQ(st, RD_E_LIMIT);
    CHECK(depth > 2000);
    printf("nested %u deep\n", depth);
    CHECK_OK(grammar_accept_bytes(flat, (const uint8_t *)"[[[]]]]", 7));
    CHECK(grammar_can_end(flat));
    grammar_matcher_destroy(deep);
    grammar_matcher_destroy(flat);
    grammar_unref(g);
    grammar_store_destroy(s);
    tokenizer_destroy(t);
}

TEST(a_tag_that_is_a_special_token_is_that_token)
{
    static const char text[] =
        "{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"<call>\", "
        "\"content\": {\"type\": \"json_schema\", \"json_schema\": {\"const\": 7}}, \"end\": \"</call>\"}}";
    const struct output_form f = {.kind = RD_GRAMMAR_TAGS, .text = text, .n_text = sizeof(text) - 1};
    struct tokenizer *t;
    struct grammar_store *s = NULL;
    struct grammar *g = NULL;
    struct grammar_matcher *m;
    struct rd_error err = {0};
    const uint32_t *bits;
    int32_t id;

    tiny_vocab_init(&vocab, TOKENIZER_BPE);
    id = tiny_vocab_add(&vocab, "<call>", TOKEN_CONTROL, 0);
    CHECK_OK(tokenizer_create(&vocab.spec, &t, &err));
    CHECK_OK(grammar_store_create(t, 0, &s));
    CHECK_OK(grammar_store_get(s, &f, false, &g, &err));
    CHECK_OK(grammar_matcher_create(g, 8, &m));
    CHECK_OK(grammar_mask(m, UINT32_MAX, &bits));
    for (int32_t i = 0; i <= id; i++) CHECK_EQ(bits[i / 32] >> (i % 32) & 1, i == id);
    CHECK_OK(grammar_accept(m, id));
    CHECK_OK(grammar_accept_bytes(m, (const uint8_t *)"7</call>", 8)); /* not a token of this model: text */
    CHECK(grammar_must_end(m));
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_store_destroy(s);
    tokenizer_destroy(t);
}

struct asker {
    struct grammar_store *s;
    unsigned from;
    uint32_t n_bad;
};

static void ask(void *arg)
{
    struct asker *a = arg;

    for (unsigned i = 0; i < 60; i++) {
        struct grammar *g = NULL;
        rd_status st = get(a->s, a->from + i % 20, 300, &g, NULL);

        if (st != RD_OK && st != RD_E_FULL) a->n_bad++;
        if (st == RD_OK) grammar_unref(g);
    }
}

TEST(many_threads_ask_at_once)
{
    struct tokenizer *t = tokens();
    struct grammar_store *s = NULL;
    struct thread threads[3];
    struct asker askers[3];

    CHECK_OK(grammar_store_create(t, 2 * MIB, &s));
    for (unsigned i = 0; i < 3; i++) {
        askers[i] = (struct asker){s, i * 10, 0};
        CHECK_OK(thread_start(&threads[i], "asker", ask, &askers[i]));
    }
    for (unsigned i = 0; i < 3; i++) thread_join(&threads[i]);
    for (unsigned i = 0; i < 3; i++) CHECK_EQ(askers[i].n_bad, 0);
    CHECK(grammar_store_counts(s).used <= 2 * MIB);
    grammar_store_destroy(s);
    tokenizer_destroy(t);
}

TEST(any_allocation_may_fail_and_nothing_is_lost)
{
    struct tokenizer *t = tokens();

    for (int64_t k = 0; k < 4000; k++) {
        struct grammar_store *s = NULL;
        struct grammar *g = NULL;
        uint64_t alive = mem_n_alive(), n_allocs = mem_n_allocs();
        rd_status st;

        mem_fail_after(k);
        st = grammar_store_create(t, 64 * MIB, &s);
        if (st == RD_OK) {
            const struct output_form f = {
                .kind = RD_GRAMMAR_JSON_SCHEMA, .text = "{\"enum\": [1, \"a\"]}", .n_text = 18};

            st = grammar_store_get(s, &f, false, &g, NULL);
            if (st == RD_OK) grammar_unref(g);
            if (st != RD_OK) CHECK_EQ(grammar_store_counts(s).used, 0);
        }
        mem_fail_after(-1);
        grammar_store_destroy(s);
        CHECK(st == RD_OK || st == RD_E_NOMEM);
        CHECK_EQ(mem_n_alive(), alive);
        if (mem_n_allocs() - n_allocs <= (uint64_t)k) break;
    }
    tokenizer_destroy(t);
}
