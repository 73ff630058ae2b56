/* backend/cpu/v16_neon.h - sixteen floats as four 128-bit registers: what v16_avx2.h is, for AArch64. Included by
 * rows_neon.c and attn_neon.c only. Needs nothing beyond ARMv8-A: fma and conversion of halves are in it.
 */
#pragma once
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define V16_TILE_VECTORS 1 /* of a register tile's row, attn_v16.h */
#define V16_PAIRS        2 /* of sums that two rows keep in registers, rows_v16.h: 2 or 4 */

typedef struct {
    float32x4_t q[4];
} v16; /* lanes 0 .. 3, 4 .. 7, 8 .. 11, 12 .. 15 */

#define EACH(expression)                                                                                               \
    {                                                                                                                  \
        {                                                                                                              \
            expression(0), expression(1), expression(2), expression(3)                                                 \
        }                                                                                                              \
    }

static inline v16 v16_set(float x)
{
    const float32x4_t v = vdupq_n_f32(x);

    return (v16){{v, v, v, v}};
}
static inline v16 v16_load(const float *p)
{
    return (v16){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
static inline void v16_store(float *p, v16 v)
{
    vst1q_f32(p, v.q[0]), vst1q_f32(p + 4, v.q[1]), vst1q_f32(p + 8, v.q[2]), vst1q_f32(p + 12, v.q[3]);
}

/* The first n (0 .. 15) of p, the rest 0; the rest of p is not touched. */
static inline v16 v16_load_n(const float *p, uint32_t n)
{
    float t[16] = {0};

    memcpy(t, p, n * sizeof(*t));
    return v16_load(t);
}

static inline void v16_store_n(float *p, v16 v, uint32_t n)
{
    float t[16];

    v16_store(t, v);
    memcpy(p, t, n * sizeof(*t));
}

/* The second when either is NaN, as cpu_max and cpu_min: fmax and fmin of this machine differ. */
static inline float32x4_t q4_max(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
static inline float32x4_t q4_min(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcltq_f32(x, y), x, y);
}

#define BITS(x)   vreinterpretq_u32_f32(x)
#define FLOATS(x) vreinterpretq_f32_u32(x)
static inline float32x4_t q4_and(float32x4_t x, float32x4_t y)
{
    return FLOATS(vandq_u32(BITS(x), BITS(y)));
}
static inline float32x4_t q4_or(float32x4_t x, float32x4_t y)
{
    return FLOATS(vorrq_u32(BITS(x), BITS(y)));
}
static inline float32x4_t q4_xor(float32x4_t x, float32x4_t y)
{
    return FLOATS(veorq_u32(BITS(x), BITS(y)));
}

#define V16_BINARY(name, op)                                                                                           \
    static inline v16 name(v16 x, v16 y)                                                                               \
    {                                                                                                                  \
        return (v16){{op(x.q[0], y.q[0]), op(x.q[1], y.q[1]), op(x.q[2], y.q[2]), op(x.q[3], y.q[3])}};                \
    }
V16_BINARY(v16_add, vaddq_f32)
V16_BINARY(v16_sub, vsubq_f32)
V16_BINARY(v16_mul, vmulq_f32)
V16_BINARY(v16_div, vdivq_f32)
V16_BINARY(v16_max, q4_max)
V16_BINARY(v16_min, q4_min)
V16_BINARY(v16_and, q4_and)
V16_BINARY(v16_or, q4_or)
V16_BINARY(v16_xor, q4_xor)
#undef V16_BINARY

static inline v16 v16_fma(v16 x, v16 y, v16 z)
{
#define ONE(i) vfmaq_f32(z.q[i], x.q[i], y.q[i])
    return (v16)EACH(ONE);
#undef ONE
}
static inline v16 v16_fmsub(v16 x, v16 y, v16 z)
{
#define ONE(i) vfmaq_f32(vnegq_f32(z.q[i]), x.q[i], y.q[i])
    return (v16)EACH(ONE);
#undef ONE
}

/* a < b ? x : y */
static inline v16 v16_if_less(v16 a, v16 b, v16 x, v16 y)
{
#define ONE(i) vbslq_f32(vcltq_f32(a.q[i], b.q[i]), x.q[i], y.q[i])
    return (v16)EACH(ONE);
#undef ONE
}

/* v where lo <= lane < hi (both at most 16), other elsewhere */
static inline v16 v16_keep(v16 v, uint32_t lo, uint32_t hi, v16 other)
{
    static const uint32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const uint32x4_t from = vdupq_n_u32(lo), to = vdupq_n_u32(hi);
    uint32x4_t in;

    for (int i = 0; i < 4; i++) {
        in = vld1q_u32(lanes + 4 * i);
        in = vandq_u32(vcgeq_u32(in, from), vcltq_u32(in, to));
        v.q[i] = vbslq_f32(in, v.q[i], other.q[i]);
    }
    return v;
}

/* The two powers of two whose product is 2^n, n = bits(t) - bits of EXP_MAGIC; see cpu_exp. */
static inline void v16_exp_scale(v16 t, uint32_t magic_bits, v16 *first, v16 *second)
{
    const int32x4_t bias = vdupq_n_s32(127), magic = vdupq_n_s32((int32_t)magic_bits);

    for (int i = 0; i < 4; i++) {
        int32x4_t k = vsubq_s32(vreinterpretq_s32_f32(t.q[i]), magic), half = vshrq_n_s32(k, 1);

        first->q[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
        second->q[i] = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(k, half), bias), 23));
    }
}

/* tree16 */
static inline float v16_tree(v16 v)
{
    float32x4_t s = vaddq_f32(vaddq_f32(v.q[0], v.q[2]), vaddq_f32(v.q[1], v.q[3]));
    float32x2_t two = vadd_f32(vget_low_f32(s), vget_high_f32(s));

    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

static inline float v16_highest(v16 v)
{
    float32x4_t s = q4_max(q4_max(v.q[0], v.q[2]), q4_max(v.q[1], v.q[3])), t = vextq_f32(s, s, 2);

    s = q4_max(s, t);
    return vgetq_lane_f32(q4_max(s, vdupq_laneq_f32(s, 1)), 0);
}

/* Lane i, of the first 8: the highest of x[i]. */
static inline v16 v16_highest_of(const v16 x[8])
{
    float highest[16] = {0};

    for (int i = 0; i < 8; i++) highest[i] = v16_highest(x[i]);
    return v16_load(highest);
}

static inline v16 v16_load_half(const uint16_t *p)
{
#define ONE(i) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)))
    return (v16)EACH(ONE);
#undef ONE
}
static inline v16 v16_load_bf16(const uint16_t *p)
{
#define ONE(i) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16))
    return (v16)EACH(ONE);
#undef ONE
}

static inline void v16_store_half(uint16_t *p, v16 v)
{
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.q[i])));
}

static inline void v16_store_bf16(uint16_t *p, v16 v)
{
    for (int i = 0; i < 4; i++) {
        uint32x4_t bits = BITS(v.q[i]), high = vshrq_n_u32(bits, 16), odd = vandq_u32(high, vdupq_n_u32(1));
        uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
        uint32x4_t nan = vorrq_u32(high, vdupq_n_u32(0x40));

        vst1_u16(p + 4 * i, vmovn_u32(vbslq_u32(vceqq_f32(v.q[i], v.q[i]), rounded, nan)));
    }
}

/* The highest of the bits of |x| of both: NaN is above infinity. */
static inline uint32_t v16_highest_bits(v16 a, v16 b)
{
    const uint32x4_t magnitude = vdupq_n_u32(0x7fffffff);
    uint32x4_t top = vdupq_n_u32(0);

    for (int i = 0; i < 4; i++) {
        top = vmaxq_u32(top, vandq_u32(BITS(a.q[i]), magnitude));
        top = vmaxq_u32(top, vandq_u32(BITS(b.q[i]), magnitude));
    }
    return vmaxvq_u32(top);
}

/* x < least ? 0 : p * 2^n, where t is the float whose low bits are the exponent field of 2^n */
static inline v16 v16_mul_power(v16 p, v16 t, v16 x, v16 least)
{
    for (int i = 0; i < 4; i++) {
        float32x4_t power = FLOATS(vshlq_n_u32(BITS(t.q[i]), 23));

        p.q[i] = FLOATS(vbicq_u32(BITS(vmulq_f32(p.q[i], power)), vcltq_f32(x.q[i], least.q[i])));
    }
    return p;
}

/* rows [16, dim] to columns [dim] of 16 floats, stride 64 */
static inline void v16_transpose(const float *rows, uint32_t dim, float *columns)
{
    for (uint32_t i = 0; i < dim; i += 4, columns += 4 * 64) {
        for (uint32_t j = 0; j < 4; j++) {
            const float *row = rows + (uint64_t)4 * j * dim + i;
            float32x4x2_t a = vtrnq_f32(vld1q_f32(row), vld1q_f32(row + dim));
            float32x4x2_t b = vtrnq_f32(vld1q_f32(row + 2 * (uint64_t)dim), vld1q_f32(row + 3 * (uint64_t)dim));

            vst1q_f32(columns + 4 * j, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
            vst1q_f32(columns + 4 * j + 64, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
            vst1q_f32(columns + 4 * j + 128, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
            vst1q_f32(columns + 4 * j + 192, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
        }
    }
}

/* ---- sixteen bytes, as v16_bytes_x86.h ---- */

typedef int8x16_t b16;

static inline b16 b16_load(const uint8_t *p)
{
    return vreinterpretq_s8_u8(vld1q_u8(p));
}
static inline void b16_store(uint8_t *p, b16 b)
{
    vst1q_u8(p, vreinterpretq_u8_s8(b));
}
static inline b16 b16_zero(void)
{
    return vdupq_n_s8(0);
}

static inline b16 b16_low_nibbles(b16 q)
{
    return vsubq_s8(vandq_s8(q, vdupq_n_s8(15)), vdupq_n_s8(8));
}
static inline b16 b16_high_nibbles(b16 q)
{
    return vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(q), 4)), vdupq_n_s8(8));
}

static inline b16 b16_nibble(b16 q)
{
    return vminq_s8(vmaxq_s8(vqaddq_s8(q, vdupq_n_s8(8)), vdupq_n_s8(0)), vdupq_n_s8(15));
}
static inline b16 b16_join_nibbles(b16 low, b16 high)
{
    return vorrq_s8(b16_nibble(low), vshlq_n_s8(b16_nibble(high), 4));
}

static inline float half_at(const uint8_t *p)
{
    __fp16 half;

    memcpy(&half, p, sizeof(half));
    return (float)half;
}

/* rounded to nearest even, within -128 .. 127 */
static inline b16 v16_to_int8(v16 v)
{
    int16x8_t low = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v.q[0])), vqmovn_s32(vcvtnq_s32_f32(v.q[1])));
    int16x8_t high = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v.q[2])), vqmovn_s32(vcvtnq_s32_f32(v.q[3])));

    return vcombine_s8(vqmovn_s16(low), vqmovn_s16(high));
}
static inline v16 v16_from_int8(b16 b)
{
    int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_s8(vget_high_s8(b));

    return (v16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
#undef EACH
#undef BITS
#undef FLOATS
