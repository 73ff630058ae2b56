/* backend/cuda/attention/kv_rows.cu - q and k heads normed and rotated, keys and values written to their pages; rows copied.
 *
 * One warp per row and head (query heads, then key heads, then value heads). Norm: a lane's values in one chain, then
 * the tree of warp_sum; which kernel, and so which values, is decided by head_dim and n_rot. RoPE: cos and sin of the f32 product position * inv_freq. Bound: memory.
 */
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/rows/rope_head.cuh"
#include "backend/cuda/rows/rope_shared.cuh"
#include "tensor/dtype.h"

static __device__ void store_kv(int dtype, uint8_t *row, uint32_t i, float value)
{
    switch (dtype) {
    case DTYPE_F16:
        ((__half *)row)[i] = __float2half_rn(value);
        break;
    case DTYPE_BF16:
        ((uint16_t *)row)[i] = float_bf16(value);
        break;
    default:
        ((float *)row)[i] = value;
        break;
    }
}

/* rope_head.cuh's heads: angles and weights are ready before the products that they wait for. */
template <int P> static __global__ void qkv_rope_write_whole(struct cuda_qkv_args a)
{
    const uint32_t row = blockIdx.x, index = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    const bool is_query = index < a.n_heads, is_key = !is_query && index < a.n_heads + a.n_kv_heads;
    const uint32_t head = is_query ? index : is_key ? index - a.n_heads : index - a.n_heads - a.n_kv_heads;
    const float *norm = is_query ? a.q_norm : a.k_norm;
    const float *in = is_query ? a.q + (uint64_t)row * a.q_stride
                      : is_key ? a.k + (uint64_t)row * a.k_stride
                               : a.v + (uint64_t)row * a.v_stride;
    float u[P], v[P];

    if (index >= a.n_heads + 2 * a.n_kv_heads) return;
    const struct head_angles<P> angles = head_angles_of<P>(a, row);
    const struct head_norm<P> norms = head_norm_of<P>(a, norm);
    dependency_wait();
    dependents_launch();
    head_load<P>(a, in + (uint64_t)head * a.head_dim, u, v);
    if (is_query || is_key) head_turn<P>(a, angles, norms, norm != NULL, u, v);

    uint8_t *page = a.kv.base + a.row_page[row] * a.kv.page_bytes;
    float *q = a.q + (uint64_t)row * a.q_stride + (uint64_t)head * a.head_dim;

    if (is_key)
        page += a.kv.k_offset + ((uint64_t)head * a.kv.page_tokens + a.row_slot[row]) * a.kv.k_row_bytes;
    else
        page += a.kv.v_offset + ((uint64_t)head * a.kv.page_tokens + a.row_slot[row]) * a.kv.v_row_bytes;
#pragma unroll
    for (int i = 0; i < P; i++) {
        if (is_query) {
            q[pair_first(a, i)] = u[i];
            q[pair_second(a, i)] = v[i];
        } else {
            store_kv(is_key ? a.kv.dtype_k : a.kv.dtype_v, page, pair_first(a, i), u[i]);
            store_kv(is_key ? a.kv.dtype_k : a.kv.dtype_v, page, pair_second(a, i), v[i]);
        }
    }
}

static __global__ void qkv_rope_write(struct cuda_qkv_args a)
{
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32;
    uint32_t head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    const bool is_query = head < a.n_heads;
    uint8_t *page;
    float *x;

    dependency_wait();
    dependents_launch();
    if (head >= a.n_heads + 2 * a.n_kv_heads) return;
    if (is_query) {
        x = a.q + (uint64_t)row * a.q_stride + (uint64_t)head * a.head_dim;
        if (a.q_norm) norm_head(x, a.q_norm, a.head_dim, a.norm_eps);
        rotate_head(a, x, row);
        return;
    }
    head -= a.n_heads;
    page = a.kv.base + a.row_page[row] * a.kv.page_bytes;
    if (head < a.n_kv_heads) {
        x = a.k + (uint64_t)row * a.k_stride + (uint64_t)head * a.head_dim;
        if (a.k_norm) norm_head(x, a.k_norm, a.head_dim, a.norm_eps);
        rotate_head(a, x, row);
        page += a.kv.k_offset + ((uint64_t)head * a.kv.page_tokens + a.row_slot[row]) * a.kv.k_row_bytes;
        for (uint32_t i = lane; i < a.head_dim; i += 32) store_kv(a.kv.dtype_k, page, i, x[i]);
        return;
    }
    head -= a.n_kv_heads;
    const float *v = a.v + (uint64_t)row * a.v_stride + (uint64_t)head * a.head_dim;
    page += a.kv.v_offset + ((uint64_t)head * a.kv.page_tokens + a.row_slot[row]) * a.kv.v_row_bytes;
    for (uint32_t i = lane; i < a.head_dim; i += 32) store_kv(a.kv.dtype_v, page, i, v[i]);
}

int cuda_qkv_rope_write(const struct cuda_launch *l, const struct cuda_qkv_args *a)
{
    const dim3 grid(a->n_rows, ceil_div(a->n_heads + 2 * a->n_kv_heads, 4));

    if (cuda_kv_is_quantised(&a->kv)) return cuda_qkv_rope_write_quantised(l, a);
    if (a->n_rot == a->head_dim && a->head_dim == 64)
        return (int)launch_chained(l, qkv_rope_write_whole<1>, grid, 128, 0, *a);
    if (a->n_rot == a->head_dim && a->head_dim == 128)
        return (int)launch_chained(l, qkv_rope_write_whole<2>, grid, 128, 0, *a);
    if (a->n_rot == a->head_dim && a->head_dim == 256)
        return (int)launch_chained(l, qkv_rope_write_whole<4>, grid, 128, 0, *a);
    return (int)launch_chained(l, qkv_rope_write, grid, 128, 0, *a);
}

/* A block copies one head's rows of K or V of one layer; rows of a head are contiguous. */
static __global__ void copy_rows(struct cuda_copy_rows_args a)
{
    const uint64_t heads_k = (uint64_t)a.n_kv_heads * a.page_tokens * a.k_row_bytes;
    const uint64_t heads_v = (uint64_t)a.n_kv_heads * a.page_tokens * a.v_row_bytes;
    const uint32_t which = blockIdx.y, row_bytes = which ? a.v_row_bytes : a.k_row_bytes;
    const uint64_t at =
        blockIdx.z * (heads_k + heads_v) + (which ? heads_k : 0) + (uint64_t)blockIdx.x * a.page_tokens * row_bytes;
    const uint16_t *src = (const uint16_t *)(a.base + a.from * a.page_bytes + at);
    uint16_t *dst = (uint16_t *)(a.base + a.to * a.page_bytes + at);

    for (uint64_t i = threadIdx.x; i < (uint64_t)a.n_rows * row_bytes / 2; i += blockDim.x) dst[i] = src[i];
}

int cuda_copy_rows(const struct cuda_launch *l, const struct cuda_copy_rows_args *a)
{
    copy_rows<<<dim3(a->n_kv_heads, 2, a->n_layers), 128, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}

int cuda_kernels_init(const struct cuda_launch *l)
{
    (void)l; /* nothing here needs more than the defaults */
    return 0;
}
