/* tensor/dtype_k_quants.c - the blocks of 256 weights, Q2_K .. Q6_K, to float.
 *
 * Groups of 16 or 32 weights have a small integer scale of their own (and, in Q2_K, Q4_K and Q5_K, a small integer
 * minimum), which multiply the block's half-precision d (and dmin). The bits of one weight are spread over planes: a
 * byte holds the same bits of weights that lie 32 apart. Layouts: ggml's published block formats.
 */
#include "tensor/dtype_blocks.h"

/* scales[16]: low nibble the scale, high nibble the minimum of 16 weights; qs[64]; d, dmin half.
 * Byte i of a 32-byte plane holds, from the low bits up, weights i, i + 32, i + 64, i + 96 of its 128.
 * w = (d * scale) * q - (dmin * min) */
void q2_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 84) {
        const uint8_t *scales = src, *qs = src + 16;
        float d = dtype_half_at(src + 80), dmin = dtype_half_at(src + 82);

        for (int group = 0; group < 16; group++, dst += 16) {
            const uint8_t *plane = qs + group / 8 * 32 + group % 2 * 16;
            int shift = group % 8 / 2 * 2;
            float dl = d * (float)(scales[group] & 15), ml = dmin * (float)(scales[group] >> 4);

            for (int i = 0; i < 16; i++) dst[i] = dl * (float)(plane[i] >> shift & 3) - ml;
        }
    }
}

/* 12 bytes -> 16 scales of 6 bits: byte i of the first 8 has the low nibbles of scales i and i + 8; byte 8 + i has the
 * top two bits of scales i, i + 4, i + 8, i + 12. */
static int q3_k_scale(const uint8_t *packed, int group)
{
    int low = packed[group % 8] >> (group / 8 * 4) & 15;
    int high = packed[8 + group % 4] >> (group / 4 * 2) & 3;

    return (low | high << 4) - 32;
}

/* hmask[32]: bit b of byte i is the third bit of weight b * 32 + i (0: four less); qs[64] as Q2_K; scales[12]; d half.
 * w = (d * (scale - 32)) * (q - 4 * !high) */
void q3_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 110) {
        const uint8_t *hmask = src, *qs = src + 32, *scales = src + 96;
        float d = dtype_half_at(src + 108);

        for (int group = 0; group < 16; group++, dst += 16) {
            const uint8_t *plane = qs + group / 8 * 32 + group % 2 * 16, *high = hmask + group % 2 * 16;
            int shift = group % 8 / 2 * 2, bit = group / 2;
            float dl = d * (float)q3_k_scale(scales, group);

            for (int i = 0; i < 16; i++) {
                int q = (plane[i] >> shift & 3) - (~high[i] >> bit & 1) * 4;

                dst[i] = dl * (float)q;
            }
        }
    }
}

/* 12 bytes -> 8 scales and 8 minima of 6 bits. Groups 0..3: the low six bits of bytes 0..3 (scale) and 4..7 (minimum).
 * Groups 4..7: a nibble of bytes 8..11 (low: scale, high: minimum) under the top two bits of those first bytes. */
static void q4_k_scale_min(const uint8_t *packed, int group, int *scale, int *min)
{
    if (group < 4) {
        *scale = packed[group] & 63;
        *min = packed[group + 4] & 63;
    } else {
        *scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
        *min = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4);
    }
}

/* d, dmin half; scales[12]; qs[128]: byte i of a 32-byte plane has weights i (low nibble) and i + 32 of its 64.
 * w = (d * scale) * q - (dmin * min) */
void q4_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 144) {
        const uint8_t *scales = src + 4, *qs = src + 16;
        float d = dtype_half_at(src), dmin = dtype_half_at(src + 2);

        for (int group = 0; group < 8; group++, dst += 32) {
            const uint8_t *plane = qs + group / 2 * 32;
            int shift = group % 2 * 4, scale, min;

            q4_k_scale_min(scales, group, &scale, &min);
            float dl = d * (float)scale, ml = dmin * (float)min;
            for (int i = 0; i < 32; i++) dst[i] = dl * (float)(plane[i] >> shift & 15) - ml;
        }
    }
}

/* d, dmin half; scales[12] as Q4_K; qh[32]: bit b of byte i is the fifth bit of weight b * 32 + i; qs[128] as Q4_K. */
void q5_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 176) {
        const uint8_t *scales = src + 4, *qh = src + 16, *qs = src + 48;
        float d = dtype_half_at(src), dmin = dtype_half_at(src + 2);

        for (int group = 0; group < 8; group++, dst += 32) {
            const uint8_t *plane = qs + group / 2 * 32;
            int shift = group % 2 * 4, scale, min;

            q4_k_scale_min(scales, group, &scale, &min);
            float dl = d * (float)scale, ml = dmin * (float)min;
            for (int i = 0; i < 32; i++) {
                int q = (plane[i] >> shift & 15) | (qh[i] >> group & 1) << 4;

                dst[i] = dl * (float)q - ml;
            }
        }
    }
}

/* ql[128]: byte i of a 64-byte plane has weights i (low nibble) and i + 64 of its 128; qh[64]: byte i of a 32-byte
 * plane has the top two bits of weights i, i + 32, i + 64, i + 96 of its 128; scales[16] signed; d half.
 * w = (d * scale) * (q - 32) */
void q6_k_to_float(const uint8_t *src, float *dst, uint64_t n_blocks)
{
    for (; n_blocks--; src += 210) {
        const uint8_t *ql = src, *qh = src + 128, *scales = src + 192;
        float d = dtype_half_at(src + 208);

        for (int group = 0; group < 16; group++, dst += 16) {
            int quarter = group % 8 / 2; /* which 32 of the 128 weights */
            const uint8_t *low = ql + group / 8 * 64 + quarter % 2 * 32 + group % 2 * 16;
            const uint8_t *high = qh + group / 8 * 32 + group % 2 * 16;
            float dl = d * (float)(int8_t)scales[group];

            for (int i = 0; i < 16; i++) {
                int q = ((low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (quarter * 2) & 3) << 4) - 32;

                dst[i] = dl * (float)q;
            }
        }
    }
}
