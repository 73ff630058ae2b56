/* backend/cuda/attention/attention_products.cuh - the products of attention by wgmma, for 64 packed rows of a warpgroup.
 *
 * Tiles in shared memory: bands of 64 dims, each [row][128 bytes] with a 128-byte swizzle, as the copy engine writes
 * them and kv_tile_at has them (BANDS). A step of 16 k has the bits of mma.sync's: order of sums in attention_mma.cuh.
 * Fragments: warp w of the warpgroup has rows 16 w + lane / 4 and + 8; score or dim 8 n + lane % 4 * 2 + j of row i at
 * [4 n + 2 i + j].
 */
#pragma once
#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/wgmma_bf16.cuh"
#include <type_traits>

/* 16-byte chunk c of row r of a tile of ROWS rows. */
template <uint32_t ROWS> static __device__ __forceinline__ uint32_t half_tile_at(uint32_t tile, uint32_t r, uint32_t c)
{
    return tile + (c / 8) * ROWS * 128 + r * 128 + (((c ^ r) & 7) << 4);
}

/* Scores of the warpgroup's 64 rows with the segment's keys. */
template <typename T, int HD>
static __device__ __forceinline__ void wgmma_scores(float (&s)[64], uint32_t q, uint32_t k)
{
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < HD / 16; step++) {
        const uint64_t a = wgmma_desc(q + step / 4 * 64 * 128) + step % 4 * 2;
        const uint64_t b = wgmma_desc(k + step / 4 * SEGMENT * 128) + step % 4 * 2;

        if constexpr (std::is_same<T, __half>::value)
            wgmma_ss_f16<128>(s, a, b, step > 0);
        else
            wgmma_ss<128>(s, a, b, step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
}

/* 64 dims of o merged with p v; v: tile of those dims. */
template <typename T>
static __device__ __forceinline__ void wgmma_values(float *o, const uint32_t (&p)[SEGMENT / 16][4], uint32_t v,
                                                    const struct merge_factors &f)
{
    float acc[32];

    wgmma_fence();
#pragma unroll
    for (int step = 0; step < SEGMENT / 16; step++) {
        const uint64_t b = wgmma_desc_t(v + step * 16 * 128);

        if constexpr (std::is_same<T, __half>::value)
            wgmma_rs_t_f16<64>(acc, p[step], b, step > 0);
        else
            wgmma_rs_t<64>(acc, p[step], b, step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 32; i++) o[i] = merge_value(o[i], acc[i], f.old[i / 2 % 2], f.add[i / 2 % 2]);
}

/* o / l of each row with the bits of __fdiv_rn, by its own steps: one reciprocal a row, and no branch for each number, where all
 * of the warp's are far from what these steps are not exact for (a thread's 64 quotients took 12,000 cycles, H200). */
template <int N> static __device__ __forceinline__ void divide_rows(float (&o)[N], const float (&l)[2])
{
    uint32_t least = ~0u, most = 0; /* without sign, times two */
    float r[2];
    bool plain = true;

#pragma unroll
    for (int n = 0; n < N; n++) {
        least = min(least, 2 * __float_as_uint(o[n]) - 1); /* of zeros: nothing */
        most = max(most, 2 * __float_as_uint(o[n]));
    }
#pragma unroll
    for (int i = 0; i < 2; i++) plain &= l[i] >= 0x1p-40f && l[i] <= 0x1p40f;
    plain &= least >= 2 * __float_as_uint(0x1p-60f) - 1 && most <= 2 * __float_as_uint(0x1p60f);
    if (!__all_sync(0xffffffffu, plain)) {
#pragma unroll
        for (int n = 0; n < N; n++) o[n] = __fdiv_rn(o[n], l[n / 2 % 2]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r[i]) : "f"(l[i]));
        r[i] = fmaf(r[i], fmaf(-l[i], r[i], 1.0f), r[i]);
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float q = __fmul_rn(o[n], r[n / 2 % 2]);

        const float x = fmaf(r[n / 2 % 2], fmaf(-l[n / 2 % 2], q, o[n]), q);

        o[n] = __uint_as_float(__float_as_uint(x) | (__float_as_uint(o[n]) & 0x80000000u)); /* -0 stays */
    }
}
