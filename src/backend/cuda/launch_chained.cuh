/* backend/cuda/launch_chained.cuh - launching a kernel that calls dependency_wait before it touches what kernels before it
 * write or read: with l->pdl it may start while the kernel before is still running (programmatic dependent launch). */
#pragma once
#include "backend/cuda/cuda_device.cuh"

template <typename... Params, typename... Args>
static cudaError_t launch_chained(const struct cuda_launch *l, void (*kernel)(Params...), dim3 grid, dim3 block,
                                  uint32_t smem, const Args &...args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute chained;

    chained.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    chained.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = stream_of(l);
    config.attrs = &chained;
    config.numAttrs = l->pdl ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* Beyond 48 KB a kernel must be told of its dynamic shared memory. */
template <typename... Params> static cudaError_t allow_shared_memory(void (*kernel)(Params...), uint32_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
