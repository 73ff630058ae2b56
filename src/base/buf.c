/* base/buf.c - doubling growth behind one function, reserve(), which alone can fail. */
#include "base/buf.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/checked.h"
#include "base/mem.h"
#include "base/utf8.h"

void buf_init(struct buf *b)
{
    *b = (struct buf){0};
}

void buf_deinit(struct buf *b)
{
    mem_free(b->data);
    *b = (struct buf){.limit = b->limit};
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    if (b->data) b->data[0] = 0;
}

/* Room for n more bytes and the terminator. */
static bool reserve(struct buf *b, size_t n)
{
    void *data = b->data;
    size_t total;

    if (b->failed) return false;
    if (!checked_add(b->n, n, &total) || (b->limit && total > b->limit) || !checked_add(total, (size_t)1, &total) ||
        !mem_grow(&data, &b->cap, total, 1)) {
        b->failed = true;
        return false;
    }
    b->data = data;
    return true;
}

void buf_append(struct buf *b, const void *p, size_t n)
{
    if (!reserve(b, n)) return;
    if (n) memcpy(b->data + b->n, p, n);
    b->n += n;
    b->data[b->n] = 0;
}

void buf_puts(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if (!reserve(b, (size_t)n)) return;
    va_start(args, format);
    vsnprintf(b->data + b->n, (size_t)n + 1, format, args);
    va_end(args);
    b->n += (size_t)n;
}

void buf_put_json(struct buf *b, const char *s, size_t n)
{
    size_t plain = 0; /* s[plain..i) needs no change and is not yet appended */

    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp;
        int length = utf8_decode(s + i, n - i, &cp);
        size_t step = (size_t)(length < 0 ? -length : length);

        if (length < 0 || c < 0x20 || c == '"' || c == '\\' || c == 0x7f) {
            buf_append(b, s + plain, i - plain);
            plain = i + step;
            if (length < 0)
                buf_puts(b, "\xEF\xBF\xBD");
            else if (c == '"')
                buf_puts(b, "\\\"");
            else if (c == '\\')
                buf_puts(b, "\\\\");
            else if (c == '\n')
                buf_puts(b, "\\n");
            else if (c == '\r')
                buf_puts(b, "\\r");
            else if (c == '\t')
                buf_puts(b, "\\t");
            else
                buf_printf(b, "\\u%04x", c);
        }
        i += step;
    }
    buf_append(b, s + plain, n - plain);
}

char *buf_take(struct buf *b, size_t *n)
{
    char *data;
    size_t length = b->n;

    buf_append(b, "", 0); /* even an empty text has its terminator */
    if (b->failed) {
        buf_deinit(b);
        return NULL;
    }
    data = b->data;
    b->data = NULL;
    b->n = b->cap = 0;
    if (n) *n = length;
    return data;
}
