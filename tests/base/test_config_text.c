/* tests/base/test_config_text.c - what a configuration says, and what it must not say. */
#include "base/config_text.h"
#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "test.h"

static const struct config_value *value_of(const struct config *c, const char *key)
{
    for (size_t i = 0; i < c->n_keys; i++)
        if (strcmp(c->keys[i].name, key) == 0) return &c->values[c->keys[i].at];
    return NULL;
}

static bool is(const struct config *c, const char *key, enum config_kind kind, const char *text)
{
    const struct config_value *v = value_of(c, key);

    if (v && v->kind == kind && strcmp(v->text, text) == 0) return true;
    printf("%s: %s\n", key, v ? v->text : "(none)");
    return false;
}

TEST(values_of_every_kind_are_read)
{
    static const char text[] = "# first\n"
                               "a=1\n"
                               "b-c = -12_000 # why\r\n"
                               "\n"
                               "  D_9\t=\t\"a \\\"b\\\" \\\\ \\t \\u00e9 # no comment\"\n"
                               "e = 'C:\\n'\n"
                               "f = true\n"
                               "g = false#\n"
                               "h = [1, \"two\", 'three' , true]\n"
                               "i = [ # which\n"
                               "    \"x\",\n"
                               "    2,   # the second\r\n"
                               "]\n"
                               "j = []\n"
                               "k = \"\"\n"
                               "l = +1.5e-3\n"
                               "m = \"\\U0001F600\"";
    struct config c;
    struct rd_error err;

    CHECK_OK(config_read(text, strlen(text), "c", &c, &err));
    CHECK_EQ(c.n_keys, 12);
    CHECK(is(&c, "a", CONFIG_NUMBER, "1"));
    CHECK(is(&c, "b-c", CONFIG_NUMBER, "-12000"));
    CHECK(is(&c, "D_9", CONFIG_TEXT, "a \"b\" \\ \t \xc3\xa9 # no comment"));
    CHECK(is(&c, "e", CONFIG_TEXT, "C:\\n"));
    CHECK(is(&c, "f", CONFIG_BOOL, "true"));
    CHECK(is(&c, "g", CONFIG_BOOL, "false"));
    CHECK(is(&c, "h", CONFIG_NUMBER, "1"));
    CHECK(c.keys[6].is_list && c.keys[6].n == 4 && strcmp(c.values[c.keys[6].at + 2].text, "three") == 0);
    CHECK(c.keys[7].is_list && c.keys[7].n == 2 && c.keys[7].line == 10);
    CHECK(c.keys[8].is_list && c.keys[8].n == 0);
    CHECK(is(&c, "k", CONFIG_TEXT, ""));
    CHECK(is(&c, "l", CONFIG_NUMBER, "1.5e-3"));
    CHECK(is(&c, "m", CONFIG_TEXT, "\xf0\x9f\x98\x80"));
    config_free(&c);
    CHECK_OK(config_read("", 0, "c", &c, &err));
    CHECK_EQ(c.n_keys, 0);
    config_free(&c);
    CHECK_OK(config_read("\xef\xbb\xbf"
                         "a = 1",
                         8, "c", &c, &err));
    CHECK(is(&c, "a", CONFIG_NUMBER, "1"));
    config_free(&c);
}

TEST(what_is_wrong_is_told_with_its_line)
{
    static const struct {
        const char *text, *told;
    } cases[] = {
        {"a = 1\nb\n", "c:2: wanted: key = value"},
        {"a = 1\n\n[server]\n", "c:3: [tables] are not taken"},
        {"a.b = 1", "c:1: dotted keys"},
        {"\"a\" = 1", "c:1: keys stand without quotes"},
        {"a = 1\na = 2", "c:2: a was set already, in line 1"},
        {"a = x", "c:1: x is neither a number, true nor false: texts stand in \"quotes\""},
        {"a = 4G", "c:1: 4G is neither"},
        {"a =", "c:1: a value is missing"},
        {"a = \"x", "c:1: a text without its closing \""},
        {"a = 'x\ny'", "c:1: a text without its closing '"},
        {"a = \"\"\"x\"\"\"", "c:1: texts over several lines"},
        {"a = \"\\q\"", "c:1: an unknown escape"},
        {"a = \"\\u12\"", "c:1: \\u takes 4"},
        {"a = \"\\ud800\"", "c:1: \\u of what is no character"},
        {"a = \"\\u0000\"", "c:1: \\u of what is no character"},
        {"a = 1 2", "c:1: something stands behind the value"},
        {"a = 1 = 2", "c:1: something stands behind the value"},
        {"a = [1 2]", "c:1: a list wants a comma"},
        {"a = [1,\n2", "c:2: a list wants a comma"},
        {"a = [[1]]", "c:1: a table, or a list within a list"},
        {"a = {b = 1}", "c:1: a table, or a list within a list"},
        {"a = 1979-05-27", "c:1: 1979-05-27 is neither"},
        {"a = 01", "c:1: 01 is neither"},
        {"a = 1.", "c:1: 1. is neither"},
        {"a = .5", "c:1: .5 is neither"},
        {"a = 1__0", "c:1: 1__0 is neither"},
        {"a = _1", "c:1: _1 is neither"},
        {"a = 0x10", "c:1: 0x10 is neither"},
        {"a = 1e", "c:1: 1e is neither"},
        {"a = --1", "c:1: --1 is neither"},
        {"a = -", "c:1: - is neither"},
        {"a = inf", "c:1: inf is neither"},
        {"= 1", "c:1: wanted: key = value"},
        {"a = \"\x01\"", "c:1: a control character"},
        {"# \x01", "c:1: a control character"},
        {"a = \"\xff\"", "c: wanted text in UTF-8"},
    };
    struct config c;
    struct rd_error err;

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        CHECK_EQ(config_read(cases[i].text, strlen(cases[i].text), "c", &c, &err), RD_E_FORMAT);
        if (strncmp(err.text, cases[i].told, strlen(cases[i].told)) != 0) printf("%s: %s\n", cases[i].text, err.text);
        CHECK(strncmp(err.text, cases[i].told, strlen(cases[i].told)) == 0);
        CHECK(c.bytes == NULL && c.n_keys == 0);
    }
    CHECK_EQ(config_read("a\0b", 3, "c", &c, &err), RD_E_FORMAT);
}

TEST(memory_that_runs_out_leaves_nothing)
{
    static const char text[] = "a = 1\nb = [\"x\", 'y', 3]\nc = true\n";
    struct config c;
    struct rd_error err;
    rd_status st = RD_E_NOMEM;

    for (int64_t i = 0; st != RD_OK; i++) {
        mem_fail_after(i);
        st = config_read(text, strlen(text), "c", &c, &err);
        mem_fail_after(-1);
        CHECK(st == RD_OK || (st == RD_E_NOMEM && !c.bytes));
    }
    config_free(&c);
}

TEST(too_much_is_refused)
{
    static char text[CONFIG_MOST_BYTES + 2];
    struct config c;
    struct rd_error err;
    size_t n = 0;

    memset(text, '\n', sizeof(text) - 1);
    CHECK_EQ(config_read(text, sizeof(text) - 1, "c", &c, &err), RD_E_LIMIT);
    CHECK_OK(config_read(text, sizeof(text) - 2, "c", &c, &err));
    config_free(&c);
    for (unsigned i = 0; i <= CONFIG_MOST_KEYS; i++) n += (size_t)sprintf(text + n, "k%u = 1\n", i);
    CHECK_EQ(config_read(text, n, "c", &c, &err), RD_E_LIMIT);
    n = (size_t)sprintf(text, "a = [");
    for (unsigned i = 0; i <= CONFIG_MOST_VALUES; i++) n += (size_t)sprintf(text + n, "1,");
    n += (size_t)sprintf(text + n, "]");
    CHECK_EQ(config_read(text, n, "c", &c, &err), RD_E_LIMIT);
}
