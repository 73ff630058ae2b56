/* tests/base/test_error.c - statuses, error texts, quoting of foreign bytes; the clocks. */
#include "base/error.h"
#include "base/clock.h"
#include "base/mem.h"
#include "test.h"

TEST(every_status_has_its_name_and_text)
{
#define ONE(name, value, text)                                                                                         \
    CHECK_STR(rd_status_name(value), #name);                                                                           \
    CHECK_STR(rd_status_text(name), text);
    RD_STATUS_LIST(ONE)
#undef ONE
    CHECK_STR(rd_status_name((rd_status)-99), "RD_E_?");
    CHECK_STR(rd_status_text((rd_status)99), "unknown status");
}

TEST(error_set_formats_and_returns_the_status)
{
    struct rd_error err = {0};

    CHECK_EQ(error_set(&err, RD_E_FORMAT, "layer %d: %s", 3, "bad"), RD_E_FORMAT);
    CHECK_EQ(err.status, RD_E_FORMAT);
    CHECK_STR(err.text, "layer 3: bad");
    CHECK_EQ(error_set(NULL, RD_E_IO, "nobody reads %d", 1), RD_E_IO);
}

TEST(a_long_error_text_is_cut_and_says_so)
{
    struct rd_error err;
    char longer[1000];

    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    error_set(&err, RD_E_INVALID, "%s", longer);
    CHECK_EQ(strlen(err.text), sizeof(err.text) - 1);
    CHECK_STR(err.text + sizeof(err.text) - 5, "x...");
    longer[sizeof(err.text) - 1] = 0;
    error_set(&err, RD_E_INVALID, "%s", longer); /* exactly full: nothing is lost */
    CHECK_STR(err.text, longer);
}

TEST(quote_escapes_and_cuts_within_its_buffer)
{
    char buf[64], guarded[40];

    CHECK_STR(error_quote(buf, sizeof(buf), "a\n\xC3\xA9\x7f", 5), "a\\x0a\\xc3\\xa9\\x7f");
    CHECK_STR(error_quote(buf, sizeof(buf), "a\0b", 3), "a\\x00b");
    CHECK_STR(error_quote(buf, 9, "12345678", 8), "12345678");
    CHECK_STR(error_quote(buf, 9, "123456789", 9), "12345...");
    CHECK_STR(error_quote(buf, 9, "1234\n6789", 9), "1234...");
    CHECK_STR(error_quote(buf, sizeof(buf), "", 0), "");
    for (size_t cap = 1; cap < 32; cap++)
        for (size_t n = 0; n < 20; n++) {
            memset(guarded, '#', sizeof(guarded));
            error_quote(guarded, cap,
                        "ab\x01\x02"
                        "cd\xFF"
                        "efghijklmnopqr",
                        n);
            CHECK(memchr(guarded, 0, cap));
            CHECK_EQ(guarded[cap], '#');
        }
}

TEST(the_system_clock_goes_forward)
{
    uint64_t a = clock_now_ns(clock_system());

    clock_sleep_ns(1000000);
    CHECK(clock_now_ns(clock_system()) >= a + 1000000);
    CHECK(clock_wall_s(clock_system()) > 1700000000);
}

TEST(a_limit_of_time_is_of_the_thread_and_of_all)
{
    struct clock *c = clock_fake_create(500, 1000);
    struct clock_limit none = {0}, l;
    uint64_t thread_ns = 7, ns = 7;

    CHECK(c);
    CHECK_EQ(clock_limit_look(&none), CLOCK_GOES_ON);
    clock_limit_left(&none, &thread_ns, &ns);
    CHECK(thread_ns == 0 && ns == 0);

    clock_limit_begin(&l, c, 100, 1000);
    clock_fake_advance(c, 900); /* others had the core */
    CHECK_EQ(clock_limit_look(&l), CLOCK_GOES_ON);
    clock_limit_left(&l, &thread_ns, &ns);
    CHECK(thread_ns == 100 && ns == 100);
    clock_fake_step(c, 0, 60);
    CHECK_EQ(clock_limit_look(&l), CLOCK_GOES_ON);
    CHECK_EQ(clock_limit_look(&l), CLOCK_WORKED_OUT);

    clock_fake_step(c, 0, 0);
    clock_limit_begin(&l, c, 100, 1000);
    clock_fake_step(c, 600, 0);
    CHECK_EQ(clock_limit_look(&l), CLOCK_GOES_ON);
    CHECK_EQ(clock_limit_look(&l), CLOCK_RAN_OUT);
    clock_limit_left(&l, &thread_ns, &ns);
    CHECK(thread_ns == 100 && ns == 1); /* over is not "no limit" */

    clock_limit_begin(&l, c, 0, 0);
    clock_fake_advance(c, UINT64_MAX / 4);
    CHECK_EQ(clock_limit_look(&l), CLOCK_GOES_ON);
    clock_fake_destroy(c);
}

TEST(time_that_a_thread_sleeps_is_not_its_own)
{
    const struct clock *c = clock_system();
    uint64_t own = clock_thread_ns(c), now = clock_now_ns(c);

    clock_sleep_ns(50000000);
    CHECK(clock_now_ns(c) - now >= 50000000);
    CHECK(clock_thread_ns(c) - own < clock_now_ns(c) - now);
}

TEST(a_fake_clock_stands_still_until_told)
{
    struct clock *c = clock_fake_create(500, 1000);

    CHECK(c);
    CHECK_EQ(clock_now_ns(c), 500);
    CHECK_EQ(clock_now_ns(c), 500);
    clock_fake_advance(c, 2500000000u);
    CHECK_EQ(clock_now_ns(c), 2500000500u);
    CHECK_EQ(clock_wall_s(c), 1002);
    clock_fake_destroy(c);
    mem_fail_after(0);
    CHECK(!clock_fake_create(0, 0));
}
