/* base/config_edit.h - one key of a configuration (config_text.h) set or taken out; all other bytes stay as they are:
 * comments, order, unknown keys, ends of lines.
 *
 *     # how much                          # how much
 *     kv-bytes = "4G"   # a half     ->   kv-bytes = "8G"   # a half
 *
 * A key that is not there comes behind the last line. One that is taken out takes its line along, unless a comment stands
 * on it, which stays.
 *
 * Thread  any thread.
 * Errors  as config_read(); RD_E_UNSUPPORTED: the key has a list. *out is empty then.
 */
#pragma once
#include "base/buf.h"
#include "radish/status.h"

/* text[0..n) to *out, which is empty. name: for messages; key: bare; value: NULL takes the key out. */
rd_status config_edit(const char *text, size_t n, const char *name, const char *key, const char *value, struct buf *out,
                      struct rd_error *err);
