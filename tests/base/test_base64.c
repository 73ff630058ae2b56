/* tests/base/test_base64.c - RFC 4648's examples, every length there and back, and what is no base64. */
#include <string.h>
#include "base/base64.h"
#include "base/random.h"
#include "test.h"

static bool decodes(const char *s, const char *to)
{
    uint8_t out[64];
    size_t n = 0;

    return base64_decode(s, strlen(s), out, &n) && n == strlen(to) && memcmp(out, to, n) == 0;
}

/* Where the first character is that cannot be there. */
static size_t wrong_at(const char *s)
{
    uint8_t out[64];
    size_t n = 0;

    return base64_decode(s, strlen(s), out, &n) ? SIZE_MAX : n;
}

TEST(the_rfcs_examples)
{
    static const char *const pairs[][2] = {{"", ""},
                                           {"Zg==", "f"},
                                           {"Zm8=", "fo"},
                                           {"Zm9v", "foo"},
                                           {"Zm9vYg==", "foob"},
                                           {"Zm9vYmE=", "fooba"},
                                           {"Zm9vYmFy", "foobar"}};

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        char text[16] = "";

        CHECK(decodes(pairs[i][0], pairs[i][1]));
        base64_encode((const uint8_t *)pairs[i][1], strlen(pairs[i][1]), text);
        CHECK_EQ(base64_length(strlen(pairs[i][1])), strlen(pairs[i][0]));
        CHECK(memcmp(text, pairs[i][0], strlen(pairs[i][0])) == 0);
    }
    CHECK(decodes("Zg", "f") && decodes("Zm8", "fo") && decodes("Zm9v\r\nYmFy\n", "foobar"));
}

TEST(every_length_there_and_back)
{
    uint8_t bytes[200], back[256];
    char text[300];
    struct random r;

    random_init(&r, test_seed());
    for (size_t n = 0; n <= sizeof(bytes); n++) {
        size_t n_back = 0;

        for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)random_below(&r, 256);
        base64_encode(bytes, n, text);
        CHECK(base64_most(base64_length(n)) >= n);
        CHECK(base64_decode(text, base64_length(n), back, &n_back));
        CHECK(n_back == n && memcmp(bytes, back, n) == 0);
    }
}

TEST(what_is_no_base64_is_told_where)
{
    CHECK_EQ(wrong_at("Zm9v!"), 4);
    CHECK_EQ(wrong_at("Zm 9v"), 2);
    CHECK_EQ(wrong_at("Zg==Zg=="), 4);
    CHECK_EQ(wrong_at("Zg==="), 4);
    CHECK_EQ(wrong_at("="), 0);
    CHECK_EQ(wrong_at("A==="), 1);
    CHECK_EQ(wrong_at("Zm9vY"), 5);
    CHECK_EQ(wrong_at("Zg="), 3);
    CHECK_EQ(wrong_at("Zm9v-_8="), 4);
}
