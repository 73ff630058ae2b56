/* backend/cuda/attention/attention_paths.h - the kernels behind cuda_attention; attention_dispatch.cu chooses. */
#pragma once
#include "backend/cuda/cuda_kernels.h"
#include "tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Packed rows (n_rows * query heads per kv head) up to which a run belongs to attention_decode. */
enum { DECODE_ROWS = 16 };

/* Right for every shape and type of pages; slow. */
int attention_plain_launch(const struct cuda_launch *l, const struct cuda_attention_args *a);

/* Whether keys or values are quantised: queries and keys are then turned (kv_rows_quant.cu). */
static inline bool cuda_kv_is_quantised(const struct cuda_kv *kv)
{
    return (kv->dtype_k != DTYPE_F16 && kv->dtype_k != DTYPE_BF16 && kv->dtype_k != DTYPE_F32) ||
           (kv->dtype_v != DTYPE_F16 && kv->dtype_v != DTYPE_BF16 && kv->dtype_v != DTYPE_F32);
}
/* qkv_rope_write for those. */
int cuda_qkv_rope_write_quantised(const struct cuda_launch *l, const struct cuda_qkv_args *a);

/* Tensor cores: keys and values both f16 or both bf16, or (sm_90, not fused) one of them quantised and the other, too,
 * or f16; head_dim 64, 128 or 256, n_heads / n_kv_heads <= DECODE_ROWS.
 * decode computes the runs of at most DECODE_ROWS packed rows that do not see both ways and leaves the others alone, prefill the reverse; a row's
 * bits do not depend on which. fused: as in cuda_attention, all runs of one row and n_rot = head_dim; or NULL. */
int attention_decode_launch(const struct cuda_launch *l, const struct cuda_attention_args *a,
                            const struct cuda_qkv_args *fused);
/* What decode does on sm_90 for heads of 128 and 256, pages of 8 to 128 tokens and more segments than clusters take, and
 * always for quantised pages, with the same bits. */
bool attention_stream_takes(const struct cuda_launch *l, const struct cuda_attention_args *a);
int attention_stream_launch(const struct cuda_launch *l, const struct cuda_attention_args *a,
                            const struct cuda_qkv_args *fused);
/* Whether it may have copies, given that it is fused. */
bool attention_stream_copies(const struct cuda_launch *l, const struct cuda_attention_args *a);
/* What runs have in common by attention_prefix, whose parts attention_stream then begins with: where this says so, which
 * does not depend on what is in memory. Else a->shared is to be none. */
bool attention_prefix_takes(const struct cuda_launch *l, const struct cuda_attention_args *a);
int attention_prefix_launch(const struct cuda_launch *l, const struct cuda_attention_args *a);

/* Sums of shared segments in scratch, between those two: see prefix_part (attention_shares.cuh). */
struct prefix_parts {
    float *at;
    uint64_t n_most;
};
static inline struct prefix_parts prefix_parts_of(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const uint64_t other = l->scratch_bytes / 4; /* attention_stream's */
    struct prefix_parts p = {(float *)((uint8_t *)l->scratch + other),
                             (l->scratch_bytes - other) / ((a->head_dim + 4) * sizeof(float))};
    return p;
}

int attention_prefill_launch(const struct cuda_launch *l, const struct cuda_attention_args *a);
/* What prefill does on sm_90 for head_dim 64 and 128, with the same bits. */
int attention_wgmma_launch(const struct cuda_launch *l, const struct cuda_attention_args *a);

#ifdef __cplusplus
}
#endif
