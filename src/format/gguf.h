/* format/gguf.h - GGUF files, versions 2 and 3: mapped, fully checked before use.
 *
 * gguf_open() reads the header with checked arithmetic against the bytes that are left, refuses anything that does not
 * add up (docs/faults.md F01-F05, F08, F18), and hands out views into the mapping. Nothing is allocated in
 * proportion to a number in the file before that number has been compared with the file's size. Little endian only.
 *
 * A tensor has at least one weight and 1 .. 4 dims, begins at a multiple of general.alignment, lies inside the file and
 * shares no byte with another; keys and names are not empty and not there twice. Views that are read long after opening
 * a file that others may shorten: inside gguf_guard(), or asking gguf_broken() afterwards.
 *
 * A model may be split into several files, NAME-00001-of-00003.gguf and so on (split.count): the first is opened, and has
 * the metadata and the tensors of all.
 *
 * Owns    the mapping and the tables; views live until gguf_close().
 * Thread  read-only after open.
 * Errors  RD_E_FORMAT naming field and offset; RD_E_UNSUPPORTED for a tensor type, version, or byte order that we do
 *         not read; RD_E_NOMEM; RD_E_IO, RD_E_NOT_FOUND, RD_E_INVALID from opening the file.
 * Source  the GGUF specification (ggml project, docs/gguf.md).
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"
#include "tensor/dtype.h"

enum gguf_type {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY,
    GGUF_U64, GGUF_I64, GGUF_F64
};

struct gguf_str { const char *s; size_t n; };   /* not terminated; may hold any bytes */

struct gguf_kv {
    struct gguf_str key;
    enum gguf_type type, array_type;            /* array_type when type == GGUF_ARRAY (arrays of arrays are refused) */
    uint64_t n;                                 /* array elements */
    const uint8_t *data;                        /* value bytes (arrays of strings: the first string's length field) */
};

struct gguf_tensor {
    struct gguf_str name;
    enum dtype dtype;
    uint32_t n_dims;                            /* 1 .. 4 */
    uint64_t dims[4];                           /* dims[0] is the contiguous one; unused are 1 */
    const uint8_t *data;                        /* NULL: gguf_tensor_open() makes them */
    uint64_t n_bytes;
    uint64_t offset;                            /* from the start of its file */
    const char *source;                         /* "SHARD: NAME" of a model that is a directory; else NULL */
    const struct hf_part *part;                 /* how the bytes are made; NULL in a file */
    enum dtype hub_dtype;                       /* n_hub_bytes > 0: of DTYPE_HUB_LIST, the same weights without the */
    uint64_t n_hub_bytes;                       /* rounding of dtype, in fewer bytes (gguf_tensor_open_as()) */
};

struct file_map;
struct gguf;
rd_status gguf_open(const char *path, struct gguf **out, struct rd_error *err);
/* The same from bytes in memory (tests, fuzzing); the bytes are borrowed. */
rd_status gguf_open_bytes(const uint8_t *data, size_t n, struct gguf **out, struct rd_error *err);
void gguf_close(struct gguf *g);
/* false if the file is now shorter than when it was mapped (F08). A file whose bytes are rewritten in place while open
 * is not noticed: replace model files by renaming. */
bool gguf_unchanged(const struct gguf *g);
/* The file behind it, of a split model the first; NULL when there is none (gguf_open_bytes) or it is a directory. */
const struct file_map *gguf_map(const struct gguf *g);
/* All files that hold tensors: 0, 1, a split model's, or a directory's shards. */
uint32_t gguf_n_maps(const struct gguf *g);
const struct file_map *gguf_map_at(const struct gguf *g, uint32_t i);
/* The file was cut short, or its disk failed, under somebody who read it: he got zeros (file_map_watch of base/file.h,
 * which every open GGUF file is under). True for good: what was computed since is worth nothing. */
bool gguf_broken(const struct gguf *g);
/* The mapping guard of base/file.h, for whoever touches tensor bytes. RD_E_IO when the file shrank underneath. */
rd_status gguf_guard(const struct gguf *g, rd_status (*fn)(void *arg), void *arg, struct rd_error *err);

/* A tensor's bytes, of whichever kind of model. A directory's may be made just then (format/hf_dir.h): freed by
 * gguf_tensor_close(). RD_E_NOMEM. */
struct gguf_bytes { const void *data; void *owned; };
rd_status gguf_tensor_open(const struct gguf_tensor *t, struct gguf_bytes *out, struct rd_error *err);
/* as: dtype, or hub_dtype where there is one. RD_E_FORMAT: weights that are no numbers (e4m3). */
rd_status gguf_tensor_open_as(const struct gguf_tensor *t, enum dtype as, struct gguf_bytes *out,
                              struct rd_error *err);
void gguf_tensor_close(struct gguf_bytes *b);

/* The tokenizer of a model that is a directory, which is no metadata; NULL in a file. */
#define GGUF_HUB_ENDS 32u
struct gguf_hub_text {
    const char *json, *config;                  /* tokenizer.json, tokenizer_config.json; NULL: absent */
    size_t n_json, n_config;
    int32_t ends[GGUF_HUB_ENDS];                /* "eos_token_id" of generation_config.json and config.json */
    uint32_t n_ends;
};
const struct gguf_hub_text *gguf_hub_text(const struct gguf *g);

uint32_t gguf_version(const struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g);          /* of a directory: its shards together; of a split model: all files */
uint64_t gguf_n_kv(const struct gguf *g);
const struct gguf_kv *gguf_kv_at(const struct gguf *g, uint64_t i);
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);       /* NULL: absent */
uint64_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Typed reads. RD_E_NOT_FOUND when absent (err untouched, *out untouched), RD_E_FORMAT when the type or range is wrong.
 * Any integer type is accepted where the value fits; f64 takes integers too. */
rd_status gguf_get_u64(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
                       struct rd_error *err);
rd_status gguf_get_f64(const struct gguf *g, const char *key, double *out, struct rd_error *err);   /* finite */
rd_status gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct rd_error *err);
rd_status gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct rd_error *err);
/* Array elements by index; the caller checks type and n first (u64: integers, sign-extended, and bools; f64: any
 * number). Strings have no index: walk them (an array of another type has none). */
uint64_t gguf_array_u64(const struct gguf_kv *kv, uint64_t i);
double gguf_array_f64(const struct gguf_kv *kv, uint64_t i);
struct gguf_str_iter { const uint8_t *p; uint64_t left; };
void gguf_strings(const struct gguf_kv *kv, struct gguf_str_iter *it);
bool gguf_next_string(struct gguf_str_iter *it, struct gguf_str *out);

const char *gguf_type_name(enum gguf_type t);
