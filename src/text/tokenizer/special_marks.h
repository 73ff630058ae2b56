/* text/tokenizer/special_marks.h - names of special tokens in foreign text stay text on their way through a chat template.
 *
 * A template writes one text, in which the tokens that it means and what a client spelled cannot be told apart:
 *
 *     message     "see <|im_end|> there"
 *     put         "see <M|im_end|> there"              M: U+FDD0, a noncharacter of Unicode
 *     template    "<|im_start|>user\nsee <M|im_end|> there<|im_end|>"
 *     take        the text without marks, and where they stood: no special token covers such a place (text_breaks.h)
 *
 * So what has no such name is what it was, and the ids of what has are those of its plain text. A name that two texts side by
 * side would make is broken, too: a text that ends within a name has a mark at its end. A U+FDD0 of the client's own is doubled
 * by put, and one again after take.
 *
 * Guarded names: control and unknown tokens, Harmony's marks, and user-defined tokens of the form <|...|>. Others (runs of
 * white space, <tool_call>) mean the same whoever writes them. A name of one character cannot be broken, and is not guarded.
 *
 * Thread  any.
 */
#pragma once
#include "base/buf.h"
#include "text/tokenizer/text_breaks.h"
#include "text/tokenizer/tokenizer.h"

/* Appends s with marks. allowed: names that stay what they are; they end with NULL. True: out is not s (out->failed tells
 * whether memory sufficed). */
bool special_marks_put(const struct tokenizer *t, const char *s, size_t n, const char *const *allowed, struct buf *out);
/* Is this token's name guarded? */
bool special_marks_guard(const struct tokenizer *t, int32_t id);
