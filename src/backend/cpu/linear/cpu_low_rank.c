/* backend/cpu/linear/cpu_low_rank.c - adapters: all rows times A, then columns of the outputs.
 *
 * Two passes over the pool, the first with the product before, where that is told of it (cpu_low_rank.h). First t: a tile is
 * some of the ranks of the terms, one behind the other, each for all rows of its term, so that a row of A is read once; of many rows
 * a tile is all ranks of some, which the L2 cache holds. Then a
 * tile is a piece of the columns of one output, and goes through the output's terms in their order: two terms of a row never
 * run at once. (Of many rows that only one term has: some of them.)
 * Bound: memory; A and B are read once a pass, x and out stay in the caches.
 */
#include "backend/cpu/linear/cpu_low_rank.h"
#include <assert.h>
#include <string.h>
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu_pool.h"
#include "backend/cpu/rows/row_kernels.h"
#include "base/checked.h"

#define COLUMNS     512u /* of a tile of the second pass, at most */
#define MIN_COLUMNS 128u
#define TILE_FLOPS  32768u /* of a tile of the first */
#define SOME_ROWS   48u    /* even: of a tile of the first, where a term has twice as many or more */

static float *t_row(const struct low_rank_term *m, float *t, uint32_t row)
{
    return t + (uint64_t)row * m->a->n_out;
}

/* The term of rank `at` of all, at becomes its own, *t where its values begin. */
static const struct low_rank_term *term_of(const struct low_rank_args *a, uint32_t *at, float **t)
{
    const struct low_rank_term *m = a->terms;

    for (*t = cpu_at(a->t); *at >= m->a->n_out; m++) {
        *at -= m->a->n_out;
        *t += (uint64_t)m->n_rows * m->a->n_out;
    }
    return m;
}

static uint32_t size_of(const struct weight *w)
{
    return w->dtype == DTYPE_F32 ? 4 : 2;
}

static const void *value_at(const struct weight *w, uint64_t i)
{
    return (const uint8_t *)w->data + i * size_of(w);
}

static const struct cpu_stored_kernels *kernels_of(const struct low_rank_job *job, const struct weight *w)
{
    return w->dtype == DTYPE_F32 ? &job->rows->f32 : w->dtype == DTYPE_F16 ? &job->rows->f16 : &job->rows->bf16;
}

static const float *x_row(const struct low_rank_job *job, const struct low_rank_term *m, uint32_t row)
{
    return cpu_at(job->a->x) + (uint64_t)m->rows[row] * job->a->x_stride;
}

static float *out_row(const struct low_rank_term *m, uint32_t row, uint32_t column)
{
    return cpu_at(m->out) + (uint64_t)m->rows[row] * m->out_stride + column;
}

/* This row and the next times 4 rows of A from j on. */
static void down_two(const struct low_rank_job *job, const struct low_rank_term *m, float *t, uint32_t row, uint32_t j)
{
    const float *const x[2] = {x_row(job, m, row), x_row(job, m, row + 1)};
    float sums[8];

    kernels_of(job, m->a)->two_dots4(x, value_at(m->a, (uint64_t)j * m->a->n_in), m->a->n_in, m->a->n_in, sums);
    for (uint32_t i = 0; i < 8; i++) t_row(m, t, row + i / 4)[j + i % 4] = sums[i] * m->scale;
}

/* One row times n rows of A from j on: 4, or 1. */
static void down(const struct low_rank_job *job, const struct low_rank_term *m, float *t, uint32_t row, uint32_t j,
                 uint32_t n)
{
    const struct cpu_stored_kernels *k = kernels_of(job, m->a);
    const void *a = value_at(m->a, (uint64_t)j * m->a->n_in);
    const float *x = x_row(job, m, row);
    float *to = t_row(m, t, row) + j;

    if (n == 4)
        k->dots4(x, a, m->a->n_in, m->a->n_in, to);
    else
        *to = k->dot(x, a, m->a->n_in);
    for (uint32_t i = 0; i < n; i++) to[i] *= m->scale;
}

/* Asks for what the next term's kernels do not ask for themselves: n_rows rows of w, n values of each. */
static void ask(const struct weight *w, uint32_t column, uint32_t n_rows, uint32_t n)
{
    const uint32_t bytes = u32_min(n, w->n_in - column) * size_of(w);

    for (uint32_t j = 0; j < u32_min(n_rows, w->n_out); j++)
        for (uint32_t i = 0; i < bytes; i += 64)
            __builtin_prefetch((const uint8_t *)value_at(w, (uint64_t)j * w->n_in + column) + i, 0, 2);
}

void low_rank_down(const struct low_rank_job *job, uint32_t tile)
{
    const uint32_t row = tile % job->n_chunks * job->chunk_rows, from = tile / job->n_chunks * job->ranks_per_tile,
                   to = u32_min(from + job->ranks_per_tile, job->n_ranks);

    for (uint32_t i = from, n, end; i < to; i += n) {
        uint32_t j = i;
        float *t;
        const struct low_rank_term *m = term_of(job->a, &j, &t);

        n = u32_min(to - i, m->a->n_out - j) >= 4 ? 4 : 1;
        end = u32_min(m->n_rows, row + job->chunk_rows);
        if (j + 4 >= m->a->n_out && m + 1 < job->a->terms + job->a->n_terms) ask(m[1].a, 0, 4, m[1].a->n_in);
        for (uint32_t r = row; r < end; r += 1 + (n == 4 && r + 1 < end))
            if (n == 4 && r + 1 < end)
                down_two(job, m, t, r, j);
            else
                down(job, m, t, r, j, n);
    }
}

static void down_tile(void *arg, uint32_t tile, uint32_t thread)
{
    (void)thread;
    low_rank_down(arg, tile);
}

static void add_term(const struct low_rank_job *job, const struct low_rank_term *m, float *t, uint32_t row,
                     uint32_t column)
{
    const struct cpu_stored_kernels *k = kernels_of(job, m->b);
    const void *b = value_at(m->b, column);
    const uint32_t n = u32_min(job->columns, m->b->n_in - column), rank = m->b->n_out,
                   end = u32_min(m->n_rows, row + job->up_rows);
    uint32_t r = row;

    for (; r + 1 < end; r += 2) {
        float *const out[2] = {out_row(m, r, column), out_row(m, r + 1, column)};
        const float *const s[2] = {t_row(m, t, r), t_row(m, t, r + 1)};

        k->two_add_rows(out, b, m->b->n_in, s, rank, n);
    }
    if (r < end) k->add_rows(out_row(m, r, column), b, m->b->n_in, t_row(m, t, r), rank, n);
}

static void up_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct low_rank_job *job = arg;
    const struct low_rank_term *m = job->a->terms, *end = m + job->a->n_terms;
    const uint32_t row = tile % job->n_up_chunks * job->up_rows;
    float *t = cpu_at(job->a->t);
    uint32_t n_tiles;

    (void)thread;
    tile /= job->n_up_chunks;
    while (tile >= (n_tiles = u32_ceil_div(m->b->n_in, job->columns))) { /* to the output of this tile */
        const struct span out = m->out;

        tile -= n_tiles;
        for (; m < end && span_equal(m->out, out); m++) t += (uint64_t)m->n_rows * m->a->n_out;
    }
    for (const struct span out = m->out; m < end && span_equal(m->out, out); m++) {
        if (m + 1 < end && span_equal(m[1].out, out)) ask(m[1].b, tile * job->columns, m[1].b->n_out, 128);
        add_term(job, m, t, row, tile * job->columns);
        t += (uint64_t)m->n_rows * m->a->n_out;
    }
}

/* So many that every thread has some tiles: of an output of 576 columns two threads had 512 and 64. */
static uint32_t columns_of_tile(const struct low_rank_args *a, uint32_t n_threads)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < a->n_terms; i++)
        if (i == 0 || !span_equal(a->terms[i].out, a->terms[i - 1].out)) n += a->terms[i].b->n_in;
    if (n_threads == 1) return COLUMNS;
    return u32_max(MIN_COLUMNS, (uint32_t)u64_min(COLUMNS, (n / (4 * n_threads) + 63) / 64 * 64));
}

void low_rank_job_init(struct low_rank_job *job, const struct backend *be, const struct low_rank_args *a)
{
    uint64_t flops = 0;
    uint32_t most = 0;
    bool shared = false; /* an output of two terms, whose rows may be numbered differently */

    *job = (struct low_rank_job){.rows = be->rows, .a = a, .columns = columns_of_tile(a, cpu_pool_n_threads(be->pool))};
    for (uint32_t i = 0; i < a->n_terms; i++) {
        const struct low_rank_term *m = &a->terms[i];

        assert(m->a->role == WEIGHT_LOW_RANK && m->b->role == WEIGHT_LOW_RANK && m->a->n_out == m->b->n_out &&
               m->n_rows > 0);
        job->n_ranks += m->a->n_out;
        flops += (uint64_t)m->n_rows * m->a->n_out * m->a->n_in;
        most = u32_max(most, m->n_rows);
        if (i == 0 || !span_equal(m->out, m[-1].out))
            job->n_up += u32_ceil_div(m->b->n_in, job->columns);
        else
            shared = true;
    }
    if (a->n_terms == 0) return;
    job->ranks_per_tile = ((uint32_t)(TILE_FLOPS / u64_max(flops / job->n_ranks, 1)) + 4) / 4 * 4;
    job->chunk_rows = job->up_rows = most;
    job->n_chunks = job->n_up_chunks = 1;
    if (most >= 2 * SOME_ROWS) {
        job->chunk_rows = SOME_ROWS;
        job->n_chunks = u32_ceil_div(most, SOME_ROWS);
        job->ranks_per_tile = u32_max(job->ranks_per_tile, a->terms[0].a->n_out);
    }
    if (job->n_chunks > 1 && !shared) {
        job->up_rows = job->chunk_rows;
        job->n_up_chunks = job->n_chunks;
        job->n_up *= job->n_chunks;
    }
    job->n_down = u32_ceil_div(job->n_ranks, job->ranks_per_tile) * job->n_chunks;
}

void low_rank_began(struct backend *be, const struct low_rank_job *job)
{
    be->began_terms = job->a->terms;
    be->began_t = job->a->t;
    be->began = job;
}

rd_status cpu_low_rank(struct backend *be, const struct low_rank_args *a)
{
    const bool began = a->n_terms > 0 && be->began_terms == a->terms && span_equal(be->began_t, a->t);
    struct low_rank_job job;

    be->began_terms = NULL;
    if (began) {
        job = *be->began;
        job.a = a; /* the product's may be gone */
    } else {
        low_rank_job_init(&job, be, a);
        cpu_pool_run(be->pool, down_tile, &job, job.n_down);
    }
    cpu_pool_run(be->pool, up_tile, &job, job.n_up);
    return RD_OK;
}
