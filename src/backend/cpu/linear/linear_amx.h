/* backend/cpu/linear/linear_amx.h - the state of the matrix unit, and logits on their way out; shared by linear_amx.c and
 * linear_k_amx.c.
 *
 * gcc 12's intrinsics do not declare what memory they touch: everything here is asm with operands and a memory clobber.
 * The tile state lives from ldtilecfg to tilerelease, within one call.
 */
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

struct tile_config { /* Intel SDM volume 1, section 18.3: palette 1 */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

static inline void tiles_configure(const struct tile_config *c)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*c) : "memory");
}

static inline void tiles_release(void)
{
    __asm__ volatile("tilerelease" : : : "memory");
}

/* ---- the largest of BEST_BLOCK outputs of up to 16 rows ---- */

struct tiles_best {
    _Alignas(64) float most[16][16];
}; /* [row][output of a tile] */

static inline void tiles_best_start(struct tiles_best *b)
{
    for (int r = 0; r < 16; r++) _mm512_store_ps(b->most[r], _mm512_set1_ps(-INFINITY));
}

/* 16 outputs of a row that is read little: past the caches, which would fetch the line first (the head of 16 rows takes
 * 10 % longer). */
static inline void tiles_best_put(struct tiles_best *b, uint32_t row, float *out, __mmask16 outs, __m512 v)
{
    const __m512 inf = _mm512_set1_ps(INFINITY), most = _mm512_load_ps(b->most[row]);
    const __m512 known = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(v, inf, _CMP_LT_OQ), inf, v); /* NaN is not less */

    _mm512_store_ps(b->most[row], _mm512_mask_max_ps(most, outs, most, known));
    if (outs == 0xffff && ((uintptr_t)out & 63) == 0)
        _mm512_stream_ps(out, v);
    else
        _mm512_mask_storeu_ps(out, outs, v);
}

/* A block ends: best[row * stride] of each. */
static inline void tiles_best_end(struct tiles_best *b, uint32_t n_rows, float *best, uint64_t stride)
{
    for (uint32_t r = 0; r < n_rows; r++) best[r * stride] = _mm512_reduce_max_ps(_mm512_load_ps(b->most[r]));
    tiles_best_start(b);
    _mm_sfence();
}
