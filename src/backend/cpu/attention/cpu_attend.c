/* backend/cpu/attention/cpu_attend.c - attention of encoders: all keys of a group, no pages, one KV head for each head.
 *
 *     packed: per head, per block of 64 keys of a group: keys [dim, 64], transposed; values [64, dim]
 *
 * A tile is a block of rows of one head; of each group that it touches, packed keys and values are walked in blocks of 64 from
 * the group's first row, by the kernels of attention (attn_kernels.h). A row's sums do not know the tile.
 * Bound: arithmetic. Packing is done once for all rows of a head; where each tile did it for itself, it took a tenth. The next
 * block is asked for meanwhile, which is 40 KB from beyond the L2 cache (AVX2, one thread of a Zen 3, 9,216 keys of 80: 75 % of
 * its fma peak, now 81 %).
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "backend/cpu/attention/attn_math.h"
#include "backend/cpu/attention/attn_tiles.h"

#define TILE_GROUP 6u                 /* rows of the kernels' register tiles (attn_v16.h) */
#define TILE_ROWS  (21u * TILE_GROUP) /* <= ATTN_MAX_PAIRS */
#define TILE_BEGIN 6u                 /* rows that a tile's beginning takes as long as */

struct attend_job {
    const struct backend *be;
    const struct attend_args *a;
    uint32_t dim, rows_per_tile, first_group; /* first_group: that of row0 */
    float query_scale;
};

/* n rows from `row` on of a head to rows of dim floats, padding zeroed. */
static void copy_rows(const struct attend_job *j, struct span from, uint32_t row, uint32_t n, uint32_t head,
                      float factor, float *to)
{
    const struct attend_args *a = j->a;
    const float *x = cpu_at(from) + (size_t)row * a->stride + (size_t)head * a->head_dim;

    for (uint32_t r = 0; r < n; r++, x += a->stride, to += j->dim) {
        if (factor == 1)
            memcpy(to, x, a->head_dim * sizeof(*to));
        else
            for (uint32_t i = 0; i < a->head_dim; i++) to[i] = x[i] * factor;
        memset(to + a->head_dim, 0, (j->dim - a->head_dim) * sizeof(*to));
    }
}

/* A block's keys; values are BLOCK * dim floats behind. */
static float *block_at(const struct attend_job *j, uint32_t some, uint32_t block)
{
    const struct attend_args *a = j->a;

    return cpu_at(a->packed) + ((size_t)some * a->group_blocks[a->n_groups] + block) * 2 * ATTN_BLOCK * j->dim;
}

static void pack_block(void *arg, uint32_t piece, uint32_t thread)
{
    const struct attend_job *j = arg;
    const struct attend_args *a = j->a;
    const uint32_t some = piece % a->n_some, block = piece / a->n_some, head = a->head0 + some;
    struct attn_scratch *scratch = &j->be->attn_state->scratch[thread];
    float *keys = block_at(j, some, block), *values = keys + (size_t)ATTN_BLOCK * j->dim;
    uint32_t low = 0, high = a->n_groups - 1, first, n;

    while (low < high) { /* the last group that begins at this block or before */
        const uint32_t mid = high - (high - low) / 2;

        if (a->group_blocks[mid] <= block)
            low = mid;
        else
            high = mid - 1;
    }
    first = (low ? a->group_ends[low - 1] : 0) + (block - a->group_blocks[low]) * ATTN_BLOCK;
    n = u32_min(ATTN_BLOCK, a->group_ends[low] - first);
    for (uint32_t at = 0; at < n; at += ATTN_LANES) {
        copy_rows(j, a->k, first + at, u32_min(ATTN_LANES, n - at), head, 1, scratch->rows);
        j->be->attn->transpose(scratch->rows, j->dim, keys + at);
    }
    copy_rows(j, a->v, first, n, head, 1, values);
    memset(values + (size_t)n * j->dim, 0, (size_t)(ATTN_BLOCK - n) * j->dim * sizeof(float));
}

/* Rows row .. row + n - 1, which are of this group. */
static void attend_rows(const struct attend_job *j, uint32_t row, uint32_t n, uint32_t group, uint32_t some,
                        struct attn_scratch *scratch)
{
    const struct attend_args *a = j->a;
    const uint32_t n_all = a->group_ends[group] - (group ? a->group_ends[group - 1] : 0), head = a->head0 + some;
    const uint32_t width = a->n_heads * a->head_dim;
    struct attn_block block = {.n_pairs = n,
                               .head_dim = a->head_dim,
                               .dim = j->dim,
                               .q = scratch->q,
                               .lo = scratch->lo,
                               .hi = scratch->hi,
                               .sums = {scratch->m[0], scratch->l[0], scratch->acc[0]},
                               .ahead = &scratch->ahead};
    float *out = cpu_at(a->out) + (size_t)(row - a->row0) * width + (size_t)head * a->head_dim;

    copy_rows(j, a->q, row, n, head, j->query_scale, scratch->q);
    for (uint32_t i = 0; i < n; i++) block.sums.m[i] = -INFINITY;
    memset(block.sums.l, 0, (size_t)n * ATTN_LANES * sizeof(float));
    memset(block.sums.acc, 0, (size_t)n * j->dim * sizeof(float));
    scratch->ahead.part[0].n_lines = 2 * ATTN_BLOCK * j->dim * (uint32_t)sizeof(float) / ATTN_LINE;
    for (uint32_t first = 0; first < n_all; first += ATTN_BLOCK) {
        const uint32_t n_keys = u32_min(ATTN_BLOCK, n_all - first);

        block.k = block_at(j, some, a->group_blocks[group] + first / ATTN_BLOCK);
        block.v = block.k + (size_t)ATTN_BLOCK * j->dim;
        block.whole = n_keys == ATTN_BLOCK;
        scratch->ahead.n = first + ATTN_BLOCK < n_all;
        scratch->ahead.part[0].at = (const uint8_t *)(block.v + (size_t)ATTN_BLOCK * j->dim);
        for (uint32_t i = 0; i < n; i++) {
            scratch->lo[i] = 0;
            scratch->hi[i] = n_keys;
        }
        j->be->attn->block(&block);
    }
    for (uint32_t i = 0; i < n; i++)
        j->be->attn->finish(block.sums.acc + (size_t)i * j->dim, block.sums.l + (size_t)i * ATTN_LANES,
                            out + (size_t)i * width, a->head_dim);
}

static void attend_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct attend_job *j = arg;
    const struct attend_args *a = j->a;
    const uint32_t some = tile % a->n_some;
    uint32_t group = j->first_group;
    uint32_t row = a->row0 + tile / a->n_some * j->rows_per_tile,
             end = u32_min(row + j->rows_per_tile, a->row0 + a->n_rows);

    while (row < end) {
        uint32_t n;

        while (a->group_ends[group] <= row) group++;
        n = u32_min(end, a->group_ends[group]) - row;
        attend_rows(j, row, n, group, some, &j->be->attn_state->scratch[thread]);
        row += n;
    }
}

static struct attend_job job_of(struct backend *be, const struct attend_args *a)
{
    assert(a->head0 + a->n_some <= a->n_heads && a->n_some > 0 && a->n_groups > 0);
    assert(a->head_dim <= LIMIT_HEAD_DIM && ATTEND_BLOCK == ATTN_BLOCK);
    return (struct attend_job){.be = be,
                               .a = a,
                               .dim = u32_ceil_div(a->head_dim, ATTN_LANES) * ATTN_LANES,
                               .query_scale = attn_query_scale(a->scale, 0)};
}

rd_status cpu_attend_pack(struct backend *be, const struct attend_args *a)
{
    struct attend_job j = job_of(be, a);

    cpu_pool_run(be->pool, pack_block, &j, a->group_blocks[a->n_groups] * a->n_some);
    return RD_OK;
}

/* Rows of a tile such that threads end together, as far as that goes: the last tiles are waited for half of their time. */
static uint32_t rows_of_tile(const struct attend_args *a, uint32_t dim, uint32_t n_threads)
{
    const uint32_t most = u32_max(u32_min(TILE_ROWS, ATTN_TILE_FLOATS / dim), 30);
    uint64_t least = UINT64_MAX;
    uint32_t best = most;

    for (uint32_t n = most / TILE_GROUP * TILE_GROUP; n >= ATTN_LEAST_PAIRS; n -= TILE_GROUP) {
        const uint64_t n_rounds = u32_ceil_div(u32_ceil_div(a->n_rows, n) * a->n_some, n_threads);
        const uint64_t cost = (2 * n_rounds + 1) * (n + TILE_BEGIN);

        if (cost >= least) continue;
        least = cost;
        best = n;
    }
    return best;
}

rd_status cpu_attend(struct backend *be, const struct attend_args *a)
{
    struct attend_job j = job_of(be, a);

    assert(a->group_ends[a->n_groups - 1] >= a->row0 + a->n_rows);
    while (a->group_ends[j.first_group] <= a->row0) j.first_group++;
    j.rows_per_tile = rows_of_tile(a, j.dim, cpu_pool_n_threads(be->pool));
    cpu_pool_run(be->pool, attend_tile, &j, u32_ceil_div(a->n_rows, j.rows_per_tile) * a->n_some);
    return RD_OK;
}
