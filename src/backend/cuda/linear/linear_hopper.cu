/* backend/cuda/linear/linear_hopper.cu - picks the tile and launches linear_wgmma; see linear_hopper.h. */
#include "backend/cuda/linear/linear_hopper.h"
#include "backend/cuda/cuda_kernels.h"
#include "backend/cuda/launch_chained.cuh"
#include "backend/cuda/linear/linear_apart.cuh"
#include "backend/cuda/linear/linear_halves.cuh"
#include "backend/cuda/linear/linear_stream.cuh"
#include "backend/cuda/tensor_map.h"
#include <string.h>

/* bf16 [rows, cols], `stride` elements a row, in boxes of box_rows x 64. */
static bool map_bf16(CUtensorMap *map, const void *p, uint32_t rows, uint32_t cols, uint32_t stride, uint32_t box_rows)
{
    return tensor_map(map, p, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rows, cols, (uint64_t)stride * 2, box_rows, K_BLOCK,
                      CU_TENSOR_MAP_SWIZZLE_128B);
}

/* About one tile of 64 rows for each of 132 SMs (H100, H200), half as many where k is so short that an SM holds a tile's
 * weights at once; no more, as their sums must meet. 132 is no matter of the device in use: results stay the same. */
uint32_t linear_segments(uint32_t n_out, uint32_t n_in, uint32_t *seg_blocks)
{
    const uint32_t tiles = ceil_div(n_out, 64), blocks = ceil_div(n_in, K_BLOCK);
    uint32_t n = 1;

    while (n < MAX_SEGMENTS && n_in >= n * 256 && blocks >= n * 2 &&
           (tiles * n < 64 || (tiles * n < 120 && n_in > n * 1024)))
        n *= 2;
    *seg_blocks = ceil_div(blocks, n);
    return ceil_div(blocks, *seg_blocks);
}

void linear_pieces(struct linear_job *job, uint32_t n_outs, uint32_t rows)
{
    const bool glu = job->epilogue >= EPI_SILU_GLU;
    const uint32_t piece = linear_piece(rows);
    uint32_t n = 0;

    for (uint32_t i = 0; i < 3; i++) {
        job->first_piece[i] = i < n_outs ? n : ~0u;
        if (i < n_outs) n += ceil_div(job->n_out[glu ? 0 : i], piece);
    }
    job->n_tiles = ceil_div(n, rows / piece);
}

/* The same for linear_stream and linear_halves: tiles of `rows` of one matrix, or of a GLU as many of each. */
static void whole_tiles(struct linear_job *job, uint32_t n_outs, uint32_t rows)
{
    const bool glu = job->epilogue >= EPI_SILU_GLU;

    job->n_tiles = 0;
    for (uint32_t i = 0; i < 3; i++) {
        job->first_tile[i] = i < n_outs && !(glu && i > 0) ? job->n_tiles : ~0u;
        if (job->first_tile[i] != ~0u) job->n_tiles += ceil_div(job->n_out[i], rows);
    }
}

bool linear_norm_fits(const struct linear_norm *norm, uint32_t n_rows, uint32_t n_in)
{
    return n_rows == 1 && n_in % 128 == 0 && n_in <= ONE_ROW_WIDTH && (uintptr_t)norm->x % 16 == 0 &&
           (uintptr_t)norm->weight % 16 == 0;
}

bool linear_hopper_fits(const struct linear_hopper *a)
{
    if (!tensor_map_ready() || a->n_in % 8 || a->x_stride % 8 || (uintptr_t)a->x % 16) return false;
    for (uint32_t i = 0; i < a->n_outs; i++)
        if ((uintptr_t)a->outs[i].w % 16 || a->outs[i].w_stride % 8) return false;
    return true;
}

/* All weight matrices, in boxes of box_rows; past the last the first again. */
static bool map_weights(CUtensorMap (&maps)[3], const struct linear_hopper *a, uint32_t box_rows)
{
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t from = i < a->n_outs ? i : 0;

        if (!map_bf16(&maps[i], a->outs[from].w, a->outs[from].n_out, a->n_in, a->outs[from].w_stride, box_rows))
            return false;
    }
    return true;
}

template <int ROWS, int N, int STAGES, int MODE, int BLOCKS_PER_SM>
static cudaError_t start(const struct linear_hopper *a, struct linear_job *job, cudaStream_t stream)
{
    auto kernel = linear_wgmma<ROWS, N, STAGES, MODE, BLOCKS_PER_SM>;
    const struct cuda_launch l = {stream, 0, 90, 0, a->chained, NULL, 0, NULL};
    uint32_t smem = linear_smem<ROWS, N, STAGES>::bytes;
    const dim3 cluster(1, 1, MODE == SPLIT || MODE == COPY ? job->n_segs : 1);
    CUtensorMap w[3], x;
    cudaError_t e;

    if constexpr (MODE == SPLIT)
        if (a->epilogue == EPI_CHOOSE) return start<ROWS, N, STAGES, CHOOSE, BLOCKS_PER_SM>(a, job, stream);
    e = allow_once<linear_wgmma<ROWS, N, STAGES, MODE, BLOCKS_PER_SM>>(SMEM_BLOCK_MAX);
    if (e) return e;
    linear_pieces(job, a->n_outs, ROWS);
    if (a->tiles) a->tiles->n_tiles = job->tiles.n_tiles = job->n_tiles;
    job->n_row_tiles = ceil_div(a->n_rows, N);
    if (!map_weights(w, a, linear_piece(ROWS)) || !map_bf16(&x, a->x, a->n_rows, a->n_in, a->x_stride, N))
        return cudaErrorInvalidValue;
    if (N == 1) smem += one_row_bytes<ROWS>(job->seg_blocks * K_BLOCK * 2, cluster.z);
    smem = evenly_spread(smem, job->n_tiles * job->n_row_tiles * cluster.z, cluster.z);
    return launch_cluster(&l, kernel, dim3(job->n_tiles * job->n_row_tiles, 1, cluster.z),
                          linear_trade<ROWS, N>::threads, smem, cluster, w[0], w[1], w[2], x, *job);
}

/* Sides and outputs of tiles of 128 x N. */
template <int N, bool GLU> static bool stream_maps_of(struct stream_maps *maps, const struct linear_hopper *a)
{
    const CUtensorMapDataType type = GLU ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    const CUtensorMapSwizzle swizzle = GLU && glu_box(N) == 88   ? CU_TENSOR_MAP_SWIZZLE_NONE
                                       : GLU && glu_box(N) == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                 : CU_TENSOR_MAP_SWIZZLE_128B;
    const uint32_t box = GLU ? glu_box(N) : 32;

    if (!map_bf16(&maps->a[0], a->x, a->n_rows, a->n_in, a->x_stride, GLU ? 128 : N / 2)) return false;
    if (!GLU) maps->b[0] = maps->b[1] = maps->a[0];
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t from = i < a->n_outs ? i : 0, to = GLU ? 0 : from;

        if (!tensor_map(&maps->out[i], a->outs[to].out, type, a->n_rows, a->outs[to].n_out,
                        a->outs[to].stride * (GLU ? 2ull : 4ull), GLU ? 16 : 32, box, swizzle) ||
            (i < (GLU ? 2 : 3) && !map_bf16(GLU ? &maps->b[i] : &maps->a[i], a->outs[from].w, a->outs[from].n_out,
                                            a->n_in, a->outs[from].w_stride, GLU ? N / 2 : 128)))
            return false;
    }
    maps->n_copies = a->copies ? a->copies->n : 0;
    for (uint32_t i = 0; i < maps->n_copies; i++)
        if (!tensor_map(&maps->copies[i], a->copies->to[i], type, a->n_rows, a->outs[0].n_out,
                        a->outs[0].stride * (GLU ? 2ull : 4ull), GLU ? 16 : 32, box, swizzle))
            return false;
    return true;
}

template <int N, bool GLU, bool PAIR, bool WALK>
static cudaError_t start_stream(const struct linear_hopper *a, struct linear_job *job, cudaStream_t stream)
{
    auto kernel = linear_stream<N, GLU, PAIR, WALK>;
    const struct cuda_launch l = {stream, 0, 90, 0, a->chained, NULL, 0, NULL};
    const uint32_t blocks = 1 + PAIR, smem = stream_smem<N, GLU>::bytes;
    const cudaError_t e = allow_once<linear_stream<N, GLU, PAIR, WALK>>(smem);
    struct stream_maps maps;
    uint32_t n_units;

    if (e) return e;
    whole_tiles(job, a->n_outs, GLU ? N / 2 : 128);
    if (!GLU) job->n_tiles = ceil_div(job->n_tiles, blocks);
    job->n_row_tiles = ceil_div(a->n_rows, GLU ? 128 * blocks : N);
    job->row_group = GLU ? 8 : 2304 / N; /* about 2,048 tokens */
    if (!stream_maps_of<N, GLU>(&maps, a)) return cudaErrorInvalidValue;
    n_units = job->n_tiles * job->n_row_tiles;
    return launch_cluster(&l, kernel, dim3((n_units < N_SMS / blocks ? n_units : N_SMS / blocks) * blocks),
                          STREAM_THREADS, smem, dim3(blocks), maps, *job);
}

static cudaError_t start_apart(const struct linear_hopper *a, struct linear_job *job, cudaStream_t stream)
{
    const struct cuda_launch l = {stream, 0, 90, 0, a->chained, NULL, 0, NULL};
    const cudaError_t e = allow_once<linear_apart>(apart::bytes);
    struct stream_maps maps;

    if (e) return e;
    whole_tiles(job, a->n_outs, 128);
    if (!stream_maps_of<128, false>(&maps, a)) return cudaErrorInvalidValue;
    return launch_cluster(&l, linear_apart, dim3(job->n_tiles * ceil_div(a->n_rows, 128), 1, 2), apart::threads,
                          apart::bytes, dim3(1, 1, 2), maps, *job);
}

/* Whether boxes that leave may be written to the outputs: of 16 bytes, f32, or bf16 of a GLU. */
static bool boxes_fit(const struct linear_hopper *a)
{
    const bool glu = a->epilogue >= EPI_SILU_GLU;

    if (a->out_bf16 != glu) return false;
    for (uint32_t i = 0; i < (glu ? 1 : a->n_outs); i++)
        if ((uintptr_t)a->outs[i].out % 16 || a->outs[i].stride % (glu ? 8 : 4)) return false;
    return true;
}

/* Whether linear_stream may take the product, and fills half the device. */
static bool stream_fits(const struct linear_hopper *a, uint32_t n_out)
{
    return boxes_fit(a) && ceil_div(n_out, 128) * ceil_div(a->n_rows, 128) >= 60;
}

/* Whether all tiles are placed at once with two blocks for each, which linear_apart has. */
static bool apart_fits(const struct linear_hopper *a, const struct linear_job *job)
{
    uint32_t tiles = 0;

    for (uint32_t i = 0; i < a->n_outs; i++) tiles += ceil_div(a->outs[i].n_out, 128);
    return a->epilogue < EPI_SILU_GLU && !a->copies && job->n_segs >= 2 && job->n_segs <= 4 && boxes_fit(a) &&
           tiles * ceil_div(a->n_rows, 128) <= N_SMS / 2;
}

/* Time of a GLU's tiles of 128 tokens and n weights in pairs of blocks, in tile_cost's units; narrow ones need more shared memory
 * for as many products. */
static uint32_t glu_cost(uint32_t half, uint32_t n_rows, uint32_t n)
{
    const uint32_t rounds = ceil_div(ceil_div(half, n / 2) * ceil_div(n_rows, 256), N_SMS / 2);

    return rounds * (128 * n / 60) * (n == 256 ? 100 : 108) / 100;
}

/* The tile whose rounds over the device take less time; per token those of 192 and 224 are the faster ones. */
static cudaError_t stream_launch(const struct linear_hopper *a, struct linear_job *job, uint32_t n_out,
                                 cudaStream_t stream)
{
    const uint32_t tiles = ceil_div(n_out, 128), pairs = ceil_div(tiles, 2), half = n_out / 2;
    const uint32_t narrow = ceil_div(tiles * ceil_div(a->n_rows, 128), N_SMS) * 128;
    const uint32_t wide = ceil_div(pairs * ceil_div(a->n_rows, 192), N_SMS / 2) * 192;
    const uint32_t widest = ceil_div(pairs * ceil_div(a->n_rows, 224), N_SMS / 2) * 224;

    if (a->epilogue >= EPI_SILU_GLU && job->n_segs == 1)
        return glu_cost(half, a->n_rows, 192) * 16 < glu_cost(half, a->n_rows, 256) * 15
                   ? start_stream<192, true, true, false>(a, job, stream)
                   : start_stream<256, true, true, false>(a, job, stream);
    if (a->epilogue >= EPI_SILU_GLU) return start_stream<128, true, false, true>(a, job, stream);
    if (widest <= wide && widest * 100 <= narrow * 108) return start_stream<224, false, true, true>(a, job, stream);
    if (wide * 100 <= narrow * 108) return start_stream<192, false, true, true>(a, job, stream);
    return start_stream<128, false, false, true>(a, job, stream);
}

/* ---- which tile, up to 256 rows: measured on an H200 (bench/notes/gpu.md, "Products of few rows") ---- */

/* Blocks that run at one time, one an SM, in clusters of 1 .. 8 (cudaOccupancyMaxActiveClusters of an H200). */
static uint32_t places(uint32_t cluster)
{
    static const uint8_t n_clusters[MAX_SEGMENTS] = {132, 66, 39, 30, 22, 17, 15, 15};

    return n_clusters[cluster - 1] * cluster;
}

/* Bytes of a batch of one row that a block has room for. */
static constexpr uint32_t one_row_room(uint32_t per_sm)
{
    return per_sm == 1 ? 24576 : per_sm == 4 ? 6144 : 8192;
}

/* Stages of tiles of 64 rows that leave room for `per_sm` blocks on an SM. */
template <int N> static constexpr int few_stages(uint32_t per_sm)
{
    const uint32_t stage = 64 * K_BLOCK * 2 + (N > 1 ? N * K_BLOCK * 2 : 0);
    const uint32_t others = 2560 + (N == 1 ? one_row_room(per_sm) : 0); /* the system's, aligning, barriers */
    const uint32_t room = (SMEM_SM - (N > 1 ? SMEM_BESIDE : 0)) / per_sm - others;

    return (int)(room / stage < 24 ? room / stage : 24);
}

/* As few blocks an SM as take all tiles at once, with rings as long as fit: the weights in them were asked for before the
 * kernel before this one had ended. */
template <int N, int MODE = SPLIT>
static cudaError_t start_few(const struct linear_hopper *a, struct linear_job *job, uint32_t per_sm,
                             cudaStream_t stream)
{
    switch (per_sm) {
    case 1:
        return start<64, N, few_stages<N>(1), MODE, 1>(a, job, stream);
    case 2:
        return start<64, N, few_stages<N>(2), MODE, 2>(a, job, stream);
    case 3:
        return start<64, N, few_stages<N>(3), MODE, 3>(a, job, stream);
    default:
        return start<64, N, few_stages<N>(4), MODE, 4>(a, job, stream);
    }
}

/* Time of tiles of `rows` x n, in units of what an SM takes to receive one row of 64 k: rounds over the device, each bound
 * by what arrives or by the tensor cores. */
static uint32_t tile_cost(uint32_t n_out, uint32_t n_rows, uint32_t n_segs, uint32_t rows, uint32_t n)
{
    const uint32_t tiles = ceil_div(n_out, rows) * ceil_div(n_rows, n), arrives = rows + n;

    return ceil_div(tiles * n_segs, places(n_segs)) * (rows * n / 60 > arrives ? rows * n / 60 : arrives);
}

/* A tile of weight rows x tokens, and its kernels: with a block an SM, and with two for where tiles are more than SMs (NULL:
 * none). */
typedef cudaError_t start_fn(const struct linear_hopper *a, struct linear_job *job, cudaStream_t stream);
struct tile {
    uint32_t rows, n;
    start_fn *alone, *two;
};
#define TILE(rows, n, stages)                                                                                          \
    {                                                                                                                  \
        rows, n, start<rows, n, stages, SPLIT, 1>, NULL                                                                \
    }
#define TILE_OR_TWO(rows, n, stages, half)                                                                             \
    {                                                                                                                  \
        rows, n, start<rows, n, stages, SPLIT, 1>, start<rows, n, half, SPLIT, 2>                                      \
    }

/* The first of a list that costs least; one later in it must be better by a little. */
static const struct tile *best_tile(uint32_t n_out, uint32_t n_rows, uint32_t n_segs, const struct tile *tiles,
                                    uint32_t n_tiles)
{
    const struct tile *best = tiles;

    for (const struct tile *t = tiles + 1; t < tiles + n_tiles; t++)
        if (tile_cost(n_out, n_rows, n_segs, t->rows, t->n) * 32 <
            tile_cost(n_out, n_rows, n_segs, best->rows, best->n) * 31)
            best = t;
    return best;
}

template <int M, int N, bool SWAP, enum halves_mode MODE = PAIR_OF_BLOCKS>
static cudaError_t start_halves(const struct linear_hopper *a, struct linear_job *job, cudaStream_t stream)
{
    using H = halves<M, N, SWAP>;
    auto kernel = linear_halves<M, N, SWAP, MODE>;
    const struct cuda_launch l = {stream, 0, 90, 0, a->chained, NULL, 0, NULL};
    const cudaError_t e = allow_once<linear_halves<M, N, SWAP, MODE>>(H::bytes);
    const uint32_t blocks = MODE == ALONE ? 1 : 2;
    struct halves_maps maps;

    if (e) return e;
    whole_tiles(job, a->n_outs, H::weights);
    if (!map_weights(maps.w, a, H::weights) ||
        !map_bf16(&maps.x, a->x, a->n_rows, a->n_in, a->x_stride, halves_box(a->n_rows)))
        return cudaErrorInvalidValue;
    return launch_cluster(&l, kernel, dim3(job->n_tiles, 1, blocks), H::threads, H::bytes, dim3(1, 1, blocks), maps,
                          *job);
}

/* Tiles of `rows` weights, none of two matrices. */
static uint32_t tiles_of(const struct linear_hopper *a, uint32_t rows)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < a->n_outs; i++) n += ceil_div(a->outs[i].n_out, rows);
    return n;
}

/* Whether tiles of `rows` weights, each a cluster of two blocks, are all placed at once, and on most of the device. */
static bool halves_fill(const struct linear_hopper *a, uint32_t rows)
{
    const uint32_t n = tiles_of(a, rows);

    return n >= 48 && n <= places(2) / 2;
}

/* Of 2 .. 256 rows: the kernel, or NULL. Tiles of 64 are best with weights on wgmma's M side (8B o, 256 rows under load:
 * 18.7 us, 128 x 128 20.5). */
static start_fn *halves_for(const struct linear_hopper *a, const struct linear_job *job)
{
    static start_fn *const few_of_64[4] = {start_halves<64, 16, false>, start_halves<64, 32, false>,
                                           start_halves<64, 48, false>, start_halves<64, 64, false>};
    static start_fn *const tiles_of_64[6] = {start_halves<64, 96, false>,  start_halves<64, 128, false>,
                                             start_halves<64, 160, false>, start_halves<64, 192, false>,
                                             start_halves<64, 224, false>, start_halves<64, 256, false>};
    static start_fn *const tiles_of_96[4] = {start_halves<64, 96, true>, start_halves<128, 96, true>,
                                             start_halves<192, 96, true>, start_halves<256, 96, true>};
    const uint32_t n = a->n_rows;

    /* a rank's part of a matrix of one segment: tiles of 64 would leave a third of the device idle */
    if (job->n_segs == 1 && job->epilogue < EPI_CHOOSE && !a->copies && n > 16 && n <= 64 && tiles_of(a, 64) > 60 &&
        tiles_of(a, 64) < 96 && tiles_of(a, 48) <= N_SMS)
        return start_halves<64, 48, true, ALONE>;
    if (job->n_segs != 2 || job->epilogue >= EPI_SILU_GLU || n == 1) return NULL;
    if (a->copies && n <= 64 && halves_fill(a, 48)) return start_halves<64, 48, true, PAIR_COPIES>;
    if (a->copies && n <= 64 && halves_fill(a, 32)) return start_halves<64, 32, true, PAIR_COPIES>;
    if (a->copies) return NULL;
    if (halves_fill(a, 64)) return n <= 64 ? few_of_64[ceil_div(n, 16) - 1] : tiles_of_64[ceil_div(n, 32) - 3];
    if (halves_fill(a, 96)) return tiles_of_96[ceil_div(n, 64) - 1];
    if (n <= 64 && halves_fill(a, 48)) return start_halves<64, 48, true>; /* a rank's part of a matrix */
    return n <= 64 && halves_fill(a, 32) ? start_halves<64, 32, true> : NULL;
}

/* 65 .. 256 rows: tiles no wider than needed, as boxes of tokens that reach far beyond the last take longer than full ones
 * (8B down, H200: 96 rows in boxes of 128 41.4 us, of 96 31.8; 224 in 256 55.2, in 224 40.8; 256 43.7). Two tiles of 128
 * tokens pay where k is short (0.6B gate_up of 256 rows: 11.2 us, one tile 13.0), else not (8B down: 50 us against 44). */
static cudaError_t start_some(const struct linear_hopper *a, struct linear_job *job, uint32_t n_out,
                              cudaStream_t stream)
{
    static const struct tile tiles[6][5] = {
        {TILE_OR_TWO(64, 96, 10, 5), TILE(128, 96, 7), TILE(192, 96, 6)},
        {TILE_OR_TWO(64, 128, 8, 4), TILE_OR_TWO(128, 128, 6, 3), TILE(192, 128, 5)},
        {TILE(64, 160, 7), TILE(128, 160, 6), TILE(192, 160, 5)},
        {TILE(64, 192, 6), TILE(128, 192, 5), TILE(192, 192, 4)},
        {TILE(64, 224, 6), TILE(128, 224, 5), TILE(192, 224, 4)},
        {TILE(64, 256, 5), TILE(128, 256, 4), TILE(192, 256, 4), TILE_OR_TWO(128, 128, 6, 3), TILE(192, 128, 5)},
    };
    const uint32_t width = ceil_div(a->n_rows, 32) - 3, n_tiles = width == 5 && job->seg_blocks <= 16 ? 5 : 3;
    const struct tile *t = best_tile(n_out, a->n_rows, job->n_segs, tiles[width], n_tiles);
    const uint32_t blocks = ceil_div(n_out, t->rows) * ceil_div(a->n_rows, t->n) * job->n_segs;

    return t->two && blocks > places(job->n_segs) ? t->two(a, job, stream) : t->alone(a, job, stream);
}

/* 193 .. 256 rows of a GLU of one segment: the blocks that stay, in pairs that share weights, where their rounds over the device
 * take less time than those of the best tile. Blocks of that load all tokens for each of their tiles, which is what bounds them:
 * 14B gate_up (H100), 544 tiles of 64 x 256: 232 us. */
static start_fn *stream_of_256(const struct linear_hopper *a, const struct linear_job *job, uint32_t n_out)
{
    const uint32_t half = n_out / 2, tile_256 = 128 * 256 / 60, tile_192 = 128 * 192 / 60, tile_176 = 128 * 176 / 60;
    const uint32_t wide = ceil_div(ceil_div(half, 128), N_SMS / 2) * tile_256;
    const uint32_t narrow = ceil_div(ceil_div(half, 96), N_SMS / 2) * tile_192;
    const uint32_t least = ceil_div(ceil_div(half, 88), N_SMS / 2) * tile_176;
    uint32_t best = ~0u;

    if (job->epilogue < EPI_SILU_GLU || job->n_segs != 1 || a->n_rows <= 192 || a->copies || !stream_fits(a, n_out))
        return NULL;
    for (uint32_t rows = 64; rows <= 192; rows += 64)
        best = tile_cost(n_out, a->n_rows, 1, rows, 256) < best ? tile_cost(n_out, a->n_rows, 1, rows, 256) : best;
    if ((wide < narrow ? wide : narrow) * 16 > best * 15) return NULL;
    if (least < wide && least < narrow) return start_stream<176, true, true, false>;
    return wide <= narrow ? start_stream<256, true, true, false> : start_stream<192, true, true, false>;
}

static cudaError_t start_up_to_256(const struct linear_hopper *a, struct linear_job *job, uint32_t n_out,
                                   cudaStream_t stream)
{
    const uint32_t rounds = ceil_div(ceil_div(n_out, 64) * job->n_segs, places(job->n_segs)), n = a->n_rows;
    const uint32_t per_sm = rounds < 4 ? rounds : 4;
    start_fn *const halves = halves_for(a, job), *const stays = stream_of_256(a, job, n_out);

    if (halves) return halves(a, job, stream);
    if (stays) return stays(a, job, stream);
    if (a->copies && n <= 32) return start_few<32, COPY>(a, job, per_sm, stream);
    if (a->copies && n <= 48) return start_few<48, COPY>(a, job, per_sm, stream);
    if (a->copies) return start_few<64, COPY>(a, job, per_sm, stream);
    if (n == 1 && (a->norm.x || job->seg_blocks * K_BLOCK * 2 <= one_row_room(per_sm)))
        return start_few<1>(a, job, per_sm, stream);
    if (n <= 8) return start_few<8>(a, job, per_sm, stream);
    if (n <= 16) return start_few<16>(a, job, per_sm, stream);
    if (n <= 32) return start_few<32>(a, job, per_sm, stream);
    if (n <= 48) return start_few<48>(a, job, per_sm, stream);
    if (n <= 64) return start_few<64>(a, job, per_sm, stream);
    return start_some(a, job, n_out, stream);
}

#define MOST_FEW 64u /* rows: of the kernels for up to 256, those of fewer have a form that writes copies */

bool linear_hopper_copies(const struct linear_hopper *a)
{
    const bool glu = a->epilogue >= EPI_SILU_GLU;

    if (a->n_rows == 1 || (a->n_rows > MOST_FEW && a->n_rows <= 256)) return false;
    if ((uintptr_t)a->outs[0].out % 16 || a->outs[0].stride % 4 || a->outs[0].n_out % 4 || (!glu && a->outs[0].bias))
        return false;
    return (glu || (a->n_outs == 1 && a->epilogue == EPI_STORE)) &&
           (a->n_rows <= MOST_FEW || stream_fits(a, a->outs[0].n_out + (glu ? a->outs[1].n_out : 0)));
}

cudaError_t linear_hopper_launch(const struct linear_hopper *a, cudaStream_t stream)
{
    const bool glu = a->epilogue >= EPI_SILU_GLU;
    const uint32_t n = a->n_rows;
    struct linear_job job;
    uint32_t n_out = 0, n_whole = 0;

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
        if (i >= a->n_outs) continue;
        n_out += a->outs[i].n_out;
        n_whole += a->outs[i].n_whole ? a->outs[i].n_whole : a->outs[i].n_out;
    }
    job.k_blocks = ceil_div(a->n_in, K_BLOCK);
    job.n_segs = linear_segments(n_whole, a->n_in, &job.seg_blocks);
    if (a->n_segs) {
        job.seg_blocks = ceil_div(job.k_blocks, a->n_segs);
        job.n_segs = ceil_div(job.k_blocks, job.seg_blocks);
    }
    job.row = {(const uint16_t *)a->x, a->norm, a->n_in};
    if (a->epilogue == EPI_CHOOSE) {
        if (n > 256 || job.n_segs > 1 || a->n_outs > 1 || a->outs[0].bias) return cudaErrorNotSupported;
        job.tiles = *a->tiles;
    }

    if (a->copies) job.copies = *a->copies;
    if (a->copies && n > 256) return stream_launch(a, &job, n_out, stream);
    if (n <= 256) return start_up_to_256(a, &job, n_out, stream);
    if (apart_fits(a, &job)) return start_apart(a, &job, stream);
    if (job.n_segs == 1 && tile_cost(n_out, n, 1, 192, 256) * 8 <= tile_cost(n_out, n, 1, 128, 256) * 7 &&
        !(glu && stream_fits(a, n_out) && glu_cost(n_out / 2, n, 192) * 8 <= tile_cost(n_out, n, 1, 192, 256) * 9))
        return start<192, 256, 4, SPLIT, 1>(a, &job, stream);
    if (stream_fits(a, n_out)) return stream_launch(a, &job, n_out, stream);
    if (job.n_segs == 1) return start<128, 256, 4, SPLIT, 1>(a, &job, stream);
    if (ceil_div(n_out, 128) * ceil_div(n, 128) < 100) return start<128, 128, 3, SPLIT, 2>(a, &job, stream);
    job.row_group = 16;
    return start<128, 128, 6, WALK, 1>(a, &job, stream);
}
