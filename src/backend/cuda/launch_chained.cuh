/* backend/cuda/launch_chained.cuh - launching kernels that call dependency_wait before they touch what others write.
 *
 * With l->pdl such a kernel may start while the one before it is still running (programmatic dependent launch). */
#pragma once
#include "backend/cuda/cuda_device.cuh"

/* In clusters of `cluster` blocks. */
template <typename... Params, typename... Args>
static cudaError_t launch_cluster(const struct cuda_launch *l, void (*kernel)(Params...), dim3 grid, dim3 block,
                                  uint32_t smem, dim3 cluster, const Args &...args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attrs[2];

    if (l->pdl) {
        attrs[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attrs[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster.x * cluster.y * cluster.z > 1) {
        attrs[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attrs[config.numAttrs].val.clusterDim.x = cluster.x;
        attrs[config.numAttrs].val.clusterDim.y = cluster.y;
        attrs[config.numAttrs++].val.clusterDim.z = cluster.z;
    }
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = stream_of(l);
    config.attrs = attrs;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

template <typename... Params, typename... Args>
static cudaError_t launch_chained(const struct cuda_launch *l, void (*kernel)(Params...), dim3 grid, dim3 block,
                                  uint32_t smem, const Args &...args)
{
    return launch_cluster(l, kernel, grid, block, smem, dim3(1), args...);
}

/* Beyond 48 KB a kernel must be told of its dynamic shared memory. */
template <typename... Params> static cudaError_t allow_shared_memory(void (*kernel)(Params...), uint32_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* The same, asked of the runtime once for a device and as many bytes. */
template <auto KERNEL> static cudaError_t allow_once(uint32_t bytes)
{
    static uint32_t allowed[64]; /* a second thread of a device would only set it again */
    int device = 0;
    cudaError_t e = cudaGetDevice(&device);
    uint32_t *here = &allowed[device & 63];

    if (e != cudaSuccess || (bytes <= *here && device < 64)) return e;
    e = allow_shared_memory(KERNEL, bytes);
    if (e == cudaSuccess && bytes > *here) *here = bytes;
    return e;
}

/* The H100 and H200; of the shared memory 1 KB a block is the system's. */
static const uint32_t N_SMS = 132, SMEM_SM = 228 * 1024, SMEM_BLOCK_MAX = 227 * 1024;
/* What products of few rows leave of an SM's, for blocks that run beside them (low_rank_rows.cu). */
static const uint32_t SMEM_BESIDE = 7 * 1024;

/* Shared memory to ask for so that no SM takes more blocks than its share of few ones: the hardware does not spread
 * them evenly by itself. Not for clusters, which need room to be placed (measured: 8B down 27 us, so 38 us). */
static inline uint32_t evenly_spread(uint32_t smem, uint32_t n_blocks, uint32_t cluster)
{
    const uint32_t share = ceil_div(n_blocks, N_SMS), most = (SMEM_SM - SMEM_BESIDE) / share - 1024;

    return cluster > 1 || share > 4 || most < smem ? smem : most;
}
