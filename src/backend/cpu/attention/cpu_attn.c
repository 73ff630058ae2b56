/* backend/cpu/attention/cpu_attn.c - cuts qkv_rope_write and attention into tiles; the arithmetic is in the kernels.
 *
 * Attention tile: up to ATTN_MAX_PAIRS (row, head) pairs of one run and one KV head, so that keys and values are
 * converted to floats, and keys transposed, once for all of them. Keys are walked in blocks of 64 positions, and blocks
 * are grouped into segments of 256, both at absolute positions. Each segment starts an online softmax of its own;
 * segments are merged in order, ALWAYS, whether one thread walked them or several: the split is a matter of scheduling
 * and cannot be seen in the result.
 *
 *     position  0    64   128  192  256 ...                     one tile, two ways to run it:
 *     block     |----|----|----|----|----|...                   whole:  for each segment: blocks, merge;  finish
 *     segment   |---------0---------|---------1...              split:  a unit per segment; the last to be done merges
 *
 * Splitting is for few tiles and long contexts (decode). Its buffer is fixed; what does not fit runs whole.
 * Scratch is mapped once for the largest legal head and touched as far as a model needs it: ops allocate nothing,
 * except that more runs than ever before grow the plan.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "backend/cpu/attention/attn_math.h"
#include "backend/cpu/attention/attn_tiles.h"
#include "backend/cpu/rows/kv_quant.h"
#include "backend/cpu/rows/row_kernels.h"
#include "base/mem.h"
#include "base/os_machine.h"

#define ATTN_FIRST_RUNS     64u
#define QKV_FLOATS_PER_TILE 4096u /* less is not worth waking a thread for */

rd_status cpu_attn_create(struct backend *be)
{
    struct cpu_attn_state *state = mem_zalloc(1, sizeof(*state));

    be->attn = cpu_kernels[be->isa].attn;
    be->rows = cpu_kernels[be->isa].rows;
    be->attn_state = state;
    if (!state) return RD_E_NOMEM;
    state->n_threads = cpu_pool_n_threads(be->pool);
    state->scratch = mem_map(state->n_threads * sizeof(*state->scratch));
    state->split = mem_map(ATTN_SPLIT_FLOATS * sizeof(*state->split));
    state->n_left = mem_zalloc((size_t)state->n_threads * ATTN_TILES_PER_THREAD, sizeof(*state->n_left));
    if (!state->scratch || !state->split || !state->n_left) return RD_E_NOMEM;
    if (!mem_grow((void **)&state->tile_end, &state->tile_end_cap, ATTN_FIRST_RUNS, sizeof(*state->tile_end)))
        return RD_E_NOMEM;
    return attn_sharing_create(state);
}

void cpu_attn_destroy(struct backend *be)
{
    struct cpu_attn_state *state = be->attn_state;

    if (!state) return;
    if (state->scratch) mem_unmap(state->scratch, state->n_threads * sizeof(*state->scratch));
    if (state->split) mem_unmap(state->split, ATTN_SPLIT_FLOATS * sizeof(*state->split));
    mem_free(state->n_left);
    mem_free(state->tile_end);
    attn_sharing_destroy(state);
    mem_free(state);
    be->attn_state = NULL;
}

/* ---- qkv_rope_write ---- */

struct qkv_job {
    struct backend *be;
    const struct qkv_args *a;
    uint32_t rows_per_tile;
};

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

static const float *kv_head_bias(const struct weight *bias, uint32_t kv_head, uint32_t head_dim)
{
    return bias ? (const float *)bias->data + (size_t)kv_head * head_dim : NULL;
}

static void qkv_row(const struct qkv_job *job, uint32_t row, struct attn_scratch *scratch)
{
    const struct qkv_args *a = job->a;
    float *q = cpu_at(a->q) + (size_t)row * a->q_stride, *k = cpu_at(a->k) + (size_t)row * a->k_stride;
    const float *v = cpu_at(a->v) + (size_t)row * a->v_stride, *inv_freq = a->inv_freq->data;
    const struct kv_layout *l = &a->kv->layout;
    uint8_t *page = kv_page_at(a->kv, a->row_page[row]);
    uint64_t at_k = a->row_slot[row] * a->kv->row_bytes[0], at_v = a->row_slot[row] * a->kv->row_bytes[1];

    for (uint32_t i = 0; i < a->n_rot / 2; i++) {
        uint32_t position = a->axes ? a->axes[(size_t)a->axis_of[i] * a->n_rows + row] : a->positions[row];
        float angle = (float)position * inv_freq[i];

        os_sincosf(angle, &scratch->sines[i], &scratch->cosines[i]);
        scratch->cosines[i] *= a->rope_mscale;
        scratch->sines[i] *= a->rope_mscale;
    }
    for (uint32_t h = 0; h < a->n_heads; h++) qkv_head(job, q + (size_t)h * a->head_dim, a->q_norm, scratch);
    for (uint32_t h = 0; h < a->n_kv_heads; h++, k += a->head_dim, v += a->head_dim) {
        qkv_head(job, k, a->k_norm, scratch);
        if (kv_type_turns(l->dtype_k)) {
            if (a->k_bias) {
                kv_balance(kv_head_bias(a->k_bias, h, a->head_dim), a->head_dim, a->layout, a->n_rot, true,
                           scratch->rows);
                for (uint32_t i = 0; i < a->head_dim; i++) k[i] *= scratch->rows[i];
            }
            kv_turn(k, a->head_dim, kv_key_factor(a->head_dim));
        }
        job->be->rows->store_kv(l->dtype_k, k, page + kv_head_offset(a->kv, a->layer, 0, h) + at_k, a->head_dim);
        job->be->rows->store_kv(l->dtype_v, v, page + kv_head_offset(a->kv, a->layer, 1, h) + at_v, a->head_dim);
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

static struct attn_tile attn_resolve(const struct attn_job *job, uint32_t index)
{
    const struct attention_args *a = job->a;
    const uint32_t *tile_end = job->state->tile_end;
    uint32_t low = 0, high = a->n_runs - 1, first_row;
    struct attn_tile t = {0};

    while (low < high) { /* the first run whose tiles end after index */
        uint32_t mid = low + (high - low) / 2;

        if (tile_end[mid] > index)
            high = mid;
        else
            low = mid + 1;
    }
    t.run = &a->runs[low];
    index = tile_end[low] - 1 - index; /* the last rows see most keys: begin with them */
    t.head = index % job->head_tiles * job->heads_per_tile;
    t.n_heads = u32_min(job->heads_per_tile, job->group - t.head);
    index /= job->head_tiles;
    t.kv_head = index % a->n_kv_heads;
    t.head += t.kv_head * job->group;
    first_row = index / a->n_kv_heads * job->rows_per_tile;
    t.row = t.run->row0 + first_row;
    t.n_rows = u32_min(job->rows_per_tile, t.run->n_rows - first_row);
    t.pos = t.run->pos0 + first_row;
    t.begin = attn_window_begin(a, t.pos);
    t.end = attn_sees_to(t.run, t.pos + t.n_rows - 1);
    return t;
}

void attn_load_queries(const struct attn_job *job, const struct attn_tile *t, struct attn_scratch *scratch)
{
    const struct attention_args *a = job->a;
    bool turned = kv_type_turns(a->kv->layout.dtype_k);
    float *q = scratch->q;

    if (turned && a->k_bias)
        kv_balance(kv_head_bias(a->k_bias, t->kv_head, a->head_dim), a->head_dim, a->layout, a->n_rot, false,
                   scratch->rows);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const float *x = cpu_at(a->q) + (size_t)attn_tile_row(t, r).row * a->q_stride + (size_t)t->head * a->head_dim;

        for (uint32_t h = 0; h < t->n_heads; h++, q += job->dim, x += a->head_dim) {
            for (uint32_t i = 0; i < a->head_dim; i++) q[i] = x[i] * job->query_scale;
            if (turned && a->k_bias)
                for (uint32_t i = 0; i < a->head_dim; i++) q[i] *= scratch->rows[i];
            if (turned) kv_turn(q, a->head_dim, kv_query_factor(a->head_dim));
            memset(q + a->head_dim, 0, (job->dim - a->head_dim) * sizeof(*q));
        }
    }
}

/* Where positions pos .. end-1 of K (which = 0) or V (1) are stored, as far as they share a page. *n: how many do. */
static const uint8_t *stored_rows(const struct attn_job *job, const struct attn_tile *t, uint32_t which, uint32_t pos,
                                  uint32_t end, uint32_t *n)
{
    const struct kv_storage *kv = job->a->kv;
    uint32_t page_tokens = kv->layout.page_tokens, slot = pos % page_tokens;

    *n = u32_min(page_tokens - slot, end - pos);
    return kv_page_at(kv, t->run->block_table[pos / page_tokens]) +
           kv_head_offset(kv, job->a->layer, which, t->kv_head) + slot * kv->row_bytes[which];
}

/* Positions begin .. end-1 (in one block) of K (which = 0) or V (1) to rows of floats, page by page. */
static void attn_load_rows(const struct attn_job *job, const struct attn_tile *t, uint32_t which, uint32_t begin,
                           uint32_t end, float *rows)
{
    const struct kv_layout *l = &job->a->kv->layout;
    enum dtype dtype = which ? l->dtype_v : l->dtype_k;
    uint32_t n;

    for (uint32_t pos = begin; pos < end; pos += n, rows += (size_t)n * job->dim) {
        const uint8_t *stored = stored_rows(job, t, which, pos, end, &n);

        job->kernels->load_rows(dtype, stored, n, l->head_dim, rows, job->dim);
    }
}

/* Asks for the stored form of K or V of positions begin .. end-1. */
static void attn_prefetch(const struct attn_job *job, const struct attn_tile *t, uint32_t which, uint32_t begin,
                          uint32_t end)
{
    uint32_t n;

    for (uint32_t pos = begin; pos < end; pos += n) {
        const uint8_t *stored = stored_rows(job, t, which, pos, end, &n);

        for (uint64_t at = 0; at < n * job->a->kv->row_bytes[which]; at += ATTN_LINE)
            __builtin_prefetch(stored + at, 0, 2);
    }
}

/* Notes the stored form of positions begin .. end-1 (of one block) of a run's pages. */
static void attn_note(const struct attn_job *job, const struct attn_tile *t, uint32_t begin, uint32_t end,
                      struct attn_ahead *ahead)
{
    uint32_t n;

    for (uint32_t which = 0; which < 2; which++)
        for (uint32_t pos = begin; pos < end; pos += n) {
            struct attn_ahead_part *part = &ahead->part[ahead->n++];

            part->at = stored_rows(job, t, which, pos, end, &n);
            part->n_lines = u32_ceil_div(n * (uint32_t)job->a->kv->row_bytes[which], ATTN_LINE);
        }
}

/* Notes what comes after the block that ends at begin: the next; in the last n_ends blocks, one run's own end each. */
static void attn_note_ahead(const struct attn_job *job, const struct attn_tile *t, uint32_t begin,
                            struct attn_ahead *ahead)
{
    uint32_t n_left = (t->end - begin) / ATTN_BLOCK;

    ahead->n = 0;
    attn_note(job, t, begin, u32_min(t->end, begin + ATTN_BLOCK), ahead);
    if (n_left < t->n_ends) {
        struct attn_tile own = {.run = &t->ends[t->n_ends - 1 - n_left], .kv_head = t->kv_head};

        attn_note(job, &own, t->end, u32_min(own.run->pos0 + own.run->n_rows, t->end + ATTN_BLOCK), ahead);
    }
}

/* Keys and values of positions begin .. end-1 (in one block) to their places in scratch. The next block is asked for:
 * here, or by the kernel where it has many pairs. */
static void attn_load_block(const struct attn_job *job, const struct attn_tile *t, uint32_t begin, uint32_t end,
                            struct attn_scratch *scratch)
{
    uint32_t next;
    bool many = t->n_rows * t->n_heads >= ATTN_MANY_PAIRS;

    scratch->ahead.n = 0;
    if (!many) attn_prefetch(job, t, 1, begin, end);
    for (uint32_t pos = begin; pos < end; pos = next) {
        uint32_t column = pos % ATTN_BLOCK / ATTN_LANES * ATTN_LANES;

        next = u32_min(pos - pos % ATTN_LANES + ATTN_LANES, end);
        attn_load_rows(job, t, 0, pos, next, scratch->rows + (size_t)(pos % ATTN_LANES) * job->dim);
        job->kernels->transpose(scratch->rows, job->dim, scratch->k + column);
    }
    if (many)
        attn_note_ahead(job, t, end, &scratch->ahead);
    else
        attn_prefetch(job, t, 0, end, u32_min(t->end, end + ATTN_BLOCK));
    attn_load_rows(job, t, 1, begin, end, scratch->v + (size_t)(begin % ATTN_BLOCK) * job->dim);
}

/* Which keys of the block at base each pair sees. */
static void attn_see(const struct attn_job *job, const struct attn_tile *t, uint32_t base, struct attn_scratch *scratch)
{
    for (uint32_t r = 0, i = 0; r < t->n_rows; r++) {
        uint32_t pos = attn_tile_row(t, r).pos, first = attn_window_begin(job->a, pos);
        uint32_t end = attn_sees_to(t->run, pos); /* of a run that shares pages: pos + 1, those have no span */

        for (uint32_t h = 0; h < t->n_heads; h++, i++) {
            scratch->lo[i] = first > base ? u32_min(first - base, ATTN_BLOCK) : 0;
            scratch->hi[i] = end <= base ? 0 : u32_min(end - base, ATTN_BLOCK);
        }
    }
}

void attn_segment(const struct attn_job *job, const struct attn_tile *t, uint32_t segment, struct attn_scratch *scratch,
                  struct attn_sums sums)
{
    uint32_t n_pairs = t->n_rows * t->n_heads, all_from = 0, all_to = UINT32_MAX; /* what all rows see */
    uint32_t begin = u32_max(t->begin, segment * ATTN_SEGMENT), end = u32_min(t->end, (segment + 1) * ATTN_SEGMENT);
    struct attn_block block = {.n_pairs = n_pairs,
                               .head_dim = job->a->head_dim,
                               .dim = job->dim,
                               .softcap = job->a->softcap,
                               .q = scratch->q + (size_t)t->first_pair * job->dim,
                               .k = scratch->k,
                               .v = scratch->v,
                               .lo = scratch->lo,
                               .hi = scratch->hi,
                               .sums = sums,
                               .ahead = &scratch->ahead};

    for (uint32_t r = 0; r < t->n_rows; r++) {
        uint32_t pos = attn_tile_row(t, r).pos;

        all_from = u32_max(all_from, attn_window_begin(job->a, pos));
        all_to = u32_min(all_to, attn_sees_to(t->run, pos));
    }
    for (uint32_t i = 0; i < n_pairs; i++) sums.m[i] = -INFINITY;
    memset(sums.l, 0, (size_t)n_pairs * ATTN_LANES * sizeof(*sums.l));
    memset(sums.acc, 0, (size_t)n_pairs * job->dim * sizeof(*sums.acc));
    for (uint32_t base = begin - begin % ATTN_BLOCK; base < end; base += ATTN_BLOCK) {
        bool whole = base >= all_from && base + ATTN_BLOCK <= all_to;

        attn_load_block(job, t, u32_max(base, begin), u32_min(base + ATTN_BLOCK, end), scratch);
        if (!whole || !block.whole) attn_see(job, t, base, scratch);
        block.whole = whole;
        job->kernels->block(&block);
    }
}

void attn_finish(const struct attn_job *job, const struct attn_tile *t, struct attn_sums sums)
{
    const struct attention_args *a = job->a;

    for (uint32_t r = 0; r < t->n_rows; r++) {
        float *out = cpu_at(a->out) + (size_t)attn_tile_row(t, r).row * a->out_stride + (size_t)t->head * a->head_dim;

        for (uint32_t h = 0; h < t->n_heads; h++, out += a->head_dim, sums.acc += job->dim, sums.l += ATTN_LANES)
            job->kernels->finish(sums.acc, sums.l, out, a->head_dim);
    }
}

static uint32_t first_segment(const struct attn_tile *t)
{
    return t->begin / ATTN_SEGMENT;
}
static uint32_t last_segment(const struct attn_tile *t)
{
    return (t->end - 1) / ATTN_SEGMENT;
}

static void attn_whole(void *arg, uint32_t index, uint32_t thread)
{
    const struct attn_job *job = arg;
    struct attn_tile t = attn_resolve(job, index);
    struct attn_scratch *scratch = &job->state->scratch[thread];
    struct attn_sums total = {scratch->m[0], scratch->l[0], scratch->acc[0]};
    struct attn_sums present = {scratch->m[1], scratch->l[1], scratch->acc[1]};

    attn_load_queries(job, &t, scratch);
    attn_segment(job, &t, first_segment(&t), scratch, total);
    for (uint32_t s = first_segment(&t) + 1; s <= last_segment(&t); s++) {
        attn_segment(job, &t, s, scratch, present);
        job->kernels->merge(t.n_rows * t.n_heads, job->dim, &total, &present);
    }
    attn_finish(job, &t, total);
}

static size_t split_unit_floats(const struct attn_job *job)
{
    return (size_t)u32_ceil_div(job->rows_per_tile * job->heads_per_tile, ATTN_LANES) * ATTN_LANES *
           (1 + ATTN_LANES + job->dim);
}

/* The part of the split buffer for (tile, i-th segment of the tile). */
static struct attn_sums split_unit(const struct attn_job *job, uint32_t tile, uint32_t i)
{
    float *m = job->state->split + ((size_t)tile * job->n_segments + i) * split_unit_floats(job);
    size_t n_pairs = u32_ceil_div(job->rows_per_tile * job->heads_per_tile, ATTN_LANES) * ATTN_LANES;

    return (struct attn_sums){m, m + n_pairs, m + n_pairs * (1 + ATTN_LANES)};
}

static void attn_split(void *arg, uint32_t index, uint32_t thread)
{
    const struct attn_job *job = arg;
    uint32_t tile = index / job->n_segments, segment = index % job->n_segments;
    struct attn_tile t = attn_resolve(job, tile);
    uint32_t n = last_segment(&t) - first_segment(&t) + 1;
    struct attn_scratch *scratch = &job->state->scratch[thread];
    struct attn_sums total = split_unit(job, tile, 0);

    if (segment >= n) return;
    attn_load_queries(job, &t, scratch);
    attn_segment(job, &t, first_segment(&t) + segment, scratch, split_unit(job, tile, segment));
    /* acq_rel: what the others wrote before they counted down is seen by the last */
    if (atomic_fetch_sub_explicit(&job->state->n_left[tile], 1, memory_order_acq_rel) > 1) return;
    for (uint32_t i = 1; i < n; i++) {
        struct attn_sums later = split_unit(job, tile, i);

        job->kernels->merge(t.n_rows * t.n_heads, job->dim, &total, &later);
    }
    attn_finish(job, &t, total);
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
        uint32_t end = attn_sees_to(run, run->pos0 + run->n_rows - 1), span;

        assert(run->n_rows > 0 && run->row0 + run->n_rows <= a->n_rows);
        span = (end - 1) / ATTN_SEGMENT - attn_window_begin(a, run->pos0) / ATTN_SEGMENT + 1;
        job->n_segments = u32_max(job->n_segments, span);
        job->n_tiles += u32_ceil_div(run->n_rows, job->rows_per_tile) * a->n_kv_heads * job->head_tiles;
        state->tile_end[i] = job->n_tiles;
    }
    return RD_OK;
}

uint32_t attn_most_pairs(const struct attn_job *job)
{
    return u32_max(u32_min(ATTN_MAX_PAIRS, ATTN_TILE_FLOATS / 2 / job->dim), 32);
}

/* Cuts heads and rows: large tiles for speed, but enough of them for every thread. */
static void attn_cut(struct attn_job *job, uint32_t n_threads)
{
    const struct attention_args *a = job->a;
    uint32_t most = attn_most_pairs(job), longest = 1, even;

    for (uint32_t i = 0; i < a->n_runs; i++) longest = u32_max(longest, a->runs[i].n_rows);
    even = u32_ceil_div(a->n_rows * a->n_kv_heads * job->head_tiles, n_threads * ATTN_TILES_PER_THREAD);
    even = u32_max(even, ATTN_LEAST_PAIRS / job->heads_per_tile);
    job->rows_per_tile = u32_max(1, u32_min(u32_min(most / job->heads_per_tile, longest), even));
}

rd_status cpu_attention(struct backend *be, const struct attention_args *a)
{
    struct attn_job job = {.state = be->attn_state, .kernels = be->attn, .a = a};
    struct attention_args own = *a;
    uint32_t n_threads = cpu_pool_n_threads(be->pool);
    rd_status st;

    assert(a->head_dim <= LIMIT_HEAD_DIM && a->n_heads % a->n_kv_heads == 0);
    assert(a->n_kv_heads == a->kv->layout.n_kv_heads && a->head_dim == a->kv->layout.head_dim);
    if (a->n_runs == 0) return RD_OK;
    job.dim = u32_ceil_div(a->head_dim, ATTN_LANES) * ATTN_LANES;
    job.group = a->n_heads / a->n_kv_heads;
    job.query_scale = attn_query_scale(a->scale, a->softcap);
    job.heads_per_tile = u32_min(job.group, attn_most_pairs(&job));
    job.head_tiles = u32_ceil_div(job.group, job.heads_per_tile);
    st = attn_shared(be, &job, &own.runs, &own.n_runs);
    if (st != RD_OK || own.n_runs == 0) return st;
    job.a = a = &own;
    attn_cut(&job, n_threads);
    st = attn_plan(&job);
    if (st != RD_OK) return st;
    if (n_threads == 1 || job.n_segments == 1 || job.n_tiles >= n_threads * ATTN_TILES_PER_THREAD ||
        (uint64_t)job.n_tiles * job.n_segments * split_unit_floats(&job) > ATTN_SPLIT_FLOATS) {
        cpu_pool_run(be->pool, attn_whole, &job, job.n_tiles);
        return RD_OK;
    }
    for (uint32_t i = 0; i < job.n_tiles; i++) {
        struct attn_tile t = attn_resolve(&job, i);

        atomic_store_explicit(&job.state->n_left[i], last_segment(&t) - first_segment(&t) + 1, memory_order_relaxed);
    }
    cpu_pool_run(be->pool, attn_split, &job, job.n_tiles * job.n_segments);
    return RD_OK;
}
