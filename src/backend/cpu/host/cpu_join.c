/* backend/cpu/host/cpu_join.c - rows of all ranks' columns: every rank copies what the others show, in its own memory. */
#include <string.h>
#include "backend/cpu/cpu_backend.h"
#include "backend/ranks.h"
#include "base/checked.h"

#define TILE_FLOATS 16384u /* of a row tile: less is not worth a second thread */

struct join_job {
    const struct join_args *a;
    const void *all[RANKS_MAX];
    uint32_t rows_per_tile;
};

static void join_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct join_job *job = arg;
    const struct join_args *a = job->a;
    const uint64_t width = a->ends[a->n_ranks - 1];
    const uint32_t end = u32_min(a->n_rows, (tile + 1) * job->rows_per_tile);
    float *out = cpu_at(a->out);

    (void)thread;
    for (uint32_t rank = 0, first = 0; rank < a->n_ranks; first = a->ends[rank++]) {
        const uint64_t n = a->ends[rank] - first;

        for (uint64_t row = tile * job->rows_per_tile; n > 0 && row < end; row++)
            memcpy(out + row * width + first, (const float *)job->all[rank] + row * n, n * sizeof(*out));
    }
}

rd_status cpu_join(struct backend *be, const struct join_args *a)
{
    struct join_job job = {.a = a, .rows_per_tile = u32_max(1, TILE_FLOATS / a->ends[a->n_ranks - 1])};
    rd_status st = rank_group_meet(a->group, a->rank, cpu_at(a->own), job.all);

    if (st != RD_OK) return st;
    cpu_pool_run(be->pool, join_tile, &job, u32_ceil_div(a->n_rows, job.rows_per_tile));
    return RD_OK;
}
