/* format/gguf/gguf_write.h - metadata of a GGUF file, written into memory.
 *
 *     struct gguf_writer w = {0};
 *     gguf_add_u32(&w, "llama.block_count", 32); ...
 *     gguf_write_header(&w, n_tensors, &header);
 *
 * Thread  its owner. Errors  sticky, as struct buf: w.kv.failed.
 */
#pragma once
#include "base/buf.h"
#include "format/model_file.h"

struct gguf_writer {
    struct buf kv;
    uint64_t n_kv;
};

void gguf_add_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_add_f32(struct gguf_writer *w, const char *key, double v);
void gguf_add_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_add_str(struct gguf_writer *w, const char *key, const char *s, size_t n);
/* An array of numbers, as they lie in memory (little endian). */
void gguf_add_array(struct gguf_writer *w, const char *key, enum meta_type type, const void *values, uint64_t n);
/* An array of n strings: then gguf_add_string() n times. */
void gguf_add_strings(struct gguf_writer *w, const char *key, uint64_t n);
void gguf_add_string(struct gguf_writer *w, const char *s, size_t n);
/* An entry of another file, its value's bytes as they are. */
void gguf_add_copy(struct gguf_writer *w, const struct model_meta *kv);
/* The file's start up to and with the metadata, appended to out. */
void gguf_write_header(const struct gguf_writer *w, uint64_t n_tensors, struct buf *out);
void gguf_writer_deinit(struct gguf_writer *w);
