/* text/tokenizer/hub_decode.h - the "decoder" of a tokenizer.json: texts of tokens to text.
 *
 * Known: ByteLevel, ByteFallback, Metaspace, Fuse, Replace, Strip, WordPiece, BPEDecoder, Sequence; without a decoder
 * the texts are joined by spaces.
 * Thread  read-only after create. Errors  as text/tokenizer/normalizer.h.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "base/buf.h"
#include "radish/status.h"
#include "text/text_span.h"

struct hub_decoder;
rd_status hub_decoder_create(const json_t *config, struct hub_decoder **out, struct rd_error *err);
void hub_decoder_destroy(struct hub_decoder *d);
/* All tokens of a text; appended to out. Ill-formed bytes come out as U+FFFD, as the hub's tokenizers do it. */
rd_status hub_decoder_run(const struct hub_decoder *d, const struct text_span *tokens, size_t n, struct buf *out);
/* The bytes of one token in the middle of a text, for streams: appended to out. work: two empty buffers. */
rd_status hub_decoder_piece(const struct hub_decoder *d, struct text_span token, struct buf work[2], struct buf *out);
/* A text's first token loses the space at its front. */
bool hub_decoder_strips_first(const struct hub_decoder *d);
