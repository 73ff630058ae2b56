/* backend/cpu/attn_v16.h - attention over a block of 64 keys in terms of v16, compiled once per instruction set by
 * attn_avx2.c and attn_avx512.c, which include v16_X.h before. Same operations, same order as ref/attn_ref.c; see
 * attn_kernels.h.
 *
 * Scores: lanes are dims, 16 keys at a time, one accumulator each, then the four levels of tree16 for all 16 at once.
 * Values: lanes are dims; up to 4 pairs with the same visible keys share the loads of v.
 */
#pragma once
#include <assert.h>
#include "backend/cpu/attn_kernels.h"
#include "backend/cpu/math_v16.h"

#define UNROLL_TEXT(x) _Pragma(#x)
#define UNROLL(n) UNROLL_TEXT(GCC unroll n)         /* arrays of vectors must become registers */

static void v16_load_rows(enum dtype dtype, const void *src, uint32_t n_rows, uint32_t head_dim, float *dst,
                          uint32_t dim)
{
    uint64_t row_bytes = (uint64_t)head_dim * dtype_block_bytes(dtype);
    const uint8_t *row = src;
    uint32_t whole = head_dim / 16 * 16, i;

    for (uint32_t r = 0; r < n_rows; r++, dst += dim, row += row_bytes) {
        switch (dtype) {
        case DTYPE_F16:
            for (i = 0; i < whole; i += 16) v16_store(dst + i, v16_load_half((const uint16_t *)row + i));
            break;
        case DTYPE_BF16:
            for (i = 0; i < whole; i += 16) v16_store(dst + i, v16_load_bf16((const uint16_t *)row + i));
            break;
        case DTYPE_F32: memcpy(dst, row, whole * sizeof(*dst)); break;
        default: assert(!"KV type");
        }
        if (whole == head_dim) continue;
        dtype_to_float(dtype, row + (uint64_t)whole * dtype_block_bytes(dtype), dst + whole, head_dim - whole);
        memset(dst + head_dim, 0, (dim - head_dim) * sizeof(*dst));
    }
}

/* Addresses are constants for the usual dims: computing them would take longer than the sums. */
static inline v16 v16_dots(const float *q, const float *k, uint32_t dim)
{
    switch (dim) {
    case 64: return v16_dot_16_keys(q, k, 64);
    case 128: return v16_dot_16_keys(q, k, 128);
    case 256: return v16_dot_16_keys(q, k, 256);
    default: return v16_dot_16_keys(q, k, dim);
    }
}

/* p[j] for the whole block (0 where not visible) and m; returns the sum of p, and the old m minus the new one. */
static inline float v16_softmax(const struct attn_block *b, struct attn_pair *pair, const float *q, float *scores,
                                float *m_change)
{
    const v16 hidden = v16_set(-INFINITY), scale = v16_set(b->scale), cap = v16_set(b->softcap);
    v16 top = hidden, sum = v16_set(0), m;
    float highest;

    for (uint32_t j = 0; j < ATTN_BLOCK; j += 16) {
        uint32_t lo = pair->lo > j ? pair->lo - j : 0, hi = pair->hi > j ? pair->hi - j : 0;
        v16 s = hidden;

        if (lo < 16 && hi > 0) {
            s = v16_mul(v16_dots(q, b->k + (uint64_t)j * b->dim, b->dim), scale);
            if (b->softcap > 0) s = v16_mul(cap, v16_tanh(v16_div(s, cap)));
            if (lo > 0 || hi < 16) s = v16_keep(s, lo, hi < 16 ? hi : 16, hidden);
            top = v16_max(top, s);
        }
        v16_store(scores + j, s);
    }
    highest = cpu_max(pair->m, v16_highest(top));
    m = v16_set(highest);
    for (uint32_t j = 0; j < ATTN_BLOCK; j += 16) {
        v16 p = v16_exp(v16_sub(v16_load(scores + j), m));

        sum = v16_add(sum, p);
        v16_store(scores + j, p);
    }
    *m_change = pair->m - highest;
    pair->m = highest;
    return v16_tree(sum);
}

/* acc = acc * corr + sum of p[j] v[j], for n_pairs pairs and n vectors of 16 dims; both are constants when inlined. */
static inline __attribute__((always_inline)) void v16_values(const float *v, uint32_t dim, uint32_t lo, uint32_t hi,
    const float *scores, const float *corr, float *acc, const int n_pairs, const int n)
{
    v16 a[4][V16_PV_VECTORS], x[V16_PV_VECTORS];
    const float *row = v + (uint64_t)lo * dim, *p = scores + lo, *end = scores + hi;

    UNROLL(4) for (int i = 0; i < n_pairs; i++) {
        const v16 w = v16_set(corr[i]);

        UNROLL(4) for (int d = 0; d < n; d++) a[i][d] = v16_mul(v16_load(acc + (uint64_t)i * dim + 16 * d), w);
    }
    for (; p < end; p++, row += dim) {
        UNROLL(4) for (int d = 0; d < n; d++) x[d] = v16_load(row + 16 * d);
        UNROLL(4) for (int i = 0; i < n_pairs; i++) {
            const v16 w = v16_set(p[i * (int)ATTN_BLOCK]);

            UNROLL(4) for (int d = 0; d < n; d++) a[i][d] = v16_fma(w, x[d], a[i][d]);
        }
    }
    UNROLL(4) for (int i = 0; i < n_pairs; i++)
        UNROLL(4) for (int d = 0; d < n; d++) v16_store(acc + (uint64_t)i * dim + 16 * d, a[i][d]);
}

static inline __attribute__((always_inline)) void v16_values_of(const struct attn_block *b,
                                                                const struct attn_pair *pair, const float *scores,
                                                                const float *corr, float *acc, const int n_pairs)
{
    uint32_t d = 0;

    for (; d + 16 * V16_PV_VECTORS <= b->dim; d += 16 * V16_PV_VECTORS)
        v16_values(b->v + d, b->dim, pair->lo, pair->hi, scores, corr, acc + d, n_pairs, V16_PV_VECTORS);
    for (; d < b->dim; d += 16)
        v16_values(b->v + d, b->dim, pair->lo, pair->hi, scores, corr, acc + d, n_pairs, 1);
}

static void v16_block(const struct attn_block *b)
{
    float corr[ATTN_MAX_PAIRS] = {0}, sums[ATTN_MAX_PAIRS];
    uint32_t n;

    for (uint32_t i = 0; i < b->n_pairs; i++) {
        if (b->pairs[i].lo >= b->pairs[i].hi) continue;
        sums[i] =
            v16_softmax(b, &b->pairs[i], b->q + (uint64_t)i * b->dim, b->scores + (uint64_t)i * ATTN_BLOCK, &corr[i]);
    }
    for (uint32_t i = 0; i < b->n_pairs; i += 16) v16_store(corr + i, v16_exp(v16_load(corr + i)));
    for (uint32_t i = 0; i < b->n_pairs; i++)
        if (b->pairs[i].lo < b->pairs[i].hi) b->pairs[i].l = fmaf(b->pairs[i].l, corr[i], sums[i]);
    for (uint32_t i = 0; i < b->n_pairs; i += n) {
        const struct attn_pair *pair = &b->pairs[i];
        const float *scores = b->scores + (uint64_t)i * ATTN_BLOCK;
        float *acc = b->acc + (uint64_t)i * b->dim;

        for (n = 1; n < 4 && i + n < b->n_pairs && pair[n].lo == pair->lo && pair[n].hi == pair->hi; n++) { }
        if (pair->lo >= pair->hi) continue;
        switch (n) {
        case 4: v16_values_of(b, pair, scores, corr + i, acc, 4); break;
        case 3: v16_values_of(b, pair, scores, corr + i, acc, 3); break;
        case 2: v16_values_of(b, pair, scores, corr + i, acc, 2); break;
        default: v16_values_of(b, pair, scores, corr + i, acc, 1); break;
        }
    }
}

static void v16_merge(struct attn_pair *pair, float *acc, const struct attn_pair *pair2, const float *acc2,
                      uint32_t dim)
{
    float m = cpu_max(pair->m, pair2->m), a = cpu_exp(pair->m - m), b = cpu_exp(pair2->m - m);
    const v16 va = v16_set(a), vb = v16_set(b);

    pair->m = m;
    pair->l = fmaf(pair->l, a, pair2->l * b);
    for (uint32_t i = 0; i < dim; i += 16)
        v16_store(acc + i, v16_fma(v16_load(acc + i), va, v16_mul(v16_load(acc2 + i), vb)));
}

static void v16_finish(const float *acc, float l, float *out, uint32_t head_dim)
{
    const v16 divisor = v16_set(l);
    uint32_t i = 0;

    for (; i + 16 <= head_dim; i += 16) v16_store(out + i, v16_div(v16_load(acc + i), divisor));
    if (i < head_dim) v16_store_n(out + i, v16_div(v16_load(acc + i), divisor), head_dim - i);
}

#define ATTN_KERNELS_V16 {v16_load_rows, v16_block, v16_merge, v16_finish}
