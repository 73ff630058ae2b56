/* format/adapter/adapter_file.h - the file of a low-rank adapter (LoRA): pairs of small matrices beside a model's.
 *
 *     W x  becomes  W x + scale * B (A x)          A [rank, n_in], B [n_out, rank], both row-major
 *
 * Two kinds, told apart by what is at the path:
 *     a directory   PEFT's: adapter_config.json and adapter_model.safetensors. scale = lora_alpha / rank, or
 *                   lora_alpha / sqrt(rank) where "use_rslora" is true; "alpha_pattern" names other alphas by module.
 *     a file        GGUF with general.type "adapter", adapter.type "lora", as llama.cpp's converter writes it: tensors
 *                   NAME.weight.lora_a and .lora_b. scale = adapter.lora.alpha / rank, 1 where alpha is 0.
 *
 * Refused by name, for the answers would be wrong silently: other kinds of PEFT (DoRA, modules_to_save, biases,
 * fan_in_fan_out, adapters of embeddings and of the head), half of a pair, ranks that differ, numbers that are none.
 *
 * Owns    the bytes; tensors are views of them.
 * Thread  read-only after open.
 * Errors  RD_E_FORMAT, RD_E_UNSUPPORTED, RD_E_LIMIT, RD_E_NOMEM; RD_E_IO and RD_E_NOT_FOUND of the files.
 * Source  arXiv:2106.09685, arXiv:2312.03732 (rsLoRA); PEFT's documentation (checkpoint format); llama.cpp,
 *         convert_lora_to_gguf.py.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"
#include "tensor/dtype.h"

#define ADAPTER_MAX_RANK 512u

struct adapter_half {
    enum dtype dtype; /* F32, F16, BF16, Q8_0 */
    const uint8_t *data;
};

struct adapter_tensor {
    uint32_t layer;
    char matrix[24]; /* GGUF's word: "attn_q" */
    char name[160];  /* as the file has it, for errors: "...layers.0.self_attn.q_proj" */
    uint32_t rank, n_in, n_out;
    float scale;
    struct adapter_half a, b; /* [rank, n_in], [n_out, rank] */
};

struct adapter_file {
    struct adapter_tensor *tensors; /* [n], each layer and matrix once */
    uint32_t n;
    bool is_gguf;   /* rows of attn_q and attn_k stand as in GGUF files of the architecture */
    char arch[32];  /* GGUF: the base's architecture; else "" */
    char base[256]; /* PEFT: what "base_model_name_or_path" says; else "" */
    /* inside */
    char *bytes;
    void *own;
};

rd_status adapter_file_open(const char *path, struct adapter_file *out, struct rd_error *err);
/* Of zeros, too. */
void adapter_file_close(struct adapter_file *f);
