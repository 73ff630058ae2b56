/* backend/cuda/attention/attention_decode.cu - paged attention for runs of few rows; order of sums in attention_mma.cuh.
 *
 * A block of 4 warps takes all packed rows (at most 16: a tile of the tensor core) of one run and kv head, so that each
 * key and value is read once, and some of the run's segments. In a segment warp w scores keys 32 w .. 32 w + 31; the
 * probabilities meet in shared memory; then warp w sums dims w * HD / 4 .. over all keys: no sum crosses warps.
 * Where runs alone do not fill the device, gridDim.x blocks share a run's segments. Each then leaves every segment's
 * m, l, o in scratch, and the block that arrives last merges them in order: the same operations as in one block. Up to 8
 * segments of few runs go to a cluster, which keeps them in shared memory (attention_cluster.cuh).
 * FUSED, runs of one row: the block norms and rotates its queries as they come from the product, the block with the
 * last segment the key, too; key and value go to their page, and from shared memory to the tiles. Everything older is
 * asked for before dependency_wait.
 * Where attention_stream takes the work it is faster: this one is for few segments, heads of 64, odd pages, and sm_80.
 * Bytes: K and V once. Bound: memory; three blocks on an SM keep about 100 KB in flight. H200: one run of 512 keys takes
 * 4 us, all of it latency.
 */
#include "backend/cuda/attention/attention_cluster.cuh"
#include "backend/cuda/attention/attention_fresh.cuh"
#include "backend/cuda/attention/attention_paths.h"
#include "tensor/dtype.h"

struct decode_split {
    float *scratch;                      /* [run, kv_head, max_segments, rows, HD + 2] if gridDim.x > 1 */
    uint32_t rows;                       /* packed rows that a run can have, at most DECODE_ROWS */
    uint32_t *counters;                  /* [run, kv_head] */
    uint32_t max_segments, min_segments; /* that a run can have; that a block takes at least */
    uint32_t in_cluster;                 /* a run's blocks are a cluster, with one segment each at most: no scratch */
};

/* A segment's part of one packed row in scratch: o [HD], m, l. */
template <int HD>
static __device__ __forceinline__ float *scratch_row(const struct decode_split &split, uint32_t pair, uint32_t segment,
                                                     uint32_t row)
{
    return split.scratch + (((uint64_t)pair * split.max_segments + segment) * split.rows + row) * (HD + 2);
}

/* A block's segment to scratch. */
template <int HD, int N>
static __device__ __forceinline__ void scratch_put(const struct decode_split &split, uint32_t pair, uint32_t segment,
                                                   uint32_t n_packed, const float (&o)[N][4], const float (&m)[2],
                                                   const float (&l)[2])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (lane / 4 + 8 * r >= n_packed) continue;
        float *to = scratch_row<HD>(split, pair, segment, lane / 4 + 8 * r);

#pragma unroll
        for (int n = 0; n < N; n++)
            *(float2 *)(to + (warp * N + n) * 8 + lane % 4 * 2) = make_float2(o[n][2 * r], o[n][2 * r + 1]);
        if (warp == 0 && lane % 4 == 0) *(float2 *)(to + HD) = make_float2(m[r], l[r]);
    }
}

/* The last block of a run: all segments in order. */
template <int HD>
static __device__ __forceinline__ void merge_segments(const struct cuda_attention_args &a,
                                                      const struct decode_split &split, const struct cuda_run &run,
                                                      uint32_t kv_head, uint32_t pair, uint32_t n_segments)
{
    const uint32_t n_packed = run.n_rows * (a.n_heads / a.n_kv_heads);

    for (uint32_t i = threadIdx.x; i < n_packed * (HD / 2); i += DECODE_THREADS) {
        const uint32_t row = i / (HD / 2), d = i % (HD / 2) * 2;
        struct row_state state = {{-INFINITY, -INFINITY}, {0, 0}};
        float x = 0, y = 0;

#pragma unroll 4
        for (uint32_t k = 0; k < n_segments; k++) {
            const float *from = scratch_row<HD>(split, pair, k, row);
            const float2 v = __ldcg((const float2 *)(from + d)), ml = __ldcg((const float2 *)(from + HD));
            const float m[2] = {ml.x, ml.x};
            const struct merge_factors f = merge_begin(&state, m);

            state.l[0] = merge_value(state.l[0], ml.y, f.old[0], f.add[0]);
            x = merge_value(x, v.x, f.old[0], f.add[0]);
            y = merge_value(y, v.y, f.old[0], f.add[0]);
        }
        write_pair(a, run, kv_head, row, d, __fdiv_rn(x, state.l[0]), __fdiv_rn(y, state.l[0]));
    }
}

template <typename T, int HD, bool FUSED>
__global__ void __launch_bounds__(DECODE_THREADS, HD == 256 ? 1 : 3)
    attention_decode(const __grid_constant__ struct cuda_attention_args a,
                     const __grid_constant__ struct decode_split split, const __grid_constant__ struct cuda_qkv_args f)
{
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ float warp_max[4][DECODE_ROWS];
    __shared__ uint32_t is_last;
    __shared__ uint64_t met;
    __shared__ __align__(16) uint16_t fresh[2][FUSED ? HD : 1];
    constexpr uint32_t tile_bytes = SEGMENT * HD * 2;
    constexpr int N = HD / 32; /* tiles of 8 dims that a warp sums */
    const uint32_t k_tile = smem_u32(smem), v_tile = k_tile + tile_bytes, q_tile = v_tile + tile_bytes;
    const uint32_t p_tile = q_tile + DECODE_ROWS * HD * 2;
    const uint32_t kv_head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t pair = blockIdx.z * a.n_kv_heads + kv_head;

    if (!FUSED) dependency_wait();
    dependents_launch();
    const struct cuda_run run = a.runs[blockIdx.z];
    const uint32_t n_packed = run.n_rows * (a.n_heads / a.n_kv_heads);
    if (n_packed == 0 || n_packed > DECODE_ROWS || run.both_to) return; /* padding has no rows */

    const uint32_t first_key = a.window && run.pos0 + 1 > a.window ? run.pos0 + 1 - a.window : 0;
    const uint32_t first_segment = first_key / SEGMENT, n_keys = run.pos0 + run.n_rows;
    const uint32_t n_segments = (n_keys + SEGMENT - 1) / SEGMENT - first_segment;
    const uint32_t share = max((n_segments + gridDim.x - 1) / gridDim.x, split.min_segments);
    const uint32_t n_blocks = (n_segments + share - 1) / share;
    const uint32_t from = blockIdx.x * share, to = min(from + share, n_segments);
    const bool works = blockIdx.x < n_blocks;
    if (!works && !split.in_cluster) return;

    const struct row_window window = row_window_of(a, run, 0);
    const struct score_scale scale = score_scale_of(a.scale, a.softcap);
    const struct kv_source keys = kv_source_of(a.kv, a.tables + run.table, kv_head, n_keys, false);
    const struct kv_source values = kv_source_of(a.kv, a.tables + run.table, kv_head, n_keys, true);
    const uint32_t skip = FUSED ? run.pos0 : ~0u;
    struct row_state state = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[N][4] = {};
    const uint32_t n_pairs = n_packed * (HD / 2);
    const struct cluster_parts parts = {p_tile + DECODE_ROWS * SEGMENT * 2, smem_u32(&met),
                                        (n_pairs + gridDim.x - 1) / gridDim.x, n_pairs, n_packed};

#if __CUDA_ARCH__ >= 900
    if (split.in_cluster && n_blocks > 1) cluster_begin<HD>(parts, n_segments);
#endif
    if (works) load_segment<HD, DECODE_THREADS>(k_tile, keys, (first_segment + from) * SEGMENT, skip);
    async_commit();
    if (works) load_segment<HD, DECODE_THREADS>(v_tile, values, (first_segment + from) * SEGMENT, skip);
    async_commit();
    if (!works) {
    } else if constexpr (FUSED) {
        fresh_row<T, HD>(f, run.row0, kv_head, to == n_segments, q_tile, fresh);
        __syncthreads();
    } else {
        load_queries<T, HD, DECODE_THREADS, DECODE_ROWS>(q_tile, a, run, kv_head, 0);
    }
    for (uint32_t i = from; i < to; i++) {
        const uint32_t base = (first_segment + i) * SEGMENT;
        uint32_t p[SEGMENT / 16][4];
        float s[4][4], max[2], m[2], l[2];

        async_wait<1>();
        if constexpr (FUSED)
            if (i + 1 == n_segments) place_fresh<HD, false>(fresh[0], k_tile, run.pos0 - base);
        __syncthreads();
        score_tile<T, HD, 4>(s, q_tile, k_tile, warp * 32);
        scale_and_mask<4>(s, max, scale, window, base + warp * 32);
        if (lane % 4 == 0) warp_max[warp][lane / 4] = max[0], warp_max[warp][lane / 4 + 8] = max[1];
        __syncthreads(); /* all warps are done with K */
        if (i + 1 < to) load_segment<HD, DECODE_THREADS>(k_tile, keys, base + SEGMENT, skip);
        async_commit();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t row = lane / 4 + 8 * r;
            max[r] = fmaxf(fmaxf(warp_max[0][row], warp_max[1][row]), fmaxf(warp_max[2][row], warp_max[3][row]));
            m[r] = max[r] == -INFINITY ? 0.0f : max[r];
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t chunk = warp * 4 + j * 2, in = lane % 4 * 4;

            probabilities<T>(p[0], s[2 * j], s[2 * j + 1], m);
#pragma unroll
            for (int r = 0; r < 4; r++)
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(
                                 tile_at(p_tile, SEGMENT * 2, lane / 4 + r % 2 * 8, chunk + r / 2) + in),
                             "r"(p[0][r])
                             : "memory");
        }
        async_wait<1>();
        if constexpr (FUSED)
            if (i + 1 == n_segments) place_fresh<HD, false>(fresh[1], v_tile, run.pos0 - base);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < SEGMENT / 16; j++)
            ldmatrix4(p[j], tile_at(p_tile, SEGMENT * 2, lane / 8 % 2 * 8 + lane % 8, j * 2 + lane / 16));
        sum_probabilities<T>(l, p);
        struct merge_factors f = {{0, 0}, {1, 1}};
        if (n_blocks == 1) {
            f = merge_begin(&state, max);
            state.l[0] = merge_value(state.l[0], l[0], f.old[0], f.add[0]);
            state.l[1] = merge_value(state.l[1], l[1], f.old[1], f.add[1]);
        } else {
#pragma unroll
            for (int n = 0; n < N; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = -0.0f; /* -0 + x is x, zeros too */
        }
        value_tile<T, HD, N>(o, p, v_tile, warp * N, f);
        if (n_blocks > 1 && split.in_cluster) {
#if __CUDA_ARCH__ >= 900
            cluster_wait(); /* all blocks have begun */
            cluster_send<HD, N>(parts, i, o, max, l);
#endif
            break; /* of one segment a block */
        }
        if (n_blocks > 1) scratch_put<HD, N>(split, pair, i, n_packed, o, max, l);
        __syncthreads(); /* all warps are done with V and p */
        if (i + 1 < to) load_segment<HD, DECODE_THREADS>(v_tile, values, base + SEGMENT, skip);
        async_commit();
    }
    if (n_blocks == 1) {
        if (!works) return;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                write_pair(a, run, kv_head, lane / 4 + 8 * r, (warp * N + n) * 8 + lane % 4 * 2,
                           __fdiv_rn(o[n][2 * r], state.l[r]), __fdiv_rn(o[n][2 * r + 1], state.l[r]));
        return;
    }
    if (split.in_cluster) {
#if __CUDA_ARCH__ >= 900
        if (!works) cluster_wait();
        cluster_merge<HD>(a, parts, run, kv_head, n_segments);
#endif
        return;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(&split.counters[pair], 1) + 1 == n_blocks;
        if (is_last) split.counters[pair] = 0;
        __threadfence();
    }
    __syncthreads();
    if (is_last) merge_segments<HD>(a, split, run, kv_head, pair, n_segments);
}

/* Blocks that share a run's segments: as many as fill the device, or the few more that even out a second round. With
 * more pairs than that one block each is faster (8B, 256 x 512: 140 us, shared 178 us, H200). */
static uint32_t blocks_per_run(uint32_t pairs, uint32_t fill)
{
    const uint32_t least = pairs < fill ? fill / pairs : 1;
    uint32_t best = least, best_cost = 1000u * ceil_div(pairs * least, fill) / least;

    for (uint32_t n = least + 1; n <= 8 && pairs < fill; n++) {
        const uint32_t cost = 1000u * ceil_div((uint64_t)pairs * n, fill) / n + 30 * n; /* 3 % for a merge */

        if (cost < best_cost) best = n, best_cost = cost;
    }
    return best;
}

template <typename T, int HD, bool FUSED>
static cudaError_t start_as(const struct cuda_launch *l, const struct cuda_attention_args *a,
                            const struct cuda_qkv_args *fused)
{
    const struct cuda_qkv_args none = {};
    const uint32_t pairs = a->n_runs * a->n_kv_heads, fill = (HD == 256 ? 1 : 3) * l->n_sms;
    const uint32_t packed = a->longest_run * (a->n_heads / a->n_kv_heads);
    const uint32_t rows = packed < DECODE_ROWS ? packed : (uint32_t)DECODE_ROWS;
    struct decode_split split = {
        (float *)l->scratch, rows, l->counters, ceil_div(a->end, SEGMENT) + (a->window > 0), 1, 0};
    const uint64_t need = (uint64_t)pairs * split.max_segments * split.rows * (HD + 2) * sizeof(float);
    uint32_t n = blocks_per_run(pairs, fill);
    uint32_t smem = 2 * SEGMENT * HD * 2 + DECODE_ROWS * HD * 2 + DECODE_ROWS * SEGMENT * 2;
    cudaError_t e;

    if (n == 1 && split.max_segments > 32) n = ceil_div(split.max_segments, 16), split.min_segments = 16;
    if (n > split.max_segments) n = split.max_segments;
    split.in_cluster = l->compute == 90 && n > 1 && n == split.max_segments && n <= CLUSTER_SEGMENTS;
    if (pairs > CUDA_N_COUNTERS || need > l->scratch_bytes) n = 1;
    if (n == 1) split.in_cluster = 0;
    if (split.in_cluster) smem += n * cluster_part_bytes(ceil_div(rows * (HD / 2), n), rows);
    e = allow_once<attention_decode<T, HD, FUSED>>(smem);
    if (e) return e;
    return launch_cluster(l, attention_decode<T, HD, FUSED>, dim3(n, a->n_kv_heads, a->n_runs), DECODE_THREADS, smem,
                          dim3(split.in_cluster ? n : 1), *a, split, fused ? *fused : none);
}

template <typename T, int HD>
static int start(const struct cuda_launch *l, const struct cuda_attention_args *a, const struct cuda_qkv_args *fused)
{
    return (int)(fused ? start_as<T, HD, true>(l, a, fused) : start_as<T, HD, false>(l, a, NULL));
}

int attention_decode_launch(const struct cuda_launch *l, const struct cuda_attention_args *a,
                            const struct cuda_qkv_args *fused)
{
    const bool half = a->kv.dtype_k == DTYPE_F16;

    if (attention_stream_takes(l, a)) return attention_stream_launch(l, a, fused);
    if (a->head_dim == 64) return half ? start<__half, 64>(l, a, fused) : start<__nv_bfloat16, 64>(l, a, fused);
    if (a->head_dim == 128) return half ? start<__half, 128>(l, a, fused) : start<__nv_bfloat16, 128>(l, a, fused);
    return half ? start<__half, 256>(l, a, fused) : start<__nv_bfloat16, 256>(l, a, fused);
}
