/* format/adapter/adapter_write.h - a low-rank adapter as a file that PEFT or llama.cpp reads (adapter_file.h reads both).
 *
 * Numbers are written as F32. A file appears whole or not at all; a directory's config comes last, so that a directory with a
 * config has the numbers that belong to it.
 *
 * Thread  any.  Errors  as base/file_out.h; RD_E_NOMEM; RD_E_NOT_FOUND: the directory is not there.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "radish/status.h"

struct adapter_out_pair {
    uint32_t layer;
    const char *matrix; /* GGUF's word: "attn_q" */
    uint32_t n_in, n_out;
    const float *a; /* [rank, n_in] */
    float *b;       /* [n_out, rank]; rows in the order of the kind of file */
};

struct adapter_out {
    const struct adapter_out_pair *pairs; /* [n] */
    uint32_t n, rank;
    double alpha, dropout;
    bool bf16;        /* written as BF16, which the numbers are; else as F32 */
    bool by_root;     /* scale is alpha / sqrt(rank), not alpha / rank */
    const char *base; /* the model's path or name, for PEFT */
    const char *arch; /* for GGUF */
};

/* dir/adapter_model.safetensors and dir/adapter_config.json. */
rd_status adapter_write_peft(const char *dir, const struct adapter_out *o, struct rd_error *err);
rd_status adapter_write_gguf(const char *path, const struct adapter_out *o, struct rd_error *err);
