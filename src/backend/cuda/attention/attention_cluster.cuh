/* backend/cuda/attention/attention_cluster.cuh - a run's blocks as a cluster, one segment each: every block merges its share of
 * the output pairs, which the others send to it.
 *
 * What is sent counts on a barrier of the receiver, so a block waits for what it needs and for nothing else; none waits
 * for others to have read. Order of sums: attention_mma.cuh.
 */
#pragma once
#include "backend/cuda/attention/attention_fresh.cuh"
#include "backend/cuda/hopper_ptx.cuh"

/* At `at` of every block: for each segment its `share` pairs of o, then m and l of each packed row. */
struct cluster_parts {
    uint32_t at, bar, share, n_pairs, n_packed;
};
enum { CLUSTER_SEGMENTS = 8 };

static __device__ __host__ __forceinline__ uint32_t cluster_part_bytes(uint32_t share, uint32_t n_packed)
{
    return (share + n_packed) * 8;
}

/* How many pairs block `rank` merges. */
static __device__ __forceinline__ uint32_t cluster_pairs(const struct cluster_parts &c, uint32_t rank)
{
    return rank * c.share < c.n_pairs ? min(c.n_pairs - rank * c.share, c.share) : 0;
}

/* To be followed by cluster_wait before anything is sent or merged. */
template <int HD>
static __device__ __forceinline__ void cluster_begin(const struct cluster_parts &c, uint32_t n_segments)
{
    const uint32_t mine = cluster_pairs(c, blockIdx.x);

    if (threadIdx.x == 0) {
        mbar_init(c.bar, 1);
        mbar_init_fence();
        mbar_expect(c.bar, mine ? n_segments * cluster_part_bytes(mine, c.n_packed) : 0);
    }
    cluster_arrive();
}

/* The block's segment to those that merge it. */
template <int HD, int N>
static __device__ __forceinline__ void cluster_send(const struct cluster_parts &c, uint32_t segment,
                                                    const float (&o)[N][4], const float (&m)[2], const float (&l)[2])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t part = c.at + segment * cluster_part_bytes(c.share, c.n_packed);

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t row = lane / 4 + 8 * r, to = warp + lane % 4 * 4;

        if (row >= c.n_packed) continue;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t i = row * (HD / 2) + (warp * N + n) * 4 + lane % 4, block = i / c.share;

            cluster_store2(cluster_address(part + i % c.share * 8, block), cluster_address(c.bar, block), o[n][2 * r],
                           o[n][2 * r + 1]);
        }
        if (to < gridDim.x && cluster_pairs(c, to)) /* all warps know m and l */
            cluster_store2(cluster_address(part + (c.share + row) * 8, to), cluster_address(c.bar, to), m[r], l[r]);
    }
}

/* The block's share of the outputs. */
template <int HD>
static __device__ __forceinline__ void cluster_merge(const struct cuda_attention_args &a, const struct cluster_parts &c,
                                                     const struct cuda_run &run, uint32_t kv_head, uint32_t n_segments)
{
    const uint32_t mine = cluster_pairs(c, blockIdx.x), bytes = cluster_part_bytes(c.share, c.n_packed);

    if (threadIdx.x >= mine) return;
    cluster_mbar_wait(c.bar, 0);
    for (uint32_t i = threadIdx.x; i < mine; i += DECODE_THREADS) {
        const uint32_t pair = blockIdx.x * c.share + i, row = pair / (HD / 2), d = pair % (HD / 2) * 2;
        struct row_state state = {{-INFINITY, -INFINITY}, {0, 0}};
        float2 v[CLUSTER_SEGMENTS], ml[CLUSTER_SEGMENTS];
        float x = 0, y = 0;

#pragma unroll
        for (uint32_t k = 0; k < CLUSTER_SEGMENTS; k++) {
            if (k >= n_segments) break;
            v[k] = shared_load2(c.at + k * bytes + i * 8);
            ml[k] = shared_load2(c.at + k * bytes + (c.share + row) * 8);
        }
#pragma unroll
        for (uint32_t k = 0; k < CLUSTER_SEGMENTS; k++) {
            if (k >= n_segments) break;
            const float m[2] = {ml[k].x, ml[k].x};
            const struct merge_factors f = merge_begin(&state, m);

            state.l[0] = merge_value(state.l[0], ml[k].y, f.old[0], f.add[0]);
            x = merge_value(x, v[k].x, f.old[0], f.add[0]);
            y = merge_value(y, v[k].y, f.old[0], f.add[0]);
        }
        write_pair(a, run, kv_head, row, d, __fdiv_rn(x, state.l[0]), __fdiv_rn(y, state.l[0]));
    }
}
