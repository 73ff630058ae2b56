/* text/tokenizer/normalizer.h - the "normalizer" of a tokenizer.json: a list of steps from text to text.
 *
 * Known: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend, Nmt, BertNormalizer, Precompiled,
 * ByteLevel, Sequence.
 * Thread  read-only after create; struct normal_work belongs to one call.
 * Errors  RD_E_UNSUPPORTED names a component that is not known; RD_E_FORMAT what is wrong in one that is; RD_E_NOMEM;
 * RD_E_LIMIT: an expression takes too long, or the text grows beyond LIMIT_TEXT_BYTES.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "base/buf.h"
#include "radish/status.h"

struct normalizer;
/* config NULL or null: no steps. */
rd_status normalizer_create(const json_t *config, struct normalizer **out, struct rd_error *err);
void normalizer_destroy(struct normalizer *n);
bool normalizer_is_empty(const struct normalizer *n);
/* Only a normal form (NFC): the text may be cut where unicode_starts_clean() says so. */
bool normalizer_is_nfc(const struct normalizer *n);

struct normal_work {
    struct buf bufs[2];
    bool front_lost;
}; /* front_lost: Strip took what stood first */
void normal_work_deinit(struct normal_work *w);
/* *out: s itself where nothing changes, else a view into w, until the next call with it. s is well-formed UTF-8. */
rd_status normalizer_run(const struct normalizer *n, struct normal_work *w, const char *s, size_t n_bytes,
                         const char **out, size_t *n_out);

/* BPE's printable alphabet for bytes: appended to out. */
void normalizer_map_bytes(const char *s, size_t n, struct buf *out);
