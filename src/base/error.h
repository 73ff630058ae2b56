/* base/error.h - fills struct rd_error and returns the status, in one expression:
 *
 *     return error_set(err, RD_E_FORMAT, "tensor %s: %u dims, at most 4", name, n);
 *
 * err may be NULL. Text from foreign bytes is escaped with error_quote() first (control characters, length).
 * Thread  any thread.
 */
#pragma once
#include <stddef.h>
#include "radish/status.h"

rd_status error_set(struct rd_error *err, rd_status st, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Copies at most cap-1 bytes of s[0..n), control and non-ASCII bytes as \xNN, "..." when cut. Returns buf. */
const char *error_quote(char *buf, size_t cap, const char *s, size_t n);
