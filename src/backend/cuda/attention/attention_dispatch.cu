/* backend/cuda/attention/attention_dispatch.cu - cuda_attention: tensor cores where types and shapes fit, else the plain kernel.
 *
 * The choice between the two depends on what stays the same for a model; between decode and prefill the bits agree.
 */
#include "backend/cuda/attention/attention_paths.h"
#include "tensor/dtype.h"

static bool fits_tensor_cores(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const struct cuda_kv *kv = &a->kv;
    const uint64_t row = 2ull * a->head_dim;
    const uint32_t shared = (a->head_dim == 256 ? 160 : 90) << 10; /* of a block; consumers' GPUs have 99 KB */
    const bool halves = kv->dtype_k == kv->dtype_v && (kv->dtype_k == DTYPE_F16 || kv->dtype_k == DTYPE_BF16) &&
                        kv->k_row_bytes == row && kv->v_row_bytes == row;
    const bool converts = l->compute == 90 && cuda_kv_is_quantised(kv) && kv->dtype_k != DTYPE_BF16 &&
                          kv->dtype_k != DTYPE_F32 && kv->dtype_v != DTYPE_BF16 && kv->dtype_v != DTYPE_F32 &&
                          (a->head_dim < 256 || (kv->dtype_k != DTYPE_F16 && kv->dtype_v != DTYPE_F16));

    return l->compute >= 80 && l->smem_block_max >= shared && (halves || converts) &&
           (a->head_dim == 64 || a->head_dim == 128 || a->head_dim == 256) &&
           a->n_heads / a->n_kv_heads <= DECODE_ROWS &&
           (kv->page_bytes | kv->k_offset | kv->v_offset | (uintptr_t)kv->base) % (halves ? 16 : 4) == 0;
}

/* Whether attention_decode turns, and writes, keys and values by itself. */
static bool is_fused(const struct cuda_launch *l, const struct cuda_attention_args *a,
                     const struct cuda_qkv_args *first)
{
    return first && !cuda_kv_is_quantised(&a->kv) && !a->shared.head && !a->sees_both_ways && a->longest_run == 1 &&
           first->n_rot == a->head_dim && fits_tensor_cores(l, a);
}

static int attend(const struct cuda_launch *l, const struct cuda_attention_args *a, const struct cuda_qkv_args *first)
{
    const uint32_t group = a->n_heads / a->n_kv_heads;
    int st = 0;

    if (is_fused(l, a, first)) return attention_decode_launch(l, a, first);
    if (first) st = cuda_qkv_rope_write(l, first);
    if (st) return st;
    if (!fits_tensor_cores(l, a)) return attention_plain_launch(l, a);
    if (a->shared.head) st = attention_prefix_launch(l, a);
    if (!st && (a->longest_run * group > DECODE_ROWS || a->sees_both_ways)) st = attention_prefill_launch(l, a);
    if (st || (a->n_runs == 1 && a->longest_run * group > DECODE_ROWS && a->n_rows == a->longest_run)) return st;
    return attention_decode_launch(l, a, NULL);
}

/* Of one run's rows, all in attention_wgmma.cu, and of runs of one row each in attention_stream.cu. */
bool cuda_attention_copies(const struct cuda_launch *l, const struct cuda_attention_args *a,
                           const struct cuda_qkv_args *first)
{
    if (l->compute == 90 && is_fused(l, a, first)) return attention_stream_copies(l, a);
    return l->compute == 90 && fits_tensor_cores(l, a) && !a->shared.head && a->head_dim <= 128 && a->n_runs == 1 &&
           a->n_rows == a->longest_run && a->longest_run * (a->n_heads / a->n_kv_heads) > DECODE_ROWS && a->out16 &&
           a->out_stride % 8 == 0 && (uintptr_t)a->out16 % 16 == 0;
}

int cuda_attention(const struct cuda_launch *l, const struct cuda_attention_args *a, const struct cuda_qkv_args *first)
{
    struct cuda_attention_args b = *a;

    if (!fits_tensor_cores(l, a) || !attention_prefix_takes(l, a)) b.shared = {};
    return attend(l, &b, first);
}
