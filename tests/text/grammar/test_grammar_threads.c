/* tests/text/grammar/test_grammar_threads.c - a grammar and its vocabulary in several threads (run by the tsan preset), and
 * the compilers on the stack that threads have (F96).
 */
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "test.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_languages.h"

#define N_TOKENS 264u
#define ROUNDS   40u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define STACK_BYTES (1u << 20) /* their frames are bigger */
#else
#define STACK_BYTES (256u << 10)
#endif

static struct grammar_vocab *make_vocab(void)
{
    static const char *const words[] = {"{\"", "\": ", ", \"", "\"}", "[{", "true", "aa", "10"};
    uint64_t offsets[N_TOKENS + 1] = {0};
    struct grammar_vocab *v = NULL;
    uint8_t bytes[512];

    for (uint32_t i = 0; i < N_TOKENS; i++) {
        const uint8_t byte = (uint8_t)i;
        size_t n = i < 256 ? 1 : strlen(words[i - 256]);

        memcpy(bytes + offsets[i], i < 256 ? (const void *)&byte : words[i - 256], n);
        offsets[i + 1] = offsets[i] + n;
    }
    return grammar_vocab_create(N_TOKENS, bytes, offsets, NULL, &v) == RD_OK ? v : NULL;
}

/* Strings of at most n characters among others: rules that all of them have, and one that each has alone. */
static rd_status make_grammar(struct grammar_vocab *v, unsigned n, struct grammar **g)
{
    const struct schema_options o = {JSON_SPACES_PLAIN};
    struct grammar_builder *b = NULL;
    json_t *schema = json_pack("{s:s, s:{s:{s:s, s:i}, s:{}}, s:[s]}", "type", "object", "properties", "a", "type",
                               "string", "maxLength", (int)n, "b", "required", "b");
    rd_status st = schema ? grammar_builder_create(NULL, &b) : RD_E_NOMEM;

    if (st == RD_OK) st = grammar_compile(b, grammar_from_schema(b, schema, &o), v, 256 << 10, g, NULL);
    if (st == RD_OK) st = grammar_warm(*g);
    grammar_builder_destroy(b);
    json_decref(schema);
    return st;
}

struct shared {
    struct grammar_vocab *vocab;
    struct grammar *grammar;
    atomic_uint n_bad;
    atomic_bool over;
};

/* As a preparing thread: matchers of a grammar that is being followed, and other grammars of its vocabulary. */
static void prepare(void *arg)
{
    struct shared *s = arg;

    for (unsigned i = 0; !atomic_load(&s->over); i++) {
        struct grammar_matcher *m[4] = {NULL};
        struct grammar *g = NULL;

        for (int k = 0; k < 4; k++)
            if (grammar_matcher_create(s->grammar, 16, &m[k]) != RD_OK) atomic_fetch_add(&s->n_bad, 1);
        if (make_grammar(s->vocab, i % 7, &g) != RD_OK) atomic_fetch_add(&s->n_bad, 1);
        for (int k = 0; k < 4; k++) grammar_matcher_destroy(m[(k + i) % 4]);
        grammar_unref(g);
    }
}

/* As the engine: follows all texts of a grammar, whose masks are made meanwhile, and others that come and go. */
static void follow(struct grammar *g, unsigned round, atomic_uint *n_bad)
{
    struct grammar_matcher *m[3] = {NULL};

    for (int k = 0; k < 3; k++)
        if (grammar_matcher_create(g, 16, &m[k]) != RD_OK) atomic_fetch_add(n_bad, 1);
    for (unsigned i = 0; i < 60; i++)
        for (unsigned k = 0; k < 3; k++) {
            const uint32_t *bits;
            uint32_t at = (round * 31 + i * (7 + k)) % N_TOKENS;

            if (grammar_mask(m[k], i % 5 ? UINT32_MAX : 8, &bits) != RD_OK) atomic_fetch_add(n_bad, 1);
            for (uint32_t t = 0; t < N_TOKENS && !(bits[at / 32] >> (at % 32) & 1); t++) at = (at + 1) % N_TOKENS;
            if (!(bits[at / 32] >> (at % 32) & 1)) continue; /* at the end */
            if (grammar_accept(m[k], (int32_t)at) != RD_OK) atomic_fetch_add(n_bad, 1);
            if (i % 9 == 8) grammar_rollback(m[k], 1);
        }
    for (int k = 0; k < 3; k++) grammar_matcher_destroy(m[k]);
}

TEST(one_thread_follows_what_others_make_and_leave)
{
    uint64_t alive;
    struct shared s = {.vocab = make_vocab()};
    struct thread threads[3];
    struct grammar *other = NULL;

    CHECK(s.vocab);
    alive = mem_n_alive();
    CHECK_OK(make_grammar(s.vocab, 3, &s.grammar));
    for (int i = 0; i < 3; i++) CHECK_OK(thread_start(&threads[i], "prepare", prepare, &s));
    for (unsigned i = 0; i < ROUNDS; i++) {
        follow(s.grammar, i, &s.n_bad);
        if (make_grammar(s.vocab, i % 9, &other) != RD_OK) atomic_fetch_add(&s.n_bad, 1);
        if (other) follow(other, i, &s.n_bad);
        grammar_unref(other);
        other = NULL;
    }
    atomic_store(&s.over, true);
    for (int i = 0; i < 3; i++) thread_join(&threads[i]);
    CHECK_EQ(atomic_load(&s.n_bad), 0);
    grammar_unref(s.grammar);
    grammar_vocab_unref(s.vocab);
    CHECK(mem_n_alive() < alive + 8);
}

/* The last one to let go frees, whoever it is. */
static void let_go(void *arg)
{
    grammar_matcher_destroy(arg);
}

TEST(whoever_lets_go_last_frees)
{
    for (unsigned round = 0; round < 30; round++) {
        struct grammar_vocab *v = make_vocab();
        struct grammar *g = NULL;
        struct grammar_matcher *m[3];
        struct thread threads[3];

        CHECK_OK(make_grammar(v, round % 5, &g));
        for (int i = 0; i < 3; i++) CHECK_OK(grammar_matcher_create(g, 4, &m[i]));
        grammar_vocab_unref(v);
        for (int i = 0; i < 3; i++) CHECK_OK(thread_start(&threads[i], "last", let_go, m[i]));
        grammar_unref(g);
        for (int i = 0; i < 3; i++) thread_join(&threads[i]);
    }
}

/* ---- bombs, on the stack of a thread ------------------------------------------------------------------------------ */

enum language { SCHEMA, TAGS, CHOICE, REGEX, PATTERN, GBNF, EBNF };
struct bomb {
    const char *name;
    enum language language;
    const char *head, *open;
    uint32_t times;
    const char *middle, *close, *tail;
};
/* head, then `open` so many times, middle, `close` as often, tail. */
static const struct bomb bombs[] = {
    {"regex in brackets", REGEX, "", "(", 100000, "a", ")", ""},
    {"regex in brackets, alternatives", REGEX, "", "(a|", 100000, "a", ")", ""},
    {"regex, looking ahead", REGEX, "", "(?=", 100000, "a", ")", ""},
    {"regex, repeated repeats", REGEX, "", "(?:", 200, "a", "{1,9})", ""},
    {"regex, many alternatives", REGEX, "a", "|ab", 10000, "", "", ""},
    {"regex, a billion", REGEX, "", "a{0,1000000000}b", 20, "", "", ""},
    {"regex, backwards", REGEX, "(a|b)*a", "(a|b)", 40, "", "", ""},
    {"regex, many classes", REGEX, "", "[a-z-[b]]", 10000, "", "", ""},
    {"pattern in brackets", PATTERN, "^", "(", 100000, "a", ")", "$"},
    {"pattern, anchored alternatives", PATTERN, "", "(^a|", 2000, "b$", ")", ""},
    {"GBNF in brackets", GBNF, "root ::= ", "(", 100000, "\"a\"", ")", ""},
    {"GBNF, alternatives in brackets", GBNF, "root ::= ", "(\"b\" | ", 100000, "\"a\"", ")", ""},
    {"GBNF, repeated repeats", GBNF, "root ::= ", "(", 100, "\"a\"", "){1,9}", ""},
    {"GBNF, many alternatives", GBNF, "root ::= \"a\"", " | \"bc\"", 10000, "", "", ""},
    {"GBNF, itself", GBNF, "root ::= root", " root", 10000, "", "", ""},
    {"EBNF in brackets", EBNF, "root ::= ", "(", 100000, "\"a\"", ")", ""},
    {"Lark in brackets", EBNF, "start: ", "(", 100000, "\"a\"", ")", "\n"},
    {"Lark, maybe maybe", EBNF, "start: ", "[", 100000, "\"a\"", "]", "\n"},
    {"Lark, a regex in brackets", EBNF, "start: /", "(", 100000, "a", ")", "/\n"},
    {"schema, not", SCHEMA, "", "{\"not\": ", 2000, "{}", "}", ""},
    {"schema, allOf", SCHEMA, "", "{\"allOf\": [", 1000, "{}", "]}", ""},
    {"schema, anyOf", SCHEMA, "", "{\"anyOf\": [{\"type\": \"null\"}, ", 1000, "{}", "]}", ""},
    {"schema, oneOf", SCHEMA, "", "{\"oneOf\": [{\"type\": \"null\"}, ", 1000, "{\"const\": 1}", "]}", ""},
    {"schema, items", SCHEMA, "", "{\"type\": \"array\", \"items\": ", 2000, "{}", "}", ""},
    {"schema, properties", SCHEMA, "", "{\"properties\": {\"a\": ", 1000, "{}", "}}", ""},
    {"schema, if", SCHEMA, "", "{\"if\": ", 1000, "{\"type\": \"string\"}", ", \"then\": {\"minLength\": 1}}", ""},
    {"schema, a deep constant", SCHEMA, "{\"const\": ", "[", 2000, "1", "]", "}"},
    {"schema, deep constants", SCHEMA, "{\"enum\": [", "{\"a\": ", 1000, "1", "}", "]}"},
    {"schema, itself", SCHEMA, "{\"$ref\": \"#\"", "", 1, "", "", "}"},
    {"schema, properties of itself", SCHEMA, "{\"properties\": {\"a\": {\"$ref\": \"#\"}}, \"minProperties\": 1", "", 1,
     "", "", "}"},
    {"schema, not itself", SCHEMA, "{\"not\": {\"$ref\": \"#\"}", "", 1, "", "", "}"},
    {"schema, all of itself twice", SCHEMA, "{\"anyOf\": [{\"allOf\": [{\"$ref\": \"#\"}, {\"$ref\": \"#\"}]}, true]",
     "", 1, "", "", "}"},
    {"schema, many values", SCHEMA, "{\"enum\": [0", ", \"abcdefgh\"", 10000, "", "", "]}"},
    {"schema, a billion items", SCHEMA, "{\"minItems\": 1000000000, \"items\": {\"type\": \"string\"}", "", 1, "", "",
     "}"},
    {"schema, a deep pattern", SCHEMA, "{\"pattern\": \"", "(", 100000, "a", ")", "\"}"},
    {"schema, dependencies", SCHEMA, "", "{\"dependentSchemas\": {\"a\": ", 500, "{}", "}}", ""},
    {"schema, contains", SCHEMA, "", "{\"contains\": ", 1000, "{}", "}", ""},
    {"tags in sequences", TAGS, "{\"type\": \"structural_tag\", \"format\": ",
     "{\"type\": \"sequence\", \"elements\": [", 600, "{\"type\": \"any_text\"}", "]}", "}"},
    {"tags, a deep schema", TAGS,
     "{\"type\": \"structural_tag\", \"format\": {\"type\": \"json_schema\", \"json_schema\": ", "{\"items\": ", 1000,
     "{}", "}", "}}"},
    /* As deep as may be. */
    {"regex, 98 brackets", REGEX, "", "(x|(?=y)", 98, "a", ")", ""},
    {"pattern, 98 brackets", PATTERN, "^", "(?:x|", 98, "a", "y)?", "$"},
    {"GBNF, 98 brackets", GBNF, "root ::= ", "(\"b\" | [a-c] ", 98, "\"a\"", ")*", ""},
    {"Lark, 98 brackets", EBNF, "start: ", "(\"b\" | /c+/ ", 98, "\"a\"", ")*", "\n"},
    {"schema, 240 nots", SCHEMA, "", "{\"not\": ", 240, "{\"type\": \"string\"}", "}", ""},
    {"schema, 240 allOfs", SCHEMA, "", "{\"minLength\": 1, \"allOf\": [", 240, "{\"type\": \"string\"}", "]}", ""},
    {"schema, 120 anyOfs", SCHEMA, "", "{\"anyOf\": [{\"type\": \"null\"}, ", 120, "{\"const\": 1}", "]}", ""},
    {"schema, 120 oneOfs", SCHEMA, "", "{\"oneOf\": [{\"const\": 2}, ", 120, "{\"const\": 1}", "]}", ""},
    {"schema, 240 arrays", SCHEMA, "", "{\"type\": \"array\", \"contains\": {}, \"items\": ", 240, "{}", "}", ""},
    {"schema, 120 objects", SCHEMA, "", "{\"required\": [\"a\"], \"properties\": {\"a\": ", 120, "{}", "}}", ""},
    {"schema, 120 conditions", SCHEMA, "", "{\"if\": ", 120, "{\"type\": \"string\"}",
     ", \"then\": {\"minLength\": 1}}", ""},
    {"schema, a constant 198 deep", SCHEMA, "{\"const\": ", "[", 198, "1", "]", "}"},
    {"schema, not a constant 198 deep", SCHEMA, "{\"not\": {\"const\": ", "[", 198, "1", "]", "}}"},
    {"schema, 120 dependencies", SCHEMA, "", "{\"dependentSchemas\": {\"a\": ", 120, "{}", "}}", ""},
    {"tags, 60 sequences", TAGS,
     "{\"type\": \"structural_tag\", \"format\": ", "{\"type\": \"sequence\", \"elements\": [", 60,
     "{\"type\": \"json_schema\", \"json_schema\": {\"items\": {\"items\": {}}}}", "]}", "}"},
    {"choice, many", CHOICE, "[\"a\"", ", \"bcd\"", 10000, "", "", "]"},
};

static void put(char **at, const char *s, uint32_t times)
{
    size_t n = strlen(s);

    for (uint32_t i = 0; i < times; i++, *at += n) memcpy(*at, s, n);
}

static char *text_of(const struct bomb *b, size_t *n)
{
    size_t size =
        strlen(b->head) + strlen(b->middle) + strlen(b->tail) + b->times * (strlen(b->open) + strlen(b->close)) + 1;
    char *text = mem_zalloc(size, 1), *at = text;

    if (!text) return NULL;
    put(&at, b->head, 1);
    put(&at, b->open, b->times);
    put(&at, b->middle, 1);
    put(&at, b->close, b->times);
    put(&at, b->tail, 1);
    *n = (size_t)(at - text);
    return text;
}

static grammar_node from_json(struct grammar_builder *b, enum language language, const char *text, size_t n)
{
    const struct schema_options o = {JSON_SPACES_PLAIN};
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY, NULL);
    grammar_node node = 0;

    if (!v)
        grammar_fail(b, RD_E_INVALID, "not JSON");
    else if (language == SCHEMA)
        node = grammar_from_schema(b, v, &o);
    else if (language == CHOICE)
        node = grammar_from_choice(b, v);
    else
        node = grammar_from_tags(b, v, &o, NULL);
    json_decref(v);
    return node;
}

static grammar_node node_of(struct grammar_builder *b, enum language language, const char *text, size_t n)
{
    switch (language) {
    case REGEX:
    case PATTERN:
        return grammar_from_regex(b, text, n, language == PATTERN);
    case GBNF:
        return grammar_from_gbnf(b, text, n);
    case EBNF:
        return grammar_from_ebnf(b, text, n);
    default:
        return from_json(b, language, text, n);
    }
}

struct outcome {
    struct grammar_vocab *vocab;
    uint32_t n_ok, n_refused, n_wrong;
    double worst_ms;
    const char *worst;
};

static void throw_one(const struct bomb *bomb, struct outcome *out)
{
    const struct grammar_limits limits = {100000, 1000000, (size_t)64 << 20, 900000000, 0, NULL};
    uint64_t began = clock_now_ns(clock_system());
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    struct rd_error err = {0};
    size_t n = 0;
    char *text = text_of(bomb, &n);
    rd_status st = text ? grammar_builder_create(&limits, &b) : RD_E_NOMEM;
    double ms;

    if (st == RD_OK) st = grammar_compile(b, node_of(b, bomb->language, text, n), out->vocab, 0, &g, &err);
    if (st == RD_OK) st = grammar_warm(g);
    if (st == RD_OK) st = grammar_matcher_create(g, 4, &m);
    if (st == RD_OK) {
        const uint32_t *bits;
        uint8_t bytes[64];

        st = grammar_mask(m, 100, &bits);
        if (st == RD_OK) grammar_shortest(m, bytes, sizeof(bytes), NULL);
    }
    out->n_ok += st == RD_OK;
    out->n_refused += st == RD_E_INVALID || st == RD_E_UNSUPPORTED || st == RD_E_LIMIT;
    if (st == RD_E_NOMEM) out->n_wrong++;
    ms = (double)(clock_now_ns(clock_system()) - began) / 1e6;
    if (ms > out->worst_ms) {
        out->worst_ms = ms;
        out->worst = bomb->name;
    }
    if (getenv("RADISH_BOMBS")) printf("%8.1f ms  %2d  %s: %.80s\n", ms, (int)st, bomb->name, err.text);
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_builder_destroy(b);
    mem_free(text);
}

static void *throw_all(void *arg)
{
    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++) throw_one(&bombs[i], arg);
    return NULL;
}

TEST(F96_bombs_of_every_language_fit_the_stack_of_a_thread)
{
    struct outcome out = {.vocab = make_vocab()};
    pthread_attr_t small;
    pthread_t thread;
    uint64_t alive;

    CHECK(out.vocab);
    alive = mem_n_alive();
    CHECK_EQ(pthread_attr_init(&small), 0);
    CHECK_EQ(pthread_attr_setstacksize(&small, STACK_BYTES), 0);
    CHECK_EQ(pthread_create(&thread, &small, throw_all, &out), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&small);
    printf("%u compiled, %u refused; longest %.0f ms: %s\n", out.n_ok, out.n_refused, out.worst_ms, out.worst);
    CHECK_EQ(out.n_ok + out.n_refused, sizeof(bombs) / sizeof(bombs[0]));
    CHECK(out.n_refused > 8);
    grammar_vocab_unref(out.vocab);
    CHECK(mem_n_alive() <= alive);
}
