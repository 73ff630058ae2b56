/* backend/cpu/attention/attn_kernels.h - attention over one block of 64 keys, per instruction set.
 *
 * A "pair" is one row and one query head. Queries arrive multiplied by the scale (attn_query_scale), so that scores are
 * exponents of two. For each pair, over the block's visible keys j in lo .. hi-1 (lo >= hi: nothing happens):
 *
 *     s[j]  = fmaf chain over dims i = 0 .. head_dim-1 of q[i] k[j][i], from 0
 *     s[j]  = softcap * log2(e) * tanh(s[j]) if softcap > 0
 *     m'    = max(m, max s);  corr = 2^(m - m');  p[j] = 2^(s[j] - m')          cpu_exp2, attn_math.h
 *     l     = fmaf(l, corr, partial sums j % 16 of p[j], each in order of j): 16 floats
 *     acc   = acc * corr, then acc[i] = fmaf(p[j], v[j][i], acc[i]) in order of j
 * At the end out = acc / tree16(l) + 0: the sum takes the sign from zeros, which alone depends on whether a hidden key
 * was multiplied by its p = 0 or left out.
 *
 * Work per pair and block: 2 * 64 * dim fma. Both products run through the same register tile of 6 pairs by 64 columns
 * (AVX2: by 16): lanes are keys for the scores, over keys transposed once per block, and dims for the values. Many rows
 * and one row take the same path. A block that all pairs see whole is walked two groups at a time: the scores of one
 * are multiplied before the exponentials of the other are taken. Bound: arithmetic (prefill, shared prefixes; AVX-512,
 * 112 pairs of 64 dims in the caches: 72 % of one core's fma peak, where exponentials take 10 %, and the beginnings and
 * ends of tiles as much), cache bandwidth for few pairs (decode).
 * Source: online softmax, arXiv:2307.08691.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "backend/backend.h"

#define ATTN_BLOCK     64u /* keys; blocks begin at absolute positions that are multiples of it */
#define ATTN_MAX_PAIRS 128u
#define ATTN_LANES     16u
#define ATTN_LINE      64u /* bytes: a cache line */

/* Where the online softmax of n pairs stands: m = -inf, l = 0, acc = 0 before the first block. */
struct attn_sums {
    float *m;   /* [n_pairs] */
    float *l;   /* [n_pairs, 16] */
    float *acc; /* [n_pairs, dim] */
};

/* Stored rows of the block that comes next, and of another one: whoever walks many pairs asks for them while it
 * computes, a few lines at a time, because a core can wait for about 16 only. */
struct attn_ahead {
    uint32_t n;
    struct attn_ahead_part {
        const uint8_t *at;
        uint32_t n_lines;
    } part[4 * ATTN_BLOCK]; /* of ATTN_LINE bytes */
};

struct attn_block {
    uint32_t n_pairs, head_dim, dim; /* dim: head_dim rounded up to 16 */
    float softcap;
    bool whole;              /* every pair sees every key: lo and hi say so as well */
    const float *q;          /* [n_pairs, dim] */
    const float *k;          /* [head_dim, ATTN_BLOCK]; columns outside every lo .. hi hold anything */
    const float *v;          /* [ATTN_BLOCK, dim], padding 0; rows likewise */
    const uint32_t *lo, *hi; /* [n_pairs]; the visible keys of all pairs together have no gap */
    struct attn_sums sums;
    const struct attn_ahead *ahead; /* may be ignored */
};

struct cpu_attn_kernels {
    /* n_rows rows of head_dim KV values to float rows of stride dim, padding zeroed */
    void (*load_rows)(enum dtype dtype, const void *src, uint32_t n_rows, uint32_t head_dim, float *dst, uint32_t dim);
    /* rows [16, dim] to 16 columns of keys [dim, ATTN_BLOCK] */
    void (*transpose)(const float *rows, uint32_t dim, float *keys);
    void (*block)(const struct attn_block *b);
    /* sums <- sums merged with those of a later segment; a pair with m = -inf there stays as it is.
     * m' = max; a = 2^(m - m'), b = 2^(m2 - m'); l = fmaf(l, a, l2 * b), acc = fmaf(acc, a, acc2 * b) */
    void (*merge)(uint32_t n_pairs, uint32_t dim, const struct attn_sums *sums, const struct attn_sums *later);
    void (*finish)(const float *acc, const float *l, float *out, uint32_t head_dim); /* out = acc / tree16(l) + 0 */
};

extern const struct cpu_attn_kernels cpu_attn_ref, cpu_attn_avx2, cpu_attn_avx512, cpu_attn_neon;
