/* backend/cpu/linear/linear_a64.h - linear for AArch64, compiled three times: by linear_neon.c, linear_dotprod.c and
 * linear_i8mm.c, which set LINEAR_DOT before they include this. One output per 32-bit lane; a tile is four quarters of
 * 4 outputs, a vector of weights is 4 outputs x 4 k.
 *
 * Sums          as linear_kernels.h; dots are exact integers, in any order.
 *   DOT_MULL    products of signed bytes gather in 16 bits, as many as cannot overflow (u <= 63: 4 groups of k; 8
 *               bits, signed: 2), then widen.
 *   DOT_SDOT    one instruction per 4 k; 8-bit weights become signed as above, the rest are.
 *   DOT_MMLA    unsigned weights times signed activations; two rows of activations meet two outputs over 8 k in one
 *               instruction, once neighbouring groups of weights are zipped together.
 * Work          four rows share an opened quarter in registers; one or two rows go through the tile once, a block's
 *               quarters one after the other, so that its lines are read once.
 * Bytes         per weight as in the file; decode is bound by memory, many rows by the multiplications.
 * Measured      not: compiled and checked against the reference under qemu, which has no speed.
 */
#pragma once
#include "backend/cpu/linear/linear_kernels.h"
#include <arm_neon.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear/linear_prefetch.h"

#define DOT_MULL 0
#define DOT_SDOT 1
#define DOT_MMLA 2
#define ROWS     4
#define INLINE   static inline __attribute__((always_inline))

/* 8 floats to rounded integers. */
INLINE void round_8(const float *x, float scale, int32x4_t q[2])
{
    for (int i = 0; i < 2; i++) q[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), scale));
}

/* The greatest magnitude of n floats as bits: NaN > inf > finite. */
INLINE int32_t top_of(const float *x, int n)
{
    int32x4_t top = vdupq_n_s32(0);

    for (int i = 0; i < n; i += 4)
        top = vmaxq_s32(top, vandq_s32(vreinterpretq_s32_f32(vld1q_f32(x + i)), vdupq_n_s32(0x7fffffff)));
    return vmaxvq_s32(top);
}

/* 16 floats to bytes; returns their sum. */
INLINE int32_t quantise_16(const float *x, float scale, int8_t *out)
{
    int32x4_t q[4];

    round_8(x, scale, q);
    round_8(x + 8, scale, q + 2);
    vst1_s8(out, vmovn_s16(vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]))));
    vst1_s8(out + 8, vmovn_s16(vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]))));
    return vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
}

static void quantise_a64(const float *x, uint32_t n_in, void *acts)
{
    struct linear_act *out = acts;

    for (uint32_t b = 0; b < n_in / LINEAR_BLOCK; b++, x += LINEAR_BLOCK, out++) {
        int32_t bits = top_of(x, LINEAR_BLOCK), sum;
        float amax;

        memcpy(&amax, &bits, sizeof(amax));
        memset(out, 0, sizeof(*out));
        if (bits >= 0x7f800000) out->d = NAN;
        if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) continue;
        sum = quantise_16(x, 127.0f / amax, out->q);
        sum += quantise_16(x + 16, 127.0f / amax, out->q + 16);
        out->d = amax / 127.0f;
        out->sum = (float)sum;
        out->neg_sum = -sum;
    }
}

static void quantise_k_a64(const float *x, uint32_t n_in, void *acts)
{
    struct linear_unit *out = acts;

    for (uint32_t b = 0; b < n_in / LINEAR_UNIT; b++, x += LINEAR_UNIT, out++) {
        int32_t bits = top_of(x, LINEAR_UNIT);
        float amax;

        memcpy(&amax, &bits, sizeof(amax));
        memset(out, 0, sizeof(*out));
        if (bits >= 0x7f800000) out->d = NAN;
        if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) continue;
        for (int i = 0; i < 16; i++) {
            out->sum16[i] = (int16_t)quantise_16(x + 16 * i, 127.0f / amax, out->q + 16 * i);
            out->sum32[i / 2] = (int16_t)(out->sum32[i / 2] + out->sum16[i]);
        }
        out->d = amax / 127.0f;
    }
}

/* ---- weights ---- */

/* (byte >> from) << to; bits that are not wanted are masked by the caller. */
INLINE uint8x16_t move_bits(uint8x16_t v, int from, int to)
{
    return vshlq_u8(v, vdupq_n_s8((int8_t)(to - from)));
}

/* Opens a block's quants of 4 outputs; lines: the quarter's bytes of the first line. w[g] has group g. */
INLINE void open_block(const uint8_t *lines, int bits, uint8x16_t w[8])
{
    for (int g = 0; g < 8; g++) {
        if (bits == 8)
            w[g] = vld1q_u8(lines + g * 64);
        else if (bits <= 3)
            w[g] = vandq_u8(move_bits(vld1q_u8(lines + g / 4 * 64), g % 4 * 2, 0), vdupq_n_u8(3));
        else
            w[g] = vandq_u8(move_bits(vld1q_u8(lines + g % 4 * 64), g / 4 * 4, 0), vdupq_n_u8(15));
        if (bits == 3) w[g] = vorrq_u8(w[g], vandq_u8(move_bits(vld1q_u8(lines + 128), g, 2), vdupq_n_u8(4)));
        if (bits == 5) w[g] = vorrq_u8(w[g], vandq_u8(move_bits(vld1q_u8(lines + 256), g, 4), vdupq_n_u8(16)));
        if (bits == 6)
            w[g] =
                vorrq_u8(w[g], vandq_u8(move_bits(vld1q_u8(lines + 256 + g / 4 * 64), g % 4 * 2, 4), vdupq_n_u8(48)));
#if LINEAR_DOT != DOT_MMLA
        if (bits == 8) w[g] = veorq_u8(w[g], vdupq_n_u8(0x80));
#endif
    }
}

INLINE float32x4_t halves_at(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* 4 unsigned bytes; 4 signed. */
INLINE int32x4_t bytes_at(const uint8_t *p)
{
    uint32_t four;

    memcpy(&four, p, sizeof(four));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four))))));
}

INLINE int32x4_t signed_bytes_at(const uint8_t *p)
{
    uint32_t four;

    memcpy(&four, p, sizeof(four));
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))));
}

/* ---- dots ---- */

#if LINEAR_DOT == DOT_MULL
/* s + the dots of groups 4 half .. 4 half + 3. */
INLINE int32x4_t dot_half(int32x4_t s, const uint8x16_t w[8], const int8_t *q, int half, int bits)
{
    const int step = bits == 8 ? 2 : 4;
    int32x4_t low = vdupq_n_s32(0), high = low; /* pairs of lanes: outputs 0 and 1, 2 and 3 */

    for (int g = 4 * half; g < 4 * half + 4; g += step) {
        int16x8_t words_low = vdupq_n_s16(0), words_high = words_low;

        for (int i = g; i < g + step; i++) {
            int8x16_t v = vreinterpretq_s8_u8(w[i]);
            int32_t four;
            int8x8_t a;

            memcpy(&four, q + 4 * i, sizeof(four));
            a = vreinterpret_s8_s32(vdup_n_s32(four));
            words_low = vmlal_s8(words_low, vget_low_s8(v), a);
            words_high = vmlal_s8(words_high, vget_high_s8(v), a);
        }
        low = vpadalq_s16(low, words_low);
        high = vpadalq_s16(high, words_high);
    }
    return vaddq_s32(s, vpaddq_s32(low, high));
}
#else
#if LINEAR_DOT == DOT_SDOT
#define DOT_LANE(s, w, a, lane) vdotq_laneq_s32(s, vreinterpretq_s8_u8(w), a, lane)
#else
#define DOT_LANE(s, w, a, lane) vusdotq_laneq_s32(s, w, a, lane)
#endif
INLINE int32x4_t dot_half(int32x4_t s, const uint8x16_t w[8], const int8_t *q, int half, int bits)
{
    const int8x16_t a = vld1q_s8(q + 16 * half);

    s = DOT_LANE(s, w[4 * half], a, 0);
    s = DOT_LANE(s, w[4 * half + 1], a, 1);
    s = DOT_LANE(s, w[4 * half + 2], a, 2);
    return DOT_LANE(s, w[4 * half + 3], a, 3);
}
#endif

/* s [n_rows][2] += the dots of both halves of the block; q: the block's activations, stride bytes from row to row. */
INLINE void dot_rows(const uint8x16_t w[8], const int8_t *q, uint64_t stride, int n_rows, int bits,
                     int32x4_t s[ROWS][2])
{
#if LINEAR_DOT == DOT_MMLA
    if (n_rows > 1) {
        uint8x16_t z[8]; /* z[2i]: outputs 0 and 1 of groups 2i, 2i + 1; z[2i + 1]: 2, 3 */

        for (int i = 0; i < 4; i++) {
            uint32x4_t even = vreinterpretq_u32_u8(w[2 * i]), odd = vreinterpretq_u32_u8(w[2 * i + 1]);

            z[2 * i] = vreinterpretq_u8_u32(vzip1q_u32(even, odd));
            z[2 * i + 1] = vreinterpretq_u8_u32(vzip2q_u32(even, odd));
        }
        for (int r = 0; r < n_rows; r += 2) {
            const int8_t *q0 = q + (uint64_t)r * stride, *q1 = q0 + stride;

            for (int h = 0; h < 2; h++) {
                int32x4_t low = vdupq_n_s32(0), high = low; /* outputs 0, 1 and 2, 3, each of both rows */

                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    int8x16_t both = vcombine_s8(vld1_s8(q0 + 8 * i), vld1_s8(q1 + 8 * i));

                    low = vusmmlaq_s32(low, z[2 * i], both);
                    high = vusmmlaq_s32(high, z[2 * i + 1], both);
                }
                s[r][h] = vaddq_s32(s[r][h], vuzp1q_s32(low, high));
                s[r + 1][h] = vaddq_s32(s[r + 1][h], vuzp2q_s32(low, high));
            }
        }
        return;
    }
#endif
    for (int r = 0; r < n_rows; r++)
        for (int h = 0; h < 2; h++) s[r][h] = dot_half(s[r][h], w, q + (uint64_t)r * stride, h, bits);
}

/* ---- tiles ---- */

/* Writes a quarter's outputs; the last tile may have fewer. */
INLINE void store_quarter(const struct linear_tile *t, uint32_t row, uint32_t quarter, float32x4_t v)
{
    float *out = t->out + row * t->out_stride + quarter * 4;
    int n_out = (int)t->n_out - (int)quarter * 4;
    float four[4] = {0};

    if (n_out <= 0) return;
    if (n_out >= 4) {
        vst1q_f32(out, t->bias ? vaddq_f32(v, vld1q_f32(t->bias + quarter * 4)) : v);
        return;
    }
    if (t->bias) {
        memcpy(four, t->bias + quarter * 4, (size_t)n_out * sizeof(*four));
        v = vaddq_f32(v, vld1q_f32(four));
    }
    vst1q_f32(four, v);
    memcpy(out, four, (size_t)n_out * sizeof(*four));
}

/* Quarters first .. first + n_quarters - 1 of n_rows rows; all but t, row0 and first are constants where this is
 * inlined. */
INLINE void quant_rows(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t first, int n_quarters, int bits,
                       int offset_shift, int kind)
{
    const struct linear_act *a = (const struct linear_act *)t->x + row0 * t->x_stride;
    const uint32_t n_blocks = t->n_in / LINEAR_BLOCK;
    const uint32_t block_bytes = (uint32_t)bits * 64, unit_bytes = LINEAR_SCALE_BYTES(kind);
    const uint8_t *lines = t->w, *unit = t->w + (uint64_t)n_blocks * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(t->w, unit, (uint64_t)n_blocks * unit_bytes, t->ask_l2);
    const bool takes_off = offset_shift && (bits != 8 || LINEAR_DOT == DOT_MMLA);
    const bool is_first = row0 == 0 && first == 0; /* later ones find the tile in the cache */
    float32x4_t acc[4][ROWS];

    for (int i = 0; i < n_quarters; i++)
        for (int r = 0; r < n_rows; r++) acc[i][r] = vdupq_n_f32(0);
    for (uint32_t b = 0; b < n_blocks; b++, lines += block_bytes, unit += unit_bytes, a++) {
        if (is_first) prefetch_block(&ahead, lines, block_bytes, unit, unit_bytes);
#pragma GCC unroll 4
        for (int i = 0; i < n_quarters; i++) {
            const uint32_t quarter = first + (uint32_t)i;
            const float32x4_t d = halves_at(unit + quarter * 8);
            int32x4_t dot[ROWS][2];
            uint8x16_t w[8];

            open_block(lines + quarter * 16, bits, w);
            for (int r = 0; r < n_rows; r++) {
                dot[r][0] = vdupq_n_s32(takes_off ? a[(uint64_t)r * t->x_stride].neg_sum * (1 << offset_shift) : 0);
                dot[r][1] = vdupq_n_s32(0);
            }
            dot_rows(w, a->q, t->x_stride * sizeof(*a), n_rows, bits, dot);
            for (int r = 0; r < n_rows; r++) {
                const struct linear_act *row = a + (uint64_t)r * t->x_stride;
                float32x4_t v = vmulq_f32(d, vcvtq_f32_s32(vaddq_s32(dot[r][0], dot[r][1])));

                if (kind == SCALES_DM) v = vfmaq_n_f32(v, halves_at(unit + 32 + quarter * 8), row->sum);
                acc[i][r] = vfmaq_n_f32(acc[i][r], v, row->d);
            }
        }
    }
    for (int i = 0; i < n_quarters; i++)
        for (int r = 0; r < n_rows; r++) store_quarter(t, row0 + (uint32_t)r, first + (uint32_t)i, acc[i][r]);
}

/* The scale of 4 outputs: of 16 k, or (SCALES_KM) of 32. */
INLINE int32x4_t scale_at(const uint8_t *unit, int kind, uint32_t quarter, int part)
{
    if (kind == SCALES_K) return signed_bytes_at(unit + 32 + part * 16 + quarter * 4);
    if (kind == SCALES_KM) return bytes_at(unit + 64 + part / 2 * 32 + quarter * 4);
    return vandq_s32(bytes_at(unit + 64 + part * 16 + quarter * 4), vdupq_n_s32(15));
}

/* What the activations' sums add to a unit's sum of a K type: those of mins, or, where quants are signed, of scales. */
INLINE int32x4_t low_sum(const uint8_t *unit, int kind, uint32_t quarter, const struct linear_unit *a)
{
    int32x4_t s = vdupq_n_s32(0);

    if (kind == SCALES_KM) {
        for (int j = 0; j < 8; j++) s = vmlaq_n_s32(s, bytes_at(unit + 80 + j * 32 + quarter * 4), a->sum32[j]);
        return s;
    }
    for (int j = 0; j < 16; j++) {
        int32x4_t v = kind == SCALES_K ? scale_at(unit, kind, quarter, j)
                                       : vshrq_n_s32(bytes_at(unit + 64 + j * 16 + quarter * 4), 4);

        s = vmlaq_n_s32(s, v, a->sum16[j]);
    }
    return s;
}

/* The float step of a unit. */
INLINE float32x4_t unit_step(float32x4_t acc, const uint8_t *unit, int offset_shift, int kind, uint32_t quarter,
                             const struct linear_unit *a, int32x4_t sum)
{
    const float32x4_t d = halves_at(unit + quarter * 8);
    int32x4_t low = low_sum(unit, kind, quarter, a);
    float32x4_t t;

    if (kind == SCALES_K) {
        t = vmulq_f32(d, vcvtq_f32_s32(vsubq_s32(sum, vmulq_n_s32(low, 1 << offset_shift))));
    } else {
        t = vmulq_f32(d, vcvtq_f32_s32(sum));
        t = vfmsq_f32(t, halves_at(unit + 32 + quarter * 8), vcvtq_f32_s32(low));
    }
    return vfmaq_n_f32(acc, t, a->d);
}

/* As quant_rows, for K types: integers until a unit is complete. */
INLINE void k_rows(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t first, int n_quarters, int bits,
                   int offset_shift, int kind)
{
    const struct linear_unit *a = (const struct linear_unit *)t->x + row0 * t->x_stride;
    const uint32_t n_units = t->n_in / LINEAR_UNIT, block_bytes = (uint32_t)bits * 64;
    const uint32_t unit_bytes = LINEAR_SCALE_BYTES(kind);
    const uint8_t *lines = t->w, *unit = t->w + (uint64_t)n_units * 8 * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(t->w, unit, (uint64_t)n_units * unit_bytes, t->ask_l2);
    const bool is_first = row0 == 0 && first == 0;
    float32x4_t acc[4][ROWS];

    for (int i = 0; i < n_quarters; i++)
        for (int r = 0; r < n_rows; r++) acc[i][r] = vdupq_n_f32(0);
    for (uint32_t u = 0; u < n_units; u++, unit += unit_bytes, a++) {
        int32x4_t sum[4][ROWS];

        for (int i = 0; i < n_quarters; i++)
            for (int r = 0; r < n_rows; r++) sum[i][r] = vdupq_n_s32(0);
        for (int b = 0; b < 8; b++, lines += block_bytes) {
            if (is_first) prefetch_block(&ahead, lines, block_bytes, b ? NULL : unit, unit_bytes);
#pragma GCC unroll 4
            for (int i = 0; i < n_quarters; i++) {
                const int32x4_t scale0 = scale_at(unit, kind, first + (uint32_t)i, 2 * b);
                const int32x4_t scale1 = scale_at(unit, kind, first + (uint32_t)i, 2 * b + 1);
                int32x4_t dot[ROWS][2];
                uint8x16_t w[8];

                open_block(lines + (first + (uint32_t)i) * 16, bits, w);
                for (int r = 0; r < n_rows; r++) dot[r][0] = dot[r][1] = vdupq_n_s32(0);
                dot_rows(w, a->q + b * 32, t->x_stride * sizeof(*a), n_rows, bits, dot);
                for (int r = 0; r < n_rows; r++) {
                    if (kind == SCALES_KM) dot[r][0] = vaddq_s32(dot[r][0], dot[r][1]);
                    sum[i][r] = vmlaq_s32(sum[i][r], dot[r][0], scale0);
                    if (kind != SCALES_KM) sum[i][r] = vmlaq_s32(sum[i][r], dot[r][1], scale1);
                }
            }
        }
        for (int i = 0; i < n_quarters; i++)
            for (int r = 0; r < n_rows; r++)
                acc[i][r] = unit_step(acc[i][r], unit, offset_shift, kind, first + (uint32_t)i,
                                      a + (uint64_t)r * t->x_stride, sum[i][r]);
    }
    for (int i = 0; i < n_quarters; i++)
        for (int r = 0; r < n_rows; r++) store_quarter(t, row0 + (uint32_t)r, first + (uint32_t)i, acc[i][r]);
}

INLINE float32x4_t weights_at(const uint8_t *w, uint64_t k, uint32_t quarter, enum dtype type)
{
    const uint8_t *at = w + (k * 16 + quarter * 4) * (type == DTYPE_F32 ? 4 : 2);

    if (type == DTYPE_F32) return vreinterpretq_f32_u8(vld1q_u8(at));
    if (type == DTYPE_F16) return halves_at(at);
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(at)), 16));
}

INLINE void float_rows(const struct linear_tile *t, uint32_t row0, int n_rows, uint32_t first, int n_quarters,
                       enum dtype type)
{
    const float *x = (const float *)t->x + row0 * t->x_stride;
    float32x4_t p[2][4][ROWS];

    for (int i = 0; i < n_quarters; i++)
        for (int r = 0; r < n_rows; r++) p[0][i][r] = p[1][i][r] = vdupq_n_f32(0);
    for (uint32_t k = 0; k < t->n_in; k += 2) {
#pragma GCC unroll 2
        for (uint32_t odd = 0; odd < 2; odd++) {
            if (k + odd == t->n_in) break;
            for (int i = 0; i < n_quarters; i++) {
                float32x4_t w = weights_at(t->w, k + odd, first + (uint32_t)i, type);

                for (int r = 0; r < n_rows; r++)
                    p[odd][i][r] = vfmaq_n_f32(p[odd][i][r], w, x[(uint64_t)r * t->x_stride + k + odd]);
            }
        }
    }
    for (int i = 0; i < n_quarters; i++)
        for (int r = 0; r < n_rows; r++)
            store_quarter(t, row0 + (uint32_t)r, first + (uint32_t)i, vaddq_f32(p[0][i][r], p[1][i][r]));
}

/* One function per type: rows by four, a quarter at a time, then what is left. */
#define TILE(name, rows_fn, ...)                                                                                       \
    static void name(const struct linear_tile *t)                                                                      \
    {                                                                                                                  \
        uint32_t row = t->n_rows / 4 * 4;                                                                              \
                                                                                                                       \
        for (uint32_t quarter = 0; quarter < 4; quarter++)                                                             \
            for (uint32_t r = 0; r < row; r += 4) rows_fn(t, r, 4, quarter, 1, __VA_ARGS__);                           \
        if (t->n_rows - row >= 2) {                                                                                    \
            rows_fn(t, row, 2, 0, 4, __VA_ARGS__);                                                                     \
            row += 2;                                                                                                  \
        }                                                                                                              \
        if (t->n_rows - row >= 1) rows_fn(t, row, 1, 0, 4, __VA_ARGS__);                                               \
    }

#define FLOAT_TILE(tag, type)                             TILE(tile_##tag, float_rows, DTYPE_##type)
#define QUANT_TILE(tag, type, bits, offset_shift, scales) TILE(tile_##tag, quant_rows, bits, offset_shift, scales)
#define K_TILE(tag, type, bits, offset_shift, scales)     TILE(tile_##tag, k_rows, bits, offset_shift, scales)
LINEAR_FLOATS(FLOAT_TILE)
LINEAR_BLOCK_FORMS(QUANT_TILE)
LINEAR_K_FORMS(K_TILE)

static linear_tile_fn *tile_a64(enum dtype type)
{
    switch (type) {
        LINEAR_FLOATS(LINEAR_TILE_CASE)
        LINEAR_FORMS(LINEAR_TILE_CASE)
    default:
        return NULL;
    }
}

static const struct cpu_linear_kernels k_kernels_a64 = {LINEAR_UNIT, sizeof(struct linear_unit), quantise_k_a64,
                                                        tile_a64, NULL};
