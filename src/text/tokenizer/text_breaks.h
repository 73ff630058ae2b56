/* text/tokenizer/text_breaks.h - places of a text that no special token may cover, and the marks that carry them through a
 * chat template (text/tokenizer/special_marks.h).
 *
 * A mark is U+FDD0, a noncharacter of Unicode; a text's own is doubled, and one again when the marks are taken out.
 *
 * Thread  any. Errors  RD_E_NOMEM, RD_E_LIMIT (a text of more than LIMIT_TEXT_BYTES).
 * Source  Unicode 15, section 23.7 (noncharacters are for use within a program).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "radish/status.h"

/* Ascending. Zeroed: none. */
struct text_breaks {
    uint32_t *at;
    size_t n, cap;
};
void text_breaks_deinit(struct text_breaks *b);
/* Does one lie between two bytes of text[from .. end)? b may be NULL. */
bool text_breaks_cut(const struct text_breaks *b, size_t from, size_t end);

/* Does s begin with one? */
bool text_mark_is(const char *s, size_t n);
/* Appends one; a text without any. */
void text_marks_write(struct buf *out);
void text_marks_write_text(struct buf *out, const char *s, size_t n);
/* *text: s without marks (mem_free), or NULL: it has none. */
rd_status text_marks_take(const char *s, size_t n, char **text, size_t *n_text, struct text_breaks *breaks);
