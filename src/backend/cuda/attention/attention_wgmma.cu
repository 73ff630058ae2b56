/* backend/cuda/attention/attention_wgmma.cu - attention_prefill on sm_90: the same sums (attention_mma.cuh) by wgmma, of quantised
 * pages; those of halves are attention_prompt.cu's, but for pages of odd sizes.
 *
 * A block of 3 warpgroups takes 192 packed query rows of one run and kv head, 64 a warpgroup, through all their segments. The
 * tensor cores read queries, keys and values from shared memory (tiles of 64 dims: [half][row][128 * bytes], 128-byte swizzle),
 * probabilities from registers; values are the operand whose rows are k. Two buffers of K and V, filled by cp.async one segment
 * ahead; one barrier a segment. A step of 16 k of wgmma has the bits of mma.sync's: chains are equal. Bound: arithmetic; while
 * one warpgroup computes exponentials the others multiply. H100, 8B, Q8_0, 8,192 positions: 255 TFLOP/s.
 */
#include "backend/cuda/attention/attention_convert.cuh"
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/attention/attention_prompt.h"
#include "backend/cuda/attention/attention_products.cuh"
#include "backend/cuda/attention/attention_wide_rows.cuh"
#include "tensor/dtype.h"

enum { WGMMA_THREADS = 384, WGMMA_ROWS = 192 }; /* three warpgroups of 64 packed rows each */

template <int HD, uint32_t THREADS>
static __device__ __forceinline__ void load_half_tiles(uint32_t tile, const struct kv_source &s, uint32_t first)
{
    constexpr uint32_t chunks = HD / 8, rows = THREADS / chunks;
    const uint32_t c = threadIdx.x % chunks;

#pragma unroll
    for (uint32_t i = 0; i < (SEGMENT + rows - 1) / rows; i++) {
        const uint32_t r = threadIdx.x / chunks + i * rows, t = first + r;
        const bool there = t < s.n_keys;

        if (r >= SEGMENT) break;
        const uint32_t page = there ? s.table[t >> s.page_shift] : 0, slot = t & ((1u << s.page_shift) - 1);
        const uint8_t *from = there ? s.base + page * s.page_bytes + (uint64_t)slot * s.row_bytes + c * 16 : s.base;

        async_copy16(half_tile_at<SEGMENT>(tile, r, c), from, there);
    }
}

/* Queries of all rows; a warpgroup's 64 rows are a tile. */
template <typename T, int HD>
static __device__ __forceinline__ void load_query_tiles(uint32_t tile, const struct cuda_attention_args &a,
                                                        const struct cuda_run &run, uint32_t kv_head,
                                                        uint32_t first_row)
{
    const uint32_t group = a.n_heads / a.n_kv_heads, n_packed = run.n_rows * group;

    for (uint32_t i = threadIdx.x; i < WGMMA_ROWS * HD / 2; i += WGMMA_THREADS) {
        const uint32_t r = i / (HD / 2), d = i % (HD / 2) * 2, packed = first_row + r;
        uint32_t v = 0;

        if (packed < n_packed) {
            const uint32_t head = kv_head * group + packed % group;
            const float *q = a.q + (uint64_t)(run.row0 + packed / group) * a.q_stride + (uint64_t)head * HD + d;

            v = mma_type<T>::pack(q[0], q[1]);
        }
        asm volatile(
            "st.shared.b32 [%0], %1;" ::"r"(half_tile_at<64>(tile + r / 64 * 64 * HD * 2, r % 64, d / 8) + d % 8 * 2),
            "r"(v)
            : "memory");
    }
}

/* Quantised pages: raw rows of the next segment come while this one is computed, and are converted behind it. */
template <int HD, uint32_t THREADS>
static __device__ __forceinline__ void convert_raw(uint32_t tiles, const uint8_t *raw, const struct cuda_kv &kv,
                                                   uint32_t n)
{
    convert_rows<HD, THREADS, true>(tiles, raw, kv.k_row_bytes, kv.dtype_k, n);
    convert_rows<HD, THREADS, true>(tiles + SEGMENT * HD * 2, raw + SEGMENT * kv.k_row_bytes, kv.v_row_bytes,
                                    kv.dtype_v, n);
}

template <typename T, int HD, bool CONVERT>
__global__ void __launch_bounds__(WGMMA_THREADS, 1)
    attention_wgmma(const __grid_constant__ struct cuda_attention_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t smem[];
    constexpr uint32_t tile_bytes = SEGMENT * HD * 2, THREADS = WGMMA_THREADS, ROWS = WGMMA_ROWS;
    const uint32_t kv_tiles = (smem_u32(smem) + 1023) & ~1023u, q_tiles = kv_tiles + 4 * tile_bytes;
    const uint32_t kv_head = blockIdx.y, group = a.n_heads / a.n_kv_heads, warp = threadIdx.x / 32;
    uint32_t run_id, first_row;

    dependency_wait();
    dependents_launch();
    if (!find_tile(a, ROWS, blockIdx.x, &run_id, &first_row)) return;

    const struct cuda_run run = a.runs[run_id];
    const uint32_t last_token = min((first_row + ROWS - 1) / group, run.n_rows - 1);
    const uint32_t end = end_of_keys(run, first_row / group, last_token), low = run.pos0 + first_row / group;
    const uint32_t first_key = a.window && low + 1 > a.window ? low + 1 - a.window : 0;
    const uint32_t my_row = first_row + warp * 16, my_q = q_tiles + warp / 4 * 64 * HD * 2;
    const struct row_window window = row_window_of(a, run, my_row);
    const struct score_scale scale = score_scale_of(a.scale, a.softcap);
    const struct kv_source keys = kv_source_of(a.kv, a.tables + run.table, kv_head, n_keys_of(run), false);
    const struct kv_source values = kv_source_of(a.kv, a.tables + run.table, kv_head, n_keys_of(run), true);
    struct row_state state = {{-INFINITY, -INFINITY}, {0, 0}};
    uint32_t base = first_key / SEGMENT * SEGMENT, k_tile = kv_tiles;
    float o[HD / 2] = {};

    const uint32_t raw = q_tiles + ROWS * HD * 2, raw_v = raw + SEGMENT * a.kv.k_row_bytes, n_keys = keys.n_keys;
    const uint8_t *raw_rows = smem + (raw - smem_u32(smem));
    const bool pieces = CONVERT && pages_are_pieces(a.kv);

    if constexpr (CONVERT) {
        load_raw<THREADS>(raw, keys, pieces, base), load_raw<THREADS>(raw_v, values, pieces, base);
    } else {
        load_half_tiles<HD, THREADS>(k_tile, keys, base),
            load_half_tiles<HD, THREADS>(k_tile + tile_bytes, values, base);
    }
    async_commit();
    load_query_tiles<T, HD>(q_tiles, a, run, kv_head, first_row);
    if constexpr (CONVERT) {
        async_wait<0>();
        __syncthreads();
        convert_raw<HD, THREADS>(k_tile, raw_rows, a.kv, n_keys - base);
    }
    for (; base < end; base += SEGMENT) {
        const uint32_t next = k_tile == kv_tiles ? kv_tiles + 2 * tile_bytes : kv_tiles;
        uint32_t p[SEGMENT / 16][4];
        float s[64], max[2], m[2], l[2];

        async_wait<0>();
        shared_written_fence();
        __syncthreads(); /* this segment is here; all are done with the last */
        if (base + SEGMENT < end) {
            if constexpr (CONVERT) {
                load_raw<THREADS>(raw, keys, pieces, base + SEGMENT);
                load_raw<THREADS>(raw_v, values, pieces, base + SEGMENT);
            } else {
                load_half_tiles<HD, THREADS>(next, keys, base + SEGMENT);
                load_half_tiles<HD, THREADS>(next + tile_bytes, values, base + SEGMENT);
            }
        }
        async_commit();
        wgmma_scores<T, HD>(s, my_q, k_tile);
        float(&scores)[16][4] = *(float(*)[16][4])s;
        scale_and_mask<16>(scores, max, scale, window, base);
        m[0] = max[0] == -INFINITY ? 0.0f : max[0], m[1] = max[1] == -INFINITY ? 0.0f : max[1];
#pragma unroll
        for (int i = 0; i < SEGMENT / 16; i++) probabilities<T>(p[i], scores[2 * i], scores[2 * i + 1], m);
        const struct merge_factors f = merge_begin(&state, max);
        sum_probabilities<T>(l, p);
        state.l[0] = merge_value(state.l[0], l[0], f.old[0], f.add[0]);
        state.l[1] = merge_value(state.l[1], l[1], f.old[1], f.add[1]);
#pragma unroll
        for (int h = 0; h < HD / 64; h++) wgmma_values<T>(&o[h * 32], p, k_tile + tile_bytes + h * SEGMENT * 128, f);
        if constexpr (CONVERT)
            if (base + SEGMENT < end) {
                async_wait<0>();
                __syncthreads(); /* all threads' copies are there */
                convert_raw<HD, THREADS>(next, raw_rows, a.kv, n_keys - base - SEGMENT);
            }
        k_tile = next;
    }
    divide_rows(o, state.l);
    if (a.copies.n > 0) {
        write_wide<HD>(a, run, kv_head, my_row, o, my_q);
        return;
    }
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            write_pair(a, run, kv_head, my_row + lane / 4 + 8 * i, d * 8 + lane % 4 * 2, o[4 * d + 2 * i],
                       o[4 * d + 2 * i + 1]);
#endif
}

template <typename T, int HD, bool CONVERT>
static cudaError_t start(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const uint32_t raw = CONVERT ? SEGMENT * (a->kv.k_row_bytes + a->kv.v_row_bytes) : 0;
    const uint32_t smem = 4 * SEGMENT * HD * 2 + WGMMA_ROWS * HD * 2 + 1024 + raw;
    const uint32_t tiles = a->n_rows * (a->n_heads / a->n_kv_heads) / WGMMA_ROWS + a->n_runs;
    const cudaError_t e = allow_once<attention_wgmma<T, HD, CONVERT>>(smem);

    if (e) return e;
    return launch_chained(l, attention_wgmma<T, HD, CONVERT>, dim3(tiles, a->n_kv_heads), WGMMA_THREADS, smem, *a);
}

template <int HD> static int start_for(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    if (cuda_kv_is_quantised(&a->kv)) return (int)start<__half, HD, true>(l, a);
    return (int)(a->kv.dtype_k == DTYPE_F16 ? start<__half, HD, false>(l, a) : start<__nv_bfloat16, HD, false>(l, a));
}

int attention_wgmma_launch(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    if (attention_prompt_takes(a)) return attention_prompt_launch(l, a);
    return a->head_dim == 64 ? start_for<64>(l, a) : start_for<128>(l, a);
}
