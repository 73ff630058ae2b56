/* backend/cpu/attn_v16.h - attention over a block of 64 keys in terms of v16, compiled once per instruction set by
 * attn_avx2.c, attn_avx512.c and attn_neon.c, which include v16_X.h before. Same operations, same order as
 * ref/attn_ref.c; see attn_kernels.h.
 *
 * Both products are C = A B with the rows of A broadcast, the rows of B loaded once per ATTN_GROUP pairs, and C in
 * registers: scores [pairs, keys] = q [pairs, dims] keys [dims, 64], acc [pairs, dims] = p [pairs, keys] v [keys,
 * dims]. A group's columns are those that any of its pairs sees. Where a pair does not see one, its p is 0, which
 * changes nothing as long as the value is finite; a block whose pairs differ and whose values are not takes the pairs
 * that see the same keys together instead.
 */
#pragma once
#include <assert.h>
#include "backend/cpu/attn_kernels.h"
#include "backend/cpu/attn_math.h"
#include "backend/cpu/math_v16.h"

#define ATTN_GROUP 6                                /* pairs of a register tile */
#define UNROLL_TEXT(x) _Pragma(#x)
#define UNROLL(n) UNROLL_TEXT(GCC unroll n)         /* arrays of vectors must become registers */

/* One row of quantised blocks. */
static inline void v16_load_blocks(enum dtype dtype, const uint8_t *row, uint32_t head_dim, float *dst)
{
    for (uint32_t i = 0; i < head_dim; i += 32, row += dtype == DTYPE_Q8_0 ? 34 : 18) {
        const v16 d = v16_set(half_at(row));
        b16 q = b16_load(row + 2);

        if (dtype == DTYPE_Q8_0) {
            v16_store(dst + i, v16_mul(d, v16_from_int8(q)));
            v16_store(dst + i + 16, v16_mul(d, v16_from_int8(b16_load(row + 18))));
        } else {
            v16_store(dst + i, v16_mul(d, v16_from_int8(b16_low_nibbles(q))));
            v16_store(dst + i + 16, v16_mul(d, v16_from_int8(b16_high_nibbles(q))));
        }
    }
}

static void v16_load_rows(enum dtype dtype, const void *src, uint32_t n_rows, uint32_t head_dim, float *dst,
                          uint32_t dim)
{
    uint64_t row_bytes = kv_type_row_bytes(dtype, head_dim);
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
        case DTYPE_Q8_0: v16_load_blocks(DTYPE_Q8_0, row, head_dim, dst); break;
        case DTYPE_Q4_0: v16_load_blocks(DTYPE_Q4_0, row, head_dim, dst); break;
        default: assert(!"KV type");
        }
        if (whole == head_dim) continue;
        dtype_to_float(dtype, row + (uint64_t)whole * dtype_block_bytes(dtype), dst + whole, head_dim - whole);
        memset(dst + head_dim, 0, (dim - head_dim) * sizeof(*dst));
    }
}

/* 2^x of x <= 0: cpu_exp2, operation for operation. */
static inline v16 v16_exp2(v16 x)
{
    v16 t = v16_add(x, v16_set(EXP2_MAGIC)), f = v16_sub(x, v16_sub(t, v16_set(EXP2_MAGIC))), p;

    p = v16_fma(v16_set(EXP2_Q4), f, v16_set(EXP2_Q3));
    p = v16_fma(p, f, v16_set(EXP2_Q2));
    p = v16_fma(p, f, v16_set(EXP2_Q1));
    p = v16_fma(p, f, v16_set(EXP2_Q0));
    p = v16_fma(p, f, v16_set(1.0f));
    return v16_mul_power(p, t, x, v16_set(EXP2_MIN));
}

/* ---- the register tile ---- */

/* C [n_pairs, 16 * n] = C * corr (0 without corr) + A [n_pairs, n_k] B [n_k, 16 * n]; n_k > 0. */
struct attn_product {
    const float *a, *b, *corr;
    float *c;
    uint64_t a_stride, b_stride, c_stride;
    uint32_t n_k;
};

static inline __attribute__((always_inline)) void v16_tile(const struct attn_product *p, const int n_pairs,
                                                           const int n)
{
    const uint64_t a_stride = p->a_stride, b_stride = p->b_stride, c_stride = p->c_stride;
    const float *a = p->a, *b = p->b, *end = p->a + p->n_k, *corr = p->corr;
    v16 s[ATTN_GROUP][V16_TILE_VECTORS], x[V16_TILE_VECTORS];
    float *c = p->c;

    UNROLL(6) for (int i = 0; i < n_pairs; i++)
        UNROLL(4) for (int d = 0; d < n; d++) s[i][d] = v16_set(0);
    if (corr) {
        UNROLL(6) for (int i = 0; i < n_pairs; i++)
            UNROLL(4) for (int d = 0; d < n; d++)
                s[i][d] = v16_mul(v16_load(c + i * c_stride + 16 * d), v16_set(corr[i]));
    }
    for (; a < end; a++, b += b_stride) {
        UNROLL(4) for (int d = 0; d < n; d++) x[d] = v16_load(b + 16 * d);
        UNROLL(6) for (int i = 0; i < n_pairs; i++) {
            const v16 w = v16_set(a[i * a_stride]);

            UNROLL(4) for (int d = 0; d < n; d++) s[i][d] = v16_fma(w, x[d], s[i][d]);
        }
    }
    UNROLL(6) for (int i = 0; i < n_pairs; i++)
        UNROLL(4) for (int d = 0; d < n; d++) v16_store(c + i * c_stride + 16 * d, s[i][d]);
}

#define TILE(pairs, n) \
    static void v16_tile_##pairs##_##n(const struct attn_product *p) { v16_tile(p, pairs, n); }
#define TILES(n) TILE(1, n) TILE(2, n) TILE(3, n) TILE(4, n) TILE(5, n) TILE(6, n)
#define TILE_ROW(n) \
    {v16_tile_1_##n, v16_tile_2_##n, v16_tile_3_##n, v16_tile_4_##n, v16_tile_5_##n, v16_tile_6_##n}
TILES(1)
#if V16_TILE_VECTORS == 4
TILES(2)
TILES(3)
TILES(4)
static void (*const v16_tiles[V16_TILE_VECTORS][ATTN_GROUP])(const struct attn_product *) = {
    TILE_ROW(1), TILE_ROW(2), TILE_ROW(3), TILE_ROW(4)};
#else
static void (*const v16_tiles[V16_TILE_VECTORS][ATTN_GROUP])(const struct attn_product *) = {TILE_ROW(1)};
#endif
#undef TILE
#undef TILES
#undef TILE_ROW

/* The same for any number of vectors. */
static void v16_product(struct attn_product p, uint32_t n_pairs, uint32_t n_vectors)
{
    while (n_vectors > 0) {
        uint32_t n = n_vectors < V16_TILE_VECTORS ? n_vectors : V16_TILE_VECTORS;

        v16_tiles[n - 1][n_pairs - 1](&p);
        p.b += 16 * n, p.c += 16 * n;
        n_vectors -= n;
    }
}

/* ---- softmax ---- */

/* Scores of one pair in columns from .. to-1 (multiples of 16): softcap, hidden ones to -inf. Returns the highest. */
static inline float v16_mask(const struct attn_block *b, uint32_t pair, float *scores, uint32_t from, uint32_t to)
{
    const v16 hidden = v16_set(-INFINITY);
    uint32_t lo = b->lo[pair], hi = b->hi[pair];
    v16 top = hidden;

    for (uint32_t j = from; j < to; j += 16) {
        v16 s = v16_load(scores + j);

        if (b->softcap > 0) s = v16_mul(v16_set(b->softcap * EXP_LOG2E), v16_tanh(s));
        if (lo > j || hi < j + 16) {
            s = lo < j + 16 && hi > j ? v16_keep(s, lo > j ? lo - j : 0, hi < j + 16 ? hi - j : 16, hidden) : hidden;
            v16_store(scores + j, s);
        } else if (b->softcap > 0) {
            v16_store(scores + j, s);
        }
        top = v16_max(top, s);
    }
    return v16_highest(top);
}

/* Scores to p, pair by pair; m and l of the sums move on. corr [ATTN_LANES]: out. */
static void v16_softmax(const struct attn_block *b, uint32_t first, uint32_t n_pairs, uint32_t from, uint32_t to,
                        float *scores, float *corr)
{
    float tops[ATTN_LANES] = {0}, change[ATTN_LANES] = {0};

    for (uint32_t i = 0; i < n_pairs; i++) {
        float top = v16_mask(b, first + i, scores + i * ATTN_BLOCK, from, to), m = b->sums.m[first + i];

        tops[i] = cpu_max(m, top);
        change[i] = m - tops[i];
    }
    v16_store(corr, v16_exp2(v16_load(change)));
    for (uint32_t i = 0; i < n_pairs; i++) {
        float *l = b->sums.l + (uint64_t)(first + i) * ATTN_LANES, *p = scores + i * ATTN_BLOCK;
        const v16 top = v16_set(tops[i]);
        v16 sum = v16_set(0);

        for (uint32_t j = from; j < to; j += 16) {
            v16 e = v16_exp2(v16_sub(v16_load(p + j), top));

            v16_store(p + j, e);
            sum = v16_add(sum, e);
        }
        v16_store(l, v16_fma(v16_load(l), v16_set(corr[i]), sum));
        b->sums.m[first + i] = tops[i];
    }
}

/* ---- blocks ---- */

/* At most ATTN_GROUP pairs; lo < hi for each. */
static void v16_group(const struct attn_block *b, uint32_t first, uint32_t n_pairs)
{
    float scores[ATTN_GROUP * ATTN_BLOCK] __attribute__((aligned(64))), corr[ATTN_LANES];
    uint32_t lo = b->lo[first], hi = b->hi[first], from, to;

    for (uint32_t i = first + 1; i < first + n_pairs; i++) {
        lo = b->lo[i] < lo ? b->lo[i] : lo;
        hi = b->hi[i] > hi ? b->hi[i] : hi;
    }
    from = lo / 16 * 16, to = (hi + 15) / 16 * 16;
    v16_product((struct attn_product){b->q + (uint64_t)first * b->dim, b->k + from, NULL, scores + from, b->dim,
                                      ATTN_BLOCK, ATTN_BLOCK, b->head_dim}, n_pairs, (to - from) / 16);
    v16_softmax(b, first, n_pairs, from, to, scores, corr);
    v16_product((struct attn_product){scores + lo, b->v + (uint64_t)lo * b->dim, corr,
                                      b->sums.acc + (uint64_t)first * b->dim, ATTN_BLOCK, b->dim, b->dim, hi - lo},
                n_pairs, b->dim / 16);
}

/* No infinity and no NaN among n values, a multiple of 16. */
static bool v16_all_finite(const float *x, uint64_t n)
{
    v16 sum = v16_set(0);

    for (uint64_t i = 0; i < n; i += 16) sum = v16_fma(v16_load(x + i), v16_set(0), sum);
    return v16_tree(sum) == 0;
}

static bool v16_same_keys(const struct attn_block *b, uint32_t i, uint32_t j)
{
    return b->lo[i] == b->lo[j] && b->hi[i] == b->hi[j];
}

static void v16_block(const struct attn_block *b)
{
    uint32_t lo = ATTN_BLOCK, hi = 0, n;
    bool mixed = false, finite;

    for (uint32_t i = 0; i < b->n_pairs; i++) {
        mixed |= !v16_same_keys(b, 0, i);
        if (b->lo[i] >= b->hi[i]) continue;
        lo = b->lo[i] < lo ? b->lo[i] : lo;
        hi = b->hi[i] > hi ? b->hi[i] : hi;
    }
    if (lo >= hi) return;
    finite = !mixed || v16_all_finite(b->v + (uint64_t)lo * b->dim, (uint64_t)(hi - lo) * b->dim);
    for (uint32_t i = 0; i < b->n_pairs; i += n) {
        uint32_t most = b->n_pairs - i;

        most = (most + (most + ATTN_GROUP - 1) / ATTN_GROUP - 1) / ((most + ATTN_GROUP - 1) / ATTN_GROUP);
        n = 1;
        if (b->lo[i] >= b->hi[i]) continue;
        while (n < most && b->lo[i + n] < b->hi[i + n] && (finite || v16_same_keys(b, i, i + n))) n++;
        v16_group(b, i, n);
    }
}

static void v16_merge(uint32_t n_pairs, uint32_t dim, const struct attn_sums *sums, const struct attn_sums *later)
{
    float top[ATTN_LANES], a[ATTN_LANES] = {0}, b[ATTN_LANES] = {0};

    for (uint32_t first = 0; first < n_pairs; first += ATTN_LANES) {
        uint32_t n = n_pairs - first < ATTN_LANES ? n_pairs - first : ATTN_LANES;

        for (uint32_t i = 0; i < n; i++) {
            top[i] = cpu_max(sums->m[first + i], later->m[first + i]);
            a[i] = sums->m[first + i] - top[i];
            b[i] = later->m[first + i] - top[i];
        }
        v16_store(a, v16_exp2(v16_load(a)));
        v16_store(b, v16_exp2(v16_load(b)));
        for (uint32_t i = 0; i < n; i++) {
            float *l = sums->l + (uint64_t)(first + i) * ATTN_LANES, *acc = sums->acc + (uint64_t)(first + i) * dim;
            const float *l2 = later->l + (uint64_t)(first + i) * ATTN_LANES;
            const float *acc2 = later->acc + (uint64_t)(first + i) * dim;
            const v16 va = v16_set(a[i]), vb = v16_set(b[i]);

            if (later->m[first + i] == -INFINITY) continue;
            sums->m[first + i] = top[i];
            v16_store(l, v16_fma(v16_load(l), va, v16_mul(v16_load(l2), vb)));
            for (uint32_t d = 0; d < dim; d += 16)
                v16_store(acc + d, v16_fma(v16_load(acc + d), va, v16_mul(v16_load(acc2 + d), vb)));
        }
    }
}

static void v16_finish(const float *acc, const float *l, float *out, uint32_t head_dim)
{
    const v16 divisor = v16_set(v16_tree(v16_load(l))), zero = v16_set(0);
    uint32_t i = 0;

    for (; i + 16 <= head_dim; i += 16) v16_store(out + i, v16_add(v16_div(v16_load(acc + i), divisor), zero));
    if (i < head_dim) v16_store_n(out + i, v16_add(v16_div(v16_load(acc + i), divisor), zero), head_dim - i);
}

#define ATTN_KERNELS_V16 {v16_load_rows, v16_transpose, v16_block, v16_merge, v16_finish}
