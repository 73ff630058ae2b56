/* format/gguf/gguf.h - GGUF files, versions 2 and 3: mapped, fully checked before use.
 *
 * gguf_open() reads the header with checked arithmetic against the bytes that are left, refuses anything that does not
 * add up (docs/faults.md F01-F05, F08, F18), and hands out views into the mapping. Nothing is allocated in proportion to
 * a number in the file before that number has been compared with the file's size. Little endian only. A tensor begins at
 * a multiple of general.alignment.
 *
 * A model may be split into several files, NAME-00001-of-00003.gguf and so on (split.count): the first is opened, and has
 * the metadata and the tensors of all.
 *
 * Owner, thread, errors  as model_file.h. Source  the GGUF specification (ggml project, docs/gguf.md).
 */
#pragma once
#include "format/model_file.h"

rd_status gguf_open(const char *path, struct model_file **out, struct rd_error *err);
/* The same from bytes in memory (tests, fuzzing); the bytes are borrowed. */
rd_status gguf_open_bytes(const uint8_t *data, size_t n, struct model_file **out, struct rd_error *err);
