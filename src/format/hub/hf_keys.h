/* format/hub/hf_keys.h - a config.json of the hub as the metadata of a GGUF file.
 *
 * Written are the keys that llama.cpp's converter writes, and for what a GGUF file says by the order of its rows or
 * leaves out, keys that radish's model files read:
 *     ARCH.rope.half_split       bool: rows of wq and wk are as in safetensors files, not permuted (Llama)
 *     ARCH.attention.scale       f32: query_pre_attn_scalar ^ -0.5 (Gemma)
 *
 * Known model types are the rows of hub_family.h. A model whose layers all have a sliding window that the architecture here does not know gets the window as its context: within it the two
 * are the same.
 *
 * Thread  any. Errors  RD_E_FORMAT, RD_E_UNSUPPORTED naming the key, what was found and what was wanted.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include "format/gguf/gguf_write.h"
#include "format/hub/hub_family.h"

struct hf_model {
    const struct hub_family *family;
    bool tied;        /* no tensor of its own for the head */
    uint32_t n_vocab; /* rows of the embedding; 0: not said */
};

/* What the weights tell where config.json is silent: of the first layer. */
struct hf_told {
    bool qk_norms, qkv_biases, post_norms; /* as in struct hub_family */
    uint64_t n_q_rows;                     /* of q_proj; 0: there is none */
};

/* name: general.name. config: the whole file. Without "model_type" the first family with these weights is taken;
 * without "head_dim" q_proj's rows give it. */
rd_status hf_put_keys(const json_t *config, const char *name, const struct hub_families *families,
                      const struct hf_told *told, struct gguf_writer *w, struct hf_model *out, struct rd_error *err);
