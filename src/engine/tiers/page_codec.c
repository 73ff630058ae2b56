/* engine/tiers/page_codec.c - see the header. */
#include "engine/tiers/page_codec.h"
#include <math.h>
#include <string.h>
#include "tensor/dtype.h"

#define BLOCK 32u

bool page_codec_fits(const struct kv_layout *l)
{
    return l->dtype_k == DTYPE_F16 && l->dtype_v == DTYPE_F16 && l->head_dim % BLOCK == 0;
}

static uint64_t key_bytes(const struct kv_layout *l)
{
    return (uint64_t)l->head_dim * (l->page_tokens + 2);
}

static uint64_t value_bytes(const struct kv_layout *l)
{
    return (uint64_t)l->page_tokens * l->head_dim / BLOCK * (BLOCK + 2);
}

uint64_t page_codec_bytes(const struct kv_layout *l)
{
    return (uint64_t)l->n_layers * l->n_kv_heads * (key_bytes(l) + value_bytes(l));
}

/* n values, stride apart: their factor, and out[i * stride] as integers. */
static uint16_t pack_run(const uint16_t *x, uint32_t n, uint32_t stride, int8_t *out)
{
    float most = 0;
    uint16_t half;

    for (uint32_t i = 0; i < n; i++) {
        float a = fabsf(half_to_float(x[i * stride]));

        most = isnan(most) || a <= most ? most : a; /* NaN stays */
    }
    half = float_to_half(most / 127.0f);
    most = half_to_float(half);
    for (uint32_t i = 0; i < n; i++) {
        float q = most > 0 && most < INFINITY ? rintf(half_to_float(x[i * stride]) / most) : 0;

        out[i * stride] = (int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
    }
    return most < INFINITY ? half : 0x7e00;
}

static uint8_t *pack_keys(const struct kv_layout *l, const uint16_t *x, uint8_t *out)
{
    uint16_t factor;

    for (uint32_t c = 0; c < l->head_dim; c++) {
        factor = pack_run(x + c, l->page_tokens, l->head_dim, (int8_t *)out + 2 * l->head_dim + c);
        memcpy(out + 2 * c, &factor, 2);
    }
    return out + key_bytes(l);
}

static uint8_t *pack_values(const struct kv_layout *l, const uint16_t *x, uint8_t *out)
{
    uint16_t factor;

    for (uint32_t i = 0; i < l->page_tokens * l->head_dim; i += BLOCK, out += BLOCK + 2) {
        factor = pack_run(x + i, BLOCK, 1, (int8_t *)out + 2);
        memcpy(out, &factor, 2);
    }
    return out;
}

void page_codec_pack(const void *layout, const void *page, void *out)
{
    const struct kv_layout *l = layout;
    const uint16_t *x = page;
    uint8_t *to = out;

    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t head = 0; head < 2 * l->n_kv_heads; head++, x += l->page_tokens * l->head_dim)
            to = head < l->n_kv_heads ? pack_keys(l, x, to) : pack_values(l, x, to);
}

static const uint8_t *unpack_keys(const struct kv_layout *l, const uint8_t *in, uint16_t *x)
{
    const int8_t *q = (const int8_t *)in + 2 * l->head_dim;

    for (uint32_t c = 0; c < l->head_dim; c++) {
        uint16_t half;
        float d;

        memcpy(&half, in + 2 * c, 2);
        d = half_to_float(half);
        for (uint32_t i = c; i < l->page_tokens * l->head_dim; i += l->head_dim) x[i] = float_to_half((float)q[i] * d);
    }
    return in + key_bytes(l);
}

static const uint8_t *unpack_values(const struct kv_layout *l, const uint8_t *in, uint16_t *x)
{
    for (uint32_t i = 0; i < l->page_tokens * l->head_dim; i += BLOCK, in += BLOCK + 2) {
        uint16_t half;
        float d;

        memcpy(&half, in, 2);
        d = half_to_float(half);
        for (uint32_t k = 0; k < BLOCK; k++) x[i + k] = float_to_half((float)((const int8_t *)in)[2 + k] * d);
    }
    return in;
}

void page_codec_unpack(const void *layout, const void *in, void *page)
{
    const struct kv_layout *l = layout;
    const uint8_t *from = in;
    uint16_t *x = page;

    for (uint32_t layer = 0; layer < l->n_layers; layer++)
        for (uint32_t head = 0; head < 2 * l->n_kv_heads; head++, x += l->page_tokens * l->head_dim)
            from = head < l->n_kv_heads ? unpack_keys(l, from, x) : unpack_values(l, from, x);
}

void page_codec_pack_tail(const void *layout, const void *page, void *out)
{
    page_codec_pack(layout, page, out);
    memcpy((uint8_t *)out + page_codec_bytes(layout), (const uint8_t *)page + kv_page_bytes(layout), PAGE_CODEC_TAIL);
}

void page_codec_unpack_tail(const void *layout, const void *in, void *page)
{
    page_codec_unpack(layout, in, page);
    memcpy((uint8_t *)page + kv_page_bytes(layout), (const uint8_t *)in + page_codec_bytes(layout), PAGE_CODEC_TAIL);
}
