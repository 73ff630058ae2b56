/* tensor/quantise.c - see quantise.h.
 *
 * Q4_K and Q6_K: for every group, a number of trial scales around max / top; each gives quants, the quants give the
 * best scale (and minimum) by least squares, and the trial with the smallest error stays. Weights of the error: larger
 * values count more, since they move a dot product more. Sums run in 8 lanes, so that compilers vectorise them.
 */
#include "tensor/quantise.h"
#include <assert.h>
#include <math.h>
#include <string.h>

#define LANES     8
#define Q4_TRIALS 21
#define Q6_TRIALS 19

bool quantise_knows(enum dtype t)
{
    return t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16 || t == DTYPE_Q8_0 || t == DTYPE_Q4_K || t == DTYPE_Q6_K;
}

/* To the nearest integer, ties to even, for |v| < 2^22: an add that loses the fraction. */
static inline float nearest(float v)
{
    const float m = 12582912.0f;

    return (v + m) - m;
}

static inline float clamp(float v, float low, float high)
{
    return v < low ? low : v > high ? high : v;
}

static float sum_lanes(const float s[LANES])
{
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

static void put_half(uint8_t *p, float f)
{
    uint16_t h = float_to_half(f);

    memcpy(p, &h, 2);
}

static float half_back(float f)
{
    return half_to_float(float_to_half(f));
}

/* ---- Q8_0 ---- */

static void q8_0_block(const float *x, uint8_t *dst)
{
    float top = 0, d, id;

    for (int i = 0; i < 32; i++) top = fmaxf(top, fabsf(x[i]));
    d = top / 127;
    id = d != 0 ? 1 / d : 0;
    put_half(dst, d);
    for (int i = 0; i < 32; i++) dst[2 + i] = (uint8_t)(int8_t)roundf(x[i] * id);
}

/* ---- Q4_K: 8 groups of 32, w = (d * scale) q - (dmin * min) ---- */

struct fit {
    float scale, min, error;
}; /* x ~ scale * q - min, min >= 0 */

/* The best scale and minimum for quants that a trial gives, and their error. */
static struct fit try_q4(const float x[32], const float w[32], float inverse, float low, float top)
{
    float sw[LANES] = {0}, swx[LANES] = {0}, swq[LANES] = {0}, swqq[LANES] = {0}, swxq[LANES] = {0}, e[LANES] = {0};
    float n, a, b, c, xq, xs, det;
    struct fit f;
    float q[32];

    for (int i = 0; i < 32; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float v = clamp(nearest((x[i + k] - low) * inverse), 0, top);

            q[i + k] = v;
            sw[k] += w[i + k];
            swx[k] += w[i + k] * x[i + k];
            swq[k] += w[i + k] * v;
            swqq[k] += w[i + k] * v * v;
            swxq[k] += w[i + k] * x[i + k] * v;
        }
    n = sum_lanes(sw);
    b = sum_lanes(swq);
    c = sum_lanes(swqq);
    xs = sum_lanes(swx);
    xq = sum_lanes(swxq);
    det = n * c - b * b;
    f.scale = det > 0 ? (n * xq - b * xs) / det : 0;
    a = det > 0 ? (c * xs - b * xq) / det : xs / n;
    if (a > 0) { /* minima only lower */
        a = 0;
        f.scale = c > 0 ? xq / c : 0;
    }
    f.min = -a;
    for (int i = 0; i < 32; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float d = f.scale * q[i + k] - f.min - x[i + k];

            e[k] += w[i + k] * d * d;
        }
    f.error = sum_lanes(e);
    return f;
}

static struct fit fit_q4(const float x[32])
{
    float w[32], square = 0, low = 0, high = x[0], spread;
    struct fit best = {0, 0, INFINITY};

    for (int i = 0; i < 32; i++) {
        square += x[i] * x[i];
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    if (!(high > low)) return (struct fit){0, -low, 0};
    spread = sqrtf(square / 32);
    for (int i = 0; i < 32; i++) w[i] = spread + fabsf(x[i]);
    for (int t = 0; t < Q4_TRIALS; t++) {
        struct fit f = try_q4(x, w, (14.0f + 0.1f * (float)t) / (high - low), low, 15);

        if (f.error < best.error && f.scale >= 0) best = f;
    }
    if (!(best.error < INFINITY)) best = (struct fit){(high - low) / 15, -low, 0};
    return best;
}

/* Scales and minima of 6 bits: 12 bytes (layout: dtype_k_quants.c). */
static void put_scales(const uint8_t scale[8], const uint8_t min[8], uint8_t *out)
{
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(scale[i] | scale[i + 4] >> 4 << 6);
        out[4 + i] = (uint8_t)(min[i] | min[i + 4] >> 4 << 6);
        out[8 + i] = (uint8_t)((scale[i + 4] & 15) | (min[i + 4] & 15) << 4);
    }
}

static void q4_k_block(const float *x, uint8_t *dst)
{
    uint8_t scale[8], min[8], q[256];
    struct fit f[8];
    float top_scale = 0, top_min = 0, d, dmin;

    for (int g = 0; g < 8; g++) {
        f[g] = fit_q4(x + 32 * g);
        top_scale = fmaxf(top_scale, f[g].scale);
        top_min = fmaxf(top_min, f[g].min);
    }
    d = half_back(top_scale / 63);
    dmin = half_back(top_min / 63);
    put_half(dst, d);
    put_half(dst + 2, dmin);
    for (int g = 0; g < 8; g++) {
        float s, m, inverse;

        scale[g] = (uint8_t)(d > 0 ? clamp(nearest(f[g].scale / d), 0, 63) : 0);
        min[g] = (uint8_t)(dmin > 0 ? clamp(nearest(f[g].min / dmin), 0, 63) : 0);
        s = d * (float)scale[g];
        m = dmin * (float)min[g];
        inverse = s > 0 ? 1 / s : 0;
        for (int i = 0; i < 32; i++) q[32 * g + i] = (uint8_t)clamp(nearest((x[32 * g + i] + m) * inverse), 0, 15);
    }
    put_scales(scale, min, dst + 4);
    for (int part = 0; part < 4; part++)
        for (int i = 0; i < 32; i++) dst[16 + 32 * part + i] = (uint8_t)(q[64 * part + i] | q[64 * part + 32 + i] << 4);
}

/* ---- Q6_K: 16 groups of 16, w = (d * scale) (q - 32) ---- */

static float fit_q6(const float x[16])
{
    float top = 0, best = 0, best_gain = -1;

    for (int i = 0; i < 16; i++)
        if (fabsf(x[i]) > fabsf(top)) top = x[i];
    if (top == 0) return 0;
    for (int t = 0; t < Q6_TRIALS; t++) {
        float inverse = -(32 + 0.1f * (float)(t - Q6_TRIALS / 2)) / top, xq[LANES] = {0}, qq[LANES] = {0}, sxq, sqq;

        for (int i = 0; i < 16; i += LANES)
            for (int k = 0; k < LANES; k++) {
                float v = x[i + k], q = clamp(nearest(v * inverse), -32, 31), w = v * v;

                xq[k] += w * v * q;
                qq[k] += w * q * q;
            }
        sxq = sum_lanes(xq);
        sqq = sum_lanes(qq);
        if (sqq > 0 && sxq * sxq > best_gain * sqq) { /* what least squares takes from the error */
            best_gain = sxq * sxq / sqq;
            best = sxq / sqq;
        }
    }
    return best;
}

static void q6_k_block(const float *x, uint8_t *dst)
{
    float scale[16], top = 0, d;
    uint8_t q[256];

    for (int g = 0; g < 16; g++) {
        scale[g] = fit_q6(x + 16 * g);
        if (fabsf(scale[g]) > fabsf(top)) top = scale[g];
    }
    d = half_back(-top / 128);
    put_half(dst + 208, d);
    for (int g = 0; g < 16; g++) {
        float s = d != 0 ? clamp(nearest(scale[g] / d), -128, 127) : 0, step = d * s;

        dst[192 + g] = (uint8_t)(int8_t)s;
        for (int i = 0; i < 16; i++) {
            float v = step != 0 ? clamp(nearest(x[16 * g + i] / step), -32, 31) : 0;

            q[16 * g + i] = (uint8_t)(int)(v + 32);
        }
    }
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i++) {
            const uint8_t *v = q + 128 * half + i;

            dst[64 * half + i] = (uint8_t)((v[0] & 15) | (v[64] & 15) << 4);
            dst[64 * half + 32 + i] = (uint8_t)((v[32] & 15) | (v[96] & 15) << 4);
            dst[128 + 32 * half + i] = (uint8_t)(v[0] >> 4 | v[32] >> 4 << 2 | v[64] >> 4 << 4 | v[96] >> 4 << 6);
        }
}

/* ---- all ---- */

/* float_to_half() and float_to_bf16() without branches: every case is computed, and one taken. */
static inline uint16_t half_of(float f)
{
    const float unit = 0.5f; /* + 0.5: the sum's last bit is 2^-24, a subnormal half's unit */
    uint32_t bits, mag, normal, small_bits, result;
    float small;

    memcpy(&bits, &f, 4);
    mag = bits & 0x7fffffff;
    memcpy(&small, &mag, 4);
    small += unit;
    memcpy(&small_bits, &small, 4);
    normal = (mag - ((uint32_t)112 << 23) + 0xfff + (mag >> 13 & 1)) >> 13;
    result = mag < 0x38800000 ? small_bits - 0x3f000000 : normal;
    result = mag >= 0x477ff000 ? 0x7c00 : result;
    result = mag > 0x7f800000 ? 0x7e00 | (mag >> 13 & 0x3ff) : result;
    return (uint16_t)(bits >> 16 & 0x8000) | (uint16_t)result;
}

static inline uint16_t bf16_of(float f)
{
    uint32_t bits, rounded;

    memcpy(&bits, &f, 4);
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

static void to_16_bits(enum dtype t, const float *src, uint8_t *dst, uint64_t n)
{
    uint16_t v[32];

    for (uint64_t at = 0; at < n; at += 32) {
        int part = n - at < 32 ? (int)(n - at) : 32;

        if (t == DTYPE_F16)
            for (int i = 0; i < part; i++) v[i] = half_of(src[at + (uint64_t)i]);
        else
            for (int i = 0; i < part; i++) v[i] = bf16_of(src[at + (uint64_t)i]);
        memcpy(dst + 2 * at, v, 2 * (size_t)part);
    }
}

void quantise(enum dtype t, const float *src, void *out, uint64_t n)
{
    uint32_t weights = dtype_block_weights(t), bytes = dtype_block_bytes(t);
    uint8_t *dst = out;

    assert(quantise_knows(t) && n % weights == 0);
    if (t == DTYPE_F32) {
        memcpy(dst, src, n * sizeof(*src));
        return;
    }
    if (weights == 1) {
        to_16_bits(t, src, dst, n);
        return;
    }
    for (uint64_t i = 0; i < n; i += weights, dst += bytes) {
        if (t == DTYPE_Q8_0)
            q8_0_block(src + i, dst);
        else if (t == DTYPE_Q4_K)
            q4_k_block(src + i, dst);
        else
            q6_k_block(src + i, dst);
    }
}
