/* backend/cuda/attention/attention_fresh.cuh - the row that a decode step adds, made within attention: queries normed and
 * rotated to their tile; key and value to their page and, by shared memory, to the tiles they belong to.
 *
 * By the first DECODE_THREADS threads of a block.
 */
#pragma once
#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/rows/rope_head.cuh"

enum { DECODE_THREADS = 128 };

/* A pair of a lane as T. */
template <typename T, int P>
static __device__ __forceinline__ void put_pairs(const struct cuda_qkv_args &f, const float (&u)[P],
                                                 const float (&v)[P], uint16_t *to)
{
#pragma unroll
    for (int i = 0; i < P; i++) {
        to[pair_first(f, i)] = (uint16_t)mma_type<T>::pack(u[i], 0);
        to[pair_second(f, i)] = (uint16_t)mma_type<T>::pack(v[i], 0);
    }
}

/* Head `index` of those that belong to a kv head, as the product made it: queries, then the key, then the value. */
template <int HD>
static __device__ __forceinline__ const float *fresh_source(const struct cuda_qkv_args &f, uint32_t row,
                                                            uint32_t kv_head, uint32_t index)
{
    const uint32_t group = f.n_heads / f.n_kv_heads;

    if (index == group) return f.k + (uint64_t)row * f.k_stride + kv_head * HD;
    if (index > group) return f.v + (uint64_t)row * f.v_stride + kv_head * HD;
    return f.q + (uint64_t)row * f.q_stride + (uint64_t)(kv_head * group + index) * HD;
}

/* The run's one row: queries to the q tile; is_last: key and value to fresh [2][HD] and to their page. */
template <typename T, int HD>
static __device__ void fresh_row(const struct cuda_qkv_args &f, uint32_t row, uint32_t kv_head, bool is_last,
                                 uint32_t q_tile, uint16_t (*fresh)[HD])
{
    constexpr int P = HD / 64;
    const uint32_t group = f.n_heads / f.n_kv_heads, warp = threadIdx.x / 32;
    const struct head_angles<P> angles = head_angles_of<P>(f, row);
    const struct head_norm<P> q_norm = head_norm_of<P>(f, f.q_norm), k_norm = head_norm_of<P>(f, f.k_norm);
    uint8_t *page = f.kv.base + f.row_page[row] * f.kv.page_bytes;
    const uint64_t slot = (uint64_t)kv_head * f.kv.page_tokens + f.row_slot[row];

    for (uint32_t i = group * (HD / 8) + threadIdx.x; i < DECODE_ROWS * (HD / 8); i += DECODE_THREADS) {
        const uint32_t at = tile_at(q_tile, HD * 2, i / (HD / 8), i % (HD / 8));
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    const uint32_t n_heads = group + (is_last ? 2 : 0);
    float next_u[P], next_v[P], u[P], v[P];

    dependency_wait();
    if (warp < n_heads) head_load<P>(f, fresh_source<HD>(f, row, kv_head, warp), next_u, next_v);
    for (uint32_t index = warp; index < n_heads; index += DECODE_THREADS / 32) {
        const bool is_key = index == group, is_value = index > group;

#pragma unroll
        for (int i = 0; i < P; i++) u[i] = next_u[i], v[i] = next_v[i];
        if (index + DECODE_THREADS / 32 < n_heads)
            head_load<P>(f, fresh_source<HD>(f, row, kv_head, index + DECODE_THREADS / 32), next_u, next_v);
        if (!is_value) head_turn<P>(f, angles, is_key ? k_norm : q_norm, (is_key ? f.k_norm : f.q_norm) != NULL, u, v);
        if (is_key || is_value) {
            put_pairs<T, P>(f, u, v, fresh[is_value]);
            put_pairs<T, P>(f, u, v,
                            (uint16_t *)(page + (is_key ? f.kv.k_offset + slot * f.kv.k_row_bytes
                                                        : f.kv.v_offset + slot * f.kv.v_row_bytes)));
            continue;
        }
#pragma unroll
        for (int i = 0; i < 2 * P; i++) {
            const uint32_t d = i % 2 ? pair_second(f, i / 2) : pair_first(f, i / 2);

            asm volatile("st.shared.b16 [%0], %1;" ::"r"(tile_at(q_tile, HD * 2, index, d / 8) + d % 8 * 2),
                         "h"((uint16_t)mma_type<T>::pack(i % 2 ? v[i / 2] : u[i / 2], 0))
                         : "memory");
        }
    }
}

/* The fresh row to its place in a tile of keys or values. */
template <int HD, bool BANDS>
static __device__ __forceinline__ void place_fresh(const uint16_t *fresh, uint32_t tile, uint32_t row)
{
    if (threadIdx.x >= HD / 8) return;
    const uint4 v = *(const uint4 *)(fresh + threadIdx.x * 8);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(kv_tile_at<HD, BANDS>(tile, row, threadIdx.x)),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
