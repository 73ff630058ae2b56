/* backend/cuda/attention/attention_convert.cuh - quantised keys and values on their way to the tensor cores.
 *
 * A row of Q8_0 or Q4_0 (blocks of 32 as in GGUF files: a half d, then numbers) becomes half(d * q), the exact
 * product rounded once: so a value does not depend on who converts it; F8_E4M3 becomes the same number. Rows of f16 are
 * taken as they are. Rows as
 * they lie in the pages ("raw") wait in shared memory. A page's rows of one head come as one piece where
 * pages_are_pieces, else in words.
 */
#pragma once
#include "backend/cuda/attention/attention_mma.cuh"
#include "tensor/dtype.h"

/* Word i of a block's numbers, which begin 2 bytes behind a multiple of 4 if ODD. */
template <bool ODD> static __device__ __forceinline__ uint32_t block_word(const uint32_t *w, int i)
{
    return ODD ? __byte_perm(w[i], w[i + 1], 0x5432) : w[i];
}
static __device__ __forceinline__ __half2 half2_of(uint32_t v)
{
    return *(__half2 *)&v;
}
static __device__ __forceinline__ uint32_t half2_bits(__half2 v)
{
    return *(uint32_t *)&v;
}
/* Bytes 0, 1 or 2, 3 of v as halves 1024 + byte. */
static __device__ __forceinline__ __half2 bytes_half2(uint32_t v, uint32_t which)
{
    return half2_of(__byte_perm(v, 0x64646464u, which));
}

/* 8 halves to 16-byte chunk c of row r of a tile. */
template <int HD, bool BANDS>
static __device__ __forceinline__ void put_chunk(uint32_t tile, uint32_t r, uint32_t c, const uint32_t (&v)[4])
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(kv_tile_at<HD, BANDS>(tile, r, c)), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

/* Block b of a row whose words are w. The numbers of even ones begin in the middle of a word (ODD). */
template <int HD, bool BANDS, int B>
static __device__ __forceinline__ void convert_q8_0(uint32_t tile, uint32_t r, uint32_t b, const uint32_t *w)
{
    constexpr bool ODD = B % 2 == 0;
    constexpr int FIRST = B * 34 / 4; /* word with d */
    const __half2 d = __half2half2(__ushort_as_half((uint16_t)(ODD ? w[FIRST] : w[FIRST] >> 16)));
    const __half2 zero = half2_of(0x64806480u); /* 1024 + 128 */
    uint32_t v[4];

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t x = block_word<ODD>(w + FIRST + !ODD, i) ^ 0x80808080u;

        v[i % 2 * 2] = half2_bits(__hmul2(__hsub2(bytes_half2(x, 0x4140), zero), d));
        v[i % 2 * 2 + 1] = half2_bits(__hmul2(__hsub2(bytes_half2(x, 0x4342), zero), d));
        if (i % 2) put_chunk<HD, BANDS>(tile, r, b * 4 + i / 2, v);
    }
}

template <int HD, bool BANDS, int B>
static __device__ __forceinline__ void convert_q4_0(uint32_t tile, uint32_t r, uint32_t b, const uint32_t *w)
{
    constexpr bool ODD = B % 2 == 0;
    constexpr int FIRST = B * 18 / 4;
    const __half2 d = __half2half2(__ushort_as_half((uint16_t)(ODD ? w[FIRST] : w[FIRST] >> 16)));
    const __half2 zero = half2_of(0x64086408u); /* 1024 + 8 */
    uint32_t v[4];

#pragma unroll
    for (int high = 0; high < 2; high++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t x = block_word<ODD>(w + FIRST + !ODD, i) >> 4 * high & 0x0F0F0F0Fu;

            v[i % 2 * 2] = half2_bits(__hmul2(__hsub2(bytes_half2(x, 0x4140), zero), d));
            v[i % 2 * 2 + 1] = half2_bits(__hmul2(__hsub2(bytes_half2(x, 0x4342), zero), d));
            if (i % 2) put_chunk<HD, BANDS>(tile, r, b * 4 + high * 2 + i / 2, v);
        }
}

/* Two bytes of e4m3 as halves: v's lower ones, or its upper ones. */
static __device__ __forceinline__ uint32_t e4m3_half2(uint32_t v)
{
    uint32_t r = 0;
#if __CUDA_ARCH__ >= 900 /* the others take attention_plain */
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)v));
#endif
    return r;
}

/* A row of e4m3 is 16 bytes for each of HD / 16 threads, so that a warp reads whole lines: rows of 128 bytes that a thread
 * has for itself would all lie in the same banks. Half of the threads write their second chunk first, for the same reason. */
template <int HD, int THREADS, bool BANDS>
static __device__ __forceinline__ void convert_e4m3(uint32_t tile, const uint8_t *raw, uint32_t row_bytes, uint32_t n)
{
    constexpr uint32_t PARTS = HD / 16;

#pragma unroll
    for (uint32_t i = threadIdx.x; i < SEGMENT * PARTS; i += THREADS) {
        const uint32_t r = i / PARTS, c = i % PARTS, later = c / 4 % 2;
        const uint4 x = r < n ? *(const uint4 *)(raw + r * row_bytes + c * 16) : make_uint4(0, 0, 0, 0);
        const uint32_t low[4] = {e4m3_half2(x.x), e4m3_half2(x.x >> 16), e4m3_half2(x.y), e4m3_half2(x.y >> 16)};
        const uint32_t high[4] = {e4m3_half2(x.z), e4m3_half2(x.z >> 16), e4m3_half2(x.w), e4m3_half2(x.w >> 16)};
        uint32_t v[2][4];

#pragma unroll
        for (int k = 0; k < 4; k++) v[0][k] = later ? high[k] : low[k], v[1][k] = later ? low[k] : high[k];
        put_chunk<HD, BANDS>(tile, r, 2 * c + later, v[0]);
        put_chunk<HD, BANDS>(tile, r, 2 * c + !later, v[1]);
    }
}

/* Blocks b .. b + N - 1 of row r, b even; WIDE: 8 bytes at a time, which spreads rows of 128 numbers over all banks. */
template <int HD, bool BANDS, int N, int BLOCK_BYTES>
static __device__ __forceinline__ void convert_blocks(uint32_t tile, uint32_t r, uint32_t b, const uint8_t *row)
{
    constexpr int WORDS = N * BLOCK_BYTES / 4;
    constexpr bool WIDE = N == 4;
    const uint8_t *from = row + b * BLOCK_BYTES;
    uint32_t w[WORDS];

#pragma unroll
    for (int i = 0; i < WORDS; i += 1 + WIDE)
        if (WIDE)
            *(uint2 *)&w[i] = *(const uint2 *)(from + i * 4);
        else
            w[i] = *(const uint32_t *)(from + i * 4);
    if constexpr (BLOCK_BYTES == 34) {
        convert_q8_0<HD, BANDS, 0>(tile, r, b, w), convert_q8_0<HD, BANDS, 1>(tile, r, b + 1, w);
        if constexpr (WIDE)
            convert_q8_0<HD, BANDS, 2>(tile, r, b + 2, w), convert_q8_0<HD, BANDS, 3>(tile, r, b + 3, w);
    } else {
        convert_q4_0<HD, BANDS, 0>(tile, r, b, w), convert_q4_0<HD, BANDS, 1>(tile, r, b + 1, w);
        if constexpr (WIDE)
            convert_q4_0<HD, BANDS, 2>(tile, r, b + 2, w), convert_q4_0<HD, BANDS, 3>(tile, r, b + 3, w);
    }
}

/* Rows of `raw` (row_bytes each, in shared memory) to a tile, by all of THREADS; rows n .. become zeros. */
template <int HD, int THREADS, bool BANDS>
static __device__ __forceinline__ void convert_rows(uint32_t tile, const uint8_t *raw, uint32_t row_bytes, int dtype,
                                                    uint32_t n)
{
    constexpr uint32_t N = HD == 128 && THREADS == SEGMENT ? 4 : 2, PARTS = HD / 32 / N; /* blocks at a time */

    if (dtype == DTYPE_F8_E4M3) {
        convert_e4m3<HD, THREADS, BANDS>(tile, raw, row_bytes, n);
        return;
    }
#pragma unroll
    for (uint32_t i = threadIdx.x; i < SEGMENT * PARTS; i += THREADS) {
        const uint32_t r = i % SEGMENT, b = i / SEGMENT * N;
        const uint8_t *row = raw + r * row_bytes;

        if (r >= n || dtype == DTYPE_F16) {
#pragma unroll
            for (uint32_t c = 0; c < N * 4; c++) {
                uint4 x = make_uint4(0, 0, 0, 0);

                if (r < n) x = *(const uint4 *)(row + (b * 4 + c) * 16);
                const uint32_t v[4] = {x.x, x.y, x.z, x.w};
                put_chunk<HD, BANDS>(tile, r, b * 4 + c, v);
            }
        } else if (dtype == DTYPE_Q8_0) {
            convert_blocks<HD, BANDS, N, 34>(tile, r, b, row);
        } else {
            convert_blocks<HD, BANDS, N, 18>(tile, r, b, row);
        }
    }
}

static __device__ __forceinline__ bool pages_are_pieces(const struct cuda_kv &kv)
{
    return kv.page_tokens >= 8 && kv.page_tokens <= SEGMENT &&
           (kv.k_row_bytes * kv.page_tokens | kv.v_row_bytes * kv.page_tokens) % 16 == 0;
}

/* Where word i of the raw rows first .. lies. */
static __device__ __forceinline__ const uint32_t *raw_word(const struct kv_source &s, uint32_t first, uint32_t i)
{
    const uint32_t words = s.row_bytes / 4, t = first + i / words, slot = t & ((1u << s.page_shift) - 1);

    return (const uint32_t *)(s.base + s.table[t >> s.page_shift] * s.page_bytes + (uint64_t)slot * s.row_bytes) +
           i % words;
}

/* Raw rows first .. of keys or values to shared memory, by THREADS: those before s.n_keys, and what is behind them in
 * their page. */
template <int THREADS>
static __device__ __forceinline__ void load_raw(uint32_t to, const struct kv_source &s, bool pieces, uint32_t first)
{
    const uint32_t tokens = 1u << s.page_shift, n = min(s.n_keys - first, (uint32_t)SEGMENT);
    const uint32_t per_page = tokens * s.row_bytes / 16, n_chunks = ((n + tokens - 1) >> s.page_shift) * per_page;

    for (uint32_t i = threadIdx.x; pieces && i < n_chunks; i += THREADS) {
        const uint32_t page = i / per_page;
        const uint8_t *from = s.base + s.table[(first >> s.page_shift) + page] * s.page_bytes;

        async_copy16(to + i * 16, from + (uint64_t)(i - page * per_page) * 16, true);
    }
    for (uint32_t i = threadIdx.x; !pieces && i < n * s.row_bytes / 4; i += THREADS)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + i * 4), "l"(raw_word(s, first, i))
                     : "memory");
}

/* The same in words by one warp, with a barrier of the warp behind it. */
static __device__ __noinline__ void warp_copy_raw(uint32_t to, const struct kv_source s, uint32_t first)
{
    const uint32_t n = min(s.n_keys - first, (uint32_t)SEGMENT) * s.row_bytes / 4;

#pragma unroll 8
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i * 4), "r"(__ldcg(raw_word(s, first, i))) : "memory");
    __syncwarp();
}
