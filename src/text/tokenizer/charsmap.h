/* text/tokenizer/charsmap.h - SentencePiece's precompiled character map (normalizer "Precompiled" of tokenizer.json).
 *
 *     base64 of: [u32 n_trie_bytes] [u32 x n_trie_bytes / 4: a double-array trie] [texts, each with a 0 behind it]
 *
 * A grapheme of fewer than 6 bytes is looked up whole, else each of its characters; what the shortest entry at its front
 * says takes its place.
 * Thread  read-only after create. Errors  RD_E_FORMAT, RD_E_NOMEM. Source  SentencePiece, arXiv:1808.06226; Darts-clone.
 */
#pragma once
#include <stddef.h>
#include "base/buf.h"
#include "radish/status.h"

struct charsmap;
rd_status charsmap_create(const char *base64, size_t n, struct charsmap **out, struct rd_error *err);
void charsmap_destroy(struct charsmap *m);
/* Appends the mapped text. s is well-formed UTF-8. */
rd_status charsmap_run(const struct charsmap *m, const char *s, size_t n, struct buf *out);
