/* cli/text_wrap.h - streamed text on a terminal: words are wrapped at its width, control characters are made visible.
 *
 * Text is written the moment it comes. A word that turns out not to fit is taken back and written again on the next
 * line, so nothing waits for a word's end. Lines between ``` fences are code and are left to the terminal, which wraps
 * them without breaking what is copied. A model's answer is a stranger's bytes: no escape sequence in it reaches the
 * terminal.
 *
 * Units   columns: 0, 1 or 2 per code point, as wcwidth() says (text_wrap_locale first).
 * Thread  main thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { WRAP_WORD_BYTES = 512 };

struct text_wrap {
    FILE *out;
    uint32_t width;               /* 0: no wrapping */
    uint32_t column, word_column; /* where the cursor is, and where the word it is in began */
    char word[WRAP_WORD_BYTES];   /* the word so far */
    size_t n_word;
    bool soft; /* this line began by wrapping: spaces at its start are dropped */
    bool in_fence;
    uint32_t n_ticks; /* "`" at the start of this line; UINT32_MAX: something else came first */
};

/* A UTF-8 locale for character classes and widths; numbers and messages stay as they are. */
void text_wrap_locale(void);

/* The columns of the terminal fd; 0: unknown, or too narrow to wrap. */
uint32_t text_wrap_columns(int fd);

void text_wrap_init(struct text_wrap *w, FILE *out, uint32_t width);
/* text: UTF-8, any piece of it that ends with a whole character. */
void text_wrap_put(struct text_wrap *w, const char *text, size_t n);
