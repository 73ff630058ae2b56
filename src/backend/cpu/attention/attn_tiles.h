/* backend/cpu/attention/attn_tiles.h - inside of attention on a CPU: the tiles of a call, shared by cpu_attn.c, which walks those of
 * one run, and attn_shared.c, which walks what several runs have in common.
 *
 * Thread  a call's own threads; scratch is one thread's.
 */
#pragma once
#include <math.h>
#include <stdatomic.h>
#include "backend/cpu/attention/attn_kernels.h"
#include "backend/cpu/cpu_backend.h"
#include "base/checked.h"
#include "base/limits.h"

#define ATTN_SEGMENT      256u       /* positions; a multiple of ATTN_BLOCK */
#define ATTN_SPLIT_FLOATS (2u << 20) /* 8 MiB: 32 heads of 128 over 116,000 positions */

#define ATTN_TILE_FLOATS      (32u * LIMIT_HEAD_DIM) /* of a tile's queries, and of its sums: fewer pairs of long heads */
#define ATTN_LEAST_PAIRS      24u                    /* fewer would convert keys and values too often */
#define ATTN_MANY_PAIRS       24u /* this many compute long enough to ask for the next block meanwhile */
#define ATTN_TILES_PER_THREAD 4u  /* wanted: less is not shared evenly */

struct attn_scratch {                                            /* one thread's */
    _Alignas(ATTN_LINE) float rows[ATTN_LANES * LIMIT_HEAD_DIM]; /* keys of one transposition */
    float k[ATTN_BLOCK * LIMIT_HEAD_DIM], v[ATTN_BLOCK * LIMIT_HEAD_DIM];
    float q[ATTN_TILE_FLOATS];
    float acc[2][ATTN_TILE_FLOATS]; /* of all segments so far, of the present one */
    float m[2][ATTN_MAX_PAIRS], l[2][ATTN_MAX_PAIRS * ATTN_LANES];
    uint32_t lo[ATTN_MAX_PAIRS], hi[ATTN_MAX_PAIRS];
    struct attn_ahead ahead;
    float cosines[LIMIT_HEAD_DIM / 2], sines[LIMIT_HEAD_DIM / 2];
};

struct cpu_attn_state {
    uint32_t n_threads;
    struct attn_scratch *scratch; /* [n_threads], mapped */
    float *split;                 /* [ATTN_SPLIT_FLOATS], mapped */
    atomic_uint *n_left;          /* [n_threads * ATTN_TILES_PER_THREAD]: segments of a split tile that
                                                   are not done; the worker that takes it to 0 has seen all of them */
    uint32_t *tile_end;           /* [n_runs]: tiles of runs 0 .. i */
    size_t tile_end_cap;
    struct attn_sharing *sharing; /* attn_shared.c */
};

struct attn_job {
    struct cpu_attn_state *state;
    const struct cpu_attn_kernels *kernels;
    const struct attention_args *a;
    uint32_t dim;                        /* head_dim padded to 16 */
    uint32_t group;                      /* query heads of one KV head */
    uint32_t heads_per_tile, head_tiles; /* group cut into head_tiles pieces */
    uint32_t rows_per_tile;
    uint32_t n_tiles, n_segments; /* n_segments: of the run that has most */
    float query_scale;
};

struct attn_row {
    uint32_t row, pos;
};

/* One tile, resolved. Pair i is row i / n_heads, head i % n_heads. */
struct attn_tile {
    const struct seq_run *run;   /* whose pages it walks */
    uint32_t row, n_rows, pos;   /* batch row of the first, its position; the others follow both, */
    const struct attn_row *rows; /* or, where not NULL, are these: of several runs that share pages */
    uint32_t first_pair;         /* of its queries, in scratch->q */
    uint32_t head, n_heads, kv_head;
    uint32_t begin, end;        /* positions that any of its rows sees */
    const struct seq_run *ends; /* [n_ends]: runs whose positions from end on are walked afterwards */
    uint32_t n_ends;
};

static inline struct attn_row attn_tile_row(const struct attn_tile *t, uint32_t r)
{
    return t->rows ? t->rows[r] : (struct attn_row){t->row + r, t->pos + r};
}

/* First position that a row at pos sees. */
static inline uint32_t attn_window_begin(const struct attention_args *a, uint32_t pos)
{
    return a->window && pos >= a->window ? pos - a->window + 1 : 0;
}

/* Past the last position that a row at pos sees. */
static inline uint32_t attn_sees_to(const struct seq_run *run, uint32_t pos)
{
    return pos >= run->both_from && pos < run->both_to ? run->both_to : pos + 1;
}

/* cpu_attn.c */
/* Queries of the tile to scratch: scaled, turned as the keys are, padded. */
void attn_load_queries(const struct attn_job *job, const struct attn_tile *t, struct attn_scratch *scratch);
/* Walks one segment from nothing into sums. */
void attn_segment(const struct attn_job *job, const struct attn_tile *t, uint32_t segment, struct attn_scratch *scratch,
                  struct attn_sums sums);
void attn_finish(const struct attn_job *job, const struct attn_tile *t, struct attn_sums sums);
/* The most pairs of a tile. */
uint32_t attn_most_pairs(const struct attn_job *job);

/* attn_shared.c */
rd_status attn_sharing_create(struct cpu_attn_state *state);
void attn_sharing_destroy(struct cpu_attn_state *state);
/* Attention of all rows that share a prefix with others. *rest: the runs that are left, valid until the next call. */
rd_status attn_shared(struct backend *be, const struct attn_job *job, const struct seq_run **rest, uint32_t *n_rest);
