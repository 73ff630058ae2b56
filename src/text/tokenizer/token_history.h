/* text/tokenizer/token_history.h - tokenises a text that grows, a conversation say, from its last safe place on.
 *
 * Keeps the last text, its ids, and what they belong to: special tokens and the stretches between them, and inside a
 * stretch (where a scanner cuts it into words) marks every few hundred bytes. The next text keeps the ids of every
 * stretch that is the same, and of the first different one those up to the last mark that its change cannot reach. The
 * result is always that of tokenizer_encode().
 *
 * Owns    a copy of the last text and its ids: memory in proportion to it.
 * Thread  its owner. Errors  as tokenizer_encode(); the history is then empty, and usable.
 */
#pragma once
#include "text/tokenizer/text_breaks.h"
#include "text/tokenizer/tokenizer.h"

struct token_history;
rd_status token_history_create(const struct tokenizer *t, struct token_history **out);
void token_history_destroy(struct token_history *h);
/* As tokenizer_encode(); breaks: none of the special tokens covers one (NULL: there are none; text/tokenizer/
 * special_marks.h). *n_kept (may be NULL): bytes of the text whose ids were there already. */
rd_status token_history_encode(struct token_history *h, const char *text, size_t n_bytes, bool add_special,
                               bool parse_special, const struct text_breaks *breaks, int32_t **ids, uint32_t *n,
                               size_t *n_kept, struct rd_error *err);
/* Bytes that text[0..n) begins with and the kept text too; *n_text (may be NULL): how many the kept one has. */
size_t token_history_shared(const struct token_history *h, const char *text, size_t n, size_t *n_text);
/* Another one that knows the same, or NULL: out of memory. */
struct token_history *token_history_copy(const struct token_history *h);
/* What it takes in memory. */
size_t token_history_bytes(const struct token_history *h);
