/* grad/cuda/loss_gradient.cu - cross entropy and its gradient; the optimiser's sums and updates.
 *
 * A row of logits is read twice: for its largest and the sum of exponentials, each thread's own, merged in a tree; and for the
 * gradient. Bound: memory, 8 bytes read and 2 written a logit. */
#include "backend/cuda/cuda_device.cuh"
#include "grad/cuda/grad_cuda.h"

#define ROW_THREADS 512u
#define THREADS     256u
#define MAX_BLOCKS  2048u

/* The largest of some numbers, and the sum of e^(x - most). */
struct most_sum {
    float most, sum;
};
static __device__ __forceinline__ struct most_sum merged(struct most_sum a, struct most_sum b)
{
    const float most = fmaxf(a.most, b.most);

    if (most == -INFINITY) return {most, a.sum + b.sum};
    return {most, a.sum * __expf(a.most - most) + b.sum * __expf(b.most - most)};
}

static __device__ struct most_sum row_sums(const float *x, uint32_t n)
{
    __shared__ struct most_sum parts[ROW_THREADS / 32];
    struct most_sum s = {-INFINITY, 0};

    for (uint32_t i = threadIdx.x; i < n; i += ROW_THREADS) {
        const float v = x[i];

        if (v > s.most) {
            s.sum = s.most == -INFINITY ? 0 : s.sum * expf(s.most - v);
            s.most = v;
        }
        s.sum += expf(v - s.most);
    }
    for (int d = 16; d; d /= 2)
        s = merged(s, {__shfl_xor_sync(0xffffffffu, s.most, d), __shfl_xor_sync(0xffffffffu, s.sum, d)});
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
    __syncthreads();
    s = parts[0];
    for (uint32_t i = 1; i < ROW_THREADS / 32; i++) s = merged(s, parts[i]);
    return s;
}

static __global__ void __launch_bounds__(ROW_THREADS)
    cross_entropy(uint32_t n_vocab, const float *logits, const int32_t *targets, float cap, float weight,
                  uint16_t *gradient, double *losses)
{
    const float *x = logits + (uint64_t)blockIdx.x * n_vocab;
    const struct most_sum s = row_sums(x, n_vocab);
    const uint32_t target = (uint32_t)targets[blockIdx.x];
    const float scale = weight / s.sum;

    if (threadIdx.x == 0) losses[blockIdx.x] = log((double)s.sum) - ((double)x[target] - (double)s.most);
    if (!gradient) return;
    gradient += (uint64_t)blockIdx.x * n_vocab;
    for (uint32_t i = threadIdx.x; i < n_vocab; i += ROW_THREADS) {
        const float v = x[i];
        float g = expf(v - s.most) * scale - (i == target ? weight : 0.0f);

        if (cap > 0) g *= 1.0f - (v / cap) * (v / cap);
        gradient[i] = float_bf16(g);
    }
}

int grad_cuda_loss(const struct cuda_launch *l, uint32_t n_rows, uint32_t n_vocab, const float *logits,
                   const int32_t *targets, float cap, float weight, uint16_t *gradient16, double *losses)
{
    cross_entropy<<<n_rows, ROW_THREADS, 0, stream_of(l)>>>(n_vocab, logits, targets, cap, weight, gradient16, losses);
    return (int)cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS) sum_squares(uint64_t n, const float *x, double *parts)
{
    __shared__ double sums[THREADS];
    double sum = 0;

    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (uint64_t)gridDim.x * THREADS)
        sum += (double)x[i] * (double)x[i];
    sums[threadIdx.x] = sum;
    for (uint32_t d = THREADS / 2; d; d /= 2) {
        __syncthreads();
        if (threadIdx.x < d) sums[threadIdx.x] += sums[threadIdx.x + d];
    }
    if (threadIdx.x == 0) parts[blockIdx.x] = sums[0];
}

int grad_cuda_squares(const struct cuda_launch *l, uint64_t n, const float *x, double *parts)
{
    sum_squares<<<GRAD_CUDA_PARTS, THREADS, 0, stream_of(l)>>>(n, x, parts);
    return (int)cudaGetLastError();
}

static __device__ __forceinline__ float rounded(float x)
{
    return bf16_float(float_bf16(x));
}

static __global__ void __launch_bounds__(THREADS)
    update(struct grad_cuda_adamw o, uint64_t n, const float *g, float *m, float *v, float *p, float *values)
{
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (uint64_t)gridDim.x * THREADS) {
        const float x = g[i] * o.scale;
        const float mi = o.b1 * m[i] + o.c1 * x, vi = o.b2 * v[i] + o.c2 * x * x;
        const float pi = p[i] * o.keep - o.rate * mi / (sqrtf(vi) * o.root + o.eps);

        m[i] = mi;
        v[i] = vi;
        p[i] = pi;
        if (values != p) values[i] = rounded(pi);
    }
}

static uint32_t blocks_of(uint64_t n)
{
    const uint64_t blocks = (n + THREADS - 1) / THREADS;

    return blocks < MAX_BLOCKS ? (uint32_t)blocks : MAX_BLOCKS;
}

int grad_cuda_update(const struct cuda_launch *l, const struct grad_cuda_adamw *o, uint64_t n, const float *g, float *m,
                     float *v, float *p, float *values)
{
    update<<<blocks_of(n), THREADS, 0, stream_of(l)>>>(*o, n, g, m, v, p, values);
    return (int)cudaGetLastError();
}

static __global__ void __launch_bounds__(THREADS) round_all(uint64_t n, const float *from, float *to)
{
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (uint64_t)gridDim.x * THREADS)
        to[i] = rounded(from[i]);
}

int grad_cuda_round(const struct cuda_launch *l, uint64_t n, const float *from, float *to)
{
    round_all<<<blocks_of(n), THREADS, 0, stream_of(l)>>>(n, from, to);
    return (int)cudaGetLastError();
}
