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

/* A key (or value) of rope_head.cuh's to its page, `page`, and row `slot` there. */
template <int P>
static __device__ __forceinline__ void page_store(const struct cuda_qkv_args &a, uint32_t page, uint32_t slot,
                                                  uint32_t head, bool is_key, const float (&u)[P], const float (&v)[P])
{
    const uint64_t row = (uint64_t)head * a.kv.page_tokens + slot;
    uint8_t *const to = a.kv.base + page * a.kv.page_bytes +
                        (is_key ? a.kv.k_offset + row * a.kv.k_row_bytes : a.kv.v_offset + row * a.kv.v_row_bytes);
    const int dtype = is_key ? a.kv.dtype_k : a.kv.dtype_v;

    if (dtype == DTYPE_F16) {
#pragma unroll
        for (int i = 0; i < P; i++) {
            ((__half *)to)[pair_first(a, i)] = __float2half_rn(u[i]);
            ((__half *)to)[pair_second(a, i)] = __float2half_rn(v[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < P; i++) {
        store_kv(dtype, to, pair_first(a, i), u[i]);
        store_kv(dtype, to, pair_second(a, i), v[i]);
    }
}

/* A head (query, key or value head `index`) of rope_head.cuh's, by a warp. */
template <int P>
static __device__ __forceinline__ void rope_write_head(const struct cuda_qkv_args &a, uint32_t row, uint32_t index,
                                                       const struct head_angles<P> &angles,
                                                       const struct head_norm<P> &norm, float (&u)[P], float (&v)[P])
{
    const bool is_query = index < a.n_heads, is_key = !is_query && index < a.n_heads + a.n_kv_heads;
    const uint32_t head = is_query ? index : is_key ? index - a.n_heads : index - a.n_heads - a.n_kv_heads;

    if (is_query || is_key) head_turn<P>(a, angles, norm, (is_query ? a.q_norm : a.k_norm) != NULL, u, v);
    if (is_query)
        head_store<P>(a, a.q + (uint64_t)row * a.q_stride + (uint64_t)head * a.head_dim, u, v);
    else
        page_store<P>(a, a.row_page[row], a.row_slot[row], head, is_key, u, v);
}

/* rope_head.cuh's heads, one a warp: angles and weights are ready before the products that they wait for. */
template <int P> static __global__ void qkv_rope_write_whole(struct cuda_qkv_args a)
{
    const uint32_t row = blockIdx.x, index = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    const uint32_t key = index - a.n_heads, value = key - a.n_kv_heads;
    float u[P], v[P];

    if (index >= a.n_heads + 2 * a.n_kv_heads) return;
    const struct head_angles<P> angles = head_angles_of<P>(a, row);
    const struct head_norm<P> norm = head_norm_of<P>(a, index < a.n_heads ? a.q_norm : a.k_norm);
    dependency_wait();
    dependents_launch();
    head_load<P>(a,
                 index < a.n_heads    ? a.q + (uint64_t)row * a.q_stride + (uint64_t)index * a.head_dim
                 : key < a.n_kv_heads ? a.k + (uint64_t)row * a.k_stride + (uint64_t)key * a.head_dim
                                      : a.v + (uint64_t)row * a.v_stride + (uint64_t)value * a.head_dim,
                 u, v);
    rope_write_head<P>(a, row, index, angles, norm, u, v);
}

enum { ROPE_HEADS = 4, ROPE_WARPS = 12 }; /* heads a warp has at a time; warps of a block at most */

/* The same for many rows: a block has a row, whose angles it computes once, and a warp four heads of a kind, whose sums it
 * reduces together. Bound: the issue of instructions nearly as much as memory. */
template <int P>
static __global__ void __launch_bounds__(ROPE_WARPS * 32, P <= 2 ? 3 : 1) qkv_rope_write_fours(struct cuda_qkv_args a)
{
    __shared__ float2 turns[32 * P];
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    const uint32_t q_fours = (a.n_heads + 3) / 4, kv_fours = (a.n_kv_heads + 3) / 4;
    const uint32_t page = a.row_page[row], slot = a.row_slot[row];
    struct head_angles<P> angles;

    for (uint32_t i = threadIdx.x; i < 32 * P; i += blockDim.x) {
        float sine, cosine;

        pair_angle(a, row, i, &sine, &cosine);
        turns[i] = make_float2(sine, cosine);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < P; i++) {
        const float2 turn = turns[lane + 32 * i];

        angles.sine[i] = turn.x, angles.cosine[i] = turn.y;
    }
    dependency_wait();
    dependents_launch();
    for (uint32_t four = threadIdx.x / 32; four < q_fours + 2 * kv_fours; four += n_warps) {
        const bool is_query = four < q_fours, is_key = !is_query && four < q_fours + kv_fours;
        const uint32_t first = 4 * (is_query ? four : is_key ? four - q_fours : four - q_fours - kv_fours);
        const uint32_t n = min((is_query ? a.n_heads : a.n_kv_heads) - first, (uint32_t)ROPE_HEADS);
        const float *const in = (is_query ? a.q + (uint64_t)row * a.q_stride
                                 : is_key ? a.k + (uint64_t)row * a.k_stride
                                          : a.v + (uint64_t)row * a.v_stride) +
                                (uint64_t)first * a.head_dim;
        const float *const norm = is_query ? a.q_norm : is_key ? a.k_norm : NULL;
        float u[ROPE_HEADS][P], v[ROPE_HEADS][P];

#pragma unroll
        for (uint32_t h = 0; h < ROPE_HEADS; h++)
            head_load<P>(a, in + min(h, n - 1) * a.head_dim, u[h], v[h]); /* beyond the last: that once more */
        if (norm) norm_fours<P>(a, head_norm_of<P>(a, norm), u, v);
#pragma unroll
        for (uint32_t h = 0; h < ROPE_HEADS; h++) {
            if (h >= n) break;
            if (is_query || is_key) head_rotate<P>(angles, u[h], v[h]);
            if (is_query)
                head_store<P>(a, a.q + (uint64_t)row * a.q_stride + (uint64_t)(first + h) * a.head_dim, u[h], v[h]);
            else
                page_store<P>(a, page, slot, first + h, is_key, u[h], v[h]);
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

/* Four heads a warp where there are warps enough for the device without. */
template <int P> static cudaError_t write_whole(const struct cuda_launch *l, const struct cuda_qkv_args *a)
{
    const uint32_t n_heads = a->n_heads + 2 * a->n_kv_heads;
    const uint32_t fours = ceil_div(a->n_heads, 4) + 2 * ceil_div(a->n_kv_heads, 4);
    const uint32_t n_warps = ceil_div(fours, ceil_div(fours, ROPE_WARPS));

    return (uint64_t)a->n_rows * n_heads > l->n_sms * 64
               ? launch_chained(l, qkv_rope_write_fours<P>, dim3(a->n_rows), 32 * n_warps, 0, *a)
               : launch_chained(l, qkv_rope_write_whole<P>, dim3(a->n_rows, ceil_div(n_heads, 4)), 128, 0, *a);
}

int cuda_qkv_rope_write(const struct cuda_launch *l, const struct cuda_qkv_args *a)
{
    const dim3 grid(a->n_rows, ceil_div(a->n_heads + 2 * a->n_kv_heads, 4));

    if (cuda_kv_is_quantised(&a->kv)) return cuda_qkv_rope_write_quantised(l, a);
    if (a->n_rot == a->head_dim && a->head_dim == 64) return (int)write_whole<1>(l, a);
    if (a->n_rot == a->head_dim && a->head_dim == 128) return (int)write_whole<2>(l, a);
    if (a->n_rot == a->head_dim && a->head_dim == 256) return (int)write_whole<4>(l, a);
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
