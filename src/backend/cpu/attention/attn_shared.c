/* backend/cpu/attention/attn_shared.c - runs that begin with the same pages read them once, for all of their rows together.
 *
 *     run A   pages 1 2 3 4 5 | 6              shared: segments of pages 1 .. 4, walked once with the queries of A and B
 *     run B   pages 1 2 3 4 5 | 7 8            own:    the rest of each, walked by itself, merged behind the shared ones
 *
 * Segments begin at absolute positions and are merged in order for every row, so the bits are those of each run alone.
 * A tile is up to attn_most_pairs() pairs of one KV head; large ones share more, small ones keep all threads busy.
 * Bound: arithmetic, where each run alone is bound by reading and converting the keys and values.
 * Source: the idea, for GPUs: arXiv:2402.15220 (ChunkAttention), arXiv:2402.05099 (Hydragen).
 */
#include <string.h>
#include "backend/cpu/attention/attn_tiles.h"
#include "base/mem.h"

#define MAX_RUNS     256u                /* of a call: searching more for common prefixes would take too long */
#define TILES_WANTED 2u                  /* per thread */
#define LEAST_SAVED  (2u * ATTN_SEGMENT) /* positions that need not be read: less is not worth it */

struct shared_tile {
    const struct seq_run *leader;
    uint32_t first_row, n_rows, first_run, n_runs, end;
};

struct attn_sharing {
    struct attn_row *rows; /* of all tiles */
    struct seq_run runs[MAX_RUNS], rest[MAX_RUNS];
    struct shared_tile tiles[MAX_RUNS];
    uint32_t common[MAX_RUNS]; /* positions in common with the leader, whole segments; 0: none */
    bool taken[MAX_RUNS];
    size_t rows_cap;
    uint32_t n_rows, n_runs, n_tiles;
};

rd_status attn_sharing_create(struct cpu_attn_state *state)
{
    state->sharing = mem_zalloc(1, sizeof(*state->sharing));
    if (!state->sharing) return RD_E_NOMEM;
    return mem_grow((void **)&state->sharing->rows, &state->sharing->rows_cap, MAX_RUNS, sizeof(struct attn_row))
               ? RD_OK
               : RD_E_NOMEM;
}

void attn_sharing_destroy(struct cpu_attn_state *state)
{
    if (!state->sharing) return;
    mem_free(state->sharing->rows);
    mem_free(state->sharing);
}

/* ---- who shares what ---- */

static uint32_t common_positions(const struct seq_run *a, const struct seq_run *b, uint32_t page_tokens)
{
    uint32_t n_pages = u32_min(a->pos0, b->pos0) / page_tokens, n = 0;

    if (a->block_table != b->block_table)
        while (n < n_pages && a->block_table[n] == b->block_table[n]) n++;
    else
        n = n_pages;
    return n * page_tokens / ATTN_SEGMENT * ATTN_SEGMENT;
}

static bool may_share(const struct seq_run *run, uint32_t most_rows)
{
    return run->n_rows <= most_rows && run->pos0 >= ATTN_SEGMENT && run->both_to == run->both_from;
}

/* The positions to share below a leader: where those that have as many save most. 0: not worth it. */
static uint32_t best_common(const struct attn_sharing *s, uint32_t leader, uint32_t n_runs)
{
    uint64_t best_saved = LEAST_SAVED - 1;
    uint32_t best = 0;

    for (uint32_t i = leader + 1; i < n_runs; i++) {
        uint64_t n = 0;

        if (s->common[i] == 0 || s->common[i] == best) continue;
        for (uint32_t j = leader + 1; j < n_runs; j++) n += s->common[j] >= s->common[i];
        if (n * s->common[i] <= best_saved) continue;
        best_saved = n * s->common[i];
        best = s->common[i];
    }
    return best;
}

/* first: of its group. */
static void add_run(struct attn_sharing *s, const struct seq_run *run, bool first, uint32_t end, uint32_t most_rows)
{
    struct shared_tile *t = s->n_tiles ? &s->tiles[s->n_tiles - 1] : NULL;

    if (first || t->n_rows + run->n_rows > most_rows) {
        t = &s->tiles[s->n_tiles++];
        *t = (struct shared_tile){run, s->n_rows, 0, s->n_runs, 0, end};
    }
    s->runs[s->n_runs++] = *run;
    t->n_runs++;
    for (uint32_t r = 0; r < run->n_rows; r++) s->rows[s->n_rows++] = (struct attn_row){run->row0 + r, run->pos0 + r};
    t->n_rows += run->n_rows;
}

/* Rows per tile of a group: all, where the heads share out evenly; else many, but such that all threads have some. */
static uint32_t rows_per_tile(const struct attn_job *job, uint32_t n_rows, uint32_t n_threads, uint32_t most_rows)
{
    uint32_t per_rows = job->a->n_kv_heads * job->head_tiles;
    uint32_t n_wanted = per_rows % n_threads == 0 ? 1 : u32_ceil_div(n_threads * TILES_WANTED, per_rows);
    uint32_t least = u32_max(1, ATTN_LEAST_PAIRS / job->heads_per_tile);

    return u32_min(most_rows, u32_max(u32_ceil_div(n_rows, n_wanted), least));
}

static void make_group(struct attn_sharing *s, const struct attn_job *job, uint32_t leader, uint32_t end,
                       uint32_t n_threads, uint32_t most_rows)
{
    const struct attention_args *a = job->a;
    uint32_t n_rows = 0, most;

    s->common[leader] = end;
    for (uint32_t i = leader; i < a->n_runs; i++)
        if (s->common[i] >= end) n_rows += a->runs[i].n_rows;
    most = rows_per_tile(job, n_rows, n_threads, most_rows);
    for (uint32_t i = leader; i < a->n_runs; i++) {
        if (s->common[i] < end) continue;
        s->taken[i] = true;
        add_run(s, &a->runs[i], i == leader, end, most);
    }
}

static void find_groups(struct attn_sharing *s, const struct attn_job *job, uint32_t n_threads)
{
    const struct attention_args *a = job->a;
    uint32_t most_rows = attn_most_pairs(job) / job->heads_per_tile, page_tokens = a->kv->layout.page_tokens;

    s->n_rows = s->n_runs = s->n_tiles = 0;
    memset(s->taken, 0, a->n_runs * sizeof(s->taken[0]));
    for (uint32_t i = 0; i + 1 < a->n_runs; i++) {
        uint32_t end;

        if (s->taken[i] || !may_share(&a->runs[i], most_rows)) continue;
        memset(s->common, 0, a->n_runs * sizeof(s->common[0]));
        for (uint32_t j = i + 1; j < a->n_runs; j++)
            if (!s->taken[j] && may_share(&a->runs[j], most_rows))
                s->common[j] = common_positions(&a->runs[i], &a->runs[j], page_tokens);
        end = best_common(s, i, a->n_runs);
        if (end > 0) make_group(s, job, i, end, n_threads, most_rows);
    }
}

/* ---- walking ---- */

static struct attn_sums sums_from(const struct attn_job *job, struct attn_sums sums, uint32_t pair)
{
    return (struct attn_sums){sums.m + pair, sums.l + (size_t)pair * ATTN_LANES, sums.acc + (size_t)pair * job->dim};
}

/* Segments first .. end-1 of t, merged behind what total has already (any). */
static bool walk(const struct attn_job *job, const struct attn_tile *t, uint32_t first, uint32_t end, bool any,
                 struct attn_scratch *scratch, struct attn_sums total)
{
    struct attn_sums present = {scratch->m[1], scratch->l[1], scratch->acc[1]};

    for (uint32_t segment = first; segment < end; segment++, any = true) {
        attn_segment(job, t, segment, scratch, any ? present : total);
        if (any) job->kernels->merge(t->n_rows * t->n_heads, job->dim, &total, &present);
    }
    return any;
}

/* What the i-th run of a tile has for itself; its queries are pairs first_pair .. of the tile t. */
static struct attn_tile own_end(const struct attn_job *job, const struct shared_tile *tile, uint32_t i,
                                const struct attn_tile *t, uint32_t first_pair)
{
    const struct seq_run *run = &job->state->sharing->runs[tile->first_run + i];

    return (struct attn_tile){.run = run,
                              .row = run->row0,
                              .pos = run->pos0,
                              .n_rows = run->n_rows,
                              .first_pair = first_pair,
                              .head = t->head,
                              .n_heads = t->n_heads,
                              .kv_head = t->kv_head,
                              .begin = u32_max(attn_window_begin(job->a, run->pos0), tile->end),
                              .end = run->pos0 + run->n_rows};
}

static void shared_tile(void *arg, uint32_t index, uint32_t thread)
{
    const struct attn_job *job = arg;
    const struct attention_args *a = job->a;
    const struct attn_sharing *s = job->state->sharing;
    const struct shared_tile *tile = &s->tiles[index / (a->n_kv_heads * job->head_tiles)];
    struct attn_scratch *scratch = &job->state->scratch[thread];
    struct attn_sums total = {scratch->m[0], scratch->l[0], scratch->acc[0]};
    struct attn_tile t = {.run = tile->leader,
                          .rows = s->rows + tile->first_row,
                          .n_rows = tile->n_rows,
                          .ends = s->runs + tile->first_run,
                          .n_ends = tile->n_runs};
    bool any;

    t.kv_head = index / job->head_tiles % a->n_kv_heads;
    t.head = index % job->head_tiles * job->heads_per_tile;
    t.n_heads = u32_min(job->heads_per_tile, job->group - t.head);
    t.head += t.kv_head * job->group;
    t.begin = t.end = tile->end;
    for (uint32_t r = 0; r < t.n_rows; r++) t.begin = u32_min(t.begin, attn_window_begin(a, t.rows[r].pos));
    attn_load_queries(job, &t, scratch);
    any = walk(job, &t, t.begin / ATTN_SEGMENT, t.end / ATTN_SEGMENT, false, scratch, total);
    for (uint32_t i = 0, pair = 0; i < tile->n_runs; i++) {
        struct attn_tile own = own_end(job, tile, i, &t, pair);

        walk(job, &own, own.begin / ATTN_SEGMENT, (own.end - 1) / ATTN_SEGMENT + 1, any, scratch,
             sums_from(job, total, pair));
        pair += own.n_rows * t.n_heads;
    }
    attn_finish(job, &t, total);
}

rd_status attn_shared(struct backend *be, const struct attn_job *job, const struct seq_run **rest, uint32_t *n_rest)
{
    const struct attention_args *a = job->a;
    struct attn_sharing *s = job->state->sharing;
    uint32_t n = 0;

    if (a->n_runs < 2 || a->n_runs > MAX_RUNS) return RD_OK; /* rest: all */
    if (!mem_grow((void **)&s->rows, &s->rows_cap, a->n_rows, sizeof(*s->rows))) return RD_E_NOMEM;
    find_groups(s, job, cpu_pool_n_threads(be->pool));
    if (s->n_tiles == 0) return RD_OK;
    cpu_pool_run(be->pool, shared_tile, (void *)(uintptr_t)job, s->n_tiles * a->n_kv_heads * job->head_tiles);
    for (uint32_t i = 0; i < a->n_runs; i++)
        if (!s->taken[i]) s->rest[n++] = a->runs[i];
    *rest = s->rest;
    *n_rest = n;
    return RD_OK;
}
