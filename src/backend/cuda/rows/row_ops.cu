/* backend/cuda/rows/row_ops.cu - norms, embeddings, activations, gather: one block per row, or elementwise.
 *
 * Order of sums: a thread's values in one fma chain, then the tree of block_sum; which values and how many threads is
 * decided by the width alone. Bound: memory; with few rows the latency of one block.
 *
 * A norm lets the kernel after it begin before it waits itself, so that the product's weights arrive while the product
 * before still runs. Kernels may read what is the step's own or older before dependency_wait (weights, block tables, keys
 * of earlier steps): embed, the first of a step, is where all older work has ended.
 */
#include "backend/cuda/hopper_ptx.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/rows/join_waits.cuh"

#define ROW_THREADS 256u
#define MAX_BLOCKS  65535u
#define MAX_VECTORS 8 /* of 4 floats per thread: rows of up to 32,768 */

static __device__ float inverse_rms(const float *x, uint32_t n, float eps)
{
    float sum = 0;

    for (uint32_t i = threadIdx.x; i < n; i += ROW_THREADS) sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(block_sum(sum) / (float)n + eps);
}

/* Rows of any width. */
static __global__ void residual_norm(struct cuda_norm_args a)
{
    const uint64_t at = (uint64_t)blockIdx.x * a.width;
    float *x = a.x + at;
    float scale = 1;

    dependents_launch();
    dependency_wait();
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

/* Rows of a multiple of 4, in registers: thread t has the floats 4 t .. of every 4 * blockDim.x. join: called before delta is
 * read. */
template <int N, typename F> static __device__ __forceinline__ void norm_vectors(const struct cuda_norm_args &a, F join)
{
    const uint64_t at = (uint64_t)blockIdx.x * a.width;
    const uint32_t n = a.width / 4;
    float4 x[N], d[N], w[N], post[N];
    float sum = 0, scale;

#pragma unroll
    for (int i = 0; i < N; i++) { /* weights do not depend on the kernels before */
        const uint32_t k = threadIdx.x + i * blockDim.x;

        w[i] = a.norm && k < n ? ((const float4 *)a.norm)[k] : make_float4(0, 0, 0, 0);
        post[i] = a.delta_norm && k < n ? ((const float4 *)a.delta_norm)[k] : make_float4(0, 0, 0, 0);
    }
    dependents_launch();
    dependency_wait();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t k = threadIdx.x + i * blockDim.x;

        x[i] = k < n ? ((const float4 *)(a.x + at))[k] : make_float4(0, 0, 0, 0);
    }
    join();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t k = threadIdx.x + i * blockDim.x;

        d[i] = a.delta && k < n ? __ldcg((const float4 *)(a.delta + at) + k) : make_float4(0, 0, 0, 0);
    }
    if (a.delta && a.delta_norm) {
#pragma unroll
        for (int i = 0; i < N; i++) sum = squares(d[i], sum);
        scale = 1.0f / sqrtf(block_sum(sum) / (float)a.width + a.eps);
#pragma unroll
        for (int i = 0; i < N; i++) d[i] = scaled(d[i], scale, post[i]);
    }
    sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t k = threadIdx.x + i * blockDim.x;

        if (a.delta) {
            x[i] = make_float4(x[i].x + d[i].x, x[i].y + d[i].y, x[i].z + d[i].z, x[i].w + d[i].w);
            if (k < n) ((float4 *)(a.x + at))[k] = x[i];
        }
        sum = squares(x[i], sum);
    }
    if (!a.norm) return;
    scale = 1.0f / sqrtf(block_sum(sum) / (float)a.width + a.eps);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t k = threadIdx.x + i * blockDim.x;
        const float4 v = scaled(x[i], scale, w[i]);

        if (k >= n) continue;
        if (a.out) ((float4 *)(a.out + at))[k] = v;
        if (a.out16)
            ((uint2 *)(a.out16 + at))[k] = make_uint2(float_bf16(v.x) | (uint32_t)float_bf16(v.y) << 16,
                                                      float_bf16(v.z) | (uint32_t)float_bf16(v.w) << 16);
    }
}

template <int N> static __global__ void __launch_bounds__(1024) residual_norm_vectors(struct cuda_norm_args a)
{
    norm_vectors<N>(a, [] {});
}

/* Of a join that its columns' kernels began: the block of a row tells the others' blocks of that row that they have ended here,
 * and waits until they have there. */
template <int N>
static __global__ void __launch_bounds__(1024)
    norm_joined(const __grid_constant__ struct cuda_norm_args a, const __grid_constant__ struct cuda_join_args j)
{
    norm_vectors<N>(a, [&] {
        const uint32_t round = j.counts->rounds[blockIdx.x] + 1;

        __syncthreads(); /* all have read it */
        meet(j, round);
        __syncthreads();
    });
}

static bool is_aligned(const void *p, uintptr_t n)
{
    return (uintptr_t)p % n == 0;
}

static uint32_t norm_threads(const struct cuda_norm_args *a)
{
    return min(ceil_div(ceil_div(a->width, 4), 32) * 32, 1024u);
}

/* How many vectors a thread has; 0: the row does not lie so. */
static uint32_t norm_vectors_of(const struct cuda_norm_args *a)
{
    const uint32_t n = ceil_div(a->width, 4 * norm_threads(a));
    const bool fits = a->width % 4 == 0 && n <= MAX_VECTORS && is_aligned(a->x, 16) && is_aligned(a->delta, 16) &&
                      is_aligned(a->delta_norm, 16) && is_aligned(a->norm, 16) && is_aligned(a->out, 16) &&
                      is_aligned(a->out16, 8);

    return fits ? n : 0;
}

bool cuda_norm_joins(const struct cuda_norm_args *norm)
{
    return norm->delta && norm_vectors_of(norm) > 0;
}

int cuda_join_flags_norm(const struct cuda_launch *l, const struct cuda_join_args *a, const struct cuda_norm_args *norm)
{
    const uint32_t n_threads = norm_threads(norm);

    switch (norm_vectors_of(norm)) {
    case 1:
        return (int)launch_chained(l, norm_joined<1>, norm->n_rows, n_threads, 0, *norm, *a);
    case 2:
        return (int)launch_chained(l, norm_joined<2>, norm->n_rows, n_threads, 0, *norm, *a);
    default:
        return (int)launch_chained(l, norm_joined<MAX_VECTORS>, norm->n_rows, n_threads, 0, *norm, *a);
    }
}

int cuda_join_norm_load(void)
{
    cudaFuncAttributes a;
    int e = (int)cudaFuncGetAttributes(&a, norm_joined<1>);

    if (!e) e = (int)cudaFuncGetAttributes(&a, norm_joined<2>);
    return e ? e : (int)cudaFuncGetAttributes(&a, norm_joined<MAX_VECTORS>);
}

/* By width and alignment, which are the model's: a row's bits do not depend on the batch. */
int cuda_residual_norm(const struct cuda_launch *l, const struct cuda_norm_args *a)
{
    const uint32_t n_threads = norm_threads(a), n = norm_vectors_of(a);

    if (n == 0) return (int)launch_chained(l, residual_norm, a->n_rows, ROW_THREADS, 0, *a);
    switch (n) {
    case 1:
        return (int)launch_chained(l, residual_norm_vectors<1>, a->n_rows, n_threads, 0, *a);
    case 2:
        return (int)launch_chained(l, residual_norm_vectors<2>, a->n_rows, n_threads, 0, *a);
    default:
        return (int)launch_chained(l, residual_norm_vectors<MAX_VECTORS>, a->n_rows, n_threads, 0, *a);
    }
}

static __global__ void embed(struct cuda_matrix w, const int32_t *tokens, float scale, float *out)
{
    dependency_wait(); /* nothing of a step begins before the steps before it have ended: see above */
    dependents_launch();

    const uint64_t token = (uint32_t)tokens[blockIdx.x];

    for (uint32_t i = threadIdx.x; i < w.n_in; i += ROW_THREADS)
        out[(uint64_t)blockIdx.x * w.n_in + i] = matrix_weight(w, token, i) * scale;
}

int cuda_embed(const struct cuda_launch *l, const struct cuda_matrix *w, uint32_t n_rows, const int32_t *tokens,
               float scale, float *out)
{
    return (int)launch_chained(l, embed, n_rows, ROW_THREADS, 0, *w, tokens, scale, out);
}

static uint32_t blocks_of(uint64_t n)
{
    const uint64_t blocks = (n + ROW_THREADS - 1) / ROW_THREADS;

    return blocks < MAX_BLOCKS ? (uint32_t)blocks : MAX_BLOCKS;
}
#define FOR_EACH(i, n)                                                                                                 \
    for (uint64_t i = (uint64_t)blockIdx.x * ROW_THREADS + threadIdx.x; i < (n); i += (uint64_t)gridDim.x * ROW_THREADS)

static __global__ void glu(int act, uint64_t n, const float *gate, const float *up, float *out, uint16_t *out16)
{
    dependents_launch();
    dependency_wait();
    FOR_EACH(i, n)
    {
        const float value = __fmul_rn(activate(act, gate[i]), up[i]);

        if (out) out[i] = value;
        if (out16) out16[i] = float_bf16(value);
    }
}

int cuda_glu(const struct cuda_launch *l, int act, uint64_t n, const float *gate, const float *up, float *out,
             uint16_t *out16)
{
    return (int)launch_chained(l, glu, blocks_of(n), ROW_THREADS, 0, act, n, gate, up, out, out16);
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
