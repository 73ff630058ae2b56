/* backend/cuda/attention/attention_wgmma.cu - attention_prefill on sm_90: the same sums (attention_mma.cuh) by wgmma.
 *
 * A block of 3 warpgroups (2 where that fills the device better) takes 192 packed query rows of one run and kv head, 64 a
 * warpgroup, through all their segments. The tensor cores read queries, keys and values from shared memory (tiles of 64
 * dims: [half][row][128 * bytes], 128-byte swizzle), probabilities from registers; values are the operand whose rows are k. Two buffers of K
 * and V, filled by cp.async one segment ahead; one barrier a segment. A step of 16 k of wgmma has the bits of
 * mma.sync's: chains are equal. Bound: arithmetic; while one warpgroup computes exponentials the others multiply.
 * H200, 8B: 308 TFLOP/s at 8,192 positions, 243 at 4,096.
 */
#include "backend/cuda/attention/attention_convert.cuh"
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/attention/attention_products.cuh"
#include "tensor/dtype.h"

/* GROUPS warpgroups of 64 packed rows each. */
template <int GROUPS> struct wgmma_block {
    static constexpr uint32_t threads = GROUPS * 128, rows = GROUPS * 64;
};

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
template <typename T, int HD, int GROUPS>
static __device__ __forceinline__ void load_query_tiles(uint32_t tile, const struct cuda_attention_args &a,
                                                        const struct cuda_run &run, uint32_t kv_head,
                                                        uint32_t first_row)
{
    const uint32_t group = a.n_heads / a.n_kv_heads, n_packed = run.n_rows * group;

    for (uint32_t i = threadIdx.x; i < wgmma_block<GROUPS>::rows * HD / 2; i += wgmma_block<GROUPS>::threads) {
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

#if __CUDA_ARCH__ >= 900
/* Four words of each lane of a quad, word k for lane k: then a lane has its word of lanes 0 .. 3. */
static __device__ __forceinline__ uint4 quad_transpose(const uint32_t (&x)[4])
{
    const uint32_t q = threadIdx.x % 4;
    uint32_t v[4];

#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
        const uint32_t k = q ^ r; /* whose word this lane gives, and whose it gets */
        const uint32_t got = __shfl_xor_sync(~0u, k == 0 ? x[0] : k == 1 ? x[1] : k == 2 ? x[2] : x[3], r);

#pragma unroll
        for (uint32_t i = 0; i < 4; i++) v[i] = i == k ? got : r == 0 ? 0 : v[i];
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* A warp's 16 packed rows to out16 and its copies, 16 bytes at once: they go over a link. o [HD / 2] as wgmma leaves them. */
template <int HD>
static __device__ __forceinline__ void write_copies(const struct cuda_attention_args &a, const struct cuda_run &run,
                                                    uint32_t kv_head, uint32_t my_row, const float (&o)[HD / 2],
                                                    const float (&l)[2])
{
    const uint32_t lane = threadIdx.x % 32, group = a.n_heads / a.n_kv_heads;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t packed = my_row + lane / 4 + 8 * i;
        const uint64_t at = (uint64_t)(run.row0 + packed / group) * a.out_stride +
                            (uint64_t)(kv_head * group + packed % group) * HD + lane % 4 * 8;

#pragma unroll
        for (int d = 0; d < HD / 8; d += 4) {
            uint32_t x[4];

#pragma unroll
            for (int k = 0; k < 4; k++) {
                const __nv_bfloat162 two = __floats2bfloat162_rn(__fdiv_rn(o[4 * (d + k) + 2 * i], l[i]),
                                                                 __fdiv_rn(o[4 * (d + k) + 2 * i + 1], l[i]));
                x[k] = *(const uint32_t *)&two;
            }
            const uint4 v = quad_transpose(x);

            if (packed >= run.n_rows * group) continue;
            *(uint4 *)(a.out16 + at + d * 8) = v;
            for (uint32_t p = 0; p < a.copies.n; p++) *(uint4 *)((uint16_t *)a.copies.to[p] + at + d * 8) = v;
        }
    }
}
#endif

template <typename T, int HD, bool CONVERT, int GROUPS>
__global__ void __launch_bounds__(wgmma_block<GROUPS>::threads, 1)
    attention_wgmma(const __grid_constant__ struct cuda_attention_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) uint8_t smem[];
    constexpr uint32_t tile_bytes = SEGMENT * HD * 2, THREADS = wgmma_block<GROUPS>::threads,
                       ROWS = wgmma_block<GROUPS>::rows;
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
    load_query_tiles<T, HD, GROUPS>(q_tiles, a, run, kv_head, first_row);
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
    if (a.copies.n > 0) {
        write_copies<HD>(a, run, kv_head, my_row, o, state.l);
        return;
    }
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < HD / 8; d++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            write_pair(a, run, kv_head, my_row + lane / 4 + 8 * i, d * 8 + lane % 4 * 2,
                       __fdiv_rn(o[4 * d + 2 * i], state.l[i]), __fdiv_rn(o[4 * d + 2 * i + 1], state.l[i]));
#endif
}

template <typename T, int HD, bool CONVERT, int GROUPS>
static cudaError_t start(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    using block = wgmma_block<GROUPS>;
    const uint32_t raw = CONVERT ? SEGMENT * (a->kv.k_row_bytes + a->kv.v_row_bytes) : 0;
    const uint32_t smem = 4 * SEGMENT * HD * 2 + block::rows * HD * 2 + 1024 + raw;
    const uint32_t tiles = a->n_rows * (a->n_heads / a->n_kv_heads) / block::rows + a->n_runs;
    const cudaError_t e = allow_once<attention_wgmma<T, HD, CONVERT, GROUPS>>(smem);

    if (e) return e;
    return launch_chained(l, attention_wgmma<T, HD, CONVERT, GROUPS>, dim3(tiles, a->n_kv_heads), block::threads, smem,
                          *a);
}

/* Two warpgroups a block where those of three would leave SMs idle that blocks of two have a place on. */
template <typename T, int HD>
static cudaError_t start_halves(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    const uint32_t packed = a->n_rows * (a->n_heads / a->n_kv_heads);

    return (ceil_div(packed, 128) + a->n_runs - 1) * a->n_kv_heads <= l->n_sms ? start<T, HD, false, 2>(l, a)
                                                                               : start<T, HD, false, 3>(l, a);
}

template <int HD> static int start_for(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    if (cuda_kv_is_quantised(&a->kv)) return (int)start<__half, HD, true, 3>(l, a);
    return (int)(a->kv.dtype_k == DTYPE_F16 ? start_halves<__half, HD>(l, a) : start_halves<__nv_bfloat16, HD>(l, a));
}

int attention_wgmma_launch(const struct cuda_launch *l, const struct cuda_attention_args *a)
{
    return a->head_dim == 64 ? start_for<64>(l, a) : start_for<128>(l, a);
}
