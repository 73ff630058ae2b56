/* format/model_file_inside.h - what the kinds of model files fill in, and what model_file.c does for all of them. */
#pragma once
#include <string.h>
#include "base/file.h"
#include "base/hash.h"
#include "format/model_file.h"

/* A kind of model file, a row in model_file.c. */
struct model_file_kind {
    bool (*takes)(const char *path); /* the first kind that takes a path opens it */
    rd_status (*open)(const char *path, const struct hub_families *families, struct model_file **out,
                      struct rd_error *err);
    void (*close)(struct model_file *f);            /* ends f->own; may be NULL */
    uint32_t (*n_maps)(const struct model_file *f); /* n_maps, map_at: model_file.h */
    const struct file_map *(*map_at)(const struct model_file *f, uint32_t i);
};
extern const struct model_file_kind model_kind_hub, model_kind_gguf;

/* How the bytes of a tensor are made of the file's; the first member of what the kind knows about it. */
struct tensor_recipe {
    rd_status (*open_as)(const struct model_tensor *t, enum dtype as, struct tensor_bytes *out, struct rd_error *err);
};

struct model_file {
    const struct model_file_kind *kind;
    void *own;           /* the kind's, or NULL */
    const uint8_t *data; /* metadata, encoded as the start of a GGUF file */
    uint64_t n_bytes;    /* while it is parsed: at data; then: model_file_bytes() */
    uint32_t version;
    uint64_t alignment;
    uint64_t n_kv, n_tensors; /* entries parsed so far; all of them once open */
    size_t cap_kv, cap_tensors;
    struct model_meta *kv;
    struct model_tensor *tensors;
    uint32_t *kv_by_key;             /* [n_kv] positions, sorted by the key's bytes */
    uint32_t *tensors_by_name;       /* [n_tensors] */
    const struct hash128 *keys;      /* of the metadata that decides how tensors are read; NULL: it lies in the file */
    const struct model_text *text;   /* or NULL */
    const struct model_file *vision; /* or NULL; closed with what has it */
    uint32_t *scratch;               /* while sorting; here so that a SIGBUS in a comparison leaks nothing */
};

/* Builds g->kv_by_key; RD_E_FORMAT on a key that is there twice. */
rd_status model_file_index_meta(struct model_file *g, struct rd_error *err);
/* Builds g->tensors_by_name and checks that no two tensors share a name or a byte. */
rd_status model_file_index_tensors(struct model_file *g, struct rd_error *err);

/* The names alone: tensors of several files. */
rd_status model_file_index_names(struct model_file *g, struct rd_error *err);

/* Bytes of one value; 0 for strings and arrays. type <= META_F64. */
uint32_t meta_type_bytes(enum meta_type type);

static inline uint32_t meta_u32_of(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static inline uint64_t meta_u64_of(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}
