/* tests/base/test_json_write.c - JSON texts beside jansson's own, and numbers as they were written. */
#undef json_dumps /* jansson's own, to compare with */
#include <locale.h>
#include <math.h>
#include "base/json_number.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

static const char *const documents[] = {
    "{\"a\":[1,-2,3],\"b\":{\"c\":{},\"d\":[]},\"e\":\"\\u00e9\\ud83d\\ude00\\n\\\"\\/"
    "\\\\\\u0001\\u001f\\u007f\",\"\":null}",
    "[true,false,null,\"\",\"a string that is longer than sixteen "
    "bytes\",[[[[]]]],{\"z\":{\"y\":{\"x\":[{}]}},\"a\":0}]",
    "{\"b\":1,\"a\":2,\"ab\":3,\"A\":4,\"\\u00e9\":5}",
    "\"text\\u0000with NUL\"",
    "9223372036854775807",
    "[]",
    "{}",
    "null",
};
static const size_t flag_sets[] = {0,
                                   JSON_COMPACT,
                                   JSON_ENCODE_ANY,
                                   JSON_INDENT(2) | JSON_ENCODE_ANY,
                                   JSON_INDENT(1) | JSON_SORT_KEYS,
                                   JSON_INDENT(3) | JSON_COMPACT,
                                   JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY};

TEST(a_text_is_the_one_that_jansson_writes)
{
    for (size_t d = 0; d < sizeof(documents) / sizeof(documents[0]); d++)
        for (size_t f = 0; f < sizeof(flag_sets) / sizeof(flag_sets[0]); f++) {
            json_t *v = json_read_text(documents[d], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            char *ours = json_written(v, flag_sets[f]), *theirs = json_dumps(v, flag_sets[f]);

            CHECK(v && !ours == !theirs);
            if (ours) CHECK_STR(ours, theirs);
            free(ours);
            free(theirs);
            json_decref(v);
        }
}

TEST(a_string_that_is_no_utf8_is_no_json)
{
    json_t *v = json_array();

    json_array_append_new(v, json_stringn_nocheck("\xff", 1));
    CHECK(!json_written(v, 0) && !json_written(NULL, JSON_ENCODE_ANY));
    json_decref(v);
}

/* text read and written again; the nearest double. */
static void check_number(const char *text, double value)
{
    json_t *v = json_read_text(text, JSON_DECODE_ANY, NULL), *copy = json_copied(v);
    char *again = json_written(v, JSON_ENCODE_ANY), *copied = json_written(copy, JSON_ENCODE_ANY);

    CHECK(v && again && copied);
    CHECK_STR(again, text);
    CHECK_STR(copied, text);
    CHECK(json_number_value(v) == value);
    free(again);
    free(copied);
    json_decref(copy);
    json_decref(v);
}

TEST(a_number_is_written_as_it_was_read)
{
    check_number("9223372036854775808", 0x1p63);
    check_number("-9223372036854775809", -0x1p63);
    check_number("123456789012345678901234567890", 123456789012345678901234567890.0);
    check_number("1e400", INFINITY);
    check_number("-1E+400", -INFINITY);
    check_number("1e-400", 0);
    check_number("0.10000000000000000000001", 0.1);
    check_number("0.10", 0.1);
    check_number("-0", 0);
    check_number("-0.0", 0);
    check_number("1E5", 1e5);
    check_number("0", 0);
    check_number("-9223372036854775808", -0x1p63);
}

static void check_computed(double value, const char *text)
{
    json_t *v = json_real(value);
    char *said = json_written(v, JSON_ENCODE_ANY);

    CHECK_STR(said, text);
    free(said);
    json_decref(v);
}

TEST(a_computed_real_has_as_many_digits_as_it_takes)
{
    check_computed(0.1, "0.1");
    check_computed(2, "2.0");
    check_computed(1e300, "1e+300");
    check_computed(1.0 / 3, "0.3333333333333333");
    check_computed(5e-324, "4.94065645841247e-324");
    CHECK(!json_real(INFINITY) && !json_real(NAN));
}

static bool same(const char *a, const char *b)
{
    json_t *x = json_read_text(a, JSON_DECODE_ANY, NULL), *y = json_read_text(b, JSON_DECODE_ANY, NULL);
    bool equal = json_same(x, y);

    if (!x || !y || json_same(y, x) != equal) test_fail(__FILE__, __LINE__, "%s, %s: not the same the other way", a, b);
    json_decref(x);
    json_decref(y);
    return equal;
}

TEST(numbers_of_one_value_are_the_same)
{
    CHECK(same("{\"a\":0.10,\"b\":[1]}", "{\"b\":[1],\"a\":1e-1}"));
    CHECK(same("1.50", "0.15e1") && same("1500.0", "1.5E+3") && same("1e400", "10e399") && same("0.0", "0e5"));
    CHECK(same("100000000000000000000", "1e20"));
    CHECK(!same("0.1", "0.10000000000000000000001") && !same("1e400", "1e401") && !same("1", "1.0"));
    CHECK(!same("123456789012345678901234567890", "123456789012345678901234567891"));
    CHECK(!same("1e99999999999999999999", "1e99999999999999999998") && !same("-0.0", "0.0") && !same("[1]", "[1,2]"));
    CHECK(!json_same(NULL, NULL));
}

/* A random tree of what differs between documents: nesting, keys, numbers. */
static json_t *grow(struct random *r, int depth)
{
    static const char *const numbers[] = {"0", "-0", "1e400", "18446744073709551616", "0.25", "1E-7", "-12.50"};
    json_t *v;
    char key[8];

    switch (random_below(r, depth > 0 ? 5 : 3)) {
    case 0:
        return json_string(random_below(r, 2) ? "a\"\\\n" : "\xc3\xa9");
    case 1:
        return json_integer((json_int_t)random_below(r, 1000) - 500);
    case 2:
        return json_read_text(numbers[random_below(r, 7)], JSON_DECODE_ANY, NULL);
    case 3:
        v = json_array();
        for (uint64_t n = random_below(r, 4); n > 0; n--) json_array_append_new(v, grow(r, depth - 1));
        return v;
    default:
        v = json_object();
        for (uint64_t n = random_below(r, 4); n > 0; n--) {
            snprintf(key, sizeof(key), "k%u", (unsigned)random_below(r, 100));
            json_object_set_new(v, key, grow(r, depth - 1));
        }
        return v;
    }
}

TEST(what_is_written_reads_as_the_same_and_is_written_again_so)
{
    struct random r;

    random_init(&r, test_seed());
    for (int i = 0; i < 20000; i++) {
        size_t flags = flag_sets[random_below(&r, sizeof(flag_sets) / sizeof(flag_sets[0]))] | JSON_ENCODE_ANY;
        json_t *v = grow(&r, 5), *read;
        char *text = json_written(v, flags), *again;

        read = json_read_text(text, JSON_DECODE_ANY, NULL);
        again = json_written(read, flags);
        CHECK(json_same(v, read));
        CHECK_STR(again, text);
        free(text);
        free(again);
        json_decref(v);
        json_decref(read);
    }
}

static int swallow(const char *s, size_t n, void *to)
{
    *(size_t *)to += n;
    return *(size_t *)to > 5000 ? -1 : 0;
}

TEST(depth_takes_no_stack_and_a_writer_can_be_stopped)
{
    json_t *v = json_array(), *outer;
    size_t n = 0;

    for (int i = 1; i < 1000; i++) {
        outer = json_array();
        json_array_append_new(outer, v);
        v = outer;
    }
    CHECK_EQ(json_write(v, swallow, &n, 0), 0);
    CHECK_EQ(n, 2000);
    for (int i = 0; i < 5000; i++) json_array_append_new(v, json_integer(i));
    CHECK_EQ(json_write(v, swallow, &n, 0), -1);
    json_decref(v);
}

TEST(an_allocation_that_fails_is_an_error_and_nothing_else)
{
    json_t *v = json_read_text(documents[0], 0, NULL);
    uint64_t alive = mem_n_alive();
    char *text = NULL;
    int64_t i;

    for (i = 0; !text && i < 1000; i++) {
        mem_fail_after(i);
        text = json_written(v, JSON_SORT_KEYS);
        mem_fail_after(-1);
        CHECK_EQ(mem_n_alive(), alive);
    }
    CHECK(i > 3 && text);
    free(text);
    json_decref(v);
}
