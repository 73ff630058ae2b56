/* tests/base/test_checked.c - overflow at the edges; number parsing takes the whole string or nothing. */
#include "base/checked.h"
#include <locale.h>
#include <math.h>
#include "base/random.h"
#include "test.h"

TEST(checked_arithmetic_says_when_it_overflowed)
{
    uint64_t u;
    uint32_t w;
    int64_t i;

    CHECK(checked_add(UINT64_MAX - 1, (uint64_t)1, &u) && u == UINT64_MAX);
    CHECK(!checked_add(UINT64_MAX, (uint64_t)1, &u));
    CHECK(checked_mul((uint64_t)1 << 32, ((uint64_t)1 << 32) - 1, &u));
    CHECK(!checked_mul((uint64_t)1 << 32, (uint64_t)1 << 32, &u));
    CHECK(!checked_sub((uint64_t)0, (uint64_t)1, &u));
    CHECK(!checked_add((uint64_t)UINT32_MAX, (uint64_t)1, &w)); /* judged by the width of the result */
    CHECK(!checked_add(INT64_MAX, (int64_t)1, &i));
    CHECK(!checked_mul(INT64_MIN, (int64_t)-1, &i));
}

TEST(align_rounds_up_or_refuses)
{
    uint64_t v;

    CHECK(checked_align(0, 32, &v) && v == 0);
    CHECK(checked_align(1, 32, &v) && v == 32);
    CHECK(checked_align(32, 32, &v) && v == 32);
    CHECK(checked_align(7, 1, &v) && v == 7);
    CHECK(checked_align(UINT64_MAX - 31, 32, &v) && v == UINT64_MAX - 31);
    CHECK(!checked_align(UINT64_MAX - 30, 32, &v));
    CHECK(!checked_align(5, 0, &v));
    CHECK(!checked_align(5, 24, &v));
}

TEST(small_helpers_hold_at_the_edges)
{
    CHECK_EQ(u32_ceil_div(0, 16), 0);
    CHECK_EQ(u32_ceil_div(1, 16), 1);
    CHECK_EQ(u32_ceil_div(UINT32_MAX, 16), 1u << 28);
    CHECK_EQ(u32_min(1, 2) + u32_max(1, 2), 3);
    CHECK(u64_min(UINT64_MAX, 2) == 2 && u64_max(UINT64_MAX, 2) == UINT64_MAX);
}

static bool u64_of(const char *s, uint64_t *v)
{
    return parse_u64(s, strlen(s), v);
}
static bool i64_of(const char *s, int64_t *v)
{
    return parse_i64(s, strlen(s), v);
}
static bool f64_of(const char *s, double *v)
{
    return parse_f64(s, strlen(s), v);
}

TEST(integers_are_digits_only_and_the_whole_string)
{
    static const char *const bad[] = {
        "",         " 1",  "1 ", "+1", "-1", "1.0", "0x10", "1e3", "18446744073709551616", "99999999999999999999",
        "\xD9\xA1", "--1", "-"};
    uint64_t u;
    int64_t i;

    CHECK(u64_of("0", &u) && u == 0);
    CHECK(u64_of("007", &u) && u == 7);
    CHECK(u64_of("18446744073709551615", &u) && u == UINT64_MAX);
    CHECK(!parse_u64("1\0", 2, &u));
    for (size_t k = 0; k < sizeof(bad) / sizeof(*bad); k++) {
        CHECK(!u64_of(bad[k], &u));
        if (strcmp(bad[k], "-1")) CHECK(!i64_of(bad[k], &i));
    }
    CHECK(i64_of("-9223372036854775808", &i) && i == INT64_MIN);
    CHECK(i64_of("9223372036854775807", &i) && i == INT64_MAX);
    CHECK(!i64_of("9223372036854775808", &i));
    CHECK(!i64_of("-9223372036854775809", &i));
    CHECK(i64_of("-0", &i) && i == 0);
}

TEST(integers_survive_printing_and_parsing)
{
    struct random r;
    char s[32];

    random_init(&r, test_seed());
    for (int k = 0; k < 100000; k++) {
        uint64_t want = random_u64(&r) >> random_below(&r, 64), u = 0;
        int64_t wanted = (int64_t)want, i = 0;
        snprintf(s, sizeof(s), "%" PRIu64, want);
        CHECK(u64_of(s, &u) && u == want);
        if (random_below(&r, 2)) wanted = -(wanted >> 1);
        snprintf(s, sizeof(s), "%" PRId64, wanted);
        CHECK(i64_of(s, &i) && i == wanted);
    }
}

TEST(decimals_are_finite_and_plain)
{
    static const char *const bad[] = {"",      ".",   "-",    "+1",   "1e",    "1e+",   "e5",     "inf",   "nan",
                                      "0x1p3", "1,5", "1.5 ", " 1.5", "1.2.3", "1e999", "-1e999", "1_000", "Infinity"};
    char digits[600];
    double v;

    CHECK(f64_of("0.1", &v) && v == 0.1);
    CHECK(f64_of("-2.5e-3", &v) && v == -2.5e-3);
    CHECK(f64_of("1E+3", &v) && v == 1000);
    CHECK(f64_of(".5", &v) && v == 0.5);
    CHECK(f64_of("5.", &v) && v == 5);
    CHECK(f64_of("1.7976931348623157e308", &v) && v == 1.7976931348623157e308);
    for (size_t k = 0; k < sizeof(bad) / sizeof(*bad); k++) CHECK(!f64_of(bad[k], &v));
    memset(digits, '1', sizeof(digits));
    CHECK(!parse_f64(digits, sizeof(digits), &v));
    CHECK(parse_f64("12345", 2, &v) && v == 12); /* only n bytes are read */
}

TEST(decimals_ignore_the_locale)
{
    double v;

    if (!setlocale(LC_ALL, "de_DE.UTF-8")) test_note("locale de_DE.UTF-8 is not installed: tried in C only");
    CHECK(f64_of("1.5", &v) && v == 1.5);
    CHECK(!f64_of("1,5", &v));
    setlocale(LC_ALL, "C");
}

TEST(sizes_in_bytes_know_powers_of_1024)
{
    static const struct {
        const char *s;
        uint64_t v;
    } good[] = {
        {"512", 512},
        {"0", 0},
        {"64k", 65536},
        {"64K", 65536},
        {"8M", 8u << 20},
        {"2GiB", (uint64_t)2 << 30},
        {"1.5G", (uint64_t)3 << 29},
        {"1T", (uint64_t)1 << 40},
        {"10B", 10},
        {"3kB", 3072},
        {"0.5k", 512},
        {"18446744073709551615", UINT64_MAX},
    };
    static const char *const bad[] = {
        "",          "k",           "-1",  "1x",    "1kk", "1 k", "1.2.3k", "18446744073709551616",
        "16777216T", "16777216.5T", "1ki", "1GiBs", "nan", ".",   "1e3"};
    uint64_t v;

    for (size_t k = 0; k < sizeof(good) / sizeof(*good); k++) {
        CHECK(parse_bytes(good[k].s, &v));
        CHECK(v == good[k].v);
    }
    for (size_t k = 0; k < sizeof(bad) / sizeof(*bad); k++) CHECK(!parse_bytes(bad[k], &v));
}
