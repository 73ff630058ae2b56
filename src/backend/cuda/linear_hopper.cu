/* backend/cuda/linear_hopper.cu - picks the tile and launches linear_wgmma; see linear_hopper.h. */
#include "backend/cuda/linear_hopper.h"
#include "backend/cuda/linear_wgmma.cuh"
#include <string.h>

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's encoder, looked up once; NULL without a driver. */
static encode_fn encoder(void)
{
    static encode_fn found;
    void *f = NULL;
    cudaDriverEntryPointQueryResult result;

    if (!found && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result) == 0
        && result == cudaDriverEntryPointSuccess)
        found = (encode_fn)f;
    return found;
}

/* bf16 [rows, cols], `stride` elements a row, in boxes of box_rows x 64. */
static bool map_bf16(CUtensorMap *map, const void *p, uint32_t rows, uint32_t cols, uint32_t stride, uint32_t box_rows)
{
    cuuint64_t dims[2] = { cols, rows }, strides[1] = { (cuuint64_t)stride * 2 };
    cuuint32_t box[2] = { K_BLOCK, box_rows }, steps[2] = { 1, 1 };

    return encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, dims, strides, box, steps,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
           == CUDA_SUCCESS;
}

/* Enough segments that about 120 blocks share the work of one small batch; none shorter than 128. */
uint32_t linear_segments(uint32_t n_out, uint32_t n_in, uint32_t *seg_blocks)
{
    uint32_t tiles = (n_out + TILE_ROWS - 1) / TILE_ROWS, blocks = (n_in + K_BLOCK - 1) / K_BLOCK, n = 1;

    while (n < MAX_SEGMENTS && tiles * n < 96 && blocks >= n * 4) n *= 2;
    *seg_blocks = (blocks + n - 1) / n;
    return (blocks + *seg_blocks - 1) / *seg_blocks;
}

bool linear_hopper_fits(const struct linear_hopper *a)
{
    if (!encoder() || a->n_in % 8 || a->x_stride % 8 || (uintptr_t)a->x % 16) return false;
    for (uint32_t i = 0; i < a->n_outs; i++)
        if ((uintptr_t)a->outs[i].w % 16 || a->outs[i].w_stride % 8) return false;
    return true;
}

template <int N, int STAGES, bool WALK, int BLOCKS_PER_SM>
static cudaError_t start(const CUtensorMap (&w)[3], const struct linear_hopper *a, struct linear_job *job,
                         cudaStream_t stream)
{
    auto kernel = linear_wgmma<N, STAGES, WALK, BLOCKS_PER_SM>;
    static bool ready;                  /* set once per process; a second thread would only set it again */
    CUtensorMap x;
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attrs[2];
    cudaError_t e;

    if (!map_bf16(&x, a->x, a->n_rows, a->n_in, a->x_stride, N)) return cudaErrorInvalidValue;
    memset(&config, 0, sizeof(config));
    job->n_row_tiles = (a->n_rows + N - 1) / N;
    config.dynamicSmemBytes = linear_smem_bytes<N, STAGES>();
    if (!ready) {
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)config.dynamicSmemBytes);
        if (e) return e;
        ready = true;
    }
    config.gridDim = dim3(job->n_tiles * job->n_row_tiles, 1, WALK ? 1 : job->n_segs);
    config.blockDim = dim3(LINEAR_THREADS);
    config.stream = stream;
    config.attrs = attrs;
    if (!WALK && job->n_segs > 1) {
        attrs[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attrs[config.numAttrs].val.clusterDim.x = attrs[config.numAttrs].val.clusterDim.y = 1;
        attrs[config.numAttrs++].val.clusterDim.z = job->n_segs;
    }
    if (a->chained) {
        attrs[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attrs[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, w[0], w[1], w[2], x, *job);
}

cudaError_t linear_hopper_launch(const struct linear_hopper *a, cudaStream_t stream)
{
    bool glu = a->epilogue >= EPI_SILU_GLU;
    struct linear_job job;
    CUtensorMap w[3];
    uint32_t n_out = 0, n = a->n_rows;

    memset(&job, 0, sizeof(job));
    job.n_rows = n;
    job.epilogue = a->epilogue;
    job.out_bf16 = a->out_bf16;
    job.row_group = 8;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t from = i < a->n_outs ? i : 0;

        job.first_tile[i] = i < a->n_outs ? job.n_tiles : ~0u;
        job.n_out[i] = a->outs[from].n_out;
        job.stride[i] = a->outs[from].stride;
        job.out[i] = a->outs[from].out;
        job.bias[i] = glu ? NULL : a->outs[from].bias;
        if (i < a->n_outs) {
            n_out += a->outs[i].n_out;
            if (!glu) job.n_tiles += (a->outs[i].n_out + TILE_ROWS - 1) / TILE_ROWS;
            else if (i == 0) job.n_tiles = (a->outs[i].n_out + 63) / 64;
        }
        if (!map_bf16(&w[i], a->outs[from].w, job.n_out[i], a->n_in, a->outs[from].w_stride, 64)) return cudaErrorInvalidValue;
    }
    if (glu) job.first_tile[1] = job.first_tile[2] = ~0u, job.out[1] = job.out[0], job.stride[1] = job.stride[0];
    job.k_blocks = (a->n_in + K_BLOCK - 1) / K_BLOCK;
    job.n_segs = linear_segments(n_out, a->n_in, &job.seg_blocks);

    if (n <= 8) return start<8, 6, false, 2>(w, a, &job, stream);
    if (n <= 16) return start<16, 5, false, 2>(w, a, &job, stream);
    if (n <= 32) return start<32, 5, false, 2>(w, a, &job, stream);
    if (n <= 64) return start<64, 4, false, 2>(w, a, &job, stream);
    if (n <= 128) return start<128, 3, false, 2>(w, a, &job, stream);
    if (job.n_segs == 1) return start<256, 4, false, 1>(w, a, &job, stream);
    if (job.n_tiles * ((n + 127) / 128) < 100) return start<128, 3, false, 2>(w, a, &job, stream);
    job.row_group = 16;
    return start<128, 6, true, 1>(w, a, &job, stream);
}
