/* backend/cuda/attention/attention_few.cuh - the arithmetic of attention for at most 16 packed rows, by 4 warps: keys, then dims,
 * are the 16 rows of mma and packed rows its 8 columns, so that fewer products, exponentials and registers go into rows
 * that are not there.
 *
 * Exchanged operands have the same bits: order of sums in attention_mma.cuh. Keys and values: tiles as kv_tile_at has
 * them (BANDS). Probabilities: NB groups of 8 rows, each [SEGMENT keys][8 rows].
 * Fragments, NB = 1 or 2: warp w has keys (or dims) 64 t + 16 w + lane / 4 + 8 h of rows 8 g + lane % 4 * 2 + i at
 * [t][4 g + 2 h + i]; of the rows by themselves a thread has those at [g][i].
 */
#pragma once
#include "backend/cuda/attention/attention_mma.cuh"

enum { FEW_TILES = SEGMENT / 64, FEW_GROUP_BYTES = SEGMENT * 16 };

static __device__ __forceinline__ uint32_t few_row(int g, int i)
{
    return g * 8 + threadIdx.x % 4 * 2 + i;
}

/* d += a * b for NB groups of rows; of b[g] numbers first and first + 1. */
template <typename T, int NB, int B>
static __device__ __forceinline__ void few_mma(float (&d)[4 * NB], const uint32_t (&a)[4], const uint32_t (&b)[NB][B],
                                               int first)
{
#pragma unroll
    for (int g = 0; g < NB; g++) {
        float(&sum)[4] = *(float(*)[4]) & d[4 * g];

        mma_type<T>::mma(sum, a, b[g][first], b[g][first + 1]);
    }
}

/* Queries from their tile (tile_at). */
template <int HD, int NB> static __device__ __forceinline__ void few_queries(uint32_t (&q)[NB][HD / 8], uint32_t tile)
{
    const uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (int g = 0; g < NB; g++)
#pragma unroll
        for (int c = 0; c < HD / 8; c += 4) {
            uint32_t(&to)[4] = *(uint32_t(*)[4]) & q[g][c];

            ldmatrix4(to, tile_at(tile, HD * 2, g * 8 + lane % 8, c + lane / 8));
        }
}

/* Scores of the warp's keys of a tile. */
template <typename T, int HD, int NB>
static __device__ __forceinline__ void few_scores(float (&s)[FEW_TILES][4 * NB], const uint32_t (&q)[NB][HD / 8],
                                                  uint32_t k)
{
    const uint32_t lane = threadIdx.x % 32, key = threadIdx.x / 32 * 16 + lane % 16;

#pragma unroll
    for (int t = 0; t < FEW_TILES; t++)
#pragma unroll
        for (int e = 0; e < 4 * NB; e++) s[t][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < HD / 16; step++)
#pragma unroll
        for (int t = 0; t < FEW_TILES; t++) {
            uint32_t a[4];

            ldmatrix4(a, kv_tile_at<HD, true>(k, t * 64 + key, step * 2 + lane / 16));
            few_mma<T, NB>(s[t], a, q, step * 2);
        }
}

/* Sums of p * v for the warp's dims. */
template <typename T, int HD, int NB>
static __device__ __forceinline__ void few_values(float (&o)[HD / 64][4 * NB], uint32_t p, uint32_t v)
{
    const uint32_t lane = threadIdx.x % 32, key = lane / 16 * 8 + lane % 8, chunk = threadIdx.x / 32 * 2 + lane / 8 % 2;

#pragma unroll
    for (int t = 0; t < HD / 64; t++)
#pragma unroll
        for (int e = 0; e < 4 * NB; e++) o[t][e] = 0.0f;
#pragma unroll
    for (int keys32 = 0; keys32 < SEGMENT / 32; keys32++) {
        uint32_t b[NB][4], a[4];

#pragma unroll
        for (int g = 0; g < NB; g++) ldmatrix4_trans(b[g], p + g * FEW_GROUP_BYTES + (keys32 * 32 + lane) * 16);
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int t = 0; t < HD / 64; t++) {
                ldmatrix4_trans(a, kv_tile_at<HD, true>(v, keys32 * 32 + step * 16 + key, t * 8 + chunk));
                few_mma<T, NB>(o[t], a, b, step * 2);
            }
    }
}

/* Which keys a thread's rows see: first .. last, absolute. */
template <int NB> struct few_window {
    uint32_t first[NB][2], last[NB][2];
};
template <int NB>
static __device__ __forceinline__ struct few_window<NB> few_window_of(const struct cuda_attention_args &a,
                                                                      const struct cuda_run &run) {
    struct few_window<NB> w;

#pragma unroll
    for (int g = 0; g < NB; g++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t last = run.pos0 + min(few_row(g, i) / (a.n_heads / a.n_kv_heads), run.n_rows - 1);

            w.last[g][i] = last;
            w.first[g][i] = a.window && last + 1 > a.window ? last + 1 - a.window : 0;
        }
    return w;
}

/* Scores -> base 2 scores, -inf where not visible. MASK = false: all are visible. */
template <bool CAP, bool MASK, int NB>
static __device__ __forceinline__ void few_scale_as(float (&s)[FEW_TILES][4 * NB], const struct score_scale &scale,
                                                    const struct few_window<NB> &w, uint32_t base)
{
    const uint32_t key = base + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;

#pragma unroll
    for (int t = 0; t < FEW_TILES; t++)
#pragma unroll
        for (int e = 0; e < 4 * NB; e++) {
            const uint32_t at = key + t * 64 + e % 4 / 2 * 8;
            const float v =
                CAP ? __fmul_rn(scale.cap, tanhf(__fmul_rn(s[t][e], scale.inner))) : __fmul_rn(s[t][e], scale.c);

            s[t][e] = !MASK || (at >= w.first[e / 4][e % 2] && at <= w.last[e / 4][e % 2]) ? v : -INFINITY;
        }
}

/* The same by what is needed, for keys base ..; max: of a row over all keys that the warp has. */
template <int NB>
static __device__ __forceinline__ void few_scale(float (&s)[FEW_TILES][4 * NB], float (&max)[NB][2],
                                                 const struct score_scale &scale, const struct few_window<NB> &w,
                                                 uint32_t base)
{
    bool visible = true;

#pragma unroll
    for (int j = 0; j < 2 * NB; j++)
        visible = visible && base >= w.first[j / 2][j % 2] && base + SEGMENT - 1 <= w.last[j / 2][j % 2];
    if (scale.cap > 0)
        few_scale_as<true, true>(s, scale, w, base);
    else if (__all_sync(0xffffffffu, visible))
        few_scale_as<false, false>(s, scale, w, base);
    else
        few_scale_as<false, true>(s, scale, w, base);
#pragma unroll
    for (int g = 0; g < NB; g++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = -INFINITY;

#pragma unroll
            for (int k = 0; k < 2 * FEW_TILES; k++) top = fmaxf(top, s[k / 2][4 * g + k % 2 * 2 + i]);
            for (uint32_t d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, d));
            max[g][i] = top;
        }
}

/* A thread's probabilities to their tile. max: a row's over the segment. */
template <typename T, int NB>
static __device__ __forceinline__ void few_put_probabilities(uint32_t p, const float (&s)[FEW_TILES][4 * NB],
                                                             const float (&max)[NB][2])
{
    const uint32_t to = p + (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) * 16 + threadIdx.x % 4 * 4;

#pragma unroll
    for (int g = 0; g < NB; g++) {
        const float m0 = max[g][0] == -INFINITY ? 0.0f : max[g][0], m1 = max[g][1] == -INFINITY ? 0.0f : max[g][1];

#pragma unroll
        for (int k = 0; k < 2 * FEW_TILES; k++) {
            const float x = s[k / 2][4 * g + k % 2 * 2], y = s[k / 2][4 * g + k % 2 * 2 + 1];

            asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + g * FEW_GROUP_BYTES + (k / 2 * 64 + k % 2 * 8) * 16),
                         "r"(mma_type<T>::pack(exp2_fast(x - m0), exp2_fast(y - m1)))
                         : "memory");
        }
    }
}

/* The sum of a segment's p for a thread's rows; by one warp. */
template <typename T, int NB> static __device__ __forceinline__ void few_sums(float (&l)[NB][2], uint32_t p)
{
    const uint32_t ones[4] = {mma_type<T>::ones, mma_type<T>::ones, mma_type<T>::ones, mma_type<T>::ones};

#pragma unroll
    for (int g = 0; g < NB; g++) {
        float acc[4] = {0, 0, 0, 0};

#pragma unroll
        for (int step = 0; step < SEGMENT / 16; step += 2) {
            uint32_t b[4];

            ldmatrix4_trans(b, p + g * FEW_GROUP_BYTES + (step * 16 + threadIdx.x % 32) * 16);
            mma_type<T>::mma(acc, ones, b[0], b[1]);
            mma_type<T>::mma(acc, ones, b[2], b[3]);
        }
        l[g][0] = acc[0], l[g][1] = acc[1];
    }
}
