/* bench/gpu/gpu_bench.cuh - what the GPU benchmarks share: checks, random data, read bandwidth, timing by graph replay.
 *
 * Times are medians over replays of a CUDA graph that holds `per_graph` launches over rotating inputs, so that neither
 * launch gaps of the host nor the L2 cache flatter a kernel. Random data comes from a hash of the index: any kernel can
 * make it, none stores it. Under long load: gpu_power.cuh.
 */
#pragma once
#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>
#include "gpu_power.cuh"

#define GPU(call)                                                                                                      \
    do {                                                                                                               \
        cudaError_t e_ = (call);                                                                                       \
        if (e_) {                                                                                                      \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static __device__ __host__ inline uint32_t hash_u32(uint64_t x)
{
    x ^= x >> 31, x *= 0x7FB5D329728EA185ull, x ^= x >> 27, x *= 0x81DADEF4BC2DD44Dull, x ^= x >> 33;
    return (uint32_t)x;
}
/* About normal, variance 1: the sum of four uniform bytes pairs. */
static __device__ __host__ inline float hash_normal(uint64_t seed, uint64_t i)
{
    uint32_t a = hash_u32(seed * 0x9E3779B97F4A7C15ull + 2 * i), b = hash_u32(seed * 0x9E3779B97F4A7C15ull + 2 * i + 1);
    return ((float)(a & 0xFFFF) + (float)(a >> 16) + (float)(b & 0xFFFF) + (float)(b >> 16) - 131070.0f) / 37837.0f;
}
static __global__ void fill_bf16(__nv_bfloat16 *p, uint64_t n, uint64_t seed, float scale)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = __float2bfloat16_rn(scale * hash_normal(seed, i));
}
static __global__ void fill_f32(float *p, uint64_t n, uint64_t seed, float scale)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = scale * hash_normal(seed, i);
}
static __global__ void read_all(const uint4 *p, uint64_t n, uint32_t *out)
{
    uint32_t sum = 0;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x, i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;

    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step), d = __ldcs(p + i + 3 * step);
        sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (sum == 0x12345678) *out = sum;
}
template <class T> static T *gpu_alloc(uint64_t n)
{
    void *p;
    GPU(cudaMalloc(&p, n * sizeof(T)));
    return (T *)p;
}

/* Median time of one of `per_graph` launches, in microseconds. launch(i, stream): the i-th launch of a graph. */
template <class F> static double time_us(int per_graph, int replays, F launch)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    std::vector<float> ms(replays);

    GPU(cudaStreamCreate(&stream));
    GPU(cudaEventCreate(&from));
    GPU(cudaEventCreate(&to));
    GPU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < per_graph; i++) launch(i, stream);
    GPU(cudaStreamEndCapture(stream, &graph));
    GPU(cudaGraphInstantiate(&exec, graph, 0));
    for (int r = -2; r < replays; r++) {
        GPU(cudaEventRecord(from, stream));
        GPU(cudaGraphLaunch(exec, stream));
        GPU(cudaEventRecord(to, stream));
        GPU(cudaStreamSynchronize(stream));
        if (r >= 0) GPU(cudaEventElapsedTime(&ms[r], from, to));
    }
    std::sort(ms.begin(), ms.end());
    gpu_power_print(exec, stream, per_graph);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return ms[replays / 2] * 1000.0 / per_graph;
}

/* GB/s of plain reads. */
static double read_bandwidth(const void *p, uint64_t bytes)
{
    double us = time_us(1, 7, [&](int, cudaStream_t s) {
        read_all<<<132 * 16, 512, 0, s>>>((const uint4 *)p, bytes / 16, (uint32_t *)p);
    });
    return bytes / us / 1e3;
}
