/* backend/cpu/linear/cpu_low_rank.h - inside of low_rank: its first pass, t, which the product before it may take along.
 *
 * Between two threads a pass costs a meeting, and of a small model's step with adapters these are a tenth of the time. */
#pragma once
#include "backend/backend.h"

struct cpu_row_kernels;
struct low_rank_job {
    const struct cpu_row_kernels *rows;
    const struct low_rank_args *a;
    uint32_t n_ranks, ranks_per_tile, columns;
    uint32_t chunk_rows, n_chunks; /* rows of a term that a tile of the first pass has, and how many such all have */
    uint32_t up_rows, n_up_chunks; /* of the second */
    uint32_t n_down, n_up;         /* tiles of the passes */
};

void low_rank_job_init(struct low_rank_job *job, const struct backend *be, const struct low_rank_args *a);
/* Tiles 0 .. n_down - 1, each by any thread. */
void low_rank_down(const struct low_rank_job *job, uint32_t tile);
/* All of them are done for the job's args, which the next low_rank has. job stays until then. */
void low_rank_began(struct backend *be, const struct low_rank_job *job);
