/* format/hf_dir.h - a model as a directory of the hub: safetensors shards and JSON files, opened as a struct gguf.
 *
 *     config.json -> metadata (format/hf_keys.h);  *.safetensors -> tensors under GGUF's names, pointing into the mapped
 *     shards;  tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json -> the text side
 *
 * Nobody who reads a struct gguf needs to know, but for three things: tensors whose bytes are not those of the shard
 * (gguf_tensor_open() of gguf.h), rows of wq and wk that are not permuted (ARCH.rope.half_split), and a tokenizer that
 * is no metadata (gguf_hub_text()).
 *
 * One or many shards (model.safetensors.index.json), F32, F16, BF16, MLX's groups (format/mlx_quant.h) and 8-bit floats
 * (format/fp8_matrix.h). Every shard is checked as a whole first (format/safetensors.h; docs/faults.md F07, F08).
 *
 * Thread  as gguf.h. Errors  as gguf.h; they name the file in the directory, and the tensor. RD_E_NOT_FOUND: a file that
 *         must be there is not.
 */
#pragma once
#include "format/gguf.h"

/* A GGUF file or a directory. */
rd_status model_file_open(const char *path, struct gguf **out, struct rd_error *err);
/* What to call the model at a path: "org/name" in the hub's cache (.../models--org--name/snapshots/HASH), else the path's
 * last part, cut to cap. */
void model_name_of(const char *path, char *name, size_t cap);
/* path is a directory with a config.json in it. */
bool hf_is_dir(const char *path);
