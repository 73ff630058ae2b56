/* format/hub/hf_inside.h - what a struct model_file of this kind owns beside the tables. Shared by hf_*.c. */
#pragma once
#include <jansson.h>
#include "base/file.h"
#include "base/hash.h"
#include "format/hub/fp8_matrix.h"
#include "format/gguf/gguf_inside.h"
#include "format/hub/hf_keys.h"
#include "format/hub/hf_names.h"
#include "format/hub/mlx_quant.h"

/* How the bytes of a tensor come from the shard's. */
enum hf_way { HF_COPY, HF_PLUS_ONE, HF_MLX, HF_FP8 };

struct hf_part {
    struct tensor_recipe recipe; /* first: what a tensor points to */
    enum hf_way way;
    const uint8_t *data;         /* HF_COPY, HF_PLUS_ONE */
    enum dtype dtype;            /* in the shard */
    struct weight_groups groups; /* HF_MLX */
    union {
        struct mlx_matrix mlx;
        struct fp8_matrix fp8;
    };
};

struct hf_dir {
    const char *path; /* only while opening */
    struct hf_model model;
    struct st_table table; /* its arena also has the names and parts of tensors */
    struct file_map *maps; /* [n_shards] */
    char **names;          /* [n_shards] file names */
    uint32_t n_shards;
    struct hash128 keys; /* of the metadata except name and chat template */
    uint8_t *head;       /* metadata, as a GGUF file's start */
    uint64_t n_head;
    json_t *config; /* only while opening */
    bool quantised; /* MLX: */
    uint32_t bits, group;
    bool is_fp8;                  /* F8_E4M3 matrices: */
    uint32_t block_out, block_in; /* of a scale, where scales are of blocks */
    struct model_text text;
    char *texts[2];            /* what text points to */
    struct model_file *vision; /* the part that sees (hf_vision.h); NULL: there is none. own: this */
    uint8_t *vision_head;
};

/* hf_shards.c: finds, maps and checks the shards: dir->table is complete and sorted. */
rd_status hf_open_shards(struct hf_dir *dir, struct rd_error *err);
/* What the first layer of the text model tells of its family. */
struct hf_told hf_look(const struct st_table *table);
/* hf_text.c: dir->text, and the chat template into the metadata. */
rd_status hf_open_text(struct hf_dir *dir, struct gguf_writer *w, struct rd_error *err);
/* hf_quant.c: what config.json says of quantised matrices. */
rd_status hf_read_quantisation(struct hf_dir *dir, struct rd_error *err);
/* "quantization" may say bits and group of one matrix; base: its name without ".weight". */
void hf_matrix_bits(const struct hf_dir *dir, const char *base, uint32_t *bits, uint32_t *group);
/* hf_tensors.c: g's tensors. */
rd_status hf_add_tensors(struct model_file *g, struct rd_error *err);
/* The same for dir->vision. */
rd_status hf_add_vision_tensors(struct model_file *vision, struct rd_error *err);

/* PATH/NAME in buf; RD_E_LIMIT when it is too long. */
rd_status hf_path(const struct hf_dir *dir, const char *name, char *buf, size_t cap, struct rd_error *err);
/* A JSON file of the directory. *out NULL when it is absent and not needed. */
rd_status hf_read_json(const struct hf_dir *dir, const char *name, size_t max, bool needed, json_t **out,
                       struct rd_error *err);
