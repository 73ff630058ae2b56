/* backend/cuda/attention/attention_prefill.cu - paged attention for runs of many rows; order of sums in attention_mma.cuh.
 *
 * A block takes packed query rows of one run and kv head (16 a warp, 6 warps; 4 for 256 dims) through all their
 * segments. Two blocks share an SM, so that one multiplies while the other waits or computes exponentials. K and V of
 * a segment lie in one buffer each, filled by cp.async: the next K comes while this V is used and the other way round.
 * Bound: mma.sync and ldmatrix (each warp reads all of K and V for its 16 rows). Tiles of later positions start first:
 * they are the longest.
 */
#include "backend/cuda/attention/attention_convert.cuh"
#include "backend/cuda/attention/attention_paths.h"
#include "tensor/dtype.h"

template <int HD> struct prefill_block {
    static constexpr uint32_t warps = HD == 256 ? 4 : 6, threads = warps * 32, rows = warps * 16;
};

/* A segment of quantised pages to a tile, by way of `raw`; nothing else is done meanwhile. */
template <int HD>
static __device__ __forceinline__ void fetch_converted(uint32_t tile, uint8_t *raw, const struct kv_source &s,
                                                       bool pieces, int dtype, uint32_t base)
{
    constexpr uint32_t THREADS = prefill_block<HD>::threads;

    load_raw<THREADS>(smem_u32(raw), s, pieces, base);
    async_commit();
    async_wait<0>();
    __syncthreads();
    convert_rows<HD, THREADS, false>(tile, raw, s.row_bytes, dtype, s.n_keys - base);
    __syncthreads();
}

template <typename T, int HD, bool CONVERT>
__global__ void __launch_bounds__(prefill_block<HD>::threads, HD == 256 ? 1 : 2)
    attention_prefill(const __grid_constant__ struct cuda_attention_args a)
{
    extern __shared__ __align__(1024) uint8_t smem[];
    constexpr uint32_t tile_bytes = SEGMENT * HD * 2, THREADS = prefill_block<HD>::threads,
                       ROWS = prefill_block<HD>::rows;
    const uint32_t k_tile = smem_u32(smem), v_tile = k_tile + tile_bytes, q_tile = v_tile + tile_bytes;
    const uint32_t kv_head = blockIdx.y, group = a.n_heads / a.n_kv_heads, warp = threadIdx.x / 32;
    uint32_t run_id, first_row;

    dependency_wait();
    dependents_launch();
    if (!find_tile(a, ROWS, blockIdx.x, &run_id, &first_row)) return;

    const struct cuda_run run = a.runs[run_id];
    const uint32_t last_token = min((first_row + ROWS - 1) / group, run.n_rows - 1);
    const uint32_t end = end_of_keys(run, first_row / group, last_token), low = run.pos0 + first_row / group;
    const uint32_t first_key = a.window && low + 1 > a.window ? low + 1 - a.window : 0;
    const uint32_t my_row = first_row + warp * 16, my_q = q_tile + warp * 16 * HD * 2;
    const struct row_window window = row_window_of(a, run, my_row);
    const struct score_scale scale = score_scale_of(a.scale, a.softcap);
    const struct kv_source keys = kv_source_of(a.kv, a.tables + run.table, kv_head, n_keys_of(run), false);
    const struct kv_source values = kv_source_of(a.kv, a.tables + run.table, kv_head, n_keys_of(run), true);
    struct row_state state = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[HD / 8][4] = {};

    uint8_t *raw = smem + 2 * tile_bytes + ROWS * HD * 2;

    if constexpr (!CONVERT) load_segment<HD, THREADS>(k_tile, keys, first_key / SEGMENT * SEGMENT);
    async_commit();
    load_queries<T, HD, THREADS, ROWS>(q_tile, a, run, kv_head, first_row);
    for (uint32_t base = first_key / SEGMENT * SEGMENT; base < end; base += SEGMENT) {
        uint32_t p[SEGMENT / 16][4];
        float s[SEGMENT / 8][4], max[2], m[2], l[2];

        if constexpr (CONVERT) {
            fetch_converted<HD>(k_tile, raw, keys, pages_are_pieces(a.kv), a.kv.dtype_k, base);
            fetch_converted<HD>(v_tile, raw, values, pages_are_pieces(a.kv), a.kv.dtype_v, base);
        } else {
            load_segment<HD, THREADS>(v_tile, values, base);
        }
        async_commit();
        async_wait<1>();
        __syncthreads();
        score_tile<T, HD, SEGMENT / 8>(s, my_q, k_tile, 0);
        __syncthreads(); /* all warps are done with K */
        if (!CONVERT && base + SEGMENT < end) load_segment<HD, THREADS>(k_tile, keys, base + SEGMENT);
        async_commit();
        scale_and_mask<SEGMENT / 8>(s, max, scale, window, base);
        m[0] = max[0] == -INFINITY ? 0.0f : max[0], m[1] = max[1] == -INFINITY ? 0.0f : max[1];
#pragma unroll
        for (int i = 0; i < SEGMENT / 16; i++) probabilities<T>(p[i], s[2 * i], s[2 * i + 1], m);
        const struct merge_factors f = merge_begin(&state, max);
        sum_probabilities<T>(l, p);
        state.l[0] = merge_value(state.l[0], l[0], f.old[0], f.add[0]);
        state.l[1] = merge_value(state.l[1], l[1], f.old[1], f.add[1]);
        async_wait<1>();
        __syncthreads();
#pragma unroll
        for (int d = 0; d < HD / 8; d += 4) value_tile<T, HD, 4>(*(float(*)[4][4]) & o[d], p, v_tile, d, f);
        __syncthreads(); /* all warps are done with V */
    }
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            write_pair(a, run, kv_head, my_row + lane / 4 + 8 * i, d * 8 + lane % 4 * 2,
                       __fdiv_rn(o[d][2 * i], state.l[i]), __fdiv_rn(o[d][2 * i + 1], state.l[i]));
}

template <typename T, int HD, bool CONVERT>
static cudaError_t start(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const uint32_t raw = !CONVERT ? 0 : a->kv.k_row_bytes > a->kv.v_row_bytes ? a->kv.k_row_bytes : a->kv.v_row_bytes;
    const uint32_t smem = 2 * SEGMENT * HD * 2 + prefill_block<HD>::rows * HD * 2 + SEGMENT * raw;
    const uint32_t tiles = a->n_rows * (a->n_heads / a->n_kv_heads) / prefill_block<HD>::rows + a->n_runs;
    const cudaError_t e = allow_once<attention_prefill<T, HD, CONVERT>>(smem);

    if (e) return e;
    return launch_chained(l, attention_prefill<T, HD, CONVERT>, dim3(tiles, a->n_kv_heads), prefill_block<HD>::threads,
                          smem, *a);
}

template <int HD> static int start_for(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    return (int)(a->kv.dtype_k == DTYPE_F16 ? start<__half, HD, false>(l, a) : start<__nv_bfloat16, HD, false>(l, a));
}

int attention_prefill_launch(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    if (l->compute == 90 && a->head_dim <= 128) return attention_wgmma_launch(l, a);
    if (a->head_dim == 64) return start_for<64>(l, a);
    if (a->head_dim == 128) return start_for<128>(l, a);
    return cuda_kv_is_quantised(&a->kv) ? (int)start<__half, 256, true>(l, a) : start_for<256>(l, a);
}
