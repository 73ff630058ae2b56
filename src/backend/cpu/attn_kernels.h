/* backend/cpu/attn_kernels.h - attention over one block of 64 keys, per instruction set.
 *
 * A "pair" is one row and one query head. Vectors are padded with zeros to dim = head_dim rounded up to 16.
 * For each pair, over the block's visible keys j in lo .. hi-1 (lo >= hi: nothing happens):
 *
 *     s[j]  = tree16 of 16 partial sums over dims i (partial i % 16, fmaf in order of i) of q[i] k[j][i]
 *     s[j]  = s[j] * scale, then softcap * tanh(s[j] / softcap) if softcap > 0
 *     m'    = max(m, max s);  corr = exp(m - m');  p[j] = exp(s[j] - m'), 0 where not visible
 *     l     = fmaf(l, corr, tree16 of 16 partial sums (partial j % 16) of p[j])
 *     acc   = acc * corr, then acc[i] = fmaf(p[j], v[j][i], acc[i]) in order of j
 *
 * Work per pair and block: 2 * 64 * dim fma; k and v (converted once per block for all pairs) stay in L1/L2. Bound:
 * arithmetic when pairs share the block (prefill), cache bandwidth for one pair (decode).
 * Source: online softmax, arXiv:2307.08691.
 */
#pragma once
#include <stdint.h>
#include "backend/backend.h"

#define ATTN_BLOCK     64u              /* keys; blocks begin at absolute positions that are multiples of it */
#define ATTN_MAX_PAIRS 32u

struct attn_pair { float m, l; uint32_t lo, hi; };   /* m = -inf, l = 0 before the first block */

struct attn_block {
    uint32_t n_pairs, dim;
    float scale, softcap;
    const float *k, *v;                 /* [ATTN_BLOCK, dim]; rows outside every pair's lo .. hi hold anything */
    const float *q;                     /* [n_pairs, dim] */
    float *acc;                         /* [n_pairs, dim]; zeros before the first block */
    float *scores;                      /* scratch [n_pairs, ATTN_BLOCK] */
    struct attn_pair *pairs;            /* [n_pairs] */
};

struct cpu_attn_kernels {
    /* n_rows rows of head_dim KV values to float rows of stride dim, padding zeroed */
    void (*load_rows)(enum dtype dtype, const void *src, uint32_t n_rows, uint32_t head_dim, float *dst, uint32_t dim);
    void (*block)(const struct attn_block *b);
    /* (m, l, acc) <- (m, l, acc) merged with a later segment (m2, l2, acc2):
     * m' = max; a = exp(m - m'), b = exp(m2 - m'); l = fmaf(l, a, l2 * b), acc = fmaf(acc, a, acc2 * b) */
    void (*merge)(struct attn_pair *pair, float *acc, const struct attn_pair *pair2, const float *acc2, uint32_t dim);
    void (*finish)(const float *acc, float l, float *out, uint32_t head_dim);   /* out = acc / l */
};

extern const struct cpu_attn_kernels cpu_attn_ref, cpu_attn_avx2, cpu_attn_avx512;
