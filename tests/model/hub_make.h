/* tests/model/hub_make.h - a tiny GGUF model (F32) as a directory of the hub: the same weights under the names and in
 * the layout of safetensors files, so that both must give the same logits. */
#pragma once
#include <stdbool.h>
#include "format/model_file.h"

/* Scales: weight_scale_inv of blocks of HUB_FP8_OUT x HUB_FP8_IN; weight_scale of rows; of the matrix. */
enum hub_fp8 { HUB_NO_FP8, HUB_FP8_BLOCKS, HUB_FP8_ROWS, HUB_FP8_ONE };
#define HUB_FP8_OUT 24u
#define HUB_FP8_IN  40u

struct hub_options {
    uint32_t n_shards;        /* 0 or 1: model.safetensors alone */
    bool old_rope;            /* rope_theta and rope_scaling, as before transformers 5 */
    bool in_text_config;      /* Gemma 3 with a vision part beside it */
    uint32_t mlx_bits;        /* > 0: matrices in MLX's groups of 32, with f16 scales */
    bool mlx_opened;          /* those, but as the F32 numbers that they stand for */
    enum hub_fp8 fp8;         /* matrices of layers as F8_E4M3 */
    bool fp8_opened;          /* those, but as the BF16 numbers that they stand for */
    bool fp8_unsaid;          /* without what config.json would say of it */
    const char *config_extra; /* members for config.json: ", \"x\": 1" */
};

/* A new folder below /tmp; hub_remove() it. false: said why. */
bool hub_make(const char *gguf_path, const struct hub_options *o, char dir[64]);
/* Writes one more file, or another instead. */
bool hub_write(const char *dir, const char *name, const void *data, size_t n);
void hub_remove(const char *dir);
