/* base/config_edit.c - config_read() says in which line the key stands, and what is written it reads again. */
#include "base/config_edit.h"
#include <string.h>
#include "base/config_text.h"
#include "base/error.h"

/* Digits stand for themselves. */
static void put_value(struct buf *out, const char *value)
{
    size_t n = strlen(value);

    if (n && n < 19 && strspn(value, "0123456789") == n && (*value != '0' || n == 1)) {
        buf_puts(out, value);
        return;
    }
    buf_putc(out, '"');
    for (const char *s = value; *s; s++) {
        if ((unsigned char)*s < 32 || *s == 127) {
            buf_printf(out, "\\u%04x", (unsigned)*s);
            continue;
        }
        if (*s == '"' || *s == '\\') buf_putc(out, '\\');
        buf_putc(out, *s);
    }
    buf_putc(out, '"');
}

/* The value's end in a line that config_read() has taken. */
static const char *end_of_value(const char *s, const char *end)
{
    char quote = *s;

    if (quote != '"' && quote != '\'') {
        while (s < end && !strchr(" \t\r\n#", *s)) s++;
        return s;
    }
    for (s++; s < end && *s != quote; s++)
        if (*s == '\\' && quote == '"') s++;
    return s < end ? s + 1 : end;
}

/* The line [line, end) with another value, or without. */
static void put_line(struct buf *out, const char *line, const char *end, const char *value)
{
    const char *at = memchr(line, '=', (size_t)(end - line)), *behind, *comment;

    for (at++; *at == ' ' || *at == '\t'; at++) continue;
    behind = end_of_value(at, end);
    if (value) {
        buf_append(out, line, (size_t)(at - line));
        put_value(out, value);
        buf_append(out, behind, (size_t)(end - behind));
        return;
    }
    comment = memchr(behind, '#', (size_t)(end - behind));
    if (comment) buf_append(out, comment, (size_t)(end - comment));
}

static rd_status find(const char *text, size_t n, const char *name, const char *key, uint32_t *line,
                      struct rd_error *err)
{
    struct config c;
    rd_status st = config_read(text, n, name, &c, err);

    *line = 0;
    if (st != RD_OK) return st;
    for (size_t i = 0; i < c.n_keys; i++) {
        if (strcmp(c.keys[i].name, key) != 0) continue;
        *line = c.keys[i].line;
        if (c.keys[i].is_list) st = error_set(err, RD_E_UNSUPPORTED, "%s:%u: %s is a list", name, *line, key);
    }
    config_free(&c);
    return st;
}

rd_status config_edit(const char *text, size_t n, const char *name, const char *key, const char *value, struct buf *out,
                      struct rd_error *err)
{
    const char *end = text + n, *at = text, *next;
    uint32_t line;
    rd_status st = find(text, n, name, key, &line, err);

    if (st != RD_OK) return st;
    for (uint32_t i = 1; line && i < line; i++) at = (const char *)memchr(at, '\n', (size_t)(end - at)) + 1;
    if (line) {
        next = memchr(at, '\n', (size_t)(end - at));
        next = next ? next + 1 : end;
        buf_append(out, text, (size_t)(at - text));
        put_line(out, at, next, value);
        buf_append(out, next, (size_t)(end - next));
    } else {
        buf_append(out, text, n);
        if (value && n && text[n - 1] != '\n') buf_putc(out, '\n');
        if (value) buf_puts(out, key), buf_puts(out, " = "), put_value(out, value), buf_putc(out, '\n');
    }
    if (!out->failed && find(out->data ? out->data : "", out->n, name, key, &line, err) == RD_OK) return RD_OK;
    st = out->failed ? error_set(err, RD_E_NOMEM, "%s: out of memory", name) : RD_E_LIMIT;
    buf_deinit(out);
    return st;
}
