/* engine/draft_index.h - where has this been written before? The longest earlier occurrence of a text's last tokens.
 *
 * A ring of tokens with a hash of every three in a row, each chained to its previous occurrence. A look-up walks a few
 * occurrences, newest first, and takes the one that agrees with the text for the most tokens backwards. What followed
 * there is a draft of what follows here (prompt lookup decoding, arXiv:2304.04487 and successors). Stale entries cost
 * nothing but the look: tokens are compared, never trusted to the hash.
 *
 *     ring   ... x a b c d e f ... | query ends with a b c  ->  draft: d e f, agreed on 3 tokens (more if x agrees)
 *
 * Memory: 12 bytes per token of capacity, mapped, touched as far as used. Every operation is O(1).
 * Thread  engine thread only.
 */
#pragma once
#include <stdint.h>
#include "kv/radix.h"
#include "radish/status.h"

#define DRAFT_MIN_MATCH 3u  /* tokens that must agree */
#define DRAFT_MAX_MATCH 32u /* more agreement than this is not counted */

struct draft_index;

/* capacity: tokens, rounded up to a power of two; the oldest are overwritten. */
rd_status draft_index_create(uint32_t capacity, struct draft_index **out);
void draft_index_destroy(struct draft_index *x); /* NULL is fine */
void draft_index_append(struct draft_index *x, const kv_key *keys, uint32_t n);
/* No match goes across: begins another text. */
void draft_index_separate(struct draft_index *x);
void draft_index_clear(struct draft_index *x);
/* Tokens appended since creation or clear, separators included. */
uint32_t draft_index_n(const struct draft_index *x);

/* The draft after the last n tokens of text: at most n_most tokens into draft, their number into *n_draft. Returns how
 * many tokens agreed (0: no draft), at most DRAFT_MAX_MATCH. own: the text itself is what was appended last; its end
 * does not match itself. */
uint32_t draft_index_find(const struct draft_index *x, bool own, const kv_key *text, uint32_t n, uint32_t n_most,
                          kv_key *draft, uint32_t *n_draft);
