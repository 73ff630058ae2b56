/* backend/cuda/rows/encode_rows.cu - what encoders of images need beside the ops of text models: LayerNorm, GELU, 2-D RoPE, means.
 *
 * One block per row, LayerNorm of the usual widths one warp, or elementwise. Order of sums: a thread's values in one chain, then
 * the tree of block_sum or warp_sum; the width alone decides which values. Bound: memory.
 */
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/rows/gelu_forms.cuh"

#define ROW_THREADS 256u
#define MAX_BLOCKS  65535u

static __global__ void layer_norm(struct cuda_layer_norm_args a)
{
    const uint64_t at = (uint64_t)blockIdx.x * a.width;
    const float *x = a.x + at;
    float sum = 0, squares = 0;

    dependency_wait();
    dependents_launch();
    for (uint32_t i = threadIdx.x; i < a.width; i += ROW_THREADS) sum = __fadd_rn(sum, x[i]);
    const float mean = block_sum(sum) / (float)a.width;

    for (uint32_t i = threadIdx.x; i < a.width; i += ROW_THREADS) {
        const float d = __fsub_rn(x[i], mean);

        squares = fmaf(d, d, squares);
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / (float)a.width + a.eps);

    for (uint32_t i = threadIdx.x; i < a.width; i += ROW_THREADS) { /* a thread writes what it alone has read */
        const float value = fmaf(__fmul_rn(__fsub_rn(x[i], mean), scale), a.w[i], a.b[i]);

        if (a.out) a.out[at + i] = value;
        a.out16[at + i] = float_bf16(value);
    }
}

static __device__ __forceinline__ float4 normed(float4 v, float mean, float scale, float4 w, float4 b)
{
    return make_float4(
        fmaf(__fmul_rn(__fsub_rn(v.x, mean), scale), w.x, b.x), fmaf(__fmul_rn(__fsub_rn(v.y, mean), scale), w.y, b.y),
        fmaf(__fmul_rn(__fsub_rn(v.z, mean), scale), w.z, b.z), fmaf(__fmul_rn(__fsub_rn(v.w, mean), scale), w.w, b.w));
}

/* A warp a row of FOURS * 128, which stays in registers. */
template <int FOURS>
static __global__ void __launch_bounds__(ROW_THREADS) layer_norm_fours(struct cuda_layer_norm_args a)
{
    const uint32_t row = blockIdx.x * (ROW_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint64_t at = (uint64_t)row * (FOURS * 32) + lane;
    float4 v[FOURS];
    float sum = 0, squared = 0;

    dependency_wait();
    dependents_launch();
    if (row >= a.n_rows) return;
#pragma unroll
    for (int i = 0; i < FOURS; i++) v[i] = ((const float4 *)a.x)[at + i * 32];
#pragma unroll
    for (int i = 0; i < FOURS; i++)
        sum = __fadd_rn(sum, __fadd_rn(__fadd_rn(v[i].x, v[i].y), __fadd_rn(v[i].z, v[i].w)));
    const float mean = warp_sum(sum) / (float)a.width;

#pragma unroll
    for (int i = 0; i < FOURS; i++)
        squared = squares(make_float4(__fsub_rn(v[i].x, mean), __fsub_rn(v[i].y, mean), __fsub_rn(v[i].z, mean),
                                      __fsub_rn(v[i].w, mean)),
                          squared);
    const float scale = 1.0f / sqrtf(warp_sum(squared) / (float)a.width + a.eps);

#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        const float4 y =
            normed(v[i], mean, scale, ((const float4 *)a.w)[lane + i * 32], ((const float4 *)a.b)[lane + i * 32]);

        if (a.out) ((float4 *)a.out)[at + i * 32] = y;
        ((uint2 *)a.out16)[at + i * 32] = make_uint2(float_bf16(y.x) | (uint32_t)float_bf16(y.y) << 16,
                                                     float_bf16(y.z) | (uint32_t)float_bf16(y.w) << 16);
    }
}

template <int FOURS> static int start_fours(const struct cuda_launch *l, const struct cuda_layer_norm_args *a)
{
    return (int)launch_chained(l, layer_norm_fours<FOURS>, ceil_div(a->n_rows, ROW_THREADS / 32), ROW_THREADS, 0, *a);
}

/* Rows of encoders begin at multiples of 16 bytes. */
int cuda_layer_norm(const struct cuda_launch *l, const struct cuda_layer_norm_args *a)
{
    if (a->width == 1024) return start_fours<8>(l, a);
    if (a->width == 1152) return start_fours<9>(l, a);
    if (a->width == 1280) return start_fours<10>(l, a);
    if (a->width == 1536) return start_fours<12>(l, a);
    return (int)launch_chained(l, layer_norm, a->n_rows, ROW_THREADS, 0, *a);
}

/* ---- GELU ---- */

template <int KIND> static __global__ void gelu(uint64_t n, float *x, uint16_t *x16)
{
    const uint64_t step = (uint64_t)gridDim.x * ROW_THREADS, first = (uint64_t)blockIdx.x * ROW_THREADS + threadIdx.x;

    dependency_wait();
    dependents_launch();
    for (uint64_t i = first; i < n / 4; i += step) {
        const float4 v = ((const float4 *)x)[i];

        ((float4 *)x)[i] = make_float4(gelu_of<KIND>(v.x), gelu_of<KIND>(v.y), gelu_of<KIND>(v.z), gelu_of<KIND>(v.w));
        ((uint2 *)x16)[i] =
            make_uint2(gelu_of_kept<KIND>(gelu_kept(v.x, v.y)), gelu_of_kept<KIND>(gelu_kept(v.z, v.w)));
    }
    for (uint64_t i = n / 4 * 4 + first; i < n; i += step) {
        x16[i] = (uint16_t)gelu_of_kept<KIND>(gelu_kept(x[i], 0));
        x[i] = gelu_of<KIND>(x[i]);
    }
}

/* x is 16-byte, x16 8-byte aligned: rows of an encoder have a multiple of 4 floats. */
int cuda_gelu(const struct cuda_launch *l, int kind, uint64_t n, float *x, uint16_t *x16)
{
    const uint64_t blocks = (n / 4 + ROW_THREADS) / ROW_THREADS;
    const uint32_t grid = blocks < MAX_BLOCKS ? (uint32_t)blocks : MAX_BLOCKS;

    if (kind == CUDA_GELU_ERF) return (int)launch_chained(l, gelu<CUDA_GELU_ERF>, grid, ROW_THREADS, 0, n, x, x16);
    if (kind == CUDA_GELU_QUICK) return (int)launch_chained(l, gelu<CUDA_GELU_QUICK>, grid, ROW_THREADS, 0, n, x, x16);
    return (int)launch_chained(l, gelu<CUDA_GELU_TANH_FORM>, grid, ROW_THREADS, 0, n, x, x16);
}

/* ---- RoPE by angles that are given ---- */

static __global__ void turn(struct cuda_turn_args a)
{
    const uint32_t half = a.head_dim / 2;
    const uint64_t row = (uint64_t)blockIdx.x * a.stride, angles = (uint64_t)blockIdx.x * half;

    dependency_wait();
    dependents_launch();
    for (uint32_t i = threadIdx.x; i < a.n_heads * half; i += ROW_THREADS) {
        const uint32_t pair = i % half;
        const uint64_t at = row + (uint64_t)(i / half) * a.head_dim + pair;
        const float c = a.cosines[angles + pair], s = a.sines[angles + pair];

#pragma unroll
        for (int k = 0; k < 2; k++) {
            float *x = (k ? a.k : a.q) + at;
            const float u = x[0], v = x[half];

            x[0] = fmaf(u, c, -__fmul_rn(v, s));
            x[half] = fmaf(u, s, __fmul_rn(v, c));
        }
    }
}

int cuda_turn(const struct cuda_launch *l, const struct cuda_turn_args *a)
{
    return (int)launch_chained(l, turn, a->n_rows, ROW_THREADS, 0, *a);
}

/* ---- means ---- */

static __global__ void mean(struct cuda_mean_args a)
{
    const uint64_t at = (uint64_t)blockIdx.x * a.width;
    const uint32_t *rows = a.rows + (uint64_t)blockIdx.x * a.n_each;

    dependency_wait();
    dependents_launch();
    for (uint32_t i = threadIdx.x; i < a.width; i += ROW_THREADS) {
        float sum = 0;

        for (uint32_t k = 0; k < a.n_each; k++) sum = __fadd_rn(sum, a.x[(uint64_t)rows[k] * a.width + i]);
        sum = __fmul_rn(sum, 1.0f / (float)a.n_each);
        a.out[at + i] = sum;
        a.out16[at + i] = float_bf16(sum);
    }
}

int cuda_mean(const struct cuda_launch *l, const struct cuda_mean_args *a)
{
    return (int)launch_chained(l, mean, a->n_out, ROW_THREADS, 0, *a);
}
