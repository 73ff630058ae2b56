/* backend/cpu/ref/linear_ref.c - linear, plainly: the bits that the other variants must give.
 *
 * Decodes a block of a tile to one byte per quant and floats D, M, then sums as linear_kernels.h says. Speed does not
 * matter.
 */
#include "backend/cpu/linear_kernels.h"
#include <math.h>
#include <string.h>

static void quantise_ref(const float *x, uint32_t n_in, struct linear_act *out)
{
    for (uint32_t b = 0; b < n_in / LINEAR_BLOCK; b++, x += LINEAR_BLOCK, out++) {
        int32_t top = 0, half[2] = {0, 0};
        float amax, scale;

        memset(out, 0, sizeof(*out));
        for (uint32_t i = 0; i < LINEAR_BLOCK; i++) {           /* as integers, magnitudes order NaN > inf > finite */
            int32_t bits;

            memcpy(&bits, &x[i], sizeof(bits));
            bits &= 0x7fffffff;
            if (bits > top) top = bits;
        }
        memcpy(&amax, &top, sizeof(amax));
        if (!isfinite(amax)) {
            out->d = NAN;
            continue;
        }
        if (amax < LINEAR_ACT_TINY) continue;
        out->d = amax / 127.0f;
        scale = 127.0f / amax;
        for (uint32_t i = 0; i < LINEAR_BLOCK; i++) {
            out->q[i] = (int8_t)lrintf(x[i] * scale);
            half[i / 16] += out->q[i];
        }
        for (int h = 0; h < 2; h++) {
            out->half[h] = (float)half[h];
            out->neg_half[h] = -half[h];
        }
        out->neg_sum = -(half[0] + half[1]);
        out->sum = (float)(half[0] + half[1]);
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
            case 2: v = lines[g / 4 * 64 + at] >> (g % 4 * 2) & 3; break;
            case 3: v = (lines[g / 4 * 64 + at] >> (g % 4 * 2) & 3) | (lines[128 + at] >> g & 1) << 2; break;
            case 4: v = nibble; break;
            case 5: v = nibble | (lines[256 + at] >> g & 1) << 4; break;
            case 6: v = nibble | (lines[256 + g / 4 * 64 + at] >> (g % 4 * 2) & 3) << 4; break;
            default: v = lines[g * 64 + at]; break;
            }
            u[o][k] = (uint8_t)v;
        }
    }
}

struct scales_ref { float d[2][16], m[2][16]; };

static float half_at(const uint8_t *p, uint32_t i)
{
    uint16_t h;

    memcpy(&h, p + 2 * i, sizeof(h));
    return half_to_float(h);
}

/* Scales of block b; unit is its unit. */
static void block_scales(const uint8_t *unit, enum linear_scales kind, uint32_t b, struct scales_ref *s)
{
    uint32_t in_unit = b % 8;

    for (uint32_t o = 0; o < 16; o++) {
        float d = half_at(unit, o);

        switch (kind) {
        case SCALES_D:
            s->d[0][o] = d;
            break;
        case SCALES_DM:
            s->d[0][o] = d;
            s->m[0][o] = half_at(unit + 32, o);
            break;
        case SCALES_K:
            for (uint32_t h = 0; h < 2; h++)
                s->d[h][o] = d * (float)(int8_t)unit[32 + (in_unit * 2 + h) * 16 + o];
            break;
        case SCALES_KM:
            s->d[0][o] = d * (float)unit[64 + in_unit * 32 + o];
            s->m[0][o] = -(half_at(unit + 32, o) * (float)unit[64 + in_unit * 32 + 16 + o]);
            break;
        default:
            for (uint32_t h = 0; h < 2; h++) {
                uint8_t both = unit[64 + (in_unit * 2 + h) * 16 + o];

                s->d[h][o] = d * (float)(both & 15);
                s->m[h][o] = -(half_at(unit + 32, o) * (float)(both >> 4));
            }
            break;
        }
    }
}

static float block_term(const struct linear_form *f, const uint8_t u[32], const struct scales_ref *s, uint32_t o,
                        const struct linear_act *a)
{
    bool halves = f->scales == SCALES_K || f->scales == SCALES_K2;
    int32_t offset = f->offset_shift ? 1 << f->offset_shift : 0, dot[2] = {0, 0};
    float t;

    for (uint32_t k = 0; k < 32; k++) dot[k / 16] += ((int32_t)u[k] - offset) * a->q[k];
    if (halves) {
        t = s->d[0][o] * (float)dot[0];
        t = fmaf(s->d[1][o], (float)dot[1], t);
    } else {
        t = s->d[0][o] * (float)(dot[0] + dot[1]);
    }
    if (f->scales == SCALES_K2) {
        t = fmaf(s->m[0][o], a->half[0], t);
        t = fmaf(s->m[1][o], a->half[1], t);
    } else if (f->scales == SCALES_DM || f->scales == SCALES_KM) {
        t = fmaf(s->m[0][o], a->sum, t);
    }
    return t;
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
            uint8_t u[16][32];
            struct scales_ref s;

            block_quants(t->w + (uint64_t)b * f->block_bytes, f->bits, u);
            block_scales(scales + b * LINEAR_BLOCK / f->unit_k * f->unit_bytes, f->scales, b, &s);
            for (uint32_t o = 0; o < 16; o++) acc[o] = fmaf(a[b].d, block_term(f, u[o], &s, o, &a[b]), acc[o]);
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

#define FLOAT_TILE(T) static void tile_##T(const struct linear_tile *t) { float_tile(t, DTYPE_##T); }
#define QUANT_TILE(T) static void tile_##T(const struct linear_tile *t) { quant_tile(t, linear_form_of(DTYPE_##T)); }
FLOAT_TILE(F32)
FLOAT_TILE(F16)
FLOAT_TILE(BF16)
QUANT_TILE(Q4_0)
QUANT_TILE(Q4_1)
QUANT_TILE(Q5_0)
QUANT_TILE(Q5_1)
QUANT_TILE(Q8_0)
QUANT_TILE(Q2_K)
QUANT_TILE(Q3_K)
QUANT_TILE(Q4_K)
QUANT_TILE(Q5_K)
QUANT_TILE(Q6_K)

static linear_tile_fn *tile_ref(enum dtype type)
{
    switch (type) {
    case DTYPE_F32: return tile_F32;
    case DTYPE_F16: return tile_F16;
    case DTYPE_BF16: return tile_BF16;
    case DTYPE_Q4_0: return tile_Q4_0;
    case DTYPE_Q4_1: return tile_Q4_1;
    case DTYPE_Q5_0: return tile_Q5_0;
    case DTYPE_Q5_1: return tile_Q5_1;
    case DTYPE_Q8_0: return tile_Q8_0;
    case DTYPE_Q2_K: return tile_Q2_K;
    case DTYPE_Q3_K: return tile_Q3_K;
    case DTYPE_Q4_K: return tile_Q4_K;
    case DTYPE_Q5_K: return tile_Q5_K;
    case DTYPE_Q6_K: return tile_Q6_K;
    case DTYPE_NONE: break;
    }
    return NULL;
}

const struct cpu_linear_kernels linear_kernels_ref = {quantise_ref, tile_ref};
