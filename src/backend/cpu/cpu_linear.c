/* backend/cpu/cpu_linear.c - linear: quantises the activations once, cuts outputs and rows into pieces for the pool.
 *
 * A piece is a few tiles of 16 outputs (of the up to 3 matrices, counted through) times a chunk of rows whose
 * activations stay in a core's L2 cache; a tile meets all rows of the chunk while its weights are near. With one row
 * every weight is read once, in order. Results do not depend on the cut: a kernel computes each (row, output) alone.
 */
#include "backend/cpu/cpu_backend.h"
#include <assert.h>
#include "backend/cpu/linear_kernels.h"
#include "base/checked.h"
#include "base/mem.h"

#define CHUNK_BYTES (512u << 10)        /* activations of one chunk of rows: a quarter of a 2 MB L2 */
#define CHUNK_ROWS 128u
#define PIECES_PER_THREAD 8u            /* fine enough to even out threads, coarse enough to hide the claiming */
#define PIECE_TILES 8u
#define PANEL_ROWS_MAX    512u /* rows that opened weights meet; the cut by PANEL_ROWS_MIN costs 20 % of them */
#define PANEL_ROWS_MIN 64u
#define PIECES_MIN 4u                   /* per thread, else rows are cut too */
#define SERIAL_ROWS 4u                  /* quantising so few rows is shorter than waking a thread */

struct cpu_linear_state {
    void *acts;                          /* quantised x of the current call; grows to the biggest batch, then stays */
    uint64_t n_bytes;
};

struct linear_job {
    const struct linear_args *args;
    const struct cpu_linear_kernels *kernels;
    const struct cpu_panel_kernels *panels; /* NULL: not for so few rows */
    struct linear_act *acts;             /* quantised x for tiles, or */
    struct linear_act16 *acts16;         /* for panels; both NULL when all weights are float */
    uint32_t n_in, n_blocks;
    uint32_t chunk_rows, piece_tiles, n_pieces; /* pieces of one chunk */
    uint32_t n_threads;
    uint32_t n_tiles[3], n_tiles_all;
};

rd_status cpu_linear_create(struct backend *be)
{
    assert(be->isa < CPU_N_ISA);
    be->linear = mem_zalloc(1, sizeof(*be->linear));
    if (!be->linear) return RD_E_NOMEM;
    be->lin = cpu_kernels[be->isa].lin;
    be->panels = cpu_kernels[be->isa].panels;
    return RD_OK;
}

void cpu_linear_destroy(struct backend *be)
{
    if (!be->linear) return;
    mem_free_aligned(be->linear->acts);
    mem_free(be->linear);
    be->linear = NULL;
}

static rd_status acts_reserve(struct cpu_linear_state *s, uint64_t n, uint64_t size)
{
    uint64_t bytes;
    void *acts;

    if (!checked_mul(n, size, &bytes) || bytes > SIZE_MAX / 2) return RD_E_NOMEM;
    if (bytes <= s->n_bytes) return RD_OK;
    acts = mem_alloc_aligned((size_t)bytes);
    if (!acts) return RD_E_NOMEM;
    mem_free_aligned(s->acts);
    s->acts = acts;
    s->n_bytes = bytes;
    return RD_OK;
}

static void quantise_row(void *arg, uint32_t row, uint32_t thread)
{
    const struct linear_job *j = arg;

    j->kernels->quantise(j->args->x + (uint64_t)row * j->args->x_stride, j->n_in,
                         j->acts + (uint64_t)row * j->n_blocks);
}

static void quantise_16_rows(void *arg, uint32_t group, uint32_t thread)
{
    const struct linear_job *j = arg;
    uint64_t row = (uint64_t)group * 16;

    j->panels->quantise16(j->args->x + row * j->args->x_stride, j->args->x_stride,
                          u32_min(16, j->args->n_rows - (uint32_t)row), j->n_in,
                          j->acts16 + (uint64_t)group * j->n_blocks);
}

/* Quantises the rows into the job's acts. */
static rd_status quantise(struct backend *be, struct linear_job *j)
{
    uint32_t n_rows = j->args->n_rows, n_groups = u32_ceil_div(n_rows, 16);
    rd_status st;

    if (j->panels) {
        st = acts_reserve(be->linear, (uint64_t)n_groups * j->n_blocks, sizeof(*j->acts16));
        if (st != RD_OK) return st;
        j->acts16 = be->linear->acts;
        cpu_pool_run(be->pool, quantise_16_rows, j, n_groups);
        return RD_OK;
    }
    st = acts_reserve(be->linear, (uint64_t)n_rows * j->n_blocks, sizeof(*j->acts));
    if (st != RD_OK) return st;
    j->acts = be->linear->acts;
    if (n_rows <= SERIAL_ROWS)
        for (uint32_t r = 0; r < n_rows; r++) quantise_row(j, r, 0);
    else
        cpu_pool_run(be->pool, quantise_row, j, n_rows);
    return RD_OK;
}

static void run_tile(const struct linear_job *j, const struct linear_out *o, uint32_t tile, uint32_t row0,
                     uint32_t n_rows)
{
    const struct linear_form *form = linear_form_of(o->w->dtype);
    uint32_t out0 = tile * LINEAR_TILE;
    struct linear_tile t = {
        .w = (const uint8_t *)o->w->data + tile * linear_tile_bytes(form, j->n_in),
        .n_in = j->n_in,
        .n_rows = n_rows,
        .n_out = u32_min(LINEAR_TILE, o->w->n_out - out0),
        .out = o->out + (uint64_t)row0 * o->out_stride + out0,
        .out_stride = o->out_stride,
        .bias = o->bias ? (const float *)o->bias->data + out0 : NULL,
    };

    if (form->bits) {
        t.x = j->acts + (uint64_t)row0 * j->n_blocks;
        t.x_stride = j->n_blocks;
    } else {
        t.x = j->args->x + (uint64_t)row0 * j->args->x_stride;
        t.x_stride = j->args->x_stride;
    }
    j->kernels->tile(o->w->dtype)(&t);
}

static void run_panel(const struct linear_job *j, const struct linear_out *o, uint32_t tile, uint32_t n_tiles,
                      uint32_t row0, uint32_t n_rows)
{
    uint64_t tile_bytes = linear_tile_bytes(linear_form_of(o->w->dtype), j->n_in);
    uint32_t out0 = tile * LINEAR_TILE, next = tile + j->piece_tiles * j->n_threads;
    struct linear_panel p = {
        .w = (const uint8_t *)o->w->data + tile * tile_bytes,
        .next_w = next + n_tiles <= u32_ceil_div(o->w->n_out, LINEAR_TILE)
            ? (const uint8_t *)o->w->data + next * tile_bytes : NULL,
        .tile_bytes = tile_bytes,
        .n_in = j->n_in,
        .n_rows = n_rows,
        .n_out = u32_min(n_tiles * LINEAR_TILE, o->w->n_out - out0),
        .x = j->acts16 + (uint64_t)(row0 / 16) * j->n_blocks,
        .out = o->out + (uint64_t)row0 * o->out_stride + out0,
        .out_stride = o->out_stride,
        .bias = o->bias ? (const float *)o->bias->data + out0 : NULL,
    };

    j->panels->panel(o->w->dtype)(&p);
}

static void run_piece(void *arg, uint32_t piece, uint32_t thread)
{
    const struct linear_job *j = arg;
    uint32_t row0 = piece / j->n_pieces * j->chunk_rows;
    uint32_t n_rows = u32_min(j->chunk_rows, j->args->n_rows - row0);
    uint32_t tile = piece % j->n_pieces * j->piece_tiles, end = u32_min(tile + j->piece_tiles, j->n_tiles_all);

    while (tile < end) {
        uint32_t o = 0, in_out = tile, n;

        while (in_out >= j->n_tiles[o]) in_out -= j->n_tiles[o++];
        n = u32_min(end - tile, j->n_tiles[o] - in_out);
        if (j->panels && linear_form_of(j->args->outs[o].w->dtype)->bits)
            run_panel(j, &j->args->outs[o], in_out, n, row0, n_rows);
        else
            for (uint32_t i = 0; i < n; i++) run_tile(j, &j->args->outs[o], in_out + i, row0, n_rows);
        tile += n;
    }
}

rd_status cpu_linear(struct backend *be, const struct linear_args *a)
{
    uint32_t n_chunks, n_threads = cpu_pool_n_threads(be->pool), row_bytes;
    struct linear_job j = {.args = a, .kernels = be->lin, .n_threads = n_threads};
    bool quantised = false;
    rd_status st;

    assert(a->n_outs >= 1 && a->n_outs <= 3);
    if (a->n_rows == 0) return RD_OK;
    j.n_in = a->outs[0].w->n_in;
    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct weight *w = a->outs[i].w;

        assert(w->role == WEIGHT_MATRIX && w->n_in == j.n_in && a->outs[i].out_stride >= w->n_out);
        j.n_tiles[i] = u32_ceil_div(w->n_out, LINEAR_TILE);
        j.n_tiles_all += j.n_tiles[i];
        quantised |= linear_form_of(w->dtype)->bits != 0;
    }
    row_bytes = j.n_in * (uint32_t)sizeof(float);
    if (quantised) {
        j.n_blocks = j.n_in / LINEAR_BLOCK;
        row_bytes = j.n_blocks * (uint32_t)sizeof(struct linear_act);
        if (be->panels && a->n_rows >= be->panels->min_rows) j.panels = be->panels;
        st = quantise(be, &j);
        if (st != RD_OK) return st;
    }
    j.chunk_rows = u32_max(8, u32_min(CHUNK_ROWS, CHUNK_BYTES / row_bytes / 8 * 8));
    j.piece_tiles = u32_max(1, u32_min(PIECE_TILES, j.n_tiles_all / (n_threads * PIECES_PER_THREAD)));
    j.n_pieces = u32_ceil_div(j.n_tiles_all, j.piece_tiles);
    if (j.panels) {
        j.chunk_rows = PANEL_ROWS_MAX;
        while (j.chunk_rows > PANEL_ROWS_MIN &&
               j.n_pieces * u32_ceil_div(a->n_rows, j.chunk_rows) < n_threads * PIECES_MIN)
            j.chunk_rows /= 2;
    }
    n_chunks = u32_ceil_div(a->n_rows, j.chunk_rows);
    cpu_pool_run(be->pool, run_piece, &j, j.n_pieces * n_chunks);
    return RD_OK;
}
