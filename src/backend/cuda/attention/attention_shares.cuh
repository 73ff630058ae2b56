/* backend/cuda/attention/attention_shares.cuh - which segments of which runs a block of attention_decode takes.
 *
 * All segments of the runs of few rows are one list: run after run, in a run its kv heads, in a head its segments. It
 * is cut into equal shares, so that blocks which all start at once also end at once, whatever the lengths are:
 *
 *     list    | run 0, head 0    | run 0, head 1    | run 1, head 0 | ..
 *     shares  |      block 0         |      block 1         |      block 2 ..
 *
 * A pair of run and head that a cut divides is merged by the block that finishes it; blocks take their divided pairs
 * first, so that this waits for no other block. Segments that a run shares with others (attention_prefix.cu) are no part of the
 * list. Every warp finds its block's place by itself, from the runs in device memory.
 */
#pragma once
#include "backend/cuda/attention/attention_fresh.cuh"
#include "backend/cuda/attention/attention_mma.cuh"

enum { COMPUTE_BARRIER = 1 }; /* of the first DECODE_THREADS of a block */

/* A lane's part of the list: runs lane * per_lane .., which begin at place `before`. */
struct segment_list {
    uint32_t per_lane, before, total;
};

/* Segments from .. to - 1 (counted within the pair) of a run and kv head. */
struct piece {
    struct cuda_run run;
    struct cuda_shared_run shared; /* what is done before the first segment */
    uint32_t run_id, kv_head;
    uint32_t first_segment, n_segments; /* of the pair; first_segment * SEGMENT is a position */
    uint32_t start;                     /* the pair's place in the list */
    uint32_t from, to;
};

/* The block's share: places at .. end - 1 are to come; of a divided pair that lies behind them, head_end. */
struct share {
    uint32_t at, end, head, head_end;
};

static __device__ __forceinline__ struct cuda_shared_run shared_of(const struct cuda_attention_args &a, uint32_t run_id)
{
    if (a.shared.head) return a.shared.runs[run_id];
    return {};
}
/* Part 0 of a member's head: o [HD], m, l, how many segments they are of, how many are shared. */
template <int HD>
static __device__ __forceinline__ float *prefix_part(const struct cuda_attention_args &a, const struct prefix_parts &p,
                                                     uint32_t member, uint32_t head)
{
    return p.at + ((uint64_t)member * a.n_heads + head) * (HD + 4);
}

/* With what is shared there is no window. */
static __device__ __forceinline__ uint32_t first_segment_of(const struct cuda_attention_args &a,
                                                            const struct cuda_run &run,
                                                            const struct cuda_shared_run &shared)
{
    if (shared.n_segments) return shared.n_segments;
    return (a.window && run.pos0 + 1 > a.window ? run.pos0 + 1 - a.window : 0) / SEGMENT;
}
/* Of one kv head; 0: the run has too many rows, or sees both ways. */
static __device__ __forceinline__ uint32_t n_segments_of(const struct cuda_attention_args &a,
                                                         const struct cuda_run &run,
                                                         const struct cuda_shared_run &shared)
{
    if (run.n_rows * (a.n_heads / a.n_kv_heads) > DECODE_ROWS || run.both_to) return 0;
    return (run.pos0 + run.n_rows + SEGMENT - 1) / SEGMENT - first_segment_of(a, run, shared);
}

/* Sum over lanes 0 .. this one. */
static __device__ __forceinline__ uint32_t warp_prefix(uint32_t v)
{
#pragma unroll
    for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, v, d);
        if (threadIdx.x % 32 >= d) v += other;
    }
    return v;
}

static __device__ __forceinline__ struct segment_list segment_list_of(const struct cuda_attention_args &a)
{
    struct segment_list list = {(a.n_runs + 31) / 32, 0, 0};
    const uint32_t first = threadIdx.x % 32 * list.per_lane;
    uint32_t n = 0;

#pragma unroll 4
    for (uint32_t i = first; i < min(first + list.per_lane, a.n_runs); i++)
        n += n_segments_of(a, a.runs[i], shared_of(a, i));
    n *= a.n_kv_heads;
    list.before = warp_prefix(n);
    list.total = __shfl_sync(0xffffffffu, list.before, 31);
    list.before -= n;
    return list;
}

/* The pair that has `place`; from and to are set as if it were whole. */
static __device__ __forceinline__ struct piece find_pair(const struct cuda_attention_args &a,
                                                         const struct segment_list &list, uint32_t place)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t owner = 31 - (uint32_t)__clz((int)__ballot_sync(0xffffffffu, list.before <= place));
    uint32_t before = __shfl_sync(0xffffffffu, list.before, owner);
    struct piece p = {};

    for (uint32_t base = owner * list.per_lane; base < a.n_runs; base += 32) {
        const struct cuda_run run = a.runs[min(base + lane, a.n_runs - 1)];
        const struct cuda_shared_run shared = shared_of(a, min(base + lane, a.n_runs - 1));
        const uint32_t n = base + lane < a.n_runs ? n_segments_of(a, run, shared) : 0;
        const uint32_t end = before + warp_prefix(n * a.n_kv_heads);
        const uint32_t found = __ballot_sync(0xffffffffu, end > place);

        if (found) {
            const uint32_t at = (uint32_t)__ffs((int)found) - 1;

            p.run_id = base + at;
            p.run.row0 = __shfl_sync(0xffffffffu, run.row0, at);
            p.run.n_rows = __shfl_sync(0xffffffffu, run.n_rows, at);
            p.run.pos0 = __shfl_sync(0xffffffffu, run.pos0, at);
            p.run.table = __shfl_sync(0xffffffffu, run.table, at);
            p.shared.n_segments = __shfl_sync(0xffffffffu, shared.n_segments, at);
            p.shared.member = __shfl_sync(0xffffffffu, shared.member, at);
            p.n_segments = __shfl_sync(0xffffffffu, n, at);
            p.start = __shfl_sync(0xffffffffu, end, at) - p.n_segments * a.n_kv_heads;
            break;
        }
        before = __shfl_sync(0xffffffffu, end, 31);
    }
    p.kv_head = (place - p.start) / p.n_segments;
    p.start += p.kv_head * p.n_segments;
    p.first_segment = first_segment_of(a, p.run, p.shared);
    p.to = p.n_segments;
    return p;
}

/* How a list of total places is cut into n_blocks <= total shares. spread: shares that are one longer lie among the
 * others, else they come first, where fewer pairs are divided. */
struct cut {
    uint32_t total, n_blocks;
    bool spread;
};

static __device__ __forceinline__ uint32_t share_begin(const struct cut &c, uint32_t block)
{
    if (c.spread) return (uint32_t)((uint64_t)block * c.total / c.n_blocks);
    return block * (c.total / c.n_blocks) + min(block, c.total % c.n_blocks);
}
/* Whose share has a place. */
static __device__ __forceinline__ uint32_t share_owner(const struct cut &c, uint32_t place)
{
    const uint32_t least = c.total / c.n_blocks, n_longer = c.total % c.n_blocks, longer = n_longer * (least + 1);

    if (c.spread) return (uint32_t)((((uint64_t)place + 1) * c.n_blocks - 1) / c.total);
    return place < longer ? place / (least + 1) : n_longer + (place - longer) / least;
}

/* The next piece of the share, after *p if not the first; false: none. */
static __device__ __forceinline__ bool next_piece(const struct cuda_attention_args &a, const struct segment_list &list,
                                                  struct share *s, struct piece *p)
{
    const uint32_t next = p->start + p->n_segments, head = s->head;

    if (s->head_end) {
        *p = find_pair(a, list, head);
        p->to = s->head_end - head;
        s->head_end = 0;
        return true;
    }
    if (s->at >= s->end) return false;
    if (p->n_segments && next == s->at && p->kv_head + 1 < a.n_kv_heads) {
        p->kv_head++;
        p->start = next;
        p->from = 0, p->to = p->n_segments;
    } else {
        *p = find_pair(a, list, s->at);
        p->from = s->at - p->start;
    }
    p->to = min(p->to, s->end - p->start);
    s->at = p->start + p->to;
    return true;
}

/* whole: shares end where pairs do. */
static __device__ __forceinline__ struct share
share_of(const struct cuda_attention_args &a, const struct segment_list &list, const struct cut &c, bool whole)
{
    struct share s = {};

    if (blockIdx.x >= c.n_blocks) return s;
    s.at = share_begin(c, blockIdx.x);
    s.end = share_begin(c, blockIdx.x + 1);
    const struct piece last = find_pair(a, list, s.end - 1);
    const uint32_t last_end = last.start + last.n_segments;
    if (whole) {
        const struct piece first = find_pair(a, list, s.at);

        if (s.at > first.start) s.at = first.start + first.n_segments;
        s.end = last_end;
    } else if (last.start > s.at && last_end > s.end) {
        s.head = last.start, s.head_end = s.end, s.end = last.start;
    }
    return s;
}

/* A divided pair's part is in scratch: true in the block that is the last to say so. By the first DECODE_THREADS. */
static __device__ __forceinline__ bool is_last_part(uint32_t *counter, uint32_t n_parts)
{
    __shared__ uint32_t is_last;

    named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
    if (threadIdx.x == 0) {
        __threadfence(); /* for all: their barrier is behind them */
        is_last = atomicAdd(counter, 1) + 1 == n_parts;
        if (is_last) *counter = 0;
        __threadfence();
    }
    named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
    return is_last;
}
