/* backend/cpu/linear/cpu_dense.c - linear of WEIGHT_DENSE: packs weights, splits activations, cuts both into pieces for the pool.
 *
 * A piece is some panels of 32 outputs times a chunk of rows whose activations stay in a core's L2 cache. Results do not depend
 * on the cut (linear_dense.h).
 */
#include <assert.h>
#include <string.h>
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear/linear_dense.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/mem.h"

#define CHUNK_BYTES       (1u << 20)
#define CHUNK_ROWS        256u
#define PIECES_PER_THREAD 4u

struct dense_job {
    const struct cpu_dense_kernels *kernels;
    const struct linear_args *args;
    uint8_t *acts;
    uint32_t n_blocks, chunk_rows, piece_panels, n_panels[3], n_pieces;
};

/* ---- weights ---- */

static uint32_t parts_of(enum dtype t)
{
    return t == DTYPE_BF16 ? 1 : 2;
}

struct pack_job {
    const struct host_tensor *t;
    uint8_t *to;
    uint32_t n_blocks, n_parts;
};

static void pack_panel(void *arg, uint32_t panel, uint32_t thread)
{
    const struct pack_job *j = arg;
    const struct host_tensor *t = j->t;
    const uint64_t row_bytes = (uint64_t)t->n_in * dtype_block_bytes(t->dtype);
    uint8_t *to = j->to + (uint64_t)panel * j->n_blocks * j->n_parts * DENSE_BLOCK;

    (void)thread;
    memset(to, 0, (size_t)j->n_blocks * j->n_parts * DENSE_BLOCK);
    for (uint32_t o = 0; o < u32_min(DENSE_OUTS, t->n_out - panel * DENSE_OUTS); o++) {
        const uint8_t *row = (const uint8_t *)t->data + (panel * DENSE_OUTS + o) * row_bytes;
        float values[DENSE_K];

        for (uint32_t b = 0; b < j->n_blocks; b++) {
            const uint32_t n = u32_min(DENSE_K, t->n_in - b * DENSE_K);
            uint8_t *block = to + (uint64_t)b * j->n_parts * DENSE_BLOCK + o / 16 * DENSE_TILE;

            dtype_to_float(t->dtype, row + (uint64_t)b * DENSE_K * dtype_block_bytes(t->dtype), values, n);
            for (uint32_t k = 0; k < n; k++) {
                const uint16_t high = float_to_bf16(values[k]), low = float_to_bf16(values[k] - bf16_to_float(high));
                uint8_t *at = block + k / 2 * 64 + o % 16 * 4 + k % 2 * 2;

                memcpy(at, &high, sizeof(high));
                if (j->n_parts > 1) memcpy(at + DENSE_BLOCK, &low, sizeof(low));
            }
        }
    }
}

rd_status cpu_pack_dense(struct backend *be, const struct host_tensor *t, struct weight *out, struct rd_error *err)
{
    struct pack_job job = {.t = t, .n_blocks = u32_ceil_div(t->n_in, DENSE_K), .n_parts = parts_of(t->dtype)};
    const uint32_t n_panels = u32_ceil_div(t->n_out, DENSE_OUTS);
    const uint64_t bytes = (uint64_t)n_panels * job.n_blocks * job.n_parts * DENSE_BLOCK; /* below 2^60 */
    void *memory;

    if (weight_memory_take(&be->weights, bytes, &memory) != RD_OK)
        return error_set(err, RD_E_NOMEM, "%s: no memory for %llu bytes of weights", t->name,
                         (unsigned long long)bytes);
    job.to = memory;
    cpu_pool_run(be->pool, pack_panel, &job, n_panels);
    *out = (struct weight){.dtype = t->dtype,
                           .role = WEIGHT_DENSE,
                           .n_out = t->n_out,
                           .n_in = t->n_in,
                           .data = memory,
                           .bytes = bytes,
                           .format = CPU_DENSE};
    return RD_OK;
}

/* ---- products ---- */

static void split_group(void *arg, uint32_t group, uint32_t thread)
{
    const struct dense_job *j = arg;
    const struct linear_args *a = j->args;
    const uint32_t row = group * DENSE_ROWS;

    (void)thread;
    j->kernels->split16(cpu_at(a->x) + (uint64_t)row * a->x_stride, a->x_stride, u32_min(DENSE_ROWS, a->n_rows - row),
                        a->outs[0].w->n_in, j->acts + (uint64_t)group * j->n_blocks * DENSE_BLOCK);
}

static void run_piece(void *arg, uint32_t piece, uint32_t thread)
{
    const struct dense_job *j = arg;
    const struct linear_args *a = j->args;
    const uint32_t row = piece / j->n_pieces * j->chunk_rows, first = piece % j->n_pieces * j->piece_panels;
    const uint32_t all = j->n_panels[0] + j->n_panels[1] + j->n_panels[2], end = u32_min(first + j->piece_panels, all);

    (void)thread;
    for (uint32_t panel = first; panel < end; panel++) {
        uint32_t o = 0, in = panel;

        while (in >= j->n_panels[o]) in -= j->n_panels[o++];
        const struct linear_out *out = &a->outs[o];
        const uint32_t out0 = in * DENSE_OUTS, n_parts = parts_of(out->w->dtype);
        const struct dense_panel p = {.w = (const uint8_t *)out->w->data +
                                           (uint64_t)in * j->n_blocks * n_parts * DENSE_BLOCK,
                                      .x = j->acts + (uint64_t)(row / DENSE_ROWS) * j->n_blocks * DENSE_BLOCK,
                                      .n_blocks = j->n_blocks,
                                      .n_parts = n_parts,
                                      .n_rows = u32_min(j->chunk_rows, a->n_rows - row),
                                      .n_out = u32_min(DENSE_OUTS, out->w->n_out - out0),
                                      .out = cpu_at(out->out) + (uint64_t)row * out->out_stride + out0,
                                      .out_stride = out->out_stride,
                                      .bias = out->bias ? (const float *)out->bias->data + out0 : NULL};

        j->kernels->panel(&p);
    }
}

rd_status cpu_dense(struct backend *be, const struct linear_args *a, uint8_t *acts)
{
    struct dense_job j = {.kernels = be->dense, .args = a, .acts = acts};
    const uint32_t n_threads = cpu_pool_n_threads(be->pool);
    uint32_t all = 0, fits, n_chunks;

    j.n_blocks = u32_ceil_div(a->outs[0].w->n_in, DENSE_K);
    for (uint32_t i = 0; i < a->n_outs; i++) {
        assert(a->outs[i].w->format == CPU_DENSE && a->outs[i].w->n_in == a->outs[0].w->n_in);
        all += j.n_panels[i] = u32_ceil_div(a->outs[i].w->n_out, DENSE_OUTS);
    }
    fits = u32_max(CHUNK_BYTES / (j.n_blocks * DENSE_BLOCK), 2) / 2 * 2 * DENSE_ROWS;
    j.chunk_rows = u32_min(CHUNK_ROWS, fits);
    n_chunks = u32_ceil_div(a->n_rows, j.chunk_rows);
    j.piece_panels = u32_max(1, all * n_chunks / (n_threads * PIECES_PER_THREAD));
    j.piece_panels = u32_min(j.piece_panels, 8);
    j.n_pieces = u32_ceil_div(all, j.piece_panels);
    cpu_pool_run(be->pool, split_group, &j, u32_ceil_div(a->n_rows, DENSE_ROWS));
    cpu_pool_run(be->pool, run_piece, &j, j.n_pieces * n_chunks);
    return RD_OK;
}

uint64_t cpu_dense_acts_bytes(const struct linear_args *a)
{
    return (uint64_t)u32_ceil_div(a->n_rows, DENSE_ROWS) * u32_ceil_div(a->outs[0].w->n_in, DENSE_K) * DENSE_BLOCK;
}
