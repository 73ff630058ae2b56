/* backend/cpu/linear/linear_ref.c - linear, plainly: the bits that the other variants must give.
 *
 * Decodes a block of a tile to one byte per quant, then sums as linear_kernels.h says. Speed does not matter.
 */
#include "backend/cpu/linear/linear_kernels.h"
#include <math.h>
#include <string.h>

/* n <= 256 activations as integers of one scale, which is returned. */
static float quantise_together(const float *x, uint32_t n, int8_t *q)
{
    int32_t top = 0;
    float amax, scale;

    memset(q, 0, n);
    for (uint32_t i = 0; i < n; i++) { /* as integers, magnitudes order NaN > inf > finite */
        int32_t bits;

        memcpy(&bits, &x[i], sizeof(bits));
        bits &= 0x7fffffff;
        if (bits > top) top = bits;
    }
    memcpy(&amax, &top, sizeof(amax));
    if (!isfinite(amax)) return NAN;
    if (amax < LINEAR_ACT_TINY) return 0;
    scale = 127.0f / amax;
    for (uint32_t i = 0; i < n; i++) q[i] = (int8_t)lrintf(x[i] * scale);
    return amax / 127.0f;
}

static int32_t sum_of(const int8_t *q, uint32_t n)
{
    int32_t sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += q[i];
    return sum;
}

static void quantise_ref(const float *x, uint32_t n_in, void *acts)
{
    struct linear_act *out = acts;

    for (uint32_t b = 0; b < n_in / LINEAR_BLOCK; b++, x += LINEAR_BLOCK, out++) {
        memset(out, 0, sizeof(*out));
        out->d = quantise_together(x, LINEAR_BLOCK, out->q);
        out->neg_sum = -sum_of(out->q, LINEAR_BLOCK);
        out->sum = (float)-out->neg_sum;
    }
}

static void quantise_k_ref(const float *x, uint32_t n_in, void *acts)
{
    struct linear_unit *out = acts;

    for (uint32_t b = 0; b < n_in / LINEAR_UNIT; b++, x += LINEAR_UNIT, out++) {
        memset(out, 0, sizeof(*out));
        out->d = quantise_together(x, LINEAR_UNIT, out->q);
        for (uint32_t i = 0; i < 16; i++) out->sum16[i] = (int16_t)sum_of(out->q + i * 16, 16);
        for (uint32_t i = 0; i < 8; i++) out->sum32[i] = (int16_t)sum_of(out->q + i * 32, 32);
    }
}

/* Quants of one block: u[output][k]. */
static void block_quants(const uint8_t *lines, uint32_t bits, uint8_t u[16][32])
{
    for (uint32_t k = 0; k < 32; k++) {
        for (uint32_t o = 0; o < 16; o++) {
            uint32_t g = k / 4, at = o * 4 + k % 4;
            uint32_t nibble = lines[g % 4 * 64 + at] >> (g / 4 * 4) & 15;
            uint32_t v;

            switch (bits) {
            case 2:
                v = lines[g / 4 * 64 + at] >> (g % 4 * 2) & 3;
                break;
            case 3:
                v = (lines[g / 4 * 64 + at] >> (g % 4 * 2) & 3) | (lines[128 + at] >> g & 1) << 2;
                break;
            case 4:
                v = nibble;
                break;
            case 5:
                v = nibble | (lines[256 + at] >> g & 1) << 4;
                break;
            case 6:
                v = nibble | (lines[256 + g / 4 * 64 + at] >> (g % 4 * 2) & 3) << 4;
                break;
            default:
                v = lines[g * 64 + at];
                break;
            }
            u[o][k] = (uint8_t)v;
        }
    }
}

static float half_at(const uint8_t *p, uint32_t i)
{
    uint16_t h;

    memcpy(&h, p + 2 * i, sizeof(h));
    return half_to_float(h);
}

/* scale, or min, of 16 k of a K type: part 0 .. 15 of the unit. */
static int32_t k_scale(const uint8_t *unit, enum linear_scales kind, uint32_t part, uint32_t o)
{
    if (kind == SCALES_K) return (int8_t)unit[32 + part * 16 + o];
    if (kind == SCALES_KM) return unit[64 + part / 2 * 32 + o];
    return unit[64 + part * 16 + o] & 15;
}

static int32_t k_min(const uint8_t *unit, enum linear_scales kind, uint32_t part, uint32_t o)
{
    if (kind == SCALES_K) return 0;
    if (kind == SCALES_KM) return unit[64 + part / 2 * 32 + 16 + o];
    return unit[64 + part * 16 + o] >> 4;
}

/* (u - offset) * q over n k. */
static int32_t dot_of(const struct linear_form *f, const uint8_t *u, const int8_t *q, uint32_t n)
{
    int32_t offset = f->offset_shift ? 1 << f->offset_shift : 0, dot = 0;

    for (uint32_t k = 0; k < n; k++) dot += ((int32_t)u[k] - offset) * q[k];
    return dot;
}

static void store_row(const struct linear_tile *t, uint32_t r, const float acc[16])
{
    float *out = t->out + r * t->out_stride;

    for (uint32_t o = 0; o < t->n_out; o++) out[o] = t->bias ? acc[o] + t->bias[o] : acc[o];
}

static void quant_tile(const struct linear_tile *t, const struct linear_form *f)
{
    const uint8_t *scales = t->w + linear_scales_offset(f, t->n_in);

    for (uint32_t r = 0; r < t->n_rows; r++) {
        const struct linear_act *a = (const struct linear_act *)t->x + r * t->x_stride;
        float acc[16] = {0};

        for (uint32_t b = 0; b < t->n_in / LINEAR_BLOCK; b++) {
            const uint8_t *unit = scales + b * f->unit_bytes;
            uint8_t u[16][32];

            block_quants(t->w + (uint64_t)b * f->block_bytes, f->bits, u);
            for (uint32_t o = 0; o < 16; o++) {
                float v = half_at(unit, o) * (float)dot_of(f, u[o], a[b].q, LINEAR_BLOCK);

                if (f->scales == SCALES_DM) v = fmaf(half_at(unit + 32, o), a[b].sum, v);
                acc[o] = fmaf(a[b].d, v, acc[o]);
            }
        }
        store_row(t, r, acc);
    }
}

static void k_tile(const struct linear_tile *t, const struct linear_form *f)
{
    const uint8_t *scales = t->w + linear_scales_offset(f, t->n_in);

    for (uint32_t r = 0; r < t->n_rows; r++) {
        const struct linear_unit *a = (const struct linear_unit *)t->x + r * t->x_stride;
        float acc[16] = {0};

        for (uint32_t i = 0; i < t->n_in / LINEAR_UNIT; i++) {
            const uint8_t *unit = scales + i * f->unit_bytes;
            int32_t sum[16] = {0}, low[16] = {0};
            uint8_t u[16][32];

            for (uint32_t part = 0; part < 16; part++) {
                if (part % 2 == 0) block_quants(t->w + (uint64_t)(i * 8 + part / 2) * f->block_bytes, f->bits, u);
                for (uint32_t o = 0; o < 16; o++) {
                    sum[o] +=
                        k_scale(unit, f->scales, part, o) * dot_of(f, u[o] + part % 2 * 16, a[i].q + part * 16, 16);
                    low[o] += k_min(unit, f->scales, part, o) * a[i].sum16[part];
                }
            }
            for (uint32_t o = 0; o < 16; o++) {
                float v = half_at(unit, o) * (float)sum[o];

                if (f->scales != SCALES_K) v = fmaf(-half_at(unit + 32, o), (float)low[o], v);
                acc[o] = fmaf(a[i].d, v, acc[o]);
            }
        }
        store_row(t, r, acc);
    }
}

static float float_weight(enum dtype type, const uint8_t *w, uint64_t i)
{
    uint16_t h;
    float v;

    if (type == DTYPE_F32) {
        memcpy(&v, w + 4 * i, sizeof(v));
        return v;
    }
    memcpy(&h, w + 2 * i, sizeof(h));
    return type == DTYPE_F16 ? half_to_float(h) : bf16_to_float(h);
}

static void float_tile(const struct linear_tile *t, enum dtype type)
{
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const float *x = (const float *)t->x + r * t->x_stride;
        float p[2][16] = {{0}}, acc[16];

        for (uint32_t k = 0; k < t->n_in; k++)
            for (uint32_t o = 0; o < 16; o++)
                p[k % 2][o] = fmaf(float_weight(type, t->w, (uint64_t)k * 16 + o), x[k], p[k % 2][o]);
        for (uint32_t o = 0; o < 16; o++) acc[o] = p[0][o] + p[1][o];
        store_row(t, r, acc);
    }
}

#define FLOAT_TILE(tag, type)                                                                                          \
    static void tile_##tag(const struct linear_tile *t)                                                                \
    {                                                                                                                  \
        float_tile(t, DTYPE_##type);                                                                                   \
    }
#define QUANT_TILE(tag, type, ...)                                                                                     \
    static void tile_##tag(const struct linear_tile *t)                                                                \
    {                                                                                                                  \
        quant_tile(t, linear_form_of(DTYPE_##type));                                                                   \
    }
#define K_TILE(tag, type, ...)                                                                                         \
    static void tile_##tag(const struct linear_tile *t)                                                                \
    {                                                                                                                  \
        k_tile(t, linear_form_of(DTYPE_##type));                                                                       \
    }
LINEAR_FLOATS(FLOAT_TILE)
LINEAR_BLOCK_FORMS(QUANT_TILE)
LINEAR_K_FORMS(K_TILE)

static linear_tile_fn *tile_ref(enum dtype type)
{
    switch (type) {
        LINEAR_FLOATS(LINEAR_TILE_CASE)
        LINEAR_FORMS(LINEAR_TILE_CASE)
    default:
        return NULL;
    }
}

static const struct cpu_linear_kernels k_kernels = {LINEAR_UNIT, sizeof(struct linear_unit), quantise_k_ref, tile_ref,
                                                    NULL};
const struct cpu_linear_kernels linear_kernels_ref = {LINEAR_BLOCK, sizeof(struct linear_act), quantise_ref, tile_ref,
                                                      &k_kernels};
