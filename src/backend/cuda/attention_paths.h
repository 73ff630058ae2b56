/* backend/cuda/attention_paths.h - the kernels behind cuda_attention; attention_dispatch.cu chooses. */
#pragma once
#include "backend/cuda/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Packed rows (n_rows * query heads per kv head) up to which a run belongs to attention_decode. */
enum { DECODE_ROWS = 16 };

/* Right for every shape and f16, bf16, f32 pages; slow. */
int attention_plain_launch(const struct cuda_launch *l, const struct cuda_attention_args *a);

/* Tensor cores: keys and values both f16 or both bf16, head_dim 64, 128 or 256, n_heads / n_kv_heads <= DECODE_ROWS.
 * decode computes the runs of at most DECODE_ROWS packed rows and leaves the others alone, prefill the reverse; a row's
 * bits do not depend on which. fused: as in cuda_attention, all runs of one row and n_rot = head_dim; or NULL. */
int attention_decode_launch(const struct cuda_launch *l, const struct cuda_attention_args *a,
                            const struct cuda_qkv_args *fused);
/* What decode does on sm_90 for pages of 8 to 128 tokens and more segments than clusters take, with the same bits. */
bool attention_stream_takes(const struct cuda_launch *l, const struct cuda_attention_args *a);
int attention_stream_launch(const struct cuda_launch *l, const struct cuda_attention_args *a,
                            const struct cuda_qkv_args *fused);
int attention_prefill_launch(const struct cuda_launch *l, const struct cuda_attention_args *a);
/* What prefill does on sm_90 for head_dim 64 and 128, with the same bits. */
int attention_wgmma_launch(const struct cuda_launch *l, const struct cuda_attention_args *a);

#ifdef __cplusplus
}
#endif
