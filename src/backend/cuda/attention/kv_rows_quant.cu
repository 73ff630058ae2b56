/* backend/cuda/attention/kv_rows_quant.cu - q and k heads normed, rotated and turned; keys and values quantised to their pages.
 *
 * What backend/cpu/rows/kv_quant.h defines: keys are divided by powers of two taken from their bias, queries multiplied by
 * them, both turned by a Hadamard matrix; a block of 32 has d = half(max |x| / 127) (Q8_0) or half(m / -8), m the x
 * of the largest |x| (Q4_0), and numbers x * (1 / d) rounded to even; a block with NaN, infinity or a d beyond the
 * halves is NaN. F8_E4M3: each number to nearest even, 448 at most. One warp per row and head (query heads, then key
 * heads, then value heads), the head in shared memory; norm and RoPE as in kv_rows.cu's way for any head. Bound: latency.
 */
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/rows/rope_shared.cuh"
#include "tensor/dtype.h"
#include <cuda_fp8.h>

enum { QUANT_WARPS = 4, BLOCK = 32 };
#define BIAS_EXPONENT 131u /* of 16: keys with a smaller bias are not balanced */

static __device__ __forceinline__ float warp_most(float v)
{
    for (int d = 16; d; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

/* bias: of this kv head. */
static __device__ void balance(const struct cuda_qkv_args &a, float *x, const float *bias, bool is_key)
{
    for (uint32_t i = threadIdx.x % 32; i < a.head_dim; i += 32) {
        uint32_t other = i;

        if (i < a.n_rot) other = !a.half_split ? i ^ 1 : i < a.n_rot / 2 ? i + a.n_rot / 2 : i - a.n_rot / 2;
        const uint32_t exponent = __float_as_uint(fmaxf(fabsf(bias[i]), fabsf(bias[other]))) >> 23;
        const int log2_s = exponent < BIAS_EXPONENT || exponent == 255 ? 0 : (int)exponent - (int)(BIAS_EXPONENT - 1);

        x[i] *= __uint_as_float((uint32_t)(127 + (is_key ? -log2_s : log2_s)) << 23);
    }
    __syncwarp();
}

/* By the Hadamard matrix of the largest power of two that divides head_dim; keys and queries share its factor. */
static __device__ void turn(float *x, uint32_t head_dim, bool is_key)
{
    const uint32_t lane = threadIdx.x % 32, n = head_dim & (0 - head_dim), log2_n = 31u - (uint32_t)__clz((int)n);
    const float factor = __uint_as_float((127u - (log2_n + is_key) / 2) << 23);

    for (uint32_t i = lane; i < head_dim; i += 32) x[i] *= factor;
    for (uint32_t half = 1; half < n; half *= 2) {
        __syncwarp();
        for (uint32_t i = lane; i < head_dim / 2; i += 32) {
            const uint32_t at = (i & ~(half - 1)) * 2 + (i & (half - 1));
            const float u = x[at], v = x[at + half];

            x[at] = u + v;
            x[at + half] = u - v;
        }
    }
    __syncwarp();
}

/* Block b: lane i has its number i. */
static __device__ void put_block(int dtype, uint8_t *block, float x)
{
    const uint32_t lane = threadIdx.x % 32, bits = __float_as_uint(fabsf(x));
    uint32_t most = bits;
    float d;

    for (int s = 16; s; s /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, s));
    const float highest = warp_most(x), lowest = -warp_most(-x);
    d = dtype == DTYPE_Q8_0 ? __uint_as_float(most) / 127.0f : (highest >= -lowest ? highest : lowest) / -8.0f;
    uint16_t half = most >= 0x7f800000u ? 0x7e00 : __half_as_ushort(__float2half_rn(d));
    if ((half & 0x7fff) >= 0x7c00) half = 0x7e00;
    const float scale = half_float(half), inverse = half == 0x7e00 || scale == 0 ? 0 : 1.0f / scale;
    const int q = inverse == 0 ? 0 : __float2int_rn(__fmul_rn(x, inverse));

    if (lane == 0) *(uint16_t *)block = half;
    if (dtype == DTYPE_Q8_0) {
        block[2 + lane] = (uint8_t)min(max(q, -127), 127);
    } else {
        const uint32_t n = (uint32_t)min(max(q + 8, 0), 15), high = __shfl_down_sync(0xffffffffu, n, 16);
        if (lane < 16) block[2 + lane] = (uint8_t)(n | high << 4);
    }
}

static __device__ void put_row(int dtype, uint8_t *to, const float *x, uint32_t n)
{
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32) { /* quantised: n is a multiple of 32 */
        switch (dtype) {
        case DTYPE_F16:
            ((__half *)to)[i] = __float2half_rn(x[i]);
            break;
        case DTYPE_BF16:
            ((uint16_t *)to)[i] = float_bf16(x[i]);
            break;
        case DTYPE_F32:
            ((float *)to)[i] = x[i];
            break;
        case DTYPE_F8_E4M3:
            to[i] = isfinite(x[i]) ? __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3) : 0x7F;
            break;
        default:
            put_block(dtype, to + i / BLOCK * (dtype == DTYPE_Q8_0 ? 34 : 18), x[i]);
        }
    }
}

static __global__ void qkv_rope_write_quantised(struct cuda_qkv_args a)
{
    extern __shared__ float heads[]; /* [QUANT_WARPS, head_dim] */
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t index = blockIdx.y * QUANT_WARPS + warp;
    const bool is_query = index < a.n_heads, is_key = !is_query && index < a.n_heads + a.n_kv_heads;
    const bool turned = a.kv.dtype_k == DTYPE_Q8_0 || a.kv.dtype_k == DTYPE_Q4_0 || a.kv.dtype_k == DTYPE_F8_E4M3;
    const uint32_t head = is_query ? index : is_key ? index - a.n_heads : index - a.n_heads - a.n_kv_heads;
    const uint32_t kv_head = is_query ? head / (a.n_heads / a.n_kv_heads) : head;
    const float *in = is_query ? a.q + (uint64_t)row * a.q_stride
                      : is_key ? a.k + (uint64_t)row * a.k_stride
                               : a.v + (uint64_t)row * a.v_stride;
    const float *norm = is_query ? a.q_norm : a.k_norm;
    float *x = heads + warp * a.head_dim;

    dependency_wait();
    dependents_launch();
    if (index >= a.n_heads + 2 * a.n_kv_heads) return;
    for (uint32_t i = lane; i < a.head_dim; i += 32) x[i] = in[(uint64_t)head * a.head_dim + i];
    __syncwarp();
    if (is_query || is_key) {
        if (norm) norm_head(x, norm, a.head_dim, a.norm_eps);
        rotate_head(a, x, row);
        if (turned && a.k_bias) balance(a, x, a.k_bias + (uint64_t)kv_head * a.head_dim, is_key);
        if (turned) turn(x, a.head_dim, is_key);
    }
    if (is_query) {
        for (uint32_t i = lane; i < a.head_dim; i += 32)
            a.q[(uint64_t)row * a.q_stride + (uint64_t)head * a.head_dim + i] = x[i];
        return;
    }
    const uint64_t at = (uint64_t)head * a.kv.page_tokens + a.row_slot[row];
    uint8_t *page = a.kv.base + a.row_page[row] * a.kv.page_bytes;

    if (is_key)
        put_row(a.kv.dtype_k, page + a.kv.k_offset + at * a.kv.k_row_bytes, x, a.head_dim);
    else
        put_row(a.kv.dtype_v, page + a.kv.v_offset + at * a.kv.v_row_bytes, x, a.head_dim);
}

int cuda_qkv_rope_write_quantised(const struct cuda_launch *l, const struct cuda_qkv_args *a)
{
    const dim3 grid(a->n_rows, ceil_div(a->n_heads + 2 * a->n_kv_heads, QUANT_WARPS));

    return (int)launch_chained(l, qkv_rope_write_quantised, grid, QUANT_WARPS * 32,
                               QUANT_WARPS * a->head_dim * (uint32_t)sizeof(float), *a);
}
