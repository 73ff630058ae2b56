/* text/tokenizer/splitter.h - the "pre_tokenizer" of a tokenizer.json: cuts text into the pieces that the model sees.
 *
 * Known: ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace, BertPreTokenizer,
 * CharDelimiterSplit, FixedLength, Sequence.
 *
 * Two short cuts, which the whole chain often is: a scanner of text/tokenizer/pretokenize.h (splitter_scanner), and a ByteLevel at
 * the end, which is left out for a model that works on bytes (splitter_bytes_last).
 * Thread  read-only after create; struct split_work belongs to one call.
 * Errors  as text/tokenizer/normalizer.h.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "base/buf.h"
#include "radish/status.h"
#include "text/tokenizer/pretokenize.h"

struct splitter;
/* bytes_last: the model can take bytes where the chain ends with ByteLevel. */
rd_status splitter_create(const json_t *config, bool bytes_last, struct splitter **out, struct rd_error *err);
void splitter_destroy(struct splitter *s);
/* The pieces are bytes, not characters of the byte alphabet. */
bool splitter_bytes_last(const struct splitter *s);
/* true: cutting is pretokenize_word(*kind) and nothing else. */
bool splitter_scanner(const struct splitter *s, enum pretokenizer *kind);
/* The pieces end up as characters of the byte alphabet, or as bytes. *scans: before that, cutting is *kind alone. */
bool splitter_ends_in_bytes(const struct splitter *s, bool *scans, enum pretokenizer *kind);
bool splitter_is_empty(const struct splitter *s);

struct split_piece {
    uint32_t start, n;
};
struct split_work {
    struct buf bufs[2];
    struct split_piece *pieces, *other;
    size_t n, cap, other_cap;
    const char *text; /* what the pieces are pieces of */
};
void split_work_deinit(struct split_work *w);
/* at_start: the text is the beginning of what the user gave (Metaspace asks). s is well-formed and stays until w is
 * done with. Afterwards w->pieces[0..w->n) of w->text, none of them empty. */
rd_status splitter_run(const struct splitter *s, struct split_work *w, const char *text, size_t n, bool at_start);
