/* backend/cuda/linear_hopper.cu - picks the tile and launches linear_wgmma; see linear_hopper.h. */
#include "backend/cuda/linear_hopper.h"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear_stream.cuh"
#include "backend/cuda/tensor_map.h"
#include <string.h>

/* bf16 [rows, cols], `stride` elements a row, in boxes of box_rows x 64. */
static bool map_bf16(CUtensorMap *map, const void *p, uint32_t rows, uint32_t cols, uint32_t stride, uint32_t box_rows)
{
    return tensor_map(map, p, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rows, cols, (uint64_t)stride * 2, box_rows, K_BLOCK,
                      CU_TENSOR_MAP_SWIZZLE_128B);
}

/* The fewest segments with which at least least_tiles tiles of 64 rows fill a device of 132 SMs (H100, H200) evenly for
 * one small batch; none shorter than 128 or one block. 132 is no matter of the device in use: results stay the same. */
uint32_t linear_segments(uint32_t n_out, uint32_t n_in, uint32_t block, uint32_t least_tiles, uint32_t *seg_blocks)
{
    const uint32_t sms = N_SMS, tiles = (n_out + 63) / 64, blocks = (n_in + block - 1) / block;
    uint32_t n = 1;

    for (; n < MAX_SEGMENTS && n_in >= n * 256 && blocks >= n * 2; n *= 2) {
        const uint32_t units = tiles * n, rounds = (units + sms - 1) / sms;

        if (units >= least_tiles && units * 100 >= rounds * sms * 84) break;
    }
    *seg_blocks = (blocks + n - 1) / n;
    return (blocks + *seg_blocks - 1) / *seg_blocks;
}

/* Where each output's tiles begin; a GLU's tiles have half their rows from each matrix. */
void linear_tiles(struct linear_job *job, uint32_t n_outs, uint32_t rows)
{
    const bool glu = job->epilogue >= EPI_SILU_GLU;

    job->n_tiles = 0;
    for (uint32_t i = 0; i < 3; i++) {
        job->first_tile[i] = i < n_outs && !(glu && i > 0) ? job->n_tiles : ~0u;
        if (job->first_tile[i] != ~0u) job->n_tiles += ceil_div(job->n_out[i], glu ? rows / 2 : rows);
    }
}

bool linear_norm_fits(const struct linear_norm *norm, uint32_t n_rows, uint32_t n_in)
{
    return n_rows == 1 && n_in % 128 == 0 && n_in <= ONE_ROW_WIDTH && (uintptr_t)norm->x % 16 == 0
           && (uintptr_t)norm->weight % 16 == 0;
}

bool linear_hopper_fits(const struct linear_hopper *a)
{
    if (!tensor_map_ready() || a->n_in % 8 || a->x_stride % 8 || (uintptr_t)a->x % 16) return false;
    for (uint32_t i = 0; i < a->n_outs; i++)
        if ((uintptr_t)a->outs[i].w % 16 || a->outs[i].w_stride % 8) return false;
    return true;
}

template <int ROWS, int N, int STAGES, int MODE, int BLOCKS_PER_SM>
static cudaError_t start(const struct linear_hopper *a, struct linear_job *job, cudaStream_t stream)
{
    auto kernel = linear_wgmma<ROWS, N, STAGES, MODE, BLOCKS_PER_SM>;
    const struct cuda_launch l = { stream, 0, 90, 0, a->chained, NULL, 0, NULL };
    uint32_t smem = linear_smem<ROWS, N, STAGES>::bytes;
    const dim3 cluster(1, 1, MODE == SPLIT ? job->n_segs : 1);
    static bool ready;                   /* once per process; a second thread would only set it again */
    cudaError_t e = ready ? cudaSuccess : allow_shared_memory(kernel, SMEM_BLOCK_MAX);
    CUtensorMap w[3], x;

    if (e) return e;
    ready = true;
    linear_tiles(job, a->n_outs, ROWS);
    job->n_row_tiles = ceil_div(a->n_rows, N);
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t from = i < a->n_outs ? i : 0;

        if (!map_bf16(&w[i], a->outs[from].w, a->outs[from].n_out, a->n_in, a->outs[from].w_stride, ROWS / 2))
            return cudaErrorInvalidValue;
    }
    if (!map_bf16(&x, a->x, a->n_rows, a->n_in, a->x_stride, N)) return cudaErrorInvalidValue;
    if (N == 1) smem += job->seg_blocks * K_BLOCK * 2 + ONE_ROW_PAD;
    smem = evenly_spread(smem, job->n_tiles * job->n_row_tiles * cluster.z, cluster.z);
    return launch_cluster(&l, kernel, dim3(job->n_tiles * job->n_row_tiles, 1, cluster.z), linear_block<ROWS>::threads,
                          smem, cluster, w[0], w[1], w[2], x, *job);
}

template <int N, bool GLU, bool WALK>
static cudaError_t start_stream(const struct linear_hopper *a, struct linear_job *job, cudaStream_t stream)
{
    auto kernel = linear_stream<N, GLU, WALK>;
    const struct cuda_launch l = { stream, 0, 90, 0, a->chained, NULL, 0, NULL };
    const CUtensorMapDataType type = GLU ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    static bool ready;                   /* once per process */
    cudaError_t e = ready ? cudaSuccess : allow_shared_memory(kernel, stream_smem<N>::bytes);
    struct stream_maps maps;
    uint32_t n_units;

    if (e) return e;
    ready = true;
    linear_tiles(job, a->n_outs, 128);
    job->n_row_tiles = ceil_div(a->n_rows, N);
    job->row_group = 8;
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t from = i < a->n_outs ? i : 0, to = GLU ? 0 : from;

        if (!tensor_map(&maps.out[i], a->outs[to].out, type, a->n_rows, a->outs[to].n_out,
                        a->outs[to].stride * (GLU ? 2ull : 4ull), 32, GLU ? 64 : 32, CU_TENSOR_MAP_SWIZZLE_128B)
            || !map_bf16(&maps.w[i], a->outs[from].w, a->outs[from].n_out, a->n_in, a->outs[from].w_stride, 64))
            return cudaErrorInvalidValue;
    }
    if (!map_bf16(&maps.x, a->x, a->n_rows, a->n_in, a->x_stride, N)) return cudaErrorInvalidValue;
    n_units = job->n_tiles * job->n_row_tiles;
    return launch_chained(&l, kernel, dim3(n_units < N_SMS ? n_units : N_SMS), STREAM_THREADS, stream_smem<N>::bytes,
                          maps, *job);
}

/* Whether linear_stream may write the outputs: boxes of 16 bytes, f32, or bf16 of a GLU; and fills the device. */
static bool stream_fits(const struct linear_hopper *a, uint32_t n_out)
{
    const bool glu = a->epilogue >= EPI_SILU_GLU;

    if (a->out_bf16 != glu || ceil_div(n_out, 128) * ceil_div(a->n_rows, 128) < 100) return false;
    for (uint32_t i = 0; i < (glu ? 1 : a->n_outs); i++)
        if ((uintptr_t)a->outs[i].out % 16 || a->outs[i].stride % (glu ? 8 : 4)) return false;
    return true;
}

/* The tile whose rounds over the device take less time; per token that of 192 is the faster one. */
static cudaError_t stream_launch(const struct linear_hopper *a, struct linear_job *job, uint32_t n_out,
                                 cudaStream_t stream)
{
    const uint32_t tiles = ceil_div(n_out, 128), wide = ceil_div(tiles * ceil_div(a->n_rows, 192), N_SMS) * 192;
    const uint32_t narrow = ceil_div(tiles * ceil_div(a->n_rows, 128), N_SMS) * 128;

    if (a->epilogue >= EPI_SILU_GLU && job->n_segs == 1) return start_stream<256, true, false>(a, job, stream);
    if (a->epilogue >= EPI_SILU_GLU) return start_stream<192, true, true>(a, job, stream);
    if (wide * 100 <= narrow * 108) return start_stream<192, false, true>(a, job, stream);
    return start_stream<128, false, true>(a, job, stream);
}

/* Whether three blocks an SM hold all tiles of 64 rows at once; clusters leave some places empty. */
static bool fits_three(uint32_t n_out, uint32_t n_segs)
{
    const uint32_t units = ceil_div(n_out, 64) * n_segs, places = 3 * N_SMS;

    return n_segs == 1 ? units <= places : units * 10 <= places * 9;
}

cudaError_t linear_hopper_launch(const struct linear_hopper *a, cudaStream_t stream)
{
    const bool glu = a->epilogue >= EPI_SILU_GLU;
    const uint32_t n = a->n_rows;
    struct linear_job job;
    uint32_t n_out = 0;

    memset(&job, 0, sizeof(job));
    job.n_rows = n;
    job.epilogue = a->epilogue;
    job.out_bf16 = a->out_bf16;
    job.row_group = 8;
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t from = i < a->n_outs && !glu ? i : 0;

        job.n_out[i] = a->outs[from].n_out;
        job.stride[i] = a->outs[from].stride;
        job.out[i] = a->outs[from].out;
        job.bias[i] = glu ? NULL : a->outs[from].bias;
        if (i < a->n_outs) n_out += a->outs[i].n_out;
    }
    job.k_blocks = ceil_div(a->n_in, K_BLOCK);
    job.n_segs = linear_segments(n_out, a->n_in, K_BLOCK, 200, &job.seg_blocks);

    job.row = { (const uint16_t *)a->x, a->norm, a->n_in };

    if (n == 1 && (a->norm.x || job.seg_blocks * K_BLOCK <= 3072)) return start<64, 1, 6, SPLIT, 4>(a, &job, stream);
    if (n <= 8) return start<64, 8, 6, SPLIT, 4>(a, &job, stream);
    if (n <= 16) return start<64, 16, 5, SPLIT, 4>(a, &job, stream);
    if (n <= 32) return start<64, 32, 4, SPLIT, 4>(a, &job, stream);
    if (n <= 64 && fits_three(n_out, job.n_segs)) return start<64, 64, 4, SPLIT, 3>(a, &job, stream);
    if (n <= 64) return start<64, 64, 3, SPLIT, 4>(a, &job, stream);
    if (n <= 128) return start<128, 128, 3, SPLIT, 2>(a, &job, stream);
    if (n > 256 && stream_fits(a, n_out)) return stream_launch(a, &job, n_out, stream);
    if (job.n_segs == 1 || (n <= 256 && ceil_div(n_out, 128) * job.n_segs <= N_SMS))
        return start<128, 256, 4, SPLIT, 1>(a, &job, stream);
    if (ceil_div(n_out, 128) * ceil_div(n, 128) < 100) return start<128, 128, 3, SPLIT, 2>(a, &job, stream);
    job.row_group = 16;
    return start<128, 128, 6, WALK, 1>(a, &job, stream);
}
