/* backend/cpu/attention/attn_v16.h - attention over a block of 64 keys in terms of v16, compiled once per instruction set by
 * attn_avx2.c, attn_avx512.c and attn_neon.c, which include v16_X.h before. Same operations, same order as
 * attn_ref.c; see attn_kernels.h.
 *
 * Both products are C = A B with the rows of A broadcast, the rows of B loaded once per ATTN_GROUP pairs, and C in
 * registers: scores [pairs, keys] = q [pairs, dims] keys [dims, 64], acc [pairs, dims] = p [pairs, keys] v [keys,
 * dims]. A group's columns are those that any of its pairs sees. Where a pair does not see one, its p is 0, which
 * changes nothing as long as the value is finite; a block whose pairs differ and whose values are not takes the pairs
 * that see the same keys together instead.
 */
#pragma once
#include <assert.h>
#include "backend/cpu/attention/attn_kernels.h"
#include "backend/cpu/attention/attn_math.h"
#include "backend/cpu/math_v16.h"
#include "backend/cpu/vector_code.h"

#define ATTN_GROUP 6 /* pairs of a register tile */

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

/* Exponent and mantissa to where a half has them: a 256th of the number; NaN by itself. */
static inline void v16_load_e4m3(const uint8_t *row, uint32_t n, float *dst)
{
    for (uint32_t i = 0; i < n; i += 16) {
        uint16_t halves[16];

        for (uint32_t j = 0; j < 16; j++) {
            uint16_t mag = row[i + j] & 0x7f;

            halves[j] = (uint16_t)((row[i + j] & 0x80) << 8 | mag << 7 | (mag == 0x7f ? 0x7e00 : 0));
        }
        v16_store(dst + i, v16_mul(v16_load_half(halves), v16_set(256)));
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
        case DTYPE_F32:
            memcpy(dst, row, whole * sizeof(*dst));
            break;
        case DTYPE_Q8_0:
            v16_load_blocks(DTYPE_Q8_0, row, head_dim, dst);
            break;
        case DTYPE_F8_E4M3:
            v16_load_e4m3(row, head_dim, dst);
            break;
        case DTYPE_Q4_0:
            v16_load_blocks(DTYPE_Q4_0, row, head_dim, dst);
            break;
        default:
            assert(!"KV type");
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

/* Scores: C [n_pairs, 16 * n] = A [n_pairs, n_k] B [n_k, 16 * n], rows of B and C ATTN_BLOCK apart, of A stride.
 * Values: C = C * corr + A B, rows of A ATTN_BLOCK apart, of B and C stride. n_k > 0. */
struct attn_product {
    const float *a, *b, *corr; /* corr: of values */
    float *c;
    uint64_t stride;
    uint32_t n_k;
};

typedef v16 v16_sums[ATTN_GROUP][V16_TILE_VECTORS];

/* One k. */
ALWAYS_INLINE void v16_step(const float *a, uint64_t a_stride, const float *b, v16_sums s, const int n_pairs,
                            const int n)
{
    v16 x[V16_TILE_VECTORS];

    UNROLL(4)
    for (int d = 0; d < n; d++) x[d] = v16_load(b + 16 * d);
    UNROLL(6)
    for (int i = 0; i < n_pairs; i++) {
        const v16 w = v16_set(a[i * a_stride]);

        UNROLL(4)
        for (int d = 0; d < n; d++) s[i][d] = v16_fma(w, x[d], s[i][d]);
    }
}

ALWAYS_INLINE void v16_tile(const struct attn_product *p, const uint64_t stride, const uint32_t n_k, const int n_pairs,
                            const int n, const bool values)
{
    const uint64_t a_stride = values ? ATTN_BLOCK : stride, b_stride = values ? stride : ATTN_BLOCK;
    const float *a = p->a, *b = p->b, *end = p->a + n_k, *corr = p->corr;
    float *c = p->c;
    v16_sums s;

    UNROLL(6)
    for (int i = 0; i < n_pairs; i++) {
        UNROLL(4)
        for (int d = 0; d < n; d++)
            s[i][d] = values ? v16_mul(v16_load(c + i * b_stride + 16 * d), v16_set(corr[i])) : v16_set(0);
    }
    for (; a < end; a++, b += b_stride) v16_step(a, a_stride, b, s, n_pairs, n);
    UNROLL(6)
    for (int i = 0; i < n_pairs; i++) {
        UNROLL(4)
        for (int d = 0; d < n; d++) v16_store(c + i * b_stride + 16 * d, s[i][d]);
    }
}

#define TILE(pairs, n)                                                                                                 \
    static void v16_scores_##pairs##_##n(const struct attn_product *p)                                                 \
    {                                                                                                                  \
        v16_tile(p, p->stride, p->n_k, pairs, n, false);                                                               \
    }                                                                                                                  \
    static void v16_values_##pairs##_##n(const struct attn_product *p)                                                 \
    {                                                                                                                  \
        v16_tile(p, p->stride, p->n_k, pairs, n, true);                                                                \
    }
#define TILES(n) TILE(1, n) TILE(2, n) TILE(3, n) TILE(4, n) TILE(5, n) TILE(6, n)
#define TILE_ROW(what, n)                                                                                              \
    {                                                                                                                  \
        v16_##what##_1_##n, v16_##what##_2_##n, v16_##what##_3_##n, v16_##what##_4_##n, v16_##what##_5_##n,            \
            v16_##what##_6_##n                                                                                         \
    }
typedef void v16_tile_fn(const struct attn_product *);
TILES(1)
#if V16_TILE_VECTORS == 4
TILES(2)
TILES(3)
TILES(4)
#define TILE_ROWS(what)                                                                                                \
    {                                                                                                                  \
        TILE_ROW(what, 1), TILE_ROW(what, 2), TILE_ROW(what, 3), TILE_ROW(what, 4)                                     \
    }
#else
#define TILE_ROWS(what)                                                                                                \
    {                                                                                                                  \
        TILE_ROW(what, 1)                                                                                              \
    }
#endif
static v16_tile_fn *const v16_scores_tiles[V16_TILE_VECTORS][ATTN_GROUP] = TILE_ROWS(scores);
static v16_tile_fn *const v16_values_tiles[V16_TILE_VECTORS][ATTN_GROUP] = TILE_ROWS(values);
#undef TILE
#undef TILES
#undef TILE_ROW
#undef TILE_ROWS

#if V16_TILE_VECTORS == 4
/* Of the usual widths and whole blocks: addresses known when compiled take a twentieth off. */
#define TILE(pairs, dim)                                                                                               \
    static void v16_scores_##pairs##_of_##dim(const struct attn_product *p)                                            \
    {                                                                                                                  \
        v16_tile(p, dim, dim, pairs, 4, false);                                                                        \
    }                                                                                                                  \
    static void v16_values_##pairs##_of_##dim(const struct attn_product *p)                                            \
    {                                                                                                                  \
        v16_tile(p, dim, ATTN_BLOCK, pairs, 4, true);                                                                  \
    }
#define TILES(dim) TILE(1, dim) TILE(2, dim) TILE(3, dim) TILE(4, dim) TILE(5, dim) TILE(6, dim)
#define TILE_ROW(what, dim)                                                                                            \
    {                                                                                                                  \
        v16_##what##_1_of_##dim, v16_##what##_2_of_##dim, v16_##what##_3_of_##dim, v16_##what##_4_of_##dim,            \
            v16_##what##_5_of_##dim, v16_##what##_6_of_##dim                                                           \
    }
TILES(64)
TILES(128)
static v16_tile_fn *const v16_whole_scores[2][ATTN_GROUP] = {TILE_ROW(scores, 64), TILE_ROW(scores, 128)};
static v16_tile_fn *const v16_whole_values[2][ATTN_GROUP] = {TILE_ROW(values, 64), TILE_ROW(values, 128)};
#undef TILE
#undef TILES
#undef TILE_ROW
#endif

/* The same for any number of vectors. */
static void v16_product(struct attn_product p, uint32_t n_pairs, uint32_t n_vectors)
{
    while (n_vectors > 0) {
        uint32_t n = n_vectors < V16_TILE_VECTORS ? n_vectors : V16_TILE_VECTORS;

        (p.corr ? v16_values_tiles : v16_scores_tiles)[n - 1][n_pairs - 1](&p);
        p.b += 16 * n, p.c += 16 * n;
        n_vectors -= n;
    }
}

/* ---- softmax ---- */

/* Scores of one pair in columns from .. to-1 (multiples of 16): softcap, hidden ones to -inf. Returns the highest of
 * each lane. */
static inline v16 v16_mask(const struct attn_block *b, uint32_t pair, float *scores, uint32_t from, uint32_t to)
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
    return top;
}

/* A group's way through a block: scores, the new m and what it changes, p and l, values. */
struct attn_group {
    float scores[ATTN_GROUP * ATTN_BLOCK], corr[ATTN_LANES], tops[ATTN_LANES];
    uint32_t first, n_pairs, from, to;
    bool whole; /* every pair sees every column */
} __attribute__((aligned(64)));

/* The highest scores so far: m moves on. */
static inline void v16_tops(const struct attn_block *b, struct attn_group *g)
{
    const bool plain = b->softcap <= 0 && g->whole;
    v16 highest[8], m, top;

    for (uint32_t i = 0; i < 8; i++) highest[i] = v16_set(0);
    for (uint32_t i = 0; i < g->n_pairs; i++) {
        float *s = g->scores + i * ATTN_BLOCK;

        if (plain)
            highest[i] = v16_max(v16_max(v16_load(s), v16_load(s + 16)), v16_max(v16_load(s + 32), v16_load(s + 48)));
        else
            highest[i] = v16_mask(b, g->first + i, s, g->from, g->to);
    }
    m = v16_load_n(b->sums.m + g->first, g->n_pairs);
    top = v16_max(m, v16_highest_of(highest));
    v16_store(g->tops, top);
    /* one by one: a masked store would hold up the next group's load of m */
    for (uint32_t i = 0; i < g->n_pairs; i++) b->sums.m[g->first + i] = g->tops[i];
    v16_store(g->corr, v16_exp2(v16_sub(m, top)));
}

/* Sixteen scores to p; sum moves on. */
static inline v16 v16_powers(float *p, v16 top, v16 sum)
{
    v16 e = v16_exp2(v16_sub(v16_load(p), top));

    v16_store(p, e);
    return v16_add(sum, e);
}

static inline void v16_move_l(const struct attn_block *b, const struct attn_group *g, uint32_t i, v16 sum)
{
    float *l = b->sums.l + (uint64_t)(g->first + i) * ATTN_LANES;

    v16_store(l, v16_fma(v16_load(l), v16_set(g->corr[i]), sum));
}

/* Scores to p, pair by pair; l moves on. */
static inline void v16_softmax(const struct attn_block *b, struct attn_group *g)
{
    for (uint32_t i = 0; i < g->n_pairs; i++) {
        v16 sum = v16_set(0);

        for (uint32_t j = g->from; j < g->to; j += 16)
            sum = v16_powers(g->scores + i * ATTN_BLOCK + j, v16_set(g->tops[i]), sum);
        v16_move_l(b, g, i, sum);
    }
}

/* ---- blocks ---- */

static inline void v16_group_scores(const struct attn_block *b, struct attn_group *g)
{
    struct attn_product p = {.a = b->q + (uint64_t)g->first * b->dim,
                             .b = b->k + g->from,
                             .c = g->scores + g->from,
                             .stride = b->dim,
                             .n_k = b->head_dim};

#if V16_TILE_VECTORS == 4
    if (g->whole && (b->head_dim == 64 || b->head_dim == 128)) {
        v16_whole_scores[b->head_dim / 128][g->n_pairs - 1](&p);
        return;
    }
#endif
    v16_product(p, g->n_pairs, (g->to - g->from) / 16);
}

static inline void v16_group_values(const struct attn_block *b, const struct attn_group *g, uint32_t lo, uint32_t hi)
{
    struct attn_product p = {.a = g->scores + lo,
                             .b = b->v + (uint64_t)lo * b->dim,
                             .corr = g->corr,
                             .c = b->sums.acc + (uint64_t)g->first * b->dim,
                             .stride = b->dim,
                             .n_k = hi - lo};

#if V16_TILE_VECTORS == 4
    if (g->whole && (b->dim == 64 || b->dim == 128)) {
        for (uint32_t i = 0; i < b->dim; i += 64, p.b += 64, p.c += 64)
            v16_whole_values[b->dim / 128][g->n_pairs - 1](&p);
        return;
    }
#endif
    v16_product(p, g->n_pairs, b->dim / 16);
}

/* At most ATTN_GROUP pairs; lo < hi for each. */
static void v16_group(const struct attn_block *b, uint32_t first, uint32_t n_pairs)
{
    uint32_t lo = b->lo[first], hi = b->hi[first];
    struct attn_group g;

    for (uint32_t i = first + 1; i < first + n_pairs; i++) {
        lo = b->lo[i] < lo ? b->lo[i] : lo;
        hi = b->hi[i] > hi ? b->hi[i] : hi;
    }
    g.first = first, g.n_pairs = n_pairs, g.from = lo / 16 * 16, g.to = (hi + 15) / 16 * 16, g.whole = false;
    v16_group_scores(b, &g);
    v16_tops(b, &g);
    v16_softmax(b, &g);
    v16_group_values(b, &g, lo, hi);
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

/* Where asking for what comes next stands. */
struct attn_asked {
    uint32_t part, line;
};

/* Asks for n more lines. */
static inline void v16_ask(const struct attn_ahead *ahead, struct attn_asked *asked, uint32_t n)
{
    for (; asked->part < ahead->n; asked->part++, asked->line = 0) {
        const struct attn_ahead_part *part = &ahead->part[asked->part];

        for (; asked->line < part->n_lines; asked->line++) {
            if (n-- == 0) return;
            __builtin_prefetch(part->at + (uint64_t)asked->line * ATTN_LINE, 0, 2);
        }
    }
}

/* So many per group that all are asked for by the last but one. */
static uint32_t v16_lines_per_group(const struct attn_block *b)
{
    uint32_t n_groups = b->n_pairs / ATTN_GROUP, n_lines = 0;

    for (uint32_t i = 0; i < b->ahead->n; i++) n_lines += b->ahead->part[i].n_lines;
    return n_groups > 1 ? n_lines / (n_groups - 1) + 1 : n_lines;
}

/* Pairs of the next group of those that are left: all groups about equal. */
static inline uint32_t v16_group_size(uint32_t n_left)
{
    uint32_t n_groups = (n_left + ATTN_GROUP - 1) / ATTN_GROUP;

    return (n_left + n_groups - 1) / n_groups;
}

/* All pairs see all keys: the exponentials of a group are taken after the scores of the next were multiplied, so that
 * neither waits for the other's last results. */
static void v16_whole_block(const struct attn_block *b)
{
    const uint32_t n_lines = v16_lines_per_group(b) / 4 + 1;
    struct attn_asked asked = {0};
    struct attn_group groups[2];
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_pairs; i += groups[n++ & 1].n_pairs) {
        struct attn_group *g = &groups[n & 1], *before = &groups[~n & 1];

        g->first = i, g->n_pairs = v16_group_size(b->n_pairs - i), g->from = 0, g->to = ATTN_BLOCK;
        g->whole = true;
        v16_ask(b->ahead, &asked, n_lines);
        v16_group_scores(b, g);
        v16_ask(b->ahead, &asked, n_lines);
        if (i > 0) v16_softmax(b, before);
        v16_ask(b->ahead, &asked, n_lines);
        v16_tops(b, g);
        v16_ask(b->ahead, &asked, n_lines);
        if (i > 0) v16_group_values(b, before, 0, ATTN_BLOCK);
    }
    v16_softmax(b, &groups[~n & 1]);
    v16_group_values(b, &groups[~n & 1], 0, ATTN_BLOCK);
}

static void v16_block(const struct attn_block *b)
{
    const uint32_t n_lines = v16_lines_per_group(b);
    struct attn_asked asked = {0};
    uint32_t lo = ATTN_BLOCK, hi = 0, n;
    bool mixed = false, finite;

    if (b->whole) {
        v16_whole_block(b);
        return;
    }
    for (uint32_t i = 0; i < b->n_pairs; i++) {
        mixed |= !v16_same_keys(b, 0, i);
        if (b->lo[i] >= b->hi[i]) continue;
        lo = b->lo[i] < lo ? b->lo[i] : lo;
        hi = b->hi[i] > hi ? b->hi[i] : hi;
    }
    if (lo >= hi) return;
    finite = !mixed || v16_all_finite(b->v + (uint64_t)lo * b->dim, (uint64_t)(hi - lo) * b->dim);
    for (uint32_t i = 0; i < b->n_pairs; i += n) {
        uint32_t most = v16_group_size(b->n_pairs - i);

        n = 1;
        if (b->lo[i] >= b->hi[i]) continue;
        while (n < most && b->lo[i + n] < b->hi[i + n] && (finite || v16_same_keys(b, i, i + n))) n++;
        v16_ask(b->ahead, &asked, n_lines);
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

#define ATTN_KERNELS_V16                                                                                               \
    {                                                                                                                  \
        v16_load_rows, v16_transpose, v16_block, v16_merge, v16_finish                                                 \
    }
