/* backend/cuda/linear/linear_quant_launch.cuh - host side of linear_quant.cuh: tensor maps, tile by row count, launch. */
#pragma once
#include "backend/cuda/linear/linear_paths.h"
#include "backend/cuda/linear/linear_quant.cuh"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/tensor_map.h"
#include <string.h>

static bool quant_map_weights(struct quant_maps *maps, const struct cuda_linear_args *a, uint32_t box_rows,
                              uint32_t together)
{
    for (uint32_t i = 0; i < 3; i++) {
        const struct cuda_matrix *m = a->outs[i < a->n_outs ? i : 0].w;
        const uint32_t bits = m->format == CUDA_INT4 ? 4 : 8, row = m->row_stride * bits / 8;
        const uint32_t row_halves = m->row_stride / m->group * cuda_scale_numbers(m);
        const uint32_t halves = QUANT_BLOCK / m->group * cuda_scale_numbers(m);

        if (!tensor_map(&maps->values[i], m->values, CU_TENSOR_MAP_DATA_TYPE_UINT8, m->n_out, row, row, box_rows,
                        QUANT_BLOCK * bits / 8, bits == 4 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B) ||
            !tensor_map(&maps->scales[i], m->scales, CU_TENSOR_MAP_DATA_TYPE_UINT16, m->n_out, row_halves,
                        row_halves * 2ull, box_rows, (halves < 8 ? 8 : halves) * together,
                        together > 1 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_NONE))
            return false;
    }
    return true;
}

/* The fewest segments with which QUANT_TILES tiles of 64 rows fill a device of 132 SMs (H100, H200) evenly; none shorter
 * than 128 or one block. 132 is no matter of the device in use: results stay the same. */
static uint32_t quant_segments(uint32_t n_out, uint32_t n_in, uint32_t *seg_blocks)
{
    const uint32_t tiles = ceil_div(n_out, 64), blocks = ceil_div(n_in, QUANT_BLOCK);
    uint32_t n = 1;

    for (; n < MAX_SEGMENTS && n_in >= n * 256 && blocks >= n * 2; n *= 2) {
        const uint32_t units = tiles * n, rounds = ceil_div(units, N_SMS);

        if (units >= QUANT_TILES && units * 100 >= rounds * N_SMS * 84) break;
    }
    *seg_blocks = ceil_div(blocks, n);
    return ceil_div(blocks, *seg_blocks);
}

template <int BITS, int GROUP, int KIND, int ROWS, int N, int STAGES, int MODE, int BLOCKS_PER_SM, int SEGS = 1>
static cudaError_t quant_start(const struct cuda_launch *l, const struct cuda_linear_args *a, struct linear_job *job)
{
    auto kernel = linear_quant<BITS, GROUP, KIND, ROWS, N, STAGES, MODE, BLOCKS_PER_SM, SEGS>;
    uint32_t smem = quant_smem<BITS, GROUP, KIND, ROWS, N, STAGES, SEGS>::bytes;
    const dim3 cluster(1, 1, MODE == SPLIT ? job->n_segs / SEGS : 1);
    struct quant_maps maps;
    cudaError_t e;

    if constexpr (MODE == SPLIT)
        if (job->epilogue == EPI_CHOOSE)
            return quant_start<BITS, GROUP, KIND, ROWS, N, STAGES, CHOOSE, BLOCKS_PER_SM>(l, a, job);
    e = allow_once<linear_quant<BITS, GROUP, KIND, ROWS, N, STAGES, MODE, BLOCKS_PER_SM, SEGS>>(SMEM_BLOCK_MAX);
    if (e) return e;
    linear_pieces(job, a->n_outs, ROWS);
    if (a->tiles) a->tiles->n_tiles = job->tiles.n_tiles = job->n_tiles;
    job->n_row_tiles = ceil_div(a->n_rows, N);
    if (!quant_map_weights(&maps, a, linear_piece(ROWS), quant_together(BITS, KIND, N)) ||
        !tensor_map(&maps.x, a->x16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a->n_rows, a->outs[0].w->n_in,
                    a->x_stride * 2ull, N, 64, CU_TENSOR_MAP_SWIZZLE_128B))
        return cudaErrorInvalidValue;
    if (N == 1) smem += one_row_bytes<ROWS>(job->seg_blocks * QUANT_BLOCK * 2, cluster.z);
    smem = evenly_spread(smem, job->n_tiles * job->n_row_tiles * cluster.z, cluster.z);
    return launch_cluster(l, kernel, dim3(job->n_tiles * job->n_row_tiles, 1, cluster.z), linear_block<ROWS>::threads,
                          smem, cluster, maps, *job);
}

template <int BITS, int GROUP, int KIND>
static cudaError_t quant_launch(const struct cuda_launch *l, const struct cuda_linear_args *a, enum linear_epilogue e,
                                void *out, const struct linear_norm *norm)
{
    constexpr int more = BITS == 4 ? 2 : 0; /* stages that have room in 4 bit */
    const bool glu = e >= EPI_SILU_GLU;
    const uint32_t n = a->n_rows, n_in = a->outs[0].w->n_in;
    struct linear_job job;
    uint32_t n_out = 0, n_whole = 0;

    memset(&job, 0, sizeof(job));
    job.n_rows = n;
    job.epilogue = e;
    job.out_bf16 = glu;
    job.row_group = 16;
    for (uint32_t i = 0; i < 3; i++) {
        const struct cuda_linear_out *o = &a->outs[i < a->n_outs && !glu ? i : 0];

        job.n_out[i] = o->w->n_out;
        job.stride[i] = glu ? o->w->n_out : o->out_stride;
        job.out[i] = out ? out : o->out;
        job.bias[i] = glu ? NULL : o->bias;
        if (i >= a->n_outs) continue;
        n_out += a->outs[i].w->n_out;
        n_whole += cuda_n_whole(a->outs[i].w);
    }
    job.k_blocks = ceil_div(n_in, QUANT_BLOCK);
    job.n_segs = quant_segments(n_whole, n_in, &job.seg_blocks);
    job.row = {a->x16, *norm, n_in};
    if (e == EPI_CHOOSE) {
        if (job.n_segs > 1 || a->n_outs > 1 || a->outs[0].bias) return cudaErrorNotSupported;
        job.tiles = *a->tiles;
    }

    if (n == 1 && job.n_segs == 8) /* places for 64 clusters of 8 at once (8B o and down): 5 blocks an SM */
        return quant_start<BITS, GROUP, KIND, 64, 1, 4 + more, SPLIT, 5>(l, a, &job);
    if (n == 1) return quant_start<BITS, GROUP, KIND, 64, 1, 4 + more, SPLIT, 4>(l, a, &job);
    if (n <= 8) return quant_start<BITS, GROUP, KIND, 64, 8, 4 + more, SPLIT, 4>(l, a, &job);
    if (n <= 16) return quant_start<BITS, GROUP, KIND, 64, 16, 3 + more, SPLIT, 4>(l, a, &job);
    if (n <= 32) return quant_start<BITS, GROUP, KIND, 64, 32, 3, SPLIT, 3>(l, a, &job);
    /* 8B, Q4_0, 64 rows (H100), tiles of 128 and of 64: gate_up 40.8 and 35.2 us; qkv, whose clusters of 4 are not placed at once
     * then, 14.8 and 19.5. Of 8 segments, with one and with two a block, all of whose clusters of 4 are placed at once: o 16.6 and
     * 14.3 us, down 30.9 and 29.2 */
    if constexpr (BITS == 4 && KIND == SCALED) {
        if (n <= 64 && job.n_segs == 8) return quant_start<BITS, GROUP, KIND, 64, 64, 3, SPLIT, 3, 2>(l, a, &job);
        if (n <= 64 && job.n_segs == 1) return quant_start<BITS, GROUP, KIND, 64, 64, 3, SPLIT, 3>(l, a, &job);
    }
    if (n <= 64) return quant_start<BITS, GROUP, KIND, 128, 64, 3, SPLIT, 2>(l, a, &job);
    if (n <= 128 || job.n_segs == 1 || ceil_div(n_out, 128) * ceil_div(n, 128) < 100)
        return quant_start<BITS, GROUP, KIND, 128, 128, 4, SPLIT, 1>(l, a, &job);
    return quant_start<BITS, GROUP, KIND, 128, 128, 4, WALK, 1>(l, a, &job);
}
