/* base/error.c - formats into the fixed buffer of struct rd_error. */
#include "base/error.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

rd_status error_set(struct rd_error *err, rd_status st, const char *format, ...)
{
    va_list args;

    if (!err) return st;
    err->status = st;
    va_start(args, format);
    int n = vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    if (n < 0) err->text[0] = 0;
    if (n >= (int)sizeof(err->text)) memcpy(err->text + sizeof(err->text) - 4, "...", 4);
    return st;
}

const char *error_quote(char *buf, size_t cap, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t used = 0, safe = 0; /* safe: where "..." and the terminator still fit behind */

    if (cap == 0) return buf;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        bool plain = c >= 0x20 && c < 0x7f;
        size_t width = plain ? 1 : 4;

        if (used + width + 1 > cap) {
            size_t dots = cap - 1 - safe < 3 ? cap - 1 - safe : 3;
            memcpy(buf + safe, "...", dots);
            buf[safe + dots] = 0;
            return buf;
        }
        if (plain) {
            buf[used] = (char)c;
        } else {
            buf[used] = '\\';
            buf[used + 1] = 'x';
            buf[used + 2] = hex[c >> 4];
            buf[used + 3] = hex[c & 15];
        }
        used += width;
        if (used + 4 <= cap) safe = used;
    }
    buf[used] = 0;
    return buf;
}
