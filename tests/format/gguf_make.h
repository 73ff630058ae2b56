/* tests/format/gguf_make.h - builds GGUF files in memory, right and wrong, for tests.
 *
 * The writers append one field each and check nothing. gguf_make_sample() builds a small valid file that has every
 * value type, arrays, and three tensors, and says where its fields are, so that a test can spoil one at a time.
 */
#pragma once
#include "base/buf.h"
#include "format/model_file.h"

void gguf_put_u32(struct buf *b, uint32_t v);
void gguf_put_u64(struct buf *b, uint64_t v);
void gguf_put_str(struct buf *b, const char *s);
void gguf_put_header(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv);
void gguf_put_kv_u32(struct buf *b, const char *key, uint32_t v);
void gguf_put_kv_str(struct buf *b, const char *key, const char *value);
/* Key, array type, length; the elements follow by the caller. */
void gguf_put_kv_array(struct buf *b, const char *key, enum meta_type type, uint64_t n);
void gguf_put_tensor(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type,
                     uint64_t offset);
/* Zero bytes up to a multiple of align. */
void gguf_put_padding(struct buf *b, size_t align);

#define SAMPLE_TENSORS 3
struct gguf_sample {
    struct buf bytes;
    size_t n_header; /* where the tensor data begins */
    size_t at_version, at_n_tensors, at_n_kv;
    size_t at_key_length, at_type; /* of the first entry, general.architecture (a string) */
    size_t at_string_length;
    size_t at_bool;                            /* value of test.bool */
    size_t at_array_type, at_array_length;     /* test.u32s */
    size_t at_strings_length, at_inner_length; /* test.strings: count, first string's length */
    size_t at_alignment;                       /* value of general.alignment, 32 */
    struct {
        size_t name_length, n_dims, dims, type, offset;
    } tensors[SAMPLE_TENSORS];
};

/* f32 [4, 2], q4 [64, 3] and half [5], in this order. version 2 or 3. */
void gguf_make_sample(struct gguf_sample *s, uint32_t version);
/* Overwrites bytes at a place of the sample. */
void gguf_poke_u32(struct buf *b, size_t at, uint32_t v);
void gguf_poke_u64(struct buf *b, size_t at, uint64_t v);
