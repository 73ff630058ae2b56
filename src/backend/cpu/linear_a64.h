/* backend/cpu/linear_a64.h - linear for AArch64, compiled three times: by linear_neon.c, linear_dotprod.c and
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
#include "backend/cpu/linear_kernels.h"
#include <arm_neon.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include "backend/cpu/linear_prefetch.h"

#define DOT_MULL 0
#define DOT_SDOT 1
#define DOT_MMLA 2
#define ROWS 4
#define INLINE static inline __attribute__((always_inline))

static void quantise_a64(const float *x, uint32_t n_in, struct linear_act *out)
{
    for (uint32_t b = 0; b < n_in / LINEAR_BLOCK; b++, x += LINEAR_BLOCK, out++) {
        int32x4_t top = vdupq_n_s32(0), q[8];
        int32_t bits, half0, half1;
        float amax, scale;

        for (int i = 0; i < 8; i++)
            top = vmaxq_s32(top, vandq_s32(vreinterpretq_s32_f32(vld1q_f32(x + 4 * i)), vdupq_n_s32(0x7fffffff)));
        bits = vmaxvq_s32(top);
        memcpy(&amax, &bits, sizeof(amax));
        if (bits >= 0x7f800000 || amax < LINEAR_ACT_TINY) {
            memset(out, 0, sizeof(*out));
            if (bits >= 0x7f800000) out->d = NAN;
            continue;
        }
        scale = 127.0f / amax;
        for (int i = 0; i < 8; i++) q[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), scale));
        for (int i = 0; i < 8; i += 2)
            vst1_s8(out->q + 4 * i, vmovn_s16(vcombine_s16(vmovn_s32(q[i]), vmovn_s32(q[i + 1]))));
        half0 = vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
        half1 = vaddvq_s32(vaddq_s32(vaddq_s32(q[4], q[5]), vaddq_s32(q[6], q[7])));
        out->d = amax / 127.0f;
        out->sum = (float)(half0 + half1);
        out->neg_sum = -(half0 + half1);
        out->neg_half[0] = -half0;
        out->neg_half[1] = -half1;
        out->half[0] = (float)half0;
        out->half[1] = (float)half1;
        out->unused = 0;
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
        if (bits == 8) w[g] = vld1q_u8(lines + g * 64);
        else if (bits <= 3) w[g] = vandq_u8(move_bits(vld1q_u8(lines + g / 4 * 64), g % 4 * 2, 0), vdupq_n_u8(3));
        else w[g] = vandq_u8(move_bits(vld1q_u8(lines + g % 4 * 64), g / 4 * 4, 0), vdupq_n_u8(15));
        if (bits == 3)
            w[g] = vorrq_u8(w[g], vandq_u8(move_bits(vld1q_u8(lines + 128), g, 2), vdupq_n_u8(4)));
        if (bits == 5)
            w[g] = vorrq_u8(w[g], vandq_u8(move_bits(vld1q_u8(lines + 256), g, 4), vdupq_n_u8(16)));
        if (bits == 6)
            w[g] = vorrq_u8(w[g], vandq_u8(move_bits(vld1q_u8(lines + 256 + g / 4 * 64), g % 4 * 2, 4),
                                           vdupq_n_u8(48)));
#if LINEAR_DOT != DOT_MMLA
        if (bits == 8) w[g] = veorq_u8(w[g], vdupq_n_u8(0x80));
#endif
    }
}

struct scales { float32x4_t d[2], m[2]; };

INLINE float32x4_t halves_at(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

INLINE uint32x4_t bytes_at(const uint8_t *p)
{
    uint32_t four;

    memcpy(&four, p, sizeof(four));
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
}

INLINE float32x4_t signed_bytes_at(const uint8_t *p)
{
    uint32_t four;

    memcpy(&four, p, sizeof(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
}

/* quarter: 0 .. 3, which outputs. in_unit: which block of the unit. */
INLINE void open_scales(const uint8_t *unit, int kind, uint32_t quarter, uint32_t in_unit, struct scales *s)
{
    const uint8_t *bytes = unit + quarter * 4 + in_unit * 32;
    float32x4_t d = halves_at(unit + quarter * 8);

    if (kind == SCALES_D) {
        s->d[0] = d;
    } else if (kind == SCALES_DM) {
        s->d[0] = d;
        s->m[0] = halves_at(unit + 32 + quarter * 8);
    } else if (kind == SCALES_K) {
        for (int h = 0; h < 2; h++) s->d[h] = vmulq_f32(d, signed_bytes_at(bytes + 32 + h * 16));
    } else if (kind == SCALES_KM) {
        s->d[0] = vmulq_f32(d, vcvtq_f32_u32(bytes_at(bytes + 64)));
        s->m[0] = vnegq_f32(vmulq_f32(halves_at(unit + 32 + quarter * 8), vcvtq_f32_u32(bytes_at(bytes + 64 + 16))));
    } else {
        for (int h = 0; h < 2; h++) {
            uint32x4_t both = bytes_at(bytes + 64 + h * 16);

            s->d[h] = vmulq_f32(d, vcvtq_f32_u32(vandq_u32(both, vdupq_n_u32(15))));
            s->m[h] = vnegq_f32(vmulq_f32(halves_at(unit + 32 + quarter * 8), vcvtq_f32_u32(vshrq_n_u32(both, 4))));
        }
    }
}

/* ---- dots ---- */

#if LINEAR_DOT == DOT_MULL
/* s + the dots of groups 4 half .. 4 half + 3. */
INLINE int32x4_t dot_half(int32x4_t s, const uint8x16_t w[8], const int8_t *q, int half, int bits)
{
    const int step = bits == 8 ? 2 : 4;
    int32x4_t low = vdupq_n_s32(0), high = low;         /* pairs of lanes: outputs 0 and 1, 2 and 3 */

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

/* s [n_rows][2] += the dots of both halves of the block. */
INLINE void dot_rows(const uint8x16_t w[8], const struct linear_act *a, uint64_t stride, int n_rows, int bits,
                     int32x4_t s[ROWS][2])
{
#if LINEAR_DOT == DOT_MMLA
    if (n_rows > 1) {
        uint8x16_t z[8];                        /* z[2i]: outputs 0 and 1 of groups 2i, 2i + 1; z[2i + 1]: 2, 3 */

        for (int i = 0; i < 4; i++) {
            uint32x4_t even = vreinterpretq_u32_u8(w[2 * i]), odd = vreinterpretq_u32_u8(w[2 * i + 1]);

            z[2 * i] = vreinterpretq_u8_u32(vzip1q_u32(even, odd));
            z[2 * i + 1] = vreinterpretq_u8_u32(vzip2q_u32(even, odd));
        }
        for (int r = 0; r < n_rows; r += 2) {
            const int8_t *q0 = a[(uint64_t)r * stride].q, *q1 = a[(uint64_t)(r + 1) * stride].q;

            for (int h = 0; h < 2; h++) {
                int32x4_t low = vdupq_n_s32(0), high = low;     /* outputs 0, 1 and 2, 3, each of both rows */

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
        for (int h = 0; h < 2; h++) s[r][h] = dot_half(s[r][h], w, a[(uint64_t)r * stride].q, h, bits);
}

/* dot: of both halves of the block, the offsets taken off. */
INLINE float32x4_t block_term(const struct scales *s, const struct linear_act *a, const int32x4_t dot[2], int kind)
{
    float32x4_t t;

    if (kind == SCALES_K || kind == SCALES_K2) {
        t = vmulq_f32(s->d[0], vcvtq_f32_s32(dot[0]));
        t = vfmaq_f32(t, s->d[1], vcvtq_f32_s32(dot[1]));
    } else {
        t = vmulq_f32(s->d[0], vcvtq_f32_s32(vaddq_s32(dot[0], dot[1])));
    }
    if (kind == SCALES_K2) {
        t = vfmaq_n_f32(t, s->m[0], a->half[0]);
        t = vfmaq_n_f32(t, s->m[1], a->half[1]);
    } else if (kind == SCALES_DM || kind == SCALES_KM) {
        t = vfmaq_n_f32(t, s->m[0], a->sum);
    }
    return t;
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
    const uint32_t block_bytes = (uint32_t)bits * 64;
    const uint32_t unit_blocks = kind == SCALES_D || kind == SCALES_DM ? 1 : 8;
    const uint32_t unit_bytes = kind == SCALES_D ? 32 : kind == SCALES_DM ? 64 : kind == SCALES_K ? 288 : 320;
    const uint8_t *lines = t->w, *scales = t->w + (uint64_t)n_blocks * block_bytes;
    const struct stream_ahead ahead = stream_ahead_of(t->w, scales, (uint64_t)n_blocks / unit_blocks * unit_bytes);
    const bool takes_off = offset_shift && (bits != 8 || LINEAR_DOT == DOT_MMLA);
    const bool is_first = row0 == 0 && first == 0;      /* later ones find the tile in the cache */
    float32x4_t acc[4][ROWS];

    for (int i = 0; i < n_quarters; i++)
        for (int r = 0; r < n_rows; r++) acc[i][r] = vdupq_n_f32(0);
    for (uint32_t b = 0; b < n_blocks; b++, lines += block_bytes, a++) {
        const uint8_t *unit = scales + b / unit_blocks * unit_bytes;

        if (is_first) prefetch_block(&ahead, lines, block_bytes, b % unit_blocks ? NULL : unit, unit_bytes);
#pragma GCC unroll 4
        for (int i = 0; i < n_quarters; i++) {
            int32x4_t dot[ROWS][2];
            uint8x16_t w[8];
            struct scales s;

            open_block(lines + (first + (uint32_t)i) * 16, bits, w);
            open_scales(unit, kind, first + (uint32_t)i, b % unit_blocks, &s);
            for (int r = 0; r < n_rows; r++)
                for (int h = 0; h < 2; h++)
                    dot[r][h] = vdupq_n_s32(takes_off ? a[(uint64_t)r * t->x_stride].neg_half[h] * (1 << offset_shift)
                                                      : 0);
            dot_rows(w, a, t->x_stride, n_rows, bits, dot);
            for (int r = 0; r < n_rows; r++) {
                const struct linear_act *row = a + (uint64_t)r * t->x_stride;

                acc[i][r] = vfmaq_n_f32(acc[i][r], block_term(&s, row, dot[r], kind), row->d);
            }
        }
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
        if (t->n_rows - row >= 2) { rows_fn(t, row, 2, 0, 4, __VA_ARGS__); row += 2; }                                 \
        if (t->n_rows - row >= 1) rows_fn(t, row, 1, 0, 4, __VA_ARGS__);                                               \
    }

TILE(tile_f32, float_rows, DTYPE_F32)
TILE(tile_f16, float_rows, DTYPE_F16)
TILE(tile_bf16, float_rows, DTYPE_BF16)
TILE(tile_q4_0, quant_rows, 4, 3, SCALES_D)
TILE(tile_q4_1, quant_rows, 4, 0, SCALES_DM)
TILE(tile_q5_0, quant_rows, 5, 4, SCALES_D)
TILE(tile_q5_1, quant_rows, 5, 0, SCALES_DM)
TILE(tile_q8_0, quant_rows, 8, 7, SCALES_D)
TILE(tile_q2_k, quant_rows, 2, 0, SCALES_K2)
TILE(tile_q3_k, quant_rows, 3, 2, SCALES_K)
TILE(tile_q4_k, quant_rows, 4, 0, SCALES_KM)
TILE(tile_q5_k, quant_rows, 5, 0, SCALES_KM)
TILE(tile_q6_k, quant_rows, 6, 5, SCALES_K)

static linear_tile_fn *tile_a64(enum dtype type)
{
    switch (type) {
    case DTYPE_F32: return tile_f32;
    case DTYPE_F16: return tile_f16;
    case DTYPE_BF16: return tile_bf16;
    case DTYPE_Q4_0: return tile_q4_0;
    case DTYPE_Q4_1: return tile_q4_1;
    case DTYPE_Q5_0: return tile_q5_0;
    case DTYPE_Q5_1: return tile_q5_1;
    case DTYPE_Q8_0: return tile_q8_0;
    case DTYPE_Q2_K: return tile_q2_k;
    case DTYPE_Q3_K: return tile_q3_k;
    case DTYPE_Q4_K: return tile_q4_k;
    case DTYPE_Q5_K: return tile_q5_k;
    case DTYPE_Q6_K: return tile_q6_k;
    case DTYPE_NONE: break;
    }
    return NULL;
}
