/* base/buf.h - a growing byte buffer for text. Sticky failure: after memory runs out every call does nothing and
 * `failed` stays set, so a writer checks once at the end.
 * Thread  its owner.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; /* always terminated with a 0 byte when not NULL */
    size_t n, cap;
    size_t limit; /* 0 = none; beyond it: failed */
    bool failed;
};

void buf_init(struct buf *b);   /* or zero it */
void buf_deinit(struct buf *b); /* frees, and forgets `failed`; can be used again */
void buf_clear(struct buf *b);  /* keeps the memory, and `failed` */
void buf_append(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* JSON string body of s[0..n): escapes ", \, control characters; invalid UTF-8 becomes U+FFFD. No quotes around. */
void buf_put_json(struct buf *b, const char *s, size_t n);
/* Gives the bytes away (mem_free); the buffer is empty then. NULL when failed. */
char *buf_take(struct buf *b, size_t *n);
