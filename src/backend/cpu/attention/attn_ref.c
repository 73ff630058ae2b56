/* backend/cpu/attention/attn_ref.c - attention over a block, one pair and key after the other: what every variant must
 * reproduce. */
#include "backend/cpu/attention/attn_kernels.h"
#include "backend/cpu/attention/attn_math.h"

static void load_rows(enum dtype dtype, const void *src, uint32_t n_rows, uint32_t head_dim, float *dst, uint32_t dim)
{
    uint64_t row_bytes = kv_type_row_bytes(dtype, head_dim);

    for (uint32_t r = 0; r < n_rows; r++, dst += dim) {
        dtype_to_float(dtype, (const uint8_t *)src + r * row_bytes, dst, head_dim);
        for (uint32_t i = head_dim; i < dim; i++) dst[i] = 0;
    }
}

static void transpose(const float *rows, uint32_t dim, float *keys)
{
    for (uint32_t i = 0; i < dim; i++)
        for (uint32_t j = 0; j < 16; j++) keys[(size_t)i * ATTN_BLOCK + j] = rows[(size_t)j * dim + i];
}

static void block_of_pair(const struct attn_block *b, uint32_t pair)
{
    const float *q = b->q + (size_t)pair * b->dim;
    float *acc = b->sums.acc + (size_t)pair * b->dim, *l = b->sums.l + (size_t)pair * ATTN_LANES;
    float s[ATTN_BLOCK], m = b->sums.m[pair], corr, partial[ATTN_LANES] = {0};
    uint32_t lo = b->lo[pair], hi = b->hi[pair];

    for (uint32_t j = lo; j < hi; j++) {
        s[j] = 0;
        for (uint32_t i = 0; i < b->head_dim; i++) s[j] = fmaf(q[i], b->k[(size_t)i * ATTN_BLOCK + j], s[j]);
        if (b->softcap > 0) s[j] = (b->softcap * EXP_LOG2E) * cpu_tanh(s[j]);
        m = cpu_max(m, s[j]);
    }
    corr = cpu_exp2(b->sums.m[pair] - m);
    b->sums.m[pair] = m;
    for (uint32_t j = lo; j < hi; j++) {
        s[j] = cpu_exp2(s[j] - m);
        partial[j % ATTN_LANES] += s[j];
    }
    for (uint32_t i = 0; i < ATTN_LANES; i++) l[i] = fmaf(l[i], corr, partial[i]);
    for (uint32_t i = 0; i < b->dim; i++) {
        float a = acc[i] * corr;

        for (uint32_t j = lo; j < hi; j++) a = fmaf(s[j], b->v[(size_t)j * b->dim + i], a);
        acc[i] = a;
    }
}

static void block(const struct attn_block *b)
{
    for (uint32_t i = 0; i < b->n_pairs; i++)
        if (b->lo[i] < b->hi[i]) block_of_pair(b, i);
}

static void merge(uint32_t n_pairs, uint32_t dim, const struct attn_sums *sums, const struct attn_sums *later)
{
    for (uint32_t i = 0; i < n_pairs; i++) {
        float *acc = sums->acc + (size_t)i * dim, *l = sums->l + (size_t)i * ATTN_LANES;
        const float *acc2 = later->acc + (size_t)i * dim, *l2 = later->l + (size_t)i * ATTN_LANES;
        float m = cpu_max(sums->m[i], later->m[i]), a = cpu_exp2(sums->m[i] - m), b = cpu_exp2(later->m[i] - m);

        if (later->m[i] == -INFINITY) continue;
        sums->m[i] = m;
        for (uint32_t j = 0; j < ATTN_LANES; j++) l[j] = fmaf(l[j], a, l2[j] * b);
        for (uint32_t j = 0; j < dim; j++) acc[j] = fmaf(acc[j], a, acc2[j] * b);
    }
}

static void finish(const float *acc, const float *l, float *out, uint32_t head_dim)
{
    float divisor = cpu_tree16(l);

    for (uint32_t i = 0; i < head_dim; i++) out[i] = acc[i] / divisor + 0.0f;
}

const struct cpu_attn_kernels cpu_attn_ref = {load_rows, transpose, block, merge, finish};
