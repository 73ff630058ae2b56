/* sample/vocab_scan.h - passes over a whole row of logits, cut into blocks of 128 tokens, for the sampler.
 *
 * A vocabulary has up to 262,144 tokens, and most of them do not matter: the best of each block says where to look.
 * The k-th largest of the blocks' best is a lower bound of the k-th largest logit, so the k best are found in a few
 * blocks. Sums of exponentials are kept per block, so that a draw computes the weights of one block again, not all.
 *
 * Exact: e^x is computed with the same operations, in double, in the same order under every instruction set, and has
 * the same bits; sums run in a fixed order over 8 lanes within a block, then from block to block.
 * Thread  any. Errors  none. Source  Cephes' reduction of e^x, Taylor's series for the rest.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define VOCAB_BLOCK       128u
#define VOCAB_N_BLOCKS(n) (((n) + VOCAB_BLOCK - 1) / VOCAB_BLOCK)
#define VOCAB_LEAST_POWER (-60.0) /* below e^-60 of the best: 0; a million such tokens are drawn once in 10^20 */

struct vocab_kernels {
    /* best: [VOCAB_N_BLOCKS(n)] of each block. false: NaN or +inf among them. */
    bool (*best)(const float *row, uint32_t n, float *best);
    /* sums: [VOCAB_N_BLOCKS(n)] of e^((row[i] - max) * factor) over each block. max: the row's largest; factor > 0. */
    void (*sums)(const float *row, uint32_t n, double max, double factor, double *sums);
    /* The weights themselves, of at most VOCAB_BLOCK tokens: [VOCAB_BLOCK], 0 behind n. */
    void (*weights)(const float *row, uint32_t n, double max, double factor, double *weights);
    /* draw_words (base/draw.h) of tokens id .. id + VOCAB_BLOCK - 1: [VOCAB_BLOCK]. id: a multiple of 4. */
    void (*words)(uint64_t seed, uint32_t position, uint32_t id, uint32_t *words);
};
extern const struct vocab_kernels vocab_kernels_base;
extern const struct vocab_kernels vocab_kernels_avx2, vocab_kernels_avx512; /* x86-64 alone has them */
/* The fastest that this machine runs. */
const struct vocab_kernels *vocab_kernels_best(void);

struct candidate {
    float logit;
    int32_t id;
};

/* Candidates in their order: the largest logit first, of equal ones the lowest id; -inf never. */
struct vocab_supply {
    const float *row, *best; /* [n], [VOCAB_N_BLOCKS(n)] */
    float *spare;            /* [VOCAB_N_BLOCKS(n)] */
    struct candidate *heap;  /* [n] */
    uint32_t n, n_heap, n_wanted;
    float low; /* everything above or equal has been in the heap */
    bool all;
};

/* n_first: how many will be wanted, as a guess. The arrays are the caller's. */
void vocab_supply_init(struct vocab_supply *s, const float *row, uint32_t n, const float *best, float *spare,
                       struct candidate *heap, uint32_t n_first);
/* false: there are no more. */
bool vocab_supply_next(struct vocab_supply *s, struct candidate *out);

/* A heap of candidates, the first in the order above on top. */
void vocab_heap_build(struct candidate *heap, uint32_t n);
/* Takes the first candidate out; it lies at heap[n - 1] then. */
struct candidate vocab_heap_take(struct candidate *heap, uint32_t n);
