/* format/gguf/gguf_dump.h - what is in a GGUF file, for people and for programs (`radish inspect`).
 *
 * Both append to *out: the metadata (arrays shortened to their first elements), the table of tensors, and totals per
 * type. Text escapes control and non-ASCII bytes, so that a file cannot steer the terminal that shows it, and shortens
 * long strings; JSON has strings whole, invalid UTF-8 as U+FFFD, and null for numbers that are not finite:
 *     {"version", "file_bytes",
 *      "metadata": [{"key", "type", "value"} or {"key", "type": "array", "array_type", "n", "first": [...]}],
 *      "tensors": [{"name", "type", "dims", "offset", "bytes"}],
 *      "totals": {"metadata", "tensors", "weights", "bytes", "types": [{"type", "tensors", "weights", "bytes"}]}}
 * Tensor data is not read.
 *
 * Thread  any thread; runs inside model_file_guard(), so not from within one.
 * Errors  RD_E_NOMEM (or out->limit reached), RD_E_IO when the file shrank; *out then holds a part.
 */
#pragma once
#include "base/buf.h"
#include "format/model_file.h"

rd_status gguf_dump_text(const struct model_file *g, struct buf *out, struct rd_error *err);
rd_status gguf_dump_json(const struct model_file *g, struct buf *out, struct rd_error *err);
