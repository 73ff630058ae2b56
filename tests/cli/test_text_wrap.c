/* tests/cli/test_text_wrap.c - what a terminal shows of streamed text, cut into any pieces. */
#include "cli/text_wrap.h"
#include <stdlib.h>
#include <string.h>
#include "base/utf8.h"
#include "test.h"

/* A terminal that knows newlines, "\033[nG" and "\033[K", and stays inside its width: rows of code points. */
struct screen {
    uint32_t cells[64][80], n_rows, column, most;
};

static void screen_put(struct screen *s, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;

        if (text[i] == '\033') {
            char *end;
            unsigned long column = strtoul(text + i + 2, &end, 10);
            if (*end == 'G')
                s->column = (uint32_t)column - 1;
            else if (*end == 'K')
                memset(s->cells[s->n_rows] + s->column, 0, (80 - s->column) * sizeof(uint32_t));
            i = (size_t)(end - text) + 1;
            continue;
        }
        i += (size_t)utf8_decode(text + i, n - i, &cp);
        if (cp == '\n') {
            s->n_rows++;
            s->column = 0;
            continue;
        }
        s->cells[s->n_rows][s->column] = cp;
        s->column += cp >= 0x4e00 && cp < 0xa000 ? 2 : 1;
        if (s->column > s->most) s->most = s->column;
    }
}

static void screen_row(const struct screen *s, uint32_t row, char *out)
{
    for (uint32_t i = 0; i < 80; i++)
        if (s->cells[row][i]) out += utf8_encode(s->cells[row][i], out);
    *out = 0;
}

/* text in pieces of whole characters drawn from seed, on a screen of that width. */
static void show(const char *text, uint32_t width, uint64_t seed, struct screen *s)
{
    char *out = NULL;
    size_t n_out = 0, n = strlen(text);
    FILE *file = open_memstream(&out, &n_out);
    struct text_wrap w;

    memset(s, 0, sizeof(*s));
    text_wrap_locale();
    text_wrap_init(&w, file, width);
    for (size_t i = 0; i < n;) {
        size_t piece = 1 + (size_t)(seed % 7);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (piece > n - i) piece = n - i;
        while (i + piece < n && ((unsigned char)text[i + piece] & 0xc0) == 0x80) piece++;
        text_wrap_put(&w, text + i, piece);
        i += piece;
    }
    fclose(file);
    screen_put(s, out, n_out);
    free(out);
}

#define CHECK_ROW(s, row, wanted)                                                                                      \
    do {                                                                                                               \
        char got_[400];                                                                                                \
        screen_row(s, row, got_);                                                                                      \
        CHECK_STR(got_, wanted);                                                                                       \
    } while (0)

TEST(words_are_wrapped_whole_however_the_text_is_cut)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct screen s;
        show("The quick brown fox jumps over the lazy dog.\n\nA second paragraph is here.", 20, seed, &s);
        CHECK_ROW(&s, 0, "The quick brown fox ");
        CHECK_ROW(&s, 1, "jumps over the lazy ");
        CHECK_ROW(&s, 2, "dog.");
        CHECK_ROW(&s, 3, "");
        CHECK_ROW(&s, 4, "A second paragraph ");
        CHECK_ROW(&s, 5, "is here.");
        CHECK(s.most <= 20);
    }
}

TEST(wide_and_combining_characters_take_the_columns_they_take)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct screen s;
        show("\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xBD\xA0\xE5\xA5\xBD"
             "\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xBD\xA0",
             20, seed, &s);
        CHECK_EQ(s.most, 20);
        CHECK_EQ(s.n_rows, 1);
        show("caf\xC3\xA9 \xC3\xBC"
             "ber stra\xC3\x9F"
             "e gr\xC3\xBC\xC3\x9F"
             "e",
             20, seed, &s);
        CHECK_ROW(&s, 0,
                  "caf\xC3\xA9 \xC3\xBC"
                  "ber stra\xC3\x9F"
                  "e ");
        CHECK_ROW(&s, 1,
                  "gr\xC3\xBC\xC3\x9F"
                  "e");
    }
}

TEST(a_word_longer_than_the_line_is_cut)
{
    struct screen s;
    show("see https://example.org/a/very/long/path.html now", 20, 1, &s);
    CHECK(s.most == 20 && s.n_rows >= 2);
}

TEST(code_between_fences_is_not_wrapped)
{
    struct screen s;
    show("So:\n```c\nint a_long_line(int x, int y, int z);\n```\nThat is the declaration of it.", 20, 3, &s);
    CHECK_ROW(&s, 2, "int a_long_line(int x, int y, int z);");
    CHECK_ROW(&s, 4, "That is the ");
}

TEST(no_escape_sequence_of_a_model_reaches_the_terminal)
{
    char *out = NULL;
    size_t n = 0;
    FILE *file = open_memstream(&out, &n);
    struct text_wrap w;

    text_wrap_locale();
    text_wrap_init(&w, file, 0);
    text_wrap_put(&w,
                  "a\033]0;title\007b\x7f\xC2\x9B"
                  "31m\r\n\tc",
                  22);
    fclose(file);
    CHECK_STR(out, "a\xE2\x90\x9B]0;title\xE2\x90\x87"
                   "b\xE2\x90\xA1\xEF\xBF\xBD"
                   "31m\n\tc");
    free(out);
}
