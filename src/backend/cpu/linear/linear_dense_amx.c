/* backend/cpu/linear/linear_dense_amx.c - linear_dense.h by AMX-BF16: 32 rows x 32 outputs in four tiles of sums.
 *
 * Work   per 32 k: two tiles of weights meet two of x0, then two of x1 (and where weights have two parts x0 meets the second):
 *        8 products of 16 cycles, 6 tiles of 1 KiB loaded. 16 rows that are alone have two tiles of sums.
 * Bound  arithmetic, 128 cycles per 32 k; of the L2 cache come 6 KiB in that time, 48 bytes a cycle, which is close to its own.
 *        Measured, 16 threads of an Intel Xeon: all of SigLIP (896 x 896) in 4.3 s, 6.4 s where products are f32.
 */
#include <immintrin.h>
#include <string.h>
#include "backend/cpu/linear/linear_amx.h"
#include "backend/cpu/linear/linear_dense.h"

/* bf16 of 16 floats, to nearest even, in the low halves; NaN stays one. */
static inline __m512i to_bf16(__m512 v)
{
    const __m512i u = _mm512_castps_si512(v), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
    const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));

    return _mm512_srli_epi32(_mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, quiet), 16);
}

static void split16_amx(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t n_in, uint8_t *group)
{
    const uint32_t n_blocks = (n_in + DENSE_K - 1) / DENSE_K;

    for (uint32_t b = 0; b < n_blocks; b++, group += DENSE_BLOCK)
        for (uint32_t r = 0; r < DENSE_ROWS; r++)
            for (uint32_t half = 0; half < 2; half++) {
                const uint32_t k = b * DENSE_K + half * 16, left = n_in > k ? n_in - k : 0;
                const __mmask16 there = r >= n_rows ? 0 : left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
                const __m512 v = _mm512_maskz_loadu_ps(there, x + (r < n_rows ? r : 0) * x_stride + (left ? k : 0));
                const __m512i high = to_bf16(v);
                const __m512 rest = _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
                uint8_t *at = group + r * 64 + half * 32;

                _mm256_store_si256((__m256i *)(void *)at, _mm512_cvtepi32_epi16(high));
                _mm256_store_si256((__m256i *)(void *)(at + DENSE_TILE), _mm512_cvtepi32_epi16(to_bf16(rest)));
            }
}

static inline void load(int tile, const uint8_t *at)
{
    const uint64_t stride = 64;

    switch (tile) {
    case 4:
        __asm__ volatile("tileloadd (%0,%1), %%tmm4" : : "r"(at), "r"(stride) : "memory");
        break;
    case 5:
        __asm__ volatile("tileloadd (%0,%1), %%tmm5" : : "r"(at), "r"(stride) : "memory");
        break;
    case 6:
        __asm__ volatile("tileloadd (%0,%1), %%tmm6" : : "r"(at), "r"(stride) : "memory");
        break;
    default:
        __asm__ volatile("tileloadd (%0,%1), %%tmm7" : : "r"(at), "r"(stride) : "memory");
    }
}

/* Rows of the tiles 4 and 5 (two: the latter, too) by the outputs of 6 and 7. */
static inline __attribute__((always_inline)) void multiply(int two)
{
    __asm__ volatile("tdpbf16ps %%tmm6, %%tmm4, %%tmm0" : : : "memory");
    __asm__ volatile("tdpbf16ps %%tmm7, %%tmm4, %%tmm1" : : : "memory");
    if (!two) return;
    __asm__ volatile("tdpbf16ps %%tmm6, %%tmm5, %%tmm2" : : : "memory");
    __asm__ volatile("tdpbf16ps %%tmm7, %%tmm5, %%tmm3" : : : "memory");
}

static inline __attribute__((always_inline)) void multiply_all(const struct dense_panel *p, const uint8_t *x, int two)
{
    const uint64_t other = (uint64_t)p->n_blocks * DENSE_BLOCK; /* the next group */
    const uint8_t *w = p->w;

    for (uint32_t b = 0; b < p->n_blocks; b++, x += DENSE_BLOCK, w += p->n_parts * DENSE_BLOCK) {
        load(6, w);
        load(7, w + DENSE_TILE);
        load(4, x);
        if (two) load(5, x + other);
        multiply(two);
        load(4, x + DENSE_TILE);
        if (two) load(5, x + other + DENSE_TILE);
        multiply(two);
        if (p->n_parts == 1) continue;
        load(6, w + DENSE_BLOCK);
        load(7, w + DENSE_BLOCK + DENSE_TILE);
        load(4, x);
        if (two) load(5, x + other);
        multiply(two);
    }
}

static void put_rows(const struct dense_panel *p, const float *sums, uint32_t row, uint32_t out)
{
    const uint32_t n_rows = p->n_rows - row < DENSE_ROWS ? p->n_rows - row : DENSE_ROWS;
    const uint32_t n_out = p->n_out > out ? p->n_out - out : 0;
    const __mmask16 outs = n_out >= 16 ? 0xffff : (__mmask16)((1u << n_out) - 1);
    const __m512 bias = p->bias && outs ? _mm512_maskz_loadu_ps(outs, p->bias + out) : _mm512_setzero_ps();

    for (uint32_t r = 0; r < n_rows && outs; r++) {
        float *to = p->out + (row + r) * p->out_stride + out;
        __m512 v = _mm512_load_ps(sums + r * 16);

        if (p->add) v = _mm512_add_ps(_mm512_maskz_loadu_ps(outs, to), v);
        _mm512_mask_storeu_ps(to, outs, p->bias ? _mm512_add_ps(v, bias) : v);
    }
}

static void panel_amx(const struct dense_panel *p)
{
    static const struct tile_config config = {
        .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .n_rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _Alignas(64) float sums[4][16 * 16];
    const uint64_t stride = 64;

    tiles_configure(&config);
    for (uint32_t row = 0; row < p->n_rows; row += 2 * DENSE_ROWS) {
        const uint8_t *x = p->x + (uint64_t)(row / DENSE_ROWS) * p->n_blocks * DENSE_BLOCK;
        const int two = p->n_rows - row > DENSE_ROWS;

        __asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3" : : : "memory");
        if (two)
            multiply_all(p, x, 1);
        else
            multiply_all(p, x, 0);
        __asm__ volatile("tilestored %%tmm0, (%0,%1)" : : "r"(sums[0]), "r"(stride) : "memory");
        __asm__ volatile("tilestored %%tmm1, (%0,%1)" : : "r"(sums[1]), "r"(stride) : "memory");
        put_rows(p, sums[0], row, 0);
        put_rows(p, sums[1], row, 16);
        if (!two) continue;
        __asm__ volatile("tilestored %%tmm2, (%0,%1)" : : "r"(sums[2]), "r"(stride) : "memory");
        __asm__ volatile("tilestored %%tmm3, (%0,%1)" : : "r"(sums[3]), "r"(stride) : "memory");
        put_rows(p, sums[2], row + DENSE_ROWS, 0);
        put_rows(p, sums[3], row + DENSE_ROWS, 16);
    }
    tiles_release();
}

const struct cpu_dense_kernels dense_kernels_amx = {split16_amx, panel_amx};
