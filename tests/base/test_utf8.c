/* tests/base/test_utf8.c - strict UTF-8 against a naive decoder, over all code points and all short byte strings. */
#include "base/utf8.h"
#include "base/random.h"
#include "test.h"

TEST(every_code_point_survives_encode_and_decode)
{
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char s[4];
        uint32_t back;
        int n = utf8_encode(cp, s);
        bool surrogate = cp >= 0xD800 && cp <= 0xDFFF;

        if (utf8_decode(s, (size_t)n, &back) != n || back != (surrogate ? UTF8_REPLACEMENT : cp)) {
            test_fail(__FILE__, __LINE__, "U+%04X came back as U+%04X", cp, back);
            return;
        }
    }
    char s[4];
    CHECK_EQ(utf8_encode(0x110000, s), 3);
    CHECK_EQ(memcmp(s, "\xEF\xBF\xBD", 3), 0);
}

/* The definition, slowly: the code point whose encoding starts s, or -1. Decodes by the bit pattern, then refuses what
 * a shorter form could say, surrogates, and what is above U+10FFFF. */
static int64_t naive_first(const unsigned char *s, size_t n, int *length)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t v;

    *length = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (*length == 0 || (size_t)*length > n) return -1;
    v = *length == 1 ? s[0] : s[0] & (0x7Fu >> *length);
    for (int i = 1; i < *length; i++) {
        if (s[i] >> 6 != 2) return -1;
        v = v << 6 | (s[i] & 63);
    }
    if (*length > 1 && v < least[*length]) return -1;
    return v > 0x10FFFF || (v >= 0xD800 && v < 0xE000) ? -1 : (int64_t)v;
}

static bool agrees(const unsigned char *s, size_t n)
{
    uint32_t cp;
    int naive_length, length = utf8_decode((const char *)s, n, &cp);
    int64_t want = naive_first(s, n, &naive_length);

    if (want >= 0) return length == naive_length && cp == (uint32_t)want;
    return length < 0 && length >= -3 && (size_t)-length <= n && cp == UTF8_REPLACEMENT;
}

TEST(all_strings_of_up_to_three_bytes_agree_with_the_definition)
{
    unsigned char s[3];

    for (uint32_t v = 0; v < 1u << 24; v++) {
        s[0] = (unsigned char)(v >> 16);
        s[1] = (unsigned char)(v >> 8);
        s[2] = (unsigned char)v;
        if (s[0] < 0x80 && v & 0xFFFF) continue; /* ASCII first: the rest is not read */
        for (size_t n = 1; n <= 3; n++) CHECK(agrees(s, n));
    }
}

TEST(random_strings_agree_with_the_definition)
{
    static const unsigned char edges[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2,
                                          0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
    struct random r;

    random_init(&r, test_seed());
    for (int k = 0; k < 300000; k++) {
        unsigned char s[12];
        size_t n = 1 + random_below(&r, sizeof(s)), valid = 0, units = 0;
        bool all_valid = true;
        int length;

        for (size_t i = 0; i < n; i++) s[i] = edges[random_below(&r, sizeof(edges))];
        for (size_t i = 0; i < n;) {
            uint32_t cp;
            CHECK(agrees(s + i, n - i));
            length = utf8_decode((char *)s + i, n - i, &cp);
            all_valid = all_valid && length > 0;
            i += (size_t)abs(length);
            if (all_valid) valid = i;
            units++;
        }
        CHECK_EQ(utf8_valid_prefix((char *)s, n), valid);
        CHECK_EQ(utf8_valid((char *)s, n), all_valid);
        CHECK_EQ(utf8_length((char *)s, n), units);
    }
}

TEST(ill_formed_bytes_are_cut_into_maximal_subparts)
{
    /* The example of the Unicode standard, section 3.9, table 3-11: 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64. */
    static const char s[] = "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64";
    static const int want[] = {1, -3, -2, -1, 1, -1, 1, -1, -1, 1};
    size_t at = 0;
    uint32_t cp;

    for (size_t k = 0; k < sizeof(want) / sizeof(*want); k++) {
        CHECK_EQ(utf8_decode(s + at, sizeof(s) - 1 - at, &cp), want[k]);
        at += (size_t)abs(want[k]);
    }
    CHECK_EQ(at, sizeof(s) - 1);
    CHECK_EQ(utf8_decode("\xED\xA0\x80", 3, &cp), -1); /* a surrogate: three units */
    CHECK_EQ(utf8_decode("\xC0\xAF", 2, &cp), -1);     /* overlong '/' */
    CHECK_EQ(utf8_decode("\xF4\x90\x80\x80", 4, &cp), -1);
}

TEST(an_unfinished_tail_is_what_more_bytes_could_complete)
{
    CHECK_EQ(utf8_unfinished_tail("", 0), 0);
    CHECK_EQ(utf8_unfinished_tail("abc", 3), 0);
    CHECK_EQ(utf8_unfinished_tail("ab\xC3", 3), 1);
    CHECK_EQ(utf8_unfinished_tail("\xC3\xA9", 2), 0);
    CHECK_EQ(utf8_unfinished_tail("a\xE2\x82", 3), 2);
    CHECK_EQ(utf8_unfinished_tail("\xF0\x9F\x98", 3), 3);
    CHECK_EQ(utf8_unfinished_tail("\xF0\x9F\x98\x80", 4), 0);
    CHECK_EQ(utf8_unfinished_tail("\xED\xA0", 2), 0); /* no more bytes make a surrogate legal */
    CHECK_EQ(utf8_unfinished_tail("\x80\x80\x80\x80", 4), 0);
    CHECK_EQ(utf8_unfinished_tail("\xFF", 1), 0);
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp += 37) {
        char s[5] = "x";
        int n = utf8_encode(cp, s + 1);
        for (int cut = 0; cut <= n; cut++) CHECK_EQ(utf8_unfinished_tail(s, (size_t)(1 + cut)), cut == n ? 0 : cut);
    }
}
