/* server/params/json_out.h - writing JSON text into a struct buf. Thread: the buffer's owner. Errors: the buffer's sticky
 * `failed`. */
#pragma once
#include <stdint.h>
#include "base/buf.h"

/* "s", quoted and escaped; invalid UTF-8 becomes U+FFFD. */
void json_put_string(struct buf *b, const char *s, size_t n);
/* Always a JSON number: not-a-number becomes 0, infinities +-9999 (a log probability of an impossible token). */
void json_put_number(struct buf *b, double v);
/* ,"name":v */
void json_put_field(struct buf *b, const char *name, double v);
/* "2026-11-22T10:00:00Z": RFC 3339, of seconds since 1970. */
void json_put_time(struct buf *b, int64_t wall_s);
