/* backend/cuda/row_ops.cu - norms, embeddings, activations, gather, argmax: one block per row, or elementwise.
 *
 * Order of sums: thread t of 256 takes i = t, t + 256, .. in one fma chain, then the tree of block_sum: by the width
 * alone. Bound: memory.
 */
#include <math_constants.h>
#include "backend/cuda/cuda_device.cuh"

#define ROW_THREADS 256u
#define MAX_BLOCKS  65535u

static __device__ float inverse_rms(const float *x, uint32_t n, float eps)
{
    float sum = 0;

    for (uint32_t i = threadIdx.x; i < n; i += ROW_THREADS) sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(block_sum(sum) / (float)n + eps);
}

static __global__ void residual_norm(struct cuda_norm_args a)
{
    const uint64_t at = (uint64_t)blockIdx.x * a.width;
    float *x = a.x + at;
    float scale = 1;

    if (a.delta) {
        const float *delta = a.delta + at;

        if (a.delta_norm) scale = inverse_rms(delta, a.width, a.eps);
        for (uint32_t i = threadIdx.x; i < a.width; i += ROW_THREADS) /* a thread reads below what it wrote here */
            x[i] += a.delta_norm ? __fmul_rn(__fmul_rn(delta[i], scale), a.delta_norm[i]) : delta[i];
    }
    if (!a.norm) return;
    scale = inverse_rms(x, a.width, a.eps);
    for (uint32_t i = threadIdx.x; i < a.width; i += ROW_THREADS) {
        const float value = __fmul_rn(__fmul_rn(x[i], scale), a.norm[i]);

        if (a.out) a.out[at + i] = value;
        if (a.out16) a.out16[at + i] = float_bf16(value);
    }
}

int cuda_residual_norm(const struct cuda_launch *l, const struct cuda_norm_args *a)
{
    residual_norm<<<a->n_rows, ROW_THREADS, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}

static __global__ void embed(struct cuda_matrix w, const int32_t *tokens, float scale, float *out)
{
    const uint64_t token = (uint32_t)tokens[blockIdx.x];

    for (uint32_t i = threadIdx.x; i < w.n_in; i += ROW_THREADS)
        out[(uint64_t)blockIdx.x * w.n_in + i] = matrix_weight(w, token, i) * scale;
}

int cuda_embed(const struct cuda_launch *l, const struct cuda_matrix *w, uint32_t n_rows, const int32_t *tokens,
               float scale, float *out)
{
    embed<<<n_rows, ROW_THREADS, 0, stream_of(l)>>>(*w, tokens, scale, out);
    return (int)cudaGetLastError();
}

static uint32_t blocks_of(uint64_t n)
{
    const uint64_t blocks = (n + ROW_THREADS - 1) / ROW_THREADS;

    return blocks < MAX_BLOCKS ? (uint32_t)blocks : MAX_BLOCKS;
}
#define FOR_EACH(i, n)                                                                        \
    for (uint64_t i = (uint64_t)blockIdx.x * ROW_THREADS + threadIdx.x; i < (n); i += (uint64_t)gridDim.x * ROW_THREADS)

static __global__ void glu(int act, uint64_t n, const float *gate, const float *up, float *out, uint16_t *out16)
{
    FOR_EACH(i, n) {
        const float value = __fmul_rn(activate(act, gate[i]), up[i]);

        if (out) out[i] = value;
        if (out16) out16[i] = float_bf16(value);
    }
}

int cuda_glu(const struct cuda_launch *l, int act, uint64_t n, const float *gate, const float *up, float *out,
             uint16_t *out16)
{
    glu<<<blocks_of(n), ROW_THREADS, 0, stream_of(l)>>>(act, n, gate, up, out, out16);
    return (int)cudaGetLastError();
}

static __global__ void gather(uint32_t width, const float *x, const uint32_t *rows, float *out)
{
    for (uint32_t i = threadIdx.x; i < width; i += ROW_THREADS)
        out[(uint64_t)blockIdx.x * width + i] = x[(uint64_t)rows[blockIdx.x] * width + i];
}

int cuda_gather(const struct cuda_launch *l, uint32_t n, uint32_t width, const float *x, const uint32_t *rows,
                float *out)
{
    gather<<<n, ROW_THREADS, 0, stream_of(l)>>>(width, x, rows, out);
    return (int)cudaGetLastError();
}

static __global__ void softcap(float *x, uint64_t n, float cap)
{
    FOR_EACH(i, n) x[i] = cap * tanhf(x[i] / cap);
}

int cuda_softcap(const struct cuda_launch *l, float *x, uint64_t n, float cap)
{
    softcap<<<blocks_of(n), ROW_THREADS, 0, stream_of(l)>>>(x, n, cap);
    return (int)cudaGetLastError();
}

static __global__ void to_bf16(uint64_t n, const float *x, uint16_t *out16)
{
    FOR_EACH(i, n) out16[i] = float_bf16(x[i]);
}

int cuda_to_bf16(const struct cuda_launch *l, uint64_t n, const float *x, uint16_t *out16)
{
    to_bf16<<<blocks_of(n), ROW_THREADS, 0, stream_of(l)>>>(n, x, out16);
    return (int)cudaGetLastError();
}

static __device__ bool beats(float a, int32_t i, float b, int32_t j)
{
    return a > b || (a == b && i < j);
}

static __global__ void argmax(uint32_t n_vocab, const float *logits, uint64_t stride, struct cuda_choice *choices)
{
    __shared__ float best_values[32];
    __shared__ int32_t best_ids[32];
    const float *row = logits + blockIdx.x * stride;
    float best = -CUDART_INF_F;
    int32_t id = INT32_MAX;
    bool is_broken = false;

    for (uint32_t i = threadIdx.x; i < n_vocab; i += blockDim.x) {
        const float value = row[i];

        is_broken |= !(value < CUDART_INF_F);
        if (beats(value, (int32_t)i, best, id)) best = value, id = (int32_t)i;
    }
    is_broken = __syncthreads_or(is_broken);
    for (int round = 0; round < 2; round++) { /* lanes of each warp, then the warps' best */
        for (int d = 16; d; d /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, d);
            const int32_t other_id = __shfl_xor_sync(0xffffffffu, id, d);

            if (beats(other, other_id, best, id)) best = other, id = other_id;
        }
        if (round) break;
        if (threadIdx.x % 32 == 0) best_values[threadIdx.x / 32] = best, best_ids[threadIdx.x / 32] = id;
        __syncthreads();
        best = threadIdx.x % 32 < blockDim.x / 32 ? best_values[threadIdx.x % 32] : -CUDART_INF_F;
        id = threadIdx.x % 32 < blockDim.x / 32 ? best_ids[threadIdx.x % 32] : INT32_MAX;
    }
    if (threadIdx.x == 0) choices[blockIdx.x] = {id == INT32_MAX ? 0 : id, is_broken ? CUDART_NAN_F : best};
}

int cuda_argmax(const struct cuda_launch *l, uint32_t n_rows, uint32_t n_vocab, const float *logits, uint64_t stride,
                struct cuda_choice *choices)
{
    argmax<<<n_rows, 1024, 0, stream_of(l)>>>(n_vocab, logits, stride, choices);
    return (int)cudaGetLastError();
}
