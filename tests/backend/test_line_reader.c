/* tests/backend/test_line_reader.c - lines are whole however their bytes come; too long and too many are told. */
#include "backend/process/line_reader.h"
#include <string.h>
#include "base/mem.h"
#include "base/random.h"
#include "test.h"

struct seen {
    struct buf text;
    uint32_t n, most;
};

static bool take(void *arg, const char *line, size_t n)
{
    struct seen *s = arg;

    buf_append(&s->text, line, n);
    buf_putc(&s->text, '|');
    return ++s->n < s->most;
}

TEST(lines_are_whole_however_they_are_cut)
{
    static const char all[] = "one\n\ntwo two\nthree\nhalf";
    struct random r;

    random_init(&r, test_seed());
    for (int round = 0; round < 200; round++) {
        struct line_reader lr = {.most_bytes = 100};
        struct seen s = {.most = 1000};

        for (size_t at = 0; at < strlen(all);) {
            size_t n = 1 + random_below(&r, 6);

            if (n > strlen(all) - at) n = strlen(all) - at;
            CHECK_EQ(line_reader_feed(&lr, all + at, n, 7, take, &s), LINE_OK);
            at += n;
        }
        CHECK_STR(s.text.data, "one||two two|three|");
        CHECK(lr.kept.n == 4 && lr.kept_since_ns == 7);
        buf_deinit(&s.text);
        line_reader_reset(&lr);
        CHECK_EQ(lr.kept.n, 0);
    }
}

TEST(a_line_that_is_too_long_is_told_before_it_ends)
{
    struct line_reader lr = {.most_bytes = 10};
    struct seen s = {.most = 1000};

    CHECK_EQ(line_reader_feed(&lr, "0123456789\n", 11, 0, take, &s), LINE_OK);
    CHECK_EQ(line_reader_feed(&lr, "01234", 5, 0, take, &s), LINE_OK);
    CHECK_EQ(line_reader_feed(&lr, "567890", 6, 0, take, &s), LINE_TOO_LONG);
    CHECK_EQ(s.n, 1);
    buf_deinit(&s.text);
    line_reader_reset(&lr);
}

TEST(a_flood_is_told_and_a_second_later_it_is_none)
{
    struct line_reader lr = {.most_bytes = 100, .second_bytes = 30, .second_lines = 4};
    struct seen s = {.most = 1000};
    const uint64_t s1 = 5000000000ull;

    for (int i = 0; i < 4; i++) CHECK_EQ(line_reader_feed(&lr, "a\n", 2, s1, take, &s), LINE_OK);
    CHECK_EQ(line_reader_feed(&lr, "a\n", 2, s1 + 1, take, &s), LINE_FLOOD);
    CHECK_EQ(line_reader_feed(&lr, "a\n", 2, s1 + 1000000000ull, take, &s), LINE_OK);
    CHECK_EQ(line_reader_feed(&lr, "0123456789012345678901234567890", 31, s1 + 1000000001ull, take, &s), LINE_FLOOD);
    buf_deinit(&s.text);
    line_reader_reset(&lr);
}

TEST(who_takes_may_say_no)
{
    struct line_reader lr = {.most_bytes = 100};
    struct seen s = {.most = 2};

    CHECK_EQ(line_reader_feed(&lr, "a\nb\nc\n", 6, 0, take, &s), LINE_OK);
    CHECK_STR(s.text.data, "a|b|");
    buf_deinit(&s.text);
    line_reader_reset(&lr);
}

TEST(without_memory_nothing_is_lost_silently)
{
    struct line_reader lr = {.most_bytes = 100};
    struct seen s = {.most = 2};

    mem_fail_after(0);
    CHECK_EQ(line_reader_feed(&lr, "half", 4, 0, take, &s), LINE_NO_MEMORY);
    mem_fail_after(-1);
    line_reader_reset(&lr);
}
