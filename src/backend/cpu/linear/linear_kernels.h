/* backend/cpu/linear/linear_kernels.h - linear of the CPU backend: how weights and activations lie, what a kernel computes.
 *
 * WEIGHTS are packed into tiles of 16 outputs, one tile after the other, the last one filled up with zeros:
 *     tile: [quants of every block of 32 k][scales], tile_bytes long, a multiple of 64
 * F32, F16, BF16:  [n_in][16 outputs] elements; no scales.
 * Quantised: an unsigned quant u stands for the weight D * (u - offset) + M. A block of 32 k is 8 groups of 4 k; a
 * group is one 64-byte line: [16 outputs][4 k] bytes, which is what one vpdpbusd takes. Quants of fewer bits share
 * lines:
 *     4 bits: line j of 4 has group j in the low and group j + 4 in the high nibbles
 *     2 bits: line j of 2 has groups 4j .. 4j+3 from the low bits up;  1 bit: bit g of the only line is group g
 *     6 bits: the 4-bit lines, then the 2-bit lines of the top bits; 5 = 4 + 1; 3 = 2 + 1; 8 = 8 lines
 * Scales, per 32 or per 256 k ("unit"), 16 outputs side by side everywhere:
 *     SCALES_D     f16 d                                    D = d
 *     SCALES_DM    f16 d, f16 m                             D = d, M = m
 *     SCALES_K     f16 d; 16 x int8 scale                   D = d * scale, one per 16 k
 *     SCALES_KM    f16 d, f16 dmin; 8 x (u8 scale, u8 min)  D = d * scale, M = -(dmin * min), one per 32 k
 *     SCALES_K2    f16 d, f16 dmin; 16 x (min << 4 | scale) the same, one per 16 k
 * That is the file's size, +0..4 % where 6-bit scales became bytes. Types with scales per 32 are called block types
 * here, those with a unit of 256 K types.
 *
 * ACTIVATIONS of quantised weights: per row, int8 round_to_even(x * (127 / amax)), d = amax / 127, f32, where amax is
 * of a block of 32 k, for K types of a unit of 256. One with a NaN or an infinity has d = NaN (the row's outputs become
 * NaN); one below 1e-30 counts as zeros.
 *
 * THE SUM of one output, the same operations in every variant (dots are exact integers, s = sum (u - offset) * q):
 *     block types, per block, in k order:  t = D * s;  [t = fma(M, sum(q), t)] (where there is an M);
 *                                          acc = fma(d_q, t, acc)
 *     K types, per unit, in k order:       S = sum of scale_j * s_j, L = sum of min_j * sum_j(q), over the unit's 8 or
 *                                          16 j: exact 32-bit integers, so a variant takes them in any order;
 *                                          t = d * S;  [t = fma(-dmin, L, t)];  acc = fma(d_q, t, acc)
 *     float weights:                       p[k % 2] = fma(w, x, p[k % 2]);  acc = p[0] + p[1]
 *     out = acc, or acc + bias. Integers are rounded to nearest even float first.
 * |S| is at most 133 million (Q6_K: 128 * 32 * 127 * 256), |L| at most 2.1 million.
 * Thread  any; kernels write only their own outputs.
 * Source  block formats: tensor/dtype.h; int8 activations against block-quantised weights, per 32 and per 256:
 *         llama.cpp's Q8_0 and Q8_K dot products.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "backend/backend.h"
#include "backend/cpu/linear/linear_forms.h"
#include "tensor/dtype.h"

#define LINEAR_TILE     16u  /* outputs */
#define LINEAR_BLOCK    32u  /* k */
#define LINEAR_UNIT     256u /* k that scales of K types share */
#define LINEAR_ACT_TINY 1e-30f

enum linear_scales { SCALES_NONE, SCALES_D, SCALES_DM, SCALES_K, SCALES_KM, SCALES_K2 };

struct linear_form {
    uint32_t bits;         /* of a quant; 0: float weights */
    uint32_t offset_shift; /* offset = 1 << offset_shift, or 0 when offset_shift is 0 */
    enum linear_scales scales;
    uint32_t block_bytes;        /* quants of 32 k x 16 outputs; float weights: of 1 k x 16 outputs */
    uint32_t unit_k, unit_bytes; /* scales; 0 for float weights */
};

/* NULL when the type has no form. */
const struct linear_form *linear_form_of(enum dtype t);

/* Where a tile's scales begin, and its size. n_in is a multiple of the type's block. */
uint64_t linear_scales_offset(const struct linear_form *f, uint32_t n_in);
uint64_t linear_tile_bytes(const struct linear_form *f, uint32_t n_in);

static inline bool linear_is_k(const struct linear_form *f)
{
    return f->unit_k == LINEAR_UNIT;
}

/* 32 activations of a row: one cache line. */
struct linear_act {
    int8_t q[32];
    float d;
    float sum;       /* of q */
    int32_t neg_sum; /* -sum */
    uint32_t unused[5];
};

/* 256 activations of a row, for K types. */
struct linear_unit {
    int8_t q[256];
    int16_t sum16[16]; /* of q, of each 16 k */
    int16_t sum32[8];  /* of each 32 k */
    float d;
    uint32_t unused[3];
};

/* Memory that is read after this product: a kernel that goes over a tile's blocks soon_passes() times asks for `step` lines at
 * each block of 32 k of each time. */
struct soon_part {
    const uint8_t *at, *end;
    uint32_t step;
};

/* out[r, o] for every row and the tile's first n_out outputs. */
struct linear_tile {
    const uint8_t *w;             /* the tile, 64-byte aligned */
    uint32_t n_in, n_rows, n_out; /* n_out: 1 .. 16 */
    bool ask_l2;                  /* for weights to come: linear_prefetch.h */
    bool again;                   /* rows of the same tile came right before: it is in the cache */
    struct soon_part *soon;       /* what a kernel asks for meanwhile, where it does (linear_soon.h) */
    const void *x;                /* struct linear_act, linear_unit, or float for float weights */
    uint64_t x_stride;            /* in elements of x */
    float *out;                   /* [n_rows, out_stride] */
    uint64_t out_stride;
    const float *bias; /* [n_out] or NULL */
};

typedef void linear_tile_fn(const struct linear_tile *t);

/* Rows that float weights meet at once, opened, with AVX2 (linear_float_avx2.c): a multiple of 6, and of 16. */
#define LINEAR_MANY_FLOAT 240u
linear_tile_fn *linear_float_tile_avx2(enum dtype t);

/* MANY ROWS, on a matrix unit: the same numbers, a block of 32 k of 16 rows side by side. Rows that are not there are
 * zeros. */
struct linear_act16 {
    int8_t q[16][32];
    float d[16], sum[16];
};

/* A unit of 256 k of 16 rows: four matrices of 64 k; sums of 16 k as 64 * high + low, both bf16: 0 <= low < 64. */
struct linear_unit16 {
    int8_t q[4][16][64];
    struct {
        uint16_t high, low;
    } sums[16][16]; /* [row][16 k] */
    float d[16];
};

/* out[r, o] for every row and the outputs of several tiles that lie one after the other. */
struct linear_panel {
    const uint8_t *w;      /* the first tile */
    const uint8_t *next_w; /* tiles that this thread will probably compute next, or NULL */
    uint64_t tile_bytes;
    uint32_t n_in, n_rows, n_out; /* n_out: of all tiles together */
    const void *x;                /* struct linear_act16 or linear_unit16: [ceil(n_rows / 16), n_in / 32 or 256] */
    float *out;                   /* [n_rows, out_stride] */
    uint64_t out_stride;
    const float *bias; /* [n_out] or NULL */
    float *best;       /* as linear_args', of the panel's first tile on; n_rows <= 16 then; or NULL */
    uint64_t best_stride;
    void *scratch; /* of this thread alone: scratch_bytes, at a page's start; or NULL where 0 */
};

/* Whether a block of best ends before output o of a panel, of which there are tiles up to there. */
static inline bool ends_block(const struct linear_panel *p, uint32_t o)
{
    return o % BEST_BLOCK == 0 || o >= p->n_out;
}

typedef void linear_panel_fn(const struct linear_panel *p);

struct cpu_linear_kernels {
    uint32_t act_k, act_bytes;                                   /* one struct linear_act or linear_unit */
    void (*quantise)(const float *x, uint32_t n_in, void *acts); /* n_in: a multiple of act_k */
    linear_tile_fn *(*tile)(enum dtype t);                       /* never NULL for a type with a form */
    const struct cpu_linear_kernels *k;                          /* those of K types; NULL in them */
};

struct cpu_panel_kernels {
    uint32_t act_k, act_bytes; /* one struct linear_act16 or linear_unit16 */
    uint32_t min_rows;         /* fewer rows are faster as tiles */
    uint32_t scratch_bytes;    /* that a panel needs: a multiple of 4,096 */
    /* n_rows: 1 .. 16. n_in: a multiple of act_k. */
    void (*quantise16)(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t n_in, void *acts);
    linear_panel_fn *(*panel)(enum dtype t); /* never NULL for quantised types */
    const struct cpu_panel_kernels *k;       /* those of K types; NULL in them */
};

extern const struct cpu_linear_kernels linear_kernels_ref, linear_kernels_avx2, linear_kernels_avx512;
extern const struct cpu_linear_kernels linear_kernels_neon, linear_kernels_dotprod, linear_kernels_i8mm;
extern const struct cpu_linear_kernels linear_k_kernels_avx2, linear_k_kernels_avx512;
extern const struct cpu_panel_kernels panel_kernels_amx, panel_k_kernels_amx; /* beside linear_kernels_avx512 */
