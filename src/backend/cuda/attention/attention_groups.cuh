/* backend/cuda/attention/attention_groups.cuh - which segments of which groups a block of attention_prefix takes.
 *
 * All segments are one list: group after group, in a group its tiles of 64 packed rows, of a tile its kv heads, in a
 * head the shared segments. It is cut evenly over the blocks; or, where tiles alone fill most of the device (a divided
 * tile has parts, which are written and read), each block takes those that begin in its share.
 */
#pragma once
#include "backend/cuda/attention/attention_shares.cuh"

enum { PREFIX_ROWS = 64, PREFIX_BLOCKS = 1 }; /* blocks: of an SM */

/* Segments from .. to - 1 of a tile. */
struct prefix_piece {
    uint32_t table, first_member, n_rows, kv_head, n_segments, from, to;
};

static __device__ __forceinline__ uint32_t group_tiles(const struct cuda_attention_args &a, const struct cuda_group &g)
{
    const uint32_t members = PREFIX_ROWS / (a.n_heads / a.n_kv_heads);
    return (g.n_members + members - 1) / members * a.n_kv_heads;
}

struct prefix_list {
    uint32_t n_tiles, n_segments;
};
static __device__ __forceinline__ struct prefix_list prefix_list_of(const struct cuda_attention_args &a)
{
    const uint32_t n_groups = a.shared.head->n_groups;
    struct prefix_list list = {};

    for (uint32_t i = threadIdx.x % 32; i < n_groups; i += 32) {
        const struct cuda_group g = a.shared.groups[i];
        const uint32_t n = group_tiles(a, g);

        list.n_tiles += n, list.n_segments += n * g.n_segments;
    }
    list.n_tiles = __reduce_add_sync(0xffffffffu, list.n_tiles);
    list.n_segments = __reduce_add_sync(0xffffffffu, list.n_segments);
    return list;
}

/* From `place` in the list to the end of its tile. */
static __device__ __forceinline__ struct prefix_piece find_piece(const struct cuda_attention_args &a, uint32_t place)
{
    const uint32_t lane = threadIdx.x % 32, n_groups = a.shared.head->n_groups, heads = a.n_heads / a.n_kv_heads;
    uint32_t before = 0;

    for (uint32_t base = 0;; base += 32) {
        const struct cuda_group mine = a.shared.groups[min(base + lane, n_groups - 1)];
        const uint32_t n = base + lane < n_groups ? group_tiles(a, mine) * mine.n_segments : 0;
        const uint32_t end = before + warp_prefix(n), found = __ballot_sync(0xffffffffu, end > place);

        before = __shfl_sync(0xffffffffu, end, 31);
        if (!found) continue;
        const uint32_t at = (uint32_t)__ffs((int)found) - 1, in = place - __shfl_sync(0xffffffffu, end - n, at);
        const struct cuda_group g = a.shared.groups[base + at];
        const uint32_t index = in / g.n_segments, members = PREFIX_ROWS / heads;
        const uint32_t first = index / a.n_kv_heads * members;

        return {g.table,
                g.first_member + first,
                min(g.n_members - first, members) * heads,
                index % a.n_kv_heads,
                g.n_segments,
                in % g.n_segments,
                g.n_segments};
    }
}

/* The block's places at .. end - 1. whole: of them those where a tile begins, and then all of the tile. */
struct prefix_share {
    uint32_t at, end;
    bool whole;
};
static __device__ __forceinline__ struct prefix_share prefix_share_of(const struct cuda_attention_args &a,
                                                                      const struct prefix_parts &parts)
{
    const struct prefix_list list = prefix_list_of(a);
    const uint32_t n_sms = gridDim.x / PREFIX_BLOCKS;
    const bool room = (uint64_t)a.shared.head->longest * a.shared.head->n_members * a.n_heads <= parts.n_most;
    const bool whole = list.n_tiles >= n_sms - n_sms / 4 || !room;
    const uint32_t n_blocks = min(whole && list.n_tiles <= n_sms ? n_sms : gridDim.x, list.n_segments);
    const struct cut cut = {list.n_segments, n_blocks, true};

    if (blockIdx.x >= n_blocks) return {};
    return {share_begin(cut, blockIdx.x), share_begin(cut, blockIdx.x + 1), whole};
}

static __device__ __forceinline__ bool next_piece(const struct cuda_attention_args &a, struct prefix_share *s,
                                                  struct prefix_piece *p)
{
    while (s->at < s->end) {
        *p = find_piece(a, s->at);
        if (!s->whole) p->to = min(p->n_segments, p->from + s->end - s->at);
        s->at += p->to - p->from;
        if (!s->whole || p->from == 0) return true;
    }
    return false;
}
