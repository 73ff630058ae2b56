/* backend/cuda/tensor_map.cu - cuTensorMapEncodeTiled, found through the runtime: nothing here links the driver. */
#include "backend/cuda/tensor_map.h"
#include <cuda_runtime_api.h>

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn encoder(void)
{
    static encode_fn found; /* looked up once; a second thread would find the same */
    void *f = NULL;
    cudaDriverEntryPointQueryResult result;

    if (!found &&
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result) == 0 &&
        result == cudaDriverEntryPointSuccess)
        found = (encode_fn)f;
    return found;
}

bool tensor_map_ready(void)
{
    return encoder() != NULL;
}

bool tensor_map_as(CUtensorMap *map, const void *p, CUtensorMapDataType type, uint32_t rows, uint32_t cols,
                   uint64_t stride_bytes, uint32_t box_rows, uint32_t box_cols, CUtensorMapSwizzle swizzle,
                   CUtensorMapL2promotion promotion)
{
    cuuint64_t dims[2] = {cols, rows}, strides[1] = {stride_bytes};
    cuuint32_t box[2] = {box_cols, box_rows}, steps[2] = {1, 1};

    return encoder()(map, type, 2, (void *)p, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                     promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool tensor_map(CUtensorMap *map, const void *p, CUtensorMapDataType type, uint32_t rows, uint32_t cols,
                uint64_t stride_bytes, uint32_t box_rows, uint32_t box_cols, CUtensorMapSwizzle swizzle)
{
    return tensor_map_as(map, p, type, rows, cols, stride_bytes, box_rows, box_cols, swizzle,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}
