/* tests/text/grammar/test_grammar_limits.c - grammars that grow: those that must be refused, soon and by name, and those
 * that look so and are not.
 */
#include <jansson.h>
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "test.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_languages.h"

static struct grammar_builder *builder(void)
{
    struct grammar_builder *b = NULL;
    struct grammar_limits l = grammar_limits_default;

    l.max_ns = 0;
    return grammar_builder_create(&l, &b) == RD_OK ? b : NULL;
}

static grammar_node letter(struct grammar_builder *b, char low, char high)
{
    return grammar_class(b, &(struct grammar_range){(uint32_t)low, (uint32_t)high}, 1, false);
}

static rd_status compile(struct grammar_builder *b, grammar_node root, struct grammar **g, const char *said)
{
    struct rd_error err = {0};
    rd_status st = grammar_compile(b, root, NULL, 0, g, &err);

    if (st != RD_OK && (!said || !strstr(err.text, said))) test_fail(__FILE__, __LINE__, "said: %s", err.text);
    grammar_builder_destroy(b);
    return st;
}

static bool accepts(struct grammar *g, const char *text, uint32_t times)
{
    struct grammar_matcher *m = NULL;
    bool ok = grammar_matcher_create(g, times, &m) == RD_OK;

    for (uint32_t i = 0; ok && i < times; i++)
        ok = grammar_accept_bytes(m, (const uint8_t *)text, strlen(text)) == RD_OK;
    ok = ok && grammar_can_end(m);
    grammar_matcher_destroy(m);
    return ok;
}

TEST(counts_up_to_a_billion_take_few_states)
{
    const uint32_t counts[] = {0, 1, 255, 256, 257, 511, 512, 513, 1000, 65535, 65536, 65537, 70000};

    for (uint32_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        for (uint32_t k = i; k < sizeof(counts) / sizeof(*counts); k++) {
            if (k != i && k != i + 1 && k + 1 < sizeof(counts) / sizeof(*counts)) continue;
            struct grammar_builder *b = builder();
            struct grammar *g = NULL;

            CHECK_OK(compile(b, grammar_repeat(b, letter(b, 'a', 'z'), counts[i], counts[k]), &g, NULL));
            for (uint32_t j = 0; j < sizeof(counts) / sizeof(*counts); j++)
                CHECK_EQ(accepts(g, "x", counts[j]), j >= i && j <= k);
            grammar_unref(g);
        }
    struct grammar_builder *b = builder();
    struct grammar *g = NULL;

    CHECK_OK(compile(b, grammar_repeat(b, letter(b, 'a', 'z'), 1000000, 1000000000), &g, NULL));
    CHECK(grammar_counts(g).n_states < 20000);
    grammar_unref(g);
}

TEST(recursion_on_any_side_is_followed_without_growing)
{
    for (uint32_t side = 0; side < 3; side++) {
        struct grammar_builder *b = builder();
        struct grammar *g = NULL;
        grammar_node rule = grammar_rule(b, "r", 1), x = grammar_text(b, "x", 1),
                     parts[2] = {side ? x : rule, side ? rule : x};
        grammar_node alt[3] = {x, grammar_seq(b, parts, 2), rule};

        grammar_define(b, rule, grammar_alt(b, alt, side == 2 ? 3 : 2));
        CHECK_OK(compile(b, rule, &g, NULL));
        CHECK(accepts(g, "x", 20000));
        CHECK(!accepts(g, "y", 1));
        CHECK(grammar_counts(g).n_sets < 20 || side == 2);
        grammar_unref(g);
    }
}

TEST(a_rule_of_itself_alone_is_refused_by_name)
{
    struct grammar_builder *b = builder();
    struct grammar *g = NULL;
    grammar_node rule = grammar_rule(b, "ouroboros", 9), other = grammar_rule(b, "missing", 7), parts[2] = {rule, rule};

    grammar_define(b, rule, grammar_seq(b, parts, 2));
    CHECK_EQ(compile(b, rule, &g, "ouroboros"), RD_E_INVALID);
    b = builder();
    other = grammar_rule(b, "missing", 7);
    CHECK_EQ(compile(b, other, &g, "missing"), RD_E_INVALID);
}

/* (a|b)*a(a|b){n}: 2 ^ n states. */
TEST(what_doubles_its_states_is_refused_soon)
{
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    uint64_t start = clock_now_ns(clock_system());
    struct grammar_limits l = grammar_limits_default;
    grammar_node parts[3], any;

    l.max_ns = 300000000;
    l.max_states = UINT32_MAX;
    l.max_bytes = (size_t)1 << 40;
    CHECK_OK(grammar_builder_create(&l, &b));
    any = letter(b, 'a', 'b');
    parts[0] = grammar_repeat(b, any, 0, GRAMMAR_UNBOUNDED);
    parts[1] = grammar_text(b, "a", 1);
    parts[2] = grammar_repeat(b, any, 60, 60);
    CHECK_EQ(compile(b, grammar_seq(b, parts, 3), &g, "longer than"), RD_E_INVALID);
    if (clock_now_ns(clock_system()) - start > 3000000000ull)
        test_note("a limit of 0.3 s was kept in %.1f s", (double)(clock_now_ns(clock_system()) - start) / 1e9);
    b = builder();
    any = letter(b, 'a', 'b');
    parts[0] = grammar_repeat(b, any, 0, GRAMMAR_UNBOUNDED);
    parts[1] = grammar_text(b, "a", 1);
    parts[2] = grammar_repeat(b, any, 60, 60);
    CHECK_EQ(compile(b, grammar_seq(b, parts, 3), &g, "more than"), RD_E_INVALID);
}

/* (a|b)*a(a|b){60}, by a clock that only looks at it move. */
static rd_status compile_by(struct clock *c, uint64_t max_ns, uint64_t max_wall_ns, struct rd_error *err)
{
    struct grammar_limits l = {UINT32_MAX, UINT32_MAX, (size_t)1 << 40, max_ns, max_wall_ns, c};
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    grammar_node parts[3], any;
    rd_status st = grammar_builder_create(&l, &b);

    if (st != RD_OK) return st;
    any = letter(b, 'a', 'b');
    parts[0] = grammar_repeat(b, any, 0, GRAMMAR_UNBOUNDED);
    parts[1] = grammar_text(b, "a", 1);
    parts[2] = grammar_repeat(b, any, 60, 60);
    st = grammar_compile(b, grammar_seq(b, parts, 3), NULL, 0, &g, err);
    grammar_builder_destroy(b);
    grammar_unref(g);
    return st;
}

TEST(the_threads_own_time_refuses_and_a_busy_machine_asks_to_come_again)
{
    struct clock *c = clock_fake_create(0, 0);
    struct rd_error err = {0};

    CHECK(c);
    clock_fake_step(c, 1000,
                    1000000); /* the thread works, hardly any time passes: it can only be its own that is over */
    CHECK_EQ(compile_by(c, 900000000, 30000000000, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "takes longer than 0.9 s"));
    clock_fake_step(c, 100000000, 0); /* time passes and the thread does not get on */
    CHECK_EQ(compile_by(c, 900000000, 30000000000, &err), RD_E_FULL);
    CHECK(strstr(err.text, "too busy") && strstr(err.text, "30 s") && strstr(err.text, "try again later"));
    clock_fake_destroy(c);
}

static rd_status schema_by(struct clock *c, const json_t *schema, struct rd_error *err)
{
    static const struct schema_options o = {JSON_SPACES_PLAIN};
    struct grammar_limits l = {100000, 1000000, (size_t)64 << 20, 900000000, 30000000000, c};
    struct grammar_builder *b = NULL;
    rd_status st = grammar_builder_create(&l, &b);

    if (st != RD_OK) return st;
    grammar_from_schema(b, schema, &o);
    st = grammar_status(b, err);
    grammar_builder_destroy(b);
    return st;
}

/* Ways through alternatives are looked at one by one: each of 30 ms here. */
TEST(a_schemas_alternatives_count_as_time_of_its_grammar)
{
    struct clock *c = clock_fake_create(0, 0);
    json_t *schema = json_object(), *ways = json_array();
    struct rd_error err = {0};

    CHECK(c && schema && ways);
    for (int i = 0; i < 40; i++) json_array_append_new(ways, json_pack("{s:i}", "minLength", i));
    json_object_set_new(schema, "anyOf", ways);
    CHECK_OK(schema_by(c, schema, &err));
    clock_fake_step(c, 1000000000, 0); /* 40 s, none of them the thread's */
    CHECK_EQ(schema_by(c, schema, &err), RD_E_FULL);
    clock_fake_step(c, 0, 30000000);
    CHECK_EQ(schema_by(c, schema, &err), RD_E_INVALID);
    CHECK(strstr(err.text, "takes longer than"));
    json_decref(schema);
    clock_fake_destroy(c);
}

static rd_status gbnf(const char *text, struct grammar **g, struct rd_error *err)
{
    struct grammar_builder *b = builder();
    rd_status st = grammar_compile(b, grammar_from_gbnf(b, text, strlen(text)), NULL, 0, g, err);

    grammar_builder_destroy(b);
    return st;
}

/* Rules that contain themselves, each called by the one before: 14,000 rules took 14,000 rounds of all of them to tell apart.
 * Counted in looks at a clock, which do not depend on the machine. */
TEST(rules_are_told_apart_in_time_that_grows_as_they_do)
{
    struct buf text = {0};
    struct clock *c = clock_fake_create(0, 0);
    uint64_t took[2] = {0};

    CHECK(c);
    clock_fake_step(c, 0, 1);
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t n = 500u << (2 * i);
        struct grammar_limits l = {1u << 20, 1u << 24, (size_t)1 << 30, 1ull << 60, 0, c};
        struct grammar_builder *b = NULL;
        struct grammar *g = NULL;
        struct rd_error err = {0};
        uint64_t start;

        buf_clear(&text);
        buf_puts(&text, "root ::= r0\n");
        for (uint32_t r = 0; r < n; r++) buf_printf(&text, "r%u ::= r%u \"x\" | \"(\" r%u \")\"\n", r, r + 1, r);
        buf_printf(&text, "r%u ::= \"b\"\n", n);
        CHECK(!text.failed);
        CHECK_OK(grammar_builder_create(&l, &b));
        start = clock_thread_ns(c);
        CHECK_OK(grammar_compile(b, grammar_from_gbnf(b, text.data, text.n), NULL, 0, &g, &err));
        took[i] = clock_thread_ns(c) - start;
        grammar_builder_destroy(b);
        grammar_unref(g);
    }
    CHECK(took[0] > 1);
    CHECK(took[1] <= 5 * took[0]); /* 16 times, were it by squares */
    buf_deinit(&text);
    clock_fake_destroy(c);
}

/* The cheapest way out of each of n rules is through the one before, which stands behind it: a byte would take seconds. */
TEST(ways_out_that_hang_on_each_other_are_found_or_given_up)
{
    struct buf text = {0};
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    struct rd_error err = {0};

    for (uint32_t shuffled = 0; shuffled < 2; shuffled++) {
        const uint32_t n = 6000, step = shuffled ? 2531 : n - 1; /* no common divisor with n: each comes once */
        rd_status st;

        buf_clear(&text);
        buf_puts(&text, "root ::= \"(\" a \")\"\na ::= \"q\" | r0 \"z\"");
        for (uint32_t i = 1, r = step; i < n; i++, r = (r + step) % n) buf_printf(&text, " | r%u e", r);
        for (uint32_t r = 0; r < n; r++) buf_printf(&text, "\nr%u ::= r%u \"x\" | \"(\" r%u \")\"", r, r + 1, r);
        buf_printf(&text, "\nr%u ::= \"b\"\ne ::= \"z\"{30000}\n", n);
        CHECK(!text.failed);
        CHECK_OK(gbnf(text.data, &g, &err));
        CHECK_OK(grammar_matcher_create(g, 4, &m));
        st = grammar_accept_bytes(m, (const uint8_t *)"(", 1);
        CHECK_EQ(st, shuffled ? RD_E_LIMIT : RD_OK);
        grammar_matcher_destroy(m);
        grammar_unref(g);
    }
    buf_deinit(&text);
}

TEST(a_graph_of_shared_nodes_is_no_tree)
{
    struct grammar_builder *b = builder();
    struct grammar *g = NULL;
    grammar_node node = grammar_text(b, "ab", 2);

    for (uint32_t i = 0; i < 30; i++) {
        grammar_node parts[2] = {grammar_repeat(b, node, 0, 2), grammar_repeat(b, node, 1, 2)};

        node = grammar_alt(b, parts, 2);
    }
    CHECK_OK(compile(b, node, &g, NULL));
    CHECK(accepts(g, "ab", 8) && !accepts(g, "abb", 1));
    grammar_unref(g);
}

TEST(deep_trees_and_long_chains_of_rules_are_no_deep_recursion)
{
    struct grammar_builder *b = builder();
    struct grammar *g = NULL;
    grammar_node node = grammar_text(b, "x", 1), y = grammar_text(b, "y", 1), parts[2];

    for (uint32_t i = 0; i < 4000; i++) {
        parts[0] = node;
        parts[1] = y;
        node = i % 2 ? grammar_alt(b, parts, 2) : grammar_repeat(b, node, 1, i % 1000 ? 1 : 2);
    }
    compile(b, node, &g, NULL);
    grammar_unref(g);
    g = NULL;
    b = builder();
    node = grammar_text(b, "x", 1);
    for (uint32_t i = 0; i < 5000; i++) {
        grammar_node rule = grammar_rule(b, "r", 1);

        grammar_define(b, rule, node);
        parts[0] = grammar_text(b, "(", 1);
        parts[1] = rule;
        node = i % 2 ? rule : grammar_seq(b, parts, 2);
    }
    CHECK_OK(compile(b, node, &g, NULL));
    grammar_unref(g);
}

TEST(ten_thousand_alternatives_are_fine)
{
    struct grammar_builder *b = builder();
    struct grammar *g = NULL;
    static grammar_node parts[10000];
    char text[32];

    for (uint32_t i = 0; i < 10000; i++) {
        int n = snprintf(text, sizeof(text), "\"value-%u\"", i * 7919u);

        parts[i] = grammar_text(b, text, (size_t)n);
    }
    CHECK_OK(compile(b, grammar_alt(b, parts, 10000), &g, NULL));
    CHECK(accepts(g, "\"value-7919\"", 1));
    CHECK(!accepts(g, "\"value-7918\"", 1));
    grammar_unref(g);
}

TEST(products_of_recursive_rules_are_refused_and_others_are_not)
{
    struct grammar_builder *b = builder();
    struct grammar *g = NULL;
    grammar_node rule = grammar_rule(b, "r", 1), x = grammar_text(b, "x", 1), parts[2] = {x, rule}, alt[2];

    CHECK_EQ(grammar_is_nothing(b, rule), -1);
    alt[0] = x;
    alt[1] = grammar_seq(b, parts, 2);
    grammar_define(b, rule, grammar_alt(b, alt, 2));
    CHECK_EQ(grammar_is_nothing(b, rule), -1);
    CHECK_EQ(grammar_is_nothing(b, grammar_except(b, x, x)), 1);
    CHECK_EQ(grammar_is_nothing(b, grammar_both(b, x, grammar_text(b, "y", 1))), 1);
    CHECK_EQ(grammar_is_nothing(b, grammar_except(b, letter(b, 'a', 'x'), x)), 0);
    CHECK_EQ(compile(b, grammar_both(b, rule, x), &g, "contain themselves"), RD_E_INVALID);
}

/* "x..x" with so many characters, each of one, two or three bytes. */
static bool counted_text(struct grammar *g, uint32_t n)
{
    static const char *const chars[] = {"x", "\\n", "\xc3\xa9", "y", "\xe2\x82\xac"};
    struct grammar_matcher *m = NULL;
    bool ok = grammar_matcher_create(g, 1, &m) == RD_OK && grammar_accept_bytes(m, (const uint8_t *)"\"", 1) == RD_OK;

    for (uint32_t i = 0; ok && i < n; i++) {
        const char *c = chars[(i * 7 + n) % 5];

        ok = grammar_accept_bytes(m, (const uint8_t *)c, strlen(c)) == RD_OK;
    }
    ok = ok && grammar_accept_bytes(m, (const uint8_t *)"\";", 2) == RD_OK && grammar_must_end(m);
    grammar_matcher_destroy(m);
    return ok;
}

TEST(counts_are_exact_where_they_are_put_together)
{
    static const uint32_t counts[][2] = {{0, 3},
                                         {0, 4},
                                         {2, 4},
                                         {4, 4},
                                         {0, 255},
                                         {0, 256},
                                         {256, 256},
                                         {0, 257},
                                         {1, 258},
                                         {257, 257},
                                         {255, 511},
                                         {0, 511},
                                         {0, 512},
                                         {0, 513},
                                         {300, 700},
                                         {0, 1000},
                                         {512, 513},
                                         {5, GRAMMAR_UNBOUNDED},
                                         {300, GRAMMAR_UNBOUNDED}};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct grammar_builder *b = builder();
        uint32_t min = counts[i][0], max = counts[i][1];
        const struct grammar_range plain[] = {{'a', 'z'}, {0x80, 0x10FFFF}};
        const grammar_node chars[] = {grammar_class(b, plain, 2, false), grammar_text(b, "\\n", 2)};
        const grammar_node parts[] = {grammar_text(b, "\"", 1), grammar_repeat(b, grammar_alt(b, chars, 2), min, max),
                                      grammar_text(b, "\";", 2)};
        struct grammar *g = NULL;

        CHECK_OK(compile(b, grammar_seq(b, parts, 3), &g, NULL));
        if (min) CHECK(!counted_text(g, min - 1));
        CHECK(counted_text(g, min));
        CHECK(counted_text(g, min + 1) == (min < max));
        for (uint32_t n = 254; n < 260; n++) CHECK(counted_text(g, n) == (n >= min && n <= max));
        for (uint32_t n = 510; n < 515; n++) CHECK(counted_text(g, n) == (n >= min && n <= max));
        if (max != GRAMMAR_UNBOUNDED) {
            CHECK(counted_text(g, max));
            CHECK(!counted_text(g, max + 1));
        }
        grammar_unref(g);
    }
}

/* A hundred levels of two ways each: whoever sends such a grammar gets an end of his own request, soon. */
/* Whether the states of a JSON string of up to max characters, with those that are made on the way, are at most n. */
static bool string_takes(uint32_t max, uint32_t n)
{
    struct grammar_limits l = grammar_limits_default;
    struct grammar_builder *b = NULL;
    struct grammar *g = NULL;
    struct rd_error err;
    bool fits;

    l.max_ns = 0;
    l.max_states = n;
    if (grammar_builder_create(&l, &b) != RD_OK) return false;
    const struct grammar_range plain[] = {{' ', '!'}, {'#', '['}, {']', 0x10FFFF}};
    const grammar_node escape[] = {grammar_text(b, "\\", 1), letter(b, 'a', 'z')};
    const grammar_node chars[] = {grammar_class(b, plain, 3, false), grammar_seq(b, escape, 2)};
    const grammar_node parts[] = {grammar_text(b, "[\"", 2), grammar_repeat(b, grammar_alt(b, chars, 2), 0, max),
                                  grammar_text(b, "\", 1]", 5)};

    fits = grammar_compile(b, grammar_seq(b, parts, 3), NULL, 0, &g, &err) == RD_OK;
    grammar_unref(g);
    grammar_builder_destroy(b);
    return fits;
}

TEST(a_count_that_is_a_multiple_of_a_chunk_takes_no_more_states)
{
    for (uint32_t max = 512; max <= 4096; max *= 2) {
        uint32_t n = 1000;

        while (!string_takes(max - 1, n)) n += n / 16;
        CHECK(string_takes(max, n + n / 4));
    }
}

TEST(what_is_too_ambiguous_to_follow_is_given_up)
{
    struct grammar_builder *b = builder();
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    grammar_node node = letter(b, 'x', 'x');
    uint32_t n_limits = 0;

    for (uint32_t i = 0; i < 100; i++) {
        grammar_node rule = grammar_rule(b, "level", 5);
        const grammar_node ways[] = {grammar_repeat(b, node, 0, 2), grammar_repeat(b, node, 1, 2)};

        grammar_define(b, rule, grammar_alt(b, ways, 2));
        node = rule;
    }
    CHECK_OK(compile(b, node, &g, NULL));
    CHECK_OK(grammar_matcher_create(g, 400, &m));
    for (uint32_t i = 0; i < 400; i++) {
        rd_status st = grammar_accept_bytes(m, (const uint8_t *)"x", 1);

        CHECK(st == RD_OK || st == RD_E_LIMIT);
        n_limits += st == RD_E_LIMIT;
        if (st == RD_E_LIMIT) break;
        CHECK(grammar_can_end(m));
    }
    printf("too ambiguous: %u limit%s\n", n_limits, n_limits == 1 ? "" : "s");
    grammar_rollback(m, 1);
    CHECK(grammar_can_end(m));
    grammar_matcher_destroy(m);
    grammar_unref(g);
}

/* Its bytes are all written, or it has no length: what lay in the caller's memory is no text. */
TEST(a_shortest_text_that_cannot_be_followed_is_none)
{
    const char *rules = "root ::= (\"x\" | y){265}\ny ::= [^q\"]* . \"A\"?\n";
    struct grammar_builder *b = builder();
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    uint8_t text[512];
    uint64_t n;

    CHECK_OK(compile(b, grammar_from_gbnf(b, rules, strlen(rules)), &g, NULL));
    CHECK_OK(grammar_matcher_create(g, 400, &m));
    CHECK_EQ(grammar_shortest(m, text, 0, NULL), 265);
    memset(text, 0xff, sizeof(text));
    n = grammar_shortest(m, text, sizeof(text), NULL);
    CHECK(n == UINT64_MAX || (n == 265 && !memchr(text, 0xff, 265)));
    grammar_matcher_destroy(m);
    grammar_unref(g);
}

TEST(a_shortest_text_keeps_to_its_time_and_space)
{
    struct clock *c = clock_fake_create(0, 0);
    struct clock_limit time;
    struct grammar_builder *b;
    struct grammar *g = NULL;
    struct grammar_matcher *m = NULL;
    struct rd_error err = {0};
    uint8_t *text = mem_zalloc(90000, 1);
    size_t before;

    CHECK(c && text);
    CHECK_OK(gbnf("root ::= [a-z]{5000}", &g, &err));
    CHECK_OK(grammar_matcher_create(g, 1, &m));
    clock_limit_begin(&time, c, 1000, 0);
    CHECK_EQ(grammar_shortest(m, text, 90000, &time), 5000);
    clock_fake_step(c, 0, 100); /* a look takes 100 ns: ten of them */
    clock_limit_begin(&time, c, 1000, 0);
    CHECK_EQ(grammar_shortest(m, text, 90000, &time), UINT64_MAX);
    CHECK_EQ(grammar_shortest(m, text, 90000, NULL), 5000);
    grammar_matcher_destroy(m);
    grammar_unref(g);

    b = builder();
    CHECK_OK(grammar_compile(b, grammar_repeat(b, letter(b, 'a', 'z'), 5000, 5000), NULL, 64 << 10, &g, &err));
    grammar_builder_destroy(b);
    CHECK_OK(grammar_matcher_create(g, 1, &m));
    before = mem_usage().n_bytes;
    CHECK_EQ(grammar_shortest(m, text, 0, NULL), 5000);
    CHECK_EQ(grammar_shortest(m, text, 90000, NULL), UINT64_MAX);
    CHECK(mem_usage().n_bytes - before < 256 << 10);
    grammar_matcher_destroy(m);
    grammar_unref(g);
    mem_free(text);
    clock_fake_destroy(c);
}
