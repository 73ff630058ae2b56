/* format/model_file.h - a model's file, of whatever kind: metadata under GGUF's keys, tensors under GGUF's names.
 *
 * A kind is a folder: gguf/ (one file, or a model split into several) and hub/ (a directory with config.json and
 * safetensors shards). model_file.c lists them. Who reads a struct model_file need not know which it is, except for three
 * things: tensors whose bytes are not those of the file (model_tensor_open()), rows of wq and wk that are not permuted
 * (ARCH.rope.half_split), and a tokenizer that is not metadata (model_file_text()).
 *
 * A tensor has at least one weight and 1 .. 4 dims, lies inside its file and shares no byte with another; keys and names
 * are not empty and occur once. Views that are read long after opening a file that others may shorten: inside
 * model_file_guard(), or asking model_file_broken() afterwards.
 *
 * Owns    the mappings and the tables; views live until model_file_close().
 * Thread  read-only after open.
 * Errors  RD_E_FORMAT naming field and offset; RD_E_UNSUPPORTED for a tensor type, version or byte order that radish does
 *         not read; RD_E_NOMEM; RD_E_IO, RD_E_NOT_FOUND, RD_E_INVALID from opening the file.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "radish/status.h"
#include "tensor/dtype.h"
#include "tensor/weight_groups.h"

enum meta_type {
    META_U8,
    META_I8,
    META_U16,
    META_I16,
    META_U32,
    META_I32,
    META_F32,
    META_BOOL,
    META_STRING,
    META_ARRAY,
    META_U64,
    META_I64,
    META_F64
};

struct model_str {
    const char *s;
    size_t n;
}; /* not terminated; may hold any bytes */

struct model_meta {
    struct model_str key;
    enum meta_type type, array_type; /* array_type when type == META_ARRAY (arrays of arrays are refused) */
    uint64_t n;                      /* array elements */
    const uint8_t *data;             /* value bytes (arrays of strings: the first string's length field) */
};

struct model_tensor {
    struct model_str name;
    enum dtype dtype;
    uint32_t n_dims;     /* 1 .. 4 */
    uint64_t dims[4];    /* dims[0] is the contiguous one; unused are 1 */
    const uint8_t *data; /* NULL: model_tensor_open() makes them */
    uint64_t n_bytes;
    uint64_t offset;                    /* from the start of its file */
    const char *source;                 /* "SHARD: NAME" of a model that is a directory; else NULL */
    const struct tensor_recipe *recipe; /* how the bytes are made; NULL: they are data */
    enum dtype hub_dtype;               /* n_hub_bytes > 0: of DTYPE_HUB_LIST, the same weights without the */
    uint64_t n_hub_bytes;               /* rounding of dtype, in fewer bytes (model_tensor_open_as()) */
    const struct weight_groups *groups; /* the same weights as they lie in the file; NULL: they are no such */
};

struct file_map;
struct model_file;
/* A GGUF file (of a split model the first) or a directory. families: what the architectures say of config.json, for
 * directories (format/hub/hub_family.h; model/model.h has model_hub_families). */
struct hub_families;
rd_status model_file_open(const char *path, const struct hub_families *families, struct model_file **out,
                          struct rd_error *err);
void model_file_close(struct model_file *g);
/* false if the file is now shorter than when it was mapped (F08). A file whose bytes are rewritten in place while open
 * is not noticed: replace model files by renaming. */
bool model_file_unchanged(const struct model_file *g);
/* The file that has the metadata, of a split model the first; NULL for bytes in memory and for a directory. */
const struct file_map *model_file_map(const struct model_file *g);
/* All files that hold tensors: 0, 1, a split model's, or a directory's shards. */
uint32_t model_file_n_maps(const struct model_file *g);
const struct file_map *model_file_map_at(const struct model_file *g, uint32_t i);
/* The file was cut short, or its disk failed, while it was read: the reader got zeros (every open file is under
 * file_map_watch of base/file.h). True for good: what was computed since is worth nothing. */
bool model_file_broken(const struct model_file *g);
/* The mapping guard of base/file.h, for whoever touches tensor bytes. RD_E_IO when the file shrank underneath. */
rd_status model_file_guard(const struct model_file *g, rd_status (*fn)(void *arg), void *arg, struct rd_error *err);

/* A tensor's bytes. Those of a directory may be made at that moment: freed by model_tensor_close(). RD_E_NOMEM. */
struct tensor_bytes {
    const void *data;
    void *owned;
};
rd_status model_tensor_open(const struct model_tensor *t, struct tensor_bytes *out, struct rd_error *err);
/* as: dtype, or hub_dtype where there is one. RD_E_FORMAT: weights that are no numbers (e4m3). */
rd_status model_tensor_open_as(const struct model_tensor *t, enum dtype as, struct tensor_bytes *out,
                               struct rd_error *err);
void model_tensor_close(struct tensor_bytes *b);

/* The tokenizer of a directory, which is not metadata; NULL of a GGUF file. */
#define MODEL_TEXT_ENDS 32u
struct model_text {
    const char *json, *config; /* tokenizer.json, tokenizer_config.json; NULL: absent */
    size_t n_json, n_config;
    int32_t ends[MODEL_TEXT_ENDS]; /* "eos_token_id" of generation_config.json and config.json */
    uint32_t n_ends;
};
const struct model_text *model_file_text(const struct model_file *g);

/* The part that sees, of a directory: with the keys and names of a mmproj file as llama.cpp writes it (hub/hf_vision.h says
 * what is otherwise). NULL: there is none, it is a file by itself. Broken and unchanged are the whole's. */
const struct model_file *model_file_vision(const struct model_file *g);

/* What to call the model at a path: "org/name" in the hub's cache (.../models--org--name/snapshots/HASH), else the path's
 * last part, cut to cap. */
void model_name_of(const char *path, char *name, size_t cap);

uint32_t model_file_version(const struct model_file *g); /* of the metadata's encoding: GGUF's */
/* Of a directory its shards together, of a split model all files. */
uint64_t model_file_bytes(const struct model_file *g);
uint64_t model_file_n_meta(const struct model_file *g);
const struct model_meta *model_file_meta(const struct model_file *g, uint64_t i);
const struct model_meta *model_file_find(const struct model_file *g, const char *key); /* NULL: absent */
uint64_t model_file_n_tensors(const struct model_file *g);
const struct model_tensor *model_file_tensor(const struct model_file *g, uint64_t i);
const struct model_tensor *model_file_find_tensor(const struct model_file *g, const char *name);

/* Typed reads. RD_E_NOT_FOUND when absent (err untouched, *out untouched), RD_E_FORMAT when the type or range is wrong.
 * Any integer type is accepted where the value fits; f64 takes integers too. */
rd_status model_file_u64(const struct model_file *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
                         struct rd_error *err);
rd_status model_file_f64(const struct model_file *g, const char *key, double *out, struct rd_error *err); /* finite */
rd_status model_file_bool(const struct model_file *g, const char *key, bool *out, struct rd_error *err);
rd_status model_file_str(const struct model_file *g, const char *key, struct model_str *out, struct rd_error *err);
/* Array elements by index; the caller checks type and n first (u64: integers, sign-extended, and bools; f64: any
 * number). Strings have no index: walk them (an array of another type has none). */
uint64_t meta_u64_at(const struct model_meta *kv, uint64_t i);
double meta_f64_at(const struct model_meta *kv, uint64_t i);
struct meta_strings {
    const uint8_t *p;
    uint64_t left;
};
void meta_strings_of(const struct model_meta *kv, struct meta_strings *it);
bool meta_next_string(struct meta_strings *it, struct model_str *out);

const char *meta_type_name(enum meta_type t);
