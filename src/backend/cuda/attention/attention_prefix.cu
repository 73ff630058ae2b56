/* backend/cuda/attention/attention_prefix.cu - what the rows of a group have in common, on sm_90: keys and values are read once
 * for all of them; order of sums in attention_mma.cuh.
 *
 * 64 packed rows (members * query heads per kv head) of a group and kv head are a tile of wgmma. All tiles' segments
 * are one list, which as many blocks as fit at once share evenly; where whole tiles are enough to fill the device none
 * is divided. In a block a warp asks the copy engine for keys and values, tile after tile through a ring, and a
 * warpgroup computes. What it leaves in scratch, for each member and head: m, l, o of a tile's first segments together
 * (part 0, with how many they are), and of every segment that another block has, by itself (part k). A second kernel, a
 * warp for each member and head, merges those in order. Then attention_stream begins each run with that and goes on
 * with the run's own segments: the same operations on a row as without.
 * All rows see all shared keys: groups end before their members' new rows, and layers with windows do not come here.
 * Bytes: K and V once for each 64 packed rows. Bound: the ring's latency and the parts; two blocks on an SM with half
 * the ring each take as long for 64 sequences and a fifth longer for 256. H200, 8B, 4,096 keys in common and 128 own,
 * with norm, RoPE and KV write: 64 sequences 77 us, 256 126 us; each by itself 144 and 535 us.
 */
#include "backend/cuda/attention/attention_groups.cuh"
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/attention/attention_products.cuh"
#include "backend/cuda/tensor_map.h"

enum { PREFIX_THREADS = 2 * DECODE_THREADS, MERGE_THREADS = 128 }; /* a warpgroup computes, one copies */

/* Tiles of keys or values in a block's ring. */
template <int HD> struct prefix_fit {
    static constexpr uint32_t stages = HD == 64 ? 12 : 6;
};

struct prefix_args {
    struct prefix_parts parts;
    uint32_t page_rows, k_row, v_row; /* rows of HD numbers in a page; of a page, the first of K and V */
};

template <int HD> struct prefix_ring {
    uint64_t full[prefix_fit<HD>::stages], empty[prefix_fit<HD>::stages];
    struct prefix_piece pieces[prefix_fit<HD>::stages]; /* with the first keys of each; n_segments 0: the end */
};

/* The copying warp. */
template <int HD>
static __device__ __forceinline__ void copy_pieces(const struct cuda_attention_args &a, const struct prefix_args &pa,
                                                   const CUtensorMap *map, uint32_t stages,
                                                   struct prefix_ring<HD> *ring)
{
    constexpr uint32_t STAGES = prefix_fit<HD>::stages, bands = HD / 64, tile_bytes = SEGMENT * HD * 2;
    const uint32_t lane = threadIdx.x % 32, tokens = a.kv.page_tokens, n_boxes = SEGMENT / tokens * bands;
    const uint64_t policy = policy_evict_normal();
    struct prefix_share share = prefix_share_of(a, pa.parts);
    struct prefix_piece p;
    uint32_t tile = 0;

    while (next_piece(a, &share, &p)) {
        for (uint32_t i = p.from; i < p.to; i++) {
            const uint32_t *table = a.tables + p.table + i * (SEGMENT / tokens);
            const uint32_t page = lane < n_boxes ? table[lane / bands] : 0;

            for (uint32_t values = 0; values < 2; values++, tile++) {
                const uint32_t stage = tile % STAGES, bar = smem_u32(&ring->full[stage]);

                if (tile >= STAGES) mbar_wait(smem_u32(&ring->empty[stage]), (tile / STAGES - 1) & 1);
                if (lane == 0) {
                    if (!values && i == p.from) ring->pieces[stage] = p;
                    mbar_expect(bar, tile_bytes);
                }
                __syncwarp();
                for (uint32_t box = lane; box < n_boxes; box += 32) {
                    const uint32_t at = box == lane ? page : table[box / bands];

                    tma_load_2d(stages + stage * tile_bytes + box % bands * SEGMENT * 128 + box / bands * tokens * 128,
                                map, bar, (int)(box % bands * 64),
                                (int)(at * pa.page_rows + (values ? pa.v_row : pa.k_row) + p.kv_head * tokens), policy);
                }
            }
        }
    }
    if (tile >= STAGES) mbar_wait(smem_u32(&ring->empty[tile % STAGES]), (tile / STAGES - 1) & 1);
    if (lane == 0) {
        ring->pieces[tile % STAGES].n_segments = 0;
        mbar_arrive(smem_u32(&ring->full[tile % STAGES]));
    }
}

/* A tile's queries as T; zeros behind them. */
template <typename T, int HD>
static __device__ __forceinline__ void load_members(const struct cuda_attention_args &a, const struct prefix_piece &p,
                                                    uint32_t q_tile)
{
    constexpr uint32_t quads = HD / 4, step = DECODE_THREADS / quads; /* rows at a time */
    const uint32_t heads = a.n_heads / a.n_kv_heads, d = threadIdx.x % quads * 4;

#pragma unroll 8
    for (uint32_t r = threadIdx.x / quads; r < PREFIX_ROWS; r += step) {
        uint2 v = make_uint2(0, 0);

        if (r < p.n_rows) {
            const float *q = a.q + (uint64_t)a.shared.rows[p.first_member + r / heads] * a.q_stride +
                             (uint64_t)(p.kv_head * heads + r % heads) * HD + d;

            v = make_uint2(mma_type<T>::pack(q[0], q[1]), mma_type<T>::pack(q[2], q[3]));
        }
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(half_tile_at<PREFIX_ROWS>(q_tile, r, d / 8) + d % 8 * 2),
                     "r"(v.x), "r"(v.y)
                     : "memory");
    }
}

/* Floats from a part to the next of the same member and head. */
template <int HD> static __device__ __forceinline__ uint64_t part_stride(const struct cuda_attention_args &a)
{
    return (uint64_t)a.shared.head->n_members * a.n_heads * (HD + 4);
}

/* Part `offset` floats behind part 0, of a warp's lanes' two rows. */
template <int HD>
static __device__ __forceinline__ void put_part(const struct cuda_attention_args &a, const struct prefix_parts &parts,
                                                const struct prefix_piece &p, uint64_t offset, uint32_t n_merged,
                                                const float (&o)[HD / 2], const float (&m)[2], const float (&l)[2])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, heads = a.n_heads / a.n_kv_heads;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t r = warp * 16 + lane / 4 + 8 * i;

        if (r >= p.n_rows) continue;
        float *to = prefix_part<HD>(a, parts, p.first_member + r / heads, p.kv_head * heads + r % heads) + offset;
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            *(float2 *)(to + n * 8 + lane % 4 * 2) = make_float2(o[4 * n + 2 * i], o[4 * n + 2 * i + 1]);
        if (lane % 4 == 0)
            *(float4 *)(to + HD) = make_float4(m[i], l[i], __uint_as_float(n_merged), __uint_as_float(p.n_segments));
    }
}

/* All segments of a piece; *tile counts the ring's. */
template <typename T, int HD>
static __device__ __forceinline__ void sum_piece(const struct cuda_attention_args &a, const struct prefix_args &pa,
                                                 const struct prefix_piece &piece, uint32_t q_tile, uint32_t stages,
                                                 struct prefix_ring<HD> *ring, uint32_t *tile)
{
    constexpr uint32_t STAGES = prefix_fit<HD>::stages, tile_bytes = SEGMENT * HD * 2;
    const uint32_t lane = threadIdx.x % 32;
    const struct row_window all = {{0, 0}, {~0u, ~0u}};
    const struct score_scale scale = score_scale_of(a.scale, a.softcap);
    const uint64_t stride = part_stride<HD>(a);
    struct row_state state = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[HD / 2] = {};

    for (uint32_t i = piece.from; i < piece.to; i++, *tile += 2) {
        const uint32_t k_stage = *tile % STAGES, v_stage = (*tile + 1) % STAGES;
        uint32_t p[SEGMENT / 16][4];
        float s[64], max[2], m[2], l[2];
        float(&scores)[16][4] = *(float(*)[16][4])s;

        mbar_wait(smem_u32(&ring->full[k_stage]), *tile / STAGES & 1);
        wgmma_scores<T, HD>(s, q_tile, stages + k_stage * tile_bytes);
        if (lane == 0) mbar_arrive(smem_u32(&ring->empty[k_stage]));
        scale_and_mask<16>(scores, max, scale, all, i * SEGMENT);
        m[0] = max[0] == -INFINITY ? 0.0f : max[0], m[1] = max[1] == -INFINITY ? 0.0f : max[1];
#pragma unroll
        for (int j = 0; j < SEGMENT / 16; j++) probabilities<T>(p[j], scores[2 * j], scores[2 * j + 1], m);
        sum_probabilities<T>(l, p);
        struct merge_factors f = {{0, 0}, {1, 1}};
        if (piece.from == 0) {
            f = merge_begin(&state, max);
            state.l[0] = merge_value(state.l[0], l[0], f.old[0], f.add[0]);
            state.l[1] = merge_value(state.l[1], l[1], f.old[1], f.add[1]);
        } else {
#pragma unroll
            for (int n = 0; n < HD / 2; n++) o[n] = -0.0f; /* -0 + x is x, zeros too */
        }
        mbar_wait(smem_u32(&ring->full[v_stage]), (*tile + 1) / STAGES & 1);
#pragma unroll
        for (int band = 0; band < HD / 64; band++)
            wgmma_values<T>(&o[band * 32], p, stages + v_stage * tile_bytes + band * SEGMENT * 128, f);
        if (lane == 0) mbar_arrive(smem_u32(&ring->empty[v_stage]));
        if (piece.from > 0) put_part<HD>(a, pa.parts, piece, i * stride, 1, o, max, l);
    }
    if (piece.from == 0) put_part<HD>(a, pa.parts, piece, 0, piece.to, o, state.m, state.l);
}

template <typename T, int HD>
__global__ void __launch_bounds__(PREFIX_THREADS, PREFIX_BLOCKS)
    attention_prefix(const __grid_constant__ struct cuda_attention_args a,
                     const __grid_constant__ struct prefix_args pa, const __grid_constant__ CUtensorMap map)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t smem[]; /* the only shared memory: begins aligned */
    constexpr uint32_t STAGES = prefix_fit<HD>::stages, tile_bytes = SEGMENT * HD * 2, q_bytes = PREFIX_ROWS * HD * 2;
    const uint32_t stages = smem_u32(smem), q_tile = stages + STAGES * tile_bytes;
    struct prefix_ring<HD> *ring = (struct prefix_ring<HD> *)(smem + STAGES * tile_bytes + q_bytes);
    uint32_t tile = 0;

    if (threadIdx.x == DECODE_THREADS) tma_prefetch_map(&map);
    if (threadIdx.x < STAGES) {
        mbar_init(smem_u32(&ring->full[threadIdx.x]), 1);
        mbar_init(smem_u32(&ring->empty[threadIdx.x]), DECODE_THREADS / 32);
        mbar_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < DECODE_THREADS || a.longest_run > 1) dependency_wait();
    dependents_launch();
    if (threadIdx.x >= DECODE_THREADS) {
        registers_less<40>();
        if (threadIdx.x / 32 == DECODE_THREADS / 32) copy_pieces<HD>(a, pa, &map, stages, ring);
    } else {
        registers_more<216>();
        for (;;) {
            mbar_wait(smem_u32(&ring->full[tile % STAGES]), tile / STAGES & 1);
            const struct prefix_piece piece = ring->pieces[tile % STAGES];
            if (piece.n_segments == 0) break;
            named_barrier(COMPUTE_BARRIER, DECODE_THREADS); /* all are done with the queries before */
            load_members<T, HD>(a, piece, q_tile);
            shared_written_fence();
            named_barrier(COMPUTE_BARRIER, DECODE_THREADS);
            sum_piece<T, HD>(a, pa, piece, q_tile, stages, ring, &tile);
        }
    }
#endif
}

/* A lane's dims of a part: 2 or 4, as they lie. */
template <int N> struct __align__(4 * N) lane_dims
{
    float v[N];
};
static __device__ __forceinline__ void load_dims(const float *from, lane_dims<2> &to)
{
    *(float2 *)to.v = __ldcg((const float2 *)from);
}
static __device__ __forceinline__ void load_dims(const float *from, lane_dims<4> &to)
{
    *(float4 *)to.v = __ldcg((const float4 *)from);
}

/* Parts 1 .. that are there, to part 0. */
template <int HD>
__global__ void __launch_bounds__(MERGE_THREADS)
    attention_prefix_merge(const __grid_constant__ struct cuda_attention_args a, const struct prefix_parts parts)
{
    constexpr int N = HD / 32, AHEAD = 16; /* parts asked for at a time */
    const uint32_t index = blockIdx.x * (MERGE_THREADS / 32) + threadIdx.x / 32, d = threadIdx.x % 32 * N;
    const uint32_t member = index / a.n_heads, head = index % a.n_heads;

    dependency_wait();
    dependents_launch();
    if (member >= a.shared.head->n_members) return;
    const uint64_t stride = part_stride<HD>(a); /* once: volatile loads are in order with others */
    float *to = prefix_part<HD>(a, parts, member, head);
    const float4 first = __ldcg((const float4 *)(to + HD));
    const uint32_t n_segments = __float_as_uint(first.w);
    uint32_t k = __float_as_uint(first.z);
    if (k == n_segments) return;

    struct row_state state = {{first.x, first.x}, {first.y, 0}};
    lane_dims<N> o;

    load_dims(to + d, o);
    for (; k < n_segments; k += AHEAD) {
        lane_dims<N> v[AHEAD];
        float2 ml[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const float *part = to + min(k + j, n_segments - 1) * stride;

            ml[j] = __ldcg((const float2 *)(part + HD)), load_dims(part + d, v[j]);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const bool there = k + j < n_segments; /* no branch: all loads are to be under way before */
            const float m[2] = {ml[j].x, ml[j].x};
            struct row_state next = state;
            const struct merge_factors f = merge_begin(&next, m);

            state.m[0] = there ? next.m[0] : state.m[0];
            state.l[0] = there ? merge_value(state.l[0], ml[j].y, f.old[0], f.add[0]) : state.l[0];
#pragma unroll
            for (int i = 0; i < N; i++) o.v[i] = there ? merge_value(o.v[i], v[j].v[i], f.old[0], f.add[0]) : o.v[i];
        }
    }
    *(lane_dims<N> *)(to + d) = o;
    if (d == 0) *(float2 *)(to + HD) = make_float2(state.m[0], state.l[0]);
}

template <typename T, int HD> static cudaError_t start(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const struct cuda_kv *kv = &a->kv;
    const uint32_t row_bytes = HD * 2, n_most = a->n_rows < 4 * a->n_runs ? a->n_rows : 4 * a->n_runs; /* members */
    const struct prefix_args p = {prefix_parts_of(l, a), (uint32_t)(kv->page_bytes / row_bytes),
                                  (uint32_t)(kv->k_offset / row_bytes), (uint32_t)(kv->v_offset / row_bytes)};
    const uint32_t smem = (prefix_fit<HD>::stages * SEGMENT + PREFIX_ROWS) * row_bytes + sizeof(struct prefix_ring<HD>);
    CUtensorMap map = {};
    cudaError_t e = allow_once<attention_prefix<T, HD>>(smem);

    if (e) return e;
    if (!tensor_map(&map, kv->base, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, INT32_MAX, HD, row_bytes, kv->page_tokens, 64,
                    CU_TENSOR_MAP_SWIZZLE_128B))
        return cudaErrorInvalidValue;
    e = launch_chained(l, attention_prefix<T, HD>, dim3(PREFIX_BLOCKS * l->n_sms), PREFIX_THREADS, smem, *a, p, map);
    if (e) return e;
    return launch_chained(l, attention_prefix_merge<HD>, dim3(ceil_div(n_most * a->n_heads, MERGE_THREADS / 32)),
                          MERGE_THREADS, 0, *a, p.parts);
}

bool attention_prefix_takes(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const struct cuda_kv *kv = &a->kv;
    const uint32_t row = a->head_dim * 2;

    return a->shared.head && l->compute == 90 && (a->head_dim == 64 || a->head_dim == 128) &&
           !cuda_kv_is_quantised(kv) && (!a->window || a->window >= a->end) && kv->page_tokens >= 8 &&
           kv->page_tokens <= SEGMENT && kv->page_bytes % row == 0 && (kv->k_offset | kv->v_offset) % row == 0 &&
           tensor_map_ready() && (uint64_t)a->n_rows * a->n_heads <= prefix_parts_of(l, a).n_most;
}

int attention_prefix_launch(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    if (a->kv.dtype_k == DTYPE_F16)
        return (int)(a->head_dim == 64 ? start<__half, 64>(l, a) : start<__half, 128>(l, a));
    return (int)(a->head_dim == 64 ? start<__nv_bfloat16, 64>(l, a) : start<__nv_bfloat16, 128>(l, a));
}
