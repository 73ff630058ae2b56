/* model/model_convert.h - a model as a GGUF file: from a directory of the hub, or from another GGUF file.
 *
 * Metadata, names and the order of rows are those of llama.cpp's converter, so that llama.cpp loads the file: Llama's
 * wq and wk permuted for interleaved RoPE, Llama 3.1's scaling as rope_freqs.weight, the tokenizer as tokenizer.ggml
 * keys. Types of the matrices:
 *
 *     f16, bf16, q8_0   all matrices
 *     q4_k_m            Q4_K; Q6_K for the head and for half of the layers' wv and down: those of the first and the last
 *                       eighth, and every third between
 *
 * An adapter is merged before the weights get their type: W + scale * B A, in f32.
 *
 * Rows that are no multiple of the block become Q8_0, or F16; norms and biases stay F32. Tensor after tensor, so that
 * memory for the largest is enough.
 *
 * Thread  any; uses n_threads. Errors  as gguf.h and base/file_out.h; RD_E_UNSUPPORTED from the tokenizer; the output is
 *         not there then.
 */
#pragma once
#include "format/model_file.h"
#include "model/model.h"

enum convert_type { CONVERT_F16, CONVERT_BF16, CONVERT_Q8_0, CONVERT_Q4_K_M, CONVERT_N_TYPES };

struct convert_options {
    enum convert_type type;
    const char *pre;    /* name of the pre-tokenizer, or NULL: found */
    uint32_t n_threads; /* 0: all cores */
    const struct model_progress *progress;
    const char *lora; /* an adapter (format/adapter/adapter_file.h) that is added to the weights; NULL: none */
    double lora_scale;
};

/* "q4_k_m" and so on. false: unknown. */
bool convert_type_find(const char *name, enum convert_type *out);
rd_status model_convert(const struct model_file *g, const char *path, const struct convert_options *o,
                        struct rd_error *err);
