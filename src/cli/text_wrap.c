/* cli/text_wrap.c - one code point at a time; a word remembers where it began. */
#include "cli/text_wrap.h"
#include <langinfo.h>
#include <locale.h>
#include <string.h>
#include <sys/ioctl.h>
#include <wchar.h>
#include "base/utf8.h"

enum { MIN_COLUMNS = 20, TAB = 8 };

void text_wrap_locale(void)
{
    const char *set = setlocale(LC_CTYPE, "");

    if (!set || strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8");
}

uint32_t text_wrap_columns(int fd)
{
    struct winsize size;

    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < MIN_COLUMNS) return 0;
    return size.ws_col;
}

void text_wrap_init(struct text_wrap *w, FILE *out, uint32_t width)
{
    memset(w, 0, sizeof(*w));
    w->out = out;
    w->width = width;
}

static void start_word(struct text_wrap *w)
{
    w->word_column = w->column;
    w->n_word = 0;
}

static void new_line(struct text_wrap *w, bool soft)
{
    fputc('\n', w->out);
    w->column = 0;
    w->soft = soft;
    if (!soft) w->n_ticks = 0;
    start_word(w);
}

/* Moves what there is of the word to a line of its own, if it began behind the start of this one. */
static void break_line(struct text_wrap *w, uint32_t width)
{
    uint32_t columns = w->column - w->word_column;
    size_t n = w->n_word;

    if (w->word_column == 0 || n == 0 || columns + width > w->width || n + UTF8_MAX_BYTES > WRAP_WORD_BYTES) {
        new_line(w, true);
        return;
    }
    fprintf(w->out, "\033[%uG\033[K", w->word_column + 1);
    new_line(w, true);
    fwrite(w->word, 1, n, w->out);
    w->n_word = n;
    w->column = columns;
}

static void put_blank(struct text_wrap *w, char blank)
{
    uint32_t width = blank == '\t' ? TAB - w->column % TAB : 1;

    if (w->width && !w->in_fence) {
        if (w->soft && w->column == 0) return;
        if (w->column + width > w->width) { /* the line's end stands for it */
            new_line(w, true);
            return;
        }
    }
    fputc(blank, w->out);
    w->column += width;
    start_word(w);
}

static void put_visible(struct text_wrap *w, const char *s, size_t n, uint32_t width)
{
    if (w->width && !w->in_fence && w->column + width > w->width) break_line(w, width);
    fwrite(s, 1, n, w->out);
    w->column += width;
    if (width > 1) { /* between wide characters a line may end anywhere */
        start_word(w);
    } else if (w->n_word + n <= WRAP_WORD_BYTES) {
        memcpy(w->word + w->n_word, s, n);
        w->n_word += n;
    } else {
        start_word(w);
    }
}

/* Three backticks at the start of a line open or close a block of code. */
static void watch_fence(struct text_wrap *w, uint32_t cp)
{
    if (cp == ' ' && w->n_ticks == 0) return;
    if (cp != '`' || w->n_ticks >= 3) {
        w->n_ticks = UINT32_MAX;
        return;
    }
    if (++w->n_ticks == 3) w->in_fence = !w->in_fence;
}

static void put_code_point(struct text_wrap *w, uint32_t cp, const char *s, size_t n)
{
    char other[UTF8_MAX_BYTES];
    int width;

    if (cp == '\n') {
        new_line(w, false);
        return;
    }
    watch_fence(w, cp);
    if (cp == ' ' || cp == '\t') {
        put_blank(w, (char)cp);
        return;
    }
    if (cp == '\r') return;
    if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) { /* ESC and its kind: pictures of them */
        cp = cp < 0x20 ? 0x2400 + cp : cp == 0x7f ? 0x2421 : UTF8_REPLACEMENT;
        n = (size_t)utf8_encode(cp, other);
        s = other;
    }
    width = wcwidth((wchar_t)cp);
    put_visible(w, s, n, width < 0 ? 1 : (uint32_t)width);
}

/* The columns of the word that text begins with, as far as it is there; of one that fills a line, more than that. */
static uint32_t columns_ahead(const struct text_wrap *w, const char *text, size_t n)
{
    uint32_t columns = 0;

    for (size_t i = 0; i < n && columns <= w->width;) {
        uint32_t cp;
        int step = utf8_decode(text + i, n - i, &cp), width = wcwidth((wchar_t)cp);

        if (cp == ' ' || cp == '\t' || cp == '\n' || width > 1) break;
        columns += width < 0 ? 1 : (uint32_t)width;
        i += (size_t)(step > 0 ? step : -step);
    }
    return columns;
}

void text_wrap_put(struct text_wrap *w, const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp, ahead;
        int step = utf8_decode(text + i, n - i, &cp);

        if (w->width && !w->in_fence && w->n_word == 0 && w->column > 0) { /* seen now, it need not be taken back */
            ahead = columns_ahead(w, text + i, n - i);
            if (ahead <= w->width && w->column + ahead > w->width) new_line(w, true);
        }

        if (step > 0)
            put_code_point(w, cp, text + i, (size_t)step);
        else
            put_code_point(w, UTF8_REPLACEMENT, "\xEF\xBF\xBD", 3);
        i += (size_t)(step > 0 ? step : -step);
    }
}
