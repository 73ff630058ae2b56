/* backend/cpu/rows/cpu_encode.c - what encoders need beside the ops of text models, row by row: LayerNorm, GELU, 2-D RoPE, means. */
#include <assert.h>
#include <math.h>
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/rows/row_kernels.h"
#include "base/checked.h"

#define FLOATS_PER_TILE 8192u
#define PIECE           1024u /* values of GELU at a time */
#define QUICK           1.702f

struct encode_job {
    const struct backend *be;
    const void *args;
    uint32_t rows_per_tile;
};

static uint32_t rows_per_tile(uint32_t floats_per_row)
{
    return u32_max(1, FLOATS_PER_TILE / u32_max(floats_per_row, 1));
}

/* ---- LayerNorm ---- */

static void norm_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct encode_job *job = arg;
    const struct layer_norm_args *a = job->args;
    uint32_t end = u32_min((tile + 1) * job->rows_per_tile, a->n_rows);

    (void)thread;
    for (uint32_t row = tile * job->rows_per_tile; row < end; row++)
        job->be->rows->layer_norm(cpu_at(a->x) + (size_t)row * a->width, a->w->data, a->b->data, a->eps,
                                  cpu_at(a->out) + (size_t)row * a->width, a->width);
}

rd_status cpu_layer_norm(struct backend *be, const struct layer_norm_args *a)
{
    struct encode_job job = {be, a, rows_per_tile(a->width)};

    assert(a->w->n_in == a->width && a->b->n_in == a->width);
    cpu_pool_run(be->pool, norm_tile, &job, u32_ceil_div(a->n_rows, job.rows_per_tile));
    return RD_OK;
}

/* ---- GELU ---- */

struct gelu_job {
    enum gelu kind;
    uint64_t n;
    float *x;
    float up[PIECE]; /* what the activation is multiplied by */
};

static void gelu_piece(void *arg, uint32_t piece, uint32_t thread)
{
    const struct encode_job *job = arg;
    const struct gelu_job *a = job->args;
    float *x = a->x + (uint64_t)piece * PIECE;
    uint32_t n = (uint32_t)u64_min(PIECE, a->n - (uint64_t)piece * PIECE);

    (void)thread;
    switch (a->kind) {
    case GELU_ERF:
        for (uint32_t i = 0; i < n; i++) x[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678118654752440f));
        break;
    case GELU_QUICK: /* silu(1.702 x) / 1.702 */
        job->be->rows->scale(x, QUICK, NULL, x, n);
        job->be->rows->glu(ACT_SILU, x, a->up, x, n);
        break;
    case GELU_TANH:
        job->be->rows->glu(ACT_GELU_TANH, x, a->up, x, n);
        break;
    }
}

rd_status cpu_gelu_all(struct backend *be, const struct gelu_args *a)
{
    struct gelu_job gelu = {.kind = a->kind, .n = a->n, .x = cpu_at(a->x)};
    struct encode_job job = {be, &gelu, 0};

    for (uint32_t i = 0; i < PIECE; i++) gelu.up[i] = a->kind == GELU_QUICK ? 1.0f / QUICK : 1.0f;
    cpu_pool_run(be->pool, gelu_piece, &job, (uint32_t)((a->n + PIECE - 1) / PIECE));
    return RD_OK;
}

/* ---- RoPE ---- */

static void turn_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct encode_job *job = arg;
    const struct turn_args *a = job->args;
    uint32_t end = u32_min((tile + 1) * job->rows_per_tile, a->n_rows), half = a->head_dim / 2;

    (void)thread;
    for (uint32_t row = tile * job->rows_per_tile; row < end; row++) {
        float *q = cpu_at(a->q) + (size_t)row * a->stride, *k = cpu_at(a->k) + (size_t)row * a->stride;
        const float *c = cpu_at(a->cosines) + (size_t)row * half, *s = cpu_at(a->sines) + (size_t)row * half;

        for (uint32_t h = 0; h < a->n_heads; h++, q += a->head_dim, k += a->head_dim) {
            job->be->rows->rope(ROPE_HALF_SPLIT, q, c, s, a->head_dim);
            job->be->rows->rope(ROPE_HALF_SPLIT, k, c, s, a->head_dim);
        }
    }
}

rd_status cpu_turn(struct backend *be, const struct turn_args *a)
{
    struct encode_job job = {be, a, rows_per_tile(2 * a->n_heads * a->head_dim)};

    assert(a->head_dim % 2 == 0);
    cpu_pool_run(be->pool, turn_tile, &job, u32_ceil_div(a->n_rows, job.rows_per_tile));
    return RD_OK;
}

/* ---- means ---- */

static void mean_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct encode_job *job = arg;
    const struct mean_args *a = job->args;
    const float part = 1.0f / (float)a->n_each;
    uint32_t end = u32_min((tile + 1) * job->rows_per_tile, a->n_out);

    (void)thread;
    for (uint32_t row = tile * job->rows_per_tile; row < end; row++)
        for (uint32_t i = 0; i < a->width; i++) {
            float sum = 0;

            for (uint32_t k = 0; k < a->n_each; k++)
                sum += cpu_at(a->x)[(size_t)a->rows[(size_t)row * a->n_each + k] * a->width + i];
            cpu_at(a->out)[(size_t)row * a->width + i] = sum * part;
        }
}

rd_status cpu_mean_rows(struct backend *be, const struct mean_args *a)
{
    struct encode_job job = {be, a, rows_per_tile(a->n_each * a->width)};

    cpu_pool_run(be->pool, mean_tile, &job, u32_ceil_div(a->n_out, job.rows_per_tile));
    return RD_OK;
}
