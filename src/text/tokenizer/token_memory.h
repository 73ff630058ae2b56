/* text/tokenizer/token_memory.h - the texts that were tokenised last, so that one which grew, a conversation say, is tokenised
 * from its last safe place on (text/tokenizer/token_history.h).
 *
 *     kept texts, newest first:   [conversation B, turn 7] [conversation A, turn 3] ...
 *     A's turn 4 begins with most of its turn 3: it takes the place of turn 3.
 *     C shares its first part (a long system prompt) with B: it starts with a copy of B's ids, and B stays.
 *
 * The result is always that of tokenizer_encode(). The texts used longest ago go when the bytes or the number of texts
 * exceed their limit (base/limits.h); a text that would take more than a quarter of the bytes is not kept.
 *
 * Thread  any thread; only the choice of a text is made under the lock.
 * Errors  as tokenizer_encode().
 */
#pragma once
#include "text/tokenizer/tokenizer.h"

struct token_memory;
/* t outlives it. max_bytes: for the kept texts and what belongs to them. */
rd_status token_memory_create(const struct tokenizer *t, size_t max_bytes, struct token_memory **out);
void token_memory_destroy(struct token_memory *m);
/* What names of special tokens in a text are. MARKED: tokens, but for those with marks (text/tokenizer/special_marks.h). */
enum token_names { NAMES_TEXT, NAMES_TOKENS, NAMES_MARKED };
/* As tokenizer_encode(). *n_kept (may be NULL): bytes of the text whose ids were there already. */
rd_status token_memory_encode(struct token_memory *m, const char *text, size_t n_bytes, bool add_special,
                              enum token_names names, int32_t **ids, uint32_t *n, size_t *n_kept, struct rd_error *err);
/* What is kept now. */
void token_memory_count(struct token_memory *m, size_t *n_texts, size_t *n_bytes);
