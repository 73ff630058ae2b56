/* tests/text/grammar/test_grammar_faults.c - any allocation may fail while a text of any language is read, compiled, warmed
 * and followed: the answer is RD_E_NOMEM, nothing leaks, and no mask that is given is another one than with memory (F90).
 */
#include <jansson.h>
#include "base/hash.h"
#include "base/mem.h"
#include "test.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_languages.h"

#define N_TOKENS 288u
#define SPECIAL  287
#define STEPS    12u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STRIDE 7 /* of allocations; the first differs by language */
#else
#define STRIDE 1
#endif

enum language { SCHEMA, CHOICE, TAGS, REGEX, PATTERN, GBNF, EBNF };
static const struct subject {
    const char *name;
    enum language language;
    const char *text;
} subjects[] = {
    {"object", SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"maxLength\": 3}, \"b\": {\"enum\": [1, "
     "\"x\", null]}, "
     "\"c\": {\"$ref\": \"#/$defs/d\"}}, \"required\": [\"b\"], \"additionalProperties\": {\"type\": \"integer\"}, "
     "\"$defs\": "
     "{\"d\": {\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"maxItems\": 2}}}"},
    {"numbers", SCHEMA,
     "{\"anyOf\": [{\"type\": \"integer\", \"minimum\": -5, \"maximum\": 130, \"multipleOf\": 7}, {\"type\": "
     "\"number\", "
     "\"exclusiveMinimum\": 0.5}]}"},
    {"strings", SCHEMA,
     "{\"allOf\": [{\"type\": \"string\", \"pattern\": \"^[a-c]+$\"}, {\"minLength\": 2}, {\"not\": {\"const\": "
     "\"abc\"}}]}"},
    {"formats", SCHEMA, "{\"oneOf\": [{\"type\": \"string\", \"format\": \"date\"}, {\"type\": \"boolean\"}]}"},
    {"patterns", SCHEMA,
     "{\"type\": \"object\", \"patternProperties\": {\"^a\": {\"type\": \"integer\"}}, \"minProperties\": 1, "
     "\"propertyNames\": "
     "{\"maxLength\": 3}}"},
    {"conditions", SCHEMA,
     "{\"if\": {\"type\": \"integer\"}, \"then\": {\"minimum\": 5}, \"else\": {\"type\": [\"string\", \"null\"]}, "
     "\"dependentRequired\": {\"a\": "
     "[\"b\"]}}"},
    {"tuple", SCHEMA,
     "{\"type\": \"array\", \"prefixItems\": [{\"const\": {\"k\": [1.5]}}], \"items\": false, \"minItems\": 1}"},
    {"choice", CHOICE, "[\"yes\", \"no\", \"y\\u00e9s\"]"},
    {"tags", TAGS,
     "{\"type\": \"structural_tag\", \"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"<special>\"], "
     "\"tags\": [{\"begin\": "
     "\"<special>\", \"content\": {\"type\": \"json_schema\", \"json_schema\": {\"const\": 1}}, \"end\": \"</f>\"}]}}"},
    {"structures", TAGS,
     "{\"type\": \"structural_tag\", \"structures\": [{\"begin\": \"<f=a>\", \"schema\": {\"type\": \"integer\"}, "
     "\"end\": \"</f>\"}], "
     "\"triggers\": [\"<f=\"]}"},
    {"regex", REGEX, "(?i)a[^x-z\\d]{2,4}|\\p{Lu}+b*?\\.|[\\w]{3}"},
    {"pattern", PATTERN, "^a|b.c$"},
    {"gbnf", GBNF,
     "root ::= \"a\" x{2,5} ([b-d]+ | y)? # c\nx ::= \"x\" | \"[\" root \"]\"\ny ::= [^\\n\"]* \"\\x41\"\n"},
    {"ebnf", EBNF, "root ::= \"<\" name \">\" | \"-\" root\nname ::= [a-z]{1,10}\n"},
    {"lark", EBNF,
     "start: \"a\" B (c | \"x\"~2..3)+\nB: /[0-9]+/i\nc: %json {\"type\": \"integer\"} | WORD\n%import "
     "common.WORD\n%ignore \" \"\n"},
};
#define N_SUBJECTS (sizeof(subjects) / sizeof(subjects[0]))

static int32_t token_of(void *arg, const char *text, size_t n)
{
    (void)arg;
    return n == 9 && !memcmp(text, "<special>", 9) ? SPECIAL : -1;
}

static grammar_node from_json(struct grammar_builder *b, const struct subject *s)
{
    const struct schema_options o = {JSON_SPACES_PLAIN};
    const struct tag_tokens tokens = {token_of, NULL};
    json_t *v = json_loadb(s->text, strlen(s->text), JSON_DECODE_ANY, NULL);
    grammar_node node = 0;

    if (!v)
        grammar_fail(b, RD_E_NOMEM, "out of memory");
    else if (s->language == SCHEMA)
        node = grammar_from_schema(b, v, &o);
    else if (s->language == CHOICE)
        node = grammar_from_choice(b, v);
    else
        node = grammar_from_tags(b, v, &o, &tokens);
    json_decref(v);
    return node;
}

static grammar_node node_of(struct grammar_builder *b, const struct subject *s)
{
    switch (s->language) {
    case REGEX:
    case PATTERN:
        return grammar_from_regex(b, s->text, strlen(s->text), s->language == PATTERN);
    case GBNF:
        return grammar_from_gbnf(b, s->text, strlen(s->text));
    case EBNF:
        return grammar_from_ebnf(b, s->text, strlen(s->text));
    default:
        return from_json(b, s);
    }
}

static rd_status make_vocab(struct grammar_vocab **v)
{
    static const char *const words[] = {"{\"", "\": ", ", \"", "\"}", "[{", "true", "aa", "10", "20", "xx", "</", "Ab"};
    uint64_t offsets[N_TOKENS + 1] = {0};
    bool special[N_TOKENS] = {false};
    uint8_t bytes[512];

    for (uint32_t i = 0; i < N_TOKENS; i++) {
        const uint8_t byte = (uint8_t)i;
        const char *word = i >= 256 && i - 256 < sizeof(words) / sizeof(words[0]) ? words[i - 256] : "";
        size_t n = i < 256 ? 1 : strlen(word);

        memcpy(bytes + offsets[i], i < 256 ? (const void *)&byte : word, n);
        offsets[i + 1] = offsets[i] + n;
    }
    special[SPECIAL] = true;
    return grammar_vocab_create(N_TOKENS, bytes, offsets, special, v);
}

/* What was seen with all memory: the mask and its token at each step, what was forced. */
struct life {
    uint32_t masks[STEPS][2][N_TOKENS / 32];
    int32_t tokens[STEPS];
    uint8_t forced[STEPS][64];
    uint32_t n_forced[STEPS], n_steps;
};

static int32_t choose(const uint32_t *bits, uint32_t step)
{
    uint32_t at = (step * 101 + 33) % N_TOKENS;

    for (uint32_t i = 0; i < N_TOKENS; i++, at = (at + 1) % N_TOKENS)
        if (bits[at / 32] >> (at % 32) & 1) return (int32_t)at;
    return -1;
}

static const char *point; /* subject, and which allocation fails */

static void expect(bool fact, const char *what, uint32_t step)
{
    if (!fact) test_fail(__FILE__, __LINE__, "%s: %s at step %u", point, what, step);
}

/* n_left: near the end the tokens are others. A call that failed is made again: the failure was one. */
static rd_status mask(struct grammar_matcher *m, uint32_t n_left, const uint32_t **bits, bool *failed)
{
    rd_status st = grammar_mask(m, n_left, bits);

    *failed |= st == RD_E_NOMEM;
    for (int i = 0; st == RD_E_NOMEM && i < 2; i++) st = grammar_mask(m, n_left, bits);
    return st;
}

/* seen NULL: into *now; else what comes is compared with it. */
static rd_status follow(struct grammar_matcher *m, const struct life *seen, struct life *now)
{
    bool failed = false;

    for (uint32_t i = 0; i < STEPS; i++) {
        for (int k = 0; k < 2; k++) {
            const uint32_t *bits;
            rd_status st = mask(m, k ? 3 + STEPS - i : UINT32_MAX, &bits, &failed);

            if (st != RD_OK) return st;
            if (seen)
                expect(!memcmp(bits, seen->masks[i][k], sizeof(seen->masks[i][k])),
                       k ? "another mask near the end" : "another mask", i);
            else
                memcpy(now->masks[i][k], bits, sizeof(now->masks[i][k]));
        }
        {
            uint8_t bytes[64];
            uint32_t n = grammar_forced(m, bytes, sizeof(bytes));
            int32_t t = seen ? seen->tokens[i] : choose(now->masks[i][0], i);
            rd_status st;

            if (seen) {
                expect(n <= seen->n_forced[i] && !memcmp(bytes, seen->forced[i], n), "another text is forced", i);
            } else {
                memcpy(now->forced[i], bytes, n);
                now->n_forced[i] = n;
                now->tokens[i] = t;
                now->n_steps = i;
            }
            if (t < 0) break;
            st = grammar_accept(m, t);
            failed |= st == RD_E_NOMEM;
            for (int k = 0; st == RD_E_NOMEM && k < 2; k++) st = grammar_accept(m, t);
            if (st != RD_OK) return st;
        }
    }
    return failed ? RD_E_NOMEM : RD_OK;
}

static rd_status live(const struct subject *s, const struct life *seen, struct life *now)
{
    struct grammar_limits limits = grammar_limits_default;
    struct grammar_builder *b = NULL;
    struct grammar_vocab *v = NULL;
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    struct rd_error err = {0};
    rd_status st;

    limits.max_ns = 0;
    st = make_vocab(&v);
    if (st == RD_OK) st = grammar_builder_create(&limits, &b);
    if (st == RD_OK) st = grammar_compile(b, node_of(b, s), v, 0, &g, &err);
    if (st != RD_OK && st != RD_E_NOMEM) test_fail(__FILE__, __LINE__, "%s: %s", s->name, err.text);
    if (st == RD_OK) st = grammar_warm(g);
    if (st == RD_OK) st = grammar_matcher_create(g, STEPS, &m);
    if (st == RD_OK) st = follow(m, seen, now);
    grammar_matcher_destroy(m);
    grammar_unref(g);
    grammar_builder_destroy(b);
    grammar_vocab_unref(v);
    return st;
}

static void *json_alloc(size_t n)
{
    return mem_alloc(1, n);
}

static void fail_everywhere(void (*arm)(int64_t), int64_t from, int64_t stride)
{
    int64_t n_points = 0;

    json_set_alloc_funcs(json_alloc, mem_free);
    for (size_t i = 0; i < N_SUBJECTS; i++) {
        const struct subject *s = &subjects[i];
        uint64_t alive = mem_n_alive(), n_allocs = mem_n_allocs();
        struct life seen = {.n_steps = 0};
        int64_t n;

        CHECK_OK(live(s, NULL, &seen));
        n = (int64_t)(mem_n_allocs() - n_allocs);
        CHECK(n > 20);
        for (int64_t k = (from + (int64_t)i) % stride; k < n; k += stride, n_points++) {
            char where[64];
            rd_status st;

            snprintf(where, sizeof(where), "%s, allocation %d", s->name, (int)k);
            point = where;
            arm(k);
            st = live(s, &seen, NULL);
            arm(-1);
            /* RD_OK: what could not be kept was done without. */
            if (st != RD_OK && st != RD_E_NOMEM) test_fail(__FILE__, __LINE__, "%s: %d", point, st);
            CHECK_EQ(mem_n_alive(), alive);
        }
    }
    printf("%d points\n", (int)n_points);
}

TEST(one_allocation_fails_and_no_mask_is_another)
{
    fail_everywhere(mem_fail_after, 0, STRIDE);
}

TEST(memory_is_out_for_good_and_no_mask_is_another)
{
    fail_everywhere(mem_fail_from, 3, 5 * STRIDE);
}
