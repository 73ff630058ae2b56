/* grad/cuda/rows_gradient.cu - gradients row by row and number by number: norms, rotations, gates, dropout; and what is kept.
 *
 * Norms and rotations: a block a row, sums in block_sum's or warp_sum's tree. The rest: a thread some numbers. Bound: memory. */
#include "backend/cuda/cuda_device.cuh"
#include "base/philox.h"
#include "grad/cuda/grad_cuda.h"
#include "tensor/dtype.h"

#define THREADS    256u
#define MAX_BLOCKS 4096u
#define MAX_DIM    512u
#define FOR_EACH(i, n)                                                                                                 \
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < (n); i += (uint64_t)gridDim.x * THREADS)

static uint32_t blocks_of(uint64_t n)
{
    const uint64_t blocks = (n + THREADS - 1) / THREADS;

    return blocks < 1 ? 1 : blocks < MAX_BLOCKS ? (uint32_t)blocks : MAX_BLOCKS;
}

static __device__ __forceinline__ uint32_t two_of(int dtype, float a, float b)
{
    if (dtype == DTYPE_F16) {
        const __half2 h = __floats2half2_rn(a, b);

        return *(const uint32_t *)&h;
    }
    return float_bf16(a) | (uint32_t)float_bf16(b) << 16;
}

/* Eight numbers a thread; the last n % 8 one by one. */
static __global__ void keep(int dtype, uint64_t n, const float *from, uint16_t *to)
{
    FOR_EACH(i, n / 8)
    {
        const float4 a = ((const float4 *)from)[2 * i], b = ((const float4 *)from)[2 * i + 1];

        ((uint4 *)to)[i] = make_uint4(two_of(dtype, a.x, a.y), two_of(dtype, a.z, a.w), two_of(dtype, b.x, b.y),
                                      two_of(dtype, b.z, b.w));
    }
    if (blockIdx.x == 0)
        for (uint64_t i = n / 8 * 8 + threadIdx.x; i < n; i += THREADS) to[i] = (uint16_t)two_of(dtype, from[i], 0);
}

int grad_cuda_keep(const struct cuda_launch *l, int dtype, uint64_t n, const float *from, void *to)
{
    if (dtype == DTYPE_F32)
        return (int)cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToDevice, stream_of(l));
    keep<<<blocks_of(n / 8), THREADS, 0, stream_of(l)>>>(dtype, n, from, (uint16_t *)to);
    return (int)cudaGetLastError();
}

/* ---- norms ---- */

/* dx = s (g - x s^2 mean(g x)), g = dy w: s and s^2 mean(g x) of a row, for all of its block. */
struct norm_sums {
    float s, dot;
};
template <typename G, typename X>
static __device__ __forceinline__ struct norm_sums sums_of(uint32_t n, float eps, G g, X x)
{
    float squares = 0, dot = 0;

    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const float v = x(i);

        squares = fmaf(v, v, squares);
        dot = fmaf(g(i), v, dot);
    }
    squares = block_sum(squares);
    dot = block_sum(dot);

    const float s = 1.0f / sqrtf(squares / (float)n + eps);

    return {s, dot / (float)n * s * s};
}

static __global__ void __launch_bounds__(THREADS) norm_gradient(struct grad_cuda_norm a)
{
    const uint64_t at = (uint64_t)blockIdx.x * a.width;
    float *dx = a.dx + at;

    if (a.dy) {
        const float *x = a.x + at, *dy = a.dy + at;
        const struct norm_sums n = sums_of(
            a.width, a.eps, [=](uint32_t i) { return dy[i] * a.norm[i]; }, [=](uint32_t i) { return x[i]; });

        for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) dx[i] += n.s * (dy[i] * a.norm[i] - x[i] * n.dot);
    }
    if (!a.ddelta) return;
    if (!a.delta_norm) {
        for (uint32_t i = threadIdx.x; i < a.width; i += THREADS) a.ddelta[at + i] = float_bf16(dx[i]);
        return;
    }
    /* a thread reads the dx that it wrote */
    const uint16_t *delta = a.delta + at;
    const struct norm_sums n = sums_of(
        a.width, a.eps, [=](uint32_t i) { return dx[i] * a.delta_norm[i]; },
        [=](uint32_t i) { return bf16_float(delta[i]); });

    for (uint32_t i = threadIdx.x; i < a.width; i += THREADS)
        a.ddelta[at + i] = float_bf16(n.s * (dx[i] * a.delta_norm[i] - bf16_float(delta[i]) * n.dot));
}

int grad_cuda_norm(const struct cuda_launch *l, const struct grad_cuda_norm *a)
{
    norm_gradient<<<a->n_rows, THREADS, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}

/* ---- gates ---- */

#define GELU_C    0.7978845608f
#define GELU_CUBE 0.044715f

/* d act(x) / dx, and act(x): as grad_loops.h. */
static __device__ __forceinline__ float act_gradient(int act, float x, float *value)
{
    if (act == CUDA_SILU) {
        const float s = 1.0f / (1.0f + __expf(-x));

        *value = x * s;
        return s * fmaf(x, 1.0f - s, 1.0f);
    }
    const float t = tanhf(GELU_C * x * fmaf(GELU_CUBE * x, x, 1.0f));
    const float du = GELU_C * fmaf(3.0f * GELU_CUBE * x, x, 1.0f);

    *value = 0.5f * x * (1.0f + t);
    return fmaf(0.5f * x * fmaf(-t, t, 1.0f), du, 0.5f * (1.0f + t));
}

static __device__ __forceinline__ void glu_one(int act, float g, float u, float d, float *dg, float *du)
{
    float value;
    const float slope = act_gradient(act, g, &value);

    *dg = d * u * slope;
    *du = d * value;
}

/* Four numbers a thread. */
static __global__ void glu_gradient(int act, uint64_t n, const uint16_t *gate, const uint16_t *up, const float *dy,
                                    uint16_t *dgate, uint16_t *dup)
{
    FOR_EACH(i, n / 4)
    {
        const uint2 g = ((const uint2 *)gate)[i], u = ((const uint2 *)up)[i];
        const float4 d = ((const float4 *)dy)[i];
        float4 dg, du;

        glu_one(act, bf16_float((uint16_t)g.x), bf16_float((uint16_t)u.x), d.x, &dg.x, &du.x);
        glu_one(act, bf16_float((uint16_t)(g.x >> 16)), bf16_float((uint16_t)(u.x >> 16)), d.y, &dg.y, &du.y);
        glu_one(act, bf16_float((uint16_t)g.y), bf16_float((uint16_t)u.y), d.z, &dg.z, &du.z);
        glu_one(act, bf16_float((uint16_t)(g.y >> 16)), bf16_float((uint16_t)(u.y >> 16)), d.w, &dg.w, &du.w);
        ((uint2 *)dgate)[i] = make_uint2(two_of(DTYPE_BF16, dg.x, dg.y), two_of(DTYPE_BF16, dg.z, dg.w));
        ((uint2 *)dup)[i] = make_uint2(two_of(DTYPE_BF16, du.x, du.y), two_of(DTYPE_BF16, du.z, du.w));
    }
    if (blockIdx.x == 0)
        for (uint64_t i = n / 4 * 4 + threadIdx.x; i < n; i += THREADS) {
            float dg, du;

            glu_one(act, bf16_float(gate[i]), bf16_float(up[i]), dy[i], &dg, &du);
            dgate[i] = float_bf16(dg);
            dup[i] = float_bf16(du);
        }
}

int grad_cuda_glu(const struct cuda_launch *l, int act, uint64_t n, const uint16_t *gate, const uint16_t *up,
                  const float *dy, uint16_t *dgate, uint16_t *dup)
{
    glu_gradient<<<blocks_of(n / 4), THREADS, 0, stream_of(l)>>>(act, n, gate, up, dy, dgate, dup);
    return (int)cudaGetLastError();
}

static __global__ void scatter(uint32_t width, const uint32_t *rows, const float *dy, float *dx)
{
    for (uint32_t i = threadIdx.x; i < width; i += THREADS)
        dx[(uint64_t)rows[blockIdx.x] * width + i] += dy[(uint64_t)blockIdx.x * width + i];
}

int grad_cuda_scatter(const struct cuda_launch *l, uint32_t n, uint32_t width, const uint32_t *rows, const float *dy,
                      float *dx)
{
    scatter<<<n, THREADS, 0, stream_of(l)>>>(width, rows, dy, dx);
    return (int)cudaGetLastError();
}

/* ---- dropout ---- */

/* A block a row; four columns a call of the generator. at(i, factor) for every column. */
template <typename AT>
static __device__ __forceinline__ void masked(const struct grad_cuda_mask &m, uint32_t n_in, AT at)
{
    const uint32_t row = blockIdx.x;

    for (uint32_t i = 4 * threadIdx.x; i < n_in; i += 4 * THREADS) {
        const struct philox_words w = philox_4x32(i / 4, row, m.id, m.pass, m.seed);

        for (uint32_t k = 0; k < 4 && i + k < n_in; k++)
            at((uint64_t)row * n_in + i + k, w.w[k] >= m.least ? m.scale : 0.0f);
    }
}

static __global__ void drop(struct grad_cuda_mask m, uint32_t n_in, const float *x, float *out)
{
    masked(m, n_in, [=](uint64_t i, float f) { out[i] = f != 0 ? x[i] * f : 0.0f; });
}
static __global__ void drop16(struct grad_cuda_mask m, uint32_t n_in, const uint16_t *x, uint16_t *out)
{
    masked(m, n_in, [=](uint64_t i, float f) { out[i] = f != 0 ? float_bf16(bf16_float(x[i]) * f) : 0; });
}
static __global__ void drop_add(struct grad_cuda_mask m, uint32_t n_in, const float *g, bool is_new, float *dx)
{
    masked(m, n_in, [=](uint64_t i, float f) {
        const float v = f != 0 ? g[i] * f : 0.0f;

        dx[i] = is_new ? v : dx[i] + v;
    });
}

int grad_cuda_drop(const struct cuda_launch *l, const struct grad_cuda_mask *m, uint32_t n_rows, uint32_t n_in,
                   const float *x, float *out)
{
    drop<<<n_rows, THREADS, 0, stream_of(l)>>>(*m, n_in, x, out);
    return (int)cudaGetLastError();
}
int grad_cuda_drop16(const struct cuda_launch *l, const struct grad_cuda_mask *m, uint32_t n_rows, uint32_t n_in,
                     const uint16_t *x, uint16_t *out)
{
    drop16<<<n_rows, THREADS, 0, stream_of(l)>>>(*m, n_in, x, out);
    return (int)cudaGetLastError();
}
int grad_cuda_drop_add(const struct cuda_launch *l, const struct grad_cuda_mask *m, uint32_t n_rows, uint32_t n_in,
                       const float *g, bool is_new, float *dx)
{
    drop_add<<<n_rows, THREADS, 0, stream_of(l)>>>(*m, n_in, g, is_new, dx);
    return (int)cudaGetLastError();
}

/* ---- q, k, v ---- */

struct turns {
    float c[MAX_DIM / 2], s[MAX_DIM / 2], d[THREADS / 32][MAX_DIM];
};

/* One head, by a warp: the rotation back, then its norm. */
static __device__ __forceinline__ void head_gradient(const struct grad_cuda_qkv &a, struct turns &t, const float *from,
                                                     const uint16_t *x, const float *norm, uint16_t *out)
{
    const uint32_t lane = threadIdx.x % 32, half = a.n_rot / 2;
    float *d = t.d[threadIdx.x / 32];

    __syncwarp();
    for (uint32_t i = lane; i < a.head_dim; i += 32) d[i] = from[i];
    __syncwarp();
    for (uint32_t i = lane; i < half; i += 32) {
        const uint32_t near = a.half_split ? i : 2 * i, far = a.half_split ? i + half : 2 * i + 1;
        const float u = d[near], v = d[far];

        d[near] = fmaf(u, t.c[i], v * t.s[i]);
        d[far] = fmaf(v, t.c[i], -(u * t.s[i]));
    }
    __syncwarp();
    if (!norm) {
        for (uint32_t i = lane; i < a.head_dim; i += 32) out[i] = float_bf16(d[i]);
        return;
    }
    float squares = 0, dot = 0;

    for (uint32_t i = lane; i < a.head_dim; i += 32) {
        const float v = bf16_float(x[i]);

        squares = fmaf(v, v, squares);
        dot = fmaf(d[i] * norm[i], v, dot);
    }
    squares = warp_sum(squares);
    dot = warp_sum(dot);

    const float s = 1.0f / sqrtf(squares / (float)a.head_dim + a.eps), mean = dot / (float)a.head_dim * s * s;

    for (uint32_t i = lane; i < a.head_dim; i += 32)
        out[i] = float_bf16(s * (d[i] * norm[i] - bf16_float(x[i]) * mean));
}

static __global__ void __launch_bounds__(THREADS) qkv_gradient(struct grad_cuda_qkv a)
{
    __shared__ struct turns t;
    const uint32_t row = blockIdx.x, warp = threadIdx.x / 32, n_warps = THREADS / 32;
    const uint64_t q = (uint64_t)row * a.n_heads * a.head_dim, k = (uint64_t)row * a.n_kv_heads * a.head_dim;

    for (uint32_t i = threadIdx.x; i < a.n_rot / 2; i += THREADS) {
        const float angle = (float)a.positions[row] * a.inv_freq[i];

        t.c[i] = cosf(angle) * a.mscale;
        t.s[i] = sinf(angle) * a.mscale;
    }
    __syncthreads();
    for (uint32_t h = warp; a.dq && h < a.n_heads; h += n_warps) {
        const uint64_t at = q + h * a.head_dim;

        head_gradient(a, t, a.dq + at, a.q ? a.q + at : NULL, a.q_norm, a.out_q + at);
    }
    for (uint32_t h = warp; a.dk && h < a.n_kv_heads; h += n_warps) {
        const uint64_t at = k + h * a.head_dim;

        head_gradient(a, t, a.dk + at, a.k ? a.k + at : NULL, a.k_norm, a.out_k + at);
    }
    for (uint32_t i = threadIdx.x; a.dv && i < a.n_kv_heads * a.head_dim; i += THREADS)
        a.out_v[k + i] = float_bf16(a.dv[k + i]);
}

int grad_cuda_qkv(const struct cuda_launch *l, const struct grad_cuda_qkv *a)
{
    if (a->head_dim > MAX_DIM) return (int)cudaErrorNotSupported;
    qkv_gradient<<<a->n_rows, THREADS, 0, stream_of(l)>>>(*a);
    return (int)cudaGetLastError();
}
