/* grad/matrix_unit.c - both factors split into scratch memory by all threads, then tiles of the result.
 *
 * Scratch is as large whatever is multiplied: large products go in blocks of UNIT_M rows and UNIT_N columns. Work: a weight is
 * opened and split once for UNIT_M rows, a number of a once for UNIT_N columns. A tile is CHUNK rows, which stay in the L2 cache,
 * by some panels, which come from afar. */
#include "grad/matrix_unit.h"
#include <assert.h>
#include <string.h>
#include "backend/cpu/linear/linear_dense.h"
#include "base/checked.h"
#include "base/mem.h"

#define UNIT_M      2048u
#define UNIT_N      2048u
#define UNIT_K      2048u
#define ACT_BYTES   ((size_t)UNIT_M * UNIT_K * 4)
#define PANEL_BYTES ((size_t)UNIT_N * UNIT_K * 4)
#define OPEN_K      128u /* rows of W that are opened at a time */
#define OPEN_FLOATS (OPEN_K * GEMM_PANEL_MAX)
#define CHUNK_BYTES (1u << 20)
#define PARTS       2u
#define PER_THREAD  4u /* tiles of the result, where they are many */

struct matrix_unit {
    const struct cpu_dense_kernels *kernels;
    uint8_t *acts, *panels;
    float *opened; /* [n_threads][OPEN_FLOATS] */
    size_t opened_bytes;
};

struct unit_job {
    struct matrix_unit *u;
    const struct grad_kernels *kernels;
    const struct gemm *g; /* of this block alone */
    const struct grad_matrix *b;
    uint32_t k0, n0;             /* of b */
    uint32_t n_blocks, n_groups; /* of 32 k; of 16 rows */
    uint32_t columns, n_columns; /* that are opened at a time: panels, and blocks of the type; how many such */
    uint32_t chunk_rows, tile_panels, n_tiles;
};

rd_status matrix_unit_create(const struct cpu_dense_kernels *kernels, uint32_t n_threads, struct matrix_unit **out)
{
    struct matrix_unit *u = mem_zalloc(1, sizeof(*u));

    if (!u) return RD_E_NOMEM;
    u->kernels = kernels;
    u->opened_bytes = (size_t)n_threads * OPEN_FLOATS * sizeof(float);
    u->acts = mem_map(ACT_BYTES);
    u->panels = mem_map(PANEL_BYTES);
    u->opened = mem_map(u->opened_bytes);
    if (u->acts && u->panels && u->opened) {
        *out = u;
        return RD_OK;
    }
    matrix_unit_destroy(u);
    return RD_E_NOMEM;
}

void matrix_unit_destroy(struct matrix_unit *u)
{
    if (!u) return;
    if (u->acts) mem_unmap(u->acts, ACT_BYTES);
    if (u->panels) mem_unmap(u->panels, PANEL_BYTES);
    if (u->opened) mem_unmap(u->opened, u->opened_bytes);
    mem_free(u);
}

/* ---- both factors, split ---- */

static void split_rows(const struct unit_job *j, uint32_t group)
{
    const struct gemm *g = j->g;
    const uint32_t row = group * DENSE_ROWS;

    j->u->kernels->split16(g->a + row * g->a_m, g->a_m, u32_min(DENSE_ROWS, g->m - row), g->k,
                           j->u->acts + (uint64_t)group * j->n_blocks * DENSE_BLOCK);
}

/* Opened rows k0 .. of 16 columns, two by two, to a half of a panel. */
static void split_half(const struct unit_job *j, const float *from, uint64_t step, uint32_t n_k, uint8_t *to)
{
    for (uint32_t k = 0; k < n_k; k += 2) {
        uint8_t *at = to + (uint64_t)(k / DENSE_K) * PARTS * DENSE_BLOCK + k % DENSE_K / 2 * 64;

        j->kernels->split_pair(from + k * step, from + (k + 1) * step, (uint32_t *)(void *)at,
                               (uint32_t *)(void *)(at + DENSE_BLOCK));
    }
}

static void split_columns(const struct unit_job *j, uint32_t tile, uint32_t thread)
{
    const struct grad_matrix *b = j->b;
    const uint64_t block = dtype_block_weights(b->dtype), bytes = dtype_block_bytes(b->dtype);
    const uint32_t k = tile / j->n_columns * OPEN_K, n = tile % j->n_columns * j->columns, strip = j->kernels->columns;
    const uint32_t n_k = u32_min(OPEN_K, j->g->k - k), n_n = u32_min(j->columns, j->g->n - n);
    const uint32_t wide_k = u32_ceil_div(n_k, DENSE_K) * DENSE_K, wide_n = u32_ceil_div(n_n, DENSE_OUTS) * DENSE_OUTS;
    float *panel = j->u->opened + (uint64_t)thread * OPEN_FLOATS;
    struct gemm_open o = {.dtype = b->dtype,
                          .row_bytes = b->n_cols / block * bytes,
                          .k = n_k,
                          .n = n_n,
                          .panel_k = OPEN_K,
                          .panel = panel};

    if (wide_k > n_k || wide_n > n_n) memset(panel, 0, (size_t)OPEN_K * u32_max(wide_n, strip) * sizeof(*panel));
    o.from = (const uint8_t *)b->data + (j->k0 + k) * o.row_bytes + (j->n0 + n) / block * bytes;
    j->kernels->open(&o);
    for (uint32_t half = 0; half < wide_n / 16; half++) {
        const uint32_t at = half * 16, number = (n + at) / DENSE_OUTS;
        uint8_t *to =
            j->u->panels + ((uint64_t)number * j->n_blocks + k / DENSE_K) * PARTS * DENSE_BLOCK + half % 2 * DENSE_TILE;

        split_half(j, panel + (uint64_t)(at / strip) * OPEN_K * strip + at % strip, strip, wide_k, to);
    }
}

static void split_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct unit_job *j = arg;

    if (tile < j->n_groups)
        split_rows(j, tile);
    else
        split_columns(j, tile - j->n_groups, thread);
}

/* ---- the product ---- */

static void product_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct unit_job *j = arg;
    const struct gemm *g = j->g;
    const uint32_t row = tile / j->n_tiles * j->chunk_rows, first = tile % j->n_tiles * j->tile_panels;
    const uint32_t end = u32_min(first + j->tile_panels, u32_ceil_div(g->n, DENSE_OUTS));

    (void)thread;
    for (uint32_t panel = first; panel < end; panel++) {
        const struct dense_panel p = {.w = j->u->panels + (uint64_t)panel * j->n_blocks * PARTS * DENSE_BLOCK,
                                      .x = j->u->acts + (uint64_t)(row / DENSE_ROWS) * j->n_blocks * DENSE_BLOCK,
                                      .n_blocks = j->n_blocks,
                                      .n_parts = PARTS,
                                      .n_rows = u32_min(j->chunk_rows, g->m - row),
                                      .n_out = u32_min(DENSE_OUTS, g->n - panel * DENSE_OUTS),
                                      .out = g->c + row * g->c_m + panel * DENSE_OUTS,
                                      .out_stride = g->c_m,
                                      .add = g->add};

        j->u->kernels->panel(&p);
    }
}

/* Tiles so small that every thread has some, of whole chunks of rows where that is enough. */
static void cut(struct unit_job *j, uint32_t n_threads)
{
    const uint32_t n_panels = u32_ceil_div(j->g->n, DENSE_OUTS),
                   fits = u32_max(CHUNK_BYTES / (j->n_blocks * DENSE_BLOCK), 2) / 2 * 2 * DENSE_ROWS,
                   share = u32_ceil_div(j->g->m * n_panels, n_threads * PER_THREAD);

    j->chunk_rows = u32_min(fits, u32_ceil_div(j->g->m, 2 * DENSE_ROWS) * 2 * DENSE_ROWS);
    while (j->chunk_rows > 4 * DENSE_ROWS && j->chunk_rows > share)
        j->chunk_rows = j->chunk_rows / 4 / DENSE_ROWS * 2 * DENSE_ROWS;
    j->tile_panels = u32_max(1, u32_min(8, share / j->chunk_rows));
    j->n_tiles = u32_ceil_div(n_panels, j->tile_panels);
}

static void multiply_block(struct unit_job *j, struct grad_compute *c)
{
    j->n_blocks = u32_ceil_div(j->g->k, DENSE_K);
    j->n_groups = u32_ceil_div(j->g->m, DENSE_ROWS);
    j->columns = u32_max(DENSE_OUTS, (uint32_t)dtype_block_weights(j->b->dtype));
    j->n_columns = u32_ceil_div(j->g->n, j->columns);
    cut(j, grad_n_threads(c));
    grad_run(c, split_tile, j, j->n_groups + j->n_columns * u32_ceil_div(j->g->k, OPEN_K));
    grad_run(c, product_tile, j, j->n_tiles * u32_ceil_div(j->g->m, j->chunk_rows));
}

void matrix_unit_multiply(struct matrix_unit *u, struct grad_compute *c, const struct gemm *g,
                          const struct grad_matrix *b)
{
    assert(g->a_k == 1 && g->k == b->n_rows && g->n == b->n_cols && g->k > 0);
    for (uint32_t n = 0; n < g->n; n += UNIT_N)
        for (uint32_t k = 0; k < g->k; k += UNIT_K)
            for (uint32_t m = 0; m < g->m; m += UNIT_M) {
                struct gemm part = *g;
                struct unit_job j = {.u = u, .kernels = grad_kernels_of(c), .g = &part, .b = b, .k0 = k, .n0 = n};

                part.m = u32_min(UNIT_M, g->m - m);
                part.n = u32_min(UNIT_N, g->n - n);
                part.k = u32_min(UNIT_K, g->k - k);
                part.a = g->a + m * g->a_m + k;
                part.c = g->c + m * g->c_m + n;
                part.add = g->add || k > 0;
                multiply_block(&j, c);
            }
}
