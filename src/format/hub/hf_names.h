/* format/hub/hf_names.h - names of tensors: safetensors files of the hub to GGUF's. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "format/hub/hf_keys.h"

enum hf_use {
    HF_SKIP, /* no part of the text model, or computed from the config */
    HF_TENSOR,
    HF_NORM /* 1 is added */
};

/* "self_attn.q_proj" -> "attn_q": a matrix or vector of a layer, without its layer and without ".weight"; NULL: unknown. */
const char *hf_gguf_matrix(const char *name);
/* The way back, of one that is known; and its last part, "q_proj". */
const char *hf_module(const char *gguf);
const char *hf_module_name(const char *gguf);
/* out: the GGUF name; that of the file itself when it is not known (the loader refuses it by that name). */
enum hf_use hf_gguf_name(const struct hf_model *m, const char *name, char *out, size_t cap);
