/* backend/cuda/rows/step_edges.cu - what goes into a step and comes out of it, by kernels that use the host's memory.
 *
 * The copy engine takes some 10 us for few bytes, as the stream is handed to it and back; a kernel takes what one access
 * over the bus takes, 1 or 2 us (H200). More than BY_KERNEL bytes are copied by the engine.
 */
#include "backend/cuda/cuda_device.cuh"

#define THREADS   128u
#define BY_KERNEL (256u << 10)

/* A thread's 16 bytes from the host's memory; the first are tokens, some of which the step before has chosen. */
static __global__ void begin_step(uint32_t n, const uint4 *host, uint4 *device, uint32_t n_rows, const uint32_t *from,
                                  const struct cuda_choice *choices)
{
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;

    if (i >= n) return;
    uint4 v = host[i];

    if (from && i * 4 < n_rows) {
        const uint4 rows = ((const uint4 *)from)[i]; /* past its end, as past that of tokens, is padding */

        if (rows.x != UINT32_MAX) v.x = (uint32_t)choices[rows.x].token;
        if (i * 4 + 1 < n_rows && rows.y != UINT32_MAX) v.y = (uint32_t)choices[rows.y].token;
        if (i * 4 + 2 < n_rows && rows.z != UINT32_MAX) v.z = (uint32_t)choices[rows.z].token;
        if (i * 4 + 3 < n_rows && rows.w != UINT32_MAX) v.w = (uint32_t)choices[rows.w].token;
    }
    device[i] = v;
}

int cuda_begin_step(const struct cuda_launch *l, uint64_t n_bytes, const void *host, void *device, uint32_t n_rows,
                    const uint32_t *from, const struct cuda_choice *choices)
{
    uint32_t n = ceil_div(n_bytes, sizeof(uint4));

    if (n_bytes > BY_KERNEL) {
        const cudaError_t error = cudaMemcpyAsync(device, host, n_bytes, cudaMemcpyHostToDevice, stream_of(l));

        if (error != cudaSuccess || !from) return (int)error;
        n = ceil_div(n_rows, 4);
    }
    begin_step<<<ceil_div(n, THREADS), THREADS, 0, stream_of(l)>>>(n, (const uint4 *)host, (uint4 *)device, n_rows,
                                                                   from, choices);
    return (int)cudaGetLastError();
}

static __global__ void put_words(uint32_t n, const uint32_t *from, uint32_t *to)
{
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;

    if (i < n) to[i] = from[i];
}

int cuda_copy_out(const struct cuda_launch *l, void *to, const void *from, uint64_t n_bytes)
{
    struct cudaPointerAttributes source = {}, at = {};

    if (n_bytes > BY_KERNEL / 16 || (n_bytes | (uintptr_t)to | (uintptr_t)from) % 4 != 0 ||
        cudaPointerGetAttributes(&source, from) != cudaSuccess || source.type != cudaMemoryTypeDevice ||
        cudaPointerGetAttributes(&at, to) != cudaSuccess || at.type != cudaMemoryTypeHost || !at.devicePointer) {
        cudaGetLastError();
        return (int)cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDefault, stream_of(l));
    }
    const uint32_t n = (uint32_t)n_bytes / 4;

    if (n > 0)
        put_words<<<ceil_div(n, THREADS), THREADS, 0, stream_of(l)>>>(n, (const uint32_t *)from,
                                                                      (uint32_t *)at.devicePointer);
    return (int)cudaGetLastError();
}
