/* tests/base/test_buf.c - growing text: sticky failure, limits, JSON escapes. */
#include "base/buf.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "test.h"

TEST(pieces_come_together_and_stay_terminated)
{
    struct buf b;
    size_t n;

    buf_init(&b);
    buf_puts(&b, "a");
    buf_putc(&b, 'b');
    buf_append(&b, "c\0d", 3);
    buf_printf(&b, "-%03d-%s", 7, "long enough to have to grow the buffer once more");
    CHECK(!b.failed);
    CHECK_EQ(b.data[b.n], 0);
    CHECK_EQ(memcmp(b.data, "abc\0d-007-long", 14), 0);
    buf_clear(&b);
    CHECK_EQ(b.n, 0);
    CHECK_STR(b.data, "");
    buf_puts(&b, "again");
    char *p = buf_take(&b, &n);
    CHECK_STR(p, "again");
    CHECK_EQ(n, 5);
    CHECK(!b.data && b.n == 0 && b.cap == 0);
    mem_free(p);
    p = buf_take(&b, NULL); /* empty is a text too */
    CHECK_STR(p, "");
    mem_free(p);
    buf_deinit(&b);
}

TEST(failure_sticks_until_deinit)
{
    struct buf b = {0};
    uint64_t alive = mem_n_alive();

    buf_puts(&b, "kept");
    mem_fail_after(0);
    buf_printf(&b, "%0500d", 1);
    CHECK(b.failed);
    buf_puts(&b, "more");
    CHECK_STR(b.data, "kept");
    buf_clear(&b);
    CHECK(b.failed);
    CHECK(!buf_take(&b, NULL));
    CHECK_EQ(mem_n_alive(), alive);
    buf_puts(&b, "fresh");
    CHECK_STR(b.data, "fresh");
    buf_deinit(&b);
}

TEST(the_limit_is_exact)
{
    struct buf b = {.limit = 10};

    buf_puts(&b, "0123456789");
    CHECK(!b.failed);
    buf_putc(&b, 'x');
    CHECK(b.failed);
    CHECK_STR(b.data, "0123456789");
    buf_deinit(&b);
    CHECK_EQ(b.limit, 10);
}

static bool json_is(const char *s, size_t n, const char *want)
{
    struct buf b = {0};
    bool same;

    buf_put_json(&b, s, n);
    same = !b.failed && b.n == strlen(want) && memcmp(b.data, want, b.n) == 0;
    if (!same) printf("got %s\n", b.data);
    buf_deinit(&b);
    return same;
}

TEST(json_bodies_are_escaped_and_well_formed)
{
    CHECK(json_is("", 0, ""));
    CHECK(json_is("plain \xC3\xA9 \xF0\x9F\x98\x80", 13, "plain \xC3\xA9 \xF0\x9F\x98\x80"));
    CHECK(json_is("\"\\\n\r\t\x01\0\x7f", 8, "\\\"\\\\\\n\\r\\t\\u0001\\u0000\\u007f"));
    CHECK(json_is("a\xFF"
                  "b",
                  3,
                  "a\xEF\xBF\xBD"
                  "b"));
    CHECK(json_is("\xE2\x82", 2, "\xEF\xBF\xBD"));
    CHECK(json_is("\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"));
}

TEST(json_bodies_of_random_bytes_are_valid_and_say_the_same)
{
    struct random r;

    random_init(&r, test_seed());
    for (int k = 0; k < 20000; k++) {
        char s[40];
        size_t n = random_below(&r, sizeof(s));
        struct buf b = {0};

        for (size_t i = 0; i < n; i++) s[i] = (char)random_u64(&r);
        buf_put_json(&b, s, n);
        CHECK(!b.failed && utf8_valid(b.data ? b.data : "", b.n));
        for (size_t i = 0; i < b.n; i++) {
            CHECK((unsigned char)b.data[i] >= 0x20 && b.data[i] != '"');
            if (b.data[i] != '\\') continue;
            CHECK(i + 1 < b.n && strchr("\"\\nrtu", b.data[i + 1]));
            i += b.data[i + 1] == 'u' ? 5 : 1;
        }
        buf_deinit(&b);
    }
}

TEST(memory_that_runs_out_anywhere_leaks_nothing)
{
    uint64_t alive = mem_n_alive();
    bool done = false;

    for (int i = 0; !done; i++) {
        struct buf b = {0};
        mem_fail_after(i);
        for (int k = 0; k < 100; k++) buf_printf(&b, "%d,", k);
        char *p = buf_take(&b, NULL);
        mem_fail_after(-1);
        done = p != NULL;
        CHECK(done || i < 20);
        mem_free(p);
        buf_deinit(&b);
        CHECK_EQ(mem_n_alive(), alive);
    }
}
