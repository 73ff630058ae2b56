/* format/gguf_inside.h - what the files of the GGUF reader share: the open file and the parser's entry.
 *
 * gguf.c opens, indexes and looks up; gguf_parse.c checks the bytes; gguf_values.c reads typed values; gguf_split.c joins
 * the files of a model that is split.
 * Layout of a file, little endian, nothing aligned before the data:
 *     "GGUF"  u32 version  u64 n_tensors  u64 n_kv
 *     n_kv x      string key, u32 type, value        string: u64 length, bytes; array: u32 type, u64 n, values
 *     n_tensors x string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset (from the start of the data)
 *     padding to general.alignment (32 by default), then the data
 */
#pragma once
#include <string.h>
#include "base/file.h"
#include "format/gguf.h"

struct gguf {
    struct file_map map;
    bool mapped;                    /* false: borrowed bytes */
    const uint8_t *data;
    uint64_t n_bytes;
    uint32_t version;
    uint64_t alignment;
    uint64_t n_kv, n_tensors;       /* entries parsed so far; all of them once open */
    size_t cap_kv, cap_tensors;
    struct gguf_kv *kv;
    struct gguf_tensor *tensors;
    uint32_t *kv_by_key;            /* [n_kv] positions, sorted by the key's bytes */
    uint32_t *tensors_by_name;      /* [n_tensors] */
    struct gguf **parts;            /* [n_parts] the further files of a split model: theirs are maps and names */
    uint32_t n_parts;
    struct hf_dir *dir;             /* a directory (format/hf_inside.h): data is its metadata; NULL: a file */
    uint32_t *scratch;              /* while sorting; here so that a SIGBUS in a comparison leaks nothing */
};

/* Parses g->data[0 .. g->n_bytes) into the tables. On failure the tables hold what was read so far. */
rd_status gguf_parse(struct gguf *g, struct rd_error *err);

/* One file, whether or not it is a part of a split model. */
rd_status gguf_open_one(const char *path, struct gguf **out, struct rd_error *err);
/* The other files of a model of which g, opened from path, is the first: nothing to do where it is the only one. */
rd_status gguf_open_parts(struct gguf *g, const char *path, struct rd_error *err);

/* Builds g->kv_by_key; RD_E_FORMAT on a key that is there twice. */
rd_status gguf_index_kv(struct gguf *g, struct rd_error *err);
/* Builds g->tensors_by_name and checks that no two tensors share a name or a byte. */
rd_status gguf_index_tensors(struct gguf *g, struct rd_error *err);

/* The names alone: tensors of several files. */
rd_status gguf_index_names(struct gguf *g, struct rd_error *err);

/* Bytes of one value; 0 for strings and arrays. type <= GGUF_F64. */
uint32_t gguf_type_bytes(enum gguf_type type);

static inline uint32_t gguf_u32_at(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint64_t gguf_u64_at(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}
