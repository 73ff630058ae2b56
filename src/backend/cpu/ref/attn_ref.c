/* backend/cpu/ref/attn_ref.c - attention over a block, one pair and key after the other: what every variant must
 * reproduce. */
#include "backend/cpu/attn_kernels.h"
#include "backend/cpu/cpu_math.h"

static void load_rows(enum dtype dtype, const void *src, uint32_t n_rows, uint32_t head_dim, float *dst, uint32_t dim)
{
    uint64_t row_bytes = (uint64_t)head_dim * dtype_block_bytes(dtype);

    for (uint32_t r = 0; r < n_rows; r++, dst += dim) {
        dtype_to_float(dtype, (const uint8_t *)src + r * row_bytes, dst, head_dim);
        for (uint32_t i = head_dim; i < dim; i++) dst[i] = 0;
    }
}

static float dot(const float *a, const float *b, uint32_t dim)
{
    float p[16] = {0};

    for (uint32_t i = 0; i < dim; i++) p[i % 16] = fmaf(a[i], b[i], p[i % 16]);
    return cpu_tree16(p);
}

static void block_of_pair(const struct attn_block *b, struct attn_pair *pair, const float *q, float *acc, float *s)
{
    float m = pair->m, corr, sums[16] = {0};

    for (uint32_t j = pair->lo; j < pair->hi; j++) {
        s[j] = dot(q, b->k + (size_t)j * b->dim, b->dim) * b->scale;
        if (b->softcap > 0) s[j] = b->softcap * cpu_tanh(s[j] / b->softcap);
        m = cpu_max(m, s[j]);
    }
    corr = cpu_exp(pair->m - m);
    for (uint32_t j = pair->lo; j < pair->hi; j++) {
        s[j] = cpu_exp(s[j] - m);
        sums[j % 16] += s[j];
    }
    pair->m = m;
    pair->l = fmaf(pair->l, corr, cpu_tree16(sums));
    for (uint32_t i = 0; i < b->dim; i++) {
        float a = acc[i] * corr;

        for (uint32_t j = pair->lo; j < pair->hi; j++) a = fmaf(s[j], b->v[(size_t)j * b->dim + i], a);
        acc[i] = a;
    }
}

static void block(const struct attn_block *b)
{
    for (uint32_t i = 0; i < b->n_pairs; i++) {
        if (b->pairs[i].lo >= b->pairs[i].hi) continue;
        block_of_pair(b, &b->pairs[i], b->q + (size_t)i * b->dim, b->acc + (size_t)i * b->dim, b->scores);
    }
}

static void merge(struct attn_pair *pair, float *acc, const struct attn_pair *pair2, const float *acc2, uint32_t dim)
{
    float m = cpu_max(pair->m, pair2->m), a = cpu_exp(pair->m - m), b = cpu_exp(pair2->m - m);

    pair->m = m;
    pair->l = fmaf(pair->l, a, pair2->l * b);
    for (uint32_t i = 0; i < dim; i++) acc[i] = fmaf(acc[i], a, acc2[i] * b);
}

static void finish(const float *acc, float l, float *out, uint32_t head_dim)
{
    for (uint32_t i = 0; i < head_dim; i++) out[i] = acc[i] / l;
}

const struct cpu_attn_kernels cpu_attn_ref = {load_rows, block, merge, finish};
