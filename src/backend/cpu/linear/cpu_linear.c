/* backend/cpu/linear/cpu_linear.c - linear: quantises the activations once, cuts outputs and rows into pieces for the pool.
 *
 * A piece is a few tiles of 16 outputs (of the up to 3 matrices, counted through) times a chunk of rows whose
 * activations stay in a core's L2 cache; a tile meets all rows of the chunk while its weights are near. With one row
 * every weight is read once, in order. Results do not depend on the cut: a kernel computes each (row, output) alone.
 */
#include "backend/cpu/cpu_backend.h"
#include <assert.h>
#include "backend/cpu/linear/cpu_low_rank.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/linear/linear_soon.h"
#include "backend/cpu/rows/row_kernels.h"
#include "base/checked.h"
#include "base/mem.h"

#define CHUNK_BYTES       (512u << 10) /* activations of one chunk of rows: a quarter of a 2 MB L2 */
#define CHUNK_ROWS        128u
#define PIECES_PER_THREAD 8u /* fine enough to even out threads, coarse enough to hide the claiming */
#define PIECE_TILES       8u
#define PANEL_ROWS_MAX    512u /* rows that opened weights meet; the cut by PANEL_ROWS_MIN costs 20 % of them */
#define PANEL_ROWS_MIN    64u
#define PIECES_MIN        4u /* per thread, else rows are cut too */
#define BEST_TILES        (BEST_BLOCK / LINEAR_TILE)
#define QUANTISE_PART     256u /* k of 16 rows that are worth another thread */
#define SERIAL_ROWS       4u   /* quantising so few rows is shorter than waking a thread */

enum { BLOCK_TYPES, K_TYPES, N_FAMILIES }; /* of quantised weights; each has activations of its own */

struct cpu_linear_state {
    struct {
        uint8_t *acts; /* quantised x of the current call; grows to the biggest batch, then stays */
        uint64_t n_bytes;
        uint8_t *scratch; /* of panels: scratch_bytes of each thread */
        size_t n_scratch;
    } family[N_FAMILIES];
    struct low_rank_job began; /* the last that a product computed the first pass of */
};

/* What weights of one family meet. */
struct linear_acts {
    bool used;
    const struct cpu_linear_kernels *kernels;
    const struct cpu_panel_kernels *panels; /* NULL: not for so few rows */
    uint8_t *acts;                          /* quantised x: for tiles rows of row_bytes, for panels groups of 16 rows */
    uint64_t row_bytes;                     /* of a row, or of 16 */
    uint32_t n_parts;                       /* of 16 rows, quantised by different threads */
    uint8_t *scratch;
};

struct linear_job {
    const struct linear_args *args;
    const struct cpu_row_kernels *rows;
    bool ask_l2;
    struct linear_acts family[N_FAMILIES];
    struct linear_acts *quantised; /* the one being quantised */
    uint32_t n_in;
    uint32_t chunk_rows, piece_tiles, n_pieces; /* pieces of one chunk */
    uint32_t n_threads;
    uint32_t n_tiles[3], n_tiles_all;
    uint64_t soon_lines; /* of args->soon; 0: nothing is asked for */
    uint32_t soon_rows;  /* a tile's that come between two askings */
    bool soon_by_rows;   /* kernels ask with all rows but the first (soon_passes) */
    uint32_t n_products; /* pieces of all chunks; behind them the tiles of `low` */
    struct low_rank_job low;
};

rd_status cpu_linear_create(struct backend *be)
{
    assert(be->isa < CPU_N_ISA);
    be->linear = mem_zalloc(1, sizeof(*be->linear));
    if (!be->linear) return RD_E_NOMEM;
    be->lin = cpu_kernels[be->isa].lin;
    be->panels = cpu_kernels[be->isa].panels;
    be->dense = cpu_kernels[be->isa].dense;
    for (int f = 0; be->panels && f < N_FAMILIES; f++) {
        size_t bytes =
            cpu_pool_n_threads(be->pool) * (size_t)(f == K_TYPES ? be->panels->k : be->panels)->scratch_bytes;

        if (!bytes) continue;
        be->linear->family[f].scratch = mem_map(bytes);
        if (!be->linear->family[f].scratch) return RD_E_NOMEM;
        be->linear->family[f].n_scratch = bytes;
    }
    return RD_OK;
}

void cpu_linear_destroy(struct backend *be)
{
    if (!be->linear) return;
    for (int f = 0; f < N_FAMILIES; f++) {
        mem_free_aligned(be->linear->family[f].acts);
        if (be->linear->family[f].scratch) mem_unmap(be->linear->family[f].scratch, be->linear->family[f].n_scratch);
    }
    mem_free(be->linear);
    be->linear = NULL;
}

static rd_status acts_reserve(struct cpu_linear_state *s, int family, uint64_t n, uint64_t size, uint8_t **out)
{
    uint64_t bytes;
    void *acts;

    if (!checked_mul(n, size, &bytes) || bytes > SIZE_MAX / 2) return RD_E_NOMEM;
    if (bytes > s->family[family].n_bytes) {
        acts = mem_alloc_aligned((size_t)bytes);
        if (!acts) return RD_E_NOMEM;
        mem_free_aligned(s->family[family].acts);
        s->family[family].acts = acts;
        s->family[family].n_bytes = bytes;
    }
    *out = s->family[family].acts;
    return RD_OK;
}

static void quantise_row(void *arg, uint32_t row, uint32_t thread)
{
    const struct linear_job *j = arg;
    const struct linear_acts *f = j->quantised;

    f->kernels->quantise(cpu_at(j->args->x) + (uint64_t)row * j->args->x_stride, j->n_in, f->acts + row * f->row_bytes);
}

/* A part of the k of 16 rows. */
static void quantise_16_rows(void *arg, uint32_t piece, uint32_t thread)
{
    const struct linear_job *j = arg;
    const struct linear_acts *f = j->quantised;
    const uint32_t group = piece / f->n_parts, part = piece % f->n_parts, n_units = j->n_in / f->panels->act_k;
    const uint32_t unit = n_units * part / f->n_parts, n = n_units * (part + 1) / f->n_parts - unit;
    uint64_t row = (uint64_t)group * 16;

    f->panels->quantise16(cpu_at(j->args->x) + row * j->args->x_stride + unit * f->panels->act_k, j->args->x_stride,
                          u32_min(16, j->args->n_rows - (uint32_t)row), n * f->panels->act_k,
                          f->acts + group * f->row_bytes + (uint64_t)unit * f->panels->act_bytes);
}

/* Quantises the rows for one family of weights. */
static rd_status quantise(struct backend *be, struct linear_job *j, int family)
{
    struct linear_acts *f = &j->family[family];
    uint32_t n_rows = j->args->n_rows, n = f->panels ? u32_ceil_div(n_rows, 16) : n_rows;
    rd_status st;

    f->row_bytes = f->panels ? (uint64_t)(j->n_in / f->panels->act_k) * f->panels->act_bytes
                             : (uint64_t)(j->n_in / f->kernels->act_k) * f->kernels->act_bytes;
    st = acts_reserve(be->linear, family, n, f->row_bytes, &f->acts);
    if (st != RD_OK) return st;
    j->quantised = f;
    f->scratch = be->linear->family[family].scratch;
    f->n_parts = n >= j->n_threads ? 1 : u32_max(1, u32_min(u32_ceil_div(j->n_threads, n), j->n_in / QUANTISE_PART));
    if (f->panels)
        cpu_pool_run(be->pool, quantise_16_rows, j, n * f->n_parts);
    else if (n_rows <= SERIAL_ROWS)
        for (uint32_t r = 0; r < n_rows; r++) quantise_row(j, r, 0);
    else
        cpu_pool_run(be->pool, quantise_row, j, n);
    return RD_OK;
}

/* What weights of this form meet; float weights: any. */
static const struct linear_acts *acts_of(const struct linear_job *j, const struct linear_form *form)
{
    return &j->family[linear_is_k(form) ? K_TYPES : BLOCK_TYPES];
}

static void run_tile(const struct linear_job *j, const struct linear_out *o, uint32_t tile, uint32_t row0,
                     uint32_t n_rows, bool again, struct soon_part *soon)
{
    const struct linear_form *form = linear_form_of(o->w->dtype);
    const struct linear_acts *f = acts_of(j, form);
    uint32_t out0 = tile * LINEAR_TILE;
    struct linear_tile t = {
        .w = (const uint8_t *)o->w->data + tile * linear_tile_bytes(form, j->n_in),
        .n_in = j->n_in,
        .n_rows = n_rows,
        .n_out = u32_min(LINEAR_TILE, o->w->n_out - out0),
        .ask_l2 = j->ask_l2,
        .again = again,
        .soon = soon,
        .out = cpu_at(o->out) + (uint64_t)row0 * o->out_stride + out0,
        .out_stride = o->out_stride,
        .bias = o->bias ? (const float *)o->bias->data + out0 : NULL,
    };

    if (form->bits) {
        t.x = f->acts + row0 * f->row_bytes;
        t.x_stride = j->n_in / f->kernels->act_k;
    } else {
        t.x = cpu_at(j->args->x) + (uint64_t)row0 * j->args->x_stride;
        t.x_stride = j->args->x_stride;
    }
    f->kernels->tile(o->w->dtype)(&t);
}

/* Panels of up to 16 rows do; else it is looked for afterwards. */
static bool panel_finds_best(const struct linear_job *j, uint32_t n_rows)
{
    return !span_is_none(j->args->best) && n_rows <= 16;
}

static void run_panel(const struct linear_job *j, const struct linear_out *o, uint32_t tile, uint32_t n_tiles,
                      uint32_t row0, uint32_t n_rows, uint32_t thread)
{
    const struct linear_form *form = linear_form_of(o->w->dtype);
    const struct linear_acts *f = acts_of(j, form);
    uint64_t tile_bytes = linear_tile_bytes(form, j->n_in);
    uint32_t n_blocks = u32_ceil_div(o->w->n_out, BEST_BLOCK), out0 = tile * LINEAR_TILE;
    uint32_t next = tile + j->piece_tiles; /* pieces of a thread follow each other */
    struct linear_panel p = {
        .w = (const uint8_t *)o->w->data + tile * tile_bytes,
        .next_w = next + n_tiles <= u32_ceil_div(o->w->n_out, LINEAR_TILE)
                      ? (const uint8_t *)o->w->data + next * tile_bytes
                      : NULL,
        .tile_bytes = tile_bytes,
        .n_in = j->n_in,
        .n_rows = n_rows,
        .n_out = u32_min(n_tiles * LINEAR_TILE, o->w->n_out - out0),
        .x = f->acts + row0 / 16 * f->row_bytes,
        .out = cpu_at(o->out) + (uint64_t)row0 * o->out_stride + out0,
        .out_stride = o->out_stride,
        .bias = o->bias ? (const float *)o->bias->data + out0 : NULL,
        .best =
            panel_finds_best(j, n_rows) ? cpu_at(j->args->best) + (uint64_t)row0 * n_blocks + tile / BEST_TILES : NULL,
        .best_stride = n_blocks,
        .scratch = f->scratch ? f->scratch + (size_t)thread * f->panels->scratch_bytes : NULL,
    };

    f->panels->panel(o->w->dtype)(&p);
}

/* The largest of outputs that were just computed: tiles from tile on, whole blocks. */
static void find_best(const struct linear_job *j, uint32_t tile, uint32_t end, uint32_t row0, uint32_t n_rows)
{
    const struct linear_out *o = &j->args->outs[0];
    const uint32_t n_blocks = u32_ceil_div(o->w->n_out, BEST_BLOCK);

    for (uint32_t r = row0; r < row0 + n_rows; r++)
        for (uint32_t b = tile / BEST_TILES; b * BEST_TILES < end; b++)
            cpu_at(j->args->best)[(uint64_t)r * n_blocks + b] =
                j->rows->best(cpu_at(o->out) + (uint64_t)r * o->out_stride + b * BEST_BLOCK,
                              u32_min(BEST_BLOCK, o->w->n_out - b * BEST_BLOCK));
}

/* How often a tile's kernel asks for lines at each block. With AVX2 rows go by fours, two, and one, of which the first wait for
 * weights: the others ask, if there are any. */
static uint32_t soon_passes(const struct linear_job *j, uint32_t n_rows)
{
    const uint32_t n = n_rows / 4 + n_rows % 4 / 2 + n_rows % 2;

    return j->soon_by_rows && n > 1 ? n - 1 : 1;
}

/* Kernels that open a tile's weights anew for every 8 rows lose nothing where rows come so many at a time. */
static void cut_soon(const struct backend *be, struct linear_job *j)
{
    j->soon_rows = j->args->n_rows;
#if defined(__x86_64__)
    if (be->isa >= CPU_ISA_AVX512) j->soon_rows = 8;
    j->soon_by_rows = be->isa == CPU_ISA_AVX2;
#endif
    (void)be;
}

/* n tiles of one output, the first of them tile `all` of all; where adapters come next, a few rows at a time, each with a share of
 * what is asked for. */
static void run_tiles(const struct linear_job *j, const struct linear_out *o, uint32_t tile, uint32_t n, uint32_t all,
                      uint32_t row0, uint32_t n_rows, struct soon_place *soon)
{
    const uint32_t step = j->soon_lines > 0 ? j->soon_rows : n_rows, n_steps = u32_ceil_div(n_rows, step);

    for (uint32_t i = 0; i < n * n_steps; i++) {
        const uint64_t part = (uint64_t)all * n_steps + i + 1, n_parts = (uint64_t)j->n_tiles_all * n_steps;
        const uint32_t row = i % n_steps * step;
        const uint32_t some = u32_min(step, n_rows - row);
        struct soon_part ask = {0};

        if (j->soon_lines > 0) ask = soon_next(j->args->soon, soon, j->soon_lines * part / n_parts);
        ask.step = u32_ceil_div((uint32_t)((ask.end - ask.at) / SOON_LINE),
                                soon_passes(j, some) * u32_ceil_div(j->n_in, LINEAR_BLOCK));
        run_tile(j, o, tile + i / n_steps, row0 + row, some, row > 0, &ask);
    }
}

static void run_piece(void *arg, uint32_t piece, uint32_t thread)
{
    const struct linear_job *j = arg;
    uint32_t row0 = piece / j->n_pieces * j->chunk_rows;
    uint32_t n_rows = u32_min(j->chunk_rows, j->args->n_rows - row0);
    bool is_panel = false;

    if (piece >= j->n_products) {
        low_rank_down(&j->low, piece - j->n_products);
        return;
    }
    uint32_t tile = piece % j->n_pieces * j->piece_tiles, end = u32_min(tile + j->piece_tiles, j->n_tiles_all);
    struct soon_place soon = {0};

    if (j->soon_lines > 0) soon = soon_place_of(j->args->soon, j->soon_lines * tile / j->n_tiles_all);
    while (tile < end) {
        const struct linear_form *form;
        uint32_t o = 0, in_out = tile, n;

        while (in_out >= j->n_tiles[o]) in_out -= j->n_tiles[o++];
        n = u32_min(end - tile, j->n_tiles[o] - in_out);
        form = linear_form_of(j->args->outs[o].w->dtype);
        is_panel = form->bits && acts_of(j, form)->panels;
        if (is_panel)
            run_panel(j, &j->args->outs[o], in_out, n, row0, n_rows, thread);
        else
            run_tiles(j, &j->args->outs[o], in_out, n, tile, row0, n_rows, &soon);
        tile += n;
    }
    if (!span_is_none(j->args->best) && !(is_panel && panel_finds_best(j, n_rows)))
        find_best(j, piece % j->n_pieces * j->piece_tiles, end, row0, n_rows);
}

/* Which families the matrices are of, and their kernels for this many rows. */
static void families_init(const struct backend *be, struct linear_job *j)
{
    j->family[BLOCK_TYPES].kernels = be->lin;
    j->family[K_TYPES].kernels = be->lin->k;
    if (be->panels && j->args->n_rows >= be->panels->min_rows) j->family[BLOCK_TYPES].panels = be->panels;
    if (be->panels && j->args->n_rows >= be->panels->k->min_rows) j->family[K_TYPES].panels = be->panels->k;
    for (uint32_t i = 0; i < j->args->n_outs; i++) {
        const struct linear_form *form = linear_form_of(j->args->outs[i].w->dtype);

        if (form->bits) j->family[linear_is_k(form) ? K_TYPES : BLOCK_TYPES].used = true;
    }
}

/* Opened float weights meet many rows a few k at a time: how long a row is does not count. */
static bool opens_floats(const struct backend *be)
{
#if defined(__x86_64__)
    return be->isa == CPU_ISA_AVX2;
#else
    (void)be;
    return false;
#endif
}

/* Fewer rows a chunk, down to `least`, until there are pieces for all threads. */
static void cut_rows(struct linear_job *j, uint32_t most, uint32_t least)
{
    j->chunk_rows = most;
    while (j->chunk_rows > least &&
           j->n_pieces * u32_ceil_div(j->args->n_rows, j->chunk_rows) < j->n_threads * PIECES_MIN)
        j->chunk_rows /= 2;
}

/* Cuts outputs and rows into pieces. */
static void cut(const struct backend *be, struct linear_job *j)
{
    uint64_t row_bytes = j->n_in * sizeof(float);
    bool panels = false, floats = true;

    for (int f = 0; f < N_FAMILIES; f++) {
        if (!j->family[f].used) continue;
        floats = false;
        panels |= j->family[f].panels != NULL;
        row_bytes = (uint64_t)(j->n_in / j->family[f].kernels->act_k) * j->family[f].kernels->act_bytes;
    }
    j->chunk_rows = u32_max(8, u32_min(CHUNK_ROWS, (uint32_t)(CHUNK_BYTES / row_bytes) / 8 * 8));
    j->piece_tiles = u32_max(1, u32_min(PIECE_TILES, j->n_tiles_all / (j->n_threads * PIECES_PER_THREAD)));
    if (!span_is_none(j->args->best)) j->piece_tiles = BEST_TILES;
    j->n_pieces = u32_ceil_div(j->n_tiles_all, j->piece_tiles);
    if (floats && opens_floats(be)) cut_rows(j, LINEAR_MANY_FLOAT, LINEAR_MANY_FLOAT / 4);
    if (!panels) return;
    if (j->args->n_rows > 16) { /* panels then take two tiles at a time; one alone reads all activations */
        j->piece_tiles = u32_max(2, j->piece_tiles / 2 * 2);
        j->n_pieces = u32_ceil_div(j->n_tiles_all, j->piece_tiles);
    }
    cut_rows(j, PANEL_ROWS_MAX, PANEL_ROWS_MIN);
}

rd_status cpu_linear(struct backend *be, const struct linear_args *a)
{
    struct linear_job j = {
        .args = a, .rows = be->rows, .ask_l2 = be->ask_l2, .n_threads = cpu_pool_n_threads(be->pool)};

    assert(a->n_outs >= 1 && a->n_outs <= 3 && (a->n_outs == 1 || span_is_none(a->best)));
    be->began_terms = NULL;
    if (a->n_rows == 0) return RD_OK;
    if (a->outs[0].w->format == CPU_DENSE) {
        uint8_t *acts = NULL;
        const rd_status st = acts_reserve(be->linear, BLOCK_TYPES, 1, cpu_dense_acts_bytes(a), &acts);

        return st == RD_OK ? cpu_dense(be, a, acts) : st;
    }
    j.n_in = a->outs[0].w->n_in;
    for (uint32_t i = 0; i < a->n_outs; i++) {
        const struct weight *w = a->outs[i].w;

        assert(w->role == WEIGHT_MATRIX && w->n_in == j.n_in && a->outs[i].out_stride >= w->n_out);
        j.n_tiles[i] = u32_ceil_div(w->n_out, LINEAR_TILE);
        j.n_tiles_all += j.n_tiles[i];
    }
    families_init(be, &j);
    for (int f = 0; f < N_FAMILIES; f++) {
        rd_status st = j.family[f].used ? quantise(be, &j, f) : RD_OK;

        if (st != RD_OK) return st;
    }
    cut(be, &j);
    if (a->n_rows <= SOON_ROWS) j.soon_lines = soon_lines(a->soon);
    cut_soon(be, &j);
    j.n_products = j.n_pieces * u32_ceil_div(a->n_rows, j.chunk_rows);
    if (j.soon_lines > 0) low_rank_job_init(&j.low, be, a->soon);
    cpu_pool_run(be->pool, run_piece, &j, j.n_products + j.low.n_down);
    if (j.soon_lines > 0) {
        be->linear->began = j.low;
        low_rank_began(be, &be->linear->began);
    }
    return RD_OK;
}
