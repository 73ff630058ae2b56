/* tests/support/lora_make.h - a random adapter of a tiny model in both kinds of file, and the model with it merged in. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct lora_options {
    uint32_t rank; /* 0: 4 */
    double alpha;  /* 0: 8 */
    uint64_t seed;
    uint32_t matrices;  /* bit i: the i-th of attn_q, k, v, output, ffn_gate, up, down; 0: all */
    bool by_root, bf16; /* rsLoRA; stored as BF16 */
    const char *extra;  /* members for adapter_config.json: ", \"x\": 1" */
};

/* In a new folder below /tmp (lora_remove() it): adapter_config.json and adapter_model.safetensors (the folder is PEFT's),
 * lora.gguf, merged.gguf. model: a GGUF file of F32, with its matrices of
 * wq and wk in RoPE's pairs where the architecture has them so (interleaves). false: said why. */
bool lora_make(const char *model, bool interleaves, const struct lora_options *o, char dir[64]);
void lora_remove(const char *dir);
