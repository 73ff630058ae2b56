/* format/gguf/gguf_inside.h - what the files of the GGUF reader share.
 *
 * gguf.c opens; gguf_parse.c checks the bytes; gguf_split.c joins the files of a model that is split.
 * Layout of a file, little endian, nothing aligned before the data:
 *     "GGUF"  u32 version  u64 n_tensors  u64 n_kv
 *     n_kv x      string key, u32 type, value        string: u64 length, bytes; array: u32 type, u64 n, values
 *     n_tensors x string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset (from the start of the data)
 *     padding to general.alignment (32 by default), then the data
 */
#pragma once
#include "format/gguf/gguf.h"
#include "format/model_file_inside.h"

/* What a struct model_file of this kind owns; NULL for bytes in memory. */
struct gguf_maps {
    struct file_map map;
    bool mapped;
    struct model_file **parts; /* [n_parts] the further files of a split model: theirs are maps and names */
    uint32_t n_parts;
};

/* Parses g->data[0 .. g->n_bytes) into the tables. On failure the tables hold what was read so far. */
rd_status gguf_parse(struct model_file *g, struct rd_error *err);

/* One file, whether or not it is a part of a split model. */
rd_status gguf_open_one(const char *path, struct model_file **out, struct rd_error *err);
/* The other files of a model of which g, opened from path, is the first: nothing to do where it is the only one. */
rd_status gguf_open_parts(struct model_file *g, const char *path, struct rd_error *err);
