/* text/tokenizer/stop.h - stop strings over streamed text: exact cut, nothing after it (or of it) ever leaves.
 *
 * Feed text as it is made; what cannot be part of a stop string any more comes out at once, the rest is held back.
 * Also across tokens, and for stops that overlap themselves or each other: the match that ends first wins, as a naive
 * search after every byte would find it; of several that end there, the one that starts first. Thread  its owner.
 * Errors RD_E_LIMIT (count, length: base/limits.h), RD_E_NOMEM.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "radish/status.h"
#include "text/tokenizer/tokenizer.h"

struct stop_matcher;
/* stops: copied; empty strings are refused (RD_E_INVALID). n may be 0. */
rd_status stop_matcher_create(const struct text_span *stops, size_t n, struct stop_matcher **out);
void stop_matcher_destroy(struct stop_matcher *m);
#define STOP_NOMEM (-2)
/* Returns the bytes of safe text now available at *text (valid until the next call, and while s is). *hit: index of the
 * stop found, or -1; STOP_NOMEM when memory ran out. After a hit or that nothing more comes out. */
size_t stop_matcher_feed(struct stop_matcher *m, const char *s, size_t n, const char **text, int *hit);
/* The end of the text: what was held back. */
size_t stop_matcher_flush(struct stop_matcher *m, const char **text);
