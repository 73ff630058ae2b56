/* backend/cpu/cpu_attn.c - cuts qkv_rope_write and attention into tiles; the arithmetic is in the kernels.
 *
 * Attention tile: up to ATTN_MAX_PAIRS (row, head) pairs of one run and one KV head, so that keys and values are
 * converted to floats once for all of them. Keys are walked in blocks of 64 positions, and blocks are grouped into
 * segments of 256, both at absolute positions. Each segment starts an online softmax of its own; segments are merged
 * in order, ALWAYS, whether one thread walked them or several: the split is a matter of scheduling and cannot be seen
 * in the result.
 *
 *     position  0    64   128  192  256 ...                     one tile, two ways to run it:
 *     block     |----|----|----|----|----|...                   whole:  for each segment: blocks, merge;  finish
 *     segment   |---------0---------|---------1...              split:  a unit per segment;  then merge, finish
 *
 * Splitting is for few tiles and long contexts (decode). Its buffer is fixed; what does not fit runs whole.
 * Scratch is mapped once for the largest legal head and touched as far as a model needs it: ops allocate nothing,
 * except that more runs than ever before grow the plan.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "backend/cpu/attn_kernels.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/row_kernels.h"
#include "base/checked.h"
#include "base/limits.h"
#include "base/mem.h"

#define ATTN_SEGMENT      256u                  /* positions; a multiple of ATTN_BLOCK */
#define ATTN_SPLIT_FLOATS (2u << 20)            /* 8 MiB: 32 heads of 128 over 120,000 positions */
#define ATTN_FIRST_RUNS   64u
#define QKV_FLOATS_PER_TILE 4096u               /* less is not worth waking a thread for */

struct attn_scratch {                           /* one thread's */
    float k[ATTN_BLOCK * LIMIT_HEAD_DIM], v[ATTN_BLOCK * LIMIT_HEAD_DIM];
    float q[ATTN_MAX_PAIRS * LIMIT_HEAD_DIM];
    float acc[ATTN_MAX_PAIRS * LIMIT_HEAD_DIM], segment_acc[ATTN_MAX_PAIRS * LIMIT_HEAD_DIM];
    float scores[ATTN_MAX_PAIRS * ATTN_BLOCK];
    float cosines[LIMIT_HEAD_DIM / 2], sines[LIMIT_HEAD_DIM / 2];
    struct attn_pair pairs[ATTN_MAX_PAIRS], segment_pairs[ATTN_MAX_PAIRS];
};

struct cpu_attn_state {
    uint32_t n_threads;
    struct attn_scratch *scratch;               /* [n_threads], mapped */
    float *split;                               /* [ATTN_SPLIT_FLOATS], mapped */
    uint32_t *tile_end;                         /* [n_runs]: tiles of runs 0 .. i */
    size_t tile_end_cap;
};

struct attn_job {
    struct cpu_attn_state *state;
    const struct cpu_attn_kernels *kernels;
    const struct attention_args *a;
    uint32_t dim;                               /* head_dim padded to 16 */
    uint32_t group;                             /* query heads of one KV head */
    uint32_t heads_per_tile, head_tiles;        /* group cut into head_tiles pieces */
    uint32_t rows_per_tile;
    uint32_t n_tiles, n_segments;               /* n_segments: of the run that has most */
};

/* One tile, resolved. Pair i is row i / n_heads, head i % n_heads. */
struct attn_tile {
    const struct seq_run *run;
    uint32_t row, n_rows, pos;                  /* batch row of the first, its position */
    uint32_t head, n_heads, kv_head;
    uint32_t begin, end;                        /* positions that any of its rows sees */
};

rd_status cpu_attn_create(struct backend *be)
{
    static const struct cpu_attn_kernels *const attn[CPU_N_ISA] = {&cpu_attn_ref, &cpu_attn_avx2, &cpu_attn_avx512,
                                                                   &cpu_attn_avx512};
    static const struct cpu_row_kernels *const rows[CPU_N_ISA] = {&cpu_rows_ref, &cpu_rows_avx2, &cpu_rows_avx512,
                                                                  &cpu_rows_avx512};
    struct cpu_attn_state *state = mem_zalloc(1, sizeof(*state));

    be->attn = attn[be->isa];
    be->rows = rows[be->isa];
    be->attn_state = state;
    if (!state) return RD_E_NOMEM;
    state->n_threads = cpu_pool_n_threads(be->pool);
    state->scratch = mem_map(state->n_threads * sizeof(*state->scratch));
    state->split = mem_map(ATTN_SPLIT_FLOATS * sizeof(*state->split));
    if (!state->scratch || !state->split) return RD_E_NOMEM;
    if (!mem_grow((void **)&state->tile_end, &state->tile_end_cap, ATTN_FIRST_RUNS, sizeof(*state->tile_end)))
        return RD_E_NOMEM;
    return RD_OK;
}

void cpu_attn_destroy(struct backend *be)
{
    struct cpu_attn_state *state = be->attn_state;

    if (!state) return;
    if (state->scratch) mem_unmap(state->scratch, state->n_threads * sizeof(*state->scratch));
    if (state->split) mem_unmap(state->split, ATTN_SPLIT_FLOATS * sizeof(*state->split));
    mem_free(state->tile_end);
    mem_free(state);
    be->attn_state = NULL;
}

/* ---- qkv_rope_write ---- */

struct qkv_job { struct backend *be; const struct qkv_args *a; uint32_t rows_per_tile; };

static void qkv_head(const struct qkv_job *job, float *x, const struct weight *norm, const struct attn_scratch *scratch)
{
    const struct cpu_row_kernels *rows = job->be->rows;
    const struct qkv_args *a = job->a;

    if (norm) {
        float mean = rows->sum_squares(x, a->head_dim) / (float)a->head_dim;

        rows->scale(x, 1.0f / sqrtf(mean + a->norm_eps), norm->data, x, a->head_dim);
    }
    if (a->n_rot) rows->rope(a->layout, x, scratch->cosines, scratch->sines, a->n_rot);
}

static void qkv_row(const struct qkv_job *job, uint32_t row, struct attn_scratch *scratch)
{
    const struct qkv_args *a = job->a;
    float *q = a->q + (size_t)row * a->q_stride, *k = a->k + (size_t)row * a->k_stride;
    const float *v = a->v + (size_t)row * a->v_stride;
    uint8_t *page = (uint8_t *)a->kv->base + a->row_page[row] * a->kv->page_bytes + a->row_slot[row] * a->kv->row_bytes;

    for (uint32_t i = 0; i < a->n_rot / 2; i++) {
        float angle = (float)a->positions[row] * a->inv_freq[i];

        sincosf(angle, &scratch->sines[i], &scratch->cosines[i]);
        scratch->cosines[i] *= a->rope_mscale;
        scratch->sines[i] *= a->rope_mscale;
    }
    for (uint32_t h = 0; h < a->n_heads; h++) qkv_head(job, q + (size_t)h * a->head_dim, a->q_norm, scratch);
    for (uint32_t h = 0; h < a->n_kv_heads; h++, k += a->head_dim, v += a->head_dim) {
        qkv_head(job, k, a->k_norm, scratch);
        job->be->rows->store_kv(a->kv->layout.dtype, k, page + kv_head_offset(a->kv, a->layer, 0, h), a->head_dim);
        job->be->rows->store_kv(a->kv->layout.dtype, v, page + kv_head_offset(a->kv, a->layer, 1, h), a->head_dim);
    }
}

static void qkv_tile(void *arg, uint32_t tile, uint32_t thread)
{
    const struct qkv_job *job = arg;
    uint32_t row = tile * job->rows_per_tile, end = u32_min(row + job->rows_per_tile, job->a->n_rows);

    for (; row < end; row++) qkv_row(job, row, &job->be->attn_state->scratch[thread]);
}

rd_status cpu_qkv_rope_write(struct backend *be, const struct qkv_args *a)
{
    struct qkv_job job = {be, a, 1};
    uint32_t row_floats = (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;

    assert(a->head_dim <= LIMIT_HEAD_DIM && a->n_rot <= a->head_dim && a->n_rot % 2 == 0);
    assert(a->n_kv_heads == a->kv->layout.n_kv_heads && a->head_dim == a->kv->layout.head_dim);
    job.rows_per_tile = u32_ceil_div(QKV_FLOATS_PER_TILE, row_floats);
    cpu_pool_run(be->pool, qkv_tile, &job, u32_ceil_div(a->n_rows, job.rows_per_tile));
    return RD_OK;
}

/* ---- attention ---- */

/* First position that a row at pos sees. */
static uint32_t window_begin(const struct attention_args *a, uint32_t pos)
{
    return a->window && pos >= a->window ? pos - a->window + 1 : 0;
}

static struct attn_tile attn_resolve(const struct attn_job *job, uint32_t index)
{
    const struct attention_args *a = job->a;
    const uint32_t *tile_end = job->state->tile_end;
    uint32_t low = 0, high = a->n_runs - 1, first_row;
    struct attn_tile t;

    while (low < high) {                        /* the first run whose tiles end after index */
        uint32_t mid = low + (high - low) / 2;

        if (tile_end[mid] > index) high = mid;
        else low = mid + 1;
    }
    t.run = &a->runs[low];
    index = tile_end[low] - 1 - index;          /* the last rows see most keys: begin with them */
    t.head = index % job->head_tiles * job->heads_per_tile;
    t.n_heads = u32_min(job->heads_per_tile, job->group - t.head);
    index /= job->head_tiles;
    t.kv_head = index % a->n_kv_heads;
    t.head += t.kv_head * job->group;
    first_row = index / a->n_kv_heads * job->rows_per_tile;
    t.row = t.run->row0 + first_row;
    t.n_rows = u32_min(job->rows_per_tile, t.run->n_rows - first_row);
    t.pos = t.run->pos0 + first_row;
    t.begin = window_begin(a, t.pos);
    t.end = t.pos + t.n_rows;
    return t;
}

/* Queries of the tile to scratch, padded; pairs and sums cleared for a segment. */
static void attn_load_queries(const struct attn_job *job, const struct attn_tile *t, struct attn_scratch *scratch)
{
    const struct attention_args *a = job->a;
    float *q = scratch->q;

    for (uint32_t r = 0; r < t->n_rows; r++) {
        for (uint32_t h = 0; h < t->n_heads; h++, q += job->dim) {
            memcpy(q, a->q + (size_t)(t->row + r) * a->q_stride + (size_t)(t->head + h) * a->head_dim,
                   a->head_dim * sizeof(*q));
            memset(q + a->head_dim, 0, (job->dim - a->head_dim) * sizeof(*q));
        }
    }
}

/* Keys and values of positions begin .. end-1 (in one block) to their places in scratch, page by page. */
static void attn_load_block(const struct attn_job *job, const struct attn_tile *t, uint32_t begin, uint32_t end,
                            struct attn_scratch *scratch)
{
    const struct kv_storage *kv = job->a->kv;
    uint32_t page_tokens = kv->layout.page_tokens, n;

    for (uint32_t pos = begin; pos < end; pos += n) {
        uint32_t slot = pos % page_tokens, row = pos % ATTN_BLOCK;
        const uint8_t *page = (const uint8_t *)kv->base + t->run->block_table[pos / page_tokens] * kv->page_bytes
                              + slot * kv->row_bytes;

        n = u32_min(page_tokens - slot, end - pos);
        job->kernels->load_rows(kv->layout.dtype, page + kv_head_offset(kv, job->a->layer, 0, t->kv_head), n,
                                kv->layout.head_dim, scratch->k + (size_t)row * job->dim, job->dim);
        job->kernels->load_rows(kv->layout.dtype, page + kv_head_offset(kv, job->a->layer, 1, t->kv_head), n,
                                kv->layout.head_dim, scratch->v + (size_t)row * job->dim, job->dim);
    }
}

/* Walks one segment from nothing into pairs and acc. */
static void attn_segment(const struct attn_job *job, const struct attn_tile *t, uint32_t segment,
                         struct attn_scratch *scratch, struct attn_pair *pairs, float *acc)
{
    uint32_t n_pairs = t->n_rows * t->n_heads;
    uint32_t begin = u32_max(t->begin, segment * ATTN_SEGMENT), end = u32_min(t->end, (segment + 1) * ATTN_SEGMENT);
    struct attn_block block = {n_pairs, job->dim, job->a->scale, job->a->softcap, scratch->k, scratch->v, scratch->q,
                               acc, scratch->scores, pairs};

    for (uint32_t i = 0; i < n_pairs; i++) pairs[i] = (struct attn_pair){-INFINITY, 0, 0, 0};
    memset(acc, 0, (size_t)n_pairs * job->dim * sizeof(*acc));
    for (uint32_t base = begin - begin % ATTN_BLOCK; base < end; base += ATTN_BLOCK) {
        attn_load_block(job, t, u32_max(base, begin), u32_min(base + ATTN_BLOCK, end), scratch);
        for (uint32_t i = 0; i < n_pairs; i++) {
            uint32_t pos = t->pos + i / t->n_heads, first = window_begin(job->a, pos);

            pairs[i].lo = first > base ? u32_min(first - base, ATTN_BLOCK) : 0;
            pairs[i].hi = pos < base ? 0 : u32_min(pos - base + 1, ATTN_BLOCK);
        }
        job->kernels->block(&block);
    }
}

/* Adds a segment's result to the totals; the first that saw any key is taken as it is. */
static void attn_merge(const struct attn_job *job, uint32_t n_pairs, struct attn_pair *pairs, float *acc,
                       const struct attn_pair *segment_pairs, const float *segment_acc)
{
    for (uint32_t i = 0; i < n_pairs; i++, acc += job->dim, segment_acc += job->dim) {
        if (segment_pairs[i].l == 0) continue;          /* no visible key: a visible one counts at least exp(0) */
        if (pairs[i].l == 0) {
            pairs[i] = segment_pairs[i];
            memcpy(acc, segment_acc, job->dim * sizeof(*acc));
        } else {
            job->kernels->merge(&pairs[i], acc, &segment_pairs[i], segment_acc, job->dim);
        }
    }
}

static void attn_finish(const struct attn_job *job, const struct attn_tile *t, const struct attn_pair *pairs,
                        const float *acc)
{
    const struct attention_args *a = job->a;

    for (uint32_t r = 0; r < t->n_rows; r++) {
        float *out = a->out + (size_t)(t->row + r) * a->out_stride + (size_t)t->head * a->head_dim;

        for (uint32_t h = 0; h < t->n_heads; h++, out += a->head_dim, acc += job->dim, pairs++)
            job->kernels->finish(acc, pairs->l, out, a->head_dim);
    }
}

static uint32_t first_segment(const struct attn_tile *t) { return t->begin / ATTN_SEGMENT; }
static uint32_t last_segment(const struct attn_tile *t) { return (t->end - 1) / ATTN_SEGMENT; }

static void attn_whole(void *arg, uint32_t index, uint32_t thread)
{
    const struct attn_job *job = arg;
    struct attn_tile t = attn_resolve(job, index);
    struct attn_scratch *scratch = &job->state->scratch[thread];
    uint32_t n_pairs = t.n_rows * t.n_heads;

    attn_load_queries(job, &t, scratch);
    attn_segment(job, &t, first_segment(&t), scratch, scratch->pairs, scratch->acc);
    for (uint32_t s = first_segment(&t) + 1; s <= last_segment(&t); s++) {
        attn_segment(job, &t, s, scratch, scratch->segment_pairs, scratch->segment_acc);
        attn_merge(job, n_pairs, scratch->pairs, scratch->acc, scratch->segment_pairs, scratch->segment_acc);
    }
    attn_finish(job, &t, scratch->pairs, scratch->acc);
}

/* The part of the split buffer for (tile, i-th segment of the tile): pairs, then sums. */
static size_t split_unit_floats(const struct attn_job *job)
{
    uint32_t n_pairs = job->rows_per_tile * job->heads_per_tile;

    return (size_t)n_pairs * (sizeof(struct attn_pair) / sizeof(float) + job->dim);
}

static struct attn_pair *split_unit(const struct attn_job *job, uint32_t tile, uint32_t i, float **acc)
{
    float *unit = job->state->split + ((size_t)tile * job->n_segments + i) * split_unit_floats(job);

    *acc = unit + (size_t)job->rows_per_tile * job->heads_per_tile * (sizeof(struct attn_pair) / sizeof(float));
    return (struct attn_pair *)unit;
}

static void attn_split(void *arg, uint32_t index, uint32_t thread)
{
    const struct attn_job *job = arg;
    struct attn_tile t = attn_resolve(job, index / job->n_segments);
    struct attn_scratch *scratch = &job->state->scratch[thread];
    uint32_t segment = first_segment(&t) + index % job->n_segments;
    struct attn_pair *pairs;
    float *acc;

    if (segment > last_segment(&t)) return;
    pairs = split_unit(job, index / job->n_segments, index % job->n_segments, &acc);
    attn_load_queries(job, &t, scratch);
    attn_segment(job, &t, segment, scratch, pairs, acc);
}

static void attn_join(void *arg, uint32_t index, uint32_t thread)
{
    const struct attn_job *job = arg;
    struct attn_tile t = attn_resolve(job, index);
    uint32_t n = last_segment(&t) - first_segment(&t) + 1;
    float *acc, *segment_acc;
    struct attn_pair *pairs = split_unit(job, index, 0, &acc), *segment_pairs;

    for (uint32_t i = 1; i < n; i++) {
        segment_pairs = split_unit(job, index, i, &segment_acc);
        attn_merge(job, t.n_rows * t.n_heads, pairs, acc, segment_pairs, segment_acc);
    }
    attn_finish(job, &t, pairs, acc);
}

/* Numbers the tiles of all runs. */
static rd_status attn_plan(struct attn_job *job)
{
    const struct attention_args *a = job->a;
    struct cpu_attn_state *state = job->state;

    if (!mem_grow((void **)&state->tile_end, &state->tile_end_cap, a->n_runs, sizeof(*state->tile_end)))
        return RD_E_NOMEM;
    for (uint32_t i = 0; i < a->n_runs; i++) {
        const struct seq_run *run = &a->runs[i];
        uint32_t end = run->pos0 + run->n_rows, span;

        assert(run->n_rows > 0 && run->row0 + run->n_rows <= a->n_rows);
        span = (end - 1) / ATTN_SEGMENT - window_begin(a, run->pos0) / ATTN_SEGMENT + 1;
        job->n_segments = u32_max(job->n_segments, span);
        job->n_tiles += u32_ceil_div(run->n_rows, job->rows_per_tile) * a->n_kv_heads * job->head_tiles;
        state->tile_end[i] = job->n_tiles;
    }
    return RD_OK;
}

rd_status cpu_attention(struct backend *be, const struct attention_args *a)
{
    struct attn_job job = {.state = be->attn_state, .kernels = be->attn, .a = a};
    uint32_t n_threads = cpu_pool_n_threads(be->pool), longest = 1;
    rd_status st;

    assert(a->head_dim <= LIMIT_HEAD_DIM && a->n_heads % a->n_kv_heads == 0);
    assert(a->n_kv_heads == a->kv->layout.n_kv_heads && a->head_dim == a->kv->layout.head_dim);
    if (a->n_runs == 0) return RD_OK;
    job.dim = (a->head_dim + 15) / 16 * 16;
    job.group = a->n_heads / a->n_kv_heads;
    job.heads_per_tile = u32_min(job.group, ATTN_MAX_PAIRS);
    job.head_tiles = u32_ceil_div(job.group, job.heads_per_tile);
    for (uint32_t i = 0; i < a->n_runs; i++) longest = u32_max(longest, a->runs[i].n_rows);
    job.rows_per_tile = u32_min(ATTN_MAX_PAIRS / job.heads_per_tile, longest);
    st = attn_plan(&job);
    if (st != RD_OK) return st;
    if (n_threads > 1 && job.n_segments > 1 && job.n_tiles < 4 * n_threads
        && (uint64_t)job.n_tiles * job.n_segments * split_unit_floats(&job) <= ATTN_SPLIT_FLOATS) {
        cpu_pool_run(be->pool, attn_split, &job, job.n_tiles * job.n_segments);
        cpu_pool_run(be->pool, attn_join, &job, job.n_tiles);
    } else {
        cpu_pool_run(be->pool, attn_whole, &job, job.n_tiles);
    }
    return RD_OK;
}
