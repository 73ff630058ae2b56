/* backend/cuda/attention/attention_prompt.cu - attention_prefill on sm_90 where pages are of halves: the sums of attention_wgmma.cu,
 * with keys and values fed by the copy engine.
 *
 * A block takes GROUPS * 64 packed query rows of one run and kv head through all their segments, 64 a warpgroup. One warp more
 * asks for pages, tile after tile of a segment's keys, then values, into a ring; a warpgroup goes on as soon as a tile is there,
 * so that one computes exponentials while the other's products run. (With copies by all threads and a barrier of all a segment,
 * as attention_wgmma.cu has them for quantised pages, a segment took 7 us of a prompt of the 0.6B, H100.)
 * What lies behind a run's last key: scores are masked; values, which probabilities of 0 are multiplied with, become zeros.
 * Blocks of two warpgroups, of short prompts, are folded: group_row.
 * Bound: the issue of instructions; of short prompts what the L2 gives and the chain of segments in the last rows' block, of
 * 3,000 cycles each. H200, 8B: 505 TFLOP/s at 8,192 positions, 411 at 4,096, 190 at 1,024; 0.6B, 1,024: 22 us.
 */
#include "backend/cuda/attention/attention_prompt.h"
#include "backend/cuda/attention/attention_products.cuh"
#include "backend/cuda/attention/attention_wide_rows.cuh"
#include "backend/cuda/tensor_map.h"
#include "tensor/dtype.h"

template <int HD, int GROUPS> struct prompt_block {
    static constexpr uint32_t rows = GROUPS * 64, workers = GROUPS * 128, threads = workers + 128;
    static constexpr uint32_t tile = SEGMENT * HD * 2, queries = rows * HD * 2;
    static constexpr uint32_t room = (SMEM_BLOCK_MAX - queries - 256) / tile, stages = room < 8 ? room : 8;
    static constexpr uint32_t bars = stages * tile + queries, bytes = bars + 16 * stages;
};

struct prompt_args {
    uint32_t page_rows, k_row, v_row; /* rows of HD numbers in a page; of a page, the first of K and V */
    bool wide;                        /* outputs by write_wide */
    bool fours;                       /* queries by 16 bytes */
    bool folded;                      /* which rows a block has: group_row */
};

/* What a block's threads know of its rows. */
struct prompt_tile {
    struct cuda_run run;
    uint32_t kv_head, base, end, n_keys; /* keys base .. end - 1 are gone through; n_keys that there are */
    uint32_t last_end;                   /* the last warpgroup ends there; the others at `end` */
};

/* The first packed row of a warpgroup, of 64. Folded, a block has the i-th 64 rows from the run's end and the i-th from its begin,
 * which see few keys: blocks take about as long, and the one with the last rows has its SM's issue almost for itself. */
template <int GROUPS>
static __device__ __forceinline__ uint32_t group_row(const struct prompt_args &pa, const struct cuda_run &run,
                                                     uint32_t heads, uint32_t first_row, uint32_t group)
{
    const uint32_t last = (run.n_rows * heads - 1) / 64, i = first_row / (GROUPS * 64);

    if (!pa.folded) return first_row + group * 64;
    return (group == 0 ? last - i : i) * 64;
}

#if __CUDA_ARCH__ >= 900
/* The copying warp. */
template <int HD, int GROUPS>
static __device__ __forceinline__ void copy_tiles(const struct cuda_attention_args &a, const struct prompt_args &pa,
                                                  const CUtensorMap *map, const struct prompt_tile &t, uint32_t ring)
{
    using B = prompt_block<HD, GROUPS>;
    constexpr uint32_t bands = HD / 64, full = B::bars, empty = full + 8 * B::stages;
    const uint32_t lane = threadIdx.x % 32, tokens = a.kv.page_tokens, shift = 31u - (uint32_t)__clz((int)tokens);
    const uint64_t policy = policy_evict_normal();
    uint32_t tile = 0;

    for (uint32_t base = t.base; base < t.end; base += SEGMENT) {
        const uint32_t n = min(t.n_keys - base, (uint32_t)SEGMENT), n_pages = (n + tokens - 1) >> shift;
        const uint32_t *table = a.tables + t.run.table + (base >> shift), n_boxes = n_pages * bands;
        const uint32_t page = lane < n_boxes ? table[lane / bands] : 0;

        if (base == t.base) dependency_wait();
        for (uint32_t values = 0; values < 2; values++, tile++) {
            const uint32_t stage = tile % B::stages, bar = ring + full + 8 * stage;

            if (tile >= B::stages) mbar_wait(ring + empty + 8 * stage, (tile / B::stages - 1) & 1);
            if (lane == 0) mbar_expect(bar, n_boxes * tokens * 128);
            if (base >= t.last_end && lane < 4)
                mbar_arrive(ring + empty + 8 * stage); /* for those that do not read it */
            __syncwarp();
            for (uint32_t box = lane; box < n_boxes; box += 32) {
                const uint32_t at = box == lane ? page : table[box / bands];

                tma_load_2d(ring + stage * B::tile + box % bands * SEGMENT * 128 + box / bands * tokens * 128, map, bar,
                            (int)(box % bands * 64),
                            (int)(at * pa.page_rows + (values ? pa.v_row : pa.k_row) + t.kv_head * tokens), policy);
            }
        }
    }
}

/* A warpgroup's 64 rows of queries as T; zeros behind the run's. All of a thread's loads are under way at once. */
template <typename T, int HD, bool FOURS>
static __device__ __forceinline__ void load_rows(const struct cuda_attention_args &a, const struct prompt_tile &t,
                                                 uint32_t first_row, uint32_t q_tile)
{
    constexpr uint32_t quads = HD / 4, step = 128 / quads, each = 64 / step; /* rows at a time; of a thread */
    const uint32_t heads = a.n_heads / a.n_kv_heads, d = threadIdx.x % quads * 4, n_packed = t.run.n_rows * heads;
    const uint32_t first = threadIdx.x % 128 / quads, more = step / heads, rest = step % heads;
    const float *const rows = a.q + (uint64_t)t.run.row0 * a.q_stride + (uint64_t)t.kv_head * heads * HD + d;
    uint32_t token = (first_row + first) / heads, head = (first_row + first) % heads;
    float4 x[each];

#pragma unroll
    for (uint32_t i = 0; i < each; i++) {
        const bool there = first_row + first + i * step < n_packed;
        const float *q = there ? rows + (uint64_t)token * a.q_stride + head * HD : rows;

        x[i] = FOURS ? *(const float4 *)q : make_float4(q[0], q[1], q[2], q[3]);
        if (!there) x[i] = make_float4(0, 0, 0, 0);
        token += more, head += rest;
        if (head >= heads) token++, head -= heads;
    }
#pragma unroll
    for (uint32_t i = 0; i < each; i++)
        asm volatile(
            "st.shared.v2.b32 [%0], {%1, %2};" ::"r"(half_tile_at<64>(q_tile, first + i * step, d / 8) + d % 8 * 2),
            "r"(mma_type<T>::pack(x[i].x, x[i].y)), "r"(mma_type<T>::pack(x[i].z, x[i].w))
            : "memory");
}

/* Rows n .. of a tile of values become zeros, by each warpgroup that reads them. */
template <int HD> static __device__ __forceinline__ void clear_behind(uint32_t tile, uint32_t n)
{
    for (uint32_t i = threadIdx.x % 128; i < (SEGMENT - n) * (HD / 8); i += 128)
        shared_store4(half_tile_at<SEGMENT>(tile, n + i / (HD / 8), i % (HD / 8)), make_float4(0, 0, 0, 0));
    shared_written_fence();
    named_barrier(1 + threadIdx.x / 128, 128);
}

/* A segment's scores to probabilities, which enter the state; how its values are to enter o. */
template <typename T>
static __device__ __forceinline__ struct merge_factors
segment_probabilities(uint32_t (&p)[SEGMENT / 16][4], float (&s)[64], struct row_state &state,
                      const struct score_scale &scale, const struct row_window &window, uint32_t base)
{
    float(&scores)[16][4] = *(float(*)[16][4])s;
    float max[2], m[2], l[2];

    scale_and_mask<16>(scores, max, scale, window, base);
    m[0] = max[0] == -INFINITY ? 0.0f : max[0], m[1] = max[1] == -INFINITY ? 0.0f : max[1];
#pragma unroll
    for (int i = 0; i < SEGMENT / 16; i++) probabilities<T>(p[i], scores[2 * i], scores[2 * i + 1], m);
    sum_probabilities<T>(l, p);
    const struct merge_factors f = merge_begin(&state, max);
    state.l[0] = merge_value(state.l[0], l[0], f.old[0], f.add[0]);
    state.l[1] = merge_value(state.l[1], l[1], f.old[1], f.add[1]);
    return f;
}

/* What a warpgroup's threads know of their rows. */
struct prompt_rows {
    uint32_t ring, q_tile;
    uint32_t begin, end; /* keys begin .. end - 1; end by a shuffle, so that ptxas knows that it is the warp's */
    struct row_window window;
    struct score_scale scale;
};

/* All segments, one after the other. */
template <typename T, int HD, int GROUPS>
static __device__ __forceinline__ void attend_segments(const struct prompt_tile &t, const struct prompt_rows &r,
                                                       struct row_state &state, float (&o)[HD / 2])
{
    using B = prompt_block<HD, GROUPS>;
    constexpr uint32_t full = B::bars, empty = full + 8 * B::stages;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t tile = 0;

    for (uint32_t base = r.begin; base < r.end; base += SEGMENT, tile += 2) {
        const uint32_t k_stage = tile % B::stages, v_stage = (tile + 1) % B::stages;
        uint32_t p[SEGMENT / 16][4];
        float s[64];

        mbar_wait(r.ring + full + 8 * k_stage, tile / B::stages & 1);
        wgmma_scores<T, HD>(s, r.q_tile, r.ring + k_stage * B::tile);
        if (lane == 0) mbar_arrive(r.ring + empty + 8 * k_stage);
        const struct merge_factors f = segment_probabilities<T>(p, s, state, r.scale, r.window, base);
        mbar_wait(r.ring + full + 8 * v_stage, (tile + 1) / B::stages & 1);
        if (base + SEGMENT > t.n_keys) clear_behind<HD>(r.ring + v_stage * B::tile, t.n_keys - base);
#pragma unroll
        for (int h = 0; h < HD / 64; h++)
            wgmma_values<T>(&o[h * 32], p, r.ring + v_stage * B::tile + h * SEGMENT * 128, f);
        if (lane == 0) mbar_arrive(r.ring + empty + 8 * v_stage);
    }
}

template <typename T, int HD, int GROUPS>
static __device__ __forceinline__ void attend_tile(const struct cuda_attention_args &a, const struct prompt_args &pa,
                                                   const struct prompt_tile &t, uint32_t ring, uint32_t first_row)
{
    using B = prompt_block<HD, GROUPS>;
    const uint32_t group = threadIdx.x / 128, lane = threadIdx.x % 32;
    const uint32_t q_tile = ring + B::stages * B::tile + group * 64 * HD * 2;
    const uint32_t my_row = first_row + threadIdx.x / 32 % 4 * 16;
    const struct prompt_rows r = {ring,
                                  q_tile,
                                  t.base,
                                  __shfl_sync(0xffffffffu, group == GROUPS - 1 ? t.last_end : t.end, 0),
                                  row_window_of(a, t.run, my_row),
                                  score_scale_of(a.scale, a.softcap)};
    struct row_state state = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[HD / 2] = {};

    dependency_wait();
    if (pa.fours)
        load_rows<T, HD, true>(a, t, first_row, q_tile);
    else
        load_rows<T, HD, false>(a, t, first_row, q_tile);
    shared_written_fence();
    named_barrier(1 + group, 128);
    attend_segments<T, HD, GROUPS>(t, r, state, o);
    divide_rows(o, state.l);
    if (pa.wide) {
        write_wide<HD>(a, t.run, t.kv_head, my_row, o, q_tile);
        return;
    }
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            write_pair(a, t.run, t.kv_head, my_row + lane / 4 + 8 * i, d * 8 + lane % 4 * 2, o[4 * d + 2 * i],
                       o[4 * d + 2 * i + 1]);
}

#endif

template <typename T, int HD, int GROUPS>
__global__ void __launch_bounds__(prompt_block<HD, GROUPS>::threads, 1)
    attention_prompt(const __grid_constant__ struct cuda_attention_args a,
                     const __grid_constant__ struct prompt_args pa, const __grid_constant__ CUtensorMap map)
{
#if __CUDA_ARCH__ >= 900
    using B = prompt_block<HD, GROUPS>;
    extern __shared__ __align__(1024) uint8_t smem[]; /* the only shared memory: begins aligned */
    const uint32_t ring = smem_u32(smem), group = a.n_heads / a.n_kv_heads;
    struct prompt_tile t;
    uint32_t run_id, first_row;

    if (threadIdx.x < B::stages) {
        mbar_init(ring + B::bars + 8 * threadIdx.x, 1);
        mbar_init(ring + B::bars + 8 * (B::stages + threadIdx.x), B::workers / 32);
        mbar_init_fence();
    }
    if (threadIdx.x == B::workers) tma_prefetch_map(&map);
    __syncthreads();
    dependents_launch();
    if (!find_tile(a, B::rows, blockIdx.x, &run_id, &first_row)) return; /* runs and tables are there before the step */
    t.run = a.runs[run_id];
    t.kv_head = blockIdx.y;
    t.n_keys = n_keys_of(t.run);
    if (pa.folded) {
        const uint32_t most = group_row<GROUPS>(pa, t.run, group, first_row, 0),
                       least = group_row<GROUPS>(pa, t.run, group, first_row, 1);

        t.base = 0;
        t.end = end_of_keys(t.run, most / group, min((most + 63) / group, t.run.n_rows - 1));
        t.last_end = least == most ? 0 : end_of_keys(t.run, least / group, (least + 63) / group);
    } else {
        const uint32_t low = t.run.pos0 + first_row / group;

        t.base = (a.window && low + 1 > a.window ? low + 1 - a.window : 0) / SEGMENT * SEGMENT;
        t.end = t.last_end =
            end_of_keys(t.run, first_row / group, min((first_row + B::rows - 1) / group, t.run.n_rows - 1));
    }
    if (threadIdx.x >= B::workers) {
        registers_less<GROUPS == 3 ? 32 : 24>();
        if (threadIdx.x / 32 == B::workers / 32) copy_tiles<HD, GROUPS>(a, pa, &map, t, ring);
    } else {
        const uint32_t mine = group_row<GROUPS>(pa, t.run, group, first_row, threadIdx.x / 128);

        registers_more<GROUPS == 3 ? 160 : 240>();
        if (t.base < (threadIdx.x / 128 == GROUPS - 1 ? t.last_end : t.end))
            attend_tile<T, HD, GROUPS>(a, pa, t, ring, mine);
    }
#endif
}

template <typename T, int HD, int GROUPS>
static cudaError_t start(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    using B = prompt_block<HD, GROUPS>;
    const struct cuda_kv *kv = &a->kv;
    const uint32_t row = HD * 2, packed = a->n_rows * (a->n_heads / a->n_kv_heads);
    const uint32_t tiles = ceil_div(packed, B::rows) + a->n_runs - 1; /* at most */
    const struct prompt_args p = {(uint32_t)(kv->page_bytes / row),
                                  (uint32_t)(kv->k_offset / row),
                                  (uint32_t)(kv->v_offset / row),
                                  a->copies.n > 0 ||
                                      (a->out16 && !a->out && a->out_stride % 8 == 0 && (uintptr_t)a->out16 % 16 == 0),
                                  a->q_stride % 4 == 0 && (uintptr_t)a->q % 16 == 0,
                                  GROUPS == 2 && !a->window};
    const cudaError_t e = allow_once<attention_prompt<T, HD, GROUPS>>(B::bytes);
    CUtensorMap map = {};

    if (e) return e;
    if (!tensor_map(&map, kv->base, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, INT32_MAX, HD, row, kv->page_tokens, 64,
                    CU_TENSOR_MAP_SWIZZLE_128B))
        return cudaErrorInvalidValue;
    return launch_chained(l, attention_prompt<T, HD, GROUPS>, dim3(tiles, a->n_kv_heads), B::threads, B::bytes, *a, p,
                          map);
}

/* Two warpgroups a block where those of three would leave SMs idle that blocks of two have a place on. */
template <typename T, int HD>
static cudaError_t start_fitting(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const uint32_t packed = a->n_rows * (a->n_heads / a->n_kv_heads);

    return (ceil_div(packed, 128) + a->n_runs - 1) * a->n_kv_heads <= l->n_sms ? start<T, HD, 2>(l, a)
                                                                               : start<T, HD, 3>(l, a);
}

bool attention_prompt_takes(const struct cuda_attention_args *a)
{
    const struct cuda_kv *kv = &a->kv;
    const uint32_t row = a->head_dim * 2;

    return !cuda_kv_is_quantised(kv) && kv->page_tokens >= 8 && kv->page_tokens <= SEGMENT &&
           kv->page_bytes % row == 0 && (kv->k_offset | kv->v_offset) % row == 0 && tensor_map_ready();
}

template <int HD> static int start_for(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    return (int)(a->kv.dtype_k == DTYPE_F16 ? start_fitting<__half, HD>(l, a) : start_fitting<__nv_bfloat16, HD>(l, a));
}

int attention_prompt_launch(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    return a->head_dim == 64 ? start_for<64>(l, a) : start_for<128>(l, a);
}
