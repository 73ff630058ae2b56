/* tests/base/test_config_edit.c - one key is set or taken out; the rest of the file stays byte for byte. */
#include "base/config_edit.h"
#include <stdio.h>
#include <string.h>
#include "base/config_text.h"
#include "base/mem.h"
#include "test.h"

static bool gives(const char *text, const char *key, const char *value, const char *wanted)
{
    struct rd_error err = {RD_OK, ""};
    struct buf out = {0};
    bool ok = config_edit(text, strlen(text), "x.toml", key, value, &out, &err) == RD_OK &&
              strcmp(out.data ? out.data : "", wanted) == 0;

    if (!ok) printf("%s: [%s] %s\n", key, out.data ? out.data : "", err.text);
    buf_deinit(&out);
    return ok;
}

TEST(a_value_is_replaced_where_it_stands)
{
    CHECK(gives("# a\nctx = 1 # why\nport=2\n", "ctx", "4096", "# a\nctx = 4096 # why\nport=2\n"));
    CHECK(gives("ctx=\t1\r\nport=2", "ctx", "8G", "ctx=\t\"8G\"\r\nport=2"));
    CHECK(gives("a = \"x # \\\" y\" # z\n", "a", "q", "a = \"q\" # z\n"));
    CHECK(gives("a = 'x # \\' # z", "a", "1", "a = 1 # z"));
    CHECK(gives("l = [1,\n2, # ctx = 3\n3]\nctx = 9", "ctx", "7", "l = [1,\n2, # ctx = 3\n3]\nctx = 7"));
    CHECK(gives("\xef\xbb\xbf"
                "ctx = 9\n",
                "ctx", "7",
                "\xef\xbb\xbf"
                "ctx = 7\n"));
    CHECK(gives("# ctx = 1\nctxx = 2\n", "ctx", "3", "# ctx = 1\nctxx = 2\nctx = 3\n"));
}

TEST(a_new_key_comes_last_on_a_line_of_its_own)
{
    CHECK(gives("", "ctx", "8", "ctx = 8\n"));
    CHECK(gives("a = 1", "ctx", "8", "a = 1\nctx = 8\n"));
    CHECK(gives("a = 1 # b", "kv-type", "q8_0/q4_0", "a = 1 # b\nkv-type = \"q8_0/q4_0\"\n"));
    CHECK(gives("", "t", "a\"\\\n\x7f", "t = \"a\\\"\\\\\\u000a\\u007f\"\n"));
    CHECK(gives("", "n", "007", "n = \"007\"\n")); /* no number to TOML */
}

TEST(what_is_taken_out_leaves_its_comment)
{
    CHECK(gives("a = 1\nctx = 2\nb = 3\n", "ctx", NULL, "a = 1\nb = 3\n"));
    CHECK(gives("a = 1\nctx = 2 # two\nb = 3\n", "ctx", NULL, "a = 1\n# two\nb = 3\n"));
    CHECK(gives("ctx = 2", "ctx", NULL, ""));
    CHECK(gives("a = 1", "ctx", NULL, "a = 1"));
}

TEST(what_cannot_be_read_or_is_a_list_is_refused)
{
    struct rd_error err;
    struct buf out = {0};

    CHECK_EQ(config_edit("a = ", 4, "x.toml", "b", "1", &out, &err), RD_E_FORMAT);
    CHECK_EQ(config_edit("a = [1]", 7, "x.toml", "a", "1", &out, &err), RD_E_UNSUPPORTED);
    CHECK(strstr(err.text, "x.toml:1: a is a list") != NULL);
    CHECK(out.data == NULL);
}

TEST(a_failing_allocation_gives_nothing)
{
    static const char text[] = "a = 1\nb = 2\n";

    for (int i = 0;; i++) {
        struct rd_error err;
        struct buf out = {0};
        rd_status st;

        mem_fail_after(i);
        st = config_edit(text, strlen(text), "x.toml", "c", "3", &out, &err);
        mem_fail_after(-1);
        if (st != RD_OK) CHECK(out.data == NULL);
        buf_deinit(&out);
        if (st == RD_OK) break;
    }
}
